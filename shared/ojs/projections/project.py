"""Projects the records of a shard of the stream: counters, events, metrics, copies, and removals.

The records of a shard arrive in order. After a failure, Lambda redelivers them from an earlier
record on, possibly in other batches, and possibly while an earlier delivery still runs. This order
of steps prevents lost and duplicate counts after a crash at any point:

1. Parse the records. A record that can't be parsed goes to the failure queue. The rest continue.
2. Remove the items of removed jobs: payloads, errors, progress. This is safe to repeat.
3. Create the copies of dead letters that are still due. This is safe to repeat: an existing or
   obsolete copy is not due. Advance workflows whose jobs have finished, if the requests that
   finished the jobs did not. Wake the deliveries of jobs that are still available.
4. Publish the events of changes that are not counted yet, or have no event page. After a crash,
   they are published again, with the same IDs. Events that the bus rejects are marked in the page,
   and a sweep publishes them (`ojs.projections.unpublished`).
5. Write the counters of each queue, with the position up to which they count, and the key of the
   event page that follows.
6. Write the event page.
7. Write metrics of the changes that were counted now. A crash before this step loses them.
8. Drop available copies beyond the limit, also for changes that were counted before, because an
   earlier delivery can have crashed before this step.

If a step fails for a record, the record is reported, and Lambda redelivers it with all later ones.
"""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, lru_cache, partial
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
from ojs.projections import counters, dead_letters, events, metrics, records
from ojs.projections.counters import StatsKey, Tally, counted_as, day_of, named_types
from ojs.projections.crons import CronRunChange
from ojs.projections.dead_letters import CopyMaker, due, new_copies
from ojs.projections.deliveries import DeliveryStream, placed
from ojs.projections.limits import ThrottleChange
from ojs.projections.metrics import MetricsOutlet
from ojs.projections.outlets import Bus, FailureQueue
from ojs.projections.records import Change, Malformed
from ojs.projections.transitions import JobEvent, happened
from ojs.projections.workflows import DurableStream, WorkflowStream, durably_ended, ended
from ojs.records import record
from ojs.store.derived.projection import (
    AT_ONCE,
    Delta,
    NewEventPage,
    ProjectedState,
    ProjectionStore,
    packed,
)
from ojs.store.jobs.records import JobStore
from ojs.store.queues.registry import QueueRegistry
from ojs.store.table import keys
from ojs.store.table.errors import LostRace, UnreadableItem, WriteNotApplied
from ojs.store.table.schema import STREAM_MAX_AGE_S

logger = Logger()

# Published regardless of the event types that the deployment selects, because operators need them.
ALWAYS = (
    "queue.*", EventType.JOB_DISCARDED, "dead_letter.*", "backpressure.*", "scheduling.*",
    "delivery.*", "webhook.*", "tenant.*",
)  # fmt: skip

# One event page has the events of one group of changes. A group must be small, and its page must be
# written soon after its key is chosen: readers that follow the log read only the last 10 seconds
# again.
_MAX_EVENTS = 500
_MAX_BYTES = 250_000
_MAX_NAMES = 100
_LATE_PAGE_MS = 5_000
_TRIES = 10
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
# Lambda drops a whole batch if one record is too old. Before that, send the record to the failure
# queue.
_GIVE_UP_MS = (STREAM_MAX_AGE_S - 600) * 1_000


@record
class _Effect:
    """The counts and events of one change of the table."""

    change: Change
    happened: list[JobEvent]
    tally: Tally
    events: list[Event] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @cached_property
    def owner(self) -> str:
        """The queue or pool whose counters record whether the events are in the log."""
        return next((queue for queue, _ in self.tally.counts), keys.ALL_QUEUES)

    @property
    def names(self) -> list[str]:
        """Names of the queues and pools whose counters the change adds to."""
        return list(dict.fromkeys((self.owner, *self.tally.queues())))

    @property
    def may_count(self) -> set[str]:
        """Names of the queues and pools whose counters it might add to.

        Its events are not known yet.
        """
        return {self.owner, *(queue for queue, _ in self.tally.counts), *self.tally.dead}

    @property
    def tells(self) -> bool:
        """Whether the change has events."""
        pruned = EventType.DEAD_LETTER_PRUNED
        return bool(self.texts) or any(one.kind is pruned for one in self.happened)

    def emit(self, events: Iterable[Event]) -> None:
        """Add events."""
        for event in events:
            self.events.append(event)
            self.texts.append(jsontext.dumps(event.to_dict()))


