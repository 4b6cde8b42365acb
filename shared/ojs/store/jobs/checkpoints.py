"""Checkpoints: the latest saved state of a job, in an item of the job's partition.

A write of the job record numbers each checkpoint under the lease of its worker. The number is
stored with the state, so a late write of an earlier owner, whose number is smaller, changes
nothing. A large state is stored in the bucket, under the number.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from typing import Any

from ojs.domain import jsontext
from ojs.domain.job.durable import Checkpoint
from ojs.domain.job.job import Job
from ojs.store.jobs.payloads import MAX_ITEM_BYTES, PayloadRef, PayloadStore, packed, payload_of
from ojs.store.table import keys
from ojs.store.table.errors import Unreadable, UnreadableItem
from ojs.store.table.races import won_or
from ojs.store.table.table import Put, Table
from ojs.store.table.values import Item, Value, size

# Size of the item without the state, in bytes.
_BESIDE = 110


class CheckpointStore:
    """Reads and writes checkpoints."""

    def __init__(self, table: Table, payloads: PayloadStore) -> None:
        self._table = table
        self._payloads = payloads

    def put(self, job: Job, state: Any, more: Mapping[str, Any], *, now_ms: int) -> None:
        """Store a checkpoint under its number, which `job` has. A later one is kept.

        Args:
            job: The job, from the write that numbered the checkpoint.
            state: The state, a JSON value.
            more: Other fields to store with it.
            now_ms: Current time in milliseconds since the epoch.
        """
        text = jsontext.dumps({"state": state, **more})
        content = packed(text, _BESIDE)
        if size(content) > MAX_ITEM_BYTES:
            ref = f"s3:{job.created_ms}-{job.durable.checkpoints}"
            at = PayloadRef(job.id, keys.CHECKPOINT, ref)
            # If the process crashes before the item is written, `ojs-aws gc` deletes the object.
            self._payloads.save([(at, text)])
            content = {"ref": at.ref}
        self._replace(job, content, "<", now_ms)

    def clear(self, job: Job, *, now_ms: int) -> None:
        """Delete the checkpoint of a job that can run again, with its object.

        Its number is kept, so that a late write of an earlier owner changes nothing.
        """
        if _may_have(job):
            self._replace(job, {}, "<=", now_ms)

    def _replace(self, job: Job, content: Item, than: str, now_ms: int) -> None:
        number = job.durable.checkpoints
        item: Item = {
            "pk": keys.job(job.id),
            "sk": keys.CHECKPOINT,
            "seq": number,
            # The clock of the container that created the job can be ahead.
            "at": max(now_ms, job.created_ms),
            **content,
        }
        values: dict[str, Value] = {":seq": number, ":born": job.created_ms}
        # Races: a later checkpoint of this job. The loser has been replaced. Or the item is that of
        # an earlier job with the same ID.
        condition = f"attribute_not_exists(pk) OR #seq {than} :seq OR #at < :born"
        put = Put(item, condition=condition, values=values)
        left = won_or(
            lambda: self._table.put(put, own=("seq", number), tell_old=True), lambda _: item
        )
        self._payloads.delete(_objects(job.id, left))

    def loaded(self, jobs: Sequence[Job], unreadable: Unreadable | None = None) -> list[Job]:
        """Return the same jobs with their checkpoints. Makes one call.

        `unreadable` is called for each job with a damaged checkpoint, which is then returned
        without content. If it is None, UnreadableItem is raised.
        """
        for last in (False, True):
            try:
                return self._loaded(jobs)
            except UnreadableItem as error:
                # A later checkpoint might have replaced the object of one that was just read.
                if last and unreadable is None:
                    raise
                damaged = error
        assert unreadable is not None
        if len(jobs) > 1:
            return [one for job in jobs for one in self.loaded([job], unreadable)]
        unreadable(damaged.what, damaged)
        return [changed(job, content=None) for job in jobs]

    def _loaded(self, jobs: Sequence[Job]) -> list[Job]:
        wanted = {job.id: (keys.job(job.id), keys.CHECKPOINT) for job in jobs if _may_have(job)}
        found = self._table.batch_get(wanted.values()) if wanted else {}
        return [
            changed(job, checkpoint=self._read(job, found[wanted[job.id]]))
            if job.id in wanted and wanted[job.id] in found
            else job
            for job in jobs
        ]

    def _read(self, job: Job, item: Item) -> Checkpoint | None:
        number, at_ms = int(item["seq"]), int(item["at"])
        if number <= job.durable.cleared or at_ms < job.created_ms:
            return None
        try:
            if "ref" in item:
                at = PayloadRef(job.id, keys.CHECKPOINT, str(item["ref"]))
                text = self._payloads.load([at])[at]
            else:
                if not item.keys() & {"text", "zip"}:
                    return None
                text = payload_of(item)
            more = jsontext.stored(text)
            state = more.pop("state")
        except (KeyError, ValueError, zlib.error) as error:
            raise UnreadableItem(f"job {job.id}", error) from error
        return Checkpoint(state, number, at_ms, more, len(text.encode()))

    def remove(self, job: Job) -> None:
        """Delete the checkpoint of a job, with its object. Does nothing if there is none."""
        gone = self._table.take(keys.job(job.id), keys.CHECKPOINT)
        self._payloads.delete(_objects(job.id, gone))


def _may_have(job: Job) -> bool:
    return job.durable.resumable and (job.dead_letter or not job.state.terminal)


def _objects(job_id: str, item: Item | None) -> list[PayloadRef]:
    """Return the object of an item, if it has one."""
    if item is None or "ref" not in item:
        return []
    return [PayloadRef(job_id, keys.CHECKPOINT, str(item["ref"]))]
