"""Enqueues one job for each file of a folder, watches the jobs, and prints a summary.

    python3 producer.py FOLDER

The worker (worker.py) runs the jobs. Ctrl-C stops only this program.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ojs_aws import ApiError, Client, JobRequest, NotFound, RetryPolicy, Unreachable

BATCH = 1_000
FINAL = frozenset({"completed", "discarded", "cancelled"})
_LOOK_EVERY_S = 0.25
_LONGEST_LOOK_S = 5.0
_HINT_AFTER_S = 5.0
_SHOWN_WORDS = 10
_BAR = 24


# --- enqueue ---------------------------------------------------------------------------------


def files_of(folder: Path, pattern: str) -> Iterator[str]:
    """Yield the relative paths of the files below a folder, in order, without hidden ones."""
    for path in sorted(folder.rglob(pattern)):
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or not path.is_file():
            continue
        text = name.as_posix()
        try:
            text.encode()
        except UnicodeEncodeError:
            print(f"left out: {text!r} has a name that is not UTF-8", file=sys.stderr)
            continue
        yield text


def job_for(path: str, options: argparse.Namespace) -> JobRequest:
    """Create the job that analyzes one file."""
    return JobRequest(
        "file.index",
        [path],
        queue=options.queue,
        meta={"folder": options.folder.resolve().name},
        retry={
            "max_attempts": options.attempts,
            "initial_interval": options.retry_after,
            "backoff_coefficient": 2.0,
        },
    )


def enqueue(client: Client, jobs: Sequence[JobRequest]) -> list[str]:
    """Enqueue all jobs, 1,000 per request, and return their IDs.

    A request stores all its jobs or none. If a response is lost, a retry is safe, because the
    client sends the same IDs again.
    """
    batches = (jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH))
    return [job.id for batch in batches for job in client.enqueue_many(batch)]


# --- watch -----------------------------------------------------------------------------------


@dataclass
class _Open:
    """A job that a worker has started, and that is not in a final state."""

    job: dict[str, Any]
    look_at: float = 0.0
    pause_s: float = _LOOK_EVERY_S


@dataclass
class Watch:
    """Follows jobs until all are in a final state. Each check of a job is one request."""

    client: Client
    # Not started at the last check, in the order of the queue.
    waiting: deque[str]
    begun: dict[str, _Open] = field(default_factory=dict)
    final: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether all jobs are in a final state."""
        return not self.waiting and not self.begun

    def look(self) -> None:
        """Check the jobs for changes."""
        now = time.monotonic()
        for job_id, seen in list(self.begun.items()):
            if now >= seen.look_at:
                self._note(self._read(job_id))
        while self.waiting:
            job = self._read(self.waiting[0])
            if job["state"] == "available" and job["enqueued_at"] == job["created_at"]:
                # A queue is first in, first out, so later jobs have not started either.
                return
            self.waiting.popleft()
            self._note(job)

    def states(self) -> Counter[str]:
        """Count the started jobs by state."""
        return Counter(seen.job["state"] for seen in self.begun.values())

    def _read(self, job_id: str) -> dict[str, Any]:
        try:
            return self.client.get_job(job_id).raw
        except NotFound:
            gone = {"code": "gone", "message": "the server no longer has this job"}
            return {"id": job_id, "state": "discarded", "attempt": 0, "error": gone}

    def _note(self, job: dict[str, Any]) -> None:
        job_id = job["id"]
        if job["state"] in FINAL:
            self.begun.pop(job_id, None)
            self.final[job_id] = job
            return
        before = self.begun.get(job_id)
        if before is None or _step(before.job) != _step(job):
            pause_s = _LOOK_EVERY_S
            if job["state"] == "retryable":
                pause_s += job["retry_delay_ms"] / 1_000
            now = _Open(job, pause_s=_LOOK_EVERY_S)
        else:
            # No change: check less often.
            pause_s = min(before.pause_s * 2, _LONGEST_LOOK_S)
            now = _Open(job, pause_s=pause_s)
        now.look_at = time.monotonic() + pause_s
        self.begun[job_id] = now


def _step(job: dict[str, Any]) -> tuple[str, int]:
    return job["state"], job["attempt"]


