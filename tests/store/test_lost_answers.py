"""Answers that were lost while somebody else went on, and batches that failed midway."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from ojs.domain.dead_letter.override import JobOverride
from ojs.domain.errors import (
    BackendError,
    BackendUnavailable,
    Conflict,
    Duplicate,
    NotFound,
    QueueFull,
)
from ojs.domain.job import envelope
from ojs.store.jobs.staged_batches import UndoneBatch
from ojs.store.table import keys
from tests.store.doubles import Broken, Meddled

if TYPE_CHECKING:
    from tests.store.conftest import World

BIG = "x" * 5_000


@pytest.mark.parametrize("own_id", [True, False])
@pytest.mark.parametrize("argument", ["small", BIG])
@pytest.mark.parametrize("then", ["claimed", "completed", "cancelled", "put off", "back", "moved"])
def test_a_push_whose_answer_was_lost_is_acknowledged_whatever_became_of_the_job(
    exact: World, argument: str, then: str, own_id: bool
) -> None:
    exact.push(queue="default")
    exact.fetch()
    limit: dict[str, Any] = {}
    if then in ("put off", "back"):
        limit = {"rate_limit": {"key": "k", "concurrency": 1, "on_limit": "reschedule"}}
        exact.push(**limit)
        (running,) = exact.fetch()

    def meanwhile() -> None:
        match then:
            case "cancelled":
                exact.run.jobs.cancel(chosen())
            case "moved":
                exact.run.deletion.delete("default", "move", "other")
            case "put off" | "back":
                assert exact.fetch() == []
                assert exact.run.jobs.get(chosen()).state == "scheduled"
                if then == "back":
                    exact.run.finish.ack(running.id, worker_id=None)
                    exact.clock.advance(3_600_000)
                    assert exact.run.jobs.get(chosen()).state == "available"
            case _:
                (job,) = exact.fetch()
                assert job.id == chosen()
                if then == "completed":
                    exact.run.finish.ack(job.id, worker_id=None)

    def chosen() -> str:
        (found,) = [i["pk"]["S"] for i in exact.items() if i.get("type", {}).get("S") == "a"]
        return keys.job_id(found)

    client = Meddled(exact.client, "put_item", meanwhile)
    raw: dict[str, Any] = {"type": "a", "args": [argument], "options": limit}
    if own_id:
        raw["id"] = exact.run.ids.uuid7()
    pushed = exact.another(client).enqueue.push(envelope.parse(raw))
    assert client.happened
    assert pushed.job.id == chosen()
    assert not pushed.deduplicated
    # What was stored is whole: the text that the living job record names is still there.
    content = exact.run.jobs.get(chosen()).content
    assert content is not None
    assert content["args"] == [argument]


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("argument", ["small", BIG])
def test_a_batch_whose_answer_was_lost_keeps_its_contents_though_one_job_is_gone(
    exact: World, argument: str, chosen: bool
) -> None:
    def meanwhile() -> None:
        first, *_ = exact.fetch(count=3)
        exact.run.finish.nack(first.id, worker_id=None, error={"code": "DEAD_LETTER"})
        exact.run.dead_letter.delete(first.id)

    client = Meddled(exact.client, "transact_write_items", meanwhile)
    raw: list[dict[str, Any]] = [{"type": "a", "args": [n, argument]} for n in range(3)]
    if chosen:
        raw = [one | {"id": exact.run.ids.uuid7()} for one in raw]
    pushed = exact.another(client).enqueue.push_batch([envelope.parse(one) for one in raw])
    assert client.happened
    contents = [exact.run.jobs.get(one.job.id).content for one in pushed[1:]]
    assert contents == [{"args": [n, argument]} for n in (1, 2)]


@pytest.mark.parametrize("argument", ["small", BIG])
def test_another_push_with_the_same_id_and_content_is_refused_and_leaves_the_first_whole(
    world: World, argument: str
) -> None:
    """Also when the job has gone on since, and both came in one millisecond."""
    raw = {"type": "a", "args": [argument], "id": world.run.ids.uuid7()}
    first = world.run.enqueue.push(envelope.parse(raw)).job
    for change in (None, world.fetch, lambda: world.run.finish.ack(first.id)):
        if change is not None:
            change()
        for again in ([raw], [raw, {"type": "b", "args": [BIG]}]):
            with pytest.raises(Duplicate):
                world.run.enqueue.push_batch([envelope.parse(one) for one in again])
        with pytest.raises(Duplicate):
            world.run.enqueue.push(envelope.parse(raw))
        assert world.run.jobs.get(first.id).content == {"args": [argument]}


def test_a_retry_with_new_args_whose_answer_was_lost_keeps_what_a_worker_was_given(
    exact: World,
) -> None:
    job = exact.push("old" + BIG)
    exact.fetch()
    exact.run.finish.nack(job.id, worker_id=None, error={"code": "DEAD_LETTER"})
    given: list[Any] = []
    client = Meddled(exact.client, "update_item", lambda: given.extend(exact.fetch()))
    with pytest.raises(Conflict):
        # It was this very retry that brought the job back; a worker has it by now.
        exact.another(client).redrive.retry(job.id, JobOverride(args=["new" + BIG]))
    assert client.happened
    assert [one.content for one in given] == [{"args": ["new" + BIG]}]
    assert exact.run.jobs.get(job.id).content == {"args": ["new" + BIG]}
    exact.run.finish.nack(job.id, worker_id=None, error={"message": "once more"})
    exact.clock.advance(3_600_000)
    (again,) = exact.fetch()
    assert again.content == {"args": ["new" + BIG]}


def _batch(world: World, count: int) -> list[dict[str, Any]]:
    return [{"type": "a", "args": [n, BIG], "id": world.run.ids.uuid7()} for n in range(count)]


def test_a_staged_batch_that_failed_midway_can_be_sent_again_with_the_same_ids(
    exact: World,
) -> None:
    raw = _batch(exact, 150)
    requests = [envelope.parse(one) for one in raw]
    client = Broken(exact.client, "transact_write_items", first=2, last=5)
    run = exact.another(client)
    with pytest.raises(BackendUnavailable):
        run.enqueue.push_batch(requests)
    # It was undone at once: nothing of it is in the way, nothing is left behind.
    assert not [i for i in exact.items() if i["pk"]["S"].startswith(("J|", "B|"))]
    assert len(run.enqueue.push_batch(requests)) == 150
    assert len(exact.fetch(count=100)) == 100


@pytest.mark.parametrize("bounds", [{}, {"max_size": 1_000}, {"max_size": 151}])
def test_what_a_dead_container_left_staged_is_no_duplicate_until_it_is_undone(
    exact: World, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int]
) -> None:
    """Nor when the same jobs are asked for again, and the room is taken for those left there."""
    exact.run.queues.configure("default", bounds)
    raw = _batch(exact, 150)
    requests = [envelope.parse(one) for one in raw]
    run = exact.another()
    # It died before the commit, and before it could undo anything.
    monkeypatch.setattr(run.enqueue._jobs.batches, "_commit", _die)
    with pytest.raises(SystemExit):
        run.enqueue.push_batch(requests)
    for again in (requests, requests[:3]):
        with pytest.raises(BackendUnavailable):
            exact.run.enqueue.push_batch(again)
    with pytest.raises(BackendUnavailable):
        exact.run.enqueue.push(requests[0])
    exact.clock.advance(400_000)
    assert exact.sweep()["batches_undone"] == 1
    assert len(exact.run.enqueue.push_batch(requests)) == 150


def _die(_token: str) -> None:
    raise SystemExit


def test_a_commit_that_comes_after_the_sweep_undid_the_batch_is_refused(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [envelope.parse(one) for one in _batch(exact, 101)]
    run = exact.another()
    commit = run.enqueue._jobs.batches._commit

    def late(token: str) -> None:
        exact.clock.advance(400_000)
        assert exact.sweep()["batches_undone"] == 1
        commit(token)

    monkeypatch.setattr(run.enqueue._jobs.batches, "_commit", late)
    with pytest.raises(BackendUnavailable):
        run.enqueue.push_batch(requests)
    assert exact.fetch(count=100) == []


@pytest.mark.exhaustive
def test_a_staged_batch_leaves_no_text_behind_wherever_it_fails(exact: World) -> None:
    for first in range(1, 40):
        client = Broken(exact.client, "batch_write_item", first=first)
        try:
            exact.another(client).enqueue.push_batch(
                [envelope.parse({"type": "a", "args": [n, BIG]}) for n in range(120)]
            )
        except BackendError:
            exact.clock.advance(400_000)
            exact.sweep()
            left = [i for i in exact.items() if i["pk"]["S"].startswith(("J|", "B|"))]
            assert not left, first
        else:
            break
    else:
        pytest.fail("never went through")


def test_one_batch_that_cannot_be_undone_holds_up_neither_others_nor_jobs(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        run = exact.another()
        monkeypatch.setattr(run.enqueue._jobs.batches, "_commit", _die)
        with pytest.raises(SystemExit):
            run.enqueue.push_batch([envelope.parse(one) for one in _batch(exact, 101)])
    late = exact.push(scheduled_at="+PT10S", queue="elsewhere")
    exact.clock.advance(400_000)
    undo = exact.run.sweep._jobs.batches.undo
    failed: list[str] = []

    def once(token: str, *, now_ms: int) -> UndoneBatch:
        if not failed:
            failed.append(token)
            raise BackendUnavailable("busy")
        return undo(token, now_ms=now_ms)

    monkeypatch.setattr(exact.run.sweep._jobs.batches, "undo", once)
    counts = exact.sweep()
    assert (counts["failed"], counts["batches_undone"], counts["promoted"]) == (1, 1, 1)
    assert exact.state(late) == "available"
    assert exact.sweep()["batches_undone"] == 1


# --- late writes --------------------------------------------------------------------------------


class Late:
    """A client on which one write has no answer, and takes effect when it is told to: the first
    batch of writes, or the first call of one of `operations` that has `about` in it. With `once`
    its repetition is answered.
    """

    def __init__(
        self,
        client: Any,
        *operations: str,
        about: str = "",
        once: bool = False,
    ) -> None:
        self._client = client
        self._operations = operations or ("batch_write_item",)
        self._about = about
        self._once = once
        self._operation = ""
        self.writes: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            again = not self._once and arguments in self.writes
            first = not self.writes and self._about in str(arguments)
            if name in self._operations and (first or again):
                self._operation, self.writes = name, [arguments]
                raise ReadTimeoutError(endpoint_url="dynamodb")
            return method(**arguments)

        return call

    def arrive(self) -> None:
        """Have the write take effect now."""
        with suppress(ClientError):
            getattr(self._client, self._operation)(**self.writes[0])


def _staged_late(world: World, *, max_size: int | None = None) -> Late:
    """A batch of jobs whose first write is on its way while the batch is undone."""
    if max_size is not None:
        world.run.queues.configure("default", {"max_size": max_size})
    client = Late(world.client)
    with pytest.raises(BackendError):
        world.another(client).enqueue.push_batch(
            [envelope.parse({"type": "a", "args": [n]}) for n in range(101)]
        )
    return client


def _late_jobs(world: World) -> list[dict[str, Any]]:
    return [item for item in world.items() if item["pk"]["S"].startswith("J|")]


@pytest.mark.parametrize("minutes", [0, 1, 59])
def test_jobs_that_are_written_after_their_batch_was_undone_never_run(
    exact: World, minutes: int
) -> None:
    client = _staged_late(exact)
    exact.sweep()
    exact.clock.advance(minutes * 60_000)
    exact.sweep()
    client.arrive()
    assert len(_late_jobs(exact)) == 25
    assert exact.fetch(count=100) == []
    some = keys.job_id(_late_jobs(exact)[0]["pk"]["S"])
    with pytest.raises(NotFound):
        exact.run.jobs.get(some)
    # They are removed before the note that hides them goes.
    exact.clock.advance(3_600_000)
    assert exact.sweep()["batches_undone"] == 1
    assert _late_jobs(exact) == []
    (note,) = [i for i in _all_items(exact) if i["pk"]["S"].startswith("B|")]
    assert "wpk" not in note
    assert int(note["ttl"]["N"]) * 1000 > exact.clock.now_ms() + 86_400_000
    assert "batches_undone" not in exact.sweep()


@pytest.mark.parametrize("operation", ["batch_write_item", "put_item"])
def test_a_staged_batch_with_a_write_that_may_still_come_is_not_committed(
    exact: World, operation: str
) -> None:
    client = Late(exact.client, operation, once=True)
    requests = [envelope.parse({"type": "a", "args": [n]}) for n in range(101)]
    exact.push()
    run = exact.another(client)
    with pytest.raises(BackendError):
        run.enqueue.push_batch(requests)
    # The caller asks again; what came late changes nothing of what was stored then.
    first = run.enqueue.push_batch(requests)
    taken = exact.fetch(count=102)
    assert len(taken) == 102
    exact.run.finish.ack(taken[1].id, worker_id=None)
    client.arrive()
    assert exact.fetch(count=10) == []
    exact.clock.advance(400_000)
    exact.sweep()
    states = [exact.run.jobs.get(one.job.id).state.value for one in first]
    assert sorted(set(states)) == ["active", "completed"]


def test_a_late_removal_spares_the_jobs_that_the_client_stored_again(exact: World) -> None:
    late = Late(exact.client, "batch_write_item", "transact_write_items", about="Delete", once=True)
    client = Broken(late, "transact_write_items", first=2, last=5)
    requests = [
        envelope.parse({"type": "a", "args": [n], "id": exact.run.ids.uuid7()}) for n in range(101)
    ]
    with pytest.raises(BackendUnavailable):
        exact.another(client).enqueue.push_batch(requests)
    # They were removed by the second try of that.
    assert _late_jobs(exact) == []
    assert len(exact.run.enqueue.push_batch(requests)) == 101
    late.arrive()
    assert len(_late_jobs(exact)) == 101


def test_an_undone_batch_is_looked_at_once_more_and_never_again(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sweep stores up to where it read the due notes. That is no write for a batch.
    monkeypatch.setattr(exact.run.stores.due_notes, "advance", lambda _: None)
    client = Broken(exact.client, "batch_write_item", first=1)
    with pytest.raises(BackendUnavailable):
        exact.another(client).enqueue.push_batch(
            [envelope.parse({"type": "a", "args": [n]}) for n in range(101)]
        )
    calls = exact.run.table.meter.calls
    for hours, writes in ((0, 0), (1, 2), (1, 0), (24, 0)):
        exact.clock.advance(hours * 3_600_000 + 1)
        calls.clear()
        exact.sweep()
        assert calls.count("UpdateItem") == writes


def test_an_undone_batch_gives_its_room_back_once_however_often_it_is_undone(exact: World) -> None:
    client = _staged_late(exact, max_size=101)
    client.arrive()
    for _ in range(3):
        exact.clock.advance(2_000_000)
        exact.sweep()
    assert _late_jobs(exact) == []
    requests = [envelope.parse({"type": "a", "args": [n]}) for n in range(101)]
    assert len(exact.run.enqueue.push_batch(requests)) == 101
    with pytest.raises(QueueFull):
        exact.push()


def test_a_push_that_meets_a_late_job_of_an_undone_batch_has_it_removed(exact: World) -> None:
    client = _staged_late(exact)
    client.arrive()
    late = [keys.job_id(item["pk"]["S"]) for item in _late_jobs(exact)]
    request = envelope.parse({"type": "mine", "args": [], "id": late[0]})
    with pytest.raises(BackendUnavailable) as refused:
        exact.run.enqueue.push(request)
    assert refused.value.retry_after_s
    assert _late_jobs(exact) == []
    assert exact.run.enqueue.push(request).job.type == "mine"
    exact.clock.advance(3_600_000)
    exact.sweep()
    assert [job.id for job in exact.fetch(count=10)] == [late[0]]


def _all_items(world: World) -> list[dict[str, Any]]:
    pages = world.client.get_paginator("scan").paginate(TableName=world.table)
    return [item for page in pages for item in page["Items"]]


# --- a job without its content ------------------------------------------------------------------


def test_a_job_that_ends_and_is_deleted_while_it_is_handed_out_is_not_handed_out(
    exact: World,
) -> None:
    job = exact.push(BIG)
    other = exact.push("small")

    ended: list[str] = []

    def meanwhile() -> None:
        exact.run.finish.nack(job.id, worker_id=None, error={"code": "DEAD_LETTER"})
        exact.run.dead_letter.delete(job.id)

    class Slow:
        """The job is ended after it was claimed, before its content is read."""

        def __getattr__(self, name: str) -> Any:
            method = getattr(exact.client, name)

            def call(**arguments: Any) -> Any:
                payload = str(arguments.get("RequestItems", ""))
                if name == "batch_get_item" and keys.PAYLOAD in payload and not ended:
                    ended.append(job.id)
                    meanwhile()
                return method(**arguments)

            return call

    fetched = exact.another(Slow()).fetch.fetch(["default"], 2, None)
    assert [one.id for one in fetched] == [other.id]
    # Nothing is left of the job that is gone: no entry of an error without a job record.
    assert not [item for item in exact.items() if item["pk"]["S"] == keys.job(job.id)]


@pytest.mark.parametrize("large", [BIG, "x" * 400_000])
def test_a_job_whose_content_is_lost_goes_to_dead_letter_instead_of_to_a_worker(
    exact: World, large: str
) -> None:
    job = exact.push(large)
    other = exact.push("small")
    for item in exact.items():
        if item["sk"]["S"].startswith(keys.PAYLOAD):
            exact.client.delete_item(
                TableName=exact.table, Key={"pk": item["pk"], "sk": item["sk"]}
            )
    for name in list(exact.blobs.objects):
        exact.blobs.delete(name)
    assert [one.id for one in exact.fetch(count=5)] == [other.id]
    ended = exact.run.jobs.get(job.id)
    assert (ended.state, ended.dead_letter) == ("discarded", True)
    (error,) = ended.errors or ()
    assert (error.type, error.retryable) == ("content_missing", False)
    assert exact.fetch(count=5) == []


# --- a late worker ------------------------------------------------------------------------------


def _stalled(world: World) -> Any:
    world.push(visibility_timeout_ms=1_000)
    (job,) = world.fetch(worker="w")
    world.clock.advance(1_000)
    assert world.state(job) == "available"
    return job


def test_a_late_ack_counts_as_long_as_nobody_was_given_the_job(world: World) -> None:
    job = _stalled(world)
    with pytest.raises(Conflict):
        world.run.finish.ack(job.id, worker_id="another")
    done = world.run.finish.ack(job.id, worker_id="w", attempt=1, result={"n": 1})
    assert (done.state, done.attempt) == ("completed", 1)
    assert world.fetch() == []


def test_a_late_nack_counts_as_long_as_nobody_was_given_the_job(world: World) -> None:
    job = _stalled(world)
    failed = world.run.finish.nack(job.id, worker_id="w", error={"message": "no"})
    assert (failed.state, failed.attempt) == ("retryable", 1)
    # What the worker says of its run replaces what the backend supposed.
    assert [e.message for e in world.run.jobs.get(job.id).errors or ()] == ["no"]


def test_a_late_heartbeat_takes_the_job_back(world: World) -> None:
    job = _stalled(world)
    beat = world.run.workers.beat("w", active_jobs=[job.id], visibility_timeout_ms=5_000)
    assert beat.jobs_extended == [job.id]
    assert world.state(job) == "active"
    assert world.fetch() == []
    assert world.run.finish.ack(job.id, worker_id="w").state == "completed"


def test_once_the_job_was_handed_out_again_its_former_worker_is_refused(world: World) -> None:
    job = _stalled(world)
    (again,) = world.fetch(worker="v")
    assert again.id == job.id
    with pytest.raises(Conflict):
        world.run.finish.ack(job.id, worker_id="w")
    with pytest.raises(Conflict):
        world.run.finish.nack(job.id, worker_id="w", error={"message": "no"})
    assert world.run.workers.beat("w", active_jobs=[job.id]).jobs_extended == []
    assert world.run.finish.ack(job.id, worker_id="v").state == "completed"
