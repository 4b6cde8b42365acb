"""What a worker without jobs costs, and how soon it begins with the first one."""

from __future__ import annotations

import time

import pytest

from docs.numbers import assumed, counted
from docs.numbers.prices import MONTH_S, Model
from ojs_aws import Worker
from ojs_aws.worker.handlers import Handlers
from ojs_aws.worker.session import Session
from tests.library.stub import StubServer

DEFAULTS = Worker(queues=["q"]).settings
# A pause is drawn between four fifths of the longest and all of it.
MEAN_POLL_S = 0.9 * DEFAULTS.poll_s


def session(stub: StubServer) -> Session:
    handlers = Handlers()
    handlers.add("t", lambda _job: None)
    return Session(DEFAULTS, handlers, stub.client(), "w")


def pause_s(asking: Session) -> float:
    return asking._next_fetch - time.monotonic()


def test_an_idle_worker_asks_less_and_less_often_but_each_four_seconds() -> None:
    stub = StubServer()
    asking = session(stub)
    pauses = []
    for _ in range(8):
        asking._next_fetch = 0.0
        asking._turn()
        pauses.append(pause_s(asking))
    assert pauses[0] == pytest.approx(0.36, rel=0.2)
    assert all(0.79 * DEFAULTS.poll_s <= each <= DEFAULTS.poll_s for each in pauses[-3:])
    assert len(stub.to("workers/fetch")) == 8
    # A job begins within five seconds, and after it the next one sooner.
    assert DEFAULTS.poll_s < 5
    stub.push("t")
    asking._next_fetch = 0.0
    asking._turn()
    assert pause_s(asking) <= DEFAULTS.first_poll_s


def test_it_costs_at_most_three_dollars_a_month() -> None:
    numbers = assumed([f"poll_s={MEAN_POLL_S}", f"heartbeat_s={DEFAULTS.idle_heartbeat_s}"])
    model = Model(counted(), numbers)
    month = sum(model.cost(model.idle_worker()).values()) * MONTH_S
    assert 1 < month <= 3
    # It is not taken for dead meanwhile.
    assert DEFAULTS.idle_heartbeat_s < 30


def test_the_page_says_what_it_costs() -> None:
    from tests.library.pages import WRITE_A_WORKER

    numbers = assumed([f"poll_s={MEAN_POLL_S}", f"heartbeat_s={DEFAULTS.idle_heartbeat_s}"])
    model = Model(counted(), numbers)
    month = sum(model.cost(model.idle_worker()).values()) * MONTH_S
    requests = MONTH_S / MEAN_POLL_S + MONTH_S / DEFAULTS.idle_heartbeat_s
    assert f"{round(requests, -3):,.0f} requests per month, ${month:.2f}" in WRITE_A_WORKER
