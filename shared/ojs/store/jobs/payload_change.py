"""The content of a job that is there already, changed.

Content may be on the head, in an item or in the bucket (`ojs.store.jobs.payloads`), and a text never
changes: the new one is written under a name of its own, then the head names it, then the old one
goes. Before all of that both names are noted beside the head:

    J|{id}  spare|{ref}   this text goes when the job goes, if it is still there

So whoever dies in between leaves the old job or the new one, and nothing that stays for good.
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
    """Changes them."""

    def __init__(self, table: Table, texts: PayloadStore, jobs: JobStore) -> None:
        self._table = table
        self._texts = texts
        self._jobs = jobs

    @contextmanager
    def changed(self, before: Job, after: Job) -> Iterator[Job]:
        """`after`, whose content is new and has no place yet, with it in place, while the caller
        writes its head.

        When that write is lost (LostRace) the new content goes, unless the head names it: the write
        took effect then, its answer was lost, and the job has gone on. When it is done the old
        content goes. When the outcome is unknown (BackendError) both stay, noted. Raises OjsError.
        """
        placed, texts = self._jobs.prepare(after)
        new = [at for at, _ in texts]
        old = []
        if before.content_ref is not None:
            old.append(PayloadRef(before.id, keys.PAYLOAD, before.content_ref))
        if new or old:
            self._table.write_many(puts=[_note_item(at) for at in new + old])
            self._texts.save(texts)
        try:
            yield placed
        except BackendError:
            raise
        except LostRace:
            # The old text is noted still: the winner may have just replaced it.
            self._drop_unnamed(before.id, new)
            raise
        except OjsError:
            self._drop(new)
            raise
        self._drop(old, also=new)

    def _drop_unnamed(self, job_id: str, texts: Sequence[PayloadRef]) -> None:
        """Remove texts, but for one that the job's head names. What fails goes with the job."""
        if not texts:
            return
        with suppress(OjsError):
            head = self._jobs.head(job_id)
            named = None if head is None else head.content_ref
            self._drop([at for at in texts if at.ref != named])

    def _drop(self, texts: Sequence[PayloadRef], also: Sequence[PayloadRef] = ()) -> None:
        """Remove texts, and the notes of them and of `also`. What fails goes with the job."""
        with suppress(OjsError):
            self._texts.delete(at for at in texts if at.in_bucket)
            items = [at.key for at in texts if not at.in_bucket]
            self._table.write_many(deletes=[*items, *(_note(at) for at in [*texts, *also])])


def _note(at: PayloadRef) -> tuple[str, str]:
    """Key of the note of a text."""
    return keys.job(at.job_id), keys.SPARE + at.ref


def _note_item(at: PayloadRef) -> Item:
    pk, sk = _note(at)
    return {"pk": pk, "sk": sk}
