"""examples/mail_queue, deployed for real into a cloud on this machine: a stack with the construct;
and examples/restore, on a copy of its table.

What it declares is there, its role's key opens its queue alone, what goes wrong is told, messages
of an SQS queue become jobs, and what is no longer declared goes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from infra import ROOT, local_cloud
from infra.local_cloud import LocalCloud
from tests.e2e.cloud import (
    Api,
    client,
    deploy_app,
    eventually,
    first_api,
    heard,
    listener,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

APP = """
from aws_cdk import App
from examples.mail_queue.app import MailStack

app = App()
MailStack(app, "mail")
{more}
app.synth()
"""
# Messages of a queue become jobs; one that is none goes to the queue's own dead-letter queue.
BRIDGED = """
from aws_cdk import CfnOutput, aws_sqs as sqs
stack = app.node.find_child("mail")
lost = sqs.Queue(stack, "Lost")
orders = sqs.Queue(
    stack, "Orders", dead_letter_queue=sqs.DeadLetterQueue(max_receive_count=3, queue=lost)
)
stack.node.find_child("Jobs").add_sqs_bridge(orders, job_type="order.placed", to="orders")
CfnOutput(stack, "OrdersUrl", value=orders.queue_url)
CfnOutput(stack, "LostUrl", value=lost.queue_url)
"""
# As if the queue took less now, and the cron job were not in the app any more.
CHANGED = """
jobs = app.node.find_child("mail").node.find_child("Jobs")
declared = jobs.declared.node
declared.find_child("queue").node.try_remove_child("mail")
declared.find_child("cron").node.try_remove_child("digest")
jobs.add_queue("mail", max_size=7)
"""


# As the page on backups has it, with what the emulated cloud needs.
RESTORED = """
from aws_cdk import App
from examples.restore.app import Restored
from ojs_aws.cdk import DeploymentSettings

