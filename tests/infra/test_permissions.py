"""Roles against code: each function may do what it does, and nothing else.

Three things must agree: the table in `ojs_aws.cdk.functions`, the roles in the template, and the
calls that the code makes. The calls are recorded inside the SDK while every operation of the HTTP
contract, a sweep over everything time can decide, the stream of all that, and the step before a
deployment run through the real handlers.
"""

from __future__ import annotations

import importlib
import json
import os
import uuid
from collections import defaultdict
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from io import BytesIO
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch
from zipfile import ZipFile

import boto3
import pytest
from moto import mock_aws

from functions.custom_resource import Outcome
from functions.setup import handler as setup
from local.dynamodb import connect_to_streams
from local.stream import TableStream
from ojs import access_runtime, runtime
from ojs.api import operations as contract
from ojs.clock import ManualClock
from ojs.domain import times
from ojs.domain.access import Credential, Principal
from ojs.domain.errors import BackendUnavailable
from ojs.domain.events.event import Event
from ojs.domain.realtime import DirectoryEntries, Listener, Posted
from ojs.domain.webhooks import delivery_id
from ojs.http import endpoint
from ojs.projections import EventBridge
from ojs.services.operations.authentication import Authentication
from ojs.services.operations.origin import HEADER, OriginGuard
from ojs.services.operations.setup import Setup
from ojs.services.workflows.advance import WorkflowAdvance
from ojs.settings import Settings
from ojs.store.deliveries.deliveries import DeliveryStore
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.deployment.secrets import Secret
from ojs.store.jobs import staged_batches
from ojs.store.jobs.blobs import S3Blobs
from ojs.store.jobs.reading import JobReader
from ojs.store.table import clients, keys
from ojs.store.table.schema import create_table_arguments
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, unpack
from ojs.targets.connections import ApiGatewayConnections
from ojs_aws.cdk.functions import (
    DASHBOARD,
    FUNCTIONS,
    QUEUE_SOURCE,
    QUEUES,
    STREAM_SOURCE,
    by_name,
    deployed,
)
from ojs_aws.cdk.parts.storage import KEY_USE
from tests.direct import connected
from tests.simulation.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient


# To do everything that there is takes seconds, and all that follows is worked out from it.
pytestmark = pytest.mark.exhaustive

BUCKET = "payloads"
PUSHED_TO = "arn:aws:lambda:us-east-1:123456789012:function:work"
WORKER = "worker-1"
TABLE_RESOURCE = "table"

# (resource, IAM action): the resource is `table`, `index/<name>`, `payloads`, `bucket`, `stream`,
# `bus`, `failures`, `secret`, `origin`, `queue/<name>`, `targets` or `connections`.
Grant = tuple[str, str]
GRANTED = frozenset({"dynamodb", "events", "execute-api", "lambda", "s3", "secretsmanager", "sqs"})
# Services of which functions know one resource, and the prefix of their actions.
ONE_OF_EACH = {
    "apigatewaymanagementapi": ("connections", "execute-api"),
    "events": ("bus", "events"),
    "lambda": ("targets", "lambda"),
    "secretsmanager": ("secret", "secretsmanager"),
}
# SDK operations that another action allows.
ALLOWED_BY = {
    "Invoke": "InvokeFunction",
    "PostToConnection": "ManageConnections",
    "SendMessageBatch": "SendMessage",
}
# Done by the event source mapping, as the function's role: to read, and to say what it gave up.
MAPPING: frozenset[Grant] = frozenset(
    {
        *(("stream", f"dynamodb:{action}") for action in STREAM_SOURCE),
        ("failures", "sqs:SendMessage"),
    }
)


# --- what the template allows ------------------------------------------------------------------


def granted_by_table(name: str) -> set[Grant]:
    access = by_name(name).access
    return (
        {(TABLE_RESOURCE, f"dynamodb:{action}") for action in access.table}
        | {
            (f"index/{index}", f"dynamodb:{action}")
            for index, actions in access.indexes.items()
            for action in actions
        }
        | {("payloads", f"s3:{action}") for action in access.payloads}
        | {("bucket", f"s3:{action}") for action in access.bucket}
        | {("stream", f"dynamodb:{action}") for action in access.stream}
        | {("bus", f"events:{action}") for action in access.bus}
        | {("failures", f"sqs:{action}") for action in access.failures}
        | {("queue/webhooks", f"sqs:{action}") for action in access.webhooks}
        | {("secret", f"secretsmanager:{action}") for action in access.secret}
        | {("origin", f"secretsmanager:{action}") for action in access.origin}
        | {
            (f"queue/{queue}", f"sqs:{action}")
            for queue, actions in access.queues.items()
            for action in actions
        }
        | {("targets", f"lambda:{action}") for action in access.targets}
        | {("connections", f"execute-api:{action}") for action in access.connections}
    )


def statements_of(synthesis: Any, name: str) -> list[dict[str, Any]]:
    """All statements of all policies of a function's role."""
    (role,) = (
        properties["Role"]["Fn::GetAtt"][0]
        for properties in synthesis.resources("AWS::Lambda::Function").values()
        if properties["Handler"] == by_name(name).handler
    )
    assert "ManagedPolicyArns" not in synthesis.resources("AWS::IAM::Role")[role]
    assert "Policies" not in synthesis.resources("AWS::IAM::Role")[role]
    return [
        statement
        for policy in synthesis.resources("AWS::IAM::Policy").values()
        if {"Ref": role} in policy["Roles"]
        for statement in policy["PolicyDocument"]["Statement"]
    ]


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def resource_of(arn: Any) -> str:
    """What an ARN in the template stands for; fails for anything that no function should name."""
    text = json.dumps(arn)
    if isinstance(arn, dict) and "Fn::GetAtt" in arn:
        owner, attribute = arn["Fn::GetAtt"]
        if owner.startswith("OriginSecret"):
            return "origin"
        assert attribute == "Arn"
        return {
            "EventsBus": "bus",
            "StreamFailuresQueue": "failures",
            **{f"PushQueues{each.capitalize()}": f"queue/{each}" for each in QUEUES},
        }[owner[:-8]]
    if isinstance(arn, str) and arn.removesuffix(":*").endswith(":function:thumbnails"):
        return "targets"
    if "RealtimeApi" in text:
        assert arn["Fn::Join"][1][-1] == "/ojs/POST/@connections/*"
        return "connections"
    if "StorageTable" in text and "StreamArn" in text:
        assert "Fn::Join" not in arn
        return "stream"
    if "StorageTable" in text:
        if isinstance(arn, dict) and "Fn::Join" in arn:
            return str(arn["Fn::Join"][1][-1]).removeprefix("/")
        return TABLE_RESOURCE
    if "StorageFirstKey" in text:
        assert "Fn::Join" not in arn
        return "secret"
    assert "StoragePayloads" in text, f"unexpected resource {text}"
    if isinstance(arn, dict) and "Fn::Join" in arn:
        assert arn["Fn::Join"][1][-1] == "/*"
        return "payloads"
    return "bucket"


def allowed_by_template(synthesis: Any, name: str) -> set[Grant]:
    return {
        (resource_of(arn), action)
        for statement in statements_of(synthesis, name)
        for action in as_list(statement["Action"])
        for arn in as_list(statement["Resource"])
        if action.split(":")[0] in GRANTED
    }


UNPUSHED = [spec.name for spec in deployed("keys")]


@pytest.mark.parametrize("name", UNPUSHED)
def test_role_allows_exactly_what_the_table_says(synthesis: Any, name: str) -> None:
    allowed = allowed_by_template(synthesis, name)
    assert allowed == granted_by_table(name) - asked_for(name, "queue", "target", "origin")
    assert not {"dispatch", "sender", "outcomes"} & set(UNPUSHED)


@pytest.mark.parametrize("name", UNPUSHED)
def test_behind_a_firewall_it_does_too(with_waf: Any, name: str) -> None:
    allowed = allowed_by_template(with_waf, name)
    assert allowed == granted_by_table(name) - asked_for(name, "queue", "target")


def asked_for(name: str, *resources: str) -> set[Grant]:
    """What a function is granted of resources that are there only if they are asked for."""
    return {grant for grant in granted_by_table(name) if grant[0].startswith(resources)}


KEYLESS = [spec.name for spec in deployed("jwt", push=True)]


@pytest.mark.parametrize("name", KEYLESS)
def test_without_keys_and_with_push_it_does_too(with_jwt: Any, name: str) -> None:
    allowed = allowed_by_template(with_jwt, name)
    assert allowed == granted_by_table(name) - asked_for(name, "secret", "origin", "queue/webhooks")
    assert "authorizer" not in KEYLESS


