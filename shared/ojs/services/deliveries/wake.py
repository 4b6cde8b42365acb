"""Sends wake-up messages to deliveries: immediately for available jobs, by timer for due jobs.

Wake-ups are hints. The request that makes a job available sends one. The stream consumer sends
another for jobs that are still available, and the sweep checks all deliveries every minute. A lost
wake-up delays a job by up to one minute. An extra wake-up costs one query.

All containers together wake a delivery about once a second. The time of its last wake-up is stored,
and a container that makes a job available reads it. A wake-up is sent before its time is stored: if
the process crashes in between, or reads a stale time, the delivery is woken twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ojs.bounded import BoundedMap, BoundedSet
from ojs.clock import Clock
from ojs.domain.delivery.delivery import delivery_of
from ojs.domain.delivery.push import WakeQueue
from ojs.domain.errors import BackendError
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.maintenance import NOTICED_MS
from ojs.domain.queue.queue import Queue
from ojs.store.deliveries.deliveries import REMEMBERED_MS, DeliveryDirectory, DeliveryStore
from ojs.store.jobs.records import JobStore

# A queue keeps a message back for so long at most; what is due later is armed by the sweep.
MOST_DELAY_S = 900
ARMED_MS = MOST_DELAY_S * 1_000
# Time (ms) between two wake-ups of a delivery.
_EVERY_MS = 1_000
# By how much (ms) the clocks of two containers can differ.
_CLOCKS_MS = 100
# How long a delivery is left alone whose jobs wait for the end of others of their keys.
KEY_AGAIN_MS = 5_000
_REMEMBERED = 10_000
# Of the jobs of a batch of stream records so many are looked at.
LOOKED_AT = 25


class DeliveryWake:
    """Wakes the deliveries of queues. One for each container."""

    def __init__(
        self,
        directory: DeliveryDirectory,
        deliveries: DeliveryStore,
        queue: WakeQueue,
        jobs: JobStore,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._deliveries = deliveries
        self._jobs = jobs
        self._queue = queue
        self._clock = clock
        # The time (ms) of the last wake-up of each delivery, as this container knows it.
        self._woken: BoundedMap[str, int] = BoundedMap(_REMEMBERED)
        # Deliveries and the seconds for which this container has armed a timer.
        self._armed: BoundedSet[tuple[str, int]] = BoundedSet(_REMEMBERED)

    def job_placed(self, job: Job) -> None:
        """Wake who pushes a job that was put into a line; when it is due, if that is soon."""
        names = self._directory.serving(job.queue)
        if names and job.state is State.AVAILABLE:
            self.wake(names)
        elif names and job.state in (State.SCHEDULED, State.RETRYABLE):
            now_ms = self._clock.now_ms()
            if job.due_ms - now_ms <= ARMED_MS:
                self.arm(names, job.due_ms)

    def repeat(self, jobs: Sequence[Job]) -> None:
        """Wake who pushes jobs that became available a moment ago, where any of the first is still
        in line: whom the request has woken has taken them, as a rule. One call for a delivery.
        Raises OjsError.
        """
        by_name: defaultdict[str, list[str]] = defaultdict(list)
        for job in jobs:
            for name in self._directory.serving(job.queue):
                by_name[name].append(job.id)
        for name, ids in by_name.items():
            found = self._jobs.read_records(ids[:LOOKED_AT])
            if len(ids) > LOOKED_AT or any(job.state is State.AVAILABLE for job in found.values()):
                self.wake([name])

    def queue_opened(self, queue: str) -> None:
        """Wake who pushes the jobs of a queue that may hand out more than before."""
        self.wake(self._directory.serving(queue))

    def permits_released(self, job: Job) -> None:
        """Wake who may push another job, after one gave back permits without an outcome: it was
        cancelled, say, or a worker had fetched it, which then ended, failed or was lost. Whoever
        settles what a delivery has pushed dispatches the next job itself.
        """
        if (name := delivery_of(job.worker_id)) is not None:
            self.wake([name])
        else:
            self.queue_opened(job.queue)

    def held_back(self, queue: Queue) -> None:
        """Wake who pushes the jobs of a queue when its rate limit lets the next one start."""
        config = queue.config
        if config.rate_limit is not None and (names := self._directory.serving(queue.name)):
            apart_ms = -(-config.rate_period_ms // config.rate_limit)
            self.arm(names, self._clock.now_ms() + min(ARMED_MS, max(_EVERY_MS, apart_ms)))

    def keys_wait(self, name: str, free_ms: Sequence[int | None]) -> None:
        """Wake a delivery when keys that have reached their limits let the next job start; after
        some seconds where a job must end first, which may be of a queue that it does not serve.
        """
        now_ms = self._clock.now_ms()
        until_ms = min(ms or now_ms + KEY_AGAIN_MS for ms in free_ms)
        self.arm([name], min(now_ms + ARMED_MS, max(now_ms, until_ms)))

    def wake(self, names: Iterable[str]) -> None:
        """Wake deliveries: immediately, or a second after the last wake-up. Does nothing for a
        delivery with a wake-up that has not arrived yet, whichever container sent it.
        """
        now_ms = self._clock.now_ms()
        for name in names:
            last_ms = self._woken.get(name, 0)
            if last_ms - now_ms <= _CLOCKS_MS:
                with suppress(BackendError):
                    last_ms = max(last_ms, self._deliveries.last_wake(name))
            if last_ms - now_ms <= _CLOCKS_MS:
                last_ms = self._wake(name, now_ms, abs(now_ms - last_ms))
            self._woken.put(name, last_ms)

    def _wake(self, name: str, now_ms: int, since_ms: int) -> int:
        """Send a wake-up so long (ms) after the last one. Returns its time (ms), 0 if it failed."""
        at_ms = now_ms + (_EVERY_MS if since_ms < _EVERY_MS else 0)
        if not self._send([name], (at_ms - now_ms) // 1_000):
            return 0
        # Where wake-ups are rare there is no write: two containers can both wake a delivery.
        if since_ms < 2 * _EVERY_MS:
            with suppress(BackendError):
                self._deliveries.record_wake(name, at_ms)
        return at_ms

    def arm(self, names: Iterable[str], at_ms: int) -> None:
        """Have deliveries looked at when the second of `at_ms` is over: once for each second that
        this container knows of.
        """
        second = at_ms // 1_000
        late = [name for name in names if (name, second) not in self._armed]
        # Whole seconds are counted from now; a queue is a little late rather than early.
        delay_s = -(-((second + 1) * 1_000 - self._clock.now_ms()) // 1_000)
        if late and self._send(late, min(MOST_DELAY_S, max(0, delay_s))):
            for name in late:
                self._armed.add((name, second))

    def changed(self, name: str) -> None:
        """Have a delivery looked at that is new or was changed; and once more when every container
        has read the directory since.
        """
        self._directory.forget()
        self._send([name], 0)
        self._send([name], REMEMBERED_MS // 1_000 + 1)

    def maintenance_ended(self) -> None:
        """Have all deliveries looked at; and once more when every container has noticed that the
        mode is off.
        """
        if names := sorted(self._directory.names()):
            self._send(names, 0)
            self._send(names, NOTICED_MS // 1_000 + 1)

    def forget(self) -> None:
        """Read the directory anew when it is asked for next."""
        self._directory.forget()

    def _send(self, names: list[str], delay_s: int) -> bool:
        """Whether the wake-up was taken. A request must not fail for one that was not."""
        with suppress(BackendError):
            self._queue.wake(names, delay_s=delay_s)
            return True
        return False
