"""A REST API that is reachable through VPC endpoints only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import Aws, Stack
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from ojs_aws.cdk.parts.acknowledgement import acknowledge
from ojs_aws.cdk.parts.grants import grant_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aws_cdk import aws_ec2 as ec2

    from ojs_aws.cdk.settings import DeploymentSettings

_STAGE = "jobs"


class PrivateApi(Construct):
    """A REST API in front of the function `api`, which authenticates requests itself.

    The policy of the API rejects requests that don't come through a VPC endpoint of the list. The
    URL ends with the stage. Clients accept it as a base URL.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        function: lambda_.Function,
        endpoints: Sequence[ec2.IVpcEndpoint],
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(scope, name)
        ids = [endpoint.vpc_endpoint_id for endpoint in endpoints]
        signed = settings.authorizer == "iam"
        kind = apigateway.AuthorizationType.IAM if signed else apigateway.AuthorizationType.NONE
        self.rest = apigateway.RestApi(
            self,
            "Rest",
            rest_api_name=f"ojs-{settings.stage}",
            description="Open Job Spec HTTP binding",
            # Access logs require a role for the whole account. The function logs rejected requests.
            cloud_watch_role=False,
            endpoint_configuration=apigateway.EndpointConfiguration(
                types=[apigateway.EndpointType.PRIVATE], vpc_endpoints=list(endpoints)
            ),
            policy=_only_through(ids),
            default_integration=apigateway.LambdaIntegration(
                function, scope_permission_to_method=False, allow_test_invoke=False
            ),
            default_method_options=apigateway.MethodOptions(authorization_type=kind),
            deploy_options=apigateway.StageOptions(
                stage_name=_STAGE,
                throttling_rate_limit=settings.throttle_rate_per_s,
                throttling_burst_limit=settings.throttle_burst,
            ),
        )
        # Includes the root, which has the operations of the whole API.
        self.rest.root.add_proxy(any_method=True)
        for rule, reason in _REASONS.items():
            acknowledge(self.rest, rule, reason)
        region = Stack.of(self).region
        host = f"{self.rest.rest_api_id}-{ids[0]}.execute-api.{region}.{Aws.URL_SUFFIX}"
        self.url = f"https://{host}/{_STAGE}"
        self.requests = self.rest
        self.access_log = None

    def grant(self, grantee: iam.IGrantable, scopes: Iterable[str]) -> iam.Grant:
        """Grant a role signed requests for the operations of these scopes."""
        return grant_paths(grantee, self.rest, self.rest.rest_api_id, _STAGE, scopes)


_REASONS = {
    "AwsSolutions-APIG1": "Access logs of REST APIs require a role for the whole account, which "
    "belongs to no single deployment. The function logs each request that it rejects or that "
    "fails.",
    "AwsSolutions-APIG2": "The function validates every field of every request, and returns the "
    "error bodies of the Open Job Spec.",
    "AwsSolutions-APIG3": "The API is reachable through the VPC endpoints of the list only.",
    "AwsSolutions-APIG4": "With authorizer=keys the function checks the key of each request.",
    "AwsSolutions-APIG6": "As for access logs: the function logs rejected and failed requests.",
    "AwsSolutions-COG4": "Callers are programs with keys or roles, not users of a user pool.",
}


def _only_through(endpoints: Sequence[str]) -> iam.PolicyDocument:
    """A policy that lets in what comes through these VPC endpoints, and nothing else."""
    everything = "execute-api:/*"
    return iam.PolicyDocument(
        statements=[
            iam.PolicyStatement(
                principals=[iam.AnyPrincipal()],
                actions=["execute-api:Invoke"],
                resources=[everything],
            ),
            iam.PolicyStatement(
                effect=iam.Effect.DENY,
                principals=[iam.AnyPrincipal()],
                actions=["execute-api:Invoke"],
                resources=[everything],
                conditions={"StringNotEquals": {"aws:SourceVpce": list(endpoints)}},
            ),
        ]
    )
