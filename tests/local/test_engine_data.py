"""Which engine may be started on a data folder, from what is in it; no engine runs here."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from local import engines
from local.engine_data import EngineError, engine_of
from local.stream_records import StreamRecords

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

BINARY = Path("/bin/dynoxide")
PROGRAM = Path("/bin/ministack")
NO_PROCESS = cast("subprocess.Popen[bytes]", None)


def dynoxide_data(folder: Path, *tables: str) -> Path:
    """A database as dynoxide leaves it, with these DynamoDB tables."""
    database = folder / "dynoxide.db"
    with contextlib.closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("PRAGMA journal_mode=WAL")
        opened.execute("CREATE TABLE _tables (table_name TEXT PRIMARY KEY)")
        opened.executemany("INSERT INTO _tables VALUES (?)", [(name,) for name in tables])
    return database


def ministack_data(
    folder: Path, text: str = '{"payload": {"tables": {"data": {"ojs": {}}}}}'
) -> Path:
    """State as MiniStack leaves it."""
    state = folder / "ministack" / "dynamodb.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text(text)
    return state


def payload(folder: Path, name: str = "job%2F1") -> Path:
    path = folder / "payloads" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{}")
    return path


def files(folder: Path) -> dict[str, bytes]:
    """What is written there; SQLite makes an empty log and its index to read a database."""
    return {
        str(path.relative_to(folder)): content
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
        if (content := path.read_bytes()) or not path.name.endswith("-wal")
    }


class Started:
    """What engines were started, instead of starting them; some fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, binary: Path | None = BINARY) -> None:
        self.names: list[str] = []
        self.fails: dict[str, Callable[[Path], None]] = {}
        monkeypatch.setattr(engines, "find_dynoxide", lambda: binary)
        monkeypatch.setattr(engines, "find_ministack", lambda: PROGRAM)
        monkeypatch.setattr(engines, "_run", self.run)
        monkeypatch.setattr(StreamRecords, "index", lambda _records: None)

    def run(self, kind: Any, folder: Path, _keep_open: Sequence[int]) -> engines.Engine:
        self.names.append(kind.name)
        if failure := self.fails.get(kind.name):
            failure(folder)
            raise EngineError(f"{kind.name} did not start: broken")
        return engines.Engine(kind.name, "http://127.0.0.1:1", NO_PROCESS, None)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    return Started(monkeypatch)


def refusal(folder: Path, preference: str = "auto") -> str:
    """The message of a start that is refused, which must leave all files as they are."""
    before = files(folder)
    with pytest.raises(EngineError) as refused:
        engines.start(preference, folder)
    assert files(folder) == before
    message = str(refused.value)
    assert "\n" not in message
    return message


# --- data of one engine -----------------------------------------------------------------------


@pytest.mark.parametrize("preference", ["auto", "dynoxide"])
def test_dynoxide_serves_what_dynoxide_wrote(
    started: Started, tmp_path: Path, preference: str
) -> None:
    dynoxide_data(tmp_path, "ojs")
    engine = engines.start(preference, tmp_path)
    assert started.names == ["dynoxide"]
    assert engine.resumed


@pytest.mark.parametrize("preference", ["auto", "ministack"])
def test_ministack_serves_what_ministack_wrote(
    started: Started, tmp_path: Path, preference: str
) -> None:
    """Also where dynoxide, which would be preferred, has been installed since."""
    ministack_data(tmp_path)
    engine = engines.start(preference, tmp_path)
    assert started.names == ["ministack"]
    assert engine.resumed
    assert (engine.reason is not None) == (preference == "auto")


