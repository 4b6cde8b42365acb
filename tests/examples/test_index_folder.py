from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ojs_aws import JobRequest
from ojs_aws.testing.server import OjsServer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "index_folder"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "package")}

pytestmark = pytest.mark.e2e


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
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
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
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0, printed
    return printed


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def push(server: OjsServer, *names: str) -> list[str]:
    jobs = [JobRequest("file.index", [name], queue="files") for name in names]
    return [job.id for job in server.client.enqueue_many(jobs)]


def state(server: OjsServer, job_id: str) -> str:
    return server.client.get_job(job_id).state


@pytest.mark.exhaustive
def test_two_workers_do_a_whole_folder(folder: Path, ojs_server: OjsServer) -> None:
    url = ojs_server.url
    # One alone would take five seconds: the other one has its part, be the machine busy or not.
    fast = ("--slow", "0.3", "--poll", "0.2")
    with worker(folder, url, *fast) as one, worker(folder, url, *fast) as two:
        heard(one, "Worker started")
        heard(two, "Worker started")
        command = [sys.executable, str(EXAMPLE / "producer.py"), str(folder)]
        command += ["--url", url, "--retry-after", "PT0.2S"]
        run = subprocess.run(
            command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
        )
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
    lines = [line for text in outputs for line in text.splitlines()]
    done = [line.removeprefix("done    ") for line in lines if line.startswith("done ")]
    assert sorted(done) == sorted(set(done))
    assert len(done) == 32
    assert all("done  " in text for text in outputs)

    (letter,) = ojs_server.client.list_dead_letters()["jobs"]
    assert letter["args"] == ["broken.bin"]
    assert [entry["details"]["position"] for entry in letter["errors"]] == [3, 3, 3]
    assert ojs_server.client.list_workers()["workers"] == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("many", [False, True])
def test_a_workflow_reports_on_the_whole_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, ojs_server: OjsServer, many: bool
) -> None:
    reports = tmp_path_factory.mktemp("reports")
    fast = ("--at-once", "5", "--poll", "0.2", "--reports", str(reports))
    if many:
        # More words than a job has room for: the worker reads the results in pages.
        words = " ".join(letter * 800 for letter in "abcdefghijklmnopqrstuvwxyz")
        for number in range(60):
            (folder / f"long{number}.txt").write_text(f"{words} whale{number}")
    url = ojs_server.url
    with worker(folder, url, *fast) as one, worker(folder, url, *fast) as two:
        command = [sys.executable, str(EXAMPLE / "report.py"), str(folder)]
        command += ["--url", url, "--retry-after", "PT0.2S"]
        run = subprocess.run(
            command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
        )
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
    client = ojs_server.client
    (over,) = client.list_workflows()["workflows"]
    assert (over["state"], over["steps_total"]) == ("completed", files + 1)
    shown = client.get_workflow(over["id"])["workflow"]
    reported = shown["steps"][-1]
    assert reported["callback"] == "on_complete"
    assert reported["result"] == {"report": str(path), "files": files}
    told = client.get_job(reported["job_id"]).raw["parent_results"]
    assert isinstance(told, dict) is many


def test_a_worker_told_to_stop_gives_its_jobs_back(folder: Path, ojs_server: OjsServer) -> None:
    ids = push(ojs_server, "00.txt", "01.txt", "02.txt")
    options = ("--slow", "60", "--grace", "0", "--at-once", "3")
    with worker(folder, ojs_server.url, *options) as process:
        until(lambda: state(ojs_server, ids[-1]) == "active")
        printed = stopped(process)
    assert printed.count("Job returned to its queue") == 3
    for job_id in ids:
        left = ojs_server.client.get_job(job_id)
        assert (left.state, left.attempt, left.error) == ("available", 0, None)


def test_a_job_is_finished_within_the_grace_time(folder: Path, ojs_server: OjsServer) -> None:
    first, second = push(ojs_server, "00.txt", "01.txt")
    options = ("--slow", "1", "--grace", "30", "--at-once", "1")
    with worker(folder, ojs_server.url, *options) as process:
        until(lambda: state(ojs_server, first) == "active")
        stopped(process)
    assert (state(ojs_server, first), state(ojs_server, second)) == ("completed", "available")


def test_progress_cancel_and_directives_reach_the_worker(
    folder: Path, ojs_server: OjsServer
) -> None:
    client = ojs_server.client
    (folder / "long.txt").write_bytes(b"all work and no play " * 100_000)
    (job_id,) = push(ojs_server, "long.txt")
    options = ("--slow", "1.1", "--poll", "0.2", "--beat", "0.2")
    with worker(folder, ojs_server.url, *options) as process:
        name = heard(process, "Worker started").split()[3]
        until(lambda: 0 < (client.get_job(job_id).progress or 0) < 1)
        client.cancel_job(job_id)
        assert "cancelled" in heard(process, "Job stopped")
        client.direct_worker(name, "terminate")
        heard(process, "directive terminate of the server")
        assert process.wait(timeout=60) == 0


def test_a_job_cannot_lead_out_of_the_folder(folder: Path, ojs_server: OjsServer) -> None:
    (folder / "link").symlink_to("/etc/hostname")
    ids = push(ojs_server, "../secret", "/etc/passwd", "link", "gone.txt")
    with worker(folder, ojs_server.url) as process:
        until(lambda: all(state(ojs_server, each) == "discarded" for each in ids))
        stopped(process)
    codes = [(ojs_server.client.get_job(each).error or {})["code"] for each in ids]
    assert codes == ["outside", "outside", "outside", "file_gone"]


@pytest.mark.parametrize("script", ["producer.py", "report.py"])
def test_they_say_at_once_that_there_is_no_server(folder: Path, script: str) -> None:
    nowhere = "http://127.0.0.1:9"
    command = [sys.executable, str(EXAMPLE / script), str(folder), "--url", nowhere]
    run = subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 2
    assert "refused" in run.stderr


def test_a_worker_without_a_server_says_so_and_waits(folder: Path) -> None:
    with worker(folder, "http://127.0.0.1:9") as process:
        heard(process, "refused")
        stopped(process)
