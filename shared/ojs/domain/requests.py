"""Declares and parses requests: classes whose annotated attributes are the fields.

A field has one of these types: `str`, `int`, `float`, `bool`, `Any`, a `Literal`, a `StrEnum`, a
`list` or `dict` of these, another `Model`, `X | None`, or a union of types that differ in JSON.
`Annotated` adds rules: a `Field` with bounds, or a function in `Before` or `After`. Types are
strict: "5", 5.0, and true are not the integer 5. The OpenAPI document is generated from the same
declarations.

This module replaces pydantic and uses its names. It supports only the features that the functions
need, and loads in 1/100 of the time. Each cold start would wait for pydantic.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ojs.domain.errors import InvalidRequest, ValidationFailed, any_of

NOT_KNOWN = "is not a known field"
# The error for a field that is present but empty.
FILLED = "must not be empty or null. To use the default, omit the field"
# Maximum characters of a field name in an error.
MAX_SHOWN = 100
# Maximum errors in one response.
_MAX_ERRORS = 20
# An invalid value in these fields returns 422 `validation_error`.
_POLICY_FIELDS = frozenset({"retry", "max_attempts", "unique", "rate_limit"})

_SURROGATE = re.compile("[\ud800-\udfff]")
_REQUIRED: Final = object()
Unknown = Literal["refused", "ignored", "kept"]
_Path = tuple[str | int, ...]
# The path of an invalid value, the rule that the value violates, and the value.
_Broken = tuple[_Path, str, Any]
# Parses a value at a path. Records errors of inner values, and raises ValueError for its own error.
_Reader = Callable[[Any, _Path, list[_Broken]], Any]


class Before:
    """A function that is applied to a value before its type is checked. Raises ValueError."""

    def __init__(self, check: Callable[[Any], Any]) -> None:
        self.check = check


class After(Before):
    """A function that is applied to a value of the correct type. Raises ValueError."""


class RequestField:
    """The default, the bounds, and the description of a field."""

    def __init__(
        self,
        default: Any = _REQUIRED,
        *,
        ge: float | None = None,
        le: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        alias: str | None = None,
        description: str | None = None,
        json_schema_extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.default = default
        self.ge, self.le = ge, le
        self.min_length, self.max_length = min_length, max_length
        self.alias = alias
        self.description = description
        self.json_schema_extra = json_schema_extra or {}
        # Set by `Model.resolved`, because a cold start doesn't need it.
        self.annotation: Any = None

    @property
    def required(self) -> bool:
        """Whether a request must contain the field."""
        return self.default is _REQUIRED

    def check(self, value: Any) -> Any:
        """Return the value. Raises ValueError if it is out of bounds."""
        if self.ge is not None and value < self.ge:
            raise ValueError(f"must be at least {self.ge:.17g}")
        if self.le is not None and value > self.le:
            raise ValueError(f"must be at most {self.le:.17g}")
        if self.min_length is not None and len(value) < self.min_length:
            raise ValueError(_length_rule("at least", self.min_length, value))
        if self.max_length is not None and len(value) > self.max_length:
            raise ValueError(_length_rule("at most", self.max_length, value))
        return value


# The unit of a length: one, and several.
_UNITS: Mapping[type, tuple[str, str]] = {
    str: ("character", "characters"), list: ("entry", "entries"), dict: ("field", "fields"),
}  # fmt: skip


def _length_rule(words: str, bound: int, value: Any) -> str:
    unit = _UNITS[type(value)][bound != 1]
    return f"must have {words} {bound} {unit}, but has {len(value)}"


# Typed as Any, because it is the value of class attributes of any type.
Field: Any = RequestField


class Model:
    """An object in a request. Each field is an attribute. An absent field has its default."""

    # How unknown fields are handled. Kept ones are in `model_extra`.
    unknown: ClassVar[Unknown] = "refused"
    # Whether null and "" are rejected in each field.
    filled: ClassVar[bool] = False
    # Fields by attribute name.
    model_fields: ClassVar[Mapping[str, RequestField]] = {}
    _readers: ClassVar[Mapping[str, tuple[str, _Reader]]]

    model_fields_set: set[str]
    model_extra: Mapping[str, Any]

    def __init_subclass__(cls) -> None:
        inherited = [base.__dict__.get("model_fields", {}) for base in reversed(cls.__mro__[1:])]
        fields = {name: field for each in inherited for name, field in each.items()}
        for name, annotation in inspect.get_annotations(cls).items():
            if not name.startswith("_") and not annotation.startswith("ClassVar"):
                value = cls.__dict__.get(name, _REQUIRED)
                fields[name] = value if isinstance(value, RequestField) else RequestField(value)
        cls.model_fields = fields

    def __init__(self, **values: Any) -> None:
        """Create an object from valid values, without checks."""
        for name, field in self.model_fields.items():
            setattr(self, name, values.get(name, field.default))
        self.model_fields_set = set(values)
        self.model_extra = {}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_dump(exclude_unset=True)})"

    @classmethod
    def unknown_rule(cls, name: str) -> str:
        """Return the error text for an unknown field, if unknown fields are rejected."""
        return not_known(name, cls._readers)

    def agree(self) -> None:
        """Raise ValueError if valid fields can't be combined. Overridden by subclasses."""

    @classmethod
    def resolved(cls) -> Mapping[str, RequestField]:
        """Return the fields, with their annotations evaluated."""
        hints = get_type_hints(cls, include_extras=True)
        for name, field in cls.model_fields.items():
            field.annotation = hints[name]
        return cls.model_fields

    @classmethod
    def model_validate(cls, raw: object, prefix: str = "") -> Self:
        """Parse a request from decoded JSON.

        Raises InvalidRequest or ValidationFailed that names the first invalid field, with `prefix`
        before its path. `details.errors` lists up to 20 invalid fields.
        """
        errors: list[_Broken] = []
        try:
            read = cls._read(raw, (), errors)
        except ValueError as error:
            errors.append(((), str(error), raw))
        if not errors:
            return read
        # Malformed fields first: an error about a policy (422) requires a well-formed request.
        errors.sort(key=lambda error: not _POLICY_FIELDS.isdisjoint(error[0]))
        found = [
            {"field": _shown(path, prefix), "reason": rule}
            for path, rule, _ in errors[:_MAX_ERRORS]
        ]
        path, rule, value = errors[0]
        kind = InvalidRequest if _POLICY_FIELDS.isdisjoint(path) else ValidationFailed
        raise kind(found[0]["field"], rule, value=value, details={"errors": found})

    @classmethod
    def _read(cls, raw: Any, path: _Path, errors: list[_Broken]) -> Self:
        if not isinstance(raw, Mapping):
            raise ValueError("must be an object")  # noqa: TRY004 - as every broken rule
        if "_readers" not in cls.__dict__:
            filled = [Before(_filled)] if cls.filled else []
            cls._readers = {
                field.alias or name: (name, _ruled(_reader(field.annotation), [*filled, field]))
                for name, field in cls.resolved().items()
            }
        before, values = len(errors), {}
        for key, (name, read) in cls._readers.items():
            if key in raw:
                values[name] = _inner(read, raw[key], (*path, key), errors)
            elif cls.model_fields[name].required:
                errors.append(((*path, key), "is required", None))
        extra = {}
        if cls.unknown != "ignored":
            extra = {key: value for key, value in raw.items() if key not in cls._readers}
        if cls.unknown == "refused":
            # Finding a suggestion takes time, and a request can have a million unknown fields.
            for key, value in islice(extra.items(), _MAX_ERRORS):
                place = (*path, str(key)[:MAX_SHOWN])
                errors.append((place, cls.unknown_rule(str(key)), value))
        made = cls(**values)
        made.model_extra = extra
        if len(errors) == before:
            made.agree()
        return made

    def model_dump(
        self,
        *,
        include: Collection[str] | None = None,
        exclude_none: bool = False,
        exclude_unset: bool = False,
    ) -> dict[str, Any]:
        """Return the fields as plain values, with the unknown fields that were kept.

        Args:
            include: Names of the fields to return. Default: all.
            exclude_none: Whether to omit fields that are None. Default: false.
            exclude_unset: Whether to omit fields that the request didn't set. Default: false.

        Returns:
            The values by field name.
        """

        def plain(value: Any) -> Any:
            if isinstance(value, Model):
                return value.model_dump(exclude_none=exclude_none, exclude_unset=exclude_unset)
            if isinstance(value, list):
                return [plain(each) for each in value]
            return value

        return {
            name: plain(value)
            for name in self.model_fields
            if include is None or name in include
            if not exclude_unset or name in self.model_fields_set
            if (value := getattr(self, name)) is not None or not exclude_none
        } | dict(self.model_extra)

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """Return a copy with other values of some fields."""
        copied = copy.copy(self)
        vars(copied).update(update, model_fields_set=self.model_fields_set | set(update))
        return copied


