"""A real `cdk deploy` into a cloud on this machine, and a job's life through the URL it gives.

API Gateway, Lambda, IAM, DynamoDB and its stream, S3, SQS, SNS and EventBridge are MiniStack's; the
CDK command line, the templates, the bundle, the roles and the code are what AWS would get. The
emulator checks every call of a function against its role.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import time
import uuid
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import boto3
import pytest
from aws_cdk import App, assertions
from botocore.exceptions import ClientError

from examples.alert.app import DeadLetterAlert
from infra import ROOT
from infra.local_cloud import (
    REGION,
    STAGE,
    Deployment,
    LocalCloud,
    client_environment,
    deploy,
    free_port,
    port_taken,
    terminated_like_interrupted,
)
from ojs.api import operations as contract
from ojs.domain.access import Scope
from ojs.http import endpoint
from ojs.store.table import keys
from ojs_aws.cdk import bundling
from ojs_aws.cdk.functions import FUNCTIONS
from ojs_aws.cdk.settings import DeploymentSettings
from tests.e2e.cloud import MEDIA_TYPE, Api, client, eventually, heard, listener
from tests.unit.functions.keyed import JOB, about

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPMessage

    from mypy_boto3_dynamodb import DynamoDBClient

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

# Where the keys of the API are in the table.
KEYS = keys.access_key("")
# Public cases, where they lie beside the checkout; without them the cases written here must do.
CONFORMANCE = ROOT.parent / "shared" / "conformance"
SUITES = ("level-0-core/lifecycle", "level-0-core/envelope", "level-4-advanced/priority")
# The sweep's schedule counts its minute from the deployment on; the machine may be busy.
SWEEP_WITHIN_S = 300


def conformance_cases() -> list[str]:
    """Ids of the cases to run."""
    return sorted(
        json.loads(path.read_text())["test_id"]
        for suite in SUITES
        for path in (CONFORMANCE / "suites" / suite).glob("*.json")
    )


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    with (
        terminated_like_interrupted(),
        LocalCloud(free_port(), tmp_path_factory.mktemp("cloud")) as running,
    ):
        yield running
    assert not port_taken(running.port)


@pytest.fixture(scope="module")
def deployment(cloud: LocalCloud) -> Deployment:
    # A test waits for the metrics of a queue; the default level writes them for named queues only.
    return deploy(cloud.port, {"metrics": "queues"}, quiet=True)


@pytest.fixture(scope="module")
def api(deployment: Deployment) -> Api:
    return Api(deployment.direct_url, deployment.key)


@pytest.fixture(scope="module")
def waiting(api: Api) -> str:
    """A job that is due soon and that nobody asks for: for the sweep, while the others run."""
    scheduled = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 2))
    return str(api.push(queue="sweeping", scheduled_at=scheduled)["id"])


@pytest.mark.usefixtures("waiting")
def test_health_and_manifest(api: Api) -> None:
    health = api("GET", "/ojs/v1/health")
    assert (health.status, health.body["status"]) == (200, "ok")
    assert api("GET", "/health").status == 200
    assert api("GET", "/ojs/manifest").status == 200
    assert api("GET", "/ojs/v1/openapi.json").body["openapi"].startswith("3.")


@pytest.mark.usefixtures("waiting")
def test_a_job_s_life(api: Api) -> None:
    pushed = api(
        "POST", "/ojs/v1/jobs", {"type": "e2e.life", "args": [{"né": 1.10}], "queue": "life"}
    )
    assert pushed.status == 201
    job_id = pushed.body["job"]["id"]
    assert pushed.headers["location"] == f"/ojs/v1/jobs/{job_id}"
    assert pushed.headers["content-type"].startswith(MEDIA_TYPE)
    assert api.get(job_id)["state"] == "available"

    (fetched,) = api.fetch("life", worker_id="w1")
    assert (fetched["id"], fetched["state"], fetched["attempt"]) == (job_id, "active", 1)
    assert fetched["args"] == [{"né": 1.10}]
    assert api.fetch("life", worker_id="w2") == []

    beat = api("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w1", "active_jobs": [job_id]})
    assert beat.body["jobs_extended"] == [job_id]
    progress = api("PUT", f"/ojs/v1/jobs/{job_id}/progress", {"progress": 0.5})
    assert progress.status == 200

    stranger = {"job_id": job_id, "worker_id": "w2"}
    assert api("POST", "/ojs/v1/workers/ack", stranger).status == 409
    mine = {"job_id": job_id, "worker_id": "w1", "result": {"words": 3}}
    assert api("POST", "/ojs/v1/workers/ack", mine).status == 200
    done = api.get(job_id)
    assert (done["state"], done["result"]) == ("completed", {"words": 3})


@pytest.mark.usefixtures("waiting")
def test_the_dashboard_is_served(deployment: Deployment) -> None:
    """Its page, what that names, and how callers are known: to whoever asks, without a key."""

    def read(path: str, **headers: str) -> tuple[int, HTTPMessage, bytes]:
        parts = urlsplit(deployment.direct_url)
        connection = HTTPConnection(parts.netloc, timeout=30)
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request("GET", parts.path + path, headers=sent)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    for path in ("/ojs/admin", "/ojs/admin/", "/ojs/admin/queues/mail"):
        status, headers, page = read(path)
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert (headers["cache-control"], headers["x-frame-options"]) == ("no-cache", "DENY")
        assert headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self'"
        )
    assets = re.findall(r'"(/ojs/admin/assets/[^"]+)"', page.decode())
    assert len(assets) == 3
    for asset in assets:
        plain = read(asset)
        assert (plain[0], plain[1]["cache-control"]) == (
            200, "public, max-age=31536000, immutable",
        )  # fmt: skip
        status, headers, packed = read(asset, accept_encoding="gzip")
        assert (status, headers["content-encoding"]) == (200, "gzip")
        assert gzip.decompress(packed) == plain[2]
        assert read(asset, if_none_match=plain[1]["etag"])[0] == 304
    assert read("/ojs/admin/assets/none.js")[0] == 404
    status, headers, served = read("/ojs/admin/served.json")
    assert (status, json.loads(served)) == (200, {"authorizer": "keys", "realtime": False})
    assert headers["cache-control"] == "no-store"


@pytest.mark.usefixtures("waiting")
def test_failing_to_the_dead_letter_and_back(api: Api) -> None:
    job_id = api.push(queue="failing", retry={"max_attempts": 2})["id"]
    api.fetch("failing")
    error = {"type": "Boom", "message": "no"}
    failed = api("POST", "/ojs/v1/workers/nack", {"job_id": job_id, "error": error})
    assert (failed.status, failed.body["state"]) == (200, "retryable")

    dead_id = api.push(queue="dying")["id"]
    api.fetch("dying")
    fatal = {**error, "code": "DEAD_LETTER"}
    assert api("POST", "/ojs/v1/workers/nack", {"job_id": dead_id, "error": fatal}).status == 200
    listed = api("GET", "/ojs/v1/dead-letter?queue=dying")
    assert [job["id"] for job in listed.body["jobs"]] == [dead_id]
    assert api("POST", f"/ojs/v1/dead-letter/{dead_id}/retry").status == 200
    assert [job["id"] for job in api.fetch("dying")] == [dead_id]


@pytest.mark.usefixtures("waiting")
def test_what_follows_from_a_jobs_life_comes_through_the_stream(api: Api) -> None:
    job_id = api.push(queue="followed", type="e2e.followed")["id"]
    api.fetch("followed", worker_id="w1")
    done = {"job_id": job_id, "worker_id": "w1"}
    assert api("POST", "/ojs/v1/workers/ack", done).status == 200

    def told() -> list[dict[str, Any]] | None:
        answer = api("GET", "/ojs/v1/events?queue=followed")
        assert answer.status == 200, answer
        events: list[dict[str, Any]] = answer.body["events"]
        return events if any(event["type"] == "job.completed" for event in events) else None

    events = eventually(told)
    assert [event["type"] for event in events] == ["job.enqueued", "job.started", "job.completed"]
    assert {event["subject"] for event in events} == {job_id}
    assert events[1]["source"] == "ojs://ojs-local/workers/w1"
    stats = api("GET", "/ojs/v1/queues/followed/stats").body["stats"]
    assert (stats["completed"], stats["completed_today"], stats["enqueued_today"]) == (1, 1, 1)
    assert (stats["available"], stats["active"]) == (0, 0)


@pytest.fixture(scope="module")
def alert(cloud: LocalCloud) -> str:
    """examples/alert, deployed; the URL of a queue that hears what it says."""
    stack = DeadLetterAlert(App(), "alert", bus=f"ojs-{STAGE}")
    template = json.dumps(assertions.Template.from_stack(stack).to_json())
    formation = client(cloud, "cloudformation")
    formation.create_stack(StackName="alert", TemplateBody=template)

    def deployed() -> dict[str, Any] | None:
        (found,) = formation.describe_stacks(StackName="alert")["Stacks"]
        assert found["StackStatus"] in {"CREATE_IN_PROGRESS", "CREATE_COMPLETE"}
        return found if found["StackStatus"] == "CREATE_COMPLETE" else None

    (output,) = eventually(deployed)["Outputs"]
    return listener(cloud, output["OutputValue"], "alert")


@pytest.mark.usefixtures("waiting")
def test_a_dead_letter_alerts_whoever_asked_for_it(api: Api, cloud: LocalCloud, alert: str) -> None:
    job_id = api.push(queue="alerting")["id"]
    api.fetch("alerting")
    fatal = {"type": "Boom", "message": 'a "quoted" text', "code": "DEAD_LETTER"}
    assert api("POST", "/ojs/v1/workers/nack", {"job_id": job_id, "error": fatal}).status == 200

    line = f"Job {job_id} (e2e.job) of queue alerting is a dead letter after 1 attempts."
    assert heard(cloud, alert, job_id).strip('"') == line


@pytest.mark.usefixtures("waiting")
def test_priority_then_first_in_first_out(api: Api) -> None:
    pushed = [api.push(queue="order", priority=priority)["id"] for priority in (0, 5, 0, 5)]
    fetched = [job["id"] for job in api.fetch("order", count=4)]
    assert fetched == [pushed[1], pushed[3], pushed[0], pushed[2]]


@pytest.mark.usefixtures("waiting")
def test_a_batch(api: Api) -> None:
    job = {"type": "e2e.batch", "args": [1], "queue": "batch"}
    answer = api("POST", "/ojs/v1/jobs/batch", {"jobs": [job] * 12})
    assert answer.status == 201
    assert len(api.fetch("batch", count=20)) == 12
    answer = api("POST", "/ojs/v1/jobs/batch", {"jobs": [job, {**job, "args": "no"}]})
    assert (answer.status, api.fetch("batch")) == (400, [])


@pytest.mark.usefixtures("waiting")
def test_a_payload_too_large_for_an_item_goes_through_the_bucket(
    api: Api, cloud: LocalCloud, deployment: Deployment
) -> None:
    args = [uuid.uuid4().hex for _ in range(12_000)]
    job_id = api.push(queue="large", args=args)["id"]
    listed = client(cloud, "s3").list_objects_v2(Bucket=deployment.bucket)
    assert [item for item in listed.get("Contents", []) if job_id in item["Key"]]
    (fetched,) = api.fetch("large")
    assert fetched["args"] == args


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize(
    ("method", "path", "raw", "status"),
    [
        ("POST", "/ojs/v1/jobs", b'{"type": "e2e.job"', 400),
        ("POST", "/ojs/v1/jobs", b"\xff\xfe", 400),
        ("POST", "/ojs/v1/jobs", b'{"type": "E2E", "args": []}', 400),
        ("POST", "/ojs/v1/jobs", b'{"type": "e2e.job", "args": {}}', 400),
        ("POST", "/ojs/v1/workers/fetch", b'{"queues": []}', 400),
        ("GET", "/ojs/v1/jobs/not-an-id", None, 400),
        ("GET", "/ojs/v1/jobs/01a00000-0000-7000-8000-000000000000", None, 404),
        ("GET", "/ojs/v1/nothing", None, 404),
        ("GET", "/nothing", None, 404),
        ("PATCH", "/ojs/v1/jobs", b"{}", 405),
    ],
)
def test_refusals_are_told_in_json(
    api: Api, method: str, path: str, raw: bytes | None, status: int
) -> None:
    answer = api(method, path, raw=raw, X_Request_Id="req_e2e")
    assert answer.status == status, answer
    assert answer.body["error"]["code"]
    assert answer.body["error"]["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("case", conformance_cases())
def test_conformance(
    api: Api, cloud: LocalCloud, deployment: Deployment, waiting: str, case: str
) -> None:
    empty(client(cloud, "dynamodb"), deployment.table, but_for=waiting)
    result = subprocess.run(
        [
            *(sys.executable, str(CONFORMANCE / "run"), "--url", api.url),
            *("--token", api.key, "--only", case),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def empty(table: DynamoDBClient, name: str, *, but_for: str) -> None:
    """Delete all items but that job's and the keys: cases expect queues that nobody used before."""
    kept = {keys.job(but_for), keys.queue("sweeping"), keys.QUEUES, keys.DEPLOYMENT}
    for page in table.get_paginator("scan").paginate(TableName=name, ProjectionExpression="pk, sk"):
        for item in page["Items"]:
            if item["pk"]["S"] not in kept and not item["pk"]["S"].startswith(KEYS):
                table.delete_item(TableName=name, Key=item)


