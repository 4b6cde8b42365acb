"""Durable code of handlers: faults at each request, ends of attempts, and what is refused."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ojs.domain.delivery import outcome, signing
from ojs_aws import (
    AsyncJobContext,
    Job,
    JobContext,
    JobFailed,
    Jobs,
    JobSuspended,
    Retry,
    Signal,
    StepFailed,
    StepInterrupted,
    StepNameReused,
    Unique,
    Worker,
    group,
    injected,
    lambda_handler,
)
from ojs_aws.worker import durable, functions
from ojs_aws.worker.handlers import Ending
from tests.library.in_process import BASE, FAULTS, Server
from tests.unit.domain.delivery.pushes import NOW_MS
from tests.unit.functions.client import Api
from tests.unit.functions.conftest import api, make_runtime

__all__ = ["api", "make_runtime"]

RETRY = Retry(max_attempts=3, initial_interval="PT0.1S", jitter=False)
jobs = Jobs(queue="q", retry=RETRY)
ran: Counter[str] = Counter()
keys: list[str] = []


@pytest.fixture
def server(api: Api, monkeypatch: pytest.MonkeyPatch) -> Server:
    ran.clear()
    keys.clear()
    monkeypatch.setattr(durable, "_supported", set())
    return Server(api)


def worker_of(server: Server, *handlers: tuple[str, Callable[..., Any]]) -> Worker:
    worker = Worker(queues=["q"], client=server.client)
    worker.include(jobs)
    for kind, handler in handlers:
        if asyncio.iscoroutinefunction(handler):
            worker.job(kind, queue="q")(handler)
        else:
            worker.handler(kind)(handler)
    return worker


def act(name: str, value: Any = None) -> Any:
    ran[name] += 1
    return value if value is not None else f"{name} done"


def fail(name: str, error: Exception) -> Any:
    ran[name] += 1
    raise error


async def aact(name: str) -> str:
    await asyncio.sleep(0)
    return str(act(name))


@jobs.job("child")
def child(number: int) -> int:
    ran[f"child {number}"] += 1
    if number < 0:
        raise JobFailed("negative", code="negative", retryable=False, details={"n": number})
    return number * 2


@jobs.job("whole")
def whole(job: JobContext) -> list[Any]:
    keys.append(job.idempotency_key("a"))
    found = [job.step("a", act, "a"), job.step("b", act, "b", key="1")]
    job.sleep("P1D")
    signal = job.wait_for("go", timeout="P1D")
    found += [signal and signal.data, job.run(child.job(1), name="one")]
    return [*found, *job.gather(child.job(2), child.job(3), name="more")]


@jobs.job("whole.async")
async def awhole(job: AsyncJobContext) -> list[Any]:
    keys.append(job.idempotency_key("a"))
    a, b, _ = await asyncio.gather(
        job.step("a", act, "a"), job.step("b", aact, "b", key="1"), job.sleep("P1D")
    )
    signal = await job.wait_for("go", timeout="P1D")
    one = job.run(child.job(1), name="one")
    ones = await asyncio.gather(one, job.gather(child.job(2), child.job(3), name="more"))
    return [a, b, signal and signal.data, ones[0], *ones[1]]


DONE = ["a done", "b done", {"by": "ada"}, 2, 4, 6]


@pytest.mark.parametrize("fault", [None, *FAULTS])
@pytest.mark.parametrize("kind", ["whole", "whole.async"])
def test_a_fault_at_each_request(server: Server, kind: str, fault: str | None) -> None:
    """The outcome is the same, and what is stored did not run again."""
    worker = worker_of(server)
    for at in range(100):
        durable._supported.clear()
        ran.clear()
        keys.clear()
        server.asked.clear()
        server.faults = {at: fault} if fault else {}
        job_id = server.push(kind, retry={"max_attempts": 20})
        done = server.finish(worker, job_id, {"go": {"by": "ada"}})
        assert (done["state"], done["result"]) == ("completed", DONE), (at, server.paths())
        assert set(server.steps(job_id)) == {"a", "b/1", "go", "one", "more/0", "more/1"}
        # Only what ran when the process crashed, or what a crash left unstored, ran again.
        twice = {name: n for name, n in ran.items() if n > 1}
        crashed = fault is not None and fault.startswith("crash")
        assert sum(n - 1 for n in twice.values()) <= (2 if crashed else 0), (at, ran)
        assert not [name for name in twice if name.startswith("child")]
        assert set(keys) == {f"{job_id}/0/a"}
        if fault is None or len(server.asked) <= at:
            break
    assert fault is None or at > 7


# --- requests -------------------------------------------------------------------------------------


def test_the_requests_of_a_job(server: Server) -> None:
    """The manifest once in a process, the stored outcomes once in an attempt."""

    def handle(job: JobContext) -> None:
        job.step("a", act, "a")
        job.sleep("P1D")
        job.step("b", act, "b")

    def plain(_job: JobContext) -> None:
        pass

    worker = worker_of(server, ("t", handle), ("plain", plain))
    server.push("plain")
    assert server.attempt(worker).how == "acks"
    assert server.paths() == []
    save, load = "POST jobs/ID/steps", "GET jobs/ID/steps"
    for expected in (["GET /ojs/manifest", save, load, save], [save, load, save]):
        server.asked.clear()
        job_id = server.push("t")
        assert "suspend" in server.attempt(worker).entry
        server.later(days=1)
        assert server.attempt(worker).how == "acks"
        assert server.paths() == expected
        assert server.job(job_id)["durable"]["steps"] == 3


def test_outcomes_of_parallel_steps_are_sent_together(server: Server) -> None:
    async def handle(job: AsyncJobContext) -> list[Any]:
        return await asyncio.gather(*(job.step("s", aact, f"s{n}", key=str(n)) for n in range(30)))

    worker = worker_of(server, ("t", handle))
    server.push("t")
    ending = server.attempt(worker)
    assert ending.entry["result"] == [f"s{n} done" for n in range(30)]
    assert server.paths().count("POST jobs/ID/steps") == 2  # up to 25 in each
    assert sum(ran.values()) == 30


def test_large_outcomes_are_sent_apart(server: Server) -> None:
    """The server accepts 6 MiB in a request."""

    async def large(name: str) -> str:
        return name * 260_000

    async def handle(job: AsyncJobContext) -> int:
        found = await asyncio.gather(*(job.step("s", large, "x", key=str(n)) for n in range(10)))
        return len("".join(found))

    worker = worker_of(server, ("t", handle))
    server.push("t")
    assert server.attempt(worker).entry["result"] == 2_600_000
    counts = [len(body["steps"]) for body in server.bodies if body]
    assert sum(counts) == 10
    assert max(counts) <= 4


def test_outcomes_have_several_pages(server: Server) -> None:
    big = "x" * 200_000

    def handle(job: JobContext) -> int:
        found = [job.step("s", act, f"s{n}", big, key=str(n)) for n in range(8)]
        job.sleep("P1D")
        return sum(map(len, found))

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t")
    assert server.finish(worker, job_id)["result"] == 1_600_000
    assert server.paths().count("GET jobs/ID/steps") == 2
    assert set(ran.values()) == {1}


def test_without_a_url_the_job_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OJS_URL", raising=False)
    worker = Worker(queues=["q"])
    worker.handler("t")(lambda job: job.step("a", act, "a"))
    error = worker.perform(Job("j", "t", lease_token="x")).entry["error"]
    assert (error["code"], error["retryable"]) == ("no_server", False)
    assert "OJS_URL" in error["message"]


def test_a_server_that_has_no_durable_code(server: Server) -> None:
    worker = worker_of(server, ("t", lambda job: job.step("a", act, "a")))
    monkey = durable.EXTENSION
    durable.EXTENSION = "urn:ojs-aws:ext:other"
    try:
        server.push("t")
        error = server.attempt(worker).entry["error"]
    finally:
        durable.EXTENSION = monkey
    assert (error["code"], error["retryable"]) == ("durable_unsupported", False)
    assert ran == {}


# --- failures -------------------------------------------------------------------------------------


class Declined(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "options", "code"),
    [
        (Declined("no"), {"final": Declined}, "handler_error"),
        (Declined("no"), {"final": (KeyError, Declined)}, "handler_error"),
        (JobFailed("no", code="declined", retryable=False), {}, "declined"),
        (JobFailed("no", type="card.declined"), {}, "job_failed"),
    ],
)
@pytest.mark.parametrize("caught", [True, False])
def test_a_final_error_is_stored(
    server: Server, error: Exception, options: dict[str, Any], code: str, caught: bool
) -> None:
    errors: list[Any] = []

    def handle(job: JobContext) -> str:
        try:
            job.step("pay", fail, "pay", error, **options)
        except StepFailed as failed:
            errors.append(failed)
            if not caught:
                raise
        if len(errors) == 1:
            raise ConnectionError("after it")
        return "refunded"

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t", retry={**RETRY.wire(), "non_retryable_errors": ["card.*"]})
    done = server.finish(worker, job_id)
    assert ran["pay"] == 1
    assert {(each.name, each.error["code"], each.error["message"]) for each in errors} == {
        ("pay", code, "no")
    }
    stored = server.steps(job_id)["pay"]
    assert (stored["status"], stored["error"]["type"]) == ("failed", errors[0].error["type"])
    if caught:
        assert (done["result"], len(errors)) == ("refunded", 2)
    else:
        # The attempt would fail again with what is stored.
        assert (done["state"], done["error"]["code"], len(errors)) == ("discarded", code, 1)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_attempts_count_from_the_last_stored_step(server: Server, asynchronous: bool) -> None:
    """Two retries before a step, two after it, and the last failure is stored."""
    seen: list[Any] = []

    def flaky(name: str) -> str:
        ran[name] += 1
        if ran[name] < 3 or name == "c":
            raise ConnectionError(name)
        return name

    def handle(job: JobContext) -> Any:
        seen.append(job.attempt)
        job.step("a", flaky, "a")
        job.step("b", flaky, "b")
        try:
            job.step("c", flaky, "c")
        except StepFailed as failed:
            return str(failed)
        except Exception:  # noqa: BLE001 - a retryable error must not arrive here
            return "caught"

    async def ahandle(job: AsyncJobContext) -> Any:
        seen.append(job.attempt)
        await job.step("a", flaky, "a")
        await job.step("b", flaky, "b")
        try:
            await job.step("c", flaky, "c")
        except StepFailed as failed:
            return str(failed)
        except Exception:  # noqa: BLE001
            return "caught"

    worker = worker_of(server, ("t", ahandle if asynchronous else handle))
    job_id = server.push("t", retry=RETRY.wire())
    done = server.finish(worker, job_id)
    assert (done["state"], done["result"]) == ("completed", "c: c")
    # a stored in attempt 3, b in 5 (two failures since), c in 7.
    assert (ran, seen) == ({"a": 3, "b": 3, "c": 3}, [1, 2, 3, 4, 5, 6, 7])
    assert done["durable"]["forgiven_attempts"] == 6


def test_an_exception_group_of_suspensions(server: Server) -> None:
    async def handle(job: AsyncJobContext) -> int:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(job.sleep("P1D", name="s"))
            tasks.create_task(job.step("a", aact, "a"))
        return 1

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t")
    assert server.finish(worker, job_id)["result"] == 1
    assert ran == {"a": 1}


# --- parallel branches ----------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["sleep", "step"])
def test_a_suspension_comes_when_no_step_runs(server: Server, first: str) -> None:
    """Branches with steps before and after a wait, and groups in groups."""
    running = {"most": 0, "now": 0}

    async def slow(name: str) -> str:
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        await asyncio.sleep(0.02)
        running["now"] -= 1
        return str(act(name))

    async def steps(job: AsyncJobContext) -> str:
        for n in range(3):
            await job.step("s", slow, f"s{n}", key=str(n))
        await asyncio.gather(job.step("x", slow, "x"), job.step("y", slow, "y"))
        return "steps"

    async def waits(job: AsyncJobContext) -> str:
        await job.sleep("P1D", name="nap")
        await asyncio.sleep(0)
        await job.step("after", slow, "after")
        return "waits"

    async def handle(job: AsyncJobContext) -> list[str]:
        one, other = waits(job), steps(job)
        both = [one, other] if first == "sleep" else [other, one]
        return [*await asyncio.gather(*both), str(await job.step("last", slow, "last"))]

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t")
    ending = server.attempt(worker)
    assert ending.entry == {
        "suspend": {"waits": [{"kind": "sleep", "name": "nap", "for": "PT86400S"}]}
    }
    assert set(server.steps(job_id)) == {"s/0", "s/1", "s/2", "x", "y"}
    assert running == {"most": 2, "now": 0}
    assert sorted(server.finish(worker, job_id)["result"]) == ["last done", "steps", "waits"]
    assert set(ran.values()) == {1}


def test_all_branches_wait_for_something_else(server: Server) -> None:
    """The first of them wakes the job, and the others go on waiting."""

    async def handle(job: AsyncJobContext) -> list[Any]:
        return [*await asyncio.gather(
            job.wait_for("one", timeout="P5D"), job.sleep("P1D", name="nap"),
            job.wait_for("two", timeout="P3D"), job.run(child.job(4), name="c"),
        )]  # fmt: skip

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t")
    suspended = server.attempt(worker).entry["suspend"]
    assert "mode" not in suspended
    assert [(each["kind"], each["name"]) for each in suspended["waits"]] == [
        ("signal", "one"), ("sleep", "nap"), ("signal", "two"), ("job", "c"),
    ]  # fmt: skip
    result = server.finish(worker, job_id, {"one": 1})["result"]
    assert (result[0]["data"], result[1:]) == (1, [None, None, 8])
    assert ran == {"child 4": 1}


def test_a_failed_step_lets_the_others_finish(server: Server) -> None:
    """What runs is stored, and nothing starts after the failure."""

    async def slow(name: str) -> str:
        await asyncio.sleep(0.05)
        return str(act(name))

    async def branch(job: AsyncJobContext) -> None:
        await job.step("slow", slow, "slow")
        await job.step("next", slow, "next")

    async def handle(job: AsyncJobContext) -> str:
        await asyncio.gather(
            branch(job), job.step("bad", flaky, "bad"), job.sleep("P1D", name="nap")
        )
        return "done"

    async def flaky(name: str) -> str:
        act(name)
        if ran[name] == 1:
            raise ConnectionError(name)
        return name

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t", retry=RETRY.wire())
    error = server.attempt(worker).entry["error"]
    assert (error["type"], error["message"], error["retryable"]) == ("ConnectionError", "bad", True)
    assert set(server.steps(job_id)) == {"slow"}
    assert server.finish(worker, job_id)["result"] == "done"
    assert ran == {"bad": 2, "slow": 1, "next": 1}


def test_a_branch_that_the_handler_gives_up(server: Server) -> None:
    """`asyncio.wait_for` ends a wait in this attempt, and the job goes on."""

    async def handle(job: AsyncJobContext) -> str:
        async def other() -> None:
            await asyncio.sleep(0.1)
            await job.step("other", aact, "other")

        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(job.step("long", asyncio.sleep, 60), 0.01)
        await other()
        return str(await job.step("a", aact, "a"))

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t")
    assert server.finish(worker, job_id)["result"] == "a done"
    assert set(server.steps(job_id)) == {"other", "a"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_catches_everything_is_suspended_all_the_same(
    server: Server, asynchronous: bool
) -> None:
    caught: list[type] = []

    def handle(job: JobContext) -> str:
        try:
            job.sleep("P1D")
        except BaseException as error:  # noqa: BLE001
            caught.append(type(error))
        try:
            job.step("a", act, "a")
        except BaseException as error:  # noqa: BLE001
            caught.append(type(error))
        return "done"

    async def ahandle(job: AsyncJobContext) -> str:
        try:
            await job.sleep("P1D")
        except BaseException as error:  # noqa: BLE001
            caught.append(type(error))
        try:
            await job.step("a", act, "a")
        except BaseException as error:  # noqa: BLE001
            caught.append(type(error))
        return "done"

    worker = worker_of(server, ("t", ahandle if asynchronous else handle))
    server.push("t")
    assert "suspend" in server.attempt(worker).entry
    assert (caught, ran) == ([JobSuspended, JobSuspended], {})


def test_a_finally_block_runs_at_a_suspension(server: Server) -> None:
    closed: list[str] = []

    def handle(job: JobContext, raised: bool = False) -> None:
        try:
            job.sleep("P1D")
        finally:
            closed.append("closed")
            if job.job.args:
                raise OSError("close")

    worker = worker_of(server, ("t", handle))
    server.push("t")
    assert "suspend" in server.attempt(worker).entry
    server.push("t", "raise")
    # An error in it is an error of the attempt.
    assert server.attempt(worker).entry["error"]["type"] == "OSError"
    assert closed == ["closed", "closed"]


def test_a_request_that_fails_lets_the_other_branches_finish(server: Server) -> None:
    """Their outcomes are stored, although they waited for the request that failed."""

    async def handle(job: AsyncJobContext) -> None:
        await asyncio.gather(*(job.step(f"s{n}", aact, f"s{n}") for n in range(3)))

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t", retry=RETRY.wire())
    server.faults = dict.fromkeys((1, 2, 3), "refused")  # each try of the first request to store
    error = server.attempt(worker).entry["error"]
    assert (error["type"], error["retryable"]) == ("Unreachable", True)
    assert len(server.steps(job_id)) == 2
    assert server.finish(worker, job_id)["state"] == "completed"
    assert sorted(ran.values()) == [1, 1, 2]


@pytest.mark.parametrize("end", ["returns", "raises"])
def test_branches_end_with_their_handler(server: Server, end: str) -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("step")

    async def wait(job: AsyncJobContext) -> None:
        try:
            await job.sleep("P1D")
        finally:
            ended.append("sleep")

    async def handle(job: AsyncJobContext) -> str:
        tasks = [asyncio.create_task(job.step("long", long)), asyncio.create_task(wait(job))]
        await job.step("a", aact, "a")
        assert not [task for task in tasks if task.done()]
        if end == "raises":
            raise ConnectionError
        return "done"

    worker = worker_of(server, ("t", handle))
    server.push("t")
    ending = server.attempt(worker)
    if end == "returns":
        assert ending.entry == {"result": "done"}
    else:
        assert ending.entry["error"]["type"] == "ConnectionError"
    assert sorted(ended) == ["sleep", "step"]


# --- other workers --------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("end", ["stored", "deleted"])
def test_a_worker_that_lost_its_job_stops(server: Server, asynchronous: bool, end: str) -> None:
    """Its outcome is refused, and it reports nothing."""
    after: list[str] = []

    def lose() -> str:
        ran["a"] += 1
        if ran["a"] == 1:
            if end == "deleted":
                server.api.post(f"{BASE}/jobs/{job_id}/cancel")
                server.api("DELETE", f"{BASE}/admin/jobs/{job_id}")
                return "mine"
            server.later(minutes=40)
            (again,) = server.fetch()
            assert worker.perform(again).entry["result"] == "theirs"
            server.report(again, worker.perform(again))
        return "mine" if ran["a"] == 1 else "theirs"

    def handle(job: JobContext) -> Any:
        found = job.step("a", lose)
        if job.attempt == 1:
            after.append(found)
        return found

    async def ahandle(job: AsyncJobContext) -> Any:
        found = await job.step("a", lose)
        if job.attempt == 1:
            after.append(found)
        return found

    worker = worker_of(server, ("t", ahandle if asynchronous else handle))
    job_id = server.push("t")
    (job,) = server.fetch()
    context = JobContext(job)
    ending = worker.perform(context)
    assert (ending.how, context.cancelled, after) == ("", "lost", [])
    if end == "stored":
        assert server.steps(job_id)["a"]["result"] == "theirs"
        assert server.job(job_id)["result"] == "theirs"


def test_the_first_outcome_of_a_name_counts(server: Server) -> None:
    """An earlier owner stored its outcome after this attempt had read what is stored."""

    def handle(job: JobContext) -> Any:
        job.step("a", act, "a")
        return job.step("b", meanwhile, job)

    def meanwhile(job: JobContext) -> str:
        body = {"lease_token": job.job.lease_token, "steps": [
            {"name": "b", "save": "other", "result": "first"}
        ]}  # fmt: skip
        server.api.post(f"{BASE}/jobs/{job.id}/steps", body)
        return "second"

    worker = worker_of(server, ("t", handle))
    server.push("t")
    assert server.attempt(worker).entry["result"] == "first"


def test_a_signal_in_the_moment_of_the_timeout(server: Server) -> None:
    """It was first, so the wait returns it."""

    def handle(job: JobContext) -> Any:
        found = job.wait_for("go", timeout="P1D")
        return found and found.data

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t")
    server.attempt(worker)
    server.later(days=2)

    def before(asked: str) -> None:
        if asked.startswith("POST"):
            server.before = lambda _asked: None
            body = {"data": "late"}
            assert server.api.post(f"{BASE}/jobs/{job_id}/signals/go", body).status == 202

    server.before = before
    assert server.attempt(worker).entry["result"] == "late"


def test_a_shutdown_returns_the_job(server: Server) -> None:
    def handle(job: JobContext) -> None:
        job.cancel("shutdown")
        job.step("a", act, "a")

    worker = worker_of(server, ("t", handle))
    server.push("t")
    assert server.attempt(worker).entry == {"requeue": True}
    assert ran == {}


# --- child jobs -----------------------------------------------------------------------------------


@jobs.job("unique", unique=Unique(keys=["type"], period="P30D"))
def unique() -> int:
    return act("unique", 7)  # type: ignore[no-any-return]


def test_a_child_that_fails(server: Server) -> None:
    errors: list[Any] = []

    def handle(job: JobContext) -> list[int]:
        try:
            return job.gather(child.job(1), child.job(-1), name="both")
        except StepFailed as failed:
            errors.append((failed.name, failed.error))
            raise

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t")
    done = server.finish(worker, job_id)
    # The other one has ended, too, and the parent isn't retried.
    assert (done["state"], ran) == ("discarded", {"child 1": 1, "child -1": 1})
    ((name, error),) = errors
    assert (name, error["code"], error["message"]) == ("both/1", "negative", "negative")
    assert done["error"]["code"] == "negative"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_unique_child_exists(server: Server, asynchronous: bool) -> None:
    """Another job has the unique key: this child can't start, in any attempt."""
    failed: list[str] = []

    def handle(job: JobContext) -> int:
        try:
            return job.run(unique.job(), name="u")
        except StepFailed as error:
            failed.append(error.error["code"])
            job.sleep("P1D")
            return 0

    async def ahandle(job: AsyncJobContext) -> int:
        try:
            return await job.run(unique.job(), name="u")
        except StepFailed as error:
            failed.append(error.error["code"])
            await job.sleep("P1D")
            return 0

    worker = worker_of(server, ("t", ahandle if asynchronous else handle))
    body = {**unique.job().wire(), "options": {"queue": "x", "unique": {"keys": ["type"]}}}
    assert server.api.post(f"{BASE}/jobs", body).status == 201
    job_id = server.push("t")
    assert server.finish(worker, job_id)["result"] == 0
    assert failed == ["duplicate", "duplicate"]
    assert ran == {}


