"""A layer over the DynamoDB client: Python values, specific exceptions, and a capacity meter."""

from __future__ import annotations

import random
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from ojs.domain.errors import BackendTimeout, BackendUnavailable, OjsError
from ojs.records import record
from ojs.store.table.errors import LostRace, UnknownOutcome, WriteNotApplied, classify
from ojs.store.table.values import Item, Value, pack, unpack

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_RESERVED_SAFE = re.compile(r"#(\w+)")
MAX_BATCH_GET = 100
MAX_BATCH_WRITE = 25
MAX_TRANSACTION = 100
_BATCH_ROUNDS = 8
# Maximum number of attempts of a call that has no response, and of a call that DynamoDB rejects
# before it writes anything.
_TRIES, _REFUSED_TRIES = 3, 4
# Maximum number of attempts of a transaction while an earlier attempt is in progress. DynamoDB
# needs up to 5 s to finish that attempt.
_UNDER_WAY_TRIES = 9
_UNDER_WAY_PAUSE_S = 1.0
_FIRST_PAUSE_S = 0.025
_LONGEST_PAUSE_S = 0.4


@record
class Meter:
    """Counts calls and consumed capacity units, for tests and benchmarks."""

    calls: list[str] = field(default_factory=list)
    write_units: float = 0.0
    read_units: float = 0.0

    def reset(self) -> None:
        """Set all counts to zero."""
        self.calls.clear()
        self.write_units = self.read_units = 0.0


_READS = frozenset({"GetItem", "BatchGetItem", "Query", "Scan"})
# All attempts of such a transaction share one client token. If an attempt loses a race after an
# earlier attempt had no response, the earlier attempt was not executed. Otherwise DynamoDB would
# have returned its success for the same token.
_TRANSACT = "TransactWriteItems"


@record(frozen=True)
class Update:
    """One conditional change of an item: attributes to set and to remove, and the condition.

    Expressions refer to attributes as `#name` and to `values` as `:name`.
    """

    pk: str
    sk: str
    set: Mapping[str, Value] = field(default_factory=dict)
    remove: Sequence[str] = ()
    # Attribute → expression that computes its value from the stored item.
    compute: Mapping[str, str] = field(default_factory=dict)
    # Attribute → number to add. A missing attribute counts as 0. The names can contain any
    # characters.
    add: Mapping[str, int] = field(default_factory=dict)
    condition: str | None = None
    values: Mapping[str, Value] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that UpdateItem and TransactWriteItems share."""
        clauses: list[str] = []
        values: dict[str, Value] = dict(self.values)
        assignments = [f"#{name} = :set_{name}" for name in self.set]
        values |= {f":set_{name}": value for name, value in self.set.items()}
        assignments += [f"#{name} = {expression}" for name, expression in self.compute.items()]
        if assignments:
            clauses.append("SET " + ", ".join(assignments))
        if self.remove:
            clauses.append("REMOVE " + ", ".join(f"#{name}" for name in self.remove))
        added = {f"#a_{at}": name for at, name in enumerate(self.add)}
        if added:
            clauses.append("ADD " + ", ".join(f"{alias} :{alias[1:]}" for alias in added))
            values |= {f":{alias[1:]}": self.add[name] for alias, name in added.items()}
        expression = " ".join(clauses)
        text = f"{expression} {self.condition or ''}"
        arguments: dict[str, Any] = {
            "Key": pack({"pk": self.pk, "sk": self.sk}),
            "UpdateExpression": expression,
        }
        if self.condition:
            arguments["ConditionExpression"] = self.condition
        if names := {f"#{name}": name for name in _RESERVED_SAFE.findall(text)} | added:
            arguments["ExpressionAttributeNames"] = names
        if values:
            arguments["ExpressionAttributeValues"] = pack(values)
        return arguments


@record(frozen=True)
class Put:
    """A write of a whole item, with a condition."""

    item: Mapping[str, Value]
    condition: str | None = None
    values: Mapping[str, Value] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that PutItem and TransactWriteItems share."""
        return {"Item": pack(self.item)} | _condition(self.condition, self.values)


@record(frozen=True)
class Delete:
    """A conditional deletion of an item, in a transaction."""

    pk: str
    sk: str
    condition: str | None = None
    values: Mapping[str, Value] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments that DeleteItem and TransactWriteItems share."""
        key = pack({"pk": self.pk, "sk": self.sk})
        return {"Key": key} | _condition(self.condition, self.values)


@record(frozen=True)
class Check:
    """A condition on an item that a transaction does not write."""

    pk: str
    sk: str
    condition: str
    values: Mapping[str, Value] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a condition check in TransactWriteItems."""
        return Delete(self.pk, self.sk, self.condition, self.values).arguments()


