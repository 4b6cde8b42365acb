"""Pushes under an idempotency key: one set of jobs, whatever happens to the requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest

from ojs.domain.access import Principal
from ojs.domain.errors import (
    BackendContended,
    BackendError,
    Conflict,
    Duplicate,
    JobTypeNotAllowed,
    OjsError,
    QueueFull,
)
from ojs.domain.ids import is_uuid7
from ojs.domain.job import envelope
from ojs.domain.job.idempotency import KEPT_MS, IdempotencyKey
from ojs.runtime import Runtime
from ojs.services.jobs.enqueue import Pushed
from ojs.store.jobs.idempotency_keys import IdempotencyKeys
from ojs.store.jobs.staged_batches import STAGING_GRACE_MS
from tests.store.faults import Died, Faulty, attempt, drain, faults, orphans
from tests.store.spending import spending

if TYPE_CHECKING:
    from tests.store.conftest import World

CHOSEN = "01968f2a-0000-7000-8000-{:012d}"
ALICE, BOB = Principal("a", key="a" * 16), Principal("a", key="b" * 16)


def push(
    run: Runtime,
    *jobs: Any,
    key: str = "k",
    caller: Principal = ALICE,
    batch: bool | None = None,
) -> list[Pushed]:
    """Push these jobs as one request; a `batch` unless it is one job."""
    raw = [{"type": "t", "args": [], **job} for job in jobs]
    batch = len(raw) > 1 if batch is None else batch
    sent = IdempotencyKey.of(key, caller=caller, operation=f"{batch}", body={"jobs": raw})
    requests = [envelope.parse(job) for job in raw]
    return run.idempotent_push.push(sent, requests, batch=batch, reaches=caller.reaches)


def ids(pushed: Sequence[Pushed]) -> list[str]:
    return [one.job.id for one in pushed]


def unique(number: int, **more: Any) -> dict[str, Any]:
    return {"args": [number], "options": {"unique": {"keys": ["type", "args"], **more}}}


IGNORED = {"on_conflict": "ignore"}
# Every way in which jobs are stored, by what is different each time.
KINDS: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "one job": lambda n: [{"args": [n]}],
    "a large job": lambda n: [{"args": ["x" * 20_000, n]}],
    "a scheduled job": lambda n: [{"args": [n], "options": {"delay_until": "+PT5M"}}],
    "a job of a chosen id": lambda n: [{"id": CHOSEN.format(n)}],
    "a unique job": lambda n: [unique(n)],
    "a unique job of which there is one": lambda n: [unique(n, **IGNORED)],
    "a transaction": lambda n: [{"args": [n, each]} for each in range(3)],
    "unique jobs": lambda n: [unique(n), unique(-n, **IGNORED), {}],
    "chosen ids among others": lambda n: [
        {"id": CHOSEN.format(10 * n + each)} if each % 2 else {} for each in range(6)
    ],
    "a staged batch": lambda n: [{"args": [n, each]} for each in range(7)],
    "a staged batch of large jobs": lambda n: [{"args": ["x" * 8_000, n]}] * 5,
    "a staged batch of chosen ids": lambda n: [
        {"id": CHOSEN.format(1_000 * n + each)} for each in range(102)
    ],
}
FEW = ("one job", "a unique job", "a staged batch")
MORE = [pytest.param(kind, marks=pytest.mark.exhaustive) for kind in KINDS if kind not in FEW]
LONG = "a staged batch of chosen ids"


def again(world: World, jobs: list[dict[str, Any]], key: str) -> list[Pushed]:
    """As a client asks that got no answer, until it has one."""
    for _ in range(3):
        if (pushed := attempt(lambda: push(world.another(), *jobs, key=key))) is not None:
            return cast("list[Pushed]", pushed)
        world.clock.advance(5_000)
    raise AssertionError("no answer")


def check_repetitions(world: World, run: Runtime, jobs: list[dict[str, Any]], key: str) -> None:
    """A first try, which may go wrong, and two more: there is one set of jobs."""
    told = attempt(lambda: push(run, *jobs, key=key))
    second = again(world, jobs, key)
    third = push(world.another(), *jobs, key=key)
    assert ids(second) == ids(third)
    assert told is None or ids(told) == ids(second)
    assert all(map(is_uuid7, ids(second)))
    for one, job in zip(third, jobs, strict=True):
        assert not one.absent
        assert not one.deduplicated
        assert (one.job.content or {})["args"] == job.get("args", [])
    assert sorted(job.id for job in drain(world)) == sorted(ids(second))
    assert orphans(world) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_repetition_pushes_nothing(world: World, kind: str) -> None:
    check_repetitions(world, world.run, KINDS[kind](1), "k")


@pytest.mark.parametrize(
    "kind",
    [
        *FEW[:2],
        pytest.param(FEW[2], marks=pytest.mark.exhaustive),
        *(one for one in MORE if one.values != (LONG,)),
    ],
)
def test_whatever_call_goes_wrong_there_is_one_set_of_jobs(exact: World, kind: str) -> None:
    """Dead before or after a call, no answer, throttled."""
    for number, (run, _) in enumerate(faults(exact), start=1):
        check_repetitions(exact, run, KINDS[kind](number), f"k{number}")


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [*FEW, "unique jobs"])
def test_whatever_goes_wrong_with_a_second_try(exact: World, kind: str) -> None:
    """After a first one that died when its jobs were stored, or staged."""
    for number, (run, _) in enumerate(faults(exact), start=1):
        jobs, key = KINDS[kind](number), f"k{number}"
        with mock.patch.object(IdempotencyKeys, "finish", side_effect=Died), pytest.raises(Died):
            push(exact.another(), *jobs, key=key)
        check_repetitions(exact, run, jobs, key)


@pytest.mark.parametrize("kind", [*FEW, *MORE])
def test_of_two_at_once_one_pushes(exact: World, kind: str) -> None:
    """The other is answered with the same jobs, or to try again. No third set comes of it."""
    for number in range(1, 6):
        jobs, start = KINDS[kind](number), Barrier(2)

        def one(
            run: Runtime, jobs: Any = jobs, start: Barrier = start, key: str = f"k{number}"
        ) -> list[Pushed] | None:
            start.wait()
            return cast("list[Pushed] | None", attempt(lambda: push(run, *jobs, key=key)))

        with ThreadPoolExecutor(2) as pool:
            told = [each for each in pool.map(one, [exact.another(), exact.another()]) if each]
        told.append(again(exact, jobs, f"k{number}"))
        assert {tuple(ids(each)) for each in told} == {tuple(ids(told[-1]))}
        assert sorted(job.id for job in drain(exact)) == sorted(ids(told[-1]))
        assert orphans(exact) == []


@pytest.mark.parametrize("kind", ["one job", "a transaction", "unique jobs", "a staged batch"])
@pytest.mark.parametrize("at", range(1, 8))
def test_a_try_between_the_calls_of_another_one(exact: World, kind: str, at: int) -> None:
    """One try goes on after another one began, and ended, in the midst of it."""
    jobs, told = KINDS[kind](1), []

    class Client:
        """Lets the other try come before the call of this number."""

        calls = 0

        def __getattr__(self, name: str) -> Any:
            method = getattr(exact.client, name)

            def call(**arguments: Any) -> Any:
                Client.calls += 1
                if Client.calls == at:
                    told.append(push(exact.another(), *jobs))
                return method(**arguments)

            return call

    slow = exact.another(Client())
    first = attempt(lambda: push(slow, *jobs))
    told += [] if first is None else [first]
    told.append(again(exact, jobs, "k"))
    assert {tuple(ids(each)) for each in told} == {tuple(ids(told[-1]))}
    assert sorted(job.id for job in drain(exact)) == sorted(ids(told[-1]))
    assert orphans(exact) == []


def test_one_key_with_two_bodies_at_once_pushes_one_of_them(exact: World) -> None:
    start = Barrier(2)

    def one(run: Runtime, number: int) -> Pushed | OjsError:
        start.wait()
        try:
            return push(run, {"args": [number]})[0]
        except OjsError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(one, [exact.another(), exact.another()], [1, 2]))
    pushed = [each for each in told if isinstance(each, Pushed)]
    refused = [each for each in told if isinstance(each, OjsError)]
    assert len(pushed) == len(refused) == 1
    assert isinstance(refused[0], Conflict)
    assert refused[0].details["field"] == "Idempotency-Key"
    assert [job.id for job in drain(exact)] == ids(pushed)


def test_the_jobs_are_shown_as_they_are_now(world: World) -> None:
    (pushed,) = push(world.run, {})
    batch = push(world.run, {}, {}, key="batch")
    jobs = world.fetch(count=3)
    world.run.finish.ack(jobs[0].id, result=1)
    (one,) = push(world.run, {})
    assert (one.job.id, one.job.state, one.job.result) == (pushed.job.id, "completed", 1)
    assert not one.deduplicated
    assert [each.job.state for each in push(world.run, {}, {}, key="batch")] == ["active"] * 2
    assert ids(push(world.run, {}, {}, key="batch")) == ids(batch)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_jobs_that_were_deleted_are_shown_as_they_were_pushed(world: World, count: int) -> None:
    body = [{"args": [n], "options": {"queue": "q", "priority": 3}} for n in range(count)]
    pushed = push(world.run, *body)
    for job in world.fetch("q", count=count):
        world.run.finish.ack(job.id)
    world.run.acts.delete(pushed[0].job.id)
    again = push(world.run, *body)
    assert ids(again) == ids(pushed)
    assert [one.absent for one in again] == [True] + [False] * (count - 1)
    shown = again[0].job
    assert (shown.queue, shown.priority, shown.state) == ("q", 3, "available")
    assert shown.content is not None
    assert shown.content["args"] == [0]
    assert world.fetch("q") == []


@pytest.mark.parametrize(
    "body",
    [
        [{}, {}, {}],
        [{}, unique(1), unique(2, **IGNORED)],
        [{"id": CHOSEN.format(1)}, {"id": CHOSEN.format(2)}, *[{}] * 5],
    ],
)
def test_jobs_that_were_deleted_before_the_next_try_are_not_pushed_again(
    exact: World, body: list[dict[str, Any]]
) -> None:
    """The first try died when it had stored the jobs, and had no answer."""
    with mock.patch.object(IdempotencyKeys, "finish", side_effect=Died), pytest.raises(Died):
        push(exact.another(), *body)
    jobs = exact.fetch(count=10)
    assert len(jobs) == len(body)
    for job in jobs:
        exact.run.finish.ack(job.id)
    exact.run.acts.delete(jobs[0].id)
    again = push(exact.run, *body)
    assert ids(again) == [job.id for job in jobs]
    assert not exact.fetch(count=10)
    assert [one.absent for one in push(exact.run, *body)] == [True] + [False] * (len(body) - 1)


def test_a_job_of_the_same_id_that_another_pushed_is_not_shown(world: World) -> None:
    """The job of the key is gone; its chosen id is another's now."""
    body = {"id": CHOSEN.format(1), "args": ["mine"]}
    push(world.run, body)
    (job,) = world.fetch()
    world.run.finish.ack(job.id)
    world.run.acts.delete(job.id)
    other = {"type": "t", "args": ["secret"], "id": CHOSEN.format(1)}
    world.run.enqueue.push(envelope.parse(other))
    (one,) = push(world.run, body)
    assert one.absent
    assert one.job.content is not None
    assert one.job.content["args"] == ["mine"]


