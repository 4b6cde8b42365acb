"""Named dead-letter queues over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.unit.functions.client import Api, Reply

BASE = "/ojs/v1"
PLACES = ("dead-letter", "admin/dead-letter")


def put(api: Api, queue: str, **config: Any) -> Reply:
    return api("PUT", f"{BASE}/queues/{queue}/config", config)


def goes_to(api: Api, target: str = "failed", queue: str = "mail", **config: Any) -> dict[str, Any]:
    reply = put(api, queue, dead_letter_queue=target, **config)
    assert reply.status == 200, reply.text
    shown: dict[str, Any] = reply.json["config"]
    return shown


def job_of(api: Api, job_id: str) -> dict[str, Any]:
    reply = api.get(f"{BASE}/jobs/{job_id}")
    assert reply.status == 200, reply.text
    shown: dict[str, Any] = reply.json["job"]
    return shown


@pytest.mark.requirement("QC-32", "QC-33", "QC-55")
def test_a_job_that_fails_for_good_is_in_the_named_queue_too(api: Api) -> None:
    goes_to(api)
    job_id = api.active("mail", meta={"trace": "t"})
    error = {"code": "E42", "type": "Boom", "message": "no", "retryable": False}
    reply = api.post(f"{BASE}/workers/nack", {"job_id": job_id, "error": error})
    copy_id = reply.json["job"]["dead_letter_job_id"]
    record = job_of(api, job_id)
    assert (record["id"], record["queue"], record["state"]) == (job_id, "mail", "discarded")
    assert record["dead_letter_job_id"] == copy_id
    (copy,) = api.fetch("failed")
    assert copy["id"] == copy_id
    assert (copy["type"], copy["args"], copy["attempt"]) == ("test.echo", [1], 1)
    # The copy has the error that the job failed with.
    told = copy["meta"]["ojs.dead_letter"]
    assert copy["meta"]["trace"] == "t"
    assert (told["source_job_id"], told["source_queue"]) == (job_id, "mail")
    assert told["error"] == copy["error"] == record["error"]
    assert {name: told["error"][name] for name in error} == error
    for place in PLACES:
        reply = api.get(f"{BASE}/{place}", queue="mail")
        assert [job["dead_letter_job_id"] for job in reply.json["jobs"]] == [copy_id]
        shown = api.get(f"{BASE}/{place}/{job_id}").json
        assert shown["job"]["dead_letter_job_id"] == copy_id
        assert api.get(f"{BASE}/{place}", queue="failed").json["jobs"] == []


@pytest.mark.requirement("QC-34")
def test_the_fields_are_shown_with_where_they_come_from(api: Api) -> None:
    shown = goes_to(api)
    assert (shown["dead_letter_queue"], shown["dead_letter_ttl"]) == ("failed", "P30D")
    assert "dead_letter_max_size" not in shown
    shown = goes_to(api, dead_letter_max_size=7, dead_letter_ttl="P1D")
    assert (shown["dead_letter_max_size"], shown["dead_letter_ttl"]) == (7, "P1D")
    reply = api.get(f"{BASE}/queues/mail/config").json
    assert reply["config"] == shown
    sources = {name: of for name, of in reply["config_sources"].items() if "dead" in name}
    assert sources == dict.fromkeys(
        ("dead_letter_queue", "dead_letter_max_size", "dead_letter_ttl", "dead_letter"), "queue"
    )
    assert shown["dead_letter"]["retention"]["max_age"] == "P1D"
    # 0 is no bound, null takes back.
    shown = goes_to(api, dead_letter_max_size=0, dead_letter_ttl=None)
    assert shown["dead_letter_ttl"] == "P30D"
    assert "dead_letter_max_size" not in shown
    reply = put(api, "mail", dead_letter_queue=None)
    assert not {name for name in reply.json["config"] if name.startswith("dead_letter_")}


def test_a_queue_is_not_its_own_dead_letter_queue(api: Api) -> None:
    for path in ("queues", "admin/queues"):
        reply = api("PUT", f"{BASE}/{path}/mail/config", {"dead_letter_queue": "mail"})
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert reply.error["details"]["field"] == "dead_letter_queue"
    body = {"name": "mail", "config": {"dead_letter_queue": "mail"}}
    reply = api.post(f"{BASE}/queues", body)
    assert (reply.status, reply.error["details"]["field"]) == (400, "config.dead_letter_queue")
    reply = api.post(f"{BASE}/queues", {"name": "mail", "dead_letter_queue": "mail"})
    assert (reply.status, reply.error["details"]["field"]) == (400, "dead_letter_queue")
    assert api.get(f"{BASE}/queues/mail").status == 404


@pytest.mark.requirement("QC-38")
def test_the_policy_may_name_one_queue_for_all_others(api: Api) -> None:
    """Layers; the queue that it names has just none."""
    put(api, "_default", dead_letter_queue="failed", dead_letter_max_size=9)
    api.push("mail")
    api.push("failed")
    mail = api.get(f"{BASE}/queues/mail/config").json
    assert mail["config"]["dead_letter_queue"] == "failed"
    assert mail["config_sources"]["dead_letter_queue"] == "_default"
    assert "dead_letter_queue" not in api.get(f"{BASE}/queues/failed/config").json["config"]
    policy = api.get(f"{BASE}/queues/_default/config").json
    assert policy["config"]["dead_letter_queue"] == "failed"
    for job in api.fetch("failed"):
        error = {"message": "no", "retryable": False}
        reply = api.post(f"{BASE}/workers/nack", {"job_id": job["id"], "error": error})
        assert "dead_letter_job_id" not in reply.json["job"]


def test_a_client_does_not_say_which_copy_a_job_has(api: Api) -> None:
    job_id = api.push("mail", dead_letter_job_id="01a1fc2e-4222-7000-82c8-7e7ae68c9994")
    assert "dead_letter_job_id" not in job_of(api, job_id)


def test_a_dead_letter_too_large_to_show_still_names_its_copy(api: Api) -> None:
    goes_to(api)
    job_id = api.active("mail", args=["x" * 600_000])
    error = {"message": "no", "retryable": False}
    api.post(f"{BASE}/workers/nack", {"job_id": job_id, "error": error})
    shown = api.get(f"{BASE}/jobs/{job_id}").json
    assert "args" not in shown
    assert shown["dead_letter_job_id"] == shown["job"]["dead_letter_job_id"]
    (copy,) = api.fetch("failed")
    assert copy["args"] == ["x" * 600_000]
