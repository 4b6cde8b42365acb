"""Claims jobs for a delivery and sends them to its target.

Dispatch doesn't wait for results. The function `outcomes` processes the result of each job and
then dispatches the next jobs, but only if the delivery was at its concurrency limit before.

Two rules make sure that no job waits while the delivery has a free permit:

1. An invocation that finds no free permit stops. The next release of a permit dispatches.
2. An invocation that releases a permit of a full delivery dispatches until the queue is empty or
   the delivery is full again. This includes permits that were released without a job.

If dispatch crashes after a claim, the lease expires and the job is retried. The attempt counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.delivery.breaker import BreakerState
from ojs.domain.delivery.delivery import (
    DEFAULT_TIMEOUT_MS,
    Delivery,
    DeliveryState,
    Disabled,
    DisabledReason,
)
from ojs.domain.delivery.outcome import Settled
from ojs.domain.delivery.push import Push, SendQueue, Target
from ojs.domain.errors import InvalidRequest, OjsError, TenantSuspended
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.records import record
from ojs.services.deliveries.parts import AllowedTargets
from ojs.services.deliveries.settle import OutcomeProcessor, SettledReport
from ojs.services.deliveries.wake import DeliveryWake
from ojs.services.jobs.fetch import DeliveryFetch, JobFetcher
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.operations.key_states import KeyStates
from ojs.store.deliveries.deliveries import DeliveryStore
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace
from ojs.store.table.races import unless_lost

# Maximum number of jobs per claim. If dispatch crashes before it sends them, their leases expire.
_AT_ONCE = 20
# Value of `room` for all permit shards of the delivery.
_ALL: Mapping[int, int] = {}


def _always() -> bool:
    return True


@record
class DispatchReport:
    """Number of jobs that one run sent, and of jobs whose outcomes were processed immediately."""

    pushed: int = 0
    settled: int = 0


@record(frozen=True)
class _DispatchRound:
    """Result of one claim and the sending of its jobs.

    `over` is true if the run must stop. `idle`: no job was claimed. `in_doubt`: jobs might still be
    available, so the run wakes the delivery. `trial`: the jobs were the trial of a half-open
    breaker.
    """

    delivery: Delivery | None
    over: bool
    idle: bool = False
    in_doubt: bool = False
    trial: bool = False


class DeliveryDispatcher:
    """Claims jobs for deliveries and sends them."""

    def __init__(
        self,
        *,
        deliveries: DeliveryStore,
        fetch: JobFetcher,
        jobs: JobStore,
        target: Callable[[Delivery], Target],
        sends: SendQueue | None,
        settle: OutcomeProcessor,
        transitions: TimeTransitions,
        wake: DeliveryWake,
        allowed: AllowedTargets,
        makers: KeyStates,
        clock: Clock,
    ) -> None:
        """Create the service. `target` returns the target of a delivery.

        `sends` receives the pushes that wait for their target. If None, dispatch sends them.
        """
        self._deliveries = deliveries
        self._jobs = jobs
        self._sends = sends
        self._fetch = fetch
        self._target = target
        self._settle = settle
        self._transitions = transitions
        self._wake = wake
        self._allowed = allowed
        self._makers = makers
        self._clock = clock

    def run(
        self,
        name: str,
        *,
        room: Mapping[int, int] = _ALL,
        go_on: Callable[[], bool] = _always,
    ) -> DispatchReport:
        """Send jobs of a delivery until its queues are empty or it has no free permit.

        Does nothing for a deleted, paused, or disabled delivery. During a backoff, arms a timer.
        If jobs can still be available at the end, sends a wake-up.

        Args:
            name: Name of the delivery.
            room: Free permits by permit shard, as last read. Limits the run to these shards.
                Default: all shards.
            go_on: Returns false if no time is left. The run then sends a wake-up and stops.

        Returns:
            The number of jobs that were sent and settled.

        Raises:
            OjsError: A read or write failed.
        """
        report, looked = DispatchReport(), False
        delivery = self._permitted(self._deliveries.get(name))
        wanted = min(_AT_ONCE, sum(room.values())) or _AT_ONCE
        while delivery is not None and self._may_push(delivery):
            if not go_on():
                self._wake.wake([name])
                break
            found = self._round(delivery, wanted, room, report, go_on)
            # Another run might have stopped because this run had the last permits for a short time.
            # Therefore, this run claims a second time before it stops.
            if found.over or (looked and found.idle):
                if found.in_doubt:
                    self._wake.wake([name])
                break
            delivery, wanted, looked = found.delivery, _AT_ONCE, found.idle
            # After a trial, the run uses all shards.
            room = _ALL if found.trial else room
        return report

    def settle(
        self, outcomes: Iterable[Settled], *, go_on: Callable[[], bool] = _always
    ) -> SettledReport:
        """Settle outcomes, and dispatch for deliveries that had no free permit before.

        Raises no errors: see `OutcomeProcessor.settle`.
        """
        report = self._settle.settle(outcomes)
        for name, room in report.room.items():
            try:
                self.run(name, room=room, go_on=go_on)
            except OjsError:
                # The outcomes are processed and must not be redelivered. The wake-up message starts
                # the dispatch.
                self._wake.wake([name])
        return report

    def send_one(
        self, name: str, job_id: str, token: str, *, go_on: Callable[[], bool] = _always
    ) -> bool:
        """Send a queued push, wait for its outcome, settle it, and dispatch the next job.

        Args:
            name: Name of the delivery.
            job_id: ID of the job.
            token: Lease token of the push.
            go_on: Returns false if no time is left for the next dispatch.

        Returns:
            Whether the push was sent. False if the job is not active with this token. Also false if
            the lease would expire before the target responds: the job returns to `available`.

        Raises:
            OjsError: A read or write failed, or the outcome could not be settled.
        """
        delivery = self._permitted(self._deliveries.get(name))
        job = self._jobs.read_record(job_id)
        if job is None or job.lease is None or job.state is not State.ACTIVE:
            return False
        if job.lease.token != token:
            return False
        timeout_ms = DEFAULT_TIMEOUT_MS if delivery is None else delivery.timeout_ms
        late = job.lease.until_ms < self._clock.now_ms() + timeout_ms
        if late or delivery is None or not self._may_push_on(delivery):
            self._transitions.give_back(job)
            return False
        (whole,) = self._jobs.with_checkpoints(self._jobs.with_contents([job]))
        if whole.content is None:
            self._transitions.end_without_content(job)
            return False
        push = Push.of(whole, name, timeout_ms=delivery.timeout_ms)
        (outcome,) = self._target(delivery).send([push], delivery=delivery, wait=True)
        if outcome is None:
            return True
        told = Settled(job_id, token, name, outcome)
        report = self.settle([told], go_on=go_on)
        if error := report.failed.get(told.push):
            raise error
        return True

    def _round(
        self,
        delivery: Delivery,
        wanted: int,
        room: Mapping[int, int],
        report: DispatchReport,
        go_on: Callable[[], bool],
    ) -> _DispatchRound:
        """Claim jobs once and send them."""
        trial = delivery.breaker.state(self._clock.now_ms()) is BreakerState.HALF_OPEN
        if trial:
            begun = self._begin_trial(delivery)
            if begun is None:
                return _DispatchRound(delivery, over=True)
            delivery, wanted = begun, 1
        fetch = DeliveryFetch(delivery, tuple(room))
        jobs = self._claim(fetch, wanted, go_on)
        seen = fetch.full or (len(jobs) < wanted and not fetch.left)
        over = seen and not fetch.freed
        if fetch.keys_wait and (fetch.freed or not fetch.full):
            self._wake.keys_wait(delivery.name, fetch.keys_wait)
        if not jobs:
            if trial:
                self._end_trial(delivery)
            # If only the permits of this run filled the delivery, this claim has released them in
            # the meantime.
            doubt = fetch.left and (fetch.freed or not fetch.full)
            return _DispatchRound(delivery, over=over or trial, idle=True, in_doubt=doubt)
        before = report.settled
        after, back = self._send(delivery, jobs, report)
        # Jobs with outcomes released permits. For jobs that were released without an attempt, a
        # wake-up message was sent.
        settled = report.settled > before
        return _DispatchRound(after, over=not settled and (over or trial or back), trial=trial)

    # --- whether a delivery can send --------------------------------------------------------------

    def _permitted(self, delivery: Delivery | None) -> Delivery | None:
        """Return the delivery if its target is allowed and its access key is valid.

        Otherwise disable it.
        """
        if delivery is None or delivery.disabled is not None or delivery.paused:
            return delivery
        reason = self._allowed.refused(delivery)
        message = f"The setting {'egress_hosts' if delivery.endpoint else 'push_functions'} "
        message += "doesn't allow the target."
        if reason is None and self._makers.revoked(delivery.line):
            reason, message = (
                DisabledReason.KEY_ENDED,
                f"The access key {delivery.line[-1]} is revoked.",
            )
        if reason is None:
            return delivery
        after = replace(delivery, disabled=Disabled(reason, self._clock.now_ms(), message))
        # Race: an operator, an outcome. The next dispatch disables it, and this one sends nothing.
        with suppress(LostRace):
            self._deliveries.note(delivery, after)
        return after

    def _may_push(self, delivery: Delivery) -> bool:
        """Return the delivery if it can send now. During a backoff, schedule a wake-up message."""
        now_ms = self._clock.now_ms()
        if delivery.state is not DeliveryState.ACTIVE:
            return False
        until_ms = max(delivery.backoff_until_ms or 0, delivery.breaker.free_ms(now_ms) or 0)
        if until_ms > now_ms:
            self._wake.schedule_wakeup([delivery.name], until_ms)
            return False
        return True

    def _claim(self, fetch: DeliveryFetch, count: int, go_on: Callable[[], bool]) -> Sequence[Job]:
        delivery = fetch.delivery
        # `InvalidRequest`: the delivery's pool has no queues.
        with suppress(InvalidRequest, TenantSuspended):
            return self._fetch.fetch(
                None if delivery.pool else delivery.queues,
                count,
                delivery.worker_id,
                delivery.lease_ms,
                go_on=go_on,
                pool=delivery.pool,
                delivery=fetch,
            )
        return ()

    def _begin_trial(self, delivery: Delivery) -> Delivery | None:
        """Start a trial. Returns the changed delivery, or None if another dispatch started one."""
        until_ms = self._clock.now_ms() + delivery.lease_ms
        trying = replace(delivery, breaker=delivery.breaker.trying(until_ms))
        # Race: another dispatch. The loser sends nothing, because a trial is one job.
        return unless_lost(lambda: self._deliveries.note(delivery, trying))

    def _end_trial(self, delivery: Delivery) -> None:
        """End a trial for which no job was claimed."""
        ended = replace(delivery, breaker=replace(delivery.breaker, trial_ms=None))
        # Race: an operator or an earlier outcome. The trial then expires.
        with suppress(LostRace):
            self._deliveries.note(delivery, ended)

    # --- sending --------------------------------------------------------------------------------

    def _send(
        self, delivery: Delivery, jobs: Sequence[Job], report: DispatchReport
    ) -> tuple[Delivery | None, bool]:
        """Send jobs and settle outcomes that are known immediately.

        Returns the changed delivery, and whether jobs were given back.
        """
        target, back = self._target(delivery), False
        pushes = [
            Push.of(job, delivery.name, timeout_ms=delivery.timeout_ms)
            for job in jobs
            if job.lease is not None
        ]
        after: Delivery | None = delivery
        for at, part in enumerate(parts := list(_parts(pushes, delivery))):
            if after is None or not self._may_push_on(after):
                # The delivery stopped. These jobs were not sent, and their attempts don't count.
                for push in (push for rest in parts[at:] for push in rest):
                    self._transitions.give_back(push.job)
                back = True
                break
            now, refused = self._left_to_senders(target, delivery, part)
            back = back or refused
            outcomes = target.send(now, delivery=delivery) if now else ()
            report.pushed += len(part)
            told = [
                Settled(push.job.id, push.token, delivery.name, outcome)
                for push, outcome in zip(now, outcomes, strict=True)
                if outcome is not None
            ]
            if told:
                settled = self._settle.settle(told)
                report.settled += len(told)
                after = settled.deliveries.get(delivery.name)
        return after, back

    def _left_to_senders(
        self, target: Target, delivery: Delivery, pushes: Sequence[Push]
    ) -> tuple[Sequence[Push], bool]:
        """Queue the pushes that must wait for the response of their target.

        Return the other pushes, and whether the queue rejected any. Rejected jobs are released.
        """
        if self._sends is None:
            return pushes, False
        waiting = [push for push in pushes if target.waits_for(push, delivery=delivery)]
        refused = self._sends.send(delivery.name, waiting) if waiting else ()
        for push in refused:
            self._transitions.give_back(push.job)
        ids = {push.delivery_id for push in waiting}
        return [push for push in pushes if push.delivery_id not in ids], bool(refused)

    def _may_push_on(self, delivery: Delivery) -> bool:
        """Return whether claimed jobs can still be sent. The job of a trial is allowed."""
        now_ms = self._clock.now_ms()
        if delivery.disabled is not None or delivery.paused:
            return False
        if (delivery.backoff_until_ms or 0) > now_ms:
            return False
        return delivery.breaker.state(now_ms) is not BreakerState.OPEN


def _parts(pushes: Sequence[Push], delivery: Delivery) -> Iterator[Sequence[Push]]:
    """Split pushes into the groups that are sent together: one event, or parallel requests."""
    size = delivery.batch_size if delivery.batch_size > 1 else _AT_ONCE
    for at in range(0, len(pushes), size):
        yield pushes[at : at + size]
