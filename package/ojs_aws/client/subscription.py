"""Subscriptions to events, blocking and on asyncio, and waiting for a job."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from ojs_aws.client import background
from ojs_aws.client.event import DERIVED, STATE_CHANGED, Event
from ojs_aws.client.job import Job
from ojs_aws.client.link import Ask, Link, Lost, Message, refused
from ojs_aws.client.operations import get_job
from ojs_aws.errors import (
    OjsError,
    ServerError,
    TooManyRequests,
    Unreachable,
    Unsupported,
    WaitTimeout,
    refusal,
)

logger = logging.getLogger("ojs_aws.events")

# After a reconnection, the client requests the events after the last one that it received, and
# drops those that it knows. It repeats the request after `_AGAIN_S`, because the event log has an
# event up to 12 seconds late.
_AGAIN_S = 15.0
_SETTLED_S = 5.0
# Numbers of events that are known as received, and that wait for the user.
_MOST_KNOWN = 20_000
_MOST_WAITING = 10_000
# Longest pauses in seconds between two reads of a job, with and without a connection.
_CONNECTED_S = 20.0
# Maximum time in seconds until the server sends events to a new subscriber.
_NOTICED_S = 2.5
_POLL_S = (0.25, 4.0)
# Time in seconds until a client asks again for the events of a server that doesn't send them.
_UNSUPPORTED_S = 600.0
# Statuses by the code of an error message. With any other code, the client connects again.
_STATUSES = {
    "not_found": 404, "queue_not_found": 404, "permission_denied": 403, "unauthenticated": 401,
    "unsupported": 422, "invalid_request": 400, "invalid_payload": 400, "too_many": 409,
}  # fmt: skip


class AsyncSubscription:
    """Events of one channel. Use it as an `async with` block and iterate over it.

    It reconnects when the connection is lost, requests the events that it missed, and drops
    duplicates. If the server deleted events, it yields an event `system.gap`.

    Attributes:
        state: State of the job when the subscription began, for a channel `job:{id}`.
    """

    ready = "subscribed"

    def __init__(
        self, ask: Ask, channel: str, types: Sequence[str] | None = None, *, detail: bool = False
    ) -> None:
        """Create a subscription. The clients have methods for it."""
        self._link = Link(ask, self)
        self.channel = channel
        self.state: str | None = None
        self._types = None if types is None else frozenset(types)
        self._detail = detail
        self._task: asyncio.Task[None] | None = None
        self._follower: asyncio.Task[None] | None = None
        self._begun = False
        self._waiting: deque[Event] = deque()
        self._dropped = 0
        self._arrived = asyncio.Event()
        # IDs of the events that were received, in order.
        self._known: dict[str, None] = {}
        # The event to resume after, and whether events may have been missed since.
        self._after: str | None = None
        self._missed = False
        self._settled_at = -math.inf

    # --- for users ---------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and wait until the server has confirmed the subscription.

        Raises:
            ApiError: The server rejected the subscription.
            Unreachable: The server is not reachable.
        """
        self.begin()
        await self._arrived.wait()
        self._raise_error()

    def begin(self) -> None:
        """Connect, without waiting. `get` raises the error of a rejected subscription."""
        self._task = asyncio.ensure_future(self._link.run())
        self._task.add_done_callback(self._ended)

    async def get(self, timeout_s: float | None = None) -> Event | None:
        """Wait for an event.

        Args:
            timeout_s: Time to wait in seconds. Default: no limit.

        Returns:
            The event. None after `timeout_s`, and if the subscription is closed.

        Raises:
            OjsError: The server rejects the subscription now.
        """
        if not self._waiting:
            self._raise_error()
            self._arrived.clear()
            if self._task is not None and not self._task.done():
                try:
                    await asyncio.wait_for(self._arrived.wait(), timeout_s)
                except asyncio.TimeoutError:
                    return None
            if not self._waiting:
                self._raise_error()
        return self._waiting.popleft() if self._waiting else None

    async def start(self, callback: Callable[[Event], Any]) -> AsyncSubscription:
        """Connect, and call a function with each event until `unsubscribe`.

        Args:
            callback: A function, or a coroutine function. Its errors are logged.

        Returns:
            The subscription.

        Raises:
            OjsError: The server rejected the subscription, or is not reachable.
        """
        await self.open()
        self._follower = asyncio.ensure_future(self._follow(callback))
        return self

    async def unsubscribe(self) -> None:
        """Close the connection. An iteration ends."""
        for task in (self._follower, self._task):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.wait([task])
        self._follower = None

    async def __aenter__(self) -> AsyncSubscription:  # noqa: PYI034 - Self is not in Python 3.10
        """Connect."""
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self.unsubscribe()

    def __aiter__(self) -> AsyncSubscription:
        """Return the subscription."""
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event."""
        while self._waiting or self.active:
            if (event := await self.get()) is not None:
                return event
        raise StopAsyncIteration

    @property
    def active(self) -> bool:
        """Whether the subscription is open. It can be without a connection for some time."""
        return self._task is not None and not self._task.done()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._link.connected

    # --- the connection ----------------------------------------------------------------------

    def greeting(self) -> Message:
        """Return the message that subscribes."""
        types = self._types
        sent = {STATE_CHANGED if each in DERIVED else each for each in types or ()}
        return {
            "action": "subscribe", "channel": self.channel, "batch": True,
            **({"event_types": sorted(sent)} if types else {}),
            **({"detail": True} if self._detail else {}),
        }  # fmt: skip

    async def heard(self, message: Message) -> None:
        """Process a message of the server."""
        kind = message.get("type")
        if kind == "subscribed":
            self.state = message.get("state")
            await self._subscribed(message.get("last_event_id"))
        elif kind == "event":
            self._receive_event(Event.of(message))
        elif kind == "events":
            for each in message.get("events") or ():
                self._receive_event(Event.of(each))
        elif kind == "error":
            self._reject(message)

    def lost(self, error: Exception) -> None:
        """Choose the event to resume after. Raises the error if a new connection can't help."""
        if not self._begun or refused(error):
            raise error if isinstance(error, OjsError) else Unreachable(str(error)) from error
        self._missed = True
        self._choose()

    def _choose(self) -> None:
        """Choose the event to resume after, unless an earlier one is still in use."""
        if time.monotonic() >= self._settled_at:
            self._after = next(reversed(self._known), self._after)

    async def _subscribed(self, last_id: str | None) -> None:
        if not self._begun:
            self._begun = True
            self._arrived.set()
            self._after = last_id
            if last_id is not None:
                # The server sends nothing in the first seconds. These events are in the log later.
                self._resumed()
        elif self._missed and self._after is None:
            self._show(self._gap())
        elif self._missed:
            await self._link.say(self._resumed())
        self._missed = False

    def _resumed(self) -> Message:
        """Return the request for missed events, and repeat it later."""
        message = {"action": "resume", "last_event_id": self._after}
        again_at = time.monotonic() + _AGAIN_S
        self._link.later = [(again_at, message)]
        self._settled_at = again_at + _SETTLED_S
        return message

    def _gap(self) -> Event:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return Event("system.gap", self.channel, None, now, {"channel": self.channel})

    def _receive_event(self, event: Event) -> None:
        """Show an event, unless it is a duplicate or of the connection."""
        if event.id in self._known or event.type == "server.shutdown":
            return
        # An event about dropped events has the ID of one of them.
        if event.id is not None and not event.type.startswith("system."):
            self._known[event.id] = None
            if len(self._known) > _MOST_KNOWN:
                del self._known[next(iter(self._known))]
        if event.type == "system.events_dropped":
            self._choose()
            self._resumed()
        types = self._types
        if types and event.type.startswith("job.") and event.type not in types:
            kinds = (kind for kind, states in DERIVED.items() if event.to in states)
            kind = next((kind for kind in kinds if kind in types), None)
            if kind is None:
                return
            event = replace(event, type=kind)
        self._show(event)

    def _show(self, event: Event) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            # The user is too slow, and must read the current state over HTTP.
            self._waiting.clear()
            self._waiting.append(self._gap())
        self._waiting.append(event)
        self._arrived.set()

    def _reject(self, message: Message) -> None:
        code = message.get("code")
        if code == "unknown_event_id":
            self._show(self._gap())
        elif code in _STATUSES:
            raise refusal(_STATUSES[code], message)
        else:
            raise Lost(f"{code}: {message.get('message')}")

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Retrieve the error, which `get` raises. Otherwise, asyncio logs it.
        if not task.cancelled():
            task.exception()
        self._arrived.set()

    @property
    def error(self) -> BaseException | None:
        """The error that ended the subscription, or None."""
        task = self._task
        ended = task is not None and task.done() and not task.cancelled()
        return task.exception() if ended and task is not None else None

    def _raise_error(self) -> None:
        if (error := self.error) is not None:
            raise error

    async def _follow(self, callback: Callable[[Event], Any]) -> None:
        async for event in self:
            try:
                outcome = callback(event)
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception:
                logger.exception("Callback failed: event %s", event.id)


