"""`ojs-aws`: runs a command, and prints an error on one line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from cli import (
    actions,
    completion,
    config,
    dead,
    erase,
    events,
    jobs,
    keys,
    operate,
    outbox,
    prove,
    queues,
    resources,
    schemas,
    status,
    tenants,
    tidy,
    workflows,
)
from cli.output import note
from cli.target import CommandError, Exit

# A module with commands has a function `add`. To add a command, add its module here.
MODULES = (
    status, jobs, operate, erase, dead, workflows, queues, tenants, resources, config, actions,
    events, keys, schemas, outbox, tidy, prove, completion,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="ojs-aws",
        description="Operate an OJS backend on AWS. docs/terminal.md describes all commands.",
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for each in MODULES:
        each.add(commands)
    parser.set_defaults(server=None, parser=parser)
    options = parser.parse_args(arguments)
    # CDK and the AWS CLI read AWS_REGION. The Python SDK reads AWS_DEFAULT_REGION only.
    if region := os.environ.get("AWS_REGION"):
        os.environ["AWS_DEFAULT_REGION"] = region
    try:
        options.run(options)
        sys.stdout.flush()
    except CommandError as error:
        note(f"error: {error}")
        return error.status
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe. Redirect the final flush, so that it doesn't fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if options.server is not None:
            options.server.close()
    return Exit.DONE


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        # Escape characters that the encoding of the terminal can't represent.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
