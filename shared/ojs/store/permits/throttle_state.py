"""Records when a rate or concurrency limit starts and stops throttling jobs.

Every fetch checks the limits, and the result is usually the same as before. While a limit is known
to throttle, its counter item has the attribute `held`. The throttle state is a separate item in the
same partition. It is written only when throttling starts or stops, with a condition. Its stream
record becomes the event (ojs-rate-limiting section 11.1). The throttle state also has the limit's
metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Unpack

from ojs.domain.rate_limit.limiter import limiter_name, queue_key
from ojs.domain.stats import QUEUE_TIME_BUCKETS_S
from ojs.records import record
from ojs.store.permits.counter_items import CounterUpdate, PermitGrant
from ojs.store.permits.key_limits import KEPT_S
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.races import wins
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value, number

_COUNT, _BUCKET = "n_", "w"
_BUCKETS = len(QUEUE_TIME_BUCKETS_S) + 1


@record(frozen=True)
class LimitName:
    """Identifies a limit: a job-level limit by its key, or a queue's own limit.

    `counts` is the sort key of the limit's counter item.
    """

    pk: str
    counts: str
    key: str
    queue: str | None = None

    @classmethod
    def of_key(cls, key: str) -> LimitName:
        """Return the limit of the jobs with this key."""
        return cls(keys.limiter(limiter_name(key)), keys.RECORD, key)

    @classmethod
    def of_queue(cls, queue: str, counts: str) -> LimitName:
        """Return a queue's concurrency limit (`keys.SEMAPHORE`) or rate limit (`keys.RATE`)."""
        return cls(keys.counter(queue), counts, queue_key(queue), queue)

    @property
    def state_key(self) -> tuple[str, str]:
        """The key of the limit's throttle state."""
        return self.pk, keys.THROTTLED if self.queue is None else f"{keys.THROTTLED}_{self.counts}"


@record(frozen=True)
class ThrottleState:
    """Whether a limit throttles, since when (ms), and how often it started to throttle.

    `exceeded` is the number of starts by strategy. `waits` counts the durations of throttling by
    bucket (`ojs.domain.stats.QUEUE_TIME_BUCKETS_S`). `waited_ms` is the sum of these durations.
    `waiting` is the number of jobs that waited for the limit at the last sweep, or None if the
    limit does not throttle.
    """

    limiter: LimitName
    throttled: bool = False
    since_ms: int = 0
    strategy: str = ""
    limit: int = 0
    job_id: str | None = None
    exceeded: Mapping[str, int] = field(default_factory=dict)
    waits: Sequence[int] = (0,) * _BUCKETS
    waited_ms: int = 0
    waiting: int | None = None


