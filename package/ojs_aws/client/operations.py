"""Every operation that a producer or an operator needs, once: what is sent, and what comes back.

Both clients have a method for each function here, with the same arguments. Answers without a class
of their own are the JSON that the server's OpenAPI document describes. What is passed on as it is
(`**filters`, `**config` …) is checked by the server, which names what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Union

from ojs_aws import tracing
from ojs_aws.client.call import Answer, Call, json_object, place
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
    # Once done it is refused as a conflict, so that it is not sent again in doubt.
    return Call("POST", path, _job, {} if body is None else body, repeatable=False)


def moment(value: Moment) -> str:
    """A time as the server reads it. Raises ValueError for one without a time zone."""
    if isinstance(value, str):
        return value
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return value.isoformat()


# --- enqueue ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobRequest:
    """A job to enqueue. `options` takes any option of the API by its name there.

    `scheduled_at` is not before this time, `delay_s` not before so many seconds; `timeout_s` is
    the longest execution of one attempt.
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

    def wire(self, job_id: str) -> dict[str, Any]:
        """The job as it is sent. Raises TypeError, ValueError."""
        if isinstance(self.args, (str, bytes, Mapping)):
            raise TypeError("args is a list of arguments: write [value] for a single one")
        if self.scheduled_at is not None and self.delay_s is not None:
            raise ValueError("scheduled_at and delay_s: only one of them can count")
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
        }
        given = {name: value for name, value in named.items() if value is not None}
        if both := sorted(given.keys() & self.options.keys()):
            raise ValueError(f"{both[0]} is given twice: in options, too")
        options = {**given, **self.options}
        meta = tracing.outgoing(self.meta)
        return {
            "id": job_id,
            "type": self.type,
            "args": list(self.args),
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
    """A job that is stored, where only the answer was lost."""
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
    idempotency_key: str | None = None,
    producer: str | None = None,
    block_s: float | None = None,
) -> Call[Job]:
    """Enqueue a job; it is stored when this returns.

    Safe to send again: the job's id is chosen here, so that a second try cannot enqueue it twice.
    `idempotency_key` does the same for callers that die and begin anew. `block_s` is how long to
    wait for room in a full queue whose policy says so.
    """
    request = JobRequest(
        type, args, queue, meta or {}, priority, scheduled_at, delay_s, expires_at, timeout_s,
        retry, unique, tags, pending, options or {}, id,
    )  # fmt: skip
    sent = request.wire(id or uuid7())
    if idempotency_key is not None and id is None:
        # The body must be the same when the caller comes again.
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
    """Enqueue up to 1 000 jobs, or none of them; as safe to send again as a single one."""
    sent = [each.wire(each.id or uuid7()) for each in jobs]
    ours = {wire["id"] for wire, each in zip(sent, jobs) if each.id is None}  # noqa: B905
    if idempotency_key is not None:
        for wire in sent:
            if wire["id"] in ours:
                del wire["id"]

    def stored(existing: str) -> list[Job] | None:
        # All are stored or none, so that one that is ours stands for all.
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
    """Enqueue up to 1 000 jobs, each for itself: `items` of the answer says what became of each.

    `atomic`: all or none. If none is stored that is an error. Sent again after a lost answer only
    under an `idempotency_key`.
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
    """Read a job."""
    return Call("GET", place("jobs/{}", job_id), _job)


def admin_get_job(job_id: str) -> Call[Answer]:
    """Read a job with its policies and times."""
    return _get(place("admin/jobs/{}", job_id))


def cancel_job(job_id: str) -> Call[Job]:
    """Cancel a job that is not final."""
    return Call("DELETE", place("jobs/{}", job_id), _job, repeatable=False)


def activate_job(job_id: str) -> Call[Job]:
    """Make a pending job available."""
    return _acted(place("jobs/{}/activate", job_id))


def retry_job(job_id: str) -> Call[Job]:
    """Make a dead letter or a retryable job available."""
    return _acted(place("jobs/{}/retry", job_id))


def run_job(job_id: str) -> Call[Job]:
    """Run a scheduled or retryable job now."""
    return _acted(place("jobs/{}/run", job_id))


def change_job(job_id: str, *, priority: int | None = None, queue: str | None = None) -> Call[Job]:
    """Change the priority or the queue of a job that waits."""
    given = {"priority": priority, "queue": queue}
    body = {name: value for name, value in given.items() if value is not None}
    return Call("PATCH", place("jobs/{}", job_id), _job, body)


def get_result(job_id: str, *, wait_s: float = 0) -> Call[Answer]:
    """Read a job's `state` and `result`; with `wait_s` wait for it, at most 25 s."""
    wait = min(int(wait_s), MAX_WAIT_S)
    return Call(
        "GET", place("jobs/{}/result", job_id), json_object,
        query={"wait": True, "timeout": wait} if wait else {}, takes_s=wait,
    )  # fmt: skip


