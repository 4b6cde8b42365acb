"""Sums changes of jobs into additions to counters. Writes nothing.

The positions in `ojs.store.derived.shards` ensure that no change is counted twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType

from ojs.domain import times
from ojs.domain.counters import definitions as rows
from ojs.domain.delivery.delivery import delivery_of
from ojs.domain.events.types import EventType
from ojs.domain.job.failure import UNKNOWN_TYPE
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.config import OverflowPolicy
from ojs.domain.stats import DURATION_BUCKETS_S, OTHER_TYPES, QUEUE_TIME_BUCKETS_S
from ojs.domain.tenants import get_tenant
from ojs.projections.transitions import JobEvent
from ojs.records import record
from ojs.store.dead_letter import counters as dead_letters
from ojs.store.derived.projection import COPIES, Delta
from ojs.store.derived.statistics import PUSHES
from ojs.store.table import keys

# The maximum number of job types with a separate counter in a day's item. The other types share
# one.
MAX_TYPES = 40

# Counters of frequent events, and for each the counter of the same event for jobs sent by
# deliveries.
_PUSHES = {"started": "pushed", "completed": "completed", "failures": "failed"}
StatsKey = tuple[str, str]  # queue and sort key of one item of the statistics


@record
class Tally:
    """Additions by item: each queue's current counts, and its counts by day and by minute."""

    counts: defaultdict[StatsKey, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    # Daily counts by counter and job type. Which types have a separate counter is decided later.
    types: defaultdict[StatsKey, Counter[tuple[str, str]]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    # Dead letters by queue and by attribute (`ojs.store.dead_letter.counters`).
    dead: defaultdict[str, Counter[tuple[str, str]]] = field(
        default_factory=lambda: defaultdict(Counter)
    )

    def move(self, before: Job | None, after: Job | None) -> None:
        """Subtract the job's state `before` a change, and add its state `after` it."""
        for job, difference in ((before, -1), (after, 1)):
            if job is None:
                continue
            now = self.counts[job.queue, keys.NOW]
            now[job.state.value] += difference
            if job.state is State.AVAILABLE:
                now[f"p{job.priority}"] += difference
            if job.pool is not None and job.state is State.ACTIVE:
                self.counts[keys.pool_stats(job.pool), keys.NOW][job.state.value] += difference
            if (tenant := get_tenant(job.queue)) is not None:
                self.counts[keys.tenant_name(tenant), keys.NOW][job.state.value] += difference
            if job.dead_letter:
                now["dead"] += difference
                of = self.dead[job.queue]
                of[dead_letters.BY_TYPE, job.type] += difference
                of[dead_letters.BY_ERROR, job.error_type or UNKNOWN_TYPE] += difference
            if job.waiting_copy and not (job is before and after is not None and after.trimmed):
                # The count of a discarded surplus copy is decreased by the write that discards it.
                now[COPIES] += difference
            if job.state.terminal:
                continue
            # The expected value of a depth counter: reserved jobs, and jobs stored while the queue
            # had no size limit.
            if job.reserved_bytes is None:
                now["loose"] += difference
                now["loose_b"] += difference * job.content_bytes
            else:
                now["held"] += difference
                now["held_b"] += difference * job.reserved_bytes

    def add(self, what: JobEvent) -> None:
        """Count an event, if its type has a counter."""
        if (row := rows.DAILY.get(what.kind)) is not None:
            # The queue of the dead letter. A retry can move the job to another queue.
            self.of_day((what.before or what.job).queue, what.at_ms, row.attribute)
            if row is rows.DROPPED:
                policy = OverflowPolicy.DROP_OLDEST
                self.of_day(what.job.queue, what.at_ms, rows.OVERFLOW.attribute + policy)
        day = day_of(what)
        if (row := rows.BY_TYPE.get(what.kind)) is not None:
            self.types[day][row.attribute, what.job.type] += 1
        if what.kind not in rows.OFTEN:
            return
        queue, name = what.job.queue, rows.OFTEN[what.kind].attribute
        minute = queue, keys.minute(times.format_ms(what.at_ms)[:16])
        self.counts[queue, keys.NOW][f"t_{name}"] += 1
        # The same write also counts the jobs sent by deliveries.
        if name in _PUSHES and _pushed(what):
            self.counts[queue, keys.NOW][f"{PUSHES}{_PUSHES[name]}"] += 1
        self.counts[day][name] += 1
        self.counts[minute][name] += 1
        if (tenant := get_tenant(queue)) is not None:
            self.counts[keys.tenant_name(tenant), minute[1]][name] += 1
        if what.length_ms is None:
            return
        if what.kind is EventType.JOB_STARTED:
            if what.job.pool is not None:
                self.counts[day][rows.DISPATCHED.attribute + what.job.pool] += 1
            sums = {"wait_ms": what.length_ms, "waits": 1}
            bucket = f"bw{_bucket(what.length_ms, QUEUE_TIME_BUCKETS_S)}"
        else:
            sums = {"run_ms": what.length_ms, "runs": 1}
            bucket = f"bd{_bucket(what.length_ms, DURATION_BUCKETS_S)}"
        self.counts[minute].update(sums)
        self.counts[day].update({**sums, bucket: 1})

    def of_day(self, queue: str, at_ms: int, name: str, count: int = 1) -> None:
        """Add to a counter that exists by day only.

        Args:
            queue: Name of the queue.
            at_ms: Time of the event, which determines the day.
            name: Name of the counter.
            count: Number to add.
        """
        day = queue, keys.day(times.format_ms(at_ms)[:10])
        self.counts[day][name] += count

    def merge(self, other: Tally, queue: str) -> None:
        """Add the additions of another tally to the counters of this queue or pool."""
        for key, counts in other.counts.items():
            if key[0] == queue:
                self.counts[key].update(counts)
        for key, types in other.types.items():
            if key[0] == queue:
                self.types[key].update(types)
        if queue in other.dead:
            self.dead[queue].update(other.dead[queue])

    def queues(self) -> list[str]:
        """Return the names of queues and pools with additions, in the order of counting."""
        keys_ = (*(key for key, counts in self.counts.items() if any(counts.values())), *self.types)
        return list(dict.fromkeys((*(queue for queue, _ in keys_), *self.moved_dead)))

    @property
    def moved_dead(self) -> dict[str, Counter[tuple[str, str]]]:
        """Return the additions to the counts of dead letters, by queue."""
        found = {
            queue: Counter({what: count for what, count in counts.items() if count})
            for queue, counts in self.dead.items()
        }
        return {queue: counts for queue, counts in found.items() if counts}

    def deltas(
        self,
        known: Mapping[StatsKey, set[str]],
        known_dead: Mapping[str, set[str]] = MappingProxyType({}),
    ) -> list[Delta]:
        """Return the additions for each item.

        Args:
            known: By item of a day: job types with a separate counter.
            known_dead: By queue: attributes with the counts of its dead letters.
        """
        found = [
            Delta(queue, keys.DEAD, _dead_delta(counts, known_dead.get(queue, set())))
            for queue, counts in self.moved_dead.items()
        ]
        for key, counts in self.counts.items():
            whole, types = Counter(counts), self.types.get(key, Counter())
            named = named_types(known.get(key, set()), [of for _, of in types])
            for (name, of), count in types.items():
                whole[f"{name}|{of if of in named else OTHER_TYPES}"] += count
            if add := {name: count for name, count in whole.items() if count}:
                found.append(Delta(*key, add))
        return found


def is_new(delta: Delta, known: Mapping[StatsKey, set[str]]) -> bool:
    """Return whether the addition counts a job type that its day's item doesn't have yet."""
    there = known.get((delta.queue, delta.sk), set())
    types = {name.split("|", 1)[1] for name in delta.add if "|" in name}
    return not types <= there


def named_dead(counts: Counter[tuple[str, str]], known: set[str]) -> set[str]:
    """Return the attributes that count a queue's dead letters after these additions."""
    return dead_letters.named(known, [what for what, count in counts.items() if count > 0])


def _dead_delta(counts: Counter[tuple[str, str]], known: set[str]) -> dict[str, int]:
    """Return the additions to the counts of a queue's dead letters."""
    named = named_dead(counts, known)
    add = Counter({dead_letters.REVISION: 1})
    for (by, of), count in counts.items():
        # A removed dead letter was counted when it was added, in a separate counter or in the
        # shared one.
        has_name = dead_letters.attribute(by, of) in named
        add[dead_letters.attribute(by, of if has_name else OTHER_TYPES)] += count
    return dict(add)


def _pushed(what: JobEvent) -> bool:
    """Return whether a delivery sends, or sent, the job to its target."""
    jobs = (what.job, what.before)
    worker_id = next((job.worker_id for job in jobs if job is not None and job.worker_id), None)
    return delivery_of(worker_id) is not None


def types_of(what: Iterable[JobEvent]) -> set[StatsKey]:
    """Return the items of days that contain counters by job type."""
    return {day_of(one) for one in what if one.kind in rows.BY_TYPE}


def _bucket(length_ms: int, bounds_s: tuple[float, ...]) -> int:
    """Return the index of a histogram's bucket. Upper bounds are inclusive.

    The last bucket has no upper bound.
    """
    return bisect_left(bounds_s, length_ms / 1_000)


def day_of(what: JobEvent) -> StatsKey:
    """Return the item of the UTC day in which this event is counted."""
    return what.job.queue, keys.day(times.format_ms(what.at_ms)[:10])


def counted_as(what: JobEvent, named: set[str]) -> str:
    """Return the job type under which this event is counted.

    `named` types have separate counters on that day. Other types share one counter.
    """
    room = what.job.type in named or len(named) < MAX_TYPES
    return what.job.type if room else OTHER_TYPES


def named_types(known: set[str], types: Iterable[str]) -> set[str]:
    """Return job types with a separate counter: the `known` ones, and others up to MAX_TYPES."""
    named = set(known)
    for of in types:
        if len(named) >= MAX_TYPES:
            break
        named.add(of)
    return named
