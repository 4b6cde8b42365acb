"""What the stream does of workflows: advances them, tells their events, removes what they leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import BackendUnavailable
from ojs.domain.workflow.advance import RetryMode
from tests.store.spending import incompressible
from tests.store.streams import Projected, Stream, lambda_form
from tests.store.workflow_runs import (
    WORKER,
    ack,
    batch,
    chain,
    create,
    group,
    nack,
    now,
    step,
    work,
)

if TYPE_CHECKING:
    from tests.store.conftest import World

Streamed = Callable[[], AbstractContextManager["World"]]


def projected(world: World, **more: Any) -> Projected:
    run = world.another()
    return Projected(
        world.client, world.table, world.clock, workflows=lambda: run.workflow_advance, **more
    )


def told(found: Projected) -> list[tuple[str, Any]]:
    return [
        (event["type"], event["data"].get("step_id"))
        for event in found.events()
        if event["type"].startswith("workflow.")
    ]


def test_what_a_request_left_is_done_and_told(streamed: Streamed) -> None:
    with streamed() as world:
        found, stream = projected(world), Stream(world.client, world.table)
        body = {
            "name": "index",
            "steps": [
                {"id": "one", "type": "a", "args": []},
                {"id": "two", "type": "b", "args": [], "depends_on": ["one"]},
            ],
        }
        record = create(world.run, body)
        dies = world.another()
        dies.workflow_advance.job_ended = lambda job: None  # type: ignore[method-assign]
        (job,) = world.fetch(worker=WORKER)
        world.clock.advance(1_500)
        ack(dies, job, {"pages": 3})
        assert world.fetch() == []
        records = stream.take()
        assert found.run([lambda_form(one) for one in records]) == []
        (job,) = world.fetch(worker=WORKER)
        assert (job.content or {})["parent_results"] == [{"pages": 3}]
        nack(world.run, job)
        later = stream.take()
        assert found.run(later) == []
        # Lambda delivers again what it has delivered.
        assert found.another().run([*records, *later]) == []
        assert told(found) == [
            ("workflow.created", None),
            ("workflow.started", None),
            ("workflow.step_completed", "one"),
            ("workflow.step_failed", "two"),
            ("workflow.failed", None),
        ]
        by_type = {event["type"]: event for event in found.events()}
        assert by_type["workflow.step_completed"]["data"] == {
            "workflow_id": record.id,
            "workflow_name": "index",
            "total_steps": 2,
            "step_id": "one",
            "step_type": "a",
            "steps_remaining": 1,
            "duration_ms": 1_500,
        }
        failed = by_type["workflow.failed"]["data"]
        assert (failed["failed_step_id"], failed["failed_step_type"]) == ("two", "b")
        assert failed["error"]["message"] == "It broke."
        assert found.failures.entries == []


def test_steps_that_end_with_one_write_have_events_of_their_own(streamed: Streamed) -> None:
    with streamed() as world:
        found, stream = projected(world), Stream(world.client, world.table)
        record = create(world.run, group(step("a"), step("b"), step("c")))
        dies = world.another()
        dies.workflow_advance.job_ended = lambda job: None  # type: ignore[method-assign]
        for job in world.fetch(count=3, worker=WORKER):
            ack(dies, job)
        world.clock.advance(300_000)
        world.run.workflow_sweep.run_once(world.clock.now_ms(), 10)
        found.run(stream.take())
        kinds = Counter(kind for kind, _ in told(found))
        assert kinds["workflow.step_completed"] == 3
        assert len({event["id"] for event in found.events()}) == len(found.events())
        world.run.workflow_control.retry(record.id, RetryMode.ALL)
        world.run.workflow_control.cancel(record.id)
        found.run(stream.take())
        # Its jobs, which waited, are cancelled after it is.
        assert [kind for kind, _ in told(found)][-5:] == [
            "workflow.started",
            "workflow.cancelled",
            *["workflow.step_failed"] * 3,
        ]


def test_a_job_that_is_removed_before_its_end_has_failed(streamed: Streamed) -> None:
    with streamed() as world:
        found, stream = projected(world), Stream(world.client, world.table)
        record = create(world.run, batch([step("a")], on_failure=step("f")))
        (job,) = world.fetch(worker=WORKER)
        key = {"pk": {"S": f"J|{job.id}"}, "sk": {"S": "@"}}
        world.client.delete_item(TableName=world.table, Key=key)
        found.run(stream.take())
        assert now(world, record).failed == 1
        assert [each.type for each in world.fetch()] == ["f"]


@pytest.mark.exhaustive
def test_what_a_removed_workflow_leaves_is_removed(streamed: Streamed) -> None:
    with streamed() as world:
        found, stream = projected(world), Stream(world.client, world.table)
        large = incompressible(600_000)
        record = create(world.run, chain(step("a", large), group(*[step("b")] * 30), step("c")))
        work(world, lambda job: large if job.type == "a" else 1)
        found.run(stream.take())
        assert any(key.startswith("workflow/") for key in world.blobs.objects)
        key = {"pk": {"S": f"W|{record.id}"}, "sk": {"S": "@"}}
        world.client.delete_item(TableName=world.table, Key=key)
        assert found.run(stream.take()) == []
        assert [item for item in world.items() if item["pk"]["S"].startswith("W|")] == []
        assert not any(key.startswith("workflow/") for key in world.blobs.objects)


def test_what_cannot_be_advanced_now_comes_again(streamed: Streamed) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        record = create(world.run, chain(step("a"), step("b")))
        dies = world.another()
        dies.workflow_advance.job_ended = lambda job: None  # type: ignore[method-assign]
        (job,) = world.fetch(worker=WORKER)
        ack(dies, job)

        class Busy:
            def repeat(self, job: Any) -> None:
                raise BackendUnavailable("busy")

            def clear(self, record: Any) -> None:
                raise AssertionError

        found = Projected(world.client, world.table, world.clock, workflows=Busy)
        records = stream.take()
        failed = found.run(records)
        assert len(failed) == 1
        again = [one for one in records if one["dynamodb"]["SequenceNumber"] in failed]
        assert projected(world).run(again) == []
        assert [each.type for each in world.fetch()] == ["b"]
        assert now(world, record).completed == 1


@pytest.mark.parametrize("attribute", ["state", "nodes"])
def test_a_root_that_only_a_newer_version_knows_is_passed_over(
    streamed: Streamed, attribute: str
) -> None:
    with streamed() as world:
        found, stream = projected(world), Stream(world.client, world.table)
        record = create(world.run, chain(step("a")))
        value = {"S": "new"} if attribute == "state" else {"B": b"\x09"}
        world.client.update_item(
            TableName=world.table,
            Key={"pk": {"S": f"W|{record.id}"}, "sk": {"S": "@"}},
            UpdateExpression="SET #a = :v",
            ExpressionAttributeNames={"#a": attribute},
            ExpressionAttributeValues={":v": value},
        )
        assert found.run(stream.take()) == []
        assert found.failures.entries == []


def test_a_definition_that_cannot_be_read_does_not_stop_the_shard(streamed: Streamed) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        create(world.run, chain(step("a"), step("b")))
        for item in world.items():
            if item["sk"]["S"].startswith("def|"):
                item["graph"] = {"B": b"\x01damaged"}
                world.client.put_item(TableName=world.table, Item=item)
        dies = world.another()
        dies.workflow_advance.job_ended = lambda job: None  # type: ignore[method-assign]
        (job,) = world.fetch(worker=WORKER)
        ack(dies, job)
        assert projected(world).run(stream.take()) == []
