"""Copies of dead letters that must be created after a change, and events of pruned dead letters.

All dead letters of a queue that one transaction counts as pruned have one event. The same
transaction stores the event, so it is in the event log once. Its ID is derived from the counted
stream records, so a repeated projection gives the same event.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from ojs.domain.events.event import Event
from ojs.domain.events.types import EventType
from ojs.domain.job.job import Job
from ojs.projections.changes import NewEvent
from ojs.projections.transitions import JobEvent
from ojs.records import record

_Changed = Iterable[tuple[Job | None, Job | None]]


class CopyMaker(Protocol):
    """Creates and discards copies of dead letters (`ojs.services.jobs.dead_letter_copies`)."""

    def make(self, record: Job) -> Job:
        """Create the copy of a dead letter if it doesn't exist yet.

        Raises OjsError if a call fails.
        """
        ...

    def trim(self, queue: str, most: int) -> bool:
        """Discard available copies beyond `most`. Return false if more must be discarded.

        Raises OjsError if a call fails.
        """
        ...


def due(jobs: _Changed) -> Iterator[Job]:
    """Yield the jobs whose copy doesn't exist yet."""
    return (job for _, job in jobs if job is not None and job.copy_due)


def new_copies(jobs: _Changed) -> Iterator[tuple[str, int]]:
    """Yield the queues with a new available copy, each with its maximum number of copies."""
    for before, job in jobs:
        if job is None or job.copy_of is None or job.copy_of.max_size is None:
            continue
        waited = before is not None and before.waiting_copy and before.queue == job.queue
        if job.waiting_copy and not waited:
            yield job.queue, job.copy_of.max_size


@record(frozen=True)
class Pruned:
    """An event about pruned dead letters, and the identities of the changes that it counts."""

    event: Event
    changes: frozenset[bytes]


def pruned(what: Iterable[tuple[bytes, Sequence[JobEvent]]], service: str) -> list[Pruned]:
    """Return the events about the dead letters that were pruned by these changes.

    `what` has the changes by identity. One transaction counts all of them.
    """
    by_queue: defaultdict[str, list[tuple[bytes, int]]] = defaultdict(list)
    for identity, things in what:
        for one in things:
            if one.kind is EventType.DEAD_LETTER_PRUNED:
                by_queue[one.job.queue].append((identity, one.at_ms))
    found = []
    for queue, gone in by_queue.items():
        at_ms = max(ms for _, ms in gone)
        digest = hashlib.sha256(b"".join(sorted(identity for identity, _ in gone))).hexdigest()
        data = {"queue": queue, "count": len(gone)}
        new = NewEvent(EventType.DEAD_LETTER_PRUNED, at_ms, queue, ("scheduler",), data)
        changes = frozenset(identity for identity, _ in gone)
        found.append(Pruned(new.event(service, digest), changes))
    return found
