"""Logs failures of requests to the server at most once per minute, and increases the pauses."""

from __future__ import annotations

import logging
import random
import time

from ojs_aws.errors import ApiError, OjsError

_TELL_EVERY_S = 60.0
_FIRST_S = 0.5
_MOST_S = 30.0
# Authentication errors don't change within seconds.
_REFUSED = frozenset({401, 403})


class Trouble:
    """Failures of one kind of request."""

    def __init__(self, logger: logging.Logger, what: str, facts: dict[str, object]) -> None:
        self._logger = logger
        self._what = what
        self._facts = facts
        self._since: float | None = None
        self._told = 0.0
        self._kind = ""
        self._count = 0

    def note(self, error: OjsError) -> float:
        """Record a failure. Return the pause in seconds before the next attempt."""
        now = time.monotonic()
        kind = f"{error.status} {error.code}" if isinstance(error, ApiError) else "unreachable"
        if self._since is None:
            self._since, self._count = now, 0
        self._count += 1
        if kind != self._kind or now - self._told >= _TELL_EVERY_S:
            many = f" ({self._count} times in {now - self._since:.0f} s)"
            again = many if self._count > 1 else ""
            level = logging.ERROR if self._refused(error) else logging.WARNING
            self._logger.log(level, "%s failed%s: %s", self._what, again, error, extra=self._facts)
            self._kind, self._told = kind, now
        if self._refused(error):
            return _MOST_S
        pause_s: float = min(_FIRST_S * 2 ** min(self._count - 1, 10), _MOST_S)
        asked_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
        return max(pause_s * random.uniform(0.5, 1.0), min(asked_s, _MOST_S))  # noqa: S311

    def over(self) -> None:
        """Record a success."""
        if self._since is not None:
            lasted_s = time.monotonic() - self._since
            self._logger.info("%s recovered after %.0f s", self._what, lasted_s, extra=self._facts)
            self._since, self._kind = None, ""

    @staticmethod
    def _refused(error: OjsError) -> bool:
        return isinstance(error, ApiError) and error.status in _REFUSED
