"""Defects put into the code on purpose: of durable code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from ojs.domain.job import lifecycle
from ojs.services.jobs.signals import Signals
from ojs.services.jobs.suspensions import Suspensions
from ojs.store.jobs.steps import StepStore
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


DURABLE: dict[str, tuple[Mutation, str]] = {
    "outcomes are replaced": (outcomes_are_replaced, "durable"),
    "a suspension does not look for its signal": (suspensions_do_not_look, "durable"),
    "a signal does not wake": (signals_do_not_wake, "durable"),
    "all attempts count": (all_attempts_count, "durable"),
    "sleeps start anew": (sleeps_start_anew, "durable"),
    "sleepers wake early": (sleepers_wake_early, "durable"),
}
