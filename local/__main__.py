"""`python -m local`: start the local server, print how to use it, stop on Ctrl-C."""

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
# Requests mostly wait for the engine; one that computes must not keep those whose answer has come
# waiting for Python's usual 5 ms. Measured: a third more requests a second at 8 to 64 clients.
_SWITCH_INTERVAL_S = 0.0005
_NOT_BUILT = " (not built: `make dashboard` does so, with Node.js and npm)"


class StartError(Exception):
    """The server cannot start; the message is one line for the person who started it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until it is asked to stop; the exit status."""
    sys.path.insert(0, str(_REPOSITORY / "shared"))
    options = _parse(arguments)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    stop = threading.Event()
    _on_signals(stop)
    try:
        server = _start(options)
    except (StartError, EngineError) as error:
        print(f"ojs: {error}", file=sys.stderr)
        return 1
    try:
        print(_greeting(server), flush=True)
        while not stop.wait(_WATCH_S):
            if not server.engine.running:
                print(f"ojs: {server.engine.name} has ended; stopping", file=sys.stderr)
                return 1
    finally:
        server.stop()
    print("Stopped.", flush=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from local.origins import HOSTS_OPTION, ORIGINS_OPTION, allowed_hosts, cors_origins

    parser = argparse.ArgumentParser(
        prog="python -m local",
        description="An OJS server on this machine: the deployed functions on a local engine.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; with --keys any")
    parser.add_argument("--port", type=int, default=8080, help="0 takes any free one")
    parser.add_argument("--data", type=Path, default=Path(".ojs-data"), help="folder for the data")
    parser.add_argument("--engine", choices=("auto", "dynoxide", "ministack"), default="auto")
    parser.add_argument(
        "--sweep-interval", type=float, default=1.0, metavar="S", help="seconds between sweeps"
    )
    parser.add_argument(
        "--strict-queues", action="store_true", help="refuse jobs for queues that no operator made"
    )
    parser.add_argument(
        "--middleware", type=_middleware, default=(), metavar="MODULE:NAME,…",
        help="functions that jobs go through before they are stored, in order",
    )  # fmt: skip
    parser.add_argument(
        "--middleware-folder", type=Path, default=Path(), metavar="FOLDER",
        help="where their modules are; the present folder unless it is given",
    )  # fmt: skip
    parser.add_argument(
        "--deliver", type=_delivery, action="append", default=[], metavar="QUEUE=TARGET",
        help="push the jobs of a queue to a handler, as jobs=worker:handler, or to an endpoint, as "
        "jobs=http://localhost:9000/; may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--deliver-folder", type=Path, default=Path(), metavar="FOLDER",
        help="where the modules of handlers are; the present folder unless it is given",
    )  # fmt: skip
    parser.add_argument(
        "--allow-loopback-endpoints", action="store_true",
        help="let deliveries name endpoints on this machine, and plain http there",
    )  # fmt: skip
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--keys", action="store_const", dest="authorizer", const="keys", default="none",
        help="let nobody in without a key, as the deployed API does",
    )  # fmt: skip
    who.add_argument(
        "--iam", action="store_const", dest="authorizer", const="iam",
        help="let nobody in without a signature that names a role, as with authorizer=iam; which "
        "is not checked",
    )  # fmt: skip
    parser.add_argument(
        "--test-clock", action="store_true", help="for tests: let requests move the server's clock"
    )
    parser.add_argument(
        ORIGINS_OPTION, type=cors_origins, default=(), metavar="ORIGIN,…",
        help="web pages that may use the server, as http://localhost:5173",
    )  # fmt: skip
    parser.add_argument(
        HOSTS_OPTION, type=allowed_hosts, default=(), metavar="NAME,…",
        help="further names by which the server may be called, beside localhost and addresses",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= 65535:
        parser.error(f"--port {options.port} is no port")
    if options.sweep_interval <= 0:
        parser.error("--sweep-interval must be positive")
    # The name it listens on is one of this machine.
    options.hosts = (options.host, *options.allowed_hosts)
    options.host = _address(parser, options.host, keys=options.authorizer == "keys")
    return options


def _middleware(text: str) -> tuple[str, ...]:
    """Names of functions, separated by commas. Raises ArgumentTypeError."""
    from ojs.settings import MIDDLEWARE_PATTERN

    names = tuple(filter(None, (part.strip() for part in text.split(","))))
    for name in names:
        if not re.fullmatch(MIDDLEWARE_PATTERN, name):
            raise argparse.ArgumentTypeError(f"{name!r} is not of the form module:name")
    return names


def _delivery(text: str) -> tuple[str, str]:
    """A queue and the target of its jobs. Raises ArgumentTypeError."""
    from ojs.settings import MIDDLEWARE_PATTERN

    queue, _, target = text.partition("=")
    if not queue or not re.fullmatch(rf"https?://\S+|{MIDDLEWARE_PATTERN[1:-1]}", target):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither QUEUE=module:function nor QUEUE=http://…"
        )
    return queue, target


