"""What is simulated: two or three actors each, over all use cases; what they do a seed decides."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

from tests.simulation import quiet
from tests.simulation.actors import Operator, Producer, Stream, Worker
from tests.simulation.acts import RETRY, fetched, some
from tests.simulation.durable import checkpoints, durable
from tests.simulation.erasing import erasing
from tests.simulation.hooked import hooked
from tests.simulation.in_workflows import large_workflows, workflows, workflows_are_exact
from tests.simulation.invariants import REQUEST_MS
from tests.simulation.keyed import KEYED
from tests.simulation.operated import OPERATED
from tests.simulation.periodic import cron, crons_are_exact
from tests.simulation.pushed import deliveries_are_exact, push
from tests.simulation.ringing import rings
from tests.simulation.scheduler import Choose, Scheduler, by_chance
from tests.simulation.tenanted import tenanted
from tests.simulation.world import Acts, World

RATES = (0.0, 0.02, 0.05, 0.15)
# A batch of more jobs than this is staged; DynamoDB's own number makes runs far dearer.
_TRANSACTION = 3
# Jobs of a workflow that start together.
_SLICE = 4
# If more than these start, the root says so before.
_SHARED = 2
# What is kept in the table rather than in the bucket.
_ITEM_BYTES = 4_000
# And is given up when no request that stores it can be under way any more.
_STAGING_GRACE_MS = REQUEST_MS + 1_000
# When no late write of it can be under way any more: within a run's calls.
_UNDONE_AGAIN_MS = 600_000


@dataclass
class Outcome:
    """What one run covered."""

    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    writes: int = 0
    jobs: int = 0
    leaked: int = 0
    # Who went when: two runs that took the same steps count as one interleaving.
    trace: tuple[int, ...] = ()


def life(world: World) -> list[Acts]:
    """The whole life of jobs: pushed, fetched, ended in every way, taken back, swept."""
    producer, one, other = Producer(world, "p"), Worker(world, "w1"), Worker(world, "w2")
    hand = Operator(world, "o")
    push = partial(producer.push, retry=RETRY, visibility_timeout_ms=2_000)
    push()
    pushing: Acts = [
        push,
        partial(producer.push, retry=RETRY, scheduled_at="+PT2S"),
        partial(producer.push, retry=RETRY, timeout_ms=1_000),
        partial(producer.push, expires_at="+PT3S", retry=RETRY),
        partial(producer.push, pending=True, retry=RETRY),
        partial(producer.push, 2, retry=RETRY),
        hand.sweep,
        hand.wait,
        hand.wait,
    ]
    by_hand: Acts = [hand.cancel, hand.look, hand.activate, hand.retry, hand.delete]
    return [
        [producer.does(act) for act in some(world.chance, pushing + by_hand, 7)],
        [one.does(act) for act in [one.fetch, *[one.any] * 6]],
        [other.does(act) for act in [other.fetch, *[other.any] * 5]],
    ]


def batches(world: World) -> list[Acts]:
    """Batches in one transaction and staged ones, with and without a bound; meanwhile fetches."""
    producer, hand, worker = Producer(world, "p"), Operator(world, "o"), Worker(world, "w")
    if world.chance.random() < 0.6:
        world.run.queues.configure("default", {"max_size": 8})
    pushing: Acts = [
        partial(producer.push, 2),
        partial(producer.push, 5),
        partial(producer.push, 4, large=True),
        partial(producer.push, 4, chosen=False),
        partial(producer.push, 5, chosen=False, large=False),
    ]
    other = Producer(world, "p2")
    looking: Acts = [hand.sweep, hand.wait, hand.cancel, hand.look, hand.reconcile]
    return [
        [producer.does(act) for act in some(world.chance, pushing, 3)],
        [
            other.does(partial(other.push, 4)),
            *[hand.does(a) for a in some(world.chance, looking, 4)],
        ],
        [worker.does(act) for act in [worker.any] * 4],
    ]


def late(world: World) -> list[Acts]:
    """Staged batches under ids of the server's, parts of which come when they were given up."""
    world.plan.late = 0.3
    producers = [Producer(world, "p"), Producer(world, "p2")]
    hand, worker = Operator(world, "o"), Worker(world, "w")
    if world.chance.random() < 0.5:
        world.run.queues.configure("default", {"max_size": 9})
    looking: Acts = [hand.sweep, hand.sweep, hand.wait, hand.look, hand.reconcile, hand.cancel]
    return [
        *[
            [producer.does(partial(producer.push, 4, chosen=False)) for _ in range(2)]
            for producer in producers
        ],
        [hand.does(act) for act in some(world.chance, looking, 5)],
        [worker.does(act) for act in [worker.any] * 5],
    ]


