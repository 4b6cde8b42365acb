"""A cloud on this machine: MiniStack, with a real `cdk deploy`.

No tool can reach AWS: each one uses the emulator's endpoint, dummy credentials, and none of the
account settings of this machine. MiniStack checks IAM (`AUTH`), so a function that exceeds the
permissions of its role fails here as on AWS.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from infra import ROOT
from local.emulator import find_ministack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mypy_boto3_secretsmanager import SecretsManagerClient

ACCOUNT = "000000000000"
REGION = "us-east-1"
STAGE = "local"

_START_TIMEOUT_S = 30
# MiniStack keeps no data, and an open connection would delay its end.
_STOP_TIMEOUT_S = 2

# Settings of `cdk deploy` in addition to cdk.json: code for this machine, and no retained data.
_CONTEXT = {
    "bundle": "host",
    "stage": STAGE,
    "removal_policy": "destroy",
    "deletion_protection": "false",
}


class LocalCloudError(RuntimeError):
    """The emulator did not start, or a deployment failed. The message contains the reason."""


@dataclass(frozen=True)
class Deployment:
    """The resources of a deployment."""

    api_url: str
    """URL of the API, as CloudFormation reports it: a name below `localhost`."""
    direct_url: str
    """URL of the API with an IP address, if names below `localhost` don't resolve."""
    table: str
    bucket: str
    failure_queue_url: str
    key: str
    """Bootstrap key with all scopes. Empty without access keys. Valid on this machine only."""