@record
class _Batch:
    """The state of one invocation."""

    shard: str
    known: ProjectedState = field(default_factory=lambda: ProjectedState({}))
    failed: set[str] = field(default_factory=set)
    types: dict[StatsKey, set[str]] = field(default_factory=dict)
    dead: dict[str, set[str]] = field(default_factory=dict)
    # IDs of published events, and for each whether the bus rejected it.
    published: dict[str, bool] = field(default_factory=dict)
    # Keys of event pages, and for each whether the page exists. A missing page will never be
    # written.
    pages: dict[str, bool] = field(default_factory=dict)
    # Changes that were counted in this invocation, and changes whose count has an unknown outcome.
    counted: list[_Effect] = field(default_factory=list)
    unsure: list[_Effect] = field(default_factory=list)

    def fail(self, effects: Iterable[_Effect]) -> None:
        """Report these changes as failed, so that Lambda redelivers their stream records."""
        self.failed.update(one.change.sequence for one in effects)

    def is_new(self, effect: _Effect, name: str) -> bool:
        """Return whether the counters of this queue or pool don't include the change yet."""
        return effect.change.place > self.known.counts[name].position


class Projector:
    """Projects changes of the table: updates counters, and stores and publishes events."""

    def __init__(
        self,
        store: ProjectionStore,
        jobs: JobStore,
        registry: QueueRegistry,
        clock: Clock,
        *,
        service: str,
        results: bool = True,
        sleep: Callable[[float], None],
        chance: Callable[[], float],
        bus: Bus | None = None,
        bus_types: Sequence[str] = (),
        failures: FailureQueue | None = None,
        metrics: MetricsOutlet | None = None,
        copies: CopyMaker | None = None,
        workflows: Callable[[], WorkflowStream] | None = None,
        durable: Callable[[], DurableStream] | None = None,
        deliveries: DeliveryStream | None = None,
    ) -> None:
        self._workflows = workflows
        self._durable = durable
        self._deliveries = deliveries
        self._store = store
        self._jobs = jobs
        self._registry = registry
        self._clock = clock
        self._service = service
        # Whether events contain the results of jobs.
        self._results = results
        self._sleep = sleep
        self._chance = chance
        self._bus = bus
        self._bus_types = (*ALWAYS, *bus_types)
        self._failures = failures
        self._metrics = metrics
        self._copies = copies
        self._page_ms = 0
        self._lock = threading.Lock()

    def run(self, raw_records: Sequence[Mapping[str, Any]], shard: str) -> list[str]:
        """Project records of a shard, in the format of Lambda or boto3, in the order of the shard.

        The call is safe to repeat from any record on, to split, and to run concurrently.

        Args:
            raw_records: Records of the shard.
            shard: ID of the shard.

        Returns:
            Sequence numbers of the failed records, in order. The first of them and all later
            records must be redelivered.
        """
        batch = _Batch(shard)
        effects = [
            one
            for one in self._effects(raw_records, batch)
            if one.happened or one.events or one.tally.queues() or one.change.cleared
        ]
        if effects:
            self._follow(effects, batch)
        failed = [raw for raw in raw_records if _name(raw) in batch.failed]
        return [_name(raw) for raw in failed if not self._given_up(raw)]

    def use(self, shard: str) -> None:
        """Record that a shard is in use, if it was not recorded recently. Raise OjsError."""
        self._store.use(shard, now_ms=self._clock.now_ms())

    def _effects(
        self, raw_records: Sequence[Mapping[str, Any]], batch: _Batch
    ) -> Iterator[_Effect]:
        """Yield each change in the records once. Send unreadable records to the failure queue."""
        seen: set[bytes] = set()
        for raw in raw_records:
            try:
                found = [self._effect(change) for change in records.parse(raw)]
            except UnknownForm as unknown:
                # Changes in an unknown format are not counted. They are not lost, because the item
                # is not changed.
                _log_unknown(unknown.message)
                continue
            except Exception as error:  # noqa: BLE001 - any error would stop the shard
                # The text of an error can quote the item's content.
                reason = f"can't be projected: {type(error).__name__}"
                malformed = error if isinstance(error, Malformed) else Malformed(reason, raw)
                if not self._put_aside(malformed):
                    batch.failed.add(_name(raw))
                continue
            yield from (one for one in found if one.change.identity not in seen)
            seen.update(one.change.identity for one in found)

    def _put_aside(self, malformed: Malformed) -> bool:
        """Send an unreadable stream record to the failure queue. Return false if that failed.

        The record must then be redelivered.
        """
        logger.error("Stream record skipped", extra={"record": malformed.to_dict()})
        return self._failures is None or self._failures.send(malformed.to_dict())

    def _given_up(self, raw: Mapping[str, Any]) -> bool:
        """Send a stream record that is too old to the failure queue. Return false if that failed.

        The record must then be redelivered.
        """
        written_ms = records.written_ms(raw)
        if written_ms is None or written_ms > self._clock.now_ms() - _GIVE_UP_MS:
            return False
        return self._put_aside(Malformed("was not projected in time", raw))

    def _follow(self, effects: list[_Effect], batch: _Batch) -> None:
        what = [thing for one in effects for thing in one.happened]
        try:
            self.use(batch.shard)
            batch.known = known = self._store.read(
                batch.shard,
                {name for one in effects for name in one.may_count},
                {one.change.second for one in effects},
                events.to_read(what),
                counters.types_of(what),
                {queue for one in effects for queue in one.tally.moved_dead},
                now_ms=self._clock.now_ms(),
            )
        except OjsError as error:
            logger.warning("Read failed", extra={"reason": str(error)})
            batch.fail(effects)
            return
        batch.types |= {key: set(types) for key, types in known.types.items()}
        batch.dead |= {queue: set(names) for queue, names in known.dead.items()}
        # Version 0.2.0 counted a stream record, stored its events, and marked it in one
        # transaction.
        left = [one for one in effects if one.change.identity not in known.counted]
        failures = events.failures_of(what, known.errors)
        for one in left:
            one.happened = list(events.explained(one.happened, failures))
            for thing in one.happened:
                one.tally.add(thing)
            one.emit(
                events.of_job(what, self._service, failures, results=self._results)
                for what in one.happened
                # Dead letters that are pruned together have one event.
                if what.kind is not EventType.DEAD_LETTER_PRUNED
            )
        self._clear(left, batch)
        self._copy(left, batch)
        self._advance(left, batch)
        self._end_durable(left, batch)
        self._wake(left)
        groups = list(_groups(left))
        for at, group in enumerate(groups):
            if not self._commit(group, batch):
                # A position must not be after a change that is not counted.
                batch.fail(one for later in groups[at:] for one in later)
                break
        self._measure(batch)
        self._trim(effects, batch)

    def _effect(self, change: Change) -> _Effect:
        """Return the counts and events of a change.

        Job events follow later, because they need errors.
        """
        effect = _Effect(change, [], Tally())
        for before, after in change.jobs:
            effect.happened += happened(before, after, written_ms=change.written_ms)
            effect.tally.move(before, after)
        if change.other is not None:
            effect.emit(change.events(self._service))
            for each in change.other.counts(change.written_ms):
                effect.tally.of_day(each.queue, each.at_ms, each.name, each.count)
        return effect

    def _clear(self, effects: Iterable[_Effect], batch: _Batch) -> None:
        """Remove the items that removed jobs have left in the table.

        The time to live deletes only the job record, and a deletion can crash after that step.
        """
        for one in effects:
            try:
                for job in one.change.removed:
                    self._jobs.removal.remove_rest(job)
            except OjsError as error:
                logger.warning("Clearing a removed job failed", extra={"reason": str(error)})
                batch.fail([one])

    def _copy(self, effects: Sequence[_Effect], batch: _Batch) -> None:
        """Create the missing copies of dead letters."""
        by_job = {job.id: one for one in effects for job in due(one.change.jobs)}
        if self._copies is None or not by_job:
            return
        try:
            # Usually the request that discarded the job created its copy, so this read is the only
            # call.
            found = self._jobs.read_records(by_job)
        except OjsError as error:
            logger.warning("Reading dead letters failed", extra={"reason": str(error)})
            batch.fail(by_job.values())
            return
        for job in found.values():
            try:
                self._copies.make(job)
            except OjsError as error:
                logger.warning("Copying a dead letter failed", extra={"reason": str(error)})
                batch.fail([by_job[job.id]])

    def _advance(self, effects: Sequence[_Effect], batch: _Batch) -> None:
        """Advance the workflows of finished jobs, unless the requests that finished the jobs did
        so.
        """
        if self._workflows is None:
            return
        for one in effects:
            try:
                for job in ended(one.change.jobs):
                    self._workflows().repeat(job)
                if one.change.cleared is not None:
                    self._workflows().clear(one.change.cleared)
            except (UnknownForm, UnreadableItem) as error:
                # A failure would stop the shard. The sweep reports it again.
                logger.error("Reading a workflow failed", extra={"reason": str(error)})  # noqa: TRY400
            except OjsError as error:
                logger.warning("Advancing a workflow failed", extra={"reason": str(error)})
                batch.fail([one])

    def _end_durable(self, effects: Sequence[_Effect], batch: _Batch) -> None:
        """Process the ends of jobs with durable code, in case the requests did not."""
        if self._durable is None:
            return
        for one in effects:
            try:
                for job in durably_ended(one.change.jobs):
                    self._durable().repeat(job)
            except (UnknownForm, UnreadableItem) as error:
                logger.error("Reading a job failed", extra={"reason": str(error)})  # noqa: TRY400
            except OjsError as error:
                logger.warning("Ending a durable job failed", extra={"reason": str(error)})
                batch.fail([one])

    def _wake(self, effects: Sequence[_Effect]) -> None:
        """Wake the deliveries of jobs that are still available.

        If this fails, the sweep wakes them.
        """
        if self._deliveries is None:
            return
        jobs = {job.id: job for one in effects for job in placed(one.change.jobs)}
        try:
            self._deliveries.repeat(list(jobs.values()))
        except OjsError as error:
            logger.warning("Waking deliveries failed", extra={"reason": str(error)})

    def _trim(self, effects: Sequence[_Effect], batch: _Batch) -> None:
        """Discard available copies beyond the limit.

        If more copies must be discarded, the changes are reported as failed.
        """
        if self._copies is None:
            return
        by_limit: defaultdict[tuple[str, int], list[_Effect]] = defaultdict(list)
        for one in effects:
            for limit in new_copies(one.change.jobs):
                by_limit[limit].append(one)
        for (queue, most), ones in by_limit.items():
            if all(one.change.sequence in batch.failed for one in ones):
                continue
            try:
                done = self._copies.trim(queue, most)
            except OjsError as error:
                logger.warning(
                    "Deleting copies of dead letters failed", extra={"reason": str(error)}
                )
                done = False
            if not done:
                batch.fail(ones)

    # --- counting -----------------------------------------------------------------------------

    def _commit(self, group: Sequence[_Effect], batch: _Batch) -> bool:
        """Count a group of changes and store its events. Return false if that failed."""
        names = list(dict.fromkeys(name for one in group for name in one.names))
        for tried in range(_TRIES):
            try:
                if tried:
                    self._pause(tried)
                    read = self._store.read(batch.shard, names, now_ms=self._clock.now_ms())
                    batch.known = replace(batch.known, counts={**batch.known.counts, **read.counts})
                    self._look_again(batch)
                self._write(group, names, batch)
            except (LostRace, BackendUnavailable, BackendTimeout):
                continue
            except BackendError as error:
                # An error of the code or of the deployment. An immediate retry would not help.
                logger.exception(
                    "Counting stream records failed permanently", extra={"reason": str(error)}
                )
                return False
            return True
        logger.warning("Counting stream records failed", extra={"records": len(group)})
        return False

    def _look_again(self, batch: _Batch) -> None:
        """Add the changes whose count had an unknown outcome, if they are counted by now."""
        batch.counted += [one for one in batch.unsure if not batch.is_new(one, one.owner)]
        batch.unsure.clear()

    def _write(self, group: Sequence[_Effect], names: Sequence[str], batch: _Batch) -> None:
        """Make one attempt to write the counters, then the events that are missing in the log."""
        told = self._untold(group, batch)
        new: dict[str, list[_Effect]] = {name: [] for name in names}
        for one in group:
            for name in one.names:
                if batch.is_new(one, name):
                    new[name].append(one)
        if not told and not any(new.values()):
            return
        texts = [text for one in told for text in one.texts]
        pruned = dead_letters.pruned(
            ((one.change.identity, one.happened) for one in told), self._service
        )
        texts += [jsontext.dumps(each.event.to_dict()) for each in pruned]
        refused = self._publish(
            [*(event for one in told for event in one.events), *(each.event for each in pruned)],
            batch,
        )
        key = self._page_key(batch.shard, told) if texts else ""
        for name in names:
            mine = [one for one in told if one.owner == name]
            if new[name] or mine:
                self._count(name, new[name], mine, key, batch)
        if not texts:
            return
        if self._clock.now_ms() - keys.instant_of(key) > _LATE_PAGE_MS:
            # Readers that follow the log might have read past this key, so a later key is chosen.
            raise LostRace([])
        kept_s = (thing.job.ttl_s or 0 for one in told for thing in one.happened)
        page = NewEventPage(
            key,
            packed(texts),
            len(texts),
            unpublished=refused,
            listed_s=max(kept_s, default=0),
            ends=partial(_ends, told),
        )
        self._store.add_page(page)
        batch.pages[key] = True

    def _untold(self, group: Sequence[_Effect], batch: _Batch) -> list[_Effect]:
        """Return the changes whose events are not in the log: uncounted ones, or ones without a
        page.
        """
        untold = []
        for one in group:
            counts, place = batch.known.counts[one.owner], one.change.place
            if not one.tells or place <= counts.page_from:
                continue
            if place <= counts.page_to and counts.page not in batch.pages:
                batch.pages[counts.page] = self._store.page_stands(counts.page)
            if place > counts.page_to or not batch.pages[counts.page]:
                untold.append(one)
        return untold

    def _count(
        self,
        name: str,
        new: Sequence[_Effect],
        told: Sequence[_Effect],
        page: str,
        batch: _Batch,
    ) -> None:
        """Write the counters of one queue or pool, with the key of its event page."""
        counts = batch.known.counts[name]
        tally = Tally()
        for one in new:
            tally.merge(one.tally, name)
        deltas = tally.deltas(batch.types, batch.dead)
        # The position is written even if all additions are zero, because the last record can be
        # redelivered without the first.
        levels, recent, at_once = _sorted(deltas)
        last = max((one.change.place for one in new), default="")
        after = counts.counting(levels, recent, last, now_ms=self._clock.now_ms())
        if told:
            after = after.telling(page, told[0].change.place, told[-1].change.place)
        mine = [one for one in new if one.owner == name]
        hand_over = any(counters.is_new(delta, batch.types) for delta in deltas)
        try:
            if keys.is_queue(name):
                # The queue is recorded as active first, because sweeps don't read the counters of
                # an idle queue.
                self._registry.note(name)
            after = self._store.count(after, at_once, hand_over=hand_over)
        except (LostRace, BackendUnavailable, BackendTimeout) as error:
            known = isinstance(error, WriteNotApplied) or (
                isinstance(error, LostRace) and not error.repeated
            )
            batch.unsure += [] if known else mine
            raise
        batch.counted += mine
        batch.known = replace(batch.known, counts={**batch.known.counts, name: after})
        for key, types in tally.types.items():
            there = batch.types.get(key, set())
            batch.types[key] = named_types(there, [of for _, of in types])
        for queue, moved in tally.moved_dead.items():
            batch.dead[queue] = counters.named_dead(moved, batch.dead.get(queue, set()))

    def _publish(self, told: Sequence[Event], batch: _Batch) -> bool:
        """Publish the events that the deployment selects. Return whether the bus rejected any."""
        if self._bus is None:
            return False
        wanted = [event for event in told if matches(event.type, self._bus_types)]
        untold = [event for event in wanted if event.id not in batch.published]
        refused = self._bus.publish(untold) if untold else set()
        if refused:
            logger.error("Publishing events failed", extra={"events": len(refused)})
        batch.published |= {event.id: event.id in refused for event in untold}
        return any(batch.published[event.id] for event in wanted)

    def _page_key(self, shard: str, told: Sequence[_Effect]) -> str:
        """Return the key of a new event page.

        It is after all pages that this container has written. Pages with other events have other
        keys, also if two containers write them in the same millisecond.
        """
        with self._lock:
            self._page_ms = max(self._clock.now_ms(), self._page_ms + 1)
            at_ms = self._page_ms
        name = "|".join((shard, *(one.change.place for one in told)))
        token = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        return keys.event_page(at_ms, token)

    def _measure(self, batch: _Batch) -> None:
        if self._metrics is None:
            return
        what = [one for effect in batch.counted for one in effect.happened]
        changes = [effect.change.other for effect in batch.counted]
        for measurements in (
            metrics.of_jobs(
                (one, counted_as(one, batch.types.get(day_of(one), set()))) for one in what
            ),
            metrics.of_pools(what),
            metrics.of_days(effect.tally for effect in batch.counted),
            metrics.of_limits(one for one in changes if isinstance(one, ThrottleChange)),
            metrics.of_crons(one for one in changes if isinstance(one, CronRunChange)),
        ):
            metrics.write(self._metrics, measurements)

    def _pause(self, tried: int) -> None:
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**tried)
        self._sleep(longest * (0.5 + self._chance() / 2))