def owners(world: World) -> list[Acts]:
    """Leases are short, and workers speak up late, when others have their jobs. Some show their
    lease, some their name alone, some nothing, as clients do that send the job's id alone; the
    queue may demand the token, or run two jobs at once.
    """
    producer, hand = Producer(world, "p"), Operator(world, "o")
    config = world.chance.choice(({}, {}, {"require_lease_token": True}, {"concurrency": 2}))
    if config:
        hand.configure(config)
    retry = {"max_attempts": 3, "initial_interval": "PT1S", "jitter": False}
    options: list[dict[str, Any]] = [{}, {"expires_at": "+PT2S"}, {"timeout_ms": 2_000}]
    for _ in range(3):
        producer.push(retry=retry, large=False, **world.chance.choice(options))
    made: list[Acts] = []
    for name in ("w1", "w2"):
        shows: Any = world.chance.choice(("nothing", "nothing", "name", "lease"))
        worker = Worker(world, name, shows=shows)
        take: Callable[[], None] = partial(worker.fetch, 2, 1_000)
        acts: Acts = [worker.ack, worker.nack, worker.nack, worker.hand_back, worker.beat]
        acts += [worker.report, worker.report, take, take]
        acts += [partial(hand.wait, 900), partial(hand.wait, 1_001)]
        made.append([worker.does(act) for act in [take, *some(world.chance, acts, 8)]])
    acts = [hand.wait, hand.sweep, hand.sweep, hand.cancel, hand.look, hand.retry]
    acts.append(partial(producer.push, retry=retry, expires_at="+PT1S"))
    return [*made, [hand.does(act) for act in some(world.chance, acts, 6)]]


# Found after their first note, after a second one, and after several.
_LEASES_MS = (16_000, 20_000, 90_000, 600_000)


def leases(world: World) -> list[Acts]:
    """Leases that only their notes tell of: workers die, go on and speak up, while sweeps come
    late, and two at once. Queues get limits meanwhile, or end.
    """
    producer, hand, other = Producer(world, "p"), Operator(world, "o"), Operator(world, "o2")
    world.watch.changes = True
    retry = {"max_attempts": 3, "initial_interval": "PT1S", "jitter": False}
    for _ in range(4):
        producer.push(retry=retry, large=False)
    made: list[Acts] = []
    for name in ("w1", "w2"):
        worker = Worker(world, name)
        takes: Acts = [partial(worker.fetch, 2, lease_ms) for lease_ms in _LEASES_MS]
        acts: Acts = [worker.ack, worker.nack, worker.hand_back, worker.beat, worker.forget]
        acts = some(world.chance, [*acts, *takes], 6)
        made.append([worker.does(act) for act in [world.chance.choice(takes), *acts]])
    ends: Acts = [partial(hand.end, "default", how) for how in ("drain", "discard", "reject")]
    ends += [partial(hand.configure, {"concurrency": 2}), partial(hand.configure, {"max_size": 9})]
    acts = [hand.sweep, hand.sweep, partial(hand.wait, 16_000), partial(hand.wait, 20_001)]
    acts += [partial(hand.wait, 61_000), hand.look, world.chance.choice(ends)]
    others: Acts = [other.sweep, other.sweep, partial(other.wait, 3_000), other.reconcile]
    others.append(partial(producer.push, retry=retry, large=False))
    return [
        *made,
        [hand.does(act) for act in some(world.chance, acts, 9)],
        [other.does(act) for act in some(world.chance, others, 5)],
    ]


