"""Inspects a data folder before an engine starts.

Each engine has its own data format: dynoxide a SQLite database, MiniStack a JSON file. If another
engine started in the same folder, it would start empty: existing jobs would seem lost, and new jobs
would be accepted. So the data determine the engine.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import stat
from pathlib import Path

from local.folder import PAYLOADS

DYNOXIDE = "dynoxide"
MINISTACK = "ministack"
# Files of each engine in the data folder.
DATABASE = "dynoxide.db"
STATE = "ministack"
FILES = {DYNOXIDE: DATABASE, MINISTACK: f"{STATE}/dynamodb.json"}

# SQLite's files next to the database.
_LOG, _INDEX = f"{DATABASE}-wal", f"{DATABASE}-shm"
# MiniStack's state without a table is smaller. A state with a table, or a damaged one, can be too.
_BLANK_BYTES = 16_384
# A program that uses the database releases the lock within milliseconds, or keeps it.
_WAIT_S = 2.0


class EngineError(Exception):
    """No engine can start. The message contains the reason and the next step."""


def engine_of(folder: Path) -> str | None:
    """Return the engine whose data are in the folder, or None without data.

    Raises EngineError if no engine may start: data of both engines exist, the database can't be
    read, or payloads of jobs exist without the jobs.
    """
    try:
        found = [name for name, is_there in _DATA.items() if is_there(folder)]
        if not found and _has_payloads(folder):
            raise EngineError(
                f"--data: {folder / PAYLOADS} has payloads of jobs, but the jobs are missing: "
                f"neither {DATABASE} nor {FILES[MINISTACK]} has data. Restore one of them from a "
                f"backup. {anew(folder)}"
            )
    except OSError as error:
        raise EngineError(f"--data: can't read {error.filename}: {error.strerror}") from error
    if len(found) > 1:
        there, other = folder / DATABASE, folder / STATE
        raise EngineError(
            f"--data: {folder} has data of two engines: {there} of dynoxide, {other} of "
            f"MiniStack. Move one of them, for example: {_move(other)}"
        )
    return found[0] if found else None


def anew(folder: Path) -> str:
    """Return the next step without these data, for the end of a message."""
    return (
        f"To start without data, move the folder ({_move(folder)}) or use another one "
        "(make run DATA=FOLDER)"
    )


def remove_leftovers(folder: Path) -> None:
    """Delete the files of a failed first start of dynoxide. Requires a folder without data."""
    for name in (DATABASE, _LOG, _INDEX):
        with contextlib.suppress(OSError):  # the next start reports the error
            (folder / name).unlink(missing_ok=True)


def _move(path: Path) -> str:
    return f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.old')}"


def _has_database(folder: Path) -> bool:
    if not _is_filled(folder / DATABASE):
        if _is_filled(folder / _LOG):
            # SQLite would discard the log with the most recent writes.
            raise EngineError(
                f"--data: {folder / _LOG} has data, but its database {folder / DATABASE} is "
                f"missing or empty. Restore both from a backup. {anew(folder)}"
            )
        return False
    return not _is_blank(folder / DATABASE)


def _is_filled(path: Path) -> bool:
    """Whether the file has content. A broken link counts: its target can be on a missing disk."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return path.is_symlink()
    return not stat.S_ISREG(found.st_mode) or found.st_size > 0


def _is_blank(database: Path) -> bool:
    """Whether dynoxide created its file, but no table: its first start was interrupted.

    Raises EngineError if the file can't be read.
    """
    try:
        import sqlite3
    except ImportError:
        return False  # this Python can't run dynoxide either, which is reported when it starts
    try:
        address = f"{database.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, _WAIT_S, uri=True)) as opened:
            return opened.execute("SELECT 1 FROM _tables LIMIT 1").fetchone() is None
    except sqlite3.Error as error:
        why = str(error)
        if why.startswith("no such table"):
            why = f"it is not a dynoxide database, or was copied without {database.name}-wal"
        raise EngineError(
            f"--data: can't read {database}: {why}. If another program uses it, close that "
            f"program. Otherwise restore the file from a backup. {anew(database.parent)}"
        ) from error


def _has_state(folder: Path) -> bool:
    # MiniStack replaces the whole file, so an empty file is damaged. Its other files (state of
    # unused services) are not data.
    path = folder / FILES[MINISTACK]
    try:
        size = path.stat().st_size
    except NotADirectoryError:
        return False
    except FileNotFoundError:
        return path.is_symlink()
    try:
        if size > _BLANK_BYTES:
            return True
        # A file without a table is from an interrupted first start. An unreadable file counts as
        # data: MiniStack would find nothing in it, and the server stops it.
        return bool(json.loads(path.read_bytes())["payload"]["tables"]["data"] != {})
    except (ValueError, KeyError, TypeError):
        return True


def _has_payloads(folder: Path) -> bool:
    # Names that start with "~" are partial files.
    found = (folder / PAYLOADS).rglob("*")
    return any(path.is_file() and not path.name.startswith("~") for path in found)


_DATA = {DYNOXIDE: _has_database, MINISTACK: _has_state}
