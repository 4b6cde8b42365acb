"""Runs Python handlers in separate processes, like Lambda.

A handler that crashes or times out ends only its process. The next call uses a new one. Results and
errors have the format of Lambda.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local.lambda_context import LambdaContext

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Time in seconds to import modules, like a cold start.
_START_S = 30.0
_END_S = 5.0


class HandlerFailed(Exception):
    """A handler returned no result. `payload` is Lambda's error object."""

    def __init__(self, kind: str, message: str, trace: list[str] | None = None) -> None:
        super().__init__(message)
        self.payload: dict[str, Any] = {"errorType": kind, "errorMessage": message}
        if trace is not None:
            self.payload["stackTrace"] = trace


class HandlerProcesses:
    """The processes of handlers. Thread-safe."""

    def __init__(
        self, folder: Path, environment: Callable[[], Mapping[str, str]] = dict[str, str]
    ) -> None:
        """`folder` has the handlers' modules. They get the environment variables, too."""
        self._folder = folder
        self._environment = environment
        self._idle: dict[str, list[_Process]] = {}
        self._all: set[_Process] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def call(self, name: str, event: str, *, timeout_s: float) -> str:
        """Call a handler (`module:function`) with an event. Event and result are JSON texts.

        Raises HandlerFailed.
        """
        process = self._take(name)
        try:
            return process.call(event, timeout_s)
        finally:
            with self._lock:
                if process.alive and not self._stopped:
                    self._idle.setdefault(name, []).append(process)
                else:
                    self._all.discard(process)

    def stop(self) -> None:
        """Kill all processes."""
        with self._lock:
            self._stopped = True
            every = list(self._all)
        for process in every:
            process.end()

    def _take(self, name: str) -> _Process:
        with self._lock:
            if self._stopped:
                raise HandlerFailed("Runtime.ExitError", "the server stops")
            waiting = self._idle.get(name, [])
            while waiting:
                process = waiting.pop()
                if process.alive:
                    return process
                self._all.discard(process)
            process = _Process(name, str(self._folder), self._environment())
            self._all.add(process)
            return process


class _Process:
    """A process that calls one handler, one event at a time."""

    def __init__(self, name: str, folder: str, environment: Mapping[str, str]) -> None:
        # Use spawn: a forked process can inherit a locked lock.
        method = get_context("spawn")
        self._pipe, other = method.Pipe()
        self._ready = False
        self._process = method.Process(
            target=_serve, args=(other, name, folder, environment), name=f"handler {name}",
            daemon=True,
        )  # fmt: skip
        self._process.start()
        other.close()

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def call(self, event: str, timeout_s: float) -> str:
        """Return the handler's result. Raises HandlerFailed."""
        try:
            if not self._ready:
                self._receive(_START_S, "Sandbox.Timedout")
                self._ready = True
            self._pipe.send((event, timeout_s))
            answered, told = self._receive(timeout_s, "Sandbox.Timedout")
        except (EOFError, OSError):
            self._process.join(_END_S)
            code = self._process.exitcode
            how = f"signal: {signal.Signals(-code).name}" if code and code < 0 else f"code {code}"
            self.end()
            message = f"Runtime exited with error: {how}"
            raise HandlerFailed("Runtime.ExitError", message) from None
        if not answered:
            raise HandlerFailed(told["kind"], told["message"], told.get("trace"))
        return str(told["text"])

    def _receive(self, timeout_s: float, kind: str) -> tuple[bool, dict[str, Any]]:
        if not self._pipe.poll(timeout_s):
            self.end()
            raise HandlerFailed(kind, f"Task timed out after {timeout_s:.2f} seconds")
        received: tuple[bool, dict[str, Any]] = self._pipe.recv()
        return received

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join(_END_S)


def _serve(pipe: Connection, name: str, folder: str, environment: Mapping[str, str]) -> None:
    """Run in the child process."""
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when it ends
    handler = _load(name, folder)
    with contextlib.suppress(EOFError, OSError):  # the server has ended
        pipe.send((True, {}))
        while True:
            event, timeout_s = pipe.recv()
            pipe.send(_answer(handler, event, LambdaContext(name, timeout_s=timeout_s)))


Handler = Callable[[Any, LambdaContext], Any]


def _load(name: str, folder: str) -> Handler | dict[str, Any]:
    """Import the handler. Returns it, or an error object."""
    module, _, function = name.partition(":")
    # First on the path, like the folder of a function's code.
    sys.path.insert(0, folder)
    try:
        found = getattr(importlib.import_module(module), function)
    except AttributeError:
        message = f"Handler '{function}' missing on module '{module}'"
        return {"kind": "Runtime.HandlerNotFound", "message": message}
    except Exception as error:  # noqa: BLE001 - user code can raise anything
        message = f"Unable to import module '{module}': {error}"
        return {"kind": "Runtime.ImportModuleError", "message": message}
    if not callable(found):
        message = f"'{name}' is not a function"
        return {"kind": "Runtime.HandlerNotFound", "message": message}
    handler: Handler = found
    return handler


def _answer(
    handler: Handler | dict[str, Any], event: str, context: LambdaContext
) -> tuple[bool, dict[str, Any]]:
    if isinstance(handler, dict):
        return False, handler
    try:
        answer = handler(json.loads(event), context)
    except Exception as error:  # noqa: BLE001 - as above
        trace = traceback.format_tb(error.__traceback__)[1:]
        return False, {"kind": type(error).__name__, "message": str(error), "trace": trace}
    try:
        return True, {"text": json.dumps(answer, allow_nan=False)}
    except (TypeError, ValueError, RecursionError) as error:
        message = f"Unable to marshal response: {error}"
        return False, {"kind": "Runtime.MarshalError", "message": message}
