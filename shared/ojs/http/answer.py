"""Declares responses as classes. Each annotated attribute is a field of the response.

The value of an attribute is the source of the field. For the type checker, `source()` is a record
of the declared type, so the type checker reports a wrong name or type. At run time it is a path.
`Answer.of` follows the path to read the value from a record:

    c: CronJob = source()

    class Cron(Answer[CronJob]):
        name: str = c.name
        id: str = name  # the same under another name
        starts_at: Moment = shown(moment(c.starts_ms), absent=True)  # omitted if None

    Cron.of(cron)  # at run time a dict

Annotations stay strings until the OpenAPI document resolves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import partial, wraps
from inspect import get_annotations
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    cast,
    overload,
)
from typing import get_type_hints as resolved

from ojs.domain import times
from ojs.records import record

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
V = TypeVar("V")


class _Path:
    """The path from a record to a value. Its attributes are paths to the record's attributes."""

    def __init__(self, follow: Callable[[Any], Any], names: str | None = None) -> None:
        self.__follow__, self.__names__ = follow, names

    def __getattr__(self, name: str) -> _Path:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__names__ is None:
            return _through(lambda value: getattr(value, name), self)
        names = f"{self.__names__}.{name}".lstrip(".")
        return _Path(attrgetter(names), names)

    def __call__(self, *args: Any) -> _Path:
        return _through(lambda function: function(*args), self)

    def __getitem__(self, at: Any) -> _Path:
        return _through(lambda value: value[at], self)


class _Maybe(_Path):
    """The path to a value that can be None. Its attributes are then None too."""

    def __getattr__(self, name: str) -> _Path:
        if name.startswith("__"):
            raise AttributeError(name)
        return _through(lambda value: None if value is None else getattr(value, name), self)


def source() -> Any:
    """Return the path to the record itself. The caller annotates it with the record's type."""
    return _Path(lambda value: value, "")


def maybe(value: T | None, /) -> T:
    """Return the path to a value that can be None. Its attributes are then None too."""
    return cast("T", _Maybe(cast("_Path", value).__follow__))


def _through(function: Callable[..., Any], *values: Any) -> _Path:
    """Return the path to the result of a function. Its arguments are paths or plain values."""
    if len(values) == 1:
        first = values[0].__follow__
        return _Path(lambda record: function(first(record)))
    return _Path(
        lambda record: function(
            *(each.__follow__(record) if isinstance(each, _Path) else each for each in values)
        )
    )