def test_another_engine_is_refused_by_name(started: Started, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second one"
    first.mkdir()
    database = dynoxide_data(first, "ojs")
    message = refusal(first, "ministack")
    assert f"{database} has data that only dynoxide can read" in message
    assert f"mv {first} {first}.old" in message
    assert "DATA=" in message
    state = ministack_data(second)
    message = refusal(second, "dynoxide")
    assert f"{state} has data that only ministack can read" in message
    assert f"mv '{second}' '{second}.old'" in message
    assert started.names == []


def test_without_a_binary_dynoxide_s_data_are_not_left_for_ministack(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = Started(monkeypatch, binary=None)
    database = dynoxide_data(tmp_path, "ojs")
    message = refusal(tmp_path)
    assert str(database) in message
    assert "no dynoxide binary" in message
    assert "npm ci" in message
    assert started.names == []


def test_without_ministack_its_data_are_not_left_for_dynoxide(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = ministack_data(tmp_path)
    monkeypatch.setattr(engines, "find_ministack", lambda: None)
    message = refusal(tmp_path)
    assert str(state) in message
    assert "make setup" in message
    assert started.names == []


@pytest.mark.parametrize("preference", ["auto", "dynoxide"])
def test_an_engine_that_fails_on_its_data_is_not_replaced(
    started: Started, tmp_path: Path, preference: str
) -> None:
    database = dynoxide_data(tmp_path, "ojs")
    started.fails["dynoxide"] = lambda _folder: None
    message = refusal(tmp_path, preference)
    assert str(database) in message
    assert "broken" in message
    assert "restore" in message
    assert started.names == ["dynoxide"]


# --- damaged ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"no database at all, " * 500, "not a database"),
        (b"SQLite format 3\x00", "not a database"),
        (b"\x00", "not a dynoxide database"),
    ],
)
@pytest.mark.parametrize("preference", ["auto", "dynoxide", "ministack"])
def test_a_database_that_cannot_be_read(
    started: Started, tmp_path: Path, content: bytes, complaint: str, preference: str
) -> None:
    (tmp_path / "dynoxide.db").write_bytes(content)
    message = refusal(tmp_path, preference)
    assert str(tmp_path / "dynoxide.db") in message
    assert complaint in message
    assert "restore" in message
    assert f"mv {tmp_path} {tmp_path}.old" in message
    assert started.names == []


def test_a_database_that_was_copied_without_its_log(started: Started, tmp_path: Path) -> None:
    """All that was written since the last checkpoint is in the log; alone, the file seems empty."""
    with contextlib.closing(sqlite3.connect(tmp_path / "dynoxide.db")) as opened:
        opened.execute("PRAGMA journal_mode=WAL")
    assert "copied without dynoxide.db-wal" in refusal(tmp_path)
    assert started.names == []


@pytest.mark.parametrize("database", [None, b""])
def test_a_log_without_its_database(
    started: Started, tmp_path: Path, database: bytes | None
) -> None:
    """SQLite would throw the log away."""
    (tmp_path / "dynoxide.db-wal").write_bytes(b"x" * 5_000)
    if database is not None:
        (tmp_path / "dynoxide.db").write_bytes(database)
    message = refusal(tmp_path)
    assert str(tmp_path / "dynoxide.db-wal") in message
    assert started.names == []


def test_a_database_that_another_program_has_open(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("local.engine_data._WAIT_S", 0)
    database = dynoxide_data(tmp_path, "ojs")
    with contextlib.closing(sqlite3.connect(database)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        message = refusal(tmp_path)
    assert "database is locked" in message
    assert "another program" in message
    assert started.names == []


@pytest.mark.parametrize("other", ["a folder", "a link that leads nowhere"])
def test_a_database_that_is_no_file(started: Started, tmp_path: Path, other: str) -> None:
    if other == "a folder":
        (tmp_path / "dynoxide.db").mkdir()
    else:
        (tmp_path / "dynoxide.db").symlink_to(tmp_path / "missing" / "disk.db")
    assert f"can't read {tmp_path / 'dynoxide.db'}" in refusal(tmp_path)
    assert started.names == []


def test_data_that_are_written_but_not_yet_in_the_database(
    started: Started, tmp_path: Path
) -> None:
    """A server that was killed leaves them in the log."""
    source = tmp_path / "source"
    source.mkdir()
    database = dynoxide_data(source)
    killed = tmp_path / "killed"
    with contextlib.closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("INSERT INTO _tables VALUES ('ojs')")
        opened.commit()
        shutil.copytree(source, killed)
    (killed / "dynoxide.db-shm").unlink()
    assert engine_of(killed) == "dynoxide"
    assert engines.start("auto", killed).resumed
    assert started.names == ["dynoxide"]


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"payload": []}', '{"payload": {"tables": 1}}', "{}", "\x00"]
)
def test_state_that_is_damaged_is_still_ministack_s(
    started: Started, tmp_path: Path, text: str
) -> None:
    """Whether it holds the jobs is seen when MiniStack has read it."""
    ministack_data(tmp_path, text)
    assert engines.start(folder=tmp_path).resumed
    assert started.names == ["ministack"]
    assert "only ministack can read" in refusal(tmp_path, "dynoxide")


def test_ministack_s_folder_that_is_a_file(started: Started, tmp_path: Path) -> None:
    """MiniStack would start, and find out when it is to write its data."""
    (tmp_path / "ministack").write_text("")
    assert str(tmp_path / "ministack") in refusal(tmp_path, "ministack")
    assert started.names == []


# --- both, or jobs' payloads alone --------------------------------------------------------------


@pytest.mark.parametrize("preference", ["auto", "dynoxide", "ministack"])
def test_data_of_both_are_refused(started: Started, tmp_path: Path, preference: str) -> None:
    database, state = dynoxide_data(tmp_path, "ojs"), ministack_data(tmp_path)
    message = refusal(tmp_path, preference)
    assert f"{database} of dynoxide" in message
    assert f"{state.parent} of MiniStack" in message
    assert f"mv {state.parent} {state.parent}.old" in message
    assert started.names == []
    # As the message says.
    state.parent.rename(tmp_path / "ministack.old")
    assert engines.start(folder=tmp_path).name == "dynoxide"


@pytest.mark.parametrize("preference", ["auto", "dynoxide", "ministack"])
@pytest.mark.parametrize("name", ["job%2F1", "archive/2026/11/22/job.json"])
@pytest.mark.parametrize("blank", [True, False])
def test_payloads_without_jobs_are_refused(
    started: Started, tmp_path: Path, preference: str, name: str, blank: bool
) -> None:
    payload(tmp_path, name)
    if blank:
        dynoxide_data(tmp_path)
    message = refusal(tmp_path, preference)
    assert str(tmp_path / "payloads") in message
    assert "the jobs are missing" in message
    assert f"mv {tmp_path} {tmp_path}.old" in message
    assert started.names == []


def test_payloads_that_were_not_finished_are_nothing(started: Started, tmp_path: Path) -> None:
    payload(tmp_path, "~abc")
    assert not engines.start(folder=tmp_path).resumed
    assert started.names == ["dynoxide"]


# --- no data yet ------------------------------------------------------------------------------


def leave(*names: str) -> Callable[[Path], None]:
    """What a start that fails leaves in a folder."""

    def write(folder: Path) -> None:
        for name in names:
            (folder / name).write_bytes(b"not yet a database")

    return write


def test_before_the_first_data_the_other_engine_may_take_over(
    started: Started, tmp_path: Path
) -> None:
    started.fails["dynoxide"] = leave("dynoxide.db", "dynoxide.db-wal", "dynoxide.db-shm")
    for _ in range(2):
        engine = engines.start(folder=tmp_path)
        assert engine.name == "ministack"
        assert engine.reason is not None
        assert "broken" in engine.reason
        assert not engine.resumed
    # What the failed start has left is gone, so MiniStack's data are the only ones.
    ministack_data(tmp_path)
    assert engines.start(folder=tmp_path).resumed
    assert started.names == ["dynoxide", "ministack"] * 2 + ["ministack"]


def test_a_first_start_that_failed_may_be_tried_again(started: Started, tmp_path: Path) -> None:
    started.fails["dynoxide"] = leave("dynoxide.db", "dynoxide.db-wal")
    with pytest.raises(EngineError, match="broken"):
        engines.start("dynoxide", tmp_path)
    assert files(tmp_path) == {}
    started.fails.clear()
    assert engines.start("dynoxide", tmp_path).name == "dynoxide"


@pytest.mark.parametrize("preference", ["auto", "dynoxide", "ministack"])
@pytest.mark.parametrize(
    "left", ["nothing", "an empty file", "a database without tables", "a state without tables"]
)
def test_a_first_start_that_was_killed_left_no_data(
    started: Started, tmp_path: Path, preference: str, left: str
) -> None:
    if left == "an empty file":
        (tmp_path / "dynoxide.db").write_bytes(b"")
        (tmp_path / "dynoxide.db-wal").write_bytes(b"")
    elif left == "a database without tables":
        dynoxide_data(tmp_path)
    elif left == "a state without tables":
        ministack_data(tmp_path, '{"payload": {"tables": {"data": {}}, "tags": {"data": {}}}}')
    assert not engines.start(preference, tmp_path).resumed
    assert started.names == ["ministack" if preference == "ministack" else "dynoxide"]


def test_what_else_ministack_writes_is_no_data(started: Started, tmp_path: Path) -> None:
    """It writes the state of all its services when it is stopped, whether they were used or not."""
    ministack_data(tmp_path).rename(tmp_path / "ministack" / "iam.json")
    assert engines.start(folder=tmp_path).name == "dynoxide"
    assert started.names == ["dynoxide"]
