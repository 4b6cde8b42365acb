"""What every sweep has in common: the call that runs it and the report that it returns."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Protocol, TypeVar

from ojs.clock import Clock
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.queue.queue import Queue
    from ojs.store.queues.queues import QueueStore
    from ojs.store.queues.registry import QueueRegistry, RegistryQueue, Rest

T = TypeVar("T")

_QUEUES = 100  # one call
# A queue that rests is looked at once in so many minutes all the same.
TURNS = 60
_MINUTE_MS = 60_000
# Functions of an earlier version may note nothing. For so long after a deployment has begun no
# queue rests: they are replaced by then, and the index shows what they have written.
REPLACED_MS = 60 * _MINUTE_MS
# Failures that a run names; any beyond are only counted.
MAX_NAMED = 50
# Returns whether there is time left.
GoOn = Callable[[], bool]


def always() -> bool:
    """A `GoOn` without a time limit."""
    return True


@record(frozen=True)
class SweepLimit:
    """A `GoOn` that knows how much time (ms) is left."""

    left_ms: Callable[[], float]

    def __call__(self) -> bool:
        return self.left_ms() > 0

    def third(self) -> SweepLimit:
        """The limit of a part of the work: a third of the time that is left now."""
        kept_ms = self.left_ms() * 2 / 3
        return SweepLimit(lambda: self.left_ms() - kept_ms)


def third_of(go_on: GoOn) -> GoOn:
    """A third of the time that is left, where that is known."""
    return go_on.third() if isinstance(go_on, SweepLimit) else go_on


def rotated(each: Sequence[T], choose: Callable[[int], int]) -> list[T]:
    """The same, beginning at a random one: runs that are cut short leave out others each time."""
    start = choose(len(each)) if each else 0
    return [*each[start:], *each[:start]]


@record(frozen=True)
class SweepFailure:
    """What a run could not do, and why."""

    what: str
    error: Exception


class SweepCounts(Counter[str]):
    """How often a run did each kind of work, and the first MAX_NAMED things that failed."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[SweepFailure] = []

    def fail(self, what: str, error: Exception) -> None:
        """Count a failure, and name what failed: the function that runs sweeps tells the alarm."""
        self["failed"] += 1
        if len(self.failures) < MAX_NAMED:
            self.failures.append(SweepFailure(what, error))


@record
class SweepRun:
    """One run under way: what it may do, and what it did."""

    now_ms: int
    limit: int
    go_on: GoOn
    counts: SweepCounts = field(default_factory=SweepCounts)

    def stop(self, done: int = 0) -> bool:
        """Whether time is up, or the limit is reached by what was done; recorded as `more`."""
        if done >= self.limit or not self.go_on():
            self.counts["more"] = 1
        return bool(self.counts["more"])


