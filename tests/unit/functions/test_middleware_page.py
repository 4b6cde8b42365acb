"""docs/middleware.md: its middleware is run, and its requests are answered as it says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ojs.middleware
from infra.context import from_context
from ojs import runtime
from ojs.http.binding.errors import KINDS
from ojs.middleware import Envelope
from ojs.services.jobs.middleware import FAILED, MAX_OVERDUE
from tests.unit.functions.client import Api

if TYPE_CHECKING:
    from ojs.clock import ManualClock
    from ojs.runtime import Runtime

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "middleware.md").read_text("utf-8")
FOLDER = ROOT / "examples" / "middleware"
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXCHANGES = re.findall(r"-d '(.*?)'\n```\n.*?^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def api(
    make_runtime: Callable[..., Runtime], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Api]:
    """An API that is deployed as the page says."""
    names, folder = re.findall(r"-c middleware=(\S+) -c middleware_folder=(\S+)", PAGE)[0]
    assert ROOT / folder == FOLDER
    assert f"--middleware {names} --middleware-folder {folder}" in PAGE
    monkeypatch.syspath_prepend(str(ROOT / folder))
    built = make_runtime(middleware=tuple(names.split(",")))
    runtime.use(built)
    yield Api(built, clock)
    sys.modules.pop("hooks", None)


def shown(part: Any, whole: Any) -> bool:
    """Whether a page shows a part of an answer."""
    if isinstance(part, dict):
        return all(name in whole and shown(value, whole[name]) for name, value in part.items())
    return bool(part == whole)


def test_its_requests_are_answered_as_it_says(api: Api) -> None:
    assert len(EXCHANGES) == 2
    for sent, answered in EXCHANGES:
        reply = api.post("/ojs/v1/jobs", json.loads(sent))
        assert shown(json.loads(answered), reply.json), reply.text
        if "error" in answered:
            assert (reply.status, reply.error["details"]) == (
                422, json.loads(answered)["error"]["details"],
            )  # fmt: skip


def test_a_deployment_takes_its_settings() -> None:
    names, folder = re.findall(r"-c middleware=(\S+) -c middleware_folder=(\S+)", PAGE)[0]
    settings = from_context({"middleware": names, "middleware_folder": folder})
    assert f"`middleware_timeout_ms` ({settings.middleware_timeout_ms})" in PAGE


def test_its_code_is_the_examples_code() -> None:
    hooks, worker = PYTHON
    assert hooks == (FOLDER / "hooks.py").read_text("utf-8")
    assert worker in (ROOT / "examples" / "index_folder" / "worker.py").read_text("utf-8")


def test_its_names_are_the_code_s() -> None:
    told = re.search(r"^\| `job` \| .*$", PAGE, re.MULTILINE)
    assert told is not None
    names = set(re.findall(r"`([a-z_]+)`", told[0])) - {"job", "options"}
    assert names | {"id"} == {each.name for each in fields(Envelope)}
    for name in ("Envelope", "Next", "Refused", "Middleware"):
        assert f"`{name}`" in PAGE
        assert hasattr(ojs.middleware, name)
    rows = re.findall(r"^\| [^|]* \| (\d+) \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert len(rows) == 5
    for status, codes in rows:
        for code in re.findall(r"`(\w+)`", codes):
            assert KINDS[code].status == int(status)
    assert f"the metric `{FAILED}`" in PAGE
    assert f"With {MAX_OVERDUE} such threads" in PAGE
