"""The projection on engines: what it writes, what it costs, many at once, dying in between."""

from __future__ import annotations

import random
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs import projections
from ojs.domain import times
from ojs.domain.job import envelope, lifecycle
from ojs.domain.job import failure as failures
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.settings import Settings
from ojs.store.jobs import items
from ojs.store.table import keys
from ojs.store.table.schema import STREAM_MAX_AGE_S
from tests.store.doubles import Broken, Watching
from tests.store.faults import Faulty, Killed, cancelled
from tests.store.streams import (
    SHARD,
    FakeBus,
    Projected,
    Record,
    Stream,
    is_event_page,
    lambda_form,
    made_record,
    recount,
    recount_behind,
    unpacked,
)

if TYPE_CHECKING:
    from tests.store.conftest import World

Worlds = Callable[[], AbstractContextManager["World"]]
NOW_MS = 1_780_000_000_000


def request(number: int, **options: Any) -> envelope.JobRequest:
    return envelope.parse({"type": "email.send", "args": [number], "options": options})


def lived(world: World, count: int) -> None:
    """So many jobs enqueued, fetched and done: three records each. Their ids are the client's, so
    that they are no staged batch, which has records of its own.
    """
    for start in range(0, count, 100):
        world.run.enqueue.push_batch(
            [
                request(n).model_copy(update={"id": world.run.ids.uuid7()})
                for n in range(start, min(count, start + 100))
            ]
        )
    for job in world.fetch(count=100):
        world.clock.advance(7)
        world.run.finish.ack(job.id, worker_id=job.worker_id)


def levels(projected: Projected, queue: str = "default") -> dict[str, int]:
    return {n: v for n, v in projected.stats(queue).items() if not n.startswith("t_")}


def agree(projected: Projected, queue: str = "default") -> bool:
    found = projected.everything().values()
    job_records, behind = recount(found)[queue], recount_behind(found)[queue]
    return levels(projected, queue) == dict(job_records) and projected.behind(queue) == dict(behind)


# --- what is written ----------------------------------------------------------------------------


def test_a_job_from_beginning_to_end(world: World, request: pytest.FixtureRequest) -> None:
    """On every engine, from records made of the images its own writes left."""
    watched = Watched(world)
    pushed = world.push(queue="mail", priority=5, kind="email.send")
    watched.look()
    world.clock.advance(1_500)
    (job,) = world.fetch("mail")
    watched.look()
    world.clock.advance(2_000)
    world.run.finish.ack(job.id, worker_id=job.worker_id, result={"sent": 1})
    watched.look()
    projected = Projected(world.client, world.table, world.clock)
    # Twice in one batch, and in both forms.
    assert projected.run([*map(lambda_form, watched.records), *watched.records]) == []
    assert projected.stats("mail") == {
        "completed": 1, "t_enqueued": 1, "t_started": 1, "t_completed": 1,
    }  # fmt: skip
    day = projected.stats("mail", keys.day("2026-05-28"))
    assert day == {
        "created": 1, "enqueued": 1, "enqueued|email.send": 1, "started": 1, "completed": 1,
        "completed|email.send": 1, "wait_ms": 1_500, "waits": 1, "run_ms": 2_000, "runs": 1,
        "bw5": 1, "bd8": 1,
    }  # fmt: skip
    minute = projected.stats("mail", keys.minute(times.format_ms(NOW_MS)[:16]))
    assert minute == {
        "enqueued": 1, "started": 1, "completed": 1, "wait_ms": 1_500, "waits": 1,
        "run_ms": 2_000, "runs": 1,
    }  # fmt: skip
    told = [event for event in projected.events() if event["subject"] == pushed.id]
    assert [(event["type"], event["data"]) for event in told] == [
        (
            "job.enqueued",
            {"job_type": "email.send", "queue": "mail", "priority": 5, "from": "pending"},
        ),
        (
            "job.started",
            {"job_type": "email.send", "queue": "mail", "worker_id": job.worker_id, "attempt": 1},
        ),
        (
            "job.completed",
            {
                "job_type": "email.send", "queue": "mail", "duration_ms": 2_000, "attempt": 1,
                "result": {"sent": 1},
            },
        ),
    ]  # fmt: skip
    assert projected.run(watched.records) == []
    assert len(projected.events()) == 3


