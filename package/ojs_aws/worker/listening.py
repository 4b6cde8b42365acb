"""Tells a worker when to fetch: by messages of the server, and by `next_ms` of the last fetch.

A message is a hint. Without a connection, or without `next_ms`, the worker polls.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ojs_aws.client import background
from ojs_aws.client.call import Answer, Call
from ojs_aws.client.job import Job
from ojs_aws.worker.settings import Settings

if TYPE_CHECKING:
    from ojs_aws.client.link import Link, Message

logger = logging.getLogger("ojs_aws.worker")

# Shortest time in seconds between two fetches after rings, and pauses before the repetitions of a
# fetch that found nothing: the server's index can be later than the ring.
_APART_S = 0.1
_REPEATED_S = (0.075, 0.3)
# A ring for later is at most this many seconds ahead. So is `next_ms`.
_AHEAD_S = 600.0
_MOST_RINGS = 1_000
# For this time in seconds after it is listed, the worker also polls: the containers of the server
# remember the list for 10 s. The server keeps a group without listeners for 15 minutes.
_SETTLING_S = 15.0
_GROUP_S = 10 * 60.0
# Pauses from this length on are fallbacks. After three of them in a row that found jobs, rings are
# missing, and the worker polls for `_DISTRUST_S`.
_FALLBACK_S = 20.0
_MOST_MISSED = 3
_DISTRUST_S = 600.0
# Pause in seconds after the server has rejected the connection.
_REFUSED_S = 600.0


class Listening:
    """When to fetch. The server thread of the worker asks it. Messages arrive in another thread."""

    ready = "hello"

    def __init__(
        self,
        settings: Settings,
        ask: Callable[[Call[Any]], Any],
        wake: Callable[[], None],
        beat: Callable[[], None],
    ) -> None:
        """Create it. Opens no connection.

        Args:
            settings: Settings of the worker.
            ask: Sends a request and waits for its result.
            wake: Called when `due` may have changed.
            beat: Called when the server asks for a heartbeat.
        """
        self._settings = settings
        self._ask_server = ask
        self._wake = wake
        self._beat = beat
        self._lock = threading.Lock()
        self._future: Future[None] | None = None
        self._link: Link | None = None
        self._connection: str | None = None
        self._listed: bool | None = False
        self._plain = False
        # Rings that no fetch has answered: time, queue, and number of the repetition.
        self._rings: set[tuple[float, str, int]] = set()
        self._taken: set[tuple[float, str, int]] = set()
        self._apart_until = 0.0
        # Time of a fetch after the connection was opened or lost.
        self._look_at = math.inf
        # Pause until the next fetch as the server chose it, and when it ends. 0: polls.
        self._pause_s = 0.0
        self._paused_until = 0.0
        self._fallback = False
        self._missed = 0
        self._listed_at = -math.inf
        self._polls_until = 0.0
        # The server doesn't know a connection that has ended. Until then, keep this one.
        self._renewed_until = 0.0

    # --- the connection ----------------------------------------------------------------------

    def want(self, *, wanted: bool) -> None:
        """Open the connection, or close it without waiting for its end."""
        if wanted and self._future is None:
            self._future = background.start(self._run())
        elif not wanted:
            future, self._future = self._future, None
            if future is not None:
                if self._link is not None:
                    self._link.closed = True
                future.cancel()
                self._disconnected(0.0)

    @property
    def connected(self) -> bool:
        """Whether the connection is in use."""
        return self._link is not None and self._link.connected

    async def _run(self) -> None:
        try:
            # Loads httpx, asyncio, and websockets.
            from ojs_aws.client.link import Link

            self._link = Link(self._ask, self)
            await self._link.run()
        except Exception:
            logger.exception("Realtime connection failed. The worker polls")
            self._disconnected(0.0)

    async def _ask(self, call: Call[Any]) -> Any:
        return await background.in_thread(self._ask_server, call)

    def greeting(self) -> Message:
        """Return the first message of a new connection."""
        return {"action": "hello"}

    async def heard(self, message: Message) -> None:
        """Process a message of the server."""
        kind = message.get("type")
        if kind == "hello" and isinstance(connection := message.get("connection"), str):
            with self._lock:
                # The next fetch lists it.
                self._connection, self._listed, self._look_at = connection, False, 0.0
            self._wake()
        elif kind == "ring":
            self._ring(message)
        elif kind == "beat":
            self._beat()

    def lost(self, error: Exception) -> float | None:
        """Note that the connection is lost. Returns the pause if the server has none to offer."""
        from ojs_aws.client.link import refused

        logger.info("No realtime connection: %s", error)
        # Not all workers of a server fetch at the same time.
        self._disconnected(random.uniform(0.0, self._settings.poll_s))  # noqa: S311
        return _REFUSED_S if refused(error) else None

    def _disconnected(self, look_s: float) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection, self._listed, self._pause_s = None, False, 0.0
                self._look_at = time.monotonic() + look_s
        self._wake()

    def _ring(self, message: Message) -> None:
        """Note a ring: a job is available, or will be at `at_ms`."""
        queue, at_ms = message.get("queue"), _number(message.get("at_ms", 0))
        if not isinstance(queue, str) or at_ms is None:
            return
        # If a clock is wrong, the fetch is too early, and its `next_ms` corrects it. Or it is late.
        later_s = min(at_ms / 1_000 - time.time(), _AHEAD_S)
        at = time.monotonic() + later_s if later_s > 0 else 0.0
        # The index has the job already: if the fetch finds nothing, another worker took it.
        indexed = later_s > 0 or message.get("indexed") is True
        with self._lock:
            if len(self._rings) < _MOST_RINGS:
                self._rings.add((at, queue, len(_REPEATED_S) if indexed else 0))
        self._wake()

    # --- fetches -----------------------------------------------------------------------------

    def due(self) -> float:
        """Return the time of the next fetch because of a message."""
        with self._lock:
            first = min((at for at, _, _ in self._rings), default=math.inf)
            return min(self._look_at, max(first, self._apart_until))

    def idle_s(self) -> float:
        """Return the pause between two fetches of an idle worker. 0: it polls."""
        return self._pause_s

    def asks(self) -> dict[str, Any]:
        """Return the fields of the next fetch."""
        now = time.monotonic()
        with self._lock:
            self._look_at = math.inf
            self._taken = {ring for ring in self._rings if ring[0] <= now}
            self._rings -= self._taken
            if self._taken:
                self._apart_until = now + _APART_S
            fallback = self._listed is True and self._pause_s >= _FALLBACK_S
            self._fallback = fallback and not self._taken and now >= self._paused_until
            plain, self._plain = self._plain, False
            if plain or self._connection is None:
                return {}
            queues = sorted({queue for _, queue, _ in self._taken})
            if self._settings.queues:
                queues = [each for each in queues if each in self._settings.queues]
            listen = {"connection": self._connection, "listed": self._listed}
            return {"listen": listen} | ({"rung": queues} if queues else {})

    def answered(
        self, asked: dict[str, Any], answer: Answer, jobs: Sequence[Job], *, full: bool
    ) -> float | None:
        """Process the response to a fetch.

        Args:
            asked: What `asks` returned.
            answer: The response.
            jobs: Its jobs.
            full: Whether they are as many as requested.

        Returns:
            The pause in seconds until the next fetch, or None to poll.
        """
        now = time.monotonic()
        with self._lock:
            if not jobs:
                self._repeat(now)
            self._distrust(now, jobs)
            self._pause_s = 0.0
            if not asked or asked["listen"]["connection"] != self._connection:
                return None
            told = answer.get("listen")
            listed = told.get("listed") if isinstance(told, dict) else None
            next_ms = _number(answer.get("next_ms"))
            if listed is True:
                if now - self._listed_at > _GROUP_S:
                    self._polls_until = max(self._polls_until, now + _SETTLING_S)
                self._listed_at = now
            self._listed = listed
            if next_ms is None:
                ended = listed is False and not full and now >= self._renewed_until
                if ended:
                    self._renewed_until = now + _REFUSED_S
                    self._renew()
                return None
            pause_s: float = min(next_ms / 1_000, _AHEAD_S)
            if now < self._polls_until:
                return min(pause_s, self._settings.poll_s)
            self._pause_s, self._paused_until = pause_s, now + pause_s
            return pause_s

    def failed(self) -> None:
        """Note that the outcome of a fetch is unknown. The next one doesn't depend on listening."""
        with self._lock:
            self._listed, self._plain = None, True
            self._rings |= self._taken

    def refused(self) -> None:
        """Note that the server rejected the fields of a fetch. Opens another connection."""
        self._disconnected(0.0)
        self._renew()

    def _renew(self) -> None:
        if self._link is not None:
            background.start(self._link.drop())

    def _repeat(self, now: float) -> None:
        tried = min((tried for _, _, tried in self._taken), default=len(_REPEATED_S))
        if tried < len(_REPEATED_S):
            at = now + _REPEATED_S[tried]
            self._rings |= {(at, queue, tried + 1) for _, queue, _ in self._taken}

    def _distrust(self, now: float, jobs: Sequence[Job]) -> None:
        """Poll for some time if fallbacks find jobs that no ring announced."""
        if self._taken and jobs:
            self._missed = 0
        elif self._fallback and any(not job.scheduled_at and job.attempt <= 1 for job in jobs):
            self._missed += 1
            if self._missed >= _MOST_MISSED:
                self._missed = 0
                self._polls_until = now + _DISTRUST_S


def _number(value: object) -> float | None:
    """Return a number of 0 or more, or None."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
    return value if number else None  # type: ignore[return-value]
