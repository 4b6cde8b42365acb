"""Dying, losing the answer or being throttled at every single call of every path.

After the fault the caller tries again as an SDK would, time passes, the sweeps run; then: no
acknowledged job is lost, none is with two workers, each attempt counts once, terminal is final.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import Conflict, Duplicate, NotFound
from ojs.domain.job import envelope
from ojs.domain.job.job import MISSING, Job
from ojs.runtime import Runtime
from ojs.store.jobs.staged_batches import StagedBatches
from tests.spread import spread
from tests.store.faults import Faulty, attempt, drain, faults, orphans

if TYPE_CHECKING:
    from tests.store.conftest import World


WORKER = "w"
BIG = "x" * 5_000


@pytest.fixture
def one(exact: World) -> World:
    """A world whose queue exists, so that each path is at its usual length."""
    exact.push(queue="default")
    (job,) = exact.fetch()
    exact.run.finish.ack(job.id)
    return exact


@pytest.mark.parametrize("size", ["small", "large"])
def test_push(one: World, size: str) -> None:
    for run, _ in faults(one):
        arguments = [BIG if size == "large" else "small"]
        chosen = one.run.ids.uuid7()
        request = envelope.parse({"type": "a", "args": arguments, "id": chosen})
        answered = attempt(partial(run.enqueue.push, request))
        if answered is None:
            # The client asks again; what was stored already answers as a duplicate.
            with suppress(Duplicate):
                one.run.enqueue.push(request)
        got = drain(one)
        assert [(job.id, job.content) for job in got] == [(chosen, {"args": arguments})]


def waiting(world: World, queue: str) -> set[str]:
    """Jobs of a queue that a fetch could be given, looked up without claiming them."""
    store = world.run.enqueue._jobs
    found: set[str] = set()
    after = None
    while True:
        entries, after = store.index.ready(queue, 0, limit=100, after=after)
        records = store.read_records(job_id for job_id, _ in entries)
        staged = store.batches.uncommitted({job.batch for job in records.values() if job.batch})
        found |= {job.id for job in records.values() if job.batch not in staged}
        if after is None:
            return found


@pytest.mark.parametrize(
    ("ids", "count"),
    [
        ("ours", 3),
        ("theirs", 3),
        # Staged, by the smallest that is.
        ("ours", 5),
        # Staged: the simulation has such in every `make test`.
        pytest.param("ours", 101, marks=pytest.mark.exhaustive),
        pytest.param("theirs", 101, marks=pytest.mark.exhaustive),
    ],
)
def test_push_batch(one: World, count: int, ids: str) -> None:
    for run, _ in faults(one):
        raw: list[dict[str, Any]] = [
            {"type": "a", "args": [n, BIG if n == 1 else ""]} for n in range(count)
        ]
        if ids == "theirs":
            for entry in raw:
                entry["id"] = one.run.ids.uuid7()
        requests = [envelope.parse(entry) for entry in raw]
        answered = attempt(partial(run.enqueue.push_batch, requests))
        one.clock.advance(400_000)
        one.sweep()
        # All or nothing, and all when it was acknowledged.
        stored = waiting(one, "default")
        assert len(stored) in (0, count)
        if answered is not None:
            assert stored == {item.job.id for item in answered}
        records = {i["pk"]["S"] for i in one.items() if i["sk"]["S"] == "@"}
        assert {pk for pk in records if pk.startswith(("J|", "B|"))} - {
            f"J|{job_id}" for job_id in stored
        } == one_done(one)
        wipe_jobs(one, stored)


def test_a_start_of_a_batch_that_was_never_committed_is_not_handed_out(
    one: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It died before the commit, and its jobs become due before the batch is undone."""

    def die(_self: StagedBatches, _token: str, _also: Any = ()) -> bool:
        raise SystemExit

    monkeypatch.setattr(StagedBatches, "_end_staging", die)
    later = {"type": "a", "args": [], "options": {"scheduled_at": "+PT1S"}}
    with suppress(SystemExit):
        one.run.enqueue.push_batch([envelope.parse(later) for _ in range(6)])
    staged = {i["pk"]["S"] for i in one.items() if "batch" in i and i["pk"]["S"].startswith("J|")}
    assert len(staged) == 6
    one.clock.advance(5_000)
    assert one.fetch() == []
    one.clock.advance(400_000)
    one.sweep()
    assert not staged & {i["pk"]["S"] for i in one.items()}


def one_done(world: World) -> set[str]:
    """The completed job that the fixture left."""
    return {
        i["pk"]["S"]
        for i in world.items()
        if i.get("state", {}).get("S") == "completed" and i["sk"]["S"] == "@"
    }


def wipe_jobs(world: World, job_ids: set[str]) -> None:
    """Take jobs away without running them."""
    gone = [(i["pk"]["S"], i["sk"]["S"]) for i in world.items()]
    world.run.table.write_many(deletes=[k for k in gone if k[0].removeprefix("J|") in job_ids])


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_fetch(one: World, count: int) -> None:
    for run, _ in faults(one):
        ids = {one.push(n, BIG if n else "").id for n in range(3)}
        answered = attempt(partial(run.fetch.fetch, ["default"], count, WORKER)) or []
        held = {job.id for job in answered}
        # What one worker was handed nobody else gets while its lease lives.
        others = {job.id for job in one.another().fetch.fetch(["default"], 10, "other")}
        assert not held & others
        for job_id in held:
            assert one.run.finish.ack(job_id, worker_id=WORKER).attempt == 1
        for job_id in others:
            one.run.finish.ack(job_id, worker_id="other")
        assert {job.id for job in drain(one)} == ids - held - others


