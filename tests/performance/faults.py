"""Measure what a fault does, and how long it takes until all is as before, on dynoxide.

    PYTHONPATH=shared:. .venv/bin/python -m tests.performance.faults

Prints the table of docs/reliability.md; with `work` the one of throughput while tries fail. Time is
moved by hand; a sweep runs each minute.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ConnectionClosedError

from ojs.clock import ManualClock
from ojs.domain.access import ANYBODY, everything
from ojs.domain.bulk.operation import Action
from ojs.domain.errors import Duplicate, OjsError, QueueFull
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job import envelope
from ojs.domain.job.idempotency import IdempotencyKey
from ojs.domain.job.states import TERMINAL, State
from ojs.projections import unpublished
from ojs.projections.project import ALWAYS
from ojs.runtime import Runtime
from ojs.store.derived.projection import ProjectionStore
from ojs.store.table import keys
from ojs.store.table.table import Update
from tests.performance.measure import Row
from tests.simulation import liveness, saturation
from tests.store.conftest import World, make_world
from tests.store.doubles import Projecting, Throttled
from tests.store.faults import Died, Faulty
from tests.store.pushing import DONE, FAILED, THROTTLED, Pushing

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

HEADER = ("fault", "effect", "recovery")
LEASE_MS = 30_000
_STEP_MS = 1_000
_MINUTE_MS = 60_000
# Whatever has not healed by then never does.
_LONGEST_MS = 600_000
_ID = "01a1fc2e-3f3a-7000-81bc-5dfbf7d99b79"

Act = Callable[[Runtime], Any]


@contextmanager
def world_of(client: DynamoDBClient, *, stream: bool = False) -> Iterator[World]:
    """A world on a fresh table, which goes with the block."""
    world = make_world(client, stream=stream)
    try:
        yield world
    finally:
        client.delete_table(TableName=world.table)


def push(run: Runtime, queue: str = "default", **more: Any) -> Any:
    """Push a job, under an id of the client's if there is one."""
    request = {"type": "t", "args": [], "options": {"queue": queue}, **more}
    return run.enqueue.push(envelope.parse(request))


def fetch(run: Runtime, queue: str = "default", most: int = 1) -> Any:
    """Claim jobs, for as long as LEASE_MS."""
    return run.fetch.fetch([queue], most, "w", visibility_timeout_ms=LEASE_MS)


def passing(world: World) -> Iterator[int]:
    """Time that passes, in ms; sweeps run each minute."""
    for passed in range(0, _LONGEST_MS, _STEP_MS):
        yield passed
        world.clock.advance(_STEP_MS)
        if (passed + _STEP_MS) % _MINUTE_MS == 0:
            for sweep in (world.run.sweep, world.run.reconcile):
                sweep.run_once(world.clock.now_ms(), 1_000)
    raise AssertionError("it does not heal")


def worst(
    client: DynamoDBClient,
    config: dict[str, Any],
    prepare: Act,
    act: Act,
    healed: Callable[[Runtime], bool],
) -> int:
    """How long it takes at most, in ms, after the process died before or after any of its calls."""
    longest = 0
    for death in ("died before", "died after"):
        for number in count(1):
            with world_of(client) as world:
                world.run.queues.create("default", config)
                prepare(world.run)
                faulty = Faulty(world.client, number, death)
                with suppress(Died):
                    act(world.another(faulty))
                if faulty.calls < number:
                    break
                fresh = world.another()
                longest = max(longest, next(at for at in passing(world) if healed(fresh)))
    return longest


def seconds(ms: int) -> str:
    return "immediate" if ms == 0 else f"{ms // 1_000} s"


# --- a process that dies --------------------------------------------------------------------------