def derived(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that a declaration can call it with paths."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if any(isinstance(each, _Path) for each in args):
            return cast("T", _through(function, *args))
        return function(*args, **kwargs)

    return call


def made(function: Callable[[V], T], value: V, /) -> T:
    """Return the path to the result of a function with one argument."""
    return cast("T", _through(function, value))


@overload
def moment(ms: int, /) -> str: ...
@overload
def moment(ms: int | None, /) -> str | None: ...
@derived
def moment(ms: int | None, /) -> str | None:
    """Format a time in milliseconds since the epoch as a timestamp."""
    return None if ms is None else times.format_ms(ms)


@overload
def length(ms: int, /) -> str: ...
@overload
def length(ms: int | None, /) -> str | None: ...
@derived
def length(ms: int | None, /) -> str | None:
    """Format milliseconds as an ISO 8601 duration."""
    return None if ms is None else times.round_duration(ms)


@derived
def given(value: object) -> bool:
    """Return whether a value is set."""
    return value is not None


@derived
def unless_empty(value: T) -> T | None:
    """Return the value, or None to omit the field if the value is 0, empty, or None."""
    return value or None


@derived
def if_true(value: bool) -> Literal[True] | None:
    """Return True, or None to omit the field."""
    return True if value else None


@record(frozen=True)
class Shown:
    """A field with more than a source: a description, or a rule for when it is omitted."""

    value: Any
    # True: omit the field if its value is None. A member of an enumeration: omit it for that.
    absent: Any = False
    says: str | None = None
    annotation: Any = None


@overload
def shown(value: T | None, /, *, absent: Literal[True], says: str | None = None) -> T: ...
@overload
def shown(value: T, /, *, says: str | None = None) -> T: ...
@overload
def shown(value: Any, /, *, absent: Enum, says: str | None = None) -> Any: ...
def shown(value: Any, /, *, absent: Any = False, says: str | None = None) -> Any:
    """Declare a field with a description, or a field that can be omitted.

    Args:
        value: The path to the value.
        absent: If True, omit the field when its value is None. If a member of an enumeration,
            omit the field when its value is that member.
        says: Description of the field in the OpenAPI document.
    """
    if isinstance(value, Shown):
        return Shown(value.value, value.absent, says)
    return Shown(value, absent, says)


def absent(says: str | None = None) -> Any:
    """Declare an optional field of an `AsIs` object."""
    return Shown(None, absent=True, says=says)


def present(says: str) -> Any:
    """Declare a required field of an `AsIs` object, with a description."""
    return Shown(None, says=says)


if TYPE_CHECKING:

    class _About(Generic[S]):
        """Generic over the type of the record."""

else:

    class _About:
        """Replaces `Generic` at run time, because generic classes are slow to create."""

        def __class_getitem__(cls, kind):
            return cls


class Answer(_About[S]):
    """An object in a response, built from a record.

    An attribute whose name starts with an underscore is an answer too. Its fields are merged into
    this object. With `kept`, the record is a mapping, and its other keys are copied as well.
    """

    _kept: ClassVar[bool] = False
    _as_is: ClassVar[bool] = False
    # The names of a field, the function that reads its value, and the value that is omitted.
    _shown: ClassVar[list[tuple[list[str], Callable[[Any], Any], Any]]]

    def __init_subclass__(cls, *, kept: bool = False) -> None:
        cls._kept = cls._kept or kept
        for name in get_annotations(cls):
            if name not in cls.__dict__ and not cls._as_is:
                raise TypeError(f"{cls.__name__}.{name} has no source")

    @overload
    @classmethod
    def of(cls, record: S, /) -> Self: ...
    @overload
    @classmethod
    def of(cls, record: S | None, /) -> Self | None: ...
    @classmethod
    def of(cls, record: Any, /) -> Any:
        """Build the response object of a record, a dict. Return None for None."""
        if isinstance(record, _Path):
            return _through(cls.of, record)
        if record is None or cls._as_is:
            return record
        if "_shown" not in cls.__dict__:
            cls._shown = _compiled(cls)
        found = dict(record) if cls._kept else {}
        for names, follow, left_out in cls._shown:
            value = follow(record)
            if value is not left_out:
                for name in names:
                    if name[0] == "_":
                        found = {**value, **found}
                    else:
                        found[name] = value
        return found

    @classmethod
    def each(cls, records: Iterable[S], /) -> list[Self]:
        """Build the response objects of several records."""
        if isinstance(records, _Path):
            return cast("list[Self]", _through(cls.each, records))
        return [cls.of(record) for record in records]


class AsIs(Answer[Mapping[str, Any]]):
    """An object that is shown as the domain builds it. Its fields have no source."""

    _as_is = True


def _fields(cls: type[Answer[Any]]) -> Mapping[str, Any]:
    """Return the declarations of all fields by name, fields of base classes first."""
    bases = [base for base in reversed(cls.__mro__) if issubclass(base, Answer)][1:]
    return {name: vars(base).get(name) for base in bases for name in get_annotations(base)}


def _constant(value: T, _record: Any) -> T:
    return value


def _compiled(cls: type[Answer[Any]]) -> list[tuple[list[str], Callable[[Any], Any], Any]]:
    found: dict[int, tuple[list[str], Callable[[Any], Any], Any]] = {}
    for name, value in _fields(cls).items():
        path = value.value if isinstance(value, Shown) else value
        absent = isinstance(value, Shown) and value.absent
        absent = None if absent is True else absent or Shown
        if not isinstance(path, _Path):
            found[-len(found) - 1] = [name], partial(_constant, path), absent
        elif id(path) in found:
            found[id(path)][0].append(name)
        else:
            found[id(path)] = [name], path.__follow__, absent
    return list(found.values())


def fields(cls: type[Answer[Any]]) -> Iterator[tuple[str, Shown]]:
    """Yield the fields with their types, for the OpenAPI document."""
    hints = resolved(cls, include_extras=True)
    first: dict[int, tuple[str, Any]] = {}
    found: dict[str, Shown] = {}
    for name, value in _fields(cls).items():
        whole = value if isinstance(value, Shown) else Shown(value)
        says = whole.says
        if name[0] == "_":
            found = {**dict(fields(hints[name])), **found}
            continue
        if isinstance(whole.value, _Path):
            other, before = first.setdefault(id(whole.value), (name, value))
            if other != name and (before is value or says is None):
                says = f"the same as {other}"
        found[name] = Shown(whole.value, whole.absent, says, hints[name])
    yield from found.items()


def is_kept(cls: type[Answer[Any]]) -> bool:
    """Return whether other keys of the record are copied into the response."""
    return cls._kept
