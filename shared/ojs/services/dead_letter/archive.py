"""Archives dead letters in the payload bucket before they are pruned.

    archive/{queue}/{yyyy}/{mm}/{dd}/{slice}.jsonl.gz     the day is that of the pruning, in UTC

Each line is one job as the API shows it, with all of its errors. An object is written before its
jobs are deleted. After a crash in between, the jobs are archived again, under the same name if they
are the same jobs. So a job may occur twice; its `id` and `discarded_at` identify it.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence
from io import BytesIO

from ojs.domain import jsontext, times
from ojs.domain.job.job import Job, to_dict
from ojs.store.jobs.blobs import ARCHIVE, GZIP, Blobs
from ojs.store.jobs.reading import JobReader

# A slice ends with the job that reaches this size; only one compressed slice and one job are in
# memory.
MAX_BYTES = 8_000_000


class Archive:
    """Writes archive objects; never reads them."""

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


def _key(queue: str, kept: Sequence[Job], now_ms: int) -> str:
    day = times.format_ms(now_ms)[:10].replace("-", "/")
    # The jobs and their versions: another slice gets another name.
    versions = "\n".join(f"{job.id} {job.op}" for job in kept)
    digest = hashlib.sha256(versions.encode()).hexdigest()[:16]
    first_ms = kept[0].discarded_ms or 0
    return f"{ARCHIVE}{queue}/{day}/{first_ms}-{digest}.jsonl.gz"
