"""Clients of DynamoDB that lose answers, meddle or watch, and a projection run by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from ojs.store.table import keys
from tests.store.streams import Projected, Record, Stream

if TYPE_CHECKING:
    from tests.store.conftest import World


class Meddled:
    """A client on which one call takes effect, something else happens, and the SDK asks again."""

    def __init__(self, client: Any, operation: str, meanwhile: Callable[[], Any]) -> None:
        self._client, self._operation, self._meanwhile = client, operation, meanwhile
        self.happened = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            record = arguments.get("Item", {}).get("sk", {}).get("S") == keys.RECORD
            if self.happened or name != self._operation or (name == "put_item" and not record):
                return method(**arguments)
            method(**arguments)
            self.happened = True
            self._meanwhile()
            # As another transaction: the SDK's own token would hide the second one.
            return method(**{k: v for k, v in arguments.items() if k != "ClientRequestToken"})

        return call


class Broken:
    """A client on which calls of one operation fail, from the n-th on, for as long as it says, or
    up to the `last`.
    """

    def __init__(self, client: Any, operation: str, first: int, last: int | None = None) -> None:
        self._client, self._operation, self._first = client, operation, first
        self._last = last
        self.calls = 0
        self.broken = True

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            if name == self._operation:
                self.calls += 1
                over = self._last is not None and self.calls > self._last
                if self.broken and self.calls >= self._first and not over:
                    raise ClientError({"Error": {"Code": "ThrottlingException"}}, name)
            return method(**arguments)

        return call


class Throttled:
    """A client on which all calls are throttled whose arguments have any of some texts in them, but
    for those of some operations.
    """

    def __init__(self, client: Any, *texts: str, spared: Sequence[str] = ()) -> None:
        self._client, self._texts, self._spared = client, texts, spared
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            told = repr(arguments)
            if name not in self._spared and any(text in told for text in self._texts):
                self.refused += 1
                raise ClientError({"Error": {"Code": "ThrottlingException"}}, name)
            return method(**arguments)

        return call


@dataclass
class Projecting:
    """A projection that is run when it is told to."""

    world: World

    def __post_init__(self) -> None:
        self.stream = Stream(self.world.client, self.world.table)
        self.projected = Projected(self.world.client, self.world.table, self.world.clock)

    def catch_up(self) -> list[Record]:
        records = self.stream.take()
        assert self.projected.run(records) == []
        return records


class Watching:
    """A client that remembers the actions of each transaction."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.transactions: list[list[dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def transact_write_items(self, **arguments: Any) -> Any:
        self.transactions.append(
            [one for action in arguments["TransactItems"] for one in action.values()]
        )
        return self._client.transact_write_items(**arguments)
