"""The environment that the server of the wheel runs in: packages of its own, pinned by hash.

They are no dependencies of the wheel: tests run in the environment of what they test, and the
server pins the SDK of AWS exactly. So does its engine MiniStack, to another version: it has an
environment within that one, where the server looks for it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

# The wheel has the server beside what it deploys.
CARRIED = Path(__file__).resolve().parents[1] / "cdk" / "carried"
REQUIREMENTS = CARRIED / "requirements" / "local.txt"
EMULATOR_REQUIREMENTS = CARRIED / "requirements" / "emulator.txt"
FOLDER = "OJS_SERVER_ENVIRONMENT"


class NotInstalled(Exception):
    """The packages cannot be installed; the message says why."""


def folder() -> Path:
    """Where the environment is: OJS_SERVER_ENVIRONMENT, or below the user's cache. Other packages
    or another Python are another one.
    """
    named = os.environ.get(FOLDER)
    if named:
        return Path(named).resolve()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ojs-aws" / _name()


def installed_python() -> Path:
    """The interpreter that has the packages; it is not there before they are installed."""
    return folder() / "bin" / _name()


def _name() -> str:
    """Of this version of Python with these packages: a named folder may have others, by now."""
    files = [each for each in (REQUIREMENTS, EMULATOR_REQUIREMENTS) if each.exists()]
    pins = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()
    return f"python{sys.version_info.major}.{sys.version_info.minor}-{pins[:16]}"


def install() -> Path:
    """Install the packages, if they are not there; where. Raises NotInstalled."""
    python, where = installed_python(), folder()
    if python.exists():
        return where
    if not REQUIREMENTS.exists():
        raise NotInstalled("this is no wheel of ojs-backend-aws: `make package` builds one")
    if sys.version_info < (3, 11):  # noqa: UP036 - the library alone runs on 3.10
        raise NotInstalled("the server needs Python 3.11: install it with that one")
    emulator = where / "emulator"
    _run([sys.executable, "-m", "venv", "--clear", str(where)])
    _run([sys.executable, "-m", "venv", "--without-pip", str(emulator)])
    for environment, pins in ((where, REQUIREMENTS), (emulator, EMULATOR_REQUIREMENTS)):
        _run([
            *(str(where / "bin" / "python"), "-m", "pip", "--python", str(environment), "install"),
            *("--quiet", "--disable-pip-version-check"),
            *("--require-hashes", "--requirement", str(pins)),
        ])  # fmt: skip
    # Last, so that what was broken off is begun anew.
    python.symlink_to("python")
    return where


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    if done.returncode != 0:
        raise NotInstalled(f"{' '.join(command)}\n{done.stdout}{done.stderr}".rstrip())
