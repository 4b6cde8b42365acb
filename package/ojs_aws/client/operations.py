"""The operations of producers and operators. Each function builds the request of one operation.

A function returns the request (a `Call`) without sending it. Both clients have a method for each
function, with the same arguments. The method sends the request and returns its result. Every method
can also raise `ApiError`, if the server rejects the request, and `Unreachable`, if no attempt gets
a valid response.

A result without a class is the JSON object that the OpenAPI document describes. The server checks
the keyword arguments that a function passes on (`**filters`, `**config`, and others).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Union

from ojs_aws import tracing
from ojs_aws.client.call import Answer, Call, if_match_header, json_object, place
from ojs_aws.client.job import Job
from ojs_aws.ids import uuid7

Moment = Union[str, datetime]
Strategy = Literal["strict", "weighted", "round-robin", "least-loaded"]
MAX_WAIT_S = 25


def _get(path: str, **query: Any) -> Call[Answer]:
    return Call("GET", path, json_object, query=query)


def _post(path: str, body: Any = None, *, repeatable: bool = False) -> Call[Answer]:
    return Call("POST", path, json_object, {} if body is None else body, repeatable=repeatable)


def _delete(path: str, body: Any = None) -> Call[Answer]:
    return Call("DELETE", path, json_object, body)


def _job(answer: Answer) -> Job:
    return Job.of(answer.get("job", answer))


def _acted(path: str, body: Any = None) -> Call[Job]:
    # If the first attempt succeeded, the server rejects a second one with a conflict. So these
    # requests are not sent again.
    return Call("POST", path, _job, {} if body is None else body, repeatable=False)


def moment(value: Moment) -> str:
    """Format a time for the server.

    Args:
        value: RFC 3339 string, or a datetime with a time zone.

    Returns:
        The time as RFC 3339 string. A string is returned unchanged.

    Raises:
        ValueError: The datetime has no time zone.
    """
    if isinstance(value, str):
        return value
    if value.tzinfo is None:
        raise ValueError(f"the time {value!r} must have a time zone")
    return value.isoformat()


# --- enqueue ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobRequest:
    """A job to enqueue.

    Attributes:
        type: Job type, for example `mail.send`. Lowercase segments, separated by dots.
        args: Positional arguments of the job. JSON values, up to 1 MiB in total.
        queue: Queue name. Default: `default`.
        meta: Metadata of the job. JSON object with string keys.
        priority: Higher values run first. -100 to 100, default: 0.
        scheduled_at: Earliest start time, with a time zone.
        delay_s: Earliest start time in seconds from now. Can't be combined with `scheduled_at`.
        expires_at: Time after which the job is discarded if it hasn't started.
        timeout_s: Maximum duration of one attempt in seconds.
        retry: Retry policy. Default: the policy of the queue.
        unique: Uniqueness policy.
        tags: Labels that jobs can be filtered by.
        pending: If true, the job doesn't start until it is activated.
        options: Any other option of the API, by its API name.
        id: Job ID (lowercase UUIDv7). Default: generated.
        result_ttl: Time in seconds for which the result is shown. 0: the result is not stored.
            Default: as long as the job is kept.
    """

    type: str
    args: Sequence[Any] = ()
    queue: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    priority: int | None = None
    scheduled_at: Moment | None = None
    delay_s: float | None = None
    expires_at: Moment | None = None
    timeout_s: float | None = None
    retry: Mapping[str, Any] | None = None
    unique: Mapping[str, Any] | None = None
    tags: Sequence[str] | None = None
    pending: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    result_ttl: int | None = None

    def wire(self, job_id: str) -> dict[str, Any]:
        """Return the job as the API expects it.

        Args:
            job_id: ID of the job.

        Returns:
            The JSON object of the job.

        Raises:
            TypeError: `args` is a string, bytes, or a mapping.
            ValueError: `scheduled_at` and `delay_s` are both set, an option is set twice, or a
                time has no time zone.
        """
        if isinstance(self.args, (str, bytes, Mapping)):
            raise TypeError("args must be a list of arguments. For one argument, pass [value]")
        if self.scheduled_at is not None and self.delay_s is not None:
            raise ValueError("scheduled_at can't be combined with delay_s. Pass one of them")
        start = f"+PT{self.delay_s:.3f}S" if self.delay_s is not None else self.scheduled_at
        named = {
            "queue": self.queue,
            "priority": self.priority,
            "scheduled_at": None if start is None else moment(start),
            "expires_at": None if self.expires_at is None else moment(self.expires_at),
            "timeout_ms": None if self.timeout_s is None else round(self.timeout_s * 1_000),
            "retry": self.retry,
            "unique": self.unique,
            "tags": None if self.tags is None else list(self.tags),
            "pending": self.pending,
            "result_ttl": self.result_ttl,
        }
        given = {name: value for name, value in named.items() if value is not None}
        if both := sorted(given.keys() & self.options.keys()):
            raise ValueError(
                f"{both[0]} is set twice. Pass it as an argument or in options, not both"
            )
        options = {**given, **self.options}
        meta = tracing.outgoing(self.meta)
        return {
            "id": job_id,
            "type": self.type,
            "args": list(self.args),
            **tracing.descent(),
            **({"meta": meta} if meta else {}),
            **({"options": options} if options else {}),
        }


def _pushing(
    idempotency_key: str | None, producer: str | None, block_s: float | None
) -> dict[str, str]:
    named = {
        "Idempotency-Key": idempotency_key,
        "X-OJS-Producer": producer,
        "OJS-Block-Timeout": None if block_s is None else str(block_s),
    }
    return {name: value for name, value in named.items() if value is not None}


def _kept(sent: Mapping[str, Any]) -> Job:
    """Return a job that is stored, but whose response was lost."""
    options = sent.get("options", {})
    return Job(
        sent["id"], sent["type"], options.get("queue", "default"), sent["args"],
        sent.get("meta", {}),
    )  # fmt: skip


def enqueue_job(
    type: str,  # noqa: A002 - the specification's word
    args: Sequence[Any] = (),
    *,
    queue: str | None = None,
    meta: Mapping[str, Any] | None = None,
    priority: int | None = None,
    scheduled_at: Moment | None = None,
    delay_s: float | None = None,
    expires_at: Moment | None = None,
    timeout_s: float | None = None,
    retry: Mapping[str, Any] | None = None,
    unique: Mapping[str, Any] | None = None,
    tags: Sequence[str] | None = None,
    pending: bool | None = None,
    options: Mapping[str, Any] | None = None,
    id: str | None = None,  # noqa: A002 - the specification's word
    result_ttl: int | None = None,
    idempotency_key: str | None = None,
    producer: str | None = None,
    block_s: float | None = None,
) -> Call[Job]:
    """Enqueue one job.

    The client generates the job ID, so the call is safe to retry: a retry never creates a second
    job.

    Args:
        type: Job type, for example `mail.send`. Lowercase segments, separated by dots.
        args: Positional arguments of the job. JSON values, up to 1 MiB in total.
        queue: Queue name. Default: `default`.
        meta: Metadata of the job. JSON object with string keys.
        priority: Higher values run first. -100 to 100, default: 0.
        scheduled_at: Earliest start time, with a time zone.
        delay_s: Earliest start time in seconds from now. Can't be combined with `scheduled_at`.
        expires_at: Time after which the job is discarded if it hasn't started.
        timeout_s: Maximum duration of one attempt in seconds.
        retry: Retry policy. Default: the policy of the queue.
        unique: Uniqueness policy.
        tags: Labels that jobs can be filtered by.
        pending: If true, the job doesn't start until it is activated.
        options: Any other option of the API, by its API name.
        id: Job ID (lowercase UUIDv7). Default: generated.
        result_ttl: Time in seconds for which the result is shown. 0: the result is not stored.
            Default: as long as the job is kept.
        idempotency_key: Makes retries safe across restarts of the calling process. 1 to 256 ASCII
            characters, kept for 24 hours.
        producer: Name of the producer, if the server doesn't derive it from the access key.
        block_s: Maximum time in seconds to wait for space in a full queue with the policy `block`.

    Returns:
        As a client method: the stored job. As a function: the unsent request (`Call`).

    Raises:
        TypeError: `args` is a string, bytes, or a mapping.
        ValueError: `scheduled_at` and `delay_s` are both set, an option is set twice, or a time has
            no time zone.
        Duplicate: A job with this ID or this unique key exists.
        QueueFull: The queue is at capacity.
    """
    request = JobRequest(
        type, args, queue, meta or {}, priority, scheduled_at, delay_s, expires_at, timeout_s,
        retry, unique, tags, pending, options or {}, id, result_ttl,
    )  # fmt: skip
    sent = request.wire(id or uuid7())
    if idempotency_key is not None and id is None:
        # A restarted caller must send the same body, so the server generates the ID.
        del sent["id"]

    def stored(existing: str) -> Job | None:
        return _kept(sent) if id is None and existing == sent.get("id") else None

    headers = _pushing(idempotency_key, producer, block_s)
    return Call("POST", "jobs", _job, sent, headers=headers, takes_s=block_s or 0.0, stored=stored)


def enqueue_batch(
    jobs: Sequence[JobRequest],
    *,
    idempotency_key: str | None = None,
    producer: str | None = None,
    block_s: float | None = None,
) -> Call[list[Job]]:
    """Enqueue up to 1,000 jobs atomically: the server stores all of them, or none.

    The client generates the job IDs, so the call is safe to retry.

    Args:
        jobs: Jobs to enqueue, 1 to 1,000.
        idempotency_key: Makes retries safe across restarts of the calling process. 1 to 256 ASCII
            characters, kept for 24 hours.
        producer: Name of the producer, if the server doesn't derive it from the access key.
        block_s: Maximum time in seconds to wait for space in a full queue with the policy `block`.

    Returns:
        As a client method: the list of stored jobs, in the order of `jobs`. As a function: the
        unsent request (`Call`).

    Raises:
        TypeError: `args` of a job is a string, bytes, or a mapping.
        ValueError: A job sets `scheduled_at` and `delay_s`, sets an option twice, or has a time
            without a time zone.
        Duplicate: A job with one of these IDs or unique keys exists. No job was stored.
        QueueFull: A queue is at capacity. No job was stored.
    """
    sent = [each.wire(each.id or uuid7()) for each in jobs]
    ours = {wire["id"] for wire, each in zip(sent, jobs) if each.id is None}  # noqa: B905
    if idempotency_key is not None:
        for wire in sent:
            if wire["id"] in ours:
                del wire["id"]

    def stored(existing: str) -> list[Job] | None:
        # The batch is atomic: if one of these jobs is stored, all are stored.
        return [_kept(wire) for wire in sent] if existing in ours else None

    headers = _pushing(idempotency_key, producer, block_s)
    return Call(
        "POST", "jobs/batch", lambda answer: [Job.of(each) for each in answer["jobs"]],
        {"jobs": sent}, headers=headers, takes_s=block_s or 0.0, stored=stored,
    )  # fmt: skip


def enqueue_each(
    jobs: Sequence[JobRequest],
    *,
    atomic: bool = False,
    idempotency_key: str | None = None,
    producer: str | None = None,
    block_s: float | None = None,
) -> Call[Answer]:
    """Enqueue up to 1,000 jobs independently: some can be stored while others are rejected.

    Without an `idempotency_key`, the client doesn't resend the request if the response is lost.

    Args:
        jobs: Jobs to enqueue, 1 to 1,000.
        atomic: If true, the server stores all jobs, or none. Default: false.
        idempotency_key: Makes retries safe across restarts of the calling process. 1 to 256 ASCII
            characters, kept for 24 hours.
        producer: Name of the producer, if the server doesn't derive it from the access key.
        block_s: Maximum time in seconds to wait for space in a full queue with the policy `block`.

    Returns:
        As a client method: the JSON response. `items` has the outcome of each job. As a function:
        the unsent request (`Call`).

    Raises:
        TypeError: `args` of a job is a string, bytes, or a mapping.
        ValueError: A job sets `scheduled_at` and `delay_s`, sets an option twice, or has a time
            without a time zone.
        Unprocessable: The server rejected all jobs.
    """
    sent = [each.wire(each.id or "") for each in jobs]
    for wire, each in zip(sent, jobs):  # noqa: B905
        if each.id is None:
            del wire["id"]
    body = {"jobs": sent} | ({"atomicity": "atomic"} if atomic else {})
    headers = _pushing(idempotency_key, producer, block_s)
    return Call(
        "POST", "jobs/bulk", json_object, body, headers=headers, takes_s=block_s or 0.0,
        repeatable=idempotency_key is not None,
    )  # fmt: skip


# --- one job ---------------------------------------------------------------------------------


def get_job(job_id: str) -> Call[Job]:
    """Read a job.

    Args:
        job_id: ID of the job.

    Returns:
        As a client method: the job. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The job doesn't exist, or was deleted.
    """
    return Call("GET", place("jobs/{}", job_id), _job)


def admin_get_job(job_id: str) -> Call[Answer]:
    """Read a job with its policies and times.

    Args:
        job_id: ID of the job.

    Returns:
        As a client method: the job as a JSON object. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The job doesn't exist, or was deleted.
    """
    return _get(place("admin/jobs/{}", job_id))


def cancel_job(job_id: str) -> Call[Job]:
    """Cancel a job that is not in a final state.

    Args:
        job_id: ID of the job.

    Returns:
        As a client method: the job. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The job doesn't exist, or was deleted.
        Conflict: The job is in a final state.
    """
    return Call("DELETE", place("jobs/{}", job_id), _job, repeatable=False)


def activate_job(job_id: str) -> Call[Job]:
    """Activate a pending job: `pending` to `available`.

    Args:
        job_id: ID of the job.

    Returns:
        As a client method: the job. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The job doesn't exist, or was deleted.
        Conflict: The job is not `pending`.
    """
    return _acted(place("jobs/{}/activate", job_id))


def retry_job(job_id: str) -> Call[Job]:
    """Retry a dead letter or a `retryable` job: it becomes `available`.

    Args:
        job_id: ID of the job.

    Returns:
        As a client method: the job. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The job doesn't exist, or was deleted.
        Conflict: The job is neither a dead letter nor `retryable`.
    """
    return _acted(place("jobs/{}/retry", job_id))


def run_job(job_id: str) -> Call[Job]:
    """Run a `scheduled` or `retryable` job now: it becomes `available`.

    Args:
        job_id: ID of the job.

    Returns:
        As a client method: the job. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The job doesn't exist, or was deleted.
        Conflict: The job is neither `scheduled` nor `retryable`.
    """
    return _acted(place("jobs/{}/run", job_id))


def change_job(job_id: str, *, priority: int | None = None, queue: str | None = None) -> Call[Job]:
    """Change the priority or the queue of a job that has not started.

    Args:
        job_id: ID of the job.
        priority: New priority, -100 to 100. Default: unchanged.
        queue: Queue to move the job to. Default: unchanged.

    Returns:
        As a client method: the changed job. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The job doesn't exist, or was deleted.
        Conflict: The state of the job doesn't allow the change.
    """
    given = {"priority": priority, "queue": queue}
    body = {name: value for name, value in given.items() if value is not None}
    return Call("PATCH", place("jobs/{}", job_id), _job, body)


def get_result(job_id: str, *, wait_s: float = 0) -> Call[Answer]:
    """Read the state and the result of a job, and optionally wait for the result.

    Args:
        job_id: ID of the job.
        wait_s: Time in seconds to wait for a final state, 0 to 25. Larger values wait for 25 s.
            Default: 0.

    Returns:
        As a client method: a JSON object with `state` and, if the job completed, `result`. As a
        function: the unsent request (`Call`).

    Raises:
        NotFound: The job doesn't exist, or was deleted.
        Gone: The result has expired.
    """
    wait = min(int(wait_s), MAX_WAIT_S)
    return Call(
        "GET", place("jobs/{}/result", job_id), json_object,
        query={"wait": True, "timeout": wait} if wait else {}, takes_s=wait,
    )  # fmt: skip


def results(ids: Sequence[str]) -> Call[Answer]:
    """Read the results of several jobs.

    Args:
        ids: IDs of the jobs, 1 to 100, each once.

    Returns:
        As a client method: a JSON object. `results` has `state` and `result` by job ID. It has None
        for a job that isn't final, whose result has expired, that doesn't exist, or that the caller
        can't read. `omitted` lists the jobs that didn't fit into the response, if there are any. As
        a function: the unsent request (`Call`).
    """
    return _post("jobs/results", {"ids": list(ids)}, repeatable=True)


def send_signal(
    job_id: str, name: str, data: Any = None, *, idempotency_key: str | None = None
) -> Call[Answer]:
    """Send a signal that a job waits for, or will wait for.

    Args:
        job_id: ID of the job.
        name: Name of the signal.
        data: JSON value of at most 64 KiB. Default: none.
        idempotency_key: Makes retries safe across restarts of the calling process. Default:
            generated, so that the call is safe to retry.

    Returns:
        As a client method: `sent_at` and `woken` in a JSON object. As a function: the unsent
        request (`Call`).

    Raises:
        NotFound: The job doesn't exist.
        Duplicate: The signal was sent before.
        Conflict: The job is in a final state, or its wait for the signal has ended.
    """
    headers = {"Idempotency-Key": idempotency_key or uuid7()}
    path = place("jobs/{}/signals/{}", job_id, name)
    return Call("POST", path, json_object, {"data": data}, headers=headers)


def job_history(
    job_id: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Answer]:
    """Read the history of a job, oldest event first.

    Args:
        job_id: ID of the job.
        limit: Maximum number of events per page. Default: the server's default.
        cursor: `next_cursor` of the previous page.

    Returns:
        As a client method: one page as a JSON object. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The job doesn't exist, or was deleted.
    """
    return _get(place("jobs/{}/history", job_id), limit=limit, cursor=cursor)


# --- many jobs -------------------------------------------------------------------------------


def _many(
    verb: str, job_ids: Sequence[str] | None, dry_run: bool | None, chosen: Mapping[str, Any]
) -> Call[Answer]:
    body = _chosen(job_ids, chosen) | ({} if dry_run is None else {"dry_run": dry_run})
    return _post(f"jobs/bulk/{verb}", body)


def _chosen(job_ids: Sequence[str] | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    if job_ids is not None and chosen:
        raise ValueError("job_ids can't be combined with a filter. Pass one of them")
    return {"filter": dict(chosen)} if job_ids is None else {"job_ids": list(job_ids)}


def retry_jobs(
    job_ids: Sequence[str] | None = None, *, dry_run: bool | None = None, **chosen: Any
) -> Call[Answer]:
    """Retry many dead letters and `retryable` jobs.

    Args:
        job_ids: IDs of the jobs, 1 to 1,000. Can't be combined with a filter.
        dry_run: If true, the server counts the jobs and changes nothing.
        **chosen: Filter by field, for example `queue` or `type`.

    Returns:
        As a client method: a JSON object with the counts, and with the bulk operation if it
        continues in the background. As a function: the unsent request (`Call`).

    Raises:
        ValueError: Both `job_ids` and a filter are given.
    """
    return _many("retry", job_ids, dry_run, chosen)


def cancel_jobs(
    job_ids: Sequence[str] | None = None, *, dry_run: bool | None = None, **chosen: Any
) -> Call[Answer]:
    """Cancel many jobs that are not in a final state.

    Args:
        job_ids: IDs of the jobs, 1 to 1,000. Can't be combined with a filter.
        dry_run: If true, the server counts the jobs and changes nothing.
        **chosen: Filter by field, for example `queue` or `type`.

    Returns:
        As a client method: a JSON object with the counts, and with the bulk operation if it
        continues in the background. As a function: the unsent request (`Call`).

    Raises:
        ValueError: Both `job_ids` and a filter are given.
    """
    return _many("cancel", job_ids, dry_run, chosen)


def delete_jobs(
    job_ids: Sequence[str] | None = None, *, dry_run: bool | None = None, **chosen: Any
) -> Call[Answer]:
    """Delete many jobs in a final state permanently.

    Args:
        job_ids: IDs of the jobs, 1 to 1,000. Can't be combined with a filter.
        dry_run: If true, the server counts the jobs and changes nothing.
        **chosen: Filter by field, for example `queue` or `type`.

    Returns:
        As a client method: a JSON object with the counts, and with the bulk operation if it
        continues in the background. As a function: the unsent request (`Call`).

    Raises:
        ValueError: Both `job_ids` and a filter are given.
    """
    return _many("delete", job_ids, dry_run, chosen)


def erase_jobs(
    job_ids: Sequence[str] | None = None, *, dry_run: bool | None = None, **chosen: Any
) -> Call[Answer]:
    """Erase jobs in any state, including their archived copies.

    The operation in the response continues for a few minutes.

    Args:
        job_ids: IDs of the jobs, 1 to 1,000. Can't be combined with a filter.
        dry_run: If true, the server counts the jobs and changes nothing.
        **chosen: Filter by field, `meta` values, and optionally `queue` or `type`.

    Returns:
        As a client method: a JSON object with the counts and the bulk operation. As a function: the
        unsent request (`Call`).

    Raises:
        ValueError: Both `job_ids` and a filter are given.
    """
    body = _chosen(job_ids, chosen) | ({"dry_run": True} if dry_run else {"confirm": True})
    return _post("admin/jobs/bulk/erase", body)


def purge_queue_jobs(queue: str, **chosen: Any) -> Call[Answer]:
    """Delete finished jobs of a queue permanently.

    Args:
        queue: Name of the queue.
        **chosen: `states`, `older_than`, `dry_run`, and `confirm` of the API.

    Returns:
        As a client method: a JSON object with the counts and the bulk operation. As a function: the
        unsent request (`Call`).

    Raises:
        NotFound: The queue doesn't exist.
    """
    return _post(place("queues/{}/purge", queue), chosen)


# --- dead letters ----------------------------------------------------------------------------


def get_dead_letter(job_id: str) -> Call[Job]:
    """Read a dead letter.

    Args:
        job_id: ID of the job.

    Returns:
        As a client method: the job. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The job doesn't exist, or was deleted.
    """
    return Call("GET", place("dead-letter/{}", job_id), _job)


def retry_dead_letter(job_id: str, *, override: Mapping[str, Any] | None = None) -> Call[Job]:
    """Retry a dead letter: it becomes `available`, with attempts reset to 0.

    Args:
        job_id: ID of the job.
        override: Fields to change before the retry, by API name. Default: unchanged.

    Returns:
        As a client method: the job. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The dead letter doesn't exist.
        Conflict: The job is not a dead letter.
    """
    body = {} if override is None else {"override": dict(override)}
    return _acted(place("dead-letter/{}/retry", job_id), body)


def _dead(chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {"confirm": True, **({"filter": dict(chosen)} if chosen else {"all": True})}


def retry_dead_letters(*, every: bool = False, **chosen: Any) -> Call[Answer]:
    """Retry many dead letters: they become `available`.

    Args:
        every: If true, selects all dead letters. Can't be combined with a filter.
        **chosen: Filter by field, for example `queue` or `error_type`.

    Returns:
        As a client method: a JSON object with the counts, and with the bulk operation if it
        continues in the background. As a function: the unsent request (`Call`).

    Raises:
        ValueError: Neither `every` nor a filter is given, or both are.
    """
    _either(every, chosen)
    return _post("dead-letter/retry", _dead(chosen))


def purge_dead_letters(*, every: bool = False, **chosen: Any) -> Call[Answer]:
    """Delete many dead letters permanently.

    Args:
        every: If true, selects all dead letters. Can't be combined with a filter.
        **chosen: Filter by field, for example `queue` or `error_type`.

    Returns:
        As a client method: a JSON object with the counts, and with the bulk operation if it
        continues in the background. As a function: the unsent request (`Call`).

    Raises:
        ValueError: Neither `every` nor a filter is given, or both are.
    """
    _either(every, chosen)
    return _delete("dead-letter", _dead(chosen))


def _either(every: bool, chosen: Mapping[str, Any]) -> None:
    if every == bool(chosen):
        raise ValueError("pass either a filter or every=True. An empty filter selects nothing")


# --- queues, limits, pools -------------------------------------------------------------------


def delete_queue(name: str, strategy: str, *, target_queue: str | None = None) -> Call[Answer]:
    """Delete a queue.

    Args:
        name: Name of the queue.
        strategy: Handling of its jobs: `reject` (don't delete a queue that has jobs), `discard`,
            `move`, or `drain` (delete the queue when its jobs are finished).
        target_queue: Queue that the jobs move to. Requires the strategy `move`.

    Returns:
        As a client method: a JSON object. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The queue doesn't exist.
        Conflict: The queue has jobs, and the strategy is `reject`.
    """
    body = {"strategy": strategy} | ({} if target_queue is None else {"target_queue": target_queue})
    return _delete(place("queues/{}", name), body)


# --- deliveries ------------------------------------------------------------------------------


# --- cron jobs -------------------------------------------------------------------------------


def register_cron(name: str, *, if_match: str | None = None, **definition: Any) -> Call[Answer]:
    """Register a cron job, or replace its definition.

    Args:
        name: Name of the cron job.
        if_match: `etag` of the cron job as read. Another one is an ApiError.
        **definition: Fields of the API, for example `expression`, `timezone`, and `job_template`.

    Returns:
        As a client method: the cron job as a JSON object. As a function: the unsent request
        (`Call`).

    Raises:
        BadRequest: A field is invalid.
    """
    body, headers = {"name": name, **definition}, if_match_header(if_match)
    return Call("POST", "cron", json_object, body, headers=headers)


def preview_cron(
    expression: str, *, timezone: str | None = None, after: Moment | None = None,
    count: int | None = None,
) -> Call[Answer]:  # fmt: skip
    """List the next times at which a cron expression fires.

    Args:
        expression: Cron expression.
        timezone: IANA name of the time zone. Default: UTC.
        after: All times are later than this one. Default: now.
        count: Number of times, 1 to 100. Default: 5.

    Returns:
        As a client method: a JSON object with the times. As a function: the unsent request
        (`Call`).

    Raises:
        ValueError: `after` has no time zone.
        BadRequest: The expression or the time zone is invalid.
    """
    since = None if after is None else moment(after)
    return _get("cron/preview", expression=expression, timezone=timezone, after=since, count=count)


def trigger_cron(name: str) -> Call[Job]:
    """Enqueue a job of a cron job now. Its schedule doesn't change.

    Args:
        name: Name of the cron job.

    Returns:
        As a client method: the job. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The cron job doesn't exist.
    """
    return _acted(place("cron/{}/trigger", name))


# --- workflows -------------------------------------------------------------------------------


def create_workflow(**definition: Any) -> Call[Answer]:
    """Create and start a workflow: a chain, a group, a batch, or a graph.

    The client generates the workflow ID, so the call is safe to retry.

    Args:
        **definition: Fields of the API. `id` sets the workflow ID.

    Returns:
        As a client method: the workflow as a JSON object. As a function: the unsent request
        (`Call`).

    Raises:
        BadRequest: A field is invalid.
        Duplicate: A workflow with this ID exists.
    """
    sent = {"id": uuid7(), **definition}

    def stored(existing: str) -> Answer | None:
        ours = "id" not in definition and existing == sent["id"]
        return {"workflow": {"id": existing}, "id": existing} if ours else None

    return Call("POST", "workflows", json_object, sent, stored=stored)


def workflow_results(workflow_id: str, step: str | int, **paging: Any) -> Call[Answer]:
    """Read one page of the results that a workflow step receives.

    Args:
        workflow_id: ID of the workflow.
        step: Number (`node`) of the step that receives the results.
        **paging: `limit` and `cursor`.

    Returns:
        As a client method: one page as a JSON object. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The workflow or the step doesn't exist.
    """
    return _get(place("workflows/{}/results", workflow_id), step=step, **paging)


def cancel_workflow(workflow_id: str) -> Call[Answer]:
    """Cancel a workflow that has not finished.

    The server cancels its waiting jobs. Active jobs can finish.

    Args:
        workflow_id: ID of the workflow.

    Returns:
        As a client method: the workflow as a JSON object. As a function: the unsent request
        (`Call`).

    Raises:
        NotFound: The workflow doesn't exist.
        Conflict: The workflow has finished.
    """
    return Call("DELETE", place("workflows/{}", workflow_id), json_object, repeatable=False)


def retry_workflow(
    workflow_id: str, mode: Literal["all", "failed", "failed_and_following"] | None = None
) -> Call[Answer]:
    """Retry a finished workflow, or a part of it.

    Args:
        workflow_id: ID of the workflow.
        mode: Steps that run again: `all`, `failed`, or `failed_and_following` (failed steps and all
            later steps). Default: `failed`. Steps that never ran can run with each mode.

    Returns:
        As a client method: the workflow as a JSON object. As a function: the unsent request
        (`Call`).

    Raises:
        NotFound: The workflow doesn't exist.
        Conflict: The workflow has not finished, or no step failed.
    """
    body = {} if mode is None else {"mode": mode}
    return _post(place("workflows/{}/retry", workflow_id), body)


# --- workers, statistics, events -------------------------------------------------------------


def direct_worker(
    worker_id: str, directive: Literal["running", "quiet", "terminate"]
) -> Call[Answer]:
    """Send a directive to a worker with its next heartbeat.

    Args:
        worker_id: ID of the worker.
        directive: `running` (fetch jobs), `quiet` (stop fetching), or `terminate` (finish jobs
            and stop).

    Returns:
        As a client method: the worker as a JSON object. As a function: the unsent request (`Call`).

    Raises:
        NotFound: The worker doesn't exist.
    """
    body = {"worker_id": worker_id, "directive": directive}
    return _post("admin/workers/directive", body, repeatable=True)


def metrics() -> Call[Answer]:
    """Read the current metrics of the server.

    Returns:
        As a client method: a JSON object. As a function: the unsent request (`Call`).
    """
    return _get("metrics")


# --- keys, system ----------------------------------------------------------------------------


def create_key(name: str, scopes: Sequence[str], **limits: Any) -> Call[Answer]:
    """Create an access key. Only this response contains its secret.

    Args:
        name: Name of the holder. Jobs and the `producers` setting of a queue use it.
        scopes: Scopes of the key.
        **limits: `queues` (list of queue names or patterns, default: all queues), `expires_at`
            (RFC 3339, or '+' and an ISO 8601 duration; default: never), and `max_requests_per_s`
            (default: no limit).

    Returns:
        As a client method: the key and its secret as a JSON object. As a function: the unsent
        request (`Call`).

    Raises:
        PermissionDenied: A scope or queue exceeds those of the calling key.
    """
    return _post("admin/keys", {"name": name, "scopes": list(scopes), **limits})


def create_role(name: str, role: str, scopes: Sequence[str], **limits: Any) -> Call[Answer]:
    """Grant scopes to an IAM role or user. You list and revoke the grant like an access key.

    Args:
        name: Name of the holder. Jobs and the `producers` setting of a queue use it.
        role: ARN of the IAM role or user.
        scopes: Scopes of the role.
        **limits: `queues` (list of queue names or patterns, default: all queues), `expires_at`
            (RFC 3339, or '+' and an ISO 8601 duration; default: never), and `max_requests_per_s`
            (default: no limit).

    Returns:
        As a client method: the grant as a JSON object. As a function: the unsent request (`Call`).

    Raises:
        PermissionDenied: A scope or queue exceeds those of the calling key.
    """
    return _post("admin/roles", {"name": name, "role": role, "scopes": list(scopes), **limits})


def revoke_key(key_id: str, *, made: Literal["keep", "revoke"] | None = None) -> Call[Answer]:
    """Revoke an access key or the grant of a role.

    Args:
        key_id: ID of the key.
        made: Handling of the keys that this key created, directly or through other keys: `keep` or
            `revoke`. Default: `keep`.

    Returns:
        As a client method: the revoked key as a JSON object. As a function: the unsent request
        (`Call`).

    Raises:
        NotFound: The key doesn't exist.
    """
    return Call("DELETE", place("admin/keys/{}", key_id), json_object, query={"made": made})


def set_maintenance(enabled: bool, **said: Any) -> Call[Answer]:
    """Enable or disable maintenance mode.

    Args:
        enabled: Whether maintenance mode is enabled.
        **said: `reason` (1 to 1,000 characters) and `estimated_duration` (ISO 8601, or `30m`).
            Requires `enabled`.

    Returns:
        As a client method: the mode as a JSON object. As a function: the unsent request (`Call`).

    Raises:
        BadRequest: A field is invalid, or is given without `enabled`.
    """
    return _post("admin/system/maintenance", {"enabled": enabled, **said}, repeatable=True)


# Requests of a worker. `ojs_aws.worker` sends them.


def worker_call(path: str, body: Any, *, method: str = "POST") -> Call[Answer]:
    """Build a request of a worker. Lease tokens make each one safe to resend."""
    return Call(method, path, json_object, body)
