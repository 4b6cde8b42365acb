"""Runs jobs from the producer: analyzes files, and reports results and errors.

    python3 worker.py FOLDER

You can start several workers. If you press Ctrl-C, a worker finishes its files if that takes at
most --grace seconds. Otherwise it releases their jobs.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import reporting
from analysis import NotText, analyse

from ojs_aws import JobContext, JobError, JobFailed, Worker


def index(job: JobContext, name: str, root: Path, slow_s: float) -> dict[str, Any]:
    """Analyze the file that a job names. Raise JobFailed or JobCancelled."""
    path = file_of(name, root)
    # Only for the example: a temporary failure.
    if path.suffix == ".flaky" and job.attempt < 3:
        raise JobFailed("the drive was not ready", code="drive_not_ready")
    try:
        size = path.stat().st_size

        def each_chunk(done: int) -> None:
            job.sleep(slow_s)  # ends here if the job is cancelled, or the worker stops
            job.progress(done / size if size else 1.0)

        return analyse(path, each_chunk)
    except FileNotFoundError:
        # A retry would not help.
        raise JobFailed("the file doesn't exist", code="file_gone", retryable=False) from None
    except NotText as error:
        # Another program might still write the file, so this error is retried like any other
        # failure.
        at = {"position": error.position}
        raise JobFailed(str(error), code="not_text", details=at) from None
    except OSError as error:
        raise JobFailed(error.strerror or str(error), code="unreadable") from error


def write_report(job: JobContext, title: str, paths: list[str], folder: Path) -> dict[str, Any]:
    """Write the report after all files are analyzed. Raise JobFailed, ApiError, or Unreachable."""
    results: list[Any] = [None] * len(paths)
    errors: list[Any] = [None] * len(paths)
    for number in range(len(paths)):
        try:
            results[number] = job.parents[number]
        except JobError as error:
            errors[number] = error.error
    # One name for each job, so a retry writes the same file.
    path = folder / f"report-{job.id}.md"
    try:
        path.write_text(reporting.report(title, paths, results, errors), "utf-8")
    except OSError as error:
        raise JobFailed(error.strerror or str(error), code="unwritable") from error
    return {"report": str(path), "files": len(paths)}


def file_of(name: str, root: Path) -> Path:
    """Return the file that a job names, which must be in the folder. Raise JobFailed."""
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise JobFailed("the path leads out of the folder", code="outside", retryable=False)
    return path


def print_done(job: JobContext, following: Callable[[JobContext], Any]) -> Any:
    """Run the handler, and then print the file. This is middleware."""
    result = following(job)
    # One write, because handlers run in threads.
    print(f"done    {job.args[0]}\n", end="", flush=True)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a worker until it is stopped."""
    parser = argparse.ArgumentParser(
        description="Analyse the files that producer.py or report.py is given. Start several."
    )
    parser.add_argument("folder", type=Path, help="the folder the producer was given")
    server = os.environ.get("OJS_URL", "http://localhost:8080")
    parser.add_argument("--url", default=server, help="the server (default: OJS_URL)")
    parser.add_argument("--queue", default="files", help="where to take jobs from")
    parser.add_argument(
        "--reports", type=Path, default=Path(), metavar="FOLDER", help="where to write reports"
    )
    parser.add_argument("--at-once", type=int, default=2, help="most files at a time")
    for name, default, text in (
        ("--slow", 0.0, "wait after each 64 KB of a file"),
        ("--grace", 10.0, "time to finish a file when stopping"),
        ("--poll", 4.0, "longest wait before asking again"),
        ("--beat", 10.0, "between heartbeats"),
    ):
        parser.add_argument(name, type=float, default=default, metavar="S", help=text)
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} must be a folder")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    worker = Worker(
        options.url,
        queues=[options.queue],
        concurrency=options.at_once,
        grace_s=options.grace,
        poll_s=options.poll,
        heartbeat_s=options.beat,
    )
    root = options.folder.resolve()

    worker.middleware(print_done)

    @worker.job("file.index", queue=options.queue)
    def handle(job: JobContext, path: str) -> dict[str, Any]:
        return index(job, path, root, options.slow)

    @worker.job("folder.report", queue=options.queue)
    def report(job: JobContext, title: str, paths: list[str]) -> dict[str, Any]:
        return write_report(job, title, paths, options.reports)

    worker.run()


if __name__ == "__main__":
    main()
