"""Queues: pause and resume (queue-config seed, section 5.1)."""

from __future__ import annotations

from ojs.clock import Clock
from ojs.domain import envelope
from ojs.domain.errors import InvalidRequest
from ojs.domain.queue import Queue, QueueState
from ojs.store import queues as store


class Queues:
    """Changes queues."""

    def __init__(self, queues: store.Queues, clock: Clock) -> None:
        self._queues = queues
        self._clock = clock

    def pause(self, name: str) -> Queue:
        """Stop handing out jobs; enqueueing and running jobs go on. Makes a queue not seen yet."""
        return self._set(name, QueueState.PAUSED)

    def resume(self, name: str) -> Queue:
        """Hand out jobs again."""
        return self._set(name, QueueState.ACTIVE)

    def _set(self, name: str, state: QueueState) -> Queue:
        try:
            envelope.check_queue(name)
        except ValueError as error:
            raise InvalidRequest("name", str(error), value=name) from None
        now_ms = self._clock.now_ms()
        self._queues.ensure(name, now_ms=now_ms)
        return self._queues.set_state(name, state, now_ms=now_ms)
