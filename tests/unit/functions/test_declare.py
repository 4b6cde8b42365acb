"""What a CDK app declares, as CloudFormation has it set and taken back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from functions import custom_resource
from functions.declare import handler as declare
from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.access import ANYBODY
from ojs.domain.errors import InvalidRequest
from ojs.runtime import Runtime
from tests.unit.functions.client import Api

MAIL = {"max_size": 5, "concurrency": 2}


@pytest.fixture
def api(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Api:
    """As the function is deployed: it asks nobody for a key."""
    built = make_runtime(authorizer="none")
    runtime.use(built)
    return Api(built, clock)


def event(kind: str, name: str, method: str, path: str, body: Any, **more: Any) -> dict[str, Any]:
    asked = {"Method": method, "Path": path, "Body": json.dumps(body)}
    properties = {"Name": name, "Caller": "ojs-dev-app", "Set": asked, **more}
    return {
        "RequestType": kind,
        "LogicalResourceId": "Declared",
        "PhysicalResourceId": name,
        "ResourceProperties": properties,
    }


def queue(kind: str, config: Any = MAIL, **more: Any) -> dict[str, Any]:
    return event(kind, "queue mail", "PUT", "/ojs/v1/queues/mail/config", config, **more)


def cron(kind: str, expression: str = "0 3 * * *") -> dict[str, Any]:
    request = {"name": "nightly", "expression": expression, "type": "tidy", "args": []}
    back = {"Method": "DELETE", "Path": "/ojs/v1/cron/nightly"}
    return event(kind, "cron nightly", "POST", "/ojs/v1/cron", request, TakeBack=back)


def config_of(name: str) -> Any:
    return runtime.current().queues.get(name).layers.own


def crons() -> list[str]:
    page = runtime.current().crons.list(ANYBODY)
    return [each.name for each in page(limit=10, cursor=None).items]


@pytest.mark.usefixtures("api")
def test_what_is_declared_is_set_and_the_rest_is_left() -> None:
    runtime.current().queues.configure("mail", {"lanes": 4})
    runtime.current().queues.configure("other", {"max_size": 1})
    # CloudFormation may ask twice.
    for _ in range(2):
        assert declare.run(queue("Create"), None).physical_id == "queue mail"
    assert config_of("mail") == {"lanes": 4, **MAIL}
    declare.run(queue("Update", {"max_size": 7, "concurrency": None}), None)
    assert config_of("mail") == {"lanes": 4, "max_size": 7}
    assert config_of("other") == {"max_size": 1}


@pytest.mark.usefixtures("api")
def test_a_queue_stays_when_it_is_no_longer_declared() -> None:
    declare.run(queue("Create"), None)
    declare.run(queue("Delete"), None)
    assert config_of("mail") == MAIL


@pytest.mark.usefixtures("api")
def test_a_cron_goes_when_it_is_no_longer_declared() -> None:
    declare.run(cron("Create"), None)
    declare.run(cron("Update", "0 4 * * *"), None)
    assert crons() == ["nightly"]
    # Somebody else may have taken it back by then.
    for _ in range(2):
        declare.run(cron("Delete"), None)
        assert crons() == []


@pytest.mark.usefixtures("api")
def test_what_the_server_refuses_is_told_with_its_reason() -> None:
    with pytest.raises(declare.Refused, match=r"PUT /ojs/v1/queues/mail/config: 400 .*max_size"):
        declare.run(queue("Create", {"max_size": -1}), None)


@pytest.mark.usefixtures("api")
def test_the_outcome_is_always_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str, str]] = []

    def answer(_event: Any, status: str, reason: str, outcome: custom_resource.Outcome) -> None:
        told.append((status, reason, outcome.physical_id))

    monkeypatch.setattr(custom_resource, "_answer", answer)
    fresh = {name: value for name, value in cron("Create").items() if name != "PhysicalResourceId"}
    declare.handler(fresh, None)
    wrong = {**cron("Create", "every now and then")}
    del wrong["PhysicalResourceId"]
    declare.handler(wrong, None)
    assert told[0] == ("SUCCESS", "", "cron nightly")
    status, reason, unmade = told[1]
    assert (status, "POST /ojs/v1/cron: 400" in reason) == ("FAILED", True)
    # CloudFormation deletes what it could not make. The one that was there before stays.
    declare.handler({**cron("Delete"), "PhysicalResourceId": unmade}, None)
    assert told[2][0] == "SUCCESS"
    assert crons() == ["nightly"]


# --- what an IAM role may do ---------------------------------------------------------------------

MAILER = "arn:aws:iam::123456789012:role/mailer"


def role(kind: str, queues: list[str], arn: str = MAILER) -> dict[str, Any]:
    body = {"role": arn, "name": "worker mail", "scopes": ["work"], "queues": queues}
    properties = {"Name": "role worker mail", "Caller": "ojs-dev-app", "Role": json.dumps(body)}
    return {
        "RequestType": kind,
        "LogicalResourceId": "Declared",
        "PhysicalResourceId": arn,
        "ResourceProperties": properties,
    }


@pytest.mark.usefixtures("api")
def test_a_role_is_given_its_queues_others_and_none() -> None:
    keys = runtime.current().access_keys
    for queues in (["mail"], ["mail"], ["mail", "reports"]):
        assert declare.run(role("Create", queues), None).physical_id == MAILER
        found = keys.of_role(MAILER)
        assert found is not None
        assert (found.queues, set(found.scopes)) == (tuple(queues), {"work"})
    active = [each for each in keys.list().items if each.revoked_ms is None]
    assert len(active) == 1, "what a role had before is revoked"
    declare.run(role("Delete", ["mail"]), None)
    declare.run(role("Delete", ["mail"]), None)
    assert keys.of_role(MAILER) is None


@pytest.mark.usefixtures("api")
def test_a_role_that_is_none_fails_the_deployment() -> None:
    with pytest.raises(InvalidRequest, match="role"):
        declare.run(role("Create", ["mail"], arn="mailer"), None)