def _filled(value: Any) -> Any:
    if value is None or value == "":
        raise ValueError(FILLED)
    return value


def _shown(path: _Path, prefix: str) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path if part != "")
    return prefix + "".join(parts).lstrip(".") or "body"


# --- types ----------------------------------------------------------------------------------------


def split(annotation: Any) -> tuple[Any, list[Any]]:
    """Return a type without its rules, and its rules."""
    if get_origin(annotation) is Annotated:
        return annotation.__origin__, list(annotation.__metadata__)
    return annotation, []


def _ruled(read: _Reader, rules: Collection[Any]) -> _Reader:
    """Return a reader that also applies rules."""
    before = [rule.check for rule in rules if type(rule) is Before][::-1]
    after = [rule.check for rule in rules if type(rule) is not Before]

    def apply(value: Any, path: _Path, errors: list[_Broken]) -> Any:
        for check in before:
            value = check(value)
        earlier = len(errors)
        value = read(value, path, errors)
        if value is not None and len(errors) == earlier:
            for check in after:
                value = check(value)
        return value

    return apply if rules else read


def _reader(annotation: Any) -> _Reader:
    kind, rules = split(annotation)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Union or origin is UnionType:
        read = _choice(inner)
    elif origin is Literal or is_closed(kind):
        read = _member(inner or kind)
    elif origin is list:
        read = _items(_reader(inner[0]))
    elif origin is dict:
        read = _entries(_reader(inner[0]), _reader(inner[1]))
    elif kind is Any:
        read = _anything
    elif issubclass(kind, Model):
        read = kind._read  # noqa: SLF001 - its own
    else:
        read = _SCALARS[kind]
    return _ruled(read, rules)