class Subscription:
    """Events of one channel. Use it as a `with` block and iterate over it.

    It reconnects when the connection is lost, requests the events that it missed, and drops
    duplicates. If the server deleted events, it yields an event `system.gap`.
    """

    def __init__(self, subscription: AsyncSubscription) -> None:
        """Create a subscription. `Client.subscribe` returns one."""
        self._inner = subscription

    def open(self) -> None:
        """Connect, and wait until the server has confirmed the subscription.

        Raises:
            ApiError: The server rejected the subscription.
            Unreachable: The server is not reachable.
        """
        background.result(self._inner.open())

    def get(self, timeout_s: float | None = None) -> Event | None:
        """Wait for an event.

        Args:
            timeout_s: Time to wait in seconds. Default: no limit.

        Returns:
            The event. None after `timeout_s`, and if the subscription is closed.

        Raises:
            OjsError: The server rejects the subscription now.
        """
        return background.result(self._inner.get(timeout_s))

    def start(self, callback: Callable[[Event], Any]) -> Subscription:
        """Connect, and call a function with each event until `unsubscribe`.

        Args:
            callback: Called in a separate thread, with one event at a time. Its errors are logged.

        Returns:
            The subscription.

        Raises:
            OjsError: The server rejected the subscription, or is not reachable.
        """
        self.open()
        threading.Thread(target=self._follow, args=(callback,), daemon=True).start()
        return self

    def unsubscribe(self) -> None:
        """Close the connection. An iteration ends."""
        background.result(self._inner.unsubscribe())

    def _follow(self, callback: Callable[[Event], Any]) -> None:
        for event in self:
            try:
                callback(event)
            except Exception:
                logger.exception("Callback failed: event %s", event.id)

    def __enter__(self) -> Subscription:  # noqa: PYI034 - Self is not in Python 3.10
        """Connect."""
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self.unsubscribe()

    def __iter__(self) -> Subscription:
        """Return the subscription."""
        return self

    def __next__(self) -> Event:
        """Wait for the next event."""
        while (event := self.get()) is None:
            if not self._inner.active:
                raise StopIteration
        return event


