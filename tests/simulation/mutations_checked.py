"""Defects put into the code on purpose that seeds show seldom or never: a check shows each."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from ojs.domain.delivery.outcome import Verdict
from ojs.domain.job.states import State
from ojs.services.crons.firing import CronFiring
from ojs.services.deliveries import settle
from ojs.services.permits.reconcile import ReconcileSweep
from ojs.store.derived.recount import Occupancy
from ojs.store.table.table import Update
from tests.simulation import mutations_leases
from tests.simulation.mutations_late import Mutation, updates


def retries_do_not_overlap() -> AbstractContextManager[Any]:
    """A cron job fires though its last job waits for its next attempt."""
    previous = CronFiring._previous

    def mutated(of: CronFiring, cron: Any) -> Any:
        found = previous(of, cron)
        running = tuple(job for job in found.running if job.state is not State.RETRYABLE)
        return replace(found, running=running)

    return mock.patch.object(CronFiring, "_previous", mutated)


def throttled_pushes_are_attempts() -> AbstractContextManager[Any]:
    """A job whose target throttles is not given back: its attempt counts."""
    fewer = settle._NO_ATTEMPT - {Verdict.THROTTLED}
    return mock.patch.object(settle, "_NO_ATTEMPT", fewer)


def permits_are_counted_at_each_try() -> AbstractContextManager[Any]:
    """A semaphore counts a permit again when a write is repeated after a lost answer."""

    def mutate(wanted: Update) -> Update:
        if wanted.condition is None or "attribute_not_exists(#h_" not in wanted.condition:
            return wanted
        parts = wanted.condition.split(" AND ")
        left = [part for part in parts if not part.startswith("attribute_not_exists(#h_")]
        return replace(wanted, condition=" AND ".join(left))

    return updates(mutate)


def nobody_asks_the_stream() -> AbstractContextManager[Any]:
    """The reconcile subtracts what it did not find, though the stream has it."""
    subtract = ReconcileSweep._subtract

    def mutated(of: ReconcileSweep, known: Any, *args: Any) -> None:
        subtract(of, replace(known, projected=Occupancy(0, 0, 0, 0)), *args)

    return mock.patch.object(ReconcileSweep, "_subtract", mutated)


CHECKED: Mapping[str, Mutation] = {
    **mutations_leases.CHECKED,
    "a retry is no overlap": retries_do_not_overlap,
    "a throttled push is an attempt": throttled_pushes_are_attempts,
    "a permit is counted at each try": permits_are_counted_at_each_try,
    "the reconcile does not ask the stream": nobody_asks_the_stream,
}
