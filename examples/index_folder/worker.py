"""Takes jobs that producer.py or report.py made: analyses files, writes reports, and reports what
became of each job.

    python3 worker.py FOLDER

Start as many as you like. Ctrl-C stops one in order: the file it is at is finished if that takes
no longer than --grace, what it has not begun goes back to the queue at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reporting
from analysis import NotText, analyse
from client import BASE, ApiError, Client, Unreachable, uuid7

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

RUNNING, QUIET, TERMINATE = "running", "quiet", "terminate"

# The lease is short and heartbeats extend it: if this process dies, its jobs go to another worker
# within this time.
LEASE_MS = 30_000
_PROGRESS_EVERY_S = 1.0
# What became of a job is told with the next fetch, so that it costs no request of its own; after
# this time it waits no longer.
_REPORT_WITHIN_S = 1.0
_FIRST_POLL_S = 0.1
# The type of the job that writes a report; all others are for a file.
REPORT = "folder.report"


class JobFailed(Exception):
    """The job cannot be done. The fields are those of the error object the server stores."""

    def __init__(
        self, code: str, message: str, *, retryable: bool = True, **details: object
    ) -> None:
        super().__init__(message)
        self.report = {
            "code": code,
            "type": code,
            "message": message,
            "retryable": retryable,
            "details": details,
        }


class Lost(Exception):
    """The job is not ours any more: cancelled, or taken back because its lease ran out."""


class OutOfTime(Exception):
    """The worker is stopping, and the job is not done."""


@dataclass(eq=False)
class LeasedJob:
    """A job this worker has a lease on."""

    job: dict[str, Any]
    lost: threading.Event = field(default_factory=threading.Event)

    @property
    def id(self) -> str:
        """The job's id."""
        return str(self.job["id"])


@dataclass
class Report:
    """What became of a job, and is not told yet: an entry of `acks` or `nacks`."""

    leased: LeasedJob
    how: str
    line: str
    entry: dict[str, Any]
    since: float = field(default_factory=time.monotonic)


