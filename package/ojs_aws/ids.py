"""IDs of jobs and workers."""

from __future__ import annotations

import secrets
import time


def uuid7() -> str:
    """Create a UUIDv7: 48 bits of time in milliseconds, then random bits."""
    value = time.time_ns() // 1_000_000 << 80 | 0x7 << 76 | 0b10 << 62
    value |= secrets.randbits(12) << 64 | secrets.randbits(62)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
