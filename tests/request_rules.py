"""DynamoDB's rules for requests, checked on every call of a test: engines accept more than it does.

Limits as in the "Service, account, and table quotas" and "Constraints" of the developer guide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from ojs.store.table.table import Table

MAX_EXPRESSION_BYTES = 4_096
MAX_OPERATORS = 300
_MAX_SUBSTITUTES_BYTES = 2 * 1024 * 1024
_MAX_PLACEHOLDER_BYTES = 255
_MAX_ITEM_BYTES = 400 * 1024
_MAX_TRANSACTION_BYTES = 4 * 1024 * 1024
_MAX_BATCH_WRITE_BYTES = 16 * 1024 * 1024
_MAX_KEY_BYTES = {"pk": 2_048, "sk": 1_024}
_EXPRESSIONS = (
    "UpdateExpression",
    "ConditionExpression",
    "KeyConditionExpression",
    "FilterExpression",
    "ProjectionExpression",
)
_OPERATOR = re.compile(
    r"<>|<=|>=|[=<>+]|(?<=\s)-(?=\s)"
    r"|\b(?:AND|OR|NOT|IN|BETWEEN|SET|REMOVE|ADD|DELETE)\b"
    r"|\b(?:attribute_\w+|begins_with|contains|size|if_not_exists|list_append)(?=\()"
)
_PLACEHOLDER = re.compile(r"[#:]\w+")
_CLAUSE = re.compile(r"\b(SET|REMOVE|ADD|DELETE)\b")


class Rejected(AssertionError):
    """DynamoDB would answer this request with a ValidationException."""


# What was rejected since the test began: code under test may catch the exception.
rejected: list[str] = []


def check(operation: str, arguments: Mapping[str, Any]) -> None:
    """Raises Rejected for a request that DynamoDB rejects; `operation` is its name in the API."""
    try:
        _check(operation, arguments)
    except Rejected as error:
        rejected.append(f"{operation}: {error}")
        raise


def _check(operation: str, arguments: Mapping[str, Any]) -> None:
    match operation:
        case "TransactWriteItems":
            _check_transaction(arguments["TransactItems"])
        case "BatchGetItem":
            keys = [k for asked in arguments["RequestItems"].values() for k in asked["Keys"]]
            _rule(1 <= len(keys) <= 100, f"{len(keys)} keys")
            _check_distinct(keys)
        case "BatchWriteItem":
            writes = [w for some in arguments["RequestItems"].values() for w in some]
            _rule(1 <= len(writes) <= 25, f"{len(writes)} writes")
            items = [part for write in writes for part in write.values()]
            _check_distinct(
                [
                    item.get("Item") or item.get("Key", {"pk": number})
                    for number, item in enumerate(items)
                ]
            )
            size = sum(size_of(item.get("Item", {})) for item in items)
            _rule(size <= _MAX_BATCH_WRITE_BYTES, f"a batch of {size} bytes")
            for item in items:
                _check_one(item)
        case _:
            _check_one(arguments)


def _check_transaction(actions: list[Mapping[str, Mapping[str, Any]]]) -> None:
    _rule(1 <= len(actions) <= 100, f"{len(actions)} actions")
    parts = [part for action in actions for part in action.values()]
    _check_distinct([part.get("Item") or part["Key"] for part in parts])
    size = sum(size_of(part.get("Item", {})) for part in parts)
    _rule(size <= _MAX_TRANSACTION_BYTES, f"a transaction of {size} bytes")
    for part in parts:
        _check_one(part)


def _check_one(arguments: Mapping[str, Any]) -> None:
    """The rules for one action."""
    names: Mapping[str, str] = arguments.get("ExpressionAttributeNames", {})
    values: Mapping[str, Any] = arguments.get("ExpressionAttributeValues", {})
    texts = tuple(str(arguments[name]) if name in arguments else None for name in _EXPRESSIONS)
    substitutes = _check_expressions(texts, tuple(names.items()), tuple(values))
    for which in ("ExpressionAttributeNames", "ExpressionAttributeValues"):
        _rule(which not in arguments or bool(arguments[which]), f"{which} is empty")
    substitutes += sum(len(k) + _value_bytes(v) for k, v in values.items())
    _rule(substitutes <= _MAX_SUBSTITUTES_BYTES, f"{substitutes} bytes of names and values")
    item = arguments.get("Item", {})
    size = size_of(item)
    _rule(size <= _MAX_ITEM_BYTES, f"an item of {size} bytes")
    for key in (item, arguments.get("Key", {}), arguments.get("ExclusiveStartKey", {})):
        if key:
            _check_key(key)
    limit = arguments.get("Limit", 1)
    _rule(limit >= 1, f"Limit is {limit}")


# Most requests differ only in their values.
@lru_cache(4_096)
def _check_expressions(
    texts: tuple[str | None, ...], names: tuple[tuple[str, str], ...], values: tuple[str, ...]
) -> int:
    """The rules for all that does not depend on values; how many bytes the names are."""
    used = set()
    for text in texts:
        if text is not None:
            _check_expression(text)
            used.update(_PLACEHOLDER.findall(text))
    given = {*values, *(name for name, _ in names)}
    _rule(used == given, f"placeholders without use or meaning: {sorted(used ^ given)}")
    for one in given:
        _rule(len(one.encode()) <= _MAX_PLACEHOLDER_BYTES, f"the placeholder {one}")
    update = texts[_EXPRESSIONS.index("UpdateExpression")]
    if update is not None:
        _check_paths(update, dict(names))
    return sum(len(name) + len(meant.encode()) for name, meant in names)


def _check_expression(text: str) -> None:
    size = len(text.encode())
    _rule(0 < size <= MAX_EXPRESSION_BYTES, f"an expression of {size} bytes: {text[:80]}")
    operators = len(_OPERATOR.findall(_PLACEHOLDER.sub("x", text)))
    _rule(operators <= MAX_OPERATORS, f"an expression of {operators} operators: {text[:80]}")


def _check_paths(text: str, names: Mapping[str, str]) -> None:
    """No attribute is changed twice, no clause appears twice, and no key is changed."""
    pieces = _CLAUSE.split(text)[1:]
    clauses = pieces[::2]
    _rule(len(set(clauses)) == len(clauses), f"a clause appears twice: {text[:80]}")
    paths = []
    for body in pieces[1::2]:
        flat = re.sub(r"\([^()]*\)", "", body)
        paths += [re.split(r"[\s=]", part.strip(), maxsplit=1)[0] for part in flat.split(",")]
    changed = [names.get(path, path) for path in paths]
    _rule(len(set(changed)) == len(changed), f"two paths overlap: {text[:80]}")
    _rule(not {"pk", "sk"} & set(changed), f"a key is changed: {text[:80]}")


def _check_distinct(keys: Iterable[Mapping[str, Any]]) -> None:
    pairs = [tuple(str(key.get(name)) for name in _key_names(key)) for key in keys]
    _rule(len(set(pairs)) == len(pairs), "an item appears twice")


def _key_names(key: Mapping[str, Any]) -> Mapping[str, int]:
    """The key attributes, and their sizes: of the table, or of an outbox."""
    return {"id": _MAX_KEY_BYTES["pk"]} if key.keys() == {"id"} else _MAX_KEY_BYTES


def _check_key(key: Mapping[str, Any]) -> None:
    for name, most in _key_names(key).items():
        size = len(key[name]["S"].encode())
        _rule(1 <= size <= most, f"a key {name} of {size} bytes")


def size_of(item: Mapping[str, Any]) -> int:
    """The size of an item as DynamoDB counts it, or a little more."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _value_bytes(value: Mapping[str, Any]) -> int:
    ((kind, inside),) = value.items()
    match kind:
        case "S":
            return len(inside.encode())
        case "B":
            return len(inside)
        case "N":
            return (len(inside) + 1) // 2 + 1
        case "M":
            return 3 + sum(len(k.encode()) + 1 + _value_bytes(v) for k, v in inside.items())
        case "L":
            return 3 + sum(1 + _value_bytes(each) for each in inside)
        case "SS" | "NS" | "BS":
            _rule(bool(inside), "an empty set")
            return sum(len(each) for each in inside)
        case _:
            return 1


def _rule(holds: bool, what: str) -> None:
    if not holds:
        raise Rejected(what)


def install() -> None:
    """Check every request of every table of this process, whichever engine answers it."""
    if getattr(Table._call, "checks", False):
        return
    call = Table._call

    def checked(table: Table, operation: str, do: Callable[..., Any], **arguments: Any) -> Any:
        check(operation, arguments)
        return call(table, operation, do, **arguments)

    checked.checks = True  # type: ignore[attr-defined]
    Table._call = checked  # type: ignore[method-assign, assignment]
