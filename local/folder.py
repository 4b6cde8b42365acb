"""The data folder: what is in it, and that one server at a time uses it."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from pathlib import Path

# The folder in it that large payloads are kept in.
PAYLOADS = "payloads"
# A killed server's engine may need a moment to write its data and go.
_WAIT_S = 5.0
# About what the engine needs for one write.
_PROBE_BYTES = 64 * 1024


class FolderInUse(Exception):
    """Another server, or what is left of one, uses the folder."""


class DataFolder:
    """A folder taken for this process until it, and the engine it started, have ended."""

    def __init__(self, path: Path) -> None:
        """Create it if need be and take it; raises FolderInUse, or OSError if it cannot be used."""
        self.path = path.resolve()
        self.payloads = self.path / PAYLOADS
        # Jobs hold what other users of the machine should not read. A folder that is there already
        # stays as its owner has it.
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.lock = os.open(self.path / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take()
        except FolderInUse:
            os.close(self.lock)
            raise

    def close(self) -> None:
        """Give the folder up, as the end of this process does."""
        os.close(self.lock)

    def full(self) -> bool:
        """Whether the disk that it is on takes nothing more."""
        try:
            with tempfile.TemporaryFile(dir=self.path) as probe:
                probe.write(bytes(_PROBE_BYTES))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return True
        return False

    def note(self, text: str) -> None:
        """Write the holder into the lock file, for the message to a second server."""
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, text.encode(), 0)

    def _take(self) -> None:
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(self.lock, 200, 0).decode(errors="replace").strip()
                if time.monotonic() > deadline or _alive(holder):
                    raise FolderInUse(holder or "another process") from None
                time.sleep(0.05)
            else:
                return


def _alive(holder: str) -> bool:
    """Whether the server named in a lock file (`process N, …`) still runs."""
    number = holder.partition("process ")[2].partition(",")[0]
    if not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs, for another user
    return True