class ThrottleStates:
    """Reads and writes throttle states."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def mark_throttled(
        self,
        limiter: LimitName,
        strategy: str,
        grant: PermitGrant,
        *,
        job_id: str | None,
        now_ms: int,
    ) -> None:
        """Record that a limit starts to throttle.

        Nothing is recorded if the counter has changed since it was read. The next fetch then
        decides.

        Args:
            limiter: The limit.
            strategy: Strategy of the limit.
            grant: The limit's use, and the permits that it grants.
            job_id: ID of a job that waits for the limit, or None.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            OjsError: The write failed.
        """
        setting: dict[str, Value] = {
            "held": 1,
            "key": limiter.key,
            "strategy": strategy,
            "bound": grant.limit,
            "current": grant.current,
            "at": now_ms,
            "since": now_ms,
            "ttl": now_ms // 1000 + KEPT_S,
            "wpk": keys.THROTTLED_LIMITS,
            "wsk": keys.instant(now_ms),
        }
        if job_id is not None:
            setting["job"] = job_id
        # Race: many fetches are throttled at the same time. One of them records it. The others only
        # set the attribute of the counter item, because the first one might have crashed before it
        # did so.
        with suppress(LostRace):
            self._update(
                limiter.state_key,
                set=setting,
                remove=["waiting", *([] if job_id else ["job"])],
                add={f"{_COUNT}{strategy}": 1},
                condition="attribute_not_exists(#held) OR #held = :no",
                values={":no": 0},
            )
        # Race: another fetch acquires or releases a permit of the limit. The attribute is then not
        # set.
        condition, values = grant.unchanged
        with suppress(LostRace):
            self._update(
                (limiter.pk, grant.counted_at or limiter.counts),
                set={"held": now_ms},
                condition=f"attribute_exists(pk) AND {condition}",
                values=values,
            )

    def clear(
        self, limiter: LimitName, grant: PermitGrant, *, job_id: str | None, now_ms: int
    ) -> bool:
        """Record that a limit stops throttling.

        Args:
            limiter: The limit.
            grant: The limit's use, and the permits that it grants.
            job_id: ID of the job that starts, or None.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            False if it was recorded before.

        Raises:
            OjsError: The write failed.
        """
        setting: dict[str, Value] = {"held": 0, "at": now_ms}
        if job_id is not None:
            setting["job"] = job_id
        waited_ms = max(0, now_ms - (grant.throttled_since_ms or now_ms))
        # Race: two fetches claim a job under the limit. One of them records the end of throttling.
        recorded = wins(
            lambda: self._update(
                limiter.state_key,
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
        # Race: the item was deleted, with its queue or because its time to live ended.
        with suppress(LostRace):
            self._update(
                (limiter.pk, grant.counted_at or limiter.counts),
                remove=["held"],
                condition="attribute_exists(pk)",
            )
        return recorded

    def throttled(self, *, limit: int) -> list[ThrottleState]:
        """Return the limits that throttle now, in descending order of the duration."""
        found = self._table.query(
            "wpk = :holding", {":holding": keys.THROTTLED_LIMITS}, index="work", limit=limit
        )
        items = self._table.batch_get((str(item["pk"]), str(item["sk"])) for item in found.items)
        return [state for item in items.values() if (state := state_from(item)).throttled]

    def get_many(self, limiters: Iterable[LimitName]) -> list[ThrottleState]:
        """Return the throttle states of these limits, in order.

        The read is eventually consistent.
        """
        wanted = list(limiters)
        found = self._table.batch_get((each.state_key for each in wanted), consistent=False)
        return [
            state_from(found[each.state_key]) if each.state_key in found else ThrottleState(each)
            for each in wanted
        ]

    def save_waiting(self, state: ThrottleState, count: int) -> None:
        """Store the number of jobs that wait for a limit."""
        # Race: the limit stops throttling during this write. The number is then not needed.
        with suppress(LostRace):
            self._update(
                state.limiter.state_key,
                set={"waiting": count},
                condition="#held = :yes",
                values={":yes": 1},
            )

    def _update(self, key: tuple[str, str], **change: Unpack[CounterUpdate]) -> None:
        self._table.update(Update(*key, **change))


def state_from(item: Item) -> ThrottleState:
    """Return the throttle state of an item."""
    pk, sk, key = str(item["pk"]), str(item["sk"]), str(item["key"])
    if pk.startswith(keys.counter("")):
        queue = pk.removeprefix(keys.counter(""))
        limiter = LimitName.of_queue(queue, sk.removeprefix(f"{keys.THROTTLED}_"))
    else:
        limiter = LimitName.of_key(key)
    return ThrottleState(
        limiter,
        throttled=bool(number(item, "held")),
        since_ms=number(item, "since"),
        strategy=str(item.get("strategy", "")),
        limit=number(item, "bound"),
        job_id=str(item["job"]) if "job" in item else None,
        exceeded={
            name.removeprefix(_COUNT): number(item, name)
            for name in item
            if name.startswith(_COUNT)
        },
        waits=tuple(number(item, f"{_BUCKET}{at}") for at in range(_BUCKETS)),
        waited_ms=number(item, "waited"),
        waiting=number(item, "waiting") if "waiting" in item else None,
    )