class Display:
    """Prints progress: one line that changes on a terminal, or a new line for each change."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._started = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._last = ""
        self._hinted = False

    def show(self, watch: Watch, hint: str) -> None:
        """Print the progress of the jobs."""
        states = watch.states()
        failed = sum(job["state"] != "completed" for job in watch.final.values())
        done = len(watch.final)
        filled = _BAR * done // self._total
        parts = [f"{done}/{self._total} done"]
        for count, what in (
            (failed, "failed"),
            (states["active"], "running"),
            (states["retryable"], "to be retried"),
            (states["available"], "available again"),
        ):
            if count:
                parts.append(f"{count} {what}")
        line = f"[{'#' * filled}{'.' * (_BAR - filled)}] {', '.join(parts)}"
        elapsed_s = time.monotonic() - self._started
        if self._terminal:
            print(f"\r\x1b[K{line}  {elapsed_s:.0f} s", end="", flush=True)
        elif line != self._last:
            print(line, flush=True)
        self._last = line
        if not watch.final and not watch.begun and elapsed_s > _HINT_AFTER_S and not self._hinted:
            self._hinted = True
            self.end()
            print(hint, flush=True)

    def end(self) -> None:
        """End the line on a terminal."""
        if self._terminal and self._last:
            print()


# --- sum up ----------------------------------------------------------------------------------


def summary(paths: dict[str, str], jobs: dict[str, dict[str, Any]], seconds: float) -> str:
    """Return a summary of the results and failures as text."""
    done = {paths[i]: job for i, job in jobs.items() if job["state"] == "completed"}
    failed = {paths[i]: job for i, job in jobs.items() if job["state"] != "completed"}
    results = {path: job["result"] for path, job in done.items()}
    words: Counter[str] = Counter()
    for result in results.values():
        words.update(dict(result["top_words"]))
    size = sum(result["size"] for result in results.values())
    count = sum(result["words"] for result in results.values())
    lines = [
        f"{len(done)} of {len(jobs)} files in {seconds:.1f} s: {size:,} bytes, {count:,} words",
    ]
    if words:
        # The sum of each file's most frequent words, which is close enough here.
        lines += ["", "most frequent words"]
        ranked = sorted(words.items(), key=lambda item: (-item[1], item[0]))
        lines += _table((word, f"{n:,}") for word, n in ranked[:_SHOWN_WORDS])
    if same := list(_identical(results)):
        lines += ["", "identical files", *(f"  {' = '.join(group)}" for group in same)]
    if again := {path: job for path, job in done.items() if job["attempt"] > 1}:
        lines += ["", "done after failures", *_failures(again)]
    if failed:
        lines += ["", "discarded", *_failures(failed)]
    return "\n".join(lines)


def _identical(results: dict[str, dict[str, Any]]) -> Iterator[list[str]]:
    by_digest: defaultdict[str, list[str]] = defaultdict(list)
    for path, result in results.items():
        by_digest[result["sha256"]].append(path)
    return (sorted(group) for group in by_digest.values() if len(group) > 1)


def _failures(jobs: dict[str, dict[str, Any]]) -> list[str]:
    def row(path: str, job: dict[str, Any]) -> tuple[str, ...]:
        errors = job.get("errors") or ([job["error"]] if "error" in job else [])
        last = errors[-1] if errors else {"code": job["state"], "message": ""}
        attempts = f"{job['attempt']} attempt{'s' if job['attempt'] != 1 else ''}"
        where = "dead letter" if job.get("dead_letter") else job["state"]
        return path, attempts, where, last["code"], last["message"]

    return _table(row(path, job) for path, job in sorted(jobs.items()))


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    kept = list(rows)
    widths = [max(map(len, column)) for column in zip(*kept, strict=True)]
    padded = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in kept)
    return ["  " + "  ".join(cells).rstrip() for cells in padded]


# --- command line ----------------------------------------------------------------------------


def parser_for(description: str) -> argparse.ArgumentParser:
    """Return the options of a command that enqueues jobs for the files of a folder."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path, help="the folder; workers must be given the same")
    server = os.environ.get("OJS_URL", "http://localhost:8080")
    parser.add_argument("--url", default=server, help="the server (default: OJS_URL)")
    parser.add_argument("--queue", default="files", help="where to put the jobs")
    parser.add_argument("--pattern", default="*", help="which files, for example '*.txt'")
    parser.add_argument("--attempts", type=int, default=3, help="tries for each file")
    parser.add_argument(
        "--retry-after", default="PT1S", metavar="DURATION", help="first wait, doubled each time"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Enqueue, watch, and summarize. Return 1 if files failed, 2 if the server can't be reached."""
    parser = parser_for("Have all text files of a folder analysed by worker.py, one job for each.")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} must be a folder")
    jobs = [job_for(path, options) for path in files_of(options.folder, options.pattern)]
    if not jobs:
        parser.error(f"no files in {options.folder}")
    try:
        return _run(options, jobs)
    except ValueError as error:
        parser.error(str(error))
    except (ApiError, Unreachable) as error:
        print(f"producer: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace, jobs: list[JobRequest]) -> int:
    with Client(options.url, retry=RetryPolicy(tries=2)) as asking:
        asking.health()  # reports an unreachable server before anything is enqueued
    with Client(options.url) as client:
        return _follow(options, jobs, client)


def _follow(options: argparse.Namespace, jobs: list[JobRequest], client: Client) -> int:
    started = time.monotonic()
    ids = enqueue(client, jobs)
    print(f"{len(jobs)} jobs are in queue {options.queue}", flush=True)
    watch = Watch(client, deque(ids))
    display = Display(len(jobs))
    hint = (
        "No worker has started a job yet. In another terminal: "
        f"python3 {Path(__file__).with_name('worker.py')} {options.folder}"
    )
    try:
        while not watch.over:
            try:
                watch.look()
            except (ApiError, Unreachable) as error:
                if isinstance(error, ApiError) and error.status < 500:
                    raise
                # The jobs are stored, and the workers retry, too.
                display.end()
                print(f"Can't read the jobs: {error}", flush=True)
            display.show(watch, hint)
            if not watch.over:
                time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        display.end()
        left = len(jobs) - len(watch.final)
        print(f"Stopped watching. {left} jobs continue.")
        return 130
    display.end()
    print()
    paths = {job_id: str(job.args[0]) for job_id, job in zip(ids, jobs, strict=True)}
    print(summary(paths, watch.final, time.monotonic() - started))
    return int(any(job["state"] != "completed" for job in watch.final.values()))


if __name__ == "__main__":
    sys.exit(main())
