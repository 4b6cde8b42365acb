"""Counts and statistics of queues, totals, and their history (ojs-admin-api section 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from ojs import runtime
from ojs.api.queue_config import ConfigSources, QueueConfig, in_force, sources
from ojs.api.queues import QueueStatus
from ojs.domain import stats as domain
from ojs.domain.access import Scope
from ojs.domain.errors import InvalidRequest
from ojs.domain.job import envelope
from ojs.domain.job.states import State
from ojs.domain.queue.config import Layers
from ojs.domain.queue.order import QueueOrder
from ojs.domain.queue.queue import DeletionStrategy
from ojs.domain.queue.queue import Queue as StoredQueue
from ojs.domain.requests import Field
from ojs.domain.stats import DAY_MS, HOUR_MS, Activity, Period, Point, Rates, StateCounts, Totals
from ojs.http.answer import Answer, derived, made, moment, shown, source, unless_empty
from ojs.http.answers import Bound, Count, Fraction, Moment, Rate
from ojs.http.binding import paging, query
from ojs.http.binding.paging import Listed, Paged, Pagination
from ojs.http.binding.request import Request
from ojs.http.endpoint import Parameter, Permission, QueueScope, Reply, Resource
from ojs.http.parameters import (
    MOMENT_SCHEMA,
    QUEUE_SCHEMA,
    QUEUES_LIMIT,
    QUEUES_PAGING,
    SEALED,
    one_of,
)
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.queue.queue import Deletion

# Default time range of a history. Each has at least 12 points.
_DEFAULT_SPAN_MS = {
    Period.MINUTE: HOUR_MS,
    Period.FIVE_MINUTES: HOUR_MS,
    Period.HOUR: DAY_MS,
    Period.DAY: 30 * DAY_MS,
}
Milliseconds = Annotated[int, Field(ge=0, description="ms")]


@record(frozen=True)
class _AllQueues:
    """Totals across queues and workers, and the statistics of some queues for today."""

    totals: Totals
    uptime_s: int
    days: Listed[domain.QueueDay] | None = None

    @property
    def queues(self) -> int | list[QueueDay]:
        return self.totals.queues if self.days is None else QueueDay.each(self.days.items)

    @property
    def count(self) -> int | None:
        return None if self.days is None else self.totals.queues

    @property
    def workers(self) -> int:
        # Stale workers are listed but not counted.
        return self.totals.workers.running + self.totals.workers.quiet


@derived
def _existing(stats: domain.QueueSummary) -> StoredQueue:
    """Return the queue. A registered queue might not have an item yet."""
    return stats.queue or StoredQueue(stats.name)


@derived
def _layers(stats: domain.QueueSummary) -> Layers:
    return stats.queue.layers if stats.queue else Layers()


@derived
def _state_ms(queue: StoredQueue, paused: bool) -> int | None:
    """Return when the queue was paused (or resumed), or None if it is not in that state."""
    told = queue.deletion is None and queue.paused is paused
    return queue.changed_ms if told else None


@derived
def _updated_ms(queue: StoredQueue) -> int | None:
    changed_ms = queue.changed_ms if queue.deletion is None else None
    return max(queue.configured_ms or 0, changed_ms or 0, queue.created_ms or 0) or None


@derived
def _age_s(stats: domain.QueueSummary) -> float | None:
    since_ms = stats.oldest_available_ms
    # The clocks of two machines can differ.
    return None if since_ms is None else max(0, stats.now_ms - since_ms) / 1_000


@derived
def _max_depth(stats: domain.QueueStats) -> int | None:
    return stats.queue.config.max_size if stats.queue else None


@derived
def _rounded(value: float, digits: int) -> float:
    return round(value, digits)


_q: StoredQueue = source()
_x: Deletion = source()
_s: domain.QueueSummary = source()
_full: domain.QueueStats = source()
_named: tuple[domain.QueueStats, str | None] = source()
_stats = _named[0]
_v: StateCounts = source()
_r: Rates = source()
_a: Activity = source()
_d: domain.QueueDay = source()
_all: _AllQueues = source()
_p: Point = source()
_points: tuple[Period, Sequence[Point]] = source()
_l: Listed[domain.QueueSummary] = source()
_n: tuple[int, int] = source()


class QueueDeletion(Answer["Deletion"]):
    """The deletion of a queue in progress. The queue's depth shows how far it is."""

    strategy: DeletionStrategy = _x.strategy
    target_queue: str = shown(_x.target, absent=True)
    started_at: Moment = moment(_x.began_ms)


