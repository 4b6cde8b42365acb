"""How much work there is for each worker of a group, by which the group is scaled.

A group is any number of workers that take jobs from the same queues, such as the tasks of a service
on ECS. Jobs that run count like those that wait: else a group would be made smaller while its
workers are busy with the last jobs, and these would be given back and begun anew for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ojs.domain.job.states import State
from ojs.domain.pool.worker import Worker
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import StateCounts
from ojs.records import record


@record(frozen=True)
class Backlog:
    """What a group of workers has to do: jobs in line that may start, jobs that run, and how many
    workers of it take jobs.
    """

    group: str
    waiting: int = 0
    running: int = 0
    workers: int = 0

    @property
    def per_worker(self) -> float | None:
        """Jobs for each worker; None without a worker: then there is no such number."""
        return (self.waiting + self.running) / self.workers if self.workers else None

    @property
    def stranded(self) -> bool:
        """Whether jobs wait and nobody is there to take them."""
        return self.waiting > 0 and not self.workers


def takes_from(worker: Worker, queues: Collection[str]) -> bool:
    """Whether a worker said that it takes jobs from one of these queues."""
    told = worker.info.get("queues")
    return isinstance(told, list) and any(name in queues for name in told)


def startable(queue: Queue, levels: StateCounts) -> int:
    """The jobs in line of a queue that more workers could start: none while it is paused or
    drained, and no more than its concurrency allows.
    """
    if not queue.hands_out:
        return 0
    waiting, most = max(0, levels.of(State.AVAILABLE)), queue.config.concurrency
    return waiting if most is None else min(waiting, max(0, most - levels.of(State.ACTIVE)))


def backlogs(
    groups: Mapping[str, Collection[str]],
    queues: Mapping[str, tuple[Queue, StateCounts]],
    workers: Mapping[str, int],
) -> Iterable[Backlog]:
    """What each group has to do, by its queues as they are; `workers` by group."""
    for group, names in groups.items():
        there = [queues[name] for name in names if name in queues]
        yield Backlog(
            group,
            waiting=sum(startable(*each) for each in there),
            running=sum(max(0, levels.of(State.ACTIVE)) for _, levels in there),
            workers=workers.get(group, 0),
        )