@pytest.mark.parametrize(
    "kind", ["streamed", pytest.param("streamed_ministack", marks=pytest.mark.exhaustive)]
)
def test_the_stream_of_an_engine(kind: str, request: pytest.FixtureRequest) -> None:
    """A large batch, whose commit has binary values, and the same names for records each time."""
    worlds: Worlds = request.getfixturevalue(kind)
    with worlds() as world:
        stream = Stream(world.client, world.table)
        world.run.enqueue.push_batch(
            [envelope.parse({"type": "a", "args": [n]}) for n in range(110)]
        )
        for job in world.fetch(count=5):
            world.run.finish.ack(job.id, worker_id=job.worker_id)
        projected = Projected(world.client, world.table, world.clock)
        records = stream.take()
        assert projected.run([lambda_form(one) for one in records]) == []
        again = Stream(world.client, world.table).take()
        assert [one["dynamodb"] for one in again] == [one["dynamodb"] for one in records]
        assert projected.run(again) == []
        assert levels(projected) == {"available": 105, "p0": 105, "completed": 5}
        assert agree(projected)
        assert len(projected.events()) == 120


class Watched:
    """Records of a table without a stream: the difference between one look and the next."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: dict[tuple[str, str], dict[str, Any]] = {}
        self.records: list[Record] = []
        self.look()

    def look(self) -> None:
        found = Projected(self._world.client, self._world.table, self._world.clock).everything()
        for key in sorted(found.keys() | self._seen.keys()):
            old, new = self._seen.get(key), found.get(key)
            if old != new and key[0].startswith(("J|", "Q|", "K|", "B|")):
                self.records.append(made_record(len(self.records) + 1, old, new))
        self._seen = found


def test_the_statistics_live_as_long_as_they_are_shown(streamed: Worlds) -> None:
    with streamed() as world:
        world.push()
        projected = Projected(world.client, world.table, world.clock)
        projected.run(Stream(world.client, world.table).take())
        found = projected.everything()
        ends = {
            (pk[0], sk[:2]): item.get("ttl", 0) - NOW_MS // 1_000
            for (pk, sk), item in found.items()
            if pk[0] in "SME"
        }
        # As long as they are shown, and up to a day (a minute) longer; counters for good.
        assert ends.pop(("S", "@")) == ends.pop(("S", "sh")) == -NOW_MS // 1_000
        assert 90 * 86_400 < ends.pop(("S", "d|")) <= 91 * 86_400
        assert 25 * 3_600 < ends.pop(("S", "m|")) <= 25 * 3_600 + 60
        assert ends == {("E", "00"): 8 * 86_400}
        (counts,) = (item for (pk, _), item in projected.stored().items() if pk == f"S|{SHARD}")
        assert counts["changed"] == NOW_MS
        assert "ttl" not in counts


def test_what_a_job_that_was_removed_leaves_behind_is_removed(streamed: Worlds) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        job = world.push("x" * 5_000, retry={"max_attempts": 1})
        world.fetch(worker="w")
        world.run.jobs.report_progress(job.id, progress=0.5, worker_id="w")
        world.run.finish.nack(job.id, worker_id="w", error={"message": "no"})
        projected.run(stream.take())
        # As time to live does: the job record alone.
        key = {"pk": {"S": keys.job(job.id)}, "sk": {"S": keys.RECORD}}
        world.client.delete_item(TableName=world.table, Key=key)
        records = stream.take()
        failing = projected.another(Broken(world.client, "batch_write_item", 1))
        assert failing.run(records) != []
        assert levels(projected) == {}, "it comes again, and is counted already"
        assert [pk for pk, _ in projected.everything() if pk == keys.job(job.id)]
        assert projected.run(records) == []
        assert not [pk for pk, _ in projected.everything() if pk == keys.job(job.id)]
        assert levels(projected) == {}


def test_events_of_a_job_are_kept_in_the_order_of_its_life(streamed: Worlds) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        options = {"max_attempts": 2, "initial_interval_ms": 1, "jitter": False}
        pushed = world.push(retry=options)
        # Each step is projected by itself, and the clock stands still or nearly: what is written
        # in one millisecond must not change places.
        projected.run(stream.take())
        for _ in range(2):
            (job,) = world.fetch()
            projected.run(stream.take())
            world.run.finish.nack(
                job.id,
                error={"code": "smtp", "message": "refused", "backtrace": ["a", "b"]},
                worker_id=job.worker_id,
            )
            projected.run(stream.take())
            world.clock.advance(1)
        world.run.redrive.retry(pushed.id)
        projected.run(stream.take())
        world.run.jobs.cancel(pushed.id)
        projected.run(stream.take())
        told = projected.events()
        assert [event["type"] for event in told] == [
            "job.enqueued", "job.started", "job.failed", "job.retrying",
            "job.enqueued", "job.started", "job.failed", "job.discarded", "dead_letter.added",
            "dead_letter.retried", "job.enqueued", "job.cancelled",
        ]  # fmt: skip
        failed, retrying, discarded = told[2], told[3], told[7]
        assert failed["data"] == {
            "job_type": "test.job",
            "queue": "default",
            "attempt": 1,
            "duration_ms": 0,
            "error": {
                "code": "smtp", "type": "smtp", "message": "refused", "retryable": True,
                "stack_trace": "a\nb",
            },
        }  # fmt: skip
        assert retrying["data"]["next_retry_at"] == times.format_ms(NOW_MS + 1)
        assert retrying["data"]["max_attempts"] == 2
        assert discarded["data"]["total_attempts"] == 2
        assert discarded["data"]["last_error"]["code"] == "smtp"
        assert projected.stats("default", keys.day("2026-05-28"))["failed"] == 1


@pytest.mark.exhaustive
def test_a_batch_of_a_thousand_is_one_record(streamed: Worlds) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        pushed = world.run.enqueue.push_batch(
            [request(n, priority=n % 2, queue=f"q{n % 2}") for n in range(999)]
            + [request(999, queue="q1", delay_until="+PT1H")]
        )
        records = stream.take()
        commit = [one for one in records if one["eventName"] == "REMOVE"]
        assert len(commit) == 1
        projected = Projected(world.client, world.table, world.clock)
        projected.store.meter.reset()
        assert projected.run(commit) == []
        # The shard is noted, and the two queues, with a type of job that is new today; two pages
        # of events.
        assert projected.store.meter.calls == [
            "UpdateItem", "BatchGetItem",
            "UpdateItem", "TransactWriteItems", "PutItem",
            "UpdateItem", "TransactWriteItems", "PutItem",
        ]  # fmt: skip
        assert projected.run(commit) == []
        assert projected.stats("q0") == {"available": 500, "p0": 500, "t_enqueued": 500}
        assert projected.stats("q1") == {
            "available": 499, "p1": 499, "scheduled": 1, "t_enqueued": 499,
        }  # fmt: skip
        told = projected.events()
        assert sorted(event["subject"] for event in told) == sorted(one.job.id for one in pushed)
        assert Counter(event["type"] for event in told) == {"job.enqueued": 999, "job.scheduled": 1}
        assert all(agree(projected, queue) for queue in ("q0", "q1"))


@pytest.mark.exhaustive
def test_a_batch_over_more_queues_than_a_transaction_can_hold(streamed: Worlds) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        world.run.enqueue.push_batch([request(n, queue=f"q{n % 130}") for n in range(260)])
        records = stream.take()
        projected = Projected(world.client, world.table, world.clock)
        assert projected.run(records) == []
        assert projected.run(records) == []
        for n in range(130):
            assert projected.stats(f"q{n}") == {"available": 2, "p0": 2, "t_enqueued": 2}
        assert len(projected.events()) == 260


@pytest.mark.exhaustive
def test_records_of_many_queues_are_grouped(streamed: Worlds) -> None:
    with streamed() as world:
        for n in range(120):
            world.push(queue=f"q{n}")
        projected = Projected(world.client, world.table, world.clock)
        projected.store.meter.reset()
        assert projected.run(Stream(world.client, world.table).take()) == []
        # A type of job that is new in its queue today; the next times one write for each queue, and
        # an event page for some.
        assert projected.store.meter.calls.count("TransactWriteItems") == 120
        assert 2 <= projected.store.meter.calls.count("PutItem") <= 4
        world.clock.advance(1)
        stream = Stream(world.client, world.table)
        stream.take()
        for n in range(120):
            world.push(queue=f"q{n}", kind="test.job")
        projected.store.meter.reset()
        assert projected.run(stream.take()) == []
        assert projected.store.meter.calls.count("TransactWriteItems") == 0
        assert 122 <= projected.store.meter.calls.count("PutItem") <= 124
        assert all(projected.stats(f"q{n}")["available"] == 2 for n in range(120))


def test_types_beyond_the_bound_count_as_other(streamed: Worlds) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        for n in range(30):
            world.push(kind=f"kind.n{n}")
        projected.run(stream.take())
        requests = [envelope.parse({"type": f"kind.n{n}", "args": []}) for n in range(20, 120)]
        world.run.enqueue.push_batch(requests)
        projected.run(stream.take())
        day = projected.stats("default", keys.day("2026-05-28"))
        named = {name: n for name, n in day.items() if name.startswith("enqueued|")}
        assert len(named) == 41
        assert named["enqueued|other"] == 80
        assert named["enqueued|kind.n25"] == 2
        assert sum(named.values()) == day["enqueued"] == 130
        named_in = [dict(dimensions).get("type") for dimensions in projected.metrics.sums]
        metrics = [kind for kind in named_in if kind is not None]
        assert len(metrics) == 41
        assert "other" in metrics


@pytest.mark.exhaustive
def test_long_errors_are_cut_and_pages_split(streamed: Worlds) -> None:
    with streamed() as world:
        chance = random.Random(1)
        requests = [request(n, retry={"max_attempts": 1}) for n in range(200)]
        for at in (0, 100):
            world.run.enqueue.push_batch(requests[at : at + 100])
        for job in [*world.fetch(count=100), *world.fetch(count=100)]:
            # Hardly anything to compress.
            message = "".join(map(chr, chance.choices(range(0x4E00, 0x9E00), k=3_000)))
            error = {"code": "x", "message": message, "backtrace": [message]}
            world.run.finish.nack(job.id, error=error, worker_id=job.worker_id)
        projected = Projected(world.client, world.table, world.clock)
        watching = Watching(world.client)
        assert projected.another(watching).run(Stream(world.client, world.table).take()) == []
        assert len(watching.transactions) > 2
        for actions in watching.transactions:
            # DynamoDB takes 100 writes and 4 MB.
            assert len(actions) <= 100
            put = [one["Item"] for one in actions if "Item" in one]
            told = [item["zip"]["B"] for item in put if "zip" in item]
            # Room is kept for ten pages beside the counters of as many queues as there can be:
            # enough for so many characters, whatever they are.
            assert len(told) <= 10
            assert sum(len(zlib.decompress(page).decode()) for page in told) < 510_000
            assert sum(map(weight, put)) < 2_500_000
        pages = [i for key, i in projected.everything().items() if is_event_page(key)]
        assert max(len(page["zip"]) for page in pages) <= 200_000
        told = projected.events()
        assert len(told) == 1_000
        failed = next(event for event in told if event["type"] == "job.failed")
        assert len(failed["data"]["error"]["message"]) == 1_000
        assert len(failed["data"]["error"]["stack_trace"]) == 2_000


# --- what it costs ------------------------------------------------------------------------------


@contextmanager
def spending(projected: Projected) -> Iterator[Counter[str]]:
    """Write units by the first letter of the partition's key."""
    spent: Counter[str] = Counter()
    client, meter = projected.client, projected.store.meter
    meter.reset()

    def transact(**arguments: Any) -> Any:
        # One transaction's units cannot be told apart by item, so its parts are priced as
        # DynamoDB does: two units for each KB begun, of the item before or after.
        answer = client.transact_write_items(**arguments)
        parts = 0.0
        for action in arguments["TransactItems"]:
            (one,) = action.values()
            key = one.get("Key") or {name: one["Item"][name] for name in ("pk", "sk")}
            stored = client.get_item(TableName=projected.table, Key=key)["Item"]
            units = 2 * -(-weight(stored) // 1_024)
            spent[key["pk"]["S"][0]] += units
            parts += units
        (consumed,) = answer["ConsumedCapacity"]
        assert consumed["CapacityUnits"] == parts
        return answer

    def put(**arguments: Any) -> Any:
        answer = client.put_item(**arguments)
        spent[arguments["Item"]["pk"]["S"][0]] += answer["ConsumedCapacity"]["CapacityUnits"]
        return answer

    class Priced:
        def __getattr__(self, name: str) -> Any:
            special = {"transact_write_items": transact, "put_item": put}
            return special.get(name) or getattr(client, name)

    projected.store.client = Priced()  # type: ignore[assignment]
    yield spent
    projected.store.client = client


def weight(item: dict[str, Any]) -> int:
    """Bytes of an item as DynamoDB counts them."""
    total = 0
    for name, typed in item.items():
        ((kind, value),) = typed.items()
        total += len(name.encode())
        if kind == "N":
            digits = value.lstrip("-").strip("0")
            total += (len(digits) + 1) // 2 + 1 + value.startswith("-")
        else:
            total += len(value.encode() if kind == "S" else value)
    return total


def test_a_hundred_records_of_one_queue(streamed: Worlds) -> None:
    """The bounds of the design: 6 units for counters, half a unit a record for events."""
    with streamed() as world:
        lived(world, 100)
        records = [
            one for one in Stream(world.client, world.table).take()
            if one["dynamodb"]["Keys"]["pk"]["S"].startswith("J|")
        ]  # fmt: skip
        assert len(records) == 300
        projected = Projected(world.client, world.table, world.clock)
        assert projected.run(records[:100]) == []
        for start in (100, 200):
            batch = records[start : start + 100]
            with spending(projected) as spent:
                assert projected.run(batch) == []
            assert spent["S"] <= 1
            assert spent["E"] / 100 < 0.05
            assert projected.store.meter.calls == ["BatchGetItem", "PutItem", "PutItem"]
        with spending(projected) as spent:
            assert projected.run(records) == []
        assert not spent
        # Whether the page of the last batch was written.
        assert projected.store.meter.calls == ["BatchGetItem", "GetItem"]
        assert agree(projected)


@pytest.mark.exhaustive
def test_a_hundred_failures_of_one_queue(streamed: Worlds) -> None:
    with streamed() as world:
        world.run.enqueue.push_batch([request(n) for n in range(100)])
        for number, job in enumerate(world.fetch(count=100)):
            error = {"code": "smtp", "message": f"refused {number}", "backtrace": ["a.py:1"] * 9}
            world.run.finish.nack(job.id, error=error, worker_id=job.worker_id)
        records = [
            one for one in Stream(world.client, world.table).take()
            if one["dynamodb"]["Keys"]["sk"]["S"] == "@"
        ][-100:]  # fmt: skip
        projected = Projected(world.client, world.table, world.clock)
        with spending(projected) as spent:
            assert projected.run(records) == []
        assert projected.stats("default")["t_retried"] == 100
        assert spent["S"] <= 6
        assert (spent["M"] + spent["E"]) / 100 < 0.5
        # The records have the errors: none is read.
        assert projected.store.meter.read_units <= 10
        failed = [one for one in projected.events() if one["type"] == "job.failed"]
        assert {one["data"]["error"]["message"] for one in failed} == {
            f"refused {number}" for number in range(100)
        }


def test_what_nobody_is_told_of_costs_nothing(streamed: Worlds) -> None:
    with streamed() as world:
        world.run.queues.resume("default")
        stream = Stream(world.client, world.table)
        stream.take()
        world.run.queues.resume("default")
        projected = Projected(world.client, world.table, world.clock)
        projected.store.meter.reset()
        assert projected.run(stream.take()) == []
        assert projected.store.meter.calls == []


# --- many at once, and dying in between ---------------------------------------------------------


@pytest.mark.exhaustive
def test_overlapping_batches_at_once_count_each_record_once(streamed: Worlds) -> None:
    with streamed() as world:
        lived(world, 100)
        records = Stream(world.client, world.table).take()
        projected = Projected(world.client, world.table, world.clock)
        containers = 6
        barrier = threading.Barrier(containers)

        def deliver(number: int) -> list[str]:
            mine = projected.another(world.client)
            batches = [records[at : at + 50] for at in range(0, len(records), 50)]
            barrier.wait()
            # All of it by each, in order; some are ahead of others. What lost too often comes
            # again before what follows, as Lambda would have it.
            return [name for batch in batches for name in mine.run(batch) and mine.run(batch)]

        with ThreadPoolExecutor(containers) as pool:
            assert not any(pool.map(deliver, range(containers)))
        assert projected.run(records) == []
        assert agree(projected)
        assert projected.stats("default")["t_completed"] == 100
        assert len(projected.events()) == 300
        # Measured once each, whoever wrote them.
        (measured,) = (sums for named, sums in projected.metrics.sums.items() if named)
        assert measured["ojs.job.completed"] == 100
        assert projected.metrics.sums[()] == {"ojs.queue.created.count": 1}


def _of_a_job(record: Record) -> bool:
    return str(record["dynamodb"]["Keys"]["pk"]["S"]).startswith(keys.job(""))


def renumbered(records: Sequence[Record]) -> list[Record]:
    """The records in this order, which their sequence numbers have too."""
    numbers = sorted(each["dynamodb"]["SequenceNumber"] for each in records)
    return [
        {**each, "dynamodb": {**each["dynamodb"], "SequenceNumber": number}}
        for each, number in zip(records, numbers, strict=True)
    ]


class Between:
    """A client on which something else happens once, after a number of writes."""

    def __init__(self, client: Any, after: int, meanwhile: Callable[[], Any]) -> None:
        self._client, self._left, self._meanwhile = client, after, meanwhile

    def __getattr__(self, operation: str) -> Any:
        act = getattr(self._client, operation)
        if operation not in {"put_item", "update_item", "transact_write_items"}:
            return act

        def write(**arguments: Any) -> Any:
            answer = act(**arguments)
            self._left -= 1
            if self._left == 0:
                self._meanwhile()
            return answer

        return write


@pytest.mark.parametrize("queues", ["ab", "ba", "aba", "bab"])
@pytest.mark.parametrize("after", range(1, 5))
@pytest.mark.parametrize("swapped", [False, True])
def test_batches_with_one_first_record_in_one_millisecond_lose_no_event(
    streamed: Worlds, queues: str, after: int, swapped: bool
) -> None:
    for some in range(1, 2 * len(queues) + 1):
        with streamed() as world:
            stream = Stream(world.client, world.table)
            jobs = {world.push(queue=queue).id for queue in queues}
            taken = stream.take()
            # Two clients enqueue side by side: the records of both queues are first, in either
            # order. They have counts, and no events.
            made = [each for each in taken if not _of_a_job(each)][:: -1 if swapped else 1]
            records = renumbered([*made, *filter(_of_a_job, taken)])
            projected = Projected(world.client, world.table, world.clock)
            other = projected.another(world.client)
            meanwhile = partial(other.run, records[:some])
            projected.another(Between(world.client, after, meanwhile)).run(records)
            assert projected.run(records) == []
            told = [e["subject"] for e in projected.events() if e["type"] == "job.enqueued"]
            assert sorted(told) == sorted(jobs)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("fault", "goes_on"),
    [
        ("died before", False),
        ("died after", False),
        ("answer lost", True),
        ("timed out", True),
        ("request lost", True),
        ("contended", True),
        ("ThrottlingException", True),
        ("AccessDeniedException", False),
    ],
)
def test_a_fault_at_any_call_counts_nothing_twice(
    streamed: Worlds, fault: str, goes_on: bool
) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        for fail_at in range(1, 20):
            # Two queues: several writes, one after the other, and the event page.
            for queue in ("a", "b"):
                world.run.enqueue.push_batch([request(n, queue=queue) for n in range(3)])
            for job in world.run.fetch.fetch(["a", "b"], 4, "w"):
                world.run.finish.ack(job.id, worker_id="w")
            records = stream.take()
            client = Faulty(world.client, fail_at, fault, Killed)
            try:
                failed = projected.another(client).run(records)
            except Killed:
                failed = [one["dynamodb"]["SequenceNumber"] for one in records]
            numbers = [one["dynamodb"]["SequenceNumber"] for one in records]
            again = records[numbers.index(failed[0]) :] if failed else []
            if goes_on and fail_at > 2:
                assert not again
            assert projected.run(again) == []
            assert agree(projected, "a")
            assert agree(projected, "b")
            if client.calls < fail_at:
                break
        else:
            pytest.fail("a path with many calls")
        assert fail_at >= 3
        told = projected.events()
        assert len({event["id"] for event in told}) == len(told)
        totals = projected.stats("a")["t_enqueued"] + projected.stats("b")["t_enqueued"]
        assert Counter(event["type"] for event in told)["job.enqueued"] == totals
        # Metrics are written last: a crash loses them.
        if not fault.startswith("died"):
            measured: Counter[str] = sum(projected.metrics.sums.values(), Counter())
            assert measured["ojs.job.enqueued"] == totals


