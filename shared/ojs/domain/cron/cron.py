"""A cron job as it is kept, and what became of its ticks."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from enum import StrEnum

from ojs.domain.cron.definition import CronDefinition
from ojs.domain.ids import derived_uuid7
from ojs.records import record

# Jobs that are looked at before the next one is pushed.
MAX_JOBS = 5


class SkipReason(StrEnum):
    """Why a tick has no job (ojs-cron, section 9.2, and what it does not name)."""

    OVERLAP = "overlap_skip"
    DST = "dst_skip"
    UNIQUE_CONFLICT = "unique_conflict"
    QUEUE_FULL = "queue_full"
    QUEUE_DRAINING = "queue_draining"
    QUEUE_NOT_FOUND = "queue_not_found"
    MISSED = "missed"
    PAUSED_ON_FAILURE = "paused_on_failure"
    KEY_ENDED = "key_ended"
    REFUSED = "refused"


@record(frozen=True)
class Cron:
    """A cron job. Times in ms since the epoch.

    `tick_ms` is the next time at which it is to fire, `due_ms` when that is looked at: later by
    the jitter, or while its queue is full, and earlier if the clocks jump over a local time before
    it (`gap_ms`). Both are None while it is paused, and when it fires no more.
    """

    name: str
    definition: CronDefinition
    created_ms: int
    updated_ms: int
    enabled: bool = True
    # Since when it is enabled: jobs that failed before do not pause it.
    enabled_ms: int = 0
    tick_ms: int | None = None
    gap_ms: int | None = None
    due_ms: int | None = None
    # Until when all ticks were dealt with: clocks differ, and none may come twice.
    past_ms: int = 0
    runs: int = 0
    last_ms: int | None = None
    # The latest jobs, the last one and those before it that may not be over.
    jobs: tuple[str, ...] = ()
    # The tick for which it was told that the queue is full.
    full_ms: int | None = None
    # Where its definition is, if that does not fit its item; and the token of its last write.
    definition_ref: str | None = None
    op: str | None = None
    # Ids of the keys that the key descends from which set it last, and of that key; empty if it was
    # set without a key.
    line: tuple[str, ...] = ()

    @property
    def last_job_id(self) -> str | None:
        """The id of its latest job."""
        return self.jobs[-1] if self.jobs else None

    def after(self, ms: int, *, anchor_ms: int) -> Cron:
        """The same, waiting for the first tick later than `ms`; for none if it is paused.

        `anchor_ms` is the last tick, or the registration.
        """
        if not self.enabled:
            return replace(self, tick_ms=None, gap_ms=None, due_ms=None)
        tick = self.definition.next_after(max(ms, self.past_ms), anchor_ms=anchor_ms)
        if tick is None:
            return replace(self, tick_ms=None, gap_ms=None, due_ms=None)
        gap_ms = tick.skipped[0].at_ms if tick.skipped else None
        due_ms = tick.at_ms + self._jitter_ms(tick.at_ms) if gap_ms is None else gap_ms
        return replace(self, tick_ms=tick.at_ms, gap_ms=gap_ms, due_ms=due_ms)

    def after_gap(self, gap_ms: int) -> Cron:
        """The same after the clocks have jumped over local times that it names."""
        if self.tick_ms != gap_ms:
            return self.after(gap_ms, anchor_ms=self.tick_ms or gap_ms)
        return replace(self, gap_ms=None, due_ms=gap_ms + self._jitter_ms(gap_ms))

    def _jitter_ms(self, tick_ms: int) -> int:
        """How long the firing of a tick is put off: the same whoever computes it."""
        digest = hashlib.blake2b(f"{self.name}|{tick_ms}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % (self.definition.jitter_ms + 1)

    def enable(self, now_ms: int) -> Cron:
        """The same, firing from now on."""
        fresh = replace(self, enabled=True, enabled_ms=now_ms)
        return fresh.after(now_ms, anchor_ms=now_ms)

    def pause(self) -> Cron:
        """The same, not firing."""
        return replace(self, enabled=False).after(0, anchor_ms=0)

    def ran(self, job_id: str, running: tuple[str, ...], now_ms: int) -> Cron:
        """The same after a job was pushed, while these others are not over."""
        jobs = (*(each for each in running if each != job_id), job_id)[-MAX_JOBS:]
        return replace(self, runs=self.runs + 1, last_ms=now_ms, jobs=jobs)

    def job_id(self) -> str:
        """The id of the job of the present tick: the same whoever computes it, and as the write
        token is part of it, nobody else can know it.
        """
        tick_ms = self.tick_ms or 0
        return derived_uuid7(tick_ms, f"{self.name}|{tick_ms}|{self.op}")


@record(frozen=True)
class CronRun:
    """One entry of a cron job's run log: a job that was pushed, or a tick without one.

    `scheduled_ms` is the tick; None for a firing by hand. `count` are the local times that one
    change of the clocks skipped, `local` is the first of them.
    """

    name: str
    at_ms: int
    expression: str
    timezone: str
    job_type: str
    queue: str
    scheduled_ms: int | None = None
    runs: int = 0
    job_id: str | None = None
    reason: SkipReason | None = None
    # The job in the way of the tick's own.
    active_job_id: str | None = None
    waiting: int = 0
    # How long after it was due it was dealt with, in ms.
    late_ms: int = 0
    local: str | None = None
    count: int = 0
    error: str | None = None

    @property
    def manual(self) -> bool:
        """Whether somebody triggered it."""
        return self.scheduled_ms is None

    @property
    def tick_ms(self) -> int:
        """The tick, or when somebody triggered it."""
        return self.at_ms if self.scheduled_ms is None else self.scheduled_ms

    @classmethod
    def of(cls, cron: Cron, at_ms: int, scheduled_ms: int | None) -> CronRun:
        """An entry about a cron job; what became of the tick is to be added."""
        definition = cron.definition
        return cls(
            name=cron.name,
            at_ms=at_ms,
            scheduled_ms=scheduled_ms,
            expression=definition.expression,
            timezone=definition.timezone,
            job_type=str(definition.template["type"]),
            queue=definition.queue,
            runs=cron.runs,
            late_ms=0 if scheduled_ms is None else max(0, at_ms - (cron.due_ms or at_ms)),
        )