def test_a_child_whose_end_was_not_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent asks after an hour, and after twice the age of the child."""
    from ojs.services.jobs.children import Children

    def handle(job: JobContext) -> int:
        return job.run(child.job(1), name="c")

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t")
    with monkeypatch.context() as patch:
        patch.setattr(Children, "ended", lambda *_args: None)
        wait = server.attempt(worker).entry["suspend"]["waits"][0]
        assert wait == {"kind": "job", "name": "c", "for": "PT3600S"}
        (waiting,) = server.fetch()
        server.later(hours=1)
        server.later(seconds=1)
        assert "suspend" in server.attempt(worker).entry
        server.report(waiting, worker.perform(waiting))
    server.later(hours=1)
    server.later(seconds=1)
    server.asked.clear()
    assert server.attempt(worker).entry["result"] == 2
    assert server.paths() == [
        "GET jobs/ID/steps", "POST jobs", "GET jobs/ID", "POST jobs/ID/steps",
    ]  # fmt: skip
    assert server.steps(job_id)["c"]["result"] == 2


def test_a_child_that_was_deleted(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end was not told either. The parent fails with what it knows, and goes on."""
    from ojs.services.jobs.children import Children

    def handle(job: JobContext) -> str:
        try:
            return str(job.run(child.job(1), name="c"))
        except StepFailed as failed:
            return str(failed.error["code"])

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t")
    monkeypatch.setattr(Children, "ended", lambda *_args: None)
    server.attempt(worker)
    (waiting,) = server.fetch()
    server.report(waiting, worker.perform(waiting))

    def before(asked: str) -> None:
        if asked == f"GET jobs/{waiting.id}":
            reply = server.api("DELETE", f"{BASE}/admin/jobs/{waiting.id}")
            assert reply.status == 200, reply.text

    server.before = before
    server.later(hours=1)
    server.later(seconds=1)
    assert server.attempt(worker).entry["result"] == "not_found"
    assert server.job(job_id)["state"] == "completed"


