"""What the tests of a deployment share: a client of the API, and clients of the emulated cloud."""

from __future__ import annotations

import http.client
import json
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import boto3

from infra import ROOT
from infra.local_cloud import ACCOUNT, REGION, LocalCloud

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
MEDIA_TYPE = "application/openjobspec+json"
# The stream is looked at every second, or as soon as it has been of use; the machine may be busy.
WITHIN_S = 180


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: Any


def _read(text: bytes) -> Any:
    """JSON, or what is none as it is: metrics are text."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text.decode()


@dataclass(frozen=True)
class Api:
    url: str
    key: str = ""
    timeout_s: float = 120

    def __call__(
        self, method: str, path: str, body: Any = None, raw: bytes | None = None, **headers: str
    ) -> Answer:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.netloc, timeout=self.timeout_s)
        sent = {"Content-Type": MEDIA_TYPE} if body is not None or raw is not None else {}
        sent |= {"Authorization": f"Bearer {self.key}"} if self.key else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        content = raw if body is None else json.dumps(body).encode()
        try:
            connection.request(method, parts.path + path, body=content, headers=sent)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        return Answer(
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            _read(text),
        )

    def push(self, **job: Any) -> dict[str, Any]:
        answer = self("POST", "/ojs/v1/jobs", {"type": "e2e.job", "args": [], **job})
        assert answer.status == 201, answer
        job_: dict[str, Any] = answer.body["job"]
        return job_

    def fetch(self, queue: str, count: int = 1, **more: Any) -> list[dict[str, Any]]:
        request = {"queues": [queue], "count": count, **more}
        answer = self("POST", "/ojs/v1/workers/fetch", request)
        assert answer.status == 200, answer
        jobs: list[dict[str, Any]] = answer.body["jobs"]
        return jobs

    def get(self, job_id: str) -> dict[str, Any]:
        answer = self("GET", f"/ojs/v1/jobs/{job_id}")
        assert answer.status == 200, answer
        job: dict[str, Any] = answer.body["job"]
        return job


def deploy_app(cloud: LocalCloud, folder: Path, stack: str, text: str) -> dict[str, str]:
    """Deploy a CDK app with this text, as its owner does; the outputs of the stack."""
    app = folder / "app.py"
    app.write_text(text)
    given = [f"APP=python {app}", f"ARGS=--port {cloud.port}"]
    # `setup` has run: it would install again while other tests run.
    made = subprocess.run(
        ["make", "-s", "-o", "setup", "deploy-local", *given],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout
    (found,) = client(cloud, "cloudformation").describe_stacks(StackName=stack)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}


def first_api(cloud: LocalCloud, url: str) -> Api:
    """The API at this address of the emulated cloud, for the owner of its first key."""
    secrets = client(cloud, "secretsmanager")
    (first,) = (
        each["ARN"] for each in secrets.list_secrets()["SecretList"] if "FirstKey" in each["Name"]
    )
    api_id = str(urlsplit(url).hostname).split(".", maxsplit=1)[0]
    key = str(secrets.get_secret_value(SecretId=first)["SecretString"])
    return Api(f"{cloud.url}/_aws/execute-api/{api_id}", key)


def client(cloud: LocalCloud, service: Any) -> Any:
    return boto3.client(
        service,
        endpoint_url=cloud.url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def eventually(look: Callable[[], T | None], within_s: float = WITHIN_S) -> T:
    """What `look` finds when it finds something; fails when that takes too long."""
    deadline = time.monotonic() + within_s
    while (found := look()) is None:
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.2)
    return found


def listener(cloud: LocalCloud, topic: str, name: str) -> str:
    """The URL of a new queue that hears what is said on a topic."""
    queue = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"
    allowed = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue,
        "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    made = client(cloud, "sqs").create_queue(QueueName=name, Attributes={"Policy": policy})
    client(cloud, "sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)
    return str(made["QueueUrl"])


def heard(cloud: LocalCloud, queue: str, word: str) -> str:
    """A message that the queue has heard, with this word in it; fails when that takes too long."""

    def look() -> str | None:
        got = client(cloud, "sqs").receive_message(QueueUrl=queue, WaitTimeSeconds=1)
        texts = (str(json.loads(each["Body"])["Message"]) for each in got.get("Messages", []))
        return next((text for text in texts if word in text), None)

    return eventually(look)
