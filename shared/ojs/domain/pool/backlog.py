"""Computes the jobs per worker of a group, the metric for scaling the group.

A group is a set of workers that fetch from the same queues, for example the tasks of an ECS
service. Active jobs count like available jobs. Otherwise, a group would be scaled in while its
workers run the last jobs. These jobs would be released and started again, repeatedly.
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
    """The work of a worker group: available jobs that can start, active jobs, and workers that
    fetch.
    """

    group: str
    waiting: int = 0
    running: int = 0
    workers: int = 0

    @property
    def per_worker(self) -> float | None:
        """Jobs per worker, or None if the group has no workers."""
        return (self.waiting + self.running) / self.workers if self.workers else None

    @property
    def stranded(self) -> bool:
        """Whether jobs are available but the group has no workers."""
        return self.waiting > 0 and not self.workers


def takes_from(worker: Worker, queues: Collection[str]) -> bool:
    """Return whether a worker is registered for one of these queues."""
    told = worker.info.get("queues")
    return isinstance(told, list) and any(name in queues for name in told)


def startable(queue: Queue, levels: StateCounts) -> int:
    """Return the number of available jobs that additional workers could start.

    The number is 0 while no jobs are dispatched from the queue. It is at most the free part of the
    queue's concurrency limit.
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
    """Compute the work of each group.

    Args:
        groups: Names of queues by group.
        queues: State and job counts by queue name. Queues that are missing here are ignored.
        workers: Number of workers by group. Default of a group: 0.

    Yields:
        One Backlog per group.
    """
    for group, names in groups.items():
        there = [queues[name] for name in names if name in queues]
        yield Backlog(
            group,
            waiting=sum(startable(*each) for each in there),
            running=sum(max(0, levels.of(State.ACTIVE)) for _, levels in there),
            workers=workers.get(group, 0),
        )
