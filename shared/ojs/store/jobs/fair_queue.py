"""Storage for start-time fair queueing: finish tags of tenants, and cursors of the backfill.

    F|{queue}|{lane}|{priority}|{tenant}  @   last: the tenant's finish tag, in ticks
    F|{queue}                             @   the cursor of the queue's fairness backfill

Each lane and priority has a separate virtual time. The virtual time is not stored: it is the start
tag of the first available job in the eventually consistent index. A tenant's item expires one month
after the tenant's last job. It can remain after the queue is deleted. A tenant with an old finish
tag starts at the virtual time, like a new tenant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ojs.domain import jsontext
from ojs.domain.fair_queue.tags import start, ticks_of
from ojs.domain.job.job import Job
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.races import retry_as_found, unless_lost
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item

_KEPT_S = 30 * 86_400
_TRIES = 10
# Number of entries that are read from the start of an index partition: at most one read unit.
FRONT = 20


@record(frozen=True)
class FairLine:
    """The available jobs of one lane and priority of a fair queue, in the order of dispatch."""

    queue: str
    lane: int
    priority: int

    @classmethod
    def of(cls, job: Job) -> FairLine:
        """Return the `FairLine` that a job belongs to, or will belong to when it is available."""
        return cls(job.queue, job.lane, job.priority)

    def key_of(self, tenant: str) -> tuple[str, str]:
        """Return the key of a tenant's finish tag."""
        return keys.tenant(self.queue, self.lane, self.priority, tenant), keys.RECORD


