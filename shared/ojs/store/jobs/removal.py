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
    """Deletes jobs: the job record first, then all other items and objects of the job."""

    def __init__(
        self, table: Table, payloads: PayloadStore, ids: IdSource, depth: DepthCounter
    ) -> None:
        self._depth = depth
        self._table = table
        self._payloads = payloads
        self._ids = ids

    def mark_deleting(self, job: Job) -> Job:
        """Mark a dead letter as deleted on request, and return it with the mark.

        Without the mark, the last stream record of the job could not show the reason of the
        deletion. Raises LostRace.
        """
        # Race: a retry, or pruning. The loser reads again and decides again.
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
        """Delete a job with all its items and objects. Raises LostRace if the job has changed."""
        # The job's other items are listed first, because a new job can have the same ID afterwards.
        # If the process crashes in between, the stream record of the deleted job record leads to
        # the same cleanup (`remove_rest`).
        rest, objects, _ = self._belongings(job)
        # Race: a retry that made the job available again. The loser finds that the job exists. If
        # an earlier attempt or another caller deleted it already, the request succeeds.
        lost = lost_race(lambda: self._delete_record(job))
        if lost is not None and lost.item is not None:
            raise lost
        self._remove(objects, rest)

    def prune(self, job: Job) -> bool:
        """Delete the record of a dead letter as read.

        Return false if it has changed. Makes one call.

        The other items are deleted when the stream record of the deletion is projected
        (`remove_rest`).
        """
        # Race: a retry, a replay, or a deletion on request. The loser changes nothing. A record
        # that is already deleted counts as deleted by this call.
        lost = lost_race(lambda: self._delete_record(job))
        return lost is None or lost.item is None

    def _delete_record(self, job: Job) -> None:
        if job.reserved_in is not None:
            self._depth.note_removal(job.queue, job.reserved_in, now_ms=self._ids.now_ms())
        self._table.delete(
            keys.job(job.id), keys.RECORD, condition="#op = :seen", values={":seen": job.op or ""}
        )

    def remove_rest(self, job: Job) -> int:
        """Delete the remaining items of a deleted job record. Return their number.

        Does nothing if a new job has the same ID.
        """
        rest, objects, in_use = self._belongings(job)
        if in_use:
            return 0
        self._remove(objects, rest)
        return len(rest)

    def _belongings(self, job: Job) -> tuple[list[tuple[str, str]], list[PayloadRef], bool]:
        """Return the keys of a job's other items, the keys of its objects, and whether it has a
        record.

        A payload with another name might belong to a new job with the same ID, whose record is
        written next. Errors and progress are written only if a record exists. The same is true for
        the notes of payloads that a change might have left (`ojs.store.jobs.payload_change`).
        """
        found = self._table.query_all("pk = :job", {":job": keys.job(job.id)})
        keys_found = [(str(item["pk"]), str(item["sk"])) for item in found]
        spare = [
            PayloadRef(job.id, keys.PAYLOAD, sk.removeprefix(keys.SPARE))
            for _, sk in keys_found
            if sk.startswith(keys.SPARE)
        ]
        states = [
            PayloadRef(job.id, keys.CHECKPOINT, str(item["ref"]))
            for item in found
            if item["sk"] == keys.CHECKPOINT and "ref" in item
        ]
        payloads = dict.fromkeys([*payloads_of(job), *spare, *states])
        in_table = {at.key for at in payloads if not at.in_bucket}
        rest = [
            (pk, sk)
            for pk, sk in keys_found
            if (pk, sk) in in_table
            or sk in (keys.PROGRESS, keys.CHECKPOINT)
            or sk.startswith((keys.ERROR, keys.SPARE, keys.STEP, keys.UNTIL))
        ]
        objects = [at for at in payloads if at.in_bucket]
        return rest, objects, any(sk == keys.RECORD for _, sk in keys_found)

    def _remove(self, objects: Iterable[PayloadRef], rest: Sequence[tuple[str, str]]) -> None:
        self._payloads.delete(objects)
        self._table.write_many(deletes=rest)
