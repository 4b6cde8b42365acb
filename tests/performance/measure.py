"""Measure what each operation costs in DynamoDB calls and capacity units, on dynoxide.

    PYTHONPATH=shared:. .venv/bin/python -m tests.performance.measure [--large]

Prints the tables of docs/performance.md. `--large` adds the one with 100 000 jobs waiting, which
takes a minute.
"""

from __future__ import annotations

import argparse
import random
import string
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.bulk.operation import Action
from ojs.domain.errors import QueueFull
from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.maintenance import NOTICED_MS
from ojs.settings import Settings
from ojs.store.jobs import items
from ojs.store.jobs.blobs import MemoryBlobs
from ojs.store.queues.registry import NOTED_MS, QUIET_MS
from ojs.store.table import keys, schema

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

WORKER = "worker_019414d4-aaaa-7000-c000-111111111111"
RETRY = {"max_attempts": 5, "initial_interval": "PT2S"}
RESULT = {"ok": True, "message_id": "msg_019414d5-1234-7000-b000-aabbccddeeff"}
SMALL = 460
ERROR = {"code": "smtp_refused", "type": "SmtpError", "message": "mailbox full"}

Row = tuple[str, ...]


class Bench:
    """A backend without HTTP on an empty table, whose calls are counted."""

    def __init__(self, client: DynamoDBClient) -> None:
        self.table = f"ojs-{uuid.uuid4().hex[:12]}"
        client.create_table(**schema.create_table_arguments(self.table))
        self.clock = ManualClock()
        self.client = client
        self.run = self.another()
        self.rows: list[Row] = []
        # As in steady operation: the queue exists, the worker is known.
        job = self.push()
        self.fetch()
        self.run.workers.beat(WORKER, active_jobs=[job.id])
        self.run.finish.ack(job.id)

    def know_maintenance(self) -> None:
        """As if another fetch had just read that there is none, which none does for 5 s then."""
        self.run.maintenance.note({}, asked_ms=self.clock.now_ms())

    def another(self, **options: Any) -> runtime.Runtime:
        """One more container on the same table; `options` as for `runtime.build`."""
        return runtime.build(
            Settings(table=self.table),
            client=self.client,
            blobs=MemoryBlobs(),
            clock=self.clock,
            measure=True,
            **options,
        )

    def tenants(self, count: int) -> list[str]:
        """Whose jobs are handed out, in order."""
        found: list[str] = []
        while len(found) < count:
            jobs = self.fetch(min(100, count - len(found)), "fair")
            found += [(job.content or {})["meta"]["tenant_id"] for job in jobs]
        return found

    @contextmanager
    def spending(self, what: str, jobs: int = 1) -> Iterator[None]:
        """Note what the block spends, divided by `jobs`, as a row."""
        meter = self.run.table.meter
        meter.reset()
        yield
        spent = (len(meter.calls), meter.write_units, meter.read_units)
        self.rows.append((what, *(number(value / jobs) for value in spent)))

    def request(self, size: int = SMALL, **more: Any) -> dict[str, Any]:
        """A job whose one argument has `size` bytes, the same each time."""
        letters = string.ascii_letters + string.digits
        text = "".join(random.Random(size).choices(letters, k=size))
        options = {"retry": RETRY, **more.pop("options", {})}
        return {"type": "email.send", "args": [text], "options": options, **more}

    def push(self, size: int = SMALL, **more: Any) -> Job:
        """Enqueue one such job."""
        return self.run.enqueue.push(envelope.parse(self.request(size, **more))).job

    def push_batch(
        self, count: int, queue: str, *, chosen_ids: bool = False, **options: Any
    ) -> None:
        """Enqueue `count` of them at once."""
        requests = []
        for _ in range(count):
            raw = self.request(options={"queue": queue, **options})
            if chosen_ids:
                raw["id"] = self.run.ids.uuid7()
            requests.append(envelope.parse(raw))
        self.run.enqueue.push_batch(requests)

    def fetch(self, count: int = 1, queue: str = "default") -> list[Job]:
        """Claim jobs."""
        return self.run.fetch.fetch([queue], count, WORKER)


