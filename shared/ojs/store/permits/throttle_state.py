"""Edges of limits: that one begins to hold jobs back, and that it lets them pass again.

A limit is looked at by every fetch, and most of what they find is no news. So what it counts
carries a mark (`held`) as long as it is known to hold jobs back, and an item beside it tells of the
edges: each is written once, under a condition, and its stream record becomes the event
(ojs-rate-limiting section 11.1). That item also keeps what metrics tell of a limit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ojs.domain.rate_limit.limiter import cell_name, queue_key
from ojs.domain.stats import QUEUE_TIME_BUCKETS_S
from ojs.store.permits.key_limits import KEPT_S
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value

_COUNT, _BUCKET = "n_", "w"
_BUCKETS = len(QUEUE_TIME_BUCKETS_S) + 1


@dataclass(frozen=True)
class LimitName:
    """Where a limit is kept: that of a key of jobs, or one of a queue's own."""

    pk: str
    counts: str
    key: str
    queue: str | None = None

    @classmethod
    def of_key(cls, key: str) -> LimitName:
        """That of the jobs with this key."""
        return cls(keys.limiter(cell_name(key)), keys.HEAD, key)

    @classmethod
    def of_queue(cls, queue: str, counts: str) -> LimitName:
        """That of a queue's running jobs (`keys.SLOTS`), or of what it hands out (`keys.RATE`)."""
        return cls(keys.gate(queue), counts, queue_key(queue), queue)

    @property
    def edge(self) -> tuple[str, str]:
        """The key of the item that tells of its edges."""
        return self.pk, keys.HELD if self.queue is None else f"{keys.HELD}_{self.counts}"


@dataclass(frozen=True)
class ThrottleState:
    """What is told of a limit: whether it holds jobs back, since when (ms), and how often it did.

    `exceeded` counts by strategy. `waits` are the times for which it held jobs back, by bucket
    (`ojs.domain.stats.QUEUE_TIME_BUCKETS_S`), `waited_ms` their sum. `waiting` is how many jobs
    waited for it when the sweep looked last, None if it holds none back.
    """

    limiter: LimitName
    held: bool = False
    since_ms: int = 0
    strategy: str = ""
    limit: int = 0
    job_id: str | None = None
    exceeded: Mapping[str, int] = field(default_factory=dict)
    waits: Sequence[int] = (0,) * _BUCKETS
    waited_ms: int = 0
    waiting: int | None = None


class ThrottleStates:
    """The store of edges."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def begin(
        self,
        limiter: LimitName,
        *,
        strategy: str,
        limit: int,
        current: int,
        job_id: str | None,
        now_ms: int,
        unless: tuple[str, Mapping[str, Value]],
    ) -> None:
        """A limit that was not known to hold jobs back does so. Raises OjsError.

        `unless` is the condition under which what it counts is as it was found: if it is not, the
        next fetch decides.
        """
        pk, sk = limiter.edge
        setting: dict[str, Value] = {
            "held": 1,
            "key": limiter.key,
            "strategy": strategy,
            "bound": limit,
            "current": current,
            "at": now_ms,
            "since": now_ms,
            "ttl": now_ms // 1000 + KEPT_S,
            "wpk": keys.HOLDING,
            "wsk": keys.instant(now_ms),
        }
        if job_id is not None:
            setting["job"] = job_id
        # Race: many fetches find no room at once. One of them tells; the others see that it is told
        # and only mark it, as the one may have died before it did.
        with suppress(LostRace):
            self._table.update(
                Update(
                    pk,
                    sk,
                    set=setting,
                    remove=["waiting", *([] if job_id else ["job"])],
                    add={f"{_COUNT}{strategy}": 1},
                    condition="attribute_not_exists(#held) OR #held = :no",
                    values={":no": 0},
                )
            )
        # Race: another fetch takes under the limit, or lets it pass. Then nothing is marked.
        condition, values = unless
        with suppress(LostRace):
            self._table.update(
                Update(
                    limiter.pk,
                    limiter.counts,
                    set={"held": now_ms},
                    condition=f"attribute_exists(pk) AND {condition}",
                    values=values,
                )
            )

    def end(
        self, limiter: LimitName, *, job_id: str | None, since_ms: int | None, now_ms: int
    ) -> bool:
        """A limit that held jobs back lets them pass; whether it is told now. Raises OjsError."""
        pk, sk = limiter.edge
        setting: dict[str, Value] = {"held": 0, "at": now_ms}
        if job_id is not None:
            setting["job"] = job_id
        waited_ms = 0 if since_ms is None else max(0, now_ms - since_ms)
        told = True
        # Race: two fetches that are let pass. One of them tells.
        try:
            self._table.update(
                Update(
                    pk,
                    sk,
                    set=setting,
                    remove=["wpk", "wsk", "waiting"],
                    add={
                        f"{_BUCKET}{bisect_left(QUEUE_TIME_BUCKETS_S, waited_ms / 1_000)}": 1,
                        "waited": waited_ms,
                    },
                    condition="#held = :yes",
                    values={":yes": 1},
                )
            )
        except LostRace:
            told = False
        # Race: it is gone, with its queue or since nobody used it.
        with suppress(LostRace):
            self._table.update(
                Update(
                    limiter.pk,
                    limiter.counts,
                    remove=["held"],
                    condition="attribute_exists(pk)",
                )
            )
        return told

    def holding(self, *, limit: int) -> list[ThrottleState]:
        """Limits that hold jobs back, those first that have done so for longest."""
        found = self._table.query(
            "wpk = :holding", {":holding": keys.HOLDING}, index="work", limit=limit
        )
        told = self._table.batch_get((str(item["pk"]), str(item["sk"])) for item in found.items)
        return [edge for item in told.values() if (edge := edge_from(item)).held]

    def get_many(self, limiters: Iterable[LimitName]) -> list[ThrottleState]:
        """What is told of these limits, in order; may be a moment old."""
        wanted = list(limiters)
        found = self._table.batch_get((each.edge for each in wanted), consistent=False)
        return [
            edge_from(found[each.edge]) if each.edge in found else ThrottleState(each)
            for each in wanted
        ]

    def save_waiting(self, edge: ThrottleState, count: int) -> None:
        """Keep how many jobs wait for a limit."""
        pk, sk = edge.limiter.edge
        # Race: it lets them pass meanwhile.
        with suppress(LostRace):
            self._table.update(
                Update(
                    pk,
                    sk,
                    set={"waiting": count},
                    condition="#held = :yes",
                    values={":yes": 1},
                )
            )


def edge_from(item: Item) -> ThrottleState:
    """What the item of an edge tells."""

    def number(name: str) -> int:
        value = item.get(name, 0)
        return value if isinstance(value, int) else 0

    pk, sk, key = str(item["pk"]), str(item["sk"]), str(item["key"])
    if pk.startswith(keys.gate("")):
        queue = pk.removeprefix(keys.gate(""))
        limiter = LimitName.of_queue(queue, sk.removeprefix(f"{keys.HELD}_"))
    else:
        limiter = LimitName.of_key(key)
    return ThrottleState(
        limiter,
        held=bool(number("held")),
        since_ms=number("since"),
        strategy=str(item.get("strategy", "")),
        limit=number("bound"),
        job_id=str(item["job"]) if "job" in item else None,
        exceeded={
            name.removeprefix(_COUNT): number(name) for name in item if name.startswith(_COUNT)
        },
        waits=tuple(number(f"{_BUCKET}{at}") for at in range(_BUCKETS)),
        waited_ms=number("waited"),
        waiting=number("waiting") if "waiting" in item else None,
    )
