"""What a data folder holds before an engine is started on it.

Each engine keeps its data in a form of its own: dynoxide in a SQLite database, MiniStack in a JSON
file. An engine that is started beside the data of the other begins empty: jobs that are there seem
lost, and new ones are taken all the same. So the data decide which engine is started.
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
# Where each engine keeps what it holds, inside the data folder.
DATABASE = "dynoxide.db"
STATE = "ministack"
FILES = {DYNOXIDE: DATABASE, MINISTACK: f"{STATE}/dynamodb.json"}

# SQLite's files beside the database.
_LOG, _INDEX = f"{DATABASE}-wal", f"{DATABASE}-shm"
# MiniStack's state without a table has less; with one, or damaged, it may have that, too.
_BLANK_BYTES = 16_384
# A program that has the database open lets go of it within milliseconds, or keeps it.
_WAIT_S = 2.0


class EngineError(Exception):
    """No engine can be started, or used; the message says why and what to do."""


def engine_of(folder: Path) -> str | None:
    """Name the engine whose data are in the folder; None when no data are there.

    Raises EngineError when no engine may be started: there are data of both, the database cannot
    be read, or there are payloads of jobs without the jobs.
    """
    try:
        found = [name for name, is_there in _DATA.items() if is_there(folder)]
        if not found and _has_payloads(folder):
            raise EngineError(
                f"{folder / PAYLOADS} holds payloads of jobs, but the jobs are gone: there is "
                f"neither {DATABASE} nor {FILES[MINISTACK]} with data. Restore that from a copy. "
                f"{anew(folder)}"
            )
    except OSError as error:
        raise EngineError(f"{error.filename} cannot be read: {error.strerror}") from error
    if len(found) > 1:
        there, other = folder / DATABASE, folder / STATE
        raise EngineError(
            f"the folder {folder} holds data of two engines: {there} is dynoxide's, {other} is "
            f"MiniStack's. Move away the one that you do not want, for example: {_move(other)}"
        )
    return found[0] if found else None


def anew(folder: Path) -> str:
    """How to go on without the data that are in the folder, for the end of a message."""
    return (
        f"To begin anew, move the folder away ({_move(folder)}) or use another one "
        "(make run DATA=FOLDER)"
    )


def remove_leftovers(folder: Path) -> None:
    """Remove what a first start of dynoxide that failed has left. Only where no data were."""
    for name in (DATABASE, _LOG, _INDEX):
        with contextlib.suppress(OSError):  # the next start says what is wrong with it
            (folder / name).unlink(missing_ok=True)


def _move(path: Path) -> str:
    return f"mv {shlex.quote(str(path))} {shlex.quote(f'{path}.old')}"


def _has_database(folder: Path) -> bool:
    if not _is_filled(folder / DATABASE):
        if _is_filled(folder / _LOG):
            # SQLite would throw the log away, and with it all that was written last.
            raise EngineError(
                f"{folder / _LOG} holds data, but {folder / DATABASE}, which it belongs to, is "
                f"missing or empty. Restore both from a copy. {anew(folder)}"
            )
        return False
    return not _is_blank(folder / DATABASE)


def _is_filled(path: Path) -> bool:
    """Whether there is anything but an empty file. A link that leads nowhere counts: what it leads
    to may be on a disk that is missing.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return path.is_symlink()
    return not stat.S_ISREG(found.st_mode) or found.st_size > 0


def _is_blank(database: Path) -> bool:
    """Whether dynoxide has made its file, but no table in it: its first start was interrupted.

    Raises EngineError when the file cannot be read.
    """
    try:
        import sqlite3
    except ImportError:
        return False  # nor can this Python use dynoxide, whose start says so
    try:
        address = f"{database.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, _WAIT_S, uri=True)) as opened:
            return opened.execute("SELECT 1 FROM _tables LIMIT 1").fetchone() is None
    except sqlite3.Error as error:
        why = str(error)
        if why.startswith("no such table"):
            why = f"it is not dynoxide's, or was copied without {database.name}-wal beside it"
        raise EngineError(
            f"{database} cannot be read: {why}. If another program has it open, close that; "
            f"else restore it from a copy. {anew(database.parent)}"
        ) from error


def _has_state(folder: Path) -> bool:
    # MiniStack replaces the file as a whole, so an empty one is a damaged one. What else it writes
    # (the state of services that are not used here) is no data.
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
        # Where it has written that there is no table, its first start was interrupted. A file that
        # cannot be read counts as data: MiniStack finds nothing in it, and is stopped then.
        return bool(json.loads(path.read_bytes())["payload"]["tables"]["data"] != {})
    except (ValueError, KeyError, TypeError):
        return True


def _has_payloads(folder: Path) -> bool:
    # Names that begin with "~" are of files that were not finished.
    found = (folder / PAYLOADS).rglob("*")
    return any(path.is_file() and not path.name.startswith("~") for path in found)


_DATA = {DYNOXIDE: _has_database, MINISTACK: _has_state}
