"""Sorts queues by their contents, for example by depth or by the age of the oldest job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from ojs.domain.job.states import State
from ojs.domain.stats import Activity, QueueGauges, StateCounts
from ojs.records import record

# Maximum number of queues that are sorted: those with the largest depth.
MAX_ORDERED = 2_000


class QueueOrder(StrEnum):
    """Sort order of a list of queues, largest value first. For `OLDEST`, the oldest job first."""

    DEPTH = "depth"
    AVAILABLE = "available"
    ACTIVE = "active"
    LATER = "later"
    OLDEST = "oldest"
    PROCESSED = "processed"
    FAILED = "failed"


@record(frozen=True)
class QueueOrders:
    """The values of each queue that is not empty, in the order of `QueueOrder`.

    The values are numbers of jobs, the time since which the oldest job is available (ms, 0 without
    one), and the numbers of jobs that were completed and discarded in the last full minute.
    """

    rows: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def by(self, order: QueueOrder) -> list[tuple[int, str]]:
        """Return the queues whose value is not 0, as pairs of sort value and name, in order.

        Queues with the same value are sorted by name.
        """
        at = [*QueueOrder].index(order)
        sign = 1 if order is QueueOrder.OLDEST else -1
        return sorted((sign * row[at], name) for name, row in self.rows.items() if row[at])

    def levels(self) -> dict[str, StateCounts]:
        """Return the number of jobs that are not in a final state, by queue and state.

        Scheduled and retryable jobs are not counted separately. Both states have their sum.
        """
        found = {}
        for name, (depth, available, active, later, *_) in self.rows.items():
            states = {State.AVAILABLE: available, State.ACTIVE: active, State.SCHEDULED: later}
            pending = depth - sum(states.values())
            states |= {State.RETRYABLE: later, State.PENDING: pending}
            found[name] = StateCounts(states)
        return found


def ordered(queues: Iterable[QueueGauges], minute: Mapping[str, Activity]) -> QueueOrders:
    """Return the values of queues. `minute` is the activity of the last full minute by queue."""
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
