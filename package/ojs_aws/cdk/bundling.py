"""The functions' code as one folder: third-party packages, `ojs/`, `functions/`, bytecode.

No Docker. pip fetches the wheels of the machine the code will run on (`--platform`), from the
hash-pinned requirements/runtime.txt. All functions share one bundle: it is uploaded once.

Four choices:

- **The SDK (botocore) is bundled**, although Lambda's runtime brings one. Lambda's own changes
  without notice and differs by region; ours is the version the tests ran against. Its weight, the
  models of 400 AWS services, is left out but for those used here (`SDK_SERVICES`): 29 MB become 5.
- **Bytecode is compiled, by the exact Python that will run it.** Lambda cannot write beside its
  code, so a missing .pyc is compiled anew by every cold start, which takes about three times as
  long. It is hash-based and unchecked: a .pyc that trusts its source's time stamp would be stale
  at once, since zipping resets the stamps.
- **Without that interpreter** (on PATH, from pyenv or from uv) the bundle has no bytecode, works
  all the same, and a warning says what it costs.
- **Python 3.13**, although all dependencies have arm64 wheels for 3.14 too: a 3.14 to compile with
  is less often at hand, and bytecode is worth more than a minor version. `-c python=3.14` switches.

The dashboard's files, which `make dashboard` builds or the wheel carries, lie beside its function.
The deployment's middleware (setting `middleware`) lies beside all that, at the top.

Bundles are kept under build/, named by a hash of everything that goes into them.
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
# The wheel carries what the bundle is made of; in the project it lies where it is written.
_CARRIED = _HERE / "carried"
INSTALLED = _CARRIED.is_dir()
ROOT = _CARRIED if INSTALLED else _HERE.parents[2]

DASHBOARD = ROOT / "dashboard" if INSTALLED else ROOT / "build" / "dashboard"
REQUIREMENTS = ROOT / "requirements" / "runtime.txt"
# Of an app that has the construct installed: where it is run, as cdk.out is.
BUILD = (Path.cwd() / ".ojs-build" if INSTALLED else ROOT / "build") / "lambda"

# The AWS services whose clients the functions create; a test finds them in the code.
SDK_SERVICES = ("dynamodb", "events", "lambda", "s3", "secretsmanager", "sqs")

# Lambda unpacks the bundle here. Bytecode names its sources: as they are there, not as here.
TASK_ROOT = "/var/task"

_SUPERSEDED_AFTER_S = 3600


class BundlingError(RuntimeError):
    """The bundle could not be built; the message holds what the failed tool printed."""


@dataclass(frozen=True)
class Bundle:
    """A folder ready to become a Lambda function's code."""

    path: Path
    content_hash: str
    bytecode: bool
    """Whether bytecode for the exact runtime is in it."""


def build(settings: DeploymentSettings) -> Bundle:
    """The bundle for these settings, built now or taken from an earlier build.

    Raises BundlingError when pip or the compiler fails, or the middleware is not there.
    """
    others = (*_dashboard(settings), *_middleware(settings))
    python = settings.runtime_python
    interpreter = find_interpreter(python)
    if interpreter is None:
        print(
            f"warning: no Python {python} here to compile bytecode with; cold starts will take "
            f"about three times as long. Install it (for example: uv python install {python}).",
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
                    raise BundlingError(f"middleware_folder: {name} is a name that is taken")
                if source.is_dir():
                    shutil.copytree(source, stage / name, ignore=_LEFT_OUT)
                else:
                    shutil.copy(source, stage / name)
            _compile(interpreter, *(stage / name for _, name in sources), strip=stage)
        _drop_superseded(target)
    return Bundle(path=target, content_hash=content_hash, bytecode=interpreter is not None)


def code(settings: DeploymentSettings) -> lambda_.Code:
    """The bundle as CDK has it. Raises BundlingError."""
    bundle = build(settings)
    return lambda_.Code.from_asset(
        str(bundle.path),
        # Of what went in, not of what came out: bytecode need not be the same byte for byte.
        asset_hash=bundle.content_hash,
        asset_hash_type=AssetHashType.CUSTOM,
    )


_SOURCES = ((ROOT / "shared" / "ojs", "ojs"), (ROOT / "functions", "functions"))
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def _dashboard(settings: DeploymentSettings) -> tuple[tuple[Path, str], ...]:
    """The built dashboard, and where its function looks for it. Raises BundlingError."""
    if not settings.web_dashboard or settings.entry == "private_api":
        return ()
    if not INSTALLED:
        _run(["make", "--no-print-directory", "-C", str(ROOT), "dashboard"])
    return ((DASHBOARD, "functions/dashboard/built"),)


def _middleware(settings: DeploymentSettings) -> tuple[tuple[Path, str], ...]:
    """What is in the folder of the middleware, and its name in the bundle.

    Raises BundlingError where a function that the setting names is not there: a deployment that
    could not push any job.
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
            raise BundlingError(f"middleware: no module {module} in {folder}")
        if function not in _names_of(ast.parse(source.read_text("utf-8"), str(source))):
            raise BundlingError(f"middleware: no function {function} in {source}")
    entries = sorted(folder.iterdir())
    left_out = _LEFT_OUT(str(folder), [each.name for each in entries])
    return tuple((each, each.name) for each in entries if each.name not in left_out)


def _names_of(module: ast.Module) -> set[str]:
    """What a module defines, or imports, at its top."""
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
    """A CPython of this minor version on this machine, or None.

    A minor version's released interpreters all write the same bytecode, whatever the processor.
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
    # A pyenv shim of a version that is not active exists, and fails; a release candidate may write
    # bytecode that the release refuses.
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
    # No dot: CDK would take what follows it for the asset's file extension.
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
    # Console scripts point at this machine's interpreter.
    shutil.rmtree(target / "bin", ignore_errors=True)


def _trim_sdk(packages: Path) -> None:
    """Leave out the SDK's models of services that no function calls."""
    for model in (packages / "botocore" / "data").iterdir():
        if model.is_dir() and model.name not in SDK_SERVICES:
            shutil.rmtree(model)


def _compile(interpreter: Path | None, *paths: Path, strip: Path) -> None:
    if interpreter is None:
        return
    command = [str(interpreter), "-I", "-m", "compileall", "-q", "-j", "0"]
    command += ["--invalidation-mode", "unchecked-hash", "-s", str(strip), "-p", TASK_ROOT]
    _run([*command, *map(str, paths)])


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BundlingError(f"{' '.join(command)}\n{result.stdout}{result.stderr}".rstrip())


@contextlib.contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A fresh folder beside `target` that takes its name when the block ends well.

    Two builds at once each fill their own; the first to end wins.
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
    """Remove older bundles for the same target; CDK has copied those it still needs."""
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
