"""What each operation costs, in DynamoDB calls and capacity units: bounds that must not creep."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.job import envelope
from ojs.domain.job.trace import TraceContext
from ojs.services.jobs.middleware import MiddlewareChain
from ojs.store.table import keys
from ojs.store.table.values import pack
from tests.store.spending import RETRY, WORKER, Spent, incompressible, spending, stage_once, warm

if TYPE_CHECKING:
    from ojs.middleware import Envelope, Next
    from tests.store.conftest import World

RESULT = {"ok": True, "message_id": "msg_019414d5-1234-7000-b000-aabbccddeeff"}


def one_job(world: World, size: int) -> dict[str, Spent]:
    """Enqueue, fetch(1) and ack one job whose argument has `size` bytes."""
    text = incompressible(size)
    with spending(world) as push:
        pushed = world.push(text, kind="email.send", retry=RETRY)
    with spending(world) as fetch:
        (job,) = world.fetch(worker=WORKER)
    assert job.id == pushed.id
    assert job.content == {"args": [text], "retry": RETRY}
    with spending(world) as ack:
        world.run.finish.ack(job.id, worker_id=WORKER, result=RESULT)
    return {"push": push, "fetch": fetch, "ack": ack}


def total(spent: dict[str, Spent]) -> Spent:
    parts = spent.values()
    return Spent(
        sum(s.calls for s in parts), sum(s.writes for s in parts), sum(s.reads for s in parts)
    )


def test_a_half_kilobyte_job(exact: World) -> None:
    warm(exact)
    spent = total(one_job(exact, 460))
    assert spent.calls <= 7
    assert spent.writes <= 6
    assert spent.reads <= 4


def test_who_pushed_it_costs_nothing(exact: World) -> None:
    """A key's name of usual length is stored with the job, on the job record."""
    warm(exact)
    request = envelope.parse({"type": "email.send", "args": ["x" * 500], "retry": RETRY})
    with spending(exact) as all_of_it:
        exact.run.enqueue.push(request, producer="billing-service")
        (job,) = exact.fetch(worker=WORKER)
        exact.run.finish.ack(job.id, worker_id=WORKER, result=RESULT)
    assert job.producer == "billing-service"
    assert (all_of_it.calls, all_of_it.writes) == (7, 6)


def test_the_trace_of_a_usual_job_costs_nothing(exact: World) -> None:
    """It is stored with the job's other contents, on the job record."""
    warm(exact)
    trace = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    request = envelope.parse({"type": "email.send", "args": [incompressible(300)], "retry": RETRY})
    spent = []
    for given in (None, trace):
        with spending(exact) as all_of_it:
            exact.run.enqueue.push(request, trace=given)
            (job,) = exact.fetch(worker=WORKER)
            exact.run.finish.ack(job.id, worker_id=WORKER, result=RESULT)
        spent.append((all_of_it.calls, all_of_it.writes, all_of_it.reads))
    assert (job.content or {})["meta"] == {"traceparent": trace.traceparent}
    assert spent[0] == spent[1]
    assert spent[0][:2] == (7, 6)


def test_middleware_costs_the_table_nothing(exact: World) -> None:
    def add(job: Envelope, following: Next) -> Envelope:
        job.meta["team"] = "growth"
        return following(job)

    warm(exact)
    stage_once(exact)
    requests = [envelope.parse({"type": "email.send", "args": [n]}) for n in range(10)]
    spent = []
    for chain in (None, MiddlewareChain([add], timeout_ms=10_000, service="s")):
        exact.run.enqueue._chain = chain
        with spending(exact) as one:
            exact.run.enqueue.push(requests[0])
        with spending(exact) as many:
            pushed = exact.run.enqueue.push_batch(requests)
        spent.append((one.calls, one.writes, one.reads, many.calls, many.writes, many.reads))
    assert (pushed[9].job.content or {})["meta"] == {"team": "growth"}
    assert spent[0] == spent[1]


def test_a_half_kilobyte_job_fetched_by_tens(exact: World) -> None:
    warm(exact)
    with spending(exact) as spent:
        for _ in range(10):
            exact.push(incompressible(460), kind="email.send", retry=RETRY)
        jobs = exact.fetch(count=10, worker=WORKER)
        for job in jobs:
            exact.run.finish.ack(job.id, worker_id=WORKER, result=RESULT)
    assert len(jobs) == 10
    assert spent.calls <= 45
    assert spent.writes <= 52
    assert spent.reads <= 20