@pytest.mark.parametrize(
    ("created", "seconds"),
    [
        (None, 15), ("10:00:05", 15), ("09:59:40", 20), ("07:00:00", 3_600),
    ],
)  # fmt: skip
def test_how_long_a_child_is_waited_for(created: str | None, seconds: int) -> None:
    """By the clock of the server, as long as it exists."""
    found = durable.Durable(JobContext(Job("j", "t", started_at="2026-11-28T10:00:00.000Z")))
    at = created and f"2026-11-28T{created}.000Z"
    assert found._wait_for_child("c", (15, 3_600), at)["for"] == f"PT{seconds}S"


@pytest.mark.parametrize("number", [3, -1])
def test_a_workflow_is_waited_for(server: Server, number: int) -> None:
    def handle(job: JobContext) -> Any:
        try:
            return job.run(group(child.job(2), child.job(number)), name="g")
        except StepFailed as failed:
            return failed.error["code"]

    worker = worker_of(server, ("t", handle))
    for at in range(20):
        ran.clear()
        server.asked.clear()
        server.faults = {at: "crash after"}
        done = server.finish(worker, server.push("t", retry={"max_attempts": 10}))
        assert done["result"] == ([4, 6] if number == 3 else "workflow_failed")
        assert ran == {"child 2": 1, f"child {number}": 1}
        assert len(server.api.get(f"{BASE}/workflows").json["workflows"]) == at + 1
        if len(server.asked) <= at:
            break
    assert at > 5


