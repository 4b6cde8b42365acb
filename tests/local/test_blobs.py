"""The folder that stands for the payload bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.blobs import FolderBlobs
from ojs.domain.errors import BackendUnavailable


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "payloads")


def test_put_get_delete(blobs: FolderBlobs) -> None:
    blobs.put("job/1", b"one")
    blobs.put("job/1", b"two")
    assert blobs.get("job/1") == b"two"
    blobs.delete("job/1")
    blobs.delete("job/1")
    with pytest.raises(KeyError):
        blobs.get("job/1")


@given(st.lists(st.text(min_size=1, max_size=300), unique=True, max_size=5))
def test_no_key_meets_another_or_leaves_the_folder(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str]
) -> None:
    keys = [key for key in keys if key.isascii() or key.encode("utf-8", "ignore").decode() == key]
    top = tmp_path_factory.mktemp("blobs")
    blobs = FolderBlobs(top / "payloads")
    for key in keys:
        blobs.put(key, repr(key).encode())
    assert [blobs.get(key) for key in keys] == [repr(key).encode() for key in keys]
    assert list(top.iterdir()) == [top / "payloads"]


@pytest.mark.parametrize("key", ["..", "../x", "/etc/x", "~x", ".", "a/../../b", "x" * 5000])
def test_awkward_keys(blobs: FolderBlobs, tmp_path: Path, key: str) -> None:
    blobs.put(key, b"here")
    assert blobs.get(key) == b"here"
    assert len(list((tmp_path / "payloads").iterdir())) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "payloads"]


def test_clear_empties_it(blobs: FolderBlobs) -> None:
    blobs.put("a", b"1")
    blobs.clear()
    with pytest.raises(KeyError):
        blobs.get("a")
    blobs.put("a", b"2")
    assert blobs.get("a") == b"2"


def test_a_failing_file_system_is_an_unavailable_backend(tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path / "payloads")
    (tmp_path / "payloads").rmdir()
    (tmp_path / "payloads").write_text("in the way")
    for action in (
        lambda: blobs.put("a", b"1"),
        lambda: blobs.get("a"),
        lambda: blobs.delete("a"),
    ):
        with pytest.raises(BackendUnavailable):
            action()


def test_an_unfinished_put_leaves_nothing(
    blobs: FolderBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(BackendUnavailable, match="No space left"):
        blobs.put("a", b"1")
    assert list((tmp_path / "payloads").iterdir()) == []


@pytest.mark.requirement("DL-20")
def test_the_archive_is_in_folders_that_people_can_read(blobs: FolderBlobs, tmp_path: Path) -> None:
    key = "archive/bil.ling-1/2026/11/21/1780-ab.jsonl.gz"
    blobs.put(key, b"x", content_type="application/gzip")
    (found,) = tmp_path.rglob("*.gz")
    assert str(found).endswith(key)
    assert blobs.get(key) == b"x"
    blobs.put("archive/../../../up", b"y")
    blobs.put("archive/./a", b"z")
    assert (blobs.get("archive/../../../up"), blobs.get("archive/./a")) == (b"y", b"z")
    assert not (tmp_path.parent / "up").exists()
    blobs.delete(key)
    with pytest.raises(KeyError):
        blobs.get(key)