def killed_in_push(client: DynamoDBClient) -> Row:
    def repeated(run: Runtime) -> bool:
        try:
            push(run, id=_ID)
        except Duplicate as there:
            return bool(there.details["existing_job_id"] == _ID)
        except QueueFull:
            return False
        return True

    plain = worst(client, {}, lambda _: None, lambda run: push(run, id=_ID), repeated)
    bounded = worst(
        client, {"max_size": 1}, lambda _: None, lambda run: push(run, id=_ID), repeated
    )
    return (
        "process killed during enqueue",
        (
            "the job is stored or not; a retry of the request returns which; its space in a queue "
            "with a size limit can stay reserved"
        ),
        f"{seconds(plain)}; size limit: {seconds(bounded)}",
    )


def killed_in_fetch(client: DynamoDBClient) -> Row:
    def again(run: Runtime) -> bool:
        return len(fetch(run)) == 1

    def two(run: Runtime) -> None:
        for _ in range(2):
            push(run)

    plain = worst(client, {}, push, fetch, again)
    limited = worst(client, {"concurrency": 1}, two, fetch, again)
    return (
        "process killed during a fetch",
        (
            f"a claimed job does not run until its lease expires, here {LEASE_MS // 1_000} s; "
            "permits of a concurrency limit can stay acquired"
        ),
        f"{seconds(plain)}; concurrency limit: {seconds(limited)}",
    )


def killed_in_ack(client: DynamoDBClient) -> Row:
    held: list[Any] = []

    def one(run: Runtime) -> None:
        push(run)
        held[:] = fetch(run)

    def two(run: Runtime) -> None:
        one(run)
        push(run)

    def ack(run: Runtime) -> None:
        run.finish.ack(held[0].id, worker_id="w")

    def done(run: Runtime) -> bool:
        # The worker asks again.
        ack(run)
        return run.jobs.get(held[0].id).state.value == "completed"

    def next_runs(run: Runtime) -> bool:
        return done(run) and len(fetch(run)) == 1

    plain = worst(client, {}, one, ack, done)
    limited = worst(client, {"concurrency": 1}, two, ack, next_runs)
    return (
        "process killed during an ack",
        (
            "the job is completed or not; a retry of the ack completes it; the permit of a "
            "concurrency limit can stay acquired"
        ),
        f"{seconds(plain)}; concurrency limit: {seconds(limited)}",
    )


# --- what the table and the network do ------------------------------------------------------------


def life(run: Runtime) -> None:
    """One job from push to ack; raises OjsError."""
    push(run)
    (job,) = fetch(run)
    run.finish.ack(job.id, worker_id="w")


def in_one_life(
    client: DynamoDBClient, faulty: Callable[[Any, int], Any], **config: Any
) -> tuple[int, int, float]:
    """Of a life with a fault at each of its calls in turn: how many there were, how many requests
    failed, and the longest pause in ms.
    """
    failed, longest = 0, 0.0
    for number in count(1):
        with world_of(client) as world:
            world.run.queues.create("default", config)
            pauses: list[float] = []
            world.sleep = pauses.append
            double = faulty(world.client, number)
            run = world.another(double)
            try:
                life(run)
            except OjsError:
                failed += 1
            longest = max(longest, sum(pauses))
            if double.calls < number:
                return number - 1, failed, longest * 1_000
    raise AssertionError


def answer_lost(client: DynamoDBClient) -> Row:
    calls, failed, pause_ms = in_one_life(client, lambda c, n: Faulty(c, n, "answer lost"))
    assert pause_ms <= 25
    return (
        "the response to a call is lost",
        (
            f"the call is repeated and detects its own write: of {calls} calls in enqueue, fetch, "
            f"and ack, {failed} led to a failed request"
        ),
        "in the request, after at most 25 ms",
    )


class Closed:
    """A client whose connection was closed while its container was frozen: one call fails."""

    def __init__(self, client: Any, number: int) -> None:
        self._client, self._number = client, number
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            self.calls += 1
            if self.calls == self._number:
                raise ConnectionClosedError(endpoint_url="dynamodb")
            return getattr(self._client, name)(**arguments)

        return call


