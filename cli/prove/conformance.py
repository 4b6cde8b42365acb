"""Conformance: the life of jobs, and what durable code, realtime, and outboxes rely on."""

from __future__ import annotations

import os
import time
from typing import Any

from cli.prove.state import Run, Skip, Wrong, require
from ojs_aws import ApiError, Duplicate, QueueFull, Unsupported

PART = "conformance"
_FUNCTIONS = "Check the logs of the functions jobs, workers, and admin"
_STREAM = "Check the log of the function stream, and its failure queue"
# Characters of args that don't fit in the job record.
_LARGE = 300 * 1024


def run_checks(run: Run) -> None:
    """Run all checks of this part."""
    for name, test, todo in (
        ("a job's life", _life, _FUNCTIONS),
        ("a batch, in order", _batch, _FUNCTIONS),
        ("a retry", _retry, _FUNCTIONS),
        ("a dead letter", _dead_letter, _FUNCTIONS),
        ("unique jobs", _unique, _FUNCTIONS),
        ("an ID that exists", _same_id, f"{_FUNCTIONS}. Outboxes rely on it"),
        ("a run of a cron job", _cron, _FUNCTIONS),
        ("a chain", _chain, _STREAM),
        ("a group", _group, _STREAM),
        ("bulk cancellation", _bulk, _FUNCTIONS),
        ("limits of a queue", _limits, _FUNCTIONS),
        ("a payload of 300 KiB", _large, "Check that the functions can use the payload bucket"),
        ("steps and signals", _durable, f"{_FUNCTIONS}. Durable code relies on it"),
        ("a lost lease", _lost_lease, "Check the log of the function workers"),
        ("events", _events, _STREAM),
        ("live events", _live, "Check the logs of the functions notify, socket, and ticket"),
    ):
        run.check(PART, name, lambda test=test: test(run), todo)  # type: ignore[misc]


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
    jobs = run.take(queue, 12)
    require([each["id"] for each in jobs] == pushed, "the jobs were fetched in another order")
    for job in jobs:
        run.own.ack(job)
    return "12 jobs"


def _retry(run: Run) -> str:
    queue = run.queue("check")
    job_id = run.push(queue, retry={"max_attempts": 2, "initial_interval": "PT1H"})
    run.own.nack(*run.take(queue), error={"type": "Prove", "message": "fails once"})
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
    run.own.nack(*run.take(queue), error={"type": "Prove", "message": "fails"})
    dead = run.own.list_dead_letters(queue=queue)["jobs"]
    require([each["id"] for each in dead] == [job_id], f"{len(dead)} dead letters are listed")
    run.own.retry_dead_letter(job_id)
    run.own.ack(*run.take(queue))
    return "listed, retried, completed"


def _unique(run: Run) -> str:
    queue = run.queue("check")
    unique = {"keys": ["type", "args"], "period": "PT10M"}
    run.push(queue, "one", unique=unique)
    refused = _refused(run, queue, "one", unique=unique)
    run.own.ack(*run.take(queue))
    return refused


def _same_id(run: Run) -> str:
    queue = run.queue("check")
    job_id = run.push(queue)
    refused = _refused(run, queue, id=job_id)
    run.own.ack(*run.take(queue))
    return refused


def _refused(run: Run, queue: str, *args: Any, **options: Any) -> str:
    try:
        run.push(queue, *args, **options)
    except Duplicate:
        return "the second job was rejected"
    raise Wrong("a second job was stored")


def _cron(run: Run) -> str:
    job = run.own.trigger_cron(register_cron(run))
    fetched: dict[str, dict[str, Any]] = {}

    def arrived() -> bool:
        # Other ticks can be due, too.
        jobs = run.own.fetch(run.queue("cron"), 10, worker_id=run.named("a"))
        fetched.update({each["id"]: each for each in jobs})
        return job.id in fetched

    run.until(arrived, 5, "the job of the cron job wasn't fetched")
    for each in fetched.values():
        run.own.ack(each)
    return "triggered and completed"


