"""Tests' short way to an engine: its quick check accepts nothing that the SDK refuses."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from botocore.session import get_session
from botocore.validate import ParamValidator

from tests.direct import Checks

_KEY = {"pk": {"S": "a"}, "sk": {"S": "b"}}
_VALUES = {
    ":m": {"M": {"x": {"L": [{"N": "1"}, {"NULL": True}, {"BOOL": False}]}}},
    ":b": {"B": b"bytes"}, ":s": {"SS": ["a", "b"]},
}  # fmt: skip
_UPDATE = {
    "TableName": "jobs", "Key": _KEY, "UpdateExpression": "SET a = :m",
    "ExpressionAttributeValues": _VALUES, "ReturnConsumedCapacity": "TOTAL",
}  # fmt: skip
REQUESTS: dict[str, dict[str, Any]] = {
    "UpdateItem": _UPDATE,
    "Query": {
        "TableName": "jobs", "KeyConditionExpression": "pk = :pk", "Limit": 5,
        "ExpressionAttributeValues": {":pk": {"S": "a"}}, "ConsistentRead": True,
    },
    "BatchGetItem": {"RequestItems": {"jobs": {"Keys": [_KEY, _KEY]}}},
    "TransactWriteItems": {
        "TransactItems": [
            {"Put": {"TableName": "jobs", "Item": _KEY}},
            {"Delete": {"TableName": "jobs", "Key": _KEY}},
        ],
        "ClientRequestToken": "token",
    },
}  # fmt: skip
_WRONG: tuple[Any, ...] = (None, 7, -1, 1.5, True, "", b"", [], {}, {"S": 7}, {"X": "y"}, object())


@pytest.fixture(scope="module")
def model() -> Any:
    return get_session().get_service_model("dynamodb")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value in a request."""
    yield path
    pairs = value.items() if isinstance(value, dict) else ()
    for name, each in enumerate(value) if isinstance(value, list) else pairs:
        yield from places(each, (*path, name))


def changed(request: Any, path: tuple[Any, ...]) -> Iterator[Any]:
    """The request with another value at a place, without it, and with a value beside it."""
    for wrong in _WRONG:
        made = deepcopy(request)
        there = made
        for name in path[:-1]:
            there = there[name]
        there[path[-1]] = wrong
        yield made
    made = deepcopy(request)
    there = made
    for name in path[:-1]:
        there = there[name]
    del there[path[-1]]
    yield made
    if isinstance(there, dict):
        yield made | {"Unknown": "x"}


@pytest.mark.parametrize("operation", REQUESTS)
def test_the_quick_check_accepts_only_what_the_sdk_accepts(operation: str, model: Any) -> None:
    shape, request = model.operation_model(operation).input_shape, REQUESTS[operation]
    fits, sdk = Checks().of(shape), ParamValidator()
    assert fits(request)
    assert not sdk.validate(request, shape).has_errors()
    refused = 0
    for path in list(places(request))[1:]:
        for each in changed(request, path):
            wrong = sdk.validate(each, shape).has_errors()
            refused += wrong
            assert not (wrong and fits(each)), each
    assert refused > 50
