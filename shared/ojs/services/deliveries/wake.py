"""Wake-ups of deliveries: at once when a job became available, and by timers when one is due.

The request that made the job available wakes; the stream repeats that for what is still in line,
and the sweep looks once a minute. So a wake-up that is lost costs lateness, and never a job; one
too many costs a look.
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
from ojs.store.deliveries.deliveries import REMEMBERED_MS, DeliveryDirectory
from ojs.store.jobs.records import JobStore

# A queue keeps a message back for so long at most; what is due later is armed by the sweep.
MOST_DELAY_S = 900
ARMED_MS = MOST_DELAY_S * 1_000
# A container wakes a delivery at once at most so often; in between it has it woken when that is
# over, once.
_EVERY_MS = 1_000
# How long a delivery is left alone whose jobs wait for the end of others of their keys.
KEY_AGAIN_MS = 5_000
_REMEMBERED = 10_000
# Of the jobs of a batch of stream records so many are looked at.
LOOKED_AT = 25


class DeliveryWake:
    """Wakes the deliveries of queues. One for each container."""

    def __init__(
        self, directory: DeliveryDirectory, queue: WakeQueue, jobs: JobStore, clock: Clock
    ) -> None:
        self._directory = directory
        self._jobs = jobs
        self._queue = queue
        self._clock = clock
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
        """Have deliveries looked at now. Whoever is too soon after another is looked at then."""
        now_ms = self._clock.now_ms()
        at_once: list[str] = []
        for name in names:
            woken_ms = self._woken.get(name)
            if woken_ms is not None and 0 <= now_ms - woken_ms < _EVERY_MS:
                self.arm([name], woken_ms + _EVERY_MS)
            else:
                at_once.append(name)
        if at_once and self._send(at_once, 0):
            for name in at_once:
                self._woken.put(name, now_ms)

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
