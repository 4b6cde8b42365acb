"""Dynoxide's stream records, in the file of an engine that runs."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from local import engines
from local.dynamodb import connect, connect_to_streams
from local.engine_data import EngineError
from local.stream import TableStream
from local.stream_records import StreamRecords
from ojs.store.table.schema import create_table_arguments

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine

# What dynoxide asks for each record that it writes (1.2.1).
LAST_NUMBER = (
    "SELECT COALESCE(MAX(CAST(sequence_number AS INTEGER)), 0) + 1 "
    "FROM _stream_records WHERE table_name = ?1"
)
NEXT_ONES = (
    "SELECT event_name FROM _stream_records WHERE table_name = ?1 AND shard_id = ?2 "
    "AND CAST(sequence_number AS INTEGER) > ?3 ORDER BY CAST(sequence_number AS INTEGER) LIMIT ?4"
)


@pytest.fixture(scope="module", name="dynoxide")
def on_disk(dynoxide: Engine) -> Iterator[Engine]:
    """An engine with a file; the session's keeps its tables in memory."""
    started = engines.start(dynoxide.name)
    yield started
    started.stop()


@pytest.fixture(scope="module", name="dynamodb")
def client(dynoxide: Engine) -> DynamoDBClient:
    """A client of that engine."""
    return connect(dynoxide.url)


@pytest.fixture
def database(dynoxide: Engine) -> Path:
    """The file of the engine."""
    assert dynoxide.temporary is not None
    return dynoxide.temporary / "dynoxide.db"


@pytest.fixture
def records(dynoxide: Engine) -> StreamRecords:
    assert dynoxide.records is not None
    return dynoxide.records


@pytest.fixture
def table(dynamodb: DynamoDBClient, dynoxide: Engine) -> Iterator[str]:
    """A table with a stream."""
    name = f"stream-{uuid.uuid4().hex[:12]}"
    dynamodb.create_table(**create_table_arguments(name, stream=True))
    yield name
    with contextlib.suppress(dynamodb.exceptions.ResourceNotFoundException):
        dynamodb.delete_table(TableName=name)


def write(dynamodb: DynamoDBClient, table: str, count: int) -> None:
    for number in range(count):
        dynamodb.put_item(
            TableName=table, Item={"pk": {"S": f"J|{number}"}, "sk": {"S": uuid.uuid4().hex}}
        )


def numbers(engine: Engine, table: str) -> list[int]:
    """Of all records there are to read."""
    stream = TableStream(connect_to_streams(engine.url), table)
    found = []
    while records := stream.read():
        found += [int(record["dynamodb"]["SequenceNumber"]) for record in records]
    return found


def plan(database: Path, query: str, *values: Any) -> str:
    """How SQLite goes about a query."""
    with contextlib.closing(sqlite3.connect(database)) as opened:
        return " ".join(str(row) for row in opened.execute(f"EXPLAIN QUERY PLAN {query}", values))


def test_the_engines_own_queries_use_the_index(database: Path) -> None:
    # Whatever the history: the last number is looked up, the next records are read in order.
    assert "USING INDEX ojs_stream_order" in plan(database, LAST_NUMBER, "t")
    followed = plan(database, NEXT_ONES, "t", "s", 5, 10)
    assert "USING INDEX ojs_stream_order" in followed
    assert "TEMP B-TREE" not in followed


def test_the_index_is_there_once(records: StreamRecords, database: Path) -> None:
    records.index()
    with contextlib.closing(sqlite3.connect(database)) as opened:
        found = opened.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'ojs_stream_order'")
        assert found.fetchone() == (1,)


def test_old_records_go_and_new_ones_are_numbered_on(
    dynamodb: DynamoDBClient, dynoxide: Engine, records: StreamRecords, table: str
) -> None:
    write(dynamodb, table, 10)
    assert numbers(dynoxide, table) == list(range(1, 11))
    assert records.trim(table, 7) == 6
    assert numbers(dynoxide, table) == [7, 8, 9, 10]
    assert records.trim(table, 10) == 3
    # The last one stays, so that the next one is not the first again.
    assert records.trim(table, 11) == 0
    write(dynamodb, table, 2)
    assert numbers(dynoxide, table) == [10, 11, 12]


def test_a_reader_in_the_middle_goes_on_after_a_trim(
    dynamodb: DynamoDBClient, dynoxide: Engine, records: StreamRecords, table: str
) -> None:
    stream = TableStream(connect_to_streams(dynoxide.url), table)
    write(dynamodb, table, 3)
    assert len(stream.read()) == 3
    write(dynamodb, table, 3)
    records.trim(table, 3)
    assert [record["dynamodb"]["SequenceNumber"] for record in stream.read()] == ["4", "5", "6"]
    assert stream.read() == []


def test_a_trim_leaves_other_tables_alone(
    dynamodb: DynamoDBClient, dynoxide: Engine, records: StreamRecords, table: str
) -> None:
    other = f"{table}-other"
    dynamodb.create_table(**create_table_arguments(other, stream=True))
    write(dynamodb, other, 3)
    write(dynamodb, table, 3)
    records.trim(table, 3)
    records.forget(table)
    assert numbers(dynoxide, other) == [1, 2, 3]
    dynamodb.delete_table(TableName=other)


def test_a_table_made_anew_has_none_of_the_old_ones_records(
    dynamodb: DynamoDBClient, dynoxide: Engine, records: StreamRecords, table: str
) -> None:
    write(dynamodb, table, 3)
    dynamodb.delete_table(TableName=table)
    records.forget(table)
    dynamodb.create_table(**create_table_arguments(table, stream=True))
    assert numbers(dynoxide, table) == []
    write(dynamodb, table, 1)
    assert numbers(dynoxide, table) == [1]


def test_what_goes_wrong_is_an_engine_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="unable to open"):
        StreamRecords(tmp_path / "missing.db").index()
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "other.db").write_bytes(b"")
    with pytest.raises(EngineError, match="no such table"):
        StreamRecords(tmp_path / "other.db").trim("ojs", 1)


@pytest.mark.usefixtures("dynoxide")
def test_a_dynoxide_of_another_make_gives_way_to_ministack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unknown(_records: StreamRecords) -> None:
        raise EngineError("no such table: _stream_records")

    monkeypatch.setattr(StreamRecords, "index", unknown)
    with pytest.raises(EngineError, match="_stream_records"):
        engines.start("dynoxide", tmp_path)
    engine = engines.start("auto", tmp_path)
    try:
        assert engine.name == "ministack"
        assert engine.reason == "no such table: _stream_records"
    finally:
        engine.stop()


@pytest.mark.usefixtures("dynoxide")
def test_an_engine_without_a_folder_leaves_nothing_behind() -> None:
    engine = engines.start("dynoxide")
    folder = engine.temporary
    assert folder is not None
    assert (folder / "dynoxide.db").exists()
    engine.stop()
    assert not folder.exists()
