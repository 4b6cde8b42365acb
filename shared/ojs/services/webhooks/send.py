"""Posts events to subscribers, and records failed attempts.

A message contains an event, or names a stored delivery and its turn. An event is stored when its
first attempt fails. From then on its entry in the index guarantees further attempts: a delayed
message makes one earlier, but may be lost.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aws_lambda_powertools import Logger

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.delivery.breaker import BreakerState
from ojs.domain.delivery.delivery import DisabledReason
from ojs.domain.errors import OjsError
from ojs.domain.webhooks import (
    SLOW_MS,
    HookDelivery,
    HookDisabled,
    HookOutcome,
    HookStatus,
    HookVerdict,
    Subscription,
)
from ojs.records import record
from ojs.services.for_each import THREADS, ForEach
from ojs.services.operations.key_states import KeyStates
from ojs.services.webhooks.parts import WebhookDependencies, make_message
from ojs.store.table.errors import LostRace
from ojs.store.table.races import retry_on_race, unless_lost
from ojs.store.webhooks.webhooks import MAX_SUCCESSES, SPARE_MS, WebhookStore

logger = Logger()

# How often (ms) a container adds its successes to the counts.
COUNT_MS = 10_000
_TRIAL_SPARE_MS = 60_000
_MAX_DELAY_MS = 900_000


@record(frozen=True)
class _Attempt:
    """A message, and whether its event is posted now.

    `stored` is None for the first attempt of an event.
    """

    at: int
    subscription: Subscription
    delivery: HookDelivery
    stored: HookDelivery | None
    posts: bool


class WebhookSender:
    """Processes messages of webhooks."""

    def __init__(
        self,
        *,
        webhooks: WebhookStore,
        parts: WebhookDependencies,
        makers: KeyStates,
        for_each: ForEach,
        clock: Clock,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Create the service. `chance` returns a number from 0 to 1, which varies pauses."""
        self._webhooks = webhooks
        self._parts = parts
        self._makers = makers
        self._for_each = for_each
        self._clock = clock
        self._chance = chance
        # By subscription: when its successes were counted (ms), their number since, and the latest.
        self._succeeded: BoundedMap[str, tuple[int, int, list[HookDelivery]]] = BoundedMap(1_000)

    def handle(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Post the events of messages at the same time. Safe to repeat.

        Returns:
            The indexes of the messages that must be redelivered.

        Raises:
            OjsError: A read failed. All messages must be redelivered.
        """
        found = [HookDelivery(each["delivery"], each.get("event", {})) for each in messages]
        named = [it.id for it, message in zip(found, messages, strict=True) if "turn" in message]
        stored = self._webhooks.read_deliveries(named) if named else {}
        subscriptions = self._webhooks.get_many(dict.fromkeys(each.subscription for each in found))
        subscriptions = {name: self._checked(it) for name, it in subscriptions.items()}
        attempts: list[_Attempt] = []
        failed: list[int] = []
        trials: dict[str, bool] = {}
        for at, (new, message) in enumerate(zip(found, messages, strict=True)):
            before = stored.get(new.id) if "turn" in message else None
            subscription = subscriptions.get(new.subscription)
            obsolete = "turn" in message and (
                before is None
                or before.status is not HookStatus.PENDING
                or before.turn != message["turn"]
            )
            if subscription is None or obsolete:
                continue
            now_ms = self._clock.now_ms()
            delivery = before or replace(new, created_ms=now_ms, updated_ms=now_ms)
            try:
                posts = self._may_post(subscription, trials)
            except OjsError as error:
                logger.warning("Webhook message returned", extra={"reason": str(error)})
                failed.append(at)
            else:
                attempts.append(_Attempt(at, subscription, delivery, before, posts))
        by_subscription: defaultdict[str, list[tuple[_Attempt, HookOutcome]]] = defaultdict(list)
        results = self._for_each(self._process, attempts)
        for attempt, (posted, failure) in zip(attempts, results, strict=True):
            if posted is not None:
                by_subscription[attempt.subscription.id].append((attempt, posted))
            if failure is not None:
                logger.warning("Recording an attempt failed", extra={"reason": str(failure)})
                failed.append(attempt.at)
        for mine in by_subscription.values():
            try:
                self._note(mine)
            except OjsError as error:
                # The attempts are recorded. The breaker learns of the next ones.
                logger.warning("Noting a webhook failed", extra={"reason": str(error)})
        return failed

    # --- before an attempt ------------------------------------------------------------------------

    def _checked(self, subscription: Subscription) -> Subscription:
        """Disable a subscription whose host is not allowed, or whose key is revoked."""
        if not subscription.active:
            return subscription
        reason = None
        if self._parts.allowed.refused(subscription.target) is DisabledReason.ENDPOINT_NOT_ALLOWED:
            reason = HookDisabled.ENDPOINT_NOT_ALLOWED
        elif self._makers.revoked(subscription.line):
            reason = HookDisabled.KEY_ENDED
        if reason is None:
            return subscription
        after = replace(subscription, disabled=reason, updated_ms=self._clock.now_ms())
        # Race: an operator, or another container. The next message disables it.
        with suppress(LostRace):
            self._webhooks.save(subscription, after, self._webhooks.read_directory())
        return after

    def _may_post(self, subscription: Subscription, trials: dict[str, bool]) -> bool:
        """Return whether an event is posted now.

        One message of a half-open breaker is posted, and all messages of a slow endpoint.

        Args:
            subscription: Subscription of the event.
            trials: By subscription, whether this batch has its trial.
        """
        now_ms, breaker = self._clock.now_ms(), subscription.breaker
        if not subscription.active or breaker.state(now_ms) is BreakerState.CLOSED:
            return subscription.active
        if subscription.id in trials:
            return trials[subscription.id] and subscription.slow
        trials[subscription.id] = False
        if breaker.may_try(now_ms):
            until_ms = now_ms + 1_000 * subscription.timeout_s + _TRIAL_SPARE_MS
            trying = replace(subscription, breaker=breaker.trying(until_ms))
            # Race: another container starts the trial, or the endpoint is healthy again.
            begun = unless_lost(lambda: self._webhooks.note(subscription, trying))
            trials[subscription.id] = begun is not None
        return trials[subscription.id]

    def _process(self, attempt: _Attempt) -> tuple[HookOutcome | None, OjsError | None]:
        """Post an event and record the outcome, or make sure that it is posted later, or dies.

        Return the outcome, and the error if it could not be stored.
        """
        posted = None
        try:
            if attempt.posts:
                posted = self._post(attempt)
                self._record(attempt, posted)
            else:
                self._set_aside(attempt)
        except OjsError as error:
            return posted, error
        return posted, None

    def _set_aside(self, attempt: _Attempt) -> None:
        now_ms, delivery = self._clock.now_ms(), attempt.delivery
        if not attempt.subscription.active:
            self._put(attempt.stored, delivery.given_up("The subscription is not active.", now_ms))
        elif attempt.stored is None:
            self._put(None, delivery.waiting(now_ms, now_ms))

    # --- after an attempt -------------------------------------------------------------------------

    def _post(self, attempt: _Attempt) -> HookOutcome:
        # Invocations are shared. An endpoint with a trial uses one of them.
        trial = attempt.subscription.breaker.until_ms is not None
        return self._parts.target.post(
            attempt.subscription, attempt.delivery, timeout_s=None if trial else SLOW_MS / 1_000
        )

    def _record(self, attempt: _Attempt, posted: HookOutcome) -> None:
        """Store the outcome of an attempt, and queue the next one. A first success stores nothing.

        The index entry is later than the delayed message, which then is the only one.
        """
        now_ms = self._clock.now_ms()
        after = attempt.delivery.attempted(posted, now_ms, self._chance())
        if after.status is HookStatus.DELIVERED:
            if attempt.stored is not None:
                self._put(attempt.stored, after)
        elif after.next_ms is None or after.next_ms - now_ms > _MAX_DELAY_MS:
            self._put(attempt.stored, after)
        elif self._put(attempt.stored, after, again_ms=after.next_ms + SPARE_MS):
            self._parts.queue.put(
                [make_message(after)], delay_s=max(1, -(-(after.next_ms - now_ms) // 1_000))
            )

    def _put(self, before: HookDelivery | None, after: HookDelivery, *, again_ms: int = 0) -> bool:
        """Store a delivery. Return false if another message of the same attempt did so."""
        try:
            self._webhooks.put(before, after, again_ms=again_ms)
        except LostRace:
            return False
        return True

    def _note(self, results: Sequence[tuple[_Attempt, HookOutcome]]) -> None:
        """Record what attempts show about the endpoint of a subscription.

        Successes of a healthy endpoint are only counted.
        """
        seen, now_ms = results[0][0].subscription, self._clock.now_ms()
        succeeded = [it.delivery.attempted(posted, now_ms, 0) for it, posted in results
                     if posted.verdict is HookVerdict.DELIVERED]  # fmt: skip
        at_ms, count, latest = self._succeeded.get(seen.id, (0, 0, []))
        count, latest = count + len(succeeded), [*succeeded, *latest][:MAX_SUCCESSES]
        self._succeeded.put(seen.id, (at_ms, count, latest))
        trial = seen.breaker.until_ms is not None
        if len(succeeded) < len(results) or seen.failing_ms is not None or trial:
            retry_on_race(
                lambda: self._note_once(seen.id, results),
                busy="Concurrent attempts changed this webhook.",
            )
        if succeeded and trial:
            # If this fails, the sweep sends them.
            due = self._webhooks.list_due(seen.id, now_ms=now_ms, limit=THREADS)
            if due:
                self._parts.queue.put([make_message(each) for each in due])
        if count and not 0 <= now_ms - at_ms < COUNT_MS:
            self._webhooks.add_successes(seen.id, count, latest)
            self._succeeded.put(seen.id, (now_ms, 0, []))

    def _note_once(self, name: str, results: Sequence[tuple[_Attempt, HookOutcome]]) -> None:
        before = self._webhooks.get(name)
        if before is None:
            return
        now_ms = self._clock.now_ms()
        after = before
        for attempt, posted in results:
            verdict = posted.verdict
            if verdict is HookVerdict.DELIVERED:
                after = after.with_success()
                continue
            after = after.after_failure(now_ms, posted.status, fault=posted.fault)
            if verdict is HookVerdict.GONE:
                after = replace(after, disabled=after.disabled or HookDisabled.GONE)
            if attempt.delivery.attempted(posted, now_ms, 0).status is HookStatus.DEAD:
                after = replace(after, dead=after.dead + 1, dead_id=attempt.delivery.id)
        slow = any(posted.took_ms >= SLOW_MS for _, posted in results)
        after = replace(after.with_attempts(now_ms, slow=slow), updated_ms=now_ms)
        if after.active == before.active:
            self._webhooks.note(before, after)
        else:
            self._webhooks.save(before, after, self._webhooks.read_directory())
