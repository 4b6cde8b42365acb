"""What the table does when DynamoDB refuses, stays silent or leaves part of a request undone."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from ojs.domain.errors import BackendError, BackendTimeout, BackendUnavailable
from ojs.store.table.errors import Contended, LostRace, UnknownOutcome, WriteNotApplied, classify
from ojs.store.table.races import retry_on_race
from ojs.store.table.table import Put, Table, Update


def _client_error(code: str, status: int = 400, **more: Any) -> ClientError:
    response: Any = {
        "Error": {"Code": code},
        "ResponseMetadata": {"HTTPStatusCode": status},
        **more,
    }
    return ClientError(response, "PutItem")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ReadTimeoutError(endpoint_url="x"), BackendTimeout),
        (ConnectTimeoutError(endpoint_url="x"), WriteNotApplied),
        (EndpointConnectionError(endpoint_url="x"), WriteNotApplied),
        (NoCredentialsError(), BackendError),
        (ParamValidationError(report="x"), BackendError),
        (_client_error("ProvisionedThroughputExceeded"), WriteNotApplied),
        (_client_error("ThrottlingException"), WriteNotApplied),
        (_client_error("TransactionConflictException"), Contended),
        (ConnectionClosedError(endpoint_url="x"), BackendUnavailable),
        (_client_error("TransactionInProgressException"), UnknownOutcome),
        (_client_error("NobodyKnowsThis", 500), BackendUnavailable),
        (_client_error("NobodyKnowsThis", 503), BackendUnavailable),
        (_client_error("ValidationException"), BackendError),
        (_client_error("AccessDeniedException"), BackendError),
        (_client_error("ConditionalCheckFailedException"), LostRace),
        (
            _client_error(
                "TransactionCanceledException",
                CancellationReasons=[{"Code": "None"}, {"Code": "TransactionConflict"}],
            ),
            Contended,
        ),
        (
            _client_error(
                "TransactionCanceledException",
                CancellationReasons=[
                    {"Code": "TransactionConflict"},
                    {"Code": "ConditionalCheckFailed"},
                ],
            ),
            LostRace,
        ),
        (
            _client_error(
                "TransactionCanceledException", CancellationReasons=[{"Code": "ValidationError"}]
            ),
            BackendError,
        ),
    ],
)
def test_each_error_of_the_sdk_has_its_meaning(
    error: ClientError | BotoCoreError, kind: type[Exception]
) -> None:
    assert type(classify(error)) is kind


class Scripted:
    """A client that gives the answers of a script, in turn."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    def __getattr__(self, _name: str) -> Any:
        def call(**arguments: Any) -> Any:
            self.asked.append(arguments)
            answer = self._answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def _table(client: Scripted) -> tuple[Table, list[float]]:
    pauses: list[float] = []
    return Table(client, "t", sleep=pauses.append, chance=lambda: 1.0), pauses  # type: ignore[arg-type]


CONFLICT = _client_error(
    "TransactionCanceledException", CancellationReasons=[{"Code": "TransactionConflict"}]
)


def test_a_transaction_that_met_another_is_repeated_after_a_pause() -> None:
    client = Scripted(CONFLICT, CONFLICT, {})
    table, pauses = _table(client)
    table.transact([Put({"pk": "a", "sk": "b"})])
    assert len(client.asked) == 3
    assert pauses == [0.025, 0.05]


def test_all_tries_of_a_transaction_have_one_client_token_and_the_next_has_another() -> None:
    client = Scripted(CONFLICT, CONFLICT, {}, {})
    table, _ = _table(client)
    for _ in range(2):
        table.transact([Put({"pk": "a", "sk": "b"})])
    first, second, third, other = (asked["ClientRequestToken"] for asked in client.asked)
    assert first == second == third != other
    assert all(1 <= len(token) <= 36 for token in (first, other))


def test_a_transaction_that_meets_others_again_and_again_is_given_up() -> None:
    table, pauses = _table(Scripted(*[CONFLICT] * 4))
    with pytest.raises(BackendUnavailable):
        table.transact([Put({"pk": "a", "sk": "b"})])
    assert len(pauses) == 3


THROTTLED = _client_error("ThrottlingException")
SILENT = ReadTimeoutError(endpoint_url="x")
FAILED = _client_error("ConditionalCheckFailedException", Item={"op": {"S": "other"}})
UPDATE = Update("a", "b", set={"op": "mine"})


@pytest.mark.parametrize(
    ("script", "kind", "asked"),
    [
        # Refused each time: certainly nothing was done.
        ([THROTTLED] * 4, WriteNotApplied, 4),
        ([_client_error("TransactionConflictException")] * 4, Contended, 4),
        # After a try without an answer nobody can say that.
        ([SILENT, THROTTLED, THROTTLED, THROTTLED], BackendUnavailable, 4),
        ([THROTTLED, SILENT, SILENT], BackendTimeout, 3),
        ([SILENT] * 3, BackendTimeout, 3),
        ([_client_error("InternalServerError", 500)] * 3, BackendUnavailable, 3),
        ([_client_error("ValidationException")], BackendError, 1),
        ([THROTTLED, {}], None, 2),
        ([SILENT, {}], None, 2),
    ],
)
def test_a_call_is_repeated_and_what_became_of_it_is_told(
    script: list[Any], kind: type[Exception] | None, asked: int
) -> None:
    client = Scripted(*script)
    table, pauses = _table(client)
    if kind is None:
        table.update(UPDATE)
    else:
        with pytest.raises(kind) as caught:
            table.update(UPDATE)
        assert type(caught.value) is kind
    assert len(client.asked) == len(pauses) + 1 == asked
    assert all(arguments == client.asked[0] for arguments in client.asked)


