"""Defects put into the code on purpose: of delayed batches, of pushes under keys, of erasures, and
of room that is in doubt.
"""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

from ojs.domain.bulk.operation import BulkOperation
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job.idempotency import IdempotencyKey
from ojs.services.jobs.fetch import JobFetcher
from ojs.services.listing.jobs import JobListing
from ojs.services.permits import backpressure
from ojs.store.jobs.idempotency_keys import IdempotencyKeys
from tests.simulation.mutations_late import Mutation, dropped


def due_jobs_of_batches_are_claimed() -> AbstractContextManager[Any]:
    """Whoever takes what is due does not ask for the batch of a job."""
    due = JobFetcher._due

    def blind(self: JobFetcher, *args: Any) -> Any:
        with mock.patch.object(self._jobs.batches, "uncommitted", return_value=set()):
            return due(self, *args)

    return mock.patch.object(JobFetcher, "_due", blind)


def each_try_has_ids_of_its_own() -> AbstractContextManager[Any]:
    """A later try of a request cannot tell what an earlier one stored."""
    job_id = IdempotencyKey.job_id

    def anew(self: IdempotencyKey, seed: str, at_ms: int, index: int) -> str:
        return job_id(self, f"{seed}{uuid.uuid4()}", at_ms, index)

    return mock.patch.object(IdempotencyKey, "job_id", anew)


def any_body_is_taken() -> AbstractContextManager[Any]:
    """What else came with a key is not compared."""
    begin = IdempotencyKeys.begin

    def same(self: Any, key: IdempotencyKey, **how: Any) -> Any:
        record, first = begin(self, key, **how)
        return replace(record, request=key.request), first

    return mock.patch.object(IdempotencyKeys, "begin", same)


def keys_are_not_noted() -> AbstractContextManager[Any]:
    """Each try takes itself for the first."""
    begin = IdempotencyKeys.begin

    def first(self: Any, key: IdempotencyKey, **how: Any) -> Any:
        return begin(self, replace(key, name=uuid.uuid4().hex), **how)

    return mock.patch.object(IdempotencyKeys, "begin", first)


def jobs_pushed_alone_are_staged_again() -> AbstractContextManager[Any]:
    """What an earlier try pushed one by one is not looked for."""
    return mock.patch("ojs.services.jobs.bulk_push.BulkPush._stored", return_value={})


def erasure_goes_round_once() -> AbstractContextManager[Any]:
    """What moves while an erasure looks is missed."""
    return mock.patch.object(BulkOperation, "needs_second_pass", property(lambda _: False))


def anybody_is_erased() -> AbstractContextManager[Any]:
    """What clients sent is not compared."""
    return mock.patch.object(JobFilter, "matches_content", return_value=True)


def empty_lines_are_passed_over() -> AbstractContextManager[Any]:
    """An erasure believes the counters."""
    part = JobListing.part

    def believing(self: Any, *args: Any, **how: Any) -> Any:
        return part(self, *args, **{**how, "everything": False})

    return mock.patch.object(JobListing, "part", believing)


def doubts_are_settled_at_once() -> AbstractContextManager[Any]:
    """Room of jobs that may still come is released."""
    return mock.patch.object(backpressure, "IN_DOUBT_MS", 0)


KEYED: dict[str, tuple[Mutation, str]] = {
    "due jobs of batches are claimed": (due_jobs_of_batches_are_claimed, "delayed"),
    "each try has ids of its own": (each_try_has_ids_of_its_own, "keys"),
    "any body is taken": (any_body_is_taken, "keys"),
    "keys are not noted": (keys_are_not_noted, "keys"),
    "jobs pushed alone are staged again": (jobs_pushed_alone_are_staged_again, "keys"),
    "a later try ends an earlier one": (dropped("#seed = :seed", of="I|"), "keys"),
    "an erasure goes round once": (erasure_goes_round_once, "erasing"),
    "anybody is erased": (anybody_is_erased, "erasing"),
    "empty lines are passed over": (empty_lines_are_passed_over, "erasing"),
    "doubts are settled at once": (doubts_are_settled_at_once, "doubted"),
}
