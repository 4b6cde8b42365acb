"""What a deployment does first: the table's schema, and the first key."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from functions.setup.handler import handler as run_setup
from ojs import access_runtime
from ojs.clock import ManualClock
from ojs.domain.access import ALL_SCOPES, ANYBODY, Credential, KeyMac
from ojs.domain.delivery.delivery import Delivery
from ojs.runtime import Runtime
from ojs.services.operations.authentication import Authentication
from ojs.services.operations.setup import FIRST_KEY_NAME, Setup, SetupError
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.deployment.secrets import Secret
from ojs.store.table import clients
from ojs.store.table.schema import NEEDED_VERSION, SCHEMA_VERSION

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


class Died(Exception):
    """The function is gone."""


class Kept:
    """A secret in memory, and a table, whose user dies at one of the calls."""

    def __init__(self) -> None:
        self.once = True
        self.text: str | None = None
        self.calls = 0
        self.dies_at: int | None = None

    def step(self) -> None:
        self.calls += 1
        if self.dies_at is not None and self.calls == self.dies_at:
            raise Died

    def read(self) -> str | None:
        self.step()
        return self.text

    def write_once(self, text: str, _token: str) -> str:
        self.step()
        self.text = (self.text if self.once else None) or text
        self.step()
        return self.text


class Deployed:
    """A deployment on an empty table."""

    def __init__(self, runtime: Runtime, clock: ManualClock) -> None:
        self.runtime = runtime
        self.clock = clock
        self.keys = AccessKeyStore(runtime.table)
        self.deployment = DeploymentStore(runtime.table)

    def setup(self, version: str = "1") -> Setup:
        deliveries = self.runtime.stores.deliveries
        return Setup(self.deployment, self.keys, deliveries, self.clock, version=version)

    def who(self, key: str | None) -> str | None:
        principal = Authentication(self.keys, self.clock).who(f"Bearer {key}")
        return None if principal is None else principal.name


@pytest.fixture
def deployed(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Deployed:
    return Deployed(make_runtime(), clock)


def test_the_first_key_may_do_everything(deployed: Deployed) -> None:
    secret = Kept()
    deployed.setup().check_table()
    key_id = deployed.setup().leave_first_key(secret)
    key = deployed.keys.get(key_id)
    assert key is not None
    assert (key.name, key.scopes, key.queues) == (FIRST_KEY_NAME, ALL_SCOPES, None)
    assert deployed.who(secret.text) == FIRST_KEY_NAME
    # The next deployment finds it.
    assert deployed.setup("2").leave_first_key(secret) == key_id
    assert len(deployed.keys.list(limit=10).items) == 1


def test_whoever_dies_in_between_does_it_again(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each call of the secret and of the table: in the end one key, which is the secret's."""
    deployed.setup().check_table()
    died = 0
    for dies_at in range(1, 20):
        secret = Kept()
        secret.dies_at = dies_at
        table = deployed.runtime.table
        put, update = table.put, table.update

        def stepping(act: Any, secret: Kept = secret) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                secret.step()
                answer = act(*given, **named)
                secret.step()
                return answer

            return call

        with monkeypatch.context() as patch:
            patch.setattr(table, "put", stepping(put))
            patch.setattr(table, "update", stepping(update))
            try:
                deployed.setup().leave_first_key(secret)
            except Died:
                died += 1
        before = {key.id for key in deployed.keys.list(limit=100).items}
        secret.dies_at = None
        key_id = deployed.setup().leave_first_key(secret)
        assert deployed.who(secret.text) == FIRST_KEY_NAME
        after = {key.id for key in deployed.keys.list(limit=100).items}
        # No key is there that no secret tells.
        assert after - before <= {key_id}
        deployed.runtime.access_keys.revoke(ANYBODY, key_id)
    assert died >= 6


def test_a_revoked_first_key_does_not_come_back(deployed: Deployed, dynamodb: Any) -> None:
    secret = Kept()
    deployed.setup().check_table()
    key_id = deployed.setup().leave_first_key(secret)
    deployed.runtime.access_keys.revoke(ANYBODY, key_id)
    deployed.setup("2").leave_first_key(secret)
    assert deployed.who(secret.text) is None
    # Nor when the table has forgotten it.
    dynamodb.delete_item(
        TableName=deployed.runtime.table.name,
        Key={"pk": {"S": f"A|{key_id}"}, "sk": {"S": "@"}},
    )
    deployed.setup("3").leave_first_key(secret)
    assert deployed.who(secret.text) is None


