"""What is behind the gates: counts of the jobs that bounded queues hold, two ways.

The projection's counters are cheap and late; heads found by the index are as they are now, but the
index too is behind, by less, and a job that changes its line meanwhile may be seen in neither.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ojs.domain import jsontext
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import MINUTE_MS
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.permits.counters import CounterValue, level_from
from ojs.store.queues.queues import from_item
from ojs.store.table import keys
from ojs.store.table.table import MAX_BATCH_GET, Table
from ojs.store.table.values import Item

_PAGE = 1_000


@dataclass(frozen=True)
class Occupancy:
    """Jobs that are not done, and their bytes.

    `held` ones were charged at the gate, `loose` ones stored while the queue had no bound.
    """

    held: int = 0
    held_bytes: int = 0
    loose: int = 0
    loose_bytes: int = 0

    @property
    def jobs(self) -> int:
        """All of them."""
        return self.held + self.loose


@dataclass(frozen=True)
class RecountedQueue:
    """A queue, its gate, and what the projection counted behind it."""

    queue: Queue
    level: CounterValue
    projected: Occupancy


@dataclass(frozen=True)
class RunningJobs:
    """An active job: its lease, whether it takes one of its queue's places, and which it takes in
    which worker pool.
    """

    id: str
    lease: str
    slot: bool
    pool: str | None = None
    seats: str = ""
    worker: str | None = None


class Recount:
    """Counts; changes nothing."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._stats = StatisticsStore(table)

    def known(self, names: Sequence[str]) -> list[RecountedQueue]:
        """Queues with their gates, in order; those that do not exist are left out. One call for 33.

        The gate and the queue are read consistently.
        """
        wanted = {
            name: (
                (keys.queue(name), keys.HEAD),
                (keys.gate(name), keys.DEPTH),
                (keys.stats(name), keys.NOW),
            )
            for name in names
        }
        found = self._table.batch_get(key for all_of in wanted.values() for key in all_of)
        return [
            RecountedQueue(
                from_item(name, found[queue]),
                level_from(found.get(gate, {})),
                _projected(found.get(stats, {})),
            )
            for name, (queue, gate, stats) in wanted.items()
            if queue in found
        ]

    def drain(self, name: str, *, now_ms: int, minutes: int) -> int:
        """How many jobs a minute left the queue in the last whole minutes. One call."""
        end_ms = now_ms - now_ms % MINUTE_MS
        points = self._stats.points(name, MINUTE_MS, end_ms - minutes * MINUTE_MS, end_ms)
        left = sum(
            point.activity.completed + point.activity.failed + point.activity.cancelled
            for point in points
        )
        return -(-left // minutes)

    def count(self, queue: Queue, *, most: int) -> tuple[Occupancy, bool]:
        """The jobs in the queue's lines as their heads are now, and whether that was all of them.

        Looks at `most` jobs, and a few more. Jobs of batches that are being stored count, too.
        """
        ids, whole = self._listed(queue, most)
        wanted = [(keys.job(job_id), keys.HEAD) for job_id in ids]
        held = held_bytes = loose = loose_bytes = 0
        for start in range(0, len(wanted), MAX_BATCH_GET):
            heads = self._table.batch_get(wanted[start : start + MAX_BATCH_GET])
            for head in heads.values():
                given: dict[str, Any] = dict(head)
                if State(given["state"]).terminal or given["queue"] != queue.name:
                    continue
                if "held" in given:
                    held += 1
                    held_bytes += given["held"]
                else:
                    loose += 1
                    body = given.get("body", "")
                    loose_bytes += given.get("payload_bytes") or len(body.encode("utf-8"))
        return Occupancy(held, held_bytes, loose, loose_bytes), whole

    def active(self, names: Sequence[str]) -> dict[str, int]:
        """How many jobs of each queue run, as the projection has it; it may be late."""
        wanted = {name: (keys.stats(name), keys.NOW) for name in names}
        found = self._table.batch_get(wanted.values())
        return {name: _whole(found.get(key, {}), State.ACTIVE) for name, key in wanted.items()}

    def running(self, queue: Queue) -> Iterator[RunningJobs]:
        """The queue's active jobs as their heads are now; read as they are asked for, 100 a call.

        What was claimed a moment ago the index may not list among those that run; the ready line
        is not looked at, it may be long.
        """
        for lane in range(queue.lanes):
            listed = self._line(keys.due(queue.name, lane), ending=keys.LEASE_END)
            while ids := list(islice(listed, MAX_BATCH_GET)):
                heads = self._table.batch_get((keys.job(job_id), keys.HEAD) for job_id in ids)
                for (pk, _), head in heads.items():
                    if head["state"] == State.ACTIVE.value and head["queue"] == queue.name:
                        given: dict[str, Any] = dict(head)
                        yield RunningJobs(
                            keys.job_id(pk),
                            given["lease"],
                            "slot" in given,
                            given.get("pool"),
                            given.get("seats", ""),
                            given.get("worker"),
                        )

    def _listed(self, queue: Queue, most: int) -> tuple[set[str], bool]:
        ids: set[str] = set()
        for lane in range(queue.lanes):
            ready, due = keys.ready(queue.name, lane), keys.due(queue.name, lane)
            # The ready line again: what left the due line while that was read is there by now.
            for line in (keys.pending(queue.name, lane), ready, due, ready):
                for job_id in self._line(line):
                    ids.add(job_id)
                    if len(ids) > most:
                        return ids, False
        return ids, True

    def _line(self, line: str, *, ending: str = "") -> Iterator[str]:
        """Jobs of a line, those whose sort key ends so."""
        after: Any = None
        while True:
            found = self._table.query(
                "wpk = :line", {":line": line}, index="work", limit=_PAGE, after=after
            )
            listed = (item for item in found.items if str(item["wsk"]).endswith(ending))
            yield from (keys.job_id(str(item["pk"])) for item in listed)
            after = found.last
            if after is None:
                return

    def staged(self) -> Collection[str] | None:
        """Queues whose room batches took that are neither committed nor undone; None: too many."""
        found = self._table.query(
            "wpk = :staged", {":staged": keys.STAGED}, index="work", limit=MAX_BATCH_GET
        )
        if found.last is not None:
            return None
        batches = self._table.batch_get((str(item["pk"]), keys.HEAD) for item in found.items)
        return {queue for batch in batches.values() for queue in _room(batch)}


def _room(batch: Item) -> Collection[str]:
    if "held" not in batch:
        return ()
    packed = batch["held"]
    assert isinstance(packed, bytes)
    room: dict[str, Any] = jsontext.stored(zlib.decompress(packed).decode("utf-8"))
    return room


def _whole(item: Mapping[str, Any], name: str) -> int:
    # Deltas may arrive out of order: for a moment, less may have come than has gone.
    return max(0, int(item.get(name, 0)))


def _projected(item: Mapping[str, Any]) -> Occupancy:
    return Occupancy(*(_whole(item, name) for name in ("held", "held_b", "loose", "loose_b")))
