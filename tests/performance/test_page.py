"""docs/performance.md: its tables are measured again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.performance import cpu
from tests.performance.measure import TABLES, table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "performance.md").read_text("utf-8")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive if name == "life" else ()) for name in TABLES],
)
def test_the_table_is_what_is_measured(
    name: str, dynoxide: Engine, dynamodb: DynamoDBClient
) -> None:
    header, measure = TABLES[name]
    shown = PAGE.partition(f"<!-- {name} -->\n\n")[2].partition("\n\n")[0]
    assert shown == table(header, measure(dynamodb))


def test_what_is_said_of_memory_follows_from_the_cpu_measured() -> None:
    """The CPU itself is a machine's, and is not measured again."""
    shown = PAGE.partition("<!-- cpu -->\n\n")[2].partition("\n\n")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.splitlines()[2:]]
    cpu_ms = {what: float(ms) for what, ms, *_ in lines}
    assert shown == table(cpu.HEADER, cpu.rows(cpu_ms))


def test_the_script_that_measures_cpu_runs(
    dynoxide: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    assert cpu.main(["--lives", "3"]) == 0
    header, _, *lines = capsys.readouterr().out.strip().splitlines()
    assert header == table(cpu.HEADER, []).splitlines()[0]
    shown = PAGE.partition("<!-- cpu -->\n\n")[2].partition("\n\n")[0]
    names = [line.split("|")[1].strip() for line in shown.splitlines()[2:]]
    assert [line.split("|")[1].strip() for line in lines] == names


def test_no_call_of_dynamodb_is_a_failure(dynamodb: DynamoDBClient) -> None:
    """As where events name no shard: the consumer returned them, and the script saw no CPU."""
    timer = cpu.Timer(dynamodb)
    timer.run("stream record, alone", lambda: None)
    with pytest.raises(RuntimeError, match=r"^stream record, alone: 0 calls of DynamoDB"):
        timer.ms("stream record, alone", 1)


def test_records_that_the_consumer_returns_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"batchItemFailures": [{"itemIdentifier": "1"}]}
    monkeypatch.setattr(cpu, "stream", lambda *_: refused)
    with pytest.raises(RuntimeError, match="1 records"):
        cpu.consume([{}])


def test_the_readme_says_what_a_job_takes() -> None:
    row = re.search(r"^\| \*\*the three together.*$", PAGE, re.MULTILINE)
    assert row is not None
    calls, writes, reads = re.findall(r"\*\*([\d.]+)\*\*", row[0])
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"take {writes} write units, {reads} read units and {calls} DynamoDB calls" in readme
