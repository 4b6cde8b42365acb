"""Stores batches with more jobs than one transaction allows.

A batch is staged first: its jobs are stored, but count as missing until the batch is committed. The
item of the batch exists while the batch is staged, and the deletion of this item commits it. Claims
and reads skip the jobs of a batch whose item exists.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace as changed
from itertools import groupby
from typing import Any
from uuid import UUID

from ojs.bounded import BoundedSet
from ojs.domain import jsontext
from ojs.domain.errors import BackendContended, BackendUnavailable, OjsError
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.records import record
from ojs.store.bounds.depth_counter import CapacityUse, DepthCounter
from ojs.store.jobs import items
from ojs.store.jobs.new_jobs import IS_NEW, JobIdTaken, PreparedJob, any_own, prepare
from ojs.store.jobs.payloads import PayloadRef, PayloadStore
from ojs.store.jobs.reading import JobReader
from ojs.store.queues.due_notes import DueNotes
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.races import lost_race, unless_lost, wins
from ojs.store.table.table import MAX_TRANSACTION, Delete, Put, Table, Update
from ojs.store.table.values import Item, Value, number

# If a batch is not committed within this time (ms) of its start, the sweep undoes it.
STAGING_GRACE_MS = 300_000
# Time (ms) between the two times that a batch is undone. A write without a response was sent at
# least STAGING_GRACE_MS before, or at the end of its request. No network delivers it one hour late.
UNDONE_AGAIN_MS = 3_600_000
# Age (ms) of an uncommitted batch at which its request has certainly ended (after at most 29 s).
_ABANDONED_MS = 30_000
# Maximum number of attempts of a commit, if other requests change the items of its other writes.
_COMMITS = 16
# Time to live of a batch's item. It is longer than any outage of the sweep.
_UNDONE_KEPT_MS = 7 * 86_400_000
_REMEMBERED = 10_000
# States in the item of a batch.
_STAGING, _UNDONE = "staging", "undone"
# Calls a function for each job, possibly several at the same time.
ForEachJob = Callable[[Callable[[Job], None], Sequence[Job]], object]
# Returns the other writes of a commit with current conditions, or None if they are obsolete.
Again = Callable[[], Sequence[Put | Update] | None]


def never_again() -> None:
    """Return None: the other writes of a commit are not repeated."""


@record(frozen=True)
class UndoneBatch:
    """The result of undoing a batch: the number of removed jobs, and whether it was undone the
    first time.
    """

    jobs: int
    first: bool


class StagedBatches:
    """Stores batches, and undoes those that are not committed."""

    def __init__(
        self,
        table: Table,
        ids: IdSource,
        *,
        payloads: PayloadStore,
        records: JobReader,
        depth: DepthCounter,
        due_notes: DueNotes,
    ) -> None:
        self._table = table
        self._unrepeated = table.without_repeats()
        self._ids = ids
        self._payloads = payloads
        self._records = records
        self._depth = depth
        self._due_notes = due_notes
        # The index partition of this container's batches. A container uses one slot, so that it
        # notes one line in five minutes.
        self._line = ""
        # Batches that this container knows to be committed: that is final.
        self._committed: BoundedSet[str] = BoundedSet(_REMEMBERED)

    def create(
        self,
        jobs: Sequence[Job],
        *,
        now_ms: int,
        chosen_ids: bool,
        token: str | None = None,
        before_commit: Callable[[], None] = lambda: None,
        also: Sequence[Put | Update] = (),
        again: Again = never_again,
        each: ForEachJob | None = None,
    ) -> list[Job]:
        """Store any number of new jobs and `also`, all or none.

        A failed batch is undone immediately. After a crash, the sweep undoes it after
        STAGING_GRACE_MS.

        Args:
            jobs: The new jobs.
            now_ms: Current time in milliseconds since the epoch.
            chosen_ids: Whether a client chose one of the ids, so that it can be in use.
            token: Token of the batch. Default: generated.
            before_commit: Called after the jobs are staged. If it raises an OjsError, the batch is
                undone.
            also: Other writes of the commit's transaction.
            again: Called if a condition of `also` failed. Returns these writes with current
                conditions, for another commit of the same jobs, or None.
            each: Calls a function for each job, several at the same time. With it, each job with a
                chosen id is one write, which consumes two thirds of the units of a transaction. A
                batch that a crash left and that has one of the ids is undone first.

        Returns:
            The stored jobs.

        Raises:
            JobIdTaken: Another job has one of the ids.
            LostRace: A condition of `also` failed, and `again` returned None.
            OjsError: A write failed.
        """
        token = token or self._ids.token()
        self._line = line = self._line or keys.staged(token)
        entries = [entry for job in jobs for entry in items.due_entries(job)]
        self._due_notes.note([(line, now_ms + STAGING_GRACE_MS), *entries])
        prepared = [prepare(changed(job, batch=token), self._payloads, self._ids) for job in jobs]
        try:
            # This write is not retried. If its first attempt had no response, it could take effect
            # after the commit, and the sweep would undo committed jobs. The batch fails, and no job
            # is stored.
            self._unrepeated.put(Put(batch_item(token, prepared, now_ms, line)))
            for start in range(0, len(prepared), MAX_TRANSACTION):
                part = prepared[start : start + MAX_TRANSACTION]
                if chosen_ids and each is not None:
                    self._stage_each(part, now_ms, each)
                else:
                    self._stage(part, chosen_ids=chosen_ids)
            before_commit()
            self._commit_again(token, also, again)
        except (JobIdTaken, LostRace, OjsError):
            # The caller will retry with the same IDs, so the records of this attempt are removed
            # now. If this fails as well, the sweep removes them. A commit whose response was lost
            # is kept.
            with contextlib.suppress(OjsError):
                self.undo(token, now_ms=now_ms)
            raise
        return [changed(job, batch=None) for job, _ in prepared]

    def _stage(self, prepared: Sequence[PreparedJob], *, chosen_ids: bool) -> None:
        self._payloads.save([payload for _, payloads in prepared for payload in payloads])
        jobs = [job for job, _ in prepared]
        if not chosen_ids:
            # No other job can have the generated IDs, so the writes need no condition. A write
            # without a response can take effect late, even after the batch is undone (`undo`). It
            # is not retried, and the batch fails. If it were retried, the first attempt could make
            # a job available again that was already claimed or completed.
            self._unrepeated.write_many(puts=[items.record_of(job) for job in jobs])
            return
        # Race: another job with an ID that the client chose. The whole batch fails.
        puts = [Put(items.record_of(job), condition=IS_NEW) for job in jobs]
        lost = lost_race(lambda: self._table.transact(puts))
        if lost is not None and not any_own(lost, jobs):
            raise self.refusal(lost, jobs)

    def _stage_each(self, prepared: Sequence[PreparedJob], now_ms: int, each: ForEachJob) -> None:
        self._payloads.save([payload for _, payloads in prepared for payload in payloads])
        first, *others = [job for job, _ in prepared]
        # One before the others, so that an abandoned batch is undone once.
        self._put_new(first, now_ms)
        each(lambda job: self._put_new(job, now_ms), others)

    def _put_new(self, job: Job, now_ms: int) -> None:
        put, own = Put(items.record_of(job), condition=IS_NEW), ("made", str(job.made_by))
        # Race: another request that stores the same step of a workflow. The first one wins, and the
        # other batch fails as a whole. A try without a response finds its own record.
        lost = lost_race(lambda: self._table.put(put, own=own))
        if lost is not None and self._undo_abandoned(lost.item or {}, now_ms):
            lost = lost_race(lambda: self._table.put(put, own=own))
        if lost is not None:
            raise self.refusal(lost, [job])

    def _undo_abandoned(self, found: Item, now_ms: int) -> bool:
        """Undo the batch of a stored record, if its request has ended."""
        token = str(found.get("batch") or "")
        batch = self._table.get(keys.batch(token), keys.RECORD) if token else None
        if batch is None or now_ms - int(str(batch["created"])) < _ABANDONED_MS:
            return False
        # Race: the request is still in progress. If it commits first, nothing is undone.
        self.undo(token, now_ms=now_ms)
        return True

    def _commit_again(self, token: str, also: Sequence[Put | Update], again: Again) -> None:
        """Commit a batch, with current conditions if those of the other writes fail."""
        for _ in range(_COMMITS):
            try:
                return self._commit(token, *also)
            except LostRace:
                if (current := again()) is None:
                    raise
                also = current
        raise BackendContended("Others are changing the same item; try again.")

    def commit(self, token: str) -> bool:
        """Commit a batch whose jobs are all staged. Return false if the batch was undone.

        A batch that is already committed is not changed. Raises OjsError.
        """
        batch = self._table.get(keys.batch(token), keys.RECORD)
        return batch is None or self._end_staging(token)

    def _commit(self, token: str, *also: Put | Update) -> None:
        if not self._end_staging(token, also):
            raise BackendUnavailable(
                "The batch took too long and was rolled back. Nothing was stored."
            )

    def _end_staging(self, token: str, also: Sequence[Put | Update] = ()) -> bool:
        # Race: the sweep undoes the batch at the same time. The first change of the item wins. A
        # commit that is too late finds the state `undone`, which is kept for days, and the caller
        # is asked to retry. If the item doesn't exist, an earlier attempt of this commit succeeded.
        commit = Delete(
            keys.batch(token),
            keys.RECORD,
            condition="attribute_not_exists(pk) OR #state = :staging",
            values={":staging": _STAGING},
        )
        try:
            if also:
                self._table.transact([commit, *also])
            else:
                self._table.delete(
                    commit.pk, commit.sk, condition=commit.condition, values=commit.values
                )
        except LostRace as lost:
            if also and lost.item is None:
                # The batch is unchanged. Another item in the same transaction has changed.
                raise
            return False
        return True

    def refusal(self, lost: LostRace, jobs: Sequence[Job]) -> Exception:
        """Return the error for new jobs that could not be stored.

        It is the error of the first job whose ID is in use, or otherwise the lost race.
        """
        for found, _ in zip(lost.items, jobs, strict=False):
            if found:
                return self.id_in_use(keys.job_id(str(found["pk"])), found.get("batch"))
        return lost

    def id_in_use(self, job_id: str, token: Value | None) -> JobIdTaken | BackendUnavailable:
        """Return the error for a new job whose ID is in use.

        `token` is the token of its batch, if any.
        """
        # The record is not converted to a job, because it might have a state that only a newer
        # version knows.
        if token is not None:
            batch = self._table.get(keys.batch(str(token)), keys.RECORD)
            if batch is not None:
                # An earlier attempt of the same caller might have stored this record. Until its
                # batch is committed or undone, it is unknown whether the ID is in use.
                if batch["state"] == _UNDONE:
                    # This record was written after its batch was undone. It is removed now.
                    self._remove_jobs(str(token), batch)
                return BackendUnavailable(
                    "A batch with this id is being stored or rolled back.", retry_after_s=5
                )
        return JobIdTaken(job_id)

    def undo(self, token: str, *, now_ms: int) -> UndoneBatch:
        """Undo a batch that was never committed: remove its jobs and change the state of its item.

        Safe to repeat, also concurrently. Does nothing to a committed batch. A write of the batch
        without a response can take effect later. Such jobs count as missing as long as the batch's
        item has the state undone, and they are removed when the batch is undone again,
        UNDONE_AGAIN_MS later (`stale`). The item is kept for days after that.
        """
        # Race: the commit. After `undone` is stored, no commit can succeed. If the item is missing,
        # the batch is committed and nothing is undone.
        batch = unless_lost(
            lambda: self._table.update(
                Update(
                    keys.batch(token),
                    keys.RECORD,
                    set={"state": _UNDONE},
                    condition="attribute_exists(pk)",
                )
            )
        )
        if batch is None:
            return UndoneBatch(0, first=False)
        removed = self._remove_jobs(token, batch)
        first = "ttl" not in batch
        if first:
            self._give_back_room(token, batch, now_ms)
        else:
            self._close(token, now_ms)
        return UndoneBatch(removed, first=first)

    def _remove_jobs(self, token: str, batch: Item) -> int:
        """Remove the jobs of an undone batch. Return the number of removed job records."""
        job_ids = _ids_of(batch["ids"])
        # Payloads are removed first, also those whose records were never written, because only the
        # batch's item contains their names.
        refs: dict[str, str] = _unpacked(batch["refs"]) if "refs" in batch else {}
        self._payloads.delete(
            [PayloadRef(job_ids[int(at)], keys.PAYLOAD, ref) for at, ref in refs.items()]
        )
        # An ID that the client chose might belong to another job, so only records of this batch are
        # removed. Jobs of an undone batch are never claimed or changed, so the records that were
        # read are current.
        ours = [job for job in self._records.read_records(job_ids).values() if job.batch == token]
        generated = [job for job in ours if job.made_by is None]
        self._table.write_many(deletes=[(keys.job(job.id), keys.RECORD) for job in generated])
        chosen = [job for job in ours if job.made_by is not None]
        for start in range(0, len(chosen), MAX_TRANSACTION):
            # Race: the client stores its jobs again, after they were removed. A removal after that
            # changes nothing, because the jobs of this batch no longer exist.
            with contextlib.suppress(LostRace):
                self._table.transact(
                    [
                        Delete(
                            keys.job(job.id),
                            keys.RECORD,
                            condition="attribute_not_exists(pk) OR #batch = :batch",
                            values={":batch": token},
                        )
                        for job in chosen[start : start + MAX_TRANSACTION]
                    ]
                )
        return len(ours)

    def _give_back_room(self, token: str, batch: Item, now_ms: int) -> None:
        """Release the space that an undone batch reserved, and schedule its second undoing."""
        # Race: the request that stored the batch and the sweep undo it at the same time. One of
        # them releases the space. The other finds that the second undo is scheduled.
        again_ms = now_ms + UNDONE_AGAIN_MS
        self._due_notes.note([(str(batch["wpk"]), again_ms)])
        if not wins(
            lambda: self._table.update(
                Update(
                    keys.batch(token),
                    keys.RECORD,
                    set={
                        "wsk": keys.instant(again_ms),
                        "ttl": (now_ms + _UNDONE_KEPT_MS) // 1000,
                    },
                    remove=["held"],
                    condition="attribute_not_exists(#ttl)",
                )
            )
        ):
            return
        reserved: dict[str, list[int]] = _unpacked(batch["held"]) if "held" in batch else {}
        for queue, (count, size) in reserved.items():
            # The period is unknown in a batch that an earlier version stored.
            room = CapacityUse().plus(count, size, number(batch, "held_in"))
            self._depth.release(queue, room, now_ms=int(batch["created"]))

    def _close(self, token: str, now_ms: int) -> None:
        """Record that a batch was undone the second time, if that was due."""
        # Race: another sweep. The loser finds that it was recorded already.
        with contextlib.suppress(LostRace):
            self._table.update(
                Update(
                    keys.batch(token),
                    keys.RECORD,
                    remove=["wpk", "wsk"],
                    condition="attribute_exists(#ttl) AND #wsk <= :now",
                    values={":now": keys.instant(now_ms)},
                )
            )

    def uncommitted(self, tokens: Iterable[str]) -> set[str]:
        """Return those of these batches that are not committed.

        The tokens were read from job records.

        Each container reads the item of a committed batch once.
        """
        # The item is stored before the first record that refers to the batch, and never stored
        # again.
        unknown = {token for token in tokens if token not in self._committed}
        found = self._table.batch_get((keys.batch(token), keys.RECORD) for token in sorted(unknown))
        staged = {pk.removeprefix(keys.batch("")) for pk, _ in found}
        for token in unknown - staged:
            self._committed.add(token)
        return staged

    @staticmethod
    def undone(batches: Iterable[Item]) -> set[str]:
        """Return the tokens of the batches whose undo has started or finished."""
        return {
            str(item["pk"]).removeprefix(keys.batch(""))
            for item in batches
            if item.get("state") == _UNDONE
        }

    def stale(self, line: str, *, now_ms: int, limit: int) -> list[str]:
        """Return the tokens of batches to undo, in order of the due time.

        They were not committed in time, or are due to be undone a second time. `line` is a
        partition of `keys.staged_lines`. The index is eventually consistent. Makes one call.
        """
        found = self._table.query(
            "wpk = :staged AND wsk <= :now",
            {":staged": line, ":now": keys.instant(now_ms)},
            index="work",
            limit=limit,
        )
        return [str(item["pk"]).removeprefix(keys.batch("")) for item in found.items]


def batch_item(
    token: str, prepared: Sequence[PreparedJob], now_ms: int, line: str
) -> dict[str, Value]:
    """Return the item of a staged batch, with all data for its undo and for the stream record of
    its commit.

    Args:
        token: Token of the batch.
        prepared: Jobs of the batch.
        now_ms: Current time in milliseconds since the epoch.
        line: Its partition of the index.
    """
    jobs = [job for job, _ in prepared]
    item: dict[str, Value] = {
        "pk": keys.batch(token),
        "sk": keys.RECORD,
        "state": _STAGING,
        "created": now_ms,
        "ids": b"".join(UUID(job.id).bytes for job in jobs),
        "runs": _runs(jobs),
        "wpk": line,
        "wsk": keys.instant(now_ms + STAGING_GRACE_MS),
    }
    if refs := {str(at): job.content_ref for at, job in enumerate(jobs) if job.content_ref}:
        item["refs"] = _packed(refs)
    # [jobs, bytes] by queue. Queues with a size limit are separate, because their depth counters
    # count the jobs.
    counted: dict[str, list[int]] = {}
    uncounted: dict[str, list[int]] = {}
    for job in jobs:
        length = job.reserved_bytes or job.content_bytes or jsontext.size_of(job.content or {})
        sums = (uncounted if job.reserved_bytes is None else counted).setdefault(job.queue, [0, 0])
        sums[0] += 1
        sums[1] += length
    if counted:
        item["held"] = _packed(counted)
        # The same value applies to all jobs, because they were enqueued in one request.
        item["held_in"] = max(job.reserved_in or 0 for job in jobs)
    if uncounted:
        # The projection counts these jobs, for a size limit that might be set later.
        item["loose"] = _packed(uncounted)
    return item


def _runs(jobs: Sequence[Job]) -> bytes:
    """Pack jobs as runs of equal values: [number, type, queue, state, priority, start]."""
    alike = groupby(
        (job.type, job.queue, job.state, job.priority, job.scheduled_ms) for job in jobs
    )
    runs = [[sum(1 for _ in same), *what] for what, same in alike]
    return _packed(runs)


def _packed(value: Any) -> bytes:
    return zlib.compress(jsontext.dumps(value).encode("utf-8"))


def _unpacked(packed: Any) -> Any:
    return jsontext.stored(zlib.decompress(bytes(packed)).decode("utf-8"))


def _ids_of(packed: Any) -> list[str]:
    raw = bytes(packed)
    return [str(UUID(bytes=raw[start : start + 16])) for start in range(0, len(raw), 16)]
