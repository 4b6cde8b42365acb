"""How long a dead or slow endpoint delays the events of others, in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from ojs.clock import ManualClock
from ojs.domain.events.event import Event, event_id
from ojs.domain.webhooks import HookDelivery, HookOutcome, Subscription
from ojs.services.webhooks import send
from tests.store.conftest import World, make_world
from tests.store.hooking import Endpoint, parts

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")
R = TypeVar("R")
# As `ojs_aws.cdk.parts.webhooks` maps the queue.
INVOCATIONS, BATCH = 5, 8
# Duration (ms) of a call of DynamoDB, and of what an invocation needs besides.
CALL_MS, INVOKE_MS = 5, 20


class VirtualTime:
    """Threads that wait for a clock, which moves on when all of them wait."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._changed = threading.Condition()
        self._running = 1
        self._waiting: list[tuple[int, int]] = []
        self._number = 0

    def wait(self, ms: int) -> None:
        with self._changed:
            self._number += 1
            mine = (self.clock.now_ms() + ms, self._number)
            self._waiting.append(mine)
            self._pause()
            while mine in self._waiting:
                self._changed.wait()

    def _pause(self) -> None:
        self._running -= 1
        if not self._running and self._waiting:
            first = min(self._waiting)
            self._waiting.remove(first)
            self.clock.advance(first[0] - self.clock.now_ms())
            self._running += 1
            self._changed.notify_all()

    def together(self, act: Callable[[T], R], each: Sequence[T], /) -> list[R]:
        """Run an action for all of these at the same time."""
        found: dict[int, R] = {}

        def run(at: int) -> None:
            try:
                found[at] = act(each[at])
            finally:
                with self._changed:
                    left.remove(at)
                    if left:
                        self._pause()
                    else:
                        # The caller goes on.
                        self._changed.notify_all()

        left = [*range(len(each))]
        threads = [threading.Thread(target=run, args=(at,)) for at in left]
        with self._changed:
            self._running += len(left) - 1
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[at] for at in range(len(each))]


@dataclass
class Slow(Endpoint):
    """An endpoint of each host, which takes so long (ms) to respond."""

    time: VirtualTime = field(kw_only=True)
    takes: dict[str, int] = field(kw_only=True)
    # By event, when it had a response.
    done_ms: dict[str, list[int]] = field(default_factory=dict)
    posts: list[str] = field(default_factory=list)

    def post(
        self, subscription: Subscription, delivery: HookDelivery, *, timeout_s: float | None = None
    ) -> HookOutcome:
        most_ms = round(1_000 * (timeout_s or subscription.timeout_s))
        took_ms = min(most_ms, self.takes[subscription.url])
        self.posts.append(subscription.url)
        self.time.wait(took_ms)
        if took_ms == most_ms:
            return HookOutcome(0, took_ms, error="The endpoint did not respond.")
        self.done_ms.setdefault(str(delivery.event["id"]), []).append(self.time.clock.now_ms())
        return HookOutcome(200, took_ms)


class Timed:
    """A DynamoDB client whose calls take time."""

    def __init__(self, client: Any, time: VirtualTime) -> None:
        self._client, self._time = client, time

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            self._time.wait(CALL_MS)
            return method(**arguments)

        return call


WELL, OTHER = "https://well.example/", "https://other.example/"


@dataclass
class Run:
    """A well and another endpoint, the queue, and its invocations."""

    world: World
    time: VirtualTime
    endpoint: Slow
    queue: Any
    # By event, its queue and its time.
    told: dict[str, tuple[str, int]] = field(default_factory=dict)

    def tell(self, queue: str, count: int = 1) -> None:
        now_ms = self.time.clock.now_ms()
        events = []
        for _ in range(count):
            name = event_id(now_ms, str(len(self.told)))
            self.told[name] = (queue, now_ms)
            data = {"queue": queue}
            events.append(Event(name, "job.completed", "ojs://s/api", now_ms, name, data))
        assert self.world.run.webhook_matcher is not None
        assert not self.world.run.webhook_matcher.publish(events)

    def go(self, until_ms: int, *, every_ms: int = 500) -> None:
        """Invocations, the sweep, and an event for the well endpoint each half a second."""
        end_ms, lock = self.time.clock.now_ms() + until_ms, threading.Lock()

        def invoke(_: int) -> None:
            run = self.world.another(Timed(self.world.client, self.time))
            while self.time.clock.now_ms() < end_ms:
                with lock:
                    taken = self.queue.due(BATCH)
                    self.queue.waiting = [it for it in self.queue.waiting if it not in taken]
                self.time.wait(INVOKE_MS)
                if taken:
                    assert not run.webhook_sender.handle([body for _, body in taken])

        def tick(_: int) -> None:
            sweeper = self.world.another(Timed(self.world.client, self.time))
            assert sweeper.webhook_sweep is not None
            for at in range(0, until_ms, every_ms):
                with lock:
                    self.tell("well")
                if not at % 60_000:
                    sweeper.webhook_sweep.run_once(self.time.clock.now_ms(), 500)
                self.time.wait(every_ms)

        self.time.together(lambda act: act(0), [tick, *[invoke] * INVOCATIONS])

    def delays_ms(self, queue: str) -> list[int]:
        never = [2**60]
        return [
            min(self.endpoint.done_ms.get(name, never)) - told_ms
            for name, (of, told_ms) in self.told.items()
            if of == queue
        ]


@pytest.fixture
def made(dynamodb: DynamoDBClient) -> Run:
    world = make_world(dynamodb)
    time = VirtualTime(world.clock)
    endpoint = Slow(time=time, takes={WELL: 300, OTHER: 2**40})
    world.hooks = parts(world.clock, endpoint)
    world.for_each = time.together
    world.run = world.another()
    for url, queue in ((WELL, "well"), (OTHER, "other")):
        world.run.webhooks.create({"url": url, "events": ["job.*"], "filter": {"queues": [queue]}})
    return Run(world, time, endpoint, world.hooks.queue)


def test_a_dead_endpoint_with_1000_events_delays_no_other_by_5_s(made: Run) -> None:
    made.tell("other", 1_000)
    made.go(40_000)
    delays = made.delays_ms("well")
    assert len(delays) == 80
    # Those of the last moment are under way.
    assert max(delays[:-5]) <= 5_000


def test_without_the_time_limit_it_would(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "SLOW_MS", 30_000)
    made.tell("other", 1_000)
    made.go(40_000)
    assert max(made.delays_ms("well")[:40]) > 20_000


def test_a_slow_endpoint_gets_all_of_its_events_and_delays_no_other(made: Run) -> None:
    """It has a batch at a time, with all the time that it may take."""
    made.endpoint.takes[OTHER] = 10_000
    made.tell("other", 60)
    made.go(240_000, every_ms=2_000)
    assert max(made.delays_ms("other")) < 240_000
    assert max(made.delays_ms("well")[:-5]) <= 5_000
    # Those of the first invocations were cut off, and posted twice.
    assert made.endpoint.posts.count(OTHER) <= 60 + INVOCATIONS * BATCH
