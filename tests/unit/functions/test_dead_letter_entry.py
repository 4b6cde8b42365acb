"""How jobs enter dead letter, and what is kept of them (dead-letter seed, section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

BASE = "/ojs/v1"
ERROR = {"type": "DatabaseConnectionError", "message": "refused", "backtrace": ["at db.go:142"]}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "exhaustion": ({"max_attempts": 1}, ERROR),
    "the handler's code": ({"max_attempts": 9}, {**ERROR, "code": "DEAD_LETTER"}),
    "a type that is not retried": (
        {"max_attempts": 9, "non_retryable_errors": ["DatabaseConnectionError"]},
        ERROR,
    ),
    "an error that says so": ({"max_attempts": 9}, {**ERROR, "retryable": False}),
}


def pushed(api: Api, retry: dict[str, Any]) -> str:
    body = {
        "type": "invoice.generate",
        "args": [{"amount": 9999.10}],
        "meta": {"trace": "t-1"},
        "options": {"queue": "billing", "retry": retry},
    }
    return str(api.post(f"{BASE}/jobs", body).json["job"]["id"])


def failed(api: Api, job_id: str, error: dict[str, Any]) -> None:
    assert [job["id"] for job in api.fetch("billing", worker_id="w1")] == [job_id]
    body = {"job_id": job_id, "worker_id": "w1", "error": error}
    assert api.post(f"{BASE}/workers/nack", body).status == 200


def listed(api: Api) -> list[str]:
    return [job["id"] for job in api.get(f"{BASE}/dead-letter").json["jobs"]]


@pytest.mark.requirement("DL-1", "DL-2", "DL-3", "DL-4", "DL-5", "DL-7")
@pytest.mark.parametrize(("retry", "error"), WAYS.values(), ids=WAYS.keys())
def test_ways_into_dead_letter(api: Api, retry: dict[str, Any], error: dict[str, Any]) -> None:
    job_id = pushed(api, retry)
    before = api.get(f"{BASE}/jobs/{job_id}").json["job"]
    api.clock.advance(5_000)
    failed(api, job_id, error)
    after = api.get(f"{BASE}/jobs/{job_id}").json["job"]
    assert after["state"] == "discarded"
    assert after["discarded_at"] > before["created_at"]
    for name in ("type", "args", "meta", "queue", "retry"):
        assert after[name] == before[name]
    assert listed(api) == [job_id]


@pytest.mark.requirement("DL-1")
@pytest.mark.parametrize("way", ["lease", "timeout"])
def test_a_job_whose_worker_is_lost_ends_there_too(api: Api, way: str) -> None:
    job_id = pushed(api, {"max_attempts": 1})
    lease = {"visibility_timeout_ms": 1_000} if way == "lease" else {}
    assert api.fetch("billing", worker_id="w1", **lease)
    api.clock.advance(2_000 if way == "lease" else 1_801_000)
    found = api.get(f"{BASE}/jobs/{job_id}").json["job"]
    assert (found["state"], listed(api)) == ("discarded", [job_id])


@pytest.mark.requirement("DL-6")
def test_all_errors_are_kept_in_order(api: Api) -> None:
    job_id = pushed(api, {"max_attempts": 4, "initial_interval": "PT1S", "jitter": False})
    for number in range(1, 5):
        failed(api, job_id, {**ERROR, "message": f"attempt {number}"})
        api.clock.advance(60_000)
    detail = api.get(f"{BASE}/dead-letter/{job_id}").json
    assert [(e["attempt"], e["message"]) for e in detail["errors"]] == [
        (number, f"attempt {number}") for number in range(1, 5)
    ]
    for entry in detail["errors"]:
        assert entry["type"] == "DatabaseConnectionError"
        assert entry["backtrace"] == ["at db.go:142"]
        assert entry["occurred_at"]
    assert detail["metadata"].keys() == {"created_at", "discarded_at"}


@pytest.mark.requirement("DL-8", "DL-9")
@pytest.mark.parametrize(
    ("retry", "error"),
    [
        ({"max_attempts": 1, "on_exhaustion": "discard"}, ERROR),
        ({"max_attempts": 9}, {**ERROR, "code": "DISCARD"}),
    ],
    ids=["on_exhaustion", "code"],
)
def test_what_is_only_discarded_is_no_dead_letter(
    api: Api, retry: dict[str, Any], error: dict[str, Any]
) -> None:
    job_id = pushed(api, retry)
    failed(api, job_id, error)
    assert api.get(f"{BASE}/jobs/{job_id}").json["job"]["state"] == "discarded"
    assert listed(api) == []
    assert api.get(f"{BASE}/dead-letter/{job_id}").status == 404
    assert api.post(f"{BASE}/dead-letter/{job_id}/retry").status in (404, 409)
    # It goes when its own time is over; a dead letter stays until it is pruned.
    dead = pushed(api, {"max_attempts": 1})
    failed(api, dead, ERROR)
    api.clock.advance(31 * 86_400_000)
    assert api.get(f"{BASE}/jobs/{job_id}").status == 404
    assert listed(api) == [dead]
