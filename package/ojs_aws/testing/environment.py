"""The Python environment of the test server, with packages that are pinned by hash.

The wheel does not depend on these packages, because tests run in the environment of the tested
code, and the server pins exact versions of the AWS SDK. The server's DynamoDB engine MiniStack pins
other versions of the SDK. It has its own environment in a subfolder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

# The wheel contains the server next to the files it deploys.
CARRIED = Path(__file__).resolve().parents[1] / "cdk" / "carried"
REQUIREMENTS = CARRIED / "requirements" / "local.txt"
EMULATOR_REQUIREMENTS = CARRIED / "requirements" / "emulator.txt"
FOLDER = "OJS_SERVER_ENVIRONMENT"


class NotInstalled(Exception):
    """The packages can't be installed. The message contains the reason."""


def folder() -> Path:
    """Return the folder of the environment: `OJS_SERVER_ENVIRONMENT`, or one in the user's cache.

    The cache has one folder for each set of packages and Python version.
    """
    named = os.environ.get(FOLDER)
    if named:
        return Path(named).resolve()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ojs-aws" / _name()


def installed_python() -> Path:
    """Return the path of the environment's Python interpreter. It exists after the installation."""
    return folder() / "bin" / _name()


def _name() -> str:
    """Return a name for this Python version and set of packages, which old installations lack."""
    files = [each for each in (REQUIREMENTS, EMULATOR_REQUIREMENTS) if each.exists()]
    pins = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()
    return f"python{sys.version_info.major}.{sys.version_info.minor}-{pins[:16]}"


def install() -> Path:
    """Install the packages, unless they are installed. Returns the folder. Raises NotInstalled."""
    python, where = installed_python(), folder()
    if python.exists():
        return where
    if not REQUIREMENTS.exists():
        raise NotInstalled(
            "ojs_aws is not installed from a wheel. To build one, run `make package`"
        )
    if sys.version_info < (3, 11):  # noqa: UP036 - the library alone runs on 3.10
        raise NotInstalled("the server requires Python 3.11 or later. Install it with that version")
    emulator = where / "emulator"
    _run([sys.executable, "-m", "venv", "--clear", str(where)])
    _run([sys.executable, "-m", "venv", "--without-pip", str(emulator)])
    for environment, pins in ((where, REQUIREMENTS), (emulator, EMULATOR_REQUIREMENTS)):
        _run([
            *(str(where / "bin" / "python"), "-m", "pip", "--python", str(environment), "install"),
            *("--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "--requirement", str(pins)),
        ])  # fmt: skip
    # Create the link last: an interrupted installation is repeated.
    python.symlink_to("python")
    return where


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if done.returncode != 0:
        raise NotInstalled(f"{' '.join(command)}\n{done.stdout}{done.stderr}".rstrip())
