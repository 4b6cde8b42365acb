"""Webhooks under faults: events of jobs are matched, queued, posted and recorded by containers that
die, over a queue that refuses, delivers twice and does not answer; meanwhile endpoints fail, are
slow or gone, and subscriptions are changed.

In the end each event of the log that a subscription receives had a 2xx, or is a dead delivery.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ojs import projections
from ojs.domain.webhooks import (
    SLOW_MS,
    HookDelivery,
    HookOutcome,
    HookStatus,
    Subscription,
    delivery_id,
)
from ojs.services.deliveries.parts import AllowedTargets
from ojs.services.webhooks.parts import WebhookDependencies
from ojs.settings import Settings
from ojs.store.table import keys
from ojs.store.webhooks.webhooks import DELIVERY
from tests.simulation import quiet
from tests.simulation.actors import Operator, Producer, Stream, Worker
from tests.simulation.acts import RETRY, some
from tests.simulation.faults import Died
from tests.simulation.invariants import broken
from tests.simulation.world import Acts, World

# The subscriptions that nobody changes, by what they receive, and one that is changed.
_KEPT: tuple[dict[str, Any], ...] = (
    {"events": ["job.*"]},
    {"events": ["*"], "filter": {"queues": ["default"]}},
)
_URL = "https://{}.example.com/"
_HOUR_MS = 3_600_000
# Hours after which the last attempt was made.
_HOURS = 80
_BATCH = 3


@dataclass
class Hooks:
    """The queue and the endpoints of a run, which all containers share."""

    world: World
    messages: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    # By delivery, the statuses that the endpoint responded with.
    posted: dict[str, list[int]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    healed: bool = False

    def parts(self) -> WebhookDependencies:
        """What each container gets."""
        allowed = AllowedTargets(egress_hosts=("*",), check_endpoint=lambda _: None)
        return WebhookDependencies(self, self, allowed)

    def _trouble(self) -> str | None:
        """What goes wrong with a call, by chance."""
        plan = self.world.plan
        if not plan.on or self.world.odd.random() >= 2 * plan.rate:
            return None
        kind = self.world.odd.choice(("died before", "died after", "refused", "some", "lost"))
        plan.done["message"] += 1
        if kind == "died before":
            raise Died
        return kind

    def put(self, messages: Sequence[dict[str, Any]], *, delay_s: int = 0) -> list[int]:
        """A queue that refuses messages, or takes them and does not answer."""
        self.world.scheduler.step()
        trouble, refused = self._trouble(), list[int]()
        if trouble == "refused":
            return [*range(len(messages))]
        if trouble == "some":
            refused = [at for at in range(len(messages)) if self.world.odd.random() < 0.5]
        at_ms = self.world.clock.now_ms() + 1_000 * delay_s
        self.messages += [(at_ms, it) for at, it in enumerate(messages) if at not in refused]
        if trouble == "died after":
            raise Died
        # The SDK reports a request without a response like refused messages.
        return [*range(len(messages))] if trouble == "lost" else refused

    def post(
        self, subscription: Subscription, delivery: HookDelivery, *, timeout_s: float | None = None
    ) -> HookOutcome:
        """An endpoint that fails, throttles, is slow, or does not respond."""
        self.world.scheduler.step()
        trouble = self._trouble()
        status = 200
        if not self.healed:
            (status,) = self.world.odd.choices([200, 500, 0, 429, 404, 1], [8, 3, 2, 1, 1, 2])
        took_ms = 5
        if status in (0, 1):
            # It responds after 10 s, or not at all.
            waits_ms = SLOW_MS if timeout_s else 1_000 * subscription.timeout_s
            took_ms = min(waits_ms, 10_000)
            status = 200 if status and waits_ms > took_ms else 0
        self.posted.setdefault(delivery.id, []).append(status)
        if trouble in ("died after", "lost"):
            raise Died
        return HookOutcome(status, took_ms)

    def due(self) -> list[tuple[int, dict[str, Any]]]:
        """The messages that can be received."""
        return [each for each in self.messages if each[0] <= self.world.clock.now_ms()]

    # --- what is promised -------------------------------------------------------------------------

    def ask_again(self) -> None:
        """Nobody asked for anything."""

    def look_after(self) -> None:
        """The sweep: events that the queue refused, and deliveries that are due."""
        world = self.world
        later(world, world.run)
        assert world.run.webhook_sweep is not None
        world.check_swept(world.run.webhook_sweep.run_once(world.run.clock.now_ms(), 100))

    def check(self) -> None:
        """What is stored as delivered was: no other statement says so."""
        for it in self._stored().values():
            done = 200 in self.posted.get(it.id, ())
            if it.status is HookStatus.DELIVERED and not done:
                raise broken("what is told as delivered was", delivery=it.id)

    def check_end(self) -> None:
        """With endpoints that respond, nothing is left to post, and no event was lost."""
        self.healed = True
        world = self.world
        for _ in range(_HOURS):
            self._pump()
            world.clock.advance(_HOUR_MS)
            world.project()
            self.look_after()
        self._pump()
        self.check()
        stored = self._stored()
        if left := [it.id for it in stored.values() if it.status is HookStatus.PENDING]:
            raise broken("every delivery comes to an end", left=left)
        for name in self.names:
            found = world.run.webhooks.get(name).subscription
            if not found.active:
                raise broken("nobody disables what responds", name=name, why=found.disabled)
        dead = {it.id for it in stored.values() if it.status is HookStatus.DEAD}
        done = {name for name, statuses in self.posted.items() if 200 in statuses}
        if lost := sorted(self._wanted() - dead - done):
            raise broken("every matching event ends in a 2xx or a dead delivery", lost=lost)

    def _pump(self) -> None:
        for _ in range(5_000):
            due = self.due()[:_BATCH]
            if not due:
                return
            for each in due:
                self.messages.remove(each)
            failed = self.world.run.webhook_sender.handle([body for _, body in due])
            if failed:
                raise broken("what is right is processed", failed=failed)
        raise broken("messages come to an end")

    def _stored(self) -> dict[str, HookDelivery]:
        found = quiet.everything(self.world.memory)
        return {
            (it := DELIVERY.of(item)).id: it
            for (pk, sk), item in found.items()
            if pk.startswith(keys.hook("")) and sk.startswith(keys.HOOK_DELIVERIES)
        }

    def _wanted(self) -> set[str]:
        """The deliveries of all events of the log, to subscriptions that nobody changes."""
        entries = self.world.run.stores.webhooks.read_directory().entries
        return {
            delivery_id(name, event)
            for (pk, sk), page in quiet.everything(self.world.memory).items()
            if pk.startswith(keys.events("")) and not sk.endswith(".ends")
            for event in json.loads(zlib.decompress(page["zip"]))
            for name in self.names
            if entries[name].matches(event["type"], event["data"])
        }


def later(world: World, run: Any) -> None:
    """Events that the queue refused are published again."""
    settings = Settings(table="simulated")
    projections.publish_later(
        settings, run.table, lambda: True, hooks=run.webhook_matcher, sleep=world.sleep
    )


class Sender(Operator):
    """The functions of webhooks: invocations with a batch of messages, and the sweep."""

    def __init__(self, world: World, name: str, hooks: Hooks) -> None:
        super().__init__(world, name)
        self._hooks = hooks

    def invoke(self) -> None:
        """A batch; it comes again if whoever took it dies, and some of it although it does not."""
        due = self._hooks.due()
        taken = [it for it in due if self.world.odd.random() < 0.7][:_BATCH] or due[:1]
        if not taken:
            self.world.scheduler.step()
            return
        for each in taken:
            self._hooks.messages.remove(each)
        bodies = [body for _, body in taken]
        left = taken
        try:
            failed = self.ask("webhook", lambda: self.run.webhook_sender.handle(bodies))
            if failed is not None:
                left = [
                    each
                    for at, each in enumerate(taken)
                    if at in failed or self.world.odd.random() < 0.1
                ]
        finally:
            self._hooks.messages += left

    def sweep_hooks(self) -> None:
        sweep, now_ms = self.run.webhook_sweep, self.run.clock.now_ms()
        assert sweep is not None
        self.ask("webhook sweep", lambda: sweep.run_once(now_ms, 100))

    def publish_later(self) -> None:
        self.ask("publish later", lambda: later(self.world, self.run))

    def change_webhook(self, name: str, **body: Any) -> None:
        self.ask("change webhook", lambda: self.run.webhooks.change(name, body))

    def retry_dead(self) -> None:
        """Somebody sends dead deliveries again."""

        def act() -> None:
            found = self.run.webhooks.list_deliveries(
                subscription=None, status=HookStatus.DEAD, limit=3, cursor=None
            )
            for each in found.items:
                self.run.webhooks.retry(each.id)

        self.ask("retry webhook", act)


def hooked(world: World) -> list[Acts]:
    """Jobs, the stream, webhooks of their events, and all that goes wrong with either."""
    hooks = Hooks(world)
    world.plan.stubborn = 0.3
    world.promises.append(hooks)
    world.hooking = hooks.parts()
    world.run = world.container()
    world.queues.add("default")

    def subscribe(at: int, wanted: Mapping[str, Any]) -> str:
        body = {"url": _URL.format(f"h{at}"), **wanted}
        return world.run.webhooks.create(body).subscription.id

    hooks.names = [subscribe(at, wanted) for at, wanted in enumerate(_KEPT)]
    changed = subscribe(9, {"events": ["job.completed"]})
    world.project()
    # Every container knows of them.
    world.clock.advance(11_000)
    producer, worker, stream = Producer(world, "p"), Worker(world, "w"), Stream(world)
    one, other = Sender(world, "s1", hooks), Sender(world, "s2", hooks)
    producer.push(2, retry=RETRY, large=False)
    swept: Acts = [other.sweep_hooks, other.publish_later, partial(other.wait, 31_000)]
    swept += [partial(other.wait, 61_000), other.sweep, other.invoke, other.invoke, other.invoke]
    by_hand: Acts = [
        partial(one.change_webhook, changed, active=False),
        partial(one.change_webhook, changed, active=True),
        partial(one.change_webhook, changed, events=["job.*"]),
        one.retry_dead,
    ]
    jobs: Acts = [partial(producer.push, retry=RETRY, large=False), worker.fetch, worker.any]
    return [
        [stream.does(stream.read) for _ in range(6)],
        [one.does(act) for act in [one.invoke] * 8 + some(world.chance, by_hand, 2)],
        [other.does(act) for act in some(world.chance, swept, 10)],
        [producer.does(act) for act in some(world.chance, jobs, 6)],
    ]
