"""The work itself: what is to be known about one text file. Knows nothing of jobs."""

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
# A text without any space is cut here rather than kept in memory whole.
_LONGEST_REST = 65_536


class NotText(Exception):
    """The file is not UTF-8. `position` is where, in bytes from its start."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"not UTF-8 at byte {position}: {reason}")
        self.position = position


def analyse(path: Path, each_chunk: Callable[[int], None] = lambda _done: None) -> dict[str, Any]:
    """Checksum, size in bytes, lines, words and the most frequent words of a text file.

    `each_chunk` is called with the bytes read so far, again and again: it may report progress, or
    raise to give up. Raises NotText and OSError.
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
    """A text up to its last space or line end, and the rest, which may go on in the next chunk."""
    end = max(text.rfind(" "), text.rfind("\n")) + 1
    if not end and len(text) > _LONGEST_REST:
        end = len(text)
    return text[:end], text[end:]
