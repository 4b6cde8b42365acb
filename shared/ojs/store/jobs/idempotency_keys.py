"""Idempotency keys: which request came with a key, and whether its jobs are stored.

The item is written twice: before the first job, and when all jobs are stored. Each write leaves a
fresh token in `op`.
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

    `request` is the digest of the request with this key. `seed` is the value that the ids of its
    jobs are derived from, with `at_ms`, the time of its first try.

    `done`: all jobs are stored, or staged. Then `existing` has the id of each unique job that
    existed before, by index, if there was any. `refused` has the reasons why others were not
    stored, where each job counts separately. `alone`: none of the jobs is staged.
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
        """Return whether only the attempt that wrote it has used it so far."""
        return self.op == self.seed


class IdempotencyKeys:
    """The store of idempotency keys."""

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._table = table
        self._ids = ids

    def begin(self, key: IdempotencyKey, *, now_ms: int) -> tuple[IdempotencyRecord, bool]:
        """Record a request with this key, or return the record of an earlier one.

        The flag is true for the first request. Raises OjsError.
        """
        token, until_ms = self._ids.token(), now_ms + KEPT_MS
        item: dict[str, Value] = {
            "pk": keys.idempotency(key.name),
            "sk": keys.RECORD,
            "request": key.request,
            "seed": token,
            "until": until_ms,
            # For garbage collection only: code compares `until`.
            "ttl": until_ms // 1_000 + 1,
            "op": token,
        }
        # Race: two requests with one key. The loser finds what the winner wrote. An expired key
        # counts as absent: DynamoDB deletes it late.
        condition = "attribute_not_exists(pk) OR #until <= :now"
        put = Put(item, condition, {":now": now_ms})
        lost = lost_race(lambda: self._table.put(put, own=("op", token)))
        if lost is None:
            return _record_of(item), True
        if not lost.item:
            raise lost
        return _record_of(lost.item), False

    def read(self, key: IdempotencyKey, *, now_ms: int) -> IdempotencyRecord | None:
        """Return the current record of a key; None if there is none. Raises OjsError."""
        item: Any = self._table.get(keys.idempotency(key.name), keys.RECORD)
        return None if item is None or int(item["until"]) <= now_ms else _record_of(item)

    def join(self, record: IdempotencyRecord, *, anew: bool) -> IdempotencyRecord:
        """Record another try of a request. If the flag is set, it has a new seed, so that no
        earlier try can finish. Raises LostRace, OjsError.
        """
        token = self._ids.token()
        # Race: other tries join, or one ends. The loser reads again.
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
        """Note that none of the jobs will be staged. Raises LostRace, OjsError."""
        token = self._ids.token()
        # Race: another try starts again with a new seed, and would stage the jobs that this one
        # stores. The loser reads again.
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
        # Races: another try with the same ids finishes first: the loser returns the result of that
        # one. Or another try started again with a new seed: the loser must not commit its batch.
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
        """Remove the record that `begin` wrote, after a rejected request. Raises LostRace,
        OjsError.
        """
        # Race: another try has joined, and may store the jobs. Then the key stays.
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
