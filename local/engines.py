"""The DynamoDB engine behind the local server: a child process on a loopback port.

dynoxide (native, SQLite) where its binary is to be had, else MiniStack (pure Python); where data
are, only the engine that wrote them (`local.engine_data`). The child is started in a session of its
own, so that Ctrl-C in the terminal reaches only the server, which then stops it in order; where the
system can, the child also ends when the server is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from local.emulator import find_ministack
from local.engine_data import (
    DATABASE,
    DYNOXIDE,
    FILES,
    MINISTACK,
    STATE,
    EngineError,
    anew,
    engine_of,
    remove_leftovers,
)

if TYPE_CHECKING:
    from local.stream_records import StreamRecords

_REPOSITORY = Path(__file__).resolve().parent.parent
_START_S = 30.0
_STOP_S = 15.0
_PORTS_TO_TRY = 3
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class _Kind:
    """One engine: how it is started and asked whether it is up."""

    name: str
    command: list[str]
    health: str
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Engine:
    """A running engine. `reason` says why it is not the preferred one, if so.

    `records` are the stream's, where the engine keeps them on disk and for ever. `temporary` is a
    folder that goes with the engine. `resumed` says that it was started on data that were there.
    """

    name: str
    url: str
    process: subprocess.Popen[bytes]
    log: Path | None
    reason: str | None = None
    records: StreamRecords | None = None
    temporary: Path | None = None
    resumed: bool = False

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End it in order, and by force when it does not go."""
        if self.running:
            self.process.terminate()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def kill(self) -> None:
        """End it by force, so that it writes nothing more; `stop` is still to be called."""
        self.process.kill()
        self.process.wait()


def start(
    preference: str = "auto",
    folder: Path | None = None,
    keep_open: Sequence[int] = (),
    *,
    streams: bool = True,
) -> Engine:
    """Start an engine: `auto`, `dynoxide` or `ministack`; raises EngineError.

    `folder` keeps its data, without one they go with the engine. Where it holds data, only the
    engine that wrote them is started. `keep_open` are file descriptors the engine holds as long as
    it lives, so that a lock on them shows it. Without `streams` dynoxide keeps tables in memory,
    where many stream records would make it slow.
    """
    if folder is not None and (owner := engine_of(folder)):
        return _resume(owner, preference, folder, keep_open)
    binary = None if preference == MINISTACK else find_dynoxide()
    reason = None
    if binary is not None:
        try:
            return _start_dynoxide(binary, folder, keep_open, streams=streams)
        except EngineError as error:
            if folder is not None:
                # Else the next start would take what it has made for data.
                remove_leftovers(folder)
            if preference == DYNOXIDE:
                raise
            reason = str(error)
    elif preference == DYNOXIDE:
        _needed_dynoxide()
    elif preference == "auto":
        reason = _no_dynoxide()
    engine = _start_ministack(folder, keep_open, reason or "MiniStack is asked for")
    engine.reason = reason
    return engine


def _resume(owner: str, preference: str, folder: Path, keep_open: Sequence[int]) -> Engine:
    """Start the engine that wrote the data of a folder, and no other; raises EngineError."""
    data = folder / FILES[owner]
    if preference not in ("auto", owner):
        raise EngineError(
            f"{data} holds data that only {owner} can read, so {preference} is not started on "
            f"them. Let the server choose (make run without ENGINE). {anew(folder)}"
        )
    try:
        if owner == MINISTACK:
            engine = _start_ministack(folder, keep_open, f"{data} is MiniStack's")
        else:
            engine = _start_dynoxide(_needed_dynoxide(), folder, keep_open)
    except EngineError as error:
        raise EngineError(
            f"the data in {data} cannot be used, and no other engine can read them: {error}. "
            f"If the file is damaged, restore it from a copy. {anew(folder)}"
        ) from error
    engine.resumed = True
    if owner == MINISTACK and preference == "auto":
        engine.reason = "the data in the folder are its own"
    return engine


def find_dynoxide() -> Path | None:
    """The dynoxide binary: the project's own, else one on the PATH."""
    machine = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}
    package = f"{sys.platform}-{machine.get(platform.machine().lower(), platform.machine())}"
    binary = _REPOSITORY / "node_modules" / "@dynoxide" / package / "dynoxide"
    if binary.is_file() and os.access(binary, os.X_OK):
        return binary
    found = shutil.which("dynoxide")
    return Path(found) if found else None


def _needed_dynoxide() -> Path:
    binary = find_dynoxide()
    if binary is None:
        raise EngineError(f"{_no_dynoxide()}; `npm ci` installs it")
    return binary


