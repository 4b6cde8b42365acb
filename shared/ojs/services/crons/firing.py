"""Fires cron jobs: creates the job of each tick that is due (ojs-cron, sections 6 and 7).

A tick is a time at which a cron job must run. A fetch fires the cron jobs in the due index of its
queue, and the sweep fires the others, in any number of containers at the same time. One transaction
stores the job of the tick and schedules the next tick, on the condition that the cron job is
unchanged. Each tick therefore fires at most once, and a crash leaves no partial change. If several
ticks are overdue, only one fires, and the next one is in the future.
"""

from __future__ import annotations

from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.cron.cron import Cron, CronRun, SkipReason
from ojs.domain.cron.definition import OverlapPolicy
from ojs.domain.errors import (
    BackendError,
    Duplicate,
    InvalidRequest,
    OjsError,
    QueueDraining,
    QueueFull,
    QueueNotFound,
)
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.records import record
from ojs.services.jobs.enqueue import JobEnqueuer, Pushed, StaleRead, TransactionExtras
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.operations.key_states import KeyStates
from ojs.store.crons.crons import CronStore
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace
from ojs.store.table.races import retry_on_race

_TRIES = 8
# Delay of a tick whose queue is full. If the next tick is due earlier, it replaces this tick.
ROOM_MS = 20_000
_MAX_ERROR = 200
_REASONS: tuple[tuple[type[OjsError], SkipReason], ...] = (
    (QueueFull, SkipReason.QUEUE_FULL),
    (Duplicate, SkipReason.UNIQUE_CONFLICT),
    (QueueDraining, SkipReason.QUEUE_DRAINING),
    (QueueNotFound, SkipReason.QUEUE_NOT_FOUND),
)


@record(frozen=True)
class _Previous:
    """The latest jobs of a cron job: the unfinished ones, and a discarded one."""

    running: tuple[Job, ...] = ()
    failed: Job | None = None

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(job.id for job in self.running)


