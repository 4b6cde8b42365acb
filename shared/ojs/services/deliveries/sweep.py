"""Wakes deliveries whose wake-up messages were lost, and schedules messages for jobs due later.

A request schedules a wake-up message only if the job is due within the maximum delay of an SQS
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ojs.domain.delivery.delivery import Delivery, DeliveryState
from ojs.domain.job.states import State
from ojs.services.deliveries.wake import ARMED_MS, DeliveryWake
from ojs.services.sweeps import (
    GoOn,
    SweepPlan,
    SweepQueues,
    SweepReport,
    SweepRun,
    always,
    counting_failures,
)
from ojs.store.deliveries.deliveries import DeliveryStore, served
from ojs.store.jobs.finding import JobIndex
from ojs.store.queues.due_notes import BUCKET_MS, DueNotes
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys

if TYPE_CHECKING:
    from ojs.domain.queue.queue import Queue

# Period (ms) for which the sweep schedules wake-up messages: 1 minute shorter than the period of
# requests.
_AHEAD_MS = ARMED_MS - 60_000
# Maximum number of due entries per lane and run. The next run continues after them.
_ENTRIES = 1_000


class DeliverySweep:
    """Wakes deliveries whose queues are not idle, and arms their timers."""

    name = "deliveries"

    def __init__(
        self,
        *,
        deliveries: DeliveryStore,
        pools: PoolStore,
        queues: QueueStore,
        sweep_queues: SweepQueues,
        index: JobIndex,
        due_notes: DueNotes,
        wake: DeliveryWake,
    ) -> None:
        self._deliveries = deliveries
        self._pools = pools
        self._queues = queues
        self._every = sweep_queues
        self._index = index
        self._due_notes = due_notes
        self._wake = wake

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check the queues of deliveries, except idle queues.

        Without deliveries, makes one call.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of queues.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The counts woken (deliveries), armed (scheduled wake-up messages), failed, and `more`.
        """
        run = SweepRun(now_ms, limit, go_on)
        serving = served(self._deliveries.directory(consistent=False), self._pools)
        if not serving:
            return SweepReport({})
        plan = self._every.plan()
        lines = {*plan.due.lines}
        for bucket in range(now_ms // BUCKET_MS + 1, (now_ms + _AHEAD_MS) // BUCKET_MS + 1):
            lines.update(self._due_notes.noted(bucket))
        due = {keys.lane_of(line)[0] for line in filter(keys.is_sweepable, lines)}
        wanted = [name for name in serving if _is_looked_at(name, plan, due)]
        names = dict.fromkeys(each for name in wanted for each in serving[name])
        known = {each.name: each for each in self._deliveries.get_many(names)}
        active = {name: each for name, each in known.items() if each.state is DeliveryState.ACTIVE}
        self._wake.wake(active)
        run.counts["woken"] += len(active)
        queues, _ = self._queues.get_many(wanted)
        armed: dict[str, int] = {}
        for at, queue in enumerate(queues.values()):
            if run.stop(at):
                break
            with counting_failures(run.counts, f"timers of queue {queue.name}"):
                mine = [active[name] for name in serving[queue.name] if name in active]
                self._arm(queue, mine, run, armed)
        for name, until_ms in armed.items():
            with counting_failures(run.counts, f"delivery {name}"):
                self._deliveries.armed(active[name], until_ms)
        return SweepReport(+run.counts, failures=run.counts.failures)

    def _arm(
        self,
        queue: Queue,
        deliveries: Sequence[Delivery],
        run: SweepRun,
        armed: dict[str, int],
    ) -> None:
        """Schedule a wake-up message for each second in which a job of a queue is due.

        Starts after the messages of earlier runs. Stores the end of the period in `armed`.
        """
        if not deliveries:
            return
        after_ms = max(run.now_ms, min(each.armed_ms for each in deliveries))
        until_ms = run.now_ms + _AHEAD_MS
        for lane in range(queue.lanes):
            found = self._index.due_between(
                queue.name, lane, after_ms=after_ms, until_ms=until_ms, limit=_ENTRIES
            )
            for due_ms in sorted({ms // 1_000 * 1_000 for ms in found}):
                self._wake.schedule_wakeup([each.name for each in deliveries], due_ms)
                run.counts["armed"] += 1
            # The next run schedules the messages of later entries.
            reached_ms = found[-1] - 1 if len(found) == _ENTRIES else until_ms
            for each in deliveries if found else ():
                armed[each.name] = min(armed.get(each.name, reached_ms), reached_ms)


def _is_looked_at(name: str, plan: SweepPlan, due: set[str]) -> bool:
    """Check whether a queue can contain jobs that are available or due soon."""
    if name not in plan.queues:
        return False
    rest = plan.resting.get(name)
    if rest is not None and rest.levels.of(State.AVAILABLE):
        # An idle queue has available jobs: the wake-up message was lost, or the delivery couldn't
        # send.
        return True
    return rest is None or name in due
