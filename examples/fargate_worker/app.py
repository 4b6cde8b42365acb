"""A backend, and workers on ECS that run only while jobs are available or active.

pip install "ojs_backend_aws-….whl[cdk]"
cdk deploy --app "python app.py"
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aws_cdk import App, CfnOutput, Stack
from aws_cdk import aws_ecr_assets as assets
from aws_cdk import aws_ecs as ecs

from ojs_aws.cdk import DeploymentSettings, OpenJobSpec, TaskNetwork

if TYPE_CHECKING:
    from aws_cdk import aws_lambda as lambda_
    from constructs import Construct

IMAGE = Path(__file__).parent / "image"


class TextsStack(Stack):
    """A queue of texts. Up to twenty Spot tasks count the words, or none if the queue is empty."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        settings: DeploymentSettings | None = None,
        code: lambda_.Code | None = None,
    ) -> None:
        """Create the stack.

        Args:
            scope: The app.
            name: Name of the stack.
            settings: Settings of the backend. Default: the stage `texts`.
            code: Code of the backend's functions. Default: that of the wheel.
        """
        super().__init__(scope, name)
        jobs = OpenJobSpec(
            self, "Jobs", settings=settings or DeploymentSettings(stage="texts"), code=code
        )
        jobs.add_queue("texts")
        worker = jobs.add_fargate_worker(
            "counter",
            ecs.ContainerImage.from_asset(str(IMAGE), platform=assets.Platform.LINUX_ARM64),
            queues=["texts"],
            min_tasks=0,
            max_tasks=20,
            # Each task runs ten jobs in parallel, and can have ten more available.
            jobs_per_task=20,
            place=TaskNetwork(spot=True),
        )
        CfnOutput(self, "Url", value=jobs.url)
        CfnOutput(self, "Service", value=worker.service.service_name)


def main() -> None:
    """Write the cloud assembly."""
    app = App()
    TextsStack(app, "texts")
    app.synth()


if __name__ == "__main__":
    main()
