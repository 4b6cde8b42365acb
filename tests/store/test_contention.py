"""Many requests at once for the same jobs, or with the same idempotency key."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.access import Principal, everything
from ojs.domain.job import envelope
from ojs.domain.job.idempotency import IdempotencyKey
from ojs.runtime import Runtime
from ojs.services.jobs.enqueue import Pushed
from ojs.services.jobs.idempotent_push import KeyTurn
from ojs.store.jobs.idempotency_keys import IdempotencyKeys

if TYPE_CHECKING:
    from tests.store.conftest import World

QUEUE = "busy"


def at_once(world: World, count: int, act: Callable[[Runtime], Any]) -> list[Any]:
    """What containers of their own answer that begin at the same moment."""
    start = Barrier(count)

    def one(run: Runtime) -> Any:
        start.wait()
        return act(run)

    world.sleep = time.sleep
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, [world.another() for _ in range(count)]))


def fill(world: World, count: int, tenants: int) -> None:
    for first in range(0, count, 200):
        world.run.enqueue.push_batch(
            [
                envelope.parse(
                    {
                        "type": "t",
                        "args": [n],
                        "queue": QUEUE,
                        **({"meta": {"tenant_id": f"t{n % tenants}"}} if tenants else {}),
                    }
                )
                for n in range(first, first + 200)
            ]
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize("tenants", [0, 8])
def test_parallel_fetches_get_what_is_there(exact: World, tenants: int) -> None:
    if tenants:
        exact.run.queues.configure(QUEUE, {"tenant_fairness": {"enabled": True}})
    fill(exact, 1_000, tenants)
    fetched = at_once(exact, 16, lambda run: run.fetch.fetch([QUEUE], 25, "w"))
    jobs = [job.id for each in fetched for job in each]
    assert len(jobs) == len(set(jobs))
    assert len(jobs) >= 360


def push(run: Runtime, number: int) -> list[Pushed]:
    raw = [{"type": "t", "args": [each]} for each in range(number)]
    key = IdempotencyKey.of(
        "k", caller=Principal("a", key="a" * 16), operation="push", body={"jobs": raw}
    )
    requests = [envelope.parse(job) for job in raw]
    return run.idempotent_push.push(key, requests, batch=number > 1)


def push_bulk(run: Runtime, number: int) -> Sequence[Any]:
    raw = [{"type": "t", "args": [each]} for each in range(number)]
    key = IdempotencyKey.of(
        "k", caller=Principal("a", key="a" * 16), operation="bulk", body={"jobs": raw}
    )
    requests = [envelope.parse(job) for job in raw]
    return run.bulk_push.push(requests, key=key, producer=None, reaches=everything)


@pytest.mark.exhaustive
@pytest.mark.parametrize("do", [push, push_bulk])
@pytest.mark.parametrize("number", [1, 3, 10])
def test_parallel_requests_with_one_key_get_one_answer(
    exact: World, do: Callable[[Runtime, int], Sequence[Any]], number: int
) -> None:
    told = at_once(exact, 12, lambda run: do(run, number))
    assert len({tuple(one.job.id for one in each) for each in told}) == 1


def test_who_finds_a_key_taken_waits_for_the_first(exact: World) -> None:
    """The first request ends during the third pause; the second one reads its answer."""
    store: IdempotencyKeys = exact.run.stores.idempotency_keys
    now_ms = exact.clock.now_ms()
    key = IdempotencyKey.of("k", caller=Principal("a", key="a" * 16), operation="push", body={})
    record, _ = store.begin(key, now_ms=now_ms)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            store.finish(record)

    found, first = KeyTurn(store, sleep=sleep).begin(key, now_ms=now_ms)
    assert (found.done, first, len(pauses)) == (True, False, 3)


def test_who_finds_a_key_taken_waits_for_seconds_at_most(exact: World) -> None:
    """The first request died: the second one takes part. One that is over is not waited for."""
    store: IdempotencyKeys = exact.run.stores.idempotency_keys
    now_ms = exact.clock.now_ms()
    key = IdempotencyKey.of("k", caller=Principal("a", key="a" * 16), operation="push", body={})
    store.begin(key, now_ms=now_ms)
    pauses: list[float] = []
    turn = KeyTurn(store, sleep=pauses.append)
    found, first = turn.begin(key, now_ms=now_ms)
    assert (found.done, first) == (False, False)
    assert 1 < sum(pauses) < 4
    pauses.clear()
    assert turn.begin(key, now_ms=now_ms + 30_000) == (found, False)
    assert pauses == []
