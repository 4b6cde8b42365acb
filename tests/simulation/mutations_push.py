"""Defects put into the code on purpose: of deliveries, and of who dispatches and settles."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from ojs.domain.delivery.delivery import worker_of
from ojs.services.deliveries.dispatch import DeliveryDispatcher, DispatchReport
from ojs.services.deliveries.settle import OutcomeProcessor
from ojs.services.deliveries.sweep import DeliverySweep
from ojs.services.jobs.fetch import JobFetcher
from ojs.services.sweeps import SweepReport
from tests.simulation.mutations_late import Mutation


def outcomes_need_no_lease() -> AbstractContextManager[Any]:
    """An outcome ends whatever run its job is in."""
    end = OutcomeProcessor._end

    def ends(self: Any, delivery: Any, one: Any, stopped: Any) -> None:
        job = self._finish._jobs.read_record(one.job_id)
        if job is not None and job.lease is not None:
            one = replace(one, lease_token=job.lease.token)
            if job.worker_id != worker_of(one.delivery):
                one = replace(one, delivery=(job.worker_id or "").removeprefix("push_worker_"))
        end(self, delivery, one, stopped)

    return mock.patch.object(OutcomeProcessor, "_end", ends)


def dispatch_takes_no_permits() -> AbstractContextManager[Any]:
    """Jobs are claimed for a delivery as if it had no limit."""
    fetch = JobFetcher.fetch

    def unlimited(self: Any, *args: Any, delivery: Any = None, **named: Any) -> Any:
        return fetch(self, *args, **named)

    return mock.patch.object(JobFetcher, "fetch", unlimited)


def sweep_wakes_nobody() -> AbstractContextManager[Any]:
    """A wake-up that was lost is lost for good."""
    return mock.patch.object(DeliverySweep, "run_once", return_value=SweepReport({}))


def dispatch_takes_what_was_settled() -> AbstractContextManager[Any]:
    """Whoever settles pushes one job, and leaves the other room to nobody."""
    run = DeliveryDispatcher.run

    def runs(self: Any, name: str, *, room: Any = None, **named: Any) -> Any:
        if not room:
            return run(self, name, **named)
        report, delivery = DispatchReport(), self._deliveries.get(name)
        if delivery is not None and self._may_push(delivery):
            self._round(delivery, 1, room, report, lambda: True)
        return report

    return mock.patch.object(DeliveryDispatcher, "run", runs)


PUSH: dict[str, tuple[Mutation, str]] = {
    "an outcome needs no lease": (outcomes_need_no_lease, "push"),
    "dispatch takes no permits": (dispatch_takes_no_permits, "push"),
    "the sweep wakes nobody": (sweep_wakes_nobody, "push"),
    "dispatch takes what was settled": (dispatch_takes_what_was_settled, "push"),
}
