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

# Maximum delay of an SQS message in seconds. The sweep arms timers for jobs that are due later.
MOST_DELAY_S = 900
ARMED_MS = MOST_DELAY_S * 1_000
# Time (ms) between two wake-ups of a delivery.
_EVERY_MS = 1_000
# Maximum difference (ms) between the clocks of two containers.
_CLOCKS_MS = 100
# Delay (ms) before a retry if a concurrency key is at its limit and its release time is unknown.
KEY_AGAIN_MS = 5_000
_REMEMBERED = 10_000
# Maximum number of jobs that are read per delivery and batch of stream records.
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
        # Per-container cache of the time (ms) of each delivery's last wake-up.
        self._woken: BoundedMap[str, int] = BoundedMap(_REMEMBERED)
        # Deliveries and the seconds for which this container has scheduled a wake-up message.
        self._armed: BoundedSet[tuple[str, int]] = BoundedSet(_REMEMBERED)

    def job_placed(self, job: Job) -> None:
        """Wake the deliveries of an available job, or schedule a wake-up if the job is due soon."""
        names = self._directory.serving(job.queue)
        if names and job.state is State.AVAILABLE:
            self.wake(names)
        elif names and job.state in (State.SCHEDULED, State.RETRYABLE):
            now_ms = self._clock.now_ms()
            if job.due_ms - now_ms <= ARMED_MS:
                self.schedule_wakeup(names, job.due_ms)

    def repeat(self, jobs: Sequence[Job]) -> None:
        """Wake deliveries again if one of their recently available jobs is still `available`.

        Reads the first `LOOKED_AT` jobs of each delivery. If there are more, always wakes it.

        Raises:
            OjsError: The records could not be read.
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
        """Wake the deliveries of a queue that can dispatch more jobs than before."""
        self.wake(self._directory.serving(queue))

    def permits_released(self, job: Job) -> None:
        """Wake deliveries after a job released its permits without an outcome of a push.

        Examples: the job was cancelled, or a worker had fetched it and its attempt ended. After an
        outcome, `DeliveryDispatcher.settle` dispatches the next job without a wake-up.
        """
        if (name := delivery_of(job.worker_id)) is not None:
            self.wake([name])
        else:
            self.queue_opened(job.queue)

    def held_back(self, queue: Queue) -> None:
        """Schedule a wake-up for the time when the rate limit of a queue allows the next job."""
        config = queue.config
        if config.rate_limit is not None and (names := self._directory.serving(queue.name)):
            apart_ms = -(-config.rate_period_ms // config.rate_limit)
            self.schedule_wakeup(
                names, self._clock.now_ms() + min(ARMED_MS, max(_EVERY_MS, apart_ms))
            )

    def keys_wait(self, name: str, free_ms: Sequence[int | None]) -> None:
        """Schedule a wake-up for the time at which the first of several limited keys allows a job.

        `free_ms` has the time of each key, or None if another job must finish first. That job can
        be in a queue that the delivery doesn't serve, so the delay is then `KEY_AGAIN_MS`.
        """
        now_ms = self._clock.now_ms()
        until_ms = min(ms or now_ms + KEY_AGAIN_MS for ms in free_ms)
        self.schedule_wakeup([name], min(now_ms + ARMED_MS, max(now_ms, until_ms)))

    def wake(self, names: Iterable[str]) -> None:
        """Wake deliveries immediately, or with a delay of 1 s if the last wake-up was recent.

        Skips a delivery if a wake-up of any container is still on its way.
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
        """Send a wake-up message, `since_ms` after the last one.

        Return its time (ms), or 0 on an error.
        """
        at_ms = now_ms + (_EVERY_MS if since_ms < _EVERY_MS else 0)
        if not self._send([name], (at_ms - now_ms) // 1_000):
            return 0
        # Wake-ups with long intervals are not stored, so two containers can both wake a delivery.
        if since_ms < 2 * _EVERY_MS:
            with suppress(BackendError):
                self._deliveries.record_wake(name, at_ms)
        return at_ms

    def schedule_wakeup(self, names: Iterable[str], at_ms: int) -> None:
        """Schedule a wake-up at the end of the second of `at_ms`, once per container and second."""
        second = at_ms // 1_000
        late = [name for name in names if (name, second) not in self._armed]
        # The delay is in whole seconds, rounded up: SQS delivers late rather than early.
        delay_s = -(-((second + 1) * 1_000 - self._clock.now_ms()) // 1_000)
        if late and self._send(late, min(MOST_DELAY_S, max(0, delay_s))):
            for name in late:
                self._armed.add((name, second))

    def changed(self, name: str) -> None:
        """Wake a changed delivery now, and again after all containers have reread the directory."""
        self._directory.forget()
        self._send([name], 0)
        self._send([name], REMEMBERED_MS // 1_000 + 1)

    def maintenance_ended(self) -> None:
        """Wake all deliveries, and again after every container has read that maintenance ended."""
        if names := sorted(self._directory.names()):
            self._send(names, 0)
            self._send(names, NOTICED_MS // 1_000 + 1)

    def forget(self) -> None:
        """Discard the cached directory. The next use reads the table."""
        self._directory.forget()

    def _send(self, names: list[str], delay_s: int) -> bool:
        """Send a wake-up message. Return false on an error, so that the request doesn't fail."""
        with suppress(BackendError):
            self._queue.wake(names, delay_s=delay_s)
            return True
        return False
