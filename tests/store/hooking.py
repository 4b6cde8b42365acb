"""A queue of webhook messages that survives containers, and an endpoint that answers as told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from local.deliveries import check_endpoint
from ojs.domain.webhooks import HookDelivery, HookOutcome, Subscription
from ojs.services.deliveries.parts import AllowedTargets
from ojs.services.webhooks.parts import WebhookDependencies

if TYPE_CHECKING:
    from ojs.clock import Clock

URL = "https://hooks.example.com/ojs"
BODY = {"url": URL, "events": ["job.*"]}


@dataclass
class Messages:
    """Messages with the time (ms) from which they can be received."""

    clock: Clock
    waiting: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    # Of how many of the next messages each is refused.
    refusing: int = 0

    def put(self, messages: Sequence[dict[str, Any]], *, delay_s: int = 0) -> list[int]:
        assert 0 <= delay_s <= 900
        refused = min(self.refusing, len(messages))
        self.refusing -= refused
        at_ms = self.clock.now_ms() + 1_000 * delay_s
        self.waiting += [(at_ms, each) for each in messages[refused:]]
        return [*range(refused)]

    def due(self, most: int = 8) -> list[tuple[int, dict[str, Any]]]:
        return [each for each in self.waiting if each[0] <= self.clock.now_ms()][:most]


@dataclass
class Endpoint:
    """A target that answers what `answer` returns for the number of the attempt of an event."""

    answer: Callable[[int], int] = lambda _: 200
    seen: list[tuple[str, int]] = field(default_factory=list)
    died: BaseException | None = None
    last: tuple[Subscription, HookDelivery] | None = None

    def post(
        self, subscription: Subscription, delivery: HookDelivery, *, timeout_s: float | None = None
    ) -> HookOutcome:
        del timeout_s
        self.last = (subscription, delivery)
        tried = sum(name == delivery.id for name, _ in self.seen)
        status = self.answer(tried)
        self.seen.append((delivery.id, status))
        if self.died is not None:
            error, self.died = self.died, None
            raise error
        return HookOutcome(status, 5, "said", "" if status else "The endpoint did not respond.")

    @property
    def done(self) -> set[str]:
        """The deliveries that had a 2xx."""
        return {name for name, status in self.seen if 200 <= status < 300}


def parts(clock: Clock, endpoint: Endpoint, hosts: Sequence[str] = ("*",)) -> WebhookDependencies:
    allowed = AllowedTargets(egress_hosts=hosts, check_endpoint=partial(check_endpoint, False))
    return WebhookDependencies(Messages(clock), endpoint, allowed)