class QueueState(Answer[StoredQueue]):
    """A queue's state."""

    _status: QueueStatus = QueueStatus.of(_q)
    deletion: QueueDeletion = shown(QueueDeletion.of(_q.deletion), absent=True)
    created_at: Moment = shown(moment(unless_empty(_q.created_ms)), absent=True)
    configured_at: Moment = shown(moment(_q.configured_ms), absent=True)
    paused_at: Moment = shown(moment(_state_ms(_q, True)), absent=True)
    resumed_at: Moment = shown(moment(_state_ms(_q, False)), absent=True)


class JobCounts(Answer[StateCounts]):
    """Jobs by state."""

    scheduled: Count = _v.of(State.SCHEDULED)
    available: Count = _v.of(State.AVAILABLE)
    pending: Count = _v.of(State.PENDING)
    active: Count = _v.of(State.ACTIVE)
    completed: Count = _v.of(State.COMPLETED)
    retryable: Count = _v.of(State.RETRYABLE)
    cancelled: Count = _v.of(State.CANCELLED)
    discarded: Count = _v.of(State.DISCARDED)


class Throughput(Answer[Rates]):
    """Jobs completed and discarded in the last minute."""

    processed_per_minute: Rate = _rounded(_r.processed, 2)
    failed_per_minute: Rate = _rounded(_r.failed, 2)


class OldestAvailable(Answer[domain.QueueSummary]):
    """The oldest available job. Empty if no job is available."""

    oldest_available_at: Moment = shown(moment(_s.oldest_available_ms), absent=True)
    oldest_available_age_seconds: Rate = shown(_age_s(_s), absent=True)


class QueueSummary(Answer[domain.QueueSummary]):
    """A queue in a listing. Its oldest available job is that of the last sweep."""

    _state: QueueState = QueueState.of(_existing(_s))
    _counts: JobCounts = JobCounts.of(_s.levels)
    _oldest: OldestAvailable = OldestAvailable.of(_s)
    depth: Count = shown(_s.levels.depth, says="jobs that are not final")
    throughput: Throughput = Throughput.of(_s.rates)
    config: QueueConfig = in_force(_layers(_s))


class QueuesAnswer(Paged[domain.QueueSummary]):
    """A page of queues."""

    queues: list[QueueSummary] = QueueSummary.each(_l.items)
    items: list[QueueSummary] = queues


class Averages(Answer[Activity]):
    """Averages. A value without observations is absent."""

    avg_wait_ms: Milliseconds = shown(_a.average_wait_ms, absent=True)
    avg_duration_ms: Milliseconds = shown(_a.average_run_ms, absent=True)


class Statistics(Answer[tuple[domain.QueueStats, str | None]]):
    """A queue's statistics. Days are those of UTC; averages are today's."""

    queue: str = shown(_named[1], absent=True)
    depth: Count = _stats.levels.depth
    max_depth: Bound = shown(_max_depth(_stats), absent=True)
    _counts: JobCounts = JobCounts.of(_stats.levels)
    dead_letter: Count = shown(_stats.levels.dead, says="of the discarded ones")
    dead: Count = dead_letter
    enqueued_today: Count = _stats.today.enqueued
    completed_today: Count = _stats.today.completed
    failed_today: Count = shown(_stats.today.failed, says="jobs that were discarded")
    completed_last_hour: Count = shown(
        _stats.last_hour.completed, says="in this minute and the 59 before it"
    )
    failed_last_hour: Count = shown(_stats.last_hour.failed, says="jobs that were discarded")
    throughput: Throughput = Throughput.of(_stats.rates)
    throughput_per_second: Rate = shown(
        made(lambda processed: round(processed / 60, 4), _stats.rates.processed),
        says="jobs completed: the last minute's, divided by 60",
    )
    _averages: Averages = Averages.of(_stats.today)
    _oldest: OldestAvailable = OldestAvailable.of(_stats)


