"""The API of a deployment with webhooks, and one subscription."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ojs import runtime
from ojs.settings import Settings
from tests.store.hooking import BODY, Endpoint, Messages, parts
from tests.unit.functions.client import Api

if TYPE_CHECKING:
    from ojs.clock import ManualClock
    from ojs.runtime import Runtime

BASE = "/ojs/v1/webhooks/subscriptions"
Hooks = tuple[Api, Endpoint, Messages]


def hooked(make_runtime: Callable[..., Runtime], clock: ManualClock, **more: Any) -> Any:
    plain = make_runtime(**more)
    endpoint = Endpoint()
    hooks = parts(clock, endpoint, ["*.example.com"])
    built = runtime.build(
        Settings(table=plain.settings.table, bucket="payloads", version="1.2.3", **more),
        client=plain.table.client,
        blobs=plain.blobs,
        clock=clock,
        sleep=lambda _: None,
        hooks=lambda: hooks,
    )
    runtime.use(built)
    return built, endpoint, hooks.queue


def made(api: Api, **more: Any) -> str:
    reply = api("POST", BASE, {**BODY, **more})
    assert reply.status == 201
    return str(reply.json["id"])
