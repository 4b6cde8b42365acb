"""dynoxide's records of the table's stream: adds an index, and deletes processed records.

DynamoDB deletes a stream record after a day. dynoxide keeps all records, and for each new record it
scans those of the table for the last number. Measured: a write takes 1.5 ms without records, and 19
ms with 50,000. The engine has no setting for either. But its database is a SQLite file, which can
be opened at the same time (WAL mode). An index makes the last number available directly, and
processed records are deleted. At the start of a server the remaining records are those to process,
so no stream position is stored.

Verified with dynoxide 1.2.1. If the file of another version differs, `index` fails, and the server
uses another engine (`local.engines`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from local.engine_data import EngineError

# A writing engine releases its lock within milliseconds.
_WAIT_S = 2.0
# Records per deletion. The engine waits for it: 1,000 take about 60 ms while it is busy.
_CHUNK = 2_000

_INDEX = """
    CREATE INDEX IF NOT EXISTS ojs_stream_order
    ON _stream_records (table_name, CAST(sequence_number AS INTEGER))
"""
# By `id`, which increases with the sequence number: SQLite finds the first ones without sorting.
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
    """The stream records in a dynoxide database that an engine can have open."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def index(self) -> None:
        """Add an index for the last number of a table."""
        with self._open() as database:
            # `local.engine_data` reads this table, so detect a version without it here.
            database.execute("SELECT 1 FROM _tables LIMIT 1")
            database.execute(_INDEX)

    def trim(self, table: str, before: int) -> int:
        """Delete some of the oldest records before this sequence number. Returns their number.

        The record with that number stays: dynoxide increments the last one.
        """
        with self._open() as database:
            named = {"table": table, "before": before, "most": _CHUNK}
            return database.execute(_TRIM, named).rowcount

    def forget(self, table: str) -> None:
        """Delete all records of a deleted table. A new table with that name would have them."""
        with self._open() as database:
            database.execute("DELETE FROM _stream_records WHERE table_name = ?", (table,))

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction. Raises EngineError for every error of SQLite."""
        try:
            # mode=rw: don't create a missing file.
            address = f"{self._database.absolute().as_uri()}?mode=rw"
            opened = sqlite3.connect(address, _WAIT_S, uri=True)
            with contextlib.closing(opened) as database, database:
                yield database
        except sqlite3.Error as error:
            raise EngineError(f"can't use dynoxide's stream records: {error}") from error