def test_bundle_is_complete_without_this_machine_s_packages(deployment: Deployment) -> None:
    # MiniStack runs functions with its own interpreter, whose packages would hide a missing one.
    bundle = bundling.build(DeploymentSettings(bundle="host")).path
    modules = [spec.handler.rsplit(".", 1)[0] for spec in FUNCTIONS]
    program = (
        f"import sys, importlib; sys.path[:0] = [{str(bundle)!r}]; sys.dont_write_bytecode = True\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "import botocore.session; session = botocore.session.get_session()\n"
        f"[session.create_client(s, 'us-east-1') for s in {bundling.SDK_SERVICES!r}]\n"
    )
    # -I: no environment, no user packages, not this folder; -S: no site-packages.
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"OJS_TABLE": deployment.table, "AWS_DEFAULT_REGION": REGION},
    )
    assert result.returncode == 0, result.stderr


def test_roles_are_enforced(cloud: LocalCloud, deployment: Deployment) -> None:
    """Guards the other tests: did the emulator let everything pass, they would show less."""
    role = next(
        found["Arn"]
        for found in client(cloud, "iam").list_roles()["Roles"]
        if "-JobsRole" in found["RoleName"]
    )
    session = client(cloud, "sts").assume_role(RoleArn=role, RoleSessionName="e2e")["Credentials"]
    table = boto3.client(
        "dynamodb",
        endpoint_url=cloud.url,
        region_name=REGION,
        aws_access_key_id=session["AccessKeyId"],
        aws_secret_access_key=session["SecretAccessKey"],
        aws_session_token=session["SessionToken"],
    )
    table.get_item(TableName=deployment.table, Key={"pk": {"S": "-"}, "sk": {"S": "-"}})
    with pytest.raises(ClientError, match="AccessDenied"):
        table.scan(TableName=deployment.table)