# --- checkpoints, versions, epochs ----------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_is_resumed_from(server: Server, asynchronous: bool) -> None:
    seen: list[Any] = []

    def handle(job: JobContext) -> None:
        seen.append(job.last_checkpoint)
        job.checkpoint({"row": job.attempt})
        seen.append(job.last_checkpoint)
        if job.attempt < 3:
            raise ConnectionError

    async def ahandle(job: AsyncJobContext) -> None:
        seen.append(job.last_checkpoint)
        await job.checkpoint({"row": job.attempt})
        seen.append(job.last_checkpoint)
        if job.attempt < 3:
            raise ConnectionError

    worker = worker_of(server, ("t", ahandle if asynchronous else handle))
    server.finish(worker, server.push("t", retry=RETRY.wire()))
    assert seen == [None, *[{"row": 1}] * 2, *[{"row": 2}] * 2, {"row": 3}]
    assert server.paths().count("GET jobs/ID/steps") == 0


def test_the_version_is_that_of_the_first_step(server: Server) -> None:
    seen: list[int] = []

    def handle(job: JobContext) -> None:
        seen.append(job.version)
        job.step("a", act, "a")
        job.sleep("P1D")

    def worker(version: int) -> Worker:
        made = Worker(queues=["q"], client=server.client)
        made.job("t", queue="q", version=version)(handle)
        return made

    first = server.push("t")
    server.attempt(worker(1))
    server.later(days=1)
    server.finish(worker(2), first)
    second = server.push("t")
    server.finish(worker(2), second)
    assert seen == [1, 1, 2, 2]
    assert [server.job(each)["durable"]["version"] for each in (first, second)] == [1, 2]
    with pytest.raises(TypeError, match="version must be 1 or more"):
        Worker(queues=["q"]).job("t", version=-1)


