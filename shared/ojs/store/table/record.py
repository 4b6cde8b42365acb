"""Declares how the records of one kind are stored as DynamoDB items.

Each attribute is declared once, for writing and for reading. A field that has its default value is
not stored. When an item is read, attributes without a declaration are ignored: newer versions wrote
them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields, replace
from functools import cached_property, partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, cast

from ojs.domain import jsontext
from ojs.domain.errors import UnknownForm, known
from ojs.store.table.errors import UnreadableItem
from ojs.store.table.table import Update
from ojs.store.table.values import Item, Value

R = TypeVar("R")


class Attribute(NamedTuple):
    """A field of a record, and the functions that convert its value for an attribute.

    If `write` or `read` is None, the value is not converted. A field name with a dot, such as
    `breaker.faults`, names a field of a nested record. `type` is the DynamoDB type. It is required
    if the annotation of the field doesn't determine the type.
    """

    field: str
    write: Callable[[Any], Value | None] | None = None
    read: Callable[[Any], Any] | None = None
    type: str = "S"


def flag(field: str) -> Attribute:
    """Declare a Boolean field. It is stored as 1, and only if it doesn't have its default value."""
    return Attribute(field, int, bool, "N")


def member(field: str, kind: Any, what: str, otherwise: Any = None) -> Attribute:
    """Declare an enumeration field.

    Args:
        field: Field of the record.
        kind: The enumeration.
        what: Name of the enumeration in the error message.
        otherwise: Member that replaces an unknown stored value. Default: reading an unknown value
            raises UnknownForm.
    """
    return Attribute(field, str, partial(known, kind, what=what, otherwise=otherwise))


def words(field: str) -> Attribute:
    """Declare a field with several names. They are stored as one string, separated by spaces."""
    return Attribute(field, " ".join, lambda text: tuple(text.split()))


def as_json(field: str, kind: Callable[[Any], Any] = lambda value: value) -> Attribute:
    """Declare a field that is stored as JSON. `kind` converts the parsed value."""
    return Attribute(field, jsontext.dumps, lambda text: kind(jsontext.stored(text)))


class Record(Generic[R]):
    """Converts records of one kind to items and back.

    Args:
        kind: Class of the records.
        what: Name of the kind in error messages.
        rows: By attribute name: the field that is stored unchanged, or an `Attribute`.
        apart: By field name: the function that reads the field from the whole item. If the function
            is None, the field is not read. Rows for these fields are used only for writing. The
            first field identifies the record in error messages.
        always: Attributes that are stored even if the field has its default value.
        opened: Function that is applied to an item before it is read.

    Raises:
        TypeError: A field of the class has no row, or a row has no field.
    """

    def __init__(
        self,
        kind: type[R],
        what: str,
        rows: Mapping[str, str | Attribute],
        *,
        apart: Mapping[str, Callable[[Any], Any] | None] = MappingProxyType({}),
        always: Collection[str] = (),
        opened: Callable[[Any], Mapping[str, Any]] = lambda item: item,
    ) -> None:
        self.kind, self.what, self.apart = kind, what, apart
        self.rows = {n: Attribute(row) if isinstance(row, str) else row for n, row in rows.items()}
        split = [(n, *row.field.partition(".")[::2], row.read) for n, row in self.rows.items()]
        self._read = {
            n: (field, part, read) for n, field, part, read in split if field not in apart
        }
        self.always, self._opened = frozenset(always), opened
        declared = {field for _, field, *_ in split} | {*apart}
        there = {name for each in kind.mro() for name in getattr(each, "__annotations__", ())}
        if odd := sorted(declared ^ there):
            raise TypeError(f"{kind.__name__}: without an attribute, or without a field: {odd}")

    @cached_property
    def _plan(self) -> tuple[dict[str, Any], Callable[[R], Any], list[tuple[str, Any, Any]]]:
        """The defaults of the class, a getter for the values of all rows, and the rows.

        Each row is its attribute, its default value, and its `write` function.
        """
        defaults = {
            each.name: each.default if each.default_factory is MISSING else each.default_factory()
            for each in fields(cast("Any", self.kind))
        }
        written = []
        for name, row in self.rows.items():
            first, _, rest = row.field.partition(".")
            default = attrgetter(rest)(defaults[first]) if rest else defaults[first]
            written.append((name, MISSING if name in self.always else default, row.write))
        return defaults, attrgetter(*(row.field for row in self.rows.values())), written

    def item(self, record: R, /, **more: Value | None) -> Item:
        """Return the item of a record.

        Attributes in `more` are added unless their value is None.
        """
        _, values_of, written = self._plan
        item = {name: value for name, value in more.items() if value is not None}
        for (name, default, write), value in zip(written, values_of(record), strict=True):
            if value is not default and value is not None and value != default:
                stored = value if write is None else write(value)
                if stored is not None:
                    item[name] = stored
        return item

    def of(self, item: Mapping[str, Any], /, **given: Any) -> R:
        """Return the record of an item. Fields in `given` have the given value and are not read.

        Raises:
            UnknownForm: A value can be read only by a newer version.
            UnreadableItem: A value is missing or can't be read.
        """
        parts: dict[str, dict[str, Any]] = {}
        try:
            for field, read in self.apart.items():
                if read is not None and field not in given:
                    given[field] = read(item)
            for name, value in self._opened(item).items():
                if (row := self._read.get(name)) is not None:
                    field, part, read = row
                    held = value if read is None else read(value)
                    if part:
                        parts.setdefault(field, {})[part] = held
                    else:
                        given[field] = held
            for field, held in parts.items():
                given[field] = replace(self._plan[0][field], **held)
            return self.kind(**given)
        except UnknownForm:
            raise
        except Exception as error:
            about = given.get(next(iter(self.apart), ""), "")
            raise UnreadableItem(f"{self.what} {about}".rstrip(), error) from error


def rewriting(old: Item, new: Item, condition: str, values: Mapping[str, Value]) -> Update:
    """Return the write that replaces an item. Attributes that only newer versions know are kept.

    Args:
        old: The stored item, as read.
        new: Item to store.
        condition: Condition of the write.
        values: Values in the condition.
    """
    return Update(
        str(new["pk"]),
        str(new["sk"]),
        set={name: value for name, value in new.items() if old.get(name) != value},
        remove=[name for name in old if name not in new],
        condition=condition,
        values=values,
    )