def frozen(client: DynamoDBClient) -> Row:
    calls, failed, pause_ms = in_one_life(client, Closed)
    assert pause_ms <= 25
    return (
        "a container was frozen, and its connections are closed",
        (
            f"the call is repeated on a new connection: of {calls} calls, {failed} led to a failed "
            "request"
        ),
        "in the request, after at most 25 ms",
    )


def throttled(client: DynamoDBClient) -> Row:
    calls, failed, _ = in_one_life(client, lambda c, n: Faulty(c, n, "ThrottlingException"))
    healthy, _ = saturation.run(10, 0.0, seed=2)
    hurt, _ = saturation.run(10, 0.05, seed=2)
    return (
        "DynamoDB throttles calls",
        (
            f"after four tries, {failed} of {calls} calls return 503: nothing changed, and permits "
            "and space are released. If 5 % of claims fail in every try, 64 clients use "
            f"{hurt.used:.0%} of a `concurrency` of {saturation.LIMIT} ({healthy.used:.0%} "
            "without faults)"
        ),
        "with the next request",
    )


def hot_line(client: DynamoDBClient) -> Row:
    with world_of(client) as world:
        for queue in ("hot", "good"):
            for _ in range(5):
                push(world.run, queue)
        hot = world.another(Throttled(world.client, keys.ready("hot", 0)))
        got = hot.fetch.fetch(["hot", "good"], 10, "w")
        after = world.another().fetch.fetch(["hot", "good"], 10, "w")
    return (
        "DynamoDB throttles the index partition of one queue",
        f"this fetch skips the queue: of five jobs of another queue {len(got)} are dispatched",
        f"with the next fetch, which returned {len(after)} of 5",
    )


