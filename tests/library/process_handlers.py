"""Handlers that a worker's processes import."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from ojs_aws import JobContext


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
