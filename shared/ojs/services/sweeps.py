"""Common parts of all sweeps: the protocol, the queues that they check, and their report."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Protocol, TypeVar

from ojs.clock import Clock
from ojs.records import record
from ojs.store.table import keys

if TYPE_CHECKING:
    from ojs.domain.queue.queue import Queue
    from ojs.store.queues.due_notes import DueLines, DueNotes
    from ojs.store.queues.pools import PoolStore
    from ojs.store.queues.queues import QueueStore
    from ojs.store.queues.registry import QueueRegistry, RegistryQueue, Rest

T = TypeVar("T")

_QUEUES = 100  # one call
_POOLS = 1_000
# All lines of each queue are read once in this number of minutes, and an idle queue is checked.
TURNS = 60
# Slots of staged batches that are read each minute in the hour after a deployment. After an outage,
# all are read at once.
_SLOTS_A_MINUTE = 4
_MINUTE_MS = 60_000
# Functions of an earlier version might not record activity or due entries. Therefore, no queue is
# idle and all lines are read until this time after the start of a deployment. By then they are
# replaced, and the index shows their writes.
REPLACED_MS = 60 * _MINUTE_MS
# Maximum number of failures that a run names. More failures are only counted.
MAX_NAMED = 50
# A function that returns false when the time is up.
GoOn = Callable[[], bool]


def always() -> bool:
    """Return true: a `GoOn` without a time limit."""
    return True


@record(frozen=True)
class SweepLimit:
    """A `GoOn` that has a time limit and knows the remaining time (ms)."""

    left_ms: Callable[[], float]

    def __call__(self) -> bool:
        return self.left_ms() > 0

    def third(self) -> SweepLimit:
        """Return a limit for a part of the work: a third of the remaining time."""
        kept_ms = self.left_ms() * 2 / 3
        return SweepLimit(lambda: self.left_ms() - kept_ms)


def third_of(go_on: GoOn) -> GoOn:
    """Return a third of the remaining time if it is known, otherwise `go_on`."""
    return go_on.third() if isinstance(go_on, SweepLimit) else go_on


def rotated(each: Sequence[T], choose: Callable[[int], int]) -> list[T]:
    """Rotate a sequence to a random start, so that shortened runs omit different items."""
    start = choose(len(each)) if each else 0
    return [*each[start:], *each[:start]]


@record(frozen=True)
class SweepFailure:
    """A part of a run that failed, and its error."""

    what: str
    error: Exception


class SweepCounts(Counter[str]):
    """Number of actions of a run by kind, and its first MAX_NAMED failures."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[SweepFailure] = []

    def fail(self, what: str, error: Exception) -> None:
        """Count a failure and record its name. The sweep function reports it to the alarm."""
        self["failed"] += 1
        if len(self.failures) < MAX_NAMED:
            self.failures.append(SweepFailure(what, error))


@record
class SweepRun:
    """The state of one run: its limits and its counts."""

    now_ms: int
    limit: int
    go_on: GoOn
    counts: SweepCounts = field(default_factory=SweepCounts)

    def stop(self, done: int = 0) -> bool:
        """Return whether the time is up or `done` has reached the limit.

        If so, record it as `more`.
        """
        if done >= self.limit or not self.go_on():
            self.counts["more"] = 1
        return bool(self.counts["more"])


@record(frozen=True, eq=False)
class SweepReport(Mapping[str, int]):
    """The result of one sweep run: a mapping from kinds of work to numbers of actions.

    The key `more` is 1 if the run ended early and another one must follow.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    # The parts of the run that failed. All other parts were completed.
    failures: Sequence[SweepFailure] = field(default=(), kw_only=True)

    @property
    def more(self) -> bool:
        """Whether the run ended early and another one must follow."""
        return bool(self.counts.get("more"))

    def has_news(self, usual: frozenset[str]) -> bool:
        """Return whether the run did any work that is not of the `usual` kinds."""
        return any(count for name, count in self.counts.items() if name not in usual)

    def __getitem__(self, name: str) -> int:
        return self.counts[name]

    def __contains__(self, name: object) -> bool:
        # Mapping would rely on a KeyError, which a Counter doesn't raise.
        return name in self.counts

    def __iter__(self) -> Iterator[str]:
        return iter(self.counts)

    def __len__(self) -> int:
        return len(self.counts)


@contextmanager
def counting_failures(counts: SweepCounts, what: str) -> Iterator[None]:
    """Count an error as `failed`, record its name, and continue with the next queue or job.

    The next run retries the failed part.
    """
    try:
        yield
    # A damaged record can raise any error. `SweepCounts.fail` reports it.
    except Exception as error:  # noqa: BLE001
        counts.fail(what, error)


@record(frozen=True)
class SweepPlan:
    """All queues by name, and those whose records sweeps check in this minute.

    The records of the other queues have nothing that sweeps check each minute.
    """

    queues: Mapping[str, RegistryQueue]
    names: Sequence[str]
    # The queues among them whose lines are all read. Of all others the lines that are noted as due.
    turn: frozenset[str]
    due: DueLines
    # The partitions of staged batches that are read.
    staged: list[str]
    # An idle state that was recorded before this time (ms) is not used, because functions of an
    # earlier version might have been active.
    relied_on_ms: int

    @property
    def resting(self) -> dict[str, Rest]:
        """The recorded states of the idle queues, except those of this minute's turn."""
        return {
            name: queue.rest
            for name, queue in self.queues.items()
            if queue.rest is not None
            and queue.rest.at_ms >= self.relied_on_ms
            and name not in self.turn
        }


