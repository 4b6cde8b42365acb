"""Acks and nacks of many jobs in one request, or with a fetch, through the handler."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.api import system as manifest
from ojs.domain.access import ALL_SCOPES
from ojs.domain.errors import NotFound
from ojs.http import models
from ojs.runtime import Runtime
from ojs.store.table.errors import UnreadableItem
from tests.unit.functions.client import Api
from tests.unit.functions.keyed import Keyed

if TYPE_CHECKING:
    from ojs.clock import ManualClock

BASE = "/ojs/v1/workers"
UNKNOWN = "019539a4-0000-7000-8000-000000000000"
ERROR = {"code": "x", "message": "y"}
OTHER = "w2"


def leased(api: Api, count: int, queue: str = "default", **options: Any) -> list[dict[str, Any]]:
    """So many jobs of worker w1, as it would ack them."""
    for _ in range(count):
        api.push(queue, options=options)
    jobs = api.fetch(queue, count=count, worker_id="w1")
    return [
        {"job_id": job["id"], "attempt": job["attempt"], "lease_token": job["lease_token"]}
        for job in jobs
    ]


def state(api: Api, entry: dict[str, Any]) -> Any:
    return api.get(f"/ojs/v1/jobs/{entry['job_id']}").json["state"]


def statuses(outcomes: list[dict[str, Any]]) -> list[int]:
    return [one["status"] for one in outcomes]


def test_each_ack_has_its_own_outcome(api: Api) -> None:
    """Done, of another worker, unknown, named twice, stale, and too large: in the order of the
    request; nothing is settled twice.
    """
    done, foreign, stale, token, large = leased(api, 5)
    foreign = {**foreign, "worker_id": OTHER}
    acks = [
        {**done, "result": {"n": 1}},
        {**foreign, "lease_token": None, "attempt": None},
        {"job_id": UNKNOWN},
        {**done, "result": {"n": 2}},
        {**stale, "attempt": 7},
        {**token, "lease_token": "another"},
        {**large, "result": "x" * 1_048_577},
    ]
    reply = api.post(f"{BASE}/ack", {"worker_id": "w1", "acks": acks})
    assert reply.status == 207
    outcomes = reply.json["acks"]
    assert statuses(outcomes) == [200, 409, 404, 400, 409, 409, 413]
    assert [one["job_id"] for one in outcomes] == [one["job_id"] for one in acks]
    first, other, _, twice, *_ = outcomes
    assert (first["state"], first["attempt"]) == ("completed", 1)
    assert first["completed_at"]
    assert other["error"]["details"]["field"] == "worker_id"
    assert twice["error"]["details"]["field"] == "acks[3].job_id"
    assert "acks[0].job_id" in twice["error"]["message"]
    assert api.get(f"/ojs/v1/jobs/{done['job_id']}/result").json["result"] == {"n": 1}
    assert [state(api, one) for one in (foreign, stale, token, large)] == ["active"] * 4


def test_each_nack_has_its_own_outcome(api: Api) -> None:
    retried, back, dead = leased(api, 3)
    nacks = [
        {**retried, "error": ERROR},
        {**back, "requeue": True},
        {**dead, "error": {**ERROR, "retryable": False}},
        {**retried, "requeue": True},
        {"job_id": UNKNOWN, "error": ERROR},
    ]
    reply = api.post(f"{BASE}/nack", {"worker_id": "w1", "nacks": nacks})
    assert reply.status == 207
    outcomes = reply.json["nacks"]
    assert statuses(outcomes) == [200, 200, 200, 400, 404]
    assert [one.get("state") for one in outcomes[:3]] == ["retryable", "available", "discarded"]
    assert outcomes[0]["retry_delay_ms"] >= 0
    assert outcomes[0]["next_attempt_at"]
    assert outcomes[2]["discarded_at"]


def test_a_fetch_settles_first_and_brings_the_outcomes(api: Api) -> None:
    """What its acks make room for it may hand out itself."""
    api("PUT", "/ojs/v1/queues/default/config", {"concurrency": 3})
    one, two, three = leased(api, 3)
    waiting = api.push()
    assert api.fetch(worker_id="w1") == []
    body = {
        "queues": ["default"], "worker_id": "w1", "count": 3,
        "acks": [one, {"job_id": UNKNOWN}],
        "nacks": [{**two, "error": ERROR}, {**one, "error": ERROR}],
    }  # fmt: skip
    reply = api.post(f"{BASE}/fetch", body)
    assert reply.status == 200
    assert statuses(reply.json["acks"]) == [200, 404]
    assert statuses(reply.json["nacks"]) == [200, 400]
    assert "acks[0].job_id" in reply.json["nacks"][1]["error"]["message"]
    assert waiting in [job["id"] for job in reply.json["jobs"]]
    assert [state(api, one) for one in (one, two, three)] == ["completed", "retryable", "active"]


def test_outcomes_are_told_when_nothing_is_there(api: Api) -> None:
    (one,) = leased(api, 1)
    reply = api.post(f"{BASE}/fetch", {"queues": ["default"], "worker_id": "w1", "acks": [one]})
    assert (reply.status, reply.json["jobs"]) == (200, [])
    assert statuses(reply.json["acks"]) == [200]
    assert reply.json.keys() == {"jobs", "acks"}


def test_outcomes_are_told_when_the_fetch_fails(api: Api) -> None:
    """The error is told beside them; without acks it is the answer, as ever."""
    (one,) = leased(api, 1)
    api.post(f"{BASE}/register", {"worker_id": "w1", "pool": "mine"})
    api("PUT", "/ojs/v1/admin/pools/mine", {"queues": ["a"]})
    api("PUT", "/ojs/v1/admin/pools/theirs", {"queues": ["b"]})
    body = {"worker_id": "w9"}
    assert api.post(f"{BASE}/fetch", body).status == 400
    reply = api.post(f"{BASE}/fetch", {**body, "acks": [{**one, "worker_id": "w1"}]})
    assert (reply.status, reply.json["jobs"]) == (200, [])
    assert statuses(reply.json["acks"]) == [200]
    assert reply.json["fetch_error"]["code"] == "invalid_request"
    assert reply.json["fetch_error"]["details"]["field"] == "queues"


def test_a_worker_that_was_told_to_stop_is_told_the_outcomes(api: Api) -> None:
    (one,) = leased(api, 1)
    api.push()
    api.post(f"{BASE}/beat", {"worker_id": "w1", "state": "drain"})
    reply = api.post(f"{BASE}/fetch", {"queues": ["default"], "worker_id": "w1", "acks": [one]})
    assert (reply.status, reply.json["jobs"]) == (200, [])
    assert statuses(reply.json["acks"]) == [200]


def test_a_fetch_without_any_answers_as_ever(api: Api) -> None:
    for empty in ({}, {"acks": None, "nacks": None}):
        reply = api.post(f"{BASE}/fetch", {"queues": ["default"], **empty})
        assert reply.json == {"jobs": []}
    reply = api.post(f"{BASE}/fetch", {"queues": ["default"], "acks": []})
    assert reply.json == {"jobs": [], "acks": []}


@pytest.mark.parametrize("ask", ["ack", "fetch"])
def test_the_same_request_again_is_answered_alike(api: Api, ask: str) -> None:
    """Its answer was lost: what was done is told, as for a single ack; a nack is over by then."""
    one, two, three = leased(api, 3)
    body: dict[str, Any] = {"worker_id": "w1", "acks": [one, {**two, "worker_id": OTHER}]}
    if ask == "fetch":
        body |= {"queues": ["other"], "nacks": [{**three, "error": ERROR}]}
    first = api.post(f"{BASE}/{ask}", body).json
    again = api.post(f"{BASE}/{ask}", body).json
    assert first["acks"] == again["acks"]
    assert statuses(again["acks"]) == [200, 409]
    if ask == "fetch":
        assert (statuses(first["nacks"]), statuses(again["nacks"])) == ([200], [409])
        assert again["nacks"][0]["error"]["details"]["current_state"] == "retryable"


def test_a_queue_that_demands_the_token_demands_it_of_each(api: Api) -> None:
    api("PUT", "/ojs/v1/queues/strict/config", {"require_lease_token": True})
    with_token, without, wrong = leased(api, 3, "strict")
    acks = [with_token, {"job_id": without["job_id"]}, {**wrong, "lease_token": "another"}]
    outcomes = api.post(f"{BASE}/ack", {"worker_id": "w1", "acks": acks}).json["acks"]
    assert statuses(outcomes) == [200, 400, 409]
    assert outcomes[1]["error"]["details"]["field"] == "lease_token"


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("ack", {"acks": []}, 400, "acks"),
        ("ack", {"acks": ["ONE", "job_2"]}, 400, "acks[1]"),
        ("ack", {"acks": ["ONE"], "job_id": UNKNOWN}, 400, "job_id"),
        ("ack", {"acks": ["ONE"], "attempt": 1}, 400, "attempt"),
        ("ack", {"acks": ["ONE"], "lease_token": "a"}, 400, "lease_token"),
        ("ack", {"acks": ["ONE"], "result": None}, 400, "result"),
        ("ack", {"acks": ["ONE"], "nacks": ["ONE"]}, 422, "nacks"),
        ("ack", {"acks": ["ONE"] + [{"job_id": UNKNOWN}] * 1_000}, 400, "acks"),
        ("nack", {"nacks": ["ONE"]}, 400, "nacks[0].error"),
        ("nack", {"nacks": ["BACK"], "error": ERROR}, 400, "error"),
        ("nack", {"nacks": ["BACK"], "acks": ["ONE"]}, 422, "acks"),
        ("nack", {"nacks": ["BACK"] * 1_001}, 400, "nacks"),
        ("fetch", {"acks": ["ONE"], "nacks": [{"job_id": UNKNOWN}]}, 400, "nacks[0].error"),
        ("fetch", {"acks": ["ONE"] * 501, "nacks": ["BACK"] * 500}, 400, "nacks"),
    ],
)
def test_a_malformed_request_settles_nothing(
    api: Api, path: str, body: dict[str, Any], status: int, field: str
) -> None:
    (one,) = leased(api, 1)
    stand_ins = {"ONE": one, "BACK": {**one, "requeue": True}}
    sent = _filled(body, stand_ins, path)
    reply = api.post(f"{BASE}/{path}", sent)
    assert (reply.status, reply.error["details"]["field"]) == (status, field)
    assert state(api, one) == "active"


def _filled(body: dict[str, Any], stand_ins: dict[str, Any], path: str) -> dict[str, Any]:
    made = {"queues": ["default"], **body} if path == "fetch" else dict(body)
    for name in {"acks", "nacks"} & made.keys():
        if isinstance(made[name], list):
            made[name] = [
                stand_ins.get(each, each) if isinstance(each, str) else each for each in made[name]
            ]
    return made


def test_a_thousand_are_settled(api: Api) -> None:
    """As many as a request may have: all of them are looked at, the known ones settled."""
    known = leased(api, 3)
    unknown = [{"job_id": f"019539a4-0000-7000-8000-{n:012d}"} for n in range(997)]
    acks = [*unknown[:500], *known, *unknown[500:]]
    assert len(acks) == models.MAX_ENDINGS
    ended: list[str] = []

    def ack(job_id: str, **_: Any) -> Any:
        ended.append(job_id)
        return real(job_id, **_) if job_id in {one["job_id"] for one in known} else missing(job_id)

    real = api.runtime.finish.ack
    with mock.patch.object(api.runtime.batch_finish._finish, "ack", ack):
        reply = api.post(f"{BASE}/ack", {"worker_id": "w1", "acks": acks})
    assert sorted(ended) == sorted(one["job_id"] for one in acks)
    found = statuses(reply.json["acks"])
    assert (found.count(200), found.count(404), found[500:503]) == (3, 997, [200] * 3)


def missing(job_id: str) -> Any:
    raise NotFound("job", job_id)


def test_what_there_is_no_time_for_is_to_be_sent_again(api: Api) -> None:
    """The rest of the request's time is for the answer; nothing is lost."""
    entries = leased(api, 3)
    left = iter([20_000, 20_000, 9_000])
    with mock.patch.object(
        api.runtime.batch_finish, "_for_each", lambda act, each: [*map(act, each)]
    ):
        timed = Api(
            api.runtime, api.clock, SimpleNamespace(get_remaining_time_in_millis=lambda: next(left))
        )
        reply = timed.post(f"{BASE}/ack", {"worker_id": "w1", "acks": entries})
    assert statuses(reply.json["acks"]) == [200, 200, 503]
    assert reply.json["acks"][2]["error"]["retryable"] is True
    again = api.post(f"{BASE}/ack", {"worker_id": "w1", "acks": entries})
    assert statuses(again.json["acks"]) == [200, 200, 200]


