"""examples/log_report with an outbox, deployed into a cloud on this machine by `make deploy-local`:
jobs pushed to a function, also while the deployment is upgraded.

MiniStack sends no outcomes of asynchronous invocations to destinations, so the deployment invokes
the function synchronously there. Contract tests compare the records of destinations with Lambda's.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import pytest

from infra import ROOT, local_cloud
from infra.local_cloud import LocalCloud
from ojs.domain.times import timestamp_ms
from ojs_aws.client.outbox import outbox_item
from tests.e2e.cloud import Api, client, deploy_app, eventually, first_api
from tests.e2e.traffic import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

EXAMPLE = ROOT / "examples" / "log_report"
SAMPLE = (EXAMPLE / "sample" / "monday.log").read_bytes()
# The example, with an outbox and an alarm, of one version and of another.
APP = """
from aws_cdk import App, CfnOutput
from aws_cdk import aws_cloudwatch as cloudwatch
from examples.log_report.app import LogReportStack
from ojs_aws.cdk import server

server.VERSION = {version!r}
app = App()
stack = LogReportStack(app, "log-report")
jobs = stack.node.find_child("Jobs")
box = jobs.outbox_table("Outbox")
jobs.add_outbox(box, queues=["reports", "traffic"])
late = jobs.metric_oldest_job("reports")
cloudwatch.Alarm(stack, "Late", metric=late, threshold=300, evaluation_periods=3)
CfnOutput(stack, "Box", value=box.table_name)
app.synth()
"""


class Deployed:
    """The example in the emulated cloud."""

    def __init__(self, cloud: LocalCloud, folder: Path) -> None:
        self.cloud, self._folder = cloud, folder
        outputs = self.deploy("0.9.0")
        self.bucket, self._box = outputs["Bucket"], outputs["Box"]
        self.api: Api = first_api(cloud, outputs["Url"])
        self.s3 = client(cloud, "s3")

    def deploy(self, version: str) -> dict[str, str]:
        """Deploy the app, as if it had the construct of this version."""
        return deploy_app(self.cloud, self._folder, "log-report", APP.format(version=version))

    def place(self, item: Any) -> str:
        """Write an item into the outbox; its id."""
        item["Put"]["TableName"] = self._box
        client(self.cloud, "dynamodb").transact_write_items(TransactItems=[item])
        return str(item["Put"]["Item"]["id"]["S"])

    def report(self, key: str, content: bytes | None = None) -> str:
        """Push a job that reports on this log; its id."""
        if content is not None:
            self.s3.put_object(Bucket=self.bucket, Key=f"logs/{key}", Body=content)
        return str(self.api.push(type="log.report", queue="reports", args=[key])["id"])

    def ended(self, job_id: str, *states: str) -> dict[str, Any]:
        """The job when it is in one of these states."""

        def look() -> dict[str, Any] | None:
            job = self.api.get(job_id)
            return job if job["state"] in states else None

        return eventually(look)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("push")
    with (
        local_cloud.terminated_like_interrupted(),
        LocalCloud(local_cloud.free_port(), folder / "cloud") as cloud,
    ):
        yield Deployed(cloud, folder)


def test_a_job_is_pushed_and_what_became_of_it_is_settled(deployed: Deployed) -> None:
    job_id = deployed.report("monday.log", SAMPLE)
    job = deployed.ended(job_id, "completed")
    assert job["result"]["requests"] == 120
    made = deployed.s3.get_object(Bucket=deployed.bucket, Key="reports/monday.log.json")
    assert json.loads(made["Body"].read())["visitors"] == job["result"]["visitors"] == 38
    assert job["attempt"] == 1
    delivery = deployed.api("GET", "/ojs/v1/admin/deliveries/reports").body
    assert delivery["target"]["function"].endswith(deployed_name(deployed))
    assert (delivery["state"], delivery["timeout_ms"]) == ("active", 120_000)


def deployed_name(deployed: Deployed) -> str:
    (name,) = (
        each["FunctionName"]
        for each in client(deployed.cloud, "lambda").list_functions()["Functions"]
        if each["Handler"] == "log_worker.handler"
    )
    return str(name)


def test_what_fails_for_good_is_a_dead_letter(deployed: Deployed) -> None:
    job = deployed.ended(deployed.report("gone.log"), "discarded")
    assert job["error"]["code"] == "no_such_log"


def test_idle_a_job_is_with_its_function_within_two_seconds(deployed: Deployed) -> None:
    """Most jobs, one after the other, as soon as the machine is not busy with something else."""
    deployed.ended(deployed.report("monday.log", SAMPLE), "completed")
    took: list[float] = []
    while len(took) < 5 or (statistics.median(took[-5:]) > 2 and len(took) < 40):
        # The container that wakes has woken nobody for a while.
        time.sleep(1.5)
        job = deployed.ended(deployed.report("monday.log"), "completed")
        pushed, started = (timestamp_ms(job[at], now_ms=0) for at in ("enqueued_at", "started_at"))
        took.append((started - pushed) / 1_000)
    assert statistics.median(took[-5:]) <= 2, took


def test_a_heap_of_jobs_is_done_by_those_who_settle(deployed: Deployed) -> None:
    """More than the concurrency, and more than a chain that Lambda takes for no loop."""
    jobs = [{"type": "log.report", "queue": "reports", "args": ["monday.log"]}] * 20
    answer = deployed.api("POST", "/ojs/v1/jobs/batch", {"jobs": jobs})
    assert answer.status == 201, answer
    for each in answer.body["jobs"]:
        assert deployed.ended(each["id"], "completed")["attempt"] == 1


def test_a_test_call_tells_what_the_function_answers(deployed: Deployed) -> None:
    answer = deployed.api("POST", "/ojs/v1/admin/deliveries/reports/test", {})
    assert (answer.status, answer.body["outcome"]) == (200, "completed"), answer


def test_functions_that_are_not_named_are_refused(deployed: Deployed) -> None:
    other = f"arn:aws:lambda:{local_cloud.REGION}:{local_cloud.ACCOUNT}:function:another"
    body = {"target": {"function": other}, "queues": ["other"]}
    answer = deployed.api("PUT", "/ojs/v1/admin/deliveries/other", body)
    assert answer.status == 422, answer
    assert "push_functions" in json.dumps(answer.body)


def test_an_item_of_the_outbox_is_pushed(deployed: Deployed) -> None:
    job_id = deployed.place(outbox_item("log.report", ["monday.log"], queue="reports", table=""))
    eventually(lambda: deployed.api("GET", f"/ojs/v1/jobs/{job_id}").status == 200 or None)
    assert deployed.ended(job_id, "completed")["result"]["visitors"] == 38
    alarms = client(deployed.cloud, "cloudwatch").describe_alarms()["MetricAlarms"]
    watched = " ".join(each["AlarmName"] for each in alarms)
    assert "Late" in watched
    assert "outbox" in watched


@pytest.mark.whole
def test_an_upgrade_under_traffic_loses_nothing_and_does_nothing_twice(deployed: Deployed) -> None:
    """All functions are updated while clients push and work, and items are written.

    Nothing is pushed to the function: the emulator kills a function that it updates, and AWS
    doesn't. So a job would be repeated only when its lease has ended.
    """
    traffic = Traffic(deployed.api, deployed.place)
    with traffic.running():
        deployed.deploy("0.9.1")
    traffic.check()
    functions = client(deployed.cloud, "lambda").list_functions()["Functions"]
    told = [each.get("Environment", {}).get("Variables", {}) for each in functions]
    assert {each["OJS_VERSION"] for each in told if "OJS_VERSION" in each} == {"0.9.1"}
    assert deployed.ended(deployed.report("monday.log"), "completed")["attempt"] == 1


def test_nothing_was_put_aside(deployed: Deployed) -> None:
    sqs = client(deployed.cloud, "sqs")
    (url,) = (each for each in sqs.list_queues()["QueueUrls"] if "PushQueuesFailures" in each)
    count = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])[
        "Attributes"
    ]
    assert count == {"ApproximateNumberOfMessages": "0"}