def test_sweep_runs_by_the_clock(cloud: LocalCloud, deployment: Deployment, waiting: str) -> None:
    # Read from the table: a request for the job would itself apply what is due.
    table = client(cloud, "dynamodb")
    key = {"pk": {"S": keys.job(waiting)}, "sk": {"S": keys.RECORD}}
    deadline = time.monotonic() + SWEEP_WITHIN_S
    state = None
    while state != "available" and time.monotonic() < deadline:
        time.sleep(1)
        state = table.get_item(TableName=deployment.table, Key=key)["Item"]["state"]["S"]
    assert state == "available"


def logged(cloud: LocalCloud) -> list[str]:
    """Every line the functions have logged by now. A function that started often has many streams:
    an answer names fifty.
    """
    logs = client(cloud, "logs")
    return [
        event["message"]
        for groups in logs.get_paginator("describe_log_groups").paginate()
        for name in (group["logGroupName"] for group in groups["logGroups"])
        for streams in logs.get_paginator("describe_log_streams").paginate(logGroupName=name)
        for stream in streams["logStreams"]
        for event in logs.get_log_events(logGroupName=name, logStreamName=stream["logStreamName"])[
            "events"
        ]
    ]


def test_metrics_are_written_by_the_stream_and_the_sweep(cloud: LocalCloud, api: Api) -> None:
    wanted = {"ojs.job.enqueued", "ojs.job.duration", "ojs.queue.depth", "ojs.dead_letter.total"}
    # The emulated stream is read by one thread, behind whatever the tests before have written.
    deadline = time.monotonic() + SWEEP_WITHIN_S
    again = time.monotonic()
    while wanted:
        every = logged(cloud)
        # The sweep measures when it has moved what was due.
        lines = "".join(line for line in every if '"CloudWatchMetrics"' in line)
        wanted = {name for name in wanted if name not in lines}
        broken = [line for line in every if '"ERROR"' in line or "Traceback" in line][-3:]
        assert time.monotonic() < deadline, f"not written: {wanted}; {len(every)} lines; {broken}"
        if time.monotonic() >= again:
            # The functions of a busy machine may not have written what they were stopped in.
            again += 20
            job_id = api.push(queue="life")["id"]
            api.fetch("life", worker_id="w1")
            done = {"job_id": job_id, "worker_id": "w1"}
            assert api("POST", "/ojs/v1/workers/ack", done).status == 200
        time.sleep(0.5)


