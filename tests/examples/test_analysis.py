from __future__ import annotations

import hashlib
import re
from collections import Counter
from pathlib import Path

import analysis
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@given(text=st.text(alphabet="abcé\u2019€ \n.1'", max_size=200), chunk=st.integers(1, 9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_chunks_do_not_show(
    text: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "CHUNK_BYTES", chunk)
    path = tmp_path / "text"
    path.write_bytes(text.encode())
    found = analysis.analyse(path)
    words = re.findall(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*", text.lower())
    ranked = Counter(word for word in words if len(word) >= 4)
    assert found["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert found["size"] == len(text.encode())
    assert found["lines"] == text.count("\n")
    assert found["words"] == len(words)
    assert dict(found["top_words"]) == dict(ranked.most_common(analysis.TOP_WORDS))


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_says_where_a_file_stops_being_text(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "CHUNK_BYTES", chunk)
    path = tmp_path / "text"
    path.write_bytes("é€".encode() + b"\xff more")
    with pytest.raises(analysis.NotText) as caught:
        analysis.analyse(path)
    assert caught.value.position == 5


def test_a_character_cut_off_at_the_end_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"abc" + "€".encode()[:2])
    with pytest.raises(analysis.NotText) as caught:
        analysis.analyse(path)
    assert caught.value.position == 3


def test_a_text_without_spaces_is_not_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a" * 300_000)
    assert analysis.analyse(path)["size"] == 300_000


def test_tells_how_far_it_is(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a " * analysis.CHUNK_BYTES)
    seen: list[int] = []
    analysis.analyse(path, seen.append)
    assert seen == [analysis.CHUNK_BYTES, 2 * analysis.CHUNK_BYTES]