def test_a_job_in_a_queue_out_of_reach_is_not_shown(world: World) -> None:
    caller = Principal("a", queues=("q",), key="c" * 16)
    body = {"options": {"queue": "q"}}
    (pushed,) = push(world.run, body, caller=caller)
    world.run.acts.change(pushed.job.id, priority=None, queue="other")
    (one,) = push(world.run, body, caller=caller)
    assert (one.absent, one.job.id, one.job.queue) == (True, pushed.job.id, "q")


def test_each_caller_has_keys_of_its_own(world: World) -> None:
    """Two access keys of one name are two callers; without access keys the name counts."""
    callers = [ALICE, BOB, Principal("a"), Principal("b"), Principal(None), Principal("a" * 16)]
    pushed = [push(world.run, {}, caller=caller)[0].job.id for caller in callers]
    assert len(set(pushed)) == len(callers)
    assert [push(world.run, {}, caller=caller)[0].job.id for caller in callers] == pushed


def test_a_key_stands_for_a_day(world: World) -> None:
    (first,) = push(world.run, {})
    world.clock.advance(KEPT_MS - 1)
    assert ids(push(world.run, {})) == [first.job.id]
    world.clock.advance(1)
    (second,) = push(world.run, {"args": ["another body"]})
    assert second.job.id != first.job.id
    assert ids(push(world.run, {"args": ["another body"]})) == [second.job.id]