@pytest.fixture(scope="module")
def scoped(api: Api) -> dict[str, Api]:
    """The API with a key for each single scope, and one that is none, as operators make them."""
    made = {"": Api(api.url, "ojs_" + "0" * 16 + "_" + "0" * 64)}
    for scope in Scope:
        answer = api("POST", "/ojs/v1/admin/keys", {"name": f"only {scope}", "scopes": [scope]})
        assert answer.status == 201, answer
        made[scope] = Api(api.url, answer.body["secret"])
    return made


# A key with the scope of the table alone cannot send jobs to a receiver of its choice.
NEEDS_MORE = frozenset(
    {
        "create_delivery", "put_delivery", "resume_delivery", "test_delivery", "create_webhook",
        "put_webhook", "update_webhook", "rotate_webhook_secret",
    }
)  # fmt: skip


@pytest.mark.parametrize(
    "operation", [pytest.param(operation, id=operation.id) for operation in contract.OPERATIONS]
)
def test_every_route_with_every_scope(
    operation: endpoint.Operation, scoped: dict[str, Api], api: Api
) -> None:
    """The scope that it needs, another one and none: docs/access.md, which tests of the authorizer
    compare with every scope.
    """
    path, body, query = about(operation, "scopes", JOB)
    target = f"{path}?{urlencode(query)}" if query else path
    # Its scope depends on the channel: all events, if none is named.
    by_channel = operation.id == "stream_events"
    needed = Scope.ADMIN_READ if by_channel else operation.permission.scope
    assert Api(api.url)(operation.method, target, body).status == 401
    others = [each for each in Scope if each not in (needed, *operation.permission.others)]
    for scope in ("", needed or others[0], others[len(operation.id) % len(others)]):
        answer = scoped[scope](operation.method, target, body)
        if not scope:
            assert (answer.status, answer.body["error"]["code"]) == (401, "unauthenticated")
        elif needed == scope and operation.id in NEEDS_MORE:
            assert (answer.status, answer.body["error"]["code"]) == (403, "permission_denied")
        elif needed in (None, scope):
            # Not found and in conflict are fine: it was let in.
            assert answer.status not in (401, 403), (scope, answer)
            assert answer.status < 500, (scope, answer)
        else:
            assert (answer.status, answer.body["error"]["code"]) == (403, "permission_denied")
            assert answer.body["error"]["details"] == {}


