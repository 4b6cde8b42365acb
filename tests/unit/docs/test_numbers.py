"""The models of prices and ceilings, worked by hand; and the pages against them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from docs import numbers
from docs.numbers import pages, prices, scale

ROOT = Path(__file__).resolve().parents[3]

# Round numbers: what is not named costs nothing.
FREE = dict.fromkeys(numbers.assumed(), 0.0)
NUMBERS = FREE | {
    "write_units": 1.0, "read_units": 0.5, "shards": 2.0, "batch": 100.0, "memory_mb": 512.0,
    "stream_mb": 256.0, "sweep_mb": 512.0, "heartbeat_s": 5.0, "poll_s": 2.0, "jobs_at_once": 10.0,
    "job_s": 1.0, "acks_carried": 0.0, "queues": 1.0, "lanes": 1.0, "containers": 1.0,
    "sweep_s": 30.0,
    "partition_write": 1_000.0, "partition_read": 3_000.0, "call_ms": 5.0, "consumer_ms": 50.0,
    "record_ms": 0.5, "table_write": 40_000.0, "api_per_s": 3_000.0, "lambda_at_once": 10.0,
    "request_ms": 10.0, "throttle_rate_per_s": 300.0,
}  # fmt: skip


def spent(write: float = 0, read: float = 0, **more: float) -> dict[str, float]:
    return {"write": write, "read": read, "records": 0, "log_bytes": 0, "calls": 0, **more}


UNITS: dict[str, Any] = {
    "lives": {
        "one by one": spent(7, 4, records=3, pushes=1) | {"fetches and acks": 2},
        "in tens": spent(8, 1, records=4, pushes=0.1) | {"fetches and acks": 1.1},
    },
    "lanes": {"1": spent(7, 6), "5": spent(7, 14)},
    "empty fetches": {"1": spent(0, 3), "5": spent(0, 7), "50 queues": spent(0, 100)},
    "running": spent(0.03, 1, calls=0.05),
    "heartbeat": spent(1, records=1),
    "lasting": {"5": {"1": spent(), "61": spent(6, 3, records=6)}, "20": {"1": spent()}},
    "consumer": {
        "one queue": {
            "1": spent(2, log_bytes=100), "11": spent(12, log_bytes=200), "a minute": spent(0),
        },
        "five queues": {"1": spent(2), "11": spent(52), "a minute": spent(30)},
    },
    "sweeps": {"1": spent(1, 4, calls=10, log_bytes=1_000), "200": spent(1, 40, calls=100)},
    "sweeps in use": {
        "1": spent(1, 4, calls=10, log_bytes=1_000), "11": spent(1, 24, calls=60, log_bytes=1_000),
    },
    "note": spent(1, calls=1) | {"every_s": 200},
    "metrics": {"alarms": 0, "deployment": 2, "queue": 3},
    "paths": {
        "one by one": {"table J|": [3, 0], "table Q|": [0, 2], "work R|": [2, 0.5]},
        "in tens": {"table J|": [4, 0], "table Q|": [0, 0.2], "work R|": [2, 0.5]},
        "bounded, concurrency": {
            "table G| active": [2, 0], "table G| depth": [2, 0], "table J|": [3, 0],
        },
        "rate limit": {"table G| rate": [1, 1], "table J|": [3, 0], "work R|": [2, 1]},
        "rate limit, in tens": {"table G| rate": [0.1, 0.1], "work R|": [4, 1]},
        "dead letter": {"expiry X": [1, 0], "work X|": [2, 0]},
        "consumer": {"table E|": [0.25, 0], "table S|": [0, 0.03], "table S|shardId-": [0.5, 0]},
    },
}  # fmt: skip


def model(**others: float) -> prices.Model:
    return prices.Model(UNITS, NUMBERS | others)


def million(found: dict[str, float]) -> dict[str, Any]:
    """Dollars for a million seconds, without what costs nothing."""
    return {name: pytest.approx(value * 1e6) for name, value in found.items() if value}


# --- prices -------------------------------------------------------------------------------------


def test_a_batch_is_the_first_record_and_those_that_come_in_its_window() -> None:
    assert prices.batch_sizes(0, 3) == {1: 1, 2: 0, 3: 0}
    of_one = prices.batch_sizes(1, 3)
    assert of_one[1] == of_one[2] == pytest.approx(1 / math.e)
    assert of_one[3] == pytest.approx(1 - 2 / math.e)
    assert prices.batch_sizes(5_000, 100)[100] == 1
    assert prices.batch_sizes(0, 1) == {1: 1}
    many = prices.batch_sizes(7.5, 100)
    assert sum(many.values()) == pytest.approx(1)
    assert sum(size * part for size, part in many.items()) == pytest.approx(8.5)


@pytest.mark.parametrize(("at", "value"), [(0.5, 1), (1, 2), (6, 7), (11, 12), (21, 22)])
def test_what_was_not_counted_lies_between_and_beyond(at: float, value: float) -> None:
    points = {"1": spent(2), "11": spent(12)}
    assert prices.interpolated(points, "write", at) == value


def test_one_that_was_counted_at_nothing_counts_there() -> None:
    points = {"0": spent(1), "10": spent(11)}
    assert prices.interpolated(points, "write", 0) == 1
    assert prices.interpolated(points, "write", 0.5) == 1.5


def test_lone_records_are_an_invocation_each() -> None:
    found = model().invocations(model().jobs("one by one", 2))
    assert (found.count, found.records, found.write, found.log_bytes) == (6, 1, 12, 600)


def test_a_long_window_fills_batches_on_each_shard() -> None:
    busy = model(window_s=1_000, batch=11)
    found = busy.invocations(busy.jobs("one by one", 22))
    # 66 records are six batches of eleven, whatever the shards.
    assert (found.count, found.records, found.write) == pytest.approx((6, 11, 72))
    dearer = busy.invocations(busy.jobs("one by one", 22), queues=5)
    assert dearer.write == pytest.approx(6 * 52 + 1)
    # 4 records a second on 2 shards, for half a second: one more in a batch.
    half = model(window_s=0.5)
    assert half.invocations(prices.Load(records=4)).records == pytest.approx(2)


def test_a_minute_in_which_a_shard_has_records_adds_its_part() -> None:
    def added(**load: float) -> float:
        units = UNITS["consumer"] | {"one queue": {"1": spent(0), "a minute": spent(30)}}
        counts = prices.Model(UNITS | {"consumer": units}, NUMBERS)
        return counts.invocations(prices.Load(**load)).write

    # Two shards; with one record a minute on each, there are some in 1 - 1/e of the minutes.
    assert added(records=100) == pytest.approx(1)
    assert added(records=1 / 30) == pytest.approx(1 - 1 / math.e)
    assert added(records=100, silent=100) == 0


def test_records_of_which_nothing_follows_take_no_units() -> None:
    found = model().invocations(prices.Load(records=4, silent=2))
    assert (found.count, found.write) == (4, 4)  # half of a lone record's, four times
    assert model().invocations(prices.Load()).count == 0


def test_units_have_their_price() -> None:
    assert million(model().cost(model().jobs("one by one", 1))) == {
        "requests": 7 + 4 * 0.5, "consumer": 3 * 2,
    }  # fmt: skip


def test_requests_and_invocations_have_their_price() -> None:
    """Three requests of 10 ms at half a GB, and three invocations of 50.5 ms at a quarter."""
    paid = model(api_requests=2, lambda_requests=1, lambda_gb_s=200, write_units=0, read_units=0)
    found = million(paid.cost(paid.jobs("one by one", 1)))
    assert found == {"API": 6, "Lambda": 3 * (1 + 0.01 * 100) + 3 * (1 + 0.0505 * 50)}


def test_a_function_has_a_trace_each_second_and_of_one_in_twenty_more() -> None:
    traced = model(tracing=1, traces=1, write_units=0, read_units=0)
    # 21 pushes; 42 requests of workers; 63 invocations.
    assert million(traced.cost(traced.jobs("one by one", 21))) == {"traces": 2 + 3.05 + 4.1}
    # Fewer than one a second are recorded all.
    slow = million(traced.cost(traced.jobs("one by one", 0.1)))
    assert slow == {"traces": 0.1 + 0.2 + 0.3}
    assert million(model(traces=1).cost(model().jobs("one by one", 1))).keys() == {
        "requests", "consumer",
    }  # fmt: skip


def test_logs_have_lines_of_the_api_of_lambda_and_of_metrics() -> None:
    logged = model(
        log_gb=1e3, access_log_bytes=400, system_log_bytes=1_000, write_units=0, read_units=0
    )
    alone = 3 * 400 + 3 * 100
    assert million(logged.cost(logged.jobs("one by one", 1))) == {"logs": alone}
    logged = prices.Model(UNITS, {**logged.numbers, "system_logs": 1})
    assert million(logged.cost(logged.jobs("one by one", 1))) == {"logs": alone + 6 * 1_000}


def test_heartbeats_are_of_as_many_workers_as_it_takes() -> None:
    few, many = model().heartbeats(1), model().heartbeats(100)
    # One worker with one job; ten with ten each. Their records are written every 10 s.
    assert (few.others, few.write, few.silent) == pytest.approx((1 / 5, 1 / 10, 1 / 10))
    assert (many.others, many.write, many.silent) == pytest.approx((2, 1, 1))


def test_a_job_that_lasts_is_paid_by_its_duration_and_the_clients_heartbeats() -> None:
    lasting = model(job_s=31).heartbeats(10)
    # 31 workers, and half of what a job of 61 s adds.
    assert (lasting.others, lasting.write, lasting.read) == pytest.approx(
        (31 / 5, 31 / 10 + 30, 15)
    )
    slower = model(job_s=31, heartbeat_s=20).heartbeats(10)
    assert (slower.others, slower.write, slower.read) == pytest.approx((31 / 20, 31 / 20, 0))


def test_an_ack_that_a_fetch_carries_is_no_request() -> None:
    assert model(acks_carried=1).jobs("one by one", 1).others == 1
    assert model(acks_carried=0).jobs("one by one", 1).others == 2


def test_an_idle_worker_asks_and_tells_that_it_lives() -> None:
    found = model().idle_worker()
    assert (found.others, found.read, found.write) == pytest.approx((0.5 + 0.2, 1.5, 0.1))


def test_a_sweep_is_paid_each_minute() -> None:
    one = model().sweeps() * 60e6
    assert one == pytest.approx(1 + 4 * 0.5)
    whole = model(lambda_requests=2, lambda_gb_s=400, log_gb=1e3, traces=5, tracing=1)
    # 10 calls of 5 ms at half a GB; a line of a thousand bytes; always traced.
    assert whole.sweeps() * 60e6 == pytest.approx(3 + 2 + 0.05 * 200 + 1_000 + 5)
    assert model().sweeps(200) * 60e6 == pytest.approx(1 + 40 * 0.5)


def test_queues_in_use_are_swept_at_a_higher_price() -> None:
    assert model().sweeps_in_use() == pytest.approx(model().sweeps())
    assert model(queues=6).sweeps_in_use() * 60e6 == pytest.approx(1 + 14 * 0.5)
    # Each lane is read, too.
    assert model(queues=2, lanes=3).sweeps_in_use() == model(queues=6).sweeps_in_use()


def test_a_fetch_reads_several_lanes() -> None:
    assert model(lanes=3).jobs("one by one", 1).read == pytest.approx(4 + 4)
    # It carries ten jobs.
    assert model(lanes=3).jobs("in tens", 1).read == pytest.approx(1 + 4 * 1.1 / 2)
    assert model(lanes=3, heartbeat_s=1e9).idle_worker().read == pytest.approx(5 / 2)


def test_a_function_url_has_no_gateway_and_no_access_log() -> None:
    priced = {"api_requests": 2.0, "log_gb": 1e3, "access_log_bytes": 400.0}
    by_url = model(**priced, function_url=1)
    assert million(by_url.cost(by_url.jobs("one by one", 1)))["logs"] == pytest.approx(300)
    saved = model(**priced).whole("one by one", 1) - by_url.whole("one by one", 1)
    # Three requests of a job, and a heartbeat in five seconds.
    assert saved == pytest.approx(3.2 * (2 + 400))


def test_each_queue_of_a_batch_is_counted() -> None:
    busy = model(window_s=1_000, batch=11, queues=3)
    jobs = busy.jobs("one by one", 22)
    # 12 units for one queue, 52 for five; and each minute 0 or 30.
    assert busy.invocations(jobs).write == pytest.approx(6 * 32 + 0.5)
    # A batch of 33 records has 11 jobs, and so at most 11 queues. A minute has many more.
    many = {"window_s": 1_000, "batch": 33, "shards": 1e9}
    assert model(**many).invocations(jobs, 500).write == pytest.approx(
        model(**many).invocations(jobs, 11).write
    )


def test_pushes_of_other_numbers_of_containers_lie_between_those_counted() -> None:
    counts = {"10": {"write": 1.0}, "10 by 4": {"write": 4.0}, "10 by 10": {"write": 7.0}}
    pushing = prices.Model(UNITS | {"pushed": counts | {"1": {"write": 9.0}}}, NUMBERS)
    found = [pushing.pushed_job(10, containers)["write"] for containers in (1, 2, 4, 7, 10)]
    assert found == [1, 2, 4, 5.5, 7]
    assert pushing.pushed_job(1, 3)["write"] == 9


def test_each_container_that_answers_workers_notes_the_queue() -> None:
    noting = model(request_ms=20)
    assert noting.notes(noting.jobs("one by one", 0.4)) * 1e6 == pytest.approx(1 / 200)
    # 200 requests a second, of 20 ms.
    assert noting.notes(noting.jobs("one by one", 100)) * 1e6 == pytest.approx(4 / 200)
    more = model(containers=7, queues=3)
    assert more.notes(more.jobs("one by one", 0.4)) * 1e6 == pytest.approx(21 / 200)


def test_a_bill_is_for_a_million_jobs() -> None:
    paid = model(metric_month=1)
    bill = paid.bill("one by one", 0.5)
    assert bill["requests"] == pytest.approx(9)
    assert bill["consumer"] == pytest.approx(6)
    assert bill["metrics"] == 0
    # And one container notes the queue.
    assert bill["sweeps"] == pytest.approx((3 / 60 + 1 / 200) * 2)
    # A worker: a heartbeat in five seconds, every second one of which writes its record.
    assert bill["heartbeats"] == pytest.approx(0.1 * 2)
    assert bill["idle worker"] == pytest.approx((1.5 * 0.5 + 0.1) * 2)
    assert paid.whole("one by one", 0.5) == pytest.approx(sum(bill.values()) - bill["idle worker"])


# Dollars per million jobs of 0.5 KB with the library's defaults: rate, settings, and the most.
BOUNDS: tuple[tuple[float, dict[str, float], float], ...] = (
    (0.4, {}, 10.7), (0.4, {"window_s": 30}, 9.6), (0.4, {"window_s": 30, "function_url": 1}, 7.0),
    (10, {}, 8.0), (10, {"job_s": 60}, 11), (10, {"job_s": 300}, 23), (10, {"job_s": 900}, 53),
)  # fmt: skip


@pytest.mark.parametrize(("rate", "chosen", "most"), BOUNDS)
def test_prices_keep_their_bounds(rate: float, chosen: dict[str, float], most: float) -> None:
    counts = prices.Model(numbers.counted(), numbers.assumed() | chosen)
    assert counts.whole("one by one", rate) <= most


def test_prices_of_batches_pushes_and_idle_months_keep_their_bounds() -> None:
    counts = prices.Model(numbers.counted(), numbers.assumed())
    assert counts.whole("in tens", 10) <= 4.5
    for containers, most in ((1, 7.4), (4, 7.7), (10, 8.0)):
        assert sum(counts.pushed(10, containers).values()) / 10 * 1e6 <= most
    assert sum(prices.idle(counts).values()) <= 3.5


def test_whoever_listens_asks_seldom() -> None:
    """An empty fetch reads 3 units, and half a unit for the other listeners."""
    listens = {"fallback_s": 10.0, "looks_a_beat": 2.0, "ping_s": 100.0, "reconnect_s": 1_000.0}
    assert model(**listens).listening(1) * 1e6 == pytest.approx(3.5 * 0.5 / 10 + 1 / 20 + 0.006)
    # Two look half as often each; no worker looks less often than each 120 s.
    assert model(**listens).listening(4) * 1e6 == pytest.approx(
        4 * (3.5 * 0.5 / 20 + 1 / 40 + 0.006)
    )
    assert model(**listens).listening(48) * 1e6 == pytest.approx(
        48 * (3.5 * 0.5 / 120 + 1 / 240 + 0.006)
    )
    messages = {"write_units": 0, "read_units": 0, "socket_messages": 3, "socket_minutes": 60}
    assert model(**listens, **messages).listening(2) * 1e6 == pytest.approx(2 * (6 / 100 + 1))


def test_a_ring_is_a_message_and_a_fetch() -> None:
    assert model(socket_messages=2).rung() * 1e6 == pytest.approx(2 + 0.5 + 3 * 0.5)
    # 20 ms of half a GB.
    slow = model(lambda_gb_s=1, lambda_requests=9, ring_ms=20, request_ms=0).rung()
    assert slow * 1e6 == pytest.approx(0.5 + 1.5 + 0.01 + 9)


def test_events_are_an_invocation_for_each_read_of_a_shard_that_finds_some() -> None:
    two = prices.Load(pushes=4, records=8, silent=6)
    assert model().notified(two) == (2, 1)
    count, size = model(shard_s=1_000).notified(two)
    assert count == pytest.approx(2 / 100)
    assert size == pytest.approx(100)
    containers = {"containers": 20.0, "read_units": 4.0, "shards": 2.0}
    assert model(**containers).unheard(two, "off") == 0
    assert model(**containers).unheard(two, "wake") * 1e6 == pytest.approx(2 * 0.5 * 4)
    # And each of two shards reads every other second who subscribed.
    assert model(**containers).unheard(two, "all") * 1e6 == pytest.approx((2 + 1) * 0.5 * 4)
    paid = model(**containers | {"read_units": 0}, lambda_requests=3).unheard(two, "all")
    assert paid * 1e6 == pytest.approx(2 * 3)


# --- ceilings -----------------------------------------------------------------------------------


def ceiling(what: str, path: str, lanes: int = 1, shards: int = 1, **others: float) -> float:
    found = scale.Scale(UNITS, NUMBERS | others).ceilings()
    (one,) = (one for one in found if (one.what, one.path) == (what, path))
    return one.of(lanes, shards)


def test_a_key_takes_its_units_and_no_more() -> None:
    assert ceiling("the queue, read by each push and fetch", "one by one") == 1_500
    # Eight copies of its record are the most.
    assert ceiling("the queue, read by each push and fetch", "one by one", lanes=2) == 3_000
    assert ceiling("the queue, read by each push and fetch", "one by one", lanes=9) == 12_000
    assert ceiling("the queue, read by each push and fetch", "in tens") == 15_000
    assert ceiling("ready line", "one by one") == 500
    assert ceiling("ready line", "one by one", lanes=16) == 8_000
    assert ceiling("ready line", "one by one", lanes=16, partition_read=200) == 400 * 16
    assert ceiling("dead letters of all queues", "dead letter") == 1_000
    assert ceiling("dead letters of a queue", "dead letter") == 500


def test_items_of_one_partition_key_share_its_units() -> None:
    assert ceiling("semaphore and depth counter", "bounded, concurrency", 9, 9) == 250


def test_what_is_read_before_it_is_written_takes_one_at_a_time() -> None:
    assert ceiling("rate window", "rate limit") == 1_000 / 10
    assert ceiling("rate window", "rate limit, in tens") == 1_000
    assert ceiling("counters", "consumer") == 100_000  # which are only read here
    assert ceiling("counters of a shard", "consumer", shards=4) == 8_000


def test_a_shard_s_batches_come_after_each_other() -> None:
    # 100 ms for a hundred records; a job has three.
    assert ceiling("full batches after each other", "consumer", shards=4) == pytest.approx(
        4_000 / 3
    )
    assert ceiling("event pages", "consumer") == 4_000


def test_a_deployment_has_quotas() -> None:
    assert ceiling("job records", "one by one", shards=3) == 1_000
    assert ceiling("quota: units of the table", "one by one") == pytest.approx(40_000 / 7.75)
    assert ceiling("quota: requests", "one by one") == 1_000
    assert ceiling("quota: functions at one time", "one by one") == pytest.approx(1_000 / 3)
    assert ceiling("setting: throttle_rate_per_s", "in tens") == pytest.approx(250)


def test_a_path_has_rows_for_what_it_adds_alone() -> None:
    found = scale.Scale(UNITS, NUMBERS).ceilings()

    def rows(path: str) -> list[str]:
        return [one.what for one in found if one.path == path]

    assert rows("rate limit") == ["rate window"]
    # The line takes more than of other jobs, and so fewer jobs.
    assert rows("rate limit, in tens") == ["rate window", "ready line"]


def test_what_falls_first_depends_on_lanes_and_shards() -> None:
    found = scale.Scale(UNITS, NUMBERS)

    def first(lanes: int, shards: int, *, one_queue: bool = True, life: str = "one by one") -> str:
        return found.first(life, lanes, shards, one_queue=one_queue).what

    assert first(1, 4) == "ready line"
    assert first(16, 2, life="in tens") == "job records"
    assert first(16, 16) == "event pages"
    found = scale.Scale(UNITS, NUMBERS | {"partition_read": 200})
    assert first(16, 16) == "the queue, read by each push and fetch"
    found = scale.Scale(UNITS, NUMBERS)
    assert first(1, 16, one_queue=False) == "event pages"
    assert first(64, 64, life="in tens") == "event pages"


# --- keys in partitions -----------------------------------------------------------------------


_LIFE = {"table J|": [0.001, 0], "work R|": [2, 0.5]}
# Nothing but the lanes limits.
OF_LANES: tuple[dict[str, Any], dict[str, float]] = (
    UNITS | {"paths": {"one by one": _LIFE, "in tens": _LIFE, "consumer": {}}},
    NUMBERS | {"consumer_ms": 0, "record_ms": 0.001},
)


def hashed(lanes: int, partitions: int, *, one_queue: bool = True, **others: float) -> scale.Hashed:
    made = scale.Scale(UNITS, NUMBERS | others)
    return made.hashed("one by one", lanes, partitions, one_queue=one_queue)


def test_keys_of_one_partition_share_its_units() -> None:
    # 3 units of the job, 0.25 of event pages, 0.5 of the shard's counters; 2 of the index.
    for one_queue in (True, False):
        found = hashed(4, 1, one_queue=one_queue)
        assert (found.worst, found.mean) == pytest.approx((1_000 / 3.75, 1_000 / 3.75))
    # Reads: 2 of the queue's copies and 0.03 of its counters.
    reading = hashed(4, 1, partition_write=1e6, partition_read=100, consumer_ms=0, record_ms=0.01)
    assert reading.worst == pytest.approx(100 / 2.03)


def test_two_lanes_meet_in_half_of_all_tables() -> None:
    made = scale.Scale(*OF_LANES)
    found = made.hashed("one by one", 2, 2, one_queue=True)
    assert found.worst == 500
    assert found.mean == pytest.approx(750, rel=0.05)
    # One lane has a partition to itself, and so have two in a large table.
    assert made.hashed("one by one", 1, 2, one_queue=True) == scale.Hashed(500, 500)
    assert made.hashed("one by one", 2, 64, one_queue=True).worst == 1_000
    assert made.hashed("one by one", 2, 64, one_queue=True).mean == pytest.approx(990, abs=8)
    # The lanes of many queues are everywhere.
    assert made.hashed("one by one", 1, 4, one_queue=False).worst == pytest.approx(2_000)


def test_no_table_takes_more_than_after_splits() -> None:
    found = scale.Scale(numbers.counted(), numbers.assumed())
    for lanes, partitions in ((1, 4), (16, 16), (64, 64)):
        one = found.hashed("one by one", lanes, partitions, one_queue=True)
        most = found.first("one by one", lanes, partitions, one_queue=True)
        assert one.worst <= one.mean <= most.of(lanes, partitions)


@pytest.mark.parametrize(
    ("lanes", "partitions", "worst"),
    [
        (4, 4, 670),
        (4, 16, 1_000),
        (16, 4, 1_000),
        (16, 16, 2_000),
        (64, 16, 3_200),
        (64, 64, 6_400),
    ],
)
def test_lanes_in_an_index_are_those_of_an_earlier_simulation(
    lanes: int, partitions: int, worst: float
) -> None:
    found = scale.Scale(*OF_LANES).hashed("one by one", lanes, partitions, one_queue=True)
    assert found.worst == pytest.approx(worst, rel=0.01)


# --- jobs that last -----------------------------------------------------------------------------


def test_leases_of_jobs_that_last_are_checked_each_minute() -> None:
    # 30 s of a minute, 0.05 calls of 5 ms for each check.
    what = "lease checks by the sweep"
    assert ceiling(what, "jobs of 61 s", heartbeat_s=5) == pytest.approx(30_000 / 60 / 0.25)
    assert ceiling(what, "jobs of 5 min", heartbeat_s=5) == pytest.approx(30_000 / 60 / 0.25 / 5)
    # Six heartbeats of a job of 61 s are written.
    assert ceiling("job records", "jobs of 61 s", shards=2, heartbeat_s=5) == pytest.approx(
        2 * 1_000 / 9
    )


def test_a_thousand_jobs_over_a_minute_can_start_in_a_second() -> None:
    found = scale.Scale(numbers.counted(), numbers.assumed()).ceilings()
    (one,) = (
        each.jobs for each in found
        if (each.path, each.what) == ("jobs of 61 s", "lease checks by the sweep")
    )  # fmt: skip
    assert one >= 1_000


def test_a_key_that_nobody_named_is_refused() -> None:
    """Whoever writes to a new kind of key says in `scale.KEYS` of what there is one."""
    paths = UNITS["paths"] | {"fair": {"table ?|": [1, 0]}}
    with pytest.raises(KeyError, match=r"table \?"):
        scale.Scale(UNITS | {"paths": paths}, NUMBERS).ceilings()


def test_two_digits_are_shown_rounded_down() -> None:
    shown = [scale.rough(value) for value in (7, 99.9, 125, 444.4, 1_777, 32_000)]
    assert shown == ["7", "99", "120", "440", "1,700", "32,000"]


# --- what is given, and what is written ---------------------------------------------------------


def test_others_take_the_place_of_what_is_assumed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("[prices]\nwrite_units = 2\n[x]\ntracing = false\n")
    found = numbers.assumed([str(mine), "request_ms=12.5"])
    assert (found["write_units"], found["tracing"], found["request_ms"]) == (2, 0, 12.5)
    assert found["read_units"] == numbers.assumed()["read_units"]
    with pytest.raises(SystemExit, match=r"^nothing: there is write_units, "):
        numbers.assumed(["nothing=1"])


def test_the_pages_have_what_follows() -> None:
    """If not: `make numbers`."""
    # Computed here: as parameters, each process would compute them to collect tests.
    for page, text in pages.pages().items():
        assert page.read_text("utf-8") == text, page.name


def test_the_picture_is_of_these_numbers() -> None:
    """If not: `make plots`."""
    picture = (ROOT / "docs" / "pictures" / "prices.svg").read_text("utf-8")
    fingerprint = prices.fingerprint(prices.Model(numbers.counted(), numbers.assumed()))
    assert f"<dc:description>{fingerprint}</dc:description>" in picture