@pytest.mark.parametrize("upgraded", [False, True])
def test_keys_without_a_mac_work_90_days_after_the_upgrade(
    deployed: Deployed, upgraded: bool
) -> None:
    if upgraded:
        deployed.setup("0.2.1").check_table()
    began_ms = deployed.clock.now_ms()
    mac = deployed.setup("1").prepare_keys()
    deployed.setup("1").check_table()
    days = 90 if upgraded else 0
    assert mac.old_until_ms == began_ms + days * 86_400_000
    # A later deployment, or one that is repeated, does not put it off.
    deployed.clock.advance(86_400_000)
    deployed.keys = AccessKeyStore(deployed.runtime.table)
    assert deployed.setup("2").prepare_keys() == mac


def test_a_first_key_of_before_stays_as_it_is(deployed: Deployed) -> None:
    """So that a deployment can go back: an earlier version knows keys without a MAC alone."""
    deployed.setup("0.2.1").check_table()
    secret = Kept()
    secret.text = old = Credential("1" * 16, "2" * 64).text
    deployed.setup().leave_first_key(secret)
    assert secret.text == old
    assert deployed.who(old) == FIRST_KEY_NAME


def test_an_operator_puts_another_first_key_into_the_secret(deployed: Deployed) -> None:
    secret = Kept()
    deployed.setup().check_table()
    first = deployed.setup().leave_first_key(secret)
    holder = deployed.keys.get(first)
    assert holder is not None
    key, made = deployed.runtime.access_keys.create(holder.principal, "first", ALL_SCOPES)
    secret.text = f"{made.text}\n"
    for _ in range(2):
        assert deployed.setup("2").leave_first_key(secret) == key.id
    assert deployed.who(made.text) == "first"
    # It stays what it was: made by the one before, and revoked if it is.
    assert deployed.keys.get(key.id) == replace(key, used_ms=deployed.clock.now_ms())
    noted = deployed.deployment.read()
    assert noted is not None
    assert noted.first_key == key.id


def test_a_first_key_of_another_table_gets_the_mac_of_this_one(deployed: Deployed) -> None:
    secret = Kept()
    other = KeyMac("0" * 64, 0).sign(Credential("1" * 16, "2" * 64))
    secret.text = other.text
    secret.once = False
    deployed.setup().leave_first_key(secret)
    assert secret.text != other.text
    assert (deployed.who(secret.text), deployed.who(other.text)) == (FIRST_KEY_NAME, None)


@pytest.mark.parametrize("text", ["x", "ojs_", '{"key": "ojs"}', "password"])
def test_a_secret_that_is_no_key_ends_the_deployment(text: str, deployed: Deployed) -> None:
    secret = Kept()
    secret.text = text
    with pytest.raises(SetupError, match="must contain a valid key"):
        deployed.setup().leave_first_key(secret)
    assert deployed.keys.list(limit=10).items == []


def test_an_id_that_is_taken_ends_the_deployment(deployed: Deployed) -> None:
    _, credential = deployed.runtime.access_keys.create(ANYBODY, "other", ["work"])
    secret = Kept()
    secret.text = Credential(credential.id, "0" * 64).text
    with pytest.raises(SetupError, match="the id of a different key"):
        deployed.setup().leave_first_key(secret)


def test_the_schema_is_noted(deployed: Deployed) -> None:
    assert deployed.deployment.read() is None
    deployed.setup().check_table()
    noted = deployed.deployment.read()
    assert noted is not None
    assert (noted.schema, noted.needs) == (SCHEMA_VERSION, NEEDED_VERSION)


