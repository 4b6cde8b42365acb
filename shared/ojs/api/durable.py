"""Durable code: checkpoints, steps, and signals of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from ojs import runtime
from ojs.domain import jsontext, times
from ojs.domain.access import Scope
from ojs.domain.errors import InvalidRequest, NotFound, PayloadTooLarge
from ojs.domain.job import idempotency
from ojs.domain.job.durable import MAX_RESULT_BYTES, STEP_NAME, DurableOutcome, OutcomeKind
from ojs.domain.job.envelope import check_step_name
from ojs.domain.job.idempotency import IdempotencyKey
from ojs.domain.requests import After, Field
from ojs.http.answer import AsIs, absent, present
from ojs.http.answers import Count, Id, Moment
from ojs.http.binding import paging
from ojs.http.binding.request import Request
from ojs.http.endpoint import Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import LeaseToken, RequestModel, WorkerId
from ojs.http.parameters import SEALED

if TYPE_CHECKING:
    from ojs.domain.job.durable import Checkpoint

_JOB = QueueScope.JOB
MAX_SAVES = 25
_WORKS = Permission(Scope.WORK, _JOB)
_READS = Permission(Scope.WORK, _JOB, (Scope.JOBS_READ,))
_DELETES = Permission(Scope.WORK, _JOB, (Scope.ADMIN_WRITE,))
jobs = Resource("jobs", "jobs", lenient=True)
# The durable helpers of official SDKs repeat the base path.
sdk = Resource("checkpoints", "jobs", {"repeated_{}": "ojs/v1/checkpoints"}, lenient=True)


class CheckpointRequest(RequestModel):
    """The state of a job, to resume from."""

    state: Any = Field(description="any JSON value of at most 1 MiB; null counts as a value")
    worker_id: WorkerId | None = None
    lease_token: LeaseToken | None = None


class SdkCheckpointRequest(RequestModel):
    """The state of a job, as the durable helpers of official SDKs send it."""

    state: Any = Field(description="any JSON value; null counts as a value")
    step_index: Annotated[int, Field(ge=0)] | None = None
    metadata: dict[str, Any] | None = None


class SavedCheckpoint(AsIs):
    """The number and the time of a checkpoint."""

    job_id: Id
    sequence: Count
    created_at: Moment


class CheckpointSavedAnswer(SavedCheckpoint):
    """A saved checkpoint."""

    checkpoint: SavedCheckpoint


class StoredCheckpoint(SavedCheckpoint):
    """A checkpoint."""

    state: Any


class CheckpointAnswer(StoredCheckpoint):
    """The latest checkpoint of a job."""

    checkpoint: StoredCheckpoint


class CheckpointDeletedAnswer(AsIs):
    """The job has no checkpoint now."""

    deleted: Literal[True]
    job_id: Id


class SdkCheckpoint(AsIs):
    """A checkpoint, as the durable helpers of official SDKs read it."""

    state: Any
    sequence: Count
    step_index: Count = absent()
    metadata: dict[str, Any] = absent()


class ResumeAnswer(AsIs):
    """The checkpoint to resume a job from, if it has one."""

    has_checkpoint: bool
    checkpoint: SdkCheckpoint = absent()


def _moment(value: str) -> str:
    times.moment_ms(value)
    return value


class StepOutcome(RequestModel):
    """The outcome of a step: its result, or its error."""

    unknown = "refused"

    name: Annotated[
        str, After(check_step_name), Field(json_schema_extra={"pattern": STEP_NAME.pattern})
    ]
    save: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="identifies this save, so that a repeated request returns the same"
    )
    kind: OutcomeKind | None = Field(
        None, description="default step; signal: the wait for it has ended"
    )
    result: Any = Field(None, description="any JSON value of at most 256 KiB")
    error: dict[str, Any] | None = Field(None, description="instead of a result")
    started_at: Annotated[str, After(_moment)] | None = None
    duration_ms: Annotated[int, Field(ge=0, le=times.MAX_MS)] | None = None

    def outcome(self, at: str) -> DurableOutcome:
        """Return the outcome. Raises InvalidRequest, PayloadTooLarge."""
        if self.error is not None and "result" in self.model_fields_set:
            raise InvalidRequest(f"{at}.result", "can't be combined with error. Send one of them")
        value = self.result if self.error is None else self.error
        if (size := jsontext.size_of(value)) > MAX_RESULT_BYTES:
            what = "result" if self.error is None else "error"
            raise PayloadTooLarge(f"{at}.{what}", size=size, limit=MAX_RESULT_BYTES)
        began = self.started_at
        return DurableOutcome(
            self.name,
            self.kind or OutcomeKind.STEP,
            self.error is None,
            value,
            self.save,
            started_ms=None if began is None else times.moment_ms(began),
            duration_ms=self.duration_ms,
        )


class SaveStepsRequest(RequestModel):
    """Outcomes of steps of an active job."""

    unknown = "refused"

    lease_token: LeaseToken | None = Field(
        None, description="required: 422 lease_token_required without it"
    )
    version: Annotated[int, Field(ge=0, le=2**31)] | None = Field(
        None, description="version of the code; the first one that is sent for a job counts"
    )
    steps: Annotated[list[StepOutcome], Field(min_length=1, max_length=MAX_SAVES)]

    def outcomes(self) -> list[DurableOutcome]:
        """Return the outcomes. Raises InvalidRequest, PayloadTooLarge."""
        found = [step.outcome(f"steps[{at}]") for at, step in enumerate(self.steps)]
        for at, one in enumerate(found):
            if any((one.kind, one.name) == (each.kind, each.name) for each in found[:at]):
                rule = "is a duplicate. Send each name once"
                raise InvalidRequest(f"steps[{at}].name", rule, value=one.name)
        return found


class SignalRequest(RequestModel):
    """A signal to a job. A signal is sent once, so a misspelled field must not lose its data."""

    unknown = "refused"

    data: Any = Field(None, description="any JSON value of at most 64 KiB")


class SavedStep(AsIs):
    """Whether an outcome is stored. Otherwise another one was first, which counts."""

    name: str
    stored: bool
    result: Any = absent()
    error: dict[str, Any] = absent()


class StepsSavedAnswer(AsIs):
    """The outcomes that count, and the renewed lease."""

    steps: list[SavedStep]
    lease_expires_at: Moment


class StoredStep(AsIs):
    """A stored outcome."""

    name: str
    kind: OutcomeKind
    status: Literal["completed", "failed"]
    result: Any = absent()
    error: dict[str, Any] = absent()
    attempt: Count
    started_at: Moment = absent()
    duration_ms: Count = absent()
    stored_at: Moment


class StoredWait(AsIs):
    """When a sleep or a wait for a signal ends, and whether that time has passed."""

    name: str
    kind: str
    until: Moment
    over: bool


class CursorPage(AsIs):
    """Where the next page starts."""

    has_more: bool
    next_cursor: str = absent()


class StepsAnswer(AsIs):
    """A page of the stored outcomes of a job."""

    steps: list[StoredStep]
    waits: list[StoredWait]
    version: Count = absent()
    epoch: Count
    pagination: CursorPage


class StepDeletedAnswer(AsIs):
    """The step runs again in the next attempt."""

    deleted: Literal[True]
    job_id: Id
    name: str


class SignalAnswer(AsIs):
    """A stored signal."""

    job_id: Id
    name: str
    sent_at: Moment
    woken: bool = present("whether the signal made the job available")


def _saved(job_id: str, stored: Checkpoint) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "sequence": stored.sequence,
        "created_at": times.format_ms(stored.created_ms),
    }


def _twice(told: dict[str, Any]) -> Reply:
    """Return the fields of a checkpoint under `checkpoint` and at the top level."""
    return Reply({"checkpoint": told, **told})


def _save(request: Request, body: Any, **more: Any) -> Reply:
    stored = runtime.current().checkpoints.save(request.named, body.state, **more)
    return _twice(_saved(request.named, stored))


@jobs.endpoint(
    "POST /{id}/checkpoint",
    _WORKS,
    CheckpointSavedAnswer,
    errors=(404, 409, 413),
    request=CheckpointRequest,
    example={"state": {"rows": 5_000, "cursor": "abc"}},
)
@jobs.endpoint(
    "PUT /{id}/checkpoint",
    _WORKS,
    CheckpointSavedAnswer,
    errors=(404, 409, 413),
    request=CheckpointRequest,
    example={"state": {"rows": 5_000, "cursor": "abc"}},
    name="put_checkpoint",
)
def save_checkpoint(request: Request) -> Reply:
    """Save the state of an active job.

    The number of the checkpoint. Only the latest checkpoint is kept.
    """
    body = request.parsed(CheckpointRequest)
    return _save(request, body, worker_id=body.worker_id, lease_token=body.lease_token)


@jobs.endpoint("GET /{id}/checkpoint", _READS, CheckpointAnswer, errors=(404,))
def get_checkpoint(request: Request) -> Reply:
    """Read the latest checkpoint of a job."""
    stored = runtime.current().checkpoints.get(request.named)
    if stored is None:
        raise NotFound("checkpoint", request.named)
    told = _saved(request.named, stored) | {"state": stored.state}
    return _twice(told)


@jobs.endpoint("DELETE /{id}/checkpoint", _DELETES, CheckpointDeletedAnswer, errors=(404,))
@sdk.endpoint(
    "DELETE /{id}", _DELETES, CheckpointDeletedAnswer, errors=(404,), name="delete_sdk_checkpoint"
)
def delete_checkpoint(request: Request) -> Reply:
    """Delete the checkpoint of a job."""
    runtime.current().checkpoints.delete(request.named)
    return Reply({"deleted": True, "job_id": request.named})


@sdk.endpoint(
    "POST /{id}",
    _WORKS,
    CheckpointSavedAnswer,
    errors=(404, 409, 413),
    request=SdkCheckpointRequest,
    example={"state": {"rows": 5_000}, "step_index": 2, "metadata": {"step": "load"}},
)
def save_sdk_checkpoint(request: Request) -> Reply:
    """Save the state of an active job, as official SDKs send it.

    The number of the checkpoint.
    """
    body = request.parsed(SdkCheckpointRequest)
    more = {"step_index": body.step_index, "metadata": body.metadata}
    given = {name: value for name, value in more.items() if value is not None}
    return _save(request, body, more=given)


@sdk.endpoint("GET /{id}/resume", _READS, ResumeAnswer, errors=(404,))
def resume_from_checkpoint(request: Request) -> Reply:
    """Read the checkpoint to resume a job from, as official SDKs do."""
    stored = runtime.current().checkpoints.get(request.named)
    if stored is None:
        return Reply({"has_checkpoint": False})
    told = {"state": stored.state, "sequence": stored.sequence, **stored.more}
    return Reply({"has_checkpoint": True, "checkpoint": told})


# --- steps and signals ----------------------------------------------------------------------------

# fmt: off
_PAGE = (
    Parameter("cursor", SEALED, "`pagination.next_cursor` of the page before"),
    Parameter("results", {"type": "boolean", "default": True}, "false: without results and errors"),
)
_KEY = (
    Parameter(idempotency.HEADER,
        {"type": "string", "minLength": 1, "maxLength": idempotency.MAX_KEY_CHARACTERS,
         "pattern": r"[\x20-\x7e]*"},
        "a repeated request with the same key returns the same signal"),
)
# fmt: on


def _value(outcome: DurableOutcome) -> dict[str, Any]:
    return {"result" if outcome.ok else "error": outcome.value}


@jobs.endpoint(
    "POST /{id}/steps",
    _WORKS,
    StepsSavedAnswer,
    errors=(404, 409, 413),
    request=SaveStepsRequest,
    example={
        "lease_token": "n1Zk0Yd2",
        "version": 2,
        "steps": [{"name": "charge", "save": "5f0c", "result": {"charge_id": "ch_1"}}],
    },
)
def save_steps(request: Request) -> Reply:
    """Store outcomes of steps of an active job, once by name."""
    body = request.parsed(SaveStepsRequest)
    outcomes = body.outcomes()
    saved = runtime.current().steps.save(
        request.named, outcomes, lease_token=body.lease_token, version=body.version
    )
    told = []
    for outcome, first in zip(outcomes, saved.first, strict=True):
        other = None if first is None or first.save == outcome.save else first
        value = {} if other is None else _value(other)
        told.append({"name": outcome.name, "stored": other is None, **value})
    lease = saved.job.lease
    until_ms = 0 if lease is None else lease.until_ms
    return Reply({"steps": told, "lease_expires_at": times.format_ms(until_ms)})


@jobs.endpoint("GET /{id}/steps", _READS, StepsAnswer, errors=(404,), query=_PAGE)
def list_steps(request: Request) -> Reply:
    """Read the stored outcomes of a job's steps and waits."""
    wanted = request.query.get("results", "true").lower()
    if wanted not in ("true", "false"):
        raise InvalidRequest("results", "must be true or false", value=wanted)
    cursor = request.query.get("cursor")
    current = runtime.current()
    job, page = current.steps.page(
        request.named,
        results=wanted == "true",
        after=paging.opened(cursor) if cursor else None,
    )
    now_ms = current.clock.now_ms()
    more = {} if page.last is None else {"next_cursor": paging.sealed(page.last)}
    durable = job.durable
    version = {} if durable.version is None else {"version": durable.version}
    return Reply(
        {
            "steps": [_stored(one, results=wanted == "true") for one in page.outcomes],
            "waits": [
                {
                    "name": wait.name,
                    "kind": wait.kind,
                    "until": times.format_ms(wait.until_ms),
                    "over": wait.until_ms <= now_ms,
                }
                for wait in page.waits
            ],
            **version,
            "epoch": durable.epoch,
            "pagination": {"has_more": page.last is not None, **more},
        }
    )


