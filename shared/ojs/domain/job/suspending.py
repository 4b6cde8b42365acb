"""Reads why a worker suspends a job, from a nack or from the response to a push."""

from __future__ import annotations

from collections.abc import Mapping

from ojs.domain import times
from ojs.domain.errors import InvalidRequest, any_of, naming_field
from ojs.domain.job.durable import NAME, NAME_RULE, STEP_NAME, Suspension, Wait

MAX_WAITS = 50
MAX_WAIT_MS = 366 * 86_400_000
WAIT_KINDS = ("sleep", "signal", "job", "time")
MODES = ("any", "all")
_FIELDS = frozenset({"mode", "waits"})
_WAIT_FIELDS = frozenset({"kind", "name", "until", "for"})


def suspension(raw: object, *, now_ms: int) -> Suspension:
    """Read `{"mode"?, "waits": [{"kind", "name", "until" | "for"}]}`.

    Args:
        raw: The parsed JSON value.
        now_ms: Current time in milliseconds since the epoch.

    Raises:
        InvalidRequest: A field is missing or invalid.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRequest("suspend", "must be an object with waits", value=raw)
    _check_fields(raw, _FIELDS, "suspend")
    mode, waits = raw.get("mode", "any"), raw.get("waits")
    if mode not in MODES:
        raise InvalidRequest("suspend.mode", f"must be {any_of(MODES)}", value=mode)
    if not isinstance(waits, list) or not 1 <= len(waits) <= MAX_WAITS:
        rule = f"must be an array of 1 to {MAX_WAITS} waits"
        raise InvalidRequest("suspend.waits", rule, value=waits)
    found = tuple(
        _wait(wait, f"suspend.waits[{at}]", now_ms=now_ms) for at, wait in enumerate(waits)
    )
    for at, wait in enumerate(found):
        if any((wait.kind, wait.name) == (one.kind, one.name) for one in found[:at]):
            rule = "is a duplicate. Send each wait once"
            raise InvalidRequest(f"suspend.waits[{at}].name", rule, value=wait.name)
    return Suspension(found, mode == "all")


def _check_fields(raw: Mapping[object, object], known: frozenset[str], at: str) -> None:
    if unknown := sorted(str(name) for name in raw if name not in known):
        raise InvalidRequest(f"{at}.{unknown[0][:100]}", "is not a known field")


def _wait(raw: object, at: str, *, now_ms: int) -> Wait:
    if not isinstance(raw, Mapping):
        raise InvalidRequest(at, "must be an object", value=raw)
    _check_fields(raw, _WAIT_FIELDS, at)
    kind, name = raw.get("kind"), raw.get("name")
    if kind not in WAIT_KINDS:
        raise InvalidRequest(f"{at}.kind", f"must be {any_of(WAIT_KINDS)}", value=kind)
    # A job waits for a child under the name of the step that started it.
    pattern = STEP_NAME if kind != "signal" else NAME
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise InvalidRequest(f"{at}.name", NAME_RULE, value=name)
    until, length = raw.get("until"), raw.get("for")
    if (until is None) == (length is None):
        raise InvalidRequest(f"{at}.until", "is required, or for, but not both")
    if until is not None:
        with naming_field(f"{at}.until", until):
            until_ms = times.moment_ms(until)
        if abs(until_ms - now_ms) > MAX_WAIT_MS:
            raise InvalidRequest(f"{at}.until", "must be within 366 days from now", value=until)
        return Wait(kind, name, until_ms)
    with naming_field(f"{at}.for", length):
        length_ms = times.duration_ms(length)
    if length_ms > MAX_WAIT_MS:
        raise InvalidRequest(f"{at}.for", "must be at most 366 days", value=length)
    return Wait(kind, name, now_ms + length_ms)