def number(value: float) -> str:
    """At most two decimals, none that say nothing."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def life_of_a_job(client: DynamoDBClient) -> list[Row]:
    """Enqueue, fetch, ack of a 0.5 KB job; and in batches."""
    bench = Bench(client)
    with bench.spending("enqueue"):
        job = bench.push()
    with bench.spending("fetch one"):
        bench.fetch()
    with bench.spending("ack, with a result of up to 128 bytes"):
        bench.run.finish.ack(job.id, worker_id=WORKER, result=RESULT)
    sums = [sum(float(row[column]) for row in bench.rows) for column in (1, 2, 3)]
    bench.rows.append(("**the three together**", *(f"**{number(value)}**" for value in sums)))
    with bench.spending("enqueue, fetch ten at once, ack: a job", 10):
        for _ in range(10):
            bench.push()
        for job in bench.fetch(10):
            bench.run.finish.ack(job.id, worker_id=WORKER, result=RESULT)
    batches = ((10, False), (100, False), (100, True), (1_000, False), (1_000, True))
    # The container notes its slot of staged batches once in five minutes.
    bench.push_batch(5, "noted")
    for count, chosen in batches:
        queue = f"batch-{count}-{chosen}".lower()
        bench.push_batch(1, queue)
        whose = ", ids chosen by the client" if chosen else ""
        with bench.spending(f"enqueue in a batch of {count:,}{whose}: a job", count):
            bench.push_batch(count, queue, chosen_ids=chosen)
    with bench.spending("fetch 100 at once: a job", 100):
        bench.fetch(100, "batch-1000-false")
    return bench.rows


def other_operations(client: DynamoDBClient) -> list[Row]:
    """Everything else that a caller or the clock may ask for, with a 0.5 KB job."""
    bench = Bench(client)
    _polls(bench)
    job = bench.push()
    bench.fetch()
    with bench.spending("heartbeat with one job"):
        bench.run.workers.beat(WORKER, active_jobs=[job.id])
    bench.clock.advance(10_000)
    with bench.spending("the same, once in 10 s, with the worker's record"):
        bench.run.workers.beat(WORKER, active_jobs=[job.id])
    with bench.spending("heartbeat without jobs"):
        bench.run.workers.beat("another")
    with bench.spending("progress report"):
        bench.run.jobs.report_progress(job.id, progress=0.5, worker_id=WORKER)
    with bench.spending("read a job"):
        bench.run.jobs.get(job.id)
    with bench.spending("fail, scheduled for retry"):
        bench.run.finish.nack(job.id, error=ERROR, worker_id=WORKER)
    bench.clock.advance(60_000)
    bench.know_maintenance()
    with bench.spending("fetch a job that is due: promoted, then claimed"):
        assert bench.fetch()
    with bench.spending("release (requeue)"):
        bench.run.finish.nack(job.id, error={}, worker_id=WORKER, requeue=True)
    with bench.spending("cancel"):
        bench.run.jobs.cancel(job.id)
    job = bench.push(options={"pending": True})
    with bench.spending("activate"):
        bench.run.jobs.activate(job.id)
    # Smaller ones: these settings take room on the job record too.
    with bench.spending("enqueue with `expires_at` (0.3 KB)"):
        bench.push(300, options={"expires_at": "+PT1H"})
    with bench.spending("enqueue a unique job (0.3 KB)"):
        bench.push(300, options={"unique": {"keys": ["type", "args"]}})
    bench.push()
    last, *others = bench.fetch(10)
    final = ERROR | {"retryable": False}
    for claimed in others:
        bench.run.finish.nack(claimed.id, error=final, worker_id=WORKER)
    with bench.spending("fail into dead letter"):
        bench.run.finish.nack(last.id, error=final, worker_id=WORKER)
    with bench.spending("list dead letters: 4 of one queue"):
        found = bench.run.dead_letter.list(DeadLetterFilter("default")).items
    assert len(found) == 4
    with bench.spending("retry a dead letter"):
        bench.run.redrive.retry(found[0].id)
    _sweep(bench)
    return bench.rows


def _polls(bench: Bench) -> None:
    """What a worker costs that finds nothing."""
    with bench.spending("fetch, no job available"):
        bench.fetch()
    bench.clock.advance(NOTICED_MS - 1)
    bench.fetch()
    bench.clock.advance(1)
    with bench.spending("the same, once in 5 s, with the maintenance mode"):
        bench.fetch()


def _sweep(bench: Bench) -> None:
    """What it costs that the sweep finds what is due in a queue, and that a queue rests."""
    bench.clock.advance(NOTED_MS)
    bench.run.sweep.run_once(bench.clock.now_ms(), 1_000)
    with bench.spending("note a due line: once in 5 minutes for each line and container"):
        bench.run.stores.due_notes.note([(keys.due("default", 0), bench.clock.now_ms())])
    with bench.spending("sweep, nothing to do, one queue"):
        bench.run.sweep.run_once(bench.clock.now_ms(), 1_000)
    bench.clock.advance(QUIET_MS)
    with bench.spending("mark a queue as idle"):
        bench.run.rest.run_once(bench.clock.now_ms(), 1_000)
    with bench.spending("sweep, one idle queue"):
        bench.run.sweep.run_once(bench.clock.now_ms(), 1_000)


def with_configuration(client: DynamoDBClient) -> list[Row]:
    """What a queue's configuration adds: a bound, a limit, a dead-letter queue."""
    bench = Bench(client)
    bench.run.queues._sleep = lambda _: None

    configurations: dict[str, tuple[str, dict[str, Any]]] = {
        "bounded": ("bounded", {"max_size": 1}),
        "limited": ("with `concurrency`", {"concurrency": 10}),
        "paced": ("with `rate_limit`", {"rate_limit": {"limit": 1_000, "period": "PT1M"}}),
    }
    for queue, (what, config) in configurations.items():
        bench.run.queues.configure(queue, config)
        bench.push(options={"queue": queue})
        bench.run.finish.ack(bench.fetch(queue=queue)[0].id)
        with bench.spending(f"{what}: enqueue"):
            job = bench.push(options={"queue": queue})
        with bench.spending(f"{what}: fetch one"):
            bench.fetch(queue=queue)
        with bench.spending(f"{what}: ack"):
            bench.run.finish.ack(job.id, worker_id=WORKER, result=RESULT)
    bench.push(options={"queue": "bounded"})
    with bench.spending("bounded and full: rejected"), suppress(QueueFull):
        bench.push(options={"queue": "bounded"})
    bench.run.queues.configure("bounded", {"overflow_policy": "drop_oldest"})
    with bench.spending("bounded and full: the oldest is dropped"):
        bench.push(options={"queue": "bounded"})
    bench.run.queues.configure("dying", {"dead_letter_queue": "failed"})
    bench.push(options={"queue": "failed"})
    for queue, what in (("default", "no dead-letter queue"), ("dying", "a dead-letter queue")):
        bench.push(300, options={"queue": queue})
        (job,) = bench.fetch(queue=queue)
        with bench.spending(f"fail permanently, {what} (0.3 KB)"):
            error = ERROR | {"retryable": False}
            bench.run.finish.nack(job.id, error=error, worker_id=WORKER)
    bench.run.queues.configure("fair", {"tenant_fairness": {"enabled": True}})
    bench.push(options={"queue": "fair"})
    bench.run.finish.ack(bench.fetch(queue="fair")[0].id)
    with bench.spending("fair: enqueue"):
        job = bench.push(options={"queue": "fair"})
    with bench.spending("fair: fetch one"):
        bench.fetch(queue="fair")
    with bench.spending("fair: release (requeue)"):
        bench.run.finish.nack(job.id, error=None, worker_id=WORKER, requeue=True)
    return bench.rows


