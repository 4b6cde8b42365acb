"""Counters by shard: what they cost, many shards at once, folding, and what 0.2.0 counted."""

from __future__ import annotations

import hashlib
import random
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import times
from ojs.domain.counters.definitions import OFTEN
from ojs.domain.job import envelope
from ojs.domain.job.states import State
from ojs.domain.stats import MINUTE_MS
from ojs.store.derived.projection import NewEventPage, ProjectionStore, packed
from ojs.store.derived.sharded import CLOSED_MS, NOTED_MS, ShardCounters
from ojs.store.derived.shards import ShardCounts, taker
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.table import keys, values
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table, Update
from tests.spread import spread
from tests.store import worker_pools
from tests.store.streams import SHARD, Projected, Record, Stream, counted, repeated, whole

if TYPE_CHECKING:
    from tests.store.conftest import World

Worlds = Callable[[], AbstractContextManager["World"]]
HOUR_MS = 60 * MINUTE_MS


def push(world: World, count: int, queue: str = "default", kind: str = "email.send") -> None:
    """In one transaction, as ids of clients need it: a staged batch has records of its own."""
    new_id = world.run.ids.uuid7
    world.run.enqueue.push_batch(
        [
            envelope.parse({"type": kind, "id": new_id(), "args": [n], "options": {"queue": queue}})
            for n in range(count)
        ]
    )


def live(world: World, count: int, *queues: str) -> None:
    """So many jobs of each queue, enqueued, fetched and done."""
    for queue in queues or ("default",):
        push(world, count, queue)
        for job in world.fetch(queue, count=count):
            world.clock.advance(3)
            world.run.finish.ack(job.id, worker_id=job.worker_id)


def of_jobs(stream: Stream) -> list[Record]:
    return [one for one in stream.take() if one["dynamodb"]["Keys"]["pk"]["S"].startswith("J|")]


def a_day_old(world: World, projected: Projected, stream: Stream, *queues: str) -> None:
    """The queues' items have counted something in each hour of a day, the last just now."""
    for _ in range(25):
        live(world, 1, *queues)
        assert projected.run(stream.take()) == []
        world.clock.advance(HOUR_MS)
    live(world, 3, *queues)
    assert projected.run(stream.take()) == []


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "queues", "most"),
    spread(
        [(1, ("a",), 2.5), (100, ("a",), 9), (20, ("a", "b", "c", "d", "e"), 14)],
        3,
        ["a lone record", "a hundred of one queue", "a hundred of five queues"],
    ),
)
def test_a_batch_costs_no_more(
    streamed: Worlds, count: int, queues: tuple[str, ...], most: float
) -> None:
    """On items that are a day old; 0.2.0 needed 10, 16 and 40 units."""
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        a_day_old(world, projected, stream, *queues)
        for queue in queues:
            push(world, count, queue)
        records = of_jobs(stream)
        assert len(records) == count * len(queues)
        projected.store.meter.reset()
        assert projected.run(records) == []
        assert projected.store.meter.write_units <= most
        assert len(projected.store.meter.calls) == 1 + len(queues) + 1
        assert projected.store.meter.read_units <= 6 * len(queues)


@pytest.mark.exhaustive
def test_counting_stays_cheap_and_items_small(streamed: Worlds) -> None:
    """Minute by minute: what happened is moved to the queue's own items now and then, and not one
    item of a shard has more than a kilobyte for longer than a write.
    """
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        live(world, 1)
        assert projected.run(stream.take()) == []
        projected.store.meter.reset()
        batches = 0
        for _ in range(150):
            world.clock.advance(MINUTE_MS)
            live(world, 1)
            assert projected.run(of_jobs(stream)) == []
            batches += 1
        moved = projected.store.meter.calls.count("TransactWriteItems")
        # Days and minutes are packed well.
        assert moved <= 2
        (item,) = (i for (pk, _), i in projected.stored().items() if pk == f"S|{SHARD}")
        assert values.size(item) <= 1_024
        # Two for counters and page; what is moved costs two for each minute that it is of.
        # And the shard is noted now and then.
        spent = projected.store.meter.write_units
        assert spent <= 2 * batches + 2 * 150 + 12 * moved + batches // 5
        minutes = [sk for pk, sk in projected.everything() if pk == "S|default" and sk[:2] == "m|"]
        assert len(minutes) == 151
        assert projected.stats("default")["t_completed"] == 151