@record(frozen=True, eq=False)
class SweepReport(Mapping[str, int]):
    """What one run of a sweep did: a mapping from kinds of work to how often each was done.

    `more` in it is 1 when the run ended early and another should follow.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    # What failed; everything else was done all the same.
    failures: Sequence[SweepFailure] = field(default=(), kw_only=True)

    @property
    def more(self) -> bool:
        """Whether the run ended early and another should follow."""
        return bool(self.counts.get("more"))

    def has_news(self, usual: frozenset[str]) -> bool:
        """Whether anything was done besides the `usual` kinds of work."""
        return any(count for name, count in self.counts.items() if name not in usual)

    def __getitem__(self, name: str) -> int:
        return self.counts[name]

    def __contains__(self, name: object) -> bool:
        # A Counter raises no KeyError, which Mapping would go by.
        return name in self.counts

    def __iter__(self) -> Iterator[str]:
        return iter(self.counts)

    def __len__(self) -> int:
        return len(self.counts)


@contextmanager
def counting_failures(counts: SweepCounts, what: str) -> Iterator[None]:
    """Count an error as `failed`, name what failed, and go on: one queue or job in trouble must
    not hold up the others. The next run meets it again.
    """
    try:
        yield
    # A damaged record raises anything. It is not hidden: see `SweepCounts.fail`.
    except Exception as error:  # noqa: BLE001
        counts.fail(what, error)


@record(frozen=True)
class SweepPlan:
    """All queues by name, and those that sweeps look at in this minute: the others rest."""

    queues: Mapping[str, RegistryQueue]
    names: Sequence[str]
    # Whoever let a queue rest before did not know of functions that note nothing (ms).
    relied_on_ms: int

    @property
    def resting(self) -> dict[str, Rest]:
        """What is known of the queues that nobody looks at."""
        looked_at = set(self.names)
        return {
            name: queue.rest
            for name, queue in self.queues.items()
            if name not in looked_at and queue.rest is not None
        }


class SweepQueues:
    """The queues that sweeps look at, as they read them: each sweep by itself, or all of one minute
    together.
    """

    def __init__(
        self,
        queues: QueueStore,
        registry: QueueRegistry,
        *,
        clock: Clock,
        deployed_ms: Callable[[], int],
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        """`deployed_ms` tells when the latest deployment began; what was noted before is not relied
        on.
        """
        self._queues = queues
        self._registry = registry
        self._clock = clock
        self._deployed_ms = deployed_ms
        self._choose = choose
        self._shared: dict[str, Queue] | None = None
        self._planned: SweepPlan | None = None

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Within, a queue that one sweep has read is not read by those after it: its record may be
        as old as the minute's run, and each write of theirs has a condition of its own.
        """
        self._shared = {}
        try:
            yield
        finally:
            self._shared = self._planned = None

    def plan(self) -> SweepPlan:
        """Which queues are looked at. Two calls for a thousand queues, once in a minute's run.
        Raises OjsError.
        """
        if self._planned is not None:
            return self._planned
        now_ms = self._clock.now_ms()
        relied_on_ms = self._deployed_ms() + REPLACED_MS
        found = self._registry.all()
        turn = now_ms // _MINUTE_MS % TURNS
        names = [
            queue.name
            for at, queue in enumerate(found)
            if at % TURNS == turn or _is_awake(queue.rest, now_ms, relied_on_ms)
        ]
        plan = SweepPlan({queue.name: queue for queue in found}, names, relied_on_ms)
        if self._shared is not None:
            self._planned = plan
        return plan

    def parts(
        self, counts: SweepCounts, plan: SweepPlan | None = None, *, anew: bool = False
    ) -> Iterator[list[Queue]]:
        """The queues that are looked at from a random one on, by this plan if one was made, in
        parts that one call can read; each read `anew` if asked for. Those that cannot be read are
        counted as failed.
        """
        names = rotated((plan or self.plan()).names, self._choose)
        known = {} if self._shared is None else self._shared
        for at in range(0, len(names), _QUEUES):
            part = names[at : at + _QUEUES]
            wanted = [name for name in part if anew or name not in known]
            found: Mapping[str, Queue] = {}
            if wanted:
                with counting_failures(counts, f"queues {part[0]} to {part[-1]}"):
                    found, _ = self._queues.get_many(
                        wanted, consistent=anew, unreadable=counts.fail
                    )
            for name in wanted:
                known.pop(name, None)
            known |= found
            yield [known[name] for name in part if name in known]


def _is_awake(rest: Rest | None, now_ms: int, relied_on_ms: int) -> bool:
    if rest is None or rest.at_ms < relied_on_ms:
        return True
    return rest.next_ms is not None and rest.next_ms <= now_ms


class Sweep(Protocol):
    """A bounded piece of background work. Safe to repeat, and to run twice at once."""

    @property
    def name(self) -> str:
        """What the function that runs sweeps calls this one."""
        ...

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Do up to about `limit` units of work while `go_on` says that there is time left."""
        ...
