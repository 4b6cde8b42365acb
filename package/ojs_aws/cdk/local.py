"""Runs a CDK app for the local cloud emulator: `python -m ojs_aws.cdk.local app.py`.

`make deploy-local APP="python app.py"` runs it, and the app needs no change. Its stacks are
deployed directly with the caller's credentials, its backends contain code for this machine, and
nothing is retained.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import aws_cdk

from ojs_aws.cdk import settings

# Settings with None have their default. They select a target that is not this machine.
FORCED = {
    "bundle": "host",
    "removal_policy": "destroy",
    "deletion_protection": False,
    "architecture": None,
    "python": None,
}


class _LocalApp(aws_cdk.App):
    """An app whose stacks need no bootstrap roles: the emulator doesn't check all conditions."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("default_stack_synthesizer", aws_cdk.CliCredentialsStackSynthesizer())
        super().__init__(**options)


def main() -> None:
    """Run the app as Python does: `-m MODULE` or `FILE`, and its arguments."""
    settings.FORCED.update(FORCED)
    aws_cdk.App = _LocalApp  # type: ignore[misc]
    module = sys.argv[1] == "-m"
    del sys.argv[: 2 if module else 1]
    if module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
