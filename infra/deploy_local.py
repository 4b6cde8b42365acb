"""Deploys this repository, or a CDK app, to a cloud on this machine: `make deploy-local`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from typing import TYPE_CHECKING

from infra import ROOT
from infra.local_cloud import (
    Deployment,
    LocalCloud,
    LocalCloudError,
    client_environment,
    deploy,
    deploy_app,
    direct_url,
    first_keys,
    is_ministack,
    local_command,
    terminated_like_interrupted,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Start MiniStack, deploy, print the URL, and wait for Ctrl-C. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m infra.deploy_local", description=__doc__)
    parser.add_argument(
        "--port", type=int, default=4566, help="port of the local cloud (default: 4566)"
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the local cloud running and return; a later deployment updates it",
    )
    parser.add_argument(
        "-c",
        dest="context",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting of the deployment, or context of the app; repeat it for several",
    )
    parser.add_argument(
        "--app",
        metavar="COMMAND",
        help='deploy this CDK app, for example "python app.py" (default: this repository)',
    )
    options = parser.parse_args(arguments)
    if wrong := [each for each in options.context if not each.partition("=")[1]]:
        parser.error(f"-c: must have the form NAME=VALUE, but is {wrong[0]}")
    context = dict(each.partition("=")[::2] for each in options.context)
    try:
        with terminated_like_interrupted():
            _run(options.port, options.app, context, keep=options.keep)
    except LocalCloudError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.")
    return 0


def _run(port: int, app: str | None, context: Mapping[str, str], *, keep: bool) -> None:
    command = local_command(app) if app else None
    if is_ministack(port):
        print(f"Deploying to the running MiniStack on port {port}", flush=True)
        _deploy(port, command, context)
        return
    started = time.monotonic()
    cloud = LocalCloud(port, ROOT / "build" / f"local-cloud-{port}")
    with contextlib.ExitStack() as undo:
        undo.enter_context(cloud)
        print(f"Started MiniStack on port {port}; log: {cloud.log}", flush=True)
        _deploy(port, command, context)
        print(f"Deployed in {time.monotonic() - started:.0f} s")
        if keep:
            undo.pop_all()
            print(f"MiniStack continues. To stop it, run `kill -TERM -- -{cloud.process.pid}`")
        else:
            print("Stop with Ctrl-C. All data are deleted.")
            signal.pause()


def _deploy(port: int, command: tuple[str, Path] | None, context: Mapping[str, str]) -> None:
    """Deploy this repository or an app, and print its resources."""
    if command is None:
        _show(deploy(port, context), port)
        return
    app, folder = command
    for stack, outputs in deploy_app(port, app, context, folder).items():
        print(f"\n{stack}")
        for name, value in outputs.items():
            print(f"  {name:<24}{value}")
            if ".execute-api." in value and value.startswith("http"):
                print(f"  {'':<24}{direct_url(port, value)}  (if names don't resolve)")
    keys = first_keys(port)
    print("\nBootstrap keys of this cloud, which are deleted with it:" if keys else "")
    for key in keys:
        print(f"  export OJS_KEY={key}")
    print(f"\nFor AWS tools: {_for_tools(port)}\n", flush=True)


def _for_tools(port: int) -> str:
    environment = client_environment(port)
    # The AWS CLI and the Python SDK read this region.
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
    return " ".join(f"{name}={environment[name]}" for name in names)


def _show(deployment: Deployment, port: int) -> None:
    url = deployment.direct_url
    print(
        f"""
API       {deployment.api_url}
                    {url}  (if names below localhost don't resolve)
table     {deployment.table}

Bootstrap key of this cloud, with all scopes. It is printed only here, because it is deleted with
the cloud. On AWS, it is stored in Secrets Manager only.

  export OJS_KEY={deployment.key}

  curl {url}/ojs/v1/health -H "Authorization: Bearer $OJS_KEY"
  curl {url}/ojs/v1/jobs -H "Authorization: Bearer $OJS_KEY" \\
       -H 'Content-Type: application/openjobspec+json' \\
       -d '{{"type": "email.send", "args": ["ada@example.com"]}}'
  curl {url}/ojs/v1/workers/fetch -H "Authorization: Bearer $OJS_KEY" \\
       -H 'Content-Type: application/openjobspec+json' -d '{{"queues": ["default"]}}'

For AWS tools: {_for_tools(port)}
"""
    )


if __name__ == "__main__":
    sys.exit(main())
