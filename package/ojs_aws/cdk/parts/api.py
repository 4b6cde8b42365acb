"""The HTTP API in front of the functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from aws_cdk import Duration
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

# One JSON line a request, as short as it may be: it is paid by its length. No query string, no
# headers: they may hold what a log should not, as the key in Authorization is.
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

# Requests in a second, and at once, to each route that asks for no key.
_OPEN_RATE_PER_S, _OPEN_BURST = 50, 100

# Who asked, by the setting `authorizer`.
_CALLER = {
    "keys": {"principal": "$context.authorizer.principal", "key": "$context.authorizer.key"},
    "jwt": {"principal": "$context.authorizer.claims.sub"},
    "iam": {"principal": "$context.identity.userArn"},
}


class Api(Construct):
    """Routes to functions on the `$default` stage, so that paths carry no stage name.

    Every route has the authorizer of the settings, but those of the dashboard. `http` is the API,
    `url` where it is, `access_log` has a line for each request, and `domain_target` is what its own
    name must lead to.
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
            # Behind a firewall this is where CloudFront sends requests on to: functions refuse what
            # comes there without its secret.
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
                        # API Gateway takes no route key that ends with a slash, and such a path
                        # goes to a route that is there. The emulator needs a route for it.
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
                        "The files of the dashboard are the same for everybody, and a browser that "
                        "asks for them has no key yet. The function has no access to any data.",
                    )
                elif settings.cors_origins:
                    self._preflight(path, api, integration)
        self.access_log = access_log = log_group(
            self,
            settings=settings,
            key=key,
            # API Gateway adds what it may write to a policy of limited size; log groups under this
            # prefix need no entry there.
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
        # The stage's own property for this wants an object of an interface that only TypeScript
        # can write down as a literal.
        cfn_stage = cast("apigatewayv2.CfnStage", stage.node.default_child)
        cfn_stage.access_log_settings = apigatewayv2.CfnStage.AccessLogSettingsProperty(
            destination_arn=log_group_arn(self, access_log.log_group_name),
            format=json.dumps({**_ACCESS_LOG, **_CALLER[settings.authorizer]}),
        )
        # Requests without a key must not use up the throttle of those with one.
        cfn_stage.route_settings = {
            cast("apigatewayv2.CfnRoute", route.node.default_child).route_key: {
                "ThrottlingRateLimit": min(_OPEN_RATE_PER_S, settings.throttle_rate_per_s),
                "ThrottlingBurstLimit": min(_OPEN_BURST, settings.throttle_burst),
            }
            for route in self._open
        }
        # API Gateway refuses settings of a route that is not there yet.
        stage.node.add_dependency(*self._open)
        self.http = self.requests = api
        self.url = f"https://{domain.name}" if domain else api.api_endpoint
        self.domain_target: str | None = None
        if domain is not None and not settings.waf:
            self.domain_target = name_api(self, api, stage, domain)

    def grant(self, grantee: iam.IGrantable, scopes: Iterable[str]) -> iam.Grant:
        """Let a role sign requests for what these scopes allow."""
        return grant_paths(grantee, self.http, self.http.api_id, "$default", scopes)

    def _preflight(
        self, path: str, api: apigatewayv2.HttpApi, integration: HttpLambdaIntegration
    ) -> None:
        """A route for OPTIONS: browsers ask without a key whether they may ask with one.

        API Gateway answers what a browser asks by itself; but a route for every method, with an
        authorizer, would come before that.
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
            "OPTIONS alone: a browser's preflight request has no Authorization header. The "
            "functions answer it with the methods of a path, and with nothing that is stored.",
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
        # A request without the headers is refused before anything runs. What a key may do is
        # remembered by all of them: one that went round the firewall leaves nothing for others.
        identity_source=[f"$request.header.{name}" for name in needed],
        response_types=[HttpLambdaResponseType.SIMPLE],
        results_cache_ttl=Duration.seconds(settings.authorizer_cache_s),
    )


def _cors(settings: DeploymentSettings) -> apigatewayv2.CorsPreflightOptions | None:
    """What web pages of these origins may do. No cookies: the API takes none."""
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
