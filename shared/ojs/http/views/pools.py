"""Worker pools, and statistics of their scheduling, as answers show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ojs.domain.pool import pool as pools
from ojs.domain.pool.statistics import WINDOW, PoolStatus, QueueShare, SchedulingStats
from ojs.http.binding import paging

if TYPE_CHECKING:
    from ojs.http.contract import answers


def shown(status: PoolStatus) -> answers.Pool:
    """A pool: its configuration, its workers and its active jobs."""
    configured = {
        **pools.to_dict(status.pool),
        "id": status.pool.name,
        "active_workers": status.active_workers,
        "workers": status.active_workers,
        "active_jobs": status.active_jobs,
    }
    return cast("answers.Pool", configured)


def detail(status: PoolStatus) -> answers.PoolAnswer:
    """One pool, at the top level and wrapped."""
    pool = shown(status)
    return {**pool, "pool": pool}


def deleted(name: str) -> answers.PoolDeletedAnswer:
    """A pool that was deleted."""
    return {"deleted": True, "name": name}


def page(found: Sequence[PoolStatus], pagination: answers.Pagination) -> answers.PoolsAnswer:
    """A page of pools, under both names that clients know."""
    items = [shown(status) for status in found]
    return {"items": items, "pools": items, **paging.with_total(pagination)}


def stats(found: SchedulingStats, pagination: answers.Pagination) -> answers.SchedulingStatsAnswer:
    """How many jobs each queue was given in the last minute, at the top level and in `stats`."""
    queues = [_share(share) for share in found.queues]
    return {
        "queues": queues,
        "window": WINDOW,
        "strategy": found.strategy.value,
        "stats": {"queues": queues, "window": WINDOW},
        "pagination": pagination,
    }


def _share(share: QueueShare) -> answers.QueueShare:
    queue: answers.QueueShare = {
        "name": share.name,
        "dispatch_count_1m": share.dispatches,
        "dispatch_ratio_1m": round(share.ratio, 4),
        "avg_wait_ms": share.average_wait_ms,
        "active_jobs": share.active_jobs,
        "weight": share.weight,
        "dispatched": share.dispatched,
        "starved": share.starved,
    }
    if share.pool is not None:
        queue["pool"] = share.pool
    return queue