def test_a_crash_after_the_bus_tells_again_under_the_same_ids(streamed: Worlds) -> None:
    with streamed() as world:
        world.push(retry={"max_attempts": 1})
        (job,) = world.fetch()
        world.run.finish.nack(job.id, error={"code": "x"}, worker_id=job.worker_id)
        records = Stream(world.client, world.table).take()
        projected = Projected(world.client, world.table, world.clock)
        # The first calls note the shard and read, the bus takes, the third call writes.
        with pytest.raises(Killed):
            projected.another(Faulty(world.client, 3, "died before", Killed)).run(records)
        first = list(projected.bus.taken)
        assert [event.type for event in first] == ["job.discarded", "dead_letter.added"]
        assert projected.run(records) == []
        assert projected.bus.taken[2:] == first
        assert projected.run(records) == []
        assert len(projected.bus.taken) == 4
        assert [e["id"] for e in projected.events()][-2:] == [event.id for event in first]


def test_a_lost_race_that_never_ends_is_reported(streamed: Worlds) -> None:
    with streamed() as world:
        world.push()
        records = Stream(world.client, world.table).take()
        projected = Projected(world.client, world.table, world.clock)

        class Crowded:
            def __getattr__(self, name: str) -> Any:
                if name != "transact_write_items":
                    return getattr(world.client, name)

                def lose(**_: Any) -> Any:
                    raise cancelled("ConditionalCheckFailed", name)

                return lose

        names = [
            one["dynamodb"]["SequenceNumber"]
            for one in records
            if one["dynamodb"]["Keys"]["pk"]["S"].startswith(("J|", "Q|"))
        ]
        assert projected.another(Crowded()).run(records) == names
        assert 0 < sum(projected.slept) < 10
        assert len(set(projected.slept)) > 3
        assert projected.run(records) == []
        assert agree(projected)


