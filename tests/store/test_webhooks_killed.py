"""SIGKILL at each call of a process that matches, posts or sweeps webhooks: no event is lost."""

from __future__ import annotations

import multiprocessing
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.events.event import event_id
from ojs.domain.webhooks import HookStatus, subscription_of
from tests.store import killing
from tests.store.conftest import World, make_world
from tests.unit.targets.endpoints import Seen, answer, endpoint

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.domain.webhooks import HookDelivery

_ID = re.compile(r"(?i)x-ojs-delivery-id: (\S+)")
_EVENTS = 2


@dataclass
class Deployment:
    """A table, the messages of the queue, and processes that die."""

    world: World
    engine: str
    messages: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    made: count[int] = field(default_factory=count)

    def put(self, messages: Sequence[dict[str, Any]], *, delay_s: int = 0) -> list[int]:
        at_ms = self.world.clock.now_ms() + 1_000 * delay_s
        self.messages += [(at_ms, each) for each in messages]
        return []

    def killed(self, act: str, given: Sequence[Any], kill_at: int) -> tuple[bool, Sequence[Any]]:
        """One invocation: whether it was killed, and what must come again."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.store.killing"])
        here, there = context.Pipe(duplex=False)
        now_ms = self.world.clock.now_ms()
        process = context.Process(
            target=killing.invoke,
            args=(there, self.engine, self.world.table, now_ms, kill_at, act, given),
        )
        process.start()
        there.close()
        left = given
        try:
            while True:
                kind, value, *rest = here.recv()
                if kind == "messages":
                    self.put(value, delay_s=rest[0])
                else:
                    left = value
        except EOFError:
            process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode != 0, left

    def take(self) -> list[dict[str, Any]]:
        due = [each for each in self.messages if each[0] <= self.world.clock.now_ms()]
        self.messages = [each for each in self.messages if each not in due]
        return [body for _, body in due]

    def settle(self) -> None:
        """Time passes, with sweeps, in a process that nobody kills."""
        sweep = self.world.run.webhook_sweep
        assert sweep is not None
        for _ in range(8):
            sweep.run_once(self.world.clock.now_ms(), 100)
            while bodies := self.take():
                assert not self.world.run.webhook_sender.handle(bodies)
            self.world.clock.advance(20 * 60_000)

    def log(self, name: str) -> dict[str, HookDelivery]:
        page = self.world.run.webhooks.list_deliveries(
            subscription=name, status=None, limit=100, cursor=None
        )
        return {each.id: each for each in page.items}


@pytest.fixture
def deployment(dynamodb: DynamoDBClient, engine_url: str) -> Deployment:
    world = make_world(dynamodb)
    made = Deployment(world, engine_url)
    world.hooks = killing.parts(world.clock, made, killing.Step(0, count(1)))
    world.run = world.another()
    return made


def responding(seen: Callable[[], Seen], statuses: Sequence[int]) -> Callable[[Any], None]:
    """An endpoint that responds to the attempts of each event as told."""
    tried: Counter[str] = Counter()

    def respond(connection: socket.socket) -> None:
        name = _id(seen().requests[-1])
        tried[name] += 1
        answer(statuses[min(tried[name], len(statuses)) - 1], b"")(connection)

    return respond


def _id(request: tuple[str, bytes]) -> str:
    found = _ID.search(request[0])
    assert found is not None
    return found[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("path", "statuses"),
    [
        ("match", (200,)),
        ("send", (500, 200)),
        ("send", (404,)),
        ("later", (500, 500, 200)),
        ("sweep", (500, 200)),
    ],
)
def test_each_event_has_a_2xx_or_a_dead_delivery(
    path: str, statuses: Sequence[int], deployment: Deployment
) -> None:
    """`statuses` are those of the attempts of an event, and of all further ones."""
    there: list[Seen] = []
    kills = 0
    with endpoint(responding(lambda: there[0], statuses)) as seen:
        there.append(seen)
        for kill_at in range(1, 200):
            name, wanted, killed = _round(path, kill_at, seen.url, deployment)
            kills += killed
            log = deployment.log(name)
            if statuses[-1] == 404:
                assert {log[each].status for each in wanted} == {HookStatus.DEAD}
            else:
                posts = Counter(_id(each) for each in seen.requests)
                assert all(posts[each] >= len(statuses) for each in wanted)
                assert HookStatus.PENDING not in {each.status for each in log.values()}
            assert not deployment.messages
            deployment.world.run.webhooks.delete(name)
            if not killed:
                break
    # Before and after each call of a path of several.
    assert kills >= 4


def _round(
    path: str, kill_at: int, url: str, deployment: Deployment
) -> tuple[str, list[str], bool]:
    """Two events, and a kill at one step of a path: the subscription, its deliveries, and whether
    there is such a step.
    """
    world = deployment.world
    wanted = {"url": url, "events": ["job.completed"]}
    name = world.run.webhooks.create(wanted).subscription.id
    now_ms = world.clock.now_ms()
    events = [
        (event_id(now_ms, str(each)), "job.completed", "ojs://s/api", now_ms, "j", {"queue": "q"})
        for each in (next(deployment.made) for _ in range(_EVENTS))
    ]
    killed, left = deployment.killed("match", events, kill_at if path == "match" else 0)
    if left:
        # The stream delivers the records again.
        assert not deployment.killed("match", left, 0)[1]
    names = sorted({each["delivery"] for _, each in deployment.messages})
    if path in ("later", "sweep"):
        assert not world.run.webhook_sender.handle(deployment.take())
        deployment.messages = []  # delayed messages are lost
        world.clock.advance(10 * 60_000)
    if path == "later":
        assert world.run.webhook_sweep is not None
        world.run.webhook_sweep.run_once(world.clock.now_ms(), 100)
    if path in ("send", "later"):
        bodies = deployment.take()
        killed, left = deployment.killed("send", bodies, kill_at)
        deployment.put(left)
    elif path == "sweep":
        killed, _ = deployment.killed("sweep", (), kill_at)
    deployment.settle()
    assert {subscription_of(each) for each in names} == {name}
    assert len(names) == len(events)
    return name, names, killed
