"""Where the fixture finds its server, and what it says if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ojs_aws.testing import __main__ as command
from ojs_aws.testing import environment, server
from ojs_aws.testing.server import (
    INSTALL,
    ServerNotFound,
    ServerNotStarted,
    ServerProcess,
    find_server,
)
from tests.architecture.modules import ROOT


def test_where_there_is_no_server_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServerNotFound, match="OJS_SERVER_PATH"):
        find_server(tmp_path)
    assert "ojs_aws.testing install" in INSTALL
    monkeypatch.setenv("OJS_SERVER_PATH", str(ROOT))
    assert find_server(tmp_path) == ROOT
    monkeypatch.delenv("OJS_SERVER_PATH")
    assert find_server(ROOT / "tests" / "library") == ROOT


def test_a_server_that_does_not_start_shows_what_it_printed(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "__main__.py").write_text("import no_such_module\n")
    with pytest.raises(ServerNotStarted, match=r"(?s)no_such_module.*OJS_SERVER_PATH"):
        ServerProcess(tmp_path, tmp_path, keys=False)


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As in the wheel, whose server needs nothing."""
    folder = tmp_path / "carried"
    (folder / "local").mkdir(parents=True)
    (folder / "local" / "__main__.py").write_text("import sys; sys.exit(sys.prefix)\n")
    (folder / "shared" / "ojs").mkdir(parents=True)
    (folder / "requirements").mkdir()
    (folder / "requirements" / "local.txt").write_text("# nothing\n")
    monkeypatch.setattr(environment, "CARRIED", folder)
    (folder / "requirements" / "emulator.txt").write_text("# nothing\n")
    monkeypatch.setattr(environment, "REQUIREMENTS", folder / "requirements" / "local.txt")
    emulator = folder / "requirements" / "emulator.txt"
    monkeypatch.setattr(environment, "EMULATOR_REQUIREMENTS", emulator)
    monkeypatch.setattr(server, "CARRIED", folder)
    monkeypatch.setenv("OJS_SERVER_ENVIRONMENT", str(tmp_path / "environment"))
    return folder


@pytest.mark.whole
def test_the_server_of_the_wheel_is_found_once_its_packages_are_there(
    carried: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    requirements = carried / "requirements" / "local.txt"
    requirements.write_text("no-such-package-of-anybody==1 --hash=sha256:00\n")
    with pytest.raises(environment.NotInstalled, match="no-such-package"):
        environment.install()
    with pytest.raises(ServerNotFound, match=r"ojs_aws\.testing install"):
        find_server(project)
    # What was broken off is begun anew.
    requirements.write_text("# nothing\n")
    assert environment.install() == tmp_path / "environment"
    assert find_server(project) == carried
    assert (tmp_path / "environment" / "emulator" / "bin" / "python").exists()
    # It runs with those, and not with what the tests have.
    with pytest.raises(ServerNotStarted, match=str(tmp_path / "environment")):
        ServerProcess(carried, tmp_path, keys=False)
    # Those of another version are none, in a folder that has a name.
    (carried / "requirements" / "emulator.txt").write_text("# more\n")
    with pytest.raises(ServerNotFound):
        find_server(project)


def test_other_packages_are_another_environment(
    carried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OJS_SERVER_ENVIRONMENT")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    before = environment.folder()
    assert before.parent == Path("/cache/ojs-aws")
    (carried / "requirements" / "local.txt").write_text("# more\n")
    more = environment.folder()
    (carried / "requirements" / "emulator.txt").write_text("# more\n")
    assert len({before, more, environment.folder()}) == 3


def test_the_command_says_why_it_cannot(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OJS_SERVER_ENVIRONMENT", str(tmp_path / "environment"))
    monkeypatch.setattr("sys.argv", ["ojs_aws.testing", "install"])
    assert command.main() == 1
    printed = capsys.readouterr()
    assert "make package" in printed.err
    # Whoever waits knows for what.
    assert printed.out.startswith("Installing the packages of the test server")