def unique(world: World) -> list[Acts]:
    """Jobs with one unique key, pushed by two at once, in every way of dealing with another."""
    key = {"keys": ["type"]}
    ways = [
        {**key, "on_conflict": how}
        for how in ("reject", "ignore", "replace", "replace_except_schedule")
    ]
    made: list[Acts] = []
    for name in ("p1", "p2"):
        producer = Producer(world, name)
        made.append([])
        for _ in range(3):
            options: dict[str, Any] = {
                "unique": world.chance.choice(ways),
                "retry": {"max_attempts": 1},
            }
            if world.chance.random() < 0.3:
                options["scheduled_at"] = "+PT2S"
            made[-1].append(producer.does(partial(producer.push, **options)))
    worker, hand = Worker(world, "w"), Operator(world, "o")
    acts: Acts = [
        worker.fetch,
        worker.any,
        worker.nack,
        worker.nack,
        hand.retry,
        hand.wait,
        hand.cancel,
    ]
    return [*made, [worker.does(act) for act in some(world.chance, acts, 7)]]


def bounded(world: World) -> list[Acts]:
    """A queue with a bound, pushed to by two, and emptied."""
    config: dict[str, Any] = {"max_size": 2}
    if world.chance.random() < 0.4:
        config["overflow_policy"] = "drop_oldest"
    world.run.queues.configure("default", config)
    made: list[Acts] = []
    for name in ("p1", "p2"):
        producer = Producer(world, name)
        acts: Acts = [
            producer.push,
            partial(producer.push, retry={"max_attempts": 1}, visibility_timeout_ms=1_000),
            partial(producer.push, 2),
        ]
        made.append([producer.does(act) for act in some(world.chance, acts, 3)])
    worker, hand = Worker(world, "w"), Operator(world, "o")
    acts = [worker.fetch, worker.any, worker.ack, worker.nack, hand.cancel, hand.retry, hand.sweep]
    acts += [hand.reconcile, hand.wait]
    return [*made, [worker.does(act) for act in some(world.chance, acts, 8)]]


def slots(world: World) -> list[Acts]:
    """A queue that runs so many jobs at once, fetched from by two."""
    world.run.queues.configure("default", {"concurrency": 2})
    producer = Producer(world, "p")
    for _ in range(4):
        producer.push(visibility_timeout_ms=2_000, retry=RETRY)
    hand = Operator(world, "r")
    return fetched(world, [hand.does(hand.reconcile, hand.reconcile)])


def pool(world: World) -> list[Acts]:
    """A pool of two queues that runs so many jobs at once, fetched from by two."""
    strategy = world.chance.choice(("round-robin", "weighted", "strict"))
    weights = {"weights": {"a": 3, "b": 1}} if strategy == "weighted" else {}
    world.run.pools.put(
        "p", {"queues": ["a", "b"], "concurrency": 2, "strategy": strategy, **weights}
    )
    world.pool = "p"
    producer = Producer(world, "p")
    for queue in ("a", "b", "a", "b"):
        producer.push(queue=queue, visibility_timeout_ms=2_000, retry=RETRY)
    return fetched(world, [Operator(world, "s").sweep_pool_permits])


def tenants(world: World) -> list[Acts]:
    """A queue that tenants share, pushed to by two and fetched from."""
    world.run.queues.configure("default", {"tenant_fairness": {"enabled": True}})
    made: list[Acts] = []
    for name in ("p1", "p2"):
        producer = Producer(world, name)
        acts: Acts = [
            partial(producer.push, count, meta={"tenant_id": tenant}, retry=RETRY)
            for tenant in ("x", "y")
            for count in (1, 2)
        ]
        made.append([producer.does(act) for act in some(world.chance, acts, 3)])
    worker, hand = Worker(world, "w"), Operator(world, "o")
    acts = [worker.any, worker.any, worker.fetch, hand.wait, hand.sweep, hand.cancel]
    return [*made, [worker.does(act) for act in some(world.chance, acts, 7)]]


