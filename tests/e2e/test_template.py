"""The template of `make template`, deployed by CloudFormation alone into a cloud on this machine:
the files that the command writes, in a bucket, and no CDK. Then what Terraform asks of it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from infra import ROOT, local_cloud, template
from infra.local_cloud import LocalCloud
from tests.e2e.cloud import Api, client, first_api

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

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
        stacks.create_stack(**stack(cloud))
        done(stacks, "create")
        (made_,) = stacks.describe_stacks(StackName=STACK)["Stacks"]
        outputs = {each["OutputKey"]: each["OutputValue"] for each in made_["Outputs"]}
        owner = first_api(cloud, outputs["ApiUrl"])
        a_job_runs(owner)

        # Another parameter changes the functions, and no data.
        stacks.update_stack(**stack(cloud, LogRetentionDays="7", AlarmEmail="ops@example.com"))
        done(stacks, "update")
        a_job_runs(owner)
        groups = client(cloud, "logs").describe_log_groups()["logGroups"]
        assert {each["retentionInDays"] for each in groups if "Jobs" in each["logGroupName"]} == {7}
        topics = client(cloud, "sns").list_subscriptions()["Subscriptions"]
        assert [each["Endpoint"] for each in topics] == ["ops@example.com"]

        keys_and_queues_are_declared(cloud, owner)


def stack(cloud: LocalCloud, **more: str) -> dict[str, Any]:
    given = {**PARAMETERS, **more}
    return {
        "StackName": STACK,
        "TemplateURL": f"{cloud.url}/code/ojs/{template.TEMPLATE}",
        "Parameters": [
            {"ParameterKey": name, "ParameterValue": value} for name, value in given.items()
        ],
        "Capabilities": ["CAPABILITY_IAM"],
    }


def done(stacks: Any, what: str) -> None:
    """Wait for the stack. Fails if it was rolled back."""
    waiter = stacks.get_waiter(f"stack_{what}_complete")
    waiter.wait(StackName=STACK, WaiterConfig={"Delay": 1, "MaxAttempts": 180})


def keys_and_queues_are_declared(cloud: LocalCloud, owner: Api) -> None:
    """As terraform/main.tf has it."""

    def invoke(function: str, action: str, asked: Any) -> Any:
        payload = {**asked, "tf": {"action": action, "prev_input": asked}}
        answer = client(cloud, "lambda").invoke(
            FunctionName=f"ojs-shop-{function}", Payload=json.dumps(payload)
        )
        told = json.loads(answer["Payload"].read())
        return answer.get("FunctionError"), told

    secrets = client(cloud, "secretsmanager")
    secret = secrets.create_secret(Name="ojs-shop/keys/mailer")["ARN"]
    key = {"ResourceType": "Custom::OjsKey", "Name": "mailer", "Secret": secret}
    error, answer = invoke("setup", "create", {**key, "Scopes": ["work"], "Queues": ["mail"]})
    assert error is None, answer
    mailer = Api(owner.url, secrets.get_secret_value(SecretId=secret)["SecretString"])
    assert mailer.fetch("mail") == []
    assert mailer("POST", "/ojs/v1/workers/fetch", {"queues": ["other"]}).status == 403

    asked = {"Method": "PUT", "Path": "/ojs/v1/queues/mail/config", "Body": '{"max_size": 7}'}
    queue = {"Name": "queue mail", "Caller": "ojs-shop-terraform", "Set": asked}
    error, answer = invoke("declare", "create", queue)
    assert (error, answer) == (None, {"Id": "queue mail"})
    assert '"max_size": 7' in json.dumps(owner("GET", "/ojs/v1/queues/mail/config").body)
    error, answer = invoke("declare", "update", {**queue, "Set": {**asked, "Body": '{"max": 7}'}})
    assert error
    assert "max: unknown field" in answer["errorMessage"] or "max" in answer["errorMessage"]

    # A secret of somebody else's: the function may not write it.
    other = secrets.create_secret(Name="database", SecretString="password")["ARN"]
    error, _ = invoke("setup", "create", {**key, "Secret": other, "Scopes": ["work"]})
    assert error
    assert secrets.get_secret_value(SecretId=other)["SecretString"] == "password"


def a_job_runs(api: Api) -> None:
    job_id = api.push(queue="mail")["id"]
    assert [each["id"] for each in api.fetch("mail", worker_id="w1")] == [job_id]
    acked = {"job_id": job_id, "worker_id": "w1"}
    assert api("POST", "/ojs/v1/workers/ack", acked).status == 200
    assert api.get(job_id)["state"] == "completed"
