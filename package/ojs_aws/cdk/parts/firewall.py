"""A web ACL in front of the API. It requires CloudFront, because HTTP APIs don't support WAF.

Managed rules about the request body only count, and don't block. The body of an enqueue request is
client data, often megabytes, and a job about an attack is not an attack.
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
from ojs_aws.cdk.parts.realtime import PATH, STAGE

if TYPE_CHECKING:
    from aws_cdk import aws_secretsmanager as secretsmanager

    from ojs_aws.cdk.parts.realtime import Realtime
    from ojs_aws.cdk.settings import DeploymentSettings

_Acl = wafv2.CfnWebACL
_Redacted = wafv2.CfnLoggingConfiguration.FieldToMatchProperty

# Rules that count instead of blocking, by managed rule group.
COUNTED = {
    "AWSManagedRulesAmazonIpReputationList": (),
    "AWSManagedRulesCommonRuleSet": (
        "SizeRestrictions_BODY",  # bodies above 8 KB
        "CrossSiteScripting_BODY",
        "EC2MetaDataSSRF_BODY",
        "GenericLFI_BODY",
        "GenericRFI_BODY",  # URLs that contain an IP address
        "NoUserAgent_HEADER",  # workers are not browsers
        "RestrictedExtensions_URIPATH",  # a queue can be named web.config
    ),
    "AWSManagedRulesKnownBadInputsRuleSet": (),
}


class Firewall(Construct):
    """A distribution that filters requests and forwards them to the API. `distribution`."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        api_domain: str,
        domain: Domain,
        origin_secret: secretsmanager.ISecret | None,
        realtime: Realtime | None,
        settings: DeploymentSettings,
    ) -> None:
        """Create the distribution.

        Args:
            scope: Stack in us-east-1.
            name: ID of the construct.
            api_domain: Domain name of the API.
            domain: Domain name of the distribution.
            origin_secret: Secret header of the backend (`jobs.origin_secret`). The backend rejects
                requests without it.
            realtime: WebSocket API of the backend (`jobs.realtime`), or None.
            settings: Settings of the deployment.

        Raises:
            ValueError: `origin_secret` is None.
        """
        super().__init__(scope, name)
        if origin_secret is None:
            raise ValueError("origin_secret: requires a backend with waf=true")
        rotated = f", secret {settings.waf_rotation}" if settings.waf_rotation else ""
        self.distribution = cloudfront.Distribution(
            self,
            "Distribution",
            # Changing the comment makes CloudFormation read the secret again.
            comment=f"Open Job Spec HTTP binding of {settings.service}" + rotated,
            domain_names=[domain.name],
            certificate=domain.certificate,
            minimum_protocol_version=cloudfront.SecurityPolicyProtocol.TLS_V1_2_2021,
            http_version=cloudfront.HttpVersion.HTTP2_AND_3,
            web_acl_id=settings.waf_acl_arn or self._web_acl(settings),
            default_behavior=_behavior(
                origins.HttpOrigin(
                    api_domain,
                    protocol_policy=cloudfront.OriginProtocolPolicy.HTTPS_ONLY,
                    origin_ssl_protocols=[cloudfront.OriginSslPolicy.TLS_V1_2],
                    custom_headers={HEADER: header_value(self, origin_secret)},
                    # The API times out after 30 s.
                    read_timeout=Duration.seconds(35),
                )
            ),
            additional_behaviors={} if realtime is None else {PATH: self._connects(realtime)},
        )
        enter_name(
            self,
            route53.RecordTarget.from_alias(targets.CloudFrontTarget(self.distribution)),
            domain,
        )
        acknowledge(
            self.distribution,
            "AwsSolutions-CFR1",
            "The location of callers doesn't matter for this API: workers and producers can be "
            "anywhere. To restrict locations, pass your own web ACL (waf_acl_arn).",
        )
        acknowledge(
            self.distribution,
            "AwsSolutions-CFR3",
            "The API logs each forwarded request, and the web ACL each blocked one. Access logs "
            "of the distribution would repeat them in a bucket, at extra cost.",
        )

    def _connects(self, realtime: Realtime) -> cloudfront.BehaviorOptions:
        """Return the behavior for connections. Their tickets come from the API, so they need no
        secret header.
        """
        # A WebSocket API has no path below its stage.
        code = f'function handler(e) {{ e.request.uri = "/{STAGE}"; return e.request; }}'
        renames = cloudfront.Function(
            self,
            "SocketPath",
            code=cloudfront.FunctionCode.from_inline(code),
            runtime=cloudfront.FunctionRuntime.JS_2_0,
            comment="Path of the WebSocket API",
        )
        origin = origins.HttpOrigin(
            realtime.api_domain,
            protocol_policy=cloudfront.OriginProtocolPolicy.HTTPS_ONLY,
            origin_ssl_protocols=[cloudfront.OriginSslPolicy.TLS_V1_2],
        )
        association = cloudfront.FunctionAssociation(
            event_type=cloudfront.FunctionEventType.VIEWER_REQUEST, function=renames
        )
        return _behavior(origin, [association])

    def _web_acl(self, settings: DeploymentSettings) -> str:
        """Create a web ACL that logs blocked requests without access keys. Returns its ARN."""

        def visibility(what: str) -> _Acl.VisibilityConfigProperty:
            return _Acl.VisibilityConfigProperty(
                cloud_watch_metrics_enabled=True,
                metric_name=f"{settings.service}-{what}",
                # Samples contain whole requests with their headers.
                sampled_requests_enabled=False,
            )

        # The same response as the API's, so that clients wait.
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
            # WAF requires this prefix of the name.
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
                # A reference, so that the log group is created first.
                log_group_arn(self, logs.log_group_name)
            ],
            redacted_fields=[
                _Redacted(single_header={"Name": "authorization"}),
                _Redacted(query_string={}),
            ],
            logging_filter={"DefaultBehavior": "DROP", "Filters": [refused]},
        )
        return acl.attr_arn


def _behavior(
    origin: origins.HttpOrigin, functions: list[cloudfront.FunctionAssociation] | None = None
) -> cloudfront.BehaviorOptions:
    return cloudfront.BehaviorOptions(
        origin=origin,
        viewer_protocol_policy=cloudfront.ViewerProtocolPolicy.HTTPS_ONLY,
        allowed_methods=cloudfront.AllowedMethods.ALLOW_ALL,
        # Responses must not be cached. All headers are forwarded, including Authorization.
        # Host is not, because API Gateway identifies the API by it.
        cache_policy=cloudfront.CachePolicy.CACHING_DISABLED,
        origin_request_policy=cloudfront.OriginRequestPolicy.ALL_VIEWER_EXCEPT_HOST_HEADER,
        function_associations=functions,
    )


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
