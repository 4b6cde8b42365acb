"""Declarations of answers and of operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ojs.domain.access import Scope
from ojs.http.answer import Answer, fields, if_true, length, moment, shown, source, unless_empty
from ojs.http.endpoint import Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import NackRequest, NoOptions

READ = Permission(Scope.JOBS_READ, QueueScope.NONE)
GONE = Success(None, "It is gone.")


@dataclass
class Inner:
    # Each is the name of an attribute that a path might have itself.
    names: str = "a"
    follow: str = "b"
    value: int = 3
    description: str | None = None


@dataclass
class Thing:
    inner: Inner
    at_ms: int | None = 0
    some: tuple[int, ...] = (1, 2)

    def plus(self, more: int) -> int:
        return self.inner.value + more


t: Thing = source()


class Whole(Answer[Thing]):
    """A thing."""

    names: str = t.inner.names
    follow: str = t.inner.follow
    value: int = t.inner.value
    count: int = value
    fixed: str = "always"
    description: str | None = t.inner.description
    plus: int = shown(t.plus(4), says="four more")
    first: int = t.some[0]
    at: str = shown(moment(t.at_ms), absent=True)
    also_at: str = at


class Wrapped(Answer[Thing]):
    """A thing, wrapped and at the top level."""

    thing: Whole = Whole.of(t)
    _top: Whole = thing


def test_values_come_from_the_record() -> None:
    told: Any = {
        "names": "a", "follow": "b", "value": 3, "count": 3, "fixed": "always",
        "description": None, "plus": 7, "first": 1, "at": "1970-01-01T00:00:00.000Z",
        "also_at": "1970-01-01T00:00:00.000Z",
    }  # fmt: skip
    shown_: Any = Whole.of(Thing(Inner()))
    assert shown_ == told
    wrapped: Any = Wrapped.of(Thing(Inner()))
    assert wrapped == {"thing": told, **told}
    assert Whole.each([Thing(Inner())]) == [told]
    absent: Any = Whole.of(Thing(Inner(), at_ms=None))
    assert {"at", "also_at"} & absent.keys() == set()
    assert Whole.of(None) is None


def test_another_name_is_described_as_such() -> None:
    told = {name: (field.says, field.absent) for name, field in fields(Whole)}
    assert [*told, "thing"] == [name for name, _ in fields(Wrapped)]
    assert told["count"] == ("the same as value", False)
    assert told["also_at"] == ("the same as at", True)
    assert told["plus"] == ("four more", False)
    assert told["names"] == (None, False)


def test_a_field_without_a_source_is_noticed_at_once() -> None:
    with pytest.raises(TypeError, match=r"Lacking\.name has no source"):

        class Lacking(Answer[Thing]):
            name: str


def test_what_is_shown_of_plain_values() -> None:
    assert (moment(0), moment(None)) == ("1970-01-01T00:00:00.000Z", None)
    assert (length(1_000), length(None)) == ("PT1S", None)
    assert (if_true(True), if_true(False)) == (True, None)
    assert (unless_empty(2), unless_empty(0)) == (2, None)


def test_an_operation_is_there_under_all_its_names() -> None:
    things = Resource("things", "things", also={"admin_{}": "admin/things", "root_{}": "/things"})

    @things.endpoint("POST /{id}/stop", READ, GONE, request=NoOptions)
    def stop_thing(_request: object) -> Reply:
        """Stop a thing.

        At once.
        """
        return Reply(None)

    @things.endpoint("GET /{id}", READ, Whole, errors=(404,))
    def get_thing(_request: object) -> Reply:
        """Read a thing.

        The thing
        as it is.
        """
        return Reply(None)

    found = [(each.id, each.method, each.path, each.tag) for each in things.operations]
    assert found[3:][0][0] == "get_thing"
    assert things.operations[3].answers == {200: Success(Whole, "The thing as it is.")}
    assert found[:3] == [
        ("stop_thing", "POST", "/ojs/v1/things/{id}/stop", "things"),
        ("admin_stop_thing", "POST", "/ojs/v1/admin/things/{id}/stop", "admin"),
        ("root_stop_thing", "POST", "/things/{id}/stop", "things"),
    ]
    told = things.operations[0]
    assert (told.summary, told.example, told.body_required) == ("Stop a thing", {}, False)
    assert told.implementation is stop_thing


def test_a_request_without_an_example_is_noticed_at_once() -> None:
    each: list[Any] = [{"request": NackRequest}, {"example": {}}]
    for more in each:
        with pytest.raises(TypeError, match="a request has an example"):
            Resource("things", "things").endpoint("POST", READ, GONE, **more)


def test_who_may_call_an_operation_has_no_default() -> None:
    with pytest.raises(TypeError, match="permission"):
        Resource("things", "things").endpoint("POST", answers=GONE)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="reach"):
        Permission(Scope.JOBS_READ)  # type: ignore[call-arg]