async def waited(ask: Ask, job_id: str, timeout_s: float, polls: dict[str, float]) -> Job:
    """Wait until a job is in a final state. Events are hints: the job is read over HTTP.

    Args:
        ask: Sends a request to the server.
        job_id: ID of the job.
        timeout_s: Time to wait in seconds.
        polls: For a server that sends no events: when the client asks for them again.

    Returns:
        The job.

    Raises:
        WaitTimeout: The job is not in a final state after `timeout_s`.
        OjsError: The job can't be read.
    """
    until = time.monotonic() + timeout_s
    job: Job = await ask(get_job(job_id))
    subscription = AsyncSubscription(ask, f"job:{job_id}", [STATE_CHANGED])
    if time.monotonic() >= polls.get(STATE_CHANGED, 0.0):
        subscription.begin()
    pause_s, longest_s = _POLL_S
    connected_s = _NOTICED_S
    try:
        while not job.final:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise WaitTimeout(job)
            hinted_s = min(left_s, pause_s)
            if subscription.connected:
                hinted_s, connected_s = min(left_s, connected_s), _CONNECTED_S
            if subscription.active:
                with suppress(OjsError):
                    await subscription.get(hinted_s)
            else:
                await asyncio.sleep(hinted_s)
            pause_s = min(pause_s * 2, longest_s)
            with suppress(Unreachable, ServerError, TooManyRequests):
                job = await ask(get_job(job_id))
        return job
    finally:
        if isinstance(subscription.error, Unsupported):
            polls[STATE_CHANGED] = time.monotonic() + _UNSUPPORTED_S
        await subscription.unsubscribe()