def _choice(members: Collection[Any]) -> _Reader:
    """Return a reader of several types.

    It uses the first one that matches the value's JSON type, otherwise the last one.
    """
    optional = NoneType in members
    readers = [(_json_type(each), _reader(each)) for each in members if each is not NoneType]

    def read(value: Any, path: _Path, errors: list[_Broken]) -> Any:
        if value is None and optional:
            return None
        chosen = next((read for kind, read in readers if isinstance(value, kind)), readers[-1][1])
        return chosen(value, path, errors)

    return read


def _json_type(annotation: Any) -> type:
    kind, _ = split(annotation)
    found = str if is_closed(kind) else get_origin(kind) or kind
    return found if isinstance(found, type) and not issubclass(found, Model) else object


def is_closed(kind: Any) -> bool:
    """Return whether a type is an enumeration of strings."""
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def _member(members: Iterable[str]) -> _Reader:
    """Return a reader of members. For an enumeration, the result is the member."""
    known = {str(each): each for each in members}
    rule = "must be " + any_of(f"'{each}'" for each in known)

    def read(value: Any, _path: _Path, _errors: list[_Broken]) -> Any:
        if isinstance(value, str) and value in known:
            return known[value]
        raise ValueError(rule)

    return read


def _items(read_item: _Reader) -> _Reader:
    def read(value: Any, path: _Path, errors: list[_Broken]) -> Any:
        if not isinstance(value, list):
            raise ValueError("must be an array")  # noqa: TRY004 - see `_read`
        return [_inner(read_item, each, (*path, at), errors) for at, each in enumerate(value)]

    return read if read_item is not _anything else _SCALARS[list]


def _entries(read_key: _Reader, read_value: _Reader) -> _Reader:
    def read(value: Any, path: _Path, errors: list[_Broken]) -> Any:
        if not isinstance(value, dict):
            raise ValueError("must be an object")  # noqa: TRY004 - see `_read`
        return {
            _inner(read_key, key, (*path, key), errors):
            _inner(read_value, each, (*path, key), errors)
            for key, each in value.items()
        }  # fmt: skip

    return read


def _inner(read: _Reader, value: Any, path: _Path, errors: list[_Broken]) -> Any:
    try:
        return read(value, path, errors)
    except ValueError as error:
        errors.append((path, str(error), value))
        return value


def _anything(value: Any, _path: _Path, _errors: list[_Broken]) -> Any:
    return value


def _scalar(*kinds: type, rule: str) -> _Reader:
    def read(value: Any, _path: _Path, _errors: list[_Broken]) -> Any:
        if type(value) not in kinds:
            raise ValueError(rule)
        return value

    return read


def _text(value: Any, _path: _Path, _errors: list[_Broken]) -> Any:
    if type(value) is not str:
        raise ValueError("must be a string")
    if not value.isascii() and _SURROGATE.search(value):
        raise ValueError("must not contain an unpaired surrogate")
    return value


def _float(value: Any, _path: _Path, _errors: list[_Broken]) -> float:
    # JSON numbers arrive as Decimal (`ojs.domain.jsontext`).
    if type(value) not in (int, float, Decimal):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


_SCALARS: Mapping[Any, _Reader] = {
    str: _text,
    int: _scalar(int, rule="must be a whole number"),
    bool: _scalar(bool, rule="must be true or false"),
    list: _scalar(list, rule="must be an array"),
    float: _float,
}


# --- unknown fields -------------------------------------------------------------------------------

# Minimum similarity of an unknown field and a known one to suggest the known one.
_LIKE = 0.6


def nearest(name: str, known: Collection[str], *, least: float = _LIKE) -> str | None:
    """Find the known name that is most similar to an unknown one.

    Args:
        name: Unknown name.
        known: Known names.
        least: Minimum similarity, 0 to 1 (equal). Default: 0.6.

    Returns:
        The known name, or None if none is similar enough.
    """
    # Imported here, because only invalid requests need it.
    from difflib import get_close_matches

    found = get_close_matches(name[:MAX_SHOWN], sorted(known), n=1, cutoff=least)
    return found[0] if found else None


def not_known(name: str, known: Collection[str]) -> str:
    """Return the error text for an unknown field, with a suggestion if one exists."""
    names = sorted(known)
    meant = nearest(name, names)
    if meant is None:
        return f"{NOT_KNOWN}. Known fields: {', '.join(names)}" if names else NOT_KNOWN
    return f"{NOT_KNOWN}. Did you mean '{meant}'?"