class SweepQueues:
    """Reads the queues that sweeps check: for each sweep, or once for all sweeps of a minute."""

    def __init__(
        self,
        queues: QueueStore,
        registry: QueueRegistry,
        due_notes: DueNotes,
        pools: PoolStore,
        *,
        clock: Clock,
        deployed_ms: Callable[[], int],
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        """Create the reader.

        Args:
            queues: Store of the queue records.
            registry: Registry of all queues and their idle states.
            due_notes: The lines that are due.
            pools: Store of the worker pools.
            clock: Clock.
            deployed_ms: Returns the start of the latest deployment (ms). Idle states that were
                recorded before this time plus `REPLACED_MS` are not used.
            choose: Returns a random number below its argument.
        """
        self._queues = queues
        self._registry = registry
        self._due_notes = due_notes
        self._pools = pools
        self._clock = clock
        self._deployed_ms = deployed_ms
        self._choose = choose
        self._shared: dict[str, Queue] | None = None
        self._planned: SweepPlan | None = None
        self._pool_names: list[str] | None = None

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Read each queue once for all sweeps in this context.

        A record can then be as old as the run of the minute. This is safe because each write of a
        sweep has its own condition.
        """
        self._shared = {}
        try:
            yield
        finally:
            self._shared = self._planned = self._pool_names = None

    def plan(self) -> SweepPlan:
        """Return the queues to check and the lines to read.

        Takes two calls for 1,000 queues, and one to three for due notes, once per run of a minute.

        Raises:
            OjsError: The registry or the due notes could not be read.
        """
        if self._planned is not None:
            return self._planned
        now_ms = self._clock.now_ms()
        relied_on_ms = self._deployed_ms() + REPLACED_MS
        queues = {queue.name: queue for queue in self._registry.all()}
        due = self._due_notes.lines()
        whole = now_ms < relied_on_ms or due.late
        minute = now_ms // _MINUTE_MS % TURNS
        # A queue keeps its minute when others come and go.
        turn = frozenset(
            name for name in queues if whole or zlib.crc32(name.encode()) % TURNS == minute
        )
        names = [
            name
            for name, queue in queues.items()
            if name in turn or queue.plain_ms is None or queue.plain_ms < relied_on_ms
        ]
        staged = keys.staged_lines()
        noted = [line for line in due.lines if keys.is_staged(line)]
        few = max(1, len(staged) // _SLOTS_A_MINUTE)
        turns = (1 if due.late and due.done is not None else few) if whole else TURNS
        # Functions of an earlier version have all batches in the first partition, without notes.
        read = dict.fromkeys([*noted, *staged[:whole], *staged[minute % turns :: turns]])
        plan = SweepPlan(queues, names, turn, due, list(read), relied_on_ms)
        if self._shared is not None:
            self._planned = plan
        return plan

    def pool_names(self) -> list[str]:
        """Return the names of all worker pools in order. Takes one call for 1,000, once per run of
        a minute. Raises OjsError.
        """
        if self._pool_names is not None:
            return self._pool_names
        names: list[str] = []
        after: str | None = None
        while True:
            page, after = self._pools.names(limit=_POOLS, after=after, consistent=False)
            names += page
            if after is None:
                break
        if self._shared is not None:
            self._pool_names = names
        return names

    def parts(
        self, counts: SweepCounts, plan: SweepPlan | None = None, *, anew: bool = False
    ) -> Iterator[list[Queue]]:
        """Yield the queues to check, starting at a random one, in lists that one call can read.

        Args:
            counts: Counts each queue that can't be read as failed.
            plan: The plan to use. Default: `plan()`.

        The last argument makes each queue be read again, strongly consistent.
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


class Sweep(Protocol):
    """Background work with a limit. Safe to repeat and to run twice at the same time."""

    @property
    def name(self) -> str:
        """Name of the sweep in the sweep function."""
        ...

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Do a part of the work.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Approximate maximum number of units of work.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The counts of the run.
        """
        ...
