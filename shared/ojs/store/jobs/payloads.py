"""Offloaded payloads: contents and results that are too large for the job record.

They are stored in separate items in the partition of the job record, or in the bucket if they are
very large. A payload is written before the job record that refers to it, and never changed. Its
name has a random token, so the payload of a write that lost a race never overwrites the winner's.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from ojs.domain.job.job import Job
from ojs.records import record
from ojs.store.jobs.blobs import Blobs
from ojs.store.table import keys
from ojs.store.table.table import Put, Table
from ojs.store.table.values import Item

# DynamoDB allows 400 KB for an item including its keys.
MAX_ITEM_BYTES = 300 * 1024
_UNIT = 1_024
_BUCKET_MARK = "s3:"


@record(frozen=True)
class PayloadRef:
    """The location of a payload: its job, its kind, and the reference in the job record.

    The definition of a cron job is stored in the same way. Its `job_id` is the name of the cron
    job.
    """

    job_id: str
    kind: str
    ref: str

    @property
    def in_bucket(self) -> bool:
        """Whether the payload is stored in the bucket, not in the table."""
        return self.ref.startswith(_BUCKET_MARK)

    @property
    def key(self) -> tuple[str, str]:
        """Key of the payload's item."""
        partition = keys.cron if self.kind == keys.DEFINITION else keys.job
        return partition(self.job_id), self.kind + self.ref

    @property
    def blob_key(self) -> str:
        """Key of the payload's object in the bucket."""
        return f"{self.kind.rstrip('|')}/{self.job_id}/{self.ref.removeprefix(_BUCKET_MARK)}"


class PayloadStore:
    """Reads and writes offloaded payloads."""

    def __init__(self, table: Table, blobs: Blobs) -> None:
        self._table = table
        self._blobs = blobs

    def new_ref(self, job_id: str, kind: str, token: str, size: int) -> PayloadRef:
        """Decide where a payload is stored, and return its reference.

        Args:
            job_id: ID of the job.
            kind: Kind of the payload.
            token: Unique part of the reference.
            size: Size of the payload in bytes.
        """
        ref = token if size <= MAX_ITEM_BYTES else _BUCKET_MARK + token
        return PayloadRef(job_id, kind, ref)

    def save(self, payloads: Sequence[tuple[PayloadRef, str]]) -> None:
        """Write payloads. No record refers to them yet, so the writes need no condition."""
        items = []
        for at, payload in payloads:
            if at.in_bucket:
                self._blobs.put(at.blob_key, payload.encode("utf-8"))
            else:
                items.append(_item(at, payload))
        if len(items) == 1:
            self._table.put(Put(items[0]))
        elif items:
            self._table.write_many(puts=items)

    def load(self, refs: Iterable[PayloadRef]) -> dict[PayloadRef, str]:
        """Return these payloads by reference. Missing ones are skipped.

        A payload never changes, so an eventually consistent read, which costs half, returns the
        payload or nothing. Missing payloads are read again with strong consistency.
        """
        found: dict[PayloadRef, str] = {}
        in_table = []
        for at in refs:
            if at.in_bucket:
                try:
                    found[at] = self._blobs.get(at.blob_key).decode("utf-8")
                except KeyError:
                    continue
            else:
                in_table.append(at)
        for consistent in (False, True):
            missing = [at for at in in_table if at not in found]
            if missing:
                items = self._table.batch_get((at.key for at in missing), consistent=consistent)
                found |= {at: payload_of(items[at.key]) for at in missing if at.key in items}
        return found

    def delete(self, refs: Iterable[PayloadRef]) -> None:
        """Remove payloads."""
        in_table = []
        for at in refs:
            if at.in_bucket:
                self._blobs.delete(at.blob_key)
            else:
                in_table.append(at.key)
        self._table.write_many(deletes=in_table)


def payloads_of(job: Job) -> list[PayloadRef]:
    """Return the references of a job's content and result, if these are offloaded."""
    found = []
    if job.content_ref is not None:
        found.append(PayloadRef(job.id, keys.PAYLOAD, job.content_ref))
    if job.result_ref is not None:
        found.append(PayloadRef(job.id, keys.RESULT, job.result_ref))
    return found


def payload_of(item: Item) -> str:
    """Return the payload of an item."""
    packed = item.get("zip")
    if isinstance(packed, bytes):
        return zlib.decompress(packed).decode("utf-8")
    return str(item["text"])


def _item(at: PayloadRef, payload: str) -> Item:
    pk, sk = at.key
    return {"pk": pk, "sk": sk, **packed(payload)}


def packed(payload: str, other: int = 0) -> Item:
    """Return the attribute for a payload: `text`, or `zip` if that saves a write unit.

    `other` is the size of the other attributes of the item in bytes.
    """
    raw = payload.encode("utf-8")
    # Write units are counted in KB. The payload is compressed if that saves at least one unit.
    small = zlib.compress(raw, 6) if len(raw) + other > _UNIT else raw
    if (len(small) + other) // _UNIT < (len(raw) + other) // _UNIT:
        return {"zip": small}
    return {"text": payload}
