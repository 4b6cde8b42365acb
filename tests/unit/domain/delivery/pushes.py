"""Pushes to test with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ojs.domain.delivery.push import Push
from ojs.domain.job.failure import ErrorEntry, observed
from ojs.domain.job.job import Job, Lease
from ojs.domain.job.states import State

NOW_MS = 1_780_000_000_000
FUNCTION = "arn:aws:lambda:eu-central-1:123456789012:function:resize"


def job_id(number: int) -> str:
    return f"01a1fc33-056c-7000-815f-{number:012x}"


def push(number: int = 1, *, args: Any = None, name: str = "thumbs", lost: bool = False) -> Push:
    """A push of a job's first attempt; with `lost` of its second, after one without an outcome."""
    job = Job(
        id=job_id(number),
        type="image.resize",
        queue="images",
        state=State.ACTIVE,
        created_ms=NOW_MS - 5_000,
        enqueued_ms=NOW_MS - 5_000,
        started_ms=NOW_MS,
        attempt=1,
        content={"args": [{"key": "a.png"}] if args is None else args, "meta": {"trace": "t-1"}},
        lease=Lease(f"token-{number}", NOW_MS + 150_000, 150_000, f"push_worker_{name}"),
        worker_id=f"push_worker_{name}",
    )
    if lost:
        failure = observed("visibility_timeout", "gone", attempt=1, now_ms=NOW_MS)
        job = replace(job, attempt=2, noted=(ErrorEntry(failure),))
    return Push.of(job, name, timeout_ms=30_000)
