"""A queue's own limits on what is handed out: concurrency and rate (queue-config seed, 6.2)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from ojs.clock import Clock
from ojs.domain.errors import OjsError
from ojs.domain.queue.queue import Queue
from ojs.domain.rate_limit.limiter import CONCURRENCY, RATE
from ojs.store.permits.counters import Gates, PermitGrant
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.table import keys

_COUNTS = {CONCURRENCY: keys.SLOTS, RATE: keys.RATE}


@dataclass
class QueueLimitUse:
    """What a queue's limits let one fetch take."""

    queue: Queue
    granted: int = 0
    used: int = 0
    closed: bool = False
    # By strategy: what was granted last, and the job that had to wait, if one had.
    grants: dict[str, PermitGrant] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    # Jobs that were there to be claimed, as far as the fetch looked.
    waiting: int = 0
    started: str | None = None


class QueueLimits:
    """Grants jobs of limited queues to fetches; unlimited queues cost nothing here."""

    def __init__(self, gates: Gates, edges: ThrottleStates, clock: Clock) -> None:
        self._gates = gates
        self._edges = edges
        self._clock = clock

    def allow(
        self,
        quotas: dict[str, QueueLimitUse],
        queue: Queue,
        job_id: str,
        *,
        wanted: int,
        waiting: int,
    ) -> bool:
        """Whether a fetch may claim this job of a queue, and `wanted` in all if it gets so far, of
        `waiting` that are there to be claimed.

        Asks for as many once; what is not used is given back by `settle`.
        """
        if not queue.slotted and queue.config.rate_limit is None:
            return True
        quota = quotas.setdefault(queue.name, QueueLimitUse(queue))
        if quota.used < quota.granted:
            return True
        if quota.closed:
            return False
        more = self._grant(quota, job_id, wanted)
        quota.granted += more
        quota.closed = more < wanted
        quota.waiting = max(0, waiting - more)
        return more > 0

    @staticmethod
    def use(quotas: dict[str, QueueLimitUse], queue: Queue, job_id: str) -> None:
        """A job is about to be claimed with what was granted for it.

        From now on it is the claim's: if nobody knows how that ended, it is not given back.
        """
        if queue.name in quotas:
            quotas[queue.name].used += 1
            quotas[queue.name].started = job_id

    @staticmethod
    def lost(quotas: dict[str, QueueLimitUse], queue: Queue) -> None:
        """The job was not claimed after all."""
        if queue.name in quotas:
            quotas[queue.name].used -= 1

    def settle(self, quotas: dict[str, QueueLimitUse]) -> None:
        """Give back what was granted and not used, and tell of limits that hold jobs back now, or
        do so no more.
        """
        for quota in quotas.values():
            # Nothing of it is worth losing the jobs that were claimed.
            with suppress(OjsError):
                self._tell(quota)
            if unused := quota.granted - quota.used:
                self._give_back(quota.queue, slots=unused, passes=unused)

    def _tell(self, quota: QueueLimitUse) -> None:
        now_ms = self._clock.now_ms()
        for strategy, grant in quota.grants.items():
            limiter = LimitName.of_queue(quota.queue.name, _COUNTS[strategy])
            stopped = quota.stopped.get(strategy)
            if stopped is not None and grant.full and grant.held_ms is None:
                self._edges.begin(
                    limiter,
                    strategy=strategy,
                    limit=grant.limit,
                    current=grant.current,
                    job_id=stopped,
                    now_ms=now_ms,
                    unless=grant.seen,
                )
            # Of a limit that is reached again, and for which others wait, it is no news.
            still = stopped is not None or (grant.full and quota.waiting > 0)
            if grant.held_ms is not None and quota.started is not None and not still:
                self._edges.end(
                    limiter, job_id=quota.started, since_ms=grant.held_ms, now_ms=now_ms
                )

    def _grant(self, quota: QueueLimitUse, job_id: str, wanted: int) -> int:
        queue, config, now_ms = quota.queue, quota.queue.config, self._clock.now_ms()
        slots = wanted
        if queue.slotted:
            grant = self._gates.take_slots(
                queue.name,
                count=wanted,
                limit=config.concurrency,
                version=queue.version,
                now_ms=now_ms,
            )
            slots = grant.count
            _note(quota, CONCURRENCY, grant, job_id, missing=wanted - slots)
        if config.rate_limit is None or slots == 0:
            return slots
        grant = self._gates.pass_rate(
            queue.name,
            count=slots,
            limit=config.rate_limit,
            period_ms=config.rate_period_ms,
            now_ms=now_ms,
        )
        passes = grant.count
        _note(quota, RATE, grant, job_id, missing=slots - passes)
        if passes < slots:
            self._give_back(queue, slots=slots - passes, passes=0)
        return passes

    def _give_back(self, queue: Queue, *, slots: int, passes: int) -> None:
        config, now_ms = queue.config, self._clock.now_ms()
        if slots and queue.slotted:
            self._gates.free_slots(queue.name, count=slots, now_ms=now_ms)
        if passes and config.rate_limit is not None:
            # Should it fail, they count until their period is over.
            with suppress(OjsError):
                self._gates.pass_rate(
                    queue.name,
                    count=-passes,
                    limit=config.rate_limit,
                    period_ms=config.rate_period_ms,
                    now_ms=now_ms,
                )


def _note(
    quota: QueueLimitUse, strategy: str, grant: PermitGrant, job_id: str, *, missing: int
) -> None:
    quota.grants[strategy] = grant
    if missing:
        quota.stopped[strategy] = job_id
