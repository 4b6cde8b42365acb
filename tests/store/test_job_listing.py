"""Listings of jobs in all states, against all jobs there are, and what an answer reads."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import jsontext, times
from ojs.domain.errors import InvalidRequest
from ojs.domain.filters import jobs as job_filter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job, Lease
from ojs.domain.job.states import State
from ojs.services.listing.jobs import ALL_CALLS, ALL_UNITS, CALLS, UNITS, JobsPage
from ojs.store.jobs import items
from ojs.store.jobs.lease_notes import SLOTS
from ojs.store.table import keys, values
from tests.store.spending import WORKER, incompressible, spending
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ojs.store.table.values import Item
    from tests.store.conftest import World

DAY_MS = 86_400_000
QUEUES = ("a", "b.large", "c")
TYPES = ("mail.send", "mail.drop", "report")


@pytest.fixture
def seen(streamed: Callable[[], AbstractContextManager[World]]) -> Iterator[World]:
    """A world whose stream can be projected."""
    with streamed() as world:
        yield world


def project(world: World) -> None:
    """What the stream function does with all that was written, from the beginning."""
    projected = Projected(world.client, world.table, world.clock)
    assert not projected.run(Stream(world.client, world.table).take())


def everything(world: World, wanted: JobFilter, **options: Any) -> list[Job]:
    """All pages of a listing, each within what an answer may read."""
    cursor, found = None, list[Job]()
    for _ in range(1_000):
        with spending(world) as spent:
            page = world.run.listing.page(wanted, cursor=cursor, **options)
        all_queues = wanted.states and not wanted.queue
        assert spent.calls <= (ALL_CALLS if all_queues else CALLS)
        assert spent.reads <= (ALL_UNITS if all_queues else UNITS)
        assert not spent.writes
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise AssertionError("no end")


def records(world: World) -> list[Job]:
    """All jobs that there are."""
    found = (values.unpack(item) for item in world.items())
    return [items.job_of(i) for i in found if str(i["pk"])[:2] == "J|" and i["sk"] == "@"]


RETRIES: list[dict[str, Any]] = [
    {"retry": {"initial_interval": "PT1M"}},
    {"retry": {"max_attempts": 1, "on_exhaustion": "discard"}},
    {"retry": {"max_attempts": 1}},
]


def mixture(world: World, chance: random.Random, number: int) -> None:
    """Jobs in all states in several queues, one of them with lanes."""
    world.run.queues.create("b.large", {"lanes": 3})
    ends: list[Callable[[Job], object]] = [
        lambda job: world.run.finish.ack(job.id),
        lambda job: world.run.finish.nack(job.id, error={"message": "no"}),
        lambda _: None,
    ]
    for each in range(number):
        queue = chance.choice(QUEUES)
        waits: list[dict[str, Any]] = [
            *[{}] * 6,
            {"scheduled_at": times.format_ms(world.clock.now_ms() + DAY_MS)},
            {"pending": True},
        ]
        options = chance.choice(waits) | chance.choice(RETRIES)
        options |= {"queue": queue, "priority": chance.choice((0, 0, 5))}
        options |= {"tags": ["red"]} if each % 3 else {}
        job = world.push("x", each % 3, kind=chance.choice(TYPES), **options)
        world.clock.advance(1_000)
        if each % 7 == 0:
            world.run.jobs.cancel(job.id)
        for got in world.fetch(queue) if chance.random() < 0.6 else []:
            chance.choice(ends)(got)


# --- against a model ----------------------------------------------------------------------------


FILTERS: list[Mapping[str, Any]] = [
    {},
    {"queue": "a"},
    {"queue": "b.large"},
    {"queue": "nowhere"},
    *({"state": state.value} for state in State),
    *({"queue": "a", "state": state.value} for state in State),
    {"state": ["available", "completed", "discarded"]},
    {"queue": "b.large", "state": ["scheduled", "cancelled"]},
    {"type": "mail.*"},
    {"type": "report", "state": "completed"},
    {"tag": "red"},
    {"queue": "c", "args": "$[1]=1"},
    {"args": '"x",2', "state": ["active", "discarded"]},
]


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(1, marks=pytest.mark.exhaustive),
        7,
        pytest.param(100, marks=pytest.mark.exhaustive),
    ],
)
def test_every_job_is_listed_once_and_no_other(seen: World, limit: int) -> None:
    mixture(seen, random.Random(limit), 36 if limit == 7 else 60)
    project(seen)
    jobs = records(seen)
    assert {job.state for job in jobs} == set(State)
    filters = FILTERS if limit == 100 else FILTERS[::4]
    for fields in filters:
        wanted = job_filter.parse(fields, now_ms=seen.clock.now_ms())
        expected = {j.id for j in jobs if wanted.matches_record(j) and wanted.matches_content(j)}
        found = [job.id for job in everything(seen, wanted, limit=limit)]
        assert sorted(found) == sorted(expected), fields
    middle_ms = sorted(job.created_ms for job in jobs)[len(jobs) // 2]
    for wanted in (JobFilter(since=middle_ms), JobFilter(until=middle_ms)):
        found = [job.id for job in everything(seen, wanted, limit=limit)]
        assert sorted(found) == sorted(j.id for j in jobs if wanted.matches_record(j))


def test_what_happened_lately_comes_first_in_one_answer(seen: World) -> None:
    old = [seen.push(queue="old"), seen.push(queue="old", pending=True)]
    late = times.format_ms(seen.clock.now_ms() + 30 * DAY_MS)
    old.append(seen.push(queue="old", scheduled_at=late))
    project(seen)
    seen.clock.advance(7 * DAY_MS)
    new = [seen.push(queue=f"q{number}") for number in range(5)]
    seen.clock.advance(1_000)
    (got,) = seen.fetch("q0")
    seen.clock.advance(1_000)
    seen.run.jobs.cancel(new[1].id)
    project(seen)
    seen.run.listing.page(JobFilter(), limit=1)
    with spending(seen) as spent:
        page = seen.run.listing.page(JobFilter(), limit=5)
    assert spent.calls <= CALLS
    first = [job.id for job in page.items]
    assert first[:2] == [new[1].id, got.id]
    assert sorted(first) == sorted(job.id for job in new)
    # What waits for longer comes later, once.
    found = [job.id for job in everything(seen, JobFilter(), limit=5)]
    assert sorted(found) == sorted(job.id for job in [*old, *new])
    assert found[:5] == first


def test_the_total_is_what_the_counters_say(seen: World) -> None:
    mixture(seen, random.Random(5), 12)
    project(seen)
    jobs = records(seen)
    for state in State:
        page = seen.run.listing.page(JobFilter("a", (state,)), limit=1)
        assert page.total == sum(job.queue == "a" and job.state is state for job in jobs)
    assert seen.run.listing.page(JobFilter("a"), limit=1).total == sum(
        job.queue == "a" for job in jobs
    )
    # Of all queues as the sweep added them up.
    seen.run.metrics_sweep.run_once(seen.clock.now_ms(), 1_000)
    for wanted in (JobFilter(), JobFilter(state=(State.COMPLETED,))):
        assert seen.run.listing.page(wanted, limit=1).total == sum(
            wanted.matches_record(job) for job in jobs
        )
    assert seen.run.listing.page(JobFilter("a", type="report"), limit=1).total is None


def test_pages_have_numbers_where_one_line_has_them(world: World) -> None:
    ids = [world.push(number).id for number in range(30)]
    wanted = JobFilter("default", (State.AVAILABLE,))
    page = world.run.listing.page(wanted, limit=10, skip=20)
    assert [job.id for job in page.items] == ids[20:]
    with pytest.raises(InvalidRequest, match="Use cursor"):
        world.run.listing.page(JobFilter("default", type="other.*", tag="x"), limit=10, skip=20)


# --- order --------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [True, False])
def test_a_listing_is_in_order_where_a_line_is(world: World, descending: bool) -> None:
    for number in random.Random(1).sample(range(20), 20):
        world.push(priority=number, queue="p")
        at = times.format_ms(world.clock.now_ms() + DAY_MS + 1_000 * number)
        world.push(queue="s", scheduled_at=at)
    found = everything(
        world, JobFilter("p", (State.AVAILABLE,)), limit=6, sort="priority", descending=descending
    )
    assert [job.priority for job in found] == sorted(range(20), reverse=descending)
    found = everything(
        world,
        JobFilter("s", (State.SCHEDULED,)),
        limit=6,
        sort="scheduled_at",
        descending=descending,
    )
    starts = [job.scheduled_ms or 0 for job in found]
    assert starts == sorted(starts, reverse=descending)
    # Otherwise each page is.
    page = world.run.listing.page(
        JobFilter("p"), limit=15, sort="created_at", descending=descending
    )
    created = [job.created_ms for job in page.items]
    assert len(created) == 15
    assert created == sorted(created, reverse=descending)


def test_what_runs_now_is_shown_with_how_far_it_is(world: World) -> None:
    for number in range(3):
        world.push(number, queue="live")
    for number, job in enumerate(world.fetch("live", 3)):
        world.run.jobs.report_progress(job.id, progress=number / 4, message="rows")
    with spending(world) as spent:
        page = world.run.listing.page(JobFilter("live", (State.ACTIVE,)), limit=20)
    assert spent.calls <= CALLS
    shown = [str((job.content or {}).get("args")) for job in page.items]
    assert sorted(shown) == ["[0]", "[1]", "[2]"]
    assert {job.worker_id is not None and job.started_ms is not None for job in page.items} == {
        True
    }
    assert {float((job.progress or {})["progress"]) for job in page.items} == {0, 0.25, 0.5}


@pytest.mark.parametrize("queue", ["live", None])
def test_jobs_claimed_a_moment_ago_are_listed_once(world: World, queue: str | None) -> None:
    mine = [world.push(number, queue="live").id for number in range(7)]
    others = [world.push(queue="other").id for _ in range(2)]
    fetch = world.run.fetch.fetch
    fetch(["live"], 5, WORKER, 100_000)
    done, late = fetch(["other"], 2, WORKER, 100_000)
    world.run.finish.ack(done.id)
    expected = sorted(mine[:5] if queue else [*mine[:5], late.id])
    assert late.id in others
    wanted = JobFilter(queue, (State.ACTIVE,))
    for limit in (1, 2, 20):
        assert sorted(job.id for job in everything(world, wanted, limit=limit)) == expected
    # The sweep has found that they run: they have new notes.
    world.clock.advance(61_000)
    assert not world.run.sweep.run_once(world.clock.now_ms(), 100)
    assert sorted(job.id for job in everything(world, wanted, limit=2)) == expected


def test_a_page_of_running_jobs_is_bounded_whatever_was_claimed(exact: World) -> None:
    world = exact
    notes = world.run.stores.jobs.notes
    for slot in range(SLOTS):
        notes._use(slot, world.clock.now_ms())
    for number in range(250):
        gone = {f"019539a4-{number:04x}-7000-8000-{each:012x}": "x" for each in range(2)}
        notes.write("live", gone, lease_ms=30_000, now_ms=world.clock.now_ms())
    job = world.push(queue="live")
    world.fetch("live")
    for queue in ("live", None):
        wanted = JobFilter(queue, (State.ACTIVE,))
        assert [found.id for found in everything(world, wanted, limit=20)] == [job.id]


def test_what_runs_at_a_worker_is_shown(world: World) -> None:
    for number in range(4):
        world.push(number, queue="live")
    first = world.fetch("live", 2, "w1")
    world.fetch("live", 2, "w2")
    wanted = JobFilter("live", (State.ACTIVE,), worker_id="w1")
    assert {job.id for job in everything(world, wanted, limit=20)} == {job.id for job in first}
    world.run.finish.ack(first[0].id, worker_id="w1")
    assert [job.id for job in everything(world, wanted, limit=20)] == [first[1].id]


@pytest.mark.parametrize("queue", ["live", None])
def test_args_that_are_not_in_the_job_record_are_shown_if_asked_for(
    seen: World, queue: str | None
) -> None:
    sent = {seen.push(incompressible(3_000), n, queue="live").id: n for n in range(5)}
    assert len(seen.fetch("live", 5)) == 5
    project(seen)
    wanted = JobFilter(queue, (State.ACTIVE,))
    assert {job.content for job in everything(seen, wanted, limit=20)} == {None}
    shown = everything(seen, wanted, limit=20, contents=True)
    assert {job.id: (job.content or {})["args"][1] for job in shown} == sent
    assert {job.progress is None and job.worker_id is not None for job in shown} == {True}


def test_of_large_args_so_many_are_shown_as_an_answer_may_read(exact: World) -> None:
    for _ in range(20):
        exact.push(incompressible(40_000), queue="live")
    assert len(exact.fetch("live", 20)) == 20
    found = everything(exact, JobFilter("live", (State.ACTIVE,)), limit=20, contents=True)
    shown = [job.content is not None for job in found]
    assert sorted(shown, reverse=True) == shown
    assert 1 <= shown.count(True) < 20


def test_args_in_the_bucket_or_damaged_are_left_out(exact: World) -> None:
    whole = exact.push(incompressible(3_000), 1, queue="live")
    damaged = exact.push(incompressible(3_000), 2, queue="live")
    exact.push("é" * 400_000, 3, queue="live")
    assert len(exact.fetch("live", 3)) == 3
    at = exact.run.stores.jobs.read_record(damaged.id)
    assert at is not None
    key = {"pk": keys.job(damaged.id), "sk": f"{keys.PAYLOAD}{at.content_ref}"}
    exact.client.put_item(
        TableName=exact.table, Item=values.pack({**key, "zip": b"not what zlib made"})
    )
    found = everything(exact, JobFilter("live", (State.ACTIVE,)), limit=20, contents=True)
    assert {job.id for job in found if job.content is not None} == {whole.id}


# --- what an answer reads -----------------------------------------------------------------------


def backlog(world: World, count: int, queue: str = "default") -> None:
    """A queue with so many jobs of each kind that waits, runs, or has ended."""
    world.push(queue=queue)
    now_ms = world.clock.now_ms()
    puts = []
    for number in range(count):
        job = Job(
            id=f"019539a4-{number % 10:04x}-7000-8000-{number:012x}",
            type="test.job",
            queue=queue,
            state=State.AVAILABLE,
            created_ms=now_ms,
            enqueued_ms=now_ms,
            content={"args": [incompressible(300)]},
            order=f"{number:018x}",
            op=f"op{number}",
        )
        match number % 4:
            case 1:
                job = lifecycle.claim(
                    job, token="t", now_ms=now_ms, lease_ms=1_800_000, worker_id="w"
                )
            case 2:
                job = Job(
                    **{**vars(job), "state": State.SCHEDULED, "scheduled_ms": now_ms + number}
                )
        puts.append(items.record_of(job))
    world.run.table.write_many(puts=puts)


@pytest.mark.parametrize("count", [400, pytest.param(6_000, marks=pytest.mark.exhaustive)])
def test_an_answer_reads_as_much_whatever_waits(exact: World, count: int) -> None:
    backlog(exact, count)
    for state in (None, "available", "active", "scheduled", "retryable"):
        for queue in (None, "default"):
            wanted = JobFilter(queue, () if state is None else (State(state),))
            deep = count > 1_000 and state == "available" and queue is not None
            for limit, skip in ((100, 0), (20, 1_000 if deep else 0)):
                exact.run = exact.another()
                with spending(exact) as spent:
                    page = exact.run.listing.page(wanted, limit=limit, skip=skip)
                wide = state is not None and queue is None
                assert spent.calls <= (ALL_CALLS if wide else CALLS)
                assert spent.reads <= (ALL_UNITS if wide else UNITS)
                assert not spent.writes
                if (state == "available" or (state == "active" and count < 1_000)) and queue:
                    assert len(page.items) >= min(limit, 30)


def test_many_idle_queues_and_lanes_make_pages_short_not_dear(seen: World) -> None:
    seen.run.queues.create("a.lanes", {"lanes": 8})
    for number in range(30):
        seen.run.queues.create(f"idle-{number:02}", {})
    last = seen.push(queue="z.last")
    some = {seen.push(queue="a.lanes").id for _ in range(12)}
    project(seen)
    wanted = JobFilter(state=(State.AVAILABLE,))
    found = [job.id for job in everything(seen, wanted, limit=20)]
    assert sorted(found) == sorted({*some, last.id})
    # As many pages as there are lanes with jobs, and some for the names of queues.
    cursor, pages = None, 0
    while True:
        page = seen.run.listing.page(wanted, limit=20, cursor=cursor)
        cursor, pages = page.next_cursor, pages + 1
        if cursor is None:
            break
    assert pages <= 8 + 8


@pytest.mark.parametrize("state", ["active", "available", "scheduled"])
def test_the_first_page_of_all_queues_shows_jobs_of_some(seen: World, state: str) -> None:
    """Whoever shows one page alone, as the admin UI does, must not say that there are none."""
    for queue in ("a", "b", "c"):
        seen.push(queue=queue)
    seen.push(queue="c", scheduled_at=times.format_ms(seen.clock.now_ms() + DAY_MS))
    (running,) = seen.fetch("b")
    seen.run.jobs.report_progress(running.id, progress=0.4)
    project(seen)
    wanted = JobFilter(state=(State(state),))
    # A container learns of the stream's shards with its first page.
    seen.run.listing.page(wanted, limit=20)
    with spending(seen) as spent:
        page = seen.run.listing.page(wanted, limit=20)
    assert spent.calls <= ALL_CALLS
    assert page.items
    if state == "active":
        (job,) = page.items
        assert job.id == running.id
        assert job.progress is not None
        assert float(job.progress["progress"]) == 0.4


def test_jobs_of_a_batch_are_listed_when_it_is_committed(world: World) -> None:
    now_ms = world.clock.now_ms()
    world.push(queue="mail")
    jobs = [
        Job(
            id=f"019539a4-0000-7000-8000-{number:012x}",
            type="test.job",
            queue="mail",
            state=State.SCHEDULED,
            scheduled_ms=now_ms + DAY_MS,
            created_ms=now_ms,
            content={"args": []},
            batch="token",
            op="op",
        )
        for number in range(3)
    ]
    world.run.table.write_many(puts=[items.record_of(job) for job in jobs])
    batch = {"pk": keys.batch("token"), "sk": keys.RECORD, "state": "staging"}
    world.run.table.write_many(puts=[batch])
    for wanted in (JobFilter("mail", (State.SCHEDULED,)), JobFilter(state=(State.SCHEDULED,))):
        assert everything(world, wanted, limit=10) == []
    world.run.table.delete(keys.batch("token"), keys.RECORD)
    for wanted in (JobFilter("mail", (State.SCHEDULED,)), JobFilter(state=(State.SCHEDULED,))):
        assert len(everything(world, wanted, limit=10)) == 3


def test_what_is_offloaded_is_not_searched_and_that_is_told(world: World) -> None:
    world.push("needle" * 300, tags=["blue"])
    found = world.push("needle", tags=["blue"])
    for fields in ({"args": "needle"}, {"tag": "blue"}):
        fields |= {"queue": "default", "state": "available"}
        wanted = job_filter.parse(fields, now_ms=0)
        page = world.run.listing.page(wanted, limit=10)
        assert [job.id for job in page.items] == [found.id]
        assert page.unsearched == 1


# --- jobs that have ended -----------------------------------------------------------------------


def done(world: World, queue: str = "default") -> Job:
    world.push(queue=queue)
    (job,) = world.fetch(queue)
    return world.run.finish.ack(job.id)


def test_ended_jobs_are_found_after_days_without_any(seen: World) -> None:
    seen.run.queues.create("kept", {"retention": {"completed": "P90D"}})
    first = done(seen, "kept")
    project(seen)
    seen.clock.advance(120_000)
    seen.run.metrics_sweep.run_once(seen.clock.now_ms(), 1_000)
    seen.clock.advance(80 * DAY_MS)
    last = done(seen, "kept")
    project(seen)
    seen.clock.advance(120_000)
    seen.run.metrics_sweep.run_once(seen.clock.now_ms(), 1_000)
    found = everything(seen, JobFilter(state=(State.COMPLETED,)), limit=5)
    assert [job.id for job in found] == [last.id, first.id]
    # One whose retention is over is not shown, though it may still be there.
    seen.clock.advance(11 * DAY_MS)
    found = everything(seen, JobFilter("kept", (State.COMPLETED,)), limit=5)
    assert [job.id for job in found] == [last.id]


@pytest.mark.parametrize("age_ms", [0, 120_000, 5 * DAY_MS])
def test_an_ended_job_of_a_queue_is_found_whatever_others_did(seen: World, age_ms: int) -> None:
    """Jobs of other queues ended on each of three hundred days: those days are passed over."""
    for days in range(1, 300):
        day = times.format_ms(seen.clock.now_ms() - days * DAY_MS)[:10]
        of_all: Item = {"pk": keys.stats(keys.ALL_QUEUES), "sk": keys.day(day), "completed": 9}
        seen.run.table.write_many(puts=[of_all])
    # Neither the age of the queue nor a job in another state says where the log ends.
    seen.run.queues.create("q", {})
    seen.push(queue="q", scheduled_at=times.format_ms(seen.clock.now_ms() + 9 * DAY_MS))
    job = done(seen, "q")
    project(seen)
    seen.clock.advance(age_ms)
    wanted = JobFilter("q", (State.COMPLETED,))
    found, cursor, pages = list[str](), None, 0
    while not pages or cursor is not None:
        with spending(seen) as spent:
            page = seen.run.listing.page(wanted, limit=20, cursor=cursor)
        assert (spent.calls <= CALLS, spent.reads <= UNITS) == (True, True)
        assert page.total in (None, 1)
        pages += 1
        cursor = page.next_cursor
        found += [job.id for job in page.items]
    assert (found, pages <= 4) == ([job.id], True)


def test_event_pages_live_as_long_as_the_jobs_that_they_list(seen: World) -> None:
    seen.run.queues.create("kept", {"retention": {"completed": "P90D"}})
    done(seen, "kept")
    project(seen)
    ended_s = seen.clock.now_ms() // 1_000
    pages = [values.unpack(i) for i in seen.items() if i["pk"]["S"].startswith("E|")]
    assert max(int(page["ttl"]) for page in pages) == ended_s + 90 * 86_400
    done(seen, "default")
    later = Projected(seen.client, seen.table, seen.clock)
    later.run(Stream(seen.client, seen.table).take())
    fresh = [values.unpack(i) for i in seen.items() if i["pk"]["S"].startswith("E|")]
    new = [page for page in fresh if page not in pages]
    assert {int(page["ttl"]) - keys.instant_of(str(page["sk"])) // 1_000 for page in new} == {
        8 * 86_400
    }


def test_a_job_that_came_back_is_listed_where_it_is_now(seen: World) -> None:
    job = seen.push(retry={"max_attempts": 1})
    (got,) = seen.fetch()
    seen.run.finish.nack(got.id, error={"message": "no"})
    seen.run.redrive.retry(job.id)
    (got,) = seen.fetch()
    seen.run.finish.ack(got.id)
    project(seen)
    assert everything(seen, JobFilter("default", (State.DISCARDED,)), limit=5) == []
    (found,) = everything(seen, JobFilter(), limit=5)
    assert (found.id, found.state) == (job.id, State.COMPLETED)


def log_of(world: World, pages: int, *, results: Sequence[int]) -> None:
    """Jobs that ended, in so many pages: each page tells of jobs with results of these sizes."""
    now_ms = world.clock.now_ms()
    puts: list[Any] = []
    for number in range(pages):
        events = []
        for at, size in enumerate(results):
            job = Job(
                id=f"019539a4-{at:04x}-7000-8000-{number:012x}",
                type="test.job",
                queue="default",
                state=State.COMPLETED,
                created_ms=now_ms,
                completed_ms=now_ms + number,
                content={"args": []},
                op="op",
                lease=Lease("t", 0, 0),
            )
            data = {"job_type": job.type, "queue": job.queue, "result": incompressible(size)}
            events.append(
                {
                    "id": "e",
                    "type": "job.completed",
                    "time": times.format_ms(now_ms + number),
                    "subject": job.id,
                    "data": data,
                }
            )
            puts.append(items.record_of(job))
        puts.append(
            {
                "pk": keys.events(times.format_ms(now_ms)[:10]),
                "sk": keys.event_page(now_ms + number, f"t{number}"),
                "zip": zlib.compress(jsontext.dumps(events).encode()),
                "n": len(events),
            }
        )
    world.run.table.write_many(puts=puts)


@pytest.mark.exhaustive
def test_large_event_pages_are_read_few_at_a_time(world: World) -> None:
    log_of(world, 12, results=[100_000])
    found = everything(world, JobFilter(state=(State.COMPLETED,)), limit=20)
    assert len(found) == 12


def test_many_small_event_pages_are_counted_whole(exact: World) -> None:
    """What a page has beside its events counts, and half units that are not full."""
    log_of(exact, 100, results=[2_600, 0])
    found = everything(exact, JobFilter(state=(State.COMPLETED,)), limit=90)
    assert len(found) == 200


# --- cursors ------------------------------------------------------------------------------------


def test_cursors_of_other_listings_are_refused(world: World) -> None:
    for number in range(5):
        world.push(number)
    wanted = JobFilter("default", (State.AVAILABLE,))
    cursor = world.run.listing.page(wanted, limit=2).next_cursor
    assert cursor is not None
    for other, options in (
        (JobFilter("default"), {}),
        (JobFilter("other", (State.AVAILABLE,)), {}),
        (wanted, {"sort": "priority"}),
        (wanted, {"descending": False}),
    ):
        with pytest.raises(InvalidRequest, match="a different filter or order"):
            world.run.listing.page(other, limit=2, cursor=cursor, **options)
    digest = cursor[:16]
    key = "019539a4-0000-7000-8000-000000000000"
    for bad in (
        "", "x", "[]", "{}", "[1,2]", "null", "9" * 3_000, cursor[:-1],
        f'{digest}0,"nope","default",0,[],0,0]',
        f'{digest}0,"ready","other",0,[],0,0]',
        f'{digest}0,"ready","default",-2,[],0,0]',
        f'{digest}0,"ready","default",true,[],0,0]',
        f'{digest}0,"ready","default",0,["J|{key}"],0,0]',
        f'{digest}0,"ready","default",0,["J|{key}",""],0,0]',
        f'{digest}0,"ready","default",0,["J|{key}",7],0,0]',
        f'{digest}0,"ready","NO",0,[],0,0]',
        f'{digest}0,"ready",7,0,[],0,0]',
        f'{digest}0,"dead","",0,["x"],0,0]',
        f'{digest}0,"dead","",0,[],0,1]',
        f'{digest}0,"recent","",0,[],0,1]',
        f'{digest}0,"recent","",0,["000000000000001~"],0,1]',
        f'{digest}-1,"recent","",0,[],0,0]',
        f'{digest}9999999999999,"recent","",0,[],0,0]',
        f'{digest}true,"recent","",0,[],0,0]',

        f'{digest}0,"ended","",0,["999999999999999~"],0,0]',
        f'{digest}0,"ended","",0,["x"],0,0]',
        f'{digest}0,"ended","",0,[],-1,0]',
        f'{digest}0,"ended","",0,[],0,1]',
    ):  # fmt: skip
        with pytest.raises(InvalidRequest) as refused:
            world.run.listing.page(wanted, limit=2, cursor=bad)
        assert refused.value.field == "cursor"
    # Whatever else a cursor says leads to an answer.
    for odd in (
        f'{digest}0,"ready","default",0,["J|{key}","100"],0,0]',
        f'{digest}0,"due","default",5,[],0,0]',
        f'{digest}0,"ended","",0,["000000000000001~"],0,0]',
        f'{digest}0,"dead","",0,[],0,0]',
        f'{digest}0,"recent","",0,[],0,0]',
        f'{digest}1,"recent","",0,["000000000000001~"],9,0]',
        f'{digest}0,"ready","default",1000000,[],0,1]',
        f'{digest}0,"ended","",0,["000000000000001~"],0,1]',
    ):
        assert isinstance(world.run.listing.page(wanted, limit=2, cursor=odd), JobsPage)


# --- where a list ends --------------------------------------------------------------------------


def counted(world: World) -> None:
    """The stream is projected, and a sweep counts all jobs, two minutes later."""
    project(world)
    world.clock.advance(120_000)
    assert world.run.metrics_sweep.run_once(world.clock.now_ms(), 1_000)


@pytest.mark.parametrize("state", [None, "completed"])
@pytest.mark.parametrize("there", [0, 3])
def test_a_first_page_with_all_jobs_has_no_cursor(
    seen: World, state: str | None, there: int
) -> None:
    """The log is not read back to its beginning where counters know that nothing is left."""
    fields = {} if state is None else {"state": state}
    wanted = job_filter.parse(fields, now_ms=seen.clock.now_ms())
    seen.run.queues.create("mail", {})
    for number in range(there):
        seen.push(number, queue="mail")
        (job,) = seen.fetch("mail")
        seen.run.finish.ack(job.id)
    counted(seen)
    with spending(seen) as spent:
        page = seen.run.listing.page(wanted, limit=20)
    assert (len(page.items), page.next_cursor) == (there, None)
    assert spent.calls <= (5 if state else CALLS)
    # As many as were counted are no proof where one of them came later.
    late = seen.push("late", queue="mail")
    (job,) = seen.fetch("mail")
    seen.run.finish.ack(job.id)
    project(seen)
    page = seen.run.listing.page(wanted, limit=20)
    assert late.id in {each.id for each in page.items}
    assert page.next_cursor is None


def test_a_first_page_that_lacks_a_job_has_a_cursor(seen: World) -> None:
    wanted = JobFilter()
    seen.run.queues.configure("mail", {"retention": {"completed": "P30D"}})
    pushed = []
    for days in (0, 5, 0):
        seen.clock.advance(days * DAY_MS)
        pushed.append(seen.push(days, queue="mail").id)
        (job,) = seen.fetch("mail")
        seen.run.finish.ack(job.id)
        if days or len(pushed) == 1:
            counted(seen)
    # Counted are two jobs; two were found, and one of them was not there then.
    project(seen)
    page = seen.run.listing.page(wanted, limit=20)
    assert len(page.items) == 2
    assert page.next_cursor is not None
    everyone = everything(seen, wanted, limit=20)
    assert sorted(job.id for job in everyone) == sorted(pushed)
