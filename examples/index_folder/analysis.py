"""Analyzes one text file. This module doesn't use jobs."""

from __future__ import annotations

import codecs
import hashlib
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHUNK_BYTES = 65_536
TOP_WORDS = 30
# Shorter words are the same few in any text.
_SHORTEST_RANKED = 4
_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
# A longer text without a space is cut here, so that it isn't kept in memory.
_LONGEST_REST = 65_536


class NotText(Exception):
    """The file is not UTF-8. `position` is the position of the error, in bytes from its start."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"not UTF-8 at byte {position}: {reason}")
        self.position = position


def analyse(path: Path, each_chunk: Callable[[int], None] = lambda _done: None) -> dict[str, Any]:
    """Return checksum, size in bytes, lines, words, and the most frequent words of a text file.

    Args:
        path: The file.
        each_chunk: Called after each chunk with the bytes read so far. It can report progress, or
            raise an error to stop.

    Raises:
        NotText: The file is not UTF-8.
        OSError: The file can't be read.
    """
    digest = hashlib.sha256()
    decoder = codecs.getincrementaldecoder("utf-8")()
    counts: Counter[str] = Counter()
    size = lines = words = 0
    rest = ""
    with path.open("rb") as file:
        while True:
            chunk = file.read(CHUNK_BYTES)
            begun = len(decoder.getstate()[0])  # bytes of a character cut in two by the chunks
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise NotText(size - begun + error.start, error.reason) from None
            digest.update(chunk)
            size += len(chunk)
            lines += text.count("\n")
            whole, rest = _cut(rest + text) if chunk else (rest + text, "")
            found = [word.lower() for word in _WORD.findall(whole)]
            words += len(found)
            counts.update(word for word in found if len(word) >= _SHORTEST_RANKED)
            if not chunk:
                break
            each_chunk(size)
    return {
        "sha256": digest.hexdigest(),
        "size": size,
        "lines": lines,
        "words": words,
        "top_words": [list(pair) for pair in counts.most_common(TOP_WORDS)],
    }


def _cut(text: str) -> tuple[str, str]:
    """Split a text after its last space or line end. The next chunk can continue the rest."""
    end = max(text.rfind(" "), text.rfind("\n")) + 1
    if not end and len(text) > _LONGEST_REST:
        end = len(text)
    return text[:end], text[end:]
