"""Two tenants with limits, in queues with the same local name, with the same keys.

Each is looked at alone: what the other one has is not counted for it, and its limits are never
exceeded beyond what docs/tenants.md promises.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from ojs.domain.job.job import Job
from ojs.domain.rate_limit.limiter import RateLimit
from ojs.domain.tenants import get_tenant
from ojs.services.tenants.quotas import COUNTED_MS
from ojs.store.table import keys, values
from tests.simulation.actors import Operator, Producer, Stream, Worker
from tests.simulation.acts import RETRY, some
from tests.simulation.invariants import Answered, Item, broken
from tests.simulation.memory import Change
from tests.simulation.world import Acts, World

_RATE_MS = 10_000
TENANTS = ("acme", "beta")


class TenantWatch:
    """Sees every new job, and what the projection has counted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._limits: dict[str, dict[str, Any]] = {}
        self._came: defaultdict[str, list[int]] = defaultdict(list)
        # Jobs that have not started: their tenant, and their place in the stream.
        self._fresh: dict[str, tuple[str, int]] = {}
        # Of locks and limiters: the tenant.
        self._owners: dict[str, str | None] = {}
        # By time (ms): how much of the stream was counted by then.
        self._counted = [(0, 0)]
        # Counts are read without consistency, which takes no second.
        world.plan.stale = 0.0
        world.memory.watchers.append(self)
        world.promises.append(self)

    def limit(self, tenant: str, **limits: Any) -> None:
        """Set the limits of a tenant."""
        self._world.run.tenants.put(tenant, limits)
        self._limits[tenant] = limits
        answered = Answered(limits.get("max_concurrency"), tenant, self._world.watch.writes)
        self._world.watch.set["limit", f"%{tenant}"] = answered

    def note_counted(self, last: int) -> None:
        """The projection has counted so many records of the stream."""
        self._counted.append((self._world.clock.now_ms(), last))

    def __call__(self, changes: list[Change]) -> None:
        for (pk, sk), before, after in changes:
            if not pk.startswith(keys.job("")) or sk != keys.RECORD:
                continue
            item: Item = {} if after is None else dict(values.unpack(after))
            if before is None:
                self._new(pk, item)
            elif item.get("state") not in ("available", "scheduled"):
                self._fresh.pop(pk, None)

    def _new(self, pk: str, item: Item) -> None:
        tenant, at_ms = get_tenant(item["queue"]) or "", item["created"]
        shared = [item["unique"]] if "unique" in item else []
        if "limit" in item:
            shared.append(str(RateLimit.of(item["limit"]).key_in(item["queue"])))
        if any(self._owners.setdefault(each, tenant) != tenant for each in shared):
            raise broken("tenants share no lock and no limiter", job=pk, of=shared)
        limits, came = self._limits[tenant], self._came[tenant]
        insort(came, at_ms)
        if (rate := limits.get("max_enqueue_rate")) is not None:
            for first, last in zip(came, came[rate["limit"] :], strict=False):
                if last - first < _RATE_MS:
                    raise broken("the rate of a tenant is never exceeded", of=tenant, came=came)
        if at_ms == self._world.clock.now_ms():
            # One that came late was counted before.
            self._full(tenant, limits.get("max_queue_depth"))
            self._fresh[pk] = tenant, len(self._world.watch.stream)

    def _full(self, tenant: str, most: int | None) -> None:
        """Whatever a container remembers, it knows what was counted a second ago."""
        known_ms = self._world.clock.now_ms() - COUNTED_MS
        last = max(last for at_ms, last in self._counted if at_ms <= known_ms)
        there = sum(of == tenant and at <= last for of, at in self._fresh.values())
        if most is not None and there >= most:
            raise broken("a full tenant gets no job", of=tenant, there=there, most=most)

    def ask_again(self) -> None:
        """The world repeats pushes."""

    def look_after(self) -> None:
        """Nothing runs each minute for tenants: a fetch repairs their semaphores."""

    def check(self) -> None:
        """What a tenant has is its own."""
        for tenant in TENANTS:
            names = self._world.run.stores.queues.all_names(tenant)
            if names != [f"{tenant}:mail"]:
                raise broken("a tenant's queues are its own", of=tenant, names=names)

    check_end = check


class TenantWorker(Worker):
    """A worker that gets jobs of its queues only."""

    def _take(self, got: Sequence[Job] | None) -> None:
        if foreign := [job.id for job in got or () if job.queue not in self.queues]:
            raise broken("a worker gets jobs of its queues", worker=self.name, jobs=foreign)
        super()._take(got)


class TenantStream(Stream):
    """Reads the stream, and tells how far. Names of event pages contain the time (ms), so that of
    two containers the later one reads later.
    """

    def __init__(self, world: World, watch: TenantWatch) -> None:
        super().__init__(world)
        self._watch = watch

    def read(self) -> None:
        while not self.world.pass_time(1):
            self.world.scheduler.step()
        super().read()
        self._watch.note_counted(self._at)


def tenanted(world: World) -> list[Acts]:
    """Two tenants push and fetch under their limits; one worker serves both. Time stands still as
    long as anybody asks for anything: a push is counted when it is granted.
    """
    world.still = True
    watch, chance = TenantWatch(world), world.chance
    first, unique = Producer(world, "p"), {"keys": ["type"], "on_conflict": "replace"}
    for tenant in TENANTS:
        limits: dict[str, Any] = {"max_concurrency": chance.choice((1, 2))}
        if chance.random() < 0.5:
            limits["max_enqueue_rate"] = {"limit": 4, "period": "PT10S"}
        if chance.random() < 0.6:
            limits["max_queue_depth"] = chance.choice((2, 3))
        watch.limit(tenant, **limits)
        first.push(queue=f"{tenant}:mail", retry=RETRY, large=False)
        first.push(queue=f"{tenant}:mail", retry=RETRY, large=False, unique=unique)
    made: list[Acts] = []
    for name in ("p1", "p2"):
        producer, hand = Producer(world, name), Operator(world, f"{name}h")
        pushing: Acts = []
        for tenant in TENANTS:
            push = partial(producer.push, queue=f"{tenant}:mail", retry=RETRY, large=False)
            pushing += [push, push, partial(push, 2), partial(push, scheduled_at="+PT2S")]
            pushing += [partial(push, unique=unique)]
            pushing += [partial(push, rate_limit={"key": "k", "concurrency": 1})]
        waits: Acts = [partial(hand.wait, ms) for ms in (1, 400, 1_001, 4_000, 9_000)]
        # Who pushes also moves the time on, in between.
        made.append([producer.does(act, chance.choice(waits)) for act in some(chance, pushing, 8)])
    for name, tenants in (("w1", TENANTS), ("w2", TENANTS[:1])):
        worker = TenantWorker(world, name, [f"{tenant}:mail" for tenant in tenants])
        acts: Acts = [worker.fetch, partial(worker.fetch, 3), worker.any, worker.any]
        made.append([worker.does(act) for act in some(chance, acts, 9)])
    operator, stream = Operator(world, "o"), TenantStream(world, watch)
    acts = [operator.sweep, operator.wait, operator.cancel, operator.look, operator.reconcile]
    made.append([operator.does(act) for act in some(chance, acts, 5)])
    return [*made, [stream.does(stream.read) for _ in range(8)]]