@pytest.mark.parametrize(
    ("count", "units", "calls"), [(4, 3, 2), (5, 2.8, 4), (10, 2.5, 4), (100, 2.1, 7)]
)
def test_a_batch_is_staged_from_five_jobs_on(
    exact: World, count: int, units: float, calls: int
) -> None:
    warm(exact)
    stage_once(exact)
    batch = [
        {"type": "email.send", "args": [incompressible(460)], "retry": RETRY} for _ in range(count)
    ]
    with spending(exact) as spent:
        exact.run.enqueue.push_batch([envelope.parse(job) for job in batch])
    assert spent.writes <= units * count
    assert spent.calls <= calls
    # The first fetch of a container asks once whether a batch is committed.
    run = exact.another()
    asked = []
    for _ in range(2):
        run.table.meter.reset()
        assert len(run.fetch.fetch(["default"], 1, WORKER)) == 1
        asked.append(run.table.meter.calls.count("BatchGetItem"))
    assert asked == [1 if count < 5 else 2, 1]


@pytest.mark.parametrize("count", [5, 50])
@pytest.mark.parametrize("why", ["ids", "unique"])
def test_a_batch_whose_jobs_need_conditions_is_a_transaction(
    exact: World, count: int, why: str
) -> None:
    """Ids that clients chose may be taken, unique keys have locks."""
    warm(exact)
    batch = []
    for n in range(count):
        need = {"id": exact.run.ids.uuid7()} if why == "ids" else {"unique": {"keys": ["type"]}}
        batch.append({"type": f"t.n{n}", "args": [], **need})
    with spending(exact) as spent:
        exact.run.enqueue.push_batch([envelope.parse(job) for job in batch])
        assert exact.run.table.meter.calls[-1] == "TransactWriteItems"
    assert spent.writes == (3 if why == "ids" else 5) * count


def test_a_unique_job_in_a_bounded_queue(exact: World) -> None:
    """New: the queue, the lock, the counter, and a transaction; one that is there takes no room."""
    exact.run.queues.configure("bounded", {"max_size": 2, "overflow_policy": "drop_oldest"})
    exact.push(queue="bounded")

    def push(conflict: str) -> Spent:
        unique = {"keys": ["type"], "on_conflict": conflict}
        with spending(exact) as spent:
            exact.push(kind="unique", queue="bounded", unique=unique)
        return spent

    new, there, replaced = push("ignore"), push("ignore"), push("replace")
    assert (new.calls, new.writes) == (4, 6)
    assert (there.calls, there.writes) == (3, 0)
    assert (replaced.calls, replaced.writes) == (5, 9)
    with spending(exact) as dropped:
        exact.push(queue="bounded")
    assert (dropped.calls, dropped.writes) == (8, 5)


def test_a_job_of_2_4_kilobytes(exact: World) -> None:
    warm(exact)
    assert total(one_job(exact, 2_400)).writes <= 9


@pytest.mark.parametrize("size", [100_000, 1_000_000])
def test_a_large_job_is_paid_once(exact: World, size: int) -> None:
    warm(exact)
    small, large = one_job(exact, 460), one_job(exact, size)
    for step in ("fetch", "ack"):
        assert large[step].writes <= small[step].writes
    assert large["ack"].reads == small["ack"].reads
    # The content itself is written once; above 300 KB it costs the table nothing at all.
    assert large["push"].writes <= (2 + size / 1024 + 1 if size < 300 * 1024 else 2)


@pytest.mark.parametrize("after_ms", [19_999, 20_000])
def test_a_heartbeat_writes_a_job_with_two_thirds_of_its_lease_left(
    exact: World, after_ms: int
) -> None:
    warm(exact)
    exact.push(incompressible(460), visibility_timeout_ms=60_000)
    (job,) = exact.fetch(worker=WORKER)
    exact.clock.advance(after_ms - 1_000)
    # The worker's record is fresh for the next 10 s.
    exact.run.workers.beat(WORKER, active_jobs=[job.id])
    exact.clock.advance(1_000)
    with spending(exact) as spent:
        beat = exact.run.workers.beat(WORKER, active_jobs=[job.id])
    assert beat.jobs_extended == [job.id]
    due = after_ms >= 20_000
    assert (spent.calls, spent.writes, spent.reads) == (1 + due, int(due), 0.5)


def test_a_heartbeat_of_300_jobs_costs_what_is_due(exact: World) -> None:
    """Bounds: 4 calls and no write unit for the jobs if none is due, 304 calls if all are."""
    warm(exact)
    ids: list[str] = []
    lasting = {"type": "t", "args": [], "options": {"visibility_timeout_ms": 60_000}}
    for _ in range(3):
        exact.run.enqueue.push_batch([envelope.parse(lasting) for _ in range(100)])
        ids += [job.id for job in exact.fetch(worker=WORKER, count=100)]
    assert len(ids) == 300
    exact.run.workers.beat(WORKER)
    with spending(exact) as fresh:
        assert exact.run.workers.beat(WORKER, active_jobs=ids).jobs_extended == ids
    assert (fresh.calls, fresh.writes, fresh.reads) == (3, 0, 150)
    exact.clock.advance(20_000)
    with spending(exact) as due:
        assert exact.run.workers.beat(WORKER, active_jobs=ids).jobs_extended == ids
    assert (due.calls, due.writes, due.reads) == (304, 301, 150)


