"""Conversion of Python values to JSON and back by their annotations, without pydantic."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import types
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from ojs_aws.client.call import to_json

# Converts a value to JSON (true) or from JSON (false). Raises Refused.
Convert = Callable[[Any, bool], Any]

SUPPORTED = (
    "None, bool, int, float, str, UUID, datetime, date, timedelta, Decimal, Enum, Literal, "
    "Optional, list, tuple, set, dict[str, …], and dataclasses of these. For other types, install "
    "ojs-backend-aws[pydantic]"
)
_DURATION = re.compile(
    r"([+-]?)P(?=.)(?:(\d+)Y)?(?:(\d+)D)?"
    r"(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{1,6}))?S)?)?"
)
_UNITS_S = (365 * 86_400, 86_400, 3_600, 60, 1)


class Refused(ValueError):
    """A value doesn't fit its annotation. `path` is the place in the value."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path} {reason}".strip())
        self.reason, self.path = reason, path


def at(place: str, convert: Convert, value: Any, out: bool) -> Any:
    """Convert a part of a value. An error contains its place."""
    try:
        return convert(value, out)
    except Refused as error:
        raise Refused(error.reason, place + error.path) from None


def iso_duration(value: timedelta) -> str:
    """Format a duration as ISO 8601."""
    seconds, micros = abs(value) // timedelta(seconds=1), abs(value).microseconds
    fraction = f".{micros:06d}".rstrip("0") if micros else ""
    return f"{'-' if value < timedelta() else ''}PT{seconds}{fraction}S"


def _duration(text: str) -> timedelta:
    if (found := _DURATION.fullmatch(text)) is None:
        raise ValueError("not a duration")
    sign, *parts, fraction = found.groups()
    seconds = sum(int(part or 0) * unit for part, unit in zip(parts, _UNITS_S))  # noqa: B905
    value = timedelta(seconds=seconds, microseconds=int((fraction or "").ljust(6, "0")))
    return -value if sign == "-" else value


def _finite(value: Any) -> Any:
    if not math.isfinite(value):
        raise ValueError("not finite")
    return value