class QueueDetailAnswer(Answer[domain.QueueStats]):
    """A queue, its configuration and statistics."""

    queue: QueueState = QueueState.of(_existing(_full))
    _top: QueueState = queue
    updated_at: Moment = shown(moment(_updated_ms(_existing(_full))), absent=True)
    depth: Count = _full.levels.depth
    running: Count = shown(_full.levels.of(State.ACTIVE), says="active jobs")
    config: QueueConfig = in_force(_layers(_full))
    config_sources: ConfigSources = sources(_layers(_full))
    stats: Statistics = Statistics.of(made(lambda stats: (stats, None), _full))


class QueueCounts(Answer[domain.QueueStats]):
    """A queue's counts and state."""

    _status: QueueStatus = QueueStatus.of(_existing(_full))
    _counts: JobCounts = JobCounts.of(_full.levels)
    depth: Count = _full.levels.depth


class QueueStatsAnswer(Answer[domain.QueueStats]):
    """The statistics of a queue in `stats`. Counts are also at the top level and in `queue`."""

    queue: QueueCounts = QueueCounts.of(_full)
    _top: QueueCounts = queue
    stats: Statistics = Statistics.of(made(lambda stats: (stats, stats.name), _full))
    computed_at: Moment = moment(_full.now_ms)


class PriorityCount(Answer[tuple[int, int]]):
    """Available jobs of one priority."""

    priority: int = _n[0]
    count: Count = _n[1]


class PriorityStatsAnswer(Answer[domain.QueueStats]):
    """Available jobs by priority."""

    queue: str = _full.name
    distribution: list[PriorityCount] = PriorityCount.each(
        made(lambda counts: sorted(counts.items(), reverse=True), _full.priorities)
    )
    computed_at: Moment = moment(_full.now_ms)


class AdminQueue(Answer[domain.QueueSummary]):
    """A queue, its counts and throughput. In a listing its oldest available job is that of the last
    sweep.
    """

    _state: QueueState = QueueState.of(_existing(_s))
    _oldest: OldestAvailable = OldestAvailable.of(_s)
    counts: JobCounts = JobCounts.of(_s.levels)
    throughput: Throughput = Throughput.of(_s.rates)
    configuration: QueueConfig = in_force(_layers(_s))


class AdminQueuesAnswer(Paged[domain.QueueSummary]):
    """A page of queues."""

    items: list[AdminQueue] = AdminQueue.each(_l.items)


class AdminQueueAnswer(AdminQueue):
    """A queue, its counts and throughput."""

    computed_at: Moment = moment(_s.now_ms)


class QueueDay(Answer[domain.QueueDay]):
    """A queue, and what happened there today."""

    name: str = _d.name
    depth: Count = shown(_d.levels.depth, says="jobs that are not final")
    active: Count = _d.levels.of(State.ACTIVE)
    _averages: Averages = Averages.of(_d.today)
    error_rate: Fraction = shown(
        made(lambda rate: None if rate is None else round(rate, 4), _d.today.error_rate),
        absent=True,
        says="failed attempts, of those that ended",
    )


