"""The pages about the library say what is so; `test_server.py` runs the files on them."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

from ojs_aws import RetryPolicy, Worker, errors
from ojs_aws.testing.server import OjsServer
from tests.library.pages import TEST_YOUR_JOBS, TESTED, WRITE_A_WORKER, page


def test_the_defaults_are_those_of_the_table() -> None:
    settings = Worker(queues=["q"]).settings
    row = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| ([\d, ]+) \|", re.MULTILINE)
    rows = dict(row.findall(WRITE_A_WORKER))
    for names, values in rows.items():
        for name, value in zip(names.split(", "), values.split(", "), strict=True):
            # The default of an interval of heartbeats follows from the lease.
            of = "longest_beat_s" if name == "`heartbeat_s`" else name.strip("`")
            assert getattr(settings, of) == float(value), name
    assert set(",".join(rows).replace(" ", "").split(",")) == {
        "`concurrency`", "`lease_s`", "`heartbeat_s`", "`timeout_s`", "`grace_s`", "`poll_s`",
    }  # fmt: skip
    assert f"{settings.stop_s:.0f} s later" in WRITE_A_WORKER
    assert f"within {settings.longest_end_s:.0f} s of the end of `grace_s`" in WRITE_A_WORKER
    assert RetryPolicy.__name__ in WRITE_A_WORKER


def test_every_error_is_named() -> None:
    kinds = [each for each in vars(errors).values() if inspect.isclass(each)]
    kinds = [each for each in kinds if issubclass(each, errors.OjsError)]
    assert len(kinds) > 15
    assert [each.__name__ for each in kinds if f"`{each.__name__}`" not in WRITE_A_WORKER] == []


def test_everything_the_fixture_offers_is_named() -> None:
    offered = {name for name in vars(OjsServer) if not name.startswith("_")} - {"close"}
    assert [name for name in offered if f"`.{name}" not in TEST_YOUR_JOBS] == []


@pytest.mark.parametrize("name", TESTED)
def test_what_is_shown_and_not_run_is_python_all_the_same(name: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 1
    for block in blocks:
        ast.parse(block)


@pytest.mark.parametrize("name", ["from-celery", "from-bullmq"])
def test_our_code_is_not_longer_than_theirs(name: str) -> None:
    text = page(name).partition("## Before and after")[2]
    theirs, ours = re.findall(r"^```(?:python|ts)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[:2]
    assert "import" in theirs
    written = [[line for line in each.splitlines() if line.strip()] for each in (ours, theirs)]
    assert len(written[0]) <= len(written[1])
