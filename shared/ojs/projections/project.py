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
from functools import lru_cache
from itertools import chain
from typing import Any

from aws_lambda_powertools import Logger

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    OjsError,
    UnknownForm,
)
from ojs.domain.events.event import Event, matches
from ojs.domain.events.types import EventType
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.projections import counters, dead_letters, events, metrics, records
from ojs.projections.counters import StatsKey, Tally, counted_as, day_of, named_types
from ojs.projections.dead_letters import CopyMaker, Pruned, came_to_wait, due
from ojs.projections.limits import ThrottleChange
from ojs.projections.metrics import MetricsOutlet
from ojs.projections.outlets import Bus, FailureQueue
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
_MAX_HASHES = 250
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
    types: dict[StatsKey, set[str]] = field(default_factory=dict)
    dead: dict[str, set[str]] = field(default_factory=dict)

    def fail(self, effects: Iterable[_Effect]) -> None:
        """Report these changes as failed, to be delivered again."""
        self.failed.update(one.change.sequence for one in effects)

    def succeeding(
        self, effects: Iterable[_Effect], step: Callable[[_Effect], bool]
    ) -> list[_Effect]:
        """The effects for which a step succeeds; the others are reported as failed.

        Later effects of an item whose step failed must not overtake it, and fail, too.
        """
        stuck: set[str] = set()
        succeeded = []
        for one in effects:
            if one.change.item in stuck or not step(one):
                stuck.add(one.change.item)
                self.fail([one])
            else:
                succeeded.append(one)
        return succeeded

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
            except UnknownForm as unknown:
                # Nothing is counted of it, and nothing is lost: the item itself is left alone.
                _log_unknown(unknown.message)
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
        batch.types |= {key: set(types) for key, types in known.types.items()}
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
        effects = self._copied(batch.succeeding(effects, self._clear), batch)
        for group in _groups(self._published(effects, batch)):
            ready = [one for one in group if one.change.item not in stuck]
            if ready and not self._commit(ready, batch):
                stuck.update(one.change.item for one in ready)
            batch.fail(one for one in group if one.change.item in stuck)
        self._trim(all_effects, batch)

    def _effect(self, change: Change) -> _Effect:
        """What follows from a change, except the events of jobs, which also need errors."""
        effect = _Effect(change, [], Tally())
        for before, after in change.jobs:
            effect.happened += happened(before, after, written_ms=change.written_ms)
            effect.tally.move(before, after)
        if change.other is not None:
            effect.emit(change.events(self._service))
            for each in change.other.counts(change.written_ms):
                effect.tally.of_day(each.queue, each.at_ms, each.name, each.count)
        return effect

    def _clear(self, effect: _Effect) -> bool:
        """Remove what removed jobs left in the table; False when that failed.

        Time to live removes the job record alone; a deletion may have died after removing it.
        """
        try:
            for job in effect.change.removed:
                self._jobs.removal.remove_rest(job)
        except OjsError as error:
            logger.warning("a removed job could not be cleared", extra={"reason": str(error)})
            return False
        return True

    def _copied(self, effects: Sequence[_Effect], batch: _Batch) -> list[_Effect]:
        """Make the copies of dead letters that are due; returns the effects that succeeded."""
        wanted = {job.id for one in effects for job in due(one.change.jobs)}
        if self._copies is None or not wanted:
            return list(effects)
        due_now: dict[str, Job] | None = None
        try:
            # Usually the request that discarded the job has made its copy, and this read is all.
            due_now = self._jobs.read_records(wanted)
        except OjsError as error:
            logger.warning("dead letters could not be read", extra={"reason": str(error)})
        copies = self._copies

        def make(effect: _Effect) -> bool:
            try:
                for job in due(effect.change.jobs):
                    if due_now is None:
                        return False
                    if job.id in due_now:
                        copies.make(due_now.pop(job.id))
            except OjsError as error:
                logger.warning("a copy could not be made", extra={"reason": str(error)})
                return False
            return True

        return batch.succeeding(effects, make)

    def _trim(self, effects: Sequence[_Effect], batch: _Batch) -> None:
        """Drop waiting copies beyond the limit; fails changes for which more must be dropped."""
        if self._copies is None:
            return
        by_limit: defaultdict[tuple[str, int], list[_Effect]] = defaultdict(list)
        for one in effects:
            for limit in came_to_wait(one.change.jobs):
                by_limit[limit].append(one)
        for (queue, most), ones in by_limit.items():
            if all(one.change.sequence in batch.failed for one in ones):
                continue
            try:
                done = self._copies.trim(queue, most)
            except OjsError as error:
                logger.warning("copies could not be dropped", extra={"reason": str(error)})
                done = False
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
        return batch.succeeding(
            effects,
            lambda one: refused.isdisjoint(event.id for event in of_each[one.change.identity]),
        )

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
            except (LostRace, BackendUnavailable, BackendTimeout) as error:
                unsure = unsure or isinstance(error, BackendTimeout)
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
            self._page_keys(pages(texts), now_ms),
            now_ms=now_ms,
        )
        batch.dedup |= dedup
        for key, types in tally.types.items():
            known = batch.types.get(key, set())
            batch.types[key] = named_types(known, [of for _, of in types])
        for queue, counted in tally.moved_dead.items():
            batch.dead[queue] = counters.named_dead(counted, batch.dead.get(queue, set()))

    def _pruned(self, effects: Sequence[_Effect]) -> list[Pruned]:
        """The events of dead letters that were pruned, counted together."""
        what = ((one.change.identity, one.happened) for one in effects)
        return dead_letters.pruned(what, self._service)

    def _page_keys(
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
        if self._metrics is None:
            return
        what = [one for effect in effects for one in effect.happened]
        changes = (effect.change.other for effect in effects)
        for measurements in (
            metrics.of_jobs(
                (one, counted_as(one, batch.types.get(day_of(one), set()))) for one in what
            ),
            metrics.of_pools(what),
            metrics.of_days(effect.tally for effect in effects),
            metrics.of_limits(one for one in changes if isinstance(one, ThrottleChange)),
        ):
            metrics.write(self._metrics, measurements)

    def _pause(self, tried: int) -> None:
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**tried)
        self._sleep(longest * (0.5 + self._chance() / 2))


