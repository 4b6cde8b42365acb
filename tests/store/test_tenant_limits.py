"""What tenants cost, and their limits while processes die and others push."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from ojs.domain.errors import BackendContended, TenantLimitExceeded, TenantSuspended
from ojs.domain.job import envelope
from ojs.services.tenants.quotas import COUNTED_MS
from ojs.store.permits import semaphore
from ojs.store.queues.tenants import NOTICED_MS
from ojs.store.table import keys
from ojs.store.table.table import Put
from tests.store.faults import attempt, faults
from tests.store.spending import RETRY, WORKER, Spent, incompressible, spending
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from ojs.runtime import Runtime
    from tests.store.conftest import World

Worlds = Callable[[], AbstractContextManager["World"]]
PERIOD_MS = 60_000
RATE = {"limit": 1_000, "period": "PT1M"}


def push(run: Runtime, queue: str = "acme:mail", count: int = 1) -> int:
    """Push so many jobs; how many were stored."""
    request = envelope.parse({"type": "t", "args": [], "options": {"queue": queue}})
    try:
        if count == 1:
            run.enqueue.push(request)
        else:
            run.enqueue.push_batch([request] * count)
    except TenantLimitExceeded:
        return 0
    return count


def taken(world: World) -> int:
    """The permits in use of the tenant."""
    found = world.run.stores.semaphore.read({"%acme": 1_000})["%acme"]
    return semaphore.taken(found)


def one_job(world: World, queue: str) -> Spent:
    with spending(world) as spent:
        world.push(incompressible(460), kind="email.send", retry=RETRY, queue=queue)
        (job,) = world.fetch(queue, worker=WORKER)
        world.run.finish.ack(job.id, worker_id=WORKER)
    return spent


@pytest.mark.parametrize("limited", [None, {}, {"max_queues": 9}])
def test_a_job_of_a_tenant_without_quotas_costs_what_any_costs(
    exact: World, limited: dict[str, int] | None
) -> None:
    if limited is not None:
        exact.run.tenants.put("acme", limited)
    for queue in ("plain", "acme:mail"):
        one_job(exact, queue)
    plain, spent = one_job(exact, "plain"), one_job(exact, "acme:mail")
    assert spent == plain
    assert (spent.calls, spent.writes) == (7, 6)
    assert spent.reads <= 3.5
    # The record is read again with the queue, without a call.
    later = []
    for queue in ("plain", "acme:mail"):
        exact.clock.advance(NOTICED_MS)
        later.append(one_job(exact, queue))
    assert (later[1].calls, later[1].writes) == (later[0].calls, later[0].writes)
    assert later[1].reads <= later[0].reads + 1


def test_a_tenant_with_quotas(exact: World) -> None:
    """The permit costs what that of a queue costs. Of the rest, a job costs nothing."""
    body = {"max_concurrency": 50, "max_queue_depth": 100, "max_enqueue_rate": RATE}
    exact.run.tenants.put("acme", body)
    one_job(exact, "acme:mail")
    spent = one_job(exact, "acme:mail")
    exact.run.queues.configure("limited", {"concurrency": 50})
    one_job(exact, "limited")
    assert spent == one_job(exact, "limited")
    assert spent.writes == 9


@pytest.mark.parametrize(("largest", "least"), [(1, 180), (4, 150)])
def test_the_rate_is_never_exceeded_and_hardly_missed(
    exact: World, largest: int, least: int
) -> None:
    """Ten containers that push as much as they can. Each loses at most a slice, or a request."""
    exact.run.tenants.put("acme", {"max_enqueue_rate": {"limit": 200, "period": "PT1M"}})
    exact.run.queues.create("acme:mail", {})
    runs = [exact.another() for _ in range(10)]
    stored: list[tuple[int, int]] = []
    for _ in range(30):
        for number, run in enumerate(runs):
            count = largest if number % 2 else 1
            stored.append((exact.clock.now_ms(), push(run, count=count)))
            exact.clock.advance(300)
    within = [
        sum(count for ms, count in stored if start <= ms < start + PERIOD_MS) for start, _ in stored
    ]
    assert least <= within[0] <= max(within) <= 200


def test_a_lost_race_for_the_rate_is_not_a_refusal(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact.run.tenants.put("acme", {"max_enqueue_rate": RATE})
    exact.run.queues.create("acme:mail", {})
    monkeypatch.setattr("ojs.store.permits.rate_window.wins", lambda _: False)
    with pytest.raises(BackendContended):
        push(exact.run)
    monkeypatch.undo()
    assert push(exact.run) == 1


def test_records_of_others_are_noticed(exact: World) -> None:
    other = exact.another()
    exact.run.tenants.put("acme", {})
    assert push(other) == 1
    exact.run.tenants.put("acme", {"state": "suspended"})
    assert push(other) == 1
    exact.clock.advance(NOTICED_MS)
    with pytest.raises(TenantSuspended):
        push(other)
    exact.run.tenants.delete("acme")
    exact.clock.advance(NOTICED_MS)
    assert push(other) == 1


def test_permits_of_whoever_dies_are_free_again(exact: World) -> None:
    """At each call of a fetch and an ack; afterwards the tenant runs as many jobs as before."""
    exact.run.tenants.put("acme", {"max_concurrency": 2})
    for run, _ in faults(exact):
        for queue in ("acme:a", "acme:b"):
            push(exact.run, queue)

        def work(run: Runtime = run) -> None:
            for job in run.fetch.fetch(["acme:a", "acme:b"], 2, WORKER):
                run.finish.ack(job.id, worker_id=WORKER)

        attempt(work)
        assert taken(exact) <= 2
        exact.clock.advance(3_600_000)
        exact.sweep()
        fresh, done = exact.another(), 0
        while jobs := fresh.fetch.fetch(["acme:a", "acme:b"], 9, WORKER):
            assert len(jobs) <= 2
            done += len(jobs)
            for job in jobs:
                fresh.finish.ack(job.id, worker_id=WORKER)
    assert taken(exact) <= 2


def test_a_change_of_whoever_dies_is_whole(exact: World) -> None:
    """Repeated as a caller would, it holds, and what ran before counts."""
    for number, (run, _) in enumerate(faults(exact)):
        tenant = f"t{number}"
        queue = f"{tenant}:mail"
        push(exact.run, queue, 3)
        (job,) = exact.fetch(queue)
        attempt(partial(run.tenants.put, tenant, {"max_concurrency": 2}))
        exact.run.tenants.put(tenant, {"max_concurrency": 2})
        assert len(exact.fetch(queue, count=3)) <= 1
        assert exact.run.tenants.get(tenant).tenant.max_concurrency == 2
        exact.run.finish.ack(job.id)


def test_what_tenants_did_is_counted_and_told(streamed: Worlds) -> None:
    with streamed() as world:
        stream, run = Stream(world.client, world.table), world.run
        run.tenants.put("acme", {"max_queue_depth": 2})
        for queue in ("acme:a", "acme:b", "acme:a"):
            push(run, queue)
        # A container tells it once a minute, and so do all together.
        assert push(run) == push(run) == 0
        exceeded = {"tenant_id": "acme", "limit": "max_queues", "current": 1, "maximum": 1}
        world.another().stores.tenants._note_exceeded(exceeded)
        (job,) = world.fetch("acme:a")
        run.finish.ack(job.id, worker_id=WORKER)
        projected = Projected(world.client, world.table, world.clock)
        records = stream.take()
        assert projected.run(records) == projected.another().run(records) == []
        assert projected.stats("%acme") == {"available": 1, "completed": 1}
        told = [event for event in projected.events() if event["type"].startswith("tenant.")]
        assert [(event["type"], event["data"]["tenant_id"]) for event in told] == [
            ("tenant.created", "acme"), ("tenant.limit_exceeded", "acme"),
        ]  # fmt: skip
        assert told[1]["data"] == {
            "tenant_id": "acme", "limit": "max_queue_depth", "current": 2, "maximum": 2,
        }  # fmt: skip
        of_jobs = [event for event in projected.events() if event["type"].startswith("job.")]
        assert {event["data"]["tenant_id"] for event in of_jobs} == {"acme"}


def test_counts_are_remembered_for_a_second(exact: World) -> None:
    """And its own pushes are added."""
    exact.run.tenants.put("acme", {"max_queue_depth": 5})
    stored = sum(push(exact.run) for _ in range(8))
    assert stored == 5
    exact.clock.advance(COUNTED_MS)
    # The projection, which counts nothing here, is all that is known of others.
    assert push(exact.run) == 1


def test_a_limit_of_an_unreadable_form_refuses(exact: World) -> None:
    made = {"created": 1, "configured": 1, "changes": 0}
    pk = keys.tenant_record("acme")
    exact.run.table.put(Put({"pk": pk, "sk": keys.RECORD, "state": "frozen", **made}))
    with pytest.raises(TenantSuspended):
        push(exact.run)
