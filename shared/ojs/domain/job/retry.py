"""Retry policy: number of attempts, delays between them, and what happens after the last one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import StrEnum
from functools import lru_cache
from typing import Any, assert_never

from ojs.domain import jsontext, times
from ojs.domain.errors import known
from ojs.records import record

MAX_ATTEMPTS = 10_000


class BackoffStrategy(StrEnum):
    """The growth of the retry delay with each failure."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    POLYNOMIAL = "polynomial"
    CONSTANT = "constant"


class OnExhaustion(StrEnum):
    """The action on a job that has no attempts left."""

    DEAD_LETTER = "dead_letter"
    DISCARD = "discard"


@record(frozen=True)
class RetryPolicy:
    """A complete retry policy. Intervals in milliseconds. The defaults are the system defaults."""

    max_attempts: int = 3
    initial_ms: int = 1_000
    coefficient: float = 2.0
    max_ms: int = 300_000
    jitter: bool = True
    strategy: BackoffStrategy = BackoffStrategy.EXPONENTIAL
    non_retryable: tuple[str, ...] = ()
    on_exhaustion: OnExhaustion = OnExhaustion.DEAD_LETTER

    def delay_ms(self, failures: int, chance: float) -> int:
        """Return the delay in ms before the attempt that follows `failures` failures.

        `chance` is a random number in [0, 1). With jitter, the delay is multiplied by `0.5 +
        chance` (0.5 to 1.5) and limited to the maximum again.
        """
        count = max(1, failures)
        try:
            match self.strategy:
                case BackoffStrategy.CONSTANT:
                    delay = float(self.initial_ms)
                case BackoffStrategy.LINEAR:
                    delay = float(self.initial_ms) * count
                case BackoffStrategy.POLYNOMIAL:
                    delay = self.initial_ms * float(count) ** self.coefficient
                case BackoffStrategy.EXPONENTIAL:
                    delay = self.initial_ms * self.coefficient ** (count - 1)
                case _:
                    assert_never(self.strategy)
        except OverflowError:
            delay = math.inf
        delay = min(delay, self.max_ms)
        if self.jitter:
            delay = min(delay * (0.5 + chance), self.max_ms)
        return round(delay)

    def gives_up_on(self, names: Iterable[str | None]) -> bool:
        """Return whether one of a failure's names is non-retryable: listed, or covered by
        `Prefix.*`.
        """
        return any(
            name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
            for name in names
            if name
            for pattern in self.non_retryable
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of a policy, with the field names of ojs-retry."""
        return {
            "max_attempts": self.max_attempts,
            "initial_interval": times.format_duration(self.initial_ms),
            "backoff_coefficient": self.coefficient,
            "max_interval": times.format_duration(self.max_ms),
            "jitter": self.jitter,
            "backoff_strategy": self.strategy.value,
            "on_exhaustion": self.on_exhaustion.value,
            **({"non_retryable_errors": list(self.non_retryable)} if self.non_retryable else {}),
        }

    def compact(self) -> str:
        """Return the fields that differ from the defaults, as JSON."""
        changed = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if getattr(self, field.name) != field.default
        }
        return jsontext.dumps(changed)

    @classmethod
    @lru_cache(256)  # many jobs have the same policy
    def of(cls, text: str) -> RetryPolicy:
        """Read the result of `compact`."""
        stored: dict[str, Any] = jsontext.stored(text)
        named = {field.name for field in fields(cls)}
        changed = {name: value for name, value in stored.items() if name in named}
        read = {name: _READ[name](changed[name]) for name in _READ.keys() & changed.keys()}
        return cls(**changed | read)


# Converters for fields whose stored form differs.
_READ: dict[str, Callable[[Any], Any]] = {
    "non_retryable": tuple,
    "coefficient": float,
    # An unknown value that a newer version stored is read as the default. The stored value doesn't
    # change.
    "strategy": lambda text: known(BackoffStrategy, text, "", BackoffStrategy.EXPONENTIAL),
    "on_exhaustion": lambda text: known(OnExhaustion, text, "", OnExhaustion.DEAD_LETTER),
}


DEFAULT = RetryPolicy()
