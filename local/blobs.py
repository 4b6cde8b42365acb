"""A folder instead of the payload bucket."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote, unquote

from ojs.domain.errors import BackendUnavailable
from ojs.store.jobs.blobs import ARCHIVE, JSON

_LONGEST_NAME = 200


class FolderBlobs:
    """Stores large payloads as files, one per key. Same guarantees as
    `ojs.store.jobs.blobs.S3Blobs`.

    A put is atomic: the file is written with another name, flushed, and renamed.
    Raises BackendUnavailable when the file system fails.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, body: bytes, *, content_type: str = JSON) -> None:
        """Store a value durably. Replaces an existing value."""
        try:
            self._path(key).parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder, prefix="~")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(self._path(key))
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise _unavailable(error) from error

    def get(self, key: str) -> bytes:
        """Read a value. Raises KeyError if it doesn't exist."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None
        except OSError as error:
            raise _unavailable(error) from error

    def delete(self, key: str) -> None:
        """Delete a value, if it exists."""
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(error) from error

    def names(self, prefix: str, *, after: str, limit: int) -> list[str]:
        """Return the next archive keys with this prefix, after a key, in order."""
        root = self._folder / ARCHIVE.rstrip("/")
        paths = (path.relative_to(self._folder) for path in root.rglob("*") if path.is_file())
        keys = ("/".join(map(unquote, path.parts)) for path in paths)
        return sorted(key for key in keys if key.startswith(prefix) and key > after)[:limit]

    def clear(self) -> None:
        """Delete all values."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        if key.startswith(ARCHIVE):
            # The archive is for people: one folder for each part of the key. A part that starts
            # with a dot could leave the folder.
            parts = (quote(part, safe="").replace("~", "%7E") for part in key.split("/"))
            return self._folder.joinpath(
                *(f"%2E{part[1:]}" if part.startswith(".") else part for part in parts)
            )
        # Quoted, so that a key can't leave the folder or equal another one. "~" marks partial
        # files.
        name = quote(key, safe="").replace("~", "%7E").replace(".", "%2E")
        if len(name) > _LONGEST_NAME:
            name = "sha256-" + hashlib.sha256(key.encode()).hexdigest()
        return self._folder / name


def _unavailable(error: OSError) -> BackendUnavailable:
    return BackendUnavailable(f"The payload folder can't be used: {error.strerror or error}.")