def job_history(
    job_id: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Answer]:
    """Read what happened to a job."""
    return _get(place("jobs/{}/history", job_id), limit=limit, cursor=cursor)


# --- many jobs -------------------------------------------------------------------------------


def _many(
    verb: str, job_ids: Sequence[str] | None, dry_run: bool | None, chosen: Mapping[str, Any]
) -> Call[Answer]:
    body = _chosen(job_ids, chosen) | ({} if dry_run is None else {"dry_run": dry_run})
    return _post(f"jobs/bulk/{verb}", body)


def _chosen(job_ids: Sequence[str] | None, chosen: Mapping[str, Any]) -> dict[str, Any]:
    if job_ids is not None and chosen:
        raise ValueError("job_ids and a filter: only one of them can count")
    return {"filter": dict(chosen)} if job_ids is None else {"job_ids": list(job_ids)}


def retry_jobs(
    job_ids: Sequence[str] | None = None, *, dry_run: bool | None = None, **chosen: Any
) -> Call[Answer]:
    """Make many dead letters and retryable jobs available: these, or those a filter chooses."""
    return _many("retry", job_ids, dry_run, chosen)


def cancel_jobs(
    job_ids: Sequence[str] | None = None, *, dry_run: bool | None = None, **chosen: Any
) -> Call[Answer]:
    """Cancel many jobs that are not final: these, or those a filter chooses."""
    return _many("cancel", job_ids, dry_run, chosen)


def delete_jobs(
    job_ids: Sequence[str] | None = None, *, dry_run: bool | None = None, **chosen: Any
) -> Call[Answer]:
    """Delete many final jobs for good: these, or those a filter chooses."""
    return _many("delete", job_ids, dry_run, chosen)


def erase_jobs(
    job_ids: Sequence[str] | None = None, *, dry_run: bool | None = None, **chosen: Any
) -> Call[Answer]:
    """Erase jobs in any state, and what the archive has of them: these, or those with these values
    in their `meta`, perhaps of one `queue` or `type`. The operation in the answer goes on for some
    minutes.
    """
    body = _chosen(job_ids, chosen) | ({"dry_run": True} if dry_run else {"confirm": True})
    return _post("admin/jobs/bulk/erase", body)


def purge_queue_jobs(queue: str, **chosen: Any) -> Call[Answer]:
    """Delete jobs of a queue that have ended, by `states` and `older_than`."""
    return _post(place("queues/{}/purge", queue), chosen)


# --- dead letters ----------------------------------------------------------------------------


def get_dead_letter(job_id: str) -> Call[Job]:
    """Read a dead letter."""
    return Call("GET", place("dead-letter/{}", job_id), _job)


def retry_dead_letter(job_id: str, *, override: Mapping[str, Any] | None = None) -> Call[Job]:
    """Make a dead letter available again, as it is or with changes."""
    body = {} if override is None else {"override": dict(override)}
    return _acted(place("dead-letter/{}/retry", job_id), body)