class StatsAnswer(Answer[_AllQueues]):
    """All queues and workers together; with `detail` each of a page of queues."""

    queues: int | list[QueueDay] = shown(
        _all.queues, says="how many; with `detail` what each of them does"
    )
    queue_count: Count = shown(_all.count, absent=True)
    pagination: Pagination = shown(Pagination.of(_all.days), absent=True)
    workers: Count = shown(_all.workers, says="workers with a recent heartbeat")
    jobs: JobCounts = JobCounts.of(_all.totals.levels)
    dead_letter: Count = _all.totals.levels.dead
    throughput: Throughput = Throughput.of(_all.totals.rates)
    uptime_seconds: Count = _all.uptime_s
    computed_at: Moment = shown(
        moment(_all.totals.at_ms), absent=True, says="by a sweep, each minute"
    )
    oldest_available_at: Moment = shown(
        moment(_all.totals.oldest_ms),
        absent=True,
        says="since when the oldest available job of all waits",
    )


class HistoryPoint(Answer[Point]):
    """What happened in the period that begins at `timestamp`."""

    timestamp: Moment = moment(_p.start_ms)
    processed: Count = shown(_p.activity.completed, says="jobs that were completed")
    completed: Count = processed
    failed: Count = shown(_p.activity.failed, says="jobs that were discarded")
    enqueued: Count = _p.activity.enqueued
    _averages: Averages = Averages.of(_p.activity)


class StatsHistoryAnswer(Answer[tuple[Period, Sequence[Point]]]):
    """Points in time, oldest first."""

    period: Literal["1m", "5m", "1h", "1d"] = cast("Any", _points[0])
    data: list[HistoryPoint] = HistoryPoint.each(_points[1])
    data_points: list[HistoryPoint] = data


# --- endpoints ------------------------------------------------------------------------------------

_SORT = Parameter(
    "sort",
    one_of("name", *QueueOrder, default="name"),
    "by name, or with the most first, as the last sweep counted: queues that have none of it are "
    "left out",
)
_DETAIL = (
    Parameter(
        "detail",
        {"type": "boolean", "default": False},
        "each queue instead of their number: how long its jobs took today, and how many failed",
    ),
    replace(QUEUES_LIMIT, description="with detail, most queues of one page, which may have fewer"),
    Parameter("cursor", SEALED, "with detail, `next_cursor` of the page before"),
)
_HISTORY = (
    Parameter("period", one_of(*Period, default=Period.FIVE_MINUTES), "length of one point"),
    Parameter(
        "since",
        MOMENT_SCHEMA,
        "the first point is that of this time; when not given an hour, a day (`1h`) or 30 days "
        "(`1d`) before the end",
    ),
    Parameter("until", MOMENT_SCHEMA, "points begin before this time; now when not given"),
    Parameter("queue", QUEUE_SCHEMA, "this queue instead of all"),
)
_ONE = Permission(Scope.ADMIN_READ, QueueScope.PATH)
_ALL = Permission(Scope.ADMIN_READ, QueueScope.TENANT)

queues = Resource("queues", "queues")
for_operators = Resource("admin/queues", "admin")
together = Resource("admin/stats", "admin")


def _detailed(asked: Mapping[str, str]) -> bool:
    """Return whether the totals list each queue. Paging parameters require `detail=true`."""
    wanted = query.choice(asked, "detail", ("true", "false"), default="false") == "true"
    for name in ("limit", "cursor"):
        if not wanted and asked.get(name):
            raise InvalidRequest(name, "requires detail=true", value=asked[name])
    return wanted


def _listed(request: Request) -> Listed[domain.QueueSummary]:
    stats = runtime.current().stats
    window = paging.queues_window(request.query, shown=stats.most_listed())
    tenant = request.principal.tenant
    page = stats.list(limit=window.limit, skip=window.offset, cursor=window.cursor, tenant=tenant)
    total = None
    # The last sweep counted the queues. The page can have queues that were created later.
    if (
        tenant is None
        and (window.cursor or page.next_cursor)
        and (counted := stats.totals().queues)
    ):
        seen = window.offset + len(page.items) + (page.next_cursor is not None)
        total = max(counted, seen)
    return paging.listed(window, page, total, always=True)


@queues.endpoint("GET", _ALL, QueuesAnswer, query=QUEUES_PAGING, derived=True)
def list_queues(request: Request) -> Reply:
    """List queues with their counts.

    One page of queues, in order of name.
    """
    return Reply(QueuesAnswer.of(_listed(request)))


