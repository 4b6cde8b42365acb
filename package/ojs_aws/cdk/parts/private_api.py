"""A REST API that only VPC endpoints reach."""

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
    """A REST API in front of the function `api`, which finds out itself who holds the key of a
    request, or is told by IAM who signed it. Requests that come through no VPC endpoint of the list
    are refused by the API's own policy.

    Its address has the stage at the end; a client takes it as any other base address.
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
            # Access logs need a role of the whole account; the function logs what it refuses.
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
        # The root too, which takes what is said of the whole API.
        self.rest.root.add_proxy(any_method=True)
        for rule, reason in _REASONS.items():
            acknowledge(self.rest, rule, reason)
        region = Stack.of(self).region
        host = f"{self.rest.rest_api_id}-{ids[0]}.execute-api.{region}.{Aws.URL_SUFFIX}"
        self.url = f"https://{host}/{_STAGE}"
        self.requests = self.rest
        self.access_log = None

    def grant(self, grantee: iam.IGrantable, scopes: Iterable[str]) -> iam.Grant:
        """Let a role sign requests for what these scopes allow."""
        return grant_paths(grantee, self.rest, self.rest.rest_api_id, _STAGE, scopes)


_REASONS = {
    "AwsSolutions-APIG1": "Access logs of REST APIs need a role of the whole account, which "
    "belongs to no single deployment. The function logs each request that it refuses or that "
    "fails.",
    "AwsSolutions-APIG2": "The function checks every field of every request, and answers with the "
    "error bodies of the Open Job Spec.",
    "AwsSolutions-APIG3": "Nothing but the VPC endpoints of the list reaches it.",
    "AwsSolutions-APIG4": "With authorizer=keys the function looks up the key of each request.",
    "AwsSolutions-APIG6": "As for access logs: the function's log has what is refused or fails.",
    "AwsSolutions-COG4": "Callers are programs with keys or roles, and no pool of users.",
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