def _load_middleware(names: Sequence[str], folder: Path) -> None:
    """Import the middleware, so that a mistake shows at once. Raises StartError."""
    if not names:
        return
    # Last: it may not replace what the server has, as in a deployment.
    sys.path.append(str(folder.resolve()))
    from ojs.services.jobs.middleware import MiddlewareChain

    try:
        MiddlewareChain(names, timeout_ms=1, service="ojs").load()
    except Exception as error:  # it is somebody else's code, and may raise anything
        raise StartError(
            f"the middleware cannot be loaded from {folder}: {type(error).__name__}: {error}"
        ) from error


def _address(parser: argparse.ArgumentParser, host: str, *, keys: bool) -> str:
    """The address to listen on, if only this machine can reach it or keys are needed."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        parser.error(f"--host {host} cannot be resolved")
    addresses = [str(entry[4][0]) for entry in found]
    if not keys and not all(ipaddress.ip_address(each).is_loopback for each in addresses):
        parser.error(
            f"--host {host} can be reached from other machines, and without --keys this server "
            "lets anyone who reaches it do anything. Use 127.0.0.1, or add --keys"
        )
    return next((a for a in addresses if ":" not in a), addresses[0])


def _start(options: argparse.Namespace) -> LocalServer:
    # The port first: a server that runs already is the likeliest mistake, and shows at once.
    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        raise StartError(
            f"port {options.port} on {options.host} cannot be had: {error.strerror}. Stop what "
            f"uses it, or choose another: make run PORT={options.port + 1}"
        ) from error
    data = f"the data folder {options.data}"
    try:
        folder = DataFolder(options.data)
    except FolderInUse as error:
        raise StartError(f"{data} is in use by {error}") from error
    except OSError as error:
        raise StartError(f"{data} cannot be used: {error.strerror}") from error
    _forget_aws_account()
    _load_middleware(options.middleware, options.middleware_folder)
    # Only now: this takes a moment to import, and a mistake above should show at once.
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
            # Who names one here means it.
            loopback_endpoints=options.allow_loopback_endpoints
            or any("://" in target for _, target in options.deliver),
        )
    except (StaleData, SetupError, OjsError) as error:
        raise StartError(str(error)) from error


def _forget_aws_account() -> None:
    """Nothing here may touch, or trip over, the AWS account that the machine is set up for."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "OJS_"))]:
        del os.environ[name]
    os.environ |= {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1,localhost,::1",
        # CloudWatch would read them from the functions' output; here that is the terminal.
        "POWERTOOLS_METRICS_DISABLED": "true",
    }
    os.environ.setdefault("POWERTOOLS_SERVICE_NAME", "ojs")
    os.environ.setdefault("POWERTOOLS_LOG_LEVEL", "WARNING")


def _on_signals(stop: threading.Event) -> None:
    def stop_once(number: int, _frame: FrameType | None) -> None:
        # The second time means it: the default is put back.
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
    access = "open: whoever reaches this address may do anything; --keys asks for keys"
    if isinstance(server.access, SignedAccess):
        access = "signed requests, not checked: the role `operator` may do everything"
        header += " --aws-sigv4 aws:amz:local:execute-api -u operator:any"
    elif server.access is not None:
        first = shlex.quote(str(server.access.first.path))
        access = f"keys; the first one, which may do everything, is in {first}"
        header += f""" -H "Authorization: Bearer $(cat {first})\""""
    if server.test_clock:
        access += "; requests may move its clock, for tests"
    unbounded = server.unbounded()
    bounds = [f"  queues  {unbounded} without a bound: see max_size in docs/queues.md"]
    pages = [f"  pages   of {', '.join(server.origins)} may use it"] if server.origins else []
    return "\n".join([
        f"OJS local server {server.version}",
        f"  URL     {url}",
        f"  admin   {server.url}/ojs/admin/{'' if server.has_dashboard else _NOT_BUILT}",
        f"  access  {access}",
        *pages,
        f"  engine  {engine}",
        f"  data    {data}",
        *(bounds if unbounded else []),
        "Try, in another terminal:",
        f"""  curl {url}/jobs {header} -d '{{"type": "hello", "args": ["world"]}}'""",
        f"""  curl {url}/workers/fetch {header} -d '{{"queues": ["default"]}}'""",
        "Ctrl-C stops it.",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