def test_relative_times_count_from_the_first_try(exact: World) -> None:
    body = {"options": {"delay_until": "+PT1H"}}
    run = exact.another(Faulty(exact.client, 3, "died before"))
    with pytest.raises(Died):
        push(run, body)
    began = exact.clock.now_ms()
    exact.clock.advance(600_000)
    (one,) = push(exact.run, body)
    assert one.job.scheduled_ms == began + 3_600_000


def test_a_duplicate_is_told_again_as_one(world: World) -> None:
    """The job that was there before is shown each time, also when it could be pushed by now."""
    there = world.push(1, unique={"keys": ["type", "args"]}, kind="t")
    body = unique(1, **IGNORED)
    (one,) = push(world.run, body)
    assert (one.job.id, one.deduplicated) == (there.id, True)
    world.run.jobs.cancel(there.id)
    (one,) = push(world.run, body)
    assert (one.job.id, one.deduplicated, one.job.state) == (there.id, True, "cancelled")
    assert world.fetch() == []


def test_a_batch_of_new_and_known_jobs_is_told_again(world: World) -> None:
    there = world.push(1, unique={"keys": ["type", "args"]}, kind="t")
    body = [unique(1, **IGNORED), unique(2, **IGNORED), {}]
    first = push(world.run, *body)
    second = push(world.run, *body)
    for pushed in (first, second):
        assert ids(pushed) == [there.id, *ids(first)[1:]]
        assert [one.deduplicated for one in pushed] == [True, False, False]
    assert len(world.fetch(count=10)) == 3


