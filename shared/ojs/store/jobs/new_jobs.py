"""Functions for all stores of new jobs: write tokens, offloading, detection of retries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as changed

from ojs.domain import jsontext
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.store.jobs import items
from ojs.store.jobs.payloads import PayloadRef, PayloadStore
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.values import Item

# The condition of the write of a new job: no record with its ID exists.
IS_NEW = "attribute_not_exists(pk)"
# A job that is ready to be stored, and its offloaded payload, which must be stored first.
PreparedJob = tuple[Job, list[tuple[PayloadRef, str]]]


class JobIdTaken(Exception):
    """A job with this ID exists already."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def prepare(job: Job, payloads: PayloadStore, ids: IdSource) -> PreparedJob:
    """Give a job its write token, and decide whether its content is stored in the job record.

    Args:
        job: New job. If `made_by` is set, the token starts with it.
        payloads: Store of large contents.
        ids: Source of the tokens.

    Returns:
        The job, and the payloads to store before it.
    """
    token = ids.token()
    marked = job.chosen_id or job.made_by is not None
    job = changed(job, op=token, made_by=f"{job.made_by or ''}{token}" if marked else None)
    if items.fits_inline(job):
        return job, []
    payload = jsontext.dumps(job.content)
    size = len(payload.encode("utf-8"))
    at = payloads.new_ref(job.id, keys.PAYLOAD, ids.token(), size)
    return changed(job, content_ref=at.ref, content_bytes=size), [(at, payload)]


def is_own(found: Item | None, job: Job) -> bool:
    """Return whether an earlier attempt of the same enqueue wrote the stored record.

    The job might have been claimed, moved, or finished since, so only attributes that never change
    are compared: the enqueue's token if other requests can use the same ID, otherwise the creation
    time (a generated ID is unique).
    """
    if not found:
        return False
    if job.made_by is None:
        return found.get("created") == job.created_ms
    return found.get("made") == job.made_by


def any_own(lost: LostRace, jobs: Sequence[Job]) -> bool:
    """Return whether a rejected transaction found a record of an earlier attempt of itself.

    That attempt then succeeded, and stored all jobs.
    """
    return any(is_own(found, job) for found, job in zip(lost.items, jobs, strict=False))