def sizes(client: DynamoDBClient) -> list[Row]:
    """How the size of `args` shows: write units of enqueue, read units of fetch, and the rest."""
    bench = Bench(client)
    rows: list[Row] = []
    for label, size in (
        ("0.5 KB", SMALL), ("2.4 KB", 2_400), ("10 KB", 10_000), ("100 KB", 100_000),
        ("400 KB", 400_000),
    ):  # fmt: skip
        bench.rows.clear()
        with bench.spending(""):
            job = bench.push(size)
        with bench.spending(""):
            bench.fetch()
        with bench.spending(""):
            bench.run.finish.ack(job.id, worker_id=WORKER, result=RESULT)
        push, fetch, ack = bench.rows
        together = number(sum(float(row[2]) for row in bench.rows))
        rows.append((label, push[2], fetch[2], fetch[3], ack[2], together))
    return rows


def waiting(client: DynamoDBClient, counts: Sequence[int]) -> list[Row]:
    """What a fetch costs with so many jobs in line."""
    bench = Bench(client)
    rows: list[Row] = []
    for count in counts:
        queue = f"waiting-{count}"
        for start in range(0, count, 1_000):
            bench.push_batch(min(1_000, count - start), queue)
        # A container asks once whether a batch is committed; that belongs to the batch.
        bench.fetch(queue=queue)
        bench.rows.clear()
        with bench.spending(""):
            assert len(bench.fetch(queue=queue)) == 1
        with bench.spending(""):
            assert len(bench.fetch(10, queue)) == 10
        cells = ["{1} calls, {2} WU, {3} RU".format(*row) for row in bench.rows]
        rows.append((f"{count:,}", *cells))
    return rows


