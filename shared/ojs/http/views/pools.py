"""Worker pools and statistics of scheduling over HTTP (fair-scheduling seed, section 10;
requirements section 1.8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ojs.domain.pool import pool as pools
from ojs.domain.pool.statistics import WINDOW, PoolStatus, QueueShare, SchedulingStats

# Digits of a ratio behind the point.
_DIGITS = 4


def shown(standing: PoolStatus) -> dict[str, Any]:
    """A pool: its configuration, and how it stands."""
    return {
        **pools.to_dict(standing.pool),
        "active_workers": standing.active_workers,
        "active_jobs": standing.active_jobs,
    }


def detail(standing: PoolStatus) -> dict[str, Any]:
    """One pool, at the top level and wrapped."""
    pool = shown(standing)
    return {**pool, "pool": pool}


def page(found: Sequence[PoolStatus], pagination: Mapping[str, Any]) -> dict[str, Any]:
    """A page of pools under both names that clients know."""
    items = [shown(standing) for standing in found]
    answer: dict[str, Any] = {"items": items, "pools": items, "pagination": dict(pagination)}
    if "total" in pagination:
        answer["total"] = pagination["total"]
    return answer


def stats(found: SchedulingStats, pagination: Mapping[str, Any]) -> dict[str, Any]:
    """What queues were given lately, at the top level and in `stats`."""
    queues = [_share(share) for share in found.queues]
    return {
        "queues": queues,
        "window": WINDOW,
        "strategy": found.strategy,
        "stats": {"queues": queues, "window": WINDOW},
        "pagination": dict(pagination),
    }


def _share(share: QueueShare) -> dict[str, Any]:
    queue: dict[str, Any] = {
        "name": share.name,
        "dispatch_count_1m": share.dispatches,
        "dispatch_ratio_1m": round(share.ratio, _DIGITS),
        "avg_wait_ms": share.average_wait_ms,
        "active_jobs": share.active_jobs,
        "weight": share.weight,
        "dispatched": share.dispatched,
        "starved": share.starved,
    }
    return queue | ({} if share.pool is None else {"pool": share.pool})
