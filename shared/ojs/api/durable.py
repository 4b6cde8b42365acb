"""Durable code: checkpoints of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from ojs import runtime
from ojs.domain import times
from ojs.domain.access import Scope
from ojs.domain.errors import NotFound
from ojs.domain.requests import Field
from ojs.http.answer import AsIs, absent
from ojs.http.answers import Count, Id, Moment
from ojs.http.binding.request import Request
from ojs.http.endpoint import Permission, QueueScope, Reply, Resource
from ojs.http.models import LeaseToken, RequestModel, WorkerId

if TYPE_CHECKING:
    from ojs.domain.job.durable import Checkpoint

_JOB = QueueScope.JOB
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
