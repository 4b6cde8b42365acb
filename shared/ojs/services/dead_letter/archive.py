"""Archives dead letters in the payload bucket before they are pruned.

    archive/{queue}/{yyyy}/{mm}/{dd}/{slice}.jsonl.gz     the day is that of the pruning, in UTC

Each line is one job in the format of the API, with all its errors. An object is written before its
jobs are deleted. After a crash in between, the jobs are archived again, with the same object name
if they are the same jobs. A job can therefore occur twice. Its `id` and `discarded_at` identify it.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

from ojs.domain import jsontext, times
from ojs.domain.errors import BackendUnavailable
from ojs.domain.job.job import Job, to_dict
from ojs.store.jobs.blobs import ARCHIVE, GZIP, Blobs
from ojs.store.jobs.reading import JobReader

# A slice ends with the job that reaches this size (bytes). Only one compressed slice and one job
# are in memory.
MAX_BYTES = 8_000_000


class Archive:
    """Writes archive objects. Reads them only to erase jobs."""

    def __init__(self, jobs: JobReader, blobs: Blobs) -> None:
        self._jobs = jobs
        self._blobs = blobs

    def keep(self, queue: str, dead: Sequence[Job], *, now_ms: int) -> tuple[list[Job], int]:
        """Archive a slice of a queue's dead letters. Takes one read per job and one object.

        Args:
            queue: Name of the queue.
            dead: Job records, as read. A job that has changed since is omitted.
            now_ms: Current time in ms since the epoch. Its day is part of the object name.

        Returns:
            The archived jobs, and the number of processed jobs. A slice ends at MAX_BYTES.
        """
        kept: list[Job] = []
        looked = size = 0
        packed = BytesIO()
        # The object has no timestamp, so that the same jobs give the same bytes.
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as lines:
            for dying in dead:
                if size >= MAX_BYTES:
                    break
                looked += 1
                whole = self._jobs.load_whole(dying.id)
                if whole is None or whole.op != dying.op:
                    continue
                line = jsontext.dumps(to_dict(whole)).encode("utf-8")
                lines.write(line + b"\n")
                size += len(line)
                kept.append(dying)
        if kept:
            key = _key(queue, kept, now_ms)
            self._blobs.put(key, packed.getvalue(), content_type=GZIP)
        return kept, looked

    def names(
        self, *, after: str, limit: int, queue: str | None = None, since_ms: int = 0
    ) -> list[tuple[str, bool]]:
        """Return the next objects after a name, and whether each was written since a day.

        Makes one call.

        Args:
            after: Name of the previous object.
            limit: Maximum number of objects.
            queue: Name of the queue. Default: all queues.
            since_ms: Time on that day in ms since the epoch.
        """
        prefix = ARCHIVE if queue is None else f"{ARCHIVE}{queue}/"
        found = self._blobs.names(prefix, after=max(after, prefix), limit=limit)
        return [(name, name.split("/")[2:5] >= _day(since_ms).split("/")) for name in found]

    def erase(
        self, name: str, meant: Callable[[Mapping[str, Any]], bool], *, dry_run: bool = False
    ) -> list[str]:
        """Rewrite an object without the matching jobs, or delete it if no job is left.

        Takes one call, and a second one if jobs match.

        Args:
            name: Name of the object.
            meant: Whether a job must be erased.
            dry_run: Whether to return the IDs only.

        Returns:
            The IDs of the matching jobs.

        Raises:
            BackendUnavailable: The object can't be read. It can contain matching jobs.
        """
        try:
            lines = gzip.decompress(self._blobs.get(name)).splitlines()
            erased = [job for line in lines if meant(job := jsontext.stored(line.decode()))]
        except KeyError:
            return []
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise BackendUnavailable(f"The archive object {name} can't be read.") from error
        if erased and not dry_run:
            kept = [line for line in lines if not meant(jsontext.stored(line.decode()))]
            if kept:
                packed = gzip.compress(b"".join(line + b"\n" for line in kept), mtime=0)
                self._blobs.put(name, packed, content_type=GZIP)
            else:
                self._blobs.delete(name)
        return [str(job["id"]) for job in erased]


def _day(ms: int) -> str:
    return times.format_ms(ms)[:10].replace("-", "/")


def _key(queue: str, kept: Sequence[Job], now_ms: int) -> str:
    day = _day(now_ms)
    # The name contains a digest of the jobs and their versions, so that each slice has a unique
    # name.
    versions = "\n".join(f"{job.id} {job.op}" for job in kept)
    digest = hashlib.sha256(versions.encode()).hexdigest()[:16]
    first_ms = kept[0].discarded_ms or 0
    return f"{ARCHIVE}{queue}/{day}/{first_ms}-{digest}.jsonl.gz"
