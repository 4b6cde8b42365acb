"""Enqueues many jobs of one request independently: a rejected job doesn't affect the others.

Jobs without a chosen ID and without a unique key are stored together, as one staged batch. The
other jobs are enqueued one by one, several at the same time. If the batch is rejected, its jobs are
enqueued one by one, too, and each one gets its own error.

With an idempotency key (ADR 31), the IDs of jobs that are enqueued one by one are derived from the
key and the time of its first attempt. Each attempt then finds the jobs of earlier ones. Before the
jobs of a rejected batch are enqueued one by one, the record of the key is updated, so that no later
attempt stages them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from aws_lambda_powertools import Logger

from ojs.clock import Clock
from ojs.domain.access import Reaches
from ojs.domain.errors import (
    BackendContended,
    BackendError,
    CapacityExceeded,
    Duplicate,
    InvalidRequest,
    KeyTaken,
    MiddlewareError,
    MiddlewareRefusal,
    MiddlewareTimeout,
    OjsError,
)
from ojs.domain.job.envelope import JobRequest, Specification
from ojs.domain.job.idempotency import HEADER, IdempotencyKey
from ojs.domain.job.job import Job
from ojs.domain.job.trace import TraceContext
from ojs.domain.job.unique import fingerprint
from ojs.records import record
from ojs.services.for_each import ForEach
from ojs.services.jobs.enqueue import STAGED_FROM, JobEnqueuer, Pushed, PushRequest
from ojs.services.jobs.idempotent_push import BUSY, KeyTurn, free, made_under
from ojs.store.jobs.bulk_pushes import BulkPushStore
from ojs.store.jobs.idempotency_keys import IdempotencyKeys, IdempotencyRecord
from ojs.store.jobs.records import JobStore
from ojs.store.table.races import losing_as, retry_on_race

logger = Logger()

PushOutcome = Pushed | OjsError


@record(frozen=True)
class _Entry:
    """One job of a request: its prepared push if the job is valid, and its error if it is rejected.

    A job that the middleware rejects has both, because an earlier attempt might have stored it.
    """

    push: PushRequest | None
    refusal: OjsError | None = None

    @property
    def wanted(self) -> PushRequest | None:
        return None if self.refusal else self.push


@record(frozen=True)
class _Keyed:
    """An idempotency key and its stored record."""

    key: IdempotencyKey
    record: IdempotencyRecord

    def alone(self, push: PushRequest, index: int) -> PushRequest:
        """Return the push of one job, with the ID that it has in each attempt."""
        seed, at_ms = self.key.steady_seed(self.record.at_ms), self.record.at_ms
        return replace(push, ids=[_chosen(push) or self.key.job_id(seed, at_ms, index)], seed=seed)

    def staged(self, index: int) -> str:
        """Return the ID of a job in the batch of this attempt."""
        return self.key.job_id(self.record.seed, self.record.at_ms, index)


class BulkPush:
    """Enqueues many jobs independently."""

    def __init__(
        self,
        *,
        enqueue: JobEnqueuer,
        jobs: JobStore,
        idempotency_keys: IdempotencyKeys,
        key_turn: KeyTurn,
        bulk_pushes: BulkPushStore,
        for_each: ForEach,
        clock: Clock,
        middleware_ms: int | None,
    ) -> None:
        """Create the service.

        Args:
            enqueue: Validates and stores jobs.
            jobs: Store of the jobs.
            idempotency_keys: Store of the idempotency keys.
            key_turn: Waits for concurrent requests with the same key.
            bulk_pushes: Store of the bulk events.
            for_each: Runs calls in parallel.
            clock: Clock.
            middleware_ms: Maximum duration of the middleware for a request in ms, or None without
                middleware.
        """
        self._enqueue = enqueue
        self._jobs = jobs
        self._keys = idempotency_keys
        self._turn = key_turn
        self._bulk_pushes = bulk_pushes
        self._for_each = for_each
        self._clock = clock
        self._middleware_ms = middleware_ms

    def push(
        self,
        requests: Sequence[JobRequest | OjsError],
        *,
        key: IdempotencyKey | None = None,
        producer: str | None,
        reaches: Reaches,
        wait_ms: int = 0,
        trace: TraceContext | None = None,
    ) -> list[PushOutcome]:
        """Store each job that can be stored, and return the outcome of each, in order.

        With a `key`, the jobs are stored once in 24 hours. Later calls return the outcomes of the
        first one, with the current jobs. If all jobs are rejected, the key is not stored.

        Args:
            requests: The jobs. An OjsError is the outcome of an invalid job.
            key: Idempotency key of the request.
            producer: Name of the producer.
            reaches: Whether the caller can use a queue.
            wait_ms: Maximum time in ms that all jobs together wait for capacity of full queues.
            trace: Trace context of the request.

        Returns:
            For each job, its `Pushed` or the error that rejected it.

        Raises:
            KeyTaken: The key was used for a different request.
            MiddlewareError: The middleware failed.
            BackendError: Nothing was stored. With a key, the outcome might be unknown: send the
                same request again to complete it.
        """
        entries, failure = self._entries(requests, producer, reaches, trace)
        until_ms = self._clock.now_ms() + wait_ms
        if key is None:
            if failure is not None:
                raise failure
            outcomes = self._store(entries, until_ms)
            _raise_if_none(outcomes)
            return outcomes
        if failure is not None:
            record = self._keys.read(key, now_ms=self._clock.now_ms())
            if record is None or record.request != key.request or not self._stands(record):
                raise failure
            return self._done_before(_Keyed(key, record), entries, reaches)
        return retry_on_race(
            lambda: self._attempt(key, entries, until_ms, reaches),
            busy=BUSY,
            pause=self._turn.pause,
        )

    def note(self, outcomes: Sequence[PushOutcome], atomicity: str) -> None:
        """Record the outcome of a request for the event log. Makes one call.

        Does nothing if no job was stored, or if an earlier attempt completed the request. A failure
        of the table is only logged, because the jobs are stored.
        """
        pushed = [one for one in outcomes if isinstance(one, Pushed)]
        if not pushed or any(one.again for one in pushed):
            return
        try:
            self._bulk_pushes.add(
                total=len(outcomes),
                succeeded=len(pushed),
                atomicity=atomicity,
                now_ms=self._clock.now_ms(),
            )
        except OjsError:
            logger.exception("Event of a bulk enqueue lost")

    def _entries(
        self,
        requests: Sequence[JobRequest | OjsError],
        producer: str | None,
        reaches: Reaches,
        trace: TraceContext | None,
    ) -> tuple[list[_Entry], MiddlewareError | None]:
        """Return the jobs after the middleware, and its failure. Later jobs are unchanged then."""
        entries: list[_Entry] = []
        failure: MiddlewareError | None = None
        first: dict[str, int] = {}
        took_ms = 0
        for index, request in enumerate(requests):
            entry = self._as_sent(request, producer, reaches, trace)
            if entry.push is not None and self._middleware_ms is not None and failure is None:
                began_ms = self._clock.now_ms()
                entry = self._changed(entry.push)
                took_ms += self._clock.now_ms() - began_ms
                if isinstance(entry.refusal, MiddlewareError):
                    failure = entry.refusal
                elif took_ms > self._middleware_ms:
                    failure = MiddlewareTimeout()
            job_id = None if entry.push is None else _chosen(entry.push)
            if job_id is not None and first.setdefault(job_id, index) != index:
                rule = f"is a duplicate of jobs[{first[job_id]}].id"
                entry = _Entry(None, InvalidRequest("id", rule, value=job_id))
            entries.append(entry)
        return entries, failure

    def _as_sent(
        self,
        request: JobRequest | OjsError,
        producer: str | None,
        reaches: Reaches,
        trace: TraceContext | None,
    ) -> _Entry:
        if isinstance(request, OjsError):
            return _Entry(None, request)
        prepare = self._enqueue.prepare
        try:
            return _Entry(prepare([request], producer, reaches, trace=trace, as_sent=True))
        except OjsError as error:
            return _Entry(None, error)

    def _changed(self, push: PushRequest) -> _Entry:
        try:
            return _Entry(self._enqueue.changed(push))
        except (MiddlewareRefusal, MiddlewareError) as error:
            return _Entry(push, error)
        except OjsError as error:
            return _Entry(None, error)

    def _attempt(
        self, key: IdempotencyKey, entries: Sequence[_Entry], until_ms: int, reaches: Reaches
    ) -> list[PushOutcome]:
        """Run one attempt. Raises LostRace if a concurrent attempt changed the key."""
        record, first = self._turn.begin(key, now_ms=self._clock.now_ms())
        if record.request != key.request:
            raise KeyTaken(HEADER)
        if record.done and self._stands(record):
            return self._done_before(_Keyed(key, record), entries, reaches)
        if not first:
            left = record.seed
            record = self._keys.join(record, anew=True)
            # The earlier batch can no longer be committed, so its capacity is released now.
            self._jobs.batches.undo(left, now_ms=self._clock.now_ms())
        keyed = _Keyed(key, record)
        entries = [
            entry
            if entry.push is None
            else replace(entry, push=self._enqueue.with_start_time(entry.push, record.at_ms))
            for entry in entries
        ]
        stored = None if first else self._stored(keyed, entries)
        return self._store(entries, until_ms, keyed, stored)

    def _stands(self, record: IdempotencyRecord) -> bool:
        """Return whether the staged batch of a completed request is committed, or the request had
        none.
        """
        return record.done and self._jobs.batches.commit(record.seed)

    def _store(
        self,
        entries: Sequence[_Entry],
        until_ms: int,
        keyed: _Keyed | None = None,
        stored: Mapping[int, Pushed] | None = None,
    ) -> list[PushOutcome]:
        """Store the valid jobs, without those in `stored`: the jobs of earlier attempts.

        Raises:
            BackendError: Only with a key. The outcome might be unknown.
            LostRace: Only with a key. A concurrent attempt changed the key.
        """
        outcomes: dict[int, PushOutcome] = dict(stored or {})
        left = {index: entry for index, entry in enumerate(entries) if index not in outcomes}
        outcomes |= {i: entry.refusal for i, entry in left.items() if entry.refusal is not None}
        wanted = {i: entry.wanted for i, entry in left.items() if entry.wanted is not None}
        group = _group(wanted, keyed)
        alone = {index: push for index, push in wanted.items() if index not in group}
        outcomes |= self._alone(alone, until_ms, keyed)
        staged = False
        try:
            if group:
                before_commit = partial(self._before_commit, keyed, entries, outcomes)
                outcomes |= self._together(group, until_ms, keyed, before_commit)
                staged = True
        except BackendError as error:
            if keyed is not None:
                raise
            outcomes |= dict.fromkeys(group, error)
        except OjsError:
            if keyed is not None:
                keyed = replace(keyed, record=self._keys.note_alone(keyed.record))
            outcomes |= self._alone(group, until_ms, keyed)
        if keyed is not None and not staged:
            self._end(keyed, entries, outcomes, first=stored is None)
        return [outcomes[index] for index in range(len(entries))]

    def _before_commit(
        self,
        keyed: _Keyed | None,
        entries: Sequence[_Entry],
        outcomes: Mapping[int, PushOutcome],
    ) -> None:
        if keyed is None:
            return
        with losing_as(lambda _: BackendContended(BUSY)):
            self._finish(keyed, entries, outcomes, alone=False)

    def _end(
        self,
        keyed: _Keyed,
        entries: Sequence[_Entry],
        outcomes: Mapping[int, PushOutcome],
        *,
        first: bool,
    ) -> None:
        """Record the outcomes of a request without a staged batch.

        If all jobs are rejected in the first attempt, the key is released instead.
        """
        if any(isinstance(outcome, Pushed) for outcome in outcomes.values()):
            self._finish(keyed, entries, outcomes, alone=True)
        elif first:
            free(self._keys, keyed.record)

    def _together(
        self,
        group: Mapping[int, PushRequest],
        until_ms: int,
        keyed: _Keyed | None,
        before_commit: Callable[[], None],
    ) -> dict[int, PushOutcome]:
        first = next(iter(group.values()))
        push = replace(
            first,
            requests=[push.requests[0] for push in group.values()],
            specifications=[push.specifications[0] for push in group.values()],
            ids=[
                push.ids[0] if keyed is None else keyed.staged(index)
                for index, push in group.items()
            ],
            batch=True,
            seed=None if keyed is None else keyed.record.seed,
            before_commit=before_commit,
        )
        pushed = self._enqueue.store(push, max(0, until_ms - self._clock.now_ms()))
        return dict(zip(group, pushed, strict=True))

    def _alone(
        self, pushes: Mapping[int, PushRequest], until_ms: int, keyed: _Keyed | None
    ) -> dict[int, PushOutcome]:
        """Enqueue jobs one by one, several at the same time, with sort keys in the order of the
        request.

        Jobs with the same unique key are enqueued in their order. If a queue has less space than
        jobs, the excess jobs are enqueued one after the other, until one is rejected.
        """
        pushes = {index: self._enqueue.positioned(push) for index, push in pushes.items()}
        queues: dict[str, list[int]] = {}
        for index, push in pushes.items():
            queues.setdefault(push.specifications[0].queue, []).append(index)
        outcomes: dict[int, PushOutcome] = {}

        def run(line: Sequence[int], *, until_full: bool = False) -> None:
            for index in line:
                outcomes[index] = self._one(index, pushes[index], until_ms, keyed)
                if until_full and isinstance(outcomes[index], CapacityExceeded):
                    return

        def side_by_side(indexes: Iterable[int]) -> None:
            lines: dict[str, list[int]] = {}
            for index in sorted(indexes):
                key = _unique_key(pushes[index].specifications[0]) or str(index)
                lines.setdefault(key, []).append(index)
            self._for_each(run, list(lines.values()))

        crowded = [queue for queue, line in queues.items() if len(line) > 1]
        space = dict(zip(crowded, self._for_each(self._enqueue.space, crowded), strict=True))
        side_by_side(i for queue, line in queues.items() for i in line[: space.get(queue)])
        beyond = [queues[queue][most:] for queue, most in space.items() if most is not None]
        self._for_each(partial(run, until_full=True), beyond)
        side_by_side(pushes.keys() - outcomes.keys())
        return outcomes

    def _one(
        self, index: int, push: PushRequest, until_ms: int, keyed: _Keyed | None
    ) -> PushOutcome:
        if keyed is not None:
            push = keyed.alone(push, index)
        try:
            (pushed,) = self._enqueue.store(push, max(0, until_ms - self._clock.now_ms()))
        except OjsError as error:
            if keyed is None:
                return error
            if isinstance(error, BackendError):
                raise
            if isinstance(error, Duplicate) and (job := self._own(push)) is not None:
                # A concurrent attempt stored the job first.
                return Pushed(job)
            return error
        same = keyed is not None and pushed.job.id == push.ids[0]
        return replace(pushed, deduplicated=pushed.deduplicated and not same)

    def _own(self, push: PushRequest) -> Job | None:
        """Return the job of a push, if an attempt of this request stored it."""
        job = self._jobs.read_records(push.ids).get(push.ids[0])
        return job if job is not None and made_under(job, push.seed) else None

    def _stored(self, keyed: _Keyed, entries: Sequence[_Entry]) -> dict[int, Pushed]:
        """Return the jobs that earlier attempts enqueued one by one."""
        alone = {
            index: keyed.alone(entry.push, index)
            for index, entry in enumerate(entries)
            if entry.push is not None
        }
        found = self._jobs.read_records([push.ids[0] for push in alone.values()])
        return {
            index: Pushed(found[push.ids[0]])
            for index, push in alone.items()
            if push.ids[0] in found and made_under(found[push.ids[0]], push.seed)
        }

    def _finish(
        self,
        keyed: _Keyed,
        entries: Sequence[_Entry],
        outcomes: Mapping[int, PushOutcome],
        *,
        alone: bool,
    ) -> None:
        """Record the outcome of each job. Jobs without an outcome are about to be stored."""
        existing: list[str | None] = [None] * len(entries)
        refused: dict[int, OjsError] = {}
        for index, outcome in outcomes.items():
            if isinstance(outcome, OjsError):
                # An invalid job is invalid in each attempt, so its error is not recorded.
                if entries[index].push is not None:
                    refused[index] = outcome
            elif outcome.deduplicated:
                existing[index] = outcome.job.id
        self._keys.finish(keyed.record, existing, refused, alone=alone)

    def _done_before(
        self, keyed: _Keyed, entries: Sequence[_Entry], reaches: Reaches
    ) -> list[PushOutcome]:
        """Return the outcomes of a completed request, with its current jobs."""
        record = keyed.record
        existing = record.existing or [None] * len(entries)
        pushes: dict[int, PushRequest] = {}
        for index, entry in enumerate(entries):
            if entry.push is None:
                continue
            push = keyed.alone(self._enqueue.with_start_time(entry.push, record.at_ms), index)
            if (there := existing[index]) is not None:
                push = replace(push, ids=[there])
            elif not _tied(push) and not record.alone:
                push = replace(push, ids=[keyed.staged(index)])
            pushes[index] = push
        found = self._jobs.read_records([push.ids[0] for push in pushes.values()])
        rest = {index: push for index, push in pushes.items() if push.ids[0] not in found}
        alone = self._stored(keyed, [_Entry(rest.get(index)) for index in range(len(entries))])
        outcomes: list[PushOutcome] = []
        for index, entry in enumerate(entries):
            if (own := pushes.get(index)) is None:
                outcomes.append(entry.refusal or record.refused[index])
                continue
            before = existing[index] is not None
            job = found.get(own.ids[0])
            if job is not None and _tied(own) and not before and not made_under(job, own.seed):
                job = None
            job = job or (alone[index].job if index in alone else None)
            if job is None and index in record.refused:
                outcomes.append(record.refused[index])
            else:
                outcomes.append(self._told_again(own, job, reaches, deduplicated=before))
        return outcomes

    def _told_again(
        self, push: PushRequest, job: Job | None, reaches: Reaches, *, deduplicated: bool
    ) -> Pushed:
        if job is not None and reaches(job.queue):
            return Pushed(job, deduplicated=deduplicated, again=True)
        gone = self._enqueue.to_job(push, 0)
        return Pushed(gone, deduplicated=deduplicated, absent=True, again=True)


def _chosen(push: PushRequest) -> str | None:
    return push.specifications[0].id


def _group(wanted: Mapping[int, PushRequest], keyed: _Keyed | None) -> dict[int, PushRequest]:
    """Return the jobs that can be stored together as one batch."""
    free_ones = {index: push for index, push in wanted.items() if not _tied(push)}
    never = len(free_ones) < STAGED_FROM or (keyed is not None and keyed.record.alone)
    return {} if never else free_ones


def _tied(push: PushRequest) -> bool:
    """Return whether a job can conflict with another one, by its ID or its unique key."""
    return _chosen(push) is not None or push.specifications[0].unique is not None


def _unique_key(specification: Specification) -> str | None:
    if specification.unique is None:
        return None
    try:
        return fingerprint(specification, specification.unique)
    except OjsError:
        return None  # enqueueing the job raises the error


def _raise_if_none(outcomes: Sequence[PushOutcome]) -> None:
    """If no job was stored and the backend failed, raise the BackendError."""
    if any(isinstance(outcome, Pushed) for outcome in outcomes):
        return
    for outcome in outcomes:
        if isinstance(outcome, BackendError):
            raise outcome
