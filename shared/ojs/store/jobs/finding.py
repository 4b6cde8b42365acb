"""Finds jobs by the table's indexes.

An index is eventually consistent. Its results are candidates, and the condition of the write that
follows decides. Entries with an unknown format are skipped: a newer version wrote them, and
processes them when it is deployed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from ojs.domain import times
from ojs.domain.fair_queue.tags import arrival, tagged
from ojs.store.table import keys
from ojs.store.table.table import Found, Table
from ojs.store.table.values import Item, Value, pack, unpack

_PAGE = 100
# Number of entries of one priority that are searched for copies of dead letters.
_MAX_SKIPPED = 1_000
# A page of a ready index partition: (job ID, sort key) in order, and the key of the next page.
ReadyPage = tuple[list[tuple[str, str]], Any]
# Maximum number of additional pages that are read if a page has only entries of unknown formats.
_MAX_UNKNOWN_PAGES = 20


class DueLine(NamedTuple):
    """The due entries of a lane: IDs of jobs and names of cron jobs, in order of the due time.

    `next_ms` is when the next of them will be due, if that is known; `starts_ms` the same without
    the ends of leases.
    """

    jobs: list[str]
    crons: list[str]
    next_ms: int | None = None
    starts_ms: int | None = None


class JobIndex:
    """Finds the IDs of jobs by index partition. All results are eventually consistent."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def ready(self, queue: str, lane: int, *, limit: int, after: Any = None) -> ReadyPage:
        """Return the first entries of a ready index partition.

        Args:
            queue: Name of the queue.
            lane: Lane of the queue.
            limit: Maximum number of entries.
            after: Key of the last page. Default: start at the beginning.

        Returns:
            Pairs of job ID and sort key, in order, and the key of the next page.
        """
        found = self._page(keys.ready(queue, lane), limit, after)
        return _entries(found.items), found.last

    def _page(self, line: str, limit: int, after: Any, *, forward: bool = True) -> Found:
        return self._table.query(
            "wpk = :line", {":line": line}, index="work", limit=limit, after=after, forward=forward
        )

    def listed(
        self,
        line: str,
        *,
        limit: int,
        after: Mapping[str, str] | None = None,
        forward: bool = True,
    ) -> tuple[list[tuple[str, str]], dict[str, str] | None]:
        """Return a page of an index partition.

        Args:
            line: The index partition.
            limit: Maximum number of entries.
            after: Key of the last page. Default: start at the beginning.
            forward: Whether the order is ascending.

        Returns:
            Pairs of job ID and sort key, in order, and the key of the next page. The key has plain
                values that can be stored.
        """
        found = self._page(line, limit, pack(after) if after else None, forward=forward)
        last = {name: str(value) for name, value in unpack(found.last or {}).items()}
        return _entries(found.items), last or None

    def running(
        self, queue: str, lane: int, *, limit: int, after: Mapping[str, str] | None = None
    ) -> tuple[list[tuple[str, str]], dict[str, str] | None]:
        """Return jobs of a lane that might be active, in the format of `listed`.

        Args:
            queue: Name of the queue.
            lane: Lane of the queue.
            limit: Number of entries to read.
            after: Key of the last page. Default: start at the beginning.
        """
        found, last = self.listed(keys.due(queue, lane), limit=limit, after=after)
        return [one for one in found if self.may_run(one[1])], last

    @staticmethod
    def may_run(sort_key: str) -> bool:
        """Return whether the job of an entry of a due index partition might be active.

        Every listing of active jobs calls this function.
        """
        # Entries of version 0.1.0 do not store the state of the job.
        return not sort_key.endswith((keys.START, keys.RETRY))

    def oldest(self, queue: str, lanes: int, *, limit: int, copies: bool = False) -> list[str]:
        """Return the oldest available jobs, of any priority.

        A ready partition is sorted by priority first, so this takes one query for each priority in
        use in each lane. In a fair queue, it reads the first 100 jobs. These include the oldest one
        if at most 100 tenants of equal weight have available jobs.

        Args:
            queue: Name of the queue.
            lanes: Number of lanes of the queue.
            limit: Maximum number of jobs.
            copies: Whether to return only copies of dead letters, of the first 1,000 of each
                priority.
        """
        found: list[tuple[str, str]] = []
        for lane in range(lanes):
            after, skipped = " ", 0  # before every digit
            size = _PAGE if copies else min(limit, _MAX_SKIPPED)
            while True:
                page = self._table.query(
                    "wpk = :ready AND wsk > :after",
                    {":ready": keys.ready(queue, lane), ":after": after},
                    index="work",
                    limit=size,
                )
                if not page.items:
                    break
                entries = [(key, job_id) for job_id, key in _entries(page.items)]
                if not entries:
                    after = str(page.items[-1]["wsk"])
                    continue
                first = keys.Position.parse(entries[0][0])
                if size < _PAGE and tagged(first.order):
                    # A fair queue is not sorted by age, so more entries are read.
                    size = _PAGE
                    continue
                priority = first.priority
                same = [
                    (position, job_id)
                    for key, job_id in entries
                    if (position := keys.Position.parse(key)).priority == priority
                ]
                wanted = [(arrival(p.order), job_id) for p, job_id in same if p.copy or not copies]
                found += wanted
                skipped += len(same)
                # Other jobs might be listed before the copies.
                if copies and len(same) == size and len(wanted) < limit and skipped < _MAX_SKIPPED:
                    after = entries[-1][0]
                else:
                    after, skipped = keys.below(priority), 0
        return [job_id for _, job_id in sorted(found)[:limit]]

    def query_waiting(
        self,
        queue: str,
        lane: int,
        *,
        pages: int,
        running: bool = False,
        crons: dict[str, int] | None = None,
    ) -> Iterator[str]:
        """Yield the IDs of a lane's available, scheduled, retryable, and pending jobs.

        Args:
            queue: Name of the queue.
            lane: Lane of the queue.
            pages: Maximum pages to read of each of the three partitions.
            running: Whether to include active jobs.
            crons: Receives the cron jobs among the entries, each with the time when it is due (ms).
        """
        due = keys.due(queue, lane)
        for line in (keys.ready(queue, lane), keys.pending(queue, lane), due):
            after: Any = None
            for _ in range(pages):
                found = self._page(line, _PAGE, after)
                if crons is not None and line == due:
                    crons |= _crons(found.items)
                for job_id, key in _entries(found.items):
                    # Only sort keys of the due index partition end with a letter for the job's
                    # state.
                    runs = line == due and key.endswith(keys.LEASE_END)
                    if running or not runs:
                        yield job_id
                after = found.last
                if after is None:
                    break

    def occupied(self, queue: str, lane: int, crons: dict[str, int] | None = None) -> bool:
        """Return whether a lane has any unfinished job. Cron jobs don't count.

        An entry of an unknown format counts as a job, because its queue must not be deleted. The
        deletion continues when a version that knows the format has processed the entry.

        Args:
            queue: Name of the queue.
            lane: Lane of the queue.
            crons: Receives the cron jobs among the entries, as in `query_waiting`.
        """
        for line in (keys.ready(queue, lane), keys.pending(queue, lane), keys.due(queue, lane)):
            after, size = None, 1
            while True:
                found = self._page(line, size, after)
                met = _crons(found.items)
                if crons is not None:
                    crons |= met
                if len(met) < len(found.items):
                    return True
                # One entry is sufficient, unless it is a cron job.
                after, size = found.last, _PAGE
                if after is None or not met:
                    break
        return False

    def due(self, queue: str, lane: int, *, now_ms: int, limit: int) -> DueLine:
        """Return the entries that are due now.

        Args:
            queue: Name of the queue.
            lane: Lane of the queue.
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of starts, retries, and ends of leases. Cron jobs are added.
        """
        return self.due_until(queue, lane, now_ms=now_ms, until_ms=now_ms, limit=limit)

    def due_until(
        self, queue: str, lane: int, *, now_ms: int, until_ms: int, limit: int
    ) -> DueLine:
        """Return the entries that are due now, and the time when the next entry is due.

        Args:
            queue: Name of the queue.
            lane: Lane of the queue.
            now_ms: Current time in milliseconds since the epoch.
            until_ms: Latest time of the next entry.
            limit: Maximum number of entries.
        """
        crons: dict[str, int] = {}
        found = self._known(
            "wpk = :where AND wsk <= :until",
            {":where": keys.due(queue, lane), ":until": keys.upto(until_ms)},
            index="work",
            limit=limit,
            crons=crons,
            now_ms=now_ms,
        )
        starts_ms = [keys.instant_of(key) for _, key in found if not self.may_run(key)]
        starts_ms += crons.values()
        ends_ms = [keys.instant_of(key) for _, key in found if self.may_run(key)]
        return DueLine(
            [job_id for job_id, key in found if keys.instant_of(key) <= now_ms],
            [name for name, ms in crons.items() if ms <= now_ms],
            min((ms for ms in starts_ms + ends_ms if ms > now_ms), default=None),
            min((ms for ms in starts_ms if ms > now_ms), default=None),
        )

    def due_between(
        self, queue: str, lane: int, *, after_ms: int, until_ms: int, limit: int
    ) -> list[int]:
        """Return the next times (ms) at which an entry of a lane is due. Makes one query.

        Args:
            queue: Name of the queue.
            lane: Lane of the queue.
            after_ms: Time before the first one.
            until_ms: Latest time.
            limit: Maximum number of times.
        """
        found = self._table.query(
            "wpk = :where AND wsk BETWEEN :after AND :until",
            {
                ":where": keys.due(queue, lane),
                ":after": keys.upto(after_ms),
                ":until": keys.upto(until_ms),
            },
            index="work",
            limit=limit,
        )
        return [
            keys.instant_of(str(item["wsk"]))
            for item in found.items
            if keys.is_cron_entry(item) or keys.is_job_entry(item)
        ]

    def expiring(self, queue: str, lane: int, *, now_ms: int, until_ms: int, limit: int) -> DueLine:
        """Return the jobs whose `expires_at` has passed, earliest first, and the next deadline.

        Args:
            queue: Name of the queue.
            lane: Lane of the queue.
            now_ms: Current time in milliseconds since the epoch.
            until_ms: Latest deadline (ms) to look for.
            limit: Maximum number of jobs.
        """
        found = self._known(
            "epk = :where AND esk <= :until",
            {":where": keys.expiry(queue, lane), ":until": keys.upto(until_ms)},
            index="expiry",
            limit=limit,
            now_ms=now_ms,
        )
        times_ms = [keys.instant_of(key) for _, key in found]
        passed = sum(ms <= now_ms for ms in times_ms)
        return DueLine(
            [job_id for job_id, _ in found[:passed]], [], min(times_ms[passed:], default=None)
        )

    def _known(
        self,
        condition: str,
        values: Mapping[str, Value],
        *,
        index: Literal["work", "expiry"],
        limit: int,
        forward: bool = True,
        crons: dict[str, int] | None = None,
        now_ms: int | None = None,
    ) -> list[tuple[str, str]]:
        """Return the first jobs of an index partition: (job ID, sort key).

        One query, and more only where other entries come before the jobs. Cron jobs among these are
        added to `crons`. With `now_ms`, no more queries after an entry that is due later.
        """
        sort_key = "wsk" if index == "work" else "esk"
        entries: list[tuple[str, str]] = []
        after: Any = None
        size = limit
        for _ in range(_MAX_UNKNOWN_PAGES):
            found = self._table.query(
                condition,
                values,
                index=index,
                limit=size,
                forward=forward,
                after=after,
            )
            known = _entries(found.items, sort_key)
            entries += known
            if crons is not None:
                crons |= _crons(found.items)
            after = found.last
            if now_ms is not None and _latest_ms(entries, crons or {}) > now_ms:
                break
            if after is None or len(known) == len(found.items) or len(entries) >= limit:
                break
            size = _PAGE
        return entries[:limit]

    def dead(
        self,
        queue: str | None = None,
        *,
        limit: int,
        since_ms: int | None = None,
        until_ms: int | None = None,
        before: str | None = None,
        after: str | None = None,
        oldest_first: bool = False,
    ) -> list[tuple[str, str]]:
        """Return dead letters as (job ID, sort key), the most recent first. Makes one query.

        Args:
            queue: Queue name. None: all queues.
            limit: Maximum number of dead letters.
            since_ms: Only those discarded at this time (ms) or later.
            until_ms: Only those discarded before this time (ms).
            before: Only those before this sort key.
            after: Only those after this sort key.
            oldest_first: Whether to reverse the order.
        """
        index: Literal["work", "expiry"] = "expiry" if queue is None else "work"
        letter = "e" if queue is None else "w"
        line, position = f"{letter}pk", f"{letter}sk"
        # BETWEEN includes both bounds. No stored key equals one of these bounds: all stored keys
        # have one length, and a bound that is only a time has no ID.
        first = max(keys.instant(since_ms or 0), "" if after is None else keys.just_after(after))
        last = min(
            keys.instant(times.MAX_MS + 1 if until_ms is None else until_ms),
            "~" if before is None else keys.just_before(before),
        )
        if first > last:
            return []
        return self._known(
            f"{line} = :dead AND {position} BETWEEN :first AND :last",
            {
                ":dead": keys.all_dead() if queue is None else keys.dead(queue),
                ":first": first,
                ":last": last,
            },
            index=index,
            limit=limit,
            forward=oldest_first,
        )


def _latest_ms(entries: list[tuple[str, str]], crons: Mapping[str, int]) -> int:
    """When the last of these jobs and cron jobs is due (ms)."""
    return max([*(keys.instant_of(key) for _, key in entries), *crons.values()], default=0)


def _entries(found: list[Item], sort_key: str = "wsk") -> list[tuple[str, str]]:
    """Return the (job ID, sort key) pairs of the entries of an index."""
    return [
        (keys.job_id(str(item["pk"])), str(item[sort_key]))
        for item in found
        if keys.is_job_entry(item, sort_key[0])
    ]


def _crons(found: list[Item]) -> dict[str, int]:
    """Return the cron jobs among entries of a due index partition, with their due times (ms)."""
    return {
        keys.cron_name(str(item["pk"])): keys.instant_of(str(item["wsk"]))
        for item in found
        if keys.is_cron_entry(item)
    }
