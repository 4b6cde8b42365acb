"""Creates, changes, lists, tests, and deletes webhook subscriptions, and shows their domain."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ojs.clock import Clock
from ojs.domain import times
from ojs.domain import webhooks as domain
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.errors import BAD_CURSOR, Conflict, InvalidRequest, NotFound, Unsupported
from ojs.domain.ids import IdSource
from ojs.domain.page import Page
from ojs.domain.webhooks import (
    HookDelivery,
    HookOutcome,
    HookStatus,
    Subscription,
    SubscriptionChange,
    SubscriptionRequest,
)
from ojs.records import record
from ojs.services.operations.key_states import KeyStates, check_time
from ojs.services.sweeps import GoOn, always
from ojs.services.webhooks.parts import WebhookDependencies, make_message
from ojs.store.table.errors import LostRace
from ojs.store.table.races import retry_on_race
from ojs.store.webhooks import webhooks as store
from ojs.store.webhooks.webhooks import HookSuccesses, WebhookDirectory, WebhookStore

if TYPE_CHECKING:
    from ojs.domain.edits import Edit

# The class below has a method with the name `list`.
_Seen = list["SubscriptionStatus"]
_Found = list[HookDelivery]
_BUSY = "Concurrent requests changed this webhook."
_SECRET_BYTES = 32
# Maximum time (s) to wait for the response to a test.
TEST_TIMEOUT_S = 20
# Maximum number of subscriptions, and of pages of deliveries, that one request reads.
_READS = 20


@record(frozen=True)
class SubscriptionStatus:
    """A subscription and its successes. `secret` is set when it was made or sent now."""

    subscription: Subscription
    successes: HookSuccesses = HookSuccesses()
    secret: str | None = None

    @property
    def last(self) -> tuple[int | None, int | None]:
        """The time (ms) and the status of the latest attempt. None without an attempt."""
        it, latest = self.subscription, self.successes.latest
        ok_ms = (latest[0].last_ms or 0) if latest else 0
        if ok_ms > (it.failed_ms or 0):
            return ok_ms, latest[0].last_status
        return it.failed_ms, it.failed_status if it.failed_ms is not None else None


class Webhooks:
    """Manages subscriptions."""

    def __init__(
        self,
        *,
        webhooks: WebhookStore,
        webhook_directory: WebhookDirectory,
        webhook_parts: WebhookDependencies | None,
        makers: KeyStates,
        clock: Clock,
        ids: IdSource,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Create the service. Without `webhook_parts`, it rejects new subscriptions."""
        self._webhooks = webhooks
        self._directory = webhook_directory
        self._parts = webhook_parts
        self._makers = makers
        self._clock = clock
        self._ids = ids
        self._random_bytes = random_bytes

    # --- subscriptions ----------------------------------------------------------------------------

    def create(self, body: Mapping[str, Any], caller: Principal = ANYBODY) -> SubscriptionStatus:
        """Create a subscription.

        Raises:
            InvalidRequest: A field is invalid.
            ValidationFailed: The endpoint is not allowed.
            Unsupported: The deployment doesn't support webhooks.
            Conflict: There are too many subscriptions.
        """
        given = domain.parse(SubscriptionRequest, body)
        now_ms = self._clock.now_ms()
        secret = given.secret or self._new_secret()
        empty = Subscription(f"sub_{self._random_bytes(8).hex()}", secrets=(secret,))
        line = self._makers.line(caller)
        wanted = replace(
            domain.apply_change(empty, given), line=line, created_ms=now_ms, updated_ms=now_ms
        )
        self._supported().allowed.check(wanted.target, named="url")

        def attempt() -> Subscription:
            if (made := self._webhooks.get(wanted.id)) is not None:
                return made
            directory = self._webhooks.read_directory()
            if len(directory.entries) >= domain.MAX_SUBSCRIPTIONS:
                most = domain.MAX_SUBSCRIPTIONS
                raise Conflict(f"The server has {most} webhooks, the maximum. Delete one first.")
            return self._save(None, wanted, directory)

        return SubscriptionStatus(retry_on_race(attempt, busy=_BUSY), secret=secret)

    def get(self, subscription_id: str) -> SubscriptionStatus:
        """Return a subscription. Raises NotFound."""
        return self._seen([self._there(subscription_id)])[0]

    def list(self, *, limit: int, cursor: str | None = None) -> Page[SubscriptionStatus]:
        """Return a page of subscriptions, ordered by ID. Raises InvalidRequest."""
        if cursor is not None and not domain.ID.fullmatch(cursor):
            raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
        all_ids = sorted(self._webhooks.read_directory().entries)
        ids = [each for each in all_ids if each > (cursor or "")]
        found = self._webhooks.get_many(ids[:limit])
        page = [found[each] for each in ids[:limit] if each in found]
        more = ids[limit - 1] if len(ids) > limit else None
        return Page(self._seen(page), more, len(all_ids))

    def change(
        self,
        subscription_id: str,
        body: Mapping[str, Any],
        caller: Principal = ANYBODY,
        edit: Edit | None = None,
    ) -> SubscriptionStatus:
        """Change the fields that a request sets.

        Raises NotFound, PreconditionFailed, and the errors of `create`.
        """
        given = domain.parse(SubscriptionChange, body)
        line = self._makers.line(caller)

        def change(before: Subscription) -> Subscription:
            after = domain.apply_change(before, given)
            if after.active:
                self._supported().allowed.check(after.target, named="url")
            return replace(after, line=line)

        return self._change(subscription_id, change, edit)

    def rotate(
        self, subscription_id: str, secret: str | None, caller: Principal = ANYBODY
    ) -> SubscriptionStatus:
        """Replace the signing secret. The one before signs as well, for a day. Raises NotFound."""
        made, line = secret or self._new_secret(), self._makers.line(caller)
        until_ms = self._clock.now_ms() + domain.OLD_SECRET_MS

        def change(before: Subscription) -> Subscription:
            if made in before.secrets:
                raise InvalidRequest("secret", "must be new. Send one that was not used before")
            secrets = (made, before.secrets[0])
            return replace(before, secrets=secrets, old_until_ms=until_ms, line=line)

        return replace(self._change(subscription_id, change), secret=made)

    def delete(self, subscription_id: str, edit: Edit | None = None) -> None:
        """Delete a subscription. The server stops its deliveries.

        Raises NotFound, PreconditionFailed.
        """
        tried = False

        def attempt() -> None:
            nonlocal tried
            before = self._webhooks.get(subscription_id)
            if before is None and tried:
                # Deleted by an earlier attempt without a response, or by another request.
                return
            tried = True
            before = before or self._there(subscription_id)
            if edit is not None:
                _note(edit, before, None)
            exact = edit is not None and edit.conditional
            self._webhooks.remove(before, self._webhooks.read_directory(), exact=exact)

        retry_on_race(attempt, busy=_BUSY)
        self._directory.forget()

    def pause_made(self, key_id: str, go_on: GoOn = always) -> int:
        """Pause the subscriptions that an access key or one of its descendants set.

        Returns how many it paused. Raises BackendUnavailable if the time is not sufficient.
        """
        paused = 0
        for each in self._webhooks.get_many(self._webhooks.read_directory().entries).values():
            if key_id in each.line and not each.paused:
                check_time(go_on)
                self._change(each.id, lambda before: replace(before, paused=True))
                paused += 1
        return paused

    def test(self, subscription_id: str) -> HookOutcome:
        """Post an event of the type `webhook.test`. Nothing is stored. Raises NotFound."""
        subscription = self._there(subscription_id)
        parts = self._supported()
        parts.allowed.check(subscription.target, named="url")
        now_ms = self._clock.now_ms()
        event = domain.make_test_event(
            subscription, f"evt_{self._ids.uuid7()}", times.format_ms(now_ms)
        )
        test = HookDelivery(domain.delivery_id(subscription.id, event), event)
        timeout_s = min(subscription.timeout_s, TEST_TIMEOUT_S)
        return parts.target.post(subscription, test, timeout_s=timeout_s)

    # --- deliveries -------------------------------------------------------------------------------

    def list_deliveries(
        self,
        *,
        subscription: str | None,
        status: HookStatus | None,
        limit: int,
        cursor: str | None,
    ) -> Page[HookDelivery]:
        """Return a page of deliveries, newest first, one subscription after the other.

        Successes at the first attempt are those among the latest of each subscription.

        Raises:
            NotFound: The subscription does not exist.
            InvalidRequest: The cursor is invalid.
        """
        at = domain.subscription_of(cursor) if cursor else None
        if cursor and (not at or (subscription and at != subscription)):
            raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
        if subscription is not None:
            self._there(subscription)
        ids = [subscription] if subscription else sorted(self._webhooks.read_directory().entries)
        if at:
            ids = [each for each in ids if each >= at]
        found: _Found = []
        reads = 0
        for name in ids:
            before = cursor if name == at else None
            while True:
                if len(found) >= limit or reads >= _READS:
                    # The next page starts before the last one read here, or with this subscription.
                    last = before or f"del_{name.removeprefix('sub_')}{'f' * 28}"
                    return Page(found, last)
                reads += 1
                page = self._page(name, limit=limit - len(found), before=before)
                found += [each for each in page.items if status in (None, each.status)]
                before = page.next_cursor
                if before is None:
                    break
        return Page(found)

    def _page(self, subscription: str, *, limit: int, before: str | None) -> Page[HookDelivery]:
        """Return a page of the stored deliveries and the latest successes of a subscription."""
        stored = self._webhooks.list_deliveries(subscription, limit=limit, before=before)
        known = self._webhooks.read_successes([subscription]).get(subscription, HookSuccesses())
        last = stored.next_cursor or ""
        merged = {it.id: it for it in known.latest if last < it.id < (before or "del_~")}
        merged |= {it.id: it for it in stored.items}
        ids = sorted(merged, reverse=True)
        more = ids[limit - 1] if len(ids) > limit else stored.next_cursor
        return Page([merged[each] for each in ids[:limit]], more)

    def get_delivery(self, delivery_id: str) -> HookDelivery:
        """Return a delivery. Raises NotFound."""
        if name := domain.subscription_of(delivery_id):
            if (stored := self._webhooks.read_delivery(delivery_id)) is not None:
                return stored
            known = self._webhooks.read_successes([name]).get(name, HookSuccesses())
            for each in known.latest:
                if each.id == delivery_id:
                    return each
        raise NotFound("delivery", delivery_id)

    def retry(self, delivery_id: str) -> HookDelivery:
        """Queue a dead delivery again, with all attempts.

        Raises:
            NotFound: The delivery or its subscription does not exist.
            Conflict: The delivery is not dead, or its subscription is not active.
        """
        before = self.get_delivery(delivery_id)
        queue = self._supported().queue
        if before.status is not HookStatus.DEAD:
            raise Conflict(
                f"Delivery '{delivery_id}' is {before.status}. Retry only dead deliveries.",
                details={"field": "status", "current_state": before.status.value},
            )
        if not self._there(before.subscription).active:
            raise Conflict("The subscription of the delivery is not active. Activate it first.")
        now_ms = self._clock.now_ms()
        after = replace(before.waiting(now_ms, now_ms), attempts=0, error="")
        try:
            self._webhooks.put(before, after, again_ms=now_ms + store.SPARE_MS)
        except LostRace:
            return self.get_delivery(delivery_id)
        # If this fails, the sweep sends the message.
        queue.put([make_message(after)])
        return after

    # --- helpers ----------------------------------------------------------------------------------

    def _supported(self) -> WebhookDependencies:
        if self._parts is None:
            raise Unsupported(
                "Webhooks are not supported by this deployment. Set webhooks=true. To read events, "
                "poll /ojs/v1/events."
            )
        return self._parts

    def _there(self, subscription_id: str) -> Subscription:
        found = self._webhooks.get(subscription_id)
        if found is None:
            raise NotFound("subscription", subscription_id)
        return found

    def _change(
        self,
        subscription_id: str,
        change: Callable[[Subscription], Subscription],
        edit: Edit | None = None,
    ) -> SubscriptionStatus:
        def attempt() -> Subscription:
            before = self._there(subscription_id)
            after = replace(change(before), updated_ms=self._clock.now_ms())
            if edit is not None:
                _note(edit, before, after)
                edit.tag = after.etag
            return self._save(before, after, self._webhooks.read_directory())

        return self._seen([retry_on_race(attempt, busy=_BUSY)])[0]

    def _save(
        self, before: Subscription | None, after: Subscription, directory: store.HookDirectory
    ) -> Subscription:
        entry = domain.SubscriptionFilter.of(after)
        size = len(directory.with_entry(after.id, entry).text().encode())
        if size > store.MAX_DIRECTORY_BYTES:
            raise Conflict("All webhooks together have too many filters. Use fewer.")
        stored = self._webhooks.save(before, after, directory)
        self._directory.forget()
        return stored

    def _seen(self, subscriptions: Sequence[Subscription]) -> _Seen:
        counted = self._webhooks.read_successes(each.id for each in subscriptions)
        return [SubscriptionStatus(it, counted.get(it.id, HookSuccesses())) for it in subscriptions]

    def _new_secret(self) -> str:
        return f"whsec_{base64.b64encode(self._random_bytes(_SECRET_BYTES)).decode()}"


def _note(edit: Edit, before: Subscription, after: Subscription | None) -> None:
    """Check the precondition of a change and record it. Raises PreconditionFailed."""
    seen, wanted = before.configuration, None if after is None else after.configuration
    same = after is not None and seen == wanted and before.secrets == after.secrets
    edit.change("webhook", before.id, seen, wanted, tag=before.etag, same=same)
