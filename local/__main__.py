"""`python -m local`: starts the local server, prints its usage, and stops on Ctrl-C."""

from __future__ import annotations

import argparse
import ipaddress
import os
import re
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from local.engine_data import EngineError
from local.folder import DataFolder, FolderInUse
from local.http_server import listen

if TYPE_CHECKING:
    from types import FrameType

    from local.server import LocalServer

_REPOSITORY = Path(__file__).resolve().parent.parent
_WATCH_S = 0.5
# Most requests wait for the engine. A request that computes must not delay received responses by
# Python's default of 5 ms. Measured: a third more requests per second with 8 to 64 clients.
_SWITCH_INTERVAL_S = 0.0005
_NOT_BUILT = " (not built; run `make dashboard`, which requires Node.js and npm)"


class StartError(Exception):
    """The server can't start. The message is one line for the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until it is stopped. Returns the exit status."""
    sys.path.insert(0, str(_REPOSITORY / "shared"))
    options = _parse(arguments)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    stop = threading.Event()
    _on_signals(stop)
    try:
        server = _start(options)
    except (StartError, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        print(_greeting(server), flush=True)
        while not stop.wait(_WATCH_S):
            if not server.engine.running:
                print(f"error: {server.engine.name} has ended. The server stops", file=sys.stderr)
                return 1
    finally:
        server.stop()
    print("Stopped.", flush=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from local.origins import HOSTS_OPTION, ORIGINS_OPTION, allowed_hosts, cors_origins

    parser = argparse.ArgumentParser(
        prog="python -m local",
        description="Run an OJS server on this machine: the deployed functions on a local engine.",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; others than loopback need --keys"
    )
    parser.add_argument(
        "--port", type=int, default=8080, help="port to listen on; 0: any free port"
    )
    parser.add_argument("--data", type=Path, default=Path(".ojs-data"), help="data folder")
    parser.add_argument(
        "--engine", choices=("auto", "dynoxide", "ministack"), default="auto", help="engine to use"
    )
    parser.add_argument(
        "--sweep-interval",
        type=float,
        default=1.0,
        metavar="S",
        help="interval of sweeps in seconds",
    )
    parser.add_argument(
        "--strict-queues",
        action="store_true",
        help="reject jobs for queues that no operator created",
    )
    parser.add_argument(
        "--middleware", type=_middleware, default=(), metavar="MODULE:NAME,…",
        help="functions that process jobs before they are stored, in order",
    )  # fmt: skip
    parser.add_argument(
        "--middleware-folder", type=Path, default=Path(), metavar="FOLDER",
        help="folder of the middleware modules (default: current folder)",
    )  # fmt: skip
    parser.add_argument(
        "--deliver", type=_delivery, action="append", default=[], metavar="QUEUE=TARGET",
        help="push the jobs of a queue to a handler (jobs=worker:handler) or to an endpoint "
        "(jobs=http://localhost:9000/); can be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--deliver-folder", type=Path, default=Path(), metavar="FOLDER",
        help="folder of the handler modules (default: current folder)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-loopback-endpoints", action="store_true",
        help="allow endpoints on this machine, also without TLS",
    )  # fmt: skip
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--keys", action="store_const", dest="authorizer", const="keys", default="none",
        help="require access keys, as the deployed API does",
    )  # fmt: skip
    who.add_argument(
        "--iam", action="store_const", dest="authorizer", const="iam",
        help="require a signature that names a role, as with authorizer=iam; the signature is not "
        "checked",
    )  # fmt: skip
    parser.add_argument(
        "--test-clock", action="store_true", help="for tests: allow requests to move the clock"
    )
    parser.add_argument(
        ORIGINS_OPTION, type=cors_origins, default=(), metavar="ORIGIN,…",
        help="origins of web pages that can use the server, for example http://localhost:5173",
    )  # fmt: skip
    parser.add_argument(
        HOSTS_OPTION, type=allowed_hosts, default=(), metavar="NAME,…",
        help="more host names of this server, in addition to localhost and IP addresses",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= 65535:
        parser.error(f"--port: must be 0 to 65535, but is {options.port}")
    if options.sweep_interval <= 0:
        parser.error("--sweep-interval: must be more than 0")
    # The host name in --host is allowed too.
    options.hosts = (options.host, *options.allowed_hosts)
    options.host = _address(parser, options.host, keys=options.authorizer == "keys")
    return options


def _middleware(text: str) -> tuple[str, ...]:
    """Parse names of functions, separated by commas. Raises ArgumentTypeError."""
    from ojs.settings import MIDDLEWARE_PATTERN

    names = tuple(filter(None, (part.strip() for part in text.split(","))))
    for name in names:
        if not re.fullmatch(MIDDLEWARE_PATTERN, name):
            raise argparse.ArgumentTypeError(f"must be module:name, but is {name!r}")
    return names


def _delivery(text: str) -> tuple[str, str]:
    """Parse a queue and the target of its jobs. Raises ArgumentTypeError."""
    from ojs.settings import MIDDLEWARE_PATTERN

    queue, _, target = text.partition("=")
    if not queue or not re.fullmatch(rf"https?://\S+|{MIDDLEWARE_PATTERN[1:-1]}", target):
        raise argparse.ArgumentTypeError(
            f"must be QUEUE=module:function or QUEUE=http://…, but is {text!r}"
        )
    return queue, target


def _load_middleware(names: Sequence[str], folder: Path) -> None:
    """Import the middleware, so that errors appear at startup. Raises StartError."""
    if not names:
        return
    # Append: as in a deployment, middleware can't replace modules of the server.
    sys.path.append(str(folder.resolve()))
    from ojs.services.jobs.middleware import MiddlewareChain

    try:
        MiddlewareChain(names, timeout_ms=1, service="ojs").load()
    except Exception as error:  # user code can raise anything
        raise StartError(
            f"--middleware: can't load from {folder}: {type(error).__name__}: {error}"
        ) from error


def _address(parser: argparse.ArgumentParser, host: str, *, keys: bool) -> str:
    """Return the address to listen on. Without keys it must be a loopback address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        parser.error(f"--host: can't resolve {host}")
    addresses = [str(entry[4][0]) for entry in found]
    if not keys and not all(ipaddress.ip_address(each).is_loopback for each in addresses):
        parser.error(
            f"--host: {host} is reachable from other machines, which requires --keys. Use "
            "127.0.0.1, or add --keys"
        )
    return next((a for a in addresses if ":" not in a), addresses[0])


def _start(options: argparse.Namespace) -> LocalServer:
    # Check the port first: a server that is already running is the most likely error.
    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        raise StartError(
            f"Can't listen on {options.host}:{options.port}: {error.strerror}. Use another port: "
            f"make run PORT={options.port + 1}"
        ) from error
    data = f"--data: can't use {options.data}"
    try:
        folder = DataFolder(options.data)
    except FolderInUse as error:
        raise StartError(f"{data}: it is in use by {error}") from error
    except OSError as error:
        raise StartError(f"{data}: {error.strerror}") from error
    _forget_aws_account()
    _load_middleware(options.middleware, options.middleware_folder)
    # Import late, because it takes time, and earlier errors should appear immediately.
    from local.dynamodb import StaleData
    from local.server import LocalServer
    from ojs.domain.errors import OjsError
    from ojs.services.operations.setup import SetupError

    try:
        return LocalServer(
            listener,
            folder,
            engine=options.engine,
            sweep_interval_s=options.sweep_interval,
            strict_queues=options.strict_queues,
            middleware=options.middleware,
            authorizer=options.authorizer,
            origins=options.cors_origins,
            hosts=options.hosts,
            test_clock=options.test_clock,
            deliver=dict(options.deliver),
            deliver_folder=options.deliver_folder,
            # An endpoint in --deliver is allowed implicitly.
            loopback_endpoints=options.allow_loopback_endpoints
            or any("://" in target for _, target in options.deliver),
        )
    except (StaleData, SetupError, OjsError) as error:
        raise StartError(str(error)) from error


def _forget_aws_account() -> None:
    """Make sure that nothing uses the AWS account of this machine."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "OJS_"))]:
        del os.environ[name]
    os.environ |= {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1,localhost,::1",
        # CloudWatch reads metrics from the functions' output. Here that is the terminal.
        "POWERTOOLS_METRICS_DISABLED": "true",
    }
    os.environ.setdefault("POWERTOOLS_SERVICE_NAME", "ojs")
    os.environ.setdefault("POWERTOOLS_LOG_LEVEL", "WARNING")


def _on_signals(stop: threading.Event) -> None:
    def stop_once(number: int, _frame: FrameType | None) -> None:
        # Restore the default, so that a second signal ends the process.
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_once)


def _greeting(server: LocalServer) -> str:
    from local.access import SignedAccess

    url = f"{server.url}/ojs/v1"
    engine = server.engine.name
    if server.engine.reason:
        engine += f" ({server.engine.reason})"
    data = shlex.quote(str(server.folder.path))
    if server.engine.name == "ministack":
        data += " (written when the server stops)"
    header = "-H 'Content-Type: application/json'"
    access = "no authentication: any client has all scopes (use --keys to require keys)"
    if isinstance(server.access, SignedAccess):
        access = "signed requests, not checked; the role `operator` has all scopes"
        header += " --aws-sigv4 aws:amz:local:execute-api -u operator:any"
    elif server.access is not None:
        first = shlex.quote(str(server.access.first.path))
        access = f"access keys; the bootstrap key with all scopes is in {first}"
        header += f""" -H "Authorization: Bearer $(cat {first})\""""
    if server.test_clock:
        access += "; requests can move the clock, for tests"
    unbounded = server.unbounded()
    bounds = [f"  queues  {unbounded} without a size limit (max_size, docs/queues.md)"]
    pages = [f"  pages   {', '.join(server.origins)} can use it"] if server.origins else []
    return "\n".join([
        f"OJS local server {server.version}",
        f"  URL     {url}",
        f"  admin   {server.url}/ojs/admin/{'' if server.has_dashboard else _NOT_BUILT}",
        f"  access  {access}",
        *pages,
        f"  engine  {engine}",
        f"  data    {data}",
        *(bounds if unbounded else []),
        "Try this in another terminal:",
        f"""  curl {url}/jobs {header} -d '{{"type": "hello", "args": ["world"]}}'""",
        f"""  curl {url}/workers/fetch {header} -d '{{"queues": ["default"]}}'""",
        "Stop with Ctrl-C.",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
