"""Handlers in processes: what they answer, and that nothing they do harms the server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.handlers import HandlerFailed, HandlerProcesses

HERE = Path(__file__).parent


@pytest.fixture
def processes() -> Iterator[HandlerProcesses]:
    made = HandlerProcesses(HERE)
    yield made
    made.stop()


def call(
    processes: HandlerProcesses, *args: Any, timeout_s: float = 20.0, name: str = "pushed:handler"
) -> Any:
    event = json.dumps({"id": "a", "attempt": 1, "args": args})
    return json.loads(processes.call(name, event, timeout_s=timeout_s))


def failure(processes: HandlerProcesses, *args: Any, **more: Any) -> dict[str, Any]:
    with pytest.raises(HandlerFailed) as caught:
        call(processes, *args, **more)
    return caught.value.payload


def test_one_process_is_called_again_and_again(processes: HandlerProcesses) -> None:
    first, second = (call(processes, "work", "å")["result"] for _ in range(2))
    assert first["pid"] == second["pid"] != os.getpid()
    assert (first["rest"], first["late"]) == (["å"], False)
    raised = failure(processes, "raise")
    assert (raised["errorType"], raised["errorMessage"]) == ("KeyError", "'size'")
    assert "pushed.py" in raised["stackTrace"][-1]
    assert failure(processes, "no json")["errorType"] == "Runtime.MarshalError"
    assert call(processes, "work")["result"]["pid"] == first["pid"]


@pytest.mark.exhaustive
def test_one_that_dies_or_hangs_is_followed_by_another(processes: HandlerProcesses) -> None:
    first = call(processes, "work")["result"]["pid"]
    died = failure(processes, "exit")
    assert (died["errorType"], died["errorMessage"]) == (
        "Runtime.ExitError", "Runtime exited with error: code 3",
    )  # fmt: skip
    assert "SIGKILL" in failure(processes, "kill")["errorMessage"]
    hung = failure(processes, "hang", timeout_s=0.2)
    assert (hung["errorType"], hung["errorMessage"]) == (
        "Sandbox.Timedout", "Task timed out after 0.20 seconds",
    )  # fmt: skip
    assert call(processes, "work")["result"]["pid"] != first


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("no_such_module:handler", "Runtime.ImportModuleError"),
        ("pushed:missing", "Runtime.HandlerNotFound"),
        ("pushed:not_a_function", "Runtime.HandlerNotFound"),
    ],
)
def test_what_is_no_handler_is_told(processes: HandlerProcesses, name: str, kind: str) -> None:
    assert failure(processes, name=name)["errorType"] == kind


def test_after_the_end_nothing_begins() -> None:
    ended = HandlerProcesses(HERE)
    ended.stop()
    assert failure(ended)["errorMessage"] == "the server stops"
