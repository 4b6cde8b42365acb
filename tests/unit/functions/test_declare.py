"""What a CDK app declares, as CloudFormation has it set and taken back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from functions import custom_resource
from functions.declare import handler as declare
from ojs import access_runtime, runtime
from ojs.clock import ManualClock
from ojs.domain.access import ANYBODY
from ojs.domain.errors import InvalidRequest, NotFound
from ojs.runtime import Runtime
from ojs.store.table import clients
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


# --- Terraform --------------------------------------------------------------------------------


def invocation(action: str, asked: Any, former: Any = None) -> Any:
    """As aws_lambda_invocation calls the function, with lifecycle_scope = "CRUD"."""
    properties = asked["ResourceProperties"]
    before = former and former["ResourceProperties"]
    return declare.handler({**properties, "tf": {"action": action, "prev_input": before}}, None)


@pytest.mark.usefixtures("api")
def test_terraform_sets_changes_and_takes_back() -> None:
    made, changed = cron("Create"), cron("Update", "0 4 * * *")
    assert invocation("create", made) == {"Id": "cron nightly"}
    assert invocation("update", changed, made) == {"Id": "cron nightly"}
    (found,) = runtime.current().crons.list(ANYBODY)(limit=10, cursor=None).items
    assert found.definition.expression == "0 4 * * *"
    # With the input that is stored, before and now. The answer may have been lost.
    for _ in range(2):
        assert invocation("delete", changed, changed) == {"Id": "cron nightly"}
        assert crons() == []


@pytest.mark.usefixtures("api")
def test_terraform_renames() -> None:
    invocation("create", cron("Create"))
    other = json.loads(json.dumps(cron("Create")).replace("nightly", "hourly"))
    assert invocation("update", other, cron("Create")) == {"Id": "cron hourly"}
    assert crons() == ["hourly"]


@pytest.mark.usefixtures("api")
def test_terraform_replaces_the_record_of_a_role() -> None:
    other = "arn:aws:iam::123456789012:role/other"
    invocation("create", role("Create", ["mail"]))
    invocation("update", role("Create", ["mail", "sms"]), role("Create", ["mail"]))
    keys = runtime.current().access_keys
    found = keys.of_role(MAILER)
    assert found is not None
    assert found.queues == ("mail", "sms")
    invocation("update", role("Create", ["mail"], other), role("Create", ["mail", "sms"]))
    assert (keys.of_role(MAILER), keys.of_role(other) is None) == (None, False)


@pytest.mark.usefixtures("api")
def test_terraform_is_told_what_the_server_refuses() -> None:
    with pytest.raises(declare.Refused, match=r"400 .*max_size"):
        invocation("create", queue("Create", {"max_size": -1}))


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


# --- what jobs are pushed to (add_endpoint) ------------------------------------------------------

URL = "https://hooks.example.com/jobs"
SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:hooks"


class Sqs:
    """A queue that takes all."""

    def send_message_batch(self, **_: Any) -> Any:
        return {"Successful": [], "Failed": []}


class Secrets:
    """What is kept in Secrets Manager, by ARN."""

    def __init__(self) -> None:
        self.values: dict[str, str | None] = {SECRET: "whsec_of_today_for_the_hooks"}

    def __call__(self, arn: str) -> Any:
        self.arn = arn
        return self

    def read(self) -> str | None:
        return self.values[self.arn]


@pytest.fixture
def secrets(make_runtime: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch) -> Secrets:
    """A deployment that pushes, with the targets that it has in the cloud."""
    monkeypatch.setattr(clients, "client", lambda *_args, **_named: Sqs())
    found = Secrets()
    monkeypatch.setattr(access_runtime, "secret", found)
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/dispatch"
    runtime.use(make_runtime(authorizer="none", dispatch_queue=url, egress_hosts=("*",)))
    return found


def endpoint(kind: str, url: str = URL, **fields: Any) -> dict[str, Any]:
    path = "/ojs/v1/admin/deliveries/hooks"
    body = {"target": {"endpoint": url}, "queues": ["hooks"], **fields}
    found = event(kind, "delivery hooks", "PUT", path, body)
    found["ResourceProperties"]["Set"]["Secrets"] = {"signing_secret": SECRET}
    found["ResourceProperties"]["TakeBack"] = {"Method": "DELETE", "Path": path}
    return found


def hooks() -> Any:
    return runtime.current().deliveries.get("hooks")


@pytest.mark.usefixtures("secrets")
def test_an_endpoint_is_declared_with_its_secret() -> None:
    # CloudFormation may ask twice.
    for _ in range(2):
        outcome = declare.run(endpoint("Create", concurrency=5), None)
        assert (outcome.physical_id, outcome.data) == ("delivery hooks", {})
    found = hooks()
    assert (found.endpoint, found.queues, found.concurrency) == (URL, ("hooks",), 5)
    assert found.signing_secrets == ("whsec_of_today_for_the_hooks",)


def test_a_change_of_an_endpoint_reads_the_secret_anew(secrets: Secrets) -> None:
    declare.run(endpoint("Create", concurrency=5), None)
    runtime.current().deliveries.pause("hooks")
    secrets.values[SECRET] = "whsec_of_tomorrow_for_the_hooks"
    other = "https://other.example.com/"
    declare.run(endpoint("Update", other, timeout_ms=5_000, job_types=["mail.send"]), None)
    found = hooks()
    # It replaces the whole configuration: what the app does not say has its default.
    assert (found.endpoint, found.concurrency, found.timeout_ms) == (other, 10, 5_000)
    assert (found.job_types, found.paused) == (("mail.send",), False)
    assert found.signing_secrets == ("whsec_of_tomorrow_for_the_hooks",)


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://hooks.example.com/", "must use https"),
        ("https://169.254.169.254/latest", "must have a public address"),
        ("https://10.0.0.1/", "must have a public address"),
        ("https://localhost/", "must have a public address"),
        ("https://2130706433/", "must have a public address"),
        ("https://[fd00:ec2::254]/", "must have a public address"),
    ],
)
def test_an_endpoint_inside_fails_the_deployment_and_changes_nothing(url: str, told: str) -> None:
    with pytest.raises(declare.Refused, match=rf"422 .*{told}"):
        declare.run(endpoint("Create", url), None)
    with pytest.raises(NotFound):
        hooks()
    declare.run(endpoint("Create"), None)
    with pytest.raises(declare.Refused, match=told):
        declare.run(endpoint("Update", url, concurrency=5), None)
    assert (hooks().endpoint, hooks().concurrency) == (URL, 10)


@pytest.mark.parametrize("value", [None, ""])
def test_an_endpoint_whose_secret_has_no_value_fails_the_deployment(
    secrets: Secrets, value: str | None
) -> None:
    secrets.values[SECRET] = value
    with pytest.raises(declare.Refused, match="signing_secret: the secret must have a value"):
        declare.run(endpoint("Create"), None)
    with pytest.raises(NotFound):
        hooks()


def test_a_secret_that_is_refused_is_not_told(secrets: Secrets) -> None:
    secrets.values[SECRET] = "short"
    with pytest.raises(declare.Refused, match="signing_secret") as refused:
        declare.run(endpoint("Create"), None)
    assert "'short'" not in str(refused.value)


@pytest.mark.usefixtures("secrets")
def test_an_endpoint_that_is_declared_no_longer_is_not_pushed_to() -> None:
    declare.run(endpoint("Create"), None)
    # Somebody else may have taken it back by then.
    for _ in range(2):
        declare.run(endpoint("Delete"), None)
        with pytest.raises(NotFound):
            hooks()
    assert runtime.current().queues.get("hooks") is not None


@pytest.mark.usefixtures("secrets")
def test_a_queue_that_another_delivery_serves_fails_the_deployment() -> None:
    declare.run(endpoint("Create"), None)
    other = endpoint("Create")
    other["ResourceProperties"]["Set"]["Path"] = "/ojs/v1/admin/deliveries/other"
    with pytest.raises(declare.Refused, match=r"409 .*served by delivery 'hooks'"):
        declare.run(other, None)
