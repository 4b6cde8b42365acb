"""`python -m ojs_aws worker module:worker`: runs a worker, and restarts it when code changes."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from ojs_aws.client.call import Misconfigured
from ojs_aws.worker.worker import Worker

_LOOK_S = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m ojs_aws")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("worker", help="run a worker")
    run.add_argument("worker", metavar="module:worker", help="for example app.jobs:worker")
    run.add_argument("--reload", action="store_true", help="restart when a Python file changes")
    run.add_argument("--queue", action="append", help="fetch from this queue. Can be repeated")
    run.add_argument("--concurrency", type=int, help="jobs that run at the same time")
    run.add_argument("--processes", action="store_true", help="run functions in processes")
    run.add_argument("--health-port", type=int, help="port of the health endpoint")
    given = sys.argv[1:] if argv is None else list(argv)
    args = parser.parse_args(given)
    if args.reload:
        return _reload([sys.executable, "-m", "ojs_aws", *(a for a in given if a != "--reload")])
    try:
        worker = find_worker(args.worker)
        changed = {"queues": args.queue, "concurrency": args.concurrency}
        if args.processes:
            changed["processes"] = True
        named = {name: value for name, value in changed.items() if value is not None}
        worker.settings = replace(worker.settings, **named)
    except ValueError as error:
        parser.error(str(error))
    # Programs that configured logging before keep their configuration.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if args.health_port is not None:
        serve_health(worker, args.health_port)
    try:
        worker.run()
    except Misconfigured as error:
        parser.error(str(error))
    return 0


def find_worker(name: str) -> Worker:
    """Return the worker `module:attribute`. Raises ValueError if it isn't one."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ValueError(f"{name!r} must be module:worker, for example app.jobs:worker")
    there = vars(importlib.import_module(module))
    if attribute not in there:
        workers = [name for name, value in there.items() if isinstance(value, Worker)]
        known = f". Its workers are: {', '.join(workers) or 'none'}"
        raise ValueError(f"{name!r}: the module {module} has no {attribute!r}{known}")
    found = there[attribute]
    if not isinstance(found, Worker):
        raise ValueError(f"{name!r} must be a Worker, but is {found!r}")  # noqa: TRY004
    return found


def serve_health(worker: Worker, port: int) -> ThreadingHTTPServer:
    """Answer GET requests in a thread: 200 if the worker is healthy, otherwise 503."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            healthy = worker.healthy
            self.send_response(200 if healthy else 503)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"healthy": %s}\n' % str(healthy).lower().encode())

        def log_message(self, *_args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("", port), Health)
    threading.Thread(target=server.serve_forever, name="ojs-health", daemon=True).start()
    return server


def _reload(command: list[str]) -> int:
    """Run a command, and run it again after each change of a Python file."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            # The times come first: a change during the start restarts the program.
            seen, process = _times(), subprocess.Popen(command)  # noqa: S603 - this program
            try:
                while _times() == seen:
                    time.sleep(_LOOK_S)
                print("Restarting: a Python file changed", flush=True)  # noqa: T201 - a command
            finally:
                process.terminate()
                process.wait()
    except KeyboardInterrupt:
        return 0


def _times() -> dict[str, float]:
    """Return when each Python file below this folder changed. Skips environments."""
    found: dict[str, float] = {}
    for folder, folders, files in os.walk("."):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [each for each in folders if each[0] != "." and each != "node_modules"]
        for name in files:
            if name.endswith(".py"):
                with contextlib.suppress(OSError):  # deleted in the meantime
                    found[f"{folder}/{name}"] = Path(folder, name).stat().st_mtime
    return found


if __name__ == "__main__":
    sys.exit(main())