def dead_letters(world: World) -> list[Acts]:
    """Dead letters: made by workers, brought back and deleted by two operators at once."""
    if world.chance.random() < 0.5:
        world.run.queues.configure("default", {"max_size": 3})
    producer, worker = Producer(world, "p"), Worker(world, "w")
    for _ in range(3):
        producer.push(retry={"max_attempts": 1}, visibility_timeout_ms=2_000)
    worker.fetch(2)
    for _ in range(2):
        worker.nack()
    made: list[Acts] = []
    for name in ("o1", "o2"):
        hand = Operator(world, name)
        acts: Acts = [
            hand.retry,
            hand.retry,
            hand.delete,
            hand.look,
            hand.cancel,
            hand.wait,
            hand.sweep,
        ]
        made.append([hand.does(act) for act in some(world.chance, acts, 5)])
    return [*made, [worker.does(act) for act in [worker.fetch, *[worker.any] * 5]]]


def ending(world: World) -> list[Acts]:
    """A queue is paused, resumed and deleted, while it is pushed to and fetched from."""
    strategy = world.chance.choice(("discard", "move", "drain", "reject"))
    target = "there" if strategy == "move" else None
    producer, worker, hand = Producer(world, "p"), Worker(world, "w"), Operator(world, "o")
    world.queues.add("there")
    if world.chance.random() < 0.4:
        for name in ("default", "there"):
            world.run.queues.configure(name, {"max_size": 4})
    producer.push(retry=RETRY, visibility_timeout_ms=2_000)
    pushing: Acts = [
        partial(producer.push, retry=RETRY),
        partial(producer.push, scheduled_at="+PT2S"),
        partial(producer.push, 2),
        hand.look,
    ]
    acts: Acts = [partial(hand.end, "default", strategy, target)]
    acts += some(world.chance, [hand.sweep, hand.sweep, hand.wait, hand.pause, hand.resume], 5)
    return [
        [producer.does(act) for act in some(world.chance, pushing, 4)],
        [hand.does(act) for act in acts],
        [worker.does(act) for act in [worker.fetch, *[worker.any] * 4]],
    ]


def rejected(world: World) -> list[Acts]:
    """A queue without jobs is deleted with `reject`, again and again, while jobs come and go; it
    stays paused until it is gone.
    """
    producer, worker, hand = Producer(world, "p"), Worker(world, "w"), Operator(world, "o")
    world.run.queues.configure("default", {"max_size": world.chance.choice((None, 4))})
    if world.chance.random() < 0.5:
        hand.pause()
    end: Callable[[], None] = partial(hand.end, "default", "reject")
    acts: Acts = [end, end, *some(world.chance, [end, hand.sweep, hand.wait, hand.resume], 3)]
    return [
        [producer.does(act) for act in [partial(producer.push, large=False)] * 3],
        [hand.does(act) for act in acts],
        [worker.does(act) for act in [worker.fetch, *[worker.any] * 4]],
    ]


def limits(world: World) -> list[Acts]:
    """Jobs under a rate limit of their own, which lets one of a key run at a time."""
    producer = Producer(world, "p")
    for _ in range(3):
        producer.push(
            rate_limit={"key": "k", "concurrency": 1}, visibility_timeout_ms=2_000, retry=RETRY
        )
    return fetched(world, [Operator(world, "h").hold])


def copies(world: World) -> list[Acts]:
    """Dead letters leave copies in another queue, and come back, while the stream is read."""
    world.run.queues.configure("default", {"dead_letter_queue": "dead"})
    world.queues.add("dead")
    producer, worker, hand = Producer(world, "p"), Worker(world, "w"), Operator(world, "o")
    other = Worker(world, "w2", ["dead"])
    stream = Stream(world)
    for _ in range(3):
        producer.push(retry={"max_attempts": 1}, visibility_timeout_ms=2_000)
    worker.fetch(2)
    hands: Acts = [hand.retry, hand.retry, hand.delete, hand.sweep, hand.wait]
    return [
        [worker.does(a) for a in [worker.nack, worker.nack, worker.any, worker.any, worker.nack]],
        [*[hand.does(a) for a in some(world.chance, hands, 4)], other.does(other.any)],
        [stream.does(act) for act in [stream.read] * 5],
    ]


