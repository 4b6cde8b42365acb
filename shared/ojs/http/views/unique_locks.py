"""Unique locks: reading requests and building answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ojs.domain import times
from ojs.domain.job import unique
from ojs.domain.page import Page
from ojs.http.binding import paging, query
from ojs.http.contract.operations import DEFAULT_LISTED, MAX_LISTED, MAX_LISTED_LOCKS

if TYPE_CHECKING:
    from ojs.http.contract import answers
    from ojs.services.listing.unique_locks import UniqueHolder


def key(parameters: Mapping[str, str]) -> str | None:
    """The key that a query asks for. Raises InvalidRequest."""
    return query.single(parameters, "key", unique.check_key)


def window(parameters: Mapping[str, str]) -> paging.PageWindow:
    """Which part of the list a query asks for. Raises InvalidRequest."""
    return paging.window(
        parameters, default=DEFAULT_LISTED, largest=MAX_LISTED, shown=MAX_LISTED_LOCKS
    )


def page(found: Page[UniqueHolder], pagination: answers.Pagination) -> answers.UniqueLocksAnswer:
    """A page of locks."""
    return {"items": [_shown(each) for each in found.items], **paging.with_total(pagination)}


def _shown(holder: UniqueHolder) -> answers.UniqueLock:
    lock, job = holder.lock, holder.job
    shown: answers.UniqueLock = {
        "key": lock.digest,
        "job_id": job.id,
        "type": job.type,
        "queue": job.queue,
        "state": job.state.value,
    }
    if lock.until_ms is not None:
        shown["locked_until"] = times.format_ms(lock.until_ms)
    return shown