class _Touched:
    """A table in memory that remembers the partitions of the items that were touched."""

    def __init__(self) -> None:
        self.partitions: set[str] = set()
        self._memory = Memory()

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            key = arguments["Item"] if name == "put_item" else arguments["Key"]
            self.partitions.add(str(unpack(key)["pk"]))
            return getattr(self._memory, name)(arguments)

        return call


def test_who_looks_keys_up_touches_nothing_but_keys(synthesis: Any) -> None:
    """And a deployment's step nothing but keys and its own notes."""
    clock, touched = ManualClock(), {name: _Touched() for name in ("authorizer", "setup")}
    table = Table(cast("Any", touched["setup"]), "table")
    setup = Setup(
        DeploymentStore(table), AccessKeyStore(table), DeliveryStore(table), clock, version="1"
    )
    setup.check_deliveries((), push=True)
    DeliveryStore(table).get("posted")  # as for each delivery that there is
    setup.check_table()
    setup.leave_first_key(_Secret())
    table = Table(cast("Any", touched["authorizer"]), "table")
    key = Credential("0" * 16, "0" * 64).text
    Authentication(AccessKeyStore(table), clock).who(f"Bearer {key}")
    for name, client in touched.items():
        (statement,) = (
            each for each in statements_of(synthesis, name) if each.get("Sid") == "Table"
        )
        ((how, condition),) = statement["Condition"].items()
        assert how == "ForAllValues:StringLike"
        allowed = as_list(condition["dynamodb:LeadingKeys"])
        for pattern in allowed:
            assert any(fnmatchcase(each, pattern) for each in client.partitions), pattern
        for each in client.partitions:
            assert any(fnmatchcase(each, pattern) for pattern in allowed), each
        assert "*" not in allowed


class _Secret:
    """A secret that has no value at first."""

    def read(self) -> str | None:
        return None

    def write_once(self, text: str, token: str) -> str:
        return text


OPEN = {spec.name for spec in FUNCTIONS if spec.open}


@pytest.mark.parametrize(
    ("made", "name"),
    [
        *(("with_waf", name) for name in UNPUSHED if name not in OPEN),
        *(("with_jwt", name) for name in KEYLESS if name not in OPEN),
    ],
)
def test_an_encryption_key_is_used_through_what_is_encrypted(
    request: pytest.FixtureRequest, made: str, name: str
) -> None:
    synthesis = request.getfixturevalue(made)
    (statement,) = (
        each for each in statements_of(synthesis, name) if "kms:Decrypt" in as_list(each["Action"])
    )
    assert statement["Action"] == [f"kms:{action}" for action in sorted(KEY_USE)]
    assert "StorageEncryptionKey" in statement["Resource"]["Fn::ImportValue"]
    services = {action.split(":")[0] for _, action in allowed_by_template(synthesis, name)} - {
        "events",
        "execute-api",
        "lambda",
    }
    ((how, condition),) = statement["Condition"].items()
    through = [
        each if isinstance(each, str) else f"{each['Fn::Join'][1][0]}eu-central-1.amazonaws.com"
        for each in as_list(condition["kms:ViaService"])
    ]
    assert how == "StringEquals"
    assert through == [f"{service}.eu-central-1.amazonaws.com" for service in sorted(services)]


@pytest.mark.parametrize("name", UNPUSHED)
def test_no_role_holds_anything_wider(synthesis: Any, name: str) -> None:
    statements = statements_of(synthesis, name)
    assert all(statement["Effect"] == "Allow" for statement in statements)
    actions = {action for statement in statements for action in as_list(statement["Action"])}
    assert not [action for action in actions if "*" in action]
    # Besides what it is granted: its own log group.
    others = {action for action in actions if action.split(":")[0] not in GRANTED}
    assert others == {"logs:CreateLogStream", "logs:PutLogEvents"}
    for statement in statements:
        assert statement["Resource"] != "*"
        if "logs:PutLogEvents" in as_list(statement["Action"]):
            (group, attribute) = statement["Resource"]["Fn::GetAtt"]
            assert attribute == "Arn"
            assert group in synthesis.resources("AWS::Logs::LogGroup")


# --- what the code does ------------------------------------------------------------------------