def dead_letters(client: DynamoDBClient, counts: Sequence[int]) -> list[Row]:
    """What looking at dead letters and retrying them all costs, with so many there."""
    rows: list[Row] = []
    for count in counts:
        bench = Bench(client)
        letters(bench, count)
        dead = bench.run.dead_letter
        with bench.spending(""):
            assert len(dead.list().items) == 50
        with bench.spending(""):
            assert len(dead.list(DeadLetterFilter(error_type="Boom"), limit=50).items) == 50
        with bench.spending(""):
            # None has it: the request ends at its limit and gives a cursor.
            assert dead.list(DeadLetterFilter(error_type="Other")).items == []
        with bench.spending("", count):
            everything = DeadLetterFilter()
            operation = bench.run.bulk.begin(Action.RETRY, everything).operation
            while not bench.run.bulk.get(operation.id).phase.over:
                bench.run.bulk.run_once(bench.clock.now_ms(), 5_000)
        assert bench.run.bulk.get(operation.id).succeeded == count
        cells = ["{1} calls, {2} WU, {3} RU".format(*row) for row in bench.rows]
        rows.append((f"{count:,}", *cells))
    return rows


def letters(bench: Bench, count: int) -> None:
    """So many dead letters, each as a death would have left it, one a millisecond."""
    began_ms = bench.clock.now_ms()
    records = []
    for number in range(count):
        content = bench.request(300)
        job = Job(
            id=bench.run.ids.uuid7(),
            type=content["type"],
            queue="default",
            state=State.DISCARDED,
            created_ms=began_ms,
            content={"args": content["args"]},
            attempt=3,
            discarded_ms=began_ms + number,
            completed_ms=began_ms + number,
            dead_letter=True,
            error_type="Boom",
            op=f"op{number}",
        )
        records.append(items.record_of(job))
    for start in range(0, count, 250):
        bench.run.table.write_many(puts=records[start : start + 250])
    bench.clock.advance(count)


def tenants(client: DynamoDBClient, flood: int) -> list[Row]:
    """How many jobs are handed out before each tenant that comes has its first, while one tenant's
    flood waits.
    """
    bench = Bench(client)
    bench.run.queues.configure("fair", {"tenant_fairness": {"enabled": True}})
    for start in range(0, flood, 1_000):
        push_for(bench, ["flood"] * min(1_000, flood - start))
    push_for(bench, ["second"] * 100)
    first = bench.tenants(200)
    rows: list[Row] = [
        (
            "a second tenant's 100 jobs",
            number(first.index("second")),
            number(_last(first, "second")),
        )
    ]
    names = [f"tenant-{each}" for each in range(1_000)]
    push_for(bench, names)
    then = bench.tenants(1_100)
    places = sorted(then.index(name) for name in names)
    rows.append(("a thousand tenants, a job each", number(places[0]), number(places[-1])))
    return rows


def push_for(bench: Bench, owners: Sequence[str]) -> None:
    """A job for each of these tenants, in one batch."""
    bench.run.enqueue.push_batch(
        [
            envelope.parse(bench.request(20, meta={"tenant_id": owner}, options={"queue": "fair"}))
            for owner in owners
        ]
    )


def _last(found: Sequence[str], name: str) -> int:
    return len(found) - 1 - list(reversed(found)).index(name)


QUEUES = {"critical": 5, "default": 3, "low": 1}
POOLS: dict[str, dict[str, Any]] = {
    "round-robin": {},
    "weighted": {"strategy": "weighted", "weights": QUEUES},
    "strict": {"strategy": "strict"},
    "strict, `starvation_prevention`": {
        "strategy": "strict",
        "starvation_prevention": {"enabled": True, "min_dispatch_ratio": 0.1},
    },
    "round-robin, `concurrency`": {"concurrency": 300},
    "least-loaded": {"strategy": "least-loaded"},
    "least-loaded, `concurrency`": {"strategy": "least-loaded", "concurrency": 300},
}


