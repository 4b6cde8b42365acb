"""Semaphores: permits with names, their shards and costs, and those that no job runs with."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ReadTimeoutError

from ojs.domain.ids import uuid7
from ojs.domain.job.permits import RunPermits, holder_of, permit_name
from ojs.store.permits import semaphore as store
from ojs.store.permits.semaphore import (
    GONE_MS,
    MAX_SHARDS,
    SETTLED_MS,
    SHARD_PERMITS,
    ConcurrencySemaphore,
)
from ojs.store.table import keys
from ojs.store.table.table import Table, Update
from tests.store.permits import lost_permit, reconcile, taken
from tests.store.spending import spending

if TYPE_CHECKING:
    from tests.store.conftest import World

QUEUE = "default"
LIMITS = (0, 1, 23, 24, 25, 49, 1_000, 6_144, 6_145, 1_000_000)


def name_of(number: int, run: str = "run0") -> str:
    """The name of the permit of a job."""
    return permit_name(uuid7(1_795_272_604_321, 7, number), run)


def acquire(world: World, *wanted: str, limit: int | None = 5, **more: Any) -> Any:
    return world.run.stores.semaphore.acquire(
        QUEUE, wanted, limit=limit, version=1, now_ms=world.clock.now_ms(), **more
    )


# --- names and shards -----------------------------------------------------------------------------


def test_a_permits_name_leads_to_its_job() -> None:
    for number in range(50):
        job_id = uuid7(random.Random(number).getrandbits(48), number, 2**62 - 1 - number)
        name = permit_name(job_id, "a1Zq")
        assert len(name) == 26
        assert name.isalnum()
        assert holder_of(name) == (job_id, "a1Zq")


def test_what_a_job_notes_is_read_back() -> None:
    noted = RunPermits("a1Zq", {"q": 0, "p": 41})
    assert RunPermits.of(noted.compact()) == noted
    # A newer version's limits are left alone.
    assert RunPermits.of("a1Zq|q0|xyz") == RunPermits("a1Zq", {"q": 0})


@pytest.mark.parametrize("limit", LIMITS)
def test_the_shards_of_a_limit_make_it_up(limit: int) -> None:
    count = store.shards(limit)
    assert 1 <= count <= MAX_SHARDS
    assert sum(store._share(limit, shard) or 0 for shard in range(count)) == limit
    assert not store._share(limit, count) or limit > MAX_SHARDS * SHARD_PERMITS


def test_no_share_shrinks_when_a_limit_is_raised() -> None:
    for lower, higher in pairwise(LIMITS):
        for shard in range(store.shards(lower)):
            assert (store._share(lower, shard) or 0) <= (store._share(higher, shard) or 0)


# --- acquire and release --------------------------------------------------------------------------


def test_permits_are_given_as_far_as_there_are_any(exact: World) -> None:
    names = [name_of(number) for number in range(8)]
    first = acquire(exact, *names[:3])
    assert list(first.permits) == names[:3]
    rest = acquire(exact, *names[3:])
    assert list(rest.permits) == names[3:5]
    assert (rest.grant.count, rest.grant.full) == (2, True)
    assert not acquire(exact, *names[5:]).permits
    exact.run.stores.semaphore.release(QUEUE, 0, names[:2], now_ms=exact.clock.now_ms())
    assert list(acquire(exact, *names[5:]).permits) == names[5:7]
    assert taken(exact.run, QUEUE) == 5


def test_a_limit_below_what_is_wanted_holds_for_the_first_fetch(exact: World) -> None:
    assert len(acquire(exact, *(name_of(n) for n in range(9)), limit=2).permits) == 2
    assert not acquire(exact, name_of(10), limit=0).permits


class Unanswered:
    """A client whose next update takes effect, and gets no answer."""

    def __init__(self, client: Any) -> None:
        self._client, self.left = client, 1

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            answer = method(**arguments)
            if name == "update_item" and self.left:
                self.left -= 1
                raise ReadTimeoutError(endpoint_url="")
            return answer

        return call


def test_a_lost_answer_counts_once(exact: World) -> None:
    """Acquire and release are repeated, and nothing is counted twice."""
    names = [name_of(number) for number in range(3)]

    def unanswered() -> ConcurrencySemaphore:
        client: Any = Unanswered(exact.client)
        return ConcurrencySemaphore(Table(client, exact.table, sleep=lambda _: None))

    now_ms = exact.clock.now_ms()
    got = unanswered().acquire(QUEUE, names, limit=5, version=1, now_ms=now_ms)
    assert (list(got.permits), taken(exact.run, QUEUE)) == (names, 3)
    acquire(exact, name_of(9))
    unanswered().release(QUEUE, 0, names, now_ms=now_ms)
    assert taken(exact.run, QUEUE) == 1


def test_a_permit_is_released_once(exact: World) -> None:
    """Together with others that are there, or alone."""
    names = [name_of(number) for number in range(4)]
    acquire(exact, *names)
    for gone in (names[:2], names[1:3], names[:3]):
        exact.run.stores.semaphore.release(QUEUE, 0, gone, now_ms=exact.clock.now_ms())
    assert taken(exact.run, QUEUE) == 1


def test_a_permit_is_exchanged_by_one_write_in_a_full_semaphore(exact: World) -> None:
    names = [name_of(number) for number in range(5)]
    acquire(exact, *names)
    with spending(exact) as spent:
        got = acquire(exact, name_of(7), returned={names[0]: 0})
    assert (spent.calls, list(got.permits), got.unreturned) == (1, [name_of(7)], {})
    # One that was taken away meanwhile cannot be given back.
    assert not acquire(exact, name_of(8), returned={names[0]: 0}).permits
    assert taken(exact.run, QUEUE) == 5


def test_a_newer_limit_counts(exact: World) -> None:
    names = [name_of(number) for number in range(6)]
    acquire(exact, names[0])
    exact.run.stores.semaphore.set_limit(QUEUE, limit=2, version=7, now_ms=1)
    assert len(acquire(exact, *names[1:]).permits) == 1
    assert not acquire(exact, *names[2:]).permits


# --- cost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [24, 1_000, 6_000])
@pytest.mark.parametrize("queue", ["q", "q" * 255])
def test_taking_and_giving_back_costs_a_unit_each_whatever_the_limit(
    exact: World, limit: int, queue: str
) -> None:
    """Two with the longest name of a queue. All permits but one of a shard are taken."""
    store_of = exact.run.stores.semaphore
    now_ms = exact.clock.now_ms()
    for shard in range(2):
        share = store._share(limit, shard) or 0
        change = {f"h_{name_of(n)}": now_ms + SETTLED_MS for n in range(100, 99 + share)}
        if share:
            key = store.key_of(queue, shard)
            exact.run.table.update(Update(*key, set={**change, "n": share - 1, "limit": share}))
    choices = iter([0, 0] * 9)
    store_of._choose = lambda _: next(choices)
    most = 1 if len(queue) == 1 else 2
    with spending(exact) as spent:
        got = store_of.acquire(queue, [name_of(1)], limit=limit, version=1, now_ms=now_ms)
    assert (spent.calls, len(got.permits)) == (1, 1)
    assert spent.writes <= most
    (shard,) = got.permits.values()
    with spending(exact) as spent:
        store_of.release(queue, shard, [name_of(1)], now_ms=now_ms)
    assert spent.calls == 1
    assert spent.writes <= most


@pytest.mark.parametrize("limit", [49, 100, 1_000])
def test_nine_tenths_of_a_limit_of_many_shards_are_used_under_load(
    exact: World, limit: int
) -> None:
    """Two fetches try for each permit that is given back."""
    chance = random.Random(limit)
    store_of = ConcurrencySemaphore(exact.run.table, choose=chance.randrange)
    now_ms, number = exact.clock.now_ms(), 0
    held: dict[str, int] = {}

    def attempt(count: int = 1) -> None:
        nonlocal number
        names = [name_of(number + at) for at in range(count)]
        number += count
        held.update(store_of.acquire(QUEUE, names, limit=limit, version=1, now_ms=now_ms).permits)

    for _ in range(limit // 10):
        attempt(10)
    used = []
    for _ in range(150):
        gone = chance.choice(list(held))
        store_of.release(QUEUE, held.pop(gone), [gone], now_ms=now_ms)
        attempt()
        attempt()
        used.append(len(held))
        assert len(held) <= limit
    assert sum(used[50:]) / len(used[50:]) >= 0.9 * limit
    assert taken(exact.run, QUEUE) == len(held)


# --- permits that no job runs with ----------------------------------------------------------------

NOW = 1_000_000


@pytest.mark.parametrize(
    ("record", "since_ms", "again_ms"),
    [
        (None, 0, None),
        ({"state": "active", "permits": "mine|q0", "lease_until": NOW + 9_000}, 0, NOW + 9_000),
        # Its lease is over, but nobody has ended it.
        ({"state": "active", "permits": "mine|q0", "lease_until": NOW - 1}, 0, NOW + SETTLED_MS),
        ({"state": "active", "permits": "other|q0", "lease_until": NOW + 9_000}, 0, None),
        ({"state": "active", "lease_until": NOW + 9_000}, 0, None),
        # A slow fetch may be about to claim it; when it has come back into its line, if it runs.
        ({"state": "available"}, NOW - GONE_MS + 1, NOW - GONE_MS + 1),
        ({"state": "available"}, NOW - GONE_MS, None),
        ({"state": "active", "permits": "other|q0"}, NOW - GONE_MS + 1, NOW - GONE_MS + 1),
        ({"state": "scheduled"}, NOW - GONE_MS + 1, NOW - GONE_MS + 1),
        ({"state": "retryable"}, NOW - GONE_MS + 1, NOW - GONE_MS + 1),
        ({"state": "retryable"}, NOW - GONE_MS, None),
        ({"state": "completed", "permits": "mine|q0"}, NOW, None),
        # In a state that only a newer version knows it may be running.
        ({"state": "suspended"}, 0, NOW + SETTLED_MS),
    ],
)
def test_what_a_jobs_record_says_of_its_permit(
    record: dict[str, Any] | None, since_ms: int, again_ms: int | None
) -> None:
    assert store._look_again_ms(record, "mine", since_ms, NOW) == again_ms


def test_who_is_refused_looks_no_more_often_than_every_five_seconds(exact: World) -> None:
    exact.run.queues.configure(QUEUE, {"concurrency": 2})
    for _ in range(4):
        exact.push()
    exact.fetch(count=2)
    assert exact.fetch() == []
    exact.clock.advance(SETTLED_MS)
    costs = []
    for _ in range(3):
        exact.clock.advance(1_000)
        with spending(exact) as spent:
            assert exact.fetch() == []
        costs.append(spent.calls)
    # A mark, a read of the jobs, and a write of when to look again, which is after their leases.
    assert costs == [costs[1] + 3, costs[1], costs[1]]


def test_a_permit_of_a_job_that_another_fetch_claimed_is_free_when_it_cannot_come_back(
    exact: World,
) -> None:
    """The job may come back into its line, for the first fetch, if that is slow."""
    exact.run.queues.configure(QUEUE, {"concurrency": 2})
    first = exact.push()
    exact.push()
    name = permit_name(first.id, "lost")
    limit_of = exact.run.queues.get(QUEUE).version
    now_ms = exact.clock.now_ms()
    exact.run.stores.semaphore.acquire(QUEUE, [name], limit=2, version=limit_of, now_ms=now_ms)
    assert len(exact.fetch()) == 1
    assert exact.fetch() == []
    exact.clock.advance(SETTLED_MS + GONE_MS - 1)
    assert exact.fetch() == []
    exact.clock.advance(SETTLED_MS)
    assert len(exact.fetch()) == 1


# --- version 0.2 ----------------------------------------------------------------------------------


def old_acquire(world: World, count: int) -> None:
    """What version 0.2 writes."""
    change = Update(*store.key_of(QUEUE), set={"at": world.clock.now_ms()}, add={"n": count})
    world.run.table.update(change)


def test_permits_without_names_count(exact: World) -> None:
    exact.run.queues.configure(QUEUE, {"concurrency": 3})
    for _ in range(5):
        exact.push()
    old_acquire(exact, 2)
    assert len(exact.fetch(count=5)) == 1


def test_a_job_that_version_0_2_claimed_releases_its_permit(exact: World) -> None:
    exact.run.queues.configure(QUEUE, {"concurrency": 1})
    for _ in range(2):
        exact.push()
    (job,) = exact.fetch(worker="w")
    key = (keys.job(job.id), keys.RECORD)
    exact.run.table.update(Update(*key, set={"slot": 1}, remove=["permits"]))
    assert job.permits is not None
    held = Update(*store.key_of(QUEUE), remove=[f"h_{permit_name(job.id, job.permits.run)}"])
    exact.run.table.update(held)
    for _ in range(3):
        exact.clock.advance(2 * GONE_MS)
        assert exact.fetch(worker="v") == []
        assert reconcile(exact)["slots_freed"] == 0
    exact.run.finish.ack(job.id, worker_id="w")
    assert taken(exact.run, QUEUE) == 0
    assert len(exact.fetch(worker="v")) == 1


def test_permits_without_names_that_no_job_has_go_after_a_minute(exact: World) -> None:
    """While others are taken and given back."""
    exact.run.queues.configure(QUEUE, {"concurrency": 3})
    for _ in range(9):
        exact.push()
    old_acquire(exact, 2)
    freed = []
    for _ in range(4):
        (job,) = exact.fetch(worker="w")
        freed.append(reconcile(exact)["slots_freed"])
        exact.run.finish.ack(job.id, worker_id="w")
        exact.clock.advance(30_000)
    assert freed == [0, 0, 1, 0]
    assert taken(exact.run, QUEUE) == 0
    # One more, of a function of the old version that still runs: counted anew.
    old_acquire(exact, 1)
    assert reconcile(exact)["slots_freed"] == 0


def test_a_deleted_queues_shards_go_with_it(exact: World) -> None:
    lost_permit(exact.run, QUEUE, now_ms=exact.clock.now_ms())
    old = Update(*store.key_of(QUEUE, 3), set={"at": exact.clock.now_ms()}, add={"n": 1})
    exact.run.table.update(old)
    exact.run.stores.semaphore.remove(QUEUE, before_ms=exact.clock.now_ms() + 1)
    assert exact.run.stores.semaphore.read_all(QUEUE) == []
