"""Builds the response objects of jobs.

Lambda limits the size of a response, so a response with jobs has at most `MAX_ANSWER_BYTES`. Fields
that don't fit are omitted. The field `omitted` of the job lists their names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from ojs import runtime
from ojs.domain import jsontext
from ojs.domain.errors import BAD_CURSOR, InvalidRequest, OjsError
from ojs.domain.job import history as histories
from ojs.domain.job import job as jobs
from ojs.domain.job.foreign import MAX_WARNINGS
from ojs.domain.job.job import MISSING, Job
from ojs.domain.job.states import State
from ojs.http.answer import made, source
from ojs.http.answers import Job as ShownJob
from ojs.http.binding import errors, paging
from ojs.http.binding.paging import Listed, Paged

if TYPE_CHECKING:
    from ojs.services.jobs.batch_finish import BatchOutcome
    from ojs.services.jobs.bulk_push import PushOutcome
    from ojs.services.jobs.manage import Progress

# Lambda sends at most 6 MB (6,291,556 bytes). The difference is for headers and the outer JSON.
MAX_ANSWER_BYTES = 6_000_000
# Maximum size of the results in one response. A single result always fits.
MAX_RESULTS_BYTES = 4_000_000
# Reserved for the small fields of a job at the top level, and for the pagination.
_AROUND_BYTES = 20_000
# The top level repeats only the small fields of a larger job.
MAX_COPY_BYTES = 262_144
# Maximum size of the error history in a job. Older errors are omitted.
MAX_ERRORS_BYTES = 1_500_000

# The fields that list omitted parts of a job. They replace a client's own field of that name.
_OMITTED: Final = "omitted"
_ERRORS_OMITTED: Final = "errors_omitted"
# The name of the client's own fields in `omitted`.
REST = "*"

# Fields that can be large. `omitted` lists each by name. The client's own fields can have any
# number and length, so `omitted` lists them together as `REST`.
LARGE_FIELDS = (
    "args", "meta", "result", "error", "errors", "options", "retry", "unique", "tags", "schema",
    "metadata", "parent_results", "parent_errors", "parent_results_by_step", "checkpoint",
    "last_checkpoint", "waiting",
)  # fmt: skip
# The fields that a large job keeps. The server writes or checks them, so they have at most a few
# hundred characters. The list names the kept fields, because clients can add fields of any name.
SMALL_FIELDS = frozenset(jobs.SHOWN) - set(LARGE_FIELDS) | {
    "specversion", "id", "type", "queue", "expires_at", "timeout", "timeout_ms",
    "visibility_timeout_ms", "rate_limit", "parent_id", "root_id",
}  # fmt: skip
# The fields of a job in the outcome of a batched ack or nack.
_OF_OUTCOME = (
    "state", "attempt", "max_attempts", "retry_delay_ms", "next_attempt_at", "completed_at",
    "discarded_at",
)  # fmt: skip
# The fields of a job in the response to a bulk enqueue.
_IN_SHORT = ("id", "type", "queue", "state", "created_at", "scheduled_at")
# The times of a job that the admin API adds to `metadata`.
_TIMES = (
    "created_at", "enqueued_at", "started_at", "scheduled_at", "completed_at", "cancelled_at",
    "discarded_at",
)  # fmt: skip
# Fields at the top level of a response that describe the request, not the job.
_ABOUT_THE_REQUEST = frozenset({"deduplicated", "warnings"})
# Fields to omit, in this order, from a single job that does not fit into a response.
_LEFT_OUT_FIRST: tuple[Literal["result", "errors"], ...] = ("result", "errors")


def sent_bytes(value: Any) -> int:
    """Return the maximum size of `value` in a Lambda response, in bytes.

    The response contains the body as a JSON string, so quotes and backslashes count twice. On
    Python 3.11, a non-ASCII character counts 6 or 12 bytes. Later versions don't escape it.
    """
    return len(json.dumps(jsontext.dumps(value))) - 2


def fetched(claimed: Sequence[Job]) -> dict[str, Any]:
    """Build the response to a fetch. A fetch claims only jobs that fit, so none is reduced."""
    return {"jobs": [_shown(job) for job in claimed]}


def whole(job: Job) -> dict[str, Any]:
    """Build a job. Its error history has the most recent errors, up to `MAX_ERRORS_BYTES`.

    A result or an error history above the response size limit is omitted. Clients read them from
    `…/result` and `…/retries`.
    """
    shown = _shown(job)
    if "errors" not in shown and "result" not in shown:
        return shown  # a payload alone always fits (ojs.domain.job.envelope.MAX_JOB_BYTES)
    if "errors" in shown:
        shown["errors"], left_out = _latest(shown["errors"], MAX_ERRORS_BYTES)
        if left_out:
            shown[_ERRORS_OMITTED] = left_out
    for name in _LEFT_OUT_FIRST:
        if sent_bytes(shown) <= MAX_ANSWER_BYTES - _AROUND_BYTES:
            break
        if name in shown:
            del shown[name]
            shown[_OMITTED] = [*shown.get(_OMITTED, ()), name]
    return shown


def _shown(job: Job) -> dict[str, Any]:
    """Build a job from all its loaded fields."""
    if job.result_ttl_s is not None:
        job = job.without_expired_result(runtime.current().clock.now_ms())
    shown = jobs.to_dict(job)
    shown.pop(_OMITTED, None)
    shown.pop(_ERRORS_OMITTED, None)
    if job.checkpoint is not None and not job.checkpoint.repeated:
        shown[_OMITTED] = ["last_checkpoint"]
    if job.content is None:
        # The offloaded payload is not loaded, so the client's own fields are unknown.
        shown[_OMITTED] = ["args", "meta", REST]
    return shown


def _latest(errors: Sequence[dict[str, Any]], room: int) -> tuple[list[dict[str, Any]], int]:
    """Return the most recent errors that fit into `room` bytes, and the number of older ones."""
    kept: list[dict[str, Any]] = []
    for error in reversed(errors):
        room -= sent_bytes(error) + 1
        if room < 0:
            break
        kept.append(error)
    return kept[::-1], len(errors) - len(kept)


def _slim(shown: dict[str, Any]) -> dict[str, Any]:
    """Reduce a job to its small fields. `omitted` lists the others."""
    whole: Mapping[str, Any] = shown
    kept: dict[str, Any] = {name: value for name, value in whole.items() if name in SMALL_FIELDS}
    left_out = {name for name in shown if name not in kept} - {_OMITTED, _ERRORS_OMITTED}
    if shown.get("dead_letter") and isinstance(shown.get("metadata"), dict):
        # Only the two times of ojs-dead-letter section 9.2, without the client's own keys.
        kept["metadata"] = {name: whole[name] for name in ("created_at", "discarded_at")}
        if kept["metadata"] == shown["metadata"]:
            left_out.discard("metadata")
    names = [name for name in LARGE_FIELDS if name in left_out]
    if left_out.difference(LARGE_FIELDS):
        names.append(REST)
    names += [name for name in shown.get(_OMITTED, ()) if name not in names]
    if names:
        kept[_OMITTED] = names
    return kept


def _listed(found: Iterable[Job], room: int) -> list[dict[str, Any]]:
    """Build jobs within `room` bytes, in order. A job that doesn't fit has small fields only."""
    listed = []
    for job in found:
        shown = whole(job)
        slim = _slim(shown)
        size = sent_bytes(slim) + 1
        listed.append((shown, slim, sent_bytes(shown) + 1 - size))
        room -= size
    chosen = []
    for shown, slim, more in listed:
        if more <= room:
            room -= max(0, more)
            chosen.append(shown)
        else:
            chosen.append(slim)
    return chosen