def bulk(world: World) -> list[Acts]:
    """Dead letters are brought back, purged and pruned many at a time, by two at once."""
    world.watch.purged = True
    if world.chance.random() < 0.5:
        world.run.queues.set_policy({"dead_letter": {"retention": {"max_count": 1}}})
    producer, worker = Producer(world, "p"), Worker(world, "w")
    for _ in range(4):
        producer.push(retry={"max_attempts": 1}, visibility_timeout_ms=2_000)
    worker.fetch(4)
    for _ in range(3):
        worker.nack()
    world.clock.advance(1)
    made: list[Acts] = []
    for name in ("o1", "o2"):
        hand = Operator(world, name)
        acts: Acts = [hand.go_on_with_bulk, hand.prune, hand.retry, hand.delete, hand.wait]
        made.append([hand.does(act) for act in [hand.begin_bulk, *some(world.chance, acts, 3)]])
    return [*made, [worker.does(act) for act in [worker.fetch, *[worker.any] * 3]]]


def contents(world: World) -> list[Acts]:
    """A job whose payload is offloaded dies and is deleted while a fetch has claimed it."""
    producer, worker, hand = Producer(world, "p"), Worker(world, "w"), Operator(world, "o")
    for _ in range(2):
        producer.push(large=True, retry={"max_attempts": 1}, visibility_timeout_ms=2_000)
    acts: Acts = [partial(hand.wait, 3_001), hand.sweep, hand.delete, hand.delete]
    return [
        [worker.does(act) for act in [worker.fetch, worker.fetch, worker.any]],
        [hand.does(act) for act in [*acts, *acts]],
    ]


def streamed(world: World) -> list[Acts]:
    """The life of jobs, while two read the stream, and fail at it."""
    acts = life(world)[1:2]
    for _ in range(2):
        stream = Stream(world)
        acts.append([stream.does(stream.read) for _ in range(6)])
    return acts


def ended(world: World) -> list[Acts]:
    """Workers end many jobs in one request, or with a fetch; some speak up when others have their
    jobs. The queue may demand the token, have a limit or a bound.
    """
    producer, hand = Producer(world, "p"), Operator(world, "o")
    config = world.chance.choice(
        ({}, {"require_lease_token": True}, {"concurrency": 3}, {"max_size": 8})
    )
    if config:
        hand.configure(config)
    retry = {"max_attempts": 3, "initial_interval": "PT1S", "jitter": False}
    push = partial(producer.push, retry=retry)
    for _ in range(5):
        push(large=False)
    made: list[Acts] = []
    for name in ("w1", "w2"):
        shows: Any = world.chance.choice(("lease", "lease", "name", "nothing"))
        worker = Worker(world, name, shows=shows)
        take: Callable[[], None] = partial(worker.fetch, 3, 2_000)
        both: Callable[[], None] = partial(worker.end_many, fetches=3)
        acts: Acts = [worker.end_many, worker.end_many, both, both, worker.beat, take]
        acts.append(partial(hand.wait, 2_001))
        made.append([worker.does(act) for act in [take, *some(world.chance, acts, 6)]])
    acts = [hand.wait, hand.sweep, hand.cancel, hand.look, hand.retry, hand.reconcile, push, push]
    return [*made, [hand.does(act) for act in some(world.chance, acts, 5)]]


