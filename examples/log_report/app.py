"""A backend that pushes its jobs to a function: reports on the logs in a bucket.

pip install "ojs_backend_aws-….whl[cdk]"
cdk deploy --app "python app.py" -c email=ops@example.com
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aws_cdk import App, CfnOutput, Duration, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3

from ojs_aws.cdk import DeploymentSettings, OpenJobSpec

if TYPE_CHECKING:
    from constructs import Construct

_FUNCTION = Path(__file__).with_name("function")


class LogReportStack(Stack):
    """A bucket with logs, a queue of logs to report on, and the function that reports."""

    def __init__(
        self, scope: Construct, name: str, *, settings: DeploymentSettings | None = None
    ) -> None:
        """Create the stack.

        Args:
            scope: The app.
            name: Name of the stack.
            settings: Settings of the backend, with push=True. Default: the stage `logs`.
        """
        super().__init__(scope, name)
        settings = settings or DeploymentSettings(stage="logs", push=True)
        jobs = OpenJobSpec(self, "Jobs", settings=settings)
        jobs.add_queue("reports", config={"default_retry": {"max_attempts": 3}})

        bucket = s3.Bucket(
            self,
            "Logs",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            # The local emulator uses plain HTTP, and enforces this setting as AWS does.
            enforce_ssl=not settings.is_local,
        )
        worker = lambda_.Function(
            self,
            "Worker",
            description="Reports on a log in the bucket",
            code=lambda_.Code.from_asset(str(_FUNCTION), exclude=["__pycache__"]),
            handler="log_worker.handler",
            runtime=lambda_.Runtime(f"python{settings.runtime_python}"),
            architecture=lambda_.Architecture.custom(settings.runtime_architecture),
            memory_size=512,
            timeout=Duration.minutes(2),
            environment={"BUCKET": bucket.bucket_name},
        )
        for action, where in (("s3:GetObject", "logs/*"), ("s3:PutObject", "reports/*")):
            worker.add_to_role_policy(
                iam.PolicyStatement(actions=[action], resources=[bucket.arn_for_objects(where)])
            )
        # Without this permission, S3 returns "forbidden" for a log that doesn't exist.
        worker.add_to_role_policy(
            iam.PolicyStatement(actions=["s3:ListBucket"], resources=[bucket.bucket_arn])
        )
        jobs.add_worker(worker, queues=["reports"], concurrency=5)

        CfnOutput(self, "Url", value=jobs.url)
        CfnOutput(self, "Bucket", value=bucket.bucket_name)


def main() -> None:
    """Write the cloud assembly."""
    app = App()
    LogReportStack(app, "log-report")
    app.synth()


if __name__ == "__main__":
    main()
