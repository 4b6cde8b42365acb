"""Dead letters that were pruned: one event for those of a queue that are counted together.

It is written in the transaction that counts them, so the event log tells of each once. Its id is
worked out from what it counts: the same records, projected again, give the same event.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ojs.domain.events import event as events
from ojs.domain.events.event import Event
from ojs.projections.transitions import Happened, TransitionKind


@dataclass(frozen=True)
class Pruned:
    """The event, and the changes it tells of, by their identities."""

    event: Event
    changes: frozenset[bytes]


def pruned(what: Iterable[tuple[bytes, Sequence[Happened]]], service: str) -> list[Pruned]:
    """What to tell of changes, given by their identities, that one transaction counts."""
    by_queue: defaultdict[str, list[tuple[bytes, int]]] = defaultdict(list)
    for identity, things in what:
        for one in things:
            if one.kind is TransitionKind.DEAD_PRUNED:
                by_queue[one.job.queue].append((identity, one.at_ms))
    return [_of_queue(queue, gone, service) for queue, gone in by_queue.items()]


def _of_queue(queue: str, gone: Sequence[tuple[bytes, int]], service: str) -> Pruned:
    at_ms = max(ms for _, ms in gone)
    digest = hashlib.sha256(b"".join(sorted(identity for identity, _ in gone))).hexdigest()
    event = Event(
        id=events.event_id(at_ms, queue, digest, TransitionKind.DEAD_PRUNED.value),
        type=TransitionKind.DEAD_PRUNED.value,
        source=events.source(service, "scheduler"),
        time_ms=at_ms,
        subject=queue,
        data={"queue": queue, "count": len(gone)},
    )
    return Pruned(event, frozenset(identity for identity, _ in gone))
