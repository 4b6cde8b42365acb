"""One invocation of webhooks in a process of its own, which SIGKILL ends at a step."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

from local.dynamodb import connect
from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.events.event import Event
from ojs.domain.webhooks import HookDelivery, HookOutcome, Subscription
from ojs.services.deliveries.parts import AllowedTargets
from ojs.services.for_each import one_by_one
from ojs.services.webhooks.parts import WebhookDependencies
from ojs.settings import Settings
from ojs.store.jobs.blobs import MemoryBlobs
from ojs.targets.guard import Connector
from ojs.targets.webhooks import WebhookTarget


@dataclass
class Step:
    """Counts steps, and ends this process at one of them."""

    at: int
    reached: count[int]

    def __call__(self) -> None:
        if next(self.reached) == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Client:
    """A DynamoDB client with a step before and after each call."""

    client: Any
    step: Step

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)

        def call(**arguments: Any) -> Any:
            self.step()
            answer = method(**arguments)
            self.step()
            return answer

        return call


@dataclass
class Queue:
    """A queue whose messages the parent process keeps."""

    told: Connection
    step: Step

    def put(self, messages: Sequence[dict[str, Any]], *, delay_s: int = 0) -> list[int]:
        self.step()
        self.told.send(("messages", [*messages], delay_s))
        self.step()
        return []


class Target(WebhookTarget):
    """Posts events, with a step before and after each."""

    def __init__(self, clock: ManualClock, step: Step) -> None:
        super().__init__(clock, connector=Connector(loopback=True))
        self._step = step

    def post(
        self, subscription: Subscription, delivery: HookDelivery, *, timeout_s: float | None = None
    ) -> HookOutcome:
        self._step()
        outcome = super().post(subscription, delivery, timeout_s=timeout_s)
        self._step()
        return outcome


def parts(clock: ManualClock, queue: Any, step: Step) -> WebhookDependencies:
    """What a container gets."""
    allowed = AllowedTargets(egress_hosts=("*",), check_endpoint=lambda _: None)
    return WebhookDependencies(queue, Target(clock, step), allowed)


def invoke(
    told: Connection,
    url: str,
    table: str,
    now_ms: int,
    kill_at: int,
    act: str,
    given: Sequence[Any],
) -> None:
    """Match events, process messages, or sweep; and tell the parent what must come again."""
    step, clock = Step(kill_at, count(1)), ManualClock(now_ms)
    hooks = parts(clock, Queue(told, step), step)
    run = runtime.build(
        Settings(table=table),
        client=Client(connect(url), step),  # type: ignore[arg-type]
        blobs=MemoryBlobs(),
        clock=clock,
        for_each=one_by_one,
        hooks=lambda: hooks,
    )
    assert run.webhook_matcher is not None
    assert run.webhook_sweep is not None
    left: Sequence[Any] = ()
    if act == "match":
        events = [Event(*each) for each in given]
        refused = run.webhook_matcher.publish(events)
        left = [each for each, event in zip(given, events, strict=True) if event.id in refused]
    elif act == "send":
        left = [given[at] for at in run.webhook_sender.handle(given)]
    else:
        run.webhook_sweep.run_once(now_ms, 100)
    told.send(("done", left))


def _warm_up() -> None:
    """Load for all processes what each would load: they are forks of one that imports this."""
    clock, step = ManualClock(), Step(0, count(1))
    hooks = parts(clock, None, step)
    run = runtime.build(
        Settings(table="none"),
        client=connect("http://localhost:9"),
        blobs=MemoryBlobs(),
        clock=clock,
        hooks=lambda: hooks,
    )
    assert all([run.webhook_matcher, run.webhook_sweep, run.webhook_sender])


_warm_up()