SCENARIOS: dict[str, Callable[[World], list[Acts]]] = {
    "life": life,
    "owners": owners,
    "leases": leases,
    "batches": batches,
    "late": late,
    "unique": unique,
    "bounded": bounded,
    "slots": slots,
    "pool": pool,
    "tenants": tenants,
    "dead-letters": dead_letters,
    "ending": ending,
    "rejected": rejected,
    "limits": limits,
    "copies": copies,
    "bulk": bulk,
    "contents": contents,
    "streamed": streamed,
    **OPERATED,
    "ended": ended,
    "cron": cron,
    "workflows": workflows,
    "large-workflows": large_workflows,
    "push": push,
    "rings": rings,
    **KEYED,
    "erasing": erasing,
    "durable": durable,
    "checkpoints": checkpoints,
    "hooks": hooked,
    "tenanted": tenanted,
}


# Where clocks do not differ: starts in a period are counted by the clock of who hands a job out.
EXACT = frozenset({"rates", "tenanted"})


def run(name: str, seed: int, timeline: list[str] | None = None) -> Outcome:
    """One run; what happens is added to `timeline`, if given. Raises what it finds wrong."""
    chance = random.Random(f"{name} {seed}")
    world = World(
        seed,
        rate=chance.choice(RATES),
        stale=chance.choice((0.0, 0.3)),
        stay=chance.choice((0.0, 0.3, 0.7)),
        skew_ms=0 if name in EXACT else chance.choice((0, 1_000)),
        frozen=chance.choice((0.0, 0.1)),
        delayed=chance.choice((0.0, 0.7)),
    )
    world.plan.timeline = timeline
    return play(world, SCENARIOS[name], by_chance(world.chance, world.stay))


def play(
    world: World,
    scenario: Callable[[World], list[Acts]],
    choose: Choose,
    *,
    staging_grace_ms: int = _STAGING_GRACE_MS,
) -> Outcome:
    """Have the actors of a scenario act, then heal, drain and check."""
    scheduler = Scheduler(choose)
    world.start(scheduler)
    with (
        # One slot of batches, so that writers meet in it.
        mock.patch("ojs.store.table.keys.STAGED_SLOTS", 1),
        mock.patch("ojs.store.jobs.staged_batches.MAX_TRANSACTION", _TRANSACTION),
        mock.patch("ojs.services.jobs.enqueue.MAX_TRANSACTION", _TRANSACTION),
        mock.patch("ojs.store.jobs.staged_batches.STAGING_GRACE_MS", staging_grace_ms),
        mock.patch("ojs.store.jobs.staged_batches.UNDONE_AGAIN_MS", _UNDONE_AGAIN_MS),
        mock.patch("ojs.store.jobs.payloads.MAX_ITEM_BYTES", _ITEM_BYTES),
        # Groups of three have a fan-in, those of five one of two shards, and start in two slices.
        mock.patch("ojs.services.workflows.starts.MIN_SLOTS", 3),
        mock.patch("ojs.store.workflows.fan_ins.SHARD_SLOTS", 3),
        mock.patch("ojs.services.workflows.starts.MAX_BATCH", _SLICE),
        mock.patch("ojs.services.workflows.advance._STARTED_AT_ONCE", _SHARED),
        # A container reserves two enqueues of a tenant at a time.
        mock.patch("ojs.services.tenants.quotas._PART", 2),
    ):
        # What was there before is no part of what goes wrong.
        world.plan.on = False
        actors = scenario(world)
        world.plan.on = True
        scheduler.run([partial(_act, acts) for acts in actors])
        world.check_unhealed()
        world.heal()
        world.check_quiet()
        if world.ringing is not None:
            world.ringing.settle()
        if world.delivered is not None:
            world.delivered.settle()
        elif world.workflows is None:
            world.drain()
        else:
            world.workflows.settle(world.drain)
        world.check_end()
        for promise in world.promises:
            promise.check_end()
        crons_are_exact(quiet.everything(world.memory))
        workflows_are_exact(quiet.everything(world.memory), world)
        deliveries_are_exact(quiet.everything(world.memory), world)
    return Outcome(
        world.operations,
        world.plan.done,
        world.plan.calls,
        world.watch.writes,
        sum(len(push.ids) for push in world.pushes),
        world.leaked,
        tuple(scheduler.trace),
    )


def _act(acts: Acts) -> None:
    for act in acts:
        act()