# --- what cannot be projected -------------------------------------------------------------------


def of(records: Sequence[Record], job_id: str) -> list[str]:
    return [
        one["dynamodb"]["SequenceNumber"]
        for one in records
        if one["dynamodb"]["Keys"]["pk"]["S"] == keys.job(job_id)
    ]


def test_what_the_bus_refuses_holds_back_nothing_else_and_is_published_later(
    streamed: Worlds,
) -> None:
    with streamed() as world:
        for _ in range(2):
            world.push(retry={"max_attempts": 1})
        for job in world.fetch(count=2):
            error = {"code": "x", "message": "no"}
            world.run.finish.nack(job.id, error=error, worker_id=job.worker_id)
        refusing = FakeBus(lambda event: event.type == "job.discarded")
        projected = Projected(world.client, world.table, world.clock, bus=refusing)
        assert projected.run(Stream(world.client, world.table).take()) == []
        assert agree(projected)
        told = projected.events()
        assert [event["type"] for event in told].count("job.discarded") == 2
        discarded = {event["id"] for event in told if event["type"] == "job.discarded"}
        assert not discarded & {event.id for event in refusing.taken}
        settings = Settings(table=world.table, bus="the-bus")

        def later() -> int:
            return projections.publish_later(settings, projected.store, lambda: True, bus=refusing)

        # Still in trouble: the page keeps its mark.
        assert later() == 0
        refusing.refuses = lambda _: False
        assert later() == 1
        assert discarded <= {event.id for event in refusing.taken}
        kinds = {event.type for event in refusing.taken}
        assert kinds == {"job.discarded", "dead_letter.added"}, "only what belongs on the bus"
        taken = {event.id: event for event in refusing.taken}
        assert all(taken[event["id"]].to_dict() == event for event in told if event["id"] in taken)
        projected.store.meter.reset()
        assert later() == 0
        assert projected.store.meter.calls == ["Query"]
        assert projected.events() == told


