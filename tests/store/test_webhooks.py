"""Webhooks: each matching event ends in a 2xx or a dead delivery, whatever fails in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import BackendError
from ojs.domain.events.event import Event, event_id
from ojs.domain.webhooks import DELAYS_S, HookDisabled, HookStatus, delivery_id
from tests.store.conftest import World, make_world
from tests.store.faults import Died, faults
from tests.store.hooking import BODY, Endpoint, Messages, parts

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.runtime import Runtime

HOUR = 3_600_000


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def world(dynamodb: DynamoDBClient, endpoint: Endpoint) -> World:
    made = make_world(dynamodb)
    made.hooks = parts(made.clock, endpoint)
    made.run = made.another()
    return made


def queue(world: World) -> Messages:
    assert world.hooks is not None
    found = world.hooks.queue
    assert isinstance(found, Messages)
    return found


def event(number: int, world: World, kind: str = "job.completed", **data: Any) -> Event:
    at_ms = world.clock.now_ms()
    told = {"queue": "q", "job_type": "t", **data}
    return Event(event_id(at_ms, str(number)), kind, "ojs://s/api", at_ms, str(number), told)


def subscribe(world: World, **more: Any) -> str:
    return world.run.webhooks.create({**BODY, **more}).subscription.id


def publish(run: Runtime, events: Sequence[Event]) -> set[str]:
    assert run.webhook_matcher is not None
    return run.webhook_matcher.publish(events)


def deliver(world: World, run: Runtime | None = None) -> int:
    """One invocation. A message whose invocation dies, or that it returns, is received again."""
    messages = queue(world)
    taken = messages.due()
    if not taken:
        return 0
    failed: list[int] = [*range(len(taken))]
    with suppress(Died, BackendError):
        failed = (run or world.run).webhook_sender.handle([body for _, body in taken])
    done = [each for at, each in enumerate(taken) if at not in failed]
    messages.waiting = [each for each in messages.waiting if not any(each is it for it in done)]
    return len(done)


def sweep(run: Runtime) -> Any:
    assert run.webhook_sweep is not None
    return run.webhook_sweep.run_once(run.clock.now_ms(), 1_000)


def settle(world: World, rounds: int = 60, step_ms: int = HOUR) -> None:
    """Time passes, with sweeps, until nothing is due."""
    for _ in range(rounds):
        while deliver(world):
            pass
        sweep(world.run)
        while deliver(world):
            pass
        world.clock.advance(step_ms)


def listed(world: World, status: HookStatus | None = None) -> dict[str, Any]:
    page = world.run.webhooks.list_deliveries(
        subscription=None, status=status, limit=200, cursor=None
    )
    return {each.id: each for each in page.items}


def test_an_event_is_posted_once_and_stored_nowhere(world: World, endpoint: Endpoint) -> None:
    name = subscribe(world, filter={"queues": ["q"]})
    events = [event(1, world), event(2, world, queue="other"), event(3, world, "cron.triggered")]
    assert publish(world.run, events) == set()
    assert deliver(world) == 1
    assert endpoint.seen == [(delivery_id(name, events[0].to_dict()), 200)]
    seen = world.run.webhooks.get(name)
    assert (seen.successes.count, seen.last[1]) == (1, 200)
    assert [each.status for each in listed(world).values()] == [HookStatus.DELIVERED]
    assert not [i for i in world.items() if i["sk"]["S"].startswith("d|")]


def test_a_success_after_the_first_costs_one_read(world: World) -> None:
    subscribe(world)
    publish(world.run, [event(1, world)])
    deliver(world)
    publish(world.run, [event(2, world)])
    world.run.table.meter.reset()
    deliver(world)
    assert world.run.table.meter.calls == ["BatchGetItem"]
    assert world.run.table.meter.write_units == 0


def test_attempts_follow_the_schedule_until_the_delivery_is_dead(
    world: World, endpoint: Endpoint
) -> None:
    endpoint.answer = lambda _: 429  # not a fault: the breaker stays closed
    name = subscribe(world)
    publish(world.run, [event(1, world)])
    pauses: list[float] = []
    while deliver(world) and not listed(world, HookStatus.DEAD):
        (waiting,) = listed(world).values()
        assert waiting.next_ms is not None
        pauses.append((waiting.next_ms - world.clock.now_ms()) / 1_000)
        world.clock.advance(waiting.next_ms - world.clock.now_ms() + 1_000)
        if not queue(world).due():
            # A message waits for at most 15 minutes, so the sweep sends the later ones.
            assert pauses[-1] > 810
            sweep(world.run)
    assert len(endpoint.seen) == len(DELAYS_S) + 1
    for found, wanted in zip(pauses, DELAYS_S, strict=True):
        assert 0.9 * wanted <= found <= 1.1 * wanted
    (dead,) = listed(world).values()
    assert (dead.attempts, dead.last_status) == (8, 429)
    assert world.run.webhooks.get(name).subscription.dead == 1


def test_an_endpoint_that_fails_for_days_is_disabled(world: World, endpoint: Endpoint) -> None:
    endpoint.answer = lambda _: 500
    name = subscribe(world)
    for number in range(40):
        publish(world.run, [event(number, world)])
        settle(world, rounds=1, step_ms=3 * HOUR)
    found = world.run.webhooks.get(name).subscription
    assert found.disabled is HookDisabled.FAILING
    settle(world)
    assert {each.status for each in listed(world).values()} == {HookStatus.DEAD}
    publish(world.run, [event(99, world)])
    assert not queue(world).waiting
    enabled = world.run.webhooks.change(name, {"active": True}).subscription
    assert (enabled.active, enabled.failing, enabled.breaker.faults) == (True, 0, 0)


def test_an_open_breaker_holds_events_back_and_one_trial_closes_it(
    world: World, endpoint: Endpoint
) -> None:
    endpoint.answer = lambda _: 503
    subscribe(world)
    publish(world.run, [event(number, world) for number in range(12)])
    while deliver(world):
        pass
    tried = len(endpoint.seen)
    assert tried == 8  # one batch: the breaker is open for the rest
    sweep(world.run)
    assert not deliver(world)
    endpoint.answer = lambda _: 200
    world.clock.advance(61_000)
    sweep(world.run)
    deliver(world)
    assert len(endpoint.seen) == tried + 1
    settle(world, rounds=30, step_ms=60_000)
    assert len(endpoint.done) == 12


@pytest.mark.parametrize(
    ("status", "disabled"), [(404, None), (302, None), (410, HookDisabled.GONE)]
)
def test_a_final_answer_is_not_tried_again(
    status: int, disabled: HookDisabled | None, world: World, endpoint: Endpoint
) -> None:
    endpoint.answer = lambda _: status
    name = subscribe(world)
    publish(world.run, [event(1, world)])
    settle(world, rounds=3)
    assert len(endpoint.seen) == 1
    (dead,) = listed(world).values()
    assert dead.status is HookStatus.DEAD
    assert world.run.webhooks.get(name).subscription.disabled is disabled


def test_a_dead_delivery_is_tried_again_by_hand(world: World, endpoint: Endpoint) -> None:
    endpoint.answer = lambda tried: 404 if not tried else 200
    subscribe(world)
    publish(world.run, [event(1, world)])
    deliver(world)
    (dead,) = listed(world)
    queue(world).refusing = 1  # the sweep sends it
    assert world.run.webhooks.retry(dead).status is HookStatus.PENDING
    settle(world, rounds=2)
    assert world.run.webhooks.get_delivery(dead).status is HookStatus.DELIVERED


def test_hosts_and_keys_are_checked_at_each_send(world: World, endpoint: Endpoint) -> None:
    name = subscribe(world)
    publish(world.run, [event(1, world)])
    assert world.hooks is not None
    world.hooks = replace(world.hooks, allowed=parts(world.clock, endpoint, ()).allowed)
    deliver(world, world.another())
    assert not endpoint.seen
    found = world.run.webhooks.get(name).subscription
    assert found.disabled is HookDisabled.ENDPOINT_NOT_ALLOWED
    assert [each.status for each in listed(world).values()] == [HookStatus.DEAD]


def test_events_that_the_queue_refuses_are_named(world: World) -> None:
    subscribe(world)
    queue(world).refusing = 1
    events = [event(1, world), event(2, world)]
    assert publish(world.run, events) == {events[0].id}


def test_its_own_events_reach_no_wildcard(world: World) -> None:
    subscribe(world, events=["*"])
    subscribe(world, events=["webhook.subscription.deleted"])
    kinds = ("webhook.dead", "webhook.subscription.deleted")
    publish(world.run, [event(at, world, kind) for at, kind in enumerate(kinds)])
    assert len(queue(world).waiting) == 1


def test_a_large_event_loses_its_result(world: World, endpoint: Endpoint) -> None:
    subscribe(world)
    publish(world.run, [event(1, world, result="x" * 210_000)])
    deliver(world)
    assert endpoint.last is not None
    data = endpoint.last[1].event["data"]
    assert "result" not in data
    assert data["truncated"] is True


ANSWERS: list[tuple[str, Callable[[int], int]]] = [
    ("works", lambda _: 200),
    ("fails once", lambda tried: 200 if tried else 500),
    ("rejects", lambda _: 400),
    ("is gone", lambda _: 410),
]


def _match(world: World, events: Sequence[Event], run: Runtime) -> None:
    # As the projection: what was not published is published again.
    try:
        refused = publish(run, events)
    except (Died, BackendError):
        refused = {each.id for each in events}
    if refused:
        assert not publish(world.run, [each for each in events if each.id in refused])


@pytest.mark.parametrize("answer", [it for _, it in ANSWERS], ids=[name for name, _ in ANSWERS])
@pytest.mark.parametrize("path", ["match", "send", "later", "sweep"])
def test_a_fault_at_any_call_loses_no_event(
    path: str, answer: Callable[[int], int], world: World, endpoint: Endpoint
) -> None:
    """After it each event has a 2xx or is dead, and nothing is left to do."""
    endpoint.answer = answer
    wanted: set[str] = set()
    names = iter(range(10_000))
    for run, _ in faults(world):
        name = subscribe(world)
        events = [event(next(names), world) for _ in range(2)]
        wanted |= {delivery_id(name, each.to_dict()) for each in events}
        if path == "match":
            _match(world, events, run)
        else:
            publish(world.run, events)
        if path == "send":
            deliver(world, run)
        elif path in ("later", "sweep"):
            deliver(world)
            queue(world).waiting = []  # delayed messages are lost
            world.clock.advance(10 * 60_000)
            if path == "sweep":
                with suppress(Died, BackendError):
                    sweep(run)
            else:
                sweep(world.run)
                deliver(world, run)
        settle(world, rounds=8, step_ms=20 * 60_000)
        dead = {it for it, each in listed(world).items() if each.status is HookStatus.DEAD}
        assert wanted <= endpoint.done | dead
        assert not queue(world).waiting
        world.run.webhooks.delete(name)
        wanted.clear()


@pytest.mark.parametrize("batch", [1, 3])
def test_a_sender_that_dies_while_it_posts_posts_again(
    batch: int, world: World, endpoint: Endpoint
) -> None:
    subscribe(world)
    publish(world.run, [event(number, world) for number in range(batch)])
    endpoint.died = Died()
    assert not deliver(world)
    assert deliver(world) == batch
    assert len(endpoint.done) == batch


def test_two_containers_change_the_directory(world: World) -> None:
    """Neither undoes the change of the other."""
    first, second = world.another(), world.another()
    made = [run.webhooks.create(BODY).subscription.id for run in (first, second, first)]
    assert sorted(world.run.stores.webhooks.read_directory().entries) == sorted(made)
    second.webhooks.delete(made[0])
    assert [it.subscription.id for it in first.webhooks.list(limit=10).items] == sorted(made[1:])
