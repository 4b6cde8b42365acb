"""Projects stream records: counters, events, metrics, copies and removals.

The order of steps, so that nothing is lost or counted twice, wherever a crash happens:

1. records are parsed; one that cannot be goes to the failure queue, the rest go on
2. changes with a dedup record are skipped: they were counted before
3. what a removed job left is removed: payloads, errors, progress. Repeating this is harmless
4. copies of dead letters are made that are still due. Repeating this is harmless: a copy that was
   made, or is not wanted any more, is not due
5. events are published on the bus. After a crash they are published again, under the same ids
6. dedup records, counters and event pages are written, in one transaction per group of records
7. metrics are written for what was counted now. A crash before this loses them
8. waiting copies beyond the limit are dropped: also for changes counted before, as a crash may have
   happened in between

A record that failed is reported, together with later records of the same item, which must not
overtake it. What was counted by then is skipped when the batch is delivered again.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from aws_lambda_powertools import Logger

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import BackendError, BackendTimeout, BackendUnavailable, OjsError
from ojs.domain.events.event import Event, matches
from ojs.domain.events.types import EventType
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.domain.queue.queue import Queue
from ojs.projections import (
    counters,
    dead_letters,
    depth_counters,
    events,
    limits,
    metrics,
    pools,
    records,
)
from ojs.projections.bus import Bus
from ojs.projections.copies import CopyMaker, came_to_wait, due
from ojs.projections.counters import Place, Tally, counted_as, day_of, named_types
from ojs.projections.dead_letters import Pruned
from ojs.projections.depth_counters import PushRefusal
from ojs.projections.failures import FailureQueue
from ojs.projections.limits import ThrottleChange
from ojs.projections.metrics import MetricsOutlet
from ojs.projections.pools import AlertsChange
from ojs.projections.records import Change, Malformed
from ojs.projections.transitions import Happened, happened
from ojs.store.derived.projection import DedupRecord, NewEventPage, ProjectionStore, pages
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace
from ojs.store.table.table import MAX_TRANSACTION

logger = Logger()

# Events that operators need are published whatever the deployment selects.
ALWAYS = ("queue.*", EventType.JOB_DISCARDED, "dead_letter.*", "backpressure.*", "scheduling.*")

# Limits of one transaction: writes without the event pages; events of one page, or of a few with
# long errors; dedup entries, whose items must stay small.
_MAX_WRITES = MAX_TRANSACTION - 10
_MAX_EVENTS = 500
_MAX_CHARACTERS = 500_000
_MAX_MARKS = 250
# Counters of one item that change at once: DynamoDB takes expressions of 4 KB.
_MAX_COUNTERS = 180
_TRIES = 10
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


@dataclass
class _Effect:
    """What follows from one change: counts and events."""

    change: Change
    happened: list[Happened]
    tally: Tally
    events: list[Event] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def queue(self) -> str:
        """The queue whose counters it changes; "" if there are only events."""
        return next((queue for queue, _ in self.tally.counts), "")

    def count(self, queue: str, at_ms: int, name: str, count: int = 1) -> None:
        """Count something that is counted by day."""
        self.tally.of_day(queue, at_ms, name, count)

    def emit(self, events: Iterable[Event]) -> None:
        """Add events."""
        for event in events:
            self.events.append(event)
            self.texts.append(jsontext.dumps(event.to_dict()))


@dataclass
class _Batch:
    """The state of one invocation."""

    failed: set[str] = field(default_factory=set)
    dedup: dict[int, DedupRecord] = field(default_factory=dict)
    types: dict[Place, set[str]] = field(default_factory=dict)
    dead: dict[str, set[str]] = field(default_factory=dict)

    def fail(self, effects: Iterable[_Effect]) -> None:
        """Report these changes as failed, to be delivered again."""
        self.failed.update(one.change.sequence for one in effects)

    def counted(self, effect: _Effect) -> bool:
        """Whether the change was counted before: it has a dedup record."""
        return effect.change.identity in self.dedup[effect.change.second].seen


class Projector:
    """Counts what happened, stores its events, and publishes them."""

    def __init__(
        self,
        store: ProjectionStore,
        jobs: JobStore,
        clock: Clock,
        ids: IdSource,
        *,
        service: str,
        sleep: Callable[[float], None],
        chance: Callable[[], float],
        bus: Bus | None = None,
        bus_types: Sequence[str] = (),
        failures: FailureQueue | None = None,
        metrics: MetricsOutlet | None = None,
        copies: CopyMaker | None = None,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._clock = clock
        self._ids = ids
        self._service = service
        self._sleep = sleep
        self._chance = chance
        self._bus = bus
        self._bus_types = (*ALWAYS, *bus_types)
        self._failures = failures
        self._metrics = metrics
        self._copies = copies
        self._page_ms = 0
        self._lock = threading.Lock()

    def run(self, raw_records: Sequence[Mapping[str, Any]]) -> list[str]:
        """Project stream records, in Lambda's form or boto3's, in any order and grouping.

        Returns the sequence numbers (event ids where there are none) of the records that failed and
        must be delivered again, in order. Safe to repeat, to split, and to run concurrently.
        """
        batch = _Batch()
        effects = [self._effect(change) for change in self._changes(raw_records, batch)]
        effects = [one for one in effects if one.happened or one.events or one.tally.any()]
        if effects:
            self._follow(effects, batch)
        return [name for name in map(_name, raw_records) if name in batch.failed]

    def _changes(self, raw_records: Sequence[Mapping[str, Any]], batch: _Batch) -> list[Change]:
        """The changes in the records, each once. Unreadable records go to the failure queue."""
        found: dict[bytes, Change] = {}
        for raw in raw_records:
            try:
                for change in records.parse(raw):
                    found.setdefault(change.identity, change)
            except Malformed as malformed:
                if not self._put_aside(malformed.to_dict()):
                    batch.failed.add(_name(raw))
        return list(found.values())

    def _put_aside(self, entry: Mapping[str, Any]) -> bool:
        """Send an unreadable record to the failure queue; False if it must be delivered again."""
        logger.error("a stream record cannot be read", extra={"record": entry})
        return self._failures is None or self._failures.send(entry)

    def _follow(self, effects: list[_Effect], batch: _Batch) -> None:
        what = [thing for one in effects for thing in one.happened]
        try:
            known = self._store.read(
                {one.change.second for one in effects},
                {key for key in map(events.error_key_of, what) if key is not None},
                counters.types_of(what),
                {queue for one in effects for queue in one.tally.moved_dead},
            )
        except OjsError as error:
            logger.warning("nothing could be read", extra={"reason": str(error)})
            batch.fail(effects)
            return
        all_effects = effects
        batch.dedup |= known.dedup
        batch.types |= {place: set(types) for place, types in known.types.items()}
        batch.dead |= {queue: set(names) for queue, names in known.dead.items()}
        effects = [one for one in effects if not batch.counted(one)]
        for one in effects:
            one.happened = list(events.explained(one.happened, known.failures))
            for thing in one.happened:
                one.tally.add(thing)
            one.emit(
                events.of_job(what, self._service, known.failures)
                for what in one.happened
                # Pruned dead letters that are counted together have one event in all.
                if what.kind is not EventType.DEAD_LETTER_PRUNED
            )
        stuck: set[str] = set()
        effects = self._copied(self._cleared(effects, batch), batch)
        for group in _groups(self._published(effects, batch)):
            ready = [one for one in group if one.change.item not in stuck]
            if ready and not self._commit(ready, batch):
                stuck.update(one.change.item for one in ready)
            batch.fail(one for one in group if one.change.item in stuck)
        self._trim(all_effects, batch)

    def _effect(self, change: Change) -> _Effect:
        """What follows from a change, except what happened to jobs, which also needs errors."""
        effect = _Effect(change, [], Tally())
        written_ms = change.second * 1_000
        for before, after in change.jobs:
            what = happened(before, after, written_ms=written_ms)
            effect.happened += what
            effect.tally.move(before, after)
        if change.queue is not None:
            self._queue(effect, *change.queue)
        if change.depth is not None:
            effect.emit(
                depth_counters.of_depth(
                    change.depth, self._service, identity=change.identity, written_ms=written_ms
                )
            )
        if change.refusal is not None:
            self._refusal(effect, change.refusal)
        if change.throttle is not None:
            self._throttle(effect, change.throttle)
        if change.adjustment is not None:
            effect.emit(
                [limits.of_adjustment(change.adjustment, self._service, identity=change.identity)]
            )
        if change.pool is not None:
            effect.emit(pools.of_pool(change.pool, self._service, identity=change.identity))
        if change.alerts is not None:
            self._alerts(effect, change.alerts)
        if change.worker is not None:
            effect.emit(
                events.of_worker(
                    *change.worker,
                    self._service,
                    identity=change.identity,
                    written_ms=written_ms,
                    pruned=change.pruned,
                )
            )
        return effect

    def _queue(self, effect: _Effect, before: Queue | None, after: Queue | None) -> None:
        change, written_ms = effect.change, effect.change.second * 1_000
        effect.emit(
            events.of_queue(
                before,
                after,
                self._service,
                identity=change.identity,
                explicit=change.explicit,
                written_ms=written_ms,
            )
        )
        # Queues created by a push count too.
        if before is None and after is not None:
            effect.count(after.name, after.created_ms, counters.CREATED)
        elif before is not None and after is None:
            effect.count(before.name, written_ms, counters.DELETED)

    def _refusal(self, effect: _Effect, refusal: PushRefusal) -> None:
        queue, at_ms = refusal.queue, refusal.what.at_ms
        effect.emit(
            depth_counters.of_refusal(refusal, self._service, identity=effect.change.identity)
        )
        effect.count(queue, at_ms, counters.REJECTED, refusal.count)
        effect.count(queue, at_ms, counters.overflow(refusal.what.policy), refusal.count)

    def _throttle(self, effect: _Effect, change: ThrottleChange) -> None:
        effect.emit(limits.of_throttle(change, self._service, identity=effect.change.identity))
        if change.exceeded and change.queue is not None:
            name = counters.exceeded(change.after.strategy)
            effect.count(change.queue, change.after.at_ms, name)

    def _alerts(self, effect: _Effect, alerts: AlertsChange) -> None:
        effect.emit(pools.of_alerts(alerts, self._service, identity=effect.change.identity))
        for queue in alerts.starved:
            effect.count(queue, alerts.after.at_ms, counters.STARVED)

    def _cleared(self, effects: Sequence[_Effect], batch: _Batch) -> list[_Effect]:
        """Remove what removed jobs left in the table; returns the effects that succeeded.

        Time to live removes the job record alone; a deletion may have died after removing it.
        """
        stuck: set[str] = set()
        going_on = []
        for one in effects:
            try:
                for job in one.change.removed:
                    self._jobs.removal.remove_rest(job)
            except OjsError as error:
                logger.warning("a removed job could not be cleared", extra={"reason": str(error)})
                stuck.add(one.change.item)
            if one.change.item in stuck:
                batch.fail([one])
            else:
                going_on.append(one)
        return going_on

    def _copied(self, effects: Sequence[_Effect], batch: _Batch) -> list[_Effect]:
        """Make the copies of dead letters that are due; returns the effects that succeeded."""
        wanted = {job.id for one in effects for job in due(one.change.jobs)}
        if self._copies is None or not wanted:
            return list(effects)
        stuck: set[str] = set()
        going_on = []
        due_now: dict[str, Job] = {}
        try:
            # Usually the request that discarded the job has made its copy, and this read is all.
            due_now = self._jobs.heads(wanted)
        except OjsError as error:
            logger.warning("dead letters could not be read", extra={"reason": str(error)})
            stuck.update(one.change.item for one in effects if any(due(one.change.jobs)))
        for one in effects:
            try:
                for job in due(one.change.jobs):
                    if one.change.item not in stuck and job.id in due_now:
                        self._copies.make(due_now.pop(job.id))
            except OjsError as error:
                logger.warning("a copy could not be made", extra={"reason": str(error)})
                stuck.add(one.change.item)
            if one.change.item in stuck:
                batch.fail([one])
            else:
                going_on.append(one)
        return going_on

    def _trim(self, effects: Sequence[_Effect], batch: _Batch) -> None:
        """Drop waiting copies beyond the limit; fails changes for which more must be dropped."""
        wanted: defaultdict[tuple[str, int], list[_Effect]] = defaultdict(list)
        for one in effects:
            for place in came_to_wait(one.change.jobs):
                wanted[place].append(one)
        for (queue, most), ones in wanted.items():
            done = self._copies is None or all(one.change.sequence in batch.failed for one in ones)
            try:
                done = done or (self._copies is not None and self._copies.trim(queue, most))
            except OjsError as error:
                logger.warning("copies could not be dropped", extra={"reason": str(error)})
            if not done:
                batch.fail(ones)

    def _published(self, effects: Sequence[_Effect], batch: _Batch) -> list[_Effect]:
        """Publish the events that belong on the bus; returns the effects that succeeded."""
        if self._bus is None:
            return list(effects)
        of_each = {one.change.identity: list(one.events) for one in effects}
        published = list(chain.from_iterable(of_each.values()))
        for each in chain.from_iterable(map(self._pruned, _groups(effects))):
            published.append(each.event)
            for identity in each.changes:
                of_each[identity].append(each.event)
        wanted = [event for event in published if matches(event.type, self._bus_types)]
        refused = self._bus.publish(wanted) if wanted else set()
        if refused:
            logger.error("the bus did not take events", extra={"events": len(refused)})
        stuck: set[str] = set()
        going_on = []
        for one in effects:
            if not refused.isdisjoint(event.id for event in of_each[one.change.identity]):
                stuck.add(one.change.item)
            if one.change.item in stuck:
                batch.fail([one])
            else:
                going_on.append(one)
        return going_on

    def _commit(self, group: Sequence[_Effect], batch: _Batch) -> bool:
        """Write the effects of a group in one transaction; False when that failed."""
        unsure = False
        for tried in range(_TRIES):
            try:
                if tried:
                    self._pause(tried)
                    batch.dedup |= self._store.read({one.change.second for one in group}).dedup
                left = [one for one in group if not batch.counted(one)]
                if left:
                    self._write(left, batch)
            except LostRace:
                continue
            except BackendTimeout:
                unsure = True
                continue
            except BackendUnavailable:
                continue
            except BackendError as error:
                # A defect of the code or of the deployment: an immediate retry would not help.
                logger.exception("records cannot be counted", extra={"reason": str(error)})
                return False
            # After a lost answer, a change found counted was counted by our own write.
            self._measure(group if unsure else left, batch)
            return True
        logger.warning("records could not be counted", extra={"records": len(group)})
        return False

    def _write(self, effects: Sequence[_Effect], batch: _Batch) -> None:
        now_ms = self._clock.now_ms()
        hashes: defaultdict[int, list[bytes]] = defaultdict(list)
        tally = Tally()
        for one in effects:
            hashes[one.change.second].append(one.change.identity)
            tally.merge(one.tally)
        dedup = {second: batch.dedup[second].with_(new) for second, new in hashes.items()}
        texts = [text for one in effects for text in one.texts]
        texts += [jsontext.dumps(each.event.to_dict()) for each in self._pruned(effects)]
        self._store.commit(
            dedup.values(),
            tally.deltas(batch.types, batch.dead),
            self._places(pages(texts), now_ms),
            now_ms=now_ms,
        )
        batch.dedup |= dedup
        for place, types in tally.types.items():
            known = batch.types.get(place, set())
            batch.types[place] = named_types(known, [of for _, of in types])
        for queue, counted in tally.moved_dead.items():
            batch.dead[queue] = counters.named_dead(counted, batch.dead.get(queue, set()))

    def _pruned(self, effects: Sequence[_Effect]) -> list[Pruned]:
        """The events of dead letters that were pruned, counted together."""
        what = ((one.change.identity, one.happened) for one in effects)
        return dead_letters.pruned(what, self._service)

    def _places(
        self, packed: Sequence[NewEventPage], now_ms: int
    ) -> dict[tuple[int, str], NewEventPage]:
        """The keys of new event pages, in order after all pages that this container wrote."""
        if not packed:
            return {}
        with self._lock:
            first_ms = max(now_ms, self._page_ms + 1)
            self._page_ms = first_ms + len(packed) - 1
        return {(first_ms + at, self._ids.token()): page for at, page in enumerate(packed)}

    def _measure(self, effects: Sequence[_Effect], batch: _Batch) -> None:
        if self._metrics is not None:
            what = [one for effect in effects for one in effect.happened]
            metrics.write(
                self._metrics,
                ((one, counted_as(one, batch.types.get(day_of(one), set()))) for one in what),
            )
            metrics.write_pools(self._metrics, what)
            metrics.write_bounds(self._metrics, (effect.tally for effect in effects))
            changes = (effect.change.throttle for effect in effects)
            metrics.write_limits(self._metrics, [one for one in changes if one is not None])

    def _pause(self, tried: int) -> None:
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**tried)
        self._sleep(longest * (0.5 + self._chance() / 2))


def _groups(effects: Sequence[_Effect]) -> Iterator[list[_Effect]]:
    """Effects in groups that each fit one transaction; those of a queue together and in order."""
    by_queue: defaultdict[str, list[_Effect]] = defaultdict(list)
    for one in effects:
        by_queue[one.queue].append(one)
    group: list[_Effect] = []
    size = _Size()
    for one in chain.from_iterable(by_queue.values()):
        wider = size.with_(one)
        if group and not wider.fits:
            yield group
            group, wider = [], _Size().with_(one)
        group.append(one)
        size = wider
    if group:
        yield group


@dataclass(frozen=True)
class _Size:
    """The size of a transaction."""

    counters: Mapping[Place, frozenset[str]] = field(default_factory=dict)
    seconds: frozenset[int] = frozenset()
    marks: int = 0
    events: int = 0
    characters: int = 0

    def with_(self, effect: _Effect) -> _Size:
        """The size with one more effect."""
        added = effect.tally.attributes()
        return _Size(
            {
                **self.counters,
                **{place: self.counters.get(place, frozenset()) | added[place] for place in added},
            },
            self.seconds | {effect.change.second},
            self.marks + 1,
            self.events + len(effect.texts),
            self.characters + sum(map(len, effect.texts)),
        )

    @property
    def fits(self) -> bool:
        """Whether it fits one transaction."""
        return (
            len(self.counters) + len(self.seconds) <= _MAX_WRITES
            and max(map(len, self.counters.values()), default=0) <= _MAX_COUNTERS
            and self.marks <= _MAX_MARKS
            and self.events <= _MAX_EVENTS
            and self.characters <= _MAX_CHARACTERS
        )


def _name(raw: Any) -> str:
    """The name under which a record is reported as failed; "" when it cannot be read."""
    stream = raw.get("dynamodb") if isinstance(raw, Mapping) else None
    sequence = stream.get("SequenceNumber") if isinstance(stream, Mapping) else None
    name = sequence or (raw.get("eventID") if isinstance(raw, Mapping) else None)
    return name if isinstance(name, str) else ""
