"""examples/mail_queue, deployed for real into a cloud on this machine: a stack with the construct.

What it declares is there, its role's key opens its queue alone, what goes wrong is told, and what
is no longer declared goes.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from infra import ROOT, local_cloud
from infra.local_cloud import ACCOUNT, REGION, LocalCloud
from tests.e2e.cloud import Api, client, heard, listener

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

APP = """
import sys
sys.path[:0] = {paths!r}
from aws_cdk import App, CliCredentialsStackSynthesizer
from examples.mail_queue.app import MailStack
from ojs_aws.cdk import DeploymentSettings

app = App(default_stack_synthesizer=CliCredentialsStackSynthesizer())
MailStack(app, "mail", settings=DeploymentSettings(
    stage="mail", bundle="host", removal_policy="destroy", deletion_protection=False
))
{more}
app.synth()
"""
# As if the queue took less now, and the cron job were not in the app any more.
CHANGED = """
jobs = app.node.find_child("mail").node.find_child("Jobs")
declared = jobs.declared.node
declared.find_child("queue").node.try_remove_child("mail")
declared.find_child("cron").node.try_remove_child("digest")
jobs.add_queue("mail", max_size=7)
"""


def deploy(cloud: LocalCloud, folder: Path, more: str = "") -> dict[str, str]:
    """Deploy the app; the outputs of its stack."""
    app, outputs = folder / "app.py", folder / "outputs.json"
    paths = [str(ROOT), str(ROOT / "package"), str(ROOT / "shared")]
    app.write_text(APP.format(paths=paths, more=more))
    local_cloud._cdk(
        [
            *("deploy", "mail", "--require-approval", "never", "--method", "direct"),
            *("--no-notices", "--no-version-reporting", "--output", str(folder / "cdk.out")),
            *("--outputs-file", str(outputs), "--app", f'"{sys.executable}" {app}'),
        ],
        port=cloud.port,
        folder=folder,
        quiet=True,
    )
    found: dict[str, str] = json.loads(outputs.read_text())["mail"]
    return found


def test_the_example_is_deployed_changed_and_told_of(tmp_path: Path) -> None:
    with (
        local_cloud.terminated_like_interrupted(),
        LocalCloud(local_cloud.free_port(), tmp_path / "cloud") as cloud,
    ):
        bootstrap = ["bootstrap", f"aws://{ACCOUNT}/{REGION}", "--no-notices"]
        local_cloud._cdk(bootstrap, port=cloud.port, folder=tmp_path, quiet=True)
        outputs = deploy(cloud, tmp_path)
        secrets = client(cloud, "secretsmanager")

        def key(name: str) -> str:
            return str(secrets.get_secret_value(SecretId=name)["SecretString"])

        api_id = str(urlsplit(outputs["Url"]).hostname).split(".", maxsplit=1)[0]
        url = f"{cloud.url}/_aws/execute-api/{api_id}"
        (first,) = (
            each["ARN"]
            for each in secrets.list_secrets()["SecretList"]
            if "FirstKey" in each["Name"]
        )
        owner, sender = Api(url, key(first)), Api(url, key(outputs["SenderKey"]))

        # What the app declares is there, before anybody has used it.
        config = owner("GET", "/ojs/v1/queues/mail/config").body
        assert '"max_size": 10000' in json.dumps(config)
        crons = owner("GET", "/ojs/v1/cron").body["cron_jobs"]
        assert [(each["name"], each["timezone"]) for each in crons] == [("digest", "Europe/Berlin")]

        # The role's key opens its queue alone, to work on it.
        job_id = owner.push(queue="mail")["id"]
        owner.push(queue="other")
        assert [job["id"] for job in sender.fetch("mail", worker_id="w1")] == [job_id]
        other = sender("POST", "/ojs/v1/workers/fetch", {"queues": ["other"]})
        assert other.status == 403
        assert sender("POST", "/ojs/v1/jobs", {"type": "a", "args": []}).status == 403

        # Mail that is lost is told.
        topic = outputs["Topic"]
        told = listener(cloud, topic, "told")
        fatal = {"type": "Boom", "message": "no", "code": "DEAD_LETTER"}
        lost = {"job_id": job_id, "worker_id": "w1", "error": fatal}
        assert sender("POST", "/ojs/v1/workers/nack", lost).status == 200

        assert "Mail was not sent" in heard(cloud, told, job_id)

        # What changes is set anew, what is gone is taken back, and the rest stays as it is.
        assert deploy(cloud, tmp_path, CHANGED)["SenderKey"] == outputs["SenderKey"]
        config = owner("GET", "/ojs/v1/queues/mail/config").body
        assert '"max_size": 7' in json.dumps(config)
        assert '"limit": 100' in json.dumps(config)
        assert owner("GET", "/ojs/v1/cron").body["cron_jobs"] == []
        assert Api(url, key(outputs["SenderKey"])).fetch("mail") == []
