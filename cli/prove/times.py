"""Durations: of requests, of cold starts, and from a push to the start of its job; and rates."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from cli.prove.aws import Skip
from cli.prove.probe import percentiles
from cli.prove.state import Run, require
from cli.prove.wiring import deliver
from ojs_aws import Job, JobContext, Worker

# Interval of polls of a worker that listens.
_RARELY_S = 60.0
# Time in seconds after which a job starts whose fetch was lost: its lease, and the sweep.
_LOST_S = 150.0
# End of the ramp.
_SLOW_MS, _ERRORS = 1_000.0, 0.001
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200)
_THREADS = 128
# A client that sends less than this part of a rate is too slow to measure it.
_REACHED = 0.9
_SLOW = "Compare with the functions' durations on the dashboard. Increase memory_mb"


def run_latency(run: Run) -> None:
    """Measure requests one by one, and then side by side."""
    run.check("latency", "durations of requests", _requests, _SLOW)
    run.check("latency", "cold starts", _cold, _SLOW)


def _requests(run: Run) -> str:
    queue, own, worker = run.queue("time"), run.own, run.named("a")
    found: dict[str, list[float]] = {}
    for _ in range(2):  # starts the containers
        run.push(queue)
        run.complete(queue, 1)
    for _ in range(run.pace.samples):
        job_id = _timed(run, found, "enqueue", lambda: run.push(queue))
        (job,) = _timed(run, found, "fetch", lambda: own.fetch(queue, worker_id=worker))
        require(job["id"] == job_id, "another job was fetched")
        _timed(run, found, "heartbeat", lambda: own.beat(worker, [job], queue))  # noqa: B023
        _timed(run, found, "ack", lambda: own.ack(job))  # noqa: B023
        _timed(run, found, "read", lambda: own.get_job(job_id))  # noqa: B023
    run.numbers["latency"] = {name: percentiles(values) for name, values in found.items()}
    slowest = max(run.numbers["latency"].items(), key=lambda each: each[1]["p99"])
    require(slowest[1]["p50"] < _SLOW_MS, f"half of the requests {slowest[0]} took over 1 s")
    return ", ".join(f"{name} {one['p50']:g}" for name, one in run.numbers["latency"].items()) + (
        f" ms (p50); p99 of {slowest[0]} {slowest[1]['p99']:g} ms"
    )


def _timed(run: Run, found: dict[str, list[float]], name: str, send: Callable[[], Any]) -> Any:
    answer = send()
    found.setdefault(name, []).append(run.own.transport.sent[-1].ms)
    return answer


def _cold(run: Run) -> str:
    """More requests at the same time than containers start new ones."""
    queue, count = run.queue("time"), run.pace.parallel
    warm = run.numbers.get("latency", {}).get("enqueue", {}).get("p50", 0.0)
    before = len(run.own.transport.sent)
    with ThreadPoolExecutor(count) as pool:
        [*pool.map(lambda _: run.push(queue), range(count))]
    found = percentiles([each.ms for each in run.own.transport.sent[before:]])
    run.numbers["cold"] = found
    run.complete(queue, count)
    return f"{count} side by side: p50 {found['p50']:g} ms, max {found['max']:g} ms (warm {warm:g})"


# --- pick-up -------------------------------------------------------------------------------------


def run_pickup(run: Run) -> None:
    """Measure the time from a push to the start of its job, and the delay of a cron job."""
    for poll_s in run.pace.polls_s:
        options = {"poll_s": poll_s, "realtime": False}
        test = partial(_picked, f"poll {poll_s:g} s", options, poll_s + 1)
        run.check("pickup", f"polled every {poll_s:g} s", test, _SLOW)
    # A worker that isn't rung finds a job after up to 25 s.
    test = partial(_picked, "listening", {"poll_s": _RARELY_S}, 2.0)
    run.check("pickup", "listening", test, "Check the logs of the functions ticket and socket")
    run.check("pickup", "pushed", _delivered, "Check the log of the function dispatch")
    run.check("pickup", "cron", _late, "Check the log of the function sweep")


@contextmanager
def _worker(run: Run, **options: Any) -> Iterator[dict[str, float]]:
    """Run a worker. Yields the times at which it started jobs, by ID."""
    begun: dict[str, float] = {}
    # A late heartbeat of the worker before must not stop this one.
    number = len(run.numbers.get("pickup", {}))
    worker = Worker(
        client=run.own.other(run.own.key, tries=3), queues=[run.queue("pick")], concurrency=1,
        worker_id=run.named(f"worker-{number}"), **options,
    )  # fmt: skip

    def note(job: JobContext) -> None:
        begun[job.id] = time.monotonic()

    worker.handler("prove.job")(note)
    thread = threading.Thread(target=lambda: worker.run(signals=False), daemon=True)
    thread.start()
    try:
        yield begun
    finally:
        worker.stop()
        thread.join(60)


def _picked(name: str, options: dict[str, Any], within_s: float, run: Run) -> str:
    """Push jobs one by one to an idle worker. Half of them must start within `within_s` s."""
    waited, listens = [], options.get("realtime", True)
    if listens and not run.own.manifest()["extensions"].get("realtime", {}).get("websocket"):
        raise Skip("the deployment has no WebSocket API (realtime=off)")
    with _worker(run, **options) as begun:
        for number in range(run.pace.pickups + 1):
            # Pushes don't have the rhythm of polls.
            run.sleep(random.uniform(0.2, 1.0) * min(options["poll_s"], 4.0))  # noqa: S311
            began, job_id = time.monotonic(), run.push(run.named("pick"))
            run.until(lambda: job_id in begun, _LOST_S, "the job didn't start")  # noqa: B023
            _completed(run, job_id)
            if number:
                waited.append(1_000 * (begun[job_id] - began))
            elif listens:
                run.sleep(run.pace.listed_s)
    found = _note(run, name, waited)
    require(found["p50"] < 1_000 * within_s, f"half of the jobs started after {found['p50']:g} ms")
    return f"p50 {found['p50']:g} ms, max {found['max']:g} ms"


def _completed(run: Run, job_id: str) -> Job:
    run.until(
        lambda: run.own.get_job(job_id).state == "completed", 60, "the job didn't complete"
    )  # fmt: skip
    return run.own.get_job(job_id)


def _note(run: Run, name: str, waited: list[float]) -> dict[str, float]:
    found = percentiles(waited)
    values = [round(each, 1) for each in waited]
    run.numbers.setdefault("pickup", {})[name] = {**found, "values": values}
    return found


def _delivered(run: Run) -> str:
    queue = deliver(run)
    jobs = [_completed(run, run.push(queue, "pass")) for _ in range(run.pace.pickups)]
    found = _note(run, "pushed", [_ms_between(each.created_at, each.started_at) for each in jobs])
    return f"p50 {found['p50']:g} ms, max {found['max']:g} ms"


def _late(run: Run) -> str:
    """Wait for ticks of the cron job, which the conformance part created."""
    from cli.prove.conformance import register_cron

    name, pace = register_cron(run), run.pace

    def ticks() -> list[dict[str, Any]]:
        runs = run.own.cron_history(name)["executions"]
        return [each for each in runs if not each["manual"] and "triggered_at" in each]

    run.until(lambda: len(ticks()) >= pace.ticks, pace.ticks_s,
              lambda: f"{len(ticks())} of {pace.ticks} ticks ran")  # fmt: skip
    waited = [_ms_between(each["scheduled_at"], each["triggered_at"]) for each in ticks()]
    found = _note(run, "cron", waited)
    # The sweep runs once a minute, for up to a minute.
    require(found["max"] < 120_000, f"a tick was {found['max'] / 1_000:.0f} s late")
    return f"{len(waited)} ticks, the latest {found['max'] / 1_000:.1f} s late"


def _ms_between(before: str | None, after: str | None) -> float:
    first, second = (datetime.fromisoformat(each or "") for each in (before, after))
    return 1_000 * (second - first).total_seconds()


# --- ramp ----------------------------------------------------------------------------------------


def jobs_of_ramp(rate: int, step_s: float = 30.0) -> float:
    """Return the number of jobs of all steps up to a rate."""
    return step_s * sum(_rates(rate))


def _rates(rate: int) -> list[int]:
    return [each for each in _STEPS if each < rate] + [rate]


def run_ramp(run: Run) -> None:
    """Enqueue, fetch, and complete jobs at growing rates."""
    todo = "docs/size-a-deployment.md: lanes, concurrency, throttles"
    run.check("ramp", f"up to {run.rate} jobs/s", _ramp, todo)


def _ramp(run: Run) -> str:
    queue, steps = run.queue("ramp"), run.numbers.setdefault("ramp", [])
    rates = _rates(run.rate)
    began, ended = datetime.now(UTC), "the highest rate was reached"
    with ThreadPoolExecutor(_THREADS) as pool:
        for rate in rates:
            # Enqueue, fetch, ack.
            jobs = round(rate * run.pace.step_s)
            if not run.affords(jobs, 0):
                ended = f"{rate} jobs/s would exceed the price of --max-cost"
                break
            step = _step(run, pool, queue, rate, jobs)
            steps.append(step)
            if reason := _stops(run, step, began):
                ended = reason
                break
    run.numbers["ramp_span"] = [began.timestamp(), time.time()]
    run.numbers["ramp_ended"] = ended
    while run.complete(queue):  # jobs whose fetch came too early
        pass
    good = [each["rate"] for each in steps if not each["stops"]]
    require(good, f"not even {rates[0]} jobs/s: {ended}")
    return f"{max(good)} jobs/s without a limit; {ended}"


def _step(
    run: Run, pool: ThreadPoolExecutor, queue: str, rate: float, count: int
) -> dict[str, Any]:
    failures: list[Exception] = []
    before = len(run.own.transport.sent)
    began = time.monotonic()

    def life() -> None:
        try:
            run.push(queue)
            for job in run.own.fetch(queue, worker_id=run.named("b")):
                run.own.ack(job)
        except Exception as error:  # noqa: BLE001 - counted
            failures.append(error)

    lives = []
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        lives.append(pool.submit(life))
    sent_s = time.monotonic() - began
    wait(lives, timeout=60)
    sent = run.own.transport.sent[before:]
    return {
        "rate": rate, "jobs": count, "reached": round(count / max(sent_s, count / rate), 1),
        "failures": len(failures), "requests": len(sent), **percentiles([each.ms for each in sent]),
        "errors": round(len(failures) / max(1, count), 4), "stops": "",
    }  # fmt: skip


def _stops(run: Run, step: dict[str, Any], began: datetime) -> str:
    """Return why the ramp ends with this step, or an empty text."""
    span = (began, datetime.now(UTC))
    if step["p99"] > _SLOW_MS:
        step["stops"] = f"p99 was {step['p99']:g} ms at {step['rate']} jobs/s"
    elif step["errors"] > _ERRORS:
        step["stops"] = f"{step['failures']} of {step['jobs']} jobs failed at {step['rate']} jobs/s"
    elif step["reached"] < _REACHED * step["rate"]:
        step["stops"] = f"this machine sent only {step['reached']:g} of {step['rate']} jobs/s"
    elif run.cloud is not None and run.cloud.throttled(span):
        step["stops"] = f"requests were throttled at {step['rate']} jobs/s"
    elif run.cloud is not None and (raised := run.cloud.raised()):
        step["stops"] = f"alarms were raised: {', '.join(raised)}"
    reason: str = step["stops"]
    return reason
