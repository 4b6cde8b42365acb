"""The order of queues by what is in them: which is the deepest, which has waited for longest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from ojs.domain.job.states import State
from ojs.domain.stats import Activity, QueueGauges, StateCounts
from ojs.records import record

# More queues than that are not put in order: the deepest ones are.
MAX_ORDERED = 2_000


class QueueOrder(StrEnum):
    """What a list of queues is in order of, the most first; for `OLDEST` the longest wait."""

    DEPTH = "depth"
    AVAILABLE = "available"
    ACTIVE = "active"
    LATER = "later"
    OLDEST = "oldest"
    PROCESSED = "processed"
    FAILED = "failed"


@record(frozen=True)
class QueueOrders:
    """For each queue in which something is, its values in the order of `QueueOrder`: numbers of
    jobs, since when the oldest waits (ms; 0: none does), and how many jobs were completed and
    failed for good in the last whole minute.
    """

    rows: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def by(self, order: QueueOrder) -> list[tuple[int, str]]:
        """The queues that have any of it: how each stands in this order, and its name. Those that
        are the same are in order of name.
        """
        at = [*QueueOrder].index(order)
        sign = 1 if order is QueueOrder.OLDEST else -1
        return sorted((sign * row[at], name) for name, row in self.rows.items() if row[at])

    def levels(self) -> dict[str, StateCounts]:
        """The jobs of these queues that have not ended, by state. Of those that wait for a time it
        is not known which are retries: both states have all of them.
        """
        found = {}
        for name, (depth, available, active, later, *_) in self.rows.items():
            states = {State.AVAILABLE: available, State.ACTIVE: active, State.SCHEDULED: later}
            pending = depth - sum(states.values())
            states |= {State.RETRYABLE: later, State.PENDING: pending}
            found[name] = StateCounts(states)
        return found


def ordered(queues: Iterable[QueueGauges], minute: Mapping[str, Activity]) -> QueueOrders:
    """The orders of these queues, with what happened there in the last whole `minute`."""
    rows = {}
    for each in queues:
        name, of = each.queue.name, each.levels.of
        done = minute.get(name, Activity())
        row = (
            each.levels.depth, of(State.AVAILABLE), of(State.ACTIVE),
            of(State.SCHEDULED) + of(State.RETRYABLE), each.oldest_available_ms or 0,
            done.completed, done.failed,
        )  # fmt: skip
        if any(row):
            rows[name] = row
    if len(rows) > MAX_ORDERED:
        deepest = sorted(rows.items(), key=lambda row: (-row[1][0], row[0]))[:MAX_ORDERED]
        rows = dict(deepest)
    return QueueOrders(dict(sorted(rows.items())))
