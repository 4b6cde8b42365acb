"""Resources of jobs: once a process, or once a job, by the name of a parameter."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ojs_aws import AsyncJobContext, Job, JobContext, Worker, injected, lambda_handler
from ojs_aws.client.call import Misconfigured
from ojs_aws.ids import uuid7
from tests.library.stub import StubServer, made, until, working


@pytest.fixture
def stub() -> StubServer:
    return StubServer()


@pytest.fixture
def worker(stub: StubServer) -> Iterator[Worker]:
    worker = made(stub)
    yield worker
    worker.handlers.shared().stop()


def job_of(kind: str, *args: Any) -> Job:
    return Job(uuid7(), kind, "q", list(args), attempt=1)


def test_a_lifespan_is_entered_once_and_left_at_the_end(stub: StubServer, worker: Worker) -> None:
    log: list[Any] = []

    @worker.lifespan
    async def resources() -> AsyncIterator[dict[str, Any]]:
        log.append("up")
        yield {"loop": asyncio.get_running_loop(), "number": 7}
        log.append("down")

    @worker.job("coroutine")
    async def coroutine(n: int, *, loop: Any = injected()) -> bool:
        return loop is asyncio.get_running_loop()

    @worker.job("function")
    def function(*, number: int = injected()) -> int:
        return number

    ids = [stub.push("coroutine", 1), stub.push("coroutine", 2), stub.push("function")]
    with working(worker, stub):
        until(lambda: set(ids) <= stub.done.keys())
        assert log == ["up"]
    assert log == ["up", "down"]
    assert [stub.done[each] for each in ids] == [True, True, 7]


@pytest.mark.parametrize("fails", [False, True])
def test_a_provided_resource_lives_as_long_as_the_job(worker: Worker, fails: bool) -> None:
    log: list[str] = []

    @worker.lifespan
    @contextmanager
    def resources() -> Iterator[dict[str, str]]:
        yield {"database": "db"}

    @worker.provide
    def session(job: JobContext, *, database: str) -> Iterator[str]:
        try:
            yield f"{database} of {job.job.type}"
        except KeyError:
            log.append("rolled back")
            raise
        log.append("committed")

    @worker.provide
    async def later() -> AsyncIterator[str]:
        yield "later"
        log.append("closed")

    @worker.job("function")
    def function(*, session: str = injected()) -> str:
        if fails:
            raise KeyError(session)
        return session

    @worker.job("coroutine")
    async def coroutine(
        job: AsyncJobContext, *, later: str = injected(), session: str = injected()
    ) -> str:
        if fails:
            raise KeyError(session)
        return f"{session}, {later}"

    endings = [worker.perform(job_of(kind)) for kind in ("function", "coroutine")]
    if fails:
        assert [ending.code for ending in endings] == ["handler_error"] * 2
        assert log == ["rolled back", "rolled back"]
    else:
        results = [ending.entry["result"] for ending in endings]
        assert results == ["db of function", "db of coroutine, later"]
        assert log == ["committed", "committed", "closed"]


def test_a_resource_can_not_complete_a_failed_job(worker: Worker) -> None:
    @worker.provide
    def session() -> Iterator[str]:
        with contextlib.suppress(KeyError):
            yield "session"

    @worker.job("function")
    def function(*, session: str = injected()) -> None:
        raise KeyError(session)

    @worker.job("coroutine")
    async def coroutine(*, session: str = injected()) -> None:
        raise KeyError(session)

    for kind in ("function", "coroutine"):
        assert worker.perform(job_of(kind)).entry["error"]["type"] == "KeyError"


def test_lambda_enters_the_lifespan_at_the_first_event(worker: Worker) -> None:
    loops: list[Any] = []

    @worker.lifespan
    async def resources() -> AsyncIterator[dict[str, Any]]:
        loops.append(asyncio.get_running_loop())
        yield {"loop": loops[0]}

    @worker.job("t")
    async def task(*, loop: Any = injected()) -> bool:
        return loop is asyncio.get_running_loop()

    handler = lambda_handler(worker)
    assert loops == []
    answers = [handler({"id": uuid7(), "type": "t", "args": []}, None) for _ in range(3)]
    assert [answer["result"] for answer in answers] == [True] * 3
    assert len(loops) == 1


def test_an_unknown_name_stops_the_worker_at_its_start(stub: StubServer, worker: Worker) -> None:
    left: list[bool] = []

    @worker.lifespan
    def resources() -> Iterator[dict[str, int]]:
        yield {"number": 7}
        left.append(True)

    @worker.job("t")
    def task(*, smtp: str = injected()) -> None: ...

    expected = r"task needs the resource 'smtp', but the worker has number\. Add it with @worker"
    with pytest.raises(ValueError, match=expected):
        worker.run()
    with pytest.raises(ValueError, match=expected):
        worker.perform(job_of("t"))
    assert left == [True, True]
    assert stub.asked == []

    @worker.provide
    def smpt() -> Iterator[str]:
        yield "misspelt"

    with pytest.raises(Misconfigured, match=r"has number, smpt\. Did you mean 'smpt'\? Add it"):
        worker.run()

    @worker.provide
    async def smtp() -> AsyncIterator[str]:
        yield "smtp"

    with pytest.raises(ValueError, match="only `async def` functions get 'smtp'"):
        worker.run()


def test_a_lifespan_yields_a_mapping(worker: Worker) -> None:
    @worker.lifespan
    def resources() -> Iterator[int]:
        yield 7

    @worker.job("t")
    def task() -> None: ...

    with pytest.raises(TypeError, match="lifespan must yield a mapping of names"):
        worker.run()


def test_a_resource_is_yielded(worker: Worker) -> None:
    async def coroutine() -> dict[str, int]:
        return {}

    def function() -> dict[str, int]:
        return {}

    @worker.job("t")
    def task(*, number: int = injected()) -> None: ...

    for wrong in (coroutine, function):
        worker.lifespan(wrong)
        with pytest.raises(TypeError, match=f"{wrong.__name__} must yield, or return a context"):
            worker.run()
    worker.handlers.shared().lifespan = None

    @worker.provide
    def number() -> int:
        return 7

    ending = worker.perform(job_of("t"))
    assert "number must yield, or return a context manager" in ending.entry["error"]["message"]


def test_middleware_wraps_typed_jobs(worker: Worker) -> None:
    @worker.middleware
    def counted(job: JobContext, following: Any) -> Any:
        return [job.job.type, following(job)]

    @worker.job("t")
    def task(n: int) -> int:
        return n

    assert worker.perform(job_of("t", 1)).entry == {"result": ["t", 1]}


# --- running -------------------------------------------------------------------------------------


def test_it_runs_on_the_loop_of_the_caller(stub: StubServer, worker: Worker) -> None:
    @worker.job("coroutine")
    async def coroutine() -> bool:
        return asyncio.get_running_loop() is loops[0]

    @worker.job("function")
    def function() -> bool:
        return threading.current_thread() is threading.main_thread()

    loops: list[Any] = []
    ids = [stub.push("coroutine"), stub.push("function")]

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with worker.running():
            while not set(ids) <= stub.done.keys():
                await asyncio.sleep(0.005)
            assert worker.healthy
        assert not worker.healthy

    asyncio.run(serve())
    assert [stub.done[each] for each in ids] == [True, False]
    assert stub.asked[-1][0].startswith("workers/worker-")  # it signs off


def test_a_job_without_a_queue_is_told(
    stub: StubServer, worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    @worker.job("lost")
    def lost() -> None: ...

    @worker.job("kept", queue="other")
    def kept() -> None: ...

    with working(worker, stub):
        pass
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert record.getMessage() == "Job lost has no queue: its jobs wait in `default`"


def test_a_cancelled_worker_finishes_its_jobs(stub: StubServer, worker: Worker) -> None:
    started = threading.Event()

    @worker.job("t")
    async def task() -> str:
        started.set()
        await asyncio.sleep(0.05)
        return "done"

    job_id = stub.push("t")

    async def serve() -> None:
        running = asyncio.ensure_future(worker.run_async(signals=False))
        while not started.is_set():
            await asyncio.sleep(0.005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(serve())
    assert stub.done == {job_id: "done"}


def test_a_worker_that_can_not_begin_raises_in_its_block() -> None:
    async def serve() -> None:
        async with Worker(queues=["q"]).running():
            raise AssertionError("not reached")

    with pytest.raises(ValueError, match="at least one handler or job"):
        asyncio.run(serve())