def test_code_that_is_too_old_is_refused(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ojs.store.deployment.notes.NEEDED_VERSION", 3)
    deployed.setup("9").check_table(schema=3)
    with pytest.raises(SetupError, match="schema 2, but the table has schema 3"):
        deployed.setup("8").check_table(schema=2)
    noted = deployed.deployment.read()
    assert noted is not None
    assert noted.schema == 3
    # The way back to code that still knows the table stays open.
    deployed.setup("9").check_table(schema=4)
    deployed.setup("9").check_table(schema=3)


def test_code_that_reads_no_lease_notes_is_refused(deployed: Deployed) -> None:
    """Its sweep would not find leases of the last minute that are lost."""
    deployed.setup("9").check_table()
    with pytest.raises(SetupError, match="schema 3, but the table has schema 4"):
        deployed.setup("0.2.1").check_table(schema=3)


# --- CloudFormation -------------------------------------------------------------------------------


@pytest.fixture
def told() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Where CloudFormation wants its answer, and what it got."""
    answers: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answers.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/answer", answers
    server.shutdown()
    thread.join()
    server.server_close()


def event(url: str, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "RequestType": kind,
        "ResponseURL": url,
        "StackId": "stack",
        "RequestId": "request",
        "LogicalResourceId": "Setup",
        "ResourceProperties": {"Version": "1"},
        **more,
    }


@pytest.fixture
def secrets() -> Iterator[SecretsManagerClient]:
    with mock_aws():
        clients._session.cache_clear()  # it may be older than moto, which would not hear of it
        yield boto3.client("secretsmanager", region_name="us-east-1")


def test_cloudformation_is_answered(
    deployed: Deployed,
    told: tuple[str, list[dict[str, Any]]],
    secrets: SecretsManagerClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, answers = told
    arn = secrets.create_secret(Name=uuid.uuid4().hex)["ARN"]
    monkeypatch.setattr(access_runtime, "setup", deployed.setup)
    monkeypatch.setattr(access_runtime, "first_key", lambda: Secret(secrets, arn))
    run_setup(event(url, "Create"), None)
    (answer,) = answers
    assert answer["Status"] == "SUCCESS"
    assert (answer["StackId"], answer["RequestId"]) == ("stack", "request")
    text = secrets.get_secret_value(SecretId=arn)["SecretString"]
    assert deployed.who(text) == FIRST_KEY_NAME
    assert answer["Data"] == {"FirstKeyId": text.split("_")[1]}
    run_setup(event(url, "Update", PhysicalResourceId="ojs-setup"), None)
    assert answers[1]["Status"] == "SUCCESS"
    assert secrets.get_secret_value(SecretId=arn)["SecretString"] == text
    # The key itself is neither answered nor logged.
    assert text.split("_")[2] not in json.dumps(answers) + capsys.readouterr().out


class Invocation:
    """The context of a call."""

    def __init__(self) -> None:
        self.aws_request_id = str(uuid.uuid4())


def test_terraform_declares_a_key_that_changes_and_goes(
    deployed: Deployed, secrets: SecretsManagerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    arn = secrets.create_secret(Name=uuid.uuid4().hex)["ARN"]
    monkeypatch.setattr(access_runtime, "setup", deployed.setup)
    monkeypatch.setattr(access_runtime, "secret", lambda arn: Secret(secrets, arn))
    wanted = {"ResourceType": "Custom::OjsKey", "Secret": arn, "Name": "web", "Scopes": ["work"]}
    narrower = {**wanted, "Queues": ["mail"]}

    def call(action: str, asked: Any, former: Any = None) -> Any:
        return run_setup({**asked, "tf": {"action": action, "prev_input": former}}, Invocation())

    def active() -> list[str]:
        found = deployed.keys.list(limit=10).items
        return [each.id for each in found if each.revoked_ms is None]

    def value() -> str:
        return str(secrets.get_secret_value(SecretId=arn)["SecretString"])

    call("create", wanted)
    # The answer was lost, and Terraform calls again: the first key opens nothing.
    answer = call("create", wanted)
    assert active() == [answer["Id"]] == [value().split("_")[1]]
    assert value().split("_")[2] not in json.dumps(answer)

    # It crashes after the new key, before the former one is revoked.
    with monkeypatch.context() as crashing:
        crashing.setattr(Setup, "take_back_key", lambda _, key_id: 1 / (key_id != answer["Id"]))
        with pytest.raises(ZeroDivisionError):
            call("update", narrower, wanted)
    assert len(active()) == 2
    changed = call("update", narrower, wanted)
    assert active() == [changed["Id"]]
    (key,) = (each for each in deployed.keys.list(limit=10).items if each.id == changed["Id"])
    assert key.queues == ("mail",)

    with pytest.raises(SetupError, match="Unknown scope: all"):
        call("update", {**wanted, "Scopes": ["all"]}, narrower)
    assert active() == [changed["Id"]]
    for _ in range(2):
        call("delete", narrower, narrower)
        assert active() == []

    # Something else was put into the secret, and replaced by a key later.
    last = value()
    secrets.put_secret_value(SecretId=arn, SecretString="password")
    with pytest.raises(ValueError, match="must be empty, or contain a valid key"):
        call("create", wanted)
    assert value() == "password"
    secrets.put_secret_value(SecretId=arn, SecretString=last)
    call("create", wanted)
    assert active() == [value().split("_")[1]]


def test_cloudformation_learns_of_a_failure(
    deployed: Deployed,
    told: tuple[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, answers = told
    secret = Kept()
    secret.text = "no key at all"
    monkeypatch.setattr(access_runtime, "setup", deployed.setup)
    monkeypatch.setattr(access_runtime, "first_key", lambda: secret)
    run_setup(event(url, "Create"), None)
    assert answers[0]["Status"] == "FAILED"
    assert answers[0]["PhysicalResourceId"]
    assert "SetupError" in answers[0]["Reason"]
    assert "no key at all" not in answers[0]["Reason"]


def test_an_upgrade_that_would_stop_deliveries_ends_before_it_notes_anything(
    deployed: Deployed,
    told: tuple[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, answers = told
    deliveries = deployed.runtime.stores.deliveries
    made = Delivery("mail", queues=("mail",), endpoint="https://a.example/jobs", created_ms=0)
    deliveries.save(None, made, deliveries.directory())
    monkeypatch.setattr(access_runtime, "setup", deployed.setup)
    monkeypatch.setattr(access_runtime, "first_key", lambda: None)
    for hosts, push, status, reason in (
        ("", "true", "FAILED", "a.example, but the setting egress_hosts allows no host"),
        ("a.example", "false", "FAILED", "mail are active, but push=false would stop them"),
        ("a.example", "true", "SUCCESS", ""),
    ):
        assert deployed.deployment.read() is None
        monkeypatch.setenv("OJS_EGRESS_HOSTS", hosts)
        monkeypatch.setenv("OJS_PUSH", push)
        run_setup(event(url, "Update", PhysicalResourceId="ojs-setup"), None)
        assert answers[-1]["Status"] == status
        assert reason in answers[-1].get("Reason", "")
    assert deployed.deployment.read() is not None


def test_an_update_does_not_go_on_with_an_empty_table(
    deployed: Deployed,
    told: tuple[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ID of the storage was renamed, or the storage was moved to another stack."""
    url, answers = told
    monkeypatch.setattr(access_runtime, "setup", deployed.setup)
    monkeypatch.setattr(access_runtime, "first_key", lambda: None)
    monkeypatch.setenv("OJS_TABLE", "new")

    def update(former: str, **more: str) -> str:
        named = {"PhysicalResourceId": "ojs-setup", "OldResourceProperties": {"Table": former}}
        properties = {"Version": "1", "Table": "new", **more}
        run_setup(event(url, "Update", ResourceProperties=properties, **named), None)
        return str(answers[-1]["Status"])

    assert update("old") == update("old", ReplaceTable="older") == "FAILED"
    assert "The table new is new, and would replace old" in answers[-1]["Reason"]
    assert "set replace_table=old" in answers[-1]["Reason"]
    assert deployed.deployment.read() is None, "the next attempt fails, too"
    assert update("old", ReplaceTable="old") == "SUCCESS"
    # From now on a deployment has used it: so a rollback, and a restored table, are accepted.
    assert update("old") == update("new") == "SUCCESS"


def test_deletion_changes_nothing(
    told: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, answers = told
    monkeypatch.delattr(access_runtime, "setup")
    run_setup(event(url, "Delete", PhysicalResourceId="ojs-setup"), None)
    assert answers[0] | {"Data": {}} == answers[0]
    assert answers[0]["Status"] == "SUCCESS"


def key_event(url: str, kind: str, request: str, **wanted: Any) -> dict[str, Any]:
    properties = {"Secret": "arn", "Name": "sender", "Scopes": ["work"], **wanted}
    named = {"ResourceType": "Custom::OjsKey", "ResourceProperties": properties}
    return event(url, kind, **named) | {"RequestId": request}


def test_a_declared_key_goes_to_its_secret_and_is_revoked_with_it(
    deployed: Deployed,
    told: tuple[str, list[dict[str, Any]]],
    secrets: SecretsManagerClient,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, answers = told
    arn = secrets.create_secret(Name=uuid.uuid4().hex)["ARN"]
    monkeypatch.setattr(access_runtime, "setup", deployed.setup)
    monkeypatch.setattr(access_runtime, "secret", lambda _arn: Secret(secrets, arn))

    def text() -> str:
        return secrets.get_secret_value(SecretId=arn)["SecretString"]

    made = "a" * 36
    # Lambda repeats a call that failed: there is one key all the same.
    for _ in range(2):
        run_setup(key_event(url, "Create", made, Queues=["mail"]), None)
    first = text()
    assert [each["Status"] for each in answers] == ["SUCCESS"] * 2
    assert {each["PhysicalResourceId"] for each in answers} == {first.split("_")[1]}
    principal = Authentication(deployed.keys, deployed.clock).who(f"Bearer {first}")
    assert principal is not None
    assert (principal.name, principal.scopes, principal.queues) == (
        "sender", frozenset({"work"}), ("mail",),
    )  # fmt: skip
    # With other scopes it is another key; CloudFormation then deletes the one before.
    known = answers[0]["PhysicalResourceId"]
    changed = key_event(url, "Update", "b" * 36, Scopes=["work", "jobs:read"])
    run_setup({**changed, "PhysicalResourceId": known}, None)
    second = text()
    assert answers[2]["PhysicalResourceId"] == second.split("_")[1] != known
    assert deployed.who(first) == deployed.who(second) == "sender"
    for _ in range(2):
        run_setup({**key_event(url, "Delete", "c" * 36), "PhysicalResourceId": known}, None)
    assert (deployed.who(first), deployed.who(second)) == (None, "sender")
    assert first.split("_")[2] not in json.dumps(answers) + capsys.readouterr().out


def test_a_key_with_a_scope_that_there_is_not_is_refused(
    deployed: Deployed,
    told: tuple[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, answers = told
    secret = Kept()
    monkeypatch.setattr(access_runtime, "setup", deployed.setup)
    monkeypatch.setattr(access_runtime, "secret", lambda _arn: secret)
    run_setup(key_event(url, "Create", "a" * 36, Scopes=["works"]), None)
    assert answers[0]["Status"] == "FAILED"
    assert "Unknown scope: works." in answers[0]["Reason"]
    assert secret.text is None
    # What could not be made is deleted by a name that no key has.
    unmade = answers[0]["PhysicalResourceId"]
    run_setup({**key_event(url, "Delete", "b" * 36), "PhysicalResourceId": unmade}, None)
    assert answers[1]["Status"] == "SUCCESS"


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_key_is_made_once_however_often_it_dies(deployed: Deployed, dies_at: int) -> None:
    secret = Kept()
    secret.dies_at = dies_at

    def leave() -> str:
        return deployed.setup().leave_key(
            secret, token="a" * 36, name="sender", scopes=["work"], queues=None
        )

    with pytest.raises(Died):
        leave()
    key_id = leave()
    assert secret.text is not None
    assert deployed.who(secret.text) == "sender"
    assert [key.id for key in deployed.keys.list(limit=10).items] == [key_id]


def test_one_value_for_a_secret(secrets: SecretsManagerClient) -> None:
    """Two deployments at once: the second takes the first's key."""
    secret = Secret(secrets, secrets.create_secret(Name=uuid.uuid4().hex)["ARN"])
    assert secret.read() is None
    first, second = (Credential.make(os.urandom).text for _ in range(2))
    token = "x" * 32
    assert secret.write_once(first, token) == first
    assert secret.write_once(second, token) == first
    assert secret.read() == first