@pytest.mark.exhaustive
def test_an_item_that_is_full_hands_over_what_happened() -> None:
    chance = random.Random(7)
    counts = ShardCounts(SHARD, "default")
    moved: Counter[tuple[str, str]] = Counter()
    added: Counter[tuple[str, str]] = Counter()
    handed = 0
    for at in range(2_000):
        sk = keys.minute(times.format_ms(1_780_000_000_000 + at * MINUTE_MS)[:16])
        new = {name: chance.randint(1, 9_999) for name in ("enqueued", "started", "wait_ms")}
        added.update({(sk, name): n for name, n in new.items()})
        counts = counts.counting({"t_enqueued": 1}, {sk: new}, f"{at:040d}", now_ms=at)
        if counts.full():
            handed += 1
            counts, updates = counts.handed_over()
            assert len(updates) < 100
            for update in updates:
                assert len(update.arguments()["UpdateExpression"]) <= 4_096
                moved.update({(update.sk, name): n for name, n in update.add.items()})
        assert values.size(counts.item()) <= 1_024
    for sk, left in counts.recent.items():
        moved.update({(sk, name): n for name, n in left.items()})
    assert moved == added
    assert 10 < handed < 200


def test_all_levels_of_a_queue_are_folded_by_one_expression() -> None:
    """Of every state and priority; DynamoDB takes 4 KB."""
    names = [*State, *(f"p{n}" for n in range(-100, 101)), "held", "held_b", "loose", "loose_b"]
    levels = dict.fromkeys([*map(str, names), *(f"t_{row.attribute}" for row in OFTEN.values())], 1)
    update = Update("S|q", "@", set={"changed": 1, taker(SHARD): 1}, add=levels)
    assert len(update.arguments()["UpdateExpression"]) < 4_096


def test_what_comes_and_goes_in_a_batch_leaves_a_position(streamed: Worlds) -> None:
    """Its second half may come again alone (a seed of the simulation found that it must)."""
    with streamed() as world:
        worker_pools.make(world, "general", ["default"])
        world.push()
        (job,) = world.run.fetch.fetch(["default"], 1, "w", pool="general")
        assert job.pool == "general"
        world.run.finish.ack(job.id, worker_id="w")
        records = Stream(world.client, world.table).take()
        projected = Projected(world.client, world.table, world.clock)
        assert projected.run(records) == []
        for at in range(len(records)):
            assert projected.run(records[at:]) == []
        assert projected.stats("@general") == {}


# --- many shards ----------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_64_shards_at_once_are_counted_exactly(streamed: Worlds) -> None:
    """Each with its own part of one queue's jobs, delivered in order with repetitions; all at once.
    No shard waits for another: none loses a race.
    """
    with streamed() as world:
        live(world, 100)
        live(world, 92)
        records = Stream(world.client, world.table).take()
        shards: list[list[Record]] = [[] for _ in range(64)]
        for one in records:
            # As DynamoDB does: all records of an item are in one shard.
            shards[zlib.crc32(one["dynamodb"]["Keys"]["pk"]["S"].encode()) % 64].append(one)
        projected = Projected(world.client, world.table, world.clock)
        barrier = threading.Barrier(8)

        def deliver(worker: int) -> list[str]:
            mine = projected.another(world.client)
            chance = random.Random(worker)
            barrier.wait()
            return [
                name
                for number in range(worker, 64, 8)
                for batch in repeated(shards[number], chance)
                for name in mine.run(batch, f"shardId-{number:08d}-0123abcd")
            ]

        with ThreadPoolExecutor(8) as pool:
            assert not any(pool.map(deliver, range(8)))
        now = projected.stats("default")
        assert now == {
            "completed": 192, "t_enqueued": 192, "t_started": 192, "t_completed": 192,
        }  # fmt: skip
        told = Counter(event["type"] for event in projected.events())
        assert told == {"job.enqueued": 192, "job.started": 192, "job.completed": 192}
        assert len({event["id"] for event in projected.events()}) == 3 * 192
        # A list of queues shows the same.
        (summary,) = world.run.stats.list(limit=9).items
        assert summary.levels.of(State.COMPLETED) == 192


def test_a_reader_finds_shards_that_are_new(streamed: Worlds) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        reader = ShardCounters(world.run.table)
        place = keys.stats("default"), keys.NOW
        for number in range(3):
            push(world, 1)
            assert projected.run(stream.take(), f"shardId-{number}") == []
            meter = world.run.table.meter
            world.run.table.measure = True
            meter.reset()
            assert counted(reader.batch_get([place])[place])["available"] == number + 1
            assert len(meter.calls) == 2, "once more for a new shard"
            meter.reset()
            assert counted(reader.batch_get([place])[place])["available"] == number + 1
            assert len(meter.calls) == 1


