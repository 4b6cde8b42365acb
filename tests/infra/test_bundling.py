from __future__ import annotations

import ast
import importlib.util
import marshal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from infra import ROOT
from ojs_aws.cdk import bundling
from ojs_aws.cdk.settings import DeploymentSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = DeploymentSettings(bundle="host")
UNCHECKED_HASH = 0b01


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny project in place of ours, and an installer that fetches nothing."""
    library, functions = tmp_path / "shared" / "ojs", tmp_path / "functions"
    for folder in (library, functions / "jobs"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        (folder / "__pycache__").mkdir()
        (folder / "__pycache__" / "stale.pyc").write_bytes(b"stale")
    (library / "clock.py").write_text("def now():\n    return 1\n")
    (functions / "jobs" / "handler.py").write_text("from ojs.clock import now\n")

    def install(_settings: DeploymentSettings, target: Path) -> None:
        for service in (*bundling.SDK_SERVICES, "ec2", "sns"):
            (target / "botocore" / "data" / service).mkdir(parents=True)
        (target / "botocore" / "data" / "endpoints.json").write_text("{}")
        (target / "botocore" / "session.py").write_text("x = 1\n")

    monkeypatch.setattr(bundling, "_pip_install", install)
    monkeypatch.setattr(bundling, "BUILD", tmp_path / "build")
    monkeypatch.setattr(bundling, "_SOURCES", ((library, "ojs"), (functions, "functions")))
    return tmp_path


def test_layout(sources: Path) -> None:
    bundle = bundling.build(HOST)
    assert (bundle.path / "ojs" / "clock.py").is_file()
    assert (bundle.path / "functions" / "jobs" / "handler.py").is_file()
    assert (bundle.path / "botocore" / "session.py").is_file()
    assert not list(bundle.path.rglob("stale.pyc"))
    assert not list((sources / "build").glob("staging-*"))


def test_models_of_unused_services_are_left_out(sources: Path) -> None:
    data = bundling.build(HOST).path / "botocore" / "data"
    assert {entry.name for entry in data.iterdir()} == {*bundling.SDK_SERVICES, "endpoints.json"}


def test_bytecode_is_there_for_the_runtime_and_never_looks_at_time_stamps(sources: Path) -> None:
    bundle = bundling.build(HOST)
    assert bundle.bytecode
    for source in bundle.path.rglob("*.py"):
        compiled = Path(importlib.util.cache_from_source(str(source)))
        content = compiled.read_bytes()
        assert content[:4] == importlib.util.MAGIC_NUMBER
        assert int.from_bytes(content[4:8], "little") == UNCHECKED_HASH
        name = marshal.loads(content[16:]).co_filename
        assert name == f"/var/task/{source.relative_to(bundle.path)}"


def test_an_unchanged_project_is_not_bundled_again(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bundling.build(HOST)
    monkeypatch.setattr(bundling, "_staging", None)
    assert bundling.build(HOST) == first


def test_a_changed_source_makes_another_bundle(sources: Path) -> None:
    first = bundling.build(HOST)
    (sources / "shared" / "ojs" / "clock.py").write_text("def now():\n    return 2\n")
    second = bundling.build(HOST)
    assert second.content_hash != first.content_hash
    assert "return 2" in (second.path / "ojs" / "clock.py").read_text()


def test_without_the_interpreter_it_warns_and_goes_on(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_bytecode = bundling.build(HOST)
    monkeypatch.setattr(bundling, "_interpreter_candidates", lambda _python: iter(()))
    bundle = bundling.build(HOST)
    assert not bundle.bytecode
    assert not list(bundle.path.rglob("*.pyc"))
    assert bundle.content_hash != with_bytecode.content_hash
    assert "Cold starts take about three times as long" in capsys.readouterr().err


def test_a_failed_build_leaves_nothing_behind(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "functions" / "jobs" / "handler.py").write_text("def broken(:\n")
    with pytest.raises(bundling.BundlingError, match=r"handler\.py"):
        bundling.build(HOST)
    assert not list((sources / "build").glob("staging-*"))
    assert not list((sources / "build").glob("bundle-*"))


def with_middleware(folder: Path, *names: str) -> DeploymentSettings:
    return DeploymentSettings(bundle="host", middleware=names, middleware_folder=str(folder))


@pytest.fixture
def hooks(tmp_path: Path) -> Path:
    """A folder of middleware: a module, a package, data, and what is nobody's business."""
    folder = tmp_path / "hooks"
    (folder / "checks" / "__pycache__").mkdir(parents=True)
    (folder / "hooks.py").write_text("from checks import args as check\nadd = lambda j, n: n(j)\n")
    (folder / "checks" / "__init__.py").write_text("def args(job, following): ...\n")
    (folder / "checks" / "__pycache__" / "stale.pyc").write_bytes(b"stale")
    (folder / "schema.json").write_text("{}")
    (folder / ".secret").write_text("secret")
    return folder


