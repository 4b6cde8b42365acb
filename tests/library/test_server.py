"""Workers and a local server, with signals and faults in between: all done, nothing acked twice.

The server is that of the fixture for tests of one's own jobs, which is shown here, too.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from string import Template
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import boto3
import pytest
from moto import mock_aws

from ojs_aws import (
    BadRequest,
    Client,
    JobContext,
    JobRequest,
    Unauthenticated,
    Worker,
)
from ojs_aws.client.call import Answer, Call, json_object
from ojs_aws.testing.server import OjsServer
from tests.architecture.modules import ROOT
from tests.library.pages import TEST_YOUR_JOBS, TESTED, WRITE_A_WORKER, files, page
from tests.library.stub import until

pytestmark = pytest.mark.e2e

SCRIPT = ROOT / "tests" / "library" / "faulty_worker.py"


@contextmanager
def worker(url: str, seed: int, file: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(SCRIPT), url, str(seed), str(file)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "package")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("begun")
            yield process
        finally:
            process.kill()


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.whole)])
def test_every_job_is_done_and_none_is_acked_twice(
    count: int, ojs_server: OjsServer, tmp_path: Path
) -> None:
    client, file = ojs_server.client, tmp_path / "done"
    retry = {"max_attempts": 20, "initial_interval": "PT0.1S", "jitter": False}
    kinds = ("t", "later")
    jobs = client.enqueue_many(
        [JobRequest(kind, [n], queue="q", retry=retry) for n in range(count) for kind in kinds]
    )
    ids = {job.id for job in jobs}

    def completed() -> int:
        return len([job for job in ojs_server.enqueued(queue="q") if job.state == "completed"])

    with worker(ojs_server.url, 1, file) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    # Its leases end: a minute, which the clock is moved on by.
    ojs_server.advance(minutes=2)
    with worker(ojs_server.url, 2, file) as process:
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert time.monotonic() - began < 8
    # The last ones in this process, which has no faults: they may be few.
    last = Worker(ojs_server.url, queues=["q"], poll_s=0.1)

    @last.handler("t")
    @last.handler("later")
    def handle(job: JobContext) -> None:
        file.write_text(f"{file.read_text()}{job.id}\n")

    # Jobs of fetches whose answers were lost: nobody knows of their leases.
    ojs_server.advance(minutes=2)
    while completed() < len(ids):
        ojs_server.drain(last)
        ojs_server.advance(seconds=30)
    assert set(file.read_text().split()) == ids
    events = client.each(client.list_events, types="job.completed", limit=1_000)
    ended = Counter(event["subject"] for event in events)
    assert ended == dict.fromkeys(ids, 1)


def test_a_worker_beside_a_real_server(ojs_server: OjsServer) -> None:
    """Progress, cancellation, directives and the list of workers, as the server has them."""
    client = ojs_server.client
    worker = Worker(ojs_server.url, queues=["q"], heartbeat_s=0.2, worker_id="w", concurrency=3)
    reasons = []

    @worker.handler("t")
    def handle(job: JobContext) -> None:
        job.progress(0.25, "a quarter")
        try:
            job.sleep(30)
        finally:
            reasons.append(job.cancelled)

    job = client.enqueue("t", queue="q")
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: client.get_progress(job.id)["progress"] == 0.25)
    (shown,) = client.list_workers()["workers"]
    assert (shown["id"], shown["queues"], shown["concurrency"]) == ("w", ["q"], 3)
    client.cancel_job(job.id)
    until(lambda: reasons == ["cancelled"])
    client.direct_worker("w", "terminate")
    thread.join(60)
    assert not thread.is_alive()
    assert client.list_workers()["workers"] == []


@pytest.mark.exhaustive
def test_a_worker_with_a_key_that_is_limited_to_its_queue(ojs_server_with_keys: OjsServer) -> None:
    server = ojs_server_with_keys
    made = server.client.create_key("worker", ["work"], queues=["mail"])
    worker = Worker(server.url, key=made["secret"], queues=["mail"], worker_id="w")
    worker.handler("mail.send")(lambda job: job.args[0])
    job = server.client.enqueue("mail.send", ["ada"], queue="mail")
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(lambda: server.client.get_job(job.id).state == "completed")
    worker.stop()
    thread.join(30)
    assert server.client.get_job(job.id).result == "ada"


# --- the fixture ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2])
def test_it_is_empty_at_the_beginning_of_each_test(ojs_server: OjsServer, number: int) -> None:
    assert ojs_server.enqueued() == []
    ojs_server.client.enqueue("t", [number])
    ojs_server.assert_enqueued("t", [number], queue="default", state="available", count=1)


def test_a_retry_in_an_hour_takes_no_time(ojs_server: OjsServer) -> None:
    worker = Worker(queues=["q"])

    @worker.handler("t")
    def handle(job: JobContext) -> str:
        if job.attempt == 1:
            raise ConnectionError("away")
        ojs_server.client.enqueue("next", queue="q")
        return "done"

    worker.handler("next")(lambda _job: None)
    retry = {"initial_interval": "PT1H", "jitter": False}
    job = ojs_server.client.enqueue("t", queue="q", retry=retry)
    (first,) = ojs_server.drain(worker)
    assert (first.ok, first.error and first.error["type"]) == (False, "ConnectionError")
    assert ojs_server.drain(worker) == []
    before = ojs_server.now()
    after = ojs_server.advance(hours=1)
    assert timedelta(hours=1) <= after - before < timedelta(hours=1, minutes=1)
    assert [(one.job.type, one.ok) for one in ojs_server.drain(worker)] == [
        ("t", True),
        ("next", True),
    ]
    assert ojs_server.client.get_job(job.id).result == "done"


def test_the_clock_goes_on_to_a_time(ojs_server: OjsServer) -> None:
    moment = ojs_server.now() + timedelta(days=2)
    job = ojs_server.client.enqueue("t", scheduled_at=moment)
    assert moment <= ojs_server.advance_to(moment) < moment + timedelta(minutes=5)
    assert ojs_server.client.get_job(job.id).state == "available"
    with pytest.raises(BadRequest):
        ojs_server.advance_to(moment - timedelta(days=1))


def test_a_cron_job_on_monday_takes_no_time_either(ojs_server: OjsServer) -> None:
    client = ojs_server.client
    client.register_cron("weekly", expression="0 9 * * 1", type="report", args=["week"])
    ojs_server.assert_not_enqueued("report")
    ojs_server.advance(days=7)
    job = ojs_server.assert_enqueued("report", ["week"], meta={"cron_name": "weekly"})
    assert job.state == "available"
    assert client.trigger_cron("weekly").args == ["week"]  # a Job, not the JSON of the API


def test_what_is_not_there_is_told(ojs_server: OjsServer) -> None:
    ojs_server.client.enqueue("mail.send", ["ada"])
    with pytest.raises(AssertionError, match=r"(?s)no job match.*bob.*available default mail.send"):
        ojs_server.assert_enqueued("mail.send", ["bob"])
    with pytest.raises(AssertionError, match="1 jobs instead of 2 match"):
        ojs_server.assert_enqueued("mail.send", count=2)
    with pytest.raises(AssertionError, match="1 jobs of type mail"):
        ojs_server.assert_not_enqueued("mail.send")


def test_with_keys_nobody_gets_in_without_one(ojs_server_with_keys: OjsServer) -> None:
    server = ojs_server_with_keys
    with Client(server.url) as nobody, pytest.raises(Unauthenticated):
        nobody.enqueue("t")
    made = server.client.create_key("producer", ["jobs:write"])
    with Client(server.url, key=made["secret"]) as producer:
        producer.enqueue("t")
        with pytest.raises(Unauthenticated):
            producer.run(_clock(1))
    server.advance(hours=1)
    server.assert_enqueued("t", state="available")


def _clock(ms: object) -> Call[Answer]:
    return Call("POST", "admin/clock", json_object, {"advance_ms": ms})


def test_the_clock_takes_whole_steps_forward_alone_and_is_put_back(ojs_server: OjsServer) -> None:
    before = ojs_server.now()
    for ms in (-1, 1.5, True, "1", None, 10**16):
        with pytest.raises(BadRequest, match="advance_ms") as caught:
            ojs_server.client.run(_clock(ms))
        assert caught.value.details["field"] == "advance_ms"
    assert ojs_server.now() - before < timedelta(minutes=1)
    ojs_server.advance(days=300)
    ojs_server.reset()
    assert ojs_server.now() - before < timedelta(minutes=1)


# --- the pages --------------------------------------------------------------------------------


def written(text: str, folder: Path) -> dict[str, str]:
    found = files(text)
    for name, content in found.items():
        (folder / name).write_text(content)
    return found


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT / "package")} | more


def test_a_worker_and_its_producer(ojs_server: OjsServer, tmp_path: Path) -> None:
    assert set(written(WRITE_A_WORKER, tmp_path)) == {"jobs.py", "producer.py"}
    env = environment(OJS_URL=ojs_server.url)
    with subprocess.Popen(
        [sys.executable, "jobs.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            produced = subprocess.run(
                [sys.executable, "producer.py"], cwd=tmp_path, env=env, capture_output=True,
                text=True, timeout=60, check=False,
            )  # fmt: skip
            # A list doesn't show a job that changes its state meanwhile.
            until(lambda: ojs_server.enqueued("mail.send", state="discarded"))
            (wrong,) = ojs_server.enqueued("mail.send", state="discarded")
        finally:
            worker.send_signal(signal.SIGTERM)
        printed, _ = worker.communicate(timeout=60)
    assert produced.stderr == ""
    (expected,) = re.findall(r"^```console\n(.*?)^```$", WRITE_A_WORKER, re.MULTILINE | re.DOTALL)
    assert produced.stdout == expected
    assert "mail.send ['ada@example.org', 'welcome']" in printed
    assert worker.returncode == 0
    assert wrong.args[0] == "nobody"
    assert (ojs_server.client.get_job(wrong.id).error or {})["code"] == "bad_address"


@pytest.mark.exhaustive
def test_the_programs_of_the_first_workflow(ojs_server: OjsServer, tmp_path: Path) -> None:
    text = page("your-first-workflow")
    assert set(written(text, tmp_path)) == {"count.py", "start.py", "again.py"}
    env = environment(OJS_URL=ojs_server.url)
    printed: list[str] = []
    for content, name in re.findall(r"^echo '(.*)' > (.*)$", text, re.MULTILINE):
        (tmp_path / name).write_text(content)
    (tmp_path / "three.txt").rename(tmp_path / "later.txt")

    def program(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True,
            timeout=60, check=True,
        )  # fmt: skip
        printed.append(done.stdout)
        return done.stdout.splitlines()[-1]

    with subprocess.Popen([sys.executable, "count.py"], cwd=tmp_path, env=env) as worker:
        program("start.py", "one.txt", "two.txt")
        failed = program("start.py", "one.txt", "three.txt")
        (tmp_path / "later.txt").rename(tmp_path / "three.txt")
        program("again.py", failed)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=60) == 0
    shown = re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ids = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    assert [ids.sub("ID", each) for each in printed] == [ids.sub("ID", each) for each in shown]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TESTED)
def test_the_tests_of_a_page(
    name: str,
    ojs_server: OjsServer,
    ojs_server_with_keys: OjsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = written(page(name), tmp_path)
    (script,) = (each for each in names if each.startswith("test_"))
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        space: dict[str, Any] = {}
        exec(compile(names[script], script, "exec"), space)
        given = {"ojs_server": ojs_server, "ojs_server_with_keys": ojs_server_with_keys}
        tests = [each for called, each in space.items() if called.startswith("test_")]
        assert len(tests) == TESTED[name]
        for test in tests:
            ojs_server.reset()
            used = {name: given[name] for name in inspect.signature(test).parameters}
            with next(iter(used.values())).bound():
                test(**used)
    finally:
        for each in names:
            sys.modules.pop(each.removesuffix(".py"), None)


def test_the_other_files_about_jobs_as_functions(ojs_server: OjsServer) -> None:
    found = files(page("jobs-as-functions"))
    assert len((found["checkout.py"] + found["test_checkout.py"]).splitlines()) <= 60
    spaces: dict[str, dict[str, Any]] = {name: {"__name__": name[:-3]} for name in found}
    for name in ("counting.py", "newsletter.py", "send_mail.py"):
        exec(compile(found[name], name, "exec", dont_inherit=True), spaces[name])
    assert ojs_server.run(spaces["counting.py"]["count"], [1, 2]) == 2
    worker = Worker(queues=["mail"])
    worker.include(spaces["newsletter.py"]["jobs"])
    handle = spaces["send_mail.py"]["send"].enqueue("ada@example.org")
    assert handle.job.args == ["ada@example.org", "welcome"]
    (done,) = ojs_server.drain(worker)
    assert (done.error or {})["code"] == "invalid_arguments"  # that function has no template


def test_a_queue_is_drained_as_the_page_says(ojs_server: OjsServer) -> None:
    space: dict[str, Any] = {}
    exec(compile(files(page("from-sqs"))["drain.py"], "drain.py", "exec"), space)
    with mock_aws():
        sqs = boto3.client("sqs", region_name="us-east-1")
        url = sqs.create_queue(QueueName="orders", Attributes={"VisibilityTimeout": "0"})[
            "QueueUrl"
        ]
        for number in range(12):
            sqs.send_message(QueueUrl=url, MessageBody=json.dumps({"order": number}))
        deleting = Mock(side_effect=[ConnectionError("away"), None])
        broken = Mock(receive_message=sqs.receive_message, delete_message=deleting)
        # It dies when one job is stored, and its message is not deleted.
        with pytest.raises(ConnectionError):
            space["drain"](broken, url, ojs_server.client)
        ojs_server.assert_enqueued("order.confirm", count=1)
        assert space["drain"](sqs, url, ojs_server.client) == 12
    orders = [job.args[0]["order"] for job in ojs_server.enqueued("order.confirm", queue="orders")]
    assert sorted(orders) == list(range(12))


@pytest.mark.whole
def test_the_tests_of_the_page_as_their_reader_runs_them(tmp_path: Path) -> None:
    written(TEST_YOUR_JOBS, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ojs_aws.testing.plugin"]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment(OJS_SERVER_PATH=str(ROOT)), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "4 passed" in run.stdout, run.stdout
    env = environment()
    env.pop("OJS_SERVER_PATH", None)
    without = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "python -m ojs_aws.testing install" in without.stdout


def test_the_quick_start_of_the_readme(ojs_server: OjsServer) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    text = readme[readme.index("## Quick start") : readme.index("## Write a worker")]
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, str] = {}
    answers = []
    for line in "".join(blocks).replace("\\\n", "").splitlines():
        words = shlex.split(line, comments=True)
        if words[0] != "curl":
            continue
        path = urlsplit("http://" + words[1]).path
        body = json.loads(Template(words[words.index("-d") + 1]).substitute(names))
        answers.append(ojs_server.client.run(Call("POST", path, json_object, body)))
        for job in answers[-1].get("jobs", []):
            names = {"JOB": json.dumps(job["id"]), "TOKEN": json.dumps(job["lease_token"])}
    pushed, fetched, beaten, acked = answers
    (job,) = fetched["jobs"]
    assert job["id"] == pushed["job"]["id"]
    shown = json.loads(re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0])
    assert shown["jobs"][0].keys() == job.keys()
    assert beaten["jobs_extended"] == [job["id"]]
    assert acked["state"] == "completed"
    assert ojs_server.client.get_job(job["id"]).result == "hello, world"


def test_the_worker_of_the_readme(ojs_server: OjsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OJS_URL", ojs_server.url)
    readme = (ROOT / "README.md").read_text("utf-8")
    (text,) = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert text.endswith("worker.run()\n")
    space: dict[str, Any] = {}
    exec(compile(text.removesuffix("worker.run()\n"), "README.md", "exec"), space)
    (done,) = ojs_server.drain(space["worker"])
    assert done.ok
    assert done.result == {"to": "ada@example.org"}
