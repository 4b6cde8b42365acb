"""The DynamoDB engine of the local server: a child process on a loopback port.

The engine is dynoxide (native, SQLite) if its binary exists, otherwise MiniStack (Python). Existing
data can be used only with the engine that wrote them (`local.engine_data`). The child runs in a
separate session: Ctrl-C in the terminal reaches only the server, which then stops the child. Where
the system supports it, the child also ends if the server is killed.
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
    """One engine: its command and its health check."""

    name: str
    command: list[str]
    health: str
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Engine:
    """A running engine.

    `reason` is the reason if it isn't the preferred engine. `records` are the stream records, if
    the engine stores them on disk permanently. `temporary` is a folder that is deleted with the
    engine. `resumed` is true if data existed before the start.
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
        """Whether the process is running."""
        return self.process.poll() is None

    def stop(self) -> None:
        """Stop it. Kill it if it doesn't end."""
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
        """Kill it, so that it writes nothing more. Call `stop` afterwards."""
        self.process.kill()
        self.process.wait()


def start(
    preference: str = "auto",
    folder: Path | None = None,
    keep_open: Sequence[int] = (),
    *,
    streams: bool = True,
) -> Engine:
    """Start an engine: `auto`, `dynoxide`, or `ministack`.

    Args:
        preference: Name of the engine, or `auto`.
        folder: Data folder. Without one, the data are temporary. Existing data require the engine
            that wrote them.
        keep_open: File descriptors that the engine keeps open, so a lock on them shows that it
            runs.
        streams: If false, dynoxide stores tables in memory, where many stream records make it slow.

    Returns:
        The engine.

    Raises:
        EngineError: The engine can't start.
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
                # Otherwise the next start would treat its files as data.
                remove_leftovers(folder)
            if preference == DYNOXIDE:
                raise
            reason = str(error)
    elif preference == DYNOXIDE:
        _needed_dynoxide()
    elif preference == "auto":
        reason = _no_dynoxide()
    engine = _start_ministack(folder, keep_open, reason or "MiniStack was selected")
    engine.reason = reason
    return engine


def _resume(owner: str, preference: str, folder: Path, keep_open: Sequence[int]) -> Engine:
    """Start the engine that wrote the data of a folder. Raises EngineError."""
    data = folder / FILES[owner]
    if preference not in ("auto", owner):
        raise EngineError(
            f"--engine: {data} has data that only {owner} can read, so {preference} can't use it. "
            f"Let the server select the engine (make run without ENGINE). {anew(folder)}"
        )
    try:
        if owner == MINISTACK:
            engine = _start_ministack(folder, keep_open, f"{data} has data of MiniStack")
        else:
            engine = _start_dynoxide(_needed_dynoxide(), folder, keep_open)
    except EngineError as error:
        raise EngineError(
            f"can't use the data in {data}, and no other engine can read them: {error}. "
            f"If the file is damaged, restore it from a backup. {anew(folder)}"
        ) from error
    engine.resumed = True
    if owner == MINISTACK and preference == "auto":
        engine.reason = "it wrote the data in the folder"
    return engine


def find_dynoxide() -> Path | None:
    """Return the dynoxide binary of this project, or on the PATH."""
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
        raise EngineError(f"{_no_dynoxide()}. To install it, run `npm ci`")
    return binary


def _no_dynoxide() -> str:
    return f"no dynoxide binary for {sys.platform} on {platform.machine()} in node_modules or PATH"


def _start_dynoxide(
    binary: Path, folder: Path | None, keep_open: Sequence[int], *, streams: bool = True
) -> Engine:
    """Start dynoxide, and speed up its stream. Raises EngineError."""
    kind = _Kind(DYNOXIDE, [str(binary), "--host", "127.0.0.1", "--port", "{port}"], "/")
    if folder is None and not streams:
        return _run(kind, folder, keep_open)
    try:
        from local.stream_records import StreamRecords
    except ImportError as error:
        raise EngineError(f"this Python can't use dynoxide's stream: {error}") from error
    with contextlib.ExitStack() as undo:
        temporary = None
        if folder is None:
            # It can store data in memory, but without an index for its stream records.
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
    """Start MiniStack. Raises EngineError with the reason (`why`) if it is not installed."""
    program = find_ministack()
    if program is None:
        raise EngineError(f"{why}, but it is not installed in {sys.prefix}. Run `make setup`")
    environment = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": "{port}", "LOG_LEVEL": "WARNING"}
    if folder is None:
        environment["PERSIST_STATE"] = "0"
    else:
        # It writes its data when it stops, so it must not be killed.
        environment |= {"PERSIST_STATE": "1", "STATE_DIR": str(folder / STATE)}
        try:
            # Without the folder it would start, and fail when it writes its data.
            (folder / STATE).mkdir(exist_ok=True)
        except OSError as error:
            raise EngineError(f"--data: can't use {folder / STATE}: {error.strerror}") from error
    kind = _Kind(MINISTACK, [str(program)], "/_ministack/health", environment)
    return _run(kind, folder, keep_open)


def _run(kind: _Kind, folder: Path | None, keep_open: Sequence[int]) -> Engine:
    """Start it on a free port. Try again if another process takes the port first."""
    log = None if folder is None else folder / f"{kind.name}.log"
    for _ in range(_PORTS_TO_TRY):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        process = _spawn(kind, port, log, keep_open)
        engine = Engine(kind.name, f"http://127.0.0.1:{port}", process, log)
        if _answers(engine, kind.health):
            return engine
        # Kill it: MiniStack would overwrite data that it has not read.
        engine.kill()
    raise EngineError(f"{kind.name} did not start{_last_words(log)}")


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
            raise EngineError(f"can't run {kind.name}: {error.strerror}") from error


def _end_with_parent() -> Callable[[], None] | None:
    """Return a function for the child that ends it when this process ends, even if killed.

    Only Linux supports it. On other systems a killed server leaves its engine running.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent ended before the call above
            os._exit(1)

    return prepare


def _answers(engine: Engine, health: str) -> bool:
    """Wait until the engine responds. Returns False if it ends or takes too long."""
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
    return f": {lines[-1].strip()} (complete log: {log})" if lines else f" (log: {log})"
