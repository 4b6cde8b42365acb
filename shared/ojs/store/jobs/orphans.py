"""Orphans: payloads and other items of jobs and cron jobs whose record doesn't exist.

An offloaded payload is written before the record that refers to it. If the process crashes in
between, no item refers to the payload (ADR 21), and no sweep can find it. Only a scan of the whole
table finds it. An operator starts this scan with `ojs-aws gc`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ojs.records import record
from ojs.store.jobs.payloads import PayloadRef
from ojs.store.table import keys
from ojs.store.table.table import Table
from ojs.store.table.values import Item, Value

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# By kind of record with payloads: the prefix of its partition key, and the attribute with the
# reference.
_OWNERS = (keys.job(""), keys.cron(""))
_REFERRING = {keys.PAYLOAD: "payload", keys.RESULT: "result_ref", keys.DEFINITION: "apart"}
# A checkpoint in the bucket is referred to by its own item.
_IN_BUCKET = (*_REFERRING, keys.CHECKPOINT)
_PAGE = 1_000


@record(frozen=True)
class OrphanCandidate:
    """An item in a record's partition, or an object in the bucket.

    `pk` is the record's partition key.
    """

    pk: str
    sk: str
    blob: str | None = None


class Orphans:
    """Scans the table and the bucket, a page at a time."""

    def __init__(self, table: Table, bucket: tuple[S3Client, str] | None = None) -> None:
        self._table = table
        self._bucket = bucket

    def pages(self) -> Iterator[Sequence[OrphanCandidate]]:
        """Yield all candidates, page by page: those in the table, then those in the bucket."""
        values: dict[str, Value] = {f":o{at}": begin for at, begin in enumerate(_OWNERS)}
        owned = " OR ".join(f"begins_with(pk, {name})" for name in values)
        beside = f"({owned}) AND sk <> :record"
        values[":record"] = keys.RECORD
        after: dict[str, Any] | None = None
        while True:
            page = self._table.scan("pk, sk", beside, values, after)
            yield [OrphanCandidate(str(item["pk"]), str(item["sk"])) for item in page.items]
            if (after := page.last) is None:
                break
        yield from self._objects()

    def _objects(self) -> Iterator[Sequence[OrphanCandidate]]:
        if self._bucket is None:
            return
        client, name = self._bucket
        for kind in _IN_BUCKET:
            prefix = f"{kind.rstrip('|')}/"
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=name, Prefix=prefix, PaginationConfig={"PageSize": _PAGE}
            )
            for page in pages:
                yield [
                    _of_object(kind, each["Key"])
                    for each in page.get("Contents", [])
                    if each["Key"].count("/") == 2
                ]

    def unreferenced(self, parts: Iterable[OrphanCandidate]) -> list[OrphanCandidate]:
        """Return the candidates without a stored record that refers to them.

        The read is strongly consistent.
        """
        wanted = list(parts)
        records = self._table.batch_get((part.pk, _holder(part)) for part in wanted)
        return [
            part for part in wanted if not _referenced(part, records.get((part.pk, _holder(part))))
        ]

    def remove(self, parts: Iterable[OrphanCandidate]) -> None:
        """Delete candidates.

        Their names contain random tokens, so no later write uses the same names.
        """
        in_table = []
        for part in parts:
            if part.blob is None:
                in_table.append((part.pk, part.sk))
            elif self._bucket is not None:
                client, name = self._bucket
                client.delete_object(Bucket=name, Key=part.blob)
        self._table.write_many(deletes=in_table)


def _holder(part: OrphanCandidate) -> str:
    """Return the sort key of the item that refers to a candidate."""
    of_checkpoint = part.blob is not None and part.sk.startswith(keys.CHECKPOINT)
    return keys.CHECKPOINT if of_checkpoint else keys.RECORD


def _of_object(kind: str, key: str) -> OrphanCandidate:
    _, owner, token = key.split("/")
    return OrphanCandidate(*PayloadRef(owner, kind, f"s3:{token}").key, key)


def _referenced(part: OrphanCandidate, record: Item | None) -> bool:
    """Return whether a record refers to this candidate. `record` is None if it doesn't exist."""
    if record is None:
        return False
    if part.blob is not None and _holder(part) == keys.CHECKPOINT:
        return part.sk.removeprefix(keys.CHECKPOINT) == record.get("ref")
    for kind, attribute in _REFERRING.items():
        if part.sk.startswith(kind):
            # The attributes of the record are read directly, because a record that only a newer
            # version knows can refer to payloads, too.
            return part.sk.removeprefix(kind) == record.get(attribute)
    # Errors, progress, and notes are found by the ID of their job, and deleted with the job.
    return True