class Stale:
    """A client that answers queries of the index as it did first."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._seen: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            if name != "query" or "IndexName" not in arguments:
                return getattr(self._client, name)(**arguments)
            asked = str(arguments["ExpressionAttributeValues"])
            if asked not in self._seen:
                self._seen[asked] = getattr(self._client, name)(**arguments)
            return self._seen[asked]

        return call


def stale_index(client: DynamoDBClient) -> Row:
    # After a lost race a fetch takes any job of the page.
    random.seed(1)
    with world_of(client) as world:
        for _ in range(10):
            push(world.run)
        stale = Stale(world.client)
        given = [job.id for _ in range(5) for job in fetch(world.another(stale), most=2)]
    twice = len(given) - len(set(given))
    return (
        "the index is out of date",
        (
            "it lists jobs that changed, and each claim of them fails: five fetches of two jobs "
            f"with one old page dispatched {len(set(given))} of 10 jobs, {twice} of them twice"
        ),
        "when the index is up to date, usually within a second",
    )


# --- what is wrong elsewhere ----------------------------------------------------------------------


def bus_is_down(client: DynamoDBClient) -> Row:
    with world_of(client, stream=True) as world:
        projecting = Projecting(world)
        bus = projecting.projected.bus
        bus.refuses = lambda _: True
        for _ in range(10):
            push(world.run)
        world.run.queues.pause("default")
        records = projecting.stream.take()
        assert projecting.projected.run(records) == []
        counted = projecting.projected.stats("default")["available"]
        bus.refuses = lambda _: False
        unpublished.publish(ProjectionStore(world.run.table), bus, ALWAYS, lambda: True)
        told = len(bus.taken)
    return (
        "EventBridge rejects events",
        (
            f"jobs continue: all of {len(records)} records are read, {counted} of 10 new jobs are "
            "counted, and the events are in the log"
        ),
        f"the sweep sends them within a minute after EventBridge recovers: {told} event, once",
    )


def stream_is_behind(client: DynamoDBClient) -> Row:
    with world_of(client, stream=True) as world:
        projecting = Projecting(world)
        for _ in range(100):
            push(world.run)
        assert len(fetch(world.run, most=100)) == 100
        before = projecting.projected.stats("default")
        meter = projecting.projected.store.meter
        meter.reset()
        records = projecting.catch_up()
        after = projecting.projected.stats("default")
    assert not before
    assert after["active"] == 100
    return (
        "the stream is delayed",
        "jobs continue; events and counts above 100 jobs are delayed; no job is counted twice",
        f"when the stream is read: {len(records)} records take {len(meter.calls)} calls",
    )


def damaged(client: DynamoDBClient) -> Row:
    with world_of(client) as world:
        pushed = [push(world.run).job for _ in range(10)]
        world.run.table.update(Update(keys.job(pushed[0].id), keys.RECORD, set={"retry": "?"}))
        given = len(fetch(world.run, most=10))
        told = []
        for _ in "ab":
            world.clock.advance(_MINUTE_MS)
            told.append(bool(world.run.sweep.run_once(world.clock.now_ms(), 1_000).failures))
    return (
        "a job record is damaged",
        (
            f"it is skipped: the {given} other jobs are dispatched; the sweep reports it "
            f"({sum(told)} of {len(told)} runs) and raises the alarm"
        ),
        "when an operator fixes or deletes the item",
    )


def skewed(client: DynamoDBClient) -> Row:
    with world_of(client) as world:
        push(world.run)
        (first,) = fetch(world.run)
        ahead = World(world.client, world.table, ManualClock(world.clock.now_ms() + 2_000))
        passed = 0
        while not (second := fetch(ahead.run)):
            passed += _STEP_MS
            world.clock.advance(_STEP_MS)
            ahead.clock.advance(_STEP_MS)
            ahead.run.sweep.run_once(ahead.clock.now_ms(), 1_000)
        refused = "nothing"
        try:
            world.run.finish.ack(first.id, lease_token=first.lease.token)
        except OjsError as error:
            refused = type(error).__name__
        assert refused == "Conflict"
        assert second[0].lease.token != first.lease.token
    return (
        "clocks differ by 2 s",
        (
            "times are early or late by the difference: for a sweep with a fast clock, a lease of "
            f"{LEASE_MS // 1_000} s expires after {seconds(passed)}; the former worker's token is "
            "rejected"
        ),
        "not required",
    )


# --- bulk work, and pushes of which nobody knows --------------------------------------------------


def killed_in_bulk_push(client: DynamoDBClient) -> Row:
    body = [{"type": "t", "args": [number]} for number in range(6)]
    key = IdempotencyKey.of("k", caller=ANYBODY, operation="push", body={"jobs": body})

    def act(run: Runtime) -> Any:
        requests = [envelope.parse(each) for each in body]
        return run.bulk_push.push(requests, key=key, producer=None, reaches=everything)

    def repeated(run: Runtime) -> bool:
        pushed = {one.job.id for one in act(run)}
        return len(pushed) == len(fetch(run, most=10)) == len(body)

    return (
        "process killed during a bulk enqueue with an idempotency key",
        "staged jobs are not visible; a retry of the request stores each job once",
        seconds(worst(client, {}, lambda _: None, act, repeated)),
    )


def live_jobs(world: World) -> int:
    """Jobs that are there and not over."""
    records = [item for item in world.items() if item["sk"]["S"] == keys.RECORD]
    states = [item["state"]["S"] for item in records if item["pk"]["S"][:2] == keys.job("")]
    return sum(State(state) not in TERMINAL for state in states)


def killed_in_erasure(client: DynamoDBClient) -> Row:
    def erase(run: Runtime) -> None:
        run.bulk.begin(Action.ERASE_JOBS, JobFilter(meta={"who": "a"}))

    def killed(death: str, number: int) -> int | None:
        with world_of(client) as world:
            for _ in range(3):
                push(world.run, meta={"who": "a"})
            faulty = Faulty(world.client, number, death)
            with suppress(Died):
                erase(world.another(faulty))
            if faulty.calls < number:
                return None
            if not any(item["pk"]["S"][:2] == "O|" for item in world.items()):
                erase(world.another())
            for passed in passing(world):
                if passed % _MINUTE_MS == 0:
                    world.run.bulk.run_once(world.clock.now_ms(), 1_000)
                if not live_jobs(world):
                    return passed
        raise AssertionError

    longest = longest_of(killed, "died before", "died after", every=3)
    return (
        "process killed during an erasure",
        "removed jobs stay removed; the sweep continues in rounds until a round finds no job",
        f"{seconds(longest)} until no job is left",
    )


def longest_of(measure: Callable[[str, int], int | None], *kinds: str, every: int = 1) -> int:
    """The longest time, in ms, with a fault at each call in turn, or each `every`-th, until there
    is no call left.
    """
    found = []
    for kind in kinds:
        for number in count(1, every):
            passed = measure(kind, number)
            if passed is None:
                break
            found.append(passed)
    return max(found)


def unanswered(client: DynamoDBClient) -> Row:
    def in_queue(bound: int, fault: str, number: int) -> int | None:
        with world_of(client) as world:
            world.run.queues.create("default", {"max_size": bound})
            faulty = Faulty(world.client, 1_000, fault)
            run = world.another(faulty)
            for _ in range(2):
                run.jobs.cancel(push(run).job.id)
            calls = faulty.calls
            faulty._fail_at = calls + number
            with suppress(OjsError):
                push(run)
            if faulty.calls < calls + number:
                return None
            for passed in passing(world):
                with suppress(OjsError):
                    run.jobs.cancel(push(run).job.id)
                if world.run.stores.depth.value("default").count == live_jobs(world):
                    return passed
        raise AssertionError

    longest = max(
        longest_of(partial(in_queue, bound), "request lost", "timed out") for bound in (64, 10_000)
    )
    return (
        "no try of a call during enqueue gets a response",
        (
            "the response is 504, unless a read shows that the job is stored; its space in a queue "
            "with a size limit can stay reserved"
        ),
        f"{seconds(longest)} if its container receives requests, for each `max_size`",
    )


def actions_are_refused(client: DynamoDBClient) -> Row:
    with world_of(client) as world:
        failing = world.another(Faulty(world.client, 1, "ThrottlingException"))
        for run in (failing, failing):
            run.actions.add(ANYBODY, "pauseQueue", "POST", "/ojs/v1/queues/default/pause", 200)
        listed = len(world.run.actions.list(limit=10).items)
    return (
        "a write to the audit log fails",
        f"the action succeeds; of two such actions {listed} is listed",
        "none: the log of the API has the action and the reason",
    )


# --- deliveries -----------------------------------------------------------------------------------


def until_done(pushing: Pushing, job_id: str) -> int:
    """How long it takes until a pushed job is done, in ms, if nothing more goes wrong."""
    for passed in range(0, _LONGEST_MS, _STEP_MS):
        pushing.pump()
        pushing.end()
        if pushing.world.run.jobs.get(job_id).state is State.COMPLETED:
            return passed
        pushing.world.clock.advance(_STEP_MS)
        if (passed + _STEP_MS) % _MINUTE_MS == 0:
            pushing.minute()
    raise AssertionError("it is never done")


def killed_in_dispatch(client: DynamoDBClient) -> Row:
    def killed(death: str, number: int) -> int | None:
        with world_of(client) as world:
            pushing = Pushing(world)
            pushing.put()
            job = world.push()
            # The message that had woken it is lost, too.
            pushing.wakes.waiting.clear()
            faulty = Faulty(world.client, number, death)
            with suppress(Died):
                world.another(faulty).dispatch.run("work")
            if faulty.calls < number:
                return None
            return until_done(pushing, job.id)

    return (
        "process killed in the dispatch of a delivery",
        "the job is not claimed, or does not run until its lease expires, or was sent",
        seconds(longest_of(killed, "died before", "died after")),
    )


def outcomes_go_wrong(client: DynamoDBClient) -> Row:
    with world_of(client) as world:
        pushing = Pushing(world)
        pushing.put()
        job = world.push()
        pushing.pump()
        (first,) = pushing.target.flying
        pushing.target.flying.clear()
        passed = until_done(pushing, job.id)
        attempts = world.run.jobs.get(job.id).attempt
        late = pushing.settle((first, FAILED)).stale
        job = world.push()
        pushing.pump()
        (push_,) = pushing.target.flying
        pushing.settle((push_, DONE), (push_, DONE))
        once = world.run.jobs.get(job.id)
        assert once.state is State.COMPLETED
    return (
        "the result of a pushed job is lost, late, or duplicated",
        (
            f"lost: the lease expires, and the job is sent again ({attempts} attempts); {late} of "
            f"1 late results after that is ignored; two equal results finish one attempt "
            f"({once.attempt})"
        ),
        f"lost: {seconds(passed)}, with the default timeout",
    )


def target_throttles(client: DynamoDBClient) -> Row:
    with world_of(client) as world:
        pushing = Pushing(world)
        pushing.put(concurrency=2)
        jobs = [world.push(number) for number in range(4)]
        for passed in range(0, _MINUTE_MS, _STEP_MS):
            pushing.pump()
            pushing.end(THROTTLED)
            world.clock.advance(_STEP_MS)
            if (passed + _STEP_MS) % _MINUTE_MS == 0:
                pushing.minute()
        sent = len(pushing.target.pushes)
        longest = max(until_done(pushing, job.id) for job in jobs)
        attempts = {world.run.jobs.get(job.id).attempt for job in jobs}
    return (
        "a target throttles for a minute",
        (
            f"the delivery pauses for increasing times: {sent} pushes in this minute; jobs stay "
            f"available, and no attempt is counted ({max(attempts)} in the end)"
        ),
        f"{seconds(longest)} after it accepts pushes again",
    )


ROWS = (
    killed_in_push,
    killed_in_fetch,
    killed_in_ack,
    killed_in_bulk_push,
    killed_in_erasure,
    unanswered,
    answer_lost,
    frozen,
    throttled,
    hot_line,
    stale_index,
    bus_is_down,
    stream_is_behind,
    damaged,
    skewed,
    actions_are_refused,
    killed_in_dispatch,
    outcomes_go_wrong,
    target_throttles,
)


def line(row: Row) -> str:
    """A line of the table, in Markdown."""
    return f"| {' | '.join(row)} |"


WORK_HEADER = (
    "64 clients", "healthy", "5 % of tries fail", "a minute after", "20 % of tries fail",
    "held by no job then, and four minutes after",
)  # fmt: skip


def work(kind: str) -> Row:
    """Jobs a minute of one kind of queue, without faults, with them, and after them."""
    few = liveness.measure(kind, 2, phase_ms=20_000)
    many = liveness.measure(kind, 2, 0.2, phase_ms=20_000, settle_ms=4 * _MINUTE_MS)
    held = " and ".join(map(str, many.leaked))
    found = (
        f"{few.healthy:.0f}",
        f"{few.during / few.healthy:.0%}",
        f"{few.after / few.healthy:.0%}",
    )
    return (kind, *found, f"{many.during / many.healthy:.0%}", held)


def work_goes_on() -> None:
    """Print the table of throughput."""
    sys.stdout.write(f"{line(WORK_HEADER)}\n|{'---|' * len(WORK_HEADER)}\n")
    for kind in liveness.KINDS:
        sys.stdout.write(line(work(kind)) + "\n")
        sys.stdout.flush()


def main() -> int:
    """Print the table."""
    if sys.argv[1:] == ["work"]:
        work_goes_on()
        return 0
    from local import engines
    from local.dynamodb import connect

    engine = engines.start("dynoxide")
    try:
        client = connect(engine.url)
        sys.stdout.write(f"{line(HEADER)}\n|---|---|---|\n")
        for measure in ROWS:
            sys.stdout.write(line(measure(client)) + "\n")
    finally:
        engine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
