"""`ojs-aws jobs steps`, `jobs signal`, and what `dead retry` keeps, against the handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cli.target import Exit
from tests.unit.functions.terminal import GONE, HOSTILE, Ojs, bridge, runner, states

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

BASE = "/ojs/v1"


@pytest.fixture
def ojs(api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ojs:
    """Runs a command."""
    bridge(monkeypatch, api)
    return runner(capsys)


def save(api: Api, job_id: str, *steps: dict[str, Any]) -> None:
    token = api.get(f"{BASE}/jobs/{job_id}").json["lease_token"]
    body = {"lease_token": token, "steps": [{"save": "s", **step} for step in steps]}
    reply = api.post(f"{BASE}/jobs/{job_id}/steps", body)
    assert reply.status == 200, reply.text


def wait(api: Api, job_id: str, kind: str, name: str) -> None:
    suspend = {"waits": [{"kind": kind, "name": name, "for": "P3D"}]}
    reply = api.post(f"{BASE}/workers/nack", {"job_id": job_id, "suspend": suspend})
    assert reply.json["state"] == "scheduled", reply.text


def test_steps_and_waits_are_listed(api: Api, ojs: Ojs) -> None:
    job_id = api.active()
    assert ojs("jobs", "steps", job_id).out.split() == [
        "STEP", "KIND", "STATUS", "ATTEMPT", "STARTED", "DURATION", "STORED", "RESULT",
    ]  # fmt: skip
    save(
        api, job_id,
        {"name": "charge", "result": {"id": HOSTILE}, "started_at": "2026-11-21T09:30:00Z",
         "duration_ms": 41},
        {"name": "mail/a b", "error": {"type": "No"}, "duration_ms": 192_000},
        {"name": "long", "result": "x" * 1_000},
    )  # fmt: skip
    wait(api, job_id, "sleep", "nap")
    shown = ojs("jobs", "steps", job_id)
    assert (shown.status, shown.err) == (Exit.DONE, "")
    steps, waits = (part.splitlines()[1:] for part in shown.out.split("\n\n"))
    charge, long, mail = (row.split() for row in steps)
    assert charge[:6] == ["charge", "step", "completed", "1", "2026-11-21T09:30:00.000Z", "41"]
    assert mail[:7] == ["mail/a", "b", "step", "failed", "1", "3m", "12s"]
    assert (mail[-1], long[-1][-1]) == ('{"type":"No"}', "…")
    assert [row.split()[:2] + row.split()[3:] for row in waits] == [["nap", "sleep", "False"]]
    for control in ("\x1b", "\r", "\u202e"):
        assert control not in shown.out
    (page,) = ojs("jobs", "steps", job_id, "--json").objects
    assert [step["name"] for step in page["steps"]] == ["charge", "long", "mail/a b"]
    assert page["steps"][0]["result"] == {"id": HOSTILE}
    assert ojs("jobs", "steps", GONE).status == Exit.NOT_FOUND
    assert ojs("jobs", "--queue", "mail", "steps", job_id).status == Exit.USAGE


def test_all_pages_of_steps_are_listed(api: Api, ojs: Ojs) -> None:
    job_id = api.active()
    for number in range(7):
        save(api, job_id, {"name": f"s{number}", "result": "x" * 250_000})
    assert len(ojs("jobs", "steps", job_id).out.splitlines()) == 8
    pages = ojs("jobs", "steps", job_id, "--json").objects
    assert [len(page["steps"]) for page in pages] == [5, 2]


def test_a_signal_wakes_a_job(api: Api, ojs: Ojs) -> None:
    job_id = api.active()
    early = ojs("jobs", "signal", job_id, "early")
    assert early.out == f"early is stored for {job_id}: it doesn't wait for the signal now\n"
    wait(api, job_id, "signal", "approved")
    sent = ojs("jobs", "signal", job_id, "approved", "--data", '{"by": "alice"}')
    assert sent.out == f"approved is stored for {job_id}: it is available\n"
    assert states(api, job_id) == {"available"}
    (page,) = ojs("jobs", "steps", job_id, "--json").objects
    told = {step["name"]: step["result"] for step in page["steps"]}
    assert told == {"approved": {"by": "alice"}, "early": None}
    again = ojs("jobs", "signal", job_id, "approved")
    assert (again.status, "duplicate" in again.err) == (Exit.REFUSED, True)
    (told,) = ojs("jobs", "signal", job_id, "more", "--data", "3", "--json").objects
    assert (told["name"], told["woken"]) == ("more", False)


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("a|b",), Exit.REFUSED), (("..",), Exit.USAGE), (("",), Exit.USAGE),
        (("ok", "--data", "{"), Exit.USAGE), (("ok", "--data", "NaN"), Exit.USAGE),
        (("ok", "--data", '"\\udc00"'), Exit.USAGE), (("ok", "--data", "[" * 9_999), Exit.USAGE),
        (("ok", "--data", f'"{"x" * 65_535}"'), Exit.REFUSED), ((), Exit.USAGE),
    ],
)  # fmt: skip
def test_bad_signals(api: Api, ojs: Ojs, arguments: tuple[str, ...], status: Exit) -> None:
    job_id = api.active()
    refused = ojs("jobs", "signal", job_id, *arguments)
    assert refused.status == status, refused.err
    assert "Traceback" not in refused.err
    assert api.get(f"{BASE}/jobs/{job_id}/steps").json["steps"] == []


def dead(api: Api) -> str:
    job_id = api.active()
    save(api, job_id, {"name": "a"})
    api.post(f"{BASE}/jobs/{job_id}/checkpoint", {"state": 1})
    error = {"type": "Boom", "message": "no", "retryable": False}
    api.post(f"{BASE}/workers/nack", {"job_id": job_id, "error": error})
    return job_id


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize(
    ("options", "left"),
    [
        ((), (1, 200)), (("--steps", "keep", "--checkpoint", "keep"), (1, 200)),
        (("--steps", "clear"), (0, 200)), (("--checkpoint", "clear"), (1, 404)),
    ],
)  # fmt: skip
def test_what_a_dead_letter_keeps(
    api: Api, ojs: Ojs, many: bool, options: tuple[str, ...], left: tuple[int, int]
) -> None:
    job_id = dead(api)
    said = "retry: 1 succeeded, 0 failed" if many else f"{job_id} is available"
    done = ojs("dead", "retry", *(("--all", "--yes") if many else (job_id,)), *options)
    assert done.out == f"{said}\n"
    steps = api.get(f"{BASE}/jobs/{job_id}/steps").json["steps"]
    assert (len(steps), api.get(f"{BASE}/jobs/{job_id}/checkpoint").status) == left


def test_one_dead_letter_has_no_filter(api: Api, ojs: Ojs) -> None:
    job_id = dead(api)
    for more in (("--all",), ("--queue", "default"), ("--dry-run",), ("--steps", "drop")):
        assert ojs("dead", "retry", job_id, *more).status == Exit.USAGE
    assert states(api, job_id) == {"discarded"}
    assert ojs("dead", "retry", GONE).status == Exit.NOT_FOUND
    (told,) = ojs("dead", "retry", job_id, "--steps", "clear", "--json").objects
    assert (told["id"], told["state"]) == (job_id, "available")
