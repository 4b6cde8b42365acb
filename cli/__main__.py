"""`ojs-aws`: runs a command, and prints an error in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cli import keys, tidy
from cli.target import CommandError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="ojs-aws", description="Operate an OJS backend on AWS.")
    commands = parser.add_subparsers(required=True, metavar="command")
    keys.add(commands)
    tidy.add(commands)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except CommandError as error:
        print(f"ojs-aws: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