def _aware(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("no time zone")
    return value


def read_moment(text: str) -> datetime:
    """Read a time in ISO 8601. Raises ValueError if it has no time zone."""
    # Python 3.10 doesn't read the zone Z.
    return _aware(datetime.fromisoformat(re.sub("[Zz]$", "+00:00", text)))


def _json(value: Any, _out: bool) -> Any:
    try:
        to_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(f"must be JSON: {error}") from None
    return value


def _scalar(
    kind: type, write: Callable[[Any], Any], read: Callable[[Any], Any] | None = None,
    name: str | None = None,
) -> Convert:  # fmt: skip
    """Return the conversion of a type. Without `read`, it is the same in JSON."""

    def convert(value: Any, out: bool) -> Any:
        expected = kind if out or read is None else str
        exact = expected in (int, float, date)  # True is an int, and a datetime is a date
        try:
            if type(value) is expected or (isinstance(value, expected) and not exact):
                return write(value) if out or read is None else read(value)
            if type(value) is int and expected is float:
                return float(value)
        except (ValueError, ArithmeticError):
            pass
        raise Refused(f"must be {name or kind.__name__}, but is {value!r:.100}")

    return convert


_SCALARS: Mapping[Any, Convert] = {
    Any: _json,
    object: _json,
    type(None): _scalar(type(None), lambda value: value, name="None"),
    bool: _scalar(bool, bool),
    int: _scalar(int, int),
    float: _scalar(float, _finite, name="a finite number"),
    str: _scalar(str, str),
    UUID: _scalar(UUID, str, UUID),
    datetime: _scalar(
        datetime,
        lambda value: _aware(value).isoformat(),
        read_moment,
        "a datetime with a time zone",
    ),
    date: _scalar(date, date.isoformat, date.fromisoformat),
    timedelta: _scalar(timedelta, iso_duration, _duration),
    Decimal: _scalar(
        Decimal, lambda value: str(_finite(value)), lambda text: _finite(Decimal(text))
    ),
}
_BARE = {list: list[Any], dict: dict[str, Any], set: set[Any], tuple: tuple[Any, ...]}


def converter(hint: Any, seen: dict[Any, Convert] | None = None) -> Convert:
    """Return the conversion for an annotation. Raises TypeError if it isn't supported."""
    seen = {} if seen is None else seen
    hint = _BARE.get(hint, type(None) if hint is None else hint)
    if found := _SCALARS.get(hint) or seen.get(hint):
        return found
    origin, inner = get_origin(hint), get_args(hint)
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return _choice(hint.__name__, {each: each.value for each in hint})
    if inspect.isclass(hint) and dataclasses.is_dataclass(hint):
        return _dataclass(hint, seen)
    if origin is Literal:
        return _choice(repr(list(inner)), {each: each for each in inner})
    if origin in (Union, getattr(types, "UnionType", Union)) and type(None) in inner:
        some = [each for each in inner if each is not type(None)]
        if len(some) == 1:
            one = converter(some[0], seen)
            return lambda value, out: None if value is None else one(value, out)
    if origin in (list, set, frozenset) or (origin is tuple and inner[-1:] == (...,)):
        return _items(origin, converter(inner[0], seen))
    if origin is tuple:
        return _items(tuple, [converter(each, seen) for each in inner if each != ()])
    if origin is dict and inner[0] is str:
        return _mapping(converter(inner[1], seen))
    raise TypeError(f"{inspect.formatannotation(hint)} is not supported. Supported are {SUPPORTED}")


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise Refused(f"must be {kind.__name__}, but is {value!r:.100}")
    return value


def _choice(name: str, values: Mapping[Any, Any]) -> Convert:
    # True equals 1, so the type is compared, too.
    pairs = [((type(each), each), (type(value), value)) for each, value in values.items()]
    ways = ({value: each[1] for each, value in pairs}, {each: value[1] for each, value in pairs})
    if not all(kind in (str, int, float, bool, type(None)) for kind, _ in ways[0]):
        raise TypeError(f"{name} must have only strings, numbers, booleans, and None as values")

    def convert(value: Any, out: bool) -> Any:
        try:
            return ways[out][type(value), value]
        except (KeyError, TypeError):
            raise Refused(f"must be one of {name}, but is {value!r:.100}") from None

    return convert


def _items(kind: type, inner: Convert | list[Convert]) -> Convert:
    """Return the conversion of a collection. A list of conversions is for each item of a tuple."""

    def convert(value: Any, out: bool) -> Any:
        items = _checked(value, kind if out else list)
        each = inner if isinstance(inner, list) else [inner] * len(items)
        if len(items) != len(each):
            raise Refused(f"must have {len(each)} items, but has {len(items)}")
        found = [at(f"[{n}]", each[n], one, out) for n, one in enumerate(items)]
        if out and kind in (set, frozenset):
            # Equal sets are equal JSON, so that the server recognizes equal jobs.
            return sorted(found, key=to_json)
        return found if out else kind(found)

    return convert


def _mapping(inner: Convert) -> Convert:
    def convert(value: Any, out: bool) -> dict[str, Any]:
        items = _checked(value, dict).items()
        return {_checked(key, str): at(f".{key}", inner, each, out) for key, each in items}

    return convert


def _dataclass(kind: Any, seen: dict[Any, Convert]) -> Convert:
    def convert(value: Any, out: bool) -> Any:
        if out:
            given = {name: getattr(_checked(value, kind), name) for name in inner}
        elif strange := sorted((given := _checked(value, dict)).keys() - inner.keys()):
            raise Refused(f"must not have the field {strange[0]!r} of {kind.__name__}")
        fields = {name: at(f".{name}", inner[name], each, out) for name, each in given.items()}
        try:
            return fields if out else kind(**fields)
        except (TypeError, ValueError) as error:
            raise Refused(f"must be {kind.__name__}: {error}") from None

    seen[kind], hints = convert, get_type_hints(kind, include_extras=True)  # can contain itself
    fields = [each.name for each in dataclasses.fields(kind) if each.init]
    inner = {name: converter(hints[name], seen) for name in fields}
    return convert
