"""Webhooks in one process: a queue of messages in memory, and threads that post events.

Nothing is persistent. If the server ends, events that were not posted yet are lost, unless an
attempt has failed: the sweep finds those.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from local.deliveries import MAX_CALLS, Timers, check_endpoint
from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import OjsError
from ojs.services.deliveries.parts import AllowedTargets
from ojs.services.webhooks.parts import WebhookDependencies
from ojs.services.webhooks.send import WebhookSender
from ojs.targets.guard import Connector
from ojs.targets.webhooks import WebhookTarget

# Pause (s) before a message is processed again.
_PAUSE_S = 1


class LocalWebhooks:
    """Webhooks of a local server. They run between `start` and `stop`."""

    def __init__(self, clock: Clock, *, loopback: bool = False) -> None:
        """Create the queue. With `loopback`, endpoints can be on this machine."""
        self._sender: Callable[[], WebhookSender] | None = None
        self._calls = ThreadPoolExecutor(MAX_CALLS, "webhook")
        self._timers = Timers(clock, self._run)
        self.parts = WebhookDependencies(
            self,
            WebhookTarget(clock, connector=Connector(loopback=loopback)),
            AllowedTargets(egress_hosts=("*",), check_endpoint=partial(check_endpoint, loopback)),
        )

    def start(self, sender: Callable[[], WebhookSender]) -> Callable[[], None]:
        """Start, and return the function that stops all of it.

        `sender` is called for each use, because a reset replaces the sender.
        """
        self._sender = sender
        self._timers.start()
        return self._stop

    def _stop(self) -> None:
        """Stop. Running posts are abandoned."""
        self._sender = None
        self._timers.stop()
        self._calls.shutdown(wait=False, cancel_futures=True)

    def put(self, messages: Sequence[dict[str, Any]], *, delay_s: int = 0) -> list[int]:
        """Queue messages. See `HookQueue`."""
        self._timers.wake(map(jsontext.dumps, messages), delay_s=delay_s)
        return []

    def _run(self, message: str) -> None:
        self._calls.submit(self._post, message)

    def _post(self, message: str) -> None:
        if self._sender is None:
            return
        try:
            failed = self._sender().handle([jsontext.stored(message)])
        except OjsError:
            failed = [0]
        except Exception:  # noqa: BLE001 - the next message must be processed
            print("A webhook message failed", file=sys.stderr)
            traceback.print_exc(file=sys.stderr)
            return
        if failed:
            self._timers.wake([message], delay_s=_PAUSE_S)
