"""From stream records to what follows from them.

The order of steps, so that nothing is lost and nothing counted twice, wherever it ends:

1. records are read; one that cannot be goes to the failure queue, the rest go on
2. what is counted already is dropped: its mark is there
3. what a job that was removed leaves behind is removed: texts, errors, progress. Again is harmless
4. copies of dead letters are made that are still due. Again is harmless: a copy that was made, or
   shall not be any more, is not due
5. events for others go to the bus. A crash after this sends them again, under the same ids
6. marks, counters and event pages go into the table in one transaction for each group of records
7. metrics are written, of what was counted now. A crash before this loses them
8. copies beyond what may wait are dropped, by the counts: also for what was counted before, since
   a crash may have come between

A record that failed is reported, and with it what came later of the same item, which must not
overtake it. Whatever was counted of the batch by then is dropped when the batch comes again.
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
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.domain.queue.queue import Queue
from ojs.projections import counters, dead_letters, events, gates, limits, metrics, pools, records
from ojs.projections.bus import Bus
from ojs.projections.copies import CopyMaker, came_to_wait, due
from ojs.projections.counters import Place, Tally, counted_as, day_of, named_types
from ojs.projections.dead_letters import Pruned
from ojs.projections.failures import FailureQueue
from ojs.projections.gates import PushRefusal
from ojs.projections.limits import ThrottleChange
from ojs.projections.metrics import MetricsOutlet
from ojs.projections.pools import WatchChange
from ojs.projections.records import Change, Malformed
from ojs.projections.transitions import Happened, TransitionKind, happened
from ojs.store.derived.projection import DedupRecord, NewEventPage, ProjectionStore, pages
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace
from ojs.store.table.table import MAX_TRANSACTION

logger = Logger()

# What operators must hear of goes to the bus whatever the deployment asks for.
ALWAYS = ("queue.*", "job.discarded", "dead_letter.*", "backpressure.*", "scheduling.*")

# One transaction: writes but for the pages, events of one page (of a few, when they tell of long
# errors), marks that leave their item small.
_MAX_WRITES = MAX_TRANSACTION - 10
_MAX_EVENTS = 500
_MAX_CHARACTERS = 500_000
_MAX_MARKS = 250
# DynamoDB takes expressions of 4 KB: so many counters of one item change at once.
_MAX_COUNTERS = 180
_TRIES = 10
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


@dataclass
class _Effect:
    """What follows from one change: what to count, what to tell."""

    change: Change
    happened: list[Happened]
    tally: Tally
    events: list[Event] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def queue(self) -> str:
        """The queue whose counters it changes; none for what is only told of."""
        return next((queue for queue, _ in self.tally.counts), "")

    def count(self, queue: str, at_ms: int, name: str, count: int = 1) -> None:
        """Something that is counted by day."""
        self.tally.of_day(queue, at_ms, name, count)

    def tell(self, told: Iterable[Event]) -> None:
        """Events that follow too."""
        for event in told:
            self.events.append(event)
            self.texts.append(jsontext.dumps(event.to_dict()))


@dataclass
class _Batch:
    """One invocation under way."""

    failed: set[str] = field(default_factory=set)
    marks: dict[int, DedupRecord] = field(default_factory=dict)
    types: dict[Place, set[str]] = field(default_factory=dict)
    dead: dict[str, set[str]] = field(default_factory=dict)

    def fail(self, effects: Iterable[_Effect]) -> None:
        """These must come again."""
        self.failed.update(one.change.sequence for one in effects)

    def counted(self, effect: _Effect) -> bool:
        """Whether its mark is there."""
        return effect.change.identity in self.marks[effect.change.second].seen


class Projector:
    """Counts what happened, keeps events of it, and tells others."""

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

    def run(self, given: Sequence[Mapping[str, Any]]) -> list[str]:
        """Project stream records, in Lambda's form or boto3's, in whatever order and company.

        Returns the sequence numbers (event ids where there are none) of those that failed and must
        come again, in the order given. Safe to repeat, to split, and to run at the same time.
        """
        batch = _Batch()
        effects = [self._effect(change) for change in self._changes(given, batch)]
        effects = [one for one in effects if one.happened or one.events or one.tally.any()]
        if effects:
            self._follow(effects, batch)
        return [name for name in map(_name, given) if name in batch.failed]

    def _changes(self, given: Sequence[Mapping[str, Any]], batch: _Batch) -> list[Change]:
        """What the records tell of, each once. Those that cannot be read go elsewhere."""
        found: dict[bytes, Change] = {}
        for raw in given:
            try:
                for change in records.parse(raw):
                    found.setdefault(change.identity, change)
            except Malformed as malformed:
                if not self._put_aside(malformed.to_dict()):
                    batch.failed.add(_name(raw))
        return list(found.values())

    def _put_aside(self, entry: Mapping[str, Any]) -> bool:
        """Keep what tells of a record that cannot be read; False when it must come again."""
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
        everything = effects
        batch.marks |= known.marks
        batch.types |= {place: set(types) for place, types in known.types.items()}
        batch.dead |= {queue: set(names) for queue, names in known.dead.items()}
        effects = [one for one in effects if not batch.counted(one)]
        for one in effects:
            one.happened = list(events.explained(one.happened, known.failures))
            for thing in one.happened:
                one.tally.add(thing)
            one.tell(
                events.of_job(what, self._service, known.failures)
                for what in one.happened
                # Of these there is one event for all that are counted together.
                if what.kind is not TransitionKind.DEAD_PRUNED
            )
        stuck: set[str] = set()
        ready_to_tell = self._copied(self._cleared(effects, batch), batch)
        for group in _groups(self._announced(ready_to_tell, batch)):
            ready = [one for one in group if one.change.item not in stuck]
            if ready and not self._commit(ready, batch):
                stuck.update(one.change.item for one in ready)
            batch.fail(one for one in group if one.change.item in stuck)
        self._trim(everything, batch)

    def _effect(self, change: Change) -> _Effect:
        """What follows from a change, but for what happened to jobs: errors tell of that, too."""
        effect = _Effect(change, [], Tally())
        written_ms = change.second * 1_000
        for before, after in change.jobs:
            what = happened(before, after, written_ms=written_ms)
            effect.happened += what
            effect.tally.move(before, after)
        if change.queue is not None:
            self._queue(effect, *change.queue)
        if change.depth is not None:
            told = gates.of_depth(
                change.depth, self._service, identity=change.identity, written_ms=written_ms
            )
            effect.tell(told)
        if change.refusal is not None:
            self._refusal(effect, change.refusal)
        if change.edge is not None:
            self._edge(effect, change.edge)
        if change.adjustment is not None:
            effect.tell(
                [limits.of_adjustment(change.adjustment, self._service, identity=change.identity)]
            )
        if change.pool is not None:
            effect.tell(pools.of_pool(change.pool, self._service, identity=change.identity))
        if change.watch is not None:
            self._watch(effect, change.watch)
        if change.worker is not None:
            effect.tell(
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
        effect.tell(
            events.of_queue(
                before,
                after,
                self._service,
                identity=change.identity,
                explicit=change.explicit,
                written_ms=written_ms,
            )
        )
        # Those that a push made count too (queue-config seed, section 10.2).
        if before is None and after is not None:
            effect.count(after.name, after.created_ms, counters.CREATED)
        elif before is not None and after is None:
            effect.count(before.name, written_ms, counters.DELETED)

    def _refusal(self, effect: _Effect, refusal: PushRefusal) -> None:
        queue, at_ms = refusal.queue, refusal.what.at_ms
        effect.tell(gates.of_refusal(refusal, self._service, identity=effect.change.identity))
        effect.count(queue, at_ms, counters.REJECTED, refusal.count)
        effect.count(queue, at_ms, counters.overflow(refusal.what.policy), refusal.count)

    def _edge(self, effect: _Effect, edge: ThrottleChange) -> None:
        effect.tell(limits.of_edge(edge, self._service, identity=effect.change.identity))
        if edge.exceeded and edge.queue is not None:
            name = counters.exceeded(edge.after.strategy)
            effect.count(edge.queue, edge.after.at_ms, name)

    def _watch(self, effect: _Effect, watch: WatchChange) -> None:
        effect.tell(pools.of_watch(watch, self._service, identity=effect.change.identity))
        for queue in watch.starved:
            effect.count(queue, watch.after.at_ms, counters.STARVED)

    def _cleared(self, effects: Sequence[_Effect], batch: _Batch) -> list[_Effect]:
        """Those that may go on, nothing of a job that was removed being left in the table.

        Time to live removes a head alone; a deletion by hand may have died after it.
        """
        stuck: set[str] = set()
        going_on = []
        for one in effects:
            try:
                for job in one.change.removed:
                    self._jobs.remove_rest(job)
            except OjsError as error:
                logger.warning("a removed job could not be cleared", extra={"reason": str(error)})
                stuck.add(one.change.item)
            if one.change.item in stuck:
                batch.fail([one])
            else:
                going_on.append(one)
        return going_on

    def _copied(self, effects: Sequence[_Effect], batch: _Batch) -> list[_Effect]:
        """Those that may go on, the copies of dead letters being made."""
        wanted = {job.id for one in effects for job in due(one.change.jobs)}
        if self._copies is None or not wanted:
            return list(effects)
        stuck: set[str] = set()
        going_on = []
        heads: dict[str, Job] = {}
        try:
            # Mostly whoever let a job die has made its copy: this look is all that is left to do.
            heads = self._jobs.heads(wanted)
        except OjsError as error:
            logger.warning("dead letters could not be read", extra={"reason": str(error)})
            stuck.update(one.change.item for one in effects if any(due(one.change.jobs)))
        for one in effects:
            try:
                for job in due(one.change.jobs):
                    if one.change.item not in stuck and job.id in heads:
                        self._copies.make(heads.pop(job.id))
            except OjsError as error:
                logger.warning("a copy could not be made", extra={"reason": str(error)})
                stuck.add(one.change.item)
            if one.change.item in stuck:
                batch.fail([one])
            else:
                going_on.append(one)
        return going_on

    def _trim(self, effects: Sequence[_Effect], batch: _Batch) -> None:
        """Drop copies beyond what may wait; those that more must be dropped for come again."""
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

    def _announced(self, effects: Sequence[_Effect], batch: _Batch) -> list[_Effect]:
        """Those that may go on, their events being on the bus if they belong there."""
        if self._bus is None:
            return list(effects)
        of_each = {one.change.identity: list(one.events) for one in effects}
        told = list(chain.from_iterable(of_each.values()))
        for each in chain.from_iterable(map(self._pruned, _groups(effects))):
            told.append(each.event)
            for identity in each.changes:
                of_each[identity].append(each.event)
        wanted = [event for event in told if matches(event.type, self._bus_types)]
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
        """Write the effects of a group, in one transaction; False when that cannot be done now."""
        unsure = False
        for tried in range(_TRIES):
            try:
                if tried:
                    self._pause(tried)
                    batch.marks |= self._store.read({one.change.second for one in group}).marks
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
                # A defect of ours or of the deployment: trying again at once changes nothing.
                logger.exception("records cannot be counted", extra={"reason": str(error)})
                return False
            # After a lost answer what is found counted was counted by us.
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
        marks = {second: batch.marks[second].with_(new) for second, new in hashes.items()}
        told = [text for one in effects for text in one.texts]
        told += [jsontext.dumps(each.event.to_dict()) for each in self._pruned(effects)]
        self._store.commit(
            marks.values(),
            tally.deltas(batch.types, batch.dead),
            self._places(pages(told), now_ms),
            now_ms=now_ms,
        )
        batch.marks |= marks
        for place, types in tally.types.items():
            known = batch.types.get(place, set())
            batch.types[place] = named_types(known, [of for _, of in types])
        for queue, counted in tally.moved_dead.items():
            batch.dead[queue] = counters.named_dead(counted, batch.dead.get(queue, set()))

    def _pruned(self, effects: Sequence[_Effect]) -> list[Pruned]:
        """What is told of dead letters that were pruned, counted together."""
        what = ((one.change.identity, one.happened) for one in effects)
        return dead_letters.pruned(what, self._service)

    def _places(
        self, packed: Sequence[NewEventPage], now_ms: int
    ) -> dict[tuple[int, str], NewEventPage]:
        """Where the pages go: behind all that this container wrote, in order."""
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
            edges = (effect.change.edge for effect in effects)
            metrics.write_limits(self._metrics, [edge for edge in edges if edge is not None])

    def _pause(self, tried: int) -> None:
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**tried)
        self._sleep(longest * (0.5 + self._chance() / 2))


def _groups(effects: Sequence[_Effect]) -> Iterator[list[_Effect]]:
    """Effects in groups that each fit one transaction, those of one queue together and in order."""
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
    """What a transaction would hold."""

    counters: Mapping[Place, frozenset[str]] = field(default_factory=dict)
    seconds: frozenset[int] = frozenset()
    marks: int = 0
    events: int = 0
    characters: int = 0

    def with_(self, effect: _Effect) -> _Size:
        """And an effect more."""
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
        """Whether one transaction can take it."""
        return (
            len(self.counters) + len(self.seconds) <= _MAX_WRITES
            and max(map(len, self.counters.values()), default=0) <= _MAX_COUNTERS
            and self.marks <= _MAX_MARKS
            and self.events <= _MAX_EVENTS
            and self.characters <= _MAX_CHARACTERS
        )


def _name(raw: Any) -> str:
    """What a record is called when it is reported; the empty text when that cannot be read."""
    stream = raw.get("dynamodb") if isinstance(raw, Mapping) else None
    sequence = stream.get("SequenceNumber") if isinstance(stream, Mapping) else None
    name = sequence or (raw.get("eventID") if isinstance(raw, Mapping) else None)
    return name if isinstance(name, str) else ""
