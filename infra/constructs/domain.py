"""The API under a name of one's own, without the firewall."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_apigatewayv2 as apigatewayv2
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_route53 as route53
from aws_cdk import aws_route53_targets as targets
from constructs import Construct

if TYPE_CHECKING:
    from infra.settings import DeploymentSettings


def domain(
    scope: Construct,
    api: apigatewayv2.HttpApi,
    stage: apigatewayv2.HttpStage,
    settings: DeploymentSettings,
) -> str:
    """Give a stage of the API the domain name of the settings; what that name must lead to."""
    scope = Construct(scope, "Domain")
    name = apigatewayv2.DomainName(
        scope,
        "Name",
        domain_name=settings.domain_name,
        certificate=acm.Certificate.from_certificate_arn(
            scope, "Certificate", settings.certificate_arn
        ),
        security_policy=apigatewayv2.SecurityPolicy.TLS_1_2,
    )
    mapping = apigatewayv2.ApiMapping(scope, "Mapping", api=api, domain_name=name, stage=stage)
    mapping.node.add_dependency(stage)
    target = targets.ApiGatewayv2DomainProperties(
        name.regional_domain_name, name.regional_hosted_zone_id
    )
    enter_name(scope, route53.RecordTarget.from_alias(target), settings)
    return name.regional_domain_name


def enter_name(
    scope: Construct, target: route53.RecordTarget, settings: DeploymentSettings
) -> None:
    """Have the domain name lead to the target, if its zone is one of Route 53's."""
    if not settings.hosted_zone_id:
        return
    zone = route53.HostedZone.from_hosted_zone_attributes(
        scope,
        "Zone",
        hosted_zone_id=settings.hosted_zone_id,
        zone_name=settings.hosted_zone_name,
    )
    # With the final dot Route 53 takes it as it is, and not as a name within the zone.
    name = f"{settings.domain_name}."
    route53.ARecord(scope, "A", zone=zone, record_name=name, target=target)
    route53.AaaaRecord(scope, "AAAA", zone=zone, record_name=name, target=target)