def test_a_malformed_record_goes_to_the_failure_queue_and_the_rest_goes_on(
    streamed: Worlds,
) -> None:
    with streamed() as world:
        broken = world.push("a secret")
        world.push()
        records = Stream(world.client, world.table).take()
        (spoilt,) = [
            one for one in records if one["dynamodb"]["Keys"]["pk"]["S"] == keys.job(broken.id)
        ]
        spoilt["dynamodb"]["NewImage"]["created"] = {"S": "a secret"}
        projected = Projected(world.client, world.table, world.clock)
        assert projected.run(records) == []
        assert projected.stats("default")["available"] == 1
        assert projected.failures.entries == [
            {
                "error": "can't be read: TypeError",
                "sequence_number": spoilt["dynamodb"]["SequenceNumber"],
                "event_id": spoilt["eventID"],
                "keys": {"pk": keys.job(broken.id), "sk": "@"},
            }
        ]
        # A failure queue that is out of order loses nothing: the record comes again.
        projected.failures.works = False
        assert projected.run(records) == [spoilt["dynamodb"]["SequenceNumber"]]


def test_what_fails_for_too_long_is_put_aside_before_lambda_drops_its_batch(
    streamed: Worlds,
) -> None:
    with streamed() as world:
        world.push()
        stream = Stream(world.client, world.table)
        records = stream.take()
        projected = Projected(world.client, world.table, world.clock)
        failing = projected.another(Broken(world.client, "transact_write_items", 1))
        numbers = [one["dynamodb"]["SequenceNumber"] for one in records if _told(one)]
        for one in records:
            one["dynamodb"]["ApproximateCreationDateTime"] = NOW_MS // 1_000
        assert failing.run(records) == numbers
        assert projected.failures.entries == []
        world.clock.advance((STREAM_MAX_AGE_S - 600) * 1_000)
        assert failing.run(records) == []
        left_out = [entry["sequence_number"] for entry in projected.failures.entries]
        assert left_out == numbers
        assert {entry["error"] for entry in projected.failures.entries} == {
            "was not projected in time"
        }


