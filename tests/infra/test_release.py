"""What a release needs: one version in all places, its changelog, and the workflow of a tag."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml  # type: ignore[import-untyped]  # ships no types

from infra import ROOT, release

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def test_all_versions_agree() -> None:
    assert list(release.problems()) == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files that have the version, after it was raised."""
    for name in (*release.PLACES, "pyproject.toml", "docs/upgrade.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    project = tmp_path / "pyproject.toml"
    project.write_text(
        re.sub(r'^version = ".+"', 'version = "0.3.0"', project.read_text(), flags=re.MULTILINE)
    )
    changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-12-01\n\n### Added\n\n- A.\n"
    (tmp_path / "CHANGELOG.md").write_text(f"{changelog}\n## [0.2.0] - 2026-11-21\n\n- B.\n")
    return tmp_path


def test_a_version_is_raised_in_one_place(project: Path) -> None:
    found = list(release.problems(project))
    assert [each.partition(":")[0] for each in found] == list(release.PLACES)
    assert all("pyproject.toml has 0.3.0. Run make facts" in each for each in found)
    release.write(project)
    assert list(release.problems(project, "v0.3.0")) == []
    assert release.section("0.3.0", project) == "### Added\n\n- A."


@pytest.mark.parametrize(
    ("tag", "old", "new", "told"),
    [
        ("v0.3.1", "", "", "--tag: v0.3.1 must be v0.3.0"),
        ("0.3.0", "", "", "--tag: 0.3.0 must be v0.3.0"),
        ("v0.3.0", "ed]\n", "ed]\n\n- C.\n", "Unreleased must be empty"),
        ("v0.3.0", " - 2026-12-01", "", "must have a date"),
        ("v0.3.0", "[0.3.0]", "[0.4.0]", "has no section 0.3.0"),
    ],
)
def test_an_unfinished_changelog_is_refused(
    project: Path, tag: str, old: str, new: str, told: str
) -> None:
    release.write(project)
    changelog = project / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace(old, new))
    assert any(told in each for each in release.problems(project, tag))


def test_upgrade_notes_are_on_the_page(project: Path) -> None:
    release.write(project)
    for path, old, new in (
        ("CHANGELOG.md", "### Added", "### Upgrade"), ("docs/upgrade.md", "| before 0.3 |", "| |"),
    ):  # fmt: skip
        assert list(release.problems(project, "v0.3.0")) == []
        (project / path).write_text((project / path).read_text().replace(old, new))
    (told,) = release.problems(project, "v0.3.0")
    assert told.startswith("docs/upgrade.md: has no row 'before 0.3'")


def test_the_workflow_is_pinned_and_has_few_permissions() -> None:
    text = WORKFLOW.read_text("utf-8")
    workflow: dict[Any, Any] = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    # YAML reads `on` as true.
    assert list(workflow[True]) == ["push"]
    jobs = workflow["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "check": {"contents": "read"},
        "build": {"contents": "read", "id-token": "write", "attestations": "write"},
        "upload": {"id-token": "write"},
        "release": {"contents": "write"},
    }
    for step in (step for job in jobs.values() for step in job["steps"]):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"])
    assert len(re.findall("uses:", text)) == len(
        re.findall(r"uses: .+  # v[\d.]+$", text, re.MULTILINE)
    )
    # No text of somebody else's is part of a command, and no token is stored.
    assert set(re.findall(r"\$\{\{ (.+?) \}\}", text)) == {"github.token", "github.repository"}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {"check", "release", "release-check"} == set(re.findall(r"make ([a-z-]+)", text))
    assert {"check", "release", "release-check"} <= targets
