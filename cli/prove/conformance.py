"""Conformance: the life of jobs, and what durable code, realtime, and outboxes rely on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cli.prove.aws import Skip, Wrong
from cli.prove.state import Run, require
from ojs_aws import ApiError, Duplicate, OjsError, QueueFull, Unsupported

_FUNCTIONS = "Check the logs of the functions jobs, workers, and admin"
_STREAM = "Check the log of the function stream, and its failure queue"
# Bytes of args that don't fit in the job record.
_LARGE = 300 * 1024


def run_checks(run: Run) -> None:
    """Run all checks of this part."""
    unique = {"unique": {"keys": ["type", "args"], "period": "PT10M"}}
    for name, test, todo in (
        ("a job's life", _life, _FUNCTIONS),
        ("a batch, in order", _batch, _FUNCTIONS),
        ("a retry", _retry, _FUNCTIONS),
        ("a dead letter", _dead_letter, _FUNCTIONS),
        ("unique jobs", lambda of: _refused(of, lambda _: unique, unique), _FUNCTIONS),
        ("an ID that exists", lambda of: _refused(of, lambda job_id: {"id": job_id}, {}),
         f"{_FUNCTIONS}. Outboxes rely on it"),
        ("a run of a cron job", _cron, _FUNCTIONS),
        ("a chain", lambda of: _workflow(of, "chain", "steps"), _STREAM),
        ("a group", lambda of: _workflow(of, "group", "jobs"), _STREAM),
        ("bulk cancellation", _bulk, _FUNCTIONS),
        ("limits of a queue", _limits, _FUNCTIONS),
        ("a payload of 300 KiB", _large, "Check that the functions can use the payload bucket"),
        ("steps and signals", _durable, f"{_FUNCTIONS}. Durable code relies on it"),
        ("a lost lease", _lost_lease, "Check the log of the function workers"),
        ("events", _events, _STREAM),
        ("live events", _live, "Check the logs of the functions notify, socket, and ticket"),
    ):  # fmt: skip
        run.check("conformance", name, test, todo)
        if run.checks[-1].verdict == "failed":
            # Its jobs must not fail the next check.
            with suppress(OjsError):
                run.complete(run.queue("check"))


def _life(run: Run) -> str:
    queue, own = run.queue("check"), run.own
    job_id = run.push(queue, {"né": 1.10})
    (job,) = run.take(queue)
    state = (job["id"], job["state"], job["attempt"], job["args"])
    require(state == (job_id, "active", 1, [{"né": 1.10}]), f"the fetched job is {state}")
    beat = own.beat(run.named("a"), [job], queue)
    require(beat["jobs_extended"] == [job_id], "the heartbeat didn't extend the job")
    own.ack(job, result={"words": 3})
    done = own.get_result(job_id)
    require((done["state"], done["result"]) == ("completed", {"words": 3}), f"result: {done}")
    return "enqueued, fetched, extended, completed"


def _batch(run: Run) -> str:
    queue = run.queue("check")
    pushed = run.push_many(queue, 12)
    require(run.complete(queue, 12) == pushed, "the jobs were fetched in another order")
    return "12 jobs"


def _retry(run: Run) -> str:
    queue = run.queue("check")
    job_id = run.push(queue, retry={"max_attempts": 2, "initial_interval": "PT1H"})
    run.own.ack(run.take(queue)[0], "nack", error={"type": "Prove", "message": "fails once"})
    state = run.own.get_job(job_id).state
    require(state == "retryable", f"after a nack the job is {state}")
    run.own.run_job(job_id)
    (job,) = run.take(queue)
    require(job["attempt"] == 2, f"the attempt is {job['attempt']}")
    run.own.ack(job)
    return "retryable, then completed at attempt 2"


def _dead_letter(run: Run) -> str:
    queue = run.queue("check")
    job_id = run.push(queue, retry={"max_attempts": 1})
    run.own.ack(run.take(queue)[0], "nack", error={"type": "Prove", "message": "fails"})
    dead = run.own.list_dead_letters(queue=queue)["jobs"]
    require([each["id"] for each in dead] == [job_id], f"{len(dead)} dead letters are listed")
    run.own.retry_dead_letter(job_id)
    run.complete(queue)
    return "listed, retried, completed"


def _refused(run: Run, again: Callable[[str], dict[str, Any]], first: dict[str, Any]) -> str:
    queue = run.queue("check")
    job_id = run.push(queue, **first)
    try:
        run.push(queue, **again(job_id))
    except Duplicate:
        run.complete(queue)
        return "the second job was rejected"
    raise Wrong("a second job was stored")


def _cron(run: Run) -> str:
    job, queue = run.own.trigger_cron(register_cron(run)), run.queue("cron")
    # Other ticks can be due, too.
    run.until(lambda: job.id in run.complete(queue), 5, "the job of the cron job wasn't fetched")
    return "triggered and completed"


def register_cron(run: Run) -> str:
    """Create the cron job of the run, whose ticks are measured later. Returns its name."""
    name, queue = run.named("tick"), run.queue("cron")
    if run.made.note("cron job", name):
        run.own.register_cron(
            name, expression=run.pace.cron, type="prove.tick", queue=queue, overlap_policy="allow"
        )
    return name


def _workflow(run: Run, kind: str, steps: str) -> str:
    queue, own = run.queue("check"), run.own
    jobs = [{"type": f"prove.{each}", "args": [], "options": {"queue": queue}} for each in "ab"]
    flow = own.create_workflow(type=kind, name=run.name, **{steps: jobs})
    for each in "ab":
        (job,) = run.take(queue, within_s=run.pace.counted_s)
        expected = kind == "group" or job["type"] == f"prove.{each}"
        require(expected, f"{job['type']} was fetched before prove.{each}")
        own.ack(job, result=each)
    run.until(
        lambda: own.get_workflow(flow["id"])["state"] == "completed",
        run.pace.counted_s, "the workflow isn't completed",
    )  # fmt: skip
    return "completed"


def _bulk(run: Run) -> str:
    queue = run.queue("check")
    counts = run.own.cancel_jobs(run.push_many(queue, 5))
    require(counts["succeeded"] == 5, f"{counts['succeeded']} of 5 jobs were cancelled")
    require(run.own.fetch(queue) == [], "a cancelled job was fetched")
    return "5 jobs were cancelled"


def _limits(run: Run) -> str:
    queue = run.queue("full", max_size=2, rate_limit={"limit": 1, "period": "PT10M"})
    run.push_many(queue, 2)
    try:
        run.push(queue)
    except QueueFull:
        jobs = run.own.fetch(queue, 2)
        require(len(jobs) == 1, f"{len(jobs)} jobs were fetched, the rate limit is 1")
        return "a third job was rejected, and one of two was fetched"
    raise Wrong("a job was stored in a full queue")


def _large(run: Run) -> str:
    queue, text = run.queue("check"), os.urandom(_LARGE // 2).hex()
    run.push(queue, text)
    (job,) = run.take(queue)
    require(job["args"] == [text], "the fetched args differ")
    run.own.ack(job)
    return "fetched unchanged"


def _durable(run: Run) -> str:
    queue, own = run.queue("check"), run.own
    job_id = run.push(queue)
    (job,) = run.take(queue)

    def save(key: str, result: int) -> tuple[bool, Any]:
        step = {"name": "first", "save": key, "result": result}
        (found,) = own.save_steps(job_id, steps=[step], lease_token=job["lease_token"])["steps"]
        return found["stored"], found.get("result")

    saved = [save("one", 1)[0], save("one", 1)[0], save("two", 2)]
    require(saved == [True, True, (False, 1)], f"saving a step three times returned {saved}")
    waits = [{"kind": "signal", "name": "go", "for": "PT1H"}]
    own.ack(job, "nack", suspend={"mode": "all", "waits": waits})
    require(own.fetch(queue) == [], "a suspended job was fetched")
    require(own.send_signal(job_id, "go", data=1)["woken"], "the signal didn't wake the job")
    run.complete(queue)
    steps = {each["name"]: each["result"] for each in own.list_steps(job_id)["steps"]}
    require(steps == {"first": 1, "go": 1}, f"the steps are {steps}")
    return "one result for each step, woken by a signal"


def _lost_lease(run: Run) -> str:
    queue, lease_s = run.queue("check"), run.pace.lease_s
    job_id = run.push(queue)
    (lost,) = run.own.fetch(queue, visibility_timeout_ms=round(1_000 * lease_s))
    began = time.monotonic()
    run.own.put_checkpoint(job_id, state={"page": 3}, lease_token=lost["lease_token"])
    (job,) = run.take(queue, within_s=lease_s + 60)
    waited_s = time.monotonic() - began
    found = (job["attempt"], job.get("checkpoint", {}).get("state"))
    require(found == (2, {"page": 3}), f"the attempt and the checkpoint are {found}")
    try:
        run.own.ack(lost)
    except ApiError as error:
        require(error.status == 409, f"the ack of the lost lease returned {error.status}")
    else:
        raise Wrong("the ack of the lost lease was accepted")
    run.own.ack(job)
    return f"fetched again {waited_s:.1f} s after a lease of {lease_s:g} s, with its checkpoint"


def _events(run: Run) -> str:
    queue = run.queue("check")
    wanted = {f"job.{what}" for what in ("enqueued", "started", "completed", "failed")}

    def lacking() -> set[str]:
        return wanted - {each["type"] for each in run.own.each(run.own.list_events, queue=queue)}

    run.until(
        lambda: not lacking(), run.pace.counted_s,
        lambda: f"the log lacks {', '.join(sorted(lacking()))}",
    )  # fmt: skip
    return f"the log has {len(wanted)} types"


def _live(run: Run) -> str:
    queue = run.queue("check")
    try:
        with run.own.subscribe(f"queue:{queue}") as events:
            run.sleep(run.pace.noticed_s)
            began, job_id = time.monotonic(), run.push(queue)
            event = events.get(30)
            ms = 1_000 * (time.monotonic() - began)
    except Unsupported:
        raise Skip("the deployment sends no events (realtime=wake or off)") from None
    run.complete(queue)
    got = None if event is None else event.data.get("job_id")
    require(got == job_id, "no event of the new job was received within 30 s")
    return f"an event of a new job after {ms:.0f} ms"
