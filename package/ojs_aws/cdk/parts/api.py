"""The HTTP API of API Gateway in front of the functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from aws_cdk import Duration, Token
from aws_cdk import aws_apigatewayv2 as apigatewayv2
from aws_cdk import aws_lambda as lambda_
from aws_cdk.aws_apigatewayv2_authorizers import (
    HttpIamAuthorizer,
    HttpJwtAuthorizer,
    HttpLambdaAuthorizer,
    HttpLambdaResponseType,
)
from aws_cdk.aws_apigatewayv2_integrations import HttpLambdaIntegration
from constructs import Construct

from ojs_aws.cdk import server
from ojs_aws.cdk.functions import AUTHORIZER, DEFAULT_ROUTE, FunctionSpec, by_name
from ojs_aws.cdk.parts.acknowledgement import acknowledge
from ojs_aws.cdk.parts.domain import Domain, name_api
from ojs_aws.cdk.parts.grants import grant_paths
from ojs_aws.cdk.parts.log_group import log_group, log_group_arn
from ojs_aws.cdk.parts.origin import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aws_cdk import aws_iam as iam
    from aws_cdk import aws_kms as kms

    from ojs_aws.cdk.settings import DeploymentSettings

# One short JSON line per request, because CloudWatch charges by size. No query string and no
# headers: they can contain secrets, for example the key in Authorization.
_ACCESS_LOG = {
    "request_id": "$context.requestId",
    "method": "$context.httpMethod",
    "path": "$context.path",
    "status": "$context.status",
    "latency_ms": "$context.responseLatency",
    "source_ip": "$context.identity.sourceIp",
    "error": "$context.integrationErrorMessage",
    "authorizer_error": "$context.authorizer.error",
}

# Requests per second, and burst, of each public route.
OPEN_RATE_PER_S, _OPEN_BURST = 50, 100

# Identity of the caller, by the setting `authorizer`.
_CALLER = {
    "keys": {"principal": "$context.authorizer.principal", "key": "$context.authorizer.key"},
    "jwt": {"principal": "$context.authorizer.claims.sub"},
    "iam": {"principal": "$context.identity.userArn"},
}


class Api(Construct):
    """Routes to functions on the `$default` stage, so paths have no stage name.

    All routes except those of the dashboard have the authorizer of the settings. `http` is the API,
    `url` its URL, `access_log` has one line per request, and `domain_target` is the target of the
    DNS record of its domain name.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        functions: Mapping[FunctionSpec, lambda_.IFunction],
        key: kms.IKey | None,
        domain: Domain | None,
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(scope, name)
        api = apigatewayv2.HttpApi(
            self,
            "Http",
            api_name=f"ojs-{settings.stage}",
            description="Open Job Spec HTTP binding",
            create_default_stage=False,
            cors_preflight=_cors(settings),
            # With a firewall, CloudFront forwards requests to this endpoint. Functions reject
            # requests without its secret header.
            disable_execute_api_endpoint=domain is not None and not settings.waf,
        )
        authorizer = _authorizer(settings, functions)
        self._open: list[apigatewayv2.HttpRoute] = []
        for spec, function in functions.items():
            integration = HttpLambdaIntegration(
                f"{spec.name}-integration",
                function,
                payload_format_version=apigatewayv2.PayloadFormatVersion.VERSION_2_0,
            )
            for path in spec.routes:
                route = apigatewayv2.HttpRoute(
                    self,
                    f"Route {path}",
                    http_api=api,
                    route_key=apigatewayv2.HttpRouteKey.DEFAULT
                    if path == DEFAULT_ROUTE
                    else apigatewayv2.HttpRouteKey.with_(path, apigatewayv2.HttpMethod.ANY),
                    integration=integration,
                    authorizer=None if spec.open else authorizer,
                )
                if spec.open:
                    self._open.append(route)
                    if settings.is_local and path.endswith("/{proxy+}"):
                        # API Gateway doesn't accept a route key with a trailing slash, and routes
                        # such a path to the existing route. The emulator requires a route.
                        made = cast("apigatewayv2.CfnRoute", route.node.default_child)
                        apigatewayv2.CfnRoute(
                            self,
                            "Slash",
                            api_id=api.api_id,
                            route_key=made.route_key.removesuffix("{proxy+}"),
                            target=made.target,
                        )
                    acknowledge(
                        route,
                        "AwsSolutions-APIG4",
                        "The files of the dashboard are public, and a browser that requests them "
                        "has no key yet. The function has no access to data.",
                    )
                elif settings.cors_origins:
                    self._preflight(path, api, integration)
        self.access_log = access_log = log_group(
            self,
            settings=settings,
            key=key,
            # API Gateway adds log groups to a policy of limited size. Log groups with this prefix
            # need no entry.
            prefix=f"/aws/vendedlogs/ojs-{settings.stage}/http-api",
        )
        stage = apigatewayv2.HttpStage(
            self,
            "Stage",
            http_api=api,
            stage_name="$default",
            auto_deploy=True,
            throttle=apigatewayv2.ThrottleSettings(
                rate_limit=settings.throttle_rate_per_s, burst_limit=settings.throttle_burst
            ),
        )
        # The L2 property requires an interface object that only TypeScript can create.
        cfn_stage = cast("apigatewayv2.CfnStage", stage.node.default_child)
        cfn_stage.access_log_settings = apigatewayv2.CfnStage.AccessLogSettingsProperty(
            destination_arn=log_group_arn(self, access_log.log_group_name),
            format=json.dumps({**_ACCESS_LOG, **_CALLER[settings.authorizer]}),
        )
        # Requests without a key must not use up the throttle of the other routes. A parameter of a
        # template is at least this rate.
        rate = settings.throttle_rate_per_s
        open_rate = OPEN_RATE_PER_S if Token.is_unresolved(rate) else min(OPEN_RATE_PER_S, rate)
        cfn_stage.route_settings = {
            cast("apigatewayv2.CfnRoute", route.node.default_child).route_key: {
                "ThrottlingRateLimit": open_rate,
                "ThrottlingBurstLimit": min(_OPEN_BURST, settings.throttle_burst),
            }
            for route in self._open
        }
        # API Gateway rejects settings of a route that doesn't exist yet.
        stage.node.add_dependency(*self._open)
        self.http = self.requests = api
        self.url = f"https://{domain.name}" if domain else api.api_endpoint
        self.domain_target: str | None = None
        if domain is not None and not settings.waf:
            self.domain_target = name_api(self, api, stage, domain)

    def grant(self, grantee: iam.IGrantable, scopes: Iterable[str]) -> iam.Grant:
        """Grant a role signed requests for the operations of these scopes."""
        return grant_paths(grantee, self.http, self.http.api_id, "$default", scopes)

    def _preflight(
        self, path: str, api: apigatewayv2.HttpApi, integration: HttpLambdaIntegration
    ) -> None:
        """Add a route for OPTIONS without an authorizer, because preflight requests have no key.

        API Gateway responds to preflight requests automatically. But a route for all methods, with
        an authorizer, would take precedence.
        """
        everywhere = "/{proxy+}" if path == DEFAULT_ROUTE else path
        route = apigatewayv2.HttpRoute(
            self,
            f"Preflight {path}",
            http_api=api,
            route_key=apigatewayv2.HttpRouteKey.with_(everywhere, apigatewayv2.HttpMethod.OPTIONS),
            integration=integration,
        )
        self._open.append(route)
        acknowledge(
            route,
            "AwsSolutions-APIG4",
            "OPTIONS only: a browser's preflight request has no Authorization header. The "
            "functions respond with the methods of a path, and with no stored data.",
        )


