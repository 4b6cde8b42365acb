"""Archived jobs are pushed again: through the API, exactly, and not twice."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from local import archive
from ojs.domain import jsontext

if TYPE_CHECKING:
    from tests.local.conftest import RunningServer

ROOT = Path(__file__).resolve().parents[2]
MADE = (
    b'{"type":"invoice.generate","queue":"billing","args":[{"amount":99.90},1e2],'
    b'"meta":{"mine":1},"options":{"retry":{"max_attempts":1}}}'
)


@pytest.fixture
def line(server: RunningServer) -> dict[str, Any]:
    """A dead letter as the archive has it; it is deleted."""
    _, made = server.call("POST", "/ojs/v1/jobs", MADE)
    job_id = made["job"]["id"]
    assert [job["id"] for job in server.fetch("billing", worker_id="w")] == [job_id]
    nack = {"job_id": job_id, "worker_id": "w", "error": {"message": "no"}}
    assert server.call("POST", "/ojs/v1/workers/nack", nack)[0] == 200
    _, shown = server.call("GET", f"/ojs/v1/jobs/{job_id}")
    assert server.call("DELETE", f"/ojs/v1/dead-letter/{job_id}")[0] == 200
    found: dict[str, Any] = shown["job"]
    found["args"] = jsontext.loads(MADE)["args"]
    found["meta"] |= {"ojs.replay_count": 3, "ojs.replay_rule": "a", "ojs.last_replayed_at": "t"}
    return found


def command(server: RunningServer, *files: str, stdin: bytes = b"") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "local.archive", "--url", server.url, *files],
        cwd=ROOT, input=stdin, capture_output=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout.decode().strip(), done.stderr.decode().strip()


@pytest.mark.exhaustive
@pytest.mark.requirement("DL-20")
def test_archived_jobs_are_pushed_again_and_not_twice(
    server: RunningServer, line: dict[str, Any], tmp_path: Path
) -> None:
    text = jsontext.dumps(line).encode() + b"\n"
    assert b"99.90" in text
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(text))
    assert command(server, str(file)) == (0, "1 enqueued, 0 existing, 0 rejected", "")
    (job,) = server.fetch("billing", worker_id="w")
    assert (job["id"], job["type"], job["meta"]) == (line["id"], line["type"], {"mine": 1})
    assert (job["attempt"], job["args"]) == (1, [{"amount": 99.9}, 100.0])
    again = "0 enqueued, 2 existing, 0 rejected"
    assert command(server, str(file), "-", stdin=text) == (0, again, "")
    server.call("POST", "/ojs/v1/workers/ack", {"job_id": line["id"], "worker_id": "w"})


def test_numbers_are_pushed_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(
        b'{"id":"i","type":"t","queue":"q","args":[99.90,1e2],"meta":{},"state":"x"}\n'
    )
    (job,) = archive.jobs(str(file))
    assert jsontext.dumps(job) == '{"id":"i","type":"t","queue":"q","args":[99.90,1E+2]}'


def test_what_is_refused_is_told_and_the_rest_goes_on(
    server: RunningServer, line: dict[str, Any]
) -> None:
    wrong = {**line, "type": "No.Type"}
    packed = b"".join(gzip.compress(jsontext.dumps(job).encode() + b"\n") for job in (wrong, line))
    status, summary, complaint = command(server, "-", stdin=packed)
    assert (status, summary) == (1, "1 enqueued, 0 existing, 1 rejected")
    assert complaint.startswith(f"-:1: {line['id']} 400 invalid_request: ")
    for job in server.fetch("billing", worker_id="w"):
        server.call("POST", "/ojs/v1/workers/ack", {"job_id": job["id"], "worker_id": "w"})


@pytest.mark.parametrize("content", [b"no json\n", b"{}\n", b"[]\n", b"\x1f\x8bcut"])
def test_what_is_no_archive_is_said_to_be_none(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(content)
    assert archive.main([str(file)]) == 1
    shown = capsys.readouterr()
    assert str(file) in shown.err
    assert shown.err.count("\n") == 1


def test_a_server_that_is_not_there_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("local.archive.time.sleep", lambda _: None)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"id":"i","type":"t","queue":"q","args":[],"meta":{}}\n')
    assert archive.main(["--url", "http://127.0.0.1:9", str(file)]) == 1
    assert "127.0.0.1" in capsys.readouterr().err
    assert archive.main(["--url", "localhost:8080", str(file)]) == 1
    assert archive.main([str(tmp_path / "none")]) == 1
