"""Dead letters as a whole: what they cost, how they are counted, what is told of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.dead_letter.statistics import MAX_NAMES, Counts, together
from ojs.domain.errors import NotFound
from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.store.dead_letter import counters as dead_letters
from ojs.store.dead_letter.counters import DeadLetterCounters, DeadLetterCounts
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.values import Item
from tests.store.dead_letters import Worlds, die, told
from tests.store.doubles import Watching
from tests.store.spending import WORKER, incompressible, spending, warm
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from tests.store.conftest import World

DAY_MS = 86_400_000


# --- cost -----------------------------------------------------------------------------------------


@pytest.mark.requirement("DL-1")
@pytest.mark.parametrize("kind", ["Boom", "x" * 255])
@pytest.mark.parametrize("size", [10, 460, 100_000])
def test_entering_dead_letter_costs_two_units_more_at_the_most(
    exact: World, kind: str, size: int
) -> None:
    warm(exact)
    spent = {}
    for code in ("x", "DEAD_LETTER"):
        pushed = exact.push(incompressible(size))
        exact.fetch(worker=WORKER)
        error = {"code": code, "type": kind, "message": "y"}
        with spending(exact) as spent[code]:
            died = exact.run.finish.nack(pushed.id, error=error, worker_id=WORKER)
        assert died.dead_letter is (code == "DEAD_LETTER")
    assert spent["DEAD_LETTER"].writes <= spent["x"].writes + 2
    assert spent["DEAD_LETTER"].calls == spent["x"].calls
    assert spent["DEAD_LETTER"].reads == spent["x"].reads
    if len(kind) < 10:
        assert spent["DEAD_LETTER"].writes == spent["x"].writes + 1


def test_deleting_one_costs_a_mark_more(exact: World) -> None:
    warm(exact)
    job = die(exact)
    with spending(exact) as spent:
        exact.run.dead_letter.delete(job.id)
    # The record, the mark, what belongs to it; the record with its error, its two index entries.
    assert spent.calls == 4
    assert spent.writes <= 1 + 3
    assert spent.reads <= 2


def letters(world: World, size: int) -> None:
    """So many dead letters of ten queues, without anything that belongs to them."""
    died = die(world)
    record = world.run.table.get(keys.job(died.id), keys.RECORD) or {}

    def some(at: int) -> Iterator[Item]:
        for number in range(at, size, 20):
            job_id = f"019539a4-0000-7000-8000-{number:012x}"
            queue, ms = f"q{number % 10}", (died.discarded_ms or 0) + number + 1
            place = keys.dead_at(ms, job_id)
            yield {
                **record, "pk": keys.job(job_id), "queue": queue, "discarded": ms,
                "wpk": keys.dead(queue), "wsk": place, "epk": keys.all_dead(), "esk": place,
            }  # fmt: skip

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: world.run.table.write_many(some(at)), range(20)))


@pytest.mark.requirement("DL-24")
@pytest.mark.exhaustive
def test_a_page_costs_the_same_among_ten_thousand(exact: World) -> None:
    costs: dict[int, dict[str, tuple[int, float]]] = {}
    for size in (200, 10_000):
        letters(exact, size)
        exact.clock.advance(60_000)
        end_ms = exact.clock.now_ms()
        asked: dict[str, DeadLetterFilter] = {
            "all": DeadLetterFilter(),
            "queue": DeadLetterFilter("q3"),
            "time": DeadLetterFilter(since=end_ms - 90_000, until=end_ms),
            "error": DeadLetterFilter(error_type="Boom"),
        }
        costs[size] = {}
        for name, wanted in asked.items():
            limit = 10 if name == "queue" else 50
            with spending(exact) as spent:
                page = exact.run.dead_letter.list(wanted, limit=limit)
            assert len(page.items) == limit
            # The line, and the job records with their errors.
            assert spent.calls == 2
            costs[size][name] = (spent.calls, spent.reads)
        with spending(exact) as spent:
            shown = exact.run.dead_letter_stats.read()
        assert (spent.calls, spent.writes) == (3, 0)
        assert spent.reads <= 5
        assert shown.oldest_ms is not None
        assert shown.newest_ms is not None
        assert shown.newest_ms > shown.oldest_ms
    for name, (calls, reads) in costs[10_000].items():
        assert calls == costs[200][name][0], name
        assert reads <= costs[200][name][1] + 1, name


# --- the projection -------------------------------------------------------------------------------


def projecting(world: World) -> tuple[Stream, Projected]:
    return Stream(world.client, world.table), Projected(world.client, world.table, world.clock)


def prune(world: World, job: Job) -> None:
    """As the pruning does it: without the mark of a deletion by hand."""
    jobs = world.run.dead_letter._jobs
    record = jobs.read_record(job.id)
    assert record is not None
    jobs.removal.delete(record)


def revive(world: World, job: Job, *, replayed: str | None = None) -> None:
    """By hand, or as an automatic replay does it."""
    jobs = world.run.dead_letter._jobs
    record = jobs.read_record(job.id)
    assert record is not None
    back = lifecycle.revive(record, now_ms=world.clock.now_ms(), order="0" * 15)
    jobs.replace(record, replace(back, replayed=replayed or record.replayed))


@pytest.mark.requirement("DL-26", "DL-27")
def test_all_that_happens_is_told_and_measured(streamed: Worlds) -> None:
    with streamed() as world:
        stream, projected = projecting(world)
        jobs = {name: die(world, "mail", error=name) for name in ("A", "B", "C", "D", "E")}
        post = die(world, "post", kind="post.send")
        records = stream.take()
        assert projected.run(records) == []
        assert projected.stats("mail", keys.DEAD) == {
            "t|test.job": 5, "e|A": 1, "e|B": 1, "e|C": 1, "e|D": 1, "e|E": 1, "rev": 1,
        }  # fmt: skip
        assert projected.stats("post", keys.DEAD) == {"t|post.send": 1, "e|Boom": 1, "rev": 1}
        revive(world, jobs["A"])
        revive(world, jobs["B"], replayed="1|rule")
        world.run.dead_letter.delete(jobs["C"].id)
        prune(world, jobs["D"])
        prune(world, jobs["E"])
        prune(world, post)
        later = stream.take()
        assert projected.run(later) == []
        before = projected.everything()
        # Again, and in any company: nothing more is counted or told.
        assert projected.run([*records, *later]) == []
        assert projected.another().run(later[::-1]) == []
        assert projected.everything() == before
        added = [("added", job.id) for job in (*jobs.values(), post)]
        found = told(projected)
        assert sorted(found) == sorted(
            [
                *added,
                ("retried", jobs["A"].id),
                ("replayed", jobs["B"].id),
                ("deleted", jobs["C"].id),
                ("pruned", "mail"),
                ("pruned", "post"),
            ]
        )
        counts = {
            event["subject"]: event["data"]
            for event in projected.events()
            if event["type"] == "dead_letter.pruned"
        }
        assert counts == {
            "mail": {"queue": "mail", "count": 2},
            "post": {"queue": "post", "count": 1},
        }
        assert sorted(
            e.id for e in projected.bus.taken if e.type == "dead_letter.pruned"
        ) == sorted(e["id"] for e in projected.events() if e["type"] == "dead_letter.pruned")
        assert projected.stats("mail", keys.DEAD) == {"rev": 2}
        # Of deletions only the stream knows when they were: by the engine's clock.
        days = [sk for pk, sk in before if pk == keys.stats("mail") and sk.startswith(keys.day(""))]
        today = sum((Counter(projected.stats("mail", day)) for day in days), Counter())
        assert (today["dead_added|test.job"], today["dead_retried"], today["dead_pruned"]) == (
            5, 1, 2,
        )  # fmt: skip
        sums = projected.metrics.sums
        mail = (("queue", "mail"),)
        assert sums[(*mail, ("type", "test.job"))]["ojs.dead_letter.added_total"] == 5
        assert sums[mail] == {
            "ojs.dead_letter.retried_total": 1, "ojs.dead_letter.pruned_total": 2,
        }  # fmt: skip


def test_what_the_bus_refuses_of_pruned_ones_is_in_the_log(streamed: Worlds) -> None:
    with streamed() as world:
        stream, projected = projecting(world)
        jobs = [die(world, "mail") for _ in range(3)]
        assert projected.run(stream.take()) == []
        for job in jobs:
            prune(world, job)
        records = stream.take()
        projected.bus.refuses = lambda event: event.type == "dead_letter.pruned"
        assert projected.run(records) == []
        assert "dead" not in projected.stats("mail")
        (event,) = (e for e in projected.events() if e["type"] == "dead_letter.pruned")
        assert event["data"] == {"queue": "mail", "count": 3}
        # It is published later (`test_projection`), as it was counted and told.
        assert not [e for e in projected.bus.taken if e.type == "dead_letter.pruned"]
        assert projected.run(records) == []
        assert not [e for e in projected.bus.taken if e.type == "dead_letter.pruned"]
        assert "dead" not in projected.stats("mail")


def test_counting_them_costs_one_write_a_queue_and_batch(streamed: Worlds) -> None:
    with streamed() as world:
        stream, projected = projecting(world)
        watching = Watching(world.client)
        projector = projected.another(watching)
        for _ in range(5):
            world.push(queue="mail")
        assert projector.run(stream.take()) == []
        for job in world.fetch("mail", count=5):
            said = {"code": "DEAD_LETTER", "message": "no"}
            world.run.finish.nack(job.id, error=said, worker_id=WORKER)
        assert projector.run(stream.take()) == []
        ups = [
            [
                action["Key"]["sk"]["S"]
                for action in actions
                if action.get("Key", {}).get("pk") == {"S": keys.stats("mail")}
            ]
            for actions in watching.transactions
        ]
        assert [keys.DEAD in sorts for sorts in ups] == [False, True]
        assert ups[1].count(keys.DEAD) == 1


# --- statistics -----------------------------------------------------------------------------------


def swept(world: World) -> Any:
    world.run.metrics_sweep.run_once(world.clock.now_ms(), 1_000)
    return world.run.dead_letter_stats.read()


@pytest.mark.requirement("DL-25")
def test_statistics_of_all_queues(streamed: Worlds) -> None:
    with streamed() as world:
        stream, projected = projecting(world)
        empty = swept(world)
        assert (empty.counts.total, empty.oldest_ms, empty.newest_ms) == (0, None, None)
        first = die(world, "billing", "invoice.generate", "TimeoutError")
        world.clock.advance(1_000)
        for number in range(3):
            die(world, "email", "email.send", "SmtpError" if number else "TimeoutError")
        last = die(world, "email", "email.send", "SmtpError")
        assert projected.run(stream.take()) == []
        shown = swept(world)
        assert shown.counts == Counts(
            total=5,
            by_queue={"email": 4, "billing": 1},
            by_error_type={"SmtpError": 3, "TimeoutError": 2},
            by_type={"email.send": 4, "invoice.generate": 1},
            at_ms=world.clock.now_ms(),
        )
        assert (shown.oldest_ms, shown.newest_ms) == (first.discarded_ms, last.discarded_ms)
        assert (shown.max_age, shown.max_count) == ("P180D", 10_000)
        assert shown.next_prune_ms % 300_000 == 0
        assert 0 < shown.next_prune_ms - world.clock.now_ms() <= 300_000
        world.run.queues.set_policy({"dead_letter": {"retention": {"max_count": 7}}})
        assert world.run.dead_letter_stats.read().max_count == 7
        # A sweep that finds nothing new writes just the totals.
        with spending(world) as spent:
            swept(world)
        assert spent.writes == 1


def test_dead_letters_of_a_deleted_queue_are_counted_as_long_as_there_are_any(
    streamed: Worlds,
) -> None:
    with streamed() as world:
        stream, projected = projecting(world)
        job = die(world, "mail")
        assert projected.run(stream.take()) == []
        world.run.deletion.delete("mail", "reject")
        with pytest.raises(NotFound):
            world.run.queues.get("mail")
        assert swept(world).counts.by_queue == {"mail": 1}
        assert world.run.stats.totals().levels.dead == 1
        assert world.run.dead_letter_stats.total(None) == 1
        assert [one.id for one in world.run.dead_letter.list().items] == [job.id]
        world.run.dead_letter.delete(job.id)
        assert projected.run(stream.take()) == []
        assert swept(world).counts.by_queue == {}
        left = world.run.metrics_sweep._queues.deleted
        assert [name for name, *_ in left(limit=10)[0]] == ["mail"]
        world.clock.advance(2 * DAY_MS)
        swept(world)
        assert left(limit=10)[0] == []


def test_a_deletion_and_a_retry_at_once(exact: World) -> None:
    """The mark loses to whoever changed the job record since; a retry takes the mark away."""
    job = die(exact)
    store = exact.run.dead_letter._jobs
    record = store.read_record(job.id)
    assert record is not None
    revive(exact, job)
    with pytest.raises(LostRace):
        exact.run.dead_letter.remove(record)
    again = die(exact, "other")
    record = store.read_record(again.id)
    assert record is not None
    marked = store.removal.mark_deleting(record)
    assert store.read_record(again.id) == marked
    # Whoever marked it died: it is still there, and may be retried or deleted.
    assert exact.run.dead_letter.get(again.id).deleting
    revive(exact, again)
    assert not exact.run.jobs.get(again.id).deleting


# --- names ----------------------------------------------------------------------------------------


def test_names_of_which_nothing_is_left_make_room(exact: World) -> None:
    store = DeadLetterCounters(exact.run.table)
    item: Item = {"pk": keys.stats("q"), "sk": keys.DEAD, "rev": 7, "t|a": 3}
    item |= {f"e|E{n}": n % 2 for n in range(dead_letters.MAX_NAMES)}
    exact.run.table.write_many([item])
    ((counted,), _) = store.named(["q", "none"])
    assert store.tidy(counted)
    ((left,), _) = store.named(["q"])
    assert left.of("e") == {f"E{n}": 1 for n in range(1, dead_letters.MAX_NAMES, 2)}
    assert (left.of("t"), left.item["rev"]) == ({"a": 3}, 8)
    # Somebody counted meanwhile: nothing is done, and nothing lost.
    assert not store.tidy(counted)
    # As long as some have no name, names stay: they might be theirs.
    assert DeadLetterCounts("q", {**item, "e|other": 1}).tidied() is None
    assert DeadLetterCounts("q", {"rev": 1, "e|A": 0}).tidied() is None, "few names need no room"


def test_what_is_too_much_to_show_is_summed_up() -> None:
    queues = {f"q{n:04d}": 2 if n % 2 else 1 for n in range(1_100)}
    errors = [{f"E{n}": 5 - n % 5 for n in range(90)}, {f"F{n}": 1 for n in range(20)}, {"F0": -3}]
    found = together(queues, errors, [])
    assert found.total == sum(queues.values()) == sum(found.by_queue.values())
    assert len(found.by_queue) == 1_001
    assert found.by_queue["_other"] == 100
    assert len(found.by_error_type) == MAX_NAMES + 1
    assert next(iter(found.by_error_type)) == "E0"
    assert found.by_error_type["other"] == 10
