"""Listings of jobs: reading requests and building answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ojs.domain.filters import jobs as job_filter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job.job import Job
from ojs.domain.page import Page
from ojs.http.binding import paging, query
from ojs.http.contract.operations import DEFAULT_LISTED, INCLUDED, MAX_LISTED, SORTS
from ojs.http.views import jobs as views
from ojs.records import record

if TYPE_CHECKING:
    from ojs.http.contract import answers


@record(frozen=True)
class JobsQuery:
    """A request for jobs. Its cursor is decoded; `sort` is None for the order of the index."""

    wanted: JobFilter
    window: paging.PageWindow
    sort: str | None
    descending: bool
    contents: bool


def read(parameters: Mapping[str, str], *, now_ms: int) -> JobsQuery:
    """Read which jobs a query asks for. Raises InvalidRequest naming a parameter."""
    wanted = job_filter.from_query(parameters, now_ms=now_ms)
    ordered = "sort" in parameters or "order" in parameters
    sort = query.choice(parameters, "sort", SORTS, default=SORTS[0]) if ordered else None
    order = query.choice(parameters, "order", ("asc", "desc"), default="desc")
    window = paging.window(parameters, default=DEFAULT_LISTED, largest=MAX_LISTED)
    contents = "include" in parameters
    if contents:
        query.choice(parameters, "include", (INCLUDED,), default=INCLUDED)
    return JobsQuery(wanted, window, sort, order == "desc", contents)


def page(
    asked: JobsQuery, found: Page[Job], total: int | None, unsearched: int
) -> answers.JobsListAnswer:
    """A page of jobs, and how many were not searched."""
    shown = cast("answers.JobsListAnswer", views.jobs_page(asked.window, found, total))
    if unsearched:
        shown["unsearched"] = unsearched
    return shown
