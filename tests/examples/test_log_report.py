"""examples/log_report: what its function says of logs. tests/infra has what its app makes, and
tests/e2e has it at work.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from infra import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = ROOT / "examples" / "log_report"
SAMPLE = (EXAMPLE / "sample" / "monday.log").read_bytes()


class Bucket:
    """As much of S3 as the function uses."""

    class NoSuchKey(Exception):
        pass

    exceptions = SimpleNamespace(NoSuchKey=NoSuchKey)

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803
        assert Bucket == "logs-1"
        if Key not in self.objects:
            raise self.NoSuchKey
        return {"Body": io.BytesIO(self.objects[Key])}

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, **_: str) -> None:  # noqa: N803
        assert Bucket == "logs-1"
        self.objects[Key] = Body


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def worker(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    sdk = ModuleType("boto3")
    sdk.client = lambda service: {"s3": bucket}[service]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "boto3", sdk)
    monkeypatch.setenv("BUCKET", "logs-1")
    monkeypatch.syspath_prepend(str(EXAMPLE / "function"))
    for name in ("log_worker", "access_log"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("log_worker")
    for name in ("log_worker", "access_log"):
        sys.modules.pop(name, None)


def job(key: str) -> dict[str, Any]:
    return {"id": "j1", "type": "log.report", "queue": "reports", "args": [key], "attempt": 1}


def test_a_log_gets_the_report_that_the_page_shows(worker: Any, bucket: Bucket) -> None:
    bucket.objects = {"logs/monday.log": SAMPLE, "logs/monday.gz": gzip.compress(SAMPLE)}
    page = (EXAMPLE / "README.md").read_text("utf-8")
    shown = json.loads(page.partition("```json")[2].partition("```")[0])
    for name in ("monday.log", "monday.gz"):
        # A second run leaves the same.
        for _ in range(2):
            answer = worker.handler(job(name), None)
        assert answer == {
            "status": "completed",
            "job_id": "j1",
            "result": {"report": f"reports/{name}.json", "requests": 120, "visitors": 38},
        }
        assert json.loads(bucket.objects[f"reports/{name}.json"]) == shown
    assert len(bucket.objects) == 4


@pytest.mark.parametrize(
    ("key", "content", "code"),
    [
        ("gone.log", None, "no_such_log"),
        ("picture.png", b"\x89PNG\r\n\x1a\n", "not_a_log"),
        ("letter.txt", b"Dear Sir,\n", "not_a_log"),
        ("empty.log", b"", "not_a_log"),
        ("plain.gz", SAMPLE, "not_a_log"),
    ],
)
def test_what_is_no_log_fails_for_good(
    worker: Any, bucket: Bucket, key: str, content: bytes | None, code: str
) -> None:
    if content is not None:
        bucket.objects[f"logs/{key}"] = content
    answer = worker.handler(job(key), None)
    assert (answer["status"], answer["job_id"]) == ("failed", "j1")
    assert (answer["error"]["code"], answer["error"]["retryable"]) == (code, False)
    assert not any(each.startswith("reports/") for each in bucket.objects)


def test_lines_that_are_none_are_counted(worker: Any, bucket: Bucket) -> None:
    bucket.objects["logs/mixed.log"] = b"# header\n\n" + SAMPLE.splitlines(keepends=True)[0]
    worker.handler(job("mixed.log"), None)
    report = json.loads(bucket.objects["reports/mixed.log.json"])
    assert (report["requests"], report["lines_not_read"]) == (1, 1)
