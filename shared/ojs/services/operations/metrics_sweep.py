"""Minute sweep that computes values that require all queues: gauges, totals, and the history.

It finds the wait time of the oldest available job of each queue, the totals of all queues, and the
points of the history. All values are computed from the counters of the projection and the index.
So a run can end early, be repeated, or overlap another run, and the next run corrects an outage.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from dataclasses import replace as changed

from ojs.bounded import BoundedMap
from ojs.domain.dead_letter.statistics import together
from ojs.domain.job.states import State
from ojs.domain.pool.backlog import Backlog, backlogs, takes_from
from ojs.domain.pool.pool import DEFAULT_POOL
from ojs.domain.pool.statistics import MAX_COUNTED_WORKERS
from ojs.domain.pool.worker import Worker
from ojs.domain.queue.order import ordered
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Activity,
    Point,
    QueueGauges,
    StateCounts,
    Totals,
    WorkerCounts,
    rates,
)
from ojs.records import record
from ojs.services.sweeps import (
    GoOn,
    SweepQueues,
    SweepReport,
    SweepRun,
    always,
    counting_failures,
    rotated,
)
from ojs.store.dead_letter.counters import BY_ERROR, BY_TYPE, DeadLetterCounters
from ojs.store.deployment.maintenance import MaintenanceStore
from ojs.store.derived.pool_health import PoolHealthStore
from ojs.store.derived.shards import ShardCounts
from ojs.store.derived.statistics import KEPT_MS, StatisticsStore
from ojs.store.queues import queues as queue_store
from ojs.store.queues import workers as worker_store
from ojs.store.queues.registry import QUIET_MS, RegistryQueue
from ojs.store.table import keys

# Longer than the delay of the DynamoDB stream (ms). Minutes that ended within this time are summed
# again.
LATE_MS = 3 * MINUTE_MS
# Maximum number of workers that one run counts.
MAX_WORKERS = 20_000
_NAMES = 1_000
_WORKERS = 1_000
_QUEUES = 33  # one call
# Maximum number of pools whose worker counts one run stores: those with the most workers.
_POOLS = 1_000
# Once in this number of minutes an empty partition of workers is read.
_LOOKS = 5
# Queues whose gauges a container remembers.
_REMEMBERED = 10_000
# An eventually consistent read sees writes that are older than this.
_SEEN_MS = 10_000
# Maximum lag of the stream. After this time, a queue's counts are final.
_SETTLED_MS = DAY_MS


@record(frozen=True, eq=False)
class MetricsReport(SweepReport):
    """The result of a run, and its measurements.

    `counts` has: folded (counters of closed shards that were moved), queues (read), oldest
    (updated), points (written), tidied (queues whose unused names in dead-letter counts were
    removed), failed, and `more`. If the run ended early or a read failed, `totals` is None and
    `queues` has the queues that were read.
    """

    at_ms: int = 0
    queues: Sequence[QueueGauges] = ()
    totals: Totals | None = None
    # Backlogs of the worker groups that are scaled. Empty if not all queues could be read.
    backlogs: Sequence[Backlog] = ()


@record(frozen=True)
class _Sign:
    """What changes with the gauges of a queue: its record, and what shards counted of it."""

    changed_ms: int | None
    shards: Sequence[tuple[str, int]]
    counted_ms: int

    def settled(self, now_ms: int) -> bool:
        """Return whether a read now sees all changes up to this sign, and a later change has
        another one.
        """
        counted = bool(self.shards) and self.counted_ms <= now_ms - _SEEN_MS
        return counted and self.record_settled(now_ms)

    def record_settled(self, now_ms: int) -> bool:
        """Return whether that holds for the record."""
        return self.changed_ms is None or self.changed_ms <= now_ms - QUIET_MS


@record(frozen=True)
class _Known:
    """The gauges of a queue, the sign that was read before them, and when they were read (ms)."""

    sign: _Sign
    gauges: QueueGauges
    at_ms: int

    def holds(self, sign: _Sign) -> bool:
        """Return whether the gauges have not changed."""
        return self.sign == sign and sign.settled(self.at_ms)

    def record_holds(self, sign: _Sign) -> bool:
        """Return whether the record has not changed."""
        return self.sign.changed_ms == sign.changed_ms and sign.record_settled(self.at_ms)


def _sign(queue: RegistryQueue, counted: Sequence[ShardCounts]) -> _Sign:
    shards = tuple((one.shard, one.rev) for one in counted)
    return _Sign(queue.changed_ms, shards, max((one.changed_ms for one in counted), default=0))


@record
class _MetricsRun(SweepRun):
    queues: dict[str, QueueGauges] = field(default_factory=dict)
    # The number of dead letters of deleted queues.
    left: dict[str, int] = field(default_factory=dict)
    # Queues without changes.
    resting: set[str] = field(default_factory=set)
    # Number of workers that fetch jobs, by the group whose queues they fetch from.
    by_group: Counter[str] = field(default_factory=Counter)
    # What the open shards of the stream have counted, of each queue that is not idle.
    counted: Mapping[str, Sequence[ShardCounts]] = field(default_factory=dict)
    # The queues whose gauges were read, and those of them that were read as a whole.
    read: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    # What changes with the gauges of these queues, by name.
    signs: Mapping[str, _Sign] = field(default_factory=dict)
    # Functions of an earlier version might count (`SweepPlan.relied_on_ms`).
    mixed: bool = False
    # Activity of the last complete minute, by queue.
    minute: dict[str, Activity] = field(default_factory=dict)
    backlogs: Sequence[Backlog] = ()


class MetricsSweep:
    """Measures all queues and workers."""

    name = "metrics"

    def __init__(
        self,
        *,
        statistics: StatisticsStore,
        sweep_queues: SweepQueues,
        queues: queue_store.QueueStore,
        workers: worker_store.WorkerStore,
        dead_letters: DeadLetterCounters,
        pool_health: PoolHealthStore,
        maintenance: MaintenanceStore,
        worker_groups: Mapping[str, Sequence[str]],
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        """Create the sweep.

        Args:
            statistics: Store of the counters and the history.
            sweep_queues: The queues to read.
            queues: Store of the queues.
            workers: Store of the workers.
            dead_letters: Store of the dead-letter counts.
            pool_health: Store of the status of pools.
            maintenance: Store of the maintenance mode.
            worker_groups: The queues of each worker group whose backlog is measured, by group
                name.
            choose: Returns a random number below its argument.
        """
        self._stats = statistics
        self._every = sweep_queues
        self._queues = queues
        self._workers = workers
        self._dead_letters = dead_letters
        self._health = pool_health
        self._maintenance = maintenance
        self._groups = {name: frozenset(queues) for name, queues in worker_groups.items()}
        self._choose = choose
        # The partitions of workers that were empty.
        self._empty: set[int] = set()
        # The start (ms) of the last run that read all queues.
        self._complete_ms = 0
        # The queues that had dead letters in that run.
        self._had_dead: frozenset[str] = frozenset()
        # By name of a queue: its gauges, and its minutes since a time (ms) if it has not changed.
        self._known: BoundedMap[str, _Known] = BoundedMap(_REMEMBERED)
        self._minutes: BoundedMap[str, tuple[_Sign, int, Sequence[Point]]] = BoundedMap(_REMEMBERED)

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> MetricsReport:
        """Measure all queues and workers.

        Totals and points require all queues. If a run ends before it has read them, it writes
        none, and the next run does. The search for the oldest jobs starts at a random queue, so
        that a small `limit` omits no queue permanently.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of reads to find the oldest jobs.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The counts and the measurements.
        """
        run = _MetricsRun(now_ms, limit, go_on)
        with counting_failures(run.counts, "closed shards"):
            run.counts["folded"] += self._stats.fold_closed(now_ms=now_ms, go_on=go_on)
        totals = None
        # If a queue can't be read, the gauges omit it, and no totals are stored. The rest is
        # measured.
        with counting_failures(run.counts, "totals"):
            failed = run.counts["failed"]
            if self._read(run) and run.counts["failed"] == failed:
                totals = self._together(run)
                if totals is not None and self._groups:
                    run.backlogs = self._measure(run)
        if not run.counts["more"]:
            self._probe(run)
        gauges = [found for _, found in sorted(run.queues.items())]
        counts = {name: count for name, count in run.counts.items() if count}
        return MetricsReport(
            counts, now_ms, gauges, totals, run.backlogs, failures=run.counts.failures
        )

    def _read(self, run: _MetricsRun) -> bool:
        """Read the counters of all queues that are not idle.

        Return false if the time is up before the end.
        """
        plan = self._every.plan()
        # Their counters have not changed since.
        for name, rest in plan.resting.items():
            run.queues[name] = QueueGauges(
                Queue(name), rest.levels, rest.changed_ms, rest.oldest_ms
            )
        run.resting |= plan.resting.keys()
        awake = [name for name in plan.queues if name not in run.resting]
        run.mixed = run.now_ms < plan.relied_on_ms
        run.counted = self._stats.counted(awake)
        signs = run.signs = {name: _sign(plan.queues[name], run.counted[name]) for name in awake}
        for name in awake:
            known = self._known.get(name)
            if known is not None and known.holds(signs[name]) and name not in plan.turn:
                run.queues[name] = known.gauges
        names = [name for name in awake if name not in run.queues]
        before = {
            name: known.gauges
            for name in names
            if name not in plan.turn
            and (known := self._known.get(name)) is not None
            and known.record_holds(signs[name])
        }
        run.whole.update(name for name in names if name not in before)
        for at in range(0, len(names), _QUEUES):
            if run.stop():
                return False
            part = names[at : at + _QUEUES]
            found: Sequence[QueueGauges] = ()
            with counting_failures(run.counts, f"queues {part[0]} to {part[-1]}"):
                found = self._stats.gauges(
                    part, run.counts.fail, counted=run.counted, before=before
                )
            for each in found:
                name = each.queue.name
                run.queues[name] = each
                run.read.add(name)
                self._known.put(name, _Known(signs[name], each, run.now_ms))
            run.counts["queues"] += len(found)
        return self._read_left(run)

    def _read_left(self, run: _MetricsRun) -> bool:
        """Read the dead letters of deleted queues.

        Return false if the time is up before the end.
        """
        after: str | None = None
        while True:
            if run.stop():
                return False
            page, after = self._queues.deleted(limit=_NAMES, after=after)
            # A queue that was created again is counted like any other.
            gone = {name: at_ms for name, at_ms, _ in page if name not in run.queues}
            for found in self._stats.gauges(list(gone)):
                name = found.queue.name
                if found.levels.dead:
                    run.left[name] = found.levels.dead
                elif max(found.changed_ms, gone[name]) < run.now_ms - _SETTLED_MS:
                    self._queues.forget_deleted(name)
            if after is None:
                return True

    def _measure(self, run: _MetricsRun) -> Sequence[Backlog]:
        """Return the backlog of each worker group.

        Empty in maintenance mode, because no job starts. Makes at most two more calls per minute,
        and none without groups.
        """
        if self._maintenance.on():
            return ()
        wanted = frozenset().union(*self._groups.values())
        there = {name: run.queues[name] for name in wanted if name in run.queues}
        # Only the counters of an idle queue are known. Jobs may wait in it because it is paused.
        unknown = [
            name
            for name, found in there.items()
            if name in run.resting and found.levels.of(State.AVAILABLE)
        ]
        read = self._queues.get_many(unknown)[0] if unknown else {}
        found = {name: (read.get(name, one.queue), one.levels) for name, one in there.items()}
        return list(backlogs(self._groups, found, run.by_group))

    # --- totals -------------------------------------------------------------------------------

    def _together(self, run: _MetricsRun) -> Totals | None:
        """Compute and store totals and points. Return None if the time is up before the end."""
        workers = self._count_workers(run)
        stored, through_ms = self._stats.totals()
        now_ms = run.now_ms
        # Minute points are kept for one day, so older minutes can't be summed.
        oldest_ms = now_ms - KEPT_MS[MINUTE_MS]
        first_ms = oldest_ms if through_ms is None else through_ms - LATE_MS
        first_ms = max(oldest_ms, min(first_ms, now_ms))
        minutes = self._add_up(run, first_ms)
        if minutes is None:
            return None
        this_minute = now_ms - now_ms % MINUTE_MS
        totals = Totals(
            at_ms=now_ms,
            queues=len(run.queues),
            levels=sum(
                (found.levels for found in run.queues.values()),
                start=StateCounts(dead=sum(run.left.values())),
            ),
            workers=workers,
            rates=rates(
                minutes.get(this_minute, Activity()),
                minutes.get(this_minute - MINUTE_MS, Activity()),
                now_ms,
            ),
            oldest_ms=min(
                (
                    each.oldest_available_ms
                    for each in run.queues.values()
                    if each.oldest_available_ms is not None
                ),
                default=None,
            ),
            orders=self._stats.save_orders(
                ordered(run.queues.values(), run.minute), stored.orders, now_ms=now_ms
            ),
        )
        self._write_points(run, minutes, first_ms)
        self._add_up_dead(run)
        # The totals are written last, so that the next run repeats all writes after a crash.
        self._stats.save_totals(totals, through_ms=this_minute, now_ms=now_ms)
        self._complete_ms = now_ms
        return totals

    def _count_workers(self, run: _MetricsRun) -> WorkerCounts:
        counts: Counter[str] = Counter()
        pools: Counter[str] = Counter()
        after: str | None = None
        # A worker in a partition that was empty is counted within _LOOKS minutes, but at once where
        # groups are scaled.
        turn = run.now_ms // MINUTE_MS % _LOOKS
        skip = {each for each in self._empty if each % _LOOKS != turn and not self._groups}
        self._empty = set(range(worker_store.SHARDS))
        while counts.total() < MAX_WORKERS:
            page, after = self._workers.page(limit=_WORKERS, after=after, skip=skip)
            self._empty -= {worker_store.shard_of(worker.id) for worker in page}
            counts.update(_kind(worker, run.now_ms) for worker in page)
            for name, queues in self._groups.items():
                run.by_group[name] += sum(
                    takes_from(worker, queues) and _kind(worker, run.now_ms) == "running"
                    for worker in page
                )
            pools.update(
                worker.pool or DEFAULT_POOL
                for worker in page
                if _kind(worker, run.now_ms) != "stale"
            )
            if after is None:
                break
        if counts.total() > MAX_COUNTED_WORKERS:
            # A request for a pool would have to count too many workers, so the counts are stored.
            self._health.save_workers(dict(pools.most_common(_POOLS)), now_ms=run.now_ms)
        return WorkerCounts(running=counts["running"], quiet=counts["quiet"], stale=counts["stale"])

    def _add_up(self, run: _MetricsRun, first_ms: int) -> dict[int, Activity] | None:
        """Return the activity of all queues since `first_ms`, by the start of the minute (ms)."""
        minutes: dict[int, Activity] = {}
        last_minute = run.now_ms - run.now_ms % MINUTE_MS - MINUTE_MS
        # The counters of other queues have not changed since then, so none of their minutes has.
        # The margin is for clock differences.
        lately_ms = first_ms - LATE_MS
        changes = {
            name: run.queues[name].changed_ms
            for name in run.counted
            if run.queues[name].changed_ms >= lately_ms
        }
        if run.stop():
            return None
        for name, points in self._points_of(run, changes, first_ms):
            for point in points:
                before = minutes.get(point.start_ms, Activity())
                minutes[point.start_ms] = before + point.activity
                if point.start_ms == last_minute:
                    run.minute[name] = point.activity
        return minutes

    def _points_of(
        self, run: _MetricsRun, changes: dict[str, int], first_ms: int
    ) -> Iterator[tuple[str, Sequence[Point]]]:
        """Yield the minutes of these queues since `first_ms`. Those of queues that have not changed
        since an earlier run are not read again.
        """
        begin_ms = first_ms - first_ms % MINUTE_MS
        for name in list(changes):
            sign, since_ms, points = self._minutes.get(name, (None, 0, ()))
            if sign == run.signs[name] and since_ms <= first_ms:
                del changes[name]
                yield name, [point for point in points if point.start_ms >= begin_ms]
        moved_ms = 0 if run.mixed else first_ms - LATE_MS
        for name, points in self._stats.minutes(
            changes, first_ms, run.now_ms + 1, counted=run.counted, moved_ms=moved_ms
        ):
            if run.signs[name].settled(run.now_ms):
                self._minutes.put(name, (run.signs[name], first_ms, points))
            yield name, points

    def _add_up_dead(self, run: _MetricsRun) -> None:
        """Store the numbers of dead letters by queue, error, and job type."""
        by_queue = {name: found.levels.dead for name, found in run.queues.items()} | run.left
        by_queue = {name: count for name, count in by_queue.items() if count}
        # Recently emptied queues can have names whose count is zero. After a complete run, only
        # those are read that had dead letters in it, and the queues that are read as a whole.
        lately = run.now_ms - 2 * LATE_MS
        follows = 0 <= run.now_ms - self._complete_ms <= LATE_MS
        had, self._had_dead = self._had_dead, frozenset(by_queue)
        emptied = (
            name
            for name, found in run.queues.items()
            if found.changed_ms >= lately and (not follows or name in had or name in run.whole)
        )
        names = list(dict.fromkeys([*by_queue, *emptied]))
        if not names and not had and follows:
            # The stored counts are zero.
            return
        counted, before = self._dead_letters.named(names)
        there = [each for each in counted if each.queue in by_queue]
        counts = together(
            by_queue,
            (each.of(BY_ERROR) for each in there),
            (each.of(BY_TYPE) for each in there),
        )
        if counts != before:
            self._dead_letters.save(counts, now_ms=run.now_ms)
        for each in counted:
            run.counts["tidied"] += self._dead_letters.tidy(each)

    def _write_points(
        self, run: _MetricsRun, minutes: Mapping[int, Activity], first_ms: int
    ) -> None:
        """Write the points of days, hours, and minutes that have changed.

        Minutes are written last, so a correct minute implies a correct hour and day.
        """
        if not minutes:
            return
        there = self._points(MINUTE_MS, first_ms, run.now_ms + 1)
        news = {start: found for start, found in minutes.items() if there.get(start) != found}
        hours = self._sums(run, MINUTE_MS, HOUR_MS, news)
        days = self._sums(run, HOUR_MS, DAY_MS, hours)
        for length_ms, sums in ((DAY_MS, days), (HOUR_MS, hours), (MINUTE_MS, news)):
            for start, activity in sums.items():
                point = Point(start, activity)
                if not self._stats.save_point(length_ms, point, now_ms=run.now_ms):
                    # A later sweep is ahead of this one, and writes the rest.
                    return
                run.counts["points"] += 1

    def _sums(
        self, run: _MetricsRun, of_ms: int, length_ms: int, news: Mapping[int, Activity]
    ) -> dict[int, Activity]:
        """Return the complete sums of the hours (or days) that contain these minutes (or hours)."""
        sums = {}
        for start in sorted({start - start % length_ms for start in news}):
            # Skip an hour if some of its minutes are already deleted.
            if start >= run.now_ms - KEPT_MS[of_ms]:
                parts = self._points(of_ms, start, start + length_ms)
                parts |= {at: news[at] for at in news if start <= at < start + length_ms}
                sums[start] = sum(parts.values(), Activity())
        return sums

    def _points(self, length_ms: int, since_ms: int, until_ms: int) -> dict[int, Activity]:
        points = self._stats.points(keys.ALL_QUEUES, length_ms, since_ms, until_ms, consistent=True)
        return {point.start_ms: point.activity for point in points}

    # --- oldest jobs --------------------------------------------------------------------------

    def _probe(self, run: _MetricsRun) -> None:
        """Find the oldest available job of each queue that has one."""
        left = run.limit
        for name in rotated([name for name in run.queues if name not in run.resting], self._choose):
            found = run.queues[name]
            if not found.levels.of(State.AVAILABLE) and found.oldest_ms is None:
                continue
            if run.stop():
                return
            with counting_failures(run.counts, f"oldest job of queue {name}"):
                oldest = self._stats.oldest(found.queue, probes=left)
                left -= oldest.probes
                if not oldest.sure:
                    run.counts["more"] = 1
                    return
                if oldest.ms != found.oldest_ms:
                    self._stats.save_oldest(name, oldest.ms, now_ms=run.now_ms)
                    run.queues[name] = changed(found, oldest_ms=oldest.ms)
                    if known := self._known.get(name):
                        self._known.put(name, changed(known, gauges=run.queues[name]))
                    run.counts["oldest"] += 1


def _kind(worker: Worker, now_ms: int) -> str:
    if not worker.is_alive(now_ms):
        return "stale"
    return "running" if worker.may_fetch else "quiet"
