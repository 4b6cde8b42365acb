"""What operators change and set up while others work: configuration, pools, tenants, rules, limits,
and what is kept in the bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ojs.store.queues.registry import QUIET_MS
from tests.simulation.actors import Operator, Producer, Stream, Worker
from tests.simulation.acts import RETRY, fetched, some
from tests.simulation.world import HUGE, Acts, World


def configured(world: World) -> list[Acts]:
    """A queue is configured and paused while it is pushed to and fetched from."""
    world.watch.changes = True
    producer, hand = Producer(world, "p"), Operator(world, "o")
    if world.chance.random() < 0.5:
        world.run.queues.configure(
            "default", world.chance.choice(({"max_size": 3}, {"concurrency": 2}))
        )
    for _ in range(2):
        producer.push(visibility_timeout_ms=2_000, retry=RETRY)
    config: list[dict[str, Any]] = [
        {"max_size": 2},
        {"max_size": 4},
        {"max_size": None},
        {"concurrency": 1},
        {"concurrency": 3},
        {"concurrency": None},
        {"max_size": 3, "concurrency": 2},
        {"rate_limit": {"limit": 2, "period": "PT10S"}},
        {"rate_limit": None},
        {"lanes": 2},
    ]
    changing: Acts = [partial(hand.configure, each) for each in config]
    looking: Acts = [hand.sweep, hand.reconcile, hand.wait, hand.cancel, hand.pause, hand.resume]
    pushing: Acts = [
        partial(producer.push, visibility_timeout_ms=2_000, retry=RETRY),
        partial(producer.push, retry=RETRY),
        partial(producer.push, 2, retry=RETRY),
        partial(producer.push, scheduled_at="+PT2S", retry=RETRY),
    ]
    other = Operator(world, "o2")
    if world.chance.random() < 0.3:
        pushing += [partial(other.configure, each) for each in config[:6]]
    worker = Worker(world, "w")
    fetching: Acts = [partial(worker.fetch, 2), worker.fetch, worker.any, worker.any]
    hands = [
        act
        for pair in zip(
            some(world.chance, changing, 3), some(world.chance, looking, 3), strict=True
        )
        for act in pair
    ]
    return [
        [producer.does(act) for act in some(world.chance, pushing, 5)],
        [hand.does(act) for act in hands],
        [worker.does(act) for act in some(world.chance, fetching, 6)],
    ]


def due_notes(world: World) -> list[Acts]:
    """The sweep reads only lines that are noted as due, and the queue is let rest; afterwards
    nobody asks for anything for a while.
    """
    world.alone = world.watch.changes = True
    hand, producer, worker = Operator(world, "o"), Producer(world, "p"), Worker(world, "w")
    world.run.queues.create("default", {"lanes": world.odd.choice((1, 2))})
    options: dict[str, Any] = {"retry": RETRY, "visibility_timeout_ms": 2_000}
    if world.odd.random() < 0.5:
        producer.push(2, **options)
    world.project()
    for ms in (QUIET_MS, QUIET_MS + 2 * world.skew_ms):
        world.clock.advance(ms)
        # It was not out of service.
        world.check_swept(world.run.sweep.run_once(world.run.clock.now_ms(), 100))
    if world.odd.random() < 0.7:
        world.run.rest.run_once(world.run.clock.now_ms(), 100)
    pushing: Acts = [
        partial(producer.push, scheduled_at="+PT2S", **options),
        partial(producer.push, scheduled_at="+PT20M", **options),
        partial(producer.push, expires_at="+PT3S", **options),
        partial(producer.push, 2, scheduled_at="+PT5S", **options),
        partial(producer.push, 5, scheduled_at="+PT5S", chosen=False, **options),
        partial(producer.push, **options),
    ]
    fetching: Acts = [worker.fetch, worker.nack, worker.any, worker.forget, hand.cancel]
    stream = Stream(world)
    change = partial(hand.configure, {"concurrency": 1})
    later = partial(hand.wait, 301_000)
    looking: Acts = [hand.rest, hand.sweep, hand.wait, change, later, stream.read]
    return [
        [producer.does(act) for act in some(world.chance, pushing, 2)],
        [worker.does(act) for act in some(world.chance, fetching, 3)],
        [hand.does(act) for act in [hand.rest, *some(world.chance, looking, 3)]],
    ]


def acts(world: World) -> list[Acts]:
    """Operators act on jobs in any state, one by one and many at once, and stop all work for a
    while; workers go on, and the stream is read.
    """
    world.watch.purged = world.watch.erased = True
    world.queues.add("there")
    config = world.chance.choice(({}, {}, {"max_size": 7}, {"concurrency": 2}, {"lanes": 2}))
    for name in ("default", "there"):
        world.run.queues.configure(name, config)
    producer, worker, stream = Producer(world, "p"), Worker(world, "w"), Stream(world)
    other = Worker(world, "w2", ["there", "default"])
    options: dict[str, Any] = {"retry": RETRY, "visibility_timeout_ms": 2_000}
    for _ in range(2):
        producer.push(**options)
    producer.push(scheduled_at="+PT2S", **options)
    producer.push(retry={"max_attempts": 1}, visibility_timeout_ms=2_000)
    made: list[Acts] = []
    first, second = Operator(world, "o1"), Operator(world, "o2")
    by_one: Acts = [first.bring_back, first.run_now, first.change, first.erase, first.cancel]
    by_one += [first.change, first.look, first.sweep, first.wait]
    made.append([first.does(act) for act in some(world.chance, by_one, 7)])
    many: Acts = [second.begin_job_bulk, second.begin_job_bulk, second.go_on_with_bulk]
    still: Acts = [second.stop_work, second.stop_work, second.go_on_with_work]
    many += [*still, second.sweep, second.sweep, second.wait, stream.read]
    made.append([second.does(act) for act in some(world.chance, many, 7)])
    working: Acts = [worker.fetch, worker.any, worker.nack, worker.any, other.fetch, other.any]
    working += [partial(producer.push, **options)]
    made.append([worker.does(act) for act in [worker.fetch, *some(world.chance, working, 8)]])
    return made


def least_loaded(world: World) -> list[Acts]:
    """A pool whose workers get no more than they can run, from the deepest queue."""
    body: dict[str, Any] = {"queues": ["a", "b"], "strategy": "least-loaded"}
    if world.chance.random() < 0.5:
        body["concurrency"] = 3
    world.run.pools.put("p", body)
    world.pool = "p"
    producer = Producer(world, "p")
    for queue in ("a", "b", "a", "b", "a"):
        producer.push(queue=queue, visibility_timeout_ms=2_000, retry=RETRY)
    # Two processes may go by one name.
    names = ["w1", world.chance.choice(("w1", "w2"))]
    made: list[Acts] = []
    for name in names:
        worker = Worker(world, name)
        worker.register(2)
        acts: Acts = [partial(worker.fetch, 3), worker.fetch, worker.ack, worker.any, worker.any]
        made.append([worker.does(act) for act in some(world.chance, acts, 6)])
    hand = Operator(world, "o")
    acts = [hand.wait, hand.wait, hand.sweep, hand.sweep_pool_permits, hand.cancel, hand.look]
    return [*made, [hand.does(act) for act in some(world.chance, acts, 6)]]


def pools(world: World) -> list[Acts]:
    """Pools are made, changed and deleted while their workers fetch; workers come and go."""
    world.watch.changes = True
    hand, producer = Operator(world, "o"), Producer(world, "p")
    for queue in ("a", "b", "a", "b"):
        producer.push(queue=queue, visibility_timeout_ms=2_000, retry=RETRY)
    if world.chance.random() < 0.6:
        hand.put_pool("p", {"queues": ["a", "b"]})
    bodies: list[dict[str, Any]] = [
        {"queues": ["a", "b"], "concurrency": 1},
        {"queues": ["a", "b"], "concurrency": 3, "strategy": "strict"},
        {"queues": ["a"], "concurrency": 2},
        {"queues": ["a"], "isolated": True},
        {"queues": ["a", "b"], "weights": {"a": 3, "b": 1}},
        {"queues": ["b", "a"], "strategy": "least-loaded", "concurrency": 2},
        {"queues": ["a"], "tenant_fairness": {"enabled": True}},
    ]
    changing: Acts = [partial(hand.put_pool, "p", each) for each in bodies]
    changing += [
        partial(hand.delete_pool, "p"),
        partial(hand.put_pool, "q", {"queues": ["b"], "isolated": True}),
        partial(hand.delete_pool, "q"),
    ]
    looking: Acts = [hand.sweep, hand.sweep_pool_permits, hand.wait, hand.tag, hand.cancel]
    looking += [partial(producer.push, queue="a", meta={"tenant_id": "x"}, retry=RETRY)]
    mine = Worker(world, "w1", ["a", "b"], "p")
    other = Worker(world, "w2", ["a", "b"], world.chance.choice(("p", "q", None)))
    made: list[Acts] = []
    for worker in (mine, other):
        fetching: Acts = [partial(worker.fetch, 2), worker.fetch, worker.any, worker.any]
        coming: Acts = [worker.register, worker.stop, worker.leave]
        fetching += [world.chance.choice(coming)]
        made.append([worker.does(act) for act in some(world.chance, fetching, 6)])
    hands = [
        act
        for pair in zip(
            some(world.chance, changing, 3), some(world.chance, looking, 3), strict=True
        )
        for act in pair
    ]
    return [*made, [hand.does(act) for act in hands]]


def fairness(world: World) -> list[Acts]:
    """Tenant fairness is switched on and off while jobs wait, are pushed and fetched."""
    hand, producer, worker = Operator(world, "o"), Producer(world, "p"), Worker(world, "w")
    if world.chance.random() < 0.3:
        world.run.queues.configure("default", {"tenant_fairness": {"enabled": True}})
    pushing: Acts = [
        partial(producer.push, count, meta={"tenant_id": tenant}, retry=RETRY, **options)
        for tenant in ("x", "y")
        for count, options in ((1, {}), (2, {}), (1, {"scheduled_at": "+PT2S"}))
    ]
    pushing.append(partial(producer.push, pending=True, meta={"tenant_id": "x"}))
    for act in some(world.chance, pushing, 3):
        act()
    on, off = ({"tenant_fairness": {"enabled": enabled}} for enabled in (True, False))
    changing: Acts = [partial(hand.configure, on), partial(hand.configure, off)]
    changing.append(partial(hand.configure, {"tenant_fairness": {"weights": {"x": 3}}}))
    looking: Acts = [hand.tag, hand.tag, hand.wait, hand.sweep, hand.activate, hand.cancel]
    hands = [
        changing[0],
        *(
            act
            for pair in zip(
                some(world.chance, looking, 3), some(world.chance, changing, 3), strict=True
            )
            for act in pair
        ),
    ]
    fetching: Acts = [worker.any, worker.any, worker.fetch, worker.nack, worker.hand_back]
    return [
        [producer.does(act) for act in some(world.chance, pushing, 5)],
        [hand.does(act) for act in hands],
        [worker.does(act) for act in some(world.chance, fetching, 6)],
    ]


def bucket(world: World) -> list[Acts]:
    """Jobs and results too large for the table, and the bucket fails as the table does."""
    producer, hand = Producer(world, "p"), Operator(world, "o")
    push = partial(producer.push, large=True, huge=True, retry={"max_attempts": 1})
    push(visibility_timeout_ms=2_000)
    pushing: Acts = [
        push,
        partial(push, 2),
        partial(push, 5),
        partial(push, scheduled_at="+PT2S"),
        partial(push, unique={"keys": ["type"], "on_conflict": "replace"}),
        hand.look,
        hand.cancel,
    ]
    made: list[Acts] = [[producer.does(act) for act in some(world.chance, pushing, 4)]]
    worker = Worker(world, "w")
    fetching: Acts = [worker.fetch, partial(worker.ack, HUGE), worker.nack, worker.hand_back]
    fetching += [partial(worker.ack, HUGE), worker.forget]
    made.append([worker.does(a) for a in [worker.fetch, *some(world.chance, fetching, 6)]])
    looking: Acts = [hand.sweep, hand.wait, hand.retry, hand.retry, hand.delete, hand.look]
    tidying: Acts = [hand.tidy] if world.chance.random() < 0.5 else []
    made.append([hand.does(a) for a in [*tidying, *some(world.chance, looking, 6)]])
    return made


def archive(world: World) -> list[Acts]:
    """Dead letters are pruned into the archive, by two at once, while some come back or are deleted
    by hand.
    """
    world.watch.purged = True
    world.watch.archived = world.archived
    own = {"retention": {"max_count": 1}, "pruning_policy": "archive"}
    world.run.queues.configure("default", {"dead_letter": own})
    producer, worker = Producer(world, "p"), Worker(world, "w")
    for _ in range(4):
        producer.push(
            retry={"max_attempts": 1},
            large=world.chance.random() < 0.5,
            huge=world.chance.random() < 0.5,
            visibility_timeout_ms=2_000,
        )
    worker.fetch(4)
    for _ in range(4):
        worker.nack()
    world.clock.advance(1)
    # The pruning goes by the counts.
    world.project()
    made: list[Acts] = []
    for name in ("o1", "o2"):
        hand = Operator(world, name)
        acts: Acts = [hand.prune, hand.prune, hand.retry, hand.delete, hand.wait, hand.look]
        made.append([hand.does(act) for act in [hand.prune, *some(world.chance, acts, 4)]])
    return [*made, [worker.does(act) for act in [worker.fetch, *[worker.any] * 3]]]


def replayed(world: World) -> list[Acts]:
    """Dead letters come back by a rule, which two apply at once, and by hand."""
    rule = {"name": "r", "filter": {}, "delay": "PT1S", "max_replays": 1}
    config: dict[str, Any] = {"replay_rules": [rule]}
    bounded = world.chance.random() < 0.3
    world.run.queues.configure("default", config | ({"max_size": 3} if bounded else {}))
    world.watch.most_replays = 1
    producer, worker = Producer(world, "p"), Worker(world, "w")
    options: dict[str, Any] = {"retry": {"max_attempts": 1}, "visibility_timeout_ms": 2_000}
    if world.chance.random() < 0.3:
        options["unique"] = {"keys": ["type"], "states": ["available", "active"]}
    for _ in range(3):
        producer.push(**options)
        worker.fetch()
        worker.nack()
    world.clock.advance(61_000)
    made: list[Acts] = []
    for name in ("o1", "o2"):
        hand = Operator(world, name)
        acts: Acts = [hand.replay, hand.replay, hand.retry, hand.delete, hand.wait]
        changed: dict[str, Any] = {"replay_rules": [rule | {"delay": "PT2S"}]}
        acts.append(partial(hand.configure, changed))
        made.append([hand.does(act) for act in [hand.replay, *some(world.chance, acts, 4)]])
    fetching: Acts = [worker.fetch, worker.nack, worker.any, partial(producer.push, **options)]
    return [*made, [worker.does(act) for act in some(world.chance, fetching, 6)]]


def blocked(world: World) -> list[Acts]:
    """Pushes wait for room in a queue with a bound, each for as long as it likes."""
    world.run.queues.configure("default", {"max_size": 2, "overflow_policy": "block"})
    made: list[Acts] = []
    for name in ("p1", "p2"):
        producer = Producer(world, name)
        acts: Acts = [
            partial(producer.push, wait_ms=3_000),
            partial(producer.push, wait_ms=500, visibility_timeout_ms=1_000),
            partial(producer.push, 2, wait_ms=2_000),
            producer.push,
        ]
        made.append([producer.does(act) for act in some(world.chance, acts, 3)])
    worker, hand = Worker(world, "w"), Operator(world, "o")
    acts = [worker.fetch, worker.any, worker.ack, worker.ack, worker.nack, hand.cancel]
    acts += [hand.retry, hand.sweep, hand.reconcile, hand.wait]
    return [*made, [worker.does(act) for act in some(world.chance, acts, 8)]]


def lanes(world: World) -> list[Acts]:
    """A queue of three lanes, with a bound or a limit or neither; batches across the lanes. It is
    paused, and has replicas, now and then.
    """
    config: dict[str, Any] = {"lanes": 3}
    config |= world.chance.choice(({}, {"max_size": 6}, {"concurrency": 2}))
    world.run.queues.configure("default", config)
    producer = Producer(world, "p")
    for _ in range(2):
        producer.push(visibility_timeout_ms=2_000, retry=RETRY)
    pushing: Acts = [
        partial(producer.push, retry=RETRY),
        partial(producer.push, 3, retry=RETRY),
        partial(producer.push, 5, retry=RETRY, chosen=False),
        partial(producer.push, scheduled_at="+PT2S", expires_at="+PT3S", retry=RETRY),
    ]
    made = fetched(world, [])
    hand, sweeper = Operator(world, "h"), Operator(world, "s")
    more = partial(hand.configure, {"lanes": 4})
    operating: Acts = [hand.pause, hand.resume, hand.pause, more]
    return [
        made[0],
        made[2],
        [producer.does(act) for act in some(world.chance, pushing, 4)],
        [hand.does(act) for act in some(world.odd, operating, 4)],
        [sweeper.does(sweeper.sweep) for _ in range(3)],
    ]


def rates(world: World) -> list[Acts]:
    """A queue, and jobs, that start so many times in a period."""
    options: list[dict[str, Any]] = [{}]
    if world.chance.random() < 0.6:
        # A start of the queue is counted when it is granted: as long as anybody asks for anything
        # time stands still. A limited job starts when it is counted.
        world.still = True
        world.run.queues.configure("default", {"rate_limit": {"limit": 2, "period": "PT1S"}})
        world.watch.rates["default"] = (1_000, 2)
    if world.chance.random() < 0.6:
        rate = world.chance.choice(("rate", "throttle"))
        limit = {"key": "k", rate: {"limit": 2, "period": "PT1S"}}
        limit["on_limit"] = world.chance.choice(("wait", "wait", "reschedule", "drop"))
        options.append({"rate_limit": limit})
        world.watch.rates["k"] = (1_000, 2) if rate == "rate" else (500, 1)
    producer, hand = Producer(world, "p"), Operator(world, "o")
    for _ in range(8):
        producer.push(retry=RETRY, **world.chance.choice(options))
    world.clock.advance(world.chance.randrange(1_000))
    made: list[Acts] = []
    for name in ("w1", "w2"):
        worker = Worker(world, name)
        acts: Acts = [worker.fetch, worker.fetch, partial(worker.fetch, 3), worker.any]
        # Who takes jobs also moves the time on, in between.
        waits: Acts = [partial(hand.wait, ms) for ms in (90, 230, 470, 880)]
        made.append(
            [worker.does(act, world.chance.choice(waits)) for act in some(world.chance, acts, 7)]
        )
    acts = [hand.hold, hand.sweep, hand.cancel, hand.look]
    return [*made, [hand.does(act) for act in some(world.chance, acts, 4)]]


def dropped(world: World) -> list[Acts]:
    """Unique jobs and dead letters enter a queue that drops its oldest for them."""
    world.run.queues.configure("default", {"max_size": 2, "overflow_policy": "drop_oldest"})
    key = {"keys": ["type"], "on_conflict": world.chance.choice(("reject", "replace", "ignore"))}
    producer, worker, hand = Producer(world, "p"), Worker(world, "w"), Operator(world, "o")
    options: dict[str, Any] = {"retry": {"max_attempts": 1}, "visibility_timeout_ms": 2_000}
    for unique in ({"unique": key}, {}):
        producer.push(**options | unique)
        worker.fetch()
        worker.nack()
    made: list[Acts] = []
    for name in ("p1", "p2"):
        other = Producer(world, name)
        acts: Acts = [
            partial(other.push, **options),
            partial(other.push, unique=key, **options),
            partial(other.push, 2, **options),
            hand.retry,
            hand.retry,
        ]
        made.append([other.does(act) for act in some(world.chance, acts, 4)])
    acts = [worker.fetch, worker.any, worker.nack, worker.nack, hand.cancel, hand.delete, hand.wait]
    return [*made, [worker.does(act) for act in some(world.chance, acts, 7)]]


OPERATED: dict[str, Callable[[World], list[Acts]]] = {
    "configured": configured,
    "due_notes": due_notes,
    "least-loaded": least_loaded,
    "pools": pools,
    "fairness": fairness,
    "bucket": bucket,
    "archive": archive,
    "replayed": replayed,
    "blocked": blocked,
    "lanes": lanes,
    "rates": rates,
    "dropped": dropped,
    "acts": acts,
}
