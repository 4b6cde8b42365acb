"""Storage of idempotency keys: the request that used a key, and whether its jobs are stored.

The item of a key is written twice: before the first job is stored, and after all jobs are stored.
Each write stores a new token in `op`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import field
from dataclasses import replace as changed
from types import MappingProxyType
from typing import Any
from uuid import UUID

from ojs.domain import jsontext
from ojs.domain.errors import OjsError, StoredError
from ojs.domain.ids import IdSource
from ojs.domain.job.idempotency import KEPT_MS, IdempotencyKey
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.races import lost_race
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

_NONE = bytes(16)


@record(frozen=True)
class IdempotencyRecord:
    """The record of an idempotency key.

    `request` is the digest of the request with this key. The IDs of its jobs are derived from
    `seed` and `at_ms`, the time of the first attempt. If `done` is true, all jobs are stored or
    staged. `existing` then has the IDs of the existing jobs that unique jobs conflicted with, by
    position in the request. `refused` has the errors of jobs that were not stored, if each job of
    the request counts separately. `alone` is true if none of the jobs is staged.
    """

    name: str
    request: bytes
    seed: str
    at_ms: int
    op: str
    done: bool = False
    existing: Sequence[str | None] = ()
    refused: Mapping[int, OjsError] = field(default_factory=dict)
    alone: bool = False

    def untouched(self) -> bool:
        """Return whether only the attempt that created the record has used it."""
        return self.op == self.seed


class IdempotencyKeys:
    """Reads and writes the records of idempotency keys."""

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._table = table
        self._ids = ids

    def begin(self, key: IdempotencyKey, *, now_ms: int) -> tuple[IdempotencyRecord, bool]:
        """Store the record of a request with this key, or return the record of an earlier request.

        The flag in the result is true if the record was created. Raises OjsError.
        """
        token, until_ms = self._ids.token(), now_ms + KEPT_MS
        item: dict[str, Value] = {
            "pk": keys.idempotency(key.name),
            "sk": keys.RECORD,
            "request": key.request,
            "seed": token,
            "until": until_ms,
            # DynamoDB's garbage collection uses this attribute. Code compares `until`.
            "ttl": until_ms // 1_000 + 1,
            "op": token,
        }
        # Race: two requests with one key. The loser reads the winner's record. An expired key
        # counts as missing, because DynamoDB deletes it late.
        condition = "attribute_not_exists(pk) OR #until <= :now"
        put = Put(item, condition, {":now": now_ms})
        lost = lost_race(lambda: self._table.put(put, own=("op", token)))
        if lost is None:
            return _record_of(item), True
        if not lost.item:
            raise lost
        return _record_of(lost.item), False

    def read(self, key: IdempotencyKey, *, now_ms: int) -> IdempotencyRecord | None:
        """Return the current record of a key, or None if there is none. Raises OjsError."""
        item: Any = self._table.get(keys.idempotency(key.name), keys.RECORD)
        return None if item is None or int(item["until"]) <= now_ms else _record_of(item)

    def join(self, record: IdempotencyRecord, *, anew: bool) -> IdempotencyRecord:
        """Record another attempt of a request.

        If the flag is set, the record gets a new seed, so that no earlier attempt can finish.
        Raises LostRace or OjsError.
        """
        token = self._ids.token()
        # Race: other attempts join, or one finishes. The loser reads again.
        self._table.update(
            Update(
                keys.idempotency(record.name),
                keys.RECORD,
                set={"op": token} | ({"seed": token} if anew else {}),
                remove=["done"] if anew else [],
                condition="#op = :seen",
                values={":seen": record.op},
            ),
            own=("op", token),
        )
        seed = token if anew else record.seed
        return changed(record, op=token, seed=seed, done=record.done and not anew)

    def note_alone(self, record: IdempotencyRecord) -> IdempotencyRecord:
        """Record that none of the jobs will be staged. Raises LostRace or OjsError."""
        token = self._ids.token()
        # Race: another attempt starts again with a new seed, and would stage the jobs that this
        # attempt stores. The loser reads again.
        self._table.update(
            Update(
                keys.idempotency(record.name),
                keys.RECORD,
                set={"alone": 1, "op": token},
                condition="#seed = :seed AND attribute_not_exists(#done)",
                values={":seed": record.seed},
            ),
            own=("op", token),
        )
        return changed(record, op=token, alone=True)

    def finish(
        self,
        record: IdempotencyRecord,
        existing: Sequence[str | None] = (),
        refused: Mapping[int, OjsError] = MappingProxyType({}),
        *,
        alone: bool = False,
    ) -> None:
        """Record that the jobs of the request are stored, or staged.

        Args:
            record: Record of the idempotency key, as read.
            existing: For each job, the ID of the existing job that was returned instead, or None.
            refused: Errors of rejected jobs, by their position in the request.
            alone: Whether none of the jobs is staged.

        Raises:
            LostRace: Another attempt finished first, or started again.
            OjsError: The write failed.
        """
        token = self._ids.token()
        setting: dict[str, Value] = {"done": 1, "op": token}
        if any(existing):
            setting["existing"] = b"".join(UUID(e).bytes if e else _NONE for e in existing)
        if alone:
            setting["alone"] = 1
        if refused:
            setting["refused"] = zlib.compress(jsontext.dumps(_told(refused)).encode("utf-8"))
        # Races: another attempt with the same IDs finishes first. The loser returns the result of
        # that attempt. Or another attempt started again with a new seed. The loser must not commit
        # its batch.
        self._table.update(
            Update(
                keys.idempotency(record.name),
                keys.RECORD,
                set=setting,
                condition="#seed = :seed AND attribute_not_exists(#done)",
                values={":seed": record.seed},
            ),
            own=("op", token),
        )

    def forget(self, record: IdempotencyRecord) -> None:
        """Remove the record that `begin` created, after a rejected request.

        Raises LostRace or OjsError.
        """
        # Race: another attempt has joined, and might store the jobs. The record is then kept.
        self._table.delete(
            keys.idempotency(record.name),
            keys.RECORD,
            condition="attribute_not_exists(pk) OR #op = :seen",
            values={":seen": record.op},
        )


def _record_of(item: Item) -> IdempotencyRecord:
    raw: Any = item.get("existing", b"")
    packed = bytes(raw)
    each = [packed[start : start + 16] for start in range(0, len(packed), 16)]
    return IdempotencyRecord(
        name=str(item["pk"]).removeprefix(keys.idempotency("")),
        request=_bytes(item["request"]),
        seed=str(item["seed"]),
        at_ms=int(item["until"]) - KEPT_MS,
        op=str(item["op"]),
        done="done" in item,
        alone="alone" in item,
        refused=_refused(_bytes(item["refused"])) if "refused" in item else {},
        existing=[None if part == _NONE else str(UUID(bytes=part)) for part in each],
    )


def _told(refused: Mapping[int, OjsError]) -> list[Any]:
    return [
        [index, error.code, error.message, error.retryable, error.details]
        for index, error in refused.items()
    ]


def _refused(packed: bytes) -> dict[int, OjsError]:
    return {
        index: StoredError(code, message, retryable=retryable, details=details)
        for index, code, message, retryable, details in jsontext.loads(zlib.decompress(packed))
    }


def _bytes(value: Any) -> bytes:
    return bytes(value)
