"""Archives dead letters in the payload bucket before they are pruned.

    archive/{queue}/{yyyy}/{mm}/{dd}/{slice}.jsonl.gz     the day is that of the pruning, in UTC

Each line is one job as the API shows it, with all of its errors. An object is written before its
jobs are deleted. After a crash in between, the jobs are archived again, under the same name if they
are the same jobs. So a job may occur twice; its `id` and `discarded_at` identify it.
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

# A slice ends with the job that reaches this size; only one compressed slice and one job are in
# memory.
MAX_BYTES = 8_000_000


class Archive:
    """Writes archive objects; reads them only to erase what is in them."""

    def __init__(self, jobs: JobReader, blobs: Blobs) -> None:
        self._jobs = jobs
        self._blobs = blobs

    def keep(self, queue: str, dead: Sequence[Job], *, now_ms: int) -> tuple[list[Job], int]:
        """Write one slice of a queue's dead letters, given their job records as read.

        Returns the jobs that were written and how many were looked at: a job that has changed since
        is left out, and a slice that reaches MAX_BYTES ends early. Costs a read of each job and one
        object.
        """
        kept: list[Job] = []
        looked = size = 0
        packed = BytesIO()
        # Without a time stamp, so that the same jobs give the same bytes.
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
        """The next objects behind a name, of one queue or of all, and whether each was written
        since the day of a time. One call.
        """
        prefix = ARCHIVE if queue is None else f"{ARCHIVE}{queue}/"
        found = self._blobs.names(prefix, after=max(after, prefix), limit=limit)
        return [(name, name.split("/")[2:5] >= _day(since_ms).split("/")) for name in found]

    def erase(
        self, name: str, meant: Callable[[Mapping[str, Any]], bool], *, dry_run: bool = False
    ) -> list[str]:
        """Write an object anew without the jobs that are meant, or remove it if nothing is left;
        returns their ids. A call, and another one if there are any.

        Raises BackendUnavailable for an object that cannot be read: what is in it is not known.
        """
        try:
            lines = gzip.decompress(self._blobs.get(name)).splitlines()
            erased = [job for line in lines if meant(job := jsontext.stored(line.decode()))]
        except KeyError:
            return []
        except (OSError, EOFError, zlib.error, ValueError) as error:
            raise BackendUnavailable(f"The archive object {name} cannot be read.") from error
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
    # The jobs and their versions: another slice gets another name.
    versions = "\n".join(f"{job.id} {job.op}" for job in kept)
    digest = hashlib.sha256(versions.encode()).hexdigest()[:16]
    first_ms = kept[0].discarded_ms or 0
    return f"{ARCHIVE}{queue}/{day}/{first_ms}-{digest}.jsonl.gz"