@lru_cache(maxsize=100)
def _log_unknown(reason: str) -> None:
    """Log once in a container that changes of this form are passed over."""
    logger.warning("stream records of a newer version are passed over", extra={"reason": reason})


def _groups(effects: Sequence[_Effect]) -> Iterator[list[_Effect]]:
    """Effects in groups that each fit one transaction; those of a queue together and in order."""
    by_queue: defaultdict[str, list[_Effect]] = defaultdict(list)
    for one in effects:
        by_queue[one.queue].append(one)
    group = _Group()
    for one in chain.from_iterable(by_queue.values()):
        if not group.takes(one):
            yield group.effects
            group = _Group()
            group.takes(one)
    if group.effects:
        yield group.effects


@dataclass
class _Group:
    """The effects that one transaction writes, and its size."""

    effects: list[_Effect] = field(default_factory=list)
    counters: dict[StatsKey, set[str]] = field(default_factory=dict)
    seconds: set[int] = field(default_factory=set)
    events: int = 0
    characters: int = 0

    def takes(self, effect: _Effect) -> bool:
        """Add an effect; False if it does not fit any more. One alone always fits."""
        counters = self.counters | {
            key: self.counters.get(key, set()) | names
            for key, names in effect.tally.attributes().items()
        }
        seconds = self.seconds | {effect.change.second}
        events = self.events + len(effect.texts)
        characters = self.characters + sum(map(len, effect.texts))
        fits = (
            len(counters) + len(seconds) <= _MAX_WRITES
            and max(map(len, counters.values()), default=0) <= _MAX_COUNTERS
            and len(self.effects) < _MAX_HASHES
            and events <= _MAX_EVENTS
            and characters <= _MAX_CHARACTERS
        )
        if self.effects and not fits:
            return False
        self.effects.append(effect)
        self.counters, self.seconds = counters, seconds
        self.events, self.characters = events, characters
        return True


def _name(raw: Any) -> str:
    """The name under which a record is reported as failed; "" when it cannot be read."""
    stream = raw.get("dynamodb") if isinstance(raw, Mapping) else None
    sequence = stream.get("SequenceNumber") if isinstance(stream, Mapping) else None
    name = sequence or (raw.get("eventID") if isinstance(raw, Mapping) else None)
    return name if isinstance(name, str) else ""
