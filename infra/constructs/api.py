"""The HTTP API in front of the functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from aws_cdk import ArnFormat, Stack
from aws_cdk import aws_apigatewayv2 as apigatewayv2
from aws_cdk import aws_lambda as lambda_
from aws_cdk.aws_apigatewayv2_integrations import HttpLambdaIntegration
from constructs import Construct

from infra.constructs.acknowledgement import acknowledge
from infra.constructs.log_group import log_group
from infra.functions import DEFAULT_ROUTE, FunctionSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.settings import DeploymentSettings

# One JSON line a request. No query string, no headers: they may hold what a log should not.
_ACCESS_LOG = {
    "request_id": "$context.requestId",
    "time": "$context.requestTime",
    "route": "$context.routeKey",
    "method": "$context.httpMethod",
    "path": "$context.path",
    "status": "$context.status",
    "latency_ms": "$context.responseLatency",
    "function_latency_ms": "$context.integrationLatency",
    "response_bytes": "$context.responseLength",
    "source_ip": "$context.identity.sourceIp",
    "user_agent": "$context.identity.userAgent",
    "error": "$context.integrationErrorMessage",
}


class Api(Construct):
    """Routes to functions on the `$default` stage, so that paths carry no stage name.

    `http` is the API, `url` where it is.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        functions: Mapping[FunctionSpec, lambda_.IFunction],
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(scope, name)
        # No CORS configuration here: API Gateway would then answer OPTIONS itself, and the
        # functions already answer it as the local server does.
        api = apigatewayv2.HttpApi(
            self,
            "Http",
            api_name=f"ojs-{settings.stage}",
            description="Open Job Spec HTTP binding",
            create_default_stage=False,
        )
        for spec, function in functions.items():
            integration = HttpLambdaIntegration(
                f"{spec.name}-integration",
                function,
                payload_format_version=apigatewayv2.PayloadFormatVersion.VERSION_2_0,
            )
            for path in spec.routes:
                key = (
                    apigatewayv2.HttpRouteKey.DEFAULT
                    if path == DEFAULT_ROUTE
                    else apigatewayv2.HttpRouteKey.with_(path, apigatewayv2.HttpMethod.ANY)
                )
                apigatewayv2.HttpRoute(
                    self,
                    f"Route {path}",
                    http_api=api,
                    route_key=key,
                    integration=integration,
                )
        access_log = log_group(
            self,
            settings=settings,
            # API Gateway adds what it may write to a policy of limited size; log groups under this
            # prefix need no entry there.
            log_group_name=f"/aws/vendedlogs/ojs-{settings.stage}/http-api",
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
            # A log group's own ARN ends with `:*`, which is no destination.
            destination_arn=Stack.of(self).format_arn(
                service="logs",
                resource="log-group",
                resource_name=access_log.log_group_name,
                arn_format=ArnFormat.COLON_RESOURCE_NAME,
            ),
            format=json.dumps(_ACCESS_LOG),
        )
        self.http = api
        self.url = api.api_endpoint
        acknowledge(
            self,
            "AwsSolutions-APIG4",
            "No authorizer yet: whoever knows the URL may use the API. The authorizer is a "
            "function of its own and becomes the default of these routes when it exists.",
        )
