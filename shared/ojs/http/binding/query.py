"""Query parameters. Each function raises InvalidRequest naming the parameter that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ojs.domain import times
from ojs.domain.errors import InvalidRequest, naming_field
from ojs.http.parameters import MAX_FILTER_NAMES

T = TypeVar("T")


def checked(name: str, check: Callable[[str], T], value: str) -> T:
    """What `check` makes of a value; its ValueError becomes an InvalidRequest naming `name`."""
    try:
        return check(value)
    except ValueError as error:
        raise InvalidRequest(name, str(error), value=value) from None


def either(query: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """Name and value of the one parameter of `names` that has a value; None if none has."""
    found = [(name, query[name]) for name in names if query.get(name)]
    if len(found) > 1:
        raise InvalidRequest(found[1][0], f"can't be combined with {found[0][0]}")
    return found[0] if found else None


def names(
    query: Mapping[str, str], parameters: Iterable[str], check: Callable[[str], str]
) -> tuple[str, ...]:
    """The names, separated by commas, in one of these parameters; () if none is given."""
    found = either(query, *parameters)
    if found is None:
        return ()
    name, text = found
    parts = text.split(",")
    if len(parts) > MAX_FILTER_NAMES:
        raise InvalidRequest(name, f"must have at most {MAX_FILTER_NAMES} entries")
    return tuple(dict.fromkeys(checked(name, check, part) for part in parts))


def single(query: Mapping[str, str], name: str, check: Callable[[str], str]) -> str | None:
    """The name in this parameter, if given."""
    return checked(name, check, query[name]) if query.get(name) else None


def choice(query: Mapping[str, str], name: str, choices: Sequence[str], *, default: str) -> str:
    """The one of these choices that is in this parameter; an empty one is none of them."""
    text = query.get(name, default)
    if text not in choices:
        raise InvalidRequest(name, f"must be one of {', '.join(choices)}", value=text)
    return text


def moment(query: Mapping[str, str], name: str, *, now_ms: int) -> int | None:
    """The RFC 3339 timestamp in this parameter, in ms since the epoch, if given."""
    text = query.get(name)
    if not text:
        return None
    rule = "must be an RFC 3339 timestamp with a time zone"
    # Relative times in the future, which an enqueue accepts, make no sense here.
    if text.startswith("+"):
        raise InvalidRequest(name, rule, value=text)
    with naming_field(name, text, rule):
        return times.timestamp_ms(text, now_ms=now_ms)


def span(query: Mapping[str, str], *, now_ms: int) -> tuple[int | None, int | None]:
    """The parameters `since` and `until` in ms, each if given; `since` must come first."""
    since_ms = moment(query, "since", now_ms=now_ms)
    until_ms = moment(query, "until", now_ms=now_ms)
    if since_ms is not None and since_ms >= (now_ms + 1 if until_ms is None else until_ms):
        rule = "must be before until" if until_ms is not None else "must not be in the future"
        raise InvalidRequest("since", rule, value=query["since"])
    return since_ms, until_ms
