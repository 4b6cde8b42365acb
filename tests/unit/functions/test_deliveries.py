"""Deliveries over HTTP, and the functions that wake, push and settle."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from functions.outcomes.handler import handler as outcomes
from ojs import runtime
from ojs.domain import jsontext
from ojs.domain.delivery import forms
from ojs.domain.delivery.outcome import MalformedRecord
from ojs.domain.errors import BackendUnavailable
from ojs.services.deliveries.parts import AllowedTargets, DeliveryDependencies
from ojs.settings import Settings
from tests.store.pushing import DONE, FUNCTION, GONE, FakeTarget, Sends, Wakes
from tests.unit.functions.client import Api

if TYPE_CHECKING:
    from ojs.clock import ManualClock
    from ojs.domain.delivery.push import Push
    from ojs.runtime import Runtime

BASE = "/ojs/v1/admin/deliveries"
BODY = {"target": {"function": FUNCTION}, "queues": ["default"], "concurrency": 3}
# As in the specification, section 2.1.
REGISTRATION = {
    "endpoint": "https://abc123.lambda-url.us-east-1.on.aws/",
    "job_types": ["email.send", "report.generate"],
    "queues": ["default"],
    "config": {
        "max_concurrency": 100,
        "timeout_ms": 30_000,
        "signing_secret": "whsec_secret_of_24_bytes_and_more",
    },
}


class Cloud:
    """An API, and what its deployment has for deliveries."""

    def __init__(self, api: Api, wakes: Wakes, target: FakeTarget, sends: Sends) -> None:
        self.api, self.wakes, self.target, self.sends = api, wakes, target, sends

    def function(self, name: str, *bodies: Any, received: int = 1) -> list[str]:
        """Invoke a function with messages; the ids of those that come again."""
        records = [
            {
                "messageId": str(at),
                "attributes": {"ApproximateReceiveCount": str(received)},
                "body": body if isinstance(body, str) else jsontext.dumps(body),
            }
            for at, body in enumerate(bodies)
        ]
        handler = importlib.import_module(f"functions.{name}.handler").handler
        answer = handler({"Records": records}, object())
        return [one["itemIdentifier"] for one in answer["batchItemFailures"]]


@pytest.fixture
def cloud(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Cloud:
    plain = make_runtime()
    wakes, target, sends = Wakes(clock), FakeTarget(), Sends()
    built = runtime.build(
        Settings(table=plain.settings.table, bucket="payloads", version="1.2.3"),
        client=plain.table.client,
        blobs=plain.blobs,
        clock=clock,
        sleep=lambda _: None,
        push=DeliveryDependencies(
            wakes=wakes,
            target=lambda _: target,
            allowed=AllowedTargets([FUNCTION], ["*"], check_endpoint=_https),
            sends=sends,
        ),
    )
    runtime.use(built)
    return Cloud(Api(built, clock), wakes, target, sends)


def _https(url: str) -> None:
    if not url.startswith("https://"):
        raise ValueError("must use https")


def record(push: Push, answer: Any, condition: str = "Success") -> dict[str, Any]:
    """What Lambda sends to a destination (version 1.0)."""
    return {
        "version": "1.0",
        "timestamp": "2026-11-23T08:00:00.000Z",
        "requestContext": {
            "requestId": "e4b46cbf-b738-xmpl-8880-a18cdf61200e",
            "functionArn": f"{FUNCTION}:$LATEST",
            "condition": condition,
            "approximateInvokeCount": 1,
        },
        "requestPayload": jsontext.loads(jsontext.dumps(forms.direct(push))),
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST"},
        "responsePayload": answer,
    }


def test_a_delivery_is_made_changed_read_paused_and_removed(cloud: Cloud) -> None:
    api = cloud.api
    made = api("PUT", f"{BASE}/thumbs", BODY)
    assert (made.status, made.headers["Location"]) == (201, f"{BASE}/thumbs")
    assert made.json["target"] == {"function": FUNCTION}
    assert made.json["statistics"] == {
        "pushed": 0, "completed": 0, "failed": 0, "faults": 0, "throttled": 0,
    }  # fmt: skip
    # What was read may be sent back.
    changed = api("PUT", f"{BASE}/thumbs", {**made.json, "concurrency": 5})
    assert (changed.status, changed.json["concurrency"]) == (200, 5)
    assert api("POST", f"{BASE}/thumbs/pause", {}).json["state"] == "paused"
    assert api("POST", f"{BASE}/thumbs/resume", {}).json["state"] == "active"
    listed = api("GET", BASE).json
    assert [each["name"] for each in listed["items"]] == ["thumbs"]
    assert api("GET", f"{BASE}/thumbs").json == listed["items"][0]
    assert api("DELETE", f"{BASE}/thumbs").json == {"deleted": True, "name": "thumbs"}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/test")):
        body: dict[str, Any] | None = {} if method == "POST" else None
        assert api(method, f"{BASE}/thumbs{path}", body).status == 404


@pytest.mark.requirement("SL-1")
def test_the_registration_of_the_specification_is_taken(cloud: Cloud) -> None:
    made = cloud.api("POST", BASE, REGISTRATION)
    assert made.status == 201
    name = made.json["name"]
    assert name.startswith("abc123.lambda-url")
    assert made.json["target"] == {"endpoint": REGISTRATION["endpoint"]}
    assert (made.json["concurrency"], made.json["form"]) == (100, "push")
    assert made.json["signing_secrets_count"] == 1
    assert "whsec" not in made.text + cloud.api("GET", BASE).text
    # The same endpoint is the same delivery.
    assert cloud.api("POST", BASE, REGISTRATION).status == 200


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"target": {"function": f"{FUNCTION}-other"}}, 422, "target.function"),
        ({"target": {"function": FUNCTION.replace("eu-", "us-")}}, 422, "target.function"),
        ({"target": {"endpoint": "http://a.example/"}}, 422, "target.endpoint"),
        ({"target": {"handler": "jobs:run"}}, 422, "target.handler"),
    ],
)
def test_bad_input_names_the_field(
    cloud: Cloud, change: dict[str, Any], status: int, field: str
) -> None:
    refused = cloud.api("PUT", f"{BASE}/thumbs", {**BODY, **change})
    assert refused.status == status
    assert refused.json["error"]["details"]["field"].startswith(field)
    assert cloud.api("GET", BASE).json["items"] == []


@pytest.mark.requirement("SL-1")
@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"endpoint": "http://a.example/"}, 422, "endpoint"),
        ({"endpoint": "ftp://a.example/"}, 400, "endpoint"),
        ({"endpoint": FUNCTION}, 400, "endpoint"),
        ({"endpoint": None}, 400, "target"),
        ({"queues": ["a", "a"]}, 400, "queues"),
        ({"config": {"max_concurrency": 0, "signing_secret": "whsec_test_of_24_bytes_ok"}}, 400,
         "config.max_concurrency"),
        ({"config": {"timeout_ms": 999, "signing_secret": "whsec_test_of_24_bytes_ok"}}, 400,
         "config.timeout_ms"),
        ({"config": {"signing_secret": "short"}}, 400, "config.signing_secret"),
        ({"config": {"max_concurrency": 3}}, 422, "signing_secret"),
        # Of section 9, which is about routing between clouds.
        ({"provider": "aws_lambda"}, 400, "provider"),
    ],
)  # fmt: skip
def test_what_a_registration_cannot_have_is_refused_by_the_name_it_has_there(
    cloud: Cloud, change: dict[str, Any], status: int, field: str
) -> None:
    refused = cloud.api("POST", BASE, {**REGISTRATION, **change})
    assert refused.status == status
    assert refused.json["error"]["details"]["field"] == field
    assert cloud.api("GET", BASE).json["items"] == []


def test_another_delivery_of_a_queue_is_a_conflict(cloud: Cloud) -> None:
    cloud.api("PUT", f"{BASE}/one", BODY)
    refused = cloud.api("PUT", f"{BASE}/two", BODY)
    assert refused.status == 409
    assert refused.json["error"]["details"]["delivery"] == "one"


def test_without_a_dispatch_queue_deliveries_are_unsupported(api: Api) -> None:
    refused = api("PUT", f"{BASE}/thumbs", BODY)
    assert refused.status == 422
    assert refused.json["error"]["code"] == "unsupported"
    assert api("GET", BASE).json["items"] == []


def test_a_test_push_tells_what_the_target_answered(cloud: Cloud) -> None:
    cloud.api("PUT", f"{BASE}/thumbs", BODY)
    cloud.target.answer = lambda _: DONE
    assert cloud.api("POST", f"{BASE}/thumbs/test").json["outcome"] == "completed"
    cloud.target.answer = lambda _: GONE
    told = cloud.api("POST", f"{BASE}/thumbs/test", {"type": "a.b", "args": [1]}).json
    assert (told["outcome"], told["error"]["code"]) == ("gone", "ResourceNotFoundException")
    assert cloud.api("GET", f"{BASE}/thumbs").json["state"] == "active"


def test_from_the_push_to_its_outcome_by_the_functions(cloud: Cloud) -> None:
    cloud.api("PUT", f"{BASE}/thumbs", BODY)
    ids = [
        cloud.api("POST", "/ojs/v1/jobs", {"type": "a.b", "args": [n]}).json["job"]["id"]
        for n in range(5)
    ]
    names = [{"delivery": name} for name in cloud.wakes.due()]
    assert names
    assert cloud.function("dispatch", *names, *names) == []
    assert len(cloud.target.flying) == 3
    first, second, third = cloud.target.flying
    bodies = [
        record(first, {"status": "completed", "result": 1}),
        "no json",
        record(second, {"status": "failed", "error": {"code": "x", "message": "no"}}),
        {"version": "1.0"},
    ]
    # What is no record comes again, until its queue puts it aside.
    assert cloud.function("outcomes", *bodies) == ["1", "3"]
    # Two were settled, and two others have their places.
    assert len(cloud.target.flying) == 5
    states = [cloud.api("GET", f"/ojs/v1/jobs/{job_id}").json["job"]["state"] for job_id in ids]
    assert states == ["completed", "retryable", "active", "active", "active"]
    throttled = record(third, None, "EventAgeExceeded")
    assert cloud.function("outcomes", throttled) == []
    job = cloud.api("GET", f"/ojs/v1/jobs/{ids[2]}").json["job"]
    assert (job["state"], job["attempt"]) == ("available", 0)


def test_the_end_of_maintenance_wakes(cloud: Cloud) -> None:
    """Those that were woken meanwhile have found nothing that they may push."""
    cloud.api("PUT", f"{BASE}/thumbs", BODY)
    cloud.api("POST", "/ojs/v1/admin/system/maintenance", {"enabled": True})
    cloud.api("POST", "/ojs/v1/jobs", {"type": "a.b", "args": []})
    cloud.function("dispatch", *({"delivery": name} for name in cloud.wakes.due()))
    assert not cloud.target.flying
    cloud.wakes.waiting.clear()
    cloud.api("POST", "/ojs/v1/admin/system/maintenance", {"enabled": False})
    now_ms = cloud.api.clock.now_ms()
    # At once, and when each container has noticed.
    assert cloud.wakes.waiting == [(now_ms, "thumbs"), (now_ms + 6_000, "thumbs")]
    cloud.function("dispatch", *({"delivery": name} for name in cloud.wakes.due()))
    assert len(cloud.target.flying) == 1


def test_messages_that_name_nothing_come_again(cloud: Cloud) -> None:
    assert cloud.function("dispatch", {"delivery": ""}, {"delivery": "gone"}, "[]") == ["0", "2"]
    assert cloud.function("sender", {"delivery": "d", "job": "x"}, "{") == ["0", "1"]


def test_senders_take_what_waits_for_its_target(cloud: Cloud) -> None:
    cloud.target.waits = True
    cloud.target.answer = lambda _: DONE
    cloud.api("POST", BASE, {**REGISTRATION, "job_types": []})
    pushed = cloud.api("POST", "/ojs/v1/jobs", {"type": "a.b", "args": []}).json["job"]["id"]
    cloud.function("dispatch", *({"delivery": name} for name in cloud.wakes.due()))
    ((delivery, job, token),) = cloud.sends.waiting
    assert cloud.function("sender", {"delivery": delivery, "job": job, "token": token}) == []
    assert cloud.api("GET", f"/ojs/v1/jobs/{pushed}").json["job"]["state"] == "completed"


def test_a_message_that_comes_again_while_its_push_is_under_way_posts_nothing(
    cloud: Cloud,
) -> None:
    """SQS brings a message twice, side by side: a second sender begins while the first waits."""
    cloud.target.waits = True
    cloud.api("POST", BASE, {**REGISTRATION, "job_types": []})
    pushed = cloud.api("POST", "/ojs/v1/jobs", {"type": "a.b", "args": []}).json["job"]["id"]
    cloud.function("dispatch", *({"delivery": name} for name in cloud.wakes.due()))
    ((delivery, job, token),) = cloud.sends.waiting
    message = {"delivery": delivery, "job": job, "token": token}
    again: list[list[str]] = []

    def answers(_push: Push) -> Any:
        again.append(cloud.function("sender", message, received=2))
        return DONE

    cloud.target.answer = answers
    assert cloud.function("sender", message) == []
    # The second message is done with, and the endpoint was asked once.
    assert (again, len(cloud.target.pushes)) == ([[]], 1)
    assert cloud.api("GET", f"/ojs/v1/jobs/{pushed}").json["job"]["state"] == "completed"


# --- outcomes that Lambda tells the function itself ----------------------------------------------

ANSWER = {"status": "completed", "result": 1}


class OutcomeQueue:
    def __init__(self, *, takes: bool) -> None:
        self.takes = takes
        self.records: list[Any] = []

    def put(self, record: Any) -> bool:
        self.records += [record] * self.takes
        return self.takes


def _pushed(cloud: Cloud, **fields: Any) -> tuple[str, Any]:
    """A job that runs on the target, and what it tells."""
    cloud.api("PUT", f"{BASE}/thumbs", {**BODY, **fields})
    made = cloud.api("POST", "/ojs/v1/jobs", {"type": "a.b", "args": [1]}).json["job"]["id"]
    cloud.function("dispatch", *({"delivery": name} for name in cloud.wakes.due()))
    (push,) = cloud.target.flying
    return made, record(push, ANSWER)


def _state(cloud: Cloud, job_id: str) -> str:
    return str(cloud.api("GET", f"/ojs/v1/jobs/{job_id}").json["job"]["state"])


def _failing() -> Any:
    """The table takes no ack."""
    changes = runtime.current().changes
    return mock.patch.object(changes, "ack", side_effect=BackendUnavailable("not now"))


def test_a_success_is_settled_as_it_is_told(cloud: Cloud) -> None:
    job_id, told = _pushed(cloud)
    assert outcomes(told, object()) == {"batchItemFailures": []}
    assert _state(cloud, job_id) == "completed"
    # Lambda may call twice.
    assert outcomes(told, object()) == {"batchItemFailures": []}


def test_who_is_stopped_before_it_dispatches_does_it_when_it_is_told_again(cloud: Cloud) -> None:
    """It is stopped, for its time is over, and Lambda calls once more with the same record."""
    job_id, told = _pushed(cloud, concurrency=1)
    following = cloud.api("POST", "/ojs/v1/jobs", {"type": "a.b", "args": []}).json["job"]["id"]
    with (
        mock.patch.object(runtime.current().dispatch, "run", side_effect=TimeoutError),
        pytest.raises(TimeoutError),
    ):
        outcomes(told, object())
    assert (_state(cloud, job_id), _state(cloud, following)) == ("completed", "available")
    assert outcomes(told, object()) == {"batchItemFailures": []}
    assert _state(cloud, following) == "active"


def test_a_record_that_comes_twice_at_once_ends_the_job_once(cloud: Cloud) -> None:
    """The second begins while the first dispatches: the room is given to one job."""
    job_id, told = _pushed(cloud, concurrency=1)
    others = [
        cloud.api("POST", "/ojs/v1/jobs", {"type": "a.b", "args": [n]}).json["job"]["id"]
        for n in range(2)
    ]
    run, again = runtime.current().dispatch.run, [told]

    def runs(*args: Any, **named: Any) -> Any:
        if again:
            assert outcomes(again.pop(), object()) == {"batchItemFailures": []}
        return run(*args, **named)

    with mock.patch.object(runtime.current().dispatch, "run", runs):
        assert outcomes(told, object()) == {"batchItemFailures": []}
    states = [_state(cloud, each) for each in (job_id, *others)]
    assert states == ["completed", "active", "available"]


def test_who_has_no_time_left_has_the_delivery_woken(cloud: Cloud) -> None:
    _, told = _pushed(cloud, concurrency=1)
    cloud.api("POST", "/ojs/v1/jobs", {"type": "a.b", "args": []})
    cloud.api.clock.advance(5_000)
    cloud.wakes.waiting.clear()
    late = mock.Mock(get_remaining_time_in_millis=lambda: 1_000)
    assert outcomes(told, late) == {"batchItemFailures": []}
    assert cloud.wakes.due() == ["thumbs"]


def test_what_cannot_be_settled_now_waits_in_the_queue(cloud: Cloud) -> None:
    job_id, told = _pushed(cloud)
    runtime.current().outcome_queue = queue = OutcomeQueue(takes=True)  # type: ignore[assignment]
    with _failing():
        assert outcomes(told, object()) == {"batchItemFailures": []}
    assert queue.records == [told]
    assert cloud.function("outcomes", *queue.records) == []
    assert _state(cloud, job_id) == "completed"


@pytest.mark.parametrize("queue", [None, OutcomeQueue(takes=False)])
def test_lambda_tells_again_what_the_queue_does_not_take(cloud: Cloud, queue: Any) -> None:
    job_id, told = _pushed(cloud)
    runtime.current().outcome_queue = queue
    with _failing(), pytest.raises(BackendUnavailable):
        outcomes(told, object())
    assert outcomes(told, object()) == {"batchItemFailures": []}
    assert _state(cloud, job_id) == "completed"


@pytest.mark.parametrize("first", ["old", "current"])
def test_of_two_outcomes_of_a_job_that_one_comes_again_which_was_not_settled(
    cloud: Cloud, first: str
) -> None:
    """One of a push from before, and one of that which runs, in the same messages."""
    job_id, old = _pushed(cloud)
    throttled = {
        **old,
        "requestContext": {**old["requestContext"], "condition": "EventAgeExceeded"},
    }
    cloud.target.flying.clear()
    assert cloud.function("outcomes", throttled) == []
    cloud.api.clock.advance(60_000)
    cloud.function("dispatch", {"delivery": "thumbs"})
    (push,) = cloud.target.flying
    assert push.job.id == job_id
    both = {"old": old, "current": record(push, ANSWER)}
    order = [first, *({*both} - {first})]
    ack = runtime.current().finish.ack

    def acks(job: str, *, lease_token: str, **named: Any) -> Any:
        if lease_token == push.token:
            raise BackendUnavailable("not now")
        return ack(job, lease_token=lease_token, **named)

    with mock.patch.object(runtime.current().finish, "ack", acks):
        again = cloud.function("outcomes", *(both[each] for each in order))
    assert again == [str(order.index("current"))]
    assert cloud.function("outcomes", both["current"]) == []
    assert _state(cloud, job_id) == "completed"


def test_an_outcome_that_comes_twice_in_one_batch_and_fails_comes_again(cloud: Cloud) -> None:
    _, told = _pushed(cloud)
    with _failing():
        assert cloud.function("outcomes", told, told) == ["0", "1"]


def test_the_record_of_a_call_that_failed_has_the_outcome_in_it(cloud: Cloud) -> None:
    """After its tries Lambda sends the record that it called the function with, in another one."""
    job_id, told = _pushed(cloud)
    given_up = {
        "version": "1.0",
        "requestContext": {"condition": "RetriesExhausted", "approximateInvokeCount": 3},
        "requestPayload": told,
        "responseContext": {"statusCode": 200, "functionError": "Unhandled"},
        "responsePayload": {"errorType": "BackendUnavailable", "errorMessage": "not now"},
    }
    assert cloud.function("outcomes", given_up) == []
    assert _state(cloud, job_id) == "completed"


def test_a_record_of_no_push_is_told_again_and_put_aside(cloud: Cloud) -> None:
    stranger = {"requestContext": {"condition": "Success"}, "requestPayload": {"a": 1}}
    with pytest.raises(MalformedRecord):
        outcomes(stranger, object())
    assert cloud.function("outcomes", {**stranger, "requestPayload": stranger}) == ["0"]


def test_deliveries_have_versions_and_no_secret_in_the_audit(cloud: Cloud) -> None:
    api, path = cloud.api, f"{BASE}/d"
    body = {**REGISTRATION, "name": "d"}
    old = api("PUT", path, body).headers["ETag"]
    other = {**body, "config": {"signing_secret": "whsec_second_secret_of_many_bytes"}}
    new = api("PUT", path, other, headers={"If-Match": old}).headers["ETag"]
    assert "second_secret" not in str(api.get("/ojs/v1/admin/actions").json)
    assert api("PUT", path, body, headers={"If-Match": old}).status == 412
    assert api.get(path).headers["ETag"] == new
    api("POST", f"{path}/pause")
    how = api.get("/ojs/v1/admin/actions").json["items"][0]["undo"]
    undone = api(how["method"], how["path"], how["body"], headers=how["headers"])
    assert undone.json["paused"] is False
    assert api("DELETE", path, headers={"If-Match": old}).status == 412
    assert api("DELETE", path, headers={"If-Match": undone.headers["ETag"]}).status == 200
