"""A DynamoDB of one process: the operations and expressions that the store uses, exact and quick.

A run of the simulation makes some hundred calls; over a socket each would take longer than all that
is under test. `test_memory.py` has the same seeds run here and on dynoxide, and compares every
answer.

Beside the table as it is, it knows how it was a few writes ago: an index, and a read that is not
consistent, may answer from then.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from botocore.exceptions import ClientError

from ojs.store.table.schema import TABLE

Key = tuple[str, str]
Item = dict[str, Any]
# An item's key, how it was, how it is; None where there is none.
Change = tuple[Key, Item | None, Item | None]
# The range key, and the key of the item.
_Place = tuple[str, str, str]
_Values = Mapping[str, Any]
_Names = Mapping[str, str]
_Get = Callable[[Item, _Names, _Values], Any]

# Writes that a stale answer may not know of, at most.
KEPT_WRITES = 16
_SCANNED = 3
_INDEXES = {index.name: (index.hash_key, index.range_key) for index in TABLE.indexes}
_TOKEN = re.compile(r"\s*([#:]?\w+|<>|<=|>=|[=<>(),+\-])")


class Memory:
    """One table. Takes and returns what the SDK's client does."""

    def __init__(self) -> None:
        self.items: dict[Key, Item] = {}
        # What was deleted, though it may be there again.
        self.deleted: set[Key] = set()
        self.watchers: list[Callable[[list[Change]], None]] = []
        # Client tokens of the transactions that took effect.
        self._transacted: set[str] = set()
        self._log: deque[tuple[Key, Item | None]] = deque(maxlen=KEPT_WRITES)
        # The places of items in each partition of the table and of its indexes, in order.
        self._parts: defaultdict[tuple[str, str], list[_Place]] = defaultdict(list)

    # --- reading ----------------------------------------------------------------------------------

    def as_of(self, writes_ago: int) -> dict[Key, Item]:
        """The items as they were so many writes ago."""
        if not writes_ago:
            return self.items
        items = dict(self.items)
        for key, before in list(self._log)[::-1][:writes_ago]:
            if before is None:
                items.pop(key, None)
            else:
                items[key] = before
        return items

    def get_item(self, arguments: Mapping[str, Any], writes_ago: int = 0) -> Item:
        item = self.as_of(writes_ago).get(_key(arguments["Key"]))
        return {"Item": dict(item)} if item is not None else {}

    def batch_get_item(self, arguments: Mapping[str, Any], writes_ago: int = 0) -> Item:
        ((table, asked),) = arguments["RequestItems"].items()
        items = self.as_of(writes_ago)
        keys = [_key(key) for key in asked["Keys"]]
        assert len(set(keys)) == len(keys) <= 100
        found = [dict(items[key]) for key in keys if key in items]
        return {"Responses": {table: found}, "UnprocessedKeys": {}}

    def query(self, arguments: Mapping[str, Any], writes_ago: int = 0) -> Item:
        index = arguments.get("IndexName")
        hash_key, range_key = _INDEXES[index] if index else ("pk", "sk")
        text = arguments["KeyConditionExpression"]
        condition = _condition(text)
        values = arguments["ExpressionAttributeValues"]
        name, equals, wanted = text.split(" ")[:3]
        assert (name, equals) == (hash_key, "="), text
        items, places = self._partition(hash_key, range_key, values[wanted]["S"], writes_ago)
        forward = arguments.get("ScanIndexForward", True)
        if after := arguments.get("ExclusiveStartKey"):
            place = (after[range_key]["S"], *_key(after))
            at = bisect_right(places, place) if forward else bisect_left(places, place)
            places = places[at:] if forward else places[:at]
        limit = arguments.get("Limit", len(places) + 1)
        page: list[Item] = []
        for _, pk, sk in places if forward else reversed(places):
            item = items[pk, sk]
            if condition(item, {}, values):
                page.append(item)
            # What a condition on the range key selects has no gaps.
            elif page:
                break
            if len(page) == limit:
                break
        names = dict.fromkeys(("pk", "sk", hash_key, range_key))
        shown = [{n: item[n] for n in names} if index else dict(item) for item in page]
        answer: Item = {"Items": shown, "Count": len(page)}
        if len(page) == limit:
            answer["LastEvaluatedKey"] = {name: page[-1][name] for name in names}
        return answer

    def _partition(
        self, hash_key: str, range_key: str, value: str, writes_ago: int
    ) -> tuple[Mapping[Key, Item], list[_Place]]:
        """The items as they were so many writes ago, and the places of those of a partition."""
        if not writes_ago:
            return self.items, self._parts[hash_key, value]
        items = self.as_of(writes_ago)
        return items, sorted(
            (item[range_key]["S"], *key)
            for key, item in items.items()
            if item.get(hash_key) == {"S": value} and range_key in item
        )

    def scan(self, arguments: Mapping[str, Any], writes_ago: int = 0) -> Item:
        """A page of three items, which are looked at before they are filtered."""
        condition = _condition(arguments["FilterExpression"])
        values = arguments["ExpressionAttributeValues"]
        after = _key(arguments["ExclusiveStartKey"]) if "ExclusiveStartKey" in arguments else None
        ordered = sorted(self.as_of(writes_ago).items())
        page = [one for one in ordered if after is None or one[0] > after][:_SCANNED]
        shown = [item for _, item in page if condition(item, {}, values)]
        answer: Item = {"Items": [{"pk": item["pk"], "sk": item["sk"]} for item in shown]}
        if len(page) == _SCANNED:
            answer["LastEvaluatedKey"] = {name: page[-1][1][name] for name in ("pk", "sk")}
        return answer

    # --- writing ----------------------------------------------------------------------------------

    def put_item(self, arguments: Mapping[str, Any]) -> Item:
        change = self._planned("Put", arguments)
        self._write([change])
        return _old(change, arguments)

    def update_item(self, arguments: Mapping[str, Any]) -> Item:
        change = self._planned("Update", arguments)
        self._write([change])
        assert change[2] is not None
        return {"Attributes": dict(change[2])}

    def delete_item(self, arguments: Mapping[str, Any]) -> Item:
        change = self._planned("Delete", arguments)
        self._write([change])
        return _old(change, arguments)

    def batch_write_item(self, arguments: Mapping[str, Any]) -> Item:
        ((_, requests),) = arguments["RequestItems"].items()
        assert len(requests) <= 25
        for request in requests:
            ((kind, what),) = request.items()
            self._write([self._planned(kind.removesuffix("Request"), what)])
        return {"UnprocessedItems": {}}

    def transact_write_items(self, arguments: Mapping[str, Any]) -> Item:
        """Does nothing when a transaction with this client token took effect before."""
        token = arguments.get("ClientRequestToken")
        if token in self._transacted:
            return {}
        changes, reasons = [], []
        for action in arguments["TransactItems"]:
            ((kind, what),) = action.items()
            try:
                changes.append(self._planned(kind, what))
                reasons.append({"Code": "None"})
            except ClientError as error:
                reasons.append({"Code": "ConditionalCheckFailed", **_found(error)})
        assert len({key for key, _, _ in changes}) == len(changes) <= 100
        if len(changes) < len(reasons):
            raise cancelled(reasons)
        self._write(changes)
        if token is not None:
            self._transacted.add(token)
        return {}

    def _planned(self, kind: str, arguments: Mapping[str, Any]) -> Change:
        """What a write will do. Raises ClientError when its condition does not hold."""
        key = _key(arguments["Item" if kind == "Put" else "Key"])
        there = self.items.get(key)
        if text := arguments.get("ConditionExpression"):
            names = arguments.get("ExpressionAttributeNames", {})
            values = arguments.get("ExpressionAttributeValues", {})
            if not _condition(text)(there or {}, names, values):
                answer: Any = {"Error": {"Code": "ConditionalCheckFailedException"}}
                wanted = arguments.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
                if there is not None and wanted:
                    answer["Item"] = dict(there)
                raise ClientError(answer, kind)
        match kind:
            case "Put":
                return key, there, dict(arguments["Item"])
            case "Delete":
                return key, there, None
            case "ConditionCheck":
                return key, there, there
            case _:
                return key, there, _updated(there or dict(arguments["Key"]), arguments)

    def _write(self, changes: list[Change]) -> None:
        changes = [change for change in changes if change[1] != change[2]]
        for key, before, after in changes:
            self._log.append((key, before))
            self._place(key, before, after)
            if after is None:
                del self.items[key]
                self.deleted.add(key)
            else:
                self.items[key] = after
        for watcher in self.watchers:
            watcher(changes)

    def remove(self, key: Key) -> None:
        """Remove an item as its time to live does: nobody is told."""
        self._place(key, self.items.pop(key), None)

    def _place(self, key: Key, before: Item | None, after: Item | None) -> None:
        for hash_key, range_key in (("pk", "sk"), *_INDEXES.values()):
            was, now = (
                None
                if item is None or hash_key not in item or range_key not in item
                else (item[hash_key]["S"], (item[range_key]["S"], *key))
                for item in (before, after)
            )
            if was == now:
                continue
            if was is not None:
                places = self._parts[hash_key, was[0]]
                del places[bisect_left(places, was[1])]
            if now is not None:
                insort(self._parts[hash_key, now[0]], now[1])