def register_cron(run: Run) -> str:
    """Create the cron job of the run, whose ticks are measured later. Returns its name."""
    name = run.named("tick")
    if {"kind": "cron job", "name": name} not in run.made.things:
        queue = run.queue("cron")
        run.made.note("cron job", name)
        run.own.register_cron(
            name, expression=run.pace.cron, type="prove.tick", queue=queue, overlap_policy="allow"
        )
    return name


def _steps(queue: str, *kinds: str) -> list[dict[str, Any]]:
    return [{"type": f"prove.{kind}", "args": [], "options": {"queue": queue}} for kind in kinds]


def _chain(run: Run) -> str:
    queue = run.queue("check")
    flow = run.own.create_workflow(type="chain", name=run.name, steps=_steps(queue, "a", "b"))
    for kind in ("prove.a", "prove.b"):
        (job,) = run.take(queue, within_s=run.pace.counted_s)
        require(job["type"] == kind, f"{job['type']} was fetched before {kind}")
        run.own.ack(job, result=kind)
    return _completed(run, flow["id"])


def _group(run: Run) -> str:
    queue = run.queue("check")
    flow = run.own.create_workflow(type="group", name=run.name, jobs=_steps(queue, "a", "b"))
    for job in run.take(queue, 2, within_s=run.pace.counted_s):
        run.own.ack(job)
    return _completed(run, flow["id"])


def _completed(run: Run, flow_id: str) -> str:
    run.until(
        lambda: run.own.get_workflow(flow_id)["state"] == "completed",
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
    rate = {"limit": 1, "period": "PT10M"}
    queue = run.queue("full", max_size=2, rate_limit=rate)
    run.push_many(queue, 2)
    try:
        run.push(queue)
    except QueueFull:
        jobs = run.own.fetch(queue, 2, worker_id=run.named("a"))
        require(len(jobs) == 1, f"{len(jobs)} jobs were fetched, the rate limit is 1")
        run.own.ack(jobs[0])
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
    token = job["lease_token"]

    def save(key: str, result: int) -> dict[str, Any]:
        step = {"name": "first", "save": key, "result": result}
        found: dict[str, Any] = own.save_steps(job_id, steps=[step], lease_token=token)["steps"][0]
        return found

    require(save("one", 1)["stored"] and save("one", 1)["stored"], "a step wasn't stored")
    again = save("two", 2)
    require(not again["stored"] and again["result"] == 1, "a step was stored twice")
    waits = [{"kind": "signal", "name": "go", "for": "PT1H"}]
    own.nack(job, suspend={"mode": "all", "waits": waits})
    require(own.fetch(queue) == [], "a suspended job was fetched")
    require(own.send_signal(job_id, "go", data=1)["woken"], "the signal didn't wake the job")
    (job,) = run.take(queue)
    steps = {each["name"]: each["result"] for each in own.list_steps(job_id)["steps"]}
    require(steps == {"first": 1, "go": 1}, f"the steps are {steps}")
    own.ack(job)
    return "one result for each step, woken by a signal"


def _lost_lease(run: Run) -> str:
    queue, lease_s = run.queue("check"), run.pace.lease_s
    job_id = run.push(queue)
    ms = round(1_000 * lease_s)
    (lost,) = run.own.fetch(queue, worker_id=run.named("b"), visibility_timeout_ms=ms)
    began = time.monotonic()
    run.own.put_checkpoint(job_id, state={"page": 3}, lease_token=lost["lease_token"])
    (job,) = run.take(queue, within_s=lease_s + 60)
    waited_s = time.monotonic() - began
    require(job["attempt"] == 2, f"the attempt is {job['attempt']}")
    state = job.get("checkpoint", {}).get("state")
    require(state == {"page": 3}, f"the checkpoint is {state}")
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
    wanted = {"job.enqueued", "job.started", "job.completed", "job.failed"}

    def found() -> set[str]:
        return {each["type"] for each in run.own.each(run.own.list_events, queue=queue)}

    run.until(
        lambda: wanted <= found(), run.pace.counted_s,
        lambda: f"the log lacks {', '.join(sorted(wanted - found()))}",
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
    run.own.ack(*run.take(queue))
    got = None if event is None else event.data.get("job_id")
    require(got == job_id, "no event of the new job was received within 30 s")
    return f"an event of a new job after {ms:.0f} ms"