def _no_dynoxide() -> str:
    return f"no dynoxide binary for {sys.platform} on {platform.machine()} in node_modules or PATH"


def _start_dynoxide(
    binary: Path, folder: Path | None, keep_open: Sequence[int], *, streams: bool = True
) -> Engine:
    """Start dynoxide and make its stream quick; raises EngineError."""
    kind = _Kind(DYNOXIDE, [str(binary), "--host", "127.0.0.1", "--port", "{port}"], "/")
    if folder is None and not streams:
        return _run(kind, folder, keep_open)
    try:
        from local.stream_records import StreamRecords
    except ImportError as error:
        raise EngineError(f"this Python lacks what dynoxide's stream needs: {error}") from error
    with contextlib.ExitStack() as undo:
        temporary = None
        if folder is None:
            # It can keep data in memory, but there its stream's records would get no index.
            temporary = Path(tempfile.mkdtemp(prefix="ojs-engine-"))
            undo.callback(shutil.rmtree, temporary, ignore_errors=True)
        database = (temporary or folder or Path()) / DATABASE
        kind.command.extend(["--db-path", str(database)])
        engine = _run(kind, folder, keep_open)
        undo.callback(engine.stop)
        engine.temporary, engine.records = temporary, StreamRecords(database)
        engine.records.index()
        undo.pop_all()
    return engine


def _start_ministack(folder: Path | None, keep_open: Sequence[int], why: str) -> Engine:
    """Start MiniStack; raises EngineError, which says `why` it is needed when it is not there."""
    program = find_ministack()
    if program is None:
        raise EngineError(
            f"{why}, and MiniStack is not installed in {sys.prefix}: run `make setup`"
        )
    environment = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": "{port}", "LOG_LEVEL": "WARNING"}
    if folder is None:
        environment["PERSIST_STATE"] = "0"
    else:
        # It writes what it holds when it is asked to stop, so it must never be killed outright.
        environment |= {"PERSIST_STATE": "1", "STATE_DIR": str(folder / STATE)}
        try:
            # It would start without, and find out only when it is to write its data.
            (folder / STATE).mkdir(exist_ok=True)
        except OSError as error:
            raise EngineError(f"{folder / STATE} cannot be used: {error.strerror}") from error
    kind = _Kind(MINISTACK, [str(program)], "/_ministack/health", environment)
    return _run(kind, folder, keep_open)


def _run(kind: _Kind, folder: Path | None, keep_open: Sequence[int]) -> Engine:
    """Start it on a free port; once more when another process takes the port meanwhile."""
    log = None if folder is None else folder / f"{kind.name}.log"
    for _ in range(_PORTS_TO_TRY):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        process = _spawn(kind, port, log, keep_open)
        engine = Engine(kind.name, f"http://127.0.0.1:{port}", process, log)
        if _answers(engine, kind.health):
            return engine
        # Not in order: MiniStack would write what it holds, over what it has not read.
        engine.kill()
    raise EngineError(f"{kind.name} does not start{_last_words(log)}")


def _spawn(
    kind: _Kind, port: int, log: Path | None, keep_open: Sequence[int]
) -> subprocess.Popen[bytes]:
    with (log or Path(os.devnull)).open("wb") as output:
        try:
            return subprocess.Popen(
                [part.format(port=port) for part in kind.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {k: v.format(port=port) for k, v in kind.environment.items()},
                start_new_session=True,
                pass_fds=tuple(keep_open),
                preexec_fn=_end_with_parent(),  # noqa: PLW1509 - the engine starts before any thread
            )
        except OSError as error:
            raise EngineError(f"{kind.name} cannot be run: {error.strerror}") from error


def _end_with_parent() -> Callable[[], None] | None:
    """What the child does first, so that it is stopped when this process dies, even killed.

    Only Linux can; elsewhere a killed server leaves its engine behind.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)

    return prepare


def _answers(engine: Engine, health: str) -> bool:
    """Wait until the engine answers; False when it ends or takes too long."""
    deadline = time.monotonic() + _START_S
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while engine.running and time.monotonic() < deadline:
        try:
            with direct.open(engine.url + health, timeout=2) as answer:
                answer.read()
        except OSError:
            time.sleep(0.02)
        else:
            return engine.running
    return False


def _last_words(log: Path | None) -> str:
    if log is None:
        return ""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return f": {lines[-1].strip()} (all of it in {log})" if lines else f" (log: {log})"
