"""A custom domain name of the API, without the firewall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_cdk import aws_apigatewayv2 as apigatewayv2
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_route53 as route53
from aws_cdk import aws_route53_targets as targets
from constructs import Construct

if TYPE_CHECKING:
    from ojs_aws.cdk.settings import DeploymentSettings


@dataclass(frozen=True)
class Domain:
    """A domain name of the API.

    Attributes:
        name: Domain name.
        certificate: Certificate in the deployment's region, or in us-east-1 with a firewall.
        zone: Route 53 zone that receives the record. None: you create the record.
    """

    name: str
    certificate: acm.ICertificate
    zone: route53.IHostedZone | None = None


def domain_of(
    scope: Construct, name: str, settings: DeploymentSettings, inside: str = "Given"
) -> Domain | None:
    """Return a domain of the settings with this name, or None. `inside` is the ID of its parts."""
    if not name:
        return None
    place = Construct(scope, inside)
    zone = None
    if settings.hosted_zone_id:
        zone = route53.HostedZone.from_hosted_zone_attributes(
            place,
            "Zone",
            hosted_zone_id=settings.hosted_zone_id,
            zone_name=settings.hosted_zone_name,
        )
    certificate = acm.Certificate.from_certificate_arn(
        place, "Certificate", settings.certificate_arn
    )
    return Domain(name, certificate, zone)


def name_api(
    scope: Construct, api: apigatewayv2.IApi, stage: apigatewayv2.IStage, domain: Domain
) -> str:
    """Map the domain name to a stage of the API. Returns the target of its DNS record."""
    scope = Construct(scope, "Domain")
    name = apigatewayv2.DomainName(
        scope,
        "Name",
        domain_name=domain.name,
        certificate=domain.certificate,
        security_policy=apigatewayv2.SecurityPolicy.TLS_1_2,
    )
    mapping = apigatewayv2.ApiMapping(scope, "Mapping", api=api, domain_name=name, stage=stage)
    mapping.node.add_dependency(stage)
    target = targets.ApiGatewayv2DomainProperties(
        name.regional_domain_name, name.regional_hosted_zone_id
    )
    enter_name(scope, route53.RecordTarget.from_alias(target), domain)
    return name.regional_domain_name


def enter_name(scope: Construct, target: route53.RecordTarget, domain: Domain) -> None:
    """Create the DNS record, if the zone is in Route 53."""
    if domain.zone is None:
        return
    # With the final dot, Route 53 doesn't append the name of the zone.
    name = f"{domain.name}."
    route53.ARecord(scope, "A", zone=domain.zone, record_name=name, target=target)
    route53.AaaaRecord(scope, "AAAA", zone=domain.zone, record_name=name, target=target)
