"""Dead letters that are to be pruned, written to the payload bucket (dead-letter seed, 8.2).

    archive/{queue}/{yyyy}/{mm}/{dd}/{slice}.jsonl.gz     the day is that of the pruning, in UTC

One job a line, as the API shows it, with all of its errors. An object is there before its jobs go:
whoever dies in between leaves jobs that are archived again, under the same name if they are the
same as before. So a job may be there twice, and is told by its `id` and `discarded_at`.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence
from io import BytesIO

from ojs.domain import jsontext, times
from ojs.domain.job.job import Job, to_dict
from ojs.store.jobs.blobs import ARCHIVE, GZIP, Blobs
from ojs.store.jobs.records import JobStore

# A slice ends with the job that brings it here: what is held in memory is this, packed, and a job.
MAX_BYTES = 8_000_000


class Archive:
    """Writes it; reads nothing back."""

    def __init__(self, jobs: JobStore, blobs: Blobs) -> None:
        self._jobs = jobs
        self._blobs = blobs

    def keep(self, queue: str, dead: Sequence[Job], *, now_ms: int) -> tuple[list[Job], int]:
        """Write dead letters of a queue, as their heads were read.

        Returns those that were written, and how many were looked at: one that has moved on is left
        out, and a slice that grew too large ends early. Costs a read of each job and one object.
        """
        kept: list[Job] = []
        looked = size = 0
        packed = BytesIO()
        # No time within: the same jobs give the same bytes.
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
    # Which jobs, and in which version: another slice has another name.
    told = "\n".join(f"{job.id} {job.op}" for job in kept)
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    first_ms = kept[0].discarded_ms or 0
    return f"{ARCHIVE}{queue}/{day}/{first_ms}-{digest}.jsonl.gz"
