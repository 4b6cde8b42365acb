"""A stored cron job, and its run log."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from enum import StrEnum
from typing import Any

from ojs.domain import times
from ojs.domain.cron.definition import CronDefinition
from ojs.domain.ids import derived_uuid7
from ojs.records import record

# Maximum number of recent jobs of a cron job that the overlap policy checks before the next one is
# enqueued.
MAX_JOBS = 5


class SkipReason(StrEnum):
    """The reason why a tick created no job: the reasons of ojs-cron, section 9.2, and others."""

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
    """A stored cron job. Times in milliseconds since the epoch.

    `tick_ms` is its next tick. `due_ms` is the time at which the server processes it. That time is
    later than the tick because of jitter or a full queue. It is earlier if the clocks first skip a
    local time of the expression (`gap_ms`). Both are None if it is paused or never fires again.
    """

    name: str
    definition: CronDefinition
    created_ms: int
    updated_ms: int
    enabled: bool = True
    # Time when the cron job was enabled. Jobs that were discarded earlier do not pause it.
    enabled_ms: int = 0
    tick_ms: int | None = None
    gap_ms: int | None = None
    due_ms: int | None = None
    # All ticks up to this time are processed. Prevents duplicates if the clocks of servers differ.
    past_ms: int = 0
    runs: int = 0
    last_ms: int | None = None
    # IDs of the most recent job and of earlier jobs that might not be in a final state.
    jobs: tuple[str, ...] = ()
    # The tick whose temporary rejection, for example by a full queue, is already in the run log.
    full_ms: int | None = None
    # Reference to the definition if it doesn't fit into the item, and the token of the last write.
    definition_ref: str | None = None
    op: str | None = None
    # IDs of the access key that changed the cron job most recently, and before it the keys from
    # which that key descends. Empty if the change was made without a key.
    line: tuple[str, ...] = ()

    @property
    def configuration(self) -> dict[str, Any]:
        """The request that registers the cron job like this."""
        it = self.definition
        optional = {
            "description": it.description,
            "starts_at": None if it.starts_ms is None else times.format_ms(it.starts_ms),
            "ends_at": None if it.ends_ms is None else times.format_ms(it.ends_ms),
            "catchup_window": it.catchup_ms and times.round_duration(it.catchup_ms),
            "jitter": it.jitter_ms and times.round_duration(it.jitter_ms),
            "pause_on_failure": it.pause_on_failure,
        }
        return {
            "name": self.name,
            "expression": it.expression,
            "timezone": it.timezone,
            "job_template": {"args": [], "meta": {}, "options": {}, **it.template},
            "overlap_policy": it.overlap,
            "enabled": self.enabled,
            **{name: value for name, value in optional.items() if value},
        }

    @property
    def last_job_id(self) -> str | None:
        """The ID of the cron job's most recent job."""
        return self.jobs[-1] if self.jobs else None

    def after(self, ms: int, *, anchor_ms: int) -> Cron:
        """Return the cron job with its first tick later than `ms`, or without a tick if it is
        paused.

        `anchor_ms` is the time of the previous tick, or of the registration.
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
        """Return the cron job after the clocks skipped local times of
        its expression at `gap_ms`.
        """
        if self.tick_ms != gap_ms:
            return self.after(gap_ms, anchor_ms=self.tick_ms or gap_ms)
        return replace(self, gap_ms=None, due_ms=gap_ms + self._jitter_ms(gap_ms))

    def _jitter_ms(self, tick_ms: int) -> int:
        """Return the delay of a tick in ms. The same name and tick always give the same delay."""
        digest = hashlib.blake2b(f"{self.name}|{tick_ms}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % (self.definition.jitter_ms + 1)

    def enable(self, now_ms: int) -> Cron:
        """Return the cron job as enabled from `now_ms` on."""
        fresh = replace(self, enabled=True, enabled_ms=now_ms)
        return fresh.after(now_ms, anchor_ms=now_ms)

    def pause(self) -> Cron:
        """Return the cron job as paused."""
        return replace(self, enabled=False).after(0, anchor_ms=0)

    def ran(self, job_id: str, running: tuple[str, ...], now_ms: int) -> Cron:
        """Return the cron job after it enqueued a job.

        Args:
            job_id: ID of the new job.
            running: IDs of earlier jobs that are not in a final state.
            now_ms: Current time in milliseconds since the epoch.
        """
        jobs = (*(each for each in running if each != job_id), job_id)[-MAX_JOBS:]
        return replace(self, runs=self.runs + 1, last_ms=now_ms, jobs=jobs)

    def job_id(self) -> str:
        """Return the job ID for the current tick.

        Each server derives the same ID. Clients can't predict it, because it depends on the write
        token.
        """
        tick_ms = self.tick_ms or 0
        return derived_uuid7(tick_ms, f"{self.name}|{tick_ms}|{self.op}")


@record(frozen=True)
class CronRun:
    """One entry of a cron job's run log: an enqueued job, or a tick without a job.

    `scheduled_ms` is the tick, or None for a manual trigger. `count` is the number of local times
    that one change of the clocks skipped, and `local` is the first of them.
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
    # The job that caused the skip of the tick, or None.
    active_job_id: str | None = None
    waiting: int = 0
    # Delay between the tick and its processing in ms.
    late_ms: int = 0
    local: str | None = None
    count: int = 0
    error: str | None = None

    @property
    def manual(self) -> bool:
        """Whether the run was triggered manually."""
        return self.scheduled_ms is None

    @property
    def tick_ms(self) -> int:
        """The time of the tick, or of the manual trigger."""
        return self.at_ms if self.scheduled_ms is None else self.scheduled_ms

    @classmethod
    def of(cls, cron: Cron, at_ms: int, scheduled_ms: int | None) -> CronRun:
        """Create an entry of the run log, without the result of the tick.

        Args:
            cron: Cron job.
            at_ms: Time at which the tick was processed, in milliseconds since the epoch.
            scheduled_ms: Time of the tick, or None for a manual trigger.
        """
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
