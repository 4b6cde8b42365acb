"""Reads query parameters. Each function raises InvalidRequest for an invalid parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ojs.domain import times
from ojs.domain.errors import InvalidRequest, naming_field
from ojs.http.parameters import MAX_FILTER_NAMES

T = TypeVar("T")


def checked(name: str, check: Callable[[str], T], value: str) -> T:
    """Convert the value of a parameter.

    Args:
        name: Name of the parameter.
        check: Converts the value. It raises ValueError if the value is invalid.
        value: Value of the parameter.

    Raises:
        InvalidRequest: `check` raised ValueError.
    """
    try:
        return check(value)
    except ValueError as error:
        raise InvalidRequest(name, str(error), value=value) from None


def either(query: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """Return the name and value of the one parameter that has a value, or None."""
    found = [(name, query[name]) for name in names if query.get(name)]
    if len(found) > 1:
        raise InvalidRequest(found[1][0], f"can't be combined with {found[0][0]}")
    return found[0] if found else None


def names(
    query: Mapping[str, str], parameters: Iterable[str], check: Callable[[str], str]
) -> tuple[str, ...]:
    """Read a comma-separated list of names, without duplicates.

    Args:
        query: Parameters of the query.
        parameters: Alternative names of the parameter. Only one of them can have a value.
        check: Converts a name. It raises ValueError if the name is invalid.

    Returns:
        The names, or () if no parameter has a value.

    Raises:
        InvalidRequest: A name is invalid, or the list has more than `MAX_FILTER_NAMES` entries.
    """
    found = either(query, *parameters)
    if found is None:
        return ()
    name, text = found
    parts = text.split(",")
    if len(parts) > MAX_FILTER_NAMES:
        raise InvalidRequest(name, f"must have at most {MAX_FILTER_NAMES} entries")
    return tuple(dict.fromkeys(checked(name, check, part) for part in parts))


def single(query: Mapping[str, str], name: str, check: Callable[[str], str]) -> str | None:
    """Read a name, or None if the parameter has no value.

    Args:
        query: Parameters of the query.
        name: Name of the parameter.
        check: Converts the value. It raises ValueError if the value is invalid.

    Raises:
        InvalidRequest: The value is invalid.
    """
    return checked(name, check, query[name]) if query.get(name) else None


def choice(query: Mapping[str, str], name: str, choices: Sequence[str], *, default: str) -> str:
    """Read a parameter that has one of several values.

    Args:
        query: Parameters of the query.
        name: Name of the parameter.
        choices: Allowed values. An empty value is not allowed.
        default: Value if the parameter is missing.

    Raises:
        InvalidRequest: The value is not allowed.
    """
    text = query.get(name, default)
    if text not in choices:
        raise InvalidRequest(name, f"must be one of {', '.join(choices)}", value=text)
    return text


def moment(query: Mapping[str, str], name: str, *, now_ms: int) -> int | None:
    """Read an RFC 3339 timestamp.

    Args:
        query: Parameters of the query.
        name: Name of the parameter.
        now_ms: Current time in milliseconds since the epoch.

    Returns:
        The time in milliseconds since the epoch, or None if the parameter has no value.

    Raises:
        InvalidRequest: The value is not a timestamp with a time zone.
    """
    text = query.get(name)
    if not text:
        return None
    rule = "must be an RFC 3339 timestamp with a time zone"
    # An enqueue also accepts relative times in the future. A query accepts timestamps only.
    if text.startswith("+"):
        raise InvalidRequest(name, rule, value=text)
    with naming_field(name, text, rule):
        return times.timestamp_ms(text, now_ms=now_ms)


def span(
    query: Mapping[str, str], *, now_ms: int, since: str = "since", until: str = "until"
) -> tuple[int | None, int | None]:
    """Read `since` and `until` in milliseconds. `since` must be earlier. A missing one is None."""
    since_ms = moment(query, since, now_ms=now_ms)
    until_ms = moment(query, until, now_ms=now_ms)
    if since_ms is not None and since_ms >= (now_ms + 1 if until_ms is None else until_ms):
        rule = f"must be before {until}" if until_ms is not None else "must not be in the future"
        raise InvalidRequest(since, rule, value=query[since])
    return since_ms, until_ms
