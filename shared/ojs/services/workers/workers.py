"""Heartbeats and the registry of workers (ojs-core, "BEAT" and "Worker states")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain import jsontext, times
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.errors import (
    BAD_CURSOR,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    any_of,
    naming_field,
)
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.pool.worker import Directive, Worker, check_worker_id
from ojs.domain.times import MAX_MS
from ojs.records import record
from ojs.services.for_each import ForEach, in_threads
from ojs.services.jobs.transitions import JobChanges
from ojs.store.jobs.records import JobStore, winner
from ojs.store.queues import workers as store
from ojs.store.table.races import losing_as, lost_race

MAX_INFO_BYTES = 4_096
# Minimum time (ms) between two writes of a busy worker's record. A worker receives a new directive
# at most this time and one heartbeat later.
RECORD_EVERY_MS = 10_000
# The time to the next heartbeat (ms): a third of the lease, within these bounds. A worker that
# sends no heartbeat for `DEAD_AFTER_MS` counts as dead.
_INTERVAL_MS = (5_000, 20_000)
_REMEMBERED = 10_000
# Number of jobs that one call reads.
_JOBS = 100


@record(frozen=True)
class HeartbeatAnswer:
    """The response to a heartbeat. The next one is due `heartbeat_interval_ms` later."""

    state: Directive
    server_time: str
    heartbeat_interval_ms: int
    jobs_extended: list[str] = field(default_factory=list)
    cancelled_jobs: list[str] = field(default_factory=list)


class WorkerRegistry:
    """Manages the records of workers, and sends directives and cancellations to workers."""

    def __init__(
        self,
        *,
        workers: store.WorkerStore,
        jobs: JobStore,
        changes: JobChanges,
        clock: Clock,
        for_each: ForEach = in_threads,
    ) -> None:
        self._workers = workers
        self._jobs = jobs
        self._changes = changes
        self._clock = clock
        self._for_each = for_each
        self._heard: BoundedMap[tuple[str, str], Worker] = BoundedMap(_REMEMBERED)

    def beat(
        self,
        worker_id: str,
        *,
        active_jobs: Sequence[str] = (),
        active_count: int | None = None,
        visibility_timeout_ms: int | None = None,
        state: str | None = None,
        info: Mapping[str, Any] | None = None,
        pool: str | None = None,
        caller: Principal = ANYBODY,
    ) -> HeartbeatAnswer:
        """Extend the leases of a worker's jobs, and return which of them were cancelled.

        Makes one call reads 100 jobs, at half a read unit each. A job with more than two thirds of
        its lease left is not written: it costs nothing more. A job that is not active, or belongs
        to another worker, is skipped without an error. The worker's own record is written at most
        every 10 s.

        Args:
            worker_id: ID of the worker.
            active_jobs: IDs of the jobs that the worker runs.
            active_count: Number of jobs that the worker runs. Default: the number of extended jobs.
            visibility_timeout_ms: Length of the lease from now in milliseconds. Default: the length
                that each job has.
            state: State that the worker reports.
            info: Information that the worker reports, up to 4 KiB.
            pool: Pool that the worker belongs to.
            caller: The sender of the heartbeat.

        Raises:
            Conflict: The worker named another pool before. No lease is extended.
            BackendUnavailable: DynamoDB rejected a write. Some leases may be extended.
        """
        _check_id(worker_id)
        _check_info(info)
        now_ms = self._clock.now_ms()
        directive = None
        if pool is not None and self._recent(worker_id, now_ms, pool, caller) is None:
            # This check precedes all leases: if a worker is rejected, no lease is extended.
            count = active_count if active_count is not None else len(set(active_jobs))
            worker = self._touch(worker_id, now_ms, state, count, info, pool, caller)
            directive = self._remember(worker, caller)
        wanted = list(dict.fromkeys(active_jobs))
        records = self._read(wanted)

        def extend(job_id: str) -> State | None:
            job = records.get(job_id)
            if job is not None and _fresh(job, worker_id, visibility_timeout_ms, now_ms):
                return State.ACTIVE
            return self._extend(job_id, worker_id, visibility_timeout_ms, now_ms)

        states = dict(zip(wanted, self._for_each(extend, wanted), strict=True))
        extended = [job_id for job_id, found in states.items() if found is State.ACTIVE]
        cancelled = [job_id for job_id, found in states.items() if found is State.CANCELLED]
        count = active_count if active_count is not None else len(extended)
        if directive is None and extended and state is None:
            directive = self._recent(worker_id, now_ms, pool, caller)
        if directive is None:
            worker = self._touch(worker_id, now_ms, state, count, info, pool, caller)
            directive = self._remember(worker, caller)
        leases = [records[job_id].lease for job_id in extended if job_id in records]
        lengths = [lease.length_ms for lease in leases if lease is not None]
        shortest_ms = visibility_timeout_ms or min(lengths, default=MAX_MS)
        interval_ms = max(_INTERVAL_MS[0], min(_INTERVAL_MS[1], shortest_ms // 3))
        return HeartbeatAnswer(directive, times.format_ms(now_ms), interval_ms, extended, cancelled)

    def _read(self, job_ids: Sequence[str]) -> dict[str, Job]:
        """Return job records, without those that this version can't read.

        A record can be outdated, because the read is eventually consistent. See `_fresh`.
        """
        records: dict[str, Job] = {}
        for start in range(0, len(job_ids), _JOBS):
            part = job_ids[start : start + _JOBS]
            records |= self._jobs.read_records(part, lambda *_: None, consistent=False)
        return records

    def _extend(
        self, job_id: str, worker_id: str, lease_ms: int | None, now_ms: int
    ) -> State | None:
        """Extend one lease.

        Returns `active` if the worker holds the lease, `cancelled` if the job was cancelled after
        its start, otherwise None.
        """
        lost = lost_race(
            lambda: self._jobs.extend(job_id, now_ms=now_ms, worker_id=worker_id, lease_ms=lease_ms)
        )
        if lost is not None:
            there = winner(lost, known_only=True)
            if there is None or there.worker_id not in (None, worker_id):
                return None
            resumed = self._changes.resume(
                there, worker_id=worker_id, lease_ms=lease_ms, now_ms=now_ms
            )
            if not resumed and there.state is not State.ACTIVE:
                return State.CANCELLED if there.state is State.CANCELLED and there.attempt else None
            # The lease of an active job lasts longer than requested now.
        return State.ACTIVE

    def _touch(
        self,
        worker_id: str,
        now_ms: int,
        state: str | None,
        active_jobs: int | None,
        info: Mapping[str, Any] | None,
        pool: str | None,
        caller: Principal,
    ) -> Worker:
        """Write what a worker reports to its record. Raises Conflict for another pool."""
        with losing_as(lambda lost: store.refused(worker_id, pool, lost)):
            return self._workers.touch(
                worker_id,
                now_ms=now_ms,
                state=state,
                active_jobs=active_jobs,
                info=info,
                pool=pool,
                caller=caller,
            )

    def _recent(
        self, worker_id: str, now_ms: int, pool: str | None, caller: Principal
    ) -> Directive | None:
        """Return the worker's directive, if this container recently wrote its record with the same
        pool.

        Otherwise return None.
        """
        worker = self._heard.get(store.key_of(worker_id, caller))
        if worker is None or now_ms - worker.last_seen_ms >= RECORD_EVERY_MS:
            return None
        if pool not in (None, worker.pool):
            return None
        return worker.directive

    def _remember(self, worker: Worker, caller: Principal) -> Directive:
        # The information from the worker can be long, so only its hash is cached.
        self._heard.put(store.key_of(worker.id, caller), replace(worker, info={}))
        return worker.directive

    def register(
        self,
        worker_id: str,
        info: Mapping[str, Any],
        pool: str | None = None,
        caller: Principal = ANYBODY,
    ) -> Worker:
        """Start a new record for a worker process (`WorkerStore.register`).

        Args:
            worker_id: ID of the worker.
            info: The information that the worker sends.
            pool: Name of the pool that the worker declares.
            caller: The caller.

        Returns:
            The worker.

        Raises:
            InvalidRequest: The ID is invalid.
            PayloadTooLarge: The information is too large.
            Conflict: A live worker with this ID belongs to another pool.
        """
        _check_id(worker_id)
        _check_info(info)
        self._heard.forget(store.key_of(worker_id, caller))
        now_ms = self._clock.now_ms()
        return self._workers.register(worker_id, now_ms=now_ms, info=info, pool=pool, caller=caller)

    def drain(
        self,
        worker_id: str,
        *,
        state: str,
        active_jobs: int | None = None,
        info: Mapping[str, Any] | None = None,
        pool: str | None = None,
        caller: Principal = ANYBODY,
    ) -> Worker:
        """Record the state that a worker reports. A stopping worker receives no more jobs.

        Args:
            worker_id: ID of the worker.
            state: The reported state.
            active_jobs: Number of its active jobs.
            info: The information that the worker sends.
            pool: Name of the pool that the worker declares.
            caller: The caller.

        Returns:
            The worker.

        Raises:
            InvalidRequest: The ID is invalid.
            PayloadTooLarge: The information is too large.
            Conflict: The worker declares another pool than before.
        """
        _check_id(worker_id)
        _check_info(info)
        self._heard.forget(store.key_of(worker_id, caller))
        now_ms = self._clock.now_ms()
        return self._touch(worker_id, now_ms, state, active_jobs, info, pool, caller)

    def direct(self, worker_id: str, directive: str) -> Worker:
        """Set the directive of a worker: running, quiet, or terminate.

        Fetches follow it from the next request on. The worker receives it with a heartbeat, within
        RECORD_EVERY_MS.

        Raises:
            NotFound: The worker does not exist.
            InvalidRequest: The directive is unknown.
        """
        with naming_field("directive", directive, f"must be {any_of(Directive)}"):
            chosen = Directive(directive)
        done: list[Worker] = []
        # All processes with this ID, regardless of their access keys.
        for sk, _ in self._workers.records(worker_id):
            worker = self._workers.direct(worker_id, sk, chosen)
            done += [] if worker is None else [worker]
            self._heard.forget((store.key_of(worker_id)[0], sk))
        if not done:
            raise NotFound("worker", worker_id)
        return done[0]

    def get(self, worker_id: str, caller: Principal | None = None) -> Worker:
        """Return the caller's worker. Without a caller: the most recently seen one with this ID.

        Raises NotFound.
        """
        for _, worker in self._workers.records(worker_id, caller):
            return worker
        raise NotFound("worker", worker_id)

    def list(self, *, limit: int, cursor: str | None = None) -> Page[Worker]:
        """Return a page of workers, in no particular order. Raises InvalidRequest."""
        if cursor is not None:
            worker_id, bar, mark = cursor.partition("|")
            _check_id(worker_id, "cursor")
            if bar and not store.MARK.fullmatch(mark):
                raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
        workers, following = self._workers.page(limit=limit, after=cursor)
        return Page(workers, following)

    def remove(self, worker_id: str, caller: Principal | None = None) -> None:
        """Delete the record of the caller's worker. Without a caller: all records with this ID.

        Its leases expire. Raises NotFound.
        """
        gone = []
        for sk, _ in self._workers.records(worker_id, caller):
            gone.append(self._workers.remove(worker_id, sk))
            self._heard.forget((store.key_of(worker_id)[0], sk))
        if not any(gone):
            raise NotFound("worker", worker_id)


def _fresh(job: Job, worker_id: str, lease_ms: int | None, now_ms: int) -> bool:
    """Return whether a job, as read, needs no write.

    True if the worker has its lease, and more than two thirds of the lease remain. A stale record
    gives the same answer: `lease_until` never decreases while a worker has the job, so no other
    request claimed it after an expiry. The next heartbeat reads a cancellation that the record
    doesn't show yet.
    """
    lease = job.lease
    return (
        job.state is State.ACTIVE
        and lease is not None
        and lease.worker_id in (None, worker_id)
        and 3 * (lease.until_ms - now_ms) > 2 * (lease_ms or lease.length_ms)
    )


def _check_id(worker_id: str, field_name: str = "worker_id") -> None:
    with naming_field(field_name, worker_id):
        check_worker_id(worker_id)


def _check_info(info: Mapping[str, Any] | None) -> None:
    if info and (size := jsontext.size_of(info)) > MAX_INFO_BYTES:
        raise PayloadTooLarge("worker", size=size, limit=MAX_INFO_BYTES)