def _dead(chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {"confirm": True, **({"filter": dict(chosen)} if chosen else {"all": True})}


def retry_dead_letters(*, every: bool = False, **chosen: Any) -> Call[Answer]:
    """Make many dead letters available again: those a filter chooses, or with `every` all."""
    _either(every, chosen)
    return _post("dead-letter/retry", _dead(chosen))


def purge_dead_letters(*, every: bool = False, **chosen: Any) -> Call[Answer]:
    """Delete many dead letters for good: those a filter chooses, or with `every` all."""
    _either(every, chosen)
    return _delete("dead-letter", _dead(chosen))


def _either(every: bool, chosen: Mapping[str, Any]) -> None:
    if every == bool(chosen):
        raise ValueError("wants a filter, or every=True, and not both: an empty filter may be lost")


# --- queues, limits, pools -------------------------------------------------------------------


def delete_queue(name: str, strategy: str, *, target_queue: str | None = None) -> Call[Answer]:
    """Delete a queue; `strategy` says what becomes of its jobs."""
    body = {"strategy": strategy} | ({} if target_queue is None else {"target_queue": target_queue})
    return _delete(place("queues/{}", name), body)


# --- deliveries ------------------------------------------------------------------------------


# --- cron jobs -------------------------------------------------------------------------------


def register_cron(name: str, **definition: Any) -> Call[Answer]:
    """Register a cron job, or replace its definition."""
    return _post("cron", {"name": name, **definition}, repeatable=True)


def preview_cron(
    expression: str, *, timezone: str | None = None, after: Moment | None = None,
    count: int | None = None,
) -> Call[Answer]:  # fmt: skip
    """Show when an expression fires."""
    since = None if after is None else moment(after)
    return _get("cron/preview", expression=expression, timezone=timezone, after=since, count=count)


def trigger_cron(name: str) -> Call[Job]:
    """Push a job of a cron job now."""
    return _acted(place("cron/{}/trigger", name))


# --- workflows -------------------------------------------------------------------------------


def create_workflow(**definition: Any) -> Call[Answer]:
    """Create a workflow, and start it: a chain, a group, a batch or a graph, in the API's fields.

    Safe to send again: its id is chosen here, unless it is given.
    """
    sent = {"id": uuid7(), **definition}

    def stored(existing: str) -> Answer | None:
        ours = "id" not in definition and existing == sent["id"]
        return {"workflow": {"id": existing}, "id": existing} if ours else None

    return Call("POST", "workflows", json_object, sent, stored=stored)


def workflow_results(workflow_id: str, step: str | int, **paging: Any) -> Call[Answer]:
    """Read the results that a step is given, page by page."""
    return _get(place("workflows/{}/results", workflow_id), step=step, **paging)


def cancel_workflow(workflow_id: str) -> Call[Answer]:
    """Cancel a workflow that is not over: what waits is cancelled, what runs may end."""
    return Call("DELETE", place("workflows/{}", workflow_id), json_object, repeatable=False)


def retry_workflow(
    workflow_id: str, mode: Literal["all", "failed", "failed_and_following"] | None = None
) -> Call[Answer]:
    """Run a workflow that is over again, or the part of it that `mode` says."""
    body = {} if mode is None else {"mode": mode}
    return _post(place("workflows/{}/retry", workflow_id), body)


# --- workers, statistics, events -------------------------------------------------------------


def direct_worker(
    worker_id: str, directive: Literal["running", "quiet", "terminate"]
) -> Call[Answer]:
    """Tell a worker to run, go quiet or terminate."""
    body = {"worker_id": worker_id, "directive": directive}
    return _post("admin/workers/directive", body, repeatable=True)


def metrics() -> Call[Answer]:
    """Read metrics."""
    return _get("metrics")


# --- keys, system ----------------------------------------------------------------------------


def create_key(name: str, scopes: Sequence[str], **limits: Any) -> Call[Answer]:
    """Make an access key; its secret is shown this once."""
    return _post("admin/keys", {"name": name, "scopes": list(scopes), **limits})


def create_role(name: str, role: str, scopes: Sequence[str], **limits: Any) -> Call[Answer]:
    """Say what an IAM role may do, by its ARN; listed and revoked as keys are."""
    return _post("admin/roles", {"name": name, "role": role, "scopes": list(scopes), **limits})


def revoke_key(key_id: str, *, made: Literal["keep", "revoke"] | None = None) -> Call[Answer]:
    """Revoke an access key; `made` says what becomes of the keys that it made."""
    return Call("DELETE", place("admin/keys/{}", key_id), json_object, query={"made": made})


def set_maintenance(enabled: bool, **said: Any) -> Call[Answer]:
    """Begin or end maintenance mode."""
    return _post("admin/system/maintenance", {"enabled": enabled, **said}, repeatable=True)


# Those of a worker, which `ojs_aws.worker` calls.


def worker_call(path: str, body: Any, *, method: str = "POST") -> Call[Answer]:
    """A request of a worker. Lease tokens make all of them safe to send again."""
    return Call(method, path, json_object, body)
