"""What writers left who died is removed; nothing else is, whatever goes on meanwhile."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.access import ANYBODY
from ojs.domain.job import envelope
from ojs.services.operations.tidy import WAIT_S, Tidied, Tidy
from ojs.settings import Settings
from ojs.store.jobs.blobs import S3Blobs
from ojs.store.jobs.orphans import Orphans
from ojs.store.table import keys
from ojs.store.table.schema import create_table_arguments
from ojs.store.table.table import Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client

# A table and a bucket of moto, made for each.
pytestmark = pytest.mark.exhaustive

SMALL, APART, IN_BUCKET = "x", "y" * 5_000, "z" * 400_000


class Place:
    """A table and a bucket, and everything that is in them."""

    def __init__(self, client: DynamoDBClient, s3: S3Client, clock: ManualClock) -> None:
        self.table = Table(client, f"ojs-{uuid.uuid4().hex[:12]}")
        client.create_table(**create_table_arguments(self.table.name))
        self.bucket = f"payloads-{uuid.uuid4().hex[:12]}"
        s3.create_bucket(Bucket=self.bucket)
        self.s3 = s3
        self.slept: list[float] = []
        self.run = runtime.build(
            Settings(table=self.table.name, bucket=self.bucket),
            client=client,
            blobs=S3Blobs(lambda: s3, self.bucket),
            clock=clock,
        )

    def tidy(self, *, remove: bool = True) -> Tidied:
        leftovers = Orphans(self.table, (self.s3, self.bucket))
        return Tidy(leftovers, self.slept.append).run(remove=remove)

    def push(self, text: str, **more: Any) -> str:
        return self.run.enqueue.push(envelope.parse({"type": "t", "args": [text], **more})).job.id

    def everything(self) -> tuple[set[tuple[str, str]], set[str]]:
        found = self.table.client.scan(TableName=self.table.name)["Items"]
        listed = self.s3.list_objects_v2(Bucket=self.bucket).get("Contents", [])
        return (
            {(item["pk"]["S"], item["sk"]["S"]) for item in found},
            {each["Key"] for each in listed},
        )


@pytest.fixture
def place(clock: ManualClock) -> Iterator[Place]:
    with mock_aws():
        yield Place(
            boto3.client("dynamodb", region_name="us-east-1"),
            boto3.client("s3", region_name="us-east-1"),
            clock,
        )


def test_what_jobs_have_stays(place: Place) -> None:
    for text in (SMALL, APART, IN_BUCKET):
        place.push(text)
        (job,) = place.run.fetch.fetch(["default"], 1, "w")
        place.run.finish.ack(job.id, worker_id="w", result=text)
        place.push(text)
    (job,) = place.run.fetch.fetch(["default"], 1, "w")
    place.run.jobs.report_progress(job.id, progress=0.5, worker_id="w", message="half")
    place.run.finish.nack(job.id, worker_id="w", error={"type": "E", "message": "no"})
    before = place.everything()
    assert len(before[1]) == 3
    done = place.tidy()
    assert done.removed == 0
    assert done.parts >= 7
    assert place.everything() == before
    # With nothing to ask for again there is nothing to wait for.
    assert place.slept == []


@pytest.mark.parametrize("text", [APART, IN_BUCKET])
def test_what_a_dead_writer_left_goes(
    text: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.push(text)
    before = place.everything()
    with monkeypatch.context() as patch:

        def dies(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        # The push of a job by itself ends with the job record.
        put = place.run.table.put
        patch.setattr(
            place.run.table,
            "put",
            lambda what: dies() if what.item["sk"] == keys.RECORD else put(what),
        )
        with pytest.raises(KeyboardInterrupt):
            place.push(text)
    assert place.everything() != before
    assert place.tidy(remove=False).removed == 1
    assert place.everything() != before
    assert place.tidy().removed == 1
    assert place.everything() == before
    assert place.slept == [WAIT_S, WAIT_S]


def test_a_text_whose_record_comes_meanwhile_stays(place: Place) -> None:
    """Race: the text is there, the job record comes while the pass waits."""
    job_id = place.push(APART)
    (record,) = place.table.query_all(
        "pk = :pk AND sk = :sk", {":pk": keys.job(job_id), ":sk": "@"}
    )
    place.table.write_many(deletes=[(keys.job(job_id), keys.RECORD)])

    def comes(_s: float) -> None:
        place.table.write_many(puts=[record])

    leftovers = Orphans(place.table, (place.s3, place.bucket))
    assert Tidy(leftovers, comes).run().removed == 0
    content = place.run.jobs.get(job_id).content
    assert content is not None
    assert content["args"] == [APART]


def cron(text: str, **more: Any) -> dict[str, Any]:
    template = {"type": "t", "args": [text]}
    return {"name": "c", "expression": "@hourly", "job_template": template} | more


@pytest.mark.parametrize("text", [SMALL, APART, IN_BUCKET])
def test_the_definition_of_a_cron_job_stays(place: Place, text: str) -> None:
    place.run.crons.register(cron(text), ANYBODY, None)
    place.run.crons.trigger("c", ANYBODY, None)
    before = place.everything()
    assert place.tidy().removed == 0
    assert place.everything() == before
    assert place.run.crons.get("c", ANYBODY).definition.template["args"] == [text]


@pytest.mark.parametrize("text", [APART, IN_BUCKET])
def test_definitions_that_a_dead_writer_left_go(
    place: Place, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one of a writer that dies before the record, and the old one of one that dies after
    it.
    """
    store = place.run.stores.crons

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "add", lambda made: dies(store._prepared(made)))
        for name in ("first", "other"):
            with pytest.raises(KeyboardInterrupt):
                place.run.crons.register(cron(text, name=name), ANYBODY, None)
    place.run.crons.register(cron(text, name="first"), ANYBODY, None)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_discard", dies)
        with pytest.raises(KeyboardInterrupt):
            place.run.crons.register(cron(text, name="first", description="new"), ANYBODY, None)
    assert place.tidy(remove=False).removed == 3
    assert place.tidy().removed == 3
    kept = place.run.crons.get("first", ANYBODY).definition
    assert (kept.description, kept.template["args"]) == ("new", [text])
    assert place.tidy().removed == 0


def test_the_archive_is_left_alone(place: Place) -> None:
    place.s3.put_object(Bucket=place.bucket, Key="archive/2026/01/x.json.gz", Body=b"x")
    for kind in ("payload", "def"):
        place.s3.put_object(Bucket=place.bucket, Key=f"{kind}/x", Body=b"x")
    before = place.everything()
    assert place.tidy().removed == 0
    assert place.everything() == before
