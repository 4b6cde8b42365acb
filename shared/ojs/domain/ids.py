"""Identifiers and index positions: UUIDv7 job IDs, lease tokens, and order keys."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import threading
from collections.abc import Callable

from ojs.clock import Clock

# Lowercase only (ojs-core, section 5.1).
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

_MAX_SEQUENCE = 0xFFFF
# Hex digits of an order key: 11 for ms, 4 for the sequence.
ORDER_DIGITS = 15


def is_uuid7(text: object) -> bool:
    """Return whether `text` is a lowercase, hyphenated UUIDv7 (RFC 9562)."""
    return isinstance(text, str) and UUID7.fullmatch(text) is not None


def derived_uuid7(ms: int, name: str) -> str:
    """Derive a UUIDv7 from a time (ms) and a name. The same arguments give the same ID."""
    digest = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=10).digest(), "big")
    return uuid7(ms, digest >> 68, digest & (1 << 62) - 1)


def uuid7(ms: int, high: int, low: int) -> str:
    """Build a UUIDv7 from its parts.

    Args:
        ms: Time in milliseconds since the epoch, 48 bits.
        high: The 12 bits before the variant.
        low: The 62 bits after the variant.

    Returns:
        The UUID, lowercase and hyphenated.
    """
    text = f"{ms << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def order_at(ms: int) -> str:
    """Return the lowest order key in the ready index for a time (ms)."""
    return f"{ms:011x}{0:04x}"


class IdSource:
    """Creates IDs and order keys that strictly increase within one process.

    IDs of two processes are ordered by their clocks (ADR 1). Within one process, the sequence keeps
    the order even if the clock stops or moves backward.
    """

    def __init__(self, clock: Clock, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._lock = threading.Lock()
        self._last_ms = 0
        self._sequence = 0

    def now_ms(self) -> int:
        """Return the current time of the source's clock in milliseconds since the epoch."""
        return self._clock.now_ms()

    def _tick(self) -> tuple[int, int]:
        with self._lock:
            now_ms = self._clock.now_ms()
            if now_ms > self._last_ms:
                self._last_ms, self._sequence = now_ms, 0
            elif self._sequence < _MAX_SEQUENCE:
                self._sequence += 1
            else:
                self._last_ms, self._sequence = self._last_ms + 1, 0
            return self._last_ms, self._sequence

    def uuid7(self) -> str:
        """Create a lowercase UUIDv7 that sorts after all earlier ones of this process."""
        ms, sequence = self._tick()
        random = int.from_bytes(self._random_bytes(8), "big")
        # The top 12 bits of the sequence, its low 4 bits, 58 random bits.
        return uuid7(ms, sequence >> 4, (sequence & 0xF) << 58 | random >> 6)

    def order(self) -> str:
        """Create an order key for the ready index: 15 hex digits (ms, sequence), sorted by time."""
        ms, sequence = self._tick()
        return f"{ms:011x}{sequence:04x}"

    def token(self) -> str:
        """Create a token for a write or a lease: 8 random characters (48 bits)."""
        return base64.urlsafe_b64encode(self._random_bytes(6)).decode()