def pools(client: DynamoDBClient) -> list[Row]:
    """What a worker pool of three queues adds to fetches and acks."""
    bench = Bench(client)
    # Which shards are tried is chance; here always the same, or what is counted would differ.
    bench.run.stores.semaphore._choose = random.Random(3).randrange
    for queue in QUEUES:
        bench.push_batch(100, queue)
    bench.run.workers.register(WORKER, {"concurrency": 1_000}, "general")
    bench.run.workers.register("alone", {})
    fetch = bench.run.fetch.fetch
    # One from each: a container asks once whether a batch is committed.
    fetch(list(QUEUES), len(QUEUES), "alone")
    with bench.spending("no pool: fetch one"):
        fetch(list(QUEUES), 1, "alone")
    for what, config in POOLS.items():
        bench.run.pools.put("general", {"queues": list(QUEUES), **config})
        fetch(None, 1, WORKER)
        with bench.spending(f"{what}: fetch one"):
            (job,) = fetch(None, 1, WORKER)
        with bench.spending(f"{what}: fetch ten"):
            fetch(None, 10, WORKER)
        with bench.spending(f"{what}: ack"):
            bench.run.finish.ack(job.id, worker_id=WORKER, result=RESULT)
    bench.run.pools.put("idle", {"queues": ["a", "b", "c"]})
    fetch(None, 1, "other", pool="idle")
    with bench.spending("no job available: fetch"):
        fetch(None, 1, "other")
    return bench.rows


def shares(client: DynamoDBClient, dispatches: int) -> list[Row]:
    """How many jobs of each queue 16 containers hand out together, one at a time, in what time."""
    rows: list[Row] = []
    for what in ("round-robin", "weighted", "strict", "strict, `starvation_prevention`"):
        bench = Bench(client)
        for queue in QUEUES:
            for _ in range(dispatches // 1_000):
                bench.push_batch(1_000, queue)
        bench.run.pools.put("general", {"queues": list(QUEUES), **POOLS[what]})
        containers = [bench.another() for _ in range(16)]
        each = dispatches // len(containers)
        with ThreadPoolExecutor(len(containers)) as threads:
            work = [threads.submit(_fetch_many, one, each, n) for n, one in enumerate(containers)]
            found = sum((one.result() for one in work), Counter[str]())
        rows.append((what, *(f"{found[queue]:,}" for queue in QUEUES)))
    return rows


def _fetch_many(container: runtime.Runtime, count: int, number_of: int) -> Counter[str]:
    jobs = (
        job
        for _ in range(count)
        for job in container.fetch.fetch(None, 1, f"worker-{number_of}", pool="general")
    )
    return Counter(job.queue for job in jobs)


SPENT = ("calls", "write units", "read units")
TABLES: dict[str, tuple[Row, Callable[[DynamoDBClient], list[Row]]]] = {
    "life": (("0.5 KB job", *SPENT), life_of_a_job),
    "operations": (("operation", *SPENT), other_operations),
    "configured": (("queue", *SPENT), with_configuration),
    "pools": (("worker pool of three queues", *SPENT), pools),
    "sizes": (
        ("args", "enqueue WU", "fetch WU", "fetch RU", "ack WU", "all WU"),
        sizes,
    ),
}
DEAD_LETTERS_HEADER = (
    "dead letters", "a page of 50", "of one error type", "1,500 scanned", "retry all: each"
)  # fmt: skip
TENANTS_HEADER = ("behind a flood of 10,000", "jobs before its first", "and before its last")
SHARES_HEADER = ("10,000 dispatches by 16 containers", *QUEUES)
WAITING_HEADER = ("jobs waiting", "fetch one", "fetch ten")


def table(header: Row, rows: Sequence[Row]) -> str:
    """A table in Markdown, numbers to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))


def main() -> int:
    """Print the tables."""
    from local import engines
    from local.dynamodb import connect

    parser = argparse.ArgumentParser(description="Measure what each operation costs.")
    parser.add_argument("--large", action="store_true", help="with 100 000 jobs waiting, too")
    options = parser.parse_args()
    engine = engines.start("dynoxide")
    try:
        client = connect(engine.url)
        for name, (header, measured) in TABLES.items():
            sys.stdout.write(f"{name}\n\n{table(header, measured(client))}\n\n")
        if options.large:
            rows = waiting(client, (100, 100_000))
            sys.stdout.write(f"waiting\n\n{table(WAITING_HEADER, rows)}\n\n")
            rows = dead_letters(client, (1_000, 50_000))
            sys.stdout.write(f"dead letters\n\n{table(DEAD_LETTERS_HEADER, rows)}\n\n")
            rows = tenants(client, 10_000)
            sys.stdout.write(f"tenants\n\n{table(TENANTS_HEADER, rows)}\n\n")
            rows = shares(client, 10_000)
            sys.stdout.write(f"shares\n\n{table(SHARES_HEADER, rows)}\n")
    finally:
        engine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
