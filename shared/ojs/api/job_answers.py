"""Jobs as answers show them.

Lambda cannot send an answer that is too large, so each answer with jobs stays below
`MAX_ANSWER_BYTES`: fields that do not fit are left out, and named under the job's `omitted`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from ojs.domain import jsontext
from ojs.domain.errors import BAD_CURSOR, InvalidRequest, OjsError
from ojs.domain.job import history as histories
from ojs.domain.job import job as jobs
from ojs.domain.job.foreign import MAX_WARNINGS
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.http.answer import made, source
from ojs.http.answers import Job as ShownJob
from ojs.http.binding import errors, paging
from ojs.http.binding.paging import Listed, Paged

if TYPE_CHECKING:
    from ojs.services.jobs.batch_finish import BatchOutcome
    from ojs.services.jobs.bulk_push import PushOutcome
    from ojs.services.jobs.manage import Progress

# Lambda sends at most 6 MB (6 291 556 bytes). The rest is for headers and the JSON around the body.
MAX_ANSWER_BYTES = 6_000_000
# Of that, reserved for what is beside a job: its small fields at the top level, pagination.
_AROUND_BYTES = 20_000
# A job this large is not shown at the top level and once more under `job`.
MAX_COPY_BYTES = 262_144
# The largest error history of a job that is shown with its contents and result.
MAX_ERRORS_BYTES = 1_500_000

# The fields that name what is left out of a job. A client's own field of that name is not shown.
_OMITTED: Final = "omitted"
_ERRORS_OMITTED: Final = "errors_omitted"
# In `omitted`: the client's own fields.
REST = "*"

# Fields that may be large; each is named when it is left out. The client's own fields, of any
# number and length, are named together as `REST`.
LARGE_FIELDS = (
    "args", "meta", "result", "error", "errors", "options", "retry", "unique", "tags", "schema",
    "metadata", "parent_results", "parent_errors", "parent_results_by_step",
)  # fmt: skip
# The fields that a job is cut down to: those that the server writes or checks, of a few hundred
# characters at most. A list of what stays, since a client may add fields of any name.
SMALL_FIELDS = frozenset(jobs.SHOWN) - set(LARGE_FIELDS) | {
    "specversion", "id", "type", "queue", "expires_at", "timeout", "timeout_ms",
    "visibility_timeout_ms", "rate_limit",
}  # fmt: skip
# The fields of a job that the outcome of one of many acks or nacks has.
_OF_OUTCOME = (
    "state", "attempt", "max_attempts", "retry_delay_ms", "next_attempt_at", "completed_at",
    "discarded_at",
)  # fmt: skip
# Those of a job that was pushed with many others.
_IN_SHORT = ("id", "type", "queue", "state", "created_at", "scheduled_at")
# The times of a job that its `metadata` has for operators.
_TIMES = (
    "created_at", "enqueued_at", "started_at", "scheduled_at", "completed_at", "cancelled_at",
    "discarded_at",
)  # fmt: skip
# What stands beside a job and is about the request, not about the job.
_ABOUT_THE_REQUEST = frozenset({"deduplicated", "warnings"})
# What is left out of a single job that does not fit into an answer, in this order.
_LEFT_OUT_FIRST: tuple[Literal["result", "errors"], ...] = ("result", "errors")


def sent_bytes(value: Any) -> int:
    """The most bytes that `value` takes inside a Lambda's answer.

    The body is a JSON text inside a JSON text: quotes and backslashes count twice, and on Python
    3.11 a character beyond ASCII counts 6 or 12 bytes (later versions send it as it is).
    """
    return len(json.dumps(jsontext.dumps(value))) - 2


def fetched(claimed: Sequence[Job]) -> dict[str, Any]:
    """The answer to a fetch. Its jobs are whole: the fetch itself claims no more than fit."""
    return {"jobs": [_shown(job) for job in claimed]}


def whole(job: Job) -> dict[str, Any]:
    """A job; a very long error history is cut to the latest errors.

    A result or errors that still do not fit are left out: clients read them from `…/result` and
    `…/retries`.
    """
    shown = _shown(job)
    if "errors" not in shown and "result" not in shown:
        return shown  # contents alone always fit (ojs.domain.job.envelope.MAX_JOB_BYTES)
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
    """All of a job that is loaded."""
    shown = jobs.to_dict(job)
    shown.pop(_OMITTED, None)
    shown.pop(_ERRORS_OMITTED, None)
    if job.content is None:
        # The offloaded payload is not loaded; which of the client's own fields it has is unknown.
        shown[_OMITTED] = ["args", "meta", REST]
    return shown


def _latest(errors: Sequence[dict[str, Any]], room: int) -> tuple[list[dict[str, Any]], int]:
    """The latest errors that fit into `room` bytes, and how many older ones do not."""
    kept: list[dict[str, Any]] = []
    for error in reversed(errors):
        room -= sent_bytes(error) + 1
        if room < 0:
            break
        kept.append(error)
    return kept[::-1], len(errors) - len(kept)


def _slim(shown: dict[str, Any]) -> dict[str, Any]:
    """A job's small fields, with the names of the others in `omitted`."""
    whole: Mapping[str, Any] = shown
    kept: dict[str, Any] = {name: value for name, value in whole.items() if name in SMALL_FIELDS}
    left_out = {name for name in shown if name not in kept} - {_OMITTED, _ERRORS_OMITTED}
    if shown.get("dead_letter") and isinstance(shown.get("metadata"), dict):
        # The two times of ojs-dead-letter section 9.2, without the client's own keys beside them.
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
    """Jobs in `room` bytes, in order: whole as far as they fit, otherwise their small fields."""
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
    """A job wrapped, and its fields once more at the top level; there only the small ones if the
    job is large. `warnings` are of its request.
    """
    shown = whole(job)
    small = sent_bytes(shown) <= MAX_COPY_BYTES
    copy: Mapping[str, Any] = shown if small else _slim(shown)
    # A client's own field of such a name would say something of the request.
    flat = {name: value for name, value in copy.items() if name not in _ABOUT_THE_REQUEST}
    return {**flat, "job": shown, **_warned(warnings)}


