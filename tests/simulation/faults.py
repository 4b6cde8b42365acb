"""A DynamoDB client on which calls go wrong, as a seed has it.

    refused     throttled, or out of order: nothing happened
    conflict    another transaction is at the item: nothing happened
    lost        it took effect, and no answer came
    unheard     nothing happened, and no answer came
    partial     a batch was done in part
    late        no answer came, and it takes effect later, perhaps after what others wrote since
    frozen      the container was frozen, and its pooled connection is dead: it was not sent
    died before, died after   whoever calls is gone
    stale       an index, or a read that is not consistent, answers from some writes ago

Each call is a step: others may come in between the tries of `ojs.store.table.table.Table`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any

from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from ojs.store.table import keys
from tests.simulation.memory import KEPT_WRITES, Memory, cancelled
from tests.simulation.scheduler import Scheduler

_READS = frozenset({"get_item", "batch_get_item", "query", "scan"})
_BATCHES = {"batch_get_item": "UnprocessedKeys", "batch_write_item": "UnprocessedItems"}
_REFUSALS = (
    ("ProvisionedThroughputExceededException", 400),
    ("ThrottlingException", 400),
    ("InternalServerError", 500),
)
_TRIES = 3
# Calls of anybody after which a late write has taken effect at the latest, and ms.
_LATE_CALLS = 120
LATE_MS = 25_000
# What operators set is written under no condition: a late write of it takes back what others set
# since (docs/reliability.md).
_SET = (keys.queue(""), keys.pool(""))
_TEXTS = re.compile(r"'S': '([^']{1,60})'")
_DEATHS = ("died before", "died after")


class Died(BaseException):
    """The process is gone: nothing after this line runs."""


@dataclass
class Plan:
    """How much goes wrong. `rate` is the part of the calls that do, `stale` of the reads that may
    be stale and are.
    """

    chance: random.Random
    rate: float = 0.0
    stale: float = 0.0
    # The part of the batches of writes that come late, and of all writes that would never come.
    late: float = 0.0
    delayed: float = 0.0
    deaths: bool = True
    # The part of the refusals of which all tries are refused.
    stubborn: float = 0.0
    # The part of the writes of new jobs of which no try is answered.
    unanswered: float = 0.0
    # The kinds of faults, each as likely as the others, if not all there are.
    kinds: tuple[str, ...] = ()
    # An index partition of which each query is refused.
    hot: str = ""
    # Nothing goes wrong any more once it is off.
    on: bool = True
    done: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    # What happened, a line for each call, if somebody wants to know.
    timeline: list[str] | None = None
    # Decides what came later to the simulation, so that what the seeds found before stays.
    odd: random.Random = field(default_factory=random.Random)
    now_ms: Callable[[], int] = lambda: 0
    # Takes a write, and has it take effect as whoever makes it now.
    later: Callable[[Callable[[], Any]], Callable[[], None]] = lambda act: act
    # What takes effect at which call, or before which time.
    waiting: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)

    def is_late(self, operation: str, arguments: Mapping[str, Any], fault: str | None) -> bool:
        """Whether this write, to which this would happen, comes late instead."""
        if not self.on or operation in _READS:
            return False
        if operation == "batch_write_item" and self.late:
            return self.chance.random() < self.late
        if fault != "unheard" or not self.delayed or self.odd.random() >= self.delayed:
            return False
        return not any(name.startswith(_SET) for name in _TEXTS.findall(str(arguments)))

    def put_off(self, act: Callable[[], Any]) -> None:
        """Have a write take effect later (`arrive`)."""
        self.done["late"] += 1
        within_ms = LATE_MS if not self.late else 2**60
        at = self.calls + self.odd.randint(1, _LATE_CALLS)
        self.waiting.append((at, self.now_ms() + within_ms, self.later(act)))

    def arrive(self, until_ms: int = 0) -> None:
        """Have the late writes take effect whose call has come, or that come before `until_ms`;
        all, when the faults are over.
        """
        due = [
            one for one in self.waiting if not self.on or one[0] <= self.calls or one[1] < until_ms
        ]
        self.waiting = [one for one in self.waiting if one not in due]
        for _, _, act in due:
            act()

    def fault(self, operation: str, *, transaction: bool) -> str | None:
        """What goes wrong with the next call, if anything."""
        self.calls += 1
        if not self.on or not self.rate or self.chance.random() >= self.rate:
            return None
        kind = self.chance.choice(self.kinds or self._kinds(operation, transaction=transaction))
        self.done[kind] += 1
        return kind

    def _kinds(self, operation: str, *, transaction: bool) -> list[str]:
        kinds = ["refused", "unheard", "lost"]
        if self.deaths:
            kinds += _DEATHS
        if operation in _BATCHES:
            kinds += ["partial", "partial"]
        elif operation not in _READS and not operation.endswith("_object"):
            kinds += ["lost", "lost", "conflict", *(["conflict"] if transaction else [])]
        return kinds

    def writes_ago(self) -> int:
        """How old the answer of a read is that may be stale."""
        if not self.on or not self.stale or self.chance.random() >= self.stale:
            return 0
        self.done["stale"] += 1
        return self.chance.randint(1, KEPT_WRITES)


class Client:
    """What `ojs.store.table.table.Table` calls. One for each container and kind."""

    def __init__(self, memory: Memory, plan: Plan, scheduler: Scheduler) -> None:
        self._memory = memory
        self._plan = plan
        self._scheduler = scheduler
        # Pooled connections that died while the container was frozen.
        self.dead = 0
        # Tries of a call that will be refused, too, or get no answer.
        self._refused: Counter[str] = Counter()
        self._unanswered: Counter[str] = Counter()

    def get_item(self, **arguments: Any) -> Any:
        return self._call("get_item", arguments)

    def batch_get_item(self, **arguments: Any) -> Any:
        return self._call("batch_get_item", arguments)

    def query(self, **arguments: Any) -> Any:
        return self._call("query", arguments)

    def scan(self, **arguments: Any) -> Any:
        return self._call("scan", arguments)

    def put_item(self, **arguments: Any) -> Any:
        return self._call("put_item", arguments)

    def update_item(self, **arguments: Any) -> Any:
        return self._call("update_item", arguments)

    def delete_item(self, **arguments: Any) -> Any:
        return self._call("delete_item", arguments)

    def batch_write_item(self, **arguments: Any) -> Any:
        return self._call("batch_write_item", arguments)

    def transact_write_items(self, **arguments: Any) -> Any:
        return self._call("transact_write_items", arguments)

    def _call(self, operation: str, arguments: dict[str, Any]) -> Any:
        self._scheduler.step()
        self._plan.arrive()
        fault = self._fault(operation, arguments)
        self._note(operation, arguments, fault)
        if fault is None:
            return self._do(operation, arguments)
        if fault == "partial":
            return self._part(operation, arguments)
        if fault == "late":
            self._plan.put_off(partial(self._do_late, operation, arguments))
        elif fault in ("lost", "died after"):
            self._do(operation, arguments)
        self._fail(operation, arguments, fault)
        raise AssertionError("every fault raises")

    def _fault(self, operation: str, arguments: Mapping[str, Any]) -> str | None:
        """What goes wrong with this call."""
        if self.dead and self._plan.on:
            self.dead -= 1
            self._plan.done["frozen"] += 1
            return "frozen"
        plan = self._plan
        call = f"{operation} {arguments}" if self._refused or plan.hot else ""
        if plan.on and (self._refused[call] or (plan.hot and plan.hot in call)):
            self._refused -= Counter([call])
            plan.done["refused"] += 1
            return "refused"
        if plan.on and plan.unanswered and (kind := self._without_answer(operation, arguments)):
            return kind
        fault = plan.fault(operation, transaction=operation == "transact_write_items")
        if fault == "refused" and plan.odd.random() < plan.stubborn:
            self._refused[f"{operation} {arguments}"] = _TRIES
        return "late" if plan.is_late(operation, arguments, fault) else fault

    def _without_answer(self, operation: str, arguments: Mapping[str, Any]) -> str | None:
        """What goes wrong with the write of a new job that gets no answer in any try."""
        item = arguments.get("Item", {})
        if operation != "put_item" or item["sk"]["S"] != keys.RECORD or "state" not in item:
            return None
        call = str(arguments)
        if self._unanswered[call]:
            self._unanswered -= Counter([call])
            return "unheard"
        if self._plan.odd.random() >= self._plan.unanswered:
            return None
        self._unanswered[call] = _TRIES - 1
        kind = self._plan.odd.choice(("late", "late", "lost", "unheard"))
        self._plan.done[kind] += kind != "late"
        return kind

    def _fail(self, operation: str, arguments: Mapping[str, Any], fault: str) -> None:
        """Raise what goes wrong."""
        if fault in _DEATHS:
            raise Died
        if fault == "conflict":
            raise _conflict(operation, arguments)
        if fault == "refused":
            code, status = self._plan.chance.choice(_REFUSALS)
            raise _error(code, status, operation)
        if fault == "frozen":
            raise ConnectionClosedError(endpoint_url="dynamodb")
        raise ReadTimeoutError(endpoint_url="dynamodb")

    def _note(self, operation: str, arguments: Mapping[str, Any], fault: str | None) -> None:
        if self._plan.timeline is not None:
            who = self._scheduler.current
            told = f"{'-' if who is None else who} {operation} {_about(arguments)}"
            self._plan.timeline.append(told + (f"  <- {fault}" if fault else ""))

    def _do(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        act = getattr(self._memory, operation)
        if operation in _READS and _may_be_stale(operation, arguments):
            return act(arguments, self._plan.writes_ago())
        return act(arguments)

    def _do_late(self, operation: str, arguments: Mapping[str, Any]) -> None:
        """Let a late write take effect, unless it stores a job that was deleted (ADR 85)."""
        item = arguments.get("Item", {"pk": {"S": ""}, "sk": {"S": ""}})
        key = item["pk"]["S"], item["sk"]["S"]
        of_job = key[0].startswith(keys.job("")) and key[1] == keys.RECORD
        if not of_job or key not in self._memory.deleted:
            self._do(operation, arguments)

    def _part(self, operation: str, arguments: Mapping[str, Any]) -> Any:
        ((table, asked),) = arguments["RequestItems"].items()
        whole = asked["Keys"] if operation == "batch_get_item" else asked
        # What a set of names was turned into has no order that comes again.
        ordered = sorted(whole, key=str)
        count = self._plan.chance.randrange(len(ordered))
        part = self._plan.chance.sample(range(len(ordered)), count)
        doing = [one for at, one in enumerate(ordered) if at in part]
        left = [one for at, one in enumerate(ordered) if at not in part]

        def of(those: list[Any]) -> Any:
            return {**asked, "Keys": those} if operation == "batch_get_item" else those

        answer: dict[str, Any] = {"Responses": {}}
        if doing:
            answer = self._do(operation, {"RequestItems": {table: of(doing)}})
        return answer | {_BATCHES[operation]: {table: of(left)}}


class Bucket:
    """The client that `ojs.store.jobs.blobs.S3Blobs` calls, with the same faults.

    `wrote` is called with each object.
    """

    def __init__(
        self,
        objects: dict[str, bytes],
        plan: Plan,
        scheduler: Scheduler,
        wrote: Callable[[str], None],
    ) -> None:
        self._objects = objects
        self._plan = plan
        self._scheduler = scheduler
        self._wrote = wrote

    def put_object(self, *, Key: str, Body: bytes, **_: Any) -> Any:  # noqa: N803 - the SDK's names
        def act() -> Any:
            self._wrote(Key)
            self._objects[Key] = Body
            return {}

        return self._call("put_object", Key, act)

    def get_object(self, *, Key: str, **_: Any) -> Any:  # noqa: N803
        def act() -> Any:
            if Key not in self._objects:
                raise _error("NoSuchKey", 404, "get_object")
            return {"Body": BytesIO(self._objects[Key])}

        return self._call("get_object", Key, act)

    def delete_object(self, *, Key: str, **_: Any) -> Any:  # noqa: N803
        def act() -> Any:
            self._objects.pop(Key, None)
            return {}

        return self._call("delete_object", Key, act)

    def list_objects_v2(self, *, Prefix: str, StartAfter: str, MaxKeys: int, **_: Any) -> Any:  # noqa: N803
        def act() -> Any:
            names = sorted(name for name in self._objects if name.startswith(Prefix))
            after = [name for name in names if name > StartAfter]
            return {"Contents": [{"Key": name} for name in after[:MaxKeys]]}

        return self._call("list_objects_v2", Prefix, act)

    def get_paginator(self, _operation: str) -> Bucket:
        return self

    def paginate(self, *, Prefix: str, **_: Any) -> Iterator[Any]:  # noqa: N803
        """Lists objects, in pages of two."""
        names = sorted(name for name in self._objects if name.startswith(Prefix))
        for at in range(0, len(names), 2):
            yield {"Contents": [{"Key": name} for name in names[at : at + 2]]}

    def _call(self, operation: str, key: str, act: Callable[[], Any]) -> Any:
        for left in reversed(range(_TRIES)):
            self._scheduler.step()
            fault = self._plan.fault(operation, transaction=False)
            if self._plan.timeline is not None:
                who = self._scheduler.current
                told = f"{'-' if who is None else who} {operation} {key}"
                self._plan.timeline.append(told + (f"  <- {fault}" if fault else ""))
            if fault is None:
                return act()
            if fault in ("lost", "died after"):
                act()
            if fault in _DEATHS:
                raise Died
            if not left:
                if fault == "refused":
                    raise _error("SlowDown", 503, operation)
                raise ReadTimeoutError(endpoint_url="s3")
        raise AssertionError("the last try returns or raises")


def _about(arguments: Mapping[str, Any]) -> str:
    """What a call is about, in short."""
    wanted = (
        "Key", "Item", "KeyConditionExpression", "RequestItems", "TransactItems",
        "FilterExpression",
    )  # fmt: skip
    name = next(name for name in wanted if name in arguments)
    texts = _TEXTS.findall(str(arguments[name]))
    if name == "KeyConditionExpression":
        texts = _TEXTS.findall(str(arguments["ExpressionAttributeValues"]))
    more = arguments.get("UpdateExpression", "")
    if values := arguments.get("ExpressionAttributeValues"):
        more += f" {values}" if "UpdateExpression" in arguments else ""
    return " ".join(texts[:8]) + (f" {more[:300]}" if more else "")


def _may_be_stale(operation: str, arguments: Mapping[str, Any]) -> bool:
    if operation == "batch_get_item":
        ((_, asked),) = arguments["RequestItems"].items()
        return not asked.get("ConsistentRead", False)
    return not arguments.get("ConsistentRead", False)


def _error(code: str, status: int, operation: str) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, operation)


def _conflict(operation: str, arguments: Mapping[str, Any]) -> ClientError:
    if operation != "transact_write_items":
        return _error("TransactionConflictException", 400, operation)
    reasons: list[dict[str, Any]] = [{"Code": "None"} for _ in arguments["TransactItems"]]
    reasons[0] = {"Code": "TransactionConflict"}
    return cancelled(reasons)
