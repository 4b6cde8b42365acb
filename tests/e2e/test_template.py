"""The template of `make template`, deployed by CloudFormation alone into a cloud on this machine:
the files that the command writes, in a bucket, and no CDK.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from infra import ROOT, local_cloud, template
from infra.local_cloud import REGION, LocalCloud
from tests.e2e.cloud import Api, client, first_api

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

STACK = "jobs"
PARAMETERS = {"AssetBucket": "code", "AssetPrefix": "ojs/", "Stage": "shop", "MemoryMb": "512"}


def made(folder: Path, *settings: str) -> Path:
    """Run the command, as `make template` does."""
    chosen = ("bundle=host", "removal_policy=destroy", "deletion_protection=false", *settings)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "infra.template", "--out", str(folder)),
            *(word for each in chosen for word in ("-c", each)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_template_is_deployed_without_cdk(tmp_path: Path) -> None:
    files = made(tmp_path / "template")
    with (
        local_cloud.terminated_like_interrupted(),
        LocalCloud(local_cloud.free_port(), tmp_path / "cloud") as cloud,
    ):
        storage, stacks = client(cloud, "s3"), client(cloud, "cloudformation")
        storage.create_bucket(Bucket="code")
        for file in files.iterdir():
            storage.upload_file(str(file), "code", f"ojs/{file.name}")
        stacks.create_stack(
            StackName=STACK,
            TemplateURL=f"{cloud.url}/code/ojs/{template.TEMPLATE}",
            Parameters=[
                {"ParameterKey": name, "ParameterValue": value}
                for name, value in PARAMETERS.items()
            ],
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        stacks.get_waiter("stack_create_complete").wait(
            StackName=STACK, WaiterConfig={"Delay": 1, "MaxAttempts": 180}
        )
        (stack,) = stacks.describe_stacks(StackName=STACK)["Stacks"]
        outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
        api = first_api(cloud, outputs["ApiUrl"])
        a_job_runs(api)
        (topic,) = client(cloud, "sns").list_topics()["Topics"]
        print(json.dumps(outputs), topic)


def a_job_runs(api: Api) -> None:
    job_id = api.push(queue="mail")["id"]
    assert [each["id"] for each in api.fetch("mail", worker_id="w1")] == [job_id]
    acked = {"job_id": job_id, "worker_id": "w1"}
    assert api("POST", "/ojs/v1/workers/ack", acked).status == 200
    assert api.get(job_id)["state"] == "completed"
