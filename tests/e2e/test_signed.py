"""A deployment with `authorizer=iam` on the emulated cloud: a task's role reaches its queue alone.

MiniStack checks signatures and policies, and says who asks, as API Gateway does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
import httpx
import pytest

from infra.local_cloud import (
    ACCOUNT,
    REGION,
    LocalCloud,
    deploy,
    free_port,
    terminated_like_interrupted,
)
from ojs_aws.client.signing import Credentialed, Credentials, Signer

if TYPE_CHECKING:
    from infra.local_cloud import Deployment

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

ROOT = f"arn:aws:iam::{ACCOUNT}:root"
OWNER = Credentials("test", "test")
JOB = {"type": "t", "args": [], "options": {"queue": "mail"}}


class Signed:
    """The deployment, asked with signatures."""

    def __init__(self, cloud: LocalCloud, deployment: Deployment) -> None:
        self._cloud = cloud
        self._url = deployment.direct_url

    def client(self, service: str) -> Any:
        """A client of the cloud's owner."""
        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self._cloud.url,
            region_name=REGION,
            aws_access_key_id=OWNER.key_id,
            aws_secret_access_key=OWNER.secret,
        )

    def task(self, role: str, *, may_call: bool = True) -> Credentials:
        """What a task of a new role has in its container."""
        iam = self.client("iam")
        trusts = {"Effect": "Allow", "Principal": {"AWS": ROOT}, "Action": "sts:AssumeRole"}
        calls = {"Effect": "Allow", "Action": "execute-api:Invoke", "Resource": "*"}
        iam.create_role(RoleName=role, AssumeRolePolicyDocument=_policy(trusts))
        if may_call:
            iam.put_role_policy(RoleName=role, PolicyName="p", PolicyDocument=_policy(calls))
        arn = f"arn:aws:iam::{ACCOUNT}:role/{role}"
        assumed = self.client("sts").assume_role(RoleArn=arn, RoleSessionName="task-1")
        held = assumed["Credentials"]
        return Credentials(held["AccessKeyId"], held["SecretAccessKey"], held["SessionToken"])

    def __call__(
        self, who: Credentials | None, method: str, path: str, body: Any = None
    ) -> tuple[int, Any]:
        signer = None
        if who is not None:
            held = {"AWS_ACCESS_KEY_ID": who.key_id, "AWS_SECRET_ACCESS_KEY": who.secret}
            token = {"AWS_SESSION_TOKEN": who.token} if who.token else {}
            signer = Signer(Credentialed({**held, **token}), {"AWS_REGION": REGION})
        url = f"{self._url}/ojs/v1{path}"
        answer = httpx.request(method, url, json=body, auth=signer, timeout=60.0)
        return answer.status_code, answer.json()


def _policy(statement: Any) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    with (
        terminated_like_interrupted(),
        LocalCloud(free_port(), tmp_path_factory.mktemp("iam") / "cloud") as cloud,
    ):
        settings = {"authorizer": "iam", "iam_operators": ROOT, "authorizer_cache_s": "0"}
        yield Signed(cloud, deploy(cloud.port, settings, quiet=True))


def test_a_task_s_role_reaches_its_queue_alone(signed: Signed) -> None:
    mailer = signed.task("mailer")
    fetch = ("POST", "/workers/fetch", {"queues": ["mail"]})
    # IAM lets it call, but nobody gave it anything.
    assert signed(mailer, "GET", "/health")[0] == 200
    assert signed(mailer, *fetch)[0] == 403
    role = f"arn:aws:iam::{ACCOUNT}:role/mailer"
    wanted = {"role": role, "name": "mail", "scopes": ["work", "jobs:write"], "queues": ["mail"]}
    status, made = signed(OWNER, "POST", "/admin/roles", wanted)
    assert status == 201, made
    status, pushed = signed(mailer, "POST", "/jobs", JOB)
    assert (status, pushed["job"]["producer"]) == (201, "mail")
    status, fetched = signed(mailer, *fetch)
    assert [job["id"] for job in fetched["jobs"]] == [pushed["job"]["id"]]
    assert signed(mailer, "POST", "/workers/ack", {"job_id": pushed["job"]["id"]})[0] == 200
    assert signed(mailer, "POST", "/workers/fetch", {"queues": ["other"]})[0] == 403
    assert signed(mailer, "GET", "/queues")[0] == 403
    assert signed(OWNER, "DELETE", f"/admin/keys/{made['key']['id']}")[0] == 200
    assert signed(mailer, *fetch)[0] == 403


def test_whom_iam_does_not_let_through_comes_no_further(signed: Signed) -> None:
    outsider, other = signed.task("outsider", may_call=False), signed.task("other")
    # The emulator takes any secret of the owner's own key, but of no other.
    forged = Credentials(other.key_id, "another", other.token)
    for who in (None, outsider, forged):
        status, answer = signed(who, "GET", "/queues")
        assert status == 403
        # API Gateway's words, and not the service's.
        assert "error" not in answer