def cancelled(reasons: Iterable[Mapping[str, Any]]) -> ClientError:
    """A transaction that was cancelled, as the SDK raises it."""
    answer: Any = {
        "Error": {"Code": "TransactionCanceledException"},
        "CancellationReasons": list(reasons),
    }
    return ClientError(answer, "TransactWriteItems")


def _old(change: Change, arguments: Mapping[str, Any]) -> Item:
    """The answer of a write: the item before it, if that was asked for."""
    wanted = arguments.get("ReturnValues") == "ALL_OLD"
    return {"Attributes": dict(change[1])} if wanted and change[1] is not None else {}


def _key(item: Mapping[str, Any]) -> Key:
    return item["pk"]["S"], item["sk"]["S"]


def _found(error: ClientError) -> Item:
    response: Any = error.response
    return {"Item": response["Item"]} if "Item" in response else {}


# --- expressions ----------------------------------------------------------------------------------


class _Parser:
    """Recursive descent over the few forms that the store uses."""

    def __init__(self, text: str) -> None:
        self.tokens = _TOKEN.findall(text)
        assert "".join(self.tokens) == "".join(text.split()), text
        self.at = 0

    def peek(self) -> str:
        return str(self.tokens[self.at]) if self.at < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        assert token
        assert expected in ("", token), f"{expected} expected in {self.tokens}"
        self.at += 1
        return token

    def any_of(self) -> _Get:
        parts = [self.all_of()]
        while self.peek() == "OR":
            self.take()
            parts.append(self.all_of())
        return parts[0] if len(parts) == 1 else lambda i, n, v: any(p(i, n, v) for p in parts)

    def all_of(self) -> _Get:
        parts = [self.one()]
        while self.peek() == "AND":
            self.take()
            parts.append(self.one())
        return parts[0] if len(parts) == 1 else lambda i, n, v: all(p(i, n, v) for p in parts)

    def one(self) -> _Get:
        if self.peek() == "(":
            self.take()
            inside = self.any_of()
            self.take(")")
            return inside
        if self.peek() in ("attribute_exists", "attribute_not_exists"):
            wanted = self.take() == "attribute_exists"
            self.take("(")
            name = _named(self.take())
            self.take(")")
            return lambda i, n, _: (name(n) in i) is wanted
        if self.peek() == "begins_with":
            self.take()
            self.take("(")
            left = self.operand()
            self.take(",")
            right = self.operand()
            self.take(")")
            return lambda i, n, v: str(_plain(left(i, n, v))).startswith(_plain(right(i, n, v)))
        return self.comparison()

    def comparison(self) -> _Get:
        left = self.operand()
        sign = self.take()
        if sign == "BETWEEN":
            first = self.operand()
            self.take("AND")
            last = self.operand()
            low, high = _compared(">=", left, first), _compared("<=", left, last)
            return lambda i, n, v: low(i, n, v) and high(i, n, v)
        return _compared(sign, left, self.operand())

    def operand(self) -> _Get:
        token = self.take()
        if token == "if_not_exists":
            self.take("(")
            name = _named(self.take())
            self.take(",")
            otherwise = self.operand()
            self.take(")")
            return lambda i, n, v: i[name(n)] if name(n) in i else otherwise(i, n, v)
        if token.startswith(":"):
            return lambda _, __, v: v[token]
        name = _named(token)
        return lambda i, n, _: i.get(name(n))

    def sum(self) -> _Get:
        left = self.operand()
        while self.peek() in ("+", "-"):
            left = _added(self.take(), left, self.operand())
        return left


