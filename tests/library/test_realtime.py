"""The library and a local server: rings, subscriptions, and a clock that tests move."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from ojs_aws import AsyncClient, Job, NotFound
from ojs_aws.client import background, link, subscription
from ojs_aws.client.subscription import AsyncSubscription
from ojs_aws.testing.server import OjsServer
from ojs_aws.worker.listening import Listening
from tests.library.stub import until
from tests.performance.pickup import RARELY_S, late, measure, running

pytestmark = pytest.mark.e2e


class Fetched:
    """Why the worker fetched: the jobs that fetches after a ring brought, and the other fetches
    of a listed worker.
    """

    def __init__(self) -> None:
        self.rung: set[str] = set()
        self.looks = 0


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Fetched:
    found, answered = Fetched(), Listening.answered

    def note(
        self: Listening, asked: dict[str, Any], answer: Any, jobs: Sequence[Job], **options: Any
    ) -> float | None:
        if "rung" in asked:
            found.rung |= {job.id for job in jobs}
        elif asked and asked["listen"]["listed"]:
            found.looks += 1
        return answered(self, asked, answer, jobs, **options)

    monkeypatch.setattr(Listening, "answered", note)
    return found


@pytest.mark.parametrize("pushes", [20, pytest.param(200, marks=pytest.mark.whole)])
def test_an_idle_worker_starts_a_job_at_once(
    ojs_server: OjsServer, fetched: Fetched, pushes: int
) -> None:
    """Each because of a ring. Within 50 ms as a rule, and 120 ms nearly always; on a busy machine
    in the time of six requests, of which it needs two.
    """

    def done(job_id: str) -> None:
        assert job_id in fetched.rung

    # The one look without a ring is for what was pushed before it was listed.
    found = measure(ojs_server, pushes, lambda: fetched.looks, done)
    assert statistics.median(found.waited) <= max(0.05, 3 * statistics.median(found.bare))
    if pushes >= 200:
        assert late(found.waited) <= max(0.12, 3 * late(found.bare))


def test_moving_the_clock_starts_jobs_that_become_due(ojs_server: OjsServer) -> None:
    """By a ring, and after two hours, when the connection ends, by the look of the next one."""
    done: list[str] = []
    with running(ojs_server, lambda job: done.append(job.id)):
        for hours in (1, 2, 24):
            job = ojs_server.client.enqueue("t", queue="q", delay_s=hours * 3_600)
            started_s = time.monotonic()
            ojs_server.advance(hours=hours)
            until(lambda: job.id in done)  # noqa: B023 - called here
            assert time.monotonic() - started_s < RARELY_S / 2


def test_a_worker_outlives_a_reset(ojs_server: OjsServer) -> None:
    done: list[str] = []
    with running(ojs_server, lambda job: done.append(job.id)):
        ojs_server.reset()
        job = ojs_server.client.enqueue("t", queue="q")
        started_s = time.monotonic()
        until(lambda: job.id in done)
        assert time.monotonic() - started_s < RARELY_S / 2


def test_waiting_for_a_job(
    ojs_server_with_keys: OjsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the job because of the event, and not because of the time."""
    for name, pause in (("_CONNECTED_S", 600), ("_NOTICED_S", 600), ("_POLL_S", (600, 600))):
        monkeypatch.setattr(subscription, name, pause)
    server = ojs_server_with_keys
    with running(server, lambda job: job.args):
        job = server.client.enqueue("t", [1], queue="q")
        done = server.client.wait_for(job.id, timeout_s=60)
        assert (done.state, done.result) == ("completed", [1])
    with pytest.raises(NotFound):
        server.client.wait_for("01968f2a-0000-7000-8000-000000000000")


def test_subscriptions(ojs_server: OjsServer) -> None:
    """To a queue, with its events in order, and to all events on asyncio at the same time."""
    client = ojs_server.client
    # Its event may come after the subscription that it is older than.
    first = client.enqueue("first", queue="q")

    async def all_events(number: int, ready: threading.Event) -> list[str | None]:
        found: list[str | None] = []
        async with AsyncClient(ojs_server.url) as other, other.subscribe("all") as events:
            ready.set()
            while len(found) < number:
                event = await anext(events)
                found += [event.job_id] if event.job_id != first.id else []
        return found

    seen: list[Any] = []
    ready = threading.Event()
    thread = threading.Thread(target=lambda: seen.append(asyncio.run(all_events(3, ready))))
    with client.subscribe("queue:q", types=["job.state_changed"]) as events:
        thread.start()
        assert ready.wait(60)
        jobs = [client.enqueue("t", queue=queue) for queue in ("q", "other")]
        client.cancel_job(jobs[0].id)
        later = (event for event in events if event.job_id != first.id)
        found = [next(later) for _ in range(2)]
        thread.join(60)
    assert [(each.job_id, each.to) for each in found] == [
        (jobs[0].id, "available"),
        (jobs[0].id, "cancelled"),
    ]
    assert sorted(seen[0]) == sorted([jobs[0].id, jobs[0].id, jobs[1].id])


@pytest.mark.parametrize(
    "drops",
    [
        10,
        pytest.param(50, marks=pytest.mark.exhaustive),
        pytest.param(1_000, marks=pytest.mark.whole),
    ],
)
def test_no_event_is_lost_by_reconnections(
    ojs_server: OjsServer, monkeypatch: pytest.MonkeyPatch, drops: int
) -> None:
    """Events before, during, and after each loss, of which the log has some seconds later."""
    monkeypatch.setattr(link, "_PAUSES_S", (0.01, 0.02))
    client = ojs_server.client
    # Its event may come after the subscription that it is older than.
    first = client.enqueue("t", queue="q").id
    sent: list[str] = []
    seen: Counter[str | None] = Counter()

    def push(number: int) -> None:
        sent.extend(client.enqueue("t", queue="q").id for _ in range(number))

    def lose(connection: link.Link, pushes: int) -> None:
        until(lambda: connection.connected)
        push(2 * pushes)
        lost = connection._socket
        assert lost is not None
        background.loop().call_soon_threadsafe(lost.transport.abort)
        push(pushes)
        until(lambda: connection._socket is not lost)

    def logged() -> set[str]:
        return {event["subject"] for event in client.list_events(limit=1_000)["events"]}

    def produce(subscription: AsyncSubscription) -> None:
        for number in range(1, drops + 1):
            lose(subscription._link, 1)
            if number % 100 == 0 or number == drops:
                # One replay has up to 500 events: those that the log has.
                until(lambda: logged().issuperset(sent[-300:]))
                lose(subscription._link, 0)
                until(lambda: len(seen) == len(sent))
            if number % 100 == 0 and number < drops:
                until(lambda: time.monotonic() > subscription._settled_at)

    with client.subscribe("queue:q", types=["job.state_changed"]) as events:
        thread = threading.Thread(target=produce, args=(events._inner,), daemon=True)
        thread.start()
        # It waits for all to be seen.
        while thread.is_alive():
            event = events.get(0.1)
            if event is not None and event.job_id != first:
                assert event.type == "job.state_changed"
                seen[event.job_id] += 1
    assert seen == Counter(sent)
    assert len(sent) == 3 * drops
