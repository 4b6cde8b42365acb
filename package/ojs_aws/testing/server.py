"""A local server for tests: empty for each of them, with a clock that they move."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from ojs_aws.client.blocking import Client
from ojs_aws.client.call import Call, json_object
from ojs_aws.client.job import Job
from ojs_aws.client.operations import worker_call
from ojs_aws.testing.environment import CARRIED, installed_python
from ojs_aws.worker.context import Lease
from ojs_aws.worker.outbox import Batch, Report
from ojs_aws.worker.worker import Worker

_START_S = 60.0
_MOST_DRAINED = 10_000
# From so many queues on a server leaves those alone for a moment that were empty.
_MANY_QUEUES = 8
_READY = re.compile(r"URL +(http://\S+)/ojs/v1\n(?s:.*)Ctrl-C")
PATH = "OJS_SERVER_PATH"

INSTALL = f"""ojs_server needs packages of its own, in an environment of their own. Once:

    python -m ojs_aws.testing install

Or take a checkout of ojs-backend-aws in which `make .venv/.local .venv/.engine` was run, and say
where it is: {PATH}=/path/to/ojs-backend-aws, or a session fixture `ojs_server_path` of your own."""


class ServerNotFound(Exception):
    """There is no server to start; the message says what to install."""


class ServerNotStarted(Exception):
    """The server ended, or did not answer in time; the message has what it printed."""


@dataclass(frozen=True)
class Performed:
    """A job that `drain` ran the handler of: how that ended."""

    job: Job
    ok: bool
    result: Any = None
    error: Mapping[str, Any] | None = None


def find_server(start: Path) -> Path:
    """The folder of the server: that of the environment, or one that `start` is in, or that which
    the wheel has, if its packages are installed.

    Raises ServerNotFound.
    """
    named = os.environ.get(PATH)
    carried = [CARRIED] if installed_python().exists() else []
    for folder in [Path(named)] if named else [start, *start.parents, *carried]:
        if (folder / "local" / "__main__.py").is_file() and (folder / "shared" / "ojs").is_dir():
            return folder
    raise ServerNotFound(INSTALL)


class ServerProcess:
    """`python -m local` with a clock that can be moved, on a port and a folder of its own."""

    def __init__(self, path: Path, data: Path, *, keys: bool) -> None:
        """Start, which takes a second or two. Raises ServerNotStarted."""
        own = installed_python() if path == CARRIED else path / ".venv" / "bin" / "python"
        command = [str(own) if own.exists() else sys.executable, "-m", "local", "--port", "0"]
        command += ["--data", str(data / "data"), "--test-clock"] + (["--keys"] if keys else [])
        # Sweeps run when the clock is moved; in between there is nothing for them to find.
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
        raise ServerNotStarted(f"the server did not start:\n{printed}{hint}")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class OjsServer:
    """A running server as a test sees it: `url`, `key` (None without keys) and a `client`."""

    def __init__(self, process: ServerProcess) -> None:
        self.url = process.url
        self.key = process.key
        self.client = Client(process.url, key=process.key)

    # --- the server --------------------------------------------------------------------------

    def reset(self) -> None:
        """Empty it, and put its clock back."""
        self.client.run(Call("POST", "admin/reset", json_object))

    def close(self) -> None:
        """End the connections."""
        self.client.close()

    def advance(self, step: timedelta | None = None, **parts: float) -> datetime:
        """Move the server's clock on, and have done what is due then: `advance(hours=1)`.

        The parts are those of timedelta. The time it is then.
        """
        by = (step or timedelta()) + timedelta(**parts)
        body = {"advance_ms": round(by.total_seconds() * 1_000)}
        now_ms = self.client.run(Call("POST", "admin/clock", json_object, body))["now_ms"]
        return datetime.fromtimestamp(now_ms / 1_000, timezone.utc)

    def now(self) -> datetime:
        """The server's time."""
        return self.advance()

    def advance_to(self, moment: datetime) -> datetime:
        """Move the server's clock on to a time, which must not have passed."""
        return self.advance(moment - self.now())

    # --- jobs --------------------------------------------------------------------------------

    def drain(self, worker: Worker) -> list[Performed]:
        """Run the handlers of all jobs that a worker would get now, in this process, one by one,
        until there is none left; jobs that these enqueue, too.

        What waits for a time waits on: `advance` the clock. Raises AssertionError if it does not
        end, or if the server does not take what a handler returned.
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
                    f"still jobs after {len(performed)}: do handlers enqueue more?"
                )
            reports = []
            for job in jobs:
                ending = worker.perform(job)
                entry = ending.entry
                ok = ending.how == "acks"
                performed.append(Performed(job, ok, entry.get("result"), entry.get("error")))
                reports.append(Report(Lease(job, None), ending))

    def enqueued(
        self, type: str | None = None, *, queue: str | None = None, state: str | None = None  # noqa: A002
    ) -> list[Job]:  # fmt: skip
        """The jobs that are there, oldest first; in any state, if not given."""
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
        """There is a job like this (with `count` exactly so many): the first. Raises AssertionError
        that says what there is instead. Of `meta` what is given is compared.
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
            times = "no job" if not found else f"{len(found)} jobs, not {count},"
            lines = [f"  {job.state:9} {job.queue} {job.type} {job.args}" for job in there]
            raise AssertionError(
                "\n".join([f"{times} like {told}; there is", *(lines or ["  none"])])
            )
        return found[0]

    def assert_not_enqueued(self, type: str, **filters: Any) -> None:  # noqa: A002
        """There is no job of this type (and `queue`, `state`). Raises AssertionError."""
        if found := self.enqueued(type, **filters):
            raise AssertionError(f"{len(found)} jobs of type {type}: {found[0]}")