def test_without_a_key_nobody_is_let_in(deployment: Deployment) -> None:
    paths = ("/health", "/ojs/v1/health", "/ojs/v1/jobs", "/ojs/v1/workers", "/nothing")
    for path in paths:
        # API Gateway refuses whoever sends none, the functions whoever sends a wrong one.
        assert Api(deployment.direct_url)("GET", path).status == 401
        wrong = Api(deployment.direct_url, "ojs_" + "0" * 16 + "_" + "0" * 64)("GET", path)
        assert (wrong.status, wrong.body["error"]["code"]) == (401, "unauthenticated")


def test_the_dashboard_is_there_for_whoever_asks(deployment: Deployment) -> None:
    nobody = Api(deployment.direct_url)
    page = nobody("GET", "/ojs/admin/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "/ojs/admin/assets/" in page.body


def test_the_key_is_in_its_secret_and_nowhere_else(
    cloud: LocalCloud, deployment: Deployment
) -> None:
    _, _, secret, mac = deployment.key.split("_")
    assert (len(secret), len(mac)) == (64, 16)
    formation = client(cloud, "cloudformation")
    said = [json.dumps(formation.describe_stacks(), default=str)]
    for stack in (f"ojs-{STAGE}-data", f"ojs-{STAGE}-service"):
        said.append(json.dumps(formation.get_template(StackName=stack), default=str))
        said.append(json.dumps(formation.describe_stack_events(StackName=stack), default=str))
    said.append(json.dumps(client(cloud, "lambda").list_functions(), default=str))
    said += logged(cloud)
    said.append(cloud.log.read_text(errors="replace"))
    items = client(cloud, "dynamodb").get_paginator("scan")
    said += [json.dumps(page, default=str) for page in items.paginate(TableName=deployment.table)]
    # Guards the test: the name of the key, which is no secret, is found there.
    name = deployment.key.split("_")[1]
    assert [text for text in said if name in text]
    assert not [text for text in said if secret in text or mac in text]


def test_an_operator_tidies(cloud: LocalCloud, deployment: Deployment, api: Api) -> None:
    """The command deletes what a dead writer left, and nothing else. It waits for two minutes."""
    args = [uuid.uuid4().hex for _ in range(200)]
    kept = api.push(queue="tidy", args=args)["id"]
    left = {"pk": keys.job(str(uuid.uuid4())), "sk": f"{keys.PAYLOAD}abc", "text": "[]"}
    table = client(cloud, "dynamodb")
    table.put_item(
        TableName=deployment.table, Item={name: {"S": text} for name, text in left.items()}
    )
    code = (
        "from ojs.services.operations import tidy; import cli.__main__; tidy.WAIT_S = 0.1;"
        f"raise SystemExit(cli.__main__.main(['tidy', '--stage', '{STAGE}']))"
    )
    path = os.pathsep.join(("shared", "package", "."))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**client_environment(cloud.port), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(", 1 deleted\n"), done.stdout
    place = {name: {"S": left[name]} for name in ("pk", "sk")}
    assert "Item" not in table.get_item(TableName=deployment.table, Key=place)
    (fetched,) = api.fetch("tidy")
    assert (fetched["id"], fetched["args"]) == (kept, args)


def test_no_function_was_refused_anything(cloud: LocalCloud) -> None:
    lines = logged(cloud)
    assert lines, "the functions' logs are not where they should be"
    assert not [line for line in lines if "AccessDenied" in line or '"level":"ERROR"' in line]


def test_only_a_record_that_cannot_be_read_fails(
    cloud: LocalCloud, deployment: Deployment, api: Api
) -> None:
    sqs, url = client(cloud, "sqs"), deployment.failure_queue_url
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    unreadable = {
        "pk": {"S": keys.job(str(uuid.uuid4()))},
        "sk": {"S": keys.RECORD},
        "state": {"S": "available"},
    }
    client(cloud, "dynamodb").put_item(TableName=deployment.table, Item=unreadable)
    later = api.push(queue="later")["id"]

    def failed() -> dict[str, Any] | None:
        got = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1).get("Messages", [])
        return json.loads(got[0]["Body"]) if got else None

    assert eventually(failed)["keys"]["pk"] == unreadable["pk"]["S"]
    eventually(lambda: later in json.dumps(api("GET", "/ojs/v1/events").body["events"]) or None)
