"""The VPC of the functions, and its endpoints for AWS services."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

if TYPE_CHECKING:
    from collections.abc import Sequence

# Permissions that Lambda needs to attach a function to the VPC.
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
    """VPC of the functions. The API stays outside.

    Attributes:
        vpc: VPC.
        subnets: Subnets of the functions. Default: private subnets.
        security_groups: Security groups of the functions. Default: a new one.
        endpoints: Whether to add VPC endpoints for DynamoDB and S3 (free), EventBridge and SQS,
            with `authorizer=keys` or `waf=true` Secrets Manager, and with `push=true` Lambda (about
            $7 per month, endpoint, and zone). Without them, and for push delivery to HTTPS
            endpoints and messages to WebSocket connections, the subnets need a route to the
            internet. So with endpoints the default of `realtime` is off. Default: false.
    """

    vpc: ec2.IVpc
    subnets: ec2.SubnetSelection | None = None
    security_groups: Sequence[ec2.ISecurityGroup] | None = None
    endpoints: bool = False


def endpoints(scope: Construct, network: Network, *, secrets: bool, invokes: bool) -> None:
    """Add the VPC endpoints that functions need. The VPC must not have them yet."""
    inside = Construct(scope, "Endpoints")
    gateways = {
        "DynamoDb": ec2.GatewayVpcEndpointAwsService.DYNAMODB,
        # For payloads, and for responses to CloudFormation.
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
    """Return the permissions to run in a VPC. IAM can't limit them to resources."""
    return iam.PolicyStatement(sid="Network", actions=list(ADDRESS_ACTIONS), resources=["*"])
