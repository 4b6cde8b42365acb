"""Answers that were lost while somebody else went on, and batches that failed midway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from ojs.domain import envelope
from ojs.domain.errors import BackendError, BackendUnavailable, Conflict, Duplicate
from ojs.store import keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.conftest import World

BIG = "x" * 5_000


class Meddled:
    """A client on which one call takes effect, something else happens, and the SDK asks again."""

    def __init__(self, client: Any, operation: str, meanwhile: Callable[[], Any]) -> None:
        self._client, self._operation, self._meanwhile = client, operation, meanwhile
        self.happened = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            head = arguments.get("Item", {}).get("sk", {}).get("S") == keys.HEAD
            if self.happened or name != self._operation or (name == "put_item" and not head):
                return method(**arguments)
            method(**arguments)
            self.happened = True
            self._meanwhile()
            # As another transaction: the SDK's own token would hide the second one.
            return method(**{k: v for k, v in arguments.items() if k != "ClientRequestToken"})

        return call


@pytest.mark.parametrize("argument", ["small", BIG])
@pytest.mark.parametrize("then", ["claimed", "completed", "cancelled"])
def test_a_push_whose_answer_was_lost_is_acknowledged_whatever_became_of_the_job(
    exact: World, argument: str, then: str
) -> None:
    chosen = exact.run.ids.uuid7()
    exact.push(queue="default")
    exact.fetch()

    def meanwhile() -> None:
        if then == "cancelled":
            exact.run.jobs.cancel(chosen)
            return
        (job,) = exact.fetch()
        assert job.id == chosen
        if then == "completed":
            exact.run.finish.ack(chosen, worker_id=None)

    client = Meddled(exact.client, "put_item", meanwhile)
    request = envelope.parse({"type": "a", "args": [argument], "id": chosen})
    pushed = exact.another(client).enqueue.push(request)
    assert client.happened
    assert pushed.job.id == chosen
    assert not pushed.deduplicated
    # What was stored is whole: the text that the living head names is still there.
    stored = exact.run.jobs.get(chosen)
    assert stored.content == {"args": [argument]}


def test_a_batch_whose_answer_was_lost_is_acknowledged_though_a_job_was_claimed(
    exact: World,
) -> None:
    client = Meddled(exact.client, "transact_write_items", lambda: exact.fetch(count=1))
    exact.push(queue="default")
    exact.fetch()
    requests = [envelope.parse({"type": "a", "args": [n, BIG]}) for n in range(3)]
    pushed = exact.another(client).enqueue.push_batch(requests)
    assert client.happened
    states = [exact.state(one.job) for one in pushed]
    assert states == ["active", "available", "available"]
    assert [exact.run.jobs.get(one.job.id).content for one in pushed] == [
        {"args": [n, BIG]} for n in range(3)
    ]


def test_the_same_id_with_other_content_is_a_duplicate_and_leaves_the_first_alone(
    world: World,
) -> None:
    chosen = world.run.ids.uuid7()
    world.run.enqueue.push(envelope.parse({"type": "a", "args": [BIG], "id": chosen}))
    with pytest.raises(Duplicate):
        world.run.enqueue.push(envelope.parse({"type": "a", "args": ["other"], "id": chosen}))
    assert world.run.jobs.get(chosen).content == {"args": [BIG]}


def test_of_equal_pushes_in_the_same_millisecond_one_is_taken(world: World) -> None:
    raw = {"type": "a", "args": [1], "id": world.run.ids.uuid7()}
    world.run.enqueue.push(envelope.parse(raw))
    with pytest.raises(Duplicate):
        world.run.enqueue.push(envelope.parse(raw))
    with pytest.raises(Duplicate):
        world.run.enqueue.push_batch([envelope.parse(raw)])


class Broken:
    """A client on which calls of one operation fail, from the n-th on, for as long as it says."""

    def __init__(self, client: Any, operation: str, first: int) -> None:
        self._client, self._operation, self._first = client, operation, first
        self.calls = 0
        self.broken = True

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            if name == self._operation:
                self.calls += 1
                if self.broken and self.calls >= self._first:
                    raise ClientError({"Error": {"Code": "ThrottlingException"}}, name)
            return method(**arguments)

        return call


def _batch(world: World, count: int) -> list[dict[str, Any]]:
    return [{"type": "a", "args": [n, BIG], "id": world.run.ids.uuid7()} for n in range(count)]


def test_a_staged_batch_that_failed_midway_can_be_sent_again_with_the_same_ids(
    exact: World,
) -> None:
    raw = _batch(exact, 150)
    requests = [envelope.parse(one) for one in raw]
    client = Broken(exact.client, "transact_write_items", first=2)
    run = exact.another(client)
    with pytest.raises(BackendUnavailable):
        run.enqueue.push_batch(requests)
    client.broken = False
    # It was undone at once: nothing of it is in the way, nothing is left behind.
    assert not [i for i in exact.items() if i["pk"]["S"].startswith(("J|", "B|"))]
    assert len(run.enqueue.push_batch(requests)) == 150
    assert len(exact.fetch(count=100)) == 100


def test_what_a_dead_container_left_staged_is_no_duplicate_until_it_is_undone(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = _batch(exact, 150)
    requests = [envelope.parse(one) for one in raw]
    run = exact.another()
    # It died before the commit, and before it could undo anything.
    monkeypatch.setattr(run.enqueue._jobs, "_commit", _die)
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
    commit = run.enqueue._jobs._commit

    def late(token: str) -> None:
        exact.clock.advance(400_000)
        assert exact.sweep()["batches_undone"] == 1
        commit(token)

    monkeypatch.setattr(run.enqueue._jobs, "_commit", late)
    with pytest.raises(BackendUnavailable):
        run.enqueue.push_batch(requests)
    assert exact.fetch(count=100) == []


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
        monkeypatch.setattr(run.enqueue._jobs, "_commit", _die)
        with pytest.raises(SystemExit):
            run.enqueue.push_batch([envelope.parse(one) for one in _batch(exact, 101)])
    late = exact.push(scheduled_at="+PT10S", queue="elsewhere")
    exact.clock.advance(400_000)
    undo = exact.run.sweep._jobs.undo_batch
    failed: list[str] = []

    def once(token: str) -> int:
        if not failed:
            failed.append(token)
            raise BackendUnavailable("busy")
        return undo(token)

    monkeypatch.setattr(exact.run.sweep._jobs, "undo_batch", once)
    counts = exact.sweep()
    assert (counts["failed"], counts["batches_undone"], counts["promoted"]) == (1, 1, 1)
    assert exact.state(late) == "available"
    assert exact.sweep()["batches_undone"] == 1


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


def test_an_ack_whose_first_try_was_lost_in_time_is_answered(exact: World) -> None:
    job = exact.push()
    exact.fetch(worker="w")

    class TimesOut:
        def __getattr__(self, name: str) -> Any:
            method = getattr(exact.client, name)

            def call(**arguments: Any) -> Any:
                method(**arguments)
                raise ReadTimeoutError(endpoint_url="dynamodb")

            return call

    with pytest.raises(BackendError):
        exact.another(TimesOut()).finish.ack(job.id, worker_id="w")
    assert exact.run.finish.ack(job.id, worker_id="w").state == "completed"
