"""Errors of jobs as they are stored: normalised and cut to size (ojs-core, section 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ojs.domain import jsontext, times
from ojs.domain.errors import InvalidRequest
from ojs.records import record

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


@record(frozen=True)
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


@record(frozen=True)
class ErrorEntry:
    """A failure and its place in a job's error history, as it is stored.

    `run` is the lease token of the run that failed. `ended` is for what ended a job between
    attempts, such as its deadline.
    """

    failure: Failure
    life: int = 0
    ended: bool = False
    run: str | None = None
    # Whether a worker said so; otherwise the backend observed it.
    reported: bool = False

    @property
    def final(self) -> bool:
        """Whether nothing else can be known of its attempt. What the backend observed of a run may
        stand beside what a worker said of it.
        """
        return self.reported or self.ended

    def replaces(self, there: ErrorEntry) -> bool:
        """Whether it is written in place of an entry of the same attempt.

        What a worker says replaces what was noted of its run; what the backend observes does not.
        Runs are told apart by their leases; the later one of two stays.
        """
        if self.run is not None and self.run == there.run:
            return self.reported
        return there.failure.occurred_ms <= self.failure.occurred_ms


_REPORTED, _ENDED, _RETRYABLE = 1, 2, 4


def compact(entries: Sequence[ErrorEntry]) -> str:
    """The form in which a job record has entries of its error history."""
    told = []
    for entry in entries:
        failure = entry.failure
        flags = _REPORTED * entry.reported + _ENDED * entry.ended + _RETRYABLE * failure.retryable
        code = 0 if failure.code == failure.type else failure.code
        one: list[Any] = [failure.attempt, failure.occurred_ms, entry.life, entry.run or 0, flags]
        one += [code, failure.type, failure.message]
        if failure.backtrace or failure.details:
            one += [list(failure.backtrace), failure.details]
        told.append(one)
    return jsontext.dumps(told)


def entries_of(text: str) -> tuple[ErrorEntry, ...]:
    """The entries that a job record has. Raises ValueError, TypeError if it cannot be read."""
    return tuple(map(_entry, jsontext.stored(text)))


def _entry(told: Sequence[Any]) -> ErrorEntry:
    attempt, occurred_ms, life, run, flags, code, kind, message, *rest = told
    backtrace, details = rest or ((), None)
    failure = Failure(
        attempt=attempt,
        code=kind if code == 0 else code,
        type=kind,
        message=message,
        occurred_ms=occurred_ms,
        retryable=bool(flags & _RETRYABLE),
        backtrace=tuple(backtrace),
        details=details,
    )
    reported, ended = bool(flags & _REPORTED), bool(flags & _ENDED)
    return ErrorEntry(failure, life=life, ended=ended, run=run or None, reported=reported)


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