class Worker:
    """Fetches jobs in one thread, and sends heartbeats for them in another."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.id = f"index-folder-{uuid7()}"
        self._root: Path = options.folder.resolve()
        self._reports_to: Path = options.reports
        self._queue: str = options.queue
        self._batch: int = options.batch
        self._slow_s: float = options.slow
        self._grace_s: float = options.grace
        self._longest_poll_s: float = options.poll
        self._client = Client(options.url)
        # Of its own, since a connection serves one thread; and a beat that fails is not tried
        # again: the next one comes soon.
        self._beat_client = Client(options.url, timeout_s=10.0, tries=1)
        self._beat_every_s: float | None = options.beat
        self._leased: dict[str, LeasedJob] = {}
        self._reports: list[Report] = []
        self._lock = threading.Lock()
        self._directive = RUNNING
        self._reported_state = RUNNING
        self._stopping = threading.Event()
        self._stop_by = 0.0
        self._ended = threading.Event()

    # --- life of the worker ------------------------------------------------------------------

    @property
    def state(self) -> str:
        """What the worker is about: running, quiet (takes no more jobs) or terminate."""
        return TERMINATE if self._stopping.is_set() else self._directive

    def run(self) -> None:
        """Work until asked to stop."""
        answer = self._client.call("POST", "/workers/register", self._introduction(), tries=3)
        if self._beat_every_s is None:
            self._beat_every_s = answer["heartbeat_interval"]
        say(f"{self.id} waits for files of {self._root} from queue {self._queue}")
        beats = threading.Thread(target=self._beat_until_ended, daemon=True)
        beats.start()
        try:
            self._work_until_stopped()
            self._send_reports()
        finally:
            # No beat may come after the worker has signed off: it would be listed again.
            self._ended.set()
            beats.join()
            self._sign_off()

    def stop(self, why: str) -> None:
        """Take no more jobs, and end. Only the first call counts; there is no way back."""
        if not self._stopping.is_set():
            say(f"stopping: {why}")
            self._stop_by = time.monotonic() + self._grace_s
            self._stopping.set()

    def _introduction(self) -> dict[str, Any]:
        return {
            "worker_id": self.id,
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "queues": [self._queue],
            "concurrency": 1,
        }

    def _sign_off(self) -> None:
        try:
            self._client.call("DELETE", f"/workers/{self.id}", tries=2)
        except (ApiError, Unreachable) as error:
            say(f"could not sign off: {error}")

    def _work_until_stopped(self) -> None:
        poll_s = _FIRST_POLL_S
        while not self._stopping.is_set():
            if self.state == RUNNING:
                taken = self._fetch()
            else:
                taken = []
                self._send_reports()
            for leased in taken:
                self._do(leased)
            # Nothing there: ask again soon, then less and less often. An empty fetch costs little,
            # but it is not free.
            poll_s = _FIRST_POLL_S if taken else min(poll_s * 2, self._longest_poll_s)
            if not taken:
                self._stopping.wait(poll_s)

    def _fetch(self) -> list[LeasedJob]:
        body = {
            "queues": [self._queue],
            "count": self._batch,
            "worker_id": self.id,
            "visibility_timeout_ms": LEASE_MS,
            **self._told("acks"),
            **self._told("nacks"),
        }
        try:
            # If an answer is lost, so are the jobs in it, until their leases run out: no harm. The
            # reports are sent again; what was done is told again.
            answer = self._client.call("POST", "/workers/fetch", body)
        except (ApiError, Unreachable) as error:
            if isinstance(error, ApiError) and error.status < 500:
                raise  # what we ask for is wrong, and will not get better
            say(f"no jobs: {error}")
            return []
        self._heard(answer)
        if "fetch_error" in answer:
            say(f"no jobs: {answer['fetch_error']['message']}")
        taken = [LeasedJob(job) for job in answer["jobs"]]
        with self._lock:
            self._leased |= {leased.id: leased for leased in taken}
        return taken

    # --- heartbeat ---------------------------------------------------------------------------

    def _beat_until_ended(self) -> None:
        while not self._ended.wait(self._beat_every_s):
            try:
                self._beat()
            except (ApiError, Unreachable) as error:
                # No reason to stop: the leases last for several beats.
                say(f"heartbeat failed: {error}")

    def _beat(self) -> None:
        """Keep the leases of our jobs, hear which are lost, and do as the server says."""
        with self._lock:
            leased = list(self._leased.values())
        state = self.state
        body: dict[str, Any] = {"worker_id": self.id, "active_jobs": [one.id for one in leased]}
        if state != self._reported_state:
            # Only when it changes: it has the server write the worker's record too.
            body["state"] = state
        answer = self._beat_client.call("POST", "/workers/heartbeat", body)
        self._reported_state = state
        kept = set(answer["jobs_extended"])
        for one in leased:
            if one.id not in kept:
                one.lost.set()
        self._obey(answer["state"])

    def _obey(self, directive: str) -> None:
        if directive == TERMINATE:
            self.stop("the server says so")
        elif directive != self._directive:
            say("no more files for now" if directive == QUIET else "files are welcome again")
            self._directive = directive

    # --- one job -----------------------------------------------------------------------------

    def _do(self, leased: LeasedJob) -> None:
        """Do one job, and note how it ended."""
        name = leased.job["args"][0] if leased.job["args"] else "?"
        work = self._write_report if leased.job["type"] == REPORT else self._index
        try:
            result = work(leased)
        except Lost:
            say(f"left    {name}: cancelled, or taken back")
            self._forget(leased)
        except OutOfTime:
            self._report(leased, "nacks", f"back    {name}", requeue=True)
        except JobFailed as failed:
            self._report(leased, "nacks", f"failed  {name}: {failed}", error=failed.report)
        except Exception as error:  # noqa: BLE001 - a bug is this job's failure, not the worker's
            report = unexpected(error)
            self._report(leased, "nacks", f"failed  {name}: {error!r}", error=report)
        else:
            self._report(leased, "acks", f"done    {name}", result=result)

    def _index(self, leased: LeasedJob) -> dict[str, Any]:
        """The result of a job. Raises JobFailed, Lost, OutOfTime."""
        if self._stopping.is_set():
            raise OutOfTime
        path = self._path(leased.job)
        # Part of the example, not of the work: some trouble that goes away by itself.
        if path.suffix == ".flaky" and leased.job["attempt"] < 3:
            raise JobFailed("drive_not_ready", "the drive was not ready", path=path.name)
        try:
            size = path.stat().st_size
            reported = time.monotonic()

            def each_chunk(done: int) -> None:
                nonlocal reported
                self._stopping.wait(self._slow_s)
                self._go_on(leased)
                if time.monotonic() - reported >= _PROGRESS_EVERY_S:
                    self._report_progress(leased, done / size if size else 1.0)
                    reported = time.monotonic()

            return analyse(path, each_chunk)
        except FileNotFoundError:
            # Trying again will not bring it back.
            raise JobFailed(
                "file_gone", "the file is gone", retryable=False, path=path.name
            ) from None
        except NotText as error:
            # It may still be being written, so it is tried again like any other failure.
            raise JobFailed(
                "not_text", str(error), path=path.name, position=error.position
            ) from None
        except OSError as error:
            raise JobFailed(
                "unreadable", error.strerror or str(error), path=path.name, errno=error.errno
            ) from error

    def _write_report(self, leased: LeasedJob) -> dict[str, Any]:
        """The result of the job that comes after those of all files. Raises JobFailed."""
        if self._stopping.is_set():
            raise OutOfTime
        title, paths = leased.job["args"]
        results, errors = self._before(leased.job, len(paths))
        # One name for each job: written again, it is the same file.
        path = self._reports_to / f"report-{leased.id}.md"
        try:
            path.write_text(reporting.report(title, paths, results, errors), "utf-8")
        except OSError as error:
            raise JobFailed("unwritable", error.strerror or str(error), path=str(path)) from error
        return {"report": str(path), "files": len(paths)}

    def _before(self, job: dict[str, Any], count: int) -> tuple[list[Any], list[Any]]:
        """The results and the errors of the jobs before this one, in order."""
        found = job["parent_results"]
        if isinstance(found, list):
            return found, job.get("parent_errors") or [None] * count
        # Too many, or too large, to stand in the job: they are read page by page.
        entries: list[dict[str, Any]] = []
        path, cursor = str(found["$ref"]).removeprefix(BASE), ""
        while True:
            page = self._client.call("GET", path + cursor)
            entries += page["results"]
            if not page["pagination"]["has_more"]:
                break
            cursor = f"&cursor={page['pagination']['next_cursor']}"
        return [each.get("result") for each in entries], [each.get("error") for each in entries]

    def _path(self, job: dict[str, Any]) -> Path:
        """The file a job names: inside our folder, whatever the job says. Raises JobFailed."""
        args = job["args"]
        if len(args) != 1 or not isinstance(args[0], str):
            raise JobFailed("bad_arguments", "wants one argument, a path", retryable=False)
        path = (self._root / args[0]).resolve()
        if not path.is_relative_to(self._root):
            raise JobFailed("outside", "the path leads out of the folder", retryable=False)
        return path

    def _go_on(self, leased: LeasedJob) -> None:
        if leased.lost.is_set():
            raise Lost
        if self._stopping.is_set() and time.monotonic() >= self._stop_by:
            raise OutOfTime

    def _report_progress(self, leased: LeasedJob, fraction: float) -> None:
        body = {"progress": fraction, "worker_id": self.id}
        try:
            self._client.call("PUT", f"/jobs/{leased.id}/progress", body, tries=1)
        except (ApiError, Unreachable) as error:
            # The job is what matters.
            say(f"no progress reported: {error}")

    # --- reports -----------------------------------------------------------------------------

    def _report(self, leased: LeasedJob, how: str, line: str, **what: object) -> None:
        """Note an ack or nack, to be told soon. The attempt is named, so that one that comes late
        is refused.
        """
        entry = {
            "job_id": leased.id,
            "attempt": leased.job["attempt"],
            "lease_token": leased.job["lease_token"],
            **what,
        }
        self._reports.append(Report(leased, how, line, entry))
        if time.monotonic() - self._reports[0].since >= _REPORT_WITHIN_S:
            self._send_reports()

    def _told(self, how: str) -> dict[str, Any]:
        """The acks, or the nacks, as a request has them; nothing if there are none."""
        entries = [report.entry for report in self._reports if report.how == how]
        return {how: entries} if entries else {}

    def _send_reports(self) -> None:
        """Tell all that is noted, without a fetch. What is not heard is tried again next time."""
        for how, path in (("acks", "/workers/ack"), ("nacks", "/workers/nack")):
            if body := self._told(how):
                try:
                    self._heard(self._client.call("POST", path, {"worker_id": self.id, **body}))
                except (ApiError, Unreachable) as error:
                    # In the end another worker will do these jobs again.
                    say(f"not reported: {error}")

    def _heard(self, answer: dict[str, Any]) -> None:
        """Go through the outcomes in an answer: each report has one of its own, in order."""
        left = []
        outcomes = {how: iter(answer.get(how, ())) for how in ("acks", "nacks")}
        for report in self._reports:
            outcome = next(outcomes[report.how], None)
            if outcome is None or outcome["status"] in (500, 503, 504):
                left.append(report)
                continue
            refused = outcome.get("error")
            say(report.line + (f" (not accepted: {refused['message']})" if refused else ""))
            self._forget(report.leased)
        self._reports = left

    def _forget(self, leased: LeasedJob) -> None:
        """The job is no concern of ours any more."""
        with self._lock:
            # Not if its lease ran out, and it came to us again.
            if self._leased.get(leased.id) is leased:
                del self._leased[leased.id]


def unexpected(error: Exception) -> dict[str, Any]:
    """The error object for a bug, with the lines that help to find it."""
    return {
        "code": "handler_error",
        "type": type(error).__name__,
        "message": str(error),
        "retryable": True,
        "backtrace": "".join(traceback.format_exception(error)).splitlines()[-50:],
    }


def say(text: str) -> None:
    """Print one line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker; the exit status."""
    parser = argparse.ArgumentParser(
        description="Analyse the files that producer.py or report.py is given. Start several."
    )
    parser.add_argument("folder", type=Path, help="the folder the producer was given")
    parser.add_argument("--url", default="http://localhost:8080", help="the server")
    parser.add_argument("--queue", default="files", help="where to take jobs from")
    parser.add_argument(
        "--reports", type=Path, default=Path(), metavar="FOLDER", help="where to write reports"
    )
    parser.add_argument("--batch", type=int, default=5, help="most jobs to take at once")
    parser.add_argument(
        "--slow", type=float, default=0.0, metavar="S", help="wait so long at each 64 KB of a file"
    )
    parser.add_argument(
        "--grace", type=float, default=10.0, metavar="S", help="time to finish a file when stopping"
    )
    parser.add_argument(
        "--poll", type=float, default=2.0, metavar="S", help="longest wait before asking again"
    )
    parser.add_argument(
        "--beat", type=float, metavar="S", help="between heartbeats; if not given, the server says"
    )
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is no folder")
    try:
        worker = Worker(options)
    except ValueError as error:
        parser.error(str(error))

    def stop_once(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # the second time ends it at once
        worker.stop(signal.Signals(number).name)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_once)
    try:
        worker.run()
    except (ApiError, Unreachable) as error:
        print(f"worker: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
