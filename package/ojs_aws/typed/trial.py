"""Runs durable code without a server, for unit tests."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TypeVar

from ojs_aws.client import background
from ojs_aws.client.call import Answer, Call
from ojs_aws.client.job import Job
from ojs_aws.typed.plain import Convert
from ojs_aws.worker.context import AsyncJobContext, JobContext
from ojs_aws.worker.durable import Durable
from ojs_aws.worker.handlers import ended
from ojs_aws.worker.steps import StepFailed, StepInterrupted

T = TypeVar("T")


class Trial(Durable):
    """Durable code whose steps and signals are given. Sleeps take no time."""

    def __init__(
        self, context: JobContext, steps: Mapping[str, Any], signals: Mapping[str, Any]
    ) -> None:
        super().__init__(context)
        self._steps = steps
        self._signals = signals
        self._is_read = True
        self._outcomes = {(kind, name): {} for kind in ("step", "job") for name in steps}

    async def _ask(self, call: Call[T], *, other: bool = False) -> T:
        if call.path in ("jobs", "jobs/batch", "workflows"):
            raise LookupError("try_out() starts no child jobs. Pass their results in steps by name")
        stored = {"steps": [{"stored": True} for _ in call.body.get("steps", ())]}
        return call.read(stored)

    async def _pause(self, seconds: float) -> None:
        pass

    def _value(self, name: str, outcome: Answer, convert: Convert) -> Any:
        if name not in self._steps:
            return super()._value(name, outcome, convert)
        value = self._steps[name]
        if isinstance(value, Exception):
            raise StepFailed(name, ended(value, self.context).entry["error"])
        return value

    async def _wait(self, kind: str, name: str, ends: Answer) -> Answer | None:
        if kind == "sleep" or name not in self._signals:
            return None
        at = datetime.now(timezone.utc).isoformat()
        return {"result": self._signals[name], "stored_at": at}


def try_out(
    job_type: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    steps: Mapping[str, Any], signals: Mapping[str, Any],
) -> Any:  # fmt: skip
    """Run the function of a job type. Its only attempt is the last one."""
    job = Job("try-out", job_type.name, attempt=1, max_attempts=1)
    kind = job_type.signature.context
    context = AsyncJobContext(job) if kind is AsyncJobContext else JobContext(job)
    context.code_version = job_type.version
    context.durable = Trial(context, steps, signals)
    try:
        found = job_type.function(*([context] if kind else []), *args, **kwargs)
        return background.result(found) if inspect.iscoroutine(found) else found
    except StepInterrupted as error:
        raise error.__cause__ or error from None
