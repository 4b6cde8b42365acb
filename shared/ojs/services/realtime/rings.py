"""Rings: messages that tell idle workers of jobs that they can fetch.

A ring is a hint. A worker that receives none fetches after the `next_ms` of its last fetch
(`ojs.services.realtime.listening`). An extra ring costs one fetch.

The hooks note what happened during a request. `flush` sends the rings after the last write of the
request and before its response, because a container is frozen between two requests.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.maintenance import NOTICED_MS
from ojs.domain.realtime import DirectoryEntries, Listener, Posted, render_message
from ojs.records import record
from ojs.services.realtime.posts import Posts
from ojs.store.realtime.directory import RealtimeDirectory
from ojs.store.realtime.listeners import ListenerStore

# How old (ms) the directory can be that rings are sent by.
REMEMBERED_MS = 10_000
# Maximum number of rings for the jobs of a queue. Each worker that gets a job and sees more rings
# `_CHAIN` others.
_MOST = 4
_CHAIN = 2
# Listeners that are read beyond those, for connections that have ended.
_SPARE = 2
# How often a ring goes to the next listener after a connection that has ended.
_AGAIN = 3
# Maximum number of groups of workers that one request reads.
_GROUPS = 8
# A job that is due within this time (ms) rings a worker, which sets a timer.
SOON_MS = 300_000
_SECOND_MS = 1_000


@record
class _Noted:
    """What happened in a queue.

    Attributes:
        jobs: Number of new jobs. The index might not show them yet.
        listed: Number of jobs that the index shows.
        due_ms: When the first of the jobs that are due soon can start.
    """

    jobs: int = 0
    listed: int = 0
    due_ms: int | None = None


class Rings:
    """Rings the workers of queues. One instance per container."""

    def __init__(
        self,
        *,
        realtime_directory: RealtimeDirectory,
        listeners: ListenerStore,
        posts: Posts,
        clock: Clock,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        """Create the service. `choose` returns a random number below its argument."""
        self._directory = realtime_directory
        self._listeners = listeners
        self._posts = posts
        self._clock = clock
        self._choose = choose
        self._lock = threading.Lock()
        self._noted: dict[str, _Noted] = {}

    def note_job(self, job: Job) -> None:
        """Note a job that is available or will be soon."""
        if job.state is State.AVAILABLE:
            self._note(job.queue, jobs=1)
        elif (
            job.state in (State.SCHEDULED, State.RETRYABLE)
            and job.due_ms - self._clock.now_ms() <= SOON_MS
        ):
            self._note(job.queue, due_ms=job.due_ms)

    def note_queue(self, queue: str) -> None:
        """Note a queue that can dispatch more jobs than before."""
        self._note(queue, listed=_CHAIN)

    def note_released(self, job: Job) -> None:
        """Note a job that released permits for which another one might wait."""
        self._note(job.queue, listed=1)

    def note_more_in_line(self, queue: str, *, sure: bool) -> None:
        """Note a queue with more jobs than a worker could take, or with lanes that it did not read.

        So the number of rung workers doubles with each step as long as there are jobs.
        """
        self._note(queue, listed=_CHAIN if sure else 1)

    def note_maintenance_end(self) -> None:
        """Note all queues, for when every container has read that maintenance ended."""
        at_ms = self._clock.now_ms() + NOTICED_MS + _SECOND_MS
        groups = self._directory.read(remembered_ms=REMEMBERED_MS).groups
        for queue in {queue for queues in groups.values() for queue in queues}:
            self._note(queue, due_ms=at_ms)

    def flush(self) -> None:
        """Send the rings for the noted queues. Raises no error of the table.

        Without listeners, no call; or one query after `REMEMBERED_MS`. Otherwise one query for each
        group of workers, and the messages. A process that dies before leaves the jobs to the next
        fetch.
        """
        if not self._noted:
            return
        with self._lock:
            noted, self._noted = self._noted, {}
        if not self._posts.paused:
            with suppress(OjsError):
                self._ring(noted)

    def _note(
        self, queue: str, *, jobs: int = 0, listed: int = 0, due_ms: int | None = None
    ) -> None:
        with self._lock:
            noted = self._noted.setdefault(queue, _Noted())
            noted.jobs += jobs
            noted.listed += listed
            if due_ms is not None:
                noted.due_ms = min(due_ms, noted.due_ms or due_ms)

    def _ring(self, noted: Mapping[str, _Noted]) -> None:
        directory = self._directory.read(remembered_ms=REMEMBERED_MS)
        idle = _Idle(self._listeners, directory, self._clock.now_ms(), self._choose)
        waiting = [(queue, text) for queue, what in noted.items() for text in _texts(queue, what)]
        for _ in range(1 + _AGAIN):
            places = [(queue, text, idle.take(queue)) for queue, text in waiting]
            rings = [(queue, text, *place) for queue, text, place in places if place is not None]
            if not rings:
                return
            outcomes = self._posts.send(
                [(each.connection, render_message(text, each.tenant)) for _, text, _, each in rings]
            )
            waiting = []
            for (queue, text, group, listener), outcome in zip(rings, outcomes, strict=True):
                if outcome is Posted.GONE:
                    self._listeners.remove(group, listener.connection)
                    waiting.append((queue, text))


def _texts(queue: str, noted: _Noted) -> list[str]:
    """Return the rings for a queue.

    A worker asks again for a job that is not `indexed` if it finds none.
    """
    ring = {"type": "ring", "queue": queue}
    indexed = {**ring, "indexed": True}
    texts = [jsontext.dumps(ring)] * min(noted.jobs, _MOST) + [jsontext.dumps(indexed)] * min(
        noted.listed, _MOST
    )
    later = [] if noted.due_ms is None else [jsontext.dumps({**indexed, "at_ms": noted.due_ms})]
    return texts[:_MOST] + later


class _Idle:
    """The listeners that one request rings, each once."""

    def __init__(
        self,
        listeners: ListenerStore,
        directory: DirectoryEntries,
        now_ms: int,
        choose: Callable[[int], int],
    ) -> None:
        self._listeners = listeners
        self._directory = directory
        self._now_ms = now_ms
        self._choose = choose
        self._groups: dict[str, list[str]] = {}
        self._found: dict[str, list[Listener]] = {}

    def take(self, queue: str) -> tuple[str, Listener] | None:
        """Return a listener that may take jobs of a queue, after its group; None: there is none.

        Tries the groups of the queue in order, from a random one on.
        """
        if queue not in self._groups:
            groups = self._directory.groups_of(queue)
            first = self._choose(len(groups)) if len(groups) > 1 else 0
            self._groups[queue] = [*groups[first:], *groups[:first]]
        for group in self._groups[queue]:
            if group not in self._found and len(self._found) < _GROUPS:
                self._found[group] = self._listeners.select(
                    group, _MOST + _SPARE, now_ms=self._now_ms
                )
            if found := self._found.get(group):
                return group, found.pop()
        return None
