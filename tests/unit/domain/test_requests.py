"""How requests are declared and read."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

import pytest

from ojs.domain.errors import InvalidRequest, ValidationFailed
from ojs.domain.requests import FILLED, After, Before, Field, Model, Unknown


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


class Inner(Model):
    """One inside of another."""

    size: int = Field(ge=1, le=10_000_000_000)
    word: Literal["a", "b"] = "a"

    def agree(self) -> None:
        """Refuse what does not go together."""
        if self.size == 7 and self.word == "b":
            raise ValueError("must not be 7 with b")


class Outer(Model):
    """One with a field of each type."""

    unknown: ClassVar[Unknown] = "kept"

    text: Annotated[str, Field(min_length=1, max_length=3)] | None = None
    number: Annotated[float, Field(ge=0.5)] | None = None
    whole: Annotated[int, After(_even)] = 0
    truth: bool | None = None
    anything: Any = None
    inner: Inner | None = None
    several: list[Inner] | None = Field(None, max_length=2)
    mapped: dict[Annotated[str, Field(max_length=2)], int] | None = None
    either: Annotated[int, Field(ge=0)] | list[str] | None = None
    asked: Annotated[str, Before(str)] | None = None
    from_: str | None = Field(None, alias="from")
    retry: Inner | None = None


class Filled(Model):
    """One whose fields are given or left out."""

    filled = True
    text: str | None = None


WHOLE = "must be a whole number"
OBJECT = "must be an object"


@pytest.mark.parametrize(
    ("raw", "field", "reason"),
    [
        ({"text": 1}, "text", "must be a string"),
        ({"text": ""}, "text", "must have at least 1 character, but has 0"),
        ({"text": "1234"}, "text", "must have at most 3 characters, but has 4"),
        (
            {"text": "\ud800"},
            "text",
            "must not contain an unpaired surrogate",
        ),
        ({"number": "1"}, "number", "must be a number"),
        ({"number": True}, "number", "must be a number"),
        ({"number": Decimal("0.4")}, "number", "must be at least 0.5"),
        ({"number": 10**400}, "number", "must be a finite number"),
        ({"whole": None}, "whole", WHOLE),
        ({"whole": True}, "whole", WHOLE),
        ({"whole": Decimal("2.0")}, "whole", WHOLE),
        ({"whole": 3}, "whole", "must be even"),
        ({"truth": 1}, "truth", "must be true or false"),
        ({"inner": []}, "inner", OBJECT),
        ({"inner": {}}, "inner.size", "is required"),
        ({"inner": {"size": 0}}, "inner.size", "must be at least 1"),
        (
            {"inner": {"size": 10**11}},
            "inner.size",
            "must be at most 10000000000",
        ),
        ({"inner": {"size": 1, "word": "c"}}, "inner.word", "must be 'a' or 'b'"),
        (
            {"inner": {"size": 1, "wird": "a"}},
            "inner.wird",
            "is not a known field. Did you mean 'word'?",
        ),
        ({"inner": {"size": 7, "word": "b"}}, "inner", "must not be 7 with b"),
        ({"several": {}}, "several", "must be an array"),
        ({"several": [{"size": 1}, 2]}, "several[1]", OBJECT),
        ({"several": [{"size": 1}, {"size": ""}]}, "several[1].size", WHOLE),
        ({"several": [{"size": 1}] * 3}, "several", "must have at most 2 entries, but has 3"),
        ({"mapped": {"a": 1, "b": "2"}}, "mapped.b", WHOLE),
        ({"mapped": {"abc": 1}}, "mapped.abc", "must have at most 2 characters, but has 3"),
        ({"either": -1}, "either", "must be at least 0"),
        ({"either": [1]}, "either[0]", "must be a string"),
        # Neither: the last says what is wrong.
        ({"either": {}}, "either", "must be an array"),
        ({"from": 1}, "from", "must be a string"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(raw: Any, field: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Outer.model_validate(raw)
    assert (refused.value.field, refused.value.reason) == (field, reason)
    with pytest.raises(InvalidRequest) as refused:
        Outer.model_validate(raw, "jobs[3].")
    assert refused.value.field == f"jobs[3].{field}"
    assert refused.value.details["errors"] == [{"field": f"jobs[3].{field}", "reason": reason}]


def test_no_object_at_all() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Outer.model_validate([])
    assert (refused.value.field, refused.value.reason) == ("body", OBJECT)


def test_what_is_right_is_read() -> None:
    raw: dict[str, Any] = {
        "text": "abc", "number": 2, "whole": 4, "truth": False, "anything": {"x": [None]},
        "inner": {"size": 7}, "several": [{"size": 1, "word": "b"}], "mapped": {"a": 1},
        "either": ["x"], "asked": 5, "from": "here", "other": 1, "model_fields": 2, "_read": 3,
    }  # fmt: skip
    read = Outer.model_validate(raw)
    assert (read.number, type(read.number)) == (2.0, float)
    assert isinstance(read.inner, Inner)
    assert (read.inner.size, read.inner.word, read.inner.model_fields_set) == (7, "a", {"size"})
    assert (read.asked, read.from_, read.retry) == ("5", "here", None)
    # Nothing that a client sends takes the place of what a class has.
    assert read.model_extra == {"other": 1, "model_fields": 2, "_read": 3}
    del raw["from"]
    plain = raw | {"number": 2.0, "asked": "5", "from_": "here"}
    assert read.model_dump(exclude_unset=True) == plain


def test_what_is_not_given_has_its_default() -> None:
    read = Outer.model_validate({"text": None})
    assert (read.text, read.whole, read.model_fields_set) == (None, 0, {"text"})
    assert read.model_dump(exclude_none=True) == {"whole": 0}
    assert read.model_dump(include={"text"}) == {"text": None}
    assert read != Outer.model_validate({})
    assert Outer.model_validate({}) == Outer()


def test_a_copy_has_other_values() -> None:
    before = Outer(whole=2)
    after = before.model_copy(update={"text": "x"})
    assert (after.text, after.whole, after.model_fields_set) == ("x", 2, {"text", "whole"})
    assert (before.text, before.model_fields_set) == (None, {"whole"})


def test_malformed_fields_come_before_broken_policies() -> None:
    with pytest.raises(ValidationFailed) as broken:
        Outer.model_validate({"retry": {"size": 0}})
    assert broken.value.field == "retry.size"
    with pytest.raises(InvalidRequest) as refused:
        Outer.model_validate({"retry": {"size": 0}, "whole": 1})
    assert type(refused.value) is InvalidRequest
    assert [error["field"] for error in refused.value.details["errors"]] == ["whole", "retry.size"]


@pytest.mark.parametrize("value", [None, ""])
def test_a_field_that_must_be_filled(value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Filled.model_validate({"text": value})
    assert (refused.value.field, refused.value.reason) == ("text", FILLED)
    assert Filled.model_validate({}).text is None


def test_no_more_errors_are_told_than_help() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Outer.model_validate({"several": [1] * 1_000})
    assert len(refused.value.details["errors"]) == 20
