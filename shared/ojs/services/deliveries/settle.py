"""Settles the outcomes of pushes: acks or nacks the job, and updates the state of the target.

An outcome is valid while its lease token is. A repeated or late outcome changes nothing. If a
target throttles, is deleted, or doesn't respond, the delivery is updated once for all outcomes that
arrive together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace

from ojs.clock import Clock
from ojs.domain.delivery.breaker import BreakerState
from ojs.domain.delivery.delivery import (
    Delivery,
    DeliveryCounts,
    Disabled,
    DisabledReason,
    worker_of,
)
from ojs.domain.delivery.outcome import Outcome, Settled, Verdict, excused
from ojs.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    OjsError,
    PayloadTooLarge,
)
from ojs.domain.job.durable import TooManySteps
from ojs.domain.job.job import Job
from ojs.records import record
from ojs.services.jobs.finish import JobFinisher
from ojs.services.permits.lifecycle import Permits
from ojs.store.deliveries.deliveries import DeliveryStore
from ojs.store.table.races import retry_on_race

# Outcomes after which the job returns to `available` and the attempt doesn't count.
_NO_ATTEMPT = frozenset({Verdict.THROTTLED, Verdict.GONE, Verdict.FORBIDDEN})
_DISABLING = {Verdict.GONE: DisabledReason.GONE, Verdict.FORBIDDEN: DisabledReason.FORBIDDEN}
# Outcomes of a healthy target, whether or not the job completed.
_WORKING = frozenset({Verdict.COMPLETED, Verdict.FAILED, Verdict.REFUSED, Verdict.SUSPENDED})
# First and maximum backoff (ms) of a target that throttles without a Retry-After.
FIRST_BACKOFF_MS, MOST_BACKOFF_MS = 1_000, 60_000
_MESSAGE = 300


@record
class SettledReport:
    """Result of settling outcomes.

    Attributes:
        settled: Number of processed outcomes by delivery, including the stale ones.
        stale: Number of outcomes that arrived too late.
        deliveries: The updated deliveries by name.
        room: Deliveries that must dispatch now, with the free permits of each shard that had none.
            An empty mapping means all shards.
        failed: Errors of outcomes that could not be settled, by push.
    """

    settled: Counter[str] = field(default_factory=Counter)
    stale: int = 0
    deliveries: dict[str, Delivery] = field(default_factory=dict)
    room: dict[str, Mapping[int, int]] = field(default_factory=dict)
    failed: dict[tuple[str, str], OjsError] = field(default_factory=dict)


class OutcomeProcessor:
    """Settles outcomes."""

    def __init__(
        self, *, deliveries: DeliveryStore, finish: JobFinisher, permits: Permits, clock: Clock
    ) -> None:
        self._deliveries = deliveries
        self._finish = finish
        self._permits = permits
        self._clock = clock

    def settle(self, outcomes: Iterable[Settled]) -> SettledReport:
        """Settle outcomes and update their deliveries.

        Raises no errors. Outcomes that could not be stored are in `failed`, so that the caller can
        retry them.
        """
        report = SettledReport()
        by_delivery: defaultdict[str, list[Settled]] = defaultdict(list)
        for one in outcomes:
            by_delivery[one.delivery].append(one)
        for name, those in by_delivery.items():
            # If all outcomes are successes, an eventually consistent read is enough: a later write
            # is conditional on the current record. The read can miss a recent fault. The success
            # then doesn't reset the fault count.
            exact = any(one.outcome.verdict is not Verdict.COMPLETED for one in those)
            try:
                delivery = self._deliveries.get(name, consistent=exact)
            except OjsError as error:
                report.failed |= {one.push: error for one in those}
                continue
            stopped: list[Job] = []
            told = [one.outcome for one in those if self._one(delivery, one, report, stopped)]
            released = self._permits.release_stopped(stopped, now_ms=self._clock.now_ms())
            if delivery is None:
                continue
            after = report.deliveries[name] = self._note(delivery, told)
            # An earlier process might have processed an outcome without a dispatch. A delivery that
            # changed can send more jobs than before, or must schedule a wake-up message.
            unknown = len(stopped) < report.settled[name] or after != delivery
            if unknown or released.others:
                report.room[name] = {}
            elif released.room:
                report.room[name] = released.room
        return report

    def _one(
        self, delivery: Delivery | None, one: Settled, report: SettledReport, stopped: list[Job]
    ) -> bool:
        """Settle one outcome. Returns false if it is stale or must be retried."""
        try:
            self._end(delivery, one, stopped)
        except (Conflict, NotFound):
            # The job changed state, or this outcome was settled before, possibly by a process that
            # crashed before it dispatched the next job.
            report.settled[one.delivery] += 1
            report.stale += 1
            return False
        except OjsError as error:
            report.failed[one.push] = error
            return False
        report.settled[one.delivery] += 1
        return True

    def _end(self, delivery: Delivery | None, one: Settled, stopped: list[Job]) -> None:
        """Ack or nack the job and add it to `stopped`. The job still has its permits."""
        outcome = one.outcome
        if outcome.verdict is Verdict.COMPLETED:
            try:
                self._finish.ack(
                    one.job_id,
                    worker_id=worker_of(one.delivery),
                    lease_token=one.lease_token,
                    result=outcome.result,
                    stopped=stopped,
                )
            except PayloadTooLarge as large:
                # A retry would return the same result.
                said = {"code": "result_too_large", "message": large.message, "retryable": False}
                self._nack(one, said, stopped)
            return
        if outcome.verdict is Verdict.SUSPENDED:
            try:
                self._nack(one, None, stopped, suspend=outcome.suspend)
            except (InvalidRequest, TooManySteps) as refused:
                said = {"code": "invalid_response", "message": str(refused)}
                self._nack(one, said, stopped)
            return
        # An open breaker sends nothing, so this push was sent before it opened. Its fault is caused
        # by the target, not by the job.
        broken = outcome.verdict is Verdict.FAULT and delivery is not None and self._open(delivery)
        if outcome.verdict in _NO_ATTEMPT or broken:
            self._nack(one, None, stopped)
            return
        told = dict(outcome.error or {"code": "handler_error", "message": "The target failed."})
        if outcome.verdict is Verdict.REFUSED:
            told["retryable"] = False
        try:
            self._nack(one, told, stopped)
        except InvalidRequest as invalid:
            said = {"code": "invalid_response", "message": str(invalid)}
            self._nack(one, said, stopped)

    def _open(self, delivery: Delivery) -> bool:
        return delivery.breaker.state(self._clock.now_ms()) is BreakerState.OPEN

    def _nack(
        self,
        one: Settled,
        error: Mapping[str, object] | None,
        stopped: list[Job],
        suspend: object = None,
    ) -> None:
        self._finish.nack(
            one.job_id,
            error=error,
            worker_id=worker_of(one.delivery),
            lease_token=one.lease_token,
            requeue=error is None and suspend is None,
            suspend=suspend,
            stopped=stopped,
        )

    # --- state of the target -----------------------------------------------------------------

    def _note(self, delivery: Delivery, outcomes: Sequence[Outcome]) -> Delivery:
        """Update the delivery. Writes only if the outcomes change it."""
        read: Delivery | None = delivery

        def attempt() -> Delivery:
            nonlocal read
            before = read or self._deliveries.get(delivery.name)
            read = None
            if before is None or before.created_ms != delivery.created_ms:
                return delivery
            after = after_outcomes(before, outcomes, self._clock.now_ms())
            return before if after == before else self._deliveries.note(before, after)

        # The jobs are settled. If this write fails, the next outcomes update the delivery.
        with suppress(OjsError):
            return retry_on_race(attempt, busy="Concurrent requests changed this delivery.")
        return delivery


def after_outcomes(delivery: Delivery, outcomes: Sequence[Outcome], now_ms: int) -> Delivery:
    """Apply outcomes to a delivery.

    Args:
        delivery: The delivery, as stored.
        outcomes: The outcomes, in order.
        now_ms: Current time in milliseconds since the epoch.

    Returns:
        The delivery to store. An equal one if nothing changes.
    """
    after = delivery
    told = [excused(outcome, delivery, now_ms=now_ms) for outcome in outcomes]
    counts = Counter(outcome.verdict for outcome in told)
    for outcome in told:
        after = _after(after, outcome, now_ms)
    if counts[Verdict.FAULT] or counts[Verdict.THROTTLED]:
        of = after.counts
        after = replace(
            after,
            counts=DeliveryCounts(
                faults=of.faults + counts[Verdict.FAULT],
                throttled=of.throttled + counts[Verdict.THROTTLED],
            ),
        )
    return after


def _after(delivery: Delivery, outcome: Outcome, now_ms: int) -> Delivery:
    verdict = outcome.verdict
    if verdict in _WORKING:
        breaker = delivery.breaker
        if breaker.state(now_ms) is not BreakerState.OPEN:
            # Only a trial closes an open breaker. This push was sent before it opened.
            breaker = breaker.with_success()
        return replace(delivery, breaker=breaker, throttles=0, backoff_until_ms=None)
    if verdict is Verdict.FAULT:
        return replace(delivery, breaker=delivery.breaker.after_fault(now_ms))
    breaker = replace(delivery.breaker, trial_ms=None)
    if verdict is Verdict.THROTTLED:
        until_ms = now_ms + (
            outcome.retry_after_ms
            or min(MOST_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** min(delivery.throttles, 10))
        )
        known_ms = delivery.backoff_until_ms or 0
        if known_ms > now_ms and not outcome.retry_after_ms:
            # The backoff is already set: pushes that were sent together are throttled together.
            return replace(delivery, breaker=breaker)
        return replace(
            delivery,
            breaker=breaker,
            throttles=delivery.throttles + 1,
            backoff_until_ms=max(until_ms, known_ms),
        )
    if delivery.disabled is not None:
        return delivery
    message = str((outcome.error or {}).get("message", ""))[:_MESSAGE]
    disabled = Disabled(_DISABLING[verdict], now_ms, message)
    return replace(delivery, breaker=breaker, disabled=disabled)
