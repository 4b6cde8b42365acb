"""Events of pruned dead letters: one for those of a queue that are counted together.

The event is written in the transaction that counts them, so that the event log has each once. Its
id is derived from what it counts: the same records, projected again, give the same event.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ojs.domain.events import event as events
from ojs.domain.events.event import Event
from ojs.domain.events.types import EventType
from ojs.projections.transitions import Happened


@dataclass(frozen=True)
class Pruned:
    """The event, and the identities of the changes it counts."""

    event: Event
    changes: frozenset[bytes]


def pruned(what: Iterable[tuple[bytes, Sequence[Happened]]], service: str) -> list[Pruned]:
    """The events of changes, with their identities, that one transaction counts."""
    by_queue: defaultdict[str, list[tuple[bytes, int]]] = defaultdict(list)
    for identity, things in what:
        for one in things:
            if one.kind is EventType.DEAD_LETTER_PRUNED:
                by_queue[one.job.queue].append((identity, one.at_ms))
    return [_of_queue(queue, gone, service) for queue, gone in by_queue.items()]


def _of_queue(queue: str, gone: Sequence[tuple[bytes, int]], service: str) -> Pruned:
    at_ms = max(ms for _, ms in gone)
    digest = hashlib.sha256(b"".join(sorted(identity for identity, _ in gone))).hexdigest()
    event = Event(
        id=events.event_id(at_ms, queue, digest, EventType.DEAD_LETTER_PRUNED.value),
        type=EventType.DEAD_LETTER_PRUNED.value,
        source=events.source(service, "scheduler"),
        time_ms=at_ms,
        subject=queue,
        data={"queue": queue, "count": len(gone)},
    )
    return Pruned(event, frozenset(identity for identity, _ in gone))