# --- folding --------------------------------------------------------------------------------------


class Folding:
    """A shard that has counted a few jobs and is closed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stream = Stream(world.client, world.table)
        self.projected = Projected(world.client, world.table, world.clock)
        live(world, 3, "a", "b")
        push(world, 2, "a")
        self.records = self.stream.take()
        assert self.projected.run(self.records) == []
        self.store = StatisticsStore(world.run.table)
        self.before = self.shown()

    def fold(self) -> int:
        return self.store.fold_closed(now_ms=self.world.clock.now_ms(), go_on=lambda: True)

    def shown(self) -> dict[str, Any]:
        now_ms = self.world.clock.now_ms()
        days = {
            sk
            for pk, sk in self.projected.everything()
            if pk in ("S|a", "S|b") and sk[:2] in ("d|", "m|")
        }
        shown: dict[str, Any] = {
            f"{queue} {sk}": self.projected.stats(queue, sk)
            for queue in ("a", "b")
            for sk in {keys.NOW, *days}
        }
        shown["points"] = self.store.points("a", MINUTE_MS, now_ms - HOUR_MS, now_ms + 1)
        return shown

    def item(self, name: str = "a") -> dict[str, Any]:
        return self.projected.stored()[keys.shard_stats(SHARD), name]

    def own(self, name: str = "a") -> dict[str, int]:
        return counted(self.projected.stored().get((keys.stats(name), keys.NOW), {}))


def test_a_closed_shard_is_folded_and_its_position_stays(streamed: Worlds) -> None:
    with streamed() as world:
        folding = Folding(world)
        world.clock.advance(CLOSED_MS)
        assert folding.fold() == 0, "in use a moment ago"
        world.clock.advance(1)
        assert folding.fold() == 2
        assert folding.own()["available"] == 2
        shown = folding.shown()
        assert {name: shown[name] for name in shown if name != "points"} == {
            name: folding.before[name] for name in shown if name != "points"
        }
        assert shown["points"] == folding.before["points"]
        item = folding.item()
        assert item["ttl"] == world.clock.now_ms() // 1_000 + 2 * 86_400
        assert item["pos"]
        # Off the list the next time: a reader may have had the queue's item from before.
        assert folding.fold() == 0
        listed = folding.projected.stored()[keys.stats(keys.ALL_QUEUES), keys.SHARDS]
        assert not [name for name in listed if name.startswith("s_")]
        assert folding.shown()["a @"] == folding.before["a @"]
        # All of it once more, as after a failure hours ago: nothing is counted twice.
        assert folding.projected.run(folding.records) == []
        assert folding.shown()["a @"] == folding.before["a @"]
        assert len(folding.projected.events()) == len({e["id"] for e in folding.projected.events()})


def test_the_sweep_folds_what_is_closed(streamed: Worlds) -> None:
    with streamed() as world:
        folding = Folding(world)
        assert "folded" not in dict(world.run.metrics_sweep.run_once(world.clock.now_ms(), 100))
        world.clock.advance(CLOSED_MS + 1)
        swept = world.run.metrics_sweep.run_once(world.clock.now_ms(), 100)
        assert swept["folded"] == 2
        assert swept.totals is not None
        assert swept.totals.levels.of(State.AVAILABLE) == 2
        assert swept.totals.levels.of(State.COMPLETED) == 6
        assert folding.own()["available"] == 2


def test_a_straggler_is_counted_and_folded_again(streamed: Worlds) -> None:
    with streamed() as world:
        folding = Folding(world)
        world.clock.advance(CLOSED_MS + 1)
        folding.fold()
        folding.fold()
        push(world, 4, "a")
        assert folding.projected.run(folding.stream.take()) == []
        assert folding.projected.stats("a")["available"] == 6
        assert folding.own()["available"] == 2
        assert "ttl" not in folding.item()
        world.clock.advance(CLOSED_MS + 1)
        assert folding.fold() == 1
        assert folding.own()["available"] == 6
        assert folding.projected.stats("a")["available"] == 6


def test_counters_made_anew_after_their_time_to_live_count(streamed: Worlds) -> None:
    """As of a shard that nobody used for days: an emulator's, which stays open."""
    with streamed() as world:
        folding = Folding(world)
        world.clock.advance(CLOSED_MS + 1)
        folding.fold()
        world.run.table.delete(keys.shard_stats(SHARD), "a")
        world.clock.advance(2 * 86_400_000)
        push(world, 4, "a")
        assert folding.projected.run(folding.stream.take()) == []
        assert folding.projected.stats("a")["available"] == 6


