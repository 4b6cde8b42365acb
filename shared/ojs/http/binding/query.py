"""Query parameters, checked one by one: a function raises InvalidRequest naming its parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ojs.domain import times
from ojs.domain.errors import InvalidRequest, shorten
from ojs.http.contract.operations import MAX_FILTER_NAMES, Operation


def check_known(operation: Operation, query: Mapping[str, str]) -> None:
    """Refuse what is no parameter of the operation: a filter that is not applied misleads."""
    known = [parameter.name for parameter in operation.query]
    for name in query:
        if name not in known:
            taken = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InvalidRequest(shorten(name), f"is no parameter of this operation; {taken}")


def given(query: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """Name and value of the one of these parameters that has a value."""
    found = [(name, query[name]) for name in names if query.get(name)]
    if len(found) > 1:
        raise InvalidRequest(found[1][0], f"cannot be combined with {found[0][0]}")
    return found[0] if found else None


def names(
    query: Mapping[str, str], parameters: Iterable[str], check: Callable[[str], str]
) -> tuple[str, ...]:
    """A list of names, separated by commas, under one of these parameters; () for none."""
    found = given(query, *parameters)
    if found is None:
        return ()
    name, text = found
    parts = text.split(",")
    if len(parts) > MAX_FILTER_NAMES:
        raise InvalidRequest(name, f"must have at most {MAX_FILTER_NAMES} entries")
    checked = []
    for part in parts:
        try:
            checked.append(check(part))
        except ValueError as error:
            raise InvalidRequest(name, str(error), value=part) from None
    return tuple(dict.fromkeys(checked))


def single(query: Mapping[str, str], name: str, check: Callable[[str], str]) -> str | None:
    """One name, if given."""
    if not query.get(name):
        return None
    try:
        return check(query[name])
    except ValueError as error:
        raise InvalidRequest(name, str(error), value=query[name]) from None


def moment(query: Mapping[str, str], name: str, *, now_ms: int) -> int | None:
    """An RFC 3339 timestamp in ms since the epoch, if given."""
    text = query.get(name)
    if not text:
        return None
    # Not as enqueueing has it, where `+` and a duration stand for a time to come.
    if text.startswith("+"):
        rule = "must be an RFC 3339 timestamp with a time zone"
        raise InvalidRequest(name, rule, value=text)
    try:
        return times.timestamp_ms(text, now_ms=now_ms)
    except ValueError as error:
        raise InvalidRequest(name, str(error), value=text) from None


def span(query: Mapping[str, str], *, now_ms: int) -> tuple[int | None, int | None]:
    """`since` and `until`, each if given, the one before the other."""
    since_ms = moment(query, "since", now_ms=now_ms)
    until_ms = moment(query, "until", now_ms=now_ms)
    if since_ms is not None and since_ms >= (now_ms + 1 if until_ms is None else until_ms):
        rule = "must be before 'until'" if until_ms is not None else "must not be in the future"
        raise InvalidRequest("since", rule, value=query["since"])
    return since_ms, until_ms
