"""Listings of jobs in all states, and of the unique keys that jobs hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from ojs import runtime
from ojs.api.job_answers import JobsPageAnswer
from ojs.domain.access import Scope
from ojs.domain.filters import jobs as job_filter
from ojs.domain.filters.conditions import MAX_ARGS_CHARACTERS
from ojs.domain.filters.jobs import KIND_PATTERN
from ojs.domain.job import unique
from ojs.domain.job.envelope import MAX_NAME_BYTES
from ojs.domain.job.states import State
from ojs.domain.pool.worker import MAX_ID_BYTES
from ojs.domain.requests import Field
from ojs.domain.tenants import get_tenant, qualified
from ojs.http.answer import Answer, absent, moment, shown, source
from ojs.http.answers import Id, Moment
from ojs.http.binding import paging, query
from ojs.http.binding.paging import Listed, Paged
from ojs.http.binding.request import Request
from ojs.http.endpoint import Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.parameters import MAX_OFFSET, MOMENT_SCHEMA, QUEUE_SCHEMA, one_of, paged, text, whole

if TYPE_CHECKING:
    from ojs.services.listing.unique_locks import UniqueHolder

# Jobs of one page. Each consumes half a read unit.
DEFAULT_LISTED = 20
MAX_LISTED = 100
# Maximum number of unique keys on a page, even if the request has a higher limit. Each consumes
# half a read unit in addition to its job.
MAX_LISTED_LOCKS = 50
SORTS = ("created_at", "scheduled_at", "priority")
INCLUDED = "args"

_h: UniqueHolder = source()
_l: Listed[UniqueHolder] = source()


class JobsListAnswer(JobsPageAnswer):
    """A page of jobs in all states."""

    unsearched: Annotated[int, Field(ge=1)] = absent(
        "skipped jobs: a field of the filter is in offloaded content, which is not read"
    )


class UniqueLock(Answer["UniqueHolder"]):
    """A unique key that a job holds."""

    key: Annotated[str, Field(json_schema_extra={"pattern": "[0-9a-f]{64}"})] = shown(
        _h.lock.digest, says="the fingerprint"
    )
    job_id: Id = _h.job.id
    type: str = _h.job.type
    queue: str = _h.job.queue
    state: State = _h.job.state
    locked_until: Moment = shown(moment(_h.lock.until_ms), absent=True, says="if it has a period")


class UniqueLocksAnswer(Paged["UniqueHolder"]):
    """A page of unique keys."""

    items: list[UniqueLock] = UniqueLock.each(_l.items)


# --- endpoints ------------------------------------------------------------------------------------

# One row for each parameter. The formatter would split the rows.
# fmt: off
_STATES = {"type": "string", "pattern": "({0})(,({0}))*".format("|".join(State))}
_QUEUE = Parameter("queue", QUEUE_SCHEMA, "only jobs of this queue")
_TYPE = Parameter("type", text(KIND_PATTERN, MAX_NAME_BYTES),
    "only jobs of this type, or of those that begin so, with `*` at the end")
_PAGING = paged(whole(1, MAX_LISTED, DEFAULT_LISTED), MAX_OFFSET)
_JOBS = (
    _QUEUE,
    Parameter("state", _STATES,
        "only jobs in this state, or in one of several, separated by commas"),
    _TYPE,
    Parameter("tag", {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES},
        "only jobs with this tag"),
    Parameter("worker_id", {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES},
        "only jobs that this worker runs, or ran last"),
    Parameter("producer", {"type": "string", "minLength": 1, "maxLength": 255},
        "Enqueued by this producer: the name on its key"),
    Parameter("since", MOMENT_SCHEMA, "only jobs created at this time or later"),
    Parameter("until", MOMENT_SCHEMA, "only jobs created before this time"),
    Parameter("args", {"type": "string", "minLength": 1, "maxLength": MAX_ARGS_CHARACTERS},
        "only jobs whose args contain this text, or have what this JSON path leads to, as for dead "
        "letters; of jobs whose args are in the job record"),
    Parameter("sort", one_of(*SORTS),
        "the order of each page; of all pages for the jobs of a queue in its index: `priority` of "
        "available, `scheduled_at` of scheduled, `created_at` of pending jobs"),
    Parameter("order", one_of("asc", "desc", default="desc"),
        "from the smallest value up, or from the largest down; of `created_at` without `sort`"),
    Parameter("include", one_of(INCLUDED),
        "also args that are not in the job record, as far as an answer may read them"),
    *_PAGING,
)
_LOCKS = (
    Parameter("key", {"type": "string", "pattern": unique.KEY_PATTERN},
        "this key, whatever the state of its job"),
    _QUEUE,
    _TYPE,
    Parameter("state", _STATES,
        "only keys of jobs in this state, or in one of several, separated by commas; of jobs that "
        "wait or run when not given"),
    *_PAGING,
)
# fmt: on
_LOOK = Permission(Scope.ADMIN_READ, QueueScope.TENANT)
_PAGE = Success(JobsListAnswer, "One page of jobs. It may be short, and have a cursor.")
jobs = Resource("jobs", "jobs", also={"admin_{}": "admin/jobs"})
locks = Resource("unique-jobs", "jobs")
tenant_jobs = Resource("admin/tenants/{id}/jobs", "tenants")


@jobs.endpoint(
    "GET",
    Permission(Scope.JOBS_READ, QueueScope.TENANT),
    _PAGE,
    admin=_LOOK,
    query=_JOBS,
    derived=True,
)
def list_jobs(request: Request) -> Reply:
    """List jobs."""
    return _page_of(request.query, request.principal.tenant)


@tenant_jobs.endpoint(
    "GET", Permission(Scope.ADMIN_READ, QueueScope.ALL), _PAGE, query=_JOBS, derived=True
)
def list_tenant_jobs(request: Request) -> Reply:
    """List the jobs of a tenant."""
    tenant, sent = request.named, dict(request.query)
    if sent.get("queue") and get_tenant(sent["queue"]) is None:
        sent["queue"] = qualified(tenant, sent["queue"])
    return _page_of(sent, tenant)


def _page_of(sent: Mapping[str, str], tenant: str | None) -> Reply:
    current = runtime.current()
    wanted = job_filter.from_query(sent, now_ms=current.clock.now_ms()).but(tenant=tenant)
    ordered = "sort" in sent or "order" in sent
    sort = query.choice(sent, "sort", SORTS, default=SORTS[0]) if ordered else None
    order = query.choice(sent, "order", ("asc", "desc"), default="desc")
    window = paging.window(sent, default=DEFAULT_LISTED, largest=MAX_LISTED)
    if contents := "include" in sent:
        query.choice(sent, "include", (INCLUDED,), default=INCLUDED)
    found = current.listing.page(
        wanted,
        limit=window.limit,
        skip=window.offset,
        cursor=window.cursor,
        sort=sort,
        descending=order == "desc",
        contents=contents,
    )
    shown = JobsListAnswer.of(paging.listed(window, found, found.total, always=True))
    passed_over = {"unsearched": found.unsearched} if found.unsearched else {}
    return Reply({**cast("dict[str, Any]", shown), **passed_over})


@locks.endpoint("GET", _LOOK, UniqueLocksAnswer, query=_LOCKS, derived=True)
def list_unique_jobs(request: Request) -> Reply:
    """List unique keys, and the jobs that hold them.

    One page of keys. It may be short, and have a cursor.
    """
    current, sent = runtime.current(), request.query
    key = query.single(sent, "key", unique.check_key)
    wanted = job_filter.from_query(sent, now_ms=current.clock.now_ms())
    wanted = wanted.but(tenant=request.principal.tenant)
    window = paging.window(sent, default=DEFAULT_LISTED, largest=MAX_LISTED, shown=MAX_LISTED_LOCKS)
    if key is not None:
        found = current.unique_locks.find(key, wanted)
    else:
        found = current.unique_locks.page(
            wanted, limit=window.limit, skip=window.offset, cursor=window.cursor
        )
    return Reply(UniqueLocksAnswer.of(paging.listed(window, found, always=True)))