def detail(job: Job, warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Build a response with a job under `job` and its fields at the top level.

    The top level repeats only the small fields of a job of more than `MAX_COPY_BYTES`.

    Args:
        job: The job.
        warnings: Warnings about the request.
    """
    shown = whole(job)
    small = sent_bytes(shown) <= MAX_COPY_BYTES
    copy: Mapping[str, Any] = shown if small else _slim(shown)
    # A client's own field of such a name would look like a statement about the request.
    flat = {name: value for name, value in copy.items() if name not in _ABOUT_THE_REQUEST}
    return {**flat, "job": shown, **_warned(warnings)}


def for_operators(job: Job) -> dict[str, Any]:
    """Build a job for the admin API (ojs-admin-api section 7.2).

    It always contains `errors` and `meta`, because dashboards require them.
    """
    flat: dict[str, Any] = dict(detail(job))
    own = flat.get("metadata")
    flat["metadata"] = {
        **(own if isinstance(own, dict) else {}),
        **{name: flat[name] for name in _TIMES if name in flat},
    }
    return {"errors": [], "meta": {}, **flat, "retry_policy": job.policy.to_dict()}


def _warned(warnings: Sequence[str]) -> dict[str, Any]:
    return {"warnings": list(warnings[:MAX_WARNINGS])} if warnings else {}


def wrapped(job: Job) -> dict[str, Any]:
    """Build a response with one job under `job`."""
    return {"job": whole(job)}


def deduplicated(job: Job, warnings: Sequence[str]) -> dict[str, Any]:
    """Build the response to a duplicate request: the existing job."""
    return {**detail(job, warnings), "deduplicated": True}


def batch(stored: Sequence[Job], warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Build the response to a batch enqueue. The jobs are in the order of the request."""
    return {
        "jobs": _listed(stored, MAX_ANSWER_BYTES - _AROUND_BYTES),
        "count": len(stored),
        "enqueued": len(stored),
        "failed": 0,
        **_warned(warnings),
    }


def bulk_pushed(outcomes: Sequence[PushOutcome], warnings: Sequence[str] = ()) -> dict[str, Any]:
    """Build the response to a bulk enqueue: an outcome for each job, in request order."""
    failed = sum(isinstance(outcome, OjsError) for outcome in outcomes)
    return {
        "total": len(outcomes),
        "succeeded": len(outcomes) - failed,
        "failed": failed,
        "items": [_bulk_item(index, outcome) for index, outcome in enumerate(outcomes)],
        **_warned(warnings),
    }


def _bulk_item(index: int, outcome: PushOutcome) -> dict[str, Any]:
    if isinstance(outcome, OjsError):
        return {"index": index, "status": "failed", "error": errors.brief(outcome)}
    shown = jobs.to_dict(outcome.job)
    kept = {name: shown[name] for name in _IN_SHORT if name in shown}
    return {
        "index": index,
        "status": "duplicate" if outcome.deduplicated else "created",
        "job": kept,
    }


def acknowledged(job: Job) -> dict[str, Any]:
    """Build the response to an ack."""
    shown = whole(job)
    return {
        "acknowledged": True,
        "id": job.id,
        "job_id": job.id,
        "state": shown["state"],
        "completed_at": shown["completed_at"],
        "job": shown,
    }


def failed(job: Job) -> dict[str, Any]:
    """Build the response to a nack: the new state of the job, and the time of its retry or end."""
    shown = whole(job)
    return {
        "id": job.id,
        "job_id": job.id,
        "state": shown["state"],
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        **_nack_times(job, shown),
        "job": shown,
    }


def outcomes(found: Sequence[BatchOutcome]) -> list[dict[str, Any]]:
    """Build the outcomes of batched acks or nacks. They omit the jobs so that all of them fit."""
    return [_outcome(one.job_id, one.result) for one in found]


def _outcome(job_id: str, result: Job | OjsError) -> dict[str, Any]:
    if isinstance(result, OjsError):
        status = errors.kind_of(result).status
        return {"job_id": job_id, "status": status, "error": errors.brief(result)}
    shown = jobs.to_dict(result)
    kept = {name: shown[name] for name in _OF_OUTCOME if name in shown}
    return {"job_id": job_id, "status": 200, **kept}


def _nack_times(job: Job, shown: Mapping[str, Any]) -> dict[str, Any]:
    names = (
        ("retry_delay_ms", "next_attempt_at", "next_retry_at")
        if job.state is State.RETRYABLE
        else ("discarded_at", "completed_at")
    )
    return {name: shown[name] for name in names if name in shown}


def result(job: Job) -> dict[str, Any]:
    """Build the result of a job. `result` is null if the job has no result yet."""
    shown = _shown(job)
    answer: dict[str, Any] = {
        "job_id": job.id, "state": shown["state"], "result": shown.get("result"),
    }  # fmt: skip
    if "error" in shown and job.state.terminal:
        answer["error"] = shown["error"]
    return answer


def build_results(wanted: Sequence[str], found: Mapping[str, Job]) -> dict[str, Any]:
    """Build the results of several jobs, up to `MAX_RESULTS_BYTES`.

    Args:
        wanted: IDs of the jobs in the request.
        found: The jobs to show, by ID. The result is null for others.
    """
    shown: dict[str, Any] = {}
    omitted, room = [], MAX_RESULTS_BYTES
    for job_id in wanted:
        if (job := found.get(job_id)) is None:
            shown[job_id] = None
            continue
        unread = job.result is MISSING and job.result_ref is not None
        told = {"state": job.state.value, "result": None if job.result is MISSING else job.result}
        if job.state is not State.COMPLETED and job.noted:
            told["error"] = job.noted[-1].failure.to_dict()
        if unread or (size := sent_bytes(told)) > room:
            omitted.append(job_id)
            continue
        room -= size
        shown[job_id] = told
    return {"results": shown, **({"omitted": omitted} if omitted else {})}


def retries(job: Job) -> dict[str, Any]:
    """A job's error history."""
    history = [failure.to_dict() for failure in job.errors or ()]
    errors, left_out = _latest(history, MAX_ANSWER_BYTES - _AROUND_BYTES)
    answer: dict[str, Any] = {
        "job_id": job.id,
        "state": job.state.value,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "policy": job.policy.to_dict(),
        "retries": errors,
    }
    if left_out:
        answer[_ERRORS_OMITTED] = left_out
    return answer


def progress(
    reported: Progress, warnings: Sequence[str] = (), *, report: bool = False
) -> dict[str, Any]:
    """Build the most recent progress of a job.

    Args:
        reported: The stored progress.
        warnings: Warnings about parts of the report that were not stored.
        report: Whether the request is a report. A report on a job that isn't `active` is ignored,
            which adds a warning.
    """
    if report and reported.state is not State.ACTIVE:
        rule = (
            f"The report was ignored, because the state of the job is '{reported.state.value}', "
            "not 'active'."
        )
        warnings = [*warnings, rule]
    answer = reported.to_dict()
    if warnings:
        answer["warnings"] = list(warnings)
    return answer


def deleted(job_id: str) -> dict[str, Any]:
    """A job that was deleted."""
    return {"deleted": True, "job_id": job_id}


def history(job: Job, *, limit: int, cursor: str | None) -> dict[str, Any]:
    """Build a page of the history of a job.

    Args:
        job: The job.
        limit: Maximum number of events.
        cursor: Index of the first event, as decimal digits. None starts at the first event.

    Raises:
        InvalidRequest: The cursor is malformed.
    """
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 7):
        raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
    begin = int(cursor or 0)
    events = histories.history(job)
    answer: dict[str, Any] = {
        "events": events[begin : begin + limit], "total": len(events), "approximate": True,
    }  # fmt: skip
    if begin + limit < len(events):
        answer["next_cursor"] = paging.sealed(str(begin + limit))
    return answer


_l: Listed[Job] = source()


class JobsPageAnswer(Paged[Job]):
    """A page of jobs."""

    jobs: list[ShownJob] = cast(
        "list[ShownJob]",
        made(lambda found: _listed(found, (MAX_ANSWER_BYTES - _AROUND_BYTES) // 2), _l.items),
    )
    items: list[ShownJob] = jobs