def _authorizer(
    settings: DeploymentSettings, functions: Mapping[FunctionSpec, lambda_.IFunction]
) -> apigatewayv2.IHttpRouteAuthorizer:
    if settings.authorizer == "iam":
        return HttpIamAuthorizer()
    if settings.authorizer == "jwt":
        return HttpJwtAuthorizer(
            "Authorizer", settings.jwt_issuer, jwt_audience=list(settings.jwt_audience)
        )
    needed = ["Authorization", *([HEADER] if settings.asks_for_origin else [])]
    return HttpLambdaAuthorizer(
        "Authorizer",
        functions[by_name(AUTHORIZER)],
        authorizer_name=f"{settings.service}-keys",
        # API Gateway rejects a request without these headers. The cache key includes all of them,
        # so a request that bypasses the firewall can't add a cache entry for others.
        identity_source=[f"$request.header.{name}" for name in needed],
        response_types=[HttpLambdaResponseType.SIMPLE],
        results_cache_ttl=Duration.seconds(settings.authorizer_cache_s),
    )


def _cors(settings: DeploymentSettings) -> apigatewayv2.CorsPreflightOptions | None:
    """Return the CORS configuration. Cookies are not allowed, because the API uses none."""
    if not settings.cors_origins:
        return None
    methods = {operation.method for operation in server.OPERATIONS}
    return apigatewayv2.CorsPreflightOptions(
        allow_origins=list(settings.cors_origins),
        allow_methods=[apigatewayv2.CorsHttpMethod[method] for method in sorted(methods)],
        allow_headers=server.REQUEST_HEADERS,
        expose_headers=server.EXPOSED_HEADERS,
        max_age=Duration.hours(1),
    )
