"""The step of each deployment that comes before the functions are changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from aws_cdk import CfnResource, CustomResource, Duration
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from infra.settings import project_version
from ojs.store.table.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aws_cdk import aws_secretsmanager as secretsmanager

# CloudFormation waits for an hour, unless it knows how long the function may take: its own
# timeout, and the two tries that Lambda makes after a failure.
ANSWERS_WITHIN_S = 300


class Setup(Construct):
    """Has `function` check the table, and leave the first key, before `others` are deployed.

    CloudFormation calls it when its properties change: for each version, and each new form of the
    table's items. If it refuses, the deployment is rolled back, and the other functions have not
    been touched.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        function: lambda_.Function,
        others: Iterable[lambda_.Function],
        secret: secretsmanager.ISecret | None,
    ) -> None:
        super().__init__(scope, name)
        resource = CustomResource(
            self,
            "Resource",
            resource_type="Custom::OjsSetup",
            service_token=function.function_arn,
            service_timeout=Duration.seconds(ANSWERS_WITHIN_S),
            properties={
                "Version": project_version(),
                "Schema": str(SCHEMA_VERSION),
                # Where the first key goes: it is made when there is a place for it.
                **({"FirstKeySecret": secret.secret_arn} if secret is not None else {}),
            },
        )
        step = cast("CfnResource", resource.node.default_child)
        for other in others:
            cast("lambda_.CfnFunction", other.node.default_child).add_resource_dependency(step)
