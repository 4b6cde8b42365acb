"""Limits so large that a shard has more permits than one write can name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ojs.domain.ids import uuid7
from ojs.domain.job.permits import permit_name
from ojs.store.permits.semaphore import GONE_MS, NAMES_A_WRITE, SETTLED_MS, unnamed_permits

if TYPE_CHECKING:
    from tests.store.conftest import World

LIMIT = 1_000_000
QUEUE = "default"


@pytest.mark.parametrize("limit", [15_600, LIMIT])
def test_a_fetch_of_100_under_a_large_limit(exact: World, limit: int) -> None:
    exact.run.queues.configure(QUEUE, {"concurrency": limit})
    jobs = [exact.push(number) for number in range(100)]
    fetched = exact.fetch(count=100)
    assert {job.id for job in fetched} == {job.id for job in jobs}
    assert exact.run.stores.semaphore.counts({QUEUE: limit}) == {QUEUE: 100}


def test_leaked_permits_of_a_large_limit_are_released(exact: World) -> None:
    """None of these jobs exists: a function died before it claimed them."""
    semaphore, names = (
        exact.run.stores.semaphore,
        [permit_name(uuid7(1, 7, number), "run0") for number in range(200)],
    )
    now_ms = exact.clock.now_ms()
    semaphore.acquire(QUEUE, names, limit=LIMIT, version=1, now_ms=now_ms, only=[0])
    (shard, item), *_ = semaphore.read_all(QUEUE)
    assert (item["n"], unnamed_permits(item)) == (200, 0)
    left = []
    for _ in range(3):
        exact.clock.advance(max(GONE_MS, SETTLED_MS))
        ((shard, item),) = semaphore.read_all(QUEUE)
        assert semaphore.heal(QUEUE, shard, item, now_ms=exact.clock.now_ms())
        ((_, item),) = semaphore.read_all(QUEUE)
        left.append(item["n"])
    assert left == [104, 8, 0]


def test_permits_are_returned_and_released_in_parts(exact: World) -> None:
    semaphore = exact.run.stores.semaphore
    names = [permit_name(uuid7(1, 7, number), "run0") for number in range(200)]
    now_ms = exact.clock.now_ms()
    first, others = names[:100], names[100:]
    granted = semaphore.acquire(QUEUE, first, limit=LIMIT, version=1, now_ms=now_ms, only=[3])
    assert granted.permits == dict.fromkeys(first, 3)
    again = semaphore.acquire(
        QUEUE, others, limit=LIMIT, version=1, now_ms=now_ms, returned=granted.permits, only=[3]
    )
    assert (len(again.permits), again.unreturned) == (100, {})
    assert not semaphore.release(QUEUE, 3, others[: NAMES_A_WRITE * 3], now_ms=now_ms).full
    assert semaphore.counts({QUEUE: LIMIT}) == {QUEUE: 100 - NAMES_A_WRITE * 3}
