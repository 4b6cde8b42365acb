"""Fair lines in the table: where a line has come to, and where each tenant's jobs in it end.

    F|{queue}|{lane}|{priority}|{tenant}  @   last: where the tenant's jobs end, in ticks
    F|{queue}                             @   how far the tagging of the queue's jobs has come

Each lane is a line of its own. Nothing is written when a job leaves: where a line has come to is
the tag of its head, as the index has it, which may be a moment old. The item of a tenant goes a
month after its last job, and with a queue that is deleted nothing needs to go: a tenant whose end
is long past begins where the line is, as one that was never seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ojs.domain import jsontext
from ojs.domain.errors import BackendUnavailable
from ojs.domain.fair_queue.tags import start, ticks_of
from ojs.domain.job.job import Job
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item

_KEPT_S = 30 * 86_400
_TRIES = 10
# Entries of the head of a line that are read: one read unit or half of one.
HEAD = 20


@dataclass(frozen=True)
class FairLine:
    """Jobs that are served by their order alone: those of a queue's lane with one priority."""

    queue: str
    lane: int
    priority: int

    @classmethod
    def of(cls, job: Job) -> FairLine:
        """The line that a job stands in, or will."""
        return cls(job.queue, job.lane, job.priority)

    def end(self, tenant: str) -> tuple[str, str]:
        """The key of where a tenant's jobs in it end."""
        return keys.tenant(self.queue, self.lane, self.priority, tenant), keys.HEAD


class TenantFinishTags:
    """The store of fair lines."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def virtual(self, line: FairLine) -> int | None:
        """Where a line has come to, in ticks; None where nobody stands in it. May be stale. One
        query.

        It is the tag of the head. Jobs under a rate limit may be passed over for hours, while the
        line goes on behind them: the first job without one tells, or, where all that is read of the
        line is limited, the last of it.
        """
        found = self._table.query(
            "wpk = :ready AND begins_with(wsk, :level)",
            {
                ":ready": keys.ready(line.queue, line.lane),
                ":level": keys.level(line.priority),
            },
            index="work",
            limit=HEAD,
        )
        places = [keys.Position.parse(str(item["wsk"])) for item in found.items]
        if not places:
            return None
        free = next((place for place in places if place.limit is None), places[-1])
        return ticks_of(free.order)

    def ends(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int | None]:
        """Where tenants' jobs end, by `FairLine.end`; None for those not seen lately. One call for a
        hundred.
        """
        wanted = list(wanted)
        return ends_of(wanted, self._table.batch_get(wanted))

    def take(
        self, key: tuple[str, str], ticks: int, *, virtual: int, seen: int | None, now_ms: int
    ) -> int:
        """Move a tenant's end on by so many ticks; where it begins to. One write.

        `seen` is where it was read to be. A call whose answer is lost may count twice: then the
        tenant's next jobs come that much later, and nothing else. Raises BackendUnavailable.
        """
        pk, sk = key
        setting = {"ttl": now_ms // 1000 + _KEPT_S}
        for _ in range(_TRIES):
            if seen is not None and start(virtual, seen) == seen:
                # Race: others push jobs of the tenant. Each adds its own to what is there, so all
                # begin at different places. It is lost only where the item has gone meanwhile: the
                # loser begins where the line is.
                update = Update(
                    pk,
                    sk,
                    set=setting,
                    add={"last": ticks},
                    condition="#last >= :virtual",
                    values={":virtual": virtual},
                )
            else:
                # Race: another push of the tenant, which has been idle, begins where the line is.
                # The loser finds where that ends, and decides anew.
                unseen = seen is None
                update = Update(
                    pk,
                    sk,
                    set=setting | {"last": virtual + ticks},
                    condition="attribute_not_exists(pk)" if unseen else "#last = :seen",
                    values={} if seen is None else {":seen": seen},
                )
            try:
                item = self._table.update(update)
            except LostRace as lost:
                seen = _last(lost.item)
                continue
            return int(item["last"]) - ticks
        raise BackendUnavailable("Others are pushing jobs of this tenant; try again.")


def ends_of(
    wanted: Iterable[tuple[str, str]], found: Mapping[tuple[str, str], Item]
) -> dict[tuple[str, str], int | None]:
    """Where tenants' jobs end, of items that were read."""
    return {key: _last(found.get(key)) for key in wanted}


def _last(item: Item | None) -> int | None:
    return int(item["last"]) if item and "last" in item else None


# --- switching on ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackfillCursor:
    """A pass over all jobs of a queue, as far as it has come.

    `since_ms` is which marking of the queue it belongs to, `line` which of the lines it is in (they
    are numbered), `after` the entry of that line it has come to, `found` whether it has met a job
    without a tag or a share.
    """

    since_ms: int
    began_ms: int
    line: int = 0
    after: Mapping[str, str] | None = None
    found: bool = False


class BackfillCursors:
    """The store of such passes, one for each queue."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, queue: str) -> BackfillCursor | None:
        """The pass that is under way."""
        return _pass(self._table.get(keys.tagging(queue), keys.HEAD))

    def begin(
        self, queue: str, *, now_ms: int, until_ms: int
    ) -> tuple[bool, BackfillCursor | None]:
        """Have a queue to oneself until a time, and the pass that is under way there; False when
        somebody else has it.
        """
        # Race: a request and the sweep, or two of these. All of them would give each job a tag, and
        # it would have the first that is written: a tenant's jobs might change places. The loser
        # leaves the queue alone; also when it is its own answer that was lost, for this once.
        try:
            item = self._table.update(
                Update(
                    keys.tagging(queue),
                    keys.HEAD,
                    set={"busy": until_ms, "ttl": now_ms // 1000 + _KEPT_S},
                    condition="attribute_not_exists(#busy) OR #busy <= :now",
                    values={":now": now_ms},
                )
            )
        except LostRace:
            return False, None
        return True, _pass(item)

    def save(self, queue: str, done: BackfillCursor, *, now_ms: int, until_ms: int = 0) -> None:
        """Note how far a pass has come; without `until_ms` others may carry it on."""
        # No condition. Race: two runs all the same, when one took longer than it had the queue for.
        # Whoever notes a place has looked at everything before it, or went on from where another
        # had: wherever the last word puts it, nothing before was left out.
        told = [done.since_ms, done.began_ms, done.line, done.after, done.found]
        self._table.put(
            Put(
                {
                    "pk": keys.tagging(queue),
                    "sk": keys.HEAD,
                    "pass": jsontext.dumps(told),
                    "busy": until_ms,
                    "ttl": now_ms // 1000 + _KEPT_S,
                }
            )
        )

    def forget(self, queue: str) -> None:
        """It is over."""
        self._table.delete(keys.tagging(queue), keys.HEAD)


def _pass(item: Item | None) -> BackfillCursor | None:
    if item is None or "pass" not in item:
        return None
    since_ms, began_ms, line, after, found = jsontext.stored(str(item["pass"]))
    return BackfillCursor(since_ms, began_ms, line, after, found)
