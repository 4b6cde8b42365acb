"""A deployment with a restored table and the existing bucket.

cdk deploy --app "python app.py" -c stage=prod2 -c table=restored-jobs -c stream=arn:… -c bucket=…
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import App, CfnOutput, Stack
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_s3 as s3

from ojs_aws.cdk import DeploymentSettings, OpenJobSpec, Storage

if TYPE_CHECKING:
    from constructs import Construct


class Restored(Stack):
    """The API for a table and a bucket that no stack owns."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        settings: DeploymentSettings,
        table: str,
        stream: str,
        bucket: str,
    ) -> None:
        """Create the stack.

        Args:
            scope: The app.
            name: Name of the stack.
            settings: The settings of the previous deployment, with another `stage`.
            table: Name of the table.
            stream: ARN of the table's stream.
            bucket: Name of the bucket.
        """
        super().__init__(scope, name)
        restored = dynamodb.Table.from_table_attributes(
            self,
            "Table",
            table_arn=self.format_arn(service="dynamodb", resource="table", resource_name=table),
            table_stream_arn=stream,
            global_indexes=["work", "expiry"],
        )
        payloads = s3.Bucket.from_bucket_name(self, "Payloads", bucket)
        storage = Storage(self, "Storage", settings=settings, table=restored, bucket=payloads)
        jobs = OpenJobSpec(self, "Jobs", settings=settings, storage=storage)
        CfnOutput(self, "ApiUrl", value=jobs.url)


def main() -> None:
    """Create the app from the options of the command line."""
    app = App()
    told = {name: str(app.node.get_context(name)) for name in ("table", "stream", "bucket")}
    settings = DeploymentSettings(stage=app.node.get_context("stage"))
    Restored(app, settings.service, settings=settings, **told)
    app.synth()


if __name__ == "__main__":
    main()
