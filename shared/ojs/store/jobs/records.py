"""Job records: all conditional writes of a job record.

The writes have these conditions:

- create: no record has this ID
- claim, ack, extend: the job is in the expected state, under the expected lease. The record is not
  read before.
- replace: compare-and-swap. The record still has the version (`op`) or the lease that was read.

Before a write that gives a job a start time, a deadline, or a lease, that time is noted, so that
the sweep reads its line (`ojs.store.queues.due_notes`).

Every write stores a new token in `op`. If a response is lost and the SDK retries, the condition
fails, but the record has the token of this write: the write succeeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from dataclasses import replace as changed
from typing import Any, Literal

from ojs.bounded import BoundedMap
from ojs.domain import jsontext
from ojs.domain.errors import BackendTimeout, BackendUnavailable, OjsError, UnknownForm
from ojs.domain.fair_queue.tags import Share
from ojs.domain.ids import IdSource
from ojs.domain.job.failure import ErrorEntry, Failure
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, MISSING, Job, JobPermits
from ojs.domain.job.permits import RunPermits
from ojs.domain.job.retention import RETENTION
from ojs.domain.job.states import State, Trigger, sources
from ojs.records import record
from ojs.store.bounds.depth_counter import DepthCounter
from ojs.store.jobs import items
from ojs.store.jobs.finding import JobIndex
from ojs.store.jobs.lease_notes import ClaimIntents
from ojs.store.jobs.new_jobs import IS_NEW, PreparedJob, any_own, is_own, prepare
from ojs.store.jobs.payloads import PayloadRef, PayloadStore
from ojs.store.jobs.progress import JobProgress
from ojs.store.jobs.reading import JobReader
from ojs.store.jobs.removal import JobRemoval
from ojs.store.jobs.staged_batches import StagedBatches
from ojs.store.queues.due_notes import DueNotes
from ojs.store.table import keys
from ojs.store.table.errors import LostRace, WriteNotApplied
from ojs.store.table.races import wins
from ojs.store.table.table import Check, OwnMark, Put, Table, Update
from ojs.store.table.values import Value, number

_UNSETTLED = 100


@record(frozen=True)
class Addition:
    """Further changes in a write that renews a lease, and their conditions."""

    compute: Mapping[str, str]
    conditions: Sequence[str] = ()
    values: Mapping[str, Value] = field(default_factory=dict)


# Numbers a new checkpoint: the next number is in the record that the write returns.
NEXT_CHECKPOINT = Addition(
    {items.CHECKPOINTS: f"if_not_exists(#{items.CHECKPOINTS}, :zero) + :one"},
    values={":zero": 0, ":one": 1},
)


def winner(lost: LostRace, *, known_only: bool = False) -> Job | None:
    """Return the job that the winner of a lost race stored, or None if there is none.

    If only a newer version knows the format of the job, UnknownForm is raised. With `known_only`,
    the result is None instead, for callers that have other jobs to process.
    """
    if not lost.item or "state" not in lost.item:
        return None
    try:
        return items.job_of(lost.item)
    except UnknownForm:
        if known_only:
            return None
        raise


class JobStore(JobReader):
    """Reads and writes job records.

    Other items of a job have separate classes: `index` finds jobs, `notes` lists claimed jobs for
    the sweep, `batches` stores large batches, `progress` stores progress reports, `removal` deletes
    jobs permanently. `ojs.services.permits.lifecycle` acquires and releases the permits of jobs.
    """

    def __init__(
        self,
        table: Table,
        payloads: PayloadStore,
        ids: IdSource,
        *,
        depth: DepthCounter,
        due_notes: DueNotes,
    ) -> None:
        super().__init__(table, payloads)
        self._ids = ids
        self._due_notes = due_notes
        self.index = JobIndex(table)
        self.notes = ClaimIntents(table, ids)
        self.progress = JobProgress(table)
        self.removal = JobRemoval(table, payloads, ids, depth)
        self.batches = StagedBatches(
            table, ids, payloads=payloads, records=self, depth=depth, due_notes=due_notes
        )
        # New jobs whose creation has an unknown outcome, by ID. For a transaction, only the first
        # job.
        self.unsettled: BoundedMap[str, Job] = BoundedMap(_UNSETTLED)

    def _note(self, *jobs: Job) -> None:
        """Note the lines of jobs that are about to wait for a time. Raises OjsError."""
        self._due_notes.note(entry for job in jobs for entry in items.due_entries(job))

    # --- new jobs ---------------------------------------------------------------------------

    def prepare(self, job: Job) -> PreparedJob:
        """Give a job its write token, and decide whether its content is stored in its record."""
        return prepare(job, self._payloads, self._ids)

    def create(self, job: Job, also: Sequence[Put | Update] = ()) -> Job:
        """Write a new job, together with the writes `also` in one transaction.

        Raises:
            JobIdTaken: A job with the ID exists.
            LostRace: A condition of `also` failed.
        """
        self._note(job)
        job, payloads = self.prepare(job)
        self._payloads.save(payloads)
        # Race: two enqueues with the same ID, which the client chose. The loser finds the winner's
        # record and stores nothing. Its payload, which has a separate name, is removed again.
        record = Put(items.record_of(job), condition=IS_NEW)
        try:
            if also:
                self._table.transact([record, *also])
            else:
                self._table.put(record)
        except WriteNotApplied:
            with suppress(OjsError):
                self._payloads.delete([at for at, _ in payloads])
            raise
        except LostRace as lost:
            found = lost.item
            if is_own(found, job):
                return job
            named = (found or {}).get("payload")
            self._payloads.delete([at for at, _ in payloads if at.ref != named])
            if found is not None:
                raise self.batches.id_in_use(job.id, found.get("batch")) from None
            raise
        except (BackendUnavailable, BackendTimeout):
            if not self._is_stored_after_all(job):
                raise
        return job

    def create_all(self, jobs: Sequence[Job], also: Sequence[Put | Update] = ()) -> list[Job]:
        """Write up to 100 new jobs and the writes `also` (100 writes in total), all or none.

        Raises:
            JobIdTaken: A job with one of the IDs exists.
            LostRace: A condition of `also` failed.
        """
        self._note(*jobs)
        prepared = [self.prepare(job) for job in jobs]
        stored = [job for job, _ in prepared]
        payloads = [payload for _, of_job in prepared for payload in of_job]
        self._payloads.save(payloads)
        try:
            records = [Put(items.record_of(job), condition=IS_NEW) for job in stored]
            self._table.transact([*records, *also])
        except WriteNotApplied:
            with suppress(OjsError):
                self._payloads.delete([at for at, _ in payloads])
            raise
        except LostRace as lost:
            if not any_own(lost, stored):
                self._payloads.delete(at for at, _ in payloads)
                raise self.batches.refusal(lost, stored) from None
        except (BackendUnavailable, BackendTimeout):
            if not self._is_stored_after_all(stored[0]):
                raise
        return stored

    def is_stored(self, job: Job) -> bool:
        """Return whether the record of a new job exists with its prepared content.

        Raises OjsError.
        """
        return is_own(self._table.get(keys.job(job.id), keys.RECORD), job)

    def _is_stored_after_all(self, job: Job) -> bool:
        """Return whether the record of a new job exists after a write without a response."""
        with suppress(OjsError):
            if self.is_stored(job):
                return True
        self.unsettled.put(job.id, job)
        return False

    # --- changes by the worker, without reading first ---------------------------------------

    def claim(
        self,
        job_id: str,
        position: keys.Position,
        *,
        queue: str,
        lane: int,
        now_ms: int,
        lease_ms: int,
        worker_id: str | None,
        permits: JobPermits,
        fenced: bool = False,
        noted: bool = False,
        due: Job | None = None,
    ) -> Job:
        """Claim a job for a worker: `available` to `active`.

        One conditional write. Of all concurrent claims, exactly one succeeds.

        Args:
            job_id: ID of the job.
            position: Index key of the job, as read from the index.
            queue: Queue of the job.
            lane: Lane of the queue, 0 to `lanes - 1`.
            now_ms: Current time in milliseconds since the epoch.
            lease_ms: Duration of the lease in milliseconds.
            worker_id: ID of the worker, or None.
            permits: Concurrency permits that were acquired for the job.
            fenced: Whether reports on this job must include the lease token.
            noted: Whether a lease note exists (`ClaimIntents`). If false, the write also creates a
                due entry.
            due: The record of a `scheduled` or `retryable` job whose time has come. The write then
                performs both transitions. None for an `available` job.

        Returns:
            The job with its new lease.

        Raises:
            LostRace: Another request changed the job first. Nothing was written.
        """
        line = keys.due(queue, lane)
        due_ms = now_ms + min(lease_ms, position.timeout_ms or DEFAULT_TIMEOUT_MS)
        if not noted:
            self._due_notes.note([(line, due_ms)])
        token = self._ids.token()
        entry: dict[str, Value] = {"wpk": line, "wsk": keys.due_at(due_ms, keys.LEASE_END)}
        setting: dict[str, Value] = {
            "state": State.ACTIVE.value,
            **({} if noted else entry),
            "started": now_ms,
            "lease": token,
            "lease_until": now_ms + lease_ms,
            "lease_ms": lease_ms,
            "beat": now_ms,
            "op": token,
        }
        optional: dict[str, Value | None] = {
            "worker": worker_id,
            "permits": None if permits.run is None else permits.run.compact(),
            "pool": permits.pool,
            "fenced": 1 if fenced else None,
        }
        setting |= {name: value for name, value in optional.items() if value is not None}
        # Race: other fetches, a cancel, a promotion to another position, a stale index. One write
        # wins. The losers find another state or position and try the next job. The position is
        # compared, because it contains data that this claim relies on. The partition is compared,
        # because a job that was moved to another queue can have an equal position there.
        condition = "#state = :available AND #wpk = :line AND #wsk = :seen"
        values: dict[str, Value] = {
            ":available": State.AVAILABLE.value,
            ":line": keys.ready(queue, lane),
            ":seen": position.key(),
        }
        if due is not None:
            setting["enqueued"] = now_ms
            # Race: any change since the job was read, including a claim or a promotion by another
            # fetch.
            condition, values = "#op = :seen", {":seen": due.op or ""}
        item = self._table.update(
            Update(
                keys.job(job_id),
                keys.RECORD,
                set=setting,
                compute={"attempt": "if_not_exists(#attempt, :zero) + :one"},
                # A deadline has no effect after the start, so the job is removed from the index
                # `expiry`.
                remove=["batch", "epk", "esk", "stalled", "retry_at"]
                + ([] if due is None or due.durable.waits is None else [items.WAITS])
                + [
                    name
                    for name in ("worker", "pool", "permits", "fenced", "wpk", "wsk")
                    if name not in setting
                ],
                condition=f"{condition} AND (attribute_not_exists(#expires) OR #expires > :now)",
                values={**values, ":now": now_ms, ":zero": 0, ":one": 1},
            ),
            own=("op", token),
        )
        return items.job_of(item)

    def ack(
        self,
        job_id: str,
        *,
        now_ms: int,
        worker_id: str | None = None,
        attempt: int | None = None,
        lease_token: str | None = None,
        result: Any = MISSING,
    ) -> Job:
        """Complete a job: `active` to `completed`.

        Args:
            job_id: ID of the job.
            now_ms: Current time in milliseconds since the epoch.
            worker_id: ID of the reporting worker. None: not checked.
            attempt: Number of the reported attempt. None: not checked.
            lease_token: Lease token of the run. None: not checked, unless the run is fenced.
            result: Result of the job, a JSON value. Default: no result.

        Raises:
            LostRace: The job isn't active, isn't under the caller's lease, or stores no result.
        """
        token = self._ids.token()
        setting: dict[str, Value] = {
            "state": State.COMPLETED.value,
            "completed": now_ms,
            "op": token,
        }
        own: OwnMark = ("op", token)
        offloaded: PayloadRef | None = None
        if result is not MISSING:
            payload = jsontext.dumps(result)
            size = len(payload.encode("utf-8"))
            if size <= items.INLINE_RESULT_BYTES:
                setting["result"] = payload
            else:
                offloaded = self._payloads.new_ref(job_id, keys.RESULT, token, size)
                setting["result_ref"] = offloaded.ref
                # This attribute is kept when the record is changed later, in contrast to `op`.
                own = ("result_ref", offloaded.ref)
                self._payloads.save([(offloaded, payload)])
        # Race: the lease expired and another worker claimed the job, or the job was cancelled or
        # finished. The loser receives the stored state, worker, and attempt.
        conditions, values = _lease_owner_condition(worker_id, attempt, lease_token, demanded=True)
        values |= {":now_s": now_ms // 1000, ":keep": RETENTION.completed_s}
        if result is not MISSING:
            # A later step of a workflow and a parent need the result, even if clients don't.
            conditions.append(
                f"(attribute_not_exists(#{items.RESULT_TTL}) OR #{items.RESULT_TTL} > :none"
                " OR attribute_exists(#wf) OR attribute_exists(#pa))"
            )
            values[":none"] = 0
        try:
            item = self._table.update(
                Update(
                    keys.job(job_id),
                    keys.RECORD,
                    set=setting,
                    compute={"ttl": f"if_not_exists(#{items.KEEP_COMPLETED}, :keep) + :now_s"},
                    remove=[
                        "wpk", "wsk", "epk", "esk", "expires", "lease", "lease_until", "lease_ms",
                        "beat",
                    ],
                    condition=" AND ".join(conditions),
                    values=values,
                ),
                own=own,
            )  # fmt: skip
        except (LostRace, WriteNotApplied):
            if offloaded is not None:
                self._payloads.delete([offloaded])
            raise
        return changed(items.job_of(item), result=result)

    def extend(
        self,
        job_id: str,
        *,
        now_ms: int,
        worker_id: str | None,
        lease_ms: int | None = None,
        lease_token: str | None = None,
        also: Addition | None = None,
    ) -> Job:
        """Renew a lease, by its own length or by `lease_ms`.

        Changes no index key, so it costs one write unit. The due entry keeps the first end of the
        lease. The sweep that finds the entry moves it. A lease is never shortened.

        Args:
            job_id: ID of the job.
            now_ms: Current time in milliseconds since the epoch.
            worker_id: ID of the worker. None: not checked.
            lease_ms: New length of the lease in milliseconds, also for later renewals.
            lease_token: Lease token of the run. A fenced run requires it if `worker_id` is None.
            also: Further changes in the same write. A fenced run then requires the lease token.

        Raises:
            LostRace: The job isn't active under the caller's lease, the lease already ends later,
                or a condition of `also` failed.
        """
        token = self._ids.token()
        setting: dict[str, Value] = {"op": token, "beat": now_ms}
        compute: dict[str, str] = {}
        # Race: the job was finished, cancelled, or released after its lease expired. The loser
        # receives the new owner. A heartbeat identifies its run by the worker ID. A progress report
        # can be without a worker ID.
        conditions, values = _lease_owner_condition(
            worker_id, None, lease_token, demanded=worker_id is None or also is not None
        )
        if also is not None:
            # After a lost response, the same write must not count twice.
            conditions += ["#op <> :set_op", *also.conditions]
            compute |= also.compute
            values |= also.values
        # Race: a container whose clock is ahead renewed the lease, or this is an earlier write that
        # takes effect late. The loser receives the later time.
        conditions.append("(attribute_not_exists(#beat) OR #beat <= :now)")
        values[":now"] = now_ms
        if lease_ms is None:
            compute["lease_until"] = ":now + #lease_ms"
        else:
            # The length of the lease is also compared: a later heartbeat or progress report must
            # not make the lease shorter.
            setting |= {"lease_until": now_ms + lease_ms, "lease_ms": lease_ms}
            conditions.append("#lease_until <= :until")
            values[":until"] = now_ms + lease_ms
        update = Update(
            keys.job(job_id),
            keys.RECORD,
            set=setting,
            compute=compute,
            condition=" AND ".join(conditions),
            values=values,
        )
        try:
            return items.job_of(self._table.update(update, own=("op", token)))
        except LostRace as lost:
            latest_ms = number(lost.item or {}, "beat")
            if latest_ms <= now_ms:
                raise
        return self.extend(
            job_id,
            now_ms=latest_ms,
            worker_id=worker_id,
            lease_ms=lease_ms,
            lease_token=lease_token,
            also=also,
        )

    # --- changes of a record that was read --------------------------------------------------

    def replace(
        self,
        before: Job,
        after: Job,
        *,
        failure: Failure | None = None,
        reported: bool = False,
        guard: Literal["op", "lease"] = "op",
        also: Sequence[Put | Check] = (),
    ) -> Job:
        """Compare-and-swap of a job record.

        Args:
            before: The job as read.
            after: The changed job.
            failure: An error to record in the same write, if the record has space for it. Errors in
                separate items (`noting`) are written first: if the process crashes in between, the
                job is unchanged, and its lease expires.
            reported: Whether a worker reported the failure. Such an error is never overwritten by
                one that the backend observed.
            guard: What must not have changed since `before` was read: the version (`op`) or the
                lease.
            also: Further writes and checks, in one transaction with the record.

        Returns:
            The stored job.

        Raises:
            LostRace: The job has changed, or a condition of `also` failed.
        """
        apart: Put | None = None
        if failure is not None:
            after, apart = self.noting(before, after, failure, reported=reported)
        after, update = self.replacing(before, after, guard=guard)
        if apart is not None:
            self._add(apart)
        if also:
            self._transact([after], [update, *also])
        else:
            self._table.update(update, own=("op", update.set["op"]))
        return after

    def replace_all(
        self, changes: Sequence[tuple[Job, Job]], also: Sequence[Put | Update] = ()
    ) -> list[Job]:
        """Replace several job records, and make the writes `also`: all or none.

        Raises:
            LostRace: A record has changed since it was read, or a condition of `also` failed.
        """
        made = [self.replacing(before, after) for before, after in changes]
        stored = [after for after, _ in made]
        self._transact(stored, [*(update for _, update in made), *also])
        return stored

    def _transact(self, stored: Sequence[Job], writes: Sequence[Put | Update | Check]) -> None:
        """Make the writes of these jobs, which are the first ones, and others. Raises LostRace."""
        try:
            self._table.transact(writes)
        except LostRace as lost:
            # If an earlier attempt succeeded and its response was lost, all stored records have our
            # tokens.
            records = zip(lost.items, stored, strict=False)
            if not all(found and found.get("op") == after.op for found, after in records):
                raise

    def replacing(
        self, before: Job, after: Job, *, guard: Literal["op", "lease"] = "op"
    ) -> tuple[Job, Update]:
        """Return the write of `replace` for a transaction that follows soon.

        Args:
            before: Job as read.
            after: Job to store.
            guard: Attribute that must be unchanged: the version (`op`) or the lease.

        Returns:
            The job as it will be stored, and the write.

        Raises:
            OjsError: A call failed. Nothing was written.
        """
        self._note(after)
        # Only an active job has concurrency permits.
        if after.state is not State.ACTIVE:
            after = changed(
                after, permits=None, queue_permit=False, pool_permits="", key_permit=None
            )
        after = changed(after, op=self._ids.token())
        old, new = items.record_of(before), items.record_of(after)
        setting = {name: value for name, value in new.items() if old.get(name) != value}
        # After a heartbeat, the stored due entry can differ from the one computed from the record.
        # So index keys are always written.
        setting |= {name: new[name] for name in ("wpk", "wsk") if name in new}
        removing = [name for name in old if name not in new]
        removing += [n for n in ("wpk", "wsk") if n not in new and n not in removing]
        values: dict[str, Value]
        if guard == "op":
            # Race: any change of the record since it was read, including a heartbeat. The loser
            # reads again and decides again.
            condition, values = "#op = :seen", {":seen": before.op or ""}
        else:
            # Race: the lease was lost in the meantime. A heartbeat in between is not a conflict.
            condition = "#state = :active AND #lease = :lease"
            values = {
                ":active": State.ACTIVE.value,
                ":lease": before.lease.token if before.lease else "",
            }
        if before.state is State.ACTIVE:
            # Race: a permit is recorded for a job that was claimed before there was a limit. The
            # loser would not release the permit, so it reads again.
            condition += f" AND {_same_permits(before)}"
            values |= _permit_values(before)
        return after, Update(
            keys.job(before.id),
            keys.RECORD,
            set=setting,
            remove=removing,
            condition=condition,
            values=values,
        )

    def noting(
        self, before: Job, after: Job, failure: Failure, *, reported: bool = False
    ) -> tuple[Job, Put | None]:
        """Return `after` with the error of `before`.

        If the record is too small, older errors are moved.

        Args:
            before: Job that failed, as read.
            after: Job to store.
            failure: The error.
            reported: Whether a worker reported the error.

        Returns:
            The job with the error. If the record has no space for it, also the item of the error,
                which the caller must write before the record or with it.

        Raises:
            OjsError: A call failed.
        """
        entry = items.entry(before, failure, reported=reported)
        place = items.error_key(entry)
        others = tuple(one for one in before.noted if items.error_key(one) != place)
        if any(one not in others and not entry.replaces(one) for one in before.noted):
            return after, None
        for leaving in range(len(others) + 1):
            noted = changed(after, noted=(*others[leaving:], entry))
            if items.has_room(before, noted):
                # If the process crashes now, these errors are stored in both places. Readers merge
                # them.
                for one in others[:leaving]:
                    self._add(_apart(before.id, one))
                return noted, None
        return changed(after, noted=others), _apart(before.id, entry)

    def _add(self, entry: Put) -> None:
        # Race: another function writes the same error, or the stored error has more details about
        # the same run.
        with suppress(LostRace):
            self._table.put(entry)

    def note_permits(self, job: Job, permits: RunPermits) -> bool:
        """Record additional permits of an active job.

        Return false if the job has lost this lease, or if other permits were
        recorded in the meantime.
        """
        # Race: the job finishes and would not release the permit, or another sweep records one. The
        # loser releases the permit that it acquired for the job. The name distinguishes our permit
        # from the other.
        noted = permits.compact()
        return wins(
            lambda: self._table.update(
                Update(
                    keys.job(job.id),
                    keys.RECORD,
                    set={"permits": noted},
                    condition=f"#state = :active AND #lease = :lease AND {_same_permits(job)}",
                    values={
                        ":active": State.ACTIVE.value,
                        ":lease": job.lease.token if job.lease else "",
                        **_permit_values(job),
                    },
                ),
                own=("permits", noted),
            )
        )

    def tag(self, job: Job, share: Share, order: str | None) -> bool:
        """Store a job's share of its tenant, and the order of an available job.

        Nothing else changes, not even the version (`op`). So an enqueue whose response was lost
        still finds its own record, and concurrent changes succeed.

        Args:
            job: Job as read.
            share: Share of the tenant.
            order: Order in the ready index, or None if the job isn't available.

        Returns:
            False if the job has changed.
        """
        tagged_job = changed(job, share=share, order=order)
        setting: dict[str, Value] = {"fair": share.compact()}
        condition, values = "#op = :seen", {":seen": job.op or ""}
        own: OwnMark | None = None
        if order is not None:
            setting["wsk"] = items.position(tagged_job).key()
            own = ("wsk", setting["wsk"])
            condition += " AND #wsk = :position"
            values[":position"] = items.position(job).key()
        # Race: a claim, a cancel, a promotion, or another backfill. The loser does not change the
        # job. If the job still needs a tag, the next backfill finds it.
        return wins(
            lambda: self._table.update(
                Update(
                    keys.job(job.id), keys.RECORD, set=setting, condition=condition, values=values
                ),
                own=own,
            )
        )

    def file_running(self, job: Job) -> None:
        """Create the due entry of an active job in the index, or move it to the end of the job's
        lease.

        Does nothing if the lease has expired. Raises OjsError.
        """
        line = keys.due(job.queue, job.lane)
        self._due_notes.note([(line, job.due_ms)])
        # The version (`op`) stays: if a nack is about to be written, the entry is still right.
        # Race: the job finished, or runs again with a new note. A heartbeat or another sweep in
        # between does no harm: the sweep that finds the entry moves it to the end of the lease.
        with suppress(LostRace):
            self._table.update(
                Update(
                    keys.job(job.id),
                    keys.RECORD,
                    set={
                        "wpk": line,
                        "wsk": keys.due_at(job.due_ms, keys.LEASE_END),
                    },
                    condition="#state = :active AND #lease = :lease",
                    values={
                        ":active": State.ACTIVE.value,
                        ":lease": job.lease.token if job.lease else "",
                    },
                )
            )


def _apart(job_id: str, entry: ErrorEntry) -> Put:
    """Return the write of an error of the error history as a separate item."""
    # Races: a worker reports on the attempt that the sweep finishes. The worker's error has more
    # details and replaces the backend's. An error can also exist from an earlier run, because
    # releasing a job does not count the attempt. It is replaced, but an error of a later run is
    # not. Runs are compared by their leases, because clocks differ. Readers compare in the same way
    # (`ErrorEntry.replaces`).
    condition = "attribute_not_exists(pk) OR #occurred <= :occurred OR #lease = :lease"
    if not entry.reported:
        condition = "attribute_not_exists(pk) OR (#occurred <= :occurred AND #lease <> :lease)"
    values: dict[str, Value] = {
        ":occurred": entry.failure.occurred_ms,
        ":lease": entry.run or "",
    }
    return Put(items.error(job_id, entry), condition=condition, values=values)


def _same_permits(job: Job) -> str:
    """Return the condition that a job record still has the same permits."""
    return "attribute_not_exists(#permits)" if job.permits is None else "#permits = :permits"


def _permit_values(job: Job) -> dict[str, Value]:
    return {} if job.permits is None else {":permits": job.permits.compact()}


def _lease_owner_condition(
    worker_id: str | None, attempt: int | None, lease_token: str | None, *, demanded: bool = True
) -> tuple[list[str], dict[str, Value]]:
    """Return the condition that the job is active, and that its lease is the caller's.

    If `demanded` is true, the caller must send the lease token if the job's queue requires it.
    """
    (active,) = sources(Trigger.ACK)
    conditions = ["#state = :active"]
    values: dict[str, Value] = {":active": active.value}
    if worker_id is not None:
        # If a job was fetched without a worker ID, any caller can finish it.
        conditions.append("(attribute_not_exists(#worker) OR #worker = :worker)")
        values[":worker"] = worker_id
    if attempt is not None:
        conditions.append("#attempt = :attempt")
        values[":attempt"] = attempt
    if lease_token is not None:
        conditions.append("#lease = :lease")
        values[":lease"] = lease_token
    elif demanded:
        # Race: a previous owner without a lease token reports on the run of another worker. In a
        # queue that requires the token, the loser receives an error that asks for the token.
        conditions.append("attribute_not_exists(#fenced)")
    return conditions, values