def test_a_job_in_another_queue_than_the_key_s_is_refused_for_itself(
    make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    keyed = Keyed(make_runtime(authorizer="keys"), clock)
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    ids = {}
    for queue in ("mine", "theirs"):
        pushed = {"type": "t", "args": [], "options": {"queue": queue}}
        ids[queue] = owner("POST", "/ojs/v1/jobs", pushed).json["job"]["id"]
        assert owner("POST", f"{BASE}/fetch", {"queues": [queue], "worker_id": "w"}).json["jobs"]
    worker = keyed.holding(keyed.make("worker", "work", queues=["mine"]))
    acks = [{"job_id": ids["theirs"]}, {"job_id": ids["mine"]}, {"job_id": UNKNOWN}]
    reply = worker("POST", f"{BASE}/fetch", {"queues": ["mine"], "worker_id": "w", "acks": acks})
    assert statuses(reply.json["acks"]) == [403, 200, 404]
    read = owner("GET", f"/ojs/v1/jobs/{ids['theirs']}")
    assert read.json["state"] == "active"
    # Nor does it come by through a queue that it may not fetch from: then nothing is settled.
    barred = {"queues": ["theirs"], "worker_id": "w", "acks": [{"job_id": ids["mine"]}]}
    assert worker("POST", f"{BASE}/fetch", barred).status == 403


def test_a_defect_among_the_outcomes_is_logged(api: Api) -> None:
    one, two = leased(api, 2)
    damaged = UnreadableItem("job 1", ValueError("x"))
    real = api.runtime.finish.ack

    def ack(job_id: str, **told: Any) -> Any:
        if job_id == one["job_id"]:
            raise damaged
        return real(job_id, **told)

    with (
        mock.patch.object(api.runtime.batch_finish._finish, "ack", ack),
        mock.patch("ojs.http.binding.application.logger") as logger,
    ):
        reply = api.post(f"{BASE}/ack", {"worker_id": "w1", "acks": [one, two]})
    assert statuses(reply.json["acks"]) == [500, 200]
    logger.error.assert_called_once()
    assert logger.error.call_args.kwargs["exc_info"] is damaged


def test_the_manifest_names_the_extension(api: Api) -> None:
    found = api.get("/ojs/manifest").json["extensions"]["experimental"]
    assert [one["name"] for one in found] == list(manifest.OWN_EXTENSIONS)
    assert "batch-acks" in manifest.OWN_EXTENSIONS
