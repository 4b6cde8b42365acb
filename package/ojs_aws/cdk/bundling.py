"""Builds the functions' code as one folder: third-party packages, `ojs/`, `functions/`, bytecode.

Doesn't use Docker. pip downloads the wheels for the target machine (`--platform`) from the
hash-pinned requirements/runtime.txt. All functions share one bundle, which is uploaded once.

Decisions:

- **The SDK (botocore) is bundled**, although Lambda's runtime includes one. Lambda's version
  changes without notice and differs by region. The bundled version is the tested one. Of the models
  of 400 AWS services only those in `SDK_SERVICES` are kept: 5 MB instead of 29 MB.
- **Bytecode is compiled by the exact Python version of the runtime.** Lambda can't write next to
  its code, so without .pyc files each cold start compiles, which takes about three times as long.
  The .pyc files are hash-based and unchecked: zipping resets time stamps, which would make
  time-based files stale.
- **Without that interpreter** (on PATH, from pyenv, or from uv) the bundle has no bytecode. It
  works, and a warning names the cost.
- **Python 3.13**, although all dependencies have arm64 wheels for 3.14 too: an interpreter 3.14 is
  less often installed, and bytecode gains more than a minor version. To change, pass
  `-c python=3.14`.

The dashboard's files are copied next to its function. `make dashboard` builds them, or the wheel
contains them. The middleware of the deployment (setting `middleware`) is copied to the top folder.

Bundles are stored in build/, named by a hash of their content.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aws_cdk import AssetHashType
from aws_cdk import aws_lambda as lambda_

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ojs_aws.cdk.settings import DeploymentSettings

_HERE = Path(__file__).resolve().parent
# The wheel contains the sources of the bundle. In the repository they are in their own folders.
_CARRIED = _HERE / "carried"
INSTALLED = _CARRIED.is_dir()
ROOT = _CARRIED if INSTALLED else _HERE.parents[2]

DASHBOARD = ROOT / "dashboard" if INSTALLED else ROOT / "build" / "dashboard"
REQUIREMENTS = ROOT / "requirements" / "runtime.txt"
# For an app that installed the construct: the folder in which it runs, like cdk.out.
BUILD = (Path.cwd() / ".ojs-build" if INSTALLED else ROOT / "build") / "lambda"

# The AWS services whose clients the functions create. A test compares them with the code.
SDK_SERVICES = (
    "apigatewaymanagementapi",
    "dynamodb",
    "events",
    "lambda",
    "s3",
    "secretsmanager",
    "sqs",
)

# Folder in which Lambda unpacks the bundle. Bytecode refers to its sources there.
TASK_ROOT = "/var/task"

_SUPERSEDED_AFTER_S = 3600


class BundlingError(RuntimeError):
    """The bundle could not be built. The message contains the output of the failed tool."""


@dataclass(frozen=True)
class Bundle:
    """A folder with the code of a Lambda function."""

    path: Path
    content_hash: str
    bytecode: bool
    """Whether it contains bytecode for the exact runtime."""


def build(settings: DeploymentSettings) -> Bundle:
    """Build the bundle for these settings, or reuse an earlier build.

    Args:
        settings: Settings of the deployment.

    Returns:
        The bundle.

    Raises:
        BundlingError: pip or the compiler failed, or a middleware function was not found.
    """
    others = (*_dashboard(settings), *_middleware(settings))
    python = settings.runtime_python
    interpreter = find_interpreter(python)
    if interpreter is None:
        print(
            f"warning: Python {python} not found, so the bundle has no bytecode. Cold starts take"
            f" about three times as long. To install it, run: uv python install {python}",
            file=sys.stderr,
        )
    packages = _packages(settings, interpreter)
    content_hash = _hash(packages.name, *_source_parts(_SOURCES), *_source_parts(others))
    target = BUILD / f"bundle-{_target_name(settings)}-{content_hash[:16]}"
    if not target.is_dir():
        with _staging(target) as stage:
            shutil.copytree(packages, stage, dirs_exist_ok=True)
            sources = (*_SOURCES, *others)
            for source, name in sources:
                if (stage / name).exists():
                    raise BundlingError(f"middleware_folder: the name {name} is reserved")
                if source.is_dir():
                    shutil.copytree(source, stage / name, ignore=_LEFT_OUT)
                else:
                    shutil.copy(source, stage / name)
            _compile(interpreter, *(stage / name for _, name in sources), strip=stage)
        _drop_superseded(target)
    return Bundle(path=target, content_hash=content_hash, bytecode=interpreter is not None)


def code(settings: DeploymentSettings) -> lambda_.Code:
    """Return the bundle as CDK code. Raises BundlingError."""
    bundle = build(settings)
    return lambda_.Code.from_asset(
        str(bundle.path),
        # Hash of the sources: compiled bytecode can differ between builds.
        asset_hash=bundle.content_hash,
        asset_hash_type=AssetHashType.CUSTOM,
    )


_SOURCES = ((ROOT / "shared" / "ojs", "ojs"), (ROOT / "functions", "functions"))
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def _dashboard(settings: DeploymentSettings) -> tuple[tuple[Path, str], ...]:
    """Return the built dashboard and its path in the bundle. Raises BundlingError."""
    if not settings.web_dashboard or settings.entry == "private_api":
        return ()
    if not INSTALLED:
        _run(["make", "--no-print-directory", "-C", str(ROOT), "dashboard"])
    return ((DASHBOARD, "functions/dashboard/built"),)


def _middleware(settings: DeploymentSettings) -> tuple[tuple[Path, str], ...]:
    """Return the entries of the middleware folder and their names in the bundle.

    Raises BundlingError if a named function doesn't exist: that deployment would reject all jobs.
    """
    if not settings.middleware:
        return ()
    folder = Path(settings.middleware_folder)
    for named in settings.middleware:
        module, _, function = named.partition(":")
        path = folder / module.replace(".", "/")
        source = next(
            (each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()),
            None,
        )
        if source is None:
            raise BundlingError(f"middleware: module {module} not found in {folder}")
        if function not in _names_of(ast.parse(source.read_text("utf-8"), str(source))):
            raise BundlingError(f"middleware: function {function} not found in {source}")
    entries = sorted(folder.iterdir())
    left_out = _LEFT_OUT(str(folder), [each.name for each in entries])
    return tuple((each, each.name) for each in entries if each.name not in left_out)


def _names_of(module: ast.Module) -> set[str]:
    """Return the names that a module defines or imports at its top level."""
    names: set[str] = set()
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.add(statement.name)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.alias):
                names.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def find_interpreter(python: str) -> Path | None:
    """Return an installed CPython of this minor version, or None.

    All released interpreters of a minor version write the same bytecode, on any processor.
    """
    candidates = _interpreter_candidates(python)
    return next((each for each in candidates if _is_release_of(each, python)), None)


def _interpreter_candidates(python: str) -> Iterator[Path]:
    if python == f"{sys.version_info.major}.{sys.version_info.minor}":
        yield Path(sys.executable)
    if on_path := shutil.which(f"python{python}"):
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{python}.*/bin/python"), reverse=True)
    if uv := shutil.which("uv"):
        command = [uv, "python", "find", "--no-python-downloads", python]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if found.returncode == 0:
            yield Path(found.stdout.strip())


def _is_release_of(interpreter: Path, python: str) -> bool:
    # A pyenv shim of an inactive version exists, and fails. A release candidate can write bytecode
    # that the release rejects.
    probe = (
        "import sys; v = sys.version_info; "
        "print(sys.implementation.name, f'{v.major}.{v.minor}', v.releaselevel)"
    )
    found = subprocess.run([interpreter, "-c", probe], capture_output=True, text=True, check=False)
    return found.returncode == 0 and found.stdout.split() == ["cpython", python, "final"]


def _packages(settings: DeploymentSettings, interpreter: Path | None) -> Path:
    """The third-party packages, installed, trimmed and compiled."""
    key = _hash(
        REQUIREMENTS.read_bytes(),
        Path(__file__).read_bytes(),
        json.dumps([settings.bundle, settings.runtime_python, settings.runtime_architecture]),
        sys.platform if settings.is_local else "",
        "bytecode" if interpreter else "",
    )
    target = BUILD / f"packages-{_target_name(settings)}-{key[:16]}"
    if not target.is_dir():
        with _staging(target) as stage:
            _pip_install(settings, stage)
            _trim_sdk(stage)
            _compile(interpreter, stage, strip=stage)
    return target


def _target_name(settings: DeploymentSettings) -> str:
    # No dot: CDK would treat the rest as the asset's file extension.
    python = settings.runtime_python.replace(".", "")
    return f"{settings.bundle}-python{python}-{settings.runtime_architecture}"


def _pip_install(settings: DeploymentSettings, target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--target", str(target), "--no-compile", "--only-binary=:all:", "--require-hashes"]
    if not settings.is_local:
        python = settings.runtime_python
        command += ["--implementation", "cp", "--python-version", python]
        machine = "aarch64" if settings.runtime_architecture == "arm64" else "x86_64"
        # Lambda's Python 3.12 and later run on Amazon Linux 2023 (glibc 2.34), 3.11 on 2 (2.26).
        for tag in ("manylinux2014",) if python == "3.11" else ("manylinux_2_28", "manylinux2014"):
            command += ["--platform", f"{tag}_{machine}"]
    _run([*command, "--requirement", str(REQUIREMENTS)])
    # Console scripts refer to this machine's interpreter.
    shutil.rmtree(target / "bin", ignore_errors=True)


def _trim_sdk(packages: Path) -> None:
    """Delete the SDK's models of services that no function calls."""
    for model in (packages / "botocore" / "data").iterdir():
        if model.is_dir() and model.name not in SDK_SERVICES:
            shutil.rmtree(model)


