"""`python -m ojs_aws.testing install`: once, so that the fixture `ojs_server` has its server."""

from __future__ import annotations

import argparse
import sys

from ojs_aws.testing.environment import NotInstalled, install


def main() -> int:
    """Install what the server needs; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ojs_aws.testing")
    parser.add_argument(
        "command", choices=["install"],
        help="put the packages of the local server into an environment of their own",
    )  # fmt: skip
    parser.parse_args()
    print("Installing what the server for tests needs: a minute or two …", flush=True)
    try:
        print(f"The server for tests is in {install()}")
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
