"""A function URL as the endpoint. It needs no API Gateway, and has no price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import CfnResource, Duration, Fn
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from ojs_aws.cdk import server

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aws_cdk import aws_iam as iam

    from ojs_aws.cdk.settings import DeploymentSettings

_FIVE_MINUTES = Duration.minutes(5)


class FunctionUrl(Construct):
    """The URL of the function `api`, which authenticates requests itself, or through IAM.

    It has no throttle except the function's concurrency, no domain name, and no access log.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        function: lambda_.Function,
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(scope, name)
        signed = settings.authorizer == "iam"
        auth = lambda_.FunctionUrlAuthType.AWS_IAM if signed else lambda_.FunctionUrlAuthType.NONE
        self.function_url = function.add_function_url(auth_type=auth, cors=_cors(settings))
        if not signed and not _lets_invoke(function):
            # Since October 2025 a public URL requires this permission in addition to the permission
            # for the URL.
            lambda_.CfnPermission(
                self,
                "Invoke",
                action="lambda:InvokeFunction",
                function_name=function.function_arn,
                principal="*",
                invoked_via_function_url=True,
            )
        self.url = f"https://{Fn.select(2, Fn.split('/', self.function_url.url))}"
        self.requests = _UrlMetrics(function)
        self.access_log = None

    def grant(self, grantee: iam.IGrantable, scopes: Iterable[str]) -> iam.Grant:
        """Raise ValueError: a policy for a function URL can't limit paths."""
        raise ValueError(
            "entry: function_url doesn't support grants, because its policies can't limit paths "
            f"to {', '.join(scopes)}. Use authorizer=keys or entry=http_api, or store the scopes "
            "of the role (docs/access.md) and call function_url.grant_invoke_url"
        )


def _lets_invoke(function: lambda_.Function) -> bool:
    """Whether CDK has added the second permission, as newer releases can."""
    return any(
        isinstance(child, CfnResource)
        and isinstance(child, lambda_.CfnPermission)
        and child.action == "lambda:InvokeFunction"
        and child.principal == "*"
        for child in function.node.find_all()
    )


class _UrlMetrics:
    """CloudWatch metrics of function URLs, with the method names of API Gateway's metrics."""

    def __init__(self, function: lambda_.Function) -> None:
        self._function = function

    def _metric(
        self, name: str, statistic: str | None, period: Duration | None
    ) -> cloudwatch.Metric:
        return self._function.metric(name, statistic=statistic, period=period or _FIVE_MINUTES)

    def metric_count(
        self, *, statistic: str | None = None, period: Duration | None = None
    ) -> cloudwatch.Metric:
        """Return the number of requests."""
        return self._metric("UrlRequestCount", statistic, period)

    def metric_client_error(
        self, *, statistic: str | None = None, period: Duration | None = None
    ) -> cloudwatch.Metric:
        """Return the number of responses with status 400 to 499."""
        return self._metric("Url4xxCount", statistic, period)

    def metric_server_error(
        self, *, statistic: str | None = None, period: Duration | None = None
    ) -> cloudwatch.Metric:
        """Return the number of responses with status 500 or higher."""
        return self._metric("Url5xxCount", statistic, period)

    def metric_latency(
        self, *, statistic: str | None = None, period: Duration | None = None
    ) -> cloudwatch.Metric:
        """Return the duration of requests in milliseconds."""
        return self._metric("UrlRequestLatency", statistic, period)


def _cors(settings: DeploymentSettings) -> lambda_.FunctionUrlCorsOptions | None:
    """Return the CORS configuration. Lambda responds to preflight requests."""
    if not settings.cors_origins:
        return None
    methods = {operation.method for operation in server.OPERATIONS}
    return lambda_.FunctionUrlCorsOptions(
        allowed_origins=list(settings.cors_origins),
        allowed_methods=[lambda_.HttpMethod[method] for method in sorted(methods)],
        allowed_headers=server.REQUEST_HEADERS,
        exposed_headers=server.EXPOSED_HEADERS,
        max_age=Duration.hours(1),
    )
