"""`python -m ojs_aws.testing install`: installs the server of the fixture `ojs_server`."""

from __future__ import annotations

import argparse
import sys

from ojs_aws.testing.environment import NotInstalled, install


def main() -> int:
    """Install the server's packages. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m ojs_aws.testing")
    parser.add_argument(
        "command", choices=["install"],
        help="install the packages of the local server into a separate environment",
    )  # fmt: skip
    parser.parse_args()
    print("Installing the packages of the test server. This takes 1 to 2 minutes.", flush=True)
    try:
        print(f"Installed the test server in {install()}")
    except NotInstalled as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