def test_an_idle_heartbeat_is_one_write(exact: World) -> None:
    with spending(exact) as spent:
        exact.run.workers.beat(WORKER)
    assert (spent.calls, spent.writes, spent.reads) == (1, 1, 0)


def test_an_empty_fetch(exact: World) -> None:
    warm(exact)
    with spending(exact) as spent:
        assert exact.fetch(worker=WORKER) == []
    assert spent.calls <= 3
    assert (spent.writes, spent.reads) == (0, 3)


def test_reading_one_job_is_one_call(exact: World) -> None:
    pushed = exact.push(incompressible(460))
    with spending(exact) as spent:
        exact.run.jobs.get(pushed.id)
    assert (spent.calls, spent.writes, spent.reads) == (1, 0, 1)


def test_a_failure_costs_one_read_and_one_write(exact: World) -> None:
    warm(exact)
    pushed = exact.push(incompressible(460))
    exact.fetch(worker=WORKER)
    with spending(exact) as spent:
        exact.run.finish.nack(pushed.id, error={"code": "x", "message": "y"}, worker_id=WORKER)
    # The record, with the error, and its index entry.
    assert (spent.calls, spent.writes, spent.reads) == (2, 2, 1)


def fill(world: World, queue: str, count: int) -> None:
    """Put `count` jobs in line, each as a push would have left it."""
    world.push(queue=queue)
    (job_id, _), *_ = world.run.enqueue._jobs.index.ready(queue, 0, limit=1)[0]
    template = pack(world.run.table.get(keys.job(job_id), keys.RECORD) or {})

    def put(part: range) -> None:
        requests: list[Any] = [
            {
                "PutRequest": {
                    "Item": template
                    | {
                        "pk": {"S": keys.job(f"{count:08x}-0000-7000-8000-{number:012x}")},
                        "wsk": {"S": keys.Position(0, f"{number:015x}").key()},
                    }
                }
            }
            for number in part
        ]
        answer = world.client.batch_write_item(RequestItems={world.table: requests})
        assert not answer["UnprocessedItems"]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(put, (range(at, min(at + 25, count)) for at in range(0, count, 25))))


@pytest.mark.exhaustive
@pytest.mark.parametrize("many", [10_000, pytest.param(100_000, marks=pytest.mark.whole)])
def test_a_fetch_costs_the_same_however_many_jobs_wait(exact: World, many: int) -> None:
    warm(exact)
    spent = {}
    for count in (100, many):
        queue = f"waiting-{count}"
        fill(exact, queue, count)
        with spending(exact) as one:
            assert len(exact.fetch(queue)) == 1
        with spending(exact) as ten:
            assert len(exact.fetch(queue, 10)) == 10
        with spending(exact) as push:
            exact.push(queue=queue)
        spent[count] = (one, ten, push)
    assert spent[100] == spent[many]


def minutes_sweeps(world: World) -> Spent:
    """A minute passes, and its sweeps run."""
    world.clock.advance(ms=60_000)
    with spending(world) as spent, world.run.sweep_queues.shared():
        for sweep in world.run.sweeps():
            assert not sweep.run_once(world.clock.now_ms(), 1_000).failures
    return spent


@pytest.mark.exhaustive
def test_a_minutes_sweeps_pass_over_idle_queues(exact: World) -> None:
    """All but a sixtieth of them, whatever is done in others."""
    for number in range(200):
        exact.run.queues.create(f"idle-{number:03d}", {})
    # Their records, two queries of each lane, and what the gauges are made of.
    spent = minutes_sweeps(exact)
    assert (spent.calls <= 460, spent.reads <= 738) == (True, True)
    # The lists of earlier minutes are read once more.
    exact.clock.advance(ms=3_600_000)
    minutes_sweeps(exact)
    notes = exact.run.stores.due_notes
    for _ in range(3):
        done = notes.lines().done
        spent = minutes_sweeps(exact)
        assert spent.calls <= 60
        # Totals, and every five minutes the lock of the pruning. The end of an interval of due
        # notes is stored, too.
        assert spent.writes - (notes.lines().done != done) <= 3
        assert spent.reads <= 80
    # Whoever pushes there has the queue looked at again, and no other.
    exact.push(queue="idle-017", scheduled_at="+PT1M")
    assert minutes_sweeps(exact).calls <= 70


def test_a_queue_with_a_counter_is_read_once_more(exact: World) -> None:
    exact.run.queues.create("plain", {})
    exact.run.queues.create("bounded", {"max_size": 10})
    exact.run.queues.create("limited", {"concurrency": 10})
    with exact.run.sweep_queues.shared():
        exact.run.sweep.run_once(exact.clock.now_ms(), 1_000)
        with spending(exact) as spent:
            report = exact.run.reconcile.run_once(exact.clock.now_ms(), 1_000)
    assert (report["unbounded"], report["bounded"]) == (2, 1)
    # The list, three items of each of the two, what names the shards of the stream, and the slots
    # of lease notes. Its jobs are counted: seventeen partitions of staged batches are read before.
    assert spent.reads <= 24
