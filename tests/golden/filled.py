"""Records in which every field has a value."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
_KNOWN = " types"


def filled(kind: type[T], known: Mapping[str, Any] | None = None, /, **given: Any) -> T:
    """A record of this kind: no field is None, empty or, for numbers, 0 or equal to another.

    `given` are values of fields, by their names, in it and in the records in it; `known` are
    types that annotations name.
    """
    name = getattr(kind, "__name__", "record")
    found: T = _value(kind, name, {**given, _KNOWN: known or {}})
    return found


def _value(kind: Any, name: str, given: Mapping[str, Any]) -> Any:  # noqa: C901, PLR0912
    if (field := name.rpartition(".")[2]) in given:
        return given[field]
    if get_origin(kind) is Annotated:
        kind = kind.__origin__
    origin: Any = get_origin(kind) or kind
    inner = get_args(kind)
    if origin in (Union, UnionType):
        return _value(next(each for each in inner if each is not NoneType), name, given)
    if origin is Literal:
        return inner[0]
    if isinstance(origin, type) and issubclass(origin, Enum):
        return next(iter(origin))
    if is_dataclass(origin) or hasattr(origin, "_fields"):
        own = {**given[_KNOWN], **vars(sys.modules[origin.__module__])}
        hints = get_type_hints(origin, localns=own)
        types = dict(zip(getattr(origin, "__parameters__", ()), inner, strict=False))
        each_of = getattr(origin, "_fields", ()) or [f.name for f in fields(origin) if f.init]
        return origin(
            **{each: _value(_with(hints[each], types), f"{name}.{each}", given) for each in each_of}
        )
    if origin is tuple and inner and inner[-1] is not Ellipsis:
        return tuple(_value(each, f"{name}.{at}", given) for at, each in enumerate(inner))
    if isinstance(origin, type) and issubclass(origin, (set, frozenset)):
        return frozenset([_value(inner[0], name, given)])
    if origin in (str, Any, object):
        return name.lower()
    if origin is bool:
        return True
    number = zlib.crc32(name.encode()) % 1_000_000 + 1
    if origin is int:
        return 1_700_000_000_000 + number if name.endswith("_ms") else number
    if origin is float:
        return number / 1_000_000
    if issubclass(origin, Mapping) and not inner:
        return {name: name}
    if issubclass(origin, Mapping):
        return {_value(inner[0], f"{name}.key", given): _value(inner[1], name, given)}
    if issubclass(origin, (Sequence, Iterable)):
        made = [_value(each, name, given) for each in inner[:1]]
        return made if origin is list else tuple(made)
    raise TypeError(f"{name} is of an unknown kind: {kind}")


def _with(kind: Any, types: Mapping[Any, Any]) -> Any:
    """A generic type with the types that stand for its variables."""
    if isinstance(kind, TypeVar):
        return types.get(kind, kind)
    wanted = tuple(types.get(each, each) for each in getattr(kind, "__parameters__", ()))
    return kind[wanted] if wanted else kind