app = App()
Restored(app, "mail2", settings=DeploymentSettings(stage="mail2"), table="restored-jobs", {more})
app.synth()
"""


def deploy(
    cloud: LocalCloud, folder: Path, stack: str, text: str, more: str = ""
) -> dict[str, str]:
    """Deploy an app; the outputs of its stack."""
    return deploy_app(cloud, folder, stack, text.format(more=more))


def api_of(cloud: LocalCloud, url: str, key: str) -> Api:
    api_id = str(urlsplit(url).hostname).split(".", maxsplit=1)[0]
    return Api(f"{cloud.url}/_aws/execute-api/{api_id}", key)


@dataclass(frozen=True)
class Shop:
    """The example, deployed."""

    cloud: LocalCloud
    folder: Path
    outputs: dict[str, str]
    owner: Api

    def key(self, name: str) -> str:
        secrets = client(self.cloud, "secretsmanager")
        return str(secrets.get_secret_value(SecretId=name)["SecretString"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    with (
        local_cloud.terminated_like_interrupted(),
        LocalCloud(local_cloud.free_port(), folder / "cloud") as cloud,
    ):
        outputs = deploy(cloud, folder, "mail", APP, BRIDGED)
        yield Shop(cloud, folder, outputs, first_api(cloud, outputs["Url"]))


def test_the_example_is_deployed_changed_and_told_of(shop: Shop) -> None:
    cloud, outputs, owner = shop.cloud, shop.outputs, shop.owner
    sender = Api(owner.url, shop.key(outputs["SenderKey"]))

    # What the app declares is there, before anybody has used it.
    config = owner("GET", "/ojs/v1/queues/mail/config").body
    assert '"max_size": 10000' in json.dumps(config)
    crons = owner("GET", "/ojs/v1/cron").body["cron_jobs"]
    assert [(each["name"], each["timezone"]) for each in crons] == [("digest", "Europe/Berlin")]

    # The role's key opens its queue alone, to work on it.
    job_id = owner.push(queue="mail")["id"]
    owner.push(queue="other")
    assert [job["id"] for job in sender.fetch("mail", worker_id="w1")] == [job_id]
    other = sender("POST", "/ojs/v1/workers/fetch", {"queues": ["other"]})
    assert other.status == 403
    assert sender("POST", "/ojs/v1/jobs", {"type": "a", "args": []}).status == 403

    # Each message becomes a job, whatever is beside it, and goes from its queue.
    messages = client(cloud, "sqs")
    bodies = [json.dumps({"order": n}) for n in range(25)] + ["no JSON"]
    for body in bodies:
        messages.send_message(QueueUrl=outputs["OrdersUrl"], MessageBody=body)
    jobs: list[dict[str, Any]] = []

    def bridged() -> bool | None:
        jobs.extend(owner.fetch("orders", count=50))
        return len(jobs) >= 25 or None

    eventually(bridged)
    assert sorted(job["args"][0]["order"] for job in jobs) == list(range(25))
    assert len({job["meta"]["sqs_message_id"] for job in jobs}) == 25

    # Mail that is lost is told.
    topic = outputs["Topic"]
    told = listener(cloud, topic, "told")
    fatal = {"type": "Boom", "message": "no", "code": "DEAD_LETTER"}
    lost = {"job_id": job_id, "worker_id": "w1", "error": fatal}
    assert sender("POST", "/ojs/v1/workers/nack", lost).status == 200

    assert "Mail was not sent" in heard(cloud, told, job_id)

    # What changes is set anew, what is gone is taken back, and the rest stays as it is.
    assert (
        deploy(cloud, shop.folder, "mail", APP, BRIDGED + CHANGED)["SenderKey"]
        == outputs["SenderKey"]
    )
    config = owner("GET", "/ojs/v1/queues/mail/config").body
    assert '"max_size": 7' in json.dumps(config)
    assert '"limit": 100' in json.dumps(config)
    assert owner("GET", "/ojs/v1/cron").body["cron_jobs"] == []
    assert Api(owner.url, shop.key(outputs["SenderKey"])).fetch("mail") == []

    def given_up() -> str | None:
        got = messages.receive_message(QueueUrl=outputs["LostUrl"], WaitTimeSeconds=1)
        return next((each["Body"] for each in got.get("Messages", [])), None)

    # When the queue has shown it three times, 30 s apart.
    assert eventually(given_up) == "no JSON"
    assert owner.fetch("orders") == []
    wanted = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    left = messages.get_queue_attributes(QueueUrl=outputs["OrdersUrl"], AttributeNames=wanted)[
        "Attributes"
    ]
    assert [left[name] for name in wanted] == ["0", "0"]


def test_a_table_is_restored_and_another_deployment_goes_on_with_it(shop: Shop) -> None:
    """As docs/backup.md says, as far as the emulated cloud goes: it knows no time before now."""
    cloud, owner = shop.cloud, shop.owner
    large = [uuid.uuid4().hex for _ in range(12_000)]
    ids = [owner.push(queue="kept", args=args)["id"] for args in ([1], [2], large)]
    running = owner.push(queue="ran", unique={"key": "one of a kind"})["id"]
    owner.fetch("ran", worker_id="w1")
    dynamodb = client(cloud, "dynamodb")
    (table,) = dynamodb.list_tables()["TableNames"]
    (bucket,) = (
        each["Name"]
        for each in client(cloud, "s3").list_buckets()["Buckets"]
        if "payloads" in each["Name"]
    )
    script = str(ROOT / "examples/restore/restore.py")
    for more in ([], ["--at", "2026-11-22T10:00:00Z"], ["--restored"]):  # once more does no harm
        said = subprocess.run(
            [sys.executable, script, table, "restored-jobs", *more],
            env=local_cloud.client_environment(cloud.port) | {"PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.returncode == 0, said.stderr
    stream = said.stdout.strip().removeprefix("stream=")
    owner.push(queue="kept", args=["too late"])
    outputs = deploy(cloud, shop.folder, "mail2", RESTORED, f"stream={stream!r}, bucket={bucket!r}")
    # Keys are in the table: those of before open the new API.
    restored = api_of(cloud, outputs["ApiUrl"], owner.key)
    jobs = restored.fetch("kept", count=10, worker_id="w2")
    assert [(job["id"], job["args"]) for job in jobs] == [
        (ids[0], [1]), (ids[1], [2]), (ids[2], large),
    ]  # fmt: skip
    assert restored.get(running)["state"] == "active"
    again = {"type": "e2e.job", "args": [], "options": {"unique": {"key": "one of a kind"}}}
    assert restored("POST", "/ojs/v1/jobs", again).status == 409
    acked = {"job_id": ids[0], "worker_id": "w2"}
    assert restored("POST", "/ojs/v1/workers/ack", acked).status == 200

    def told() -> bool | None:
        events = restored("GET", "/ojs/v1/events?queue=kept").body["events"]
        return any(each["type"] == "job.completed" for each in events) or None

    eventually(told)
    aged = dynamodb.describe_time_to_live(TableName="restored-jobs")["TimeToLiveDescription"]
    assert (aged["TimeToLiveStatus"], aged["AttributeName"]) == ("ENABLED", "ttl")
    assert dynamodb.describe_table(TableName="restored-jobs")["Table"]["DeletionProtectionEnabled"]
    # What was there stays as it is.
    assert len(owner.fetch("kept", count=10)) == 4
