"""A VPC that functions run in, and the endpoints through which they reach AWS from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

if TYPE_CHECKING:
    from collections.abc import Sequence

# What Lambda does in the name of a function's role to give it an address in the VPC.
ADDRESS_ACTIONS = (
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:DeleteNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:UnassignPrivateIpAddresses",
)


@dataclass(frozen=True)
class Network:
    """Where functions run. The API itself stays where it is.

    `endpoints`: whether the VPC gets endpoints of DynamoDB and S3 (free), of EventBridge and SQS,
    with `authorizer=keys` or `waf=true` of Secrets Manager, and with `push=true` of Lambda (about 7
    dollars a month each and for each zone). Without them the subnets must lead out by themselves,
    as they must for HTTPS endpoints that jobs are pushed to.
    """

    vpc: ec2.IVpc
    subnets: ec2.SubnetSelection | None = None
    security_groups: Sequence[ec2.ISecurityGroup] | None = None
    endpoints: bool = False


def endpoints(scope: Construct, network: Network, *, secrets: bool, invokes: bool) -> None:
    """Add the endpoints to the VPC that functions need. Its owner must not have them yet."""
    inside = Construct(scope, "Endpoints")
    gateways = {
        "DynamoDb": ec2.GatewayVpcEndpointAwsService.DYNAMODB,
        # Payloads, and CloudFormation's answers.
        "S3": ec2.GatewayVpcEndpointAwsService.S3,
    }
    for name, service in gateways.items():
        ec2.GatewayVpcEndpoint(
            inside,
            name,
            vpc=network.vpc,
            service=service,
            subnets=[network.subnets] if network.subnets else None,
        )
    interfaces = {
        "Events": ec2.InterfaceVpcEndpointAwsService.EVENTBRIDGE,
        "Sqs": ec2.InterfaceVpcEndpointAwsService.SQS,
    }
    if invokes:
        interfaces["Lambda"] = ec2.InterfaceVpcEndpointAwsService.LAMBDA_
    if secrets:
        interfaces["Secrets"] = ec2.InterfaceVpcEndpointAwsService.SECRETS_MANAGER
    for name, reached in interfaces.items():
        ec2.InterfaceVpcEndpoint(
            inside, name, vpc=network.vpc, service=reached, subnets=network.subnets
        )


def addresses() -> iam.PolicyStatement:
    """What a function's role needs to run in a VPC; none of it can be limited to a resource."""
    return iam.PolicyStatement(sid="Network", actions=list(ADDRESS_ACTIONS), resources=["*"])
