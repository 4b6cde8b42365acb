"""Query parameters. Each function raises InvalidRequest naming the parameter that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ojs.domain import times
from ojs.domain.errors import InvalidRequest, shorten
from ojs.http.contract.operations import MAX_FILTER_NAMES, Operation


def check_known(operation: Operation, query: Mapping[str, str]) -> None:
    """Refuse unknown parameters: a mistyped filter that is ignored would mislead."""
    known = [parameter.name for parameter in operation.query]
    for name in query:
        if name not in known:
            taken = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InvalidRequest(shorten(name), f"is not a parameter of this operation; {taken}")


def given(query: Mapping[str, str], *names: str) -> tuple[str, str] | None:
    """Name and value of the one parameter of `names` that has a value; None if none has."""
    found = [(name, query[name]) for name in names if query.get(name)]
    if len(found) > 1:
        raise InvalidRequest(found[1][0], f"cannot be combined with {found[0][0]}")
    return found[0] if found else None


def names(
    query: Mapping[str, str], parameters: Iterable[str], check: Callable[[str], str]
) -> tuple[str, ...]:
    """The names, separated by commas, in one of these parameters; () if none is given."""
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
    """The name in this parameter, if given."""
    if not query.get(name):
        return None
    try:
        return check(query[name])
    except ValueError as error:
        raise InvalidRequest(name, str(error), value=query[name]) from None


def moment(query: Mapping[str, str], name: str, *, now_ms: int) -> int | None:
    """The RFC 3339 timestamp in this parameter, in ms since the epoch, if given."""
    text = query.get(name)
    if not text:
        return None
    # Relative times in the future, which an enqueue accepts, make no sense here.
    if text.startswith("+"):
        rule = "must be an RFC 3339 timestamp with a time zone"
        raise InvalidRequest(name, rule, value=text)
    try:
        return times.timestamp_ms(text, now_ms=now_ms)
    except ValueError as error:
        raise InvalidRequest(name, str(error), value=text) from None


def span(query: Mapping[str, str], *, now_ms: int) -> tuple[int | None, int | None]:
    """The parameters `since` and `until` in ms, each if given; `since` must come first."""
    since_ms = moment(query, "since", now_ms=now_ms)
    until_ms = moment(query, "until", now_ms=now_ms)
    if since_ms is not None and since_ms >= (now_ms + 1 if until_ms is None else until_ms):
        rule = "must be before 'until'" if until_ms is not None else "must not be in the future"
        raise InvalidRequest("since", rule, value=query["since"])
    return since_ms, until_ms