def _stored(outcome: DurableOutcome, *, results: bool) -> dict[str, Any]:
    began, length = outcome.started_ms, outcome.duration_ms
    return {
        "name": outcome.name,
        "kind": outcome.kind,
        "status": "completed" if outcome.ok else "failed",
        **(_value(outcome) if results else {}),
        "attempt": outcome.attempt,
        **({} if began is None else {"started_at": times.format_ms(began)}),
        **({} if length is None else {"duration_ms": length}),
        "stored_at": times.format_ms(outcome.stored_ms),
    }


@jobs.endpoint(
    "DELETE /{id}/steps/{step}",
    Permission(Scope.ADMIN_WRITE, _JOB),
    StepDeletedAnswer,
    errors=(404, 409),
)
def delete_step(request: Request) -> Reply:
    """Delete the stored outcome of a step, so that it runs again."""
    runtime.current().steps.forget(request.named, request.second_named)
    return Reply({"deleted": True, "job_id": request.named, "name": request.second_named})


@jobs.endpoint(
    "POST /{id}/signals/{signal}",
    Permission(Scope.JOBS_WRITE, _JOB),
    {202: Success(SignalAnswer, "The signal is stored.")},
    errors=(404, 409, 413),
    request=SignalRequest,
    body_required=False,
    example={"data": {"approved_by": "alice@example.com"}},
    headers=_KEY,
)
def send_signal(request: Request) -> Reply:
    """Send a signal that a job waits for, or will wait for."""
    body = request.parsed(SignalRequest)
    key = request.headers.get(idempotency.HEADER.lower())
    if key is not None:
        given = IdempotencyKey.of(
            key,
            caller=request.principal,
            operation=request.operation.id,
            body={"data": body.data},
            field=idempotency.HEADER,
        )
        # Other data with the same key is another signal.
        key = given.name + given.request.hex()
    sent = runtime.current().signals.send(request.named, request.second_named, body.data, key=key)
    return Reply(
        {
            "job_id": request.named,
            "name": request.second_named,
            "sent_at": times.format_ms(sent.stored_ms),
            "woken": sent.woken,
        },
        202,
    )
