"""Retry policy: how often, how long to wait, and what a failure leads to (requirements 5.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from ojs.domain import jsontext

STRATEGIES = ("exponential", "linear", "polynomial", "constant")
ON_EXHAUSTION = ("dead_letter", "discard")
MAX_ATTEMPTS = 10_000


@dataclass(frozen=True)
class RetryPolicy:
    """A complete policy; intervals in ms. Defaults are the system's."""

    max_attempts: int = 3
    initial_ms: int = 1_000
    coefficient: float = 2.0
    max_ms: int = 300_000
    jitter: bool = True
    strategy: str = "exponential"
    non_retryable: tuple[str, ...] = ()
    on_exhaustion: str = "dead_letter"

    def delay_ms(self, failures: int, chance: float) -> int:
        """Wait in ms before the try that follows `failures` failures.

        `chance` is a random number in [0, 1), used when the policy asks for jitter: the delay is
        multiplied by 0.5 to 1.5 and capped again.
        """
        count = max(1, failures)
        try:
            match self.strategy:
                case "constant":
                    delay = float(self.initial_ms)
                case "linear":
                    delay = float(self.initial_ms) * count
                case "polynomial":
                    delay = self.initial_ms * float(count) ** self.coefficient
                case _:
                    delay = self.initial_ms * self.coefficient ** (count - 1)
        except OverflowError:
            delay = math.inf
        delay = min(delay, self.max_ms)
        if self.jitter:
            delay = min(delay * (0.5 + chance), self.max_ms)
        return round(delay)

    def gives_up_on(self, names: Iterable[str | None]) -> bool:
        """Whether one of the failure's names is on the non-retryable list (exact or `Prefix.*`)."""
        return any(
            name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
            for name in names
            if name
            for pattern in self.non_retryable
        )

    def compact(self) -> str | None:
        """The fields that differ from the defaults as JSON text; None when none does."""
        changed = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }
        return jsontext.dumps(changed) if changed else None

    @classmethod
    def from_compact(cls, text: str | None) -> RetryPolicy:
        """The policy that `compact` wrote."""
        if not text:
            return DEFAULT
        given: dict[str, Any] = jsontext.stored(text)
        if "non_retryable" in given:
            given["non_retryable"] = tuple(given["non_retryable"])
        if "coefficient" in given:
            given["coefficient"] = float(given["coefficient"])
        return cls(**given)


DEFAULT = RetryPolicy()