class TenantFinishTags:
    """Reads virtual times, and reads and advances the finish tags of tenants."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def virtual_time(self, line: FairLine) -> int | None:
        """Return the virtual time of a lane and priority, in ticks, or None without available jobs.

        Makes one query, eventually consistent. The virtual time is the start tag of the first job.
        A job with a rate limit can be throttled for hours, while later jobs are dispatched. The
        start tag of the first job without a rate limit is therefore used, or that of the last job
        read if all have one.
        """
        found = self._table.query(
            "wpk = :ready AND begins_with(wsk, :level)",
            {
                ":ready": keys.ready(line.queue, line.lane),
                ":level": keys.of_priority(line.priority),
            },
            index="work",
            limit=FRONT,
        )
        positions = keys.positions(found.items)
        if not positions:
            return None
        unlimited = next((one for one in positions if one.limit is None), positions[-1])
        return ticks_of(unlimited.order)

    def finish_tags(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int | None]:
        """Return the finish tags of tenants by `FairLine.key_of`, or None for tenants without one.

        Makes one call for each 100 items.
        """
        wanted = list(wanted)
        return finish_tags_of(wanted, self._table.batch_get(wanted))

    def advance(
        self, key: tuple[str, str], ticks: int, *, virtual: int, seen: int | None, now_ms: int
    ) -> int:
        """Advance a tenant's finish tag. Makes one write.

        A call without a response can count twice. The tenant's next jobs are then dispatched later
        by `ticks`.

        Args:
            key: Key of the finish tag.
            ticks: Ticks to add.
            virtual: Virtual time of the queue, in ticks.
            seen: Finish tag as read, or None.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            The tag at which the added ticks start.

        Raises:
            BackendUnavailable: DynamoDB rejected the write.
        """
        pk, sk = key
        setting = {"ttl": now_ms // 1000 + _KEPT_S}

        def attempt(seen: int | None) -> int:
            if seen is not None and start(virtual, seen) == seen:
                # Race: other enqueues of the tenant. Each adds its ticks, so that all start at
                # different tags. The write fails only if the item expired since it was read. The
                # loser then starts at the virtual time.
                update = Update(
                    pk,
                    sk,
                    set=setting,
                    add={"last": ticks},
                    condition="#last >= :virtual",
                    values={":virtual": virtual},
                )
            else:
                # Race: the tenant was idle, and another enqueue of the tenant starts at the virtual
                # time. The loser finds the other's finish tag, and decides again.
                unseen = seen is None
                update = Update(
                    pk,
                    sk,
                    set=setting | {"last": virtual + ticks},
                    condition="attribute_not_exists(pk)" if unseen else "#last = :seen",
                    values={} if seen is None else {":seen": seen},
                )
            return int(self._table.update(update)["last"]) - ticks

        busy = "Too many concurrent requests enqueue jobs of this tenant."
        return retry_as_found(attempt, seen, lambda lost: _last(lost.item), tries=_TRIES, busy=busy)


def finish_tags_of(
    wanted: Iterable[tuple[str, str]], found: Mapping[tuple[str, str], Item]
) -> dict[tuple[str, str], int | None]:
    """Return the finish tags of tenants from their items."""
    return {key: _last(found.get(key)) for key in wanted}


def _last(item: Item | None) -> int | None:
    return int(item["last"]) if item and "last" in item else None


# --- backfill -------------------------------------------------------------------------------------


@record(frozen=True)
class BackfillCursor:
    """The progress of a fairness backfill over all jobs of a queue.

    `since_ms` is when fair queueing was enabled. `line` is the number of the current index
    partition, `after` the last entry read in it. `found` is true if a job without a start tag or a
    share was found.
    """

    since_ms: int
    began_ms: int
    line: int = 0
    after: Mapping[str, str] | None = None
    found: bool = False


class BackfillCursors:
    """Reads and writes the backfill cursors, one for each queue."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, queue: str) -> BackfillCursor | None:
        """Return the cursor of a queue's unfinished backfill."""
        return _cursor(self._table.get(keys.backfill(queue), keys.RECORD))

    def begin(
        self, queue: str, *, now_ms: int, until_ms: int
    ) -> tuple[bool, BackfillCursor | None]:
        """Reserve a queue's backfill until a time.

        Args:
            queue: Name of the queue.
            now_ms: Current time in milliseconds since the epoch.
            until_ms: End of the reservation.

        Returns:
            Whether it succeeded, and the cursor of an unfinished backfill.
        """
        # Race: a request and the sweep, or two of these. If both ran, each would give every job a
        # tag, and the first tag written would be kept. The order of a tenant's jobs could then
        # change. The loser skips the queue. A winner whose response was lost skips the queue as
        # well, this time.
        item = unless_lost(
            lambda: self._table.update(
                Update(
                    keys.backfill(queue),
                    keys.RECORD,
                    set={"busy": until_ms, "ttl": now_ms // 1000 + _KEPT_S},
                    condition="attribute_not_exists(#busy) OR #busy <= :now",
                    values={":now": now_ms},
                )
            )
        )
        if item is None:
            return (False, None)
        return True, _cursor(item)

    def save(self, queue: str, done: BackfillCursor, *, now_ms: int, until_ms: int = 0) -> None:
        """Store the position of a backfill.

        Args:
            queue: Name of the queue.
            done: Position of the backfill.
            now_ms: Current time in milliseconds since the epoch.
            until_ms: End of the reservation. 0: other containers can continue the backfill.
        """
        # No condition. Race: two runs at the same time, if one took longer than its reservation.
        # Each has read all entries before its cursor, or continued from the other's cursor.
        # Whichever write is last, no entry before its cursor was skipped.
        cursor = [done.since_ms, done.began_ms, done.line, done.after, done.found]
        self._table.put(
            Put(
                {
                    "pk": keys.backfill(queue),
                    "sk": keys.RECORD,
                    "pass": jsontext.dumps(cursor),
                    "busy": until_ms,
                    "ttl": now_ms // 1000 + _KEPT_S,
                }
            )
        )

    def forget(self, queue: str) -> None:
        """Remove the cursor of a backfill that is finished."""
        self._table.delete(keys.backfill(queue), keys.RECORD)


def _cursor(item: Item | None) -> BackfillCursor | None:
    if item is None or "pass" not in item:
        return None
    since_ms, began_ms, line, after, found = jsontext.stored(str(item["pass"]))
    return BackfillCursor(since_ms, began_ms, line, after, found)
