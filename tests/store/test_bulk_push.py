"""Many jobs in one request, each for itself, under an idempotency key and without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.access import Principal, everything
from ojs.domain.errors import OjsError
from ojs.domain.job import envelope
from ojs.domain.job.idempotency import IdempotencyKey
from ojs.runtime import Runtime
from ojs.services.jobs.bulk_push import PushOutcome
from ojs.services.jobs.enqueue import Pushed
from ojs.store.jobs.idempotency_keys import IdempotencyKeys
from tests.store.faults import Died, attempt, drain, faults, orphans
from tests.store.spending import spending, stage_once

if TYPE_CHECKING:
    from tests.store.conftest import World

CHOSEN = "01968f2a-0000-7000-8000-{:012d}"
CALLER = Principal("a", key="a" * 16)
Outcomes = list[PushOutcome]


def push(run: Runtime, jobs: Sequence[Any], key: str | None = "k") -> Outcomes:
    raw = [{"type": "t", "args": [], **job} for job in jobs]
    sent = None
    if key is not None:
        sent = IdempotencyKey.of(key, caller=CALLER, operation="bulk", body={"jobs": raw})
    requests = [envelope.parse(job) for job in raw]
    return run.bulk_push.push(requests, key=sent, producer=None, reaches=everything)


def unique(number: int, on_conflict: str = "ignore") -> dict[str, Any]:
    policy = {"keys": ["type", "args"], "on_conflict": on_conflict}
    return {"args": [number], "options": {"unique": policy}}


def shown(outcomes: Outcomes) -> list[tuple[str, bool] | str]:
    return [
        (one.job.id, one.deduplicated) if isinstance(one, Pushed) else one.code for one in outcomes
    ]


def made(outcomes: Outcomes) -> list[str]:
    """The ids of the jobs that were made."""
    return sorted(
        one.job.id for one in outcomes if isinstance(one, Pushed) and not one.deduplicated
    )


KINDS: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "a few": lambda n: [{"args": [n, each]} for each in range(3)],
    "a batch": lambda n: [{"args": [n, each]} for each in range(6)],
    "a batch and others": lambda n: [
        *[{"args": [n, each]} for each in range(5)],
        {"id": CHOSEN.format(n)}, unique(n), unique(n), unique(n, "reject"),
    ],
}  # fmt: skip
FEW = ["a few", "a batch", pytest.param("a batch and others", marks=pytest.mark.exhaustive)]


def again(world: World, jobs: list[dict[str, Any]], key: str) -> Outcomes:
    """As a client asks that got no answer, until it has one."""
    for _ in range(3):
        if (outcomes := attempt(lambda: push(world.another(), jobs, key))) is not None:
            return list(outcomes)
        world.clock.advance(5_000)
    raise AssertionError("no answer")


def check(world: World, told: Sequence[Outcomes]) -> None:
    """Every answer is the same, and there are the jobs that it says, each once."""
    assert all(shown(each) == shown(told[-1]) for each in told)
    assert sorted(job.id for job in drain(world)) == made(told[-1])
    assert orphans(world) == []


@pytest.mark.parametrize("kind", FEW)
def test_whatever_call_goes_wrong_there_is_one_set_of_jobs(exact: World, kind: str) -> None:
    """Dead before or after a call, no answer, throttled; and then once more, and once more."""
    for number, (run, _) in enumerate(faults(exact), start=1):
        jobs, key = KINDS[kind](number), f"k{number}"
        told = attempt(partial(push, run, jobs, key))
        last = [again(exact, jobs, key), push(exact.another(), jobs, key)]
        check(exact, last if told is None else [told, *last])


@pytest.mark.parametrize("kind", FEW)
def test_a_first_try_that_died_when_all_was_stored(exact: World, kind: str) -> None:
    jobs = KINDS[kind](1)
    with mock.patch.object(IdempotencyKeys, "finish", side_effect=Died), pytest.raises(Died):
        push(exact.another(), jobs)
    check(exact, [again(exact, jobs, "k"), push(exact.another(), jobs)])


def test_a_refused_batch_is_never_staged_again(exact: World) -> None:
    """A try that stored some jobs alone, as there was no room for all, died; now there is room."""
    exact.run.queues.configure("b", {"max_size": 2})
    jobs = [{"args": [n], "options": {"queue": "b"}} for n in range(6)]
    with mock.patch.object(IdempotencyKeys, "finish", side_effect=Died), pytest.raises(Died):
        push(exact.another(), jobs)
    exact.run.queues.configure("b", {"max_size": 100})
    told = [again(exact, jobs, "k"), push(exact.another(), jobs)]
    assert shown(told[0]) == shown(told[1])
    assert len(made(told[0])) == 6
    assert sorted(job.id for job in drain(exact, "b")) == made(told[0])


def test_what_was_refused_is_told_again(exact: World) -> None:
    exact.run.queues.configure("b", {"max_size": 2})
    jobs = [{"args": [n], "options": {"queue": "b"}} for n in range(6)]
    first = push(exact.run, jobs)
    codes = [one.code for one in first if isinstance(one, OjsError)]
    assert codes == ["QUEUE_FULL"] * 4
    exact.run.queues.configure("b", {"max_size": 100})
    second = push(exact.another(), jobs)
    assert shown(second) == shown(first)
    before, after = (
        [(e.message, e.details, e.retryable) for e in told if isinstance(e, OjsError)]
        for told in (first, second)
    )
    assert after == before


@pytest.mark.parametrize(
    ("count", "calls", "units"),
    [(1, 2, 2), (3, 2 * 3 + 1, 2 * 3), (10, 4, 2 * 10 + 4), (100, 4 + 4, 2 * 100 + 6)],
)
def test_what_it_costs(exact: World, count: int, calls: int, units: float) -> None:
    """As single pushes after one read of the queue, or as a staged batch; a key takes two write
    units more.
    """
    exact.push(1)
    stage_once(exact)
    jobs = [{"args": [n]} for n in range(count)]
    for key, more in ((None, 0), ("k", 2)):
        with spending(exact) as spent:
            push(exact.run, jobs, key)
        assert spent.writes <= units + more
        assert spent.calls <= calls + more
