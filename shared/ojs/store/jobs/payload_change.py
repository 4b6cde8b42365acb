"""Changes the content of a stored job.

An offloaded payload never changes (`ojs.store.jobs.payloads`). A new payload is written under a
separate name. Then the job record is changed to refer to it, and the old payload is removed. Before
that, the names of both payloads are stored as notes in the partition of the job record:

    J|{id}  spare|{ref}   remove this payload with the job, if it still exists

If the process crashes in between, the job has its old or its new content. The other payload is
removed with the job.
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
    """Changes the contents of stored jobs."""

    def __init__(self, table: Table, payloads: PayloadStore, jobs: JobStore) -> None:
        self._table = table
        self._payloads = payloads
        self._jobs = jobs

    @contextmanager
    def changed(self, before: Job, after: Job) -> Iterator[Job]:
        """Store the new content of `after`. The caller writes the yielded job in the `with` block.

        After that write, the old content is removed. If the write raises LostRace, the new content
        is removed, unless the job record refers to it: then the write succeeded, its response was
        lost, and the job has changed since. If the outcome is unknown (BackendError), both contents
        and their notes are kept. Raises OjsError.
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
            # The note of the old payload is kept, because the winner might have just replaced that
            # payload.
            self._drop_unreferenced(before.id, new)
            raise
        except OjsError:
            self._drop(new)
            raise
        self._drop(old, also=new)

    def _drop_unreferenced(self, job_id: str, payloads: Sequence[PayloadRef]) -> None:
        """Remove payloads, except one that the job record refers to.

        If this fails, the notes ensure that they are removed with the job.
        """
        if not payloads:
            return
        with suppress(OjsError):
            job = self._jobs.read_record(job_id)
            current = None if job is None else job.content_ref
            self._drop([at for at in payloads if at.ref != current])

    def _drop(self, payloads: Sequence[PayloadRef], also: Sequence[PayloadRef] = ()) -> None:
        """Remove payloads, their notes, and the notes of `also`.

        If this fails, the notes ensure that they are removed with the job.
        """
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
