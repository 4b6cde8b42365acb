"""Messages of clients whose container dies, or whose calls fail, at each call."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.access import ALL_SCOPES, Principal
from ojs.domain.errors import OjsError
from ojs.domain.realtime import Listener
from tests.store.faults import FAULTS, Died, Faulty
from tests.store.realtime import sockets_of

if TYPE_CHECKING:
    from tests.store.conftest import World


READER = Principal("reader", ALL_SCOPES)


def send(world: World, message: Any, client: Any = None) -> Any:
    """The answer of a new container."""
    answer = sockets_of(world.another(client)).handle("c1", json.dumps(message))
    return json.loads(answer)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["job", "queue:mail", "all"])
def test_subscribe_and_unsubscribe_end_with_a_repetition(
    exact: World, kind: str, fault: str
) -> None:
    """A client that gets no answer, or an error, sends its message again."""
    world, now_ms = exact, exact.clock.now_ms()
    job = world.push(queue="mail")
    channel = f"job:{job.id}" if kind == "job" else kind
    sockets_of(world.run).add_connection("c1", READER)
    message = {"action": "subscribe", "channel": channel, "batch": True}
    ending = {"action": "unsubscribe", "channel": channel}
    for at in range(1, 12):
        for sent in (message, ending):
            faulty = Faulty(world.client, at, fault)
            with suppress(Died):
                answer = send(world, sent, faulty)
                assert answer["type"] in (f"{sent['action']}d", "error"), answer
                if answer["type"] == "error":
                    assert answer["code"].startswith("backend_")
            answer = send(world, sent)
            assert answer["type"] == f"{sent['action']}d"
            found = world.run.stores.connections.get("c1", now_ms=now_ms)
            stored = world.run.stores.subscribers.get(channel, "c1", now_ms=now_ms)
            assert found is not None
            assert found.channels == ((channel,) if sent is message else ())
            assert (stored is not None) == (sent is message)
    # No call was left.
    assert faulty.calls < 11


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_broken_end_leaves_ends_by_itself(exact: World, fault: str) -> None:
    stores, clock = exact.run.stores, exact.clock
    exact.push(queue="mail")
    for at in range(1, 7):
        sockets_of(exact.run).add_connection("c1", READER)
        send(exact, {"action": "subscribe", "channel": "queue:mail"})
        found = stores.connections.get("c1", now_ms=clock.now_ms())
        assert found is not None
        stores.connections.set_group("c1", "g1")
        stores.listeners.add("g1", Listener("c1", "w1", found.until_ms))
        with suppress(Died, OjsError):
            sockets_of(exact.another(Faulty(exact.client, at, fault))).remove_connection("c1")
        with suppress(OjsError):
            sockets_of(exact.another()).remove_connection("c1")
        assert stores.connections.get("c1", now_ms=clock.now_ms()) is None
        clock.advance(found.until_ms - clock.now_ms())
        assert stores.listeners.select("g1", 9, now_ms=clock.now_ms()) == []
        assert stores.subscribers.list_of("queue:mail", now_ms=clock.now_ms()) == []