class CronFiring:
    """Fires cron jobs."""

    def __init__(
        self,
        *,
        crons: CronStore,
        jobs: JobStore,
        enqueue: JobEnqueuer,
        transitions: TimeTransitions,
        makers: KeyStates,
        clock: Clock,
    ) -> None:
        self._crons = crons
        self._jobs = jobs
        self._enqueue = enqueue
        self._transitions = transitions
        self._makers = makers
        self._clock = clock

    def fire(self, name: str) -> Job | None:
        """Fire a due cron job, and return the enqueued job, if any. Safe to repeat.

        Raises:
            BackendError: The cron job is still due, or another container fires it.
        """

        def attempt() -> Job | None:
            cron = self._crons.get(name)
            now_ms = self._clock.now_ms()
            # The index entry is stale, or another container has fired the tick.
            if cron is None or cron.due_ms is None or cron.due_ms > now_ms:
                return None
            try:
                if cron.gap_ms is None:
                    return self._tick(cron, now_ms)
                self._pass_gap(cron, cron.gap_ms, now_ms)
            except StaleRead:
                pass
            raise LostRace([])

        busy = f"Concurrent requests changed the cron job '{name}'."
        return retry_on_race(attempt, tries=_TRIES, busy=busy)

    def _pass_gap(self, cron: Cron, gap_ms: int, now_ms: int) -> None:
        """Skip ticks whose local times don't exist, because the clocks moved forward."""
        found = cron.definition.next_after(gap_ms - 1, anchor_ms=gap_ms)
        skipped = [one for one in (found.skipped if found else ()) if one.at_ms == gap_ms]
        run = replace(
            CronRun.of(cron, now_ms, gap_ms),
            reason=SkipReason.DST,
            local=skipped[0].local if skipped else None,
            count=len(skipped),
        )
        # A tick at the instant of the change still fires.
        after = replace(cron, past_ms=gap_ms).after_gap(gap_ms)
        self._crons.advance(cron, after, run)

    def _tick(self, cron: Cron, now_ms: int) -> Job | None:
        tick_ms = cron.tick_ms or now_ms
        try:
            past_ms = max(tick_ms, now_ms)
            following = replace(cron, past_ms=past_ms).after(past_ms, anchor_ms=tick_ms)
            catchable_ms = self._catchable(cron, tick_ms, now_ms)
        except InvalidRequest as error:
            # The time zone data no longer contains the zone, or a validation rule is stricter now.
            self._skip(cron, cron.pause(), now_ms, tick_ms, SkipReason.REFUSED, error=error)
            return None
        if catchable_ms is None:
            self._skip(cron, following, now_ms, tick_ms, SkipReason.MISSED)
            return None
        if self._makers.revoked(cron.line):
            self._skip(cron, following.pause(), now_ms, catchable_ms, SkipReason.KEY_ENDED)
            return None
        previous = self._previous(cron)
        overlap = cron.definition.overlap
        if previous.failed is not None and cron.definition.pause_on_failure:
            reason, job = SkipReason.PAUSED_ON_FAILURE, previous.failed
            self._skip(cron, following.pause(), now_ms, catchable_ms, reason, job)
            return None
        if previous.running and overlap is OverlapPolicy.SKIP:
            reason, job = SkipReason.OVERLAP, previous.running[-1]
            self._skip(cron, following, now_ms, catchable_ms, reason, job)
            return None
        try:
            pushed = self._push(cron, following, previous, now_ms, catchable_ms)
        except BackendError:
            raise
        except OjsError as error:
            if isinstance(error, Duplicate) and _is_own(error, cron):
                raise StaleRead from None
            self._refused(cron, following, now_ms, catchable_ms, error)
            return None
        if pushed.deduplicated:
            reason = SkipReason.UNIQUE_CONFLICT
            self._skip(cron, following, now_ms, catchable_ms, reason, pushed.job)
            return None
        return pushed.job

    @staticmethod
    def _catchable(cron: Cron, tick_ms: int, now_ms: int) -> int | None:
        """Return the first overdue tick that can still fire, or None if all are too old."""
        window_ms = cron.definition.catchup_ms
        if window_ms is None or now_ms - tick_ms <= window_ms:
            return tick_ms
        found = cron.definition.next_after(now_ms - window_ms - 1, anchor_ms=tick_ms)
        return found.at_ms if found is not None and found.at_ms <= now_ms else None

    def _previous(self, cron: Cron) -> _Previous:
        """Return the latest jobs of a cron job, if its policies require them."""
        definition = cron.definition
        if definition.overlap is OverlapPolicy.ALLOW and not definition.pause_on_failure:
            return _Previous()
        records = self._jobs.read_records(cron.jobs)
        there = [self._transitions.apply(records[each]) for each in cron.jobs if each in records]
        jobs = [job for job in there if job is not None]
        failed = [
            job
            for job in jobs
            if job.state is State.DISCARDED and (job.discarded_ms or 0) > cron.enabled_ms
        ]
        running = tuple(job for job in jobs if not job.state.terminal)
        return _Previous(running, failed[-1] if failed else None)

    def _push(
        self, cron: Cron, following: Cron, previous: _Previous, now_ms: int, tick_ms: int
    ) -> Pushed:
        """Enqueue the job of a tick, and schedule the next tick. Raises as `JobEnqueuer.push`."""
        definition = cron.definition
        cancels = definition.overlap is OverlapPolicy.CANCEL_PREVIOUS
        job_id = cron.job_id()
        after = following.ran(job_id, () if cancels else previous.ids, now_ms)
        after, update = self._crons.replacing(cron, replace(after, full_ms=None))
        run = replace(
            CronRun.of(cron, now_ms, tick_ms),
            runs=after.runs,
            job_id=job_id,
            waiting=0 if cancels else len(previous.running),
        )
        return self._enqueue.push(
            definition.job_request(cron.name, tick_ms, job_id),
            producer=definition.producer,
            reaches=definition.reaches,
            alongside=TransactionExtras(
                [update, self._crons.logging(run, after)],
                cancels=previous.running if cancels else (),
                bypasses_unique=cancels,
            ),
        )

    def _refused(
        self, cron: Cron, following: Cron, now_ms: int, tick_ms: int, error: OjsError
    ) -> None:
        """Process a rejected push: skip the tick, or delay it if the queue is full."""
        kinds = (reason for kind, reason in _REASONS if isinstance(error, kind))
        reason = next(kinds, SkipReason.REFUSED)
        if not error.retryable:
            self._skip(cron, following, now_ms, tick_ms, reason, error=error)
            return
        again_ms = now_ms + ROOM_MS
        if following.due_ms is not None and following.due_ms <= again_ms:
            self._skip(cron, following, now_ms, tick_ms, reason, error=error)
            return
        waiting = replace(cron, due_ms=again_ms, full_ms=cron.tick_ms)
        # The run log has one entry per tick.
        told = cron.full_ms == cron.tick_ms
        run = None if told else self._skipped(cron, now_ms, tick_ms, reason, None, error)
        self._crons.advance(cron, waiting, run)

    def _skip(
        self,
        cron: Cron,
        after: Cron,
        now_ms: int,
        tick_ms: int,
        reason: SkipReason,
        job: Job | None = None,
        *,
        error: OjsError | None = None,
    ) -> None:
        """Skip a tick without a job. Raises LostRace."""
        run = self._skipped(cron, now_ms, tick_ms, reason, job, error)
        told = reason is SkipReason.QUEUE_FULL and cron.full_ms == cron.tick_ms
        after = replace(after, full_ms=None)
        self._crons.advance(cron, after, None if told else run)

    @staticmethod
    def _skipped(
        cron: Cron,
        now_ms: int,
        tick_ms: int,
        reason: SkipReason,
        job: Job | None,
        error: OjsError | None,
    ) -> CronRun:
        there = None if error is None else error.details.get("existing_job_id")
        return replace(
            CronRun.of(cron, now_ms, tick_ms),
            reason=reason,
            active_job_id=job.id if job is not None else there,
            error=None if error is None else error.message[:_MAX_ERROR],
        )


def _is_own(error: Duplicate, cron: Cron) -> bool:
    """Return whether the ID in use belongs to the job of this tick.

    The tick has then fired already.
    """
    return error.details.get("existing_job_id") == cron.job_id()