def _told(record: Record) -> bool:
    pk: str = record["dynamodb"]["Keys"]["pk"]["S"]
    return pk.startswith(("J|", "Q|"))


@pytest.mark.parametrize(
    "where", ["ojs.projections.project.happened", "ojs.projections.records._job"]
)
def test_a_record_that_a_defect_breaks_is_put_aside(
    streamed: Worlds, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Nothing else would find it: the batch is not split, and would stop its shard for hours."""

    def defect(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a secret")

    with streamed() as world:
        world.push()
        records = Stream(world.client, world.table).take()
        projected = Projected(world.client, world.table, world.clock)
        monkeypatch.setattr(where, defect)
        assert projected.run(records) == []
        (entry,) = projected.failures.entries
        assert entry["error"] == "can't be projected: RuntimeError"
        assert "secret" not in str(entry)


def test_the_counters_of_a_transaction_stay_within_an_expression(exact: World) -> None:
    """DynamoDB takes expressions of 4 KB; the engines do not mind longer ones."""
    records: list[Record] = []
    for n in range(44):
        ready = Job(
            f"019539a4-b68c-7def-8000-{n:012x}", f"kind.number{n}", "default", State.AVAILABLE,
            NOW_MS, enqueued_ms=NOW_MS, order="0" * 15, priority=n, expires_ms=NOW_MS,
        )  # fmt: skip
        held = lifecycle.claim(ready, token="t", now_ms=NOW_MS, lease_ms=9, worker_id="w")
        failure = failures.observed("x", "no", attempt=1, now_ms=NOW_MS)
        last = replace(held, attempt=9)
        ends_ms = NOW_MS + 70 * n
        for before, after in (
            (None, ready),
            (held, lifecycle.complete(held, now_ms=ends_ms)),
            (held, lifecycle.fail(held, failure, now_ms=ends_ms, chance=0.5)),
            (last, lifecycle.fail(last, failure, now_ms=ends_ms, chance=0.5)),
            (ready, lifecycle.cancel(ready, now_ms=ends_ms)),
            (ready, lifecycle.expire(ready, now_ms=ends_ms)[0]),
        ):
            images = (None if one is None else items.record_of(one) for one in (before, after))
            records.append(made_record(len(records), *images))
    projected = Projected(exact.client, exact.table, exact.clock)
    watching = Watching(exact.client)
    assert projected.another(watching).run(records) == []
    expressions = [
        one.get("UpdateExpression", "") for actions in watching.transactions for one in actions
    ]
    assert 1_500 < max(map(len, expressions)) <= 4_096
    day = projected.stats("default", keys.day("2026-05-28"))
    assert (day["enqueued"], day["failed"], day["cancelled"], day["expired"]) == (44, 88, 44, 44)
    # Six kinds of what happened, and dead letters.
    assert len([name for name in day if "|" in name]) == 7 * 41


@pytest.mark.exhaustive
def test_pages_tell_how_many_events_they_hold(streamed: Worlds) -> None:
    with streamed() as world:
        lived(world, 100)
        projected = Projected(world.client, world.table, world.clock)
        projected.run(Stream(world.client, world.table).take())
        pages = [i for key, i in projected.everything().items() if is_event_page(key)]
        assert sum(len(unpacked(page)) for page in pages) == 300
