"""Deletes jobs permanently, with all other items of their partitions and their objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace as changed

from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.store.bounds.depth_counter import DepthCounter
from ojs.store.jobs.payloads import PayloadRef, PayloadStore, payloads_of
from ojs.store.table import keys
from ojs.store.table.races import lost_race
from ojs.store.table.table import Table, Update


class JobRemoval:
    """Removes jobs: the job record first, then its other items."""

    def __init__(
        self, table: Table, payloads: PayloadStore, ids: IdSource, depth: DepthCounter
    ) -> None:
        self._depth = depth
        self._table = table
        self._payloads = payloads
        self._ids = ids

    def mark_deleting(self, job: Job) -> Job:
        """Note on a dead letter that it is being deleted on request, and return it so marked.

        Without the mark its last stream record could not say why it went. Raises LostRace.
        """
        # Race: a retry, or the pruning. The loser reads again and decides again.
        token = self._ids.token()
        self._table.update(
            Update(
                keys.job(job.id),
                keys.RECORD,
                set={"deleting": 1, "op": token},
                condition="#op = :seen",
                values={":seen": job.op or ""},
            ),
            own=("op", token),
        )
        return changed(job, deleting=True, op=token)

    def delete(self, job: Job) -> None:
        """Remove a job and all that belongs to it. Raises LostRace if it has changed."""
        # List the job's other items first: afterwards the id can belong to a new job. If the
        # process crashes in between, the record's stream record leads to the same cleanup
        # (`remove_rest`).
        rest, objects, _ = self._belongings(job)
        # Race: a retry that made the job available again: the loser sees that the job exists. If an
        # earlier try or another caller deleted it already, the request succeeds.
        lost = lost_race(lambda: self._delete_record(job))
        if lost is not None and lost.item is not None:
            raise lost
        self._remove(objects, rest)

    def prune(self, job: Job) -> bool:
        """Remove the record of a dead letter as read; False when it has changed. One call.

        What belongs to it goes when the deletion's stream record is projected (`remove_rest`).
        """
        # Race: a retry, a replay, or a deletion on request. The loser changes nothing; a record
        # that is already deleted counts as removed.
        lost = lost_race(lambda: self._delete_record(job))
        return lost is None or lost.item is None

    def _delete_record(self, job: Job) -> None:
        if job.reserved_in is not None:
            self._depth.note_removal(job.queue, job.reserved_in, now_ms=self._ids.now_ms())
        self._table.delete(
            keys.job(job.id), keys.RECORD, condition="#op = :seen", values={":seen": job.op or ""}
        )

    def remove_rest(self, job: Job) -> int:
        """Remove the remaining items of a removed job record; return how many.

        Does nothing when the id is in use again.
        """
        rest, objects, in_use = self._belongings(job)
        if in_use:
            return 0
        self._remove(objects, rest)
        return len(rest)

    def _belongings(self, job: Job) -> tuple[list[tuple[str, str]], list[PayloadRef], bool]:
        """Return a job's keys of items other than its record, its objects, and whether a record
        exists.

        A payload of another name might belong to a new job with the same id, whose record is
        written next. Errors and progress are written only if a record exists, and so are the
        records of payloads that a change might have left (`ojs.store.jobs.payload_change`).
        """
        found = self._table.query_all("pk = :job", {":job": keys.job(job.id)})
        keys_found = [(str(item["pk"]), str(item["sk"])) for item in found]
        spare = [
            PayloadRef(job.id, keys.PAYLOAD, sk.removeprefix(keys.SPARE))
            for _, sk in keys_found
            if sk.startswith(keys.SPARE)
        ]
        payloads = dict.fromkeys([*payloads_of(job), *spare])
        in_table = {at.key for at in payloads if not at.in_bucket}
        rest = [
            (pk, sk)
            for pk, sk in keys_found
            if (pk, sk) in in_table
            or sk == keys.PROGRESS
            or sk.startswith((keys.ERROR, keys.SPARE))
        ]
        objects = [at for at in payloads if at.in_bucket]
        return rest, objects, any(sk == keys.RECORD for _, sk in keys_found)

    def _remove(self, objects: Iterable[PayloadRef], rest: Sequence[tuple[str, str]]) -> None:
        self._payloads.delete(objects)
        self._table.write_many(deletes=rest)
