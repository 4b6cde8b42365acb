"""What a tenant's caller receives over its connection: local names, and only its own events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.access import ALL_SCOPES, ANYBODY, Principal
from ojs.domain.events.event import event_id
from ojs.services.realtime.event_replay import EventReplay
from tests.store.realtime import Audience, sockets_of
from tests.store.streams import Projected, Stream, lambda_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.store.conftest import World

ACME = Principal("reader", ALL_SCOPES).with_tenant("acme")


@pytest.fixture
def world(streamed: Callable[[], AbstractContextManager[World]]) -> Iterator[World]:
    with streamed() as found:
        yield found


@pytest.mark.parametrize("caller", [ACME, ANYBODY.with_tenant("acme")])
@pytest.mark.parametrize("options", [{}, {"batch": True, "detail": True}, {"digest": True}])
def test_messages_have_local_names(
    world: World, options: dict[str, Any], caller: Principal
) -> None:
    audience, run, stream = Audience(world), world.run, Stream(world.client, world.table)
    sockets = sockets_of(run, EventReplay(run.events, audience.sender, run.clock))
    sockets.add_connection("c", caller)

    def ask(action: str, **more: Any) -> Any:
        return json.loads(sockets.handle("c", json.dumps({"action": action, **more})))

    own, other = world.push(queue="acme:mail"), world.push(queue="beta:mail")
    for channel in ("queue:mail", "all"):
        assert ask("subscribe", channel=channel, **options)["channel"] == channel
    assert ask("subscribe", channel=f"job:{own.id}")["state"] == "available"
    for channel in ("queue:none", f"job:{other.id}"):
        refused = ask("subscribe", channel=channel)
        assert refused["code"] == "not_found"
        assert "acme:" not in refused["message"]
    assert ask("subscribe", channel="queue:beta:mail")["code"] == "invalid_request"
    world.clock.advance(3_000)
    for queue in ("acme:mail", "beta:mail"):
        for job in world.fetch(queue):
            run.finish.ack(job.id, worker_id=job.worker_id)
        run.queues.pause(queue)
    records = stream.take()
    audience.notify.run(list(map(lambda_form, records)))
    received = audience.connections.take("c")
    assert Projected(world.client, world.table, world.clock).run(records) == []
    assert ask("resume", last_event_id=event_id(world.clock.now_ms() - 3_000, "x"))["events"]
    assert ask("resume", last_event_id=event_id(0, "x"))["events"] == 0
    told = json.dumps([received, audience.connections.take("c")])
    assert received
    assert '"mail"' in told
    assert "system.gap" in told
    assert not [each for each in ("acme:", "beta", other.id) if each in told]
    assert ask("unsubscribe", channel="queue:mail") == {
        "type": "unsubscribed", "channel": "queue:mail",
    }  # fmt: skip
    found = run.stores.connections.get("c", now_ms=world.clock.now_ms())
    assert found is not None
    assert found.channels == ("all", f"job:{own.id}")
