"""Stored errors of jobs: normalized and limited in size (ojs-core, section 8)."""

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

# Fields of `details` that can contain the name of the error.
_NAMING = ("error_class", "error_type")

# Maximum bytes of the error type in the record of a dead letter, and the name of an unknown type.
MAX_TYPE_BYTES = 255
UNKNOWN_TYPE = "Unknown"

# Values of `error.code` with which a handler sets the outcome of the job.
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
        """The names that `non_retryable_errors` is compared with."""
        details = self.details or {}
        extra = [details.get(name) for name in _NAMING]
        return (self.type, *(name for name in extra if isinstance(name, str)), self.code)

    def to_dict(self) -> dict[str, Any]:
        """Return the error object in responses."""
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
    """A stored failure and its place in a job's error history.

    `run` is the lease token of the attempt that failed. If `ended`, the job ended between attempts,
    for example because of its deadline.
    """

    failure: Failure
    life: int = 0
    ended: bool = False
    run: str | None = None
    # Whether a worker reported the failure. If not, the backend detected it.
    reported: bool = False

    @property
    def final(self) -> bool:
        """Whether no other entry of the same attempt can follow.

        A failure that the backend detected can be followed by a worker's report of the same
        attempt.
        """
        return self.reported or self.ended

    def replaces(self, there: ErrorEntry) -> bool:
        """Return whether this entry replaces `there`, an entry with the same attempt number.

        If both have the same lease token, a worker's report replaces the stored entry, and a
        failure detected by the backend doesn't. If the lease tokens differ, the later failure
        replaces the earlier one.
        """
        if self.run is not None and self.run == there.run:
            return self.reported
        return there.failure.occurred_ms <= self.failure.occurred_ms


_REPORTED, _ENDED, _RETRYABLE = 1, 2, 4


def compact(entries: Sequence[ErrorEntry]) -> str:
    """Encode entries of the error history for a job record."""
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
    """Read the result of `compact`. Raises ValueError or TypeError if the text is invalid."""
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
    """Create the failure that a worker reported. Values that are too long are cut.

    Args:
        error: Error object of the report.
        attempt: Number of the attempt that failed.
        now_ms: Current time in milliseconds since the epoch.

    Raises:
        InvalidRequest: A field has the wrong type, or code, type, and message are all missing. The
            error names the field.
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
        # If the error has neither type nor code, dead letters are counted and found as `Unknown`
        # (ojs-dead-letter, section 10.1).
        type=kind or code or UNKNOWN_TYPE,
        message=(message or "")[:MAX_MESSAGE_CHARACTERS],
        occurred_ms=now_ms,
        retryable=retryable is not False,
        backtrace=_frames(backtrace),
        details=_capped(details),
    )


def kept_type(kind: str) -> str:
    """Return the error type for the record of a dead letter, cut to `MAX_TYPE_BYTES`."""
    return kind.encode("utf-8")[:MAX_TYPE_BYTES].decode("utf-8", errors="ignore")


def limited_until(error: Mapping[str, Any], *, now_ms: int) -> int | None:
    """Return the time (ms) in `rate_limit_until` of an error, or None if it is absent.

    Until this time, an external service rejects calls of the worker. Raises InvalidRequest if the
    value is not a time.
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
    """Create a failure that the backend detected.

    Args:
        kind: Code and type, for example `visibility_timeout`, `timeout`, or `expired`.
        message: Text of the failure.
        attempt: Number of the attempt that failed.
        now_ms: Current time in milliseconds since the epoch.
        retryable: Whether the job can be retried. Default: true.
    """
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
    """Return the frames of a backtrace, up to MAX_FRAMES and MAX_BACKTRACE_CHARACTERS.

    A string is split by line.
    """
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
    """Return the details.

    Above MAX_DETAILS_BYTES: only `truncated` and the scalar fields that fit.
    """
    if not details:
        return None
    if jsontext.size_of(details) <= MAX_DETAILS_BYTES:
        return dict(details)
    kept: dict[str, Any] = {"truncated": True}
    room = MAX_DETAILS_BYTES - 32
    # Fields that `non_retryable_errors` is compared with have priority.
    for key, value in sorted(details.items(), key=lambda item: item[0] not in _NAMING):
        size = jsontext.size_of({key: value})
        if size <= room and not isinstance(value, list | Mapping):
            kept[key] = value
            room -= size
    return kept