def test_middleware_lies_at_the_top(sources: Path, hooks: Path) -> None:
    named = ("hooks:check", "hooks:add", "checks:args")
    bundle = bundling.build(with_middleware(hooks, *named))
    found = {str(each.relative_to(bundle.path)) for each in bundle.path.rglob("*")}
    assert {"hooks.py", "checks/__init__.py", "schema.json", "ojs/clock.py"} <= found
    assert any(each.startswith("__pycache__/hooks.") for each in found)
    assert not {".secret", "checks/__pycache__/stale.pyc"} & found


def test_changed_middleware_makes_another_bundle(sources: Path, hooks: Path) -> None:
    settings = with_middleware(hooks, "hooks:add")
    first = bundling.build(settings)
    (hooks / "schema.json").write_text("[]")
    second = bundling.build(settings)
    assert second.content_hash != first.content_hash
    assert (second.path / "schema.json").read_text() == "[]"


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("no_module:add", "module no_module not found in"),
        ("checks.inner:add", "module checks.inner not found in"),
        ("hooks:ad", "function ad not found in"),
        ("checks:job", "function job not found in"),
    ],
)
def test_middleware_that_is_not_there_is_told_before_it_is_deployed(
    sources: Path, hooks: Path, named: str, why: str
) -> None:
    with pytest.raises(bundling.BundlingError, match=why):
        bundling.build(with_middleware(hooks, named))


def test_middleware_may_not_replace_what_the_functions_have(sources: Path, hooks: Path) -> None:
    for name in ("ojs", "functions", "botocore"):
        (hooks / name).mkdir()
        with pytest.raises(bundling.BundlingError, match=f"the name {name} is reserved"):
            bundling.build(with_middleware(hooks, "hooks:add"))
        (hooks / name).rmdir()
    assert not list((sources / "build").glob("bundle-*"))


def test_this_interpreter_is_found() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert bundling.find_interpreter(version) == Path(sys.executable)


def test_an_interpreter_that_does_not_run_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pyenv shim exists for versions that are installed but not active.
    shim = tmp_path / "python3.14"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setattr(bundling, "_interpreter_candidates", lambda _python: iter([shim]))
    assert bundling.find_interpreter("3.14") is None


def test_pip_is_asked_for_the_wheels_of_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(bundling, "_run", commands.append)
    bundling._pip_install(DeploymentSettings(), tmp_path)
    bundling._pip_install(HOST, tmp_path)
    for_lambda, for_host = (" ".join(command) for command in commands)
    for option in ("--require-hashes", "--only-binary=:all:", "--no-compile"):
        assert option in for_lambda
        assert option in for_host
    assert "--python-version 3.13" in for_lambda
    assert "--platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64" in for_lambda
    assert "--platform" not in for_host


def test_amazon_linux_2_gets_no_newer_wheels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(bundling, "_run", commands.append)
    bundling._pip_install(DeploymentSettings(python="3.11", architecture="x86_64"), tmp_path)
    assert [word for word in commands[0] if word.startswith("manylinux")] == [
        "manylinux2014_x86_64"
    ]


def test_a_failing_tool_is_quoted() -> None:
    program = "import sys; print('what went wrong', file=sys.stderr); sys.exit(3)"
    with pytest.raises(bundling.BundlingError, match="what went wrong"):
        bundling._run([sys.executable, "-c", program])


def test_the_models_of_every_used_service_are_kept() -> None:
    used = {
        service for path in _python_files() for service in _clients(ast.parse(path.read_text()))
    }
    assert used == set(bundling.SDK_SERVICES)
    assert used, "no client found: has the way to make one changed?"


def _python_files() -> Iterator[Path]:
    for folder in (ROOT / "shared", ROOT / "functions"):
        yield from folder.rglob("*.py")


def _clients(tree: ast.AST) -> Iterator[str]:
    """Names of services in calls like `clients.client("s3")` or `session.create_client("s3")`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        service = node.args[0]
        if (
            name in {"client", "create_client"}
            and isinstance(service, ast.Constant)
            and isinstance(service.value, str)
        ):
            yield service.value