def _compile(interpreter: Path | None, *paths: Path, strip: Path) -> None:
    if interpreter is None:
        return
    # In one process: two processes write different bytes from one build to the next.
    command = [str(interpreter), "-I", "-m", "compileall", "-q"]
    command += ["--invalidation-mode", "unchecked-hash", "-s", str(strip), "-p", TASK_ROOT]
    _run([*command, *map(str, paths)])


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BundlingError(f"{' '.join(command)}\n{result.stdout}{result.stderr}".rstrip())


@contextlib.contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """Yield a new folder that is renamed to `target` if the block succeeds.

    Two concurrent builds use separate folders. The first one to finish is used.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix="staging-", dir=target.parent))
    try:
        yield stage
        stage.chmod(0o755)  # mkdtemp's 0700 would go into the zip
        try:
            stage.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _drop_superseded(kept: Path) -> None:
    """Delete older bundles for the same target. CDK has copied those that it still needs."""
    target = kept.name.rsplit("-", 1)[0]
    for other in kept.parent.glob(f"{target}-*"):
        if other != kept and time.time() - other.stat().st_mtime > _SUPERSEDED_AFTER_S:
            shutil.rmtree(other, ignore_errors=True)


def _source_parts(sources: Iterable[tuple[Path, str]]) -> Iterator[str | bytes]:
    for source, name in sources:
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if path.is_file() and path.suffix != ".pyc":
                yield f"{name}/{path.relative_to(source).as_posix()}"
                yield path.read_bytes()


def _hash(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()