def test_a_dead_letter_starts_afresh(server: Server) -> None:
    """The steps run again, with other idempotency keys."""

    def handle(job: JobContext) -> None:
        keys.append(job.idempotency_key("a"))
        job.step("a", act, "a")
        raise JobFailed("no", retryable=len(keys) > 2)

    worker = worker_of(server, ("t", handle))
    job_id = server.push("t", retry={"on_exhaustion": "dead_letter"})
    for how in ("keep", "clear", None):
        server.attempt(worker)
        if how:
            reply = server.api.post(f"{BASE}/dead-letter/{job_id}/retry", {"steps": how})
            assert reply.status == 200, reply.text
    assert keys == [f"{job_id}/0/a"] * 2 + [f"{job_id}/1/a"]
    assert ran == {"a": 2}


# --- what is refused ------------------------------------------------------------------------------


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


async def coroutine() -> None:
    pass


def untyped(value: Any) -> Any:
    return value


BAD_NAMES = ("", "x" * 65, "a|b", "../x", "..", "a b", "a/b", None, 5)
BAD_LENGTHS: list[Any] = [
    "", "P1M", "P367D", "P99999999999D", "3 days", "-P1D", timedelta(367), timedelta(-1), None, [],
]  # fmt: skip
BAD_CALLS: list[tuple[Callable[[Any], Any], str]] = [
    *((partial(lambda job, name: job.step(name, act, "a"), name=each), "invalid_durable_call")
      for each in BAD_NAMES),
    *((partial(lambda job, key: job.step("a", act, "a", key=key), key=each), "invalid_durable_call")
      for each in ("", "x" * 101, "a|b", "a\n", 5)),
    *((partial(lambda job, name: job.wait_for(name, timeout="P1D"), name=each),
       "invalid_durable_call") for each in BAD_NAMES),
    *((partial(lambda job, each: job.sleep(each), each=each), "invalid_durable_call")
      for each in BAD_LENGTHS),
    *((partial(lambda job, each: job.wait_for("a", timeout=each), each=each),
       "invalid_durable_call") for each in ("P1M", "P367D", 60, None)),
    *((partial(lambda job, each: job.sleep_until(each), each=each), "invalid_durable_call")
      for each in ("1970-01-01T00:00:00Z", "2026-11-28T10:00:00", "soon",
                   datetime.fromisoformat("2026-01-01T00:00:00"),
                   datetime(9999, 1, 1, tzinfo=UTC), 5, None)),
    (lambda job: (job.step("a", act, "a"), job.step("a", act, "a")), "step_name_reused"),
    (lambda job: (job.step("a", act, "a", key="1"), job.step("a", act, "a", key="1")),
     "step_name_reused"),
    (lambda job: job.step("a", lambda: job.step("b", act, "b")), "invalid_durable_call"),
    (lambda job: job.step("a", lambda: job.sleep("P1D")), "invalid_durable_call"),
    (lambda job: job.step("a", coroutine), "invalid_durable_call"),
    (lambda job: job.step("a", untyped, "x" * 262_143), "result_too_large"),
    (lambda job: job.step("a", untyped, "\ud800"), "result_not_json"),
    (lambda job: job.step("a", untyped, float("nan")), "result_not_json"),
    (lambda job: job.step("a", untyped, object()), "result_not_json"),
    (lambda job: job.step("a", untyped, nested(100_000)), "result_not_json"),
    (lambda job: job.step("a", untyped, nested(500)), "result_not_json"),
    (lambda job: job.checkpoint(float("nan")), "result_not_json"),
    (lambda job: job.checkpoint("x" * 1_048_577), "payload_too_large"),
    (lambda job: job.run(child, name="c"), "invalid_durable_call"),
    (lambda job: job.run("child", name="c"), "invalid_durable_call"),
    (lambda job: job.gather(child.job(1), 5, name="c"), "invalid_durable_call"),
    (lambda job: job.gather(*[child.job(1)] * 51, name="c"), "invalid_durable_call"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code"), BAD_CALLS)
def test_bad_calls_fail_the_job(server: Server, call: Callable[[Any], Any], code: str) -> None:
    worker = worker_of(server, ("t", call))
    server.push("t")
    error = server.attempt(worker).entry["error"]
    assert (error["code"], error["retryable"]) == (code, False), error
    assert "POST jobs" not in server.paths()


def test_too_many_waits(server: Server) -> None:
    async def handle(job: AsyncJobContext) -> None:
        await asyncio.gather(*(job.sleep("P1D", name=f"s{n}") for n in range(51)))

    worker = worker_of(server, ("t", handle))
    server.push("t")
    error = server.attempt(worker).entry["error"]
    assert (error["code"], error["retryable"]) == ("invalid_durable_call", False)


def test_too_many_steps(server: Server) -> None:
    def handle(job: JobContext) -> None:
        body = {"lease_token": job.job.lease_token}
        for n in range(40):
            steps = [{"name": f"s{n}.{m}", "save": "s"} for m in range(25)]
            server.api.post(f"{BASE}/jobs/{job.id}/steps", {**body, "steps": steps})
        job.step("a", act, "a")

    worker = worker_of(server, ("t", handle))
    server.push("t")
    error = server.attempt(worker).entry["error"]
    assert (error["code"], error["retryable"]) == ("too_many_steps", False)


@dataclass
class Old:
    a: int


@dataclass
class New:
    b: int


def test_a_stored_result_that_does_not_fit(server: Server) -> None:
    def old() -> Old:
        return Old(1)

    def new() -> New:
        return New(1)

    def handle(job: JobContext) -> None:
        assert job.step("a", old if job.attempt == 1 else new) == Old(1)
        raise ConnectionError

    worker = worker_of(server, ("t", handle))
    server.push("t", retry=RETRY.wire())
    server.attempt(worker)
    server.later(minutes=1)
    error = server.attempt(worker).entry["error"]
    assert (error["code"], error["retryable"]) == ("step_result_invalid", False)
    assert "'a'" in error["message"]


def test_a_result_is_the_same_in_each_attempt(server: Server) -> None:
    """It is what was stored, in the first attempt, too."""

    class Method:
        def act(self) -> tuple[int, ...]:
            return (1, 2)

        def __call__(self, number: int) -> Old:
            return Old(number)

    seen: list[Any] = []

    def handle(job: JobContext) -> None:
        seen.append([
            job.step("any", untyped, (1, 2)), job.step("method", Method().act),
            job.step("object", Method(), 5), job.step("partial", partial(Method(), 6)),
            job.step("len", len, "abc"), job.step("none", untyped, None),
        ])  # fmt: skip
        job.sleep("P1D")

    worker = worker_of(server, ("t", handle))
    server.finish(worker, server.push("t"))
    assert seen == [[[1, 2], (1, 2), Old(5), Old(6), 3, None]] * 2


def test_short_sleeps_wait_in_place(server: Server) -> None:
    def handle(job: JobContext) -> str:
        began = time.monotonic()
        job.sleep(0.01)
        job.sleep("PT0.01S")
        job.sleep(timedelta(milliseconds=10))
        return "short" if time.monotonic() - began < 4 else "long"

    worker = worker_of(server, ("t", handle))
    server.push("t")
    assert server.attempt(worker).entry["result"] == "short"
    assert server.paths() == []


def test_exceptions_are_pickled_and_exported() -> None:
    import pickle

    failed = pickle.loads(pickle.dumps(StepFailed("a", {"code": "x", "message": "no"})))
    assert (failed.name, failed.error["code"], str(failed)) == ("a", "x", "a: no")
    reused = pickle.loads(pickle.dumps(StepNameReused("a")))
    assert (reused.retryable, reused.code) == (False, "step_name_reused")
    assert not issubclass(StepInterrupted, Exception)
    assert not issubclass(JobSuspended, Exception)
    assert Signal(1, datetime.now(UTC)).data == 1


# --- functions ------------------------------------------------------------------------------------


class Context:
    """Lambda's context, with the time that is left."""

    def __init__(self, left_s: float = 900) -> None:
        self.until = time.monotonic() + left_s

    def get_remaining_time_in_millis(self) -> int:
        return round((self.until - time.monotonic()) * 1_000)


def invoked(worker: Worker, form: str, job: Job, context: Context, **options: Any) -> Any:
    """What a function answers to the event of a job."""
    shown = {**job.raw, "worker_id": "push_w"}
    if form == "endpoint":
        text = json.dumps({"job": job.raw, "worker_id": "push_w"})
        signed = signing.signed(
            ("s",), text.encode(), delivery_id="d", url="a.example/", now_ms=NOW_MS
        )
        headers = {name.lower(): value for name, value in signed.items()}
        event: Any = {
            "rawPath": "/", "rawQueryString": "", "body": text,
            "headers": {**headers, "host": "a.example", "x-ojs-delivery-id": "d"},
            "requestContext": {"http": {"method": "POST", "path": "/"}},
        }  # fmt: skip
    elif form == "sqs":
        event = {"Records": [{"messageId": job.id, "body": json.dumps(shown)}]}
    else:
        event = {"job": job.raw, "worker_id": "push_w"} if form == "push" else shown
    handler = lambda_handler(worker, signing_secrets="s", clock=lambda: NOW_MS / 1_000, **options)
    answer = handler(event, context)
    return json.loads(answer["body"]) if form == "endpoint" else answer


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("form", ["direct", "push", "endpoint", "sqs"])
def test_a_function_suspends_its_job(server: Server, form: str, asynchronous: bool) -> None:
    def handle(job: JobContext) -> str:
        job.step("a", act, "a")
        job.sleep("P1D", name="nap")
        return str(job.step("b", act, "b"))

    async def ahandle(job: AsyncJobContext) -> str:
        await job.step("a", act, "a")
        await job.sleep("P1D", name="nap")
        return str(await job.step("b", act, "b"))

    worker = worker_of(server, ("t", ahandle if asynchronous else handle))
    job_id = server.push("t")
    (job,) = server.fetch()
    answer = invoked(worker, form, job, Context())
    if form == "sqs":
        assert answer == {"batchItemFailures": []}
        nacked = server.bodies[-1]
        assert (server.paths()[-1], nacked["lease_token"]) == (
            "POST workers/nack", job.lease_token,
        )  # fmt: skip
    else:
        read = outcome.of_text(json.dumps(answer), job_id=job_id)
        assert read.verdict is outcome.Verdict.SUSPENDED
        assert answer["suspend"] == {"waits": [{"kind": "sleep", "name": "nap", "for": "PT86400S"}]}
        server.report(job, Ending("nacks", {"suspend": read.suspend}))
    assert server.job(job_id)["state"] == "scheduled"
    server.later(days=1)
    (job,) = server.fetch()
    answer = invoked(worker, form, job, Context())
    done: Any = {"status": "completed", "job_id": job_id, "result": "b done"}
    assert answer == ({"batchItemFailures": []} if form == "sqs" else done)
    assert ran == {"a": 1, "b": 1}


@pytest.mark.parametrize("fault", [*FAULTS[:2], "unreachable"])
def test_the_nack_of_an_sqs_message(server: Server, fault: str) -> None:
    """If it can't be sent, the message fails, and the job is retried."""
    worker = worker_of(server, ("t", lambda job: job.sleep("P1D")))
    job_id = server.push("t")
    away = dict.fromkeys((1, 2, 3), "refused")
    server.faults = away if fault == "unreachable" else {1: fault}
    (job,) = server.fetch()
    failures = invoked(worker, "sqs", job, Context())["batchItemFailures"]
    failed = fault == "unreachable"
    assert failures == ([{"itemIdentifier": job_id}] if failed else [])
    assert server.job(job_id)["state"] == ("active" if failed else "scheduled")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("left_s", "reserve_s", "invocations"),
    [(900, 600, 4), (900, 30, 2), (1_500, 600, 2), (700, 800, 4), (5_000, 30, 1)],
)
def test_the_15_minutes_of_lambda(
    server: Server, monkeypatch: pytest.MonkeyPatch, asynchronous: bool,
    left_s: int, reserve_s: int, invocations: int,
) -> None:  # fmt: skip
    """Steps of ten minutes each: the job continues in another invocation before one of them."""
    passed_s = 0.0

    def long(name: str) -> str:
        nonlocal passed_s
        passed_s += 600
        return str(act(name))

    def handle(job: JobContext) -> list[str]:
        return [job.step("s", long, f"s{n}", key=str(n)) for n in range(4)]

    async def ahandle(job: AsyncJobContext) -> list[str]:
        return [await job.step("s", long, f"s{n}", key=str(n)) for n in range(4)]

    worker = worker_of(server, ("t", ahandle if asynchronous else handle))
    job_id = server.push("t")
    count = 0
    while server.job(job_id)["state"] != "completed":
        count += 1
        (job,) = server.fetch()
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
        monkeypatch.setattr(durable, "time", clock)
        monkeypatch.setattr(functions, "time", clock)
        answer = invoked(worker, "direct", job, Context(left_s), reserve_s=reserve_s)
        read = outcome.of_text(json.dumps(answer), job_id=job_id)
        if read.verdict is outcome.Verdict.COMPLETED:
            assert answer["result"] == [f"s{n} done" for n in range(4)]
            server.report(job, Ending("acks", {"result": answer["result"]}))
            continue
        assert read.suspend == {"waits": [{"kind": "time", "name": "time", "for": "PT0S"}]}
        server.report(job, Ending("nacks", {"suspend": read.suspend}))
        assert server.job(job_id)["state"] == "available"
    assert (count, set(ran.values())) == (invocations, {1})


# --- try_out --------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [whole, awhole])
def test_durable_code_is_tried_out_without_a_server(job: Any) -> None:
    ran.clear()
    given = {"one": 10, "more/0": 20, "more/1": 30}
    found = job.try_out(steps={"a": "given", **given}, signals={"go": "now"})
    assert found == ["given", "b done", "now", 10, 20, 30]
    assert ran == {"b": 1}
    assert job.try_out(steps=given)[2] is None
    with pytest.raises(LookupError, match="Pass their results in steps"):
        job.try_out()
    with pytest.raises(StepFailed, match="one: no stock") as caught:
        job.try_out(steps={**given, "one": JobFailed("no stock", code="empty")})
    assert caught.value.error["code"] == "empty"


def test_what_try_out_passes_on() -> None:
    apart = Jobs()

    @apart.job("t", version=3)
    def handle(job: JobContext, order: Old, *, db: str = injected()) -> Any:
        job.sleep("PT1S")
        job.checkpoint({"row": 1})
        with pytest.raises(StepFailed, match="bad: away"):
            job.step("bad", fail, "bad", ConnectionError("away"))
        return [order.a, db, job.version, job.last_checkpoint, job.idempotency_key("x")]

    began = time.monotonic()
    assert handle.try_out(Old(1), db="fake") == [1, "fake", 3, {"row": 1}, "try-out/0/x"]
    assert time.monotonic() - began < 1

    @apart.job("u")
    def wrong(job: JobContext) -> None:
        job.step("a", untyped, object())

    with pytest.raises(JobFailed, match="can't be stored"):
        wrong.try_out()

    @apart.job("plain")
    async def plain(number: int) -> int:
        return number

    assert plain.try_out(5) == 5
