"""The example's worker tells what became of its jobs with the next fetch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, cast

import pytest
import worker as example
from client import TRACE, Client, Unreachable

ID = "019539a4-0000-7000-8000-00000000000"


class Server:
    """Hands out the files once, and answers each ack and nack with one of these statuses."""

    def __init__(self, *files: str) -> None:
        self.files = list(files)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.statuses: dict[str, int] = {}
        self.lost = 0

    def call(self, _method: str, path: str, body: Any = None, **_: Any) -> dict[str, Any]:
        self.asked.append((path, body))
        if self.lost:
            self.lost -= 1
            raise Unreachable("lost")
        answer: dict[str, Any] = {
            how: [self.outcome(entry["job_id"]) for entry in body[how]]
            for how in ("acks", "nacks")
            if how in body
        }
        if path == "/workers/fetch":
            answer["jobs"] = [
                {"id": f"{ID}{n}", "args": [name], "attempt": 1, "lease_token": f"t{n}"}
                for n, name in enumerate(self.files)
            ]
            self.files = []
        return answer

    def outcome(self, job_id: str) -> dict[str, Any]:
        status = self.statuses.get(job_id[-1], 200)
        error = {"error": {"message": "no"}} if status != 200 else {}
        return {"job_id": job_id, "status": status, **error}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("some words")
    return tmp_path


def made(folder: Path, server: Server) -> example.Worker:
    options = argparse.Namespace(
        folder=folder, queue="files", batch=5, slow=0.0, grace=0.0, poll=0.1, beat=5.0,
        url="http://localhost:1",
    )  # fmt: skip
    worker = example.Worker(options)
    worker._client = cast("Client", server)
    return worker


def work(worker: example.Worker) -> None:
    for leased in worker._fetch():
        worker._do(leased)


def test_acks_and_nacks_come_with_the_next_fetch(folder: Path) -> None:
    server = Server("a.txt", "gone.txt", "b.txt")
    worker = made(folder, server)
    work(worker)
    assert len(worker._leased) == 3  # heartbeats go on until it is told
    work(worker)
    (_, first), (path, second) = server.asked
    assert not {"acks", "nacks"} & first.keys()
    assert path == "/workers/fetch"
    assert [one["job_id"][-1] for one in second["acks"]] == ["0", "2"]
    assert [one["lease_token"] for one in second["acks"]] == ["t0", "t2"]
    assert second["acks"][0]["result"]["words"] == 2
    assert [one["error"]["code"] for one in second["nacks"]] == ["file_gone"]
    assert (worker._reports, worker._leased) == ([], {})
    work(worker)
    assert not {"acks", "nacks"} & server.asked[-1][1].keys()


def test_what_is_not_heard_is_told_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server("a.txt", "b.txt")
    worker = made(folder, server)
    work(worker)
    server.lost = 1
    work(worker)
    server.statuses = {"0": 503, "1": 409}
    work(worker)
    assert [one.leased.id[-1] for one in worker._reports] == ["0"]
    assert "done    b.txt (not accepted: no)" in capsys.readouterr().out
    server.statuses = {}
    worker._send_reports()
    assert server.asked[-1][0] == "/workers/ack"
    assert worker._reports == []


def test_none_waits_for_long(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "_REPORT_WITHIN_S", 0.0)
    server = Server("a.txt", "gone.txt")
    work(made(folder, server))
    assert [path for path, _ in server.asked] == ["/workers/fetch", "/workers/ack", "/workers/nack"]


# --- execution middleware -------------------------------------------------------------------------

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_middleware_is_wrapped_around_the_work_in_order() -> None:
    called: list[str] = []

    def named(name: str) -> example.Middleware:
        def link(job: example.Job, following: example.Work) -> dict[str, Any]:
            called.append(f"{name} {job['id']}")
            try:
                return following()
            finally:
                called.append(f"{name} back")

        return link

    def fails() -> dict[str, Any]:
        called.append("work")
        raise example.Lost

    with pytest.raises(example.Lost):
        example.wrapped((named("a"), named("b")), {"id": "j"}, fails)()
    assert called == ["a j", "b j", "work", "b back", "a back"]
    assert example.wrapped((), {}, lambda: {"n": 1})() == {"n": 1}


def test_what_is_asked_for_a_job_belongs_to_its_producer_s_trace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server("a.txt")
    worker = made(folder, server)
    seen: list[str | None] = []

    def analyse(*_: Any) -> dict[str, Any]:
        seen.append(TRACE.get())
        return {}

    monkeypatch.setattr(example, "analyse", analyse)
    (leased,) = worker._fetch()
    leased.job["meta"] = {"traceparent": PARENT}
    worker._do(leased)
    assert (seen, TRACE.get()) == ([PARENT], None)


def test_a_slow_job_is_told_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work(made(folder, Server("a.txt")))
    assert "slow" not in capsys.readouterr().out
    monkeypatch.setattr(example, "_LONG_S", 0.0)
    work(made(folder, Server("gone.txt")))
    assert f"slow    {ID}0 took 0 s in attempt 1" in capsys.readouterr().out
