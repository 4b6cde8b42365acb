"""An app with two outboxes, deployed into a cloud on this machine: its items become jobs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from cli.__main__ import main
from infra import local_cloud
from infra.local_cloud import LocalCloud
from ojs_aws.client.outbox import outbox_item
from tests.e2e.cloud import Api, client, deploy_app, eventually, first_api

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

APP = """
from aws_cdk import App, CfnOutput, RemovalPolicy, Stack
from aws_cdk import aws_dynamodb as dynamodb
from ojs_aws.cdk import DeploymentSettings, OpenJobSpec

app = App()
stack = Stack(app, "shop")
jobs = OpenJobSpec(stack, "Jobs", settings=DeploymentSettings(stage="shop"))
jobs.add_queue("small", max_size=1)
box = jobs.outbox_table("Outbox")
jobs.add_outbox(box, queues=["orders", "small"], types=["order.*"])
orders = dynamodb.Table(
    stack, "Orders", removal_policy=RemovalPolicy.DESTROY,
    partition_key=dynamodb.Attribute(name="pk", type=dynamodb.AttributeType.STRING),
    stream=dynamodb.StreamViewType.NEW_AND_OLD_IMAGES,
)
jobs.add_outbox(orders)
CfnOutput(stack, "Url", value=jobs.url)
CfnOutput(stack, "BoxName", value=box.table_name)
CfnOutput(stack, "OrdersName", value=orders.table_name)
app.synth()
"""


@dataclass(frozen=True)
class Shop:
    """The app, deployed, with its application."""

    cloud: LocalCloud
    owner: Api
    box: str
    orders: str

    def client(self, service: str) -> Any:
        return client(self.cloud, service)

    def place(self, number: int, kind: str = "order.place", **options: Any) -> None:
        """Write an order and its job, in one transaction."""
        order = {"pk": {"S": f"order-{number}"}, "total": {"N": "5"}}
        item = outbox_item(kind, [number], table=self.box, **{"queue": "orders", **options})
        writes = [{"Put": {"TableName": self.orders, "Item": order}}, item]
        self.client("dynamodb").transact_write_items(TransactItems=writes)

    def left(self) -> int:
        return int(self.client("dynamodb").scan(TableName=self.box)["Count"])

    def queue(self, end: str) -> str:
        """The URL of a queue of the outbox."""
        found = self.client("sqs").list_queues()["QueueUrls"]
        return str(next(each for each in found if "Outbox" in each and f"Outbox{end}" in each))

    def jobs(self, queue: str, count: int) -> list[dict[str, Any]]:
        """So many jobs of a queue, as soon as they are there."""
        jobs: list[dict[str, Any]] = []

        def came() -> bool | None:
            jobs.extend(self.owner.fetch(queue, count=50))
            return len(jobs) >= count or None

        eventually(came)
        return jobs


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("outbox")
    with (
        local_cloud.terminated_like_interrupted(),
        LocalCloud(local_cloud.free_port(), folder / "cloud") as cloud,
    ):
        outputs = deploy_app(cloud, folder, "shop", APP)
        owner = first_api(cloud, outputs["Url"])
        yield Shop(cloud, owner, outputs["BoxName"], outputs["OrdersName"])


def test_items_of_transactions_become_jobs(shop: Shop) -> None:
    for number in range(25):
        shop.place(number)
    # What the outbox doesn't allow stays.
    shop.place(25, queue="other")
    shop.place(26, kind="mail.send")
    jobs = shop.jobs("orders", 25)
    assert sorted(job["args"][0] for job in jobs) == list(range(25))
    assert {job["producer"] for job in jobs} == {shop.box}
    eventually(lambda: shop.left() == 2 or None)
    told: list[dict[str, Any]] = []
    url = shop.queue("Refused")

    def heard() -> bool | None:
        got = shop.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10)
        told.extend(json.loads(each["Body"]) for each in got.get("Messages", []))
        return len(told) == 2 or None

    eventually(heard)
    assert {(each["code"], each["table"]) for each in told} == {("permission_denied", shop.box)}


def test_a_job_without_room_waits_in_a_queue(shop: Shop) -> None:
    before = shop.left()
    shop.place(30, queue="small")
    shop.place(31, queue="small")
    url = shop.queue("Later")
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

    def waits() -> bool | None:
        answer = shop.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=names)
        return sum(int(each) for each in answer["Attributes"].values()) == 1 or None

    eventually(waits)
    eventually(lambda: shop.left() == before + 1 or None)


def test_an_item_of_an_own_table_brings_a_job_whenever_the_attribute_changes(shop: Shop) -> None:
    for total, kind in (("5", "order.pay"), ("6", "order.pay"), ("6", "order.ship")):
        job = json.dumps({"type": kind, "args": [], "options": {"queue": "own"}})
        item = {"pk": {"S": "order-1"}, "total": {"N": total}, "ojs_job": {"S": job}}
        shop.client("dynamodb").put_item(TableName=shop.orders, Item=item)
    assert sorted(job["type"] for job in shop.jobs("own", 2)) == ["order.pay", "order.ship"]


def test_items_that_the_stream_does_not_deliver_are_replayed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = shop.client("lambda")
    described = shop.client("dynamodb").describe_table(TableName=shop.box)["Table"]
    found = functions.list_event_source_mappings(EventSourceArn=described["LatestStreamArn"])
    (mapping,) = found["EventSourceMappings"]
    functions.update_event_source_mapping(UUID=mapping["UUID"], Enabled=False)
    before = shop.left()
    shop.place(40)
    for name, value in local_cloud.client_environment(shop.cloud.port).items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    assert main(["outbox", "replay", shop.box]) == 0
    told = f"{before + 1} items sent to the relay, 0 can't be stored now\n"
    assert capsys.readouterr().out == told.replace("1 items", "1 item")
    assert [job["args"] for job in shop.owner.fetch("orders", count=9)] == [[40]]
    assert shop.left() == before
    assert main(["outbox", "replay", shop.orders]) == 6
    assert shop.owner.fetch("own", count=9) == []
