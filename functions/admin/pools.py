"""Worker pools, and statistics of their scheduling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions.admin.app import app
from ojs import runtime
from ojs.domain.page import Page
from ojs.domain.pool import pool as pools
from ojs.http.binding import paging, query
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE
from ojs.http.views import pools as pool_views
from ojs.http.views import statistics as stats_views

if TYPE_CHECKING:
    from ojs.domain.pool.pool import Pool
    from ojs.http.contract import answers


@app.operation("list_pools", strict_query=True)
def list_pools(request: Request) -> Answer:
    """A page of worker pools."""
    current = runtime.current()
    page, pagination = paging.read(request.query, current.pools.list)
    statuses = current.scheduling.statuses(page.items)
    return Answer(pool_views.page(statuses, pagination))


@app.operation("put_pool", strict_query=True)
def put_pool(request: Request) -> Answer:
    """Make or replace a worker pool."""
    name, body = request.named, request.object()
    pool, created = runtime.current().pools.put(name, body)
    answer = _pool(pool)
    if created:
        return Answer(answer, 201, {"Location": f"{BASE}/admin/pools/{name}"})
    return Answer(answer)


@app.operation("get_pool", strict_query=True)
def get_pool(request: Request) -> Answer:
    """One worker pool."""
    return Answer(_pool(runtime.current().pools.get(request.named)))


def _pool(pool: Pool) -> answers.PoolAnswer:
    (status,) = runtime.current().scheduling.statuses([pool])
    return pool_views.detail(status)


@app.operation("delete_pool", strict_query=True)
def delete_pool(request: Request) -> Answer:
    """Remove a worker pool."""
    runtime.current().pools.delete(request.named)
    return Answer(pool_views.deleted(request.named))


@app.operation("scheduling_stats", strict_query=True)
def scheduling_stats(request: Request) -> Answer:
    """How many jobs each queue was given in the last minute."""
    window = stats_views.queues_window(request.query)
    found = runtime.current().scheduling.stats(
        limit=window.limit,
        skip=window.offset,
        cursor=window.cursor,
        pool=query.single(request.query, "pool", pools.check_pool),
    )
    page = Page(list(found.queues), found.next_cursor)
    return Answer(pool_views.stats(found, paging.described(window, page)))
