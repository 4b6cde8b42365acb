"""Faults at every single call of a path, and what is left in the table after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from ojs.domain.errors import BackendError
from ojs.domain.job.job import Job
from ojs.runtime import Runtime
from tests.spread import examples

if TYPE_CHECKING:
    from tests.store.conftest import World

# As many tries as `ojs.store.table.table.Table` makes of a call without an answer, or refused.
_TRIES, _REFUSED_TRIES = 3, 4


class Died(BaseException):
    """The process is gone: nothing after this line runs, whatever the code under test catches."""


class Killed(BaseException):
    """The process is gone, where the code under test catches every `Exception`."""


class Faulty:
    """A DynamoDB client on which the call of one number goes wrong in one way.

    All tries of that call go wrong, but for "answer lost" and "contended": their second succeeds.
    """

    def __init__(
        self, client: Any, fail_at: int, fault: str, death: type[BaseException] = Died
    ) -> None:
        self._client, self._fail_at, self._fault = client, fail_at, fault
        self._death = death
        self._tries: list[tuple[str, Any]] = []
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            if (name, arguments) in self._tries:
                self._tries.pop()
                raise self._no_answer(name)
            self.calls += 1
            if self.calls != self._fail_at:
                return method(**arguments)
            if self._fault in ("died after", "answer lost", "timed out"):
                method(**arguments)
            if self._fault.startswith("died"):
                raise self._death
            if self._fault not in ("answer lost", "contended"):
                unanswered = self._fault in ("timed out", "request lost")
                tries = _TRIES if unanswered else _REFUSED_TRIES
                self._tries = [(name, arguments)] * (tries - 1)
            raise self._no_answer(name)

        return call

    def _no_answer(self, name: str) -> Exception:
        match self._fault:
            case "answer lost" | "timed out" | "request lost":
                return ReadTimeoutError(endpoint_url="dynamodb")
            case "contended":
                return cancelled("TransactionConflict", name)
            case _:
                return ClientError({"Error": {"Code": self._fault}}, name)


def cancelled(reason: str, operation: str) -> ClientError:
    """DynamoDB's answer to a transaction of one action that fails for this reason."""
    answer: Any = {
        "Error": {"Code": "TransactionCanceledException"},
        "CancellationReasons": [{"Code": reason}],
    }
    return ClientError(answer, operation)


FAULTS = ("died before", "died after", "answer lost", "timed out", "ThrottlingException")


def faults(world: World, kinds: Sequence[str] = FAULTS) -> Iterator[tuple[Runtime, Faulty]]:
    """A fresh container for each number of call and each fault, until no call is left to fail.

    Where not all are tried, of each fault every third number: each number comes with one or two.
    """
    step = 3 if examples(2) < 2 else 1
    for fault in kinds:
        for number in range(1 + FAULTS.index(fault) % step, 100, step):
            client = Faulty(world.client, number, fault)
            yield world.another(client), client
            if client.calls < number:
                break
        else:
            pytest.fail("a path with a hundred calls")


def attempt(act: Callable[[], Any]) -> Any:
    """Run it; the fault ends it without an answer, or with one that says to try again."""
    try:
        return act()
    except (Died, BackendError):
        return None


def drain(world: World, queue: str = "default") -> list[Job]:
    """All that workers get once leases have run out and the sweeps have run."""
    for _ in range(2):
        world.clock.advance(3_600_000)
        world.sweep()
    run, got = world.another(), []
    while jobs := run.fetch.fetch([queue], 100, "drainer"):
        got += jobs
        for job in jobs:
            run.finish.ack(job.id, worker_id="drainer")
    return got


def orphans(world: World) -> list[str]:
    """Payload items that no record names, staged batches, entries of jobs that are not there."""
    items = world.items()
    records = {i["pk"]["S"]: i for i in items if i["sk"]["S"] == "@"}
    lost = []
    for item in items:
        pk, sk = item["pk"]["S"], item["sk"]["S"]
        if pk.startswith("B|") or (pk.startswith("J|") and pk not in records):
            lost.append(f"{pk} {sk}")
    return lost
