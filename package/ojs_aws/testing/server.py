"""A local server for tests: empty at the start of each test, with a clock that tests control."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ojs_aws.client.blocking import Client
from ojs_aws.client.call import Call, json_object
from ojs_aws.client.job import Job
from ojs_aws.client.operations import worker_call
from ojs_aws.errors import JobError
from ojs_aws.testing.environment import CARRIED, installed_python
from ojs_aws.worker.context import Lease
from ojs_aws.worker.outbox import Batch, Report
from ojs_aws.worker.worker import Worker

if TYPE_CHECKING:
    from ojs_aws.typed.job_type import JobHandle, JobType

P = ParamSpec("P")
R = TypeVar("R")
_START_S = 60.0
_MOST_DRAINED = 10_000
# If there are at least this many queues, the server skips recently empty queues for a short time.
_MANY_QUEUES = 8
_READY = re.compile(r"URL +(http://\S+)/ojs/v1\n(?s:.*)Ctrl-C")
PATH = "OJS_SERVER_PATH"

INSTALL = f"""ojs_server requires packages in a separate environment. Install them once:

    python -m ojs_aws.testing install

Or use a checkout of ojs-backend-aws in which you ran `make .venv/.local .venv/.engine`. Set
{PATH}=/path/to/ojs-backend-aws, or define a session fixture `ojs_server_path`."""


class ServerNotFound(Exception):
    """No server found. The message contains the installation steps."""


class ServerNotStarted(Exception):
    """The server ended, or did not start in time. The message contains its output."""


@dataclass(frozen=True)
class Performed:
    """A job whose handler `drain` ran, with the outcome.

    Attributes:
        job: The job, as the server dispatched it.
        ok: Whether the handler completed.
        result: Result of the handler, or None.
        error: Error of the job, or None.
        state: `completed`, `failed`, or `suspended`.
    """

    job: Job
    ok: bool
    result: Any = None
    error: Mapping[str, Any] | None = None
    state: str = "completed"


def find_server(start: Path) -> Path:
    """Return the folder of the server.

    Checked in this order: `OJS_SERVER_PATH`, `start` and its parents, and the server in the wheel,
    if its packages are installed.

    Args:
        start: Folder to start from.

    Returns:
        The folder.

    Raises:
        ServerNotFound: No folder contains a server.
    """
    named = os.environ.get(PATH)
    carried = [CARRIED] if installed_python().exists() else []
    for folder in [Path(named)] if named else [start, *start.parents, *carried]:
        if (folder / "local" / "__main__.py").is_file() and (folder / "shared" / "ojs").is_dir():
            return folder
    raise ServerNotFound(INSTALL)


class ServerProcess:
    """A process of `python -m local`, with a clock that can be set, and its own port and data
    folder.
    """

    def __init__(self, path: Path, data: Path, *, keys: bool) -> None:
        """Start the server. This takes 1 to 2 seconds.

        Args:
            path: Folder of the server's code.
            data: Folder for its data and its log.
            keys: Whether the server requires access keys.

        Raises:
            ServerNotStarted: The server ended, or did not start within 60 seconds.
        """
        own = installed_python() if path == CARRIED else path / ".venv" / "bin" / "python"
        command = [str(own) if own.exists() else sys.executable, "-m", "local", "--port", "0"]
        command += ["--data", str(data / "data"), "--test-clock"] + (["--keys"] if keys else [])
        # Moving the clock runs the sweeps. Other sweeps find nothing to do.
        command += ["--sweep-interval", "5"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("OJS_")}
        environment["PYTHONPATH"] = f"{path / 'shared'}{os.pathsep}{path}"
        self._log = data / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the server's own command
                command, cwd=path, env=environment, stdout=log, stderr=log
            )
        self.url = self._await_url()
        first = data / "data" / "first-key"
        self.key = first.read_text().strip() if keys else None

    def _await_url(self) -> str:
        deadline = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if found := _READY.search(self._log.read_text(errors="replace")):
                return found[1]
            time.sleep(0.02)
        self.stop()
        printed = self._log.read_text(errors="replace")
        hint = f"\n{INSTALL}" if "ModuleNotFoundError" in printed else ""
        raise ServerNotStarted(f"the server did not start. Its output:\n{printed}{hint}")

    def stop(self) -> None:
        """Stop the server."""
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class OjsServer:
    """A running server in a test.

    Attributes:
        url: URL of the server.
        key: Bootstrap key, or None if the server requires no keys.
        client: A client of the server.
    """

    def __init__(self, process: ServerProcess) -> None:
        self.url = process.url
        self.key = process.key
        self.client = Client(process.url, key=process.key)

    # --- the server --------------------------------------------------------------------------

    def reset(self) -> None:
        """Delete all data, and reset the clock."""
        self.client.run(Call("POST", "admin/reset", json_object))

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def advance(self, step: timedelta | None = None, **parts: float) -> datetime:
        """Advance the server's clock and process all jobs that become due: `advance(hours=1)`.

        Args:
            step: Time to advance. Default: 0.
            **parts: Arguments of timedelta, added to `step`.

        Returns:
            The new time of the server, in UTC.

        Raises:
            TypeError: `step` isn't a timedelta.
        """
        if not isinstance(step, (timedelta, type(None))):
            raise TypeError(f"advance({step!r}): pass a timedelta, or a unit: advance(hours=1)")
        by = (step or timedelta()) + timedelta(**parts)
        body = {"advance_ms": round(by.total_seconds() * 1_000)}
        now_ms = self.client.run(Call("POST", "admin/clock", json_object, body))["now_ms"]
        return datetime.fromtimestamp(now_ms / 1_000, timezone.utc)

    def now(self) -> datetime:
        """Return the time of the server, in UTC."""
        return self.advance()

    def advance_to(self, moment: datetime) -> datetime:
        """Advance the server's clock to a time.

        Args:
            moment: New time, with a time zone. Must not be in the past.

        Returns:
            The new time of the server, in UTC.
        """
        return self.advance(moment - self.now())

    # --- jobs --------------------------------------------------------------------------------

    def drain(self, worker: Worker) -> list[Performed]:
        """Run the handlers of all available jobs in this thread, one at a time.

        This includes jobs that the handlers enqueue. It doesn't include scheduled jobs: `advance`
        the clock first.

        Args:
            worker: Worker with the queues and handlers. It doesn't have to run.

        Returns:
            The jobs in the order in which they ran, with their outcomes.

        Raises:
            AssertionError: More than 10,000 jobs ran, or the server rejected an outcome.
        """
        performed: list[Performed] = []
        reports: list[Report] = []
        order = worker.settings.order()
        if len(order.get("queues", ())) > _MANY_QUEUES and not worker.settings.weights:
            order["strategy"] = "strict"
        while True:
            batch = Batch(tuple(reports))
            body = {"count": 50, "worker_id": "drain", **order, **batch.body()}
            answer = self.client.run(worker_call("workers/fetch", body))
            for report, outcome in batch.outcomes(answer):
                if outcome["status"] != 200:
                    message = outcome["error"]["message"]
                    raise AssertionError(f"job {report.lease.job.id}: {message}")
            jobs = [Job.of(shown) for shown in answer["jobs"]]
            if not jobs:
                return performed
            if len(performed) + len(jobs) > _MOST_DRAINED:
                raise AssertionError(
                    f"more jobs are available after {len(performed)}. Does a handler enqueue jobs"
                    " without end?"
                )
            reports = []
            for job in jobs:
                ending = worker.perform(job)
                entry = ending.entry
                ok = ending.how == "acks"
                state = "completed" if ok else "suspended" if "suspend" in entry else "failed"
                error = entry.get("error")
                performed.append(Performed(job, ok, entry.get("result"), error, state))
                reports.append(Report(Lease(job, None), ending))

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Send the jobs that are enqueued by reference in the block to this server.

        Yields:
            None. The fixtures run each test in such a block.
        """
        from ojs_aws.typed.clients import Clients

        before, Clients.override = Clients.override, Clients()
        Clients.override.bind(self.client)
        try:
            yield
        finally:
            Clients.override = before

    def run(self, job: JobType[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue a job, run it and the other available jobs of its worker, as `drain`.

        Args:
            job: The job type.
            *args: Arguments of its function.
            **kwargs: The same by name.

        Returns:
            The result of the function.

        Raises:
            JobError: The job failed. It can be retried after `advance`.
            AssertionError: The worker didn't get the job.
        """
        from ojs_aws.typed.performer import serve

        with self.bound():
            handle = job.enqueue(*args, **kwargs)
            workers = job.jobs.workers
            if not workers:
                workers = [Worker(queues=[handle.job.queue])]
                serve(job.jobs.types, workers[0].handlers)
            ran = [each for each in self.drain(workers[0]) if each.job.id == handle.id]
        if not ran:
            queues = ", ".join(workers[0].settings.queues or ["those of its pool"])
            stored = self.client.get_job(handle.id)
            raise AssertionError(
                f"{job.name} is {stored.state} in the queue {stored.queue}. Its worker fetches"
                f" available jobs of {queues}"
            )
        if not ran[-1].ok:
            raise JobError(handle.id, self.client.get_job(handle.id).state, ran[-1].error)
        return job.read_result(ran[-1].result)

    def signal(self, job: JobHandle[Any] | Job | str, name: str, data: Any = None) -> bool:
        """Send a signal to a job.

        Args:
            job: The job, or its ID.
            name: Name of the signal.
            data: JSON value of at most 64 KiB.

        Returns:
            Whether the job waited for it, and is available now.
        """
        woken: bool = self.client.send_signal(_id_of(job), name, data)["woken"]
        return woken

    def steps(self, job: JobHandle[Any] | Job | str) -> list[dict[str, Any]]:
        """Return the stored outcomes of a job's steps, signals, and child jobs.

        Args:
            job: The job, or its ID.

        Returns:
            The outcomes as the API returns them, for example with `name`, `status`, and `result`.
        """
        found: list[dict[str, Any]] = []
        cursor: dict[str, str] = {}
        while True:
            page = self.client.list_steps(_id_of(job), **cursor)
            found += page["steps"]
            if (after := page["pagination"].get("next_cursor")) is None:
                return found
            cursor = {"cursor": after}

    def enqueued(
        self, type: str | None = None, *, queue: str | None = None, state: str | None = None  # noqa: A002
    ) -> list[Job]:  # fmt: skip
        """Return the jobs of the server, oldest first.

        Args:
            type: Job type. Default: all types.
            queue: Queue. Default: all queues.
            state: State, for example `available`. Default: all states.

        Returns:
            The matching jobs.
        """
        filters = {"type": type, "queue": queue, "state": state}
        given = {name: value for name, value in filters.items() if value is not None}
        found = [Job.of(shown) for shown in self.client.each(self.client.list_jobs, **given)]
        return sorted(found, key=lambda job: (job.created_at or "", job.id))

    def assert_enqueued(
        self,
        type: str,  # noqa: A002 - the specification's word
        args: Sequence[Any] | None = None,
        *,
        queue: str | None = None,
        meta: Mapping[str, Any] | None = None,
        state: str | None = None,
        count: int | None = None,
    ) -> Job:
        """Assert that a job like this exists.

        Args:
            type: Job type.
            args: Arguments of the job. Default: any.
            queue: Queue. Default: any.
            meta: Metadata that the job must contain. Default: any.
            state: State. Default: any.
            count: Exact number of matching jobs. Default: 1 or more.

        Returns:
            The oldest matching job.

        Raises:
            AssertionError: No job matches, or the number differs. The message lists all jobs.
        """
        there = self.enqueued()
        found = [
            job
            for job in there
            if job.type == type
            and (args is None or job.args == list(args))
            and queue in (None, job.queue)
            and state in (None, job.state)
            and (meta or {}).items() <= job.meta.items()
        ]
        if not found or count not in (None, len(found)):
            wanted = {"type": type, "args": args, "queue": queue, "meta": meta, "state": state}
            told = json.dumps({k: v for k, v in wanted.items() if v is not None}, default=str)
            times = "no job" if not found else f"{len(found)} jobs instead of {count}"
            lines = [f"  {job.state:9} {job.queue} {job.type} {job.args}" for job in there]
            raise AssertionError(
                "\n".join([f"{times} match {told}. The server has:", *(lines or ["  no jobs"])])
            )
        return found[0]

    def assert_not_enqueued(self, type: str, **filters: Any) -> None:  # noqa: A002
        """Assert that no job of this type exists.

        Args:
            type: Job type.
            **filters: `queue` and `state`.

        Raises:
            AssertionError: A job matches.
        """
        if found := self.enqueued(type, **filters):
            raise AssertionError(f"{len(found)} jobs of type {type} exist: {found[0]}")


def _id_of(job: JobHandle[Any] | Job | str) -> str:
    return job if isinstance(job, str) else job.id