@pytest.mark.parametrize(
    ("script", "kind", "asked"),
    [
        # What was refused was not counted: it is made again.
        ([THROTTLED, {}], None, 2),
        ([EndpointConnectionError(endpoint_url="x"), {}], None, 2),
        ([THROTTLED] * 4, WriteNotApplied, 4),
        ([SILENT], BackendTimeout, 1),
        ([THROTTLED, SILENT], BackendTimeout, 2),
        ([_client_error("InternalServerError", 500)], BackendUnavailable, 1),
    ],
)
def test_what_may_have_been_counted_is_not_counted_again(
    script: list[Any], kind: type[Exception] | None, asked: int
) -> None:
    client = Scripted(*script)
    table = _table(client)[0].without_repeats()
    if kind is None:
        table.update(UPDATE)
    else:
        with pytest.raises(kind) as caught:
            table.update(UPDATE)
        assert type(caught.value) is kind
    assert len(client.asked) == asked


@pytest.mark.parametrize(
    ("script", "repeated"),
    [([FAILED], False), ([THROTTLED, FAILED], False), ([SILENT, FAILED], True)],
)
def test_a_lost_race_is_in_doubt_only_after_a_try_without_an_answer(
    script: list[Any], repeated: bool
) -> None:
    table, _ = _table(Scripted(*script))
    with pytest.raises(LostRace) as caught:
        table.update(UPDATE)
    assert caught.value.repeated is repeated


@pytest.mark.parametrize("found", [{"op": {"S": "mine"}}, {"op": {"S": "other"}}, {}, None])
def test_a_failed_condition_is_no_lost_race_where_the_write_itself_was_there_before(
    found: Any,
) -> None:
    failed = _client_error("ConditionalCheckFailedException", Item=found)
    table, _ = _table(Scripted(*[failed] * 4))
    put, update = Put({"pk": "a", "sk": "b", "op": "mine"}), Update("a", "b", set={"op": "mine"})
    if found and found["op"]["S"] == "mine":
        assert table.update(update, own=("op", "mine")) == {"op": "mine"}
        table.put(put, own=("op", "mine"))
    else:
        with pytest.raises(LostRace):
            table.update(update, own=("op", "mine"))
        with pytest.raises(LostRace):
            table.put(put, own=("op", "mine"))
    with pytest.raises(LostRace):
        table.update(update)
    with pytest.raises(LostRace):
        table.put(put)


@pytest.mark.parametrize("lost", range(4))
def test_what_lost_a_race_is_tried_again_up_to_a_number_of_tries(lost: int) -> None:
    attempts = iter(range(5))

    def attempt() -> int:
        number = next(attempts)
        if number < lost:
            raise LostRace([None])
        return number

    if lost < 3:
        assert retry_on_race(attempt, tries=3, busy="busy") == lost
    else:
        with pytest.raises(BackendUnavailable, match="busy"):
            retry_on_race(attempt, tries=3, busy="busy")
        assert next(attempts) == 3


def _unwritten(count: int) -> Any:
    return {"UnprocessedItems": {"t": [{"PutRequest": {"Item": {}}}] * count}}


def test_what_was_left_unwritten_is_written_after_a_pause() -> None:
    client = Scripted(_unwritten(2), _unwritten(1), {})
    table, pauses = _table(client)
    table.write_many(puts=[{"pk": "a", "sk": str(n)} for n in range(3)])
    assert [len(asked["RequestItems"]["t"]) for asked in client.asked] == [3, 2, 1]
    assert len(pauses) == 2


def test_writing_without_progress_is_given_up_after_ever_longer_pauses() -> None:
    table, pauses = _table(Scripted(*[_unwritten(1)] * 8))
    with pytest.raises(BackendUnavailable):
        table.write_many(puts=[{"pk": "a", "sk": "b"}])
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.4


def test_reading_without_progress_is_given_up_after_ever_longer_pauses() -> None:
    nothing = {"Responses": {}, "UnprocessedKeys": {"t": {"Keys": [{"pk": {"S": "a"}}]}}}
    table, pauses = _table(Scripted(*[nothing] * 8))
    with pytest.raises(BackendUnavailable):
        table.batch_get([("a", "b")])
    assert pauses == sorted(pauses)
    assert len(pauses) == 7


def test_numbers_are_added_under_names_of_any_characters() -> None:
    update = Update("p", "s", set={"at": 1}, add={"enqueued|email.send": 2, "p-5": -1})
    assert update.arguments() == {
        "Key": {"pk": {"S": "p"}, "sk": {"S": "s"}},
        "UpdateExpression": "SET #at = :set_at ADD #a_0 :a_0, #a_1 :a_1",
        "ExpressionAttributeNames": {
            "#at": "at",
            "#a_0": "enqueued|email.send",
            "#a_1": "p-5",
        },
        "ExpressionAttributeValues": {
            ":set_at": {"N": "1"},
            ":a_0": {"N": "2"},
            ":a_1": {"N": "-1"},
        },
    }


def test_a_transaction_that_is_under_way_is_awaited_for_five_seconds() -> None:
    """DynamoDB answers a repetition with the result of the first try, once that has finished."""
    under_way = _client_error("TransactionInProgressException")
    client = Scripted(*[SILENT, *[under_way] * 7, {}])
    table, pauses = _table(client)
    table.transact([Put({"pk": "a", "sk": "b"})])
    assert sum(pauses) >= 5
    tokens = {asked["ClientRequestToken"] for asked in client.asked}
    assert len(tokens) == 1
    table, pauses = _table(Scripted(*[under_way] * 9))
    with pytest.raises(BackendUnavailable):
        table.transact([Put({"pk": "a", "sk": "b"})])
    assert sum(pauses) <= 10
