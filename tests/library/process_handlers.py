"""Handlers that a worker's processes import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from ojs_aws import AsyncJobContext, JobContext, Jobs


def add(job: JobContext) -> dict[str, Any]:
    job.progress(0.5, "half")
    return {"sum": sum(job.args), "pid": os.getpid()}


def dies(_job: JobContext) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs(_job: JobContext) -> None:
    time.sleep(60)


def waits(job: JobContext) -> None:
    job.sleep(60)


def around(job: JobContext, following: Callable[[JobContext], Any]) -> Any:
    return {"around": following(job)}


durable_jobs = Jobs(queue="durable")


def double(number: int) -> str:
    return str(2 * number)


@durable_jobs.job("steps")
def steps(job: JobContext, number: int) -> list[Any]:
    found = job.step("double", double, number)
    signal = job.wait_for("go", timeout="P1D")
    return [found, signal and signal.data]


@durable_jobs.job("steps.async")
async def asteps(job: AsyncJobContext, number: int) -> list[Any]:
    found = await job.step("double", double, number)
    signal = await job.wait_for("go", timeout="P1D")
    return [found, signal and signal.data]