def _named(token: str) -> Callable[[_Names], str]:
    return (lambda n: n[token]) if token.startswith("#") else lambda _: token


def _plain(typed: Any) -> Any:
    if typed is None:
        return None
    ((kind, value),) = typed.items()
    return int(value) if kind == "N" else value


def _compared(sign: str, left: _Get, right: _Get) -> _Get:
    def holds(item: Item, names: _Names, values: _Values) -> bool:
        one, other = left(item, names, values), right(item, names, values)
        if one is None or other is None or one.keys() != other.keys():
            # An attribute that is not there is unequal to everything, and else in no order.
            return sign == "<>"
        a, b = _plain(one), _plain(other)
        return bool(
            {
                "=": a == b,
                "<>": a != b,
                "<": a < b,
                "<=": a <= b,
                ">": a > b,
                ">=": a >= b,
            }[sign]
        )

    return holds


def _added(sign: str, left: _Get, right: _Get) -> _Get:
    def total(item: Item, names: _Names, values: _Values) -> Any:
        a, b = _plain(left(item, names, values)), _plain(right(item, names, values))
        return {"N": str(a + b if sign == "+" else a - b)}

    return total


@lru_cache(4_096)
def _condition(text: str) -> _Get:
    parser = _Parser(text)
    found = parser.any_of()
    assert not parser.peek(), text
    return found


_Steps = list[tuple[str, Callable[[_Names], str], _Get | None]]


@lru_cache(4_096)
def _update(text: str) -> _Steps:
    parser = _Parser(text)
    steps: _Steps = []
    clause = ""
    while parser.peek():
        if parser.peek() in ("SET", "REMOVE", "ADD"):
            clause = parser.take()
        else:
            parser.take(",")
        name = _named(parser.take())
        value: _Get | None = None
        if clause == "SET":
            parser.take("=")
            value = parser.sum()
        elif clause == "ADD":
            value = parser.operand()
        steps.append((clause, name, value))
    return steps


def _updated(before: Item, arguments: Mapping[str, Any]) -> Item:
    names = arguments.get("ExpressionAttributeNames", {})
    values = arguments.get("ExpressionAttributeValues", {})
    after = dict(before)
    for clause, name, value in _update(arguments["UpdateExpression"]):
        attribute = name(names)
        assert attribute not in ("pk", "sk")
        if value is None:
            after.pop(attribute, None)
            continue
        # All is worked out from the item as it was.
        given = value(before, names, values)
        if clause == "ADD":
            given = {"N": str(int(before.get(attribute, {"N": "0"})["N"]) + int(given["N"]))}
        after[attribute] = given
    return after