class LocalCloud:
    """A MiniStack process. As a context manager, it ends all its processes on exit.

    `folder` receives its log and working files, and is emptied first.
    """

    def __init__(self, port: int, folder: Path) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / "ministack.log"
        self._folder = folder

    def __enter__(self) -> Self:
        """Start MiniStack and wait until it responds.

        Raises LocalCloudError if the port is in use, or MiniStack is missing or doesn't start.
        """
        if port_taken(self.port):
            raise LocalCloudError(
                f"--port: {self.port} is in use. Use another port, or stop the program that uses it"
            )
        program = find_ministack()
        if program is None:
            raise LocalCloudError("MiniStack is not installed. To install it, run make setup")
        shutil.rmtree(self._folder, ignore_errors=True)
        temporary = self._folder / "tmp"
        temporary.mkdir(parents=True)
        with self.log.open("wb") as log:
            # A separate session: one signal to its group ends MiniStack and the processes of the
            # functions, and Ctrl-C reaches this process first.
            self.process = subprocess.Popen(
                [str(program)],
                env={
                    **_clean_environment(),
                    "AUTH": "true",
                    "BIND_HOST": "127.0.0.1",
                    "GATEWAY_PORT": str(self.port),
                    "LOG_LEVEL": "WARNING",
                    "S3_DATA_DIR": str(self._folder / "s3"),
                    "STATE_DIR": str(self._folder / "state"),
                    "TMPDIR": str(temporary),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with contextlib.ExitStack() as undo:
            undo.push(self)
            self._wait()
            undo.pop_all()
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if is_ministack(self.port):
                return
            time.sleep(0.1)
        tail = self.log.read_text(errors="replace")[-2000:]
        raise LocalCloudError(f"MiniStack did not start on port {self.port}:\n{tail}")

    def __exit__(self, *_: object) -> None:
        """Stop MiniStack and the processes of its functions."""
        process = self.process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)
        # Children can outlive it: the group exists as long as one of them runs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # The emulator has a copy of the bundle for each container: to delete them takes a minute. A
        # new name, so that a new emulator in this folder keeps its files.
        temporary, left = self._folder / "tmp", self._folder / f"tmp-{process.pid}"
        temporary.rename(left)
        remove = ["sh", "-c", 'rm -rf "$1" &', "sh", str(left)]
        subprocess.run(remove, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def deploy(
    port: int, settings: Mapping[str, str] | None = None, *, quiet: bool = False
) -> Deployment:
    """Bootstrap the emulated account, and deploy the stacks of this repository.

    `quiet` shows CDK's output only after a failure. `settings` are more settings of the deployment.
    Raises LocalCloudError if CDK fails.
    """
    settings = settings or {}
    if fixed := sorted(settings.keys() & {"bundle", "stage"}):
        raise LocalCloudError(f"-c {fixed[0]}: must be omitted, because the emulator requires it")
    app = f'"{sys.executable}" -m infra.app'
    outputs = deploy_app(port, app, {**_CONTEXT, **settings}, ROOT, quiet=quiet)
    data, service = outputs[f"ojs-{STAGE}-data"], outputs[f"ojs-{STAGE}-service"]
    return Deployment(
        api_url=service["ApiUrl"],
        direct_url=direct_url(port, service["ApiUrl"]),
        table=data["TableName"],
        bucket=data["PayloadBucketName"],
        failure_queue_url=service["StreamFailureQueueUrl"],
        key=_first_key(secret, port) if (secret := data.get("FirstKeySecretArn")) else "",
    )


def deploy_app(
    port: int, app: str, context: Mapping[str, str], folder: Path, *, quiet: bool = False
) -> dict[str, dict[str, str]]:
    """Bootstrap the emulated account, and deploy all stacks of a CDK app.

    Args:
        port: Port of the emulator.
        app: Command that writes the cloud assembly.
        context: Values of CDK's context.
        folder: Folder in which the command runs.
        quiet: Whether CDK's output is shown only after a failure.

    Returns:
        The outputs of each stack.

    Raises:
        LocalCloudError: CDK failed.
    """
    with tempfile.TemporaryDirectory(prefix="ojs-deploy-") as made:
        outputs_file = Path(made) / "outputs.json"
        # Run it in a folder without cdk.json, because bootstrapping needs no app.
        bootstrap = ["bootstrap", f"aws://{ACCOUNT}/{REGION}", "--no-notices"]
        _cdk(bootstrap, port=port, folder=Path(made), quiet=True)
        _cdk(
            [
                *("deploy", "--all", "--require-approval", "never", "--method", "direct"),
                *("--no-notices", "--no-version-reporting", "--output", f"{made}/cdk.out"),
                *("--outputs-file", str(outputs_file), "--app", app),
                *(word for key, value in context.items() for word in ("-c", f"{key}={value}")),
            ],
            port=port,
            folder=folder,
            quiet=quiet,
        )
        found: dict[str, dict[str, str]] = json.loads(outputs_file.read_text())
        return found


def local_command(app: str) -> tuple[str, Path]:
    """Return the command that runs a Python app for the emulator, and the folder for it.

    Raises LocalCloudError if `app` doesn't start a Python file or module.
    """
    words = shlex.split(app)
    if len(words) < 2 or not Path(words[0]).name.startswith("python"):
        raise LocalCloudError(
            f'APP: must be python with a file or -m and a module, for example "python app.py", but'
            f" is {app!r}"
        )
    interpreter = shutil.which(words[0]) if "/" in words[0] else sys.executable
    if interpreter is None:
        raise LocalCloudError(f"APP: {words[0]} is not a program")
    folder = Path.cwd()
    if not words[1].startswith("-"):
        file = Path(words[1]).resolve()
        # Its cdk.json applies.
        folder, words[1] = file.parent, file.name
    command = [str(Path(interpreter).absolute()), "-m", "ojs_aws.cdk.local", *words[1:]]
    return shlex.join(command), folder


def direct_url(port: int, url: str) -> str:
    """Return the address of an emulated HTTP API that needs no name below `localhost`."""
    api_id = str(urlsplit(url).hostname).split(".", maxsplit=1)[0]
    return f"http://127.0.0.1:{port}/_aws/execute-api/{api_id}"


def first_keys(port: int) -> list[str]:
    """Return the bootstrap keys of all deployments of the emulated account."""
    client = _secrets(port)
    secrets = client.get_paginator("list_secrets").paginate()
    names = [each["ARN"] for page in secrets for each in page["SecretList"]]
    return [_first_key(each, port) for each in names if "FirstKey" in each]


def _first_key(secret: str, port: int) -> str:
    """Return the bootstrap key from its secret."""
    value: str = _secrets(port).get_secret_value(SecretId=secret)["SecretString"]
    if not value:
        raise LocalCloudError("the deployment has not created a bootstrap key")
    return value


def _secrets(port: int) -> SecretsManagerClient:
    # Imported here, because starting the emulator needs no SDK.
    import boto3

    return boto3.client(
        "secretsmanager",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",  # noqa: S106  # a dummy value of the emulator
    )


def client_environment(port: int) -> dict[str, str]:
    """Return the environment for AWS tools that use the emulator as the account's owner."""
    return {
        **_clean_environment(),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def is_ministack(port: int) -> bool:
    """Whether MiniStack responds on this port."""
    try:
        url = f"http://127.0.0.1:{port}/_ministack/health"
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def port_taken(port: int) -> bool:
    """Whether a program listens on this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _cdk(arguments: list[str], *, port: int, folder: Path, quiet: bool) -> None:
    local = ROOT / "node_modules" / ".bin" / "cdk"
    command = str(local) if local.exists() else shutil.which("cdk")
    if command is None:
        raise LocalCloudError("the CDK command line is missing. To install it, run npm ci")
    quietly = {"CDK_DISABLE_CLI_TELEMETRY": "true", "NODE_NO_WARNINGS": "1"}
    # The app imports the construct of this repository. The emulator has another environment.
    path = os.pathsep.join(str(ROOT / each) for each in ("package", "shared", "."))
    result = subprocess.run(
        [command, *arguments],
        env={**client_environment(port), **quietly, "PYTHONPATH": path},
        cwd=folder,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
    )
    if result.returncode != 0:
        raise LocalCloudError(f"cdk {arguments[0]} failed\n{result.stdout or ''}".rstrip())


def _clean_environment() -> dict[str, str]:
    """Return the environment without settings of a real account or paths to the sources.

    Functions inherit MiniStack's environment: with PYTHONPATH they could import the sources.
    """
    left_out = ("AWS_", "OJS_", "CDK_", "PYTHONPATH")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(left_out)},
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "NO_PROXY": "127.0.0.1,localhost,.localhost",
    }


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Convert SIGTERM to KeyboardInterrupt in the block, so that it cleans up."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