@dataclass
class Recorder:
    """Collects, by function, the grants that SDK calls need."""

    needed: dict[str, set[Grant]] = field(default_factory=lambda: defaultdict(set))
    function: str | None = None

    def listen(self, client: Any) -> None:
        """Hear of every call of this client, before it is sent."""
        client.meta.events.register("before-parameter-build", self._heard)

    def listening(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Makes clients that are listened to."""

        def made(*args: Any, **kwargs: Any) -> Any:
            client = make(*args, **kwargs)
            self.listen(client)
            return client

        return made

    def _heard(self, model: Any, params: Mapping[str, Any], **_: Any) -> None:
        if self.function is not None:
            service = model.service_model.service_name
            self.needed[self.function] |= set(grants_needed(service, model.name, params))


def grants_needed(service: str, operation: str, params: Mapping[str, Any]) -> Iterator[Grant]:
    """What IAM checks for one SDK call.

    - Transactions have no action of their own: each part is checked as the single call would be.
    - A query of an index is checked on the index, not on the table.
    - Without ListBucket S3 answers 403 instead of 404 for an object that is not there.
    """
    if service == "s3":
        yield from _grants_of_s3(operation)
    elif service == "sqs":
        queue = str(params["QueueUrl"]).rsplit("/", 1)[-1]
        of = queue if queue == "failures" else f"queue/{queue}"
        yield of, f"sqs:{ALLOWED_BY.get(operation, operation)}"
    elif service == "secretsmanager" and ":origin-" in params["SecretId"]:
        yield "origin", f"{service}:{operation}"
    elif service in ONE_OF_EACH:
        resource, prefix = ONE_OF_EACH[service]
        yield resource, f"{prefix}:{ALLOWED_BY.get(operation, operation)}"
    elif operation == "TransactWriteItems":
        single = {
            "Put": "PutItem",
            "Update": "UpdateItem",
            "Delete": "DeleteItem",
            "ConditionCheck": "ConditionCheckItem",
        }
        for part in params["TransactItems"]:
            for kind in part:
                yield TABLE_RESOURCE, f"dynamodb:{single[kind]}"
    elif operation == "TransactGetItems":
        yield TABLE_RESOURCE, "dynamodb:GetItem"
    elif "IndexName" in params:
        yield f"index/{params['IndexName']}", f"dynamodb:{operation}"
    else:
        yield TABLE_RESOURCE, f"dynamodb:{operation}"


def _grants_of_s3(operation: str) -> Iterator[Grant]:
    if operation != "ListObjectsV2":
        yield "payloads", f"s3:{operation}"
    if operation in {"GetObject", "ListObjectsV2"}:
        yield "bucket", "s3:ListBucket"


@dataclass
class Caller:
    """Sends requests to the handlers as API Gateway would."""

    recorder: Recorder
    clock: ManualClock
    # Empties the queue of webhook deliveries. For each message sent, moto counts all of a queue.
    empty: Callable[[], Any]
    called: set[str] = field(default_factory=set)

    def __call__(
        self,
        operation_id: str,
        body: Any = None,
        *,
        at: str | None = None,
        query: Mapping[str, str] | None = None,
        status: int | None = None,
        text: bool = False,
        key: str | None = None,
        role: str | None = None,
        shown: str | None = None,
        **more: str,
    ) -> dict[str, Any]:
        """An operation's answer, parsed unless it is a text; `at` and `more` fill the path's
        parameters, `key` is an idempotency key, `role` the ARN of who signed the request, and
        `shown` what the distribution in front adds.
        """
        operation = contract.get(operation_id)
        self.called.add(operation_id)
        path = operation.path
        if operation.path_parameter is not None:
            assert at is not None
            path = path.format(**{operation.path_parameter: at}, **more)
        event: dict[str, Any] = {
            "version": "2.0",
            "routeKey": "$default",
            "rawPath": path,
            "rawQueryString": "",
            "headers": {
                "content-type": "application/openjobspec+json",
                **({"idempotency-key": key} if key else {}),
                **({HEADER: shown} if shown else {}),
            },
            "requestContext": {
                "http": {"method": operation.method, "path": path, "sourceIp": "127.0.0.1"},
                "requestId": "r",
                "stage": "$default",
            },
            "isBase64Encoded": False,
        }
        if role is not None:
            event["requestContext"]["authorizer"] = {"iam": {"userArn": role}}
        if query:
            event["queryStringParameters"] = dict(query)
        if body is not None:
            event["body"] = json.dumps(body)
        answer = self._invoke(operation.function, event)
        expected = {status} if status is not None else set(operation.answers)
        assert answer["statusCode"] in expected, f"{operation_id}: {str(answer)[:500]}"
        return json.loads(answer["body"]) if answer.get("body") and not text else {}

    def page(self, origin: OriginGuard | None) -> None:
        """The dashboard's page, or that it was not built."""
        handler = importlib.import_module(f"functions.{DASHBOARD}.handler").handler
        told = {"http": {"method": "GET"}}
        event = {"rawPath": "/ojs/admin/", "headers": {HEADER: "now"}, "requestContext": told}
        with patch.object(handler, "_origin", origin):
            assert self._invoke(DASHBOARD, event)["statusCode"] in (200, 503)

    def sweep(self) -> None:
        """What EventBridge does every minute."""
        self._invoke("sweep", {"source": "aws.events", "detail-type": "Scheduled Event"})

    def stream(self, records: Sequence[Mapping[str, Any]]) -> list[Any]:
        """What the event source mapping does; returns the failures it reports."""
        event = {"Records": records, "shardId": "shardId-1", "state": {}}
        failures: list[Any] = self._invoke("stream", event)["batchItemFailures"]
        return failures

    def authorize(self, key: str) -> dict[str, Any]:
        """What API Gateway asks before it hands on a request."""
        event = {"version": "2.0", "type": "REQUEST", "headers": {"authorization": f"Bearer {key}"}}
        found: dict[str, Any] = self._invoke("authorizer", event)["context"]
        return found

    def connect(self, connection: str, ticket: str) -> None:
        """What API Gateway does with a new connection."""
        asked = {"methodArn": "arn", "queryStringParameters": {"ticket": ticket}}
        principal = self._invoke("ticket", asked)["context"]
        self.socket(connection, "$connect", authorizer=principal)

    def socket(
        self, connection: str, route: str, message: Any = None, **context: Any
    ) -> dict[str, Any]:
        """What API Gateway does with what a client sends; the answer."""
        event = {"requestContext": {"connectionId": connection, "routeKey": route, **context}}
        answer = self._invoke("socket", {**event, "body": json.dumps(message)})
        assert answer["statusCode"] == 200
        return json.loads(answer["body"]) if "body" in answer else {}

    def notify(self, records: Sequence[Mapping[str, Any]]) -> None:
        """What the other event source mapping does."""
        self._invoke("notify", {"Records": records})

    def set_up(self) -> Outcome:
        """What CloudFormation has done in a deployment."""
        self.recorder.function = "setup"
        try:
            return setup.run({"RequestType": "Create"})
        finally:
            self.recorder.function = None

    def push(self, *, status: int | None = None, **job: Any) -> str:
        pushed = self("enqueue_job", {"type": "test.job", "args": [1], **job}, status=status)
        return str(pushed["job"]["id"]) if "job" in pushed else ""

    def fetch(self, queue: str, count: int = 1) -> list[str]:
        request = {"queues": [queue], "count": count, "worker_id": WORKER}
        return [job["id"] for job in self("fetch_jobs", request)["jobs"]]

    def claimed(self, queue: str, **job: Any) -> str:
        """A job of its own queue, pushed and fetched."""
        job_id = self.push(queue=queue, **job)
        assert self.fetch(queue) == [job_id]
        return job_id

    def push_dead(self, queue: str) -> str:
        """A dead letter of a queue."""
        job_id = self.claimed(queue)
        self("nack_job", {"job_id": job_id, "error": {"code": "DEAD_LETTER", "message": "no"}})
        return job_id

    def message(self, function: str, body: Mapping[str, Any]) -> None:
        """What the event source mapping of a queue does with one message."""
        record = {"messageId": "1", "body": json.dumps(body)}
        assert self._invoke(function, {"Records": [record]}) == {"batchItemFailures": []}

    def told(self, record: Mapping[str, Any]) -> None:
        """What Lambda does with the record of a success: it calls the function with it."""
        assert self._invoke("outcomes", record) == {"batchItemFailures": []}

    def _invoke(self, function: str, event: Mapping[str, Any]) -> Any:
        handler = importlib.import_module(f"functions.{function}.handler").handler
        self.recorder.function = function
        try:
            return handler(event, None)
        finally:
            self.recorder.function = None
            self.empty()


LARGE = "x" * 5_000  # an item of its own
INCOMPRESSIBLE = "".join(uuid.uuid4().hex for _ in range(200))
HUGE = [uuid.uuid4().hex for _ in range(12_000)]  # too large for an item: an object


@pytest.fixture(scope="module")
def recording(dynamodb: DynamoDBClient, engine_url: str) -> tuple[Recorder, set[str]]:
    """Everything the contract offers, done once: what was called, and the grants it took."""
    table = f"ojs-{uuid.uuid4().hex[:12]}"
    recorder, clock = Recorder(), ManualClock()
    with connected(engine_url) as client, mock_aws(config={"lambda": {"use_docker": False}}):
        clients._session.cache_clear()  # it may be older than moto, which would not hear of it
        client.create_table(**create_table_arguments(table, stream=True))
        recorder.listen(client)
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        recorder.listen(s3)
        boto3.client("events").create_event_bus(Name="bus")
        sqs = boto3.client("sqs")
        queue = sqs.create_queue(QueueName="failures")["QueueUrl"]
        urls = {
            name: sqs.create_queue(QueueName=name)["QueueUrl"] for name in (*QUEUES, "webhooks")
        }
        settings = Settings(
            table=table,
            bucket=BUCKET,
            bus="bus",
            failure_queue=queue,
            push_functions=(PUSHED_TO,),
            egress_hosts=("jobs.invalid",),
            dispatch_queue=urls["dispatch"],
            send_queue=urls["send"],
            outcome_queue=urls["outcomes"],
            webhook_queue=urls["webhooks"],
            realtime="all",
            socket_url="wss://live.example.com",
            socket_endpoint="https://live.execute-api.us-east-1.amazonaws.com/ojs",
        )
        before = runtime._current
        runtime.use(
            runtime.build(
                settings,
                client=client,
                blobs=S3Blobs(lambda: s3, BUCKET),
                clock=clock,
                sleep=lambda _: None,
            )
        )
        table_store = runtime.current().table
        access_runtime.use(Authentication(AccessKeyStore(table_store), clock))
        tickets = runtime.current().stores.tickets

        def empty() -> None:
            # SQS purges a queue only once a minute.
            sqs.delete_queue(QueueUrl=urls["webhooks"])
            sqs.create_queue(QueueName="webhooks")

        caller = Caller(recorder, clock, empty)
        # A worker of all queues, which is never busy.
        runtime.current().stores.listeners.add("all", Listener("worker", until_ms=times.MAX_MS))
        try:
            with (
                patch.object(clients, "client", recorder.listening(clients.client)),
                patch.object(DirectoryEntries, "groups_of", lambda *_: ["all"]),
                patch.object(access_runtime, "tickets", lambda: tickets),
            ):
                everything(caller)
            for job_record in _old_records(caller):
                # As time to live does, by another client.
                dynamodb.delete_item(TableName=table, Key=job_record)
            stream = TableStream(connect_to_streams(engine_url), table)
            with (
                patch.object(clients, "client", recorder.listening(clients.client)),
                patch.object(DirectoryEntries, "groups_of", lambda *_: ["all"]),
            ):
                _stream(caller, stream)
                _resume(caller)
                _setup(caller)
                _behind_a_firewall(caller)
            # Now there is something to measure; and then there is not.
            caller.sweep()
            caller.fetch("counted")
            assert caller.stream(stream.read()) == []
            caller.sweep()
        finally:
            runtime._current = before
            access_runtime._used.clear()
        client.delete_table(TableName=table)
    return recorder, caller.called


def everything(call: Caller) -> None:
    """Each operation, in each way that takes another path through the store."""
    _system(call)
    _enqueue(call)
    _finish(call)
    _by_job(call)
    _checkpoints(call)
    _steps(call)
    _acts(call)
    _workers(call)
    _dead_letters(call)
    _copies(call)
    _retention(call)
    _queues(call)
    _deletions(call)
    _rate_limits(call)
    _webhooks(call)
    _tenants(call)
    _schemas(call)
    _scheduling(call)
    _crons(call)
    _workflows(call)
    _time(call)
    _statistics(call)
    _keys(call)
    _roles(call)
    _push(call)
    _realtime(call)


def _system(call: Caller) -> None:
    for name in (
        "health", "root_health", "ready", "root_ready", "manifest", "openapi", "system_config",
        "system_config_alias", "list_middleware",
    ):  # fmt: skip
        call(name)
    for suffix in ("", "_alias"):
        call(f"set_maintenance{suffix}", {"enabled": True})
        call(f"get_maintenance{suffix}")
        call(f"set_maintenance{suffix}", {"enabled": False})


def _realtime(call: Caller) -> None:
    """Connections that listen, subscribe in each way, read again, and end."""
    job_id = call.push(queue="live")
    channels = ("all", "queue:live", f"job:{job_id}")
    for connection in ("one", "two"):
        call.connect(connection, call("create_ticket", {})["ticket"])
        for channel in channels:
            wanted = {"action": "subscribe", "channel": channel}
            assert call.socket(connection, "$default", wanted)["type"] == "subscribed"
    call("stream_job_events", at=job_id, text=True)
    call("stream_queue_events", at="live", text=True)
    call("stream_events", text=True)
    call("fetch_jobs", {"queues": ["live"], "worker_id": WORKER})
    listening = {"connection": "two", "listed": False}
    call("fetch_jobs", {"queues": ["live"], "worker_id": WORKER, "listen": listening})
    for channel in channels[1:]:
        call.socket("two", "$default", {"action": "unsubscribe", "channel": channel})
    call.socket("two", "$disconnect")


def _resume(call: Caller) -> None:
    """What the log has of the last minute, on a new connection."""
    call.socket("three", "$connect")
    call.socket("three", "$default", {"action": "subscribe", "channel": "all"})
    at_ms = call.clock.now_ms() - 60_000
    event = uuid.UUID(int=at_ms << 80 | 7 << 76 | 2 << 62)
    resume = {"action": "resume", "last_event_id": f"evt_{event}"}
    assert call.socket("three", "$default", resume)["type"] == "resumed"


def _live(call: Caller, batch: Sequence[Mapping[str, Any]]) -> None:
    """Events of a batch to who subscribed, and to who went without a word."""
    call.clock.advance(10_000)
    call.notify(batch)
    call.clock.advance(10_000)
    with patch.object(ApiGatewayConnections, "post", lambda *_: Posted.GONE):
        call.notify(batch)


def _acts(call: Caller) -> None:
    """Jobs of every size listed, and acts on one and on many."""
    for prefix in ("", "admin_"):
        call(f"{prefix}list_jobs")
        call(f"{prefix}list_jobs", query={"state": "discarded"})
        call(f"{prefix}list_jobs", query={"state": "completed", "queue": "default"})
        call(f"{prefix}retry_job", at=call.push_dead(f"again-{uuid.uuid4().hex[:8]}"))
        job_id = call.push(args=[HUGE], scheduled_at="2999-01-01T00:00:00Z")
        call(f"{prefix}change_job", {"priority": 5, "queue": "elsewhere"}, at=job_id)
        call(f"{prefix}run_job", at=job_id)
        call(f"{prefix}run_job", at=job_id, status=409)
        for args in ([1], [LARGE], [HUGE]):
            dead = call.push_dead(f"many-{uuid.uuid4().hex[:8]}")
            waiting = call.push(args=args, queue="many")
            confirmed = {"confirm": True}
            call(f"{prefix}retry_jobs", {"job_ids": [dead], **confirmed})
            by_filter = {"filter": {"queue": "many", "args": "["}, **confirmed}
            call(f"{prefix}cancel_jobs", by_filter)
            call(f"{prefix}delete_jobs", {"job_ids": [waiting], **confirmed})
    call("job_history", at=call.push())
    for query in ({}, {"queue": "default", "state": "available,completed"}, {"key": "0" * 64}):
        call("list_unique_jobs", query=query)
    cancelled = call.push(args=[HUGE])
    call("admin_cancel_job", at=cancelled)
    call("admin_delete_job", at=cancelled)
    for args in ([1], [HUGE]):
        call.push(args=args, queue="erased", meta={"who": "a"})
    call("admin_erase_jobs", {"filter": {"meta": {"who": "a"}}, "confirm": True})
    begun = call("cancel_jobs", {"filter": {"queue": "many"}, "dry_run": True})["operation"]["id"]
    call("list_job_operations")
    call("get_job_operation", at=begun)
    call("stop_job_operation", at=begun, status=409)
    states = {"states": ["completed", "discarded"], "confirm": True}
    call("admin_purge_queue_jobs", states, at="many")
    call("purge_queue_jobs", states, at="many")


def _enqueue(call: Caller) -> None:
    job_id = call.push()
    # In the same millisecond it would be the same push, whose answer was lost.
    call.clock.advance(1)
    call.push(id=job_id, status=409)
    call.push(args=[LARGE])
    call.push(args=[HUGE])
    huge_id = call.push(args=[HUGE])
    call.clock.advance(1)
    call.push(id=huge_id, args=[HUGE], status=409)
    call.push(id=job_id, args=[INCOMPRESSIBLE], status=409)
    for conflict in ("reject", "ignore", "replace"):
        policy = {"keys": ["type", "args"], "on_conflict": conflict}
        job: dict[str, Any] = {"type": f"test.{conflict}", "args": [LARGE], "unique": policy}
        call.push(**job)
        call.push(**job, status=409 if conflict == "reject" else None)
    small = {"type": "test.job", "args": [1], "queue": "batch"}
    call("enqueue_batch", {"jobs": [small, {**small, "args": [LARGE]}, {**small, "args": [HUGE]}]})
    call("enqueue_batch", {"jobs": [{**small, "args": [LARGE]}] * 2})
    call("enqueue_batch", {"jobs": [small] * 101})
    # One id of a staged batch is taken: what was written is undone.
    taken = [{**small, "args": [HUGE]}] + [small] * 100 + [{**small, "id": job_id}]
    call("enqueue_batch", {"jobs": taken}, status=409)
    for number, jobs in enumerate(([small] * 3, [{**small, "args": [HUGE]}] * 6)):
        for _ in range(2):
            call("enqueue_job", jobs[0], key=f"one {number}")
            call("enqueue_batch", {"jobs": jobs}, key=f"many {number}")
    call("enqueue_batch", {"jobs": taken}, status=409, key="refused")
    # A try that was left is undone, and another one begins.
    with patch.object(staged_batches.StagedBatches, "_stage", side_effect=KeyError):
        call("enqueue_batch", {"jobs": [small] * 7}, status=500, key="left")
    call("enqueue_batch", {"jobs": [small] * 7}, key="left")
    each = [*[small] * 5, {**small, "id": job_id}, {**small, "args": [HUGE], "unique": policy}]
    for _ in range(2):
        call("enqueue_bulk", {"jobs": each}, status=207, key="each")


def _finish(call: Caller) -> None:
    for operation in ("ack_job", "ack_job_by_path"):
        for number, result in enumerate((1, LARGE, INCOMPRESSIBLE, HUGE)):
            job_id = call.claimed(f"{operation}-{number}".replace("_", "-"), args=[LARGE])
            # Somebody else's job: what was written for the result goes again.
            _named(call, operation, job_id, {"worker_id": "other", "result": result}, status=409)
            _named(call, operation, job_id, {"worker_id": WORKER, "result": result})
    failure = {"message": "no"}
    outcomes: tuple[dict[str, Any], ...] = (
        {"error": failure},
        {"error": {**failure, "retryable": False}},
        {"error": {**failure, "code": "DEAD_LETTER"}},
        {"requeue": True},
    )
    for operation in ("nack_job", "nack_job_by_path"):
        for number, outcome in enumerate(outcomes):
            job_id = call.claimed(f"{operation}-{number}".replace("_", "-"), args=[HUGE])
            _named(call, operation, job_id, outcome)
        _named(call, operation, job_id, {"error": failure}, status=409)


def _named(
    call: Caller, operation_id: str, job_id: str, body: dict[str, Any], status: int | None = None
) -> None:
    """Name the job in the path or in the body, as the operation has it."""
    if contract.get(operation_id).path_parameter is None:
        call(operation_id, {**body, "job_id": job_id}, status=status)
    else:
        call(operation_id, body, at=job_id, status=status)


def _by_job(call: Caller) -> None:
    job_id = call.claimed("reading", args=[HUGE])
    for operation in ("get_job", "get_result", "list_retries", "get_progress"):
        call(operation, at=job_id)
    call("report_progress", {"progress": 0.5, "worker_id": WORKER}, at=job_id)
    call("report_worker_progress", {"percentage": 60, "job_id": job_id, "worker_id": WORKER})
    call("get_progress", at=job_id)
    call("cancel_job", at=job_id)
    call("cancel_job", at=job_id, status=409)
    call("cancel_job_by_post", at=call.push(args=[LARGE]))
    call("cancel_job", at=call.push(args=[HUGE]))
    pending = call.push(pending=True)
    call("activate_job", at=pending)
    call("activate_job", at=pending, status=409)
    call("get_job", at=str(uuid.UUID(int=7 << 76 | 2 << 62)), status=404)
    # What time has decided is applied by reading, too.
    late = call.claimed("late-read", visibility_timeout_ms=1_000)
    call.clock.advance(60_000)
    call("get_job", at=late)


def _checkpoints(call: Caller) -> None:
    job_id = call.claimed("saving")
    for state in (1, LARGE, HUGE, HUGE[:-1]):
        for operation in ("save_checkpoint", "put_checkpoint"):
            call(operation, {"state": state}, at=job_id)
            call("get_checkpoint", at=job_id)
    call("delete_checkpoint", at=job_id)
    for prefix in ("", "repeated_"):
        for state in (1, HUGE):
            body: dict[str, Any] = {"state": state, "step_index": 0, "metadata": {}}
            call(f"{prefix}save_sdk_checkpoint", body, at=job_id)
            call(f"{prefix}resume_from_checkpoint", at=job_id)
        call(f"{prefix}delete_sdk_checkpoint", at=job_id)
    call("save_checkpoint", {"state": HUGE}, at=job_id)
    call("ack_job", {"job_id": job_id})


def _steps(call: Caller) -> None:
    def leased() -> dict[str, Any]:
        (job,) = call("fetch_jobs", {"queues": ["durable"], "worker_id": WORKER})["jobs"]
        return {"lease_token": job["lease_token"]}

    def suspend(kind: str, name: str) -> None:
        waits = [{"kind": kind, "name": name, "for": "PT1H"}]
        call("nack_job", {"job_id": job_id, "suspend": {"waits": waits}, **lease})

    job_id = call.push(queue="durable")
    lease = leased()
    call("save_checkpoint", {"state": HUGE}, at=job_id)
    for name, result in (("small", 1), ("large", LARGE), ("hard", INCOMPRESSIBLE)):
        saved = {"steps": [{"name": name, "save": "s", "result": result}], **lease}
        for _ in range(2):
            call("save_steps", saved, at=job_id)
    suspend("sleep", "nap")
    call("retry_job", at=job_id)
    lease = leased()
    suspend("signal", "paid")
    call("send_signal", {"data": LARGE}, at=job_id, signal="paid")
    lease = leased()
    call("send_signal", {"data": 1}, at=job_id, signal="soon")
    for _ in range(2):
        call("send_signal", {"data": 1}, at=job_id, signal="early", key="again")
    child = {"job_id": job_id, "name": "child", **lease}
    child_id = call.push(queue="children", parent=child)
    suspend("job", "child")
    assert call.fetch("children") == [child_id]
    call("ack_job", {"job_id": child_id, "result": LARGE})
    lease = leased()
    call("list_steps", at=job_id)
    call("nack_job", {"job_id": job_id, "error": {"code": "DEAD_LETTER", "message": "no"}, **lease})
    call("delete_step", at=job_id, step="small")
    call("retry_dead_letter", {"steps": "clear", "checkpoint": "clear"}, at=job_id)
    call("cancel_job", at=job_id)


def _workers(call: Caller) -> None:
    call("register_worker", {"worker_id": WORKER, "queues": ["default"]})
    job_id = call.claimed("beating")
    call("heartbeat", {"worker_id": WORKER, "active_jobs": [job_id]})
    call("heartbeat", {"worker_id": "another"})
    call("beat", {"worker_id": WORKER, "state": "running", "active_jobs": 1})
    call("worker_health", at=WORKER)
    call("list_workers", query={"limit": "1"})
    call("admin_list_workers", query={"offset": "1"})
    call("get_worker", at=WORKER)
    call("quiet_worker", at=WORKER)
    call("direct_worker", {"worker_id": WORKER, "directive": "running"})
    call("direct_worker", {"worker_id": "nobody", "directive": "quiet"}, status=404)
    call("remove_worker", at="another")
    call("admin_remove_worker", at=WORKER)
    call("remove_worker", at=WORKER, status=404)


def _dead_letters(call: Caller) -> None:
    def dead(**job: Any) -> str:
        job_id = call.claimed(f"dead-{uuid.uuid4().hex[:8]}", **job)
        call("nack_job", {"job_id": job_id, "error": {"code": "DEAD_LETTER", "message": "no"}})
        return job_id

    for prefix in ("", "admin_"):
        jobs = [dead(), dead(args=[LARGE]), dead(args=[HUGE])]
        call(f"{prefix}list_dead_letters")
        call(f"{prefix}dead_letter_stats")
        for job_id in jobs:
            call(f"{prefix}get_dead_letter", at=job_id)
        for job_id in jobs[1:]:
            call(f"{prefix}delete_dead_letter", at=job_id)
        call(f"{prefix}retry_dead_letter", at=jobs[0])
        call(f"{prefix}retry_dead_letter", at=jobs[0], status=409)
        revived = dead(args=[HUGE])
        call(f"{prefix}retry_dead_letter", at=revived)
        for before, after in ((HUGE, LARGE), (LARGE, HUGE), (1, 2)):
            job_id = dead(args=[before], unique={"keys": ["args", "queue"]})
            changes = {"queue": f"changed-{uuid.uuid4().hex[:8]}", "args": [after]}
            call(f"{prefix}retry_dead_letter", {"override": changes}, at=job_id)
        _bulk(call, prefix, dead)


def _bulk(call: Caller, prefix: str, dead: Callable[..., str]) -> None:
    """Retried and purged by requests and by the sweep, of every size."""
    bulk = runtime.current().bulk
    for begin in ("retry_dead_letters", "purge_dead_letters"):
        # The second operations do the same as the first, which the sweep carried on.
        for go_on in (True,) if prefix else (True, False):
            for args in ([1], [LARGE], [HUGE]):
                dead(args=args, unique={"keys": ["args", "queue"]})
            body = {"confirm": True, "filter": {"args": "["}}
            with patch.object(type(bulk), "_work", _now_or_later(type(bulk)._work, go_on)):
                begun = call(f"{prefix}{begin}", body)["operation"]
            call.clock.advance(120_000)
            if not go_on:
                call.sweep()
            call(f"{prefix}get_dead_letter_operation", at=begun["id"])
    call(f"{prefix}purge_old_dead_letters", query={"older_than": "P1D"})
    call(f"{prefix}list_dead_letter_operations")
    full = f"no-room-{uuid.uuid4().hex[:8]}"
    call("configure_queue", {"max_size": 1}, at=full)
    call.push_dead(full)
    call.push(queue=full)
    body = {"filter": {"queue": full}, "confirm": True}
    waits = call(f"{prefix}retry_dead_letters", body)["operation"]
    call(f"{prefix}stop_dead_letter_operation", at=waits["id"])
    call(f"{prefix}stop_dead_letter_operation", at=waits["id"], status=409)


def _now_or_later(work: Any, now: bool) -> Any:
    """A request that does all of it, or leaves all of it to the sweep."""

    def worked(self: Any, operation: Any, jobs: int, go_on: Any) -> Any:
        return work(self, operation, jobs, go_on if now else lambda: False)

    return worked


def _copies(call: Caller) -> None:
    """Dead letters of every size leave copies: by a worker's word, by time, and by the stream."""
    config = {"dead_letter_queue": "failed", "dead_letter_max_size": 1}
    call("configure_queue", config, at="dying")
    error = {"code": "DEAD_LETTER", "message": "no"}
    copies = runtime.current().copies
    for args in ([1], [LARGE], [HUGE]):
        call("nack_job", {"job_id": call.claimed("dying", args=args), "error": error})
        call.claimed("dying", args=args, retry={"max_attempts": 1})
        call.clock.advance(1_801_000)
        call.sweep()
        # Nobody lives to make the copy: the stream is left with it.
        job_id = call.claimed("dying", args=args)
        with patch.object(copies, "follow", lambda record: record):
            call("nack_job", {"job_id": job_id, "error": error})
    call("retry_dead_letter", at=call.push_dead("dying"))


def _retention(call: Caller) -> None:
    """Dead letters of every size come back by rule; others are archived, and go."""
    rule = {"name": "a", "filter": {"args": "$[0]=1"}, "delay": "PT1H", "max_replays": 1}
    config = {
        "dead_letter": {"retention": {"max_age": "P1D"}, "pruning_policy": "archive"},
        "replay_rules": [rule],
    }
    call("configure_queue", config, at="kept")
    jobs = []
    for args in ([1], [LARGE], [HUGE]):
        jobs.append(call.claimed("kept", args=args))
        call("nack_job", {"job_id": jobs[-1], "error": {"code": "DEAD_LETTER", "message": "no"}})
    call.clock.advance(7_200_000)
    call.sweep()
    assert call("get_job", at=jobs[0])["job"]["meta"]["ojs.replay_rule"] == "a"
    # As the stream will have it.
    runtime.current().table.update(Update(keys.stats("kept"), keys.NOW, set={"dead": 2}))
    call.clock.advance(2 * 86_400_000)
    call.sweep()
    for job_id in jobs[1:]:
        call("get_job", at=job_id, status=404)
    # Out of the archive, too: some of an object, and then all that is left of it.
    for job_id in jobs[1:]:
        call("admin_erase_jobs", {"job_ids": [job_id], "confirm": True})


def _queues(call: Caller) -> None:
    for prefix in ("", "admin_"):
        for queue in ("default", f"{prefix}unseen".replace("_", "-")):
            call(f"{prefix}pause_queue", at=queue)
            call(f"{prefix}resume_queue", at=queue)
        queue = f"{prefix}bounded".replace("_", "-")
        bound = {"backpressure": {"max_depth": 1, "max_size_bytes": 100_000}}
        call(f"{prefix}configure_queue", bound, at=queue)
        call.push(queue=queue)
        call.push(queue=queue, status=429)
        call(f"{prefix}configure_queue", {"overflow_policy": "drop_oldest"}, at=queue)
        call.push(queue=queue)
        call(f"{prefix}get_queue_config", at=queue)
        call(f"{prefix}get_queue_config", at="nowhere", status=404)
    call("create_queue", {"name": "made", "config": {"concurrency": 1}})
    call("create_queue", {"name": "made"}, status=409)
    call.push(queue="made")
    call("ack_job", {"job_id": call.claimed("made-too")})
    call("set_queue_policy", {"default_timeout": 600})
    call("get_queue_policy")


def _deletions(call: Caller) -> None:
    queues = {f"end-{strategy}": strategy for strategy in ("reject", "discard", "move", "drain")}
    for queue, strategy in queues.items():
        call("configure_queue", {"max_size": 10}, at=queue)
        body = {"strategy": strategy}
        if strategy == "move":
            body["target_queue"] = "end-here"
            call("configure_queue", {"max_size": 10}, at="end-here")
        running = call.claimed(queue, args=[LARGE])
        call.push(queue=queue, args=[HUGE])
        call("delete_queue", body, at=queue, status=409 if strategy == "reject" else 202)
        call("nack_job", {"job_id": running, "error": {"message": "no"}})
    call.sweep()
    for queue in queues:
        call.fetch(queue, 10)
    call.clock.advance(700_000)
    # Again, for what came late; then their tombstones are forgotten.
    call.sweep()
    call.sweep()
    call("delete_queue", {"strategy": "discard"}, at="nowhere", status=404)


def _rate_limits(call: Caller) -> None:
    for on_limit in ("wait", "reschedule", "drop"):
        limit = {"key": on_limit, "concurrency": 1, "on_limit": on_limit}
        job: dict[str, Any] = {"queue": f"limited-{on_limit}", "rate_limit": limit}
        first = call.push(**job)
        call.push(**job)
        assert call.fetch(job["queue"], 2) == [first]
        call("admin_get_job", at=first)
        error = {"message": "429", "rate_limit_until": _at(call, 1_000)}
        call("nack_job", {"job_id": first, "error": error})
        call("get_rate_limit", at=on_limit)
    call("list_rate_limits")
    for name in ("rate_limit", "rate_limit_override"):
        call(f"put_{name}", {"concurrency": 2}, at="wait")
        call(f"delete_{name}", at="wait")
    # What runs already counts; what waits is reported, by fetches and by the sweep.
    running = call.claimed("slow")
    call("set_queue_limits", {"concurrency": 1, "limit": 5, "period": "PT1M"}, at="slow")
    waiting = call.push(queue="slow")
    assert call.fetch("slow") == []
    call.sweep()
    call("ack_job", {"job_id": running})
    assert call.fetch("slow") == [waiting]
    call("set_queue_limits", {"rate_limit": None}, at="slow")
    # Its lease ran out: the sweep gives its place back.
    call.push(queue="limited", rate_limit={"key": "late", "concurrency": 1})
    call.fetch("limited")
    call.clock.advance(3_600_000)
    call.sweep()


def _statistics(call: Caller) -> None:
    call.push(queue="counted")
    for prefix in ("", "admin_"):
        call(f"{prefix}list_queues")
        call(f"{prefix}get_queue", at="counted")
        call(f"{prefix}get_queue", at="unheard-of", status=404)
    for name in ("queue_stats", "priority_stats"):
        call(name, at="counted")
    call("admin_stats")
    for period in ("1m", "1d"):
        call("admin_stats_history", query={"period": period})
    call("metrics")
    call("root_metrics", text=True)
    call("list_events", query={"types": "job.*"})


def _keys(call: Caller) -> None:
    made = call("create_key", {"name": "a", "scopes": ["work"]})
    key_id = made["key"]["id"]
    assert call.authorize(made["secret"])["principal"] == "a"
    assert call.authorize(made["secret"].replace(key_id, "0" * 16)) == {}
    assert call.authorize("nonsense") == {}
    call("list_keys", query={"limit": "1"})
    call("get_caller")
    found = call("list_actions")["actions"]
    call("get_action", at=found[0]["id"])
    call("get_key", at=key_id)
    call("get_key", at="0" * 16, status=404)
    maker = Principal("a", key=key_id)
    runtime.current().access_keys.create(maker, "b", ("work",))
    call("revoke_key", at=key_id, query={"made": "revoke"})
    call("revoke_key", at="0" * 16, status=404)
    assert call.authorize(made["secret"]) == {}


def _roles(call: Caller) -> None:
    """With authorizer=iam each function looks up who asks."""
    run, role = runtime.current(), "arn:aws:iam::123456789012:role/{}".format
    settings = run.settings
    run.settings = replace(settings, authorizer="iam", authorizer_cache_s=0)
    wanted = {"role": role("mailer"), "name": "mailer", "scopes": ["jobs:write", "work"]}
    made = call("create_role", wanted, role=role("operator"))
    call("enqueue_job", {"type": "t", "args": []}, role=role("mailer"))
    call("fetch_jobs", {"queues": ["default"]}, role=role("mailer"))
    call("list_keys", status=403, role=role("mailer"))
    call("revoke_key", at=made["key"]["id"], role=role("operator"))
    run.settings = settings


def _tenants(call: Caller) -> None:
    """A tenant with each limit: its jobs are pushed, refused, run, and listed."""
    limits = {
        "max_concurrency": 1, "max_queue_depth": 1, "max_scheduled": 1, "max_queues": 1,
        "max_enqueue_rate": {"limit": 100, "period": "PT1M"},
    }  # fmt: skip
    call("put_tenant", {"limits": limits}, at="acme", status=201)
    call("put_tenant_limits", {"priority_boost": 1}, at="acme")
    job = {"type": "t", "args": [], "options": {"queue": "acme:mail"}}
    call("enqueue_job", job, status=201)
    call("enqueue_job", job, status=429)
    call("create_queue", {"name": "acme:other"}, status=429)
    (fetched,) = call.fetch("acme:mail")
    call("ack_job", {"job_id": fetched})
    for name in ("get_tenant", "tenant_stats", "list_tenant_jobs"):
        call(name, at="acme")
    call("list_tenants")
    call("delete_tenant", at="acme")


def _schemas(call: Caller) -> None:
    """Schemas in all forms; then results, history, and lineage of a job of a type with a schema."""
    body = {"schema": {"type": "array"}}
    call("admin_put_schema", body, at="typed", version="1")
    call("register_schema", {"type": "typed", "version": "2", "uri": "urn:x:typed", **body})
    call("admin_set_schema_mode", {"mode": "strict"}, at="typed")
    for listed in ("list_schemas", "admin_list_schemas"):
        call(listed)
    for read in ("list_schema_versions", "admin_list_schema_versions", "admin_get_schema"):
        call(read, at="typed")
    call("admin_get_schema_version", at="typed", version="1")
    call("get_schema", at="urn:x:typed")
    job = call("enqueue_job", {"type": "typed", "args": []}, status=201)["id"]
    call("results", {"ids": [job]})
    call("job_lineage", at=job)
    call("search_history")
    call("delete_schema", at="urn:x:typed")
    call("admin_delete_schema_version", at="typed", version="1")
    call("delete_schema_version", at="typed", version="1", status=404)


def _webhooks(call: Caller) -> None:
    """Webhooks to an endpoint that there is not. One stays, for the stream and the sweep."""
    body = {"url": "https://jobs.invalid/", "events": ["*"]}
    made = [call("create_webhook", body, status=201)["id"] for _ in range(2)]
    call("list_webhooks")
    for name in ("get_webhook", "test_webhook", "rotate_webhook_secret"):
        call(name, *(() if name == "get_webhook" else ({},)), at=made[0])
    for name in ("update_webhook", "put_webhook"):
        call(name, {"timeout_s": 5}, at=made[0])
    event = Event("e", "job.failed", "ojs://s/a", call.clock.now_ms(), "j", {}).to_dict()
    gone, waiting = (delivery_id(each, event) for each in made)
    call.message("webhook", {"delivery": gone, "event": event})
    call.message("webhook", {"delivery": gone, "turn": 1})
    call("delete_webhook", at=made[0])
    call.message("webhook", {"delivery": waiting, "event": event})
    store = runtime.current().stores.webhooks
    found = store.read_delivery(waiting)
    assert found is not None
    dead = found.given_up("", call.clock.now_ms())
    store.put(found, dead)
    call("list_webhook_deliveries")
    call("get_webhook_delivery", at=waiting)
    call("retry_webhook_delivery", {}, at=waiting)
    call.clock.advance(1_000_000)
    call.sweep()


def _push(call: Caller) -> None:
    """Jobs pushed by each function that pushes, to a function and to an endpoint."""
    code = BytesIO()
    with ZipFile(code, "w") as packed:
        packed.writestr("index.py", "")
    trusted = '{"Version": "2012-10-17", "Statement": []}'
    role = boto3.client("iam").create_role(RoleName="r", AssumeRolePolicyDocument=trusted)
    boto3.client("lambda").create_function(
        FunctionName=PUSHED_TO.rsplit(":", 1)[-1],
        Runtime="python3.13",
        Role=role["Role"]["Arn"],
        Handler="index.handler",
        Code={"ZipFile": code.getvalue()},
    )
    target = {"function": PUSHED_TO}
    call("put_delivery", {"target": target, "queues": ["pushed"], "concurrency": 2}, at="work")
    config = {"max_concurrency": 1, "signing_secret": "s" * 40}
    endpoint = {"endpoint": "https://jobs.invalid/", "queues": ["posted"], "config": config}
    call("create_delivery", endpoint)
    call("list_deliveries")
    call("get_delivery", at="work")
    call("test_delivery", {}, at="work")
    call("pause_delivery", at="work")
    call("resume_delivery", at="work")
    for args in ([1], [LARGE], [HUGE], [1]):
        call.push(queue="pushed", args=args)
        call.clock.advance(2_000)
    call.message("dispatch", {"delivery": "work"})
    # Two are under way. Of those that follow one is too large for an asynchronous invocation.
    for each in call("list_jobs", query={"queue": "pushed", "state": "active"})["jobs"]:
        answer = {"status": "completed", "job_id": each["id"], "result": LARGE}
        job = call("get_job", at=each["id"])["job"]
        record = told(job, "push_worker_work", answer)
        # While the table takes no ack, the queue takes the record.
        busy = BackendUnavailable("not now")
        with patch.object(runtime.current().changes, "ack", side_effect=busy):
            call.told(record)
        call.told(record)
        call.message("outcomes", record)
    for each in call("list_jobs", query={"queue": "pushed", "state": "active"})["jobs"]:
        token = call("get_job", at=each["id"])["job"]["lease_token"]
        call.message("sender", {"delivery": "work", "job": each["id"], "token": token})
    (posting,) = (
        each["name"]
        for each in call("list_deliveries")["deliveries"]
        if "endpoint" in each["target"]
    )
    for _ in range(2):
        call.push(queue="posted")
    call.message("dispatch", {"delivery": posting})
    for job in call("list_jobs", query={"queue": "posted", "state": "active"})["jobs"]:
        token = call("get_job", at=job["id"])["job"]["lease_token"]
        call.message("sender", {"delivery": posting, "job": job["id"], "token": token})
    # Pulling workers go on beside it; what they give back is pushed when it is due.
    pulled = call.claimed("pushed")
    # No container arms a timer twice for one second.
    call.clock.advance(10_000)
    call("nack_job", {"job_id": pulled, "error": {"message": "no"}})
    call.clock.advance(120_000)
    call.sweep()
    call("put_delivery", {"target": target, "queues": ["again"]}, at="other")
    call("delete_delivery", at="other")
    # One is left in line, for the stream to find.
    call.clock.advance(2_000)
    call.push(queue="pushed")


def told(job: Mapping[str, Any], worker: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The record that Lambda sends to the destination of a success."""
    event = {**job, "worker_id": worker, "delivery_id": f"del_{job['lease_token']}"}
    return {
        "version": "1.0",
        "requestContext": {"condition": "Success", "approximateInvokeCount": 1},
        "requestPayload": event,
        "responseContext": {"statusCode": 200},
        "responsePayload": answer,
    }


def _setup(call: Caller) -> None:
    """The first deployment, the next one, and two at once."""
    secrets = boto3.client("secretsmanager")
    arn = secrets.create_secret(Name="first-key")["ARN"]
    table = runtime.current().table
    environment = {
        "OJS_VERSION": "1",
        "OJS_FIRST_KEY_SECRET": arn,
        "OJS_EGRESS_HOSTS": "jobs.invalid",
    }
    with (
        patch.dict(os.environ, environment),
        patch.object(access_runtime, "_table", lambda: table),
    ):
        first = call.set_up()
        assert call.set_up() == first
        with patch.object(Secret, "read", side_effect=[None, secret_of(secrets, arn)]):
            assert call.set_up() == first
    assert call.authorize(secret_of(secrets, arn))["principal"] == "first"


def _behind_a_firewall(call: Caller) -> None:
    """Each function that answers requests reads what they must show, the value before it too."""
    secrets = boto3.client("secretsmanager")
    arn = secrets.create_secret(Name="origin", SecretString="before")["ARN"]
    secrets.put_secret_value(SecretId=arn, SecretString="now")
    run = runtime.current()
    settings = run.settings
    run.settings = replace(settings, origin_secret=arn)
    asked = {"list_jobs": None, "fetch_jobs": {"queues": ["none"]}, "health": None}
    assert {contract.get(name).function for name in asked} == {"jobs", "workers", "admin"}
    for operation, body in asked.items():
        run.__dict__.pop("origin", None)
        call(operation, body, status=403)
        call(operation, body, shown="before", status=200)
    run.settings = settings
    run.__dict__.pop("origin")
    with patch.dict(os.environ, {"OJS_ORIGIN_SECRET": arn}):
        call.page(access_runtime.origin())


def secret_of(secrets: Any, arn: str) -> str:
    value: str = secrets.get_secret_value(SecretId=arn)["SecretString"]
    return value


def _old_records(call: Caller) -> list[dict[str, Any]]:
    """Jobs with something that a job record's removal leaves behind: a text, an object."""
    ids = [call.push(args=[LARGE]), call.push(args=[HUGE])]
    return [{"pk": {"S": keys.job(job_id)}, "sk": {"S": keys.RECORD}} for job_id in ids]


def _workflows(call: Caller) -> None:
    """Workflows: small ones, and one whose definition and results are in the bucket."""
    steps: list[Any] = [{"type": "t", "args": [LARGE]}, {"type": "t", "args": []}]
    many = [{"type": "t", "args": [*HUGE[:1_000], at]} for at in range(30)]
    batch = {"type": "batch", "jobs": many, "callbacks": {"on_complete": steps[1]}}
    for steps_of, queue in ((steps, "flow"), ([batch, *steps], "flows")):
        body = {"type": "chain", "options": {"queue": queue}, "steps": steps_of}
        made = call("create_workflow", body)["id"]
        for result in (INCOMPRESSIBLE, HUGE):
            for job_id in call.fetch(queue):
                call("ack_job", {"job_id": job_id, "result": result})
    while jobs := call.fetch("flows", 30):
        for job_id in jobs:
            error = {"code": "no", "message": "no", "retryable": False}
            call("nack_job", {"job_id": job_id, "error": error})
    call("list_workflows", query={"limit": "1"})
    call("get_workflow", at=made)
    call("workflow_progress", at=made)
    call("workflow_results", at=made, query={"step": "1"}, status=400)
    call("workflow_results", at=made, query={"step": "3"})
    call("retry_workflow", {"mode": "all"}, at=made, status=200)
    call("cancel_workflow", at=made)
    call("cancel_workflow_by_post", at=made, status=409)
    call.clock.advance(600_000)
    call.sweep()


def _left_undone(call: Caller) -> None:
    """A request ends a job, and dies: what follows, a staged batch, is left to the stream."""
    group = {"type": "group", "jobs": [{"type": "t", "args": [LARGE]}] * 120}
    body = {"type": "chain", "options": {"queue": "left"}, "steps": [group["jobs"][0], group]}
    call("create_workflow", body)
    (job_id,) = call.fetch("left")
    with patch.object(WorkflowAdvance, "job_ended", lambda *_: None):
        call("ack_job", {"job_id": job_id, "result": LARGE})


def _stream(call: Caller, stream: TableStream) -> None:
    """All changes there were, with one record that cannot be read, and one batch twice."""
    _left_undone(call)
    batches = []
    while records := stream.read():
        batches += [records[at : at + 100] for at in range(0, len(records), 100)]
    for batch in batches:
        _live(call, batch)
    (broken, *_), *_ = batches
    batches[0] = [*batches[0], {**broken, "dynamodb": {**broken["dynamodb"], "Keys": {}}}]
    # As 0.2.0 noted what it had counted.
    second = int(broken["dynamodb"]["ApproximateCreationDateTime"])
    seen: Item = {"pk": keys.dedup_records(second), "sk": "0000", "seen": b"8 bytes.", "rev": 1}
    runtime.current().table.put(Put(seen))
    half = len(batches) // 2
    with patch.object(EventBridge, "_refused", lambda _, each: [event for event, _ in each]):
        for batch in batches[:half]:
            assert call.stream(batch) == []
    for batch in [*batches[half:], batches[0]]:
        assert call.stream(batch) == []
    # What the bus refused then.
    call.sweep()


def _scheduling(call: Caller) -> None:
    """Pools made, changed and removed; jobs that their workers got; queues that starve."""
    call("put_pool", {"queues": ["pooled", "starving"], "concurrency": 2}, at="general")
    call("put_pool", {"queues": {"pooled": {"weight": 2}, "starving": {"weight": 1}}}, at="general")
    call("put_pool", {"queues": ["pooled"]}, at="other")
    for _ in range(2):
        call.push(queue="pooled")
        call.push(queue="starving")
    call.fetch("pooled")
    # As the stream will have it.
    table = runtime.current().table
    table.update(Update(keys.stats("starving"), keys.NOW, set={"available": 2}))
    call.clock.advance(180_000)
    call.sweep()
    call.clock.advance(60_000)
    call.sweep()
    call("list_pools", query={"limit": "1"})
    call("get_pool", at="general")
    call("get_pool", at="nobody", status=404)
    call("scheduling_stats")
    call("scheduling_stats", query={"pool": "general"})
    call("delete_pool", at="other")
    call("delete_pool", at="other", status=404)
    # What is wrong with it is over.
    table.update(Update(keys.stats("starving"), keys.NOW, set={"available": 0}))
    call.sweep()


def _crons(call: Caller) -> None:
    """Cron jobs in both dialects: registered, fired by a fetch and by the sweep, and managed."""
    for prefix, large in (("", LARGE), ("crons_", HUGE)):
        body = {"name": "often", "cron": "* * * * *", "type": "t", "queue": "cron"}
        call(f"{prefix}register_cron", {**body, "args": [large]}, status=201)
        call.clock.advance(60_000)
        call.fetch("cron")
        call.clock.advance(60_000)
        call.sweep()
        call(f"{prefix}change_cron", {"args": [large, 1]}, at="often")
        call(f"{prefix}trigger_cron", at="often", status=201)
        call(f"{prefix}pause_cron", at="often")
        call(f"{prefix}resume_cron", at="often")
        call(f"{prefix}get_cron", at="often")
        call(f"{prefix}list_crons")
        call(f"{prefix}cron_history", at="often")
        call(f"{prefix}preview_cron", query={"expression": "@daily"})
        call(f"{prefix}delete_cron", at="often")


def _time(call: Caller) -> None:
    """What a fetch and a sweep find when time has passed."""
    for notice in (call.sweep, lambda: call.fetch("timed", 100)):
        call.push(queue="timed", scheduled_at=_at(call, 60_000))
        call.push(queue="timed", expires_at=_at(call, 60_000))
        lost = call.claimed("timed-lease", visibility_timeout_ms=1_000, retry={"max_attempts": 1})
        call.clock.advance(120_000)
        notice()
        call("get_job", at=lost)
    late = call.claimed("timed", visibility_timeout_ms=1_000)
    call.clock.advance(10_000)
    call("fetch_jobs", {"queues": ["timed"], "worker_id": WORKER, "count": 10})
    call("get_job", at=late)
    # A job that others changed after the sweep had read it: it is read again.
    raced = call.claimed("raced", visibility_timeout_ms=1_000)
    call.clock.advance(10_000)
    with patch.object(JobReader, "read_records", _outdated(JobReader.read_records)):
        call.sweep()
    assert call("get_job", at=raced)["job"]["state"] == "available"
    # A batch whose commit never came: the sweep takes it back, objects too.
    small = {"type": "test.job", "args": [1], "queue": "staged"}
    jobs = [{**small, "args": [HUGE]}, {**small, "args": [LARGE]}] + [small] * 100
    with patch.object(
        staged_batches.StagedBatches, "_commit", side_effect=BackendUnavailable("down")
    ):
        call("enqueue_batch", {"jobs": jobs}, status=503)
    with patch.object(staged_batches.StagedBatches, "_commit"):
        call("enqueue_batch", {"jobs": jobs})
    call.fetch("staged")
    call.clock.advance(staged_batches.STAGING_GRACE_MS + 1)
    for _ in range(4):
        call.sweep()


def _outdated(job_records: Any) -> Any:
    """Job records as they were a moment ago: a write that relies on them loses."""
    return lambda self, ids, *told: {
        job_id: replace(job, op="outdated") for job_id, job in job_records(self, ids, *told).items()
    }


def _at(call: Caller, ms: int) -> str:
    return times.format_ms(call.clock.now_ms() + ms)


def test_every_operation_of_the_contract_was_called(
    recording: tuple[Recorder, set[str]],
) -> None:
    _, called = recording
    assert called == {operation.id for operation in contract.OPERATIONS}


@pytest.mark.parametrize("name", [spec.name for spec in FUNCTIONS])
def test_function_needs_what_it_is_granted_and_nothing_else(
    recording: tuple[Recorder, set[str]], name: str
) -> None:
    recorder, _ = recording
    needed, granted = recorder.needed[name], granted_by_table(name)
    if by_name(name).access.stream:
        needed = needed | {one for one in MAPPING if name == "stream" or one[0] == "stream"}
    if name == "webhook":
        needed = needed | {("queue/webhooks", f"sqs:{action}") for action in QUEUE_SOURCE}
    if consumed := by_name(name).consumes:
        needed = needed | {(f"queue/{consumed}", f"sqs:{action}") for action in QUEUE_SOURCE}
        # Of a claim and of the end of a job these do what workers' requests do, which are called in
        # all their ways; here not all of them are.
        granted -= granted_by_table("workers") - needed
        granted |= granted_by_table("workers") & needed
    assert needed - granted == set(), "the code does what the role refuses"
    assert granted - needed == set(), "the role allows what the code does not do"


def test_routes_reach_the_function_that_serves_them(synthesis: Any) -> None:
    # API Gateway and the local server must send each request to the same function.
    keys = {
        properties["RouteKey"]
        for properties in synthesis.resources("AWS::ApiGatewayV2::Route").values()
    }
    assert keys == {
        "$default" if route == "$default" else f"ANY {route}"
        for spec in FUNCTIONS
        for route in spec.routes
    }
    for operation in contract.OPERATIONS:
        assert (
            _routed(operation.path) == operation.function == endpoint.function_for(operation.path)
        )


def _routed(path: str) -> str:
    for spec in FUNCTIONS:
        for route in spec.routes:
            greedy = route.removesuffix("{proxy+}")
            if path == route or (greedy != route and path.startswith(greedy) and path != greedy):
                return spec.name
    return next(spec.name for spec in FUNCTIONS if "$default" in spec.routes)