@pytest.mark.parametrize("result", ["small", BIG])
def test_ack(one: World, result: str) -> None:
    for run, _ in faults(one):
        pushed = one.push()
        one.fetch(worker=WORKER)
        answered = attempt(partial(run.finish.ack, pushed.id, worker_id=WORKER, result=result))
        if answered is None:
            answered = one.run.finish.ack(pushed.id, worker_id=WORKER, result=result)
        assert answered.result == result
        assert drain(one) == []
        found = one.run.jobs.get(pushed.id)
        assert (found.state, found.result, found.attempt) == ("completed", result, 1)


@pytest.mark.parametrize("result", ["small", BIG])
def test_ack_with_a_result_that_is_not_stored(one: World, result: str) -> None:
    for run, _ in faults(one):
        pushed = one.push(result_ttl=0)
        one.fetch(worker=WORKER)
        if attempt(partial(run.finish.ack, pushed.id, worker_id=WORKER, result=result)) is None:
            one.run.finish.ack(pushed.id, worker_id=WORKER, result=result)
        assert drain(one) == []
        found = one.run.jobs.get(pushed.id)
        assert (found.state, found.result, found.result_ref) == ("completed", MISSING, None)


@pytest.mark.parametrize(("requeue", "attempts"), spread(product((False, True), (1, 3)), 3))
def test_nack(one: World, attempts: int, requeue: bool) -> None:
    error = {"code": "E", "message": "told by the worker"}
    for run, _ in faults(one):
        pushed = one.push(retry={"max_attempts": attempts})
        one.fetch(worker=WORKER)

        def nack(run: Runtime, job_id: str = pushed.id) -> Job:
            return run.finish.nack(job_id, error=error, worker_id=WORKER, requeue=requeue)

        if attempt(partial(nack, run)) is None:
            # Asked again: either it had not happened, or it is refused as no longer running.
            with suppress(Conflict):
                nack(one.run)
        found = one.run.jobs.get(pushed.id)
        messages = [e.message for e in found.errors or ()]
        if requeue:
            assert (found.state, found.attempt, messages) == ("available", 0, [])
        else:
            assert messages == ["told by the worker"]
            assert (found.state, found.attempt) == (
                ("discarded", 1) if attempts == 1 else ("retryable", 1)
            )
        assert len(drain(one)) == (0 if attempts == 1 and not requeue else 1)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("promote", marks=pytest.mark.exhaustive),
        "stall",
        pytest.param("time out", marks=pytest.mark.exhaustive),
        pytest.param("expire", marks=pytest.mark.exhaustive),
        pytest.param("batch", marks=pytest.mark.exhaustive),
    ],
)
def test_sweep(one: World, how: str) -> None:
    for run, _ in faults(one):
        match how:
            case "promote":
                pushed = one.push(scheduled_at="+PT1S")
            case "expire":
                pushed = one.push(expires_at="+PT1S")
            case "batch":
                requests = [envelope.parse({"type": "a", "args": [n]}) for n in range(101)]
                broken = one.another(Faulty(one.client, 4, "died after"))
                assert attempt(partial(broken.enqueue.push_batch, requests)) is None
                one.clock.advance(400_000)
                pushed = one.push()
            case _:
                limits: dict[str, Any] = {
                    "visibility_timeout_ms" if how == "stall" else "timeout_ms": 1_000
                }
                pushed = one.push(**limits)
                one.fetch(worker=WORKER)
        one.clock.advance(1_000)
        attempt(partial(run.sweep.run_once, one.clock.now_ms(), 1_000))
        one.sweep()
        found = one.run.jobs.get(pushed.id)
        kinds = [error.type for error in found.errors or ()]
        expected = {
            "promote": ("available", 0, []),
            "expire": ("discarded", 0, ["expired"]),
            "batch": ("available", 0, []),
            "stall": ("available", 1, ["visibility_timeout"]),
            "time out": ("retryable", 1, ["timeout"]),
        }[how]
        assert (found.state, found.attempt, kinds) == expected
        assert [job.id for job in drain(one)] == ([] if how == "expire" else [pushed.id])
        assert orphans(one) == []


@pytest.mark.parametrize("operation", ["cancel", "activate", "retry", "delete"])
def test_by_hand(one: World, operation: str) -> None:
    for run, _ in faults(one):
        pushed = one.push(pending=operation == "activate", retry={"max_attempts": 1})
        if operation in ("retry", "delete"):
            one.fetch(worker=WORKER)
            one.run.finish.nack(pushed.id, error={"code": "x", "message": "y"})

        def act(run: Runtime, job_id: str = pushed.id) -> Any:
            match operation:
                case "cancel":
                    return run.jobs.cancel(job_id)
                case "activate":
                    return run.jobs.activate(job_id)
                case "retry":
                    return run.redrive.retry(job_id)
                case _:
                    run.dead_letter.delete(job_id)
                    return True

        if attempt(partial(act, run)) is None:
            with suppress(Conflict, NotFound):
                act(one.run)
        got = drain(one)
        assert [job.id for job in got] == ([] if operation in ("cancel", "delete") else [pushed.id])
        assert all(job.attempt == 1 for job in got)


def test_unique_push(one: World) -> None:
    for number, (run, _) in enumerate(faults(one)):
        raw = {"type": "u", "args": [number], "unique": {"keys": ["args"]}}
        request = envelope.parse(raw)
        if attempt(partial(run.enqueue.push, request)) is None:
            with suppress(Duplicate):
                one.run.enqueue.push(request)
        assert [(job.content or {})["args"] for job in drain(one)] == [[number]]
