"""What dynoxide keeps of the table's stream: found quickly, and removed once it is projected.

DynamoDB forgets a stream record after a day; dynoxide never does, and for each new record it looks
through all of the table's for the last number. Measured: a write takes 1.5 ms with none there, and
19 ms with 50 000. The engine has no setting for either, but its database is a SQLite file, which
may be opened beside it (WAL mode): an index gives it the last number at once, and records that are
projected are deleted. What is still there when a server starts is what has to be projected yet, so
that no position in the stream has to be remembered.

Verified with dynoxide 1.2.1. If another version's file looks different, `index` fails, and the
server takes another engine (`local.engines`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from local.engine_data import EngineError

# An engine that is writing lets go within milliseconds.
_WAIT_S = 2.0
# Deleted in one go. The engine waits for it: 1 000 take some 60 ms while it is busy.
_CHUNK = 2_000

_INDEX = """
    CREATE INDEX IF NOT EXISTS ojs_stream_order
    ON _stream_records (table_name, CAST(sequence_number AS INTEGER))
"""
# By `id`, which grows with the sequence number: SQLite finds the first ones without sorting.
_TRIM = """
    DELETE FROM _stream_records WHERE id IN (
        SELECT id FROM _stream_records
        WHERE table_name = :table AND id < (
            SELECT id FROM _stream_records
            WHERE table_name = :table AND CAST(sequence_number AS INTEGER) = :before
        )
        ORDER BY id LIMIT :most
    )
"""


class StreamRecords:
    """The stream records in a dynoxide database that an engine may have open."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def index(self) -> None:
        """Have the last number of a table found without looking through all its records."""
        with self._open() as database:
            # `local.engine_data` will look there, so a version without it is found out at once.
            database.execute("SELECT 1 FROM _tables LIMIT 1")
            database.execute(_INDEX)

    def trim(self, table: str, before: int) -> int:
        """Remove the oldest records before this sequence number, some at a time: how many.

        The record of that number stays: dynoxide counts on from the last one there is.
        """
        with self._open() as database:
            named = {"table": table, "before": before, "most": _CHUNK}
            return database.execute(_TRIM, named).rowcount

    def forget(self, table: str) -> None:
        """Remove all records of a table that is no more; a new one of that name would have them."""
        with self._open() as database:
            database.execute("DELETE FROM _stream_records WHERE table_name = ?", (table,))

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction. Raises EngineError for every error of SQLite."""
        try:
            # mode=rw: never make a file that is not there.
            address = f"{self._database.absolute().as_uri()}?mode=rw"
            opened = sqlite3.connect(address, _WAIT_S, uri=True)
            with contextlib.closing(opened) as database, database:
                yield database
        except sqlite3.Error as error:
            raise EngineError(f"dynoxide's stream records cannot be used: {error}") from error