def _ends(told: Iterable[_Effect]) -> bytes:
    """Return the final events of jobs, with only the fields that lists of finished jobs need."""
    ends = (event for one in told for event in one.events if event.type in events.ENDS)
    return packed([jsontext.dumps(events.bare(each).to_dict()) for each in ends])


@lru_cache(maxsize=100)
def _log_unknown(reason: str) -> None:
    """Log once per container that changes of this format are skipped."""
    logger.warning("Stream records of a newer version skipped", extra={"reason": reason})


def _sorted(
    deltas: Iterable[Delta],
) -> tuple[dict[str, int], dict[str, Mapping[str, int]], list[Delta]]:
    """Split additions into current counts, counts by day and minute, and immediate additions."""
    levels: dict[str, int] = {}
    recent: dict[str, Mapping[str, int]] = {}
    at_once: list[Delta] = []
    for delta in deltas:
        if delta.sk == keys.DEAD:
            at_once.append(delta)
        elif delta.sk == keys.NOW:
            levels = {name: n for name, n in delta.add.items() if name not in AT_ONCE}
            if own := {name: n for name, n in delta.add.items() if name in AT_ONCE}:
                at_once.append(Delta(delta.queue, keys.NOW, own))
        else:
            recent[delta.sk] = delta.add
    return levels, recent, at_once


def _groups(effects: Sequence[_Effect]) -> Iterator[list[_Effect]]:
    """Yield the changes in order, in groups whose events fit into one event page."""
    group: list[_Effect] = []
    names: set[str] = set()
    events = size = 0
    for one in effects:
        grown, length = names.union(one.names), sum(len(text.encode()) for text in one.texts)
        if group and (
            len(grown) > _MAX_NAMES
            or events + len(one.texts) > _MAX_EVENTS
            or size + length > _MAX_BYTES
        ):
            yield group
            group, grown, events, size = [], set(one.names), 0, 0
        group.append(one)
        names = grown
        events, size = events + len(one.texts), size + length
    if group:
        yield group


def _name(raw: Any) -> str:
    """Return the sequence number of a stream record, or "" if it can't be read."""
    stream = raw.get("dynamodb") if isinstance(raw, Mapping) else None
    sequence = stream.get("SequenceNumber") if isinstance(stream, Mapping) else None
    name = sequence or (raw.get("eventID") if isinstance(raw, Mapping) else None)
    return name if isinstance(name, str) else ""
