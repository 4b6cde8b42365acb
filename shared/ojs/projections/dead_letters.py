"""Copies of dead letters that are due after a change, and the events of pruned dead letters.

Dead letters of a queue that are counted together have one event. It is written in the transaction
that counts them, so that the event log has each once. Its id is derived from what it counts: the
same records, projected again, give the same event.
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
    """Makes and drops copies (`ojs.services.jobs.dead_letter_copies`)."""

    def make(self, record: Job) -> Job:
        """Make the copy of a dead letter, if it is still due. Raises OjsError."""
        ...

    def trim(self, queue: str, most: int) -> bool:
        """Drop waiting copies beyond `most`; False when there are more to drop. Raises OjsError."""
        ...


def due(jobs: _Changed) -> Iterator[Job]:
    """Jobs whose copy is yet to be made."""
    return (job for _, job in jobs if job is not None and job.copy_due)


def new_copies(jobs: _Changed) -> Iterator[tuple[str, int]]:
    """Queues in which one more copy waits now, each with how many may wait."""
    for before, job in jobs:
        if job is None or job.copy_of is None or job.copy_of.max_size is None:
            continue
        waited = before is not None and before.waiting_copy and before.queue == job.queue
        if job.waiting_copy and not waited:
            yield job.queue, job.copy_of.max_size


@record(frozen=True)
class Pruned:
    """The event, and the identities of the changes it counts."""

    event: Event
    changes: frozenset[bytes]


def pruned(what: Iterable[tuple[bytes, Sequence[JobEvent]]], service: str) -> list[Pruned]:
    """The events of changes, with their identities, that one transaction counts."""
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
