"""Defects put into the code on purpose: of durable code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from ojs.domain.job import lifecycle
from ojs.domain.job.durable import Suspension
from ojs.services.jobs.children import Children
from ojs.services.jobs.signals import Signals
from ojs.services.jobs.suspensions import Suspensions
from ojs.store.jobs.checkpoints import CheckpointStore
from ojs.store.jobs.steps import StepStore
from ojs.store.table.table import Put
from tests.simulation.mutations_late import Mutation


def outcomes_are_replaced() -> AbstractContextManager[Any]:
    """The last outcome of a name counts."""
    putting = StepStore.putting
    return mock.patch.object(
        StepStore, "putting", lambda *args: replace(putting(*args), condition=None)
    )


@contextmanager
def suspensions_do_not_look() -> Iterator[None]:
    """A job falls asleep without looking for its signal."""
    replace_ = Suspensions.apply

    def blind(self: Suspensions, *args: Any) -> Any:
        with mock.patch("ojs.services.jobs.suspensions.LETTERS", {}):
            return replace_(self, *args)

    with mock.patch.object(Suspensions, "apply", blind):
        yield


def signals_do_not_wake() -> AbstractContextManager[Any]:
    """A signal is stored and counted, and nobody looks whether the job waits for it."""
    return mock.patch.object(Signals, "_after", return_value=(None, False))


def all_attempts_count() -> AbstractContextManager[Any]:
    """A step forgives nothing."""
    return mock.patch("ojs.domain.job.job.Job.counted_attempts", property(lambda job: job.attempt))


def sleeps_start_anew() -> AbstractContextManager[Any]:
    """Each attempt sleeps for the whole time."""
    ending = StepStore.ending
    return mock.patch.object(
        StepStore, "ending", staticmethod(lambda job, wait, *, now_ms, once=False: ending(
            job, wait, now_ms=now_ms
        ))
    )  # fmt: skip


def sleepers_wake_early() -> AbstractContextManager[Any]:
    """Half a second before their time."""
    suspend = lifecycle.suspend

    def early(job: Any, waits: Any, **how: Any) -> Any:
        after = suspend(job, waits, **how)
        if after.scheduled_ms is None or after.durable.waits is None:
            return after
        return replace(after, scheduled_ms=after.scheduled_ms - 1_500)

    return mock.patch.object(lifecycle, "suspend", early)


@contextmanager
def late_checkpoints_are_accepted() -> Iterator[None]:
    """The last write of a checkpoint counts, whoever makes it."""

    def blind(item: Any, *, condition: str, values: Any) -> Any:
        del condition, values
        return Put(item)

    with mock.patch("ojs.store.jobs.checkpoints.Put", blind):
        yield


def deleted_checkpoints_leave_nothing() -> AbstractContextManager[Any]:
    """As it was: a checkpoint is deleted with its number (found by review)."""
    return mock.patch.object(
        CheckpointStore, "clear", lambda self, job, *, now_ms: self.remove(job)
    )


def only_requests_end_children() -> AbstractContextManager[Any]:
    """The stream tells no parent of the end of its child."""
    return mock.patch("ojs.projections.project.durably_ended", return_value=())


def nobody_ends_children() -> AbstractContextManager[Any]:
    """No parent is told of the end of its child."""
    return mock.patch.object(Children, "ended", return_value=None)


def all_wake_with_the_first() -> AbstractContextManager[Any]:
    """A job that waits for all its children goes on with the first of them."""
    return mock.patch.object(Suspension, "without", return_value=None)


DURABLE: dict[str, tuple[Mutation, str]] = {
    "outcomes are replaced": (outcomes_are_replaced, "durable"),
    "a suspension does not look for its signal": (suspensions_do_not_look, "durable"),
    "a signal does not wake": (signals_do_not_wake, "durable"),
    "all attempts count": (all_attempts_count, "durable"),
    "sleeps start anew": (sleeps_start_anew, "durable"),
    "sleepers wake early": (sleepers_wake_early, "durable"),
    "late checkpoint is accepted": (late_checkpoints_are_accepted, "checkpoints"),
    "a deleted checkpoint leaves nothing": (deleted_checkpoints_leave_nothing, "checkpoints"),
    "the stream ends no children": (only_requests_end_children, "durable"),
    "nobody ends children": (nobody_ends_children, "durable"),
    "all wake with the first": (all_wake_with_the_first, "durable"),
}
