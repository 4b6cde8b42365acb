"""100 000 jobs in all states, listed and filtered against all that there are.

The jobs, the pages of events and the counters are put into the table as requests and the projection
leave them: to push, run and project so many would take an hour.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import jsontext, times
from ojs.domain.events.types import EventType
from ojs.domain.filters import jobs as job_filter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job.job import Job, Lease
from ojs.domain.job.states import State
from ojs.services.jobs.listing import (
    ALL_CALLS,
    ALL_UNITS,
    CALLS,
    MAX_RECORDS,
    UNITS,
    JobsPage,
)
from ojs.store.jobs import items
from ojs.store.table import keys
from tests.store.spending import spending

if TYPE_CHECKING:
    from tests.store.conftest import World

DAY_MS = 86_400_000
# Jobs got into their states in so many days: more than the log of everything has.
DAYS = 10
QUEUES = {"a": 1, "b.lanes": 3, "c": 1, "d": 1}
TYPES = ("mail.send", "mail.drop", "report")
TOLD = {
    State.AVAILABLE: EventType.JOB_ENQUEUED,
    State.SCHEDULED: EventType.JOB_SCHEDULED,
    State.ACTIVE: EventType.JOB_STARTED,
    State.RETRYABLE: EventType.JOB_RETRYING,
    State.COMPLETED: EventType.JOB_COMPLETED,
    State.CANCELLED: EventType.JOB_CANCELLED,
    State.DISCARDED: EventType.JOB_DISCARDED,
}
_EVENTS_A_PAGE = 100
FILTERS: list[Mapping[str, Any]] = [
    {},
    *({"queue": "b.lanes", "state": state.value} for state in State),
    {"queue": "a", "type": "mail.*", "tag": "red"},
    {"queue": "c", "args": "77"},
    {"queue": "d", "state": ["completed", "cancelled", "discarded"], "type": "report"},
    {"state": "completed"},
    {"type": "report", "tag": "red"},
    {"state": ["active", "discarded"], "worker_id": "w-3"},
    {"state": ["available", "retryable"], "priority": 2},
    {"queue": "a", "meta": {"customer": 7}},
]
# In which order each answer is, from the largest down if so; and whether all of them together are.
SORTED: list[tuple[Mapping[str, Any], str, bool, bool]] = [
    ({"queue": "a", "state": "scheduled"}, "scheduled_at", False, True),
    ({"queue": "a", "state": "scheduled"}, "scheduled_at", True, True),
    ({"queue": "a", "state": "pending"}, "created_at", True, True),
    ({"queue": "a", "state": "available"}, "priority", True, True),
    ({"queue": "a", "state": "completed"}, "priority", True, False),
]
_OF_SORT: Mapping[str, Callable[[Job], int]] = {
    "scheduled_at": lambda job: job.scheduled_ms or 0,
    "created_at": lambda job: job.created_ms,
    "priority": lambda job: job.priority,
}


def made(number: int, now_ms: int, chance: random.Random) -> tuple[Job, int]:
    """A job in the state that its number says, and when it got there (ms)."""
    state = tuple(State)[number % len(State)]
    came_ms = now_ms - chance.randrange(60_000, DAYS * DAY_MS)
    queue = chance.choice(tuple(QUEUES))
    fields: dict[str, Any] = {}
    match state:
        case State.AVAILABLE:
            fields = {"enqueued_ms": came_ms, "order": f"{came_ms:012x}{number:06x}"}
        case State.SCHEDULED:
            fields = {"scheduled_ms": now_ms + DAY_MS + number}
        case State.ACTIVE:
            lease = Lease("t", now_ms + DAY_MS + number, DAY_MS)
            fields = {"started_ms": came_ms, "lease": lease, "timeout_ms": 20 * DAY_MS}
            fields["worker_id"] = f"w-{number % 5}"
        case State.RETRYABLE:
            delay_ms = now_ms - came_ms + DAY_MS
            fields = {"retry_at_ms": came_ms + delay_ms, "retry_delay_ms": delay_ms}
        case State.COMPLETED | State.CANCELLED:
            fields = {f"{state.value}_ms": came_ms}
        case State.DISCARDED:
            # Every other one is a dead letter.
            fields = {"discarded_ms": came_ms, "dead_letter": number % 16 < 8}
    job = Job(
        id=f"019539a4-{number % 7:04x}-7000-8000-{number:012x}",
        type=chance.choice(TYPES),
        queue=queue,
        lane=chance.randrange(QUEUES[queue]),
        state=state,
        created_ms=came_ms if state in (State.SCHEDULED, State.PENDING) else came_ms - 1_000,
        priority=number % 5,
        content={
            "args": [number, "x"],
            "tags": ["red"] if number % 3 else [],
            "meta": {"customer": number % 50},
        },
        op=f"op{number}",
        **fields,
    )
    return job, came_ms


def pages(came: list[tuple[int, Job]]) -> Iterator[dict[str, Any]]:
    """The event log of these jobs, by the times at which they came to their states."""
    told = sorted((ms, job.id, job) for ms, job in came if job.state in TOLD)
    for day, of_day in groupby(told, key=lambda each: times.format_ms(each[0])[:10]):
        entries = list(of_day)
        for at in range(0, len(entries), _EVENTS_A_PAGE):
            part = entries[at : at + _EVENTS_A_PAGE]
            events = [
                {
                    "id": f"e{job.id}",
                    "type": TOLD[job.state],
                    "time": times.format_ms(ms),
                    "subject": job.id,
                    "data": {"job_type": job.type, "queue": job.queue},
                }
                for ms, _, job in part
            ]
            yield {
                "pk": keys.events(day),
                "sk": keys.event_page(part[-1][0], f"t{at}"),
                "zip": zlib.compress(jsontext.dumps(events).encode(), 1),
                "n": len(events),
            }


def counters(jobs: list[Job]) -> Iterator[dict[str, Any]]:
    """What the projection has counted, and the sweep has added up: of days, how many jobs ended."""
    ended = Counter[tuple[str, str, str]]()
    for job in jobs:
        if (ms := job.ended_ms) is not None:
            name = "failed" if job.state is State.DISCARDED else job.state.value
            sk = keys.day(times.format_ms(ms)[:10])
            ended.update({(keys.stats(of), sk, name): 1 for of in (job.queue, keys.ALL_QUEUES)})
    for (pk, sk), names in groupby(sorted(ended), key=lambda each: each[:2]):
        yield {"pk": pk, "sk": sk, **{name: ended[pk, sk, name] for _, _, name in names}}
    for queue in (*QUEUES, keys.ALL_QUEUES):
        mine = [job for job in jobs if queue in (job.queue, keys.ALL_QUEUES)]
        counts = Counter(job.state.value for job in mine)
        dead = sum(job.dead_letter for job in mine)
        yield {"pk": keys.stats(queue), "sk": keys.NOW, **counts, "dead": dead}


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.whole)])
def test_many_jobs_are_listed_and_filtered(exact: World, count: int) -> None:
    now_ms = exact.clock.now_ms()
    chance = random.Random(20)
    for queue, lanes in QUEUES.items():
        exact.run.queues.create(queue, {"lanes": lanes})
    came = [(ms, job) for job, ms in (made(n, now_ms, chance) for n in range(count))]
    jobs = [job for _, job in came]
    put = exact.run.table.write_many
    for at in range(0, count, 5_000):
        put(puts=[items.record_of(job) for job in jobs[at : at + 5_000]])
    put(puts=[*pages(came), *counters(jobs)])
    for fields in FILTERS:
        wanted = job_filter.parse(fields, now_ms=now_ms)
        expected = {j.id for j in jobs if wanted.matches_record(j) and wanted.matches_content(j)}
        assert expected
        listed = list(walk(exact, wanted, count))
        if wanted.counted:
            assert listed[0].total == len(expected)
        found = [job.id for page in listed for job in page.items]
        assert len(found) == len(set(found)), fields
        assert set(found) == expected, fields
    for fields, sort, descending, whole in SORTED:
        wanted = job_filter.parse(fields, now_ms=now_ms)
        order = {"sort": sort, "descending": descending}
        parts = [page.items for page in walk(exact, wanted, count, **order)]
        shown = [job for part in parts for job in part]
        assert {job.id for job in shown} == {job.id for job in jobs if wanted.matches_record(job)}
        for part in [shown] if whole else parts:
            values = [_OF_SORT[sort](job) for job in part]
            assert values == sorted(values, reverse=descending), fields


def walk(world: World, wanted: JobFilter, count: int, **order: Any) -> Iterator[JobsPage]:
    """All pages of a listing, each within what an answer may take. What they took at most is shown
    with `pytest -s`.
    """
    cursor, shown, took = None, 0, list[tuple[int, float]]()
    # A page of jobs in any queue may read the lines of many queues.
    all_queues = wanted.queue is None and bool(wanted.states)
    while True:
        with spending(world) as spent:
            page = world.run.listing.page(wanted, limit=MAX_RECORDS, cursor=cursor, **order)
        assert spent.calls <= (ALL_CALLS if all_queues else CALLS)
        assert spent.reads <= (ALL_UNITS if all_queues else UNITS)
        assert spent.writes == 0
        took.append((spent.calls, spent.reads))
        shown += len(page.items)
        yield page
        if (cursor := page.next_cursor) is None:
            break
        assert len(took) < count / 20, wanted
    calls, reads = (max(each) for each in zip(*took, strict=True))
    mean = sum(reads for _, reads in took) / len(took)
    said = f"{shown} jobs, {len(took)} answers, at most {calls} calls, {reads:.1f} read units"
    sys.stdout.write(f"{wanted.to_dict()} {order}: {said}, {mean:.1f} on average\n")
