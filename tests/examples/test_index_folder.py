from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from client import Client, uuid7

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "index_folder"

pytestmark = pytest.mark.e2e


@pytest.fixture
def client(server_url: str) -> Iterator[Client]:
    asking = Client(server_url)
    asking.call("POST", "/admin/reset")
    yield asking
    asking.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(30):
        (tmp_path / f"{number:02}.txt").write_text(f"whale whale sea number{number}\n")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "same.txt").write_text((tmp_path / "07.txt").read_text())
    (tmp_path / ".hidden").write_text("not looked at")
    (tmp_path / "again.flaky").write_text("in the end it works")
    (tmp_path / "broken.bin").write_bytes(b"abc\xff")
    return tmp_path


@contextmanager
def worker(folder: Path, url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(EXAMPLE / "worker.py"), str(folder), "--url", url, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        # Whoever waits for a line that never comes shall not wait for ever.
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def heard(process: subprocess.Popen[str], text: str) -> str:
    """The first line of a worker that holds `text`."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"the worker ended without {text!r}: {seen}")


def stopped(process: subprocess.Popen[str]) -> str:
    """What a worker still prints after the signal to stop; it must end well."""
    process.terminate()
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0, printed
    return printed


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def push(client: Client, *names: str) -> list[str]:
    jobs = [
        {"id": uuid7(), "type": "file.index", "args": [name], "options": {"queue": "files"}}
        for name in names
    ]
    client.call("POST", "/jobs/batch", {"jobs": jobs})
    return [str(job["id"]) for job in jobs]


def job(client: Client, job_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = client.call("GET", f"/jobs/{job_id}")["job"]
    return shown


def test_two_workers_do_a_whole_folder(folder: Path, client: Client, server_url: str) -> None:
    fast = ("--batch", "2", "--slow", "0.02", "--poll", "0.2")
    with worker(folder, server_url, *fast) as one, worker(folder, server_url, *fast) as two:
        heard(one, "waits for files")
        heard(two, "waits for files")
        command = [sys.executable, str(EXAMPLE / "producer.py"), str(folder)]
        command += ["--url", server_url, "--retry-after", "PT0.2S"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        outputs = [stopped(one), stopped(two)]
    assert run.returncode == 1, run.stderr  # a file failed
    assert "33 jobs are in queue files" in run.stdout
    assert "32 of 33 files in " in run.stdout
    assert "  whale" in run.stdout
    assert "  07.txt = deeper/same.txt" in run.stdout
    again = "  again.flaky  3 attempts  completed  drive_not_ready  the drive was not ready"
    assert again in run.stdout
    lost = "  broken.bin  3 attempts  dead letter  not_text  not UTF-8 at byte 3"
    assert lost in run.stdout
    # Each file was done once, and both took part.
    done = [
        line.split(maxsplit=2)[2]
        for text in outputs
        for line in text.splitlines()
        if "done" in line
    ]
    assert sorted(done) == sorted(set(done))
    assert len(done) == 32
    assert all("done" in text for text in outputs)

    (letter,) = client.call("GET", "/dead-letter")["jobs"]
    assert letter["args"] == ["broken.bin"]
    assert [entry["details"]["position"] for entry in letter["errors"]] == [3, 3, 3]
    assert client.call("GET", "/workers")["workers"] == []


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_workflow_reports_on_the_whole_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, client: Client, server_url: str,
    many: bool,
) -> None:  # fmt: skip
    reports = tmp_path_factory.mktemp("reports")
    fast = ("--batch", "5", "--poll", "0.2", "--reports", str(reports))
    if many:
        # More words than a job has room for: the worker reads the results in pages.
        words = " ".join(letter * 800 for letter in "abcdefghijklmnopqrstuvwxyz")
        for number in range(60):
            (folder / f"long{number}.txt").write_text(f"{words} whale{number}")
    with worker(folder, server_url, *fast) as one, worker(folder, server_url, *fast) as two:
        command = [sys.executable, str(EXAMPLE / "report.py"), str(folder)]
        command += ["--url", server_url, "--retry-after", "PT0.2S"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        outputs = [stopped(one), stopped(two)]
    assert run.returncode == 0, run.stderr
    files = 33 + 60 * many
    assert f"completed; 1 of {files} files could not be read" in run.stdout
    assert sum(text.count("done    ") for text in outputs) == files
    (path,) = reports.iterdir()
    text = path.read_text()
    assert f"{files - 1} of {files} files" in text
    assert f"| whale | {62 + 60 * many} |" in text
    assert "- 07.txt = deeper/same.txt" in text
    assert "- broken.bin: not UTF-8 at byte 3" in text
    (over,) = client.call("GET", "/workflows")["workflows"]
    assert (over["state"], over["steps_total"]) == ("completed", files + 1)
    shown = client.call("GET", f"/workflows/{over['id']}")["workflow"]
    reported = shown["steps"][-1]
    assert reported["callback"] == "on_complete"
    assert reported["result"] == {"report": str(path), "files": files}
    told = client.call("GET", f"/jobs/{reported['job_id']}")["job"]["parent_results"]
    assert isinstance(told, dict) is many


def test_a_worker_told_to_stop_gives_its_jobs_back(
    folder: Path, client: Client, server_url: str
) -> None:
    ids = push(client, "00.txt", "01.txt", "02.txt")
    with worker(folder, server_url, "--slow", "60", "--grace", "0") as process:
        until(lambda: job(client, ids[-1])["state"] == "active")
        printed = stopped(process)
    assert printed.count("back ") == 3
    for job_id in ids:
        left = job(client, job_id)
        assert (left["state"], left["attempt"], "errors" in left) == ("available", 0, False)


def test_a_job_is_finished_within_the_grace_time(
    folder: Path, client: Client, server_url: str
) -> None:
    first, second = push(client, "00.txt", "01.txt")
    with worker(folder, server_url, "--slow", "60", "--grace", "30") as process:
        until(lambda: job(client, second)["state"] == "active")
        time.sleep(1)  # both were handed out; the worker must have begun with the first
        stopped(process)
    assert job(client, first)["state"] == "completed"
    assert job(client, second)["state"] == "available"


def test_progress_cancel_and_directives_reach_the_worker(
    folder: Path, client: Client, server_url: str
) -> None:
    (folder / "long.txt").write_bytes(b"all work and no play " * 100_000)
    (job_id,) = push(client, "long.txt")
    with worker(folder, server_url, "--slow", "1.1", "--poll", "0.2", "--beat", "0.2") as process:
        name = heard(process, "waits for files").split()[1]
        until(lambda: 0 < (job(client, job_id).get("progress") or 0) < 1)
        client.call("DELETE", f"/jobs/{job_id}")
        assert "cancelled" in heard(process, "left ")
        client.call("POST", f"/admin/workers/{name}/quiet")
        heard(process, "no more files")
        (waiting,) = push(client, "00.txt")
        client.call("POST", "/admin/workers/directive", {"worker_id": name, "directive": "running"})
        heard(process, "files are welcome")
        heard(process, "done    00.txt")
        assert job(client, waiting)["state"] == "completed"
        body = {"worker_id": name, "directive": "terminate"}
        client.call("POST", "/admin/workers/directive", body)
        heard(process, "stopping: the server says so")
        assert process.wait(timeout=30) == 0


def test_a_job_cannot_lead_out_of_the_folder(folder: Path, client: Client, server_url: str) -> None:
    (folder / "link").symlink_to("/etc/hostname")
    ids = push(client, "../secret", "/etc/passwd", "link", "gone.txt")
    with worker(folder, server_url) as process:
        until(lambda: all(job(client, each)["state"] == "discarded" for each in ids))
        stopped(process)
    codes = [job(client, each)["error"]["code"] for each in ids]
    assert codes == ["outside", "outside", "outside", "file_gone"]


def test_says_at_once_that_there_is_no_server(folder: Path) -> None:
    for script in ("producer.py", "report.py", "worker.py"):
        command = [
            sys.executable,
            str(EXAMPLE / script),
            str(folder),
            "--url",
            "http://127.0.0.1:9",
        ]
        run = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        assert run.returncode in (1, 2)
        assert "refused" in run.stderr
