"""What must hold: at every single write, and once all is quiet. From the table's items alone.

`Watch` sees each write as it is made, with the items before and after, and says at once which
promise it breaks; so a run that breaks one and mends it again does not go unnoticed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ojs.clock import Clock
from ojs.domain.job import DEFAULT_TIMEOUT_MS, POOL_SEAT, Job
from ojs.domain.limits import RateLimit
from ojs.domain.pools import gate_of
from ojs.domain.states import TERMINAL, TRANSITIONS, State
from ojs.store import items, keys, queues, values
from ojs.store.schema import TABLE
from tests.simulation.memory import Change, Key, Memory
from tests.simulation.memory import Item as Typed
from tests.simulation.scheduler import Scheduler

_MOVES = {(before, to) for (before, _), after in TRANSITIONS.items() for to in after}
Item = dict[str, Any]


class Broken(AssertionError):
    """A promise that was not kept."""


def broken(promise: str, **what: Any) -> Broken:
    told = ", ".join(f"{name}={value}" for name, value in what.items())
    return Broken(f"{promise}: {told}")


@dataclass
class Speech:
    """What an actor does now: for which lease it speaks, and which jobs it was just given."""

    lease: str | None = None
    claimed: set[str] = field(default_factory=set)
    # Texts that it wrote apart from a head.
    texts: set[Key] = field(default_factory=set)


class Watch:
    """Sees every write."""

    def __init__(self, memory: Memory, clock: Clock, scheduler: Scheduler) -> None:
        self._memory = memory
        self._clock = clock
        self._scheduler = scheduler
        self.writes = 0
        # By actor, None for who heals.
        self.speech: defaultdict[int | None, Speech] = defaultdict(Speech)
        # Runs of the current life, by partition key; what `attempt` must say.
        self._runs: Counter[str] = Counter()
        self._leases: set[str] = set()
        # Jobs that were charged and are not done, places that running ones take, by gate.
        self.charged: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        # Running jobs by the key of their rate limit.
        self.limited: Counter[str] = Counter()
        self._unique: defaultdict[str, set[str]] = defaultdict(set)
        # What was told of by the stream: (old, new, second).
        self.stream: list[tuple[Item | None, Item | None, int]] = []
        # Jobs whose end somebody may ask for by hand.
        self.deleted: set[str] = set()
        # Whether any dead letter may be removed: by a bulk operation, or by the pruning.
        self.purged = False
        # Texts whose writer died, or got no answer, perhaps before a head named them.
        self.left: set[Key] = set()
        memory.watchers.append(self)

    def __call__(self, changes: list[Change]) -> None:
        touched: set[str] = set()
        second = self._clock.now_ms() // 1_000
        for (pk, sk), typed_before, typed_after in changes:
            self.writes += 1
            wanted = sk == keys.HEAD and pk.startswith(keys.job(""))
            told = TABLE.projects(pk, sk)
            if sk.startswith((keys.PAYLOAD, keys.RESULT)) and typed_before is None:
                self.speech[self._scheduler.current].texts.add((pk, sk))
            if not wanted and not told and not pk.startswith(keys.gate("")):
                continue
            before, after = _unpacked(typed_before), _unpacked(typed_after)
            if told:
                self.stream.append((before, after, second))
            if wanted:
                self._head(pk, before, after)
                touched |= self._count(pk, before, after)
            elif pk.startswith(keys.gate("")):
                self._gate(pk, sk, before, after)
                touched.add(pk.removeprefix(keys.gate("")))
        for gate in touched:
            self._covered(gate)
        for key, holders in self._unique.items():
            if len(holders) > 1:
                raise broken("one job for a unique key", key=key[:8], jobs=sorted(holders))

    # --- a job ------------------------------------------------------------------------------------

    def _head(self, pk: str, before: Item | None, after: Item | None) -> None:
        if before is not None and after is None:
            self._gone(pk, before)
            return
        assert after is not None
        now = State(after["state"])
        if now not in TERMINAL and not _found_by(after):
            raise broken("each job is in a line of the index", job=pk, state=now.value)
        if before is None:
            self._runs[pk] = 0
            if now in TERMINAL or now is State.ACTIVE:
                raise broken("a job begins by waiting", job=pk, state=now.value)
            return
        was = State(before["state"])
        if was is not now and (was, now) not in _MOVES:
            raise broken("a known transition", job=pk, was=was.value, now=now.value)
        revived = after.get("life", 0) != before.get("life", 0)
        if was in TERMINAL and was is not now and not ("dead" in before and revived):
            raise broken("terminal is final", job=pk, was=was.value, now=now.value)
        self._lease(pk, before, after)
        self._attempt(pk, before, after)

    def _gone(self, pk: str, before: Item) -> None:
        was = State(before["state"])
        batch = self._memory.items.get((keys.batch(str(before.get("batch"))), keys.HEAD))
        undone = batch is not None and batch["state"]["S"] == "undone"
        by_hand = "dead" in before and (pk in self.deleted or self.purged)
        if by_hand:
            self.deleted.add(pk)
        elif not (undone and was not in TERMINAL):
            raise broken("no job is lost", job=pk, state=was.value)

    def _lease(self, pk: str, before: Item, after: Item) -> None:
        """Only who holds a live lease ends it, or an operator; nobody gets a second one."""
        mine, now_ms = self.speech[self._scheduler.current], self._clock.now_ms()
        if after["state"] == State.ACTIVE.value and before["state"] != State.ACTIVE.value:
            resumed = before.get("stalled") == after["lease"]
            if after["lease"] in self._leases and not resumed:
                raise broken("each lease is new", job=pk)
            self._leases.add(after["lease"])
            mine.claimed.add(after["lease"])
        if before["state"] != State.ACTIVE.value:
            return
        lease = before["lease"]
        if after["state"] == State.ACTIVE.value:
            if after["lease"] != lease:
                raise broken("one lease at a time", job=pk, was=lease, now=after["lease"])
            return
        until_ms = min(
            before["lease_until"], before["started"] + before.get("timeout", DEFAULT_TIMEOUT_MS)
        )
        by_holder = lease == mine.lease or lease in mine.claimed
        if after["state"] == State.COMPLETED.value and not by_holder:
            raise broken("only the holder of a lease acks", job=pk, lease=lease, by=mine.lease)
        if until_ms > now_ms and not by_holder and after["state"] != State.CANCELLED.value:
            raise broken("a live lease is its holder's", job=pk, lease=lease, now=after["state"])

    def _attempt(self, pk: str, before: Item, after: Item) -> None:
        """Each run counts once, one that was handed back not at all."""
        was, now = before["state"], after["state"]
        if after.get("life", 0) != before.get("life", 0):
            self._runs[pk] = 0
        elif was == State.AVAILABLE.value and now == State.ACTIVE.value:
            self._runs[pk] += before.get("stalled") != after["lease"]
        elif was == State.ACTIVE.value and now == State.AVAILABLE.value and "stalled" not in after:
            self._runs[pk] -= 1
        if after.get("attempt", 0) != self._runs[pk]:
            raise broken(
                "each run counts once", job=pk, runs=self._runs[pk], attempt=after.get("attempt", 0)
            )

    # --- gates ------------------------------------------------------------------------------------

    def _count(self, pk: str, before: Item | None, after: Item | None) -> set[str]:
        touched = set()
        for item, by in ((before, -1), (after, 1)):
            if item is None:
                continue
            live = item["state"] not in TERMINAL
            if live and "held" in item:
                self.charged[item["queue"]] += by
                touched.add(item["queue"])
            if item["state"] == State.ACTIVE.value:
                for gate in _places(item):
                    self.places[gate] += by
                    touched.add(gate)
                self._limited(item, by)
            if live and "unique" in item:
                holders = self._unique[item["unique"]]
                (holders.add if by > 0 else holders.discard)(pk)
        return touched

    def _limited(self, item: Item, by: int) -> None:
        if "limit" not in item:
            return
        limit = RateLimit.of(item["limit"])
        key = limit.key_in(item["queue"])
        self.limited[key] += by
        most = limit.bounds.concurrency
        if by > 0 and most is not None and self.limited[key] > most:
            raise broken("a rate limit is never passed", key=key, running=self.limited[key])

    def _gate(self, pk: str, sk: str, before: Item | None, after: Item | None) -> None:
        if after is None or sk not in (keys.DEPTH, keys.SLOTS):
            return
        was, now = (before or {}).get("n", 0), after.get("n", 0)
        if now < 0:
            raise broken("a gate counts no less than nothing", gate=pk, of=sk, n=now)
        most = after.get("bound" if sk == keys.DEPTH else "limit")
        if now > was and most is not None and now > most:
            raise broken("a bound is never passed", gate=pk, of=sk, n=now, bound=most)

    def _covered(self, gate: str) -> None:
        """A gate counts no less than there are."""
        for sk, there in ((keys.DEPTH, self.charged[gate]), (keys.SLOTS, self.places[gate])):
            item = _unpacked(self._memory.items.get((keys.gate(gate), sk))) or {}
            if there > item.get("n", 0):
                raise broken(
                    "a gate counts no less than there are",
                    gate=gate,
                    of=sk,
                    n=item.get("n", 0),
                    there=there,
                )


def _places(item: Mapping[str, Any]) -> Iterable[str]:
    if "slot" in item:
        yield item["queue"]
    if POOL_SEAT in item.get("seats", ""):
        yield gate_of(item["pool"])


def _found_by(head: Item) -> bool:
    """Whether a sweep finds the job: by a line of its queue, where its state belongs."""
    line = {"available": "R", "pending": "P"}.get(head["state"], "D")
    return head.get("wpk") == f"{line}|{head['queue']}|{head.get('lane', 0)}" and isinstance(
        head.get("wsk"), str
    )


def _unpacked(typed: Typed | None) -> Item | None:
    return None if typed is None else dict(values.unpack(typed))


# --- once all is quiet ----------------------------------------------------------------------------


def everything(memory: Memory) -> dict[Key, Item]:
    return {key: dict(values.unpack(item)) for key, item in memory.items.items()}


def heads(found: Mapping[Key, Item]) -> dict[str, Job]:
    """All jobs by id."""
    return {
        keys.job_id(pk): items.job_from_head(item)
        for (pk, sk), item in found.items()
        if pk.startswith(keys.job("")) and sk == keys.HEAD
    }


def gates_are_exact(found: Mapping[Key, Item], watch: Watch) -> None:
    """Every gate counts what is there, once it was healed. That of a queue which is gone may stay
    as it was left: should the queue be made anew, it is healed like others.
    """
    for (pk, sk), item in found.items():
        gate = pk.removeprefix(keys.gate(""))
        if not pk.startswith(keys.gate("")) or sk not in (keys.DEPTH, keys.SLOTS):
            continue
        if not gate.startswith(":"):
            queue = queues.from_item(gate, found.get((keys.queue(gate), keys.HEAD), {}))
            if not (queue.charged if sk == keys.DEPTH else queue.slotted):
                continue
        there = watch.charged[gate] if sk == keys.DEPTH else watch.places[gate]
        if item.get("n", 0) - item.get("loose", 0) != there:
            raise broken("a gate is exact once healed", gate=gate, of=sk, n=item["n"], there=there)


def counters_are_exact(found: Mapping[Key, Item], expected: Mapping[str, Counter[str]]) -> None:
    """What was projected is what a recount of all heads says."""
    states = {state.value for state in State}
    for (pk, sk), item in found.items():
        if not pk.startswith(keys.stats("")) or sk != keys.NOW or pk == keys.stats(keys.ALL_QUEUES):
            continue
        queue = pk.removeprefix(keys.stats(""))
        if queue.startswith("@"):
            continue
        counted = {name: n for name, n in item.items() if name in states and n}
        there = {name: n for name, n in expected.get(queue, {}).items() if name in states and n}
        if counted != there:
            raise broken("counters equal a recount", queue=queue, counted=counted, there=there)


def no_orphans(found: Mapping[Key, Item], left: set[Key]) -> int:
    """Nothing is left of jobs that are gone, nor texts that no head names, but those of `left`; how
    many of them there are.
    """
    count = 0
    jobs = heads(found)
    for pk, sk in found:
        if pk.startswith(keys.batch("")) and "ttl" not in found[pk, sk]:
            raise broken("no batch is left half done", batch=pk)
        if not pk.startswith(keys.job("")) or sk == keys.HEAD:
            continue
        job = jobs.get(keys.job_id(pk))
        named = job is not None and (
            sk.startswith(keys.ERROR)
            or sk in (keys.PROGRESS, f"{keys.PAYLOAD}{job.content_ref}")
            or sk == f"{keys.RESULT}{job.result_ref}"
        )
        if not named and (pk, sk) not in left:
            raise broken("no orphans", item=f"{pk} {sk}", head=job is not None)
        count += not named
    return count