def _condition(condition: str | None, values: Mapping[str, Value]) -> dict[str, Any]:
    """Return the arguments of a condition, if there is one."""
    if not condition:
        return {}
    arguments: dict[str, Any] = {"ConditionExpression": condition}
    if names := {f"#{name}": name for name in _RESERVED_SAFE.findall(condition)}:
        arguments["ExpressionAttributeNames"] = names
    if values:
        arguments["ExpressionAttributeValues"] = pack(values)
    return arguments


# The name of an attribute, and a value that only one write sets, usually a new token. If the stored
# item has this value, that write succeeded.
OwnMark = tuple[str, Value]


@record(frozen=True)
class Found:
    """A page of query results. `last` is the key of the next page; None on the last page."""

    items: list[Item]
    last: dict[str, Any] | None


class Table:
    """One DynamoDB table.

    Raises LostRace if a condition fails, and OjsError for any other error. Its subclass
    WriteNotApplied means that certainly nothing was written.
    """

    def __init__(
        self,
        client: DynamoDBClient,
        name: str,
        *,
        repeats: bool = True,
        measure: bool = False,
        meter: Meter | None = None,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
        new_token: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        """Create a table.

        `client` must make one attempt per call. If `repeats` is true, the table retries calls that
        had no response.
        """
        self.client = client
        self._repeats = repeats
        self.name = name
        self.measure = measure
        self.meter = meter or Meter()
        self._sleep = sleep
        self._chance = chance
        self._new_token = new_token

    def without_repeats(self) -> Table:
        """Return the same table, but calls that had no response are not retried."""
        return Table(
            self.client,
            self.name,
            repeats=False,
            measure=self.measure,
            meter=self.meter,
            sleep=self._sleep,
            chance=self._chance,
            new_token=self._new_token,
        )

    def _back_off(self, times: int, error: OjsError | None = None) -> None:
        """Wait before the next try: exponential back-off with jitter."""
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**times)
        if isinstance(error, UnknownOutcome):
            longest = _UNDER_WAY_PAUSE_S
        self._sleep(longest * (0.5 + self._chance() / 2))

    def _call(self, operation: str, call: Callable[..., Any], **arguments: Any) -> Any:
        """Make a call and retry it.

        All attempts have the same arguments, including the client token.

        If an attempt had no response, the outcome is unknown even if a later attempt fails.
        """
        if self.measure:
            arguments["ReturnConsumedCapacity"] = "INDEXES"
        unanswered = False
        for tried in range(1, _UNDER_WAY_TRIES + 1):
            if self.measure:
                self.meter.calls.append(operation)
            try:
                answer = call(**arguments)
            except (ClientError, BotoCoreError) as error:
                meaning = classify(error)
                if isinstance(meaning, LostRace):
                    meaning.items = [item and unpack(item) for item in meaning.items]
                    meaning.repeated = unanswered and operation != _TRANSACT
                    raise meaning from error
                refused = isinstance(meaning, WriteNotApplied)
                unanswered = unanswered or not refused
                if not self._may_repeat(meaning, tried, unanswered=unanswered):
                    if refused and unanswered:
                        meaning = BackendUnavailable(meaning.message)
                    raise meaning from error
                self._back_off(tried - 1, meaning)
            else:
                if self.measure:
                    self._spend(operation, answer.get("ConsumedCapacity"))
                return answer
        raise AssertionError("the last try returns or raises")

    def _may_repeat(self, meaning: OjsError, tried: int, *, unanswered: bool) -> bool:
        """Return whether a call is repeated after `tried` attempts."""
        if isinstance(meaning, WriteNotApplied):
            return tried < _REFUSED_TRIES and (self._repeats or not unanswered)
        if isinstance(meaning, UnknownOutcome):
            return tried < _UNDER_WAY_TRIES and self._repeats
        passing = isinstance(meaning, BackendUnavailable | BackendTimeout)
        return passing and self._repeats and tried < _TRIES

    def _spend(self, operation: str, consumed: Any) -> None:
        spent = consumed if isinstance(consumed, list) else [consumed or {}]
        units = sum(float(part.get("CapacityUnits", 0)) for part in spent)
        if operation in _READS:
            self.meter.read_units += units
        else:
            self.meter.write_units += units

    def ping(self) -> None:
        """Make one cheap read, to check that the table can be reached. Raises OjsError."""
        self.get("PING", "@", consistent=False)

    def get(self, pk: str, sk: str, *, consistent: bool = True) -> Item | None:
        """Read one item. Return None if it doesn't exist.

        Args:
            pk: Partition key.
            sk: Sort key.
            consistent: Whether the read is strongly consistent.
        """
        answer = self._call(
            "GetItem",
            self.client.get_item,
            TableName=self.name,
            Key=pack({"pk": pk, "sk": sk}),
            ConsistentRead=consistent,
        )
        item = answer.get("Item")
        return unpack(item) if item else None

    def batch_get(
        self, keys: Iterable[tuple[str, str]], *, consistent: bool = True
    ) -> dict[tuple[str, str], Item]:
        """Read items by key. Missing items are not returned. Each call reads at most 16 MB."""
        wanted = [pack({"pk": pk, "sk": sk}) for pk, sk in dict.fromkeys(keys)]
        found: dict[tuple[str, str], Item] = {}
        fruitless = 0
        while wanted:
            chunk, rest = wanted[:MAX_BATCH_GET], wanted[MAX_BATCH_GET:]
            answer = self._call(
                "BatchGetItem",
                self.client.batch_get_item,
                RequestItems={self.name: {"Keys": chunk, "ConsistentRead": consistent}},
            )
            items = answer.get("Responses", {}).get(self.name, [])
            for item in map(unpack, items):
                found[str(item["pk"]), str(item["sk"])] = item
            left = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
            # Keys that DynamoDB skips, because of the response size or throttling, are read again.
            # After several calls without progress, the table counts as throttled, and the caller
            # must retry later.
            fruitless = fruitless + 1 if left and not items else 0
            if fruitless >= _BATCH_ROUNDS:
                raise BackendUnavailable("DynamoDB throttled the request.")
            if fruitless:
                self._back_off(fruitless - 1)
            wanted = list(left) + rest
        return found

    def put(self, put: Put, *, own: OwnMark | None = None, tell_old: bool = False) -> Item | None:
        """Write a whole item. `own` is as for `update`. Raises LostRace with the existing item.

        With `tell_old`, returns the replaced item. After a lost response, it is unknown.
        """
        try:
            answer = self._call(
                "PutItem",
                self.client.put_item,
                TableName=self.name,
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **({"ReturnValues": "ALL_OLD"} if tell_old else {}),
                **put.arguments(),
            )
        except LostRace as lost:
            if _own_item(lost, own) is None:
                raise
            return None
        old = answer.get("Attributes")
        return unpack(old) if old else None

    def update(
        self, update: Update, *, tell_loser: bool = True, own: OwnMark | None = None
    ) -> Item:
        """Change an item.

        Args:
            update: The change and its condition.
            tell_loser: Whether a LostRace contains the stored item.
            own: Attribute that identifies this write. If an earlier attempt succeeded but its
                response was lost, the condition of the next attempt fails, and the stored item has
                this attribute. The item is then returned, and LostRace is not raised. If no attempt
                had a response, a read can show that one succeeded.

        Returns:
            All current attributes of the item.

        Raises:
            LostRace: The condition doesn't hold. Nothing was written.
        """
        try:
            answer = self._call(
                "UpdateItem",
                self.client.update_item,
                TableName=self.name,
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD" if tell_loser else "NONE",
                **update.arguments(),
            )
        except LostRace as lost:
            if (item := _own_item(lost, own)) is None:
                raise
            return item
        except (BackendUnavailable, BackendTimeout) as error:
            if own is None or not self._repeats or isinstance(error, WriteNotApplied):
                raise
            found: Item | None = None
            with suppress(OjsError):
                found = self.get(update.pk, update.sk)
            if found is None or found.get(own[0]) != own[1]:
                raise
            return found
        return unpack(answer.get("Attributes", {}))

    def delete(
        self,
        pk: str,
        sk: str,
        *,
        condition: str | None = None,
        values: Mapping[str, Value] | None = None,
    ) -> None:
        """Delete an item.

        Args:
            pk: Partition key.
            sk: Sort key.
            condition: Condition of the deletion. Default: none.
            values: Values of the condition.

        Raises:
            LostRace: The condition doesn't hold.
        """
        arguments = Delete(pk, sk, condition, values or {}).arguments()
        if condition:
            arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
        self._call("DeleteItem", self.client.delete_item, TableName=self.name, **arguments)

    def take(self, pk: str, sk: str) -> Item | None:
        """Delete an item; return its last attributes, or None if there was none.

        After a lost response the repeated call finds no item.
        """
        answer = self._call(
            "DeleteItem",
            self.client.delete_item,
            TableName=self.name,
            ReturnValues="ALL_OLD",
            **Delete(pk, sk).arguments(),
        )
        item = answer.get("Attributes")
        return unpack(item) if item else None

    def query(
        self,
        condition: str,
        values: Mapping[str, Value],
        *,
        index: str | None = None,
        limit: int | None = None,
        forward: bool = True,
        consistent: bool = False,
        after: dict[str, Any] | None = None,
    ) -> Found:
        """Read one page of a query.

        Args:
            condition: Condition on the keys.
            values: Values in the condition.
            index: Index to query. Default: the table.
            limit: Maximum number of items. Default: a page of 1 MB.
            forward: Whether the order of the sort key is ascending.
            consistent: Whether the read is strongly consistent. Does not apply to an index.
            after: Key of the last item of the previous page. Default: start at the beginning.
        """
        arguments: dict[str, Any] = {
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": pack(values),
            "ScanIndexForward": forward,
        }
        if index:
            arguments["IndexName"] = index
        else:
            arguments["ConsistentRead"] = consistent
        if limit is not None:
            arguments["Limit"] = limit
        if after:
            arguments["ExclusiveStartKey"] = after
        answer = self._call("Query", self.client.query, TableName=self.name, **arguments)
        return Found([unpack(item) for item in answer["Items"]], answer.get("LastEvaluatedKey"))

    def scan(
        self, names: str, condition: str, values: Mapping[str, Value], after: dict[str, Any] | None
    ) -> Found:
        """Read one page of all items of the table that meet a condition.

        Args:
            names: Attributes to return.
            condition: Condition on the items.
            values: Values in the condition.
            after: Key of the last item of the previous page, or None to start at the beginning.
        """
        answer = self._call(
            "Scan",
            self.client.scan,
            TableName=self.name,
            ProjectionExpression=names,
            FilterExpression=condition,
            ExpressionAttributeValues=pack(values),
            **({"ExclusiveStartKey": after} if after else {}),
        )
        return Found([unpack(item) for item in answer["Items"]], answer.get("LastEvaluatedKey"))

    def query_all(
        self, condition: str, values: Mapping[str, Value], *, consistent: bool = True
    ) -> list[Item]:
        """Read all matching items of one partition. Only for partitions of limited size.

        Args:
            condition: Condition on the keys.
            values: Values of the condition.
            consistent: Whether the reads are strongly consistent.
        """
        items: list[Item] = []
        after: dict[str, Any] | None = None
        while True:
            page = self.query(condition, values, consistent=consistent, after=after)
            items += page.items
            after = page.last
            if after is None:
                return items

    def transact(self, writes: Sequence[Put | Update | Delete | Check]) -> None:
        """Make up to 100 writes, all of them or none.

        All attempts have one client token. For 10 minutes after a success, DynamoDB returns the
        same success for this token and doesn't write again. So a retry after a lost response
        neither writes twice nor loses a race against its own first attempt.

        Raises:
            LostRace: A condition failed. Nothing was written.
            WriteNotApplied: Every attempt conflicted with others, or was rejected. Nothing was
                written.
            OjsError: The outcome is unknown.
        """
        actions: list[Any] = []
        for write in writes:
            arguments = write.arguments() | {"TableName": self.name}
            if write.condition:
                arguments["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
            name = "ConditionCheck" if isinstance(write, Check) else type(write).__name__
            actions.append({name: arguments})
        self._call(
            _TRANSACT,
            self.client.transact_write_items,
            TransactItems=actions,
            ClientRequestToken=self._new_token(),
        )

    def write_many(
        self, puts: Iterable[Mapping[str, Value]] = (), deletes: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Put and delete items without conditions, 25 per call, until all are done.

        Use it only for items that no other process knows yet, or that can be deleted in any state.
        """
        requests: list[Any] = [{"PutRequest": {"Item": pack(item)}} for item in puts]
        requests += [{"DeleteRequest": {"Key": pack({"pk": pk, "sk": sk})}} for pk, sk in deletes]
        self._write_all(requests)

    def _write_all(self, requests: list[Any]) -> None:
        fruitless = 0
        while requests:
            chunk, rest = requests[:MAX_BATCH_WRITE], requests[MAX_BATCH_WRITE:]
            answer = self._call(
                "BatchWriteItem",
                self.client.batch_write_item,
                RequestItems={self.name: chunk},
            )
            left = answer.get("UnprocessedItems", {}).get(self.name, [])
            fruitless = fruitless + 1 if len(left) == len(chunk) else 0
            if fruitless >= _BATCH_ROUNDS:
                raise BackendUnavailable("DynamoDB throttled the request.")
            if left:
                # DynamoDB throttled the remaining writes. An immediate retry would be throttled as
                # well.
                self._back_off(fruitless)
            requests = list(left) + rest


def _own_item(lost: LostRace, own: OwnMark | None) -> Item | None:
    """Return the stored item if an earlier attempt of the same write created it, otherwise None."""
    found = lost.item
    return found if own is not None and found and found.get(own[0]) == own[1] else None