def test_a_batch_with_a_known_job_is_carried_on_after_a_crash(exact: World) -> None:
    """What the first try stored is known by its ids, and is no duplicate of itself."""
    there = exact.push(1, unique={"keys": ["type", "args"]}, kind="t")
    body = [unique(1, **IGNORED), unique(2), {}]
    with mock.patch.object(IdempotencyKeys, "finish", side_effect=Died), pytest.raises(Died):
        push(exact.another(), *body)
    for pushed in (push(exact.run, *body), push(exact.run, *body)):
        assert pushed[0].job.id == there.id
        assert [one.deduplicated for one in pushed] == [True, False, False]
    jobs = exact.fetch(count=10)
    assert sorted(job.id for job in jobs) == sorted([there.id, *ids(pushed)[1:]])


def test_a_key_stays_where_another_try_may_have_stored_the_job(exact: World) -> None:
    """One try is refused, while another one that has joined stores the job, and dies."""
    run = exact.another()

    def refuse(*_: Any) -> None:
        with mock.patch.object(IdempotencyKeys, "finish", side_effect=Died), pytest.raises(Died):
            push(exact.another(), {})
        raise JobTypeNotAllowed("q", "t", ["other"])

    with (
        mock.patch.object(run.enqueue, "store", side_effect=refuse),
        pytest.raises(BackendContended),
    ):
        push(run, {})
    pushed = push(exact.run, {})
    assert [job.id for job in exact.fetch(count=10)] == ids(pushed)


def test_a_replacement_is_made_once(world: World) -> None:
    old = world.push(1, unique={"keys": ["type", "args"]}, kind="t")
    body = unique(1, on_conflict="replace")
    first, second = push(world.run, body), push(world.run, body)
    assert ids(first) == ids(second)
    assert world.state(old) == "cancelled"
    assert [job.id for job in world.fetch(count=10)] == ids(first)


def test_a_chosen_id_that_is_taken_is_refused_as_without_a_key(world: World) -> None:
    body = {"id": CHOSEN.format(1)}
    world.run.enqueue.push(envelope.parse({"type": "t", "args": [], **body}))
    for _ in range(2):
        with pytest.raises(Duplicate):
            push(world.run, body)
    push(world.run, {"args": ["another"]})


@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_refusal_is_not_kept(world: World, count: int) -> None:
    """The same key may be sent with the same request later, or with another one."""
    world.run.queues.configure("q", {"max_size": count})
    blocking = world.push(queue="q")
    body = [{"options": {"queue": "q"}}] * count
    with pytest.raises(QueueFull):
        push(world.run, *body)
    assert not [i for i in world.items() if i["pk"]["S"].startswith("I|")]
    world.run.jobs.cancel(blocking.id)
    pushed = push(world.run, *body)
    assert ids(push(world.run, *body)) == ids(pushed)
    with pytest.raises(Conflict):
        push(world.run, *body, {})


