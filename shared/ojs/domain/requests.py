"""How requests are declared and read: classes whose annotated attributes are the fields.

A field has one of these types: `str`, `int`, `float`, `bool`, `Any`, a `Literal`, a `StrEnum`, a
`list` or `dict` of such, another `Model`, `X | None`, or several that differ in JSON. `Annotated`
adds rules: a `Field` with bounds, `Before` and `After` with a function. Types are strict: "5", 5.0
and true are not the integer 5. The OpenAPI document is made from the same declarations.

This does what the functions need of pydantic, whose names it has, and takes a hundredth of its time
to load, which each cold start would wait for.
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
# The error of a field that is present but empty.
FILLED = "must not be empty or null. To use the default, omit the field"
# Characters of a field's name that an error shows.
MAX_SHOWN = 100
# How many errors one answer names.
_MAX_ERRORS = 20
# A broken rule in these fields answers 422 `validation_error`.
_POLICY_FIELDS = frozenset({"retry", "max_attempts", "unique", "rate_limit"})

_SURROGATE = re.compile("[\ud800-\udfff]")
_REQUIRED: Final = object()
Unknown = Literal["refused", "ignored", "kept"]
_Path = tuple[str | int, ...]
# Where, which rule, and the value that breaks it.
_Broken = tuple[_Path, str, Any]
# Reads a value at a path: returns it, notes errors inside it, and raises ValueError for its own.
_Reader = Callable[[Any, _Path, list[_Broken]], Any]


class Before:
    """A function that a value goes through before its type is checked; raises ValueError."""

    def __init__(self, check: Callable[[Any], Any]) -> None:
        self.check = check


class After(Before):
    """A function that a value of the right type goes through; raises ValueError."""


class RequestField:
    """The default and the bounds of a field, and how it is described."""

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
        # Evaluated by `Model.resolved`: a cold start does not need it.
        self.annotation: Any = None

    @property
    def required(self) -> bool:
        """Whether a request must have it."""
        return self.default is _REQUIRED

    def check(self, value: Any) -> Any:
        """Return the value; raises ValueError for one out of bounds."""
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


# Not typed: a class attribute of any type has one as its value.
Field: Any = RequestField


class Model:
    """An object in a request. An absent field has its default; all are attributes."""

    # What becomes of fields that it does not have; those that are kept are in `model_extra`.
    unknown: ClassVar[Unknown] = "refused"
    # Whether null and "" are refused in every field.
    filled: ClassVar[bool] = False
    # By the names of attributes.
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
        """Of fields that are known to be right."""
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
        """The rule that an unknown field breaks, where these are refused."""
        return not_known(name, cls._readers)

    def agree(self) -> None:
        """Raise ValueError where fields that are right by themselves do not go together."""

    @classmethod
    def resolved(cls) -> Mapping[str, RequestField]:
        """The fields with their annotations."""
        hints = get_type_hints(cls, include_extras=True)
        for name, field in cls.model_fields.items():
            field.annotation = hints[name]
        return cls.model_fields

    @classmethod
    def model_validate(cls, raw: object, prefix: str = "") -> Self:
        """A request from parsed JSON.

        Raises InvalidRequest or ValidationFailed that names the first invalid field (with `prefix`
        before its path); `details.errors` has more of them.
        """
        errors: list[_Broken] = []
        try:
            read = cls._read(raw, (), errors)
        except ValueError as error:
            errors.append(((), str(error), raw))
        if not errors:
            return read
        # Malformed fields first: a broken rule of a policy (422) supposes a well-formed request.
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
            # Looking for what was meant takes time: there may be a million of them.
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
        """The fields as plain values, and those that it keeps of unknown ones."""

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
        """The same with other values of some fields."""
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
    """A type without its rules, and these."""
    if get_origin(annotation) is Annotated:
        return annotation.__origin__, list(annotation.__metadata__)
    return annotation, []


def _ruled(read: _Reader, rules: Collection[Any]) -> _Reader:
    """A reader that applies rules, too."""
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
    """Reads one of several types: the first that the value is of in JSON, or else the last."""
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
    """Whether a type is an enumeration of texts."""
    return isinstance(kind, type) and issubclass(kind, StrEnum)


def _member(members: Iterable[str]) -> _Reader:
    """Reads one of the members: of an enumeration, the member itself."""
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

# How much of a name agrees with that of another field, at least, if it is a slip of the pen.
_LIKE = 0.6


def nearest(name: str, known: Collection[str], *, least: float = _LIKE) -> str | None:
    """The known name that is most like this one, if one is; `least` is from 0 to 1 (the same)."""
    # Imported here: only a request that is wrong needs it.
    from difflib import get_close_matches

    found = get_close_matches(name[:MAX_SHOWN], sorted(known), n=1, cutoff=least)
    return found[0] if found else None


def not_known(name: str, known: Collection[str]) -> str:
    """The rule that an unknown field breaks: it names the field that was probably meant."""
    names = sorted(known)
    meant = nearest(name, names)
    if meant is None:
        return f"{NOT_KNOWN}. Known fields: {', '.join(names)}" if names else NOT_KNOWN
    return f"{NOT_KNOWN}. Did you mean '{meant}'?"