@pytest.mark.parametrize("lost", [False, True], ids=["dies", "answer lost"])
def test_folding_that_dies_folds_nothing_twice(
    streamed: Worlds, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with streamed() as world:
        folding = Folding(world)
        world.clock.advance(CLOSED_MS + 1)
        whole_, times_ = Table.transact, []

        def dying(self: Table, writes: Any) -> None:
            times_.append(1)
            if len(times_) == 2:
                if lost:
                    whole_(self, writes)
                raise KeyboardInterrupt
            whole_(self, writes)

        monkeypatch.setattr(Table, "transact", dying)
        with pytest.raises(KeyboardInterrupt):
            folding.fold()
        assert folding.shown() == folding.before | {"points": folding.shown()["points"]}
        assert folding.fold() == (0 if lost else 1)
        assert folding.shown()["a @"] == folding.before["a @"]
        assert folding.shown()["b @"] == folding.before["b @"]


class Between:
    """A table as somebody read it who was interrupted."""

    def __init__(self, items: dict[tuple[str, str], Any]) -> None:
        self._items = items

    def batch_get(self, wanted: Any, *, consistent: bool = True) -> Any:
        return {key: self._items[key] for key in wanted if self._items.get(key)}


def test_a_reader_in_the_middle_of_a_fold_counts_neither_twice_nor_not(streamed: Worlds) -> None:
    """It may have read the shard's item before and the queue's own after, or the other way."""
    with streamed() as world:
        folding = Folding(world)
        reader = ShardCounters(world.run.table)
        place, at = (keys.stats("a"), keys.NOW), (keys.shard_stats(SHARD), "a")
        early = folding.projected.stored()
        recent = reader.recent("a")
        world.clock.advance(CLOSED_MS + 1)
        folding.fold()
        late = folding.projected.stored()
        day = next(sk for pk, sk in late if pk == "S|a" and sk[:2] == "d|")
        # The shard's item first, then the queue's own: the rule for days and minutes.
        added = recent.added("S|a", day, late["S|a", day])
        assert added is not None
        wanted = folding.before[f"a {day}"]
        assert {name: n for name, n in counted(added).items() if n} == wanted
        for own, of_shard in ((early, late), (late, early)):
            items = {place: own.get(place), at: of_shard.get(at)}
            listed = (keys.stats(keys.ALL_QUEUES), keys.SHARDS)
            items[listed] = early[listed]

            between = ShardCounters(Between(items))  # type: ignore[arg-type]
            found = between.batch_get([place])
            shown = {n: v for n, v in counted(found[place]).items() if v}
            shown = {n: v for n, v in shown.items() if n not in ("loose", "loose_b")}
            assert shown == folding.before["a @"]


def test_a_shard_is_noted_before_anything_is_counted(streamed: Worlds) -> None:
    """A container notes it again long before the sweep would take it for closed."""
    assert NOTED_MS * 2 <= CLOSED_MS
    with streamed() as world:
        projected = Projected(world.client, world.table, world.clock)
        push(world, 1)
        projected.store.meter.reset()
        assert projected.run(Stream(world.client, world.table).take()) == []
        assert projected.store.meter.calls[0] == "UpdateItem"
        world.clock.advance(NOTED_MS - 1)
        store = projected.projector.projector._store
        projected.store.meter.reset()
        store.use(SHARD, now_ms=world.clock.now_ms())
        assert projected.store.meter.calls == []
        store.use(SHARD, now_ms=world.clock.now_ms() + 1)
        assert projected.store.meter.calls == ["UpdateItem"]


# --- event pages ----------------------------------------------------------------------------------


def test_a_page_that_was_given_up_is_never_written(exact: World) -> None:
    """Two invocations of one shard at once: one of them finds the other's page missing."""
    store = ProjectionStore(exact.run.table)
    page = NewEventPage(keys.event_page(exact.clock.now_ms(), "token"), packed(["{}"]), 1)
    assert not store.page_stands(page.key)
    assert not store.page_stands(page.key)
    with pytest.raises(LostRace):
        store.add_page(page)
    other = NewEventPage(keys.event_page(exact.clock.now_ms(), "other"), packed(["{}"]), 1)
    store.add_page(other)
    assert store.page_stands(other.key)


def test_positions_follow_the_records_in_parts(exact: World) -> None:
    """Redelivered in smaller batches after a crash before the event page: the part that is in hand
    gets a page, and the rest is known to have none.
    """
    counts = ShardCounts(SHARD, "q").counting({"available": 9}, {}, "9", now_ms=1)
    counts = counts.telling("page 1", "1", "9")
    assert (counts.page_from, counts.page_to) == ("", "9")
    # The page is missing, and 1 to 4 come again.
    counts = counts.telling("page 2", "1", "4")
    assert (counts.page_from, counts.page_to, counts.position) == ("", "4", "9")
    # Then 5 to 9.
    counts = counts.telling("page 3", "5", "9")
    assert (counts.page_from, counts.page_to) == ("4", "9")


# --- 0.2.0 ----------------------------------------------------------------------------------------


def mark(world: World, records: list[Record]) -> None:
    """Dedup records as 0.2.0 wrote them in the transaction that counted these records."""
    by_second: dict[int, bytes] = {}
    for one in records:
        created = one["dynamodb"]["ApproximateCreationDateTime"]
        second = int(created if isinstance(created, int | float) else created.timestamp())
        digest = hashlib.blake2b(one["eventID"].encode(), digest_size=8).digest()
        by_second[second] = by_second.get(second, b"") + digest
    for second, seen in by_second.items():
        for number, at in enumerate(range(0, len(seen), 40)):
            item: dict[str, Any] = {
                "pk": keys.dedup_records(second), "sk": f"{number:04d}", "seen": seen[at : at + 40],
                "rev": 1, "ttl": second + 2 * 86_400,
            }  # fmt: skip
            world.run.table.put(Put(item))


def as_0_2_0(world: World, projected: Projected) -> None:
    """Move what is counted to where 0.2.0 had it: the queues' own items, and nothing by shard."""
    found = projected.stored()
    for key, item in whole(found).items():
        if key[0].startswith("S|") and key != (keys.stats(keys.ALL_QUEUES), keys.SHARDS):
            own = {name: value for name, value in item.items() if not name.startswith("f_")}
            world.run.table.put(Put(own))
    for pk, sk in found:
        if pk == keys.shard_stats(SHARD) or sk == keys.SHARDS:
            world.run.table.delete(pk, sk)


def test_an_upgrade_counts_nothing_twice_and_loses_nothing(streamed: Worlds) -> None:
    """0.2.0 counted some of a batch and failed: all of it comes to this version."""
    with streamed() as world:
        stream = Stream(world.client, world.table)
        old = Projected(world.client, world.table, world.clock)
        live(world, 5)
        first = stream.take()
        assert old.run(first) == []
        as_0_2_0(world, old)
        mark(world, first)
        before = old.stats("default")
        assert before["t_completed"] == 5
        told = len(old.events())
        live(world, 4)
        push(world, 2)
        more = stream.take()

        new = Projected(world.client, world.table, world.clock)
        assert new.run([*first, *more]) == []
        assert new.run([*first, *more]) == []
        now = new.stats("default")
        assert (now["t_completed"], now["completed"], now["available"]) == (9, 9, 2)
        day = new.stats("default", keys.day(times.format_ms(world.clock.now_ms())[:10]))
        assert (day["enqueued"], day["enqueued|email.send"]) == (11, 11)
        assert len(new.events()) == told + 4 * 3 + 2
        assert len({event["id"] for event in new.events()}) == len(new.events())

        # Two days later 0.2.0's notes are gone, and nobody looks for them.
        push(world, 1)
        late = stream.take()
        world.clock.advance(2 * 86_400_000 + NOTED_MS)
        container = new.another()
        assert container.run(late) == []
        new.store.meter.reset()
        push(world, 1)
        assert container.run(stream.take()) == []
        assert "Query" not in new.store.meter.calls


def test_going_back_and_forth_loses_nothing(streamed: Worlds) -> None:
    """0.2.0 adds to the queues' own items what it is given meanwhile; the sums stay right."""
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        live(world, 3)
        assert projected.run(stream.take()) == []
        # What 0.2.0 did with the records that came then.
        live(world, 2)
        then = stream.take()
        world.client.update_item(
            TableName=world.table,
            Key={"pk": {"S": "S|default"}, "sk": {"S": keys.NOW}},
            UpdateExpression="ADD completed :two, t_completed :two, t_enqueued :two",
            ExpressionAttributeValues={":two": {"N": "2"}},
        )
        mark(world, then)
        live(world, 1)
        # The mapping has its window again, and begins where no answer had a state.
        assert projected.run([*then, *stream.take()]) == []
        now = projected.stats("default")
        assert (now["completed"], now["t_completed"], now["t_enqueued"]) == (6, 6, 6)
        world.clock.advance(CLOSED_MS + 1)
        StatisticsStore(world.run.table).fold_closed(
            now_ms=world.clock.now_ms(), go_on=lambda: True
        )
        assert projected.stats("default") == now