def left_uncommitted(world: World) -> list[dict[str, Any]]:
    """A staged batch whose push died before its last call, as it was asked for."""
    body = [{"args": [n]} for n in range(7)]
    world.push()
    counting = Faulty(world.client, 0, "died before")
    push(world.another(counting), *body, key="other")
    drain(world)
    with pytest.raises(Died):
        push(world.another(Faulty(world.client, counting.calls, "died before")), *body)
    return body


def test_a_staged_batch_that_was_left_is_committed_by_the_next_try(exact: World) -> None:
    """Its jobs were not told to anybody."""
    body = left_uncommitted(exact)
    assert exact.fetch(count=10) == []
    pushed = push(exact.run, *body)
    assert len(exact.fetch(count=10)) == 7
    assert ids(push(exact.run, *body)) == ids(pushed)


def test_a_staged_batch_that_was_undone_is_pushed_anew(exact: World) -> None:
    body = left_uncommitted(exact)
    exact.clock.advance(STAGING_GRACE_MS + 1)
    exact.sweep()
    pushed = push(exact.run, *body)
    assert ids(push(exact.run, *body)) == ids(pushed)
    assert sorted(job.id for job in drain(exact)) == sorted(ids(pushed))


def test_a_job_that_is_stored_is_told_though_its_queue_is_full(exact: World) -> None:
    """The first try died before it noted that it was done; its own job fills the queue."""
    exact.run.queues.configure("q", {"max_size": 1})
    body = {"options": {"queue": "q"}}
    client = Faulty(exact.client, 0, "died before")
    run = exact.another(client)
    # The first one also takes a slot of the depth counter. Another container could take it over, so
    # that only this one writes to the counter.
    for key in ("first", "second"):
        before = client.calls
        (job,) = push(run, body, key=key)
        calls = client.calls - before
        run.fetch.fetch(["q"], 1, "w")
        run.finish.ack(job.job.id)
    client._fail_at = client.calls + calls
    with pytest.raises(Died):
        push(run, body)
    pushed = push(exact.run, body)
    assert [job.id for job in exact.fetch("q", count=10)] == ids(pushed)
    exact.run.finish.ack(pushed[0].job.id)
    exact.push(queue="q")


@pytest.mark.parametrize("count", [1, 3, 8, 100])
def test_a_key_costs_two_units_and_two_calls(exact: World, count: int) -> None:
    def body(letter: str) -> list[dict[str, Any]]:
        return [{"args": [letter, n]} for n in range(count)]

    exact.push()
    with spending(exact) as without:
        raw = [envelope.parse({"type": "t", **job}) for job in body("a")]
        if count == 1:
            exact.run.enqueue.push(raw[0])
        else:
            exact.run.enqueue.push_batch(raw)
    with spending(exact) as first:
        push(exact.run, *body("b"))
    with spending(exact) as second:
        push(exact.run, *body("b"))
    assert first.writes == without.writes + 2
    assert first.calls == without.calls + 2
    assert first.reads == without.reads
    # Whether a batch is committed; the jobs; and a write that finds the key: one unit, which
    # DynamoDB takes for a refused write, too, but does not tell.
    assert second.writes == 0
    assert second.calls <= 3
    assert second.reads <= count + 1


def test_a_refused_push_costs_no_more_than_two_units(exact: World) -> None:
    exact.run.queues.configure("q", {"max_size": 1})
    exact.push(queue="q")
    body = {"type": "t", "args": [], "options": {"queue": "q"}}
    with spending(exact) as without, pytest.raises(QueueFull):
        exact.run.enqueue.push(envelope.parse(body))
    with spending(exact) as spent, pytest.raises(QueueFull):
        push(exact.run, body)
    # And a read: another try of the request may have stored the job.
    assert (spent.writes, spent.calls) == (without.writes + 2, without.calls + 3)
    with spending(exact) as other, pytest.raises(BackendError):
        push(exact.another(Faulty(exact.client, 1, "ThrottlingException")), {})
    assert other.writes == 0


def test_the_ids_of_jobs_that_were_there_fit_into_the_item(exact: World) -> None:
    """Of the largest batch that may have unique jobs, all of them duplicates."""
    body = [unique(n, **IGNORED) for n in range(50)]
    exact.run.enqueue.push_batch([envelope.parse({"type": "t", **job}) for job in body])
    with spending(exact) as spent:
        pushed = push(exact.run, *body)
    assert all(one.deduplicated for one in pushed)
    assert spent.writes == 2
    assert ids(push(exact.run, *body)) == ids(pushed)
