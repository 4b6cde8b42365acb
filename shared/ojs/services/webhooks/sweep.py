"""Sends the messages of webhook deliveries that are due: later attempts, and lost messages."""

from __future__ import annotations

from contextlib import suppress

from ojs.services.sweeps import GoOn, SweepReport, SweepRun, always, counting_failures
from ojs.services.webhooks.parts import HookQueue, make_message
from ojs.store.table.errors import LostRace
from ojs.store.webhooks.webhooks import WebhookStore

# Time (ms) after which the sweep sends a message again if no attempt was recorded.
_AGAIN_MS = 900_000
_PAGE = 100


class WebhookSweep:
    """Queues the deliveries that are due."""

    name = "webhooks"

    def __init__(self, *, webhooks: WebhookStore, queue: HookQueue) -> None:
        self._webhooks = webhooks
        self._queue = queue

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Queue the due deliveries of each subscription.

        Without subscriptions, makes one call. Deliveries of an endpoint with an open breaker, or
        with a trial, wait. If it is half open, one of them is queued for the trial.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of deliveries of each subscription.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The counts queued (deliveries), failed, and `more`.
        """
        run = SweepRun(now_ms, limit, go_on)
        ids = self._webhooks.read_directory(consistent=False).entries
        for subscription in self._webhooks.get_many(ids).values():
            if run.stop():
                break
            breaker = subscription.breaker
            if subscription.active and breaker.free_ms(now_ms) is not None:
                continue
            most = 1 if subscription.active and breaker.may_try(now_ms) else limit
            with counting_failures(run.counts, f"webhook {subscription.id}"):
                self._queue_due(subscription.id, most, run)
        return SweepReport(+run.counts, failures=run.counts.failures)

    def _queue_due(self, subscription: str, most: int, run: SweepRun) -> None:
        while most > 0 and run.go_on():
            page = min(most, _PAGE)
            due = self._webhooks.list_due(subscription, now_ms=run.now_ms, limit=page)
            refused = set(self._queue.put([make_message(each) for each in due]) if due else ())
            for at, each in enumerate(due):
                if at not in refused:
                    run.counts["queued"] += 1
                    # Race: an attempt is recorded in the meantime.
                    with suppress(LostRace):
                        self._webhooks.change_time(each, run.now_ms + _AGAIN_MS)
            most -= page
            if len(due) < page or refused:
                break
