"""The simulation's own DynamoDB answers as dynoxide does: the same runs on both, call by call."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.simulation.memory import Memory, _key
from tests.simulation.scenarios import SCENARIOS, play
from tests.simulation.scheduler import by_chance
from tests.simulation.world import World
from tests.spread import spread

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine

SEEDS = 2


class Both(Memory):
    """Asks an engine, too, and compares the answers."""

    def __init__(self, client: Any, table: str) -> None:
        super().__init__()
        self._client = client
        self._table = table
        self.compared = 0

    def _compare(self, operation: str, arguments: Mapping[str, Any], *more: int) -> Any:
        given = {**arguments}
        if "TableName" in given:
            given["TableName"] = self._table
        elif "RequestItems" in given:
            ((_, asked),) = given["RequestItems"].items()
            given["RequestItems"] = {self._table: asked}
        else:
            given["TransactItems"] = [
                {kind: {**what, "TableName": self._table}}
                for action in given["TransactItems"]
                for kind, what in action.items()
            ]
        theirs = _told(lambda: getattr(self._client, operation)(**given))
        mine: list[Any] = []

        def ours() -> Any:
            mine.append(getattr(Memory, operation)(self, arguments, *more))
            return mine[0]

        error: list[ClientError] = []
        assert _told(ours, error) == theirs, (operation, arguments)
        self.compared += 1
        if error:
            raise error[0]
        return mine[0]

    def get_item(self, arguments: Mapping[str, Any], writes_ago: int = 0) -> Any:
        return self._compare("get_item", arguments, writes_ago)

    def batch_get_item(self, arguments: Mapping[str, Any], writes_ago: int = 0) -> Any:
        return self._compare("batch_get_item", arguments, writes_ago)

    def query(self, arguments: Mapping[str, Any], writes_ago: int = 0) -> Any:
        return self._compare("query", arguments, writes_ago)

    def put_item(self, arguments: Mapping[str, Any]) -> Any:
        return self._compare("put_item", arguments)

    def update_item(self, arguments: Mapping[str, Any]) -> Any:
        return self._compare("update_item", arguments)

    def delete_item(self, arguments: Mapping[str, Any]) -> Any:
        return self._compare("delete_item", arguments)

    def batch_write_item(self, arguments: Mapping[str, Any]) -> Any:
        return self._compare("batch_write_item", arguments)

    def transact_write_items(self, arguments: Mapping[str, Any]) -> Any:
        return self._compare("transact_write_items", arguments)


def _told(act: Any, failed: list[ClientError] | None = None) -> Any:
    """What an answer, or an error, tells; the order of a batch's items tells nothing."""
    try:
        answer = act()
    except ClientError as error:
        if failed is not None:
            failed.append(error)
        response: Any = error.response
        reasons = [
            (reason.get("Code"), reason.get("Item") or None)
            for reason in response.get("CancellationReasons", [])
        ]
        return response["Error"]["Code"], response.get("Item"), reasons
    batch = [sorted(items, key=_key) for items in answer.get("Responses", {}).values()]
    return (
        answer.get("Item"),
        answer.get("Items"),
        answer.get("LastEvaluatedKey"),
        answer.get("Attributes"),
        batch,
    )


# The index of `rings` answers late, which no engine does.
COMPARED = [name for name in SCENARIOS if name != "rings"]


@pytest.mark.parametrize(("scenario", "seed"), spread(product(COMPARED, range(SEEDS)), 5, rest=3))
def test_it_answers_as_dynoxide_does(
    dynoxide: Engine, dynamodb: DynamoDBClient, fresh_table: str, scenario: str, seed: int
) -> None:
    assert dynoxide.running
    both = Both(dynamodb, fresh_table)
    world = World(seed, rate=0.05, memory=both)
    play(world, SCENARIOS[scenario], by_chance(world.chance, world.stay))
    assert both.compared > 50
