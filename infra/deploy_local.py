"""Deploys everything to a cloud on this machine: `python -m infra.deploy_local`."""

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
    is_ministack,
    terminated_like_interrupted,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    options = parser.parse_args(arguments)
    try:
        with terminated_like_interrupted():
            _run(options.port, keep=options.keep)
    except LocalCloudError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.")
    return 0


def _run(port: int, *, keep: bool) -> None:
    if is_ministack(port):
        print(f"Deploying to the running MiniStack on port {port}", flush=True)
        _show(deploy(port), port)
        return
    started = time.monotonic()
    cloud = LocalCloud(port, ROOT / "build" / f"local-cloud-{port}")
    with contextlib.ExitStack() as undo:
        undo.enter_context(cloud)
        print(f"Started MiniStack on port {port}; log: {cloud.log}", flush=True)
        deployment = deploy(port)
        print(f"\nDeployed in {time.monotonic() - started:.0f} s")
        _show(deployment, port)
        if keep:
            undo.pop_all()
            print(f"MiniStack continues. To stop it, run `kill -TERM -- -{cloud.process.pid}`")
        else:
            print("Stop with Ctrl-C. All data are deleted.")
            signal.pause()


def _show(deployment: Deployment, port: int) -> None:
    url = deployment.direct_url
    environment = client_environment(port)
    # The AWS CLI and the Python SDK read this region.
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
    settings = " ".join(f"{name}={environment[name]}" for name in names)
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

For AWS tools: {settings}
"""
    )


if __name__ == "__main__":
    sys.exit(main())