@queues.endpoint("GET /{name}", _ONE, QueueDetailAnswer, errors=(404,), derived=True)
def get_queue(request: Request) -> Reply:
    """Read a queue, its configuration and statistics.

    The queue.
    """
    return Reply(QueueDetailAnswer.of(runtime.current().stats.existing(request.named, hour=True)))


@queues.endpoint("GET /{name}/stats", _ONE, QueueStatsAnswer, derived=True)
def queue_stats(request: Request) -> Reply:
    """Read a queue's statistics.

    Zeros for a queue that does not exist.
    """
    return Reply(QueueStatsAnswer.of(runtime.current().stats.queue(request.named, hour=True)))


@queues.endpoint("GET /{name}/priority-stats", _ONE, PriorityStatsAnswer, derived=True)
def priority_stats(request: Request) -> Reply:
    """Count a queue's available jobs by priority.

    The priorities in use, the highest first.
    """
    return Reply(PriorityStatsAnswer.of(runtime.current().stats.queue(request.named)))


@for_operators.endpoint("GET", _ALL, AdminQueuesAnswer, query=(_SORT, *QUEUES_PAGING), derived=True)
def admin_list_queues(request: Request) -> Reply:
    """List queues with their counts.

    One page of queues, in order of name or of `sort`.
    """
    order = query.choice(request.query, "sort", ("name", *QueueOrder), default="name")
    if order == "name":
        return Reply(AdminQueuesAnswer.of(_listed(request)))
    stats = runtime.current().stats
    window = paging.queues_window(request.query, shown=stats.most_listed())
    page, total = stats.list_by(
        QueueOrder(order),
        limit=window.limit,
        skip=window.offset,
        cursor=window.cursor,
        tenant=request.principal.tenant,
    )
    return Reply(AdminQueuesAnswer.of(paging.listed(window, page, total)))


@for_operators.endpoint("GET /{name}", _ONE, AdminQueueAnswer, errors=(404,), derived=True)
def admin_get_queue(request: Request) -> Reply:
    """Read a queue and its counts.

    The queue.
    """
    return Reply(AdminQueueAnswer.of(runtime.current().stats.existing(request.named)))


@together.endpoint("GET", _ALL, StatsAnswer, query=_DETAIL, derived=True)
def admin_stats(request: Request) -> Reply:
    """Read the totals of all queues.

    All queues and workers together, or the queues of the caller's tenant.
    """
    stats, uptime_s = runtime.current().stats, request.uptime_s
    tenant = request.principal.tenant
    if not _detailed(request.query):
        return Reply(StatsAnswer.of(_AllQueues(stats.totals(tenant), uptime_s)))
    window = paging.queues_window(request.query, shown=stats.most_listed(days=True))
    page = stats.days(limit=window.limit, cursor=window.cursor, tenant=tenant)
    found = _AllQueues(stats.totals(tenant), uptime_s, paging.listed(window, page))
    return Reply(StatsAnswer.of(found))


@together.endpoint(
    "GET /history",
    Permission(Scope.ADMIN_READ, QueueScope.FILTER),
    StatsHistoryAnswer,
    query=_HISTORY,
    derived=True,
)
def admin_stats_history(request: Request) -> Reply:
    """Read the history of statistics.

    Points in time, oldest first.
    """
    current = runtime.current()
    now_ms = current.clock.now_ms()
    choice = query.choice(request.query, "period", tuple(Period), default=Period.FIVE_MINUTES)
    period = Period(choice)
    since_ms, until_ms = query.span(request.query, now_ms=now_ms)
    end_ms = now_ms + 1 if until_ms is None else until_ms
    points = current.stats.history(
        period,
        since_ms=max(0, end_ms - _DEFAULT_SPAN_MS[period]) if since_ms is None else since_ms,
        until_ms=end_ms,
        queue=query.single(request.query, "queue", envelope.check_queue),
    )
    return Reply(StatsHistoryAnswer.of((period, points)))
