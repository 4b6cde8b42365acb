"""Where the fixture finds its server, and what it says if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

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
    assert "make -C" in INSTALL
    monkeypatch.setenv("OJS_SERVER_PATH", str(ROOT))
    assert find_server(tmp_path) == ROOT
    monkeypatch.delenv("OJS_SERVER_PATH")
    assert find_server(ROOT / "tests" / "library") == ROOT


def test_a_server_that_does_not_start_shows_what_it_printed(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "__main__.py").write_text("import no_such_module\n")
    with pytest.raises(ServerNotStarted, match=r"(?s)no_such_module.*OJS_SERVER_PATH"):
        ServerProcess(tmp_path, tmp_path, keys=False)
