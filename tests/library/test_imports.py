"""The library is quick to import, needs httpx and websockets, and runs on Python 3.10."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import cache
from typing import Any
from uuid import UUID

import pytest

from tests.architecture.modules import ROOT

PACKAGE = ROOT / "package"
REPETITIONS = range(5)


@cache
def loaded(code: str, _repetition: object = 0) -> tuple[float, frozenset[str]]:
    """The CPU seconds that code takes in a process of its own, and the modules it loads."""
    timed = (
        f"import sys, time; start = time.process_time(); {code};"
        "print(time.process_time() - start, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", timed], env=os.environ | {"PYTHONPATH": str(PACKAGE)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    took_s, *modules = done.stdout.split()
    return float(took_s), frozenset(modules)


def test_a_worker_is_imported_in_150_ms() -> None:
    """Once of some times is enough, so that neighbours on the machine do not count."""
    code = "from ojs_aws import Worker, Client"
    assert any(loaded(code, n)[0] < 0.150 for n in REPETITIONS)
    _, modules = loaded(code)
    # Those are loaded by who needs them: a client, a coroutine's handler, processes.
    heavy = {"httpx", "websockets", "asyncio", "multiprocessing", "opentelemetry"}
    assert not (heavy | {"pytest", "boto3", "pydantic"}) & modules


def test_it_needs_nothing_but_httpx_and_websockets() -> None:
    # `typing_extensions` is read by type checkers alone.
    allowed = {*sys.stdlib_module_names, "httpx", "websockets", "ojs_aws", "typing_extensions"}
    for path in sorted((PACKAGE / "ojs_aws").rglob("*.py")):
        if "cdk" in path.relative_to(PACKAGE).parts:
            continue  # a part of its own, with needs of its own
        tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 10))
        mine = allowed | ({"pytest"} if path.parent.name == "testing" else set())
        mine |= {"pydantic", "pydantic_core"} if path.name == "validated.py" else set()
        mine |= {"boto3", "botocore"} if path.name == "secret_key.py" else set()
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert {name.partition(".")[0] for name in names} <= mine, path


@pytest.mark.parametrize("name", ["StrEnum", "TaskGroup", "UTC", "Self", "assert_never", "tomllib"])
def test_it_uses_nothing_that_came_after_python_3_10(name: str) -> None:
    for path in sorted((PACKAGE / "ojs_aws").rglob("*.py")):
        if "cdk" in path.parts:
            continue  # the construct needs 3.11
        tree = ast.parse(path.read_text("utf-8"))
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
        assert name not in used, path


def test_typed_jobs_are_loaded_by_who_declares_one() -> None:
    """`import ojs_aws` costs what it did before them."""
    _, modules = loaded("import ojs_aws")
    assert not [name for name in modules if name.startswith("ojs_aws.typed")]
    _, modules = loaded("from ojs_aws import Retry, Worker; Worker(queues=['q']).job('t')")
    assert "pydantic" not in modules


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ("j.progress(1)", False), ("j.sleep(0)", False), ("j.check()", False),
        ("j.sleep('PT0S')", True), ("j.version", True),
    ],
)  # fmt: skip
def test_durable_code_is_loaded_by_its_first_call(code: str, used: bool) -> None:
    """A job without it makes no other call, and loads nothing more."""
    _, modules = loaded(
        "from ojs_aws import Job, Worker; w = Worker(queues=['q']);"
        f"w.handler('t')(lambda j: {code}); assert w.perform(Job('i', 't')).how == 'acks'"
    )
    loads = {"ojs_aws.worker.durable", "ojs_aws.typed.signature", "asyncio"}
    assert ("ojs_aws.worker.durable" in modules) is used
    assert used or not loads & modules


DECLARED = """
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID
from ojs_aws import Worker

@dataclass
class Order:
    id: UUID
    items: list[str]

worker = Worker(queues=["q"])

def declare(n):
    @worker.job(f"order.place{n}", queue="q")
    def place(order: Order, to: str, at: datetime, count: int = 1) -> Order: ...
    return place

declared = [declare(n) for n in range(100)]
"""


def test_100_jobs_are_declared_in_half_a_second() -> None:
    """Measured: 0.25 s with pydantic, which takes 0.1 s to import, and 0.03 s without it."""
    code = f"exec({DECLARED!r})"
    assert any(loaded(code, n)[0] < 0.5 for n in REPETITIONS)
    assert "pydantic" in loaded(code)[1]


def test_an_argument_is_checked_in_a_fifth_of_a_millisecond() -> None:
    """What `enqueue` of a typed job takes more than that of a client. Measured: 0.1 ms."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(DECLARED, names)
    place = names["declared"][0]
    order = names["Order"](UUID(int=1), ["a", "b"])
    now = datetime(2026, 11, 28, tzinfo=UTC)

    def took_s() -> float:
        began = time.process_time()
        for _ in range(500):
            place._fields("enqueue", (order, "a@b.org", now), {})
        return (time.process_time() - began) / 500

    assert min(took_s() for _ in REPETITIONS) < 0.000_2
