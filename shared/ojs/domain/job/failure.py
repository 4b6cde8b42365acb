"""Errors of jobs as they are stored: normalised and cut to size (ojs-core, section 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ojs.domain import jsontext, times
from ojs.domain.errors import InvalidRequest

MAX_FRAMES = 50
MAX_BACKTRACE_CHARACTERS = 10_000
MAX_MESSAGE_CHARACTERS = 10_000
MAX_NAME_CHARACTERS = 255
MAX_DETAILS_BYTES = 16_384

# Fields of `details` that may name the error.
_NAMING = ("error_class", "error_type")

# Bytes of the error type in the record of a dead letter, and the name for an unknown type.
MAX_TYPE_BYTES = 255
UNKNOWN_TYPE = "Unknown"

# Values of `error.code` by which a handler decides the outcome itself.
CODE_DISCARD = "DISCARD"
CODE_DEAD_LETTER = "DEAD_LETTER"


@dataclass(frozen=True)
class Failure:
    """One entry of a job's error history."""

    attempt: int
    code: str
    type: str
    message: str
    occurred_ms: int
    retryable: bool = True
    backtrace: tuple[str, ...] = ()
    details: Mapping[str, Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which `non_retryable_errors` may refer to it."""
        details = self.details or {}
        extra = [details.get(name) for name in _NAMING]
        return (self.type, *(name for name in extra if isinstance(name, str)), self.code)

    def to_dict(self) -> dict[str, Any]:
        """The error object a client sees."""
        shown: dict[str, Any] = {
            "attempt": self.attempt,
            "code": self.code,
            "type": self.type,
            "message": self.message,
            "retryable": self.retryable,
        }
        if self.backtrace:
            shown["backtrace"] = list(self.backtrace)
        if self.details:
            shown["details"] = dict(self.details)
        shown["occurred_at"] = times.format_ms(self.occurred_ms)
        return shown


def reported(error: Mapping[str, Any], *, attempt: int, now_ms: int) -> Failure:
    """The failure a worker reported.

    Texts that are too long are cut. Raises InvalidRequest naming the field
    when a field has the wrong type, or when neither code, type nor message is given.
    """
    code = _name(error, "code")
    kind = _name(error, "type")
    message: str | None = _typed(error, "message", str, "a string")
    if code is None and kind is None and message is None:
        raise InvalidRequest("error.message", "is required")
    retryable: bool | None = _typed(error, "retryable", bool, "a boolean")
    details: Mapping[str, Any] | None = _typed(error, "details", Mapping, "an object")
    backtrace = error.get("backtrace", error.get("stack_trace"))
    if details and kind is None:
        kind = next(
            (
                details[name][:MAX_NAME_CHARACTERS]
                for name in _NAMING
                if isinstance(details.get(name), str) and details[name]
            ),
            None,
        )
    return Failure(
        attempt=attempt,
        code=code or kind or "handler_error",
        # Of an error that names neither, dead letters are counted and found as `Unknown`
        # (ojs-dead-letter, section 10.1).
        type=kind or code or UNKNOWN_TYPE,
        message=(message or "")[:MAX_MESSAGE_CHARACTERS],
        occurred_ms=now_ms,
        retryable=retryable is not False,
        backtrace=_frames(backtrace),
        details=_capped(details),
    )


def kept_type(kind: str) -> str:
    """An error type as the record of a dead letter stores it, cut at MAX_TYPE_BYTES."""
    return kind.encode("utf-8")[:MAX_TYPE_BYTES].decode("utf-8", errors="ignore")


def limited_until(error: Mapping[str, Any], *, now_ms: int) -> int | None:
    """When a worker may call a service again that limited it, in ms; None if it did not say.

    Raises InvalidRequest unless it is a time.
    """
    text = error.get("rate_limit_until")
    if text is None:
        return None
    try:
        return times.timestamp_ms(text, now_ms=now_ms)
    except ValueError as broken:
        raise InvalidRequest("error.rate_limit_until", str(broken), value=text) from None


def observed(
    kind: str, message: str, *, attempt: int, now_ms: int, retryable: bool = True
) -> Failure:
    """A failure that the backend detected: `visibility_timeout`, `timeout`, `expired` and so on."""
    return Failure(
        attempt=attempt,
        code=kind,
        type=kind,
        message=message,
        occurred_ms=now_ms,
        retryable=retryable,
    )


def _typed(error: Mapping[str, Any], field: str, wanted: type, called: str) -> Any:
    value = error.get(field)
    if value is not None and not isinstance(value, wanted):
        raise InvalidRequest(f"error.{field}", f"must be {called}", value=value)
    return value


def _name(error: Mapping[str, Any], field: str) -> str | None:
    value: str | None = _typed(error, field, str, "a non-empty string")
    if value == "":
        raise InvalidRequest(f"error.{field}", "must be a non-empty string", value=value)
    return None if value is None else value[:MAX_NAME_CHARACTERS]


def _frames(backtrace: Any) -> tuple[str, ...]:
    """At most MAX_FRAMES frames and MAX_BACKTRACE_CHARACTERS in all; a text is split into lines."""
    if backtrace is None:
        return ()
    frames = backtrace.splitlines() if isinstance(backtrace, str) else backtrace
    if not isinstance(frames, list | tuple) or not all(isinstance(f, str) for f in frames):
        raise InvalidRequest("error.backtrace", "must be an array of strings", value=backtrace)
    kept: list[str] = []
    room = MAX_BACKTRACE_CHARACTERS
    for frame in frames[:MAX_FRAMES]:
        if room <= 0:
            break
        kept.append(frame[:room])
        room -= len(frame)
    return tuple(kept)


def _capped(details: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Details, cut above MAX_DETAILS_BYTES to `truncated` and the scalar fields that fit."""
    if not details:
        return None
    if jsontext.size_of(details) <= MAX_DETAILS_BYTES:
        return dict(details)
    kept: dict[str, Any] = {"truncated": True}
    room = MAX_DETAILS_BYTES - 32
    # Fields that `non_retryable_errors` may refer to come first.
    for key, value in sorted(details.items(), key=lambda item: item[0] not in _NAMING):
        size = jsontext.size_of({key: value})
        if size <= room and not isinstance(value, list | Mapping):
            kept[key] = value
            room -= size
    return kept
