"""The documentation site: its navigation, its generated pages, its versions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.site import publish, reference

ROOT = Path(__file__).resolve().parents[3]
NAV = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
GENERATED = reference.pages()
# Of the site alone: the landing page, and the README with another name.
MADE = {"index.md", "quickstart.md"}


@pytest.mark.parametrize("path", GENERATED, ids=[path.name for path in GENERATED])
def test_a_generated_page_is_that_of_the_code(path: Path) -> None:
    assert path.read_text("utf-8") == GENERATED[path], "make facts"


def test_every_page_is_in_the_navigation() -> None:
    names = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")}
    names |= {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "reference").glob("*.md")}
    assert names - set(NAV) == {
        "docs/README.md", "docs/releasing.md", "docs/table.md",
    }  # fmt: skip
    assert len(NAV) == len(set(NAV))


def test_every_page_of_the_navigation_is_there() -> None:
    missing = {name for name in NAV if not (ROOT / name).exists()}
    assert missing <= MADE


@pytest.fixture
def built(tmp_path: Path) -> Path:
    folder = tmp_path / "built"
    folder.mkdir()
    (folder / "index.html").write_text("new")
    return folder


def listed(folder: Path) -> list[tuple[str, list[str]]]:
    found = json.loads((folder / "versions.json").read_text())
    return [(each["version"], each["aliases"]) for each in found]


def test_the_newest_release_is_the_latest(tmp_path: Path, built: Path) -> None:
    site = tmp_path / "site"
    publish.publish(built, site, "dev")
    assert listed(site) == [("dev", [])]
    assert "url=dev/" in (site / "index.html").read_text()
    publish.publish(built, site, "0.10.0")
    (built / "index.html").write_text("old")
    publish.publish(built, site, "0.9.1")
    assert listed(site) == [("dev", []), ("0.10.0", ["latest"]), ("0.9.1", [])]
    assert (site / "latest" / "index.html").read_text() == "new"
    assert "url=latest/" in (site / "index.html").read_text()


@pytest.mark.parametrize("version", ["", "..", "latest", "1.2", "1.2.3/4", "v1.2.3"])
def test_a_name_that_is_not_a_version_writes_nothing(
    tmp_path: Path, built: Path, version: str
) -> None:
    with pytest.raises(ValueError, match="version: must be a release"):
        publish.publish(built, tmp_path / "site", version)
    assert not (tmp_path / "site").exists()