def for_operators(job: Job) -> dict[str, Any]:
    """A job with what the admin API has beside its fields (ojs-admin-api, section 7.2). Dashboards
    rely on errors and meta.
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
    """One job."""
    return {"job": whole(job)}


def deduplicated(job: Job, warnings: Sequence[str]) -> dict[str, Any]:
    """The job that stands for a duplicate request."""
    return {**detail(job, warnings), "deduplicated": True}


def batch(stored: Sequence[Job], warnings: Sequence[str] = ()) -> dict[str, Any]:
    """The answer to a batch, in the order of the request; `warnings` are of the request."""
    return {
        "jobs": _listed(stored, MAX_ANSWER_BYTES - _AROUND_BYTES),
        "count": len(stored),
        "enqueued": len(stored),
        "failed": 0,
        **_warned(warnings),
    }


def bulk_pushed(outcomes: Sequence[PushOutcome], warnings: Sequence[str] = ()) -> dict[str, Any]:
    """What became of each job of a request, in its order."""
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
    """The answer to an ack."""
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
    """The answer to a nack: the job's new state, and when it is tried again or ended."""
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
    """What became of many acks or nacks. The jobs themselves are not in it, so that it fits."""
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
    """How a job ended; `result` is null when there is none (yet)."""
    shown = _shown(job)
    answer: dict[str, Any] = {
        "job_id": job.id, "state": shown["state"], "result": shown.get("result"),
    }  # fmt: skip
    if "error" in shown and job.state.terminal:
        answer["error"] = shown["error"]
    return answer


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
    """The progress that a job's worker reported last; `warnings` of what was not kept of it."""
    if report and reported.state is not State.ACTIVE:
        rule = f"The report was ignored: the job is '{reported.state.value}', not 'active'."
        warnings = [*warnings, rule]
    answer = reported.to_dict()
    if warnings:
        answer["warnings"] = list(warnings)
    return answer


def deleted(job_id: str) -> dict[str, Any]:
    """A job that was deleted."""
    return {"deleted": True, "job_id": job_id}


def history(job: Job, *, limit: int, cursor: str | None) -> dict[str, Any]:
    """A part of what happened to a job; the cursor is the number of the first event. Raises
    InvalidRequest.
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
