"""Changes the content of a stored job.

An offloaded payload never changes (`ojs.store.jobs.payloads`): the new payload is written under a
separate name, then the job record refers to it, then the old one is removed. Before that, both
names are stored in the partition of the job record:

    J|{id}  spare|{ref}   remove this payload with the job, if it still exists

If the process crashes in between, the job has its old or its new content, and no payload is left
over permanently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ojs.domain.errors import BackendError, OjsError
from ojs.domain.job.job import Job
from ojs.store.jobs.payloads import PayloadRef, PayloadStore
from ojs.store.jobs.records import JobStore
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Table
from ojs.store.table.values import Item


class PayloadChange:
    """Changes contents."""

    def __init__(self, table: Table, payloads: PayloadStore, jobs: JobStore) -> None:
        self._table = table
        self._payloads = payloads
        self._jobs = jobs

    @contextmanager
    def changed(self, before: Job, after: Job) -> Iterator[Job]:
        """Store the new content of `after`; the caller writes the job that is yielded.

        After that write the old content is removed. If the write raises LostRace, the new content
        is removed, unless the job record refers to it: then the write succeeded, its response was
        lost, and the job has changed since. If the outcome is unknown (BackendError), both stay,
        with their names stored. Raises OjsError.
        """
        placed, prepared = self._jobs.prepare(after)
        new = [at for at, _ in prepared]
        old = []
        if before.content_ref is not None:
            old.append(PayloadRef(before.id, keys.PAYLOAD, before.content_ref))
        if new or old:
            self._table.write_many(puts=[_note_item(at) for at in new + old])
            self._payloads.save(prepared)
        try:
            yield placed
        except BackendError:
            raise
        except LostRace:
            # The old payload stays noted: the winner may have just replaced it.
            self._drop_unreferenced(before.id, new)
            raise
        except OjsError:
            self._drop(new)
            raise
        self._drop(old, also=new)

    def _drop_unreferenced(self, job_id: str, payloads: Sequence[PayloadRef]) -> None:
        """Remove payloads, except one that the job record refers to. If this fails, the notes have
        them removed with the job.
        """
        if not payloads:
            return
        with suppress(OjsError):
            job = self._jobs.read_record(job_id)
            current = None if job is None else job.content_ref
            self._drop([at for at in payloads if at.ref != current])

    def _drop(self, payloads: Sequence[PayloadRef], also: Sequence[PayloadRef] = ()) -> None:
        """Remove payloads, and the notes of them and of `also`; if this fails, as above."""
        with suppress(OjsError):
            self._payloads.delete(at for at in payloads if at.in_bucket)
            items = [at.key for at in payloads if not at.in_bucket]
            self._table.write_many(deletes=[*items, *(_note(at) for at in [*payloads, *also])])


def _note(at: PayloadRef) -> tuple[str, str]:
    """Return the key of the note of a payload."""
    return keys.job(at.job_id), keys.SPARE + at.ref


def _note_item(at: PayloadRef) -> Item:
    pk, sk = _note(at)
    return {"pk": pk, "sk": sk}
