"""The data folder, and its lock: only one server can use it."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from pathlib import Path

# Subfolder for large payloads.
PAYLOADS = "payloads"
# Time in seconds for the engine of a killed server to write its data and end.
_WAIT_S = 5.0
# Approximate space in bytes that the engine needs for one write.
_PROBE_BYTES = 64 * 1024


class FolderInUse(Exception):
    """Another server, or the engine of a killed server, uses the folder."""


class DataFolder:
    """A folder that is locked until this process and its engine have ended."""

    def __init__(self, path: Path) -> None:
        """Create the folder if necessary, and lock it. Raises FolderInUse, or OSError."""
        self.path = path.resolve()
        self.payloads = self.path / PAYLOADS
        # Other users of the machine must not read jobs. The permissions of an existing folder are
        # unchanged.
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.lock = os.open(self.path / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take()
        except FolderInUse:
            os.close(self.lock)
            raise

    def close(self) -> None:
        """Unlock the folder. The end of this process does it too."""
        os.close(self.lock)

    def full(self) -> bool:
        """Whether its disk is full."""
        try:
            with tempfile.TemporaryFile(dir=self.path) as probe:
                probe.write(bytes(_PROBE_BYTES))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return True
        return False

    def note(self, text: str) -> None:
        """Write the holder to the lock file, for the error message of a second server."""
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
    """Whether the server that the lock file names (`process N, …`) is running."""
    number = holder.partition("process ")[2].partition(",")[0]
    if not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs as another user
    return True
