"""A web ACL in front of the API, which takes CloudFront: HTTP APIs have none of their own.

What the managed rules look for in a body is let through: the body of a push is a client's
data, often megabytes of it, and a job about an attack is none. Those rules only count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Duration
from aws_cdk import aws_cloudfront as cloudfront
from aws_cdk import aws_cloudfront_origins as origins
from aws_cdk import aws_route53 as route53
from aws_cdk import aws_route53_targets as targets
from aws_cdk import aws_wafv2 as wafv2
from constructs import Construct

from ojs_aws.cdk.parts.acknowledgement import acknowledge
from ojs_aws.cdk.parts.domain import Domain, enter_name
from ojs_aws.cdk.parts.log_group import log_group, log_group_arn
from ojs_aws.cdk.parts.origin import HEADER, header_value

if TYPE_CHECKING:
    from aws_cdk import aws_secretsmanager as secretsmanager

    from ojs_aws.cdk.settings import DeploymentSettings

_Acl = wafv2.CfnWebACL
_Redacted = wafv2.CfnLoggingConfiguration.FieldToMatchProperty

# By managed rule group: rules that count instead of refusing.
COUNTED = {
    "AWSManagedRulesAmazonIpReputationList": (),
    "AWSManagedRulesCommonRuleSet": (
        "SizeRestrictions_BODY",  # anything above 8 KB
        "CrossSiteScripting_BODY",
        "EC2MetaDataSSRF_BODY",
        "GenericLFI_BODY",
        "GenericRFI_BODY",  # any URL with an IP address in it
        "NoUserAgent_HEADER",  # workers are no browsers
        "RestrictedExtensions_URIPATH",  # a queue may be called web.config
    ),
    "AWSManagedRulesKnownBadInputsRuleSet": (),
}


class Firewall(Construct):
    """A distribution that looks at requests and hands them to the API. `distribution`."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        api_domain: str,
        domain: Domain,
        origin_secret: secretsmanager.ISecret | None,
        settings: DeploymentSettings,
    ) -> None:
        """`origin_secret` is the backend's own (`jobs.origin_secret`), which refuses what comes
        without it. Raises ValueError where it has none.
        """
        super().__init__(scope, name)
        if origin_secret is None:
            raise ValueError("origin_secret: a backend has one with waf=true alone")
        rotated = f", secret {settings.waf_rotation}" if settings.waf_rotation else ""
        self.distribution = cloudfront.Distribution(
            self,
            "Distribution",
            # A change of it has CloudFormation read the secret anew.
            comment=f"Open Job Spec HTTP binding of {settings.service}" + rotated,
            domain_names=[domain.name],
            certificate=domain.certificate,
            minimum_protocol_version=cloudfront.SecurityPolicyProtocol.TLS_V1_2_2021,
            http_version=cloudfront.HttpVersion.HTTP2_AND_3,
            web_acl_id=settings.waf_acl_arn or self._web_acl(settings),
            default_behavior=cloudfront.BehaviorOptions(
                origin=origins.HttpOrigin(
                    api_domain,
                    protocol_policy=cloudfront.OriginProtocolPolicy.HTTPS_ONLY,
                    origin_ssl_protocols=[cloudfront.OriginSslPolicy.TLS_V1_2],
                    custom_headers={HEADER: header_value(self, origin_secret)},
                    # The API gives up after 30 s.
                    read_timeout=Duration.seconds(35),
                ),
                viewer_protocol_policy=cloudfront.ViewerProtocolPolicy.HTTPS_ONLY,
                allowed_methods=cloudfront.AllowedMethods.ALLOW_ALL,
                # No answer is good for a second caller; and every header goes through,
                # Authorization too, but Host, by which API Gateway knows the API.
                cache_policy=cloudfront.CachePolicy.CACHING_DISABLED,
                origin_request_policy=(
                    cloudfront.OriginRequestPolicy.ALL_VIEWER_EXCEPT_HOST_HEADER
                ),
            ),
        )
        enter_name(
            self,
            route53.RecordTarget.from_alias(targets.CloudFrontTarget(self.distribution)),
            domain,
        )
        acknowledge(
            self.distribution,
            "AwsSolutions-CFR1",
            "Where callers are is nothing to this API: workers and producers of one company may "
            "be anywhere. Who needs it brings a web ACL of their own (waf_acl_arn).",
        )
        acknowledge(
            self.distribution,
            "AwsSolutions-CFR3",
            "The API logs each request that is let through, and the web ACL each that is refused; "
            "a third log would repeat them in a bucket to be paid for.",
        )

    def _web_acl(self, settings: DeploymentSettings) -> str:
        """The ARN of a new web ACL, which logs what it refuses and no key."""

        def visibility(what: str) -> _Acl.VisibilityConfigProperty:
            return _Acl.VisibilityConfigProperty(
                cloud_watch_metrics_enabled=True,
                metric_name=f"{settings.service}-{what}",
                # Samples show whole requests, with their headers.
                sampled_requests_enabled=False,
            )

        # As the API itself says it; clients know to wait.
        too_many = _Acl.CustomResponseProperty(
            response_code=429,
            response_headers=[_Acl.CustomHTTPHeaderProperty(name="Retry-After", value="60")],
        )
        rate = _Acl.RateBasedStatementProperty(
            aggregate_key_type="IP", evaluation_window_sec=300, limit=settings.waf_rate
        )
        acl = _Acl(
            self,
            "WebAcl",
            scope="CLOUDFRONT",
            description=f"Open Job Spec HTTP binding of {settings.service}",
            default_action=_Acl.DefaultActionProperty(allow={}),
            visibility_config=visibility("all"),
            rules=[
                _Acl.RuleProperty(
                    name="rate",
                    priority=0,
                    action=_Acl.RuleActionProperty(
                        block=_Acl.BlockActionProperty(custom_response=too_many)
                    ),
                    statement=_Acl.StatementProperty(rate_based_statement=rate),
                    visibility_config=visibility("rate"),
                ),
                *(
                    _Acl.RuleProperty(
                        name=group,
                        priority=priority,
                        override_action=_Acl.OverrideActionProperty(none={}),
                        statement=_managed(group, counted),
                        visibility_config=visibility(group),
                    )
                    for priority, (group, counted) in enumerate(COUNTED.items(), start=1)
                ),
            ],
        )
        logs = log_group(
            self,
            settings=settings,
            # WAF takes no group whose name begins otherwise.
            prefix=f"aws-waf-logs-{settings.service}",
        )
        refused = {
            "Behavior": "KEEP",
            "Requirement": "MEETS_ANY",
            "Conditions": [{"ActionCondition": {"Action": "BLOCK"}}],
        }
        wafv2.CfnLoggingConfiguration(
            self,
            "Logging",
            resource_arn=acl.attr_arn,
            log_destination_configs=[
                # By reference, so that the group is there first.
                log_group_arn(self, logs.log_group_name)
            ],
            redacted_fields=[
                _Redacted(single_header={"Name": "authorization"}),
                _Redacted(query_string={}),
            ],
            logging_filter={"DefaultBehavior": "DROP", "Filters": [refused]},
        )
        return acl.attr_arn


def _managed(group: str, counted: tuple[str, ...]) -> _Acl.StatementProperty:
    count = _Acl.RuleActionProperty(count={})
    overrides = [
        _Acl.RuleActionOverrideProperty(name=rule, action_to_use=count) for rule in counted
    ]
    return _Acl.StatementProperty(
        managed_rule_group_statement=_Acl.ManagedRuleGroupStatementProperty(
            vendor_name="AWS", name=group, rule_action_overrides=overrides or None
        )
    )
