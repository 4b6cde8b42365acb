"""What deliveries need of a deployment: the queues that wake them, and their targets."""

from __future__ import annotations

from collections.abc import Callable

from ojs.domain.delivery.delivery import Delivery
from ojs.domain.delivery.push import SendQueue, Target, WakeQueue
from ojs.records import record
from ojs.services.deliveries.manage import AllowedTargets


@record(frozen=True)
class PushParts:
    """What a deployment, or a local server, brings. `target` tells where the pushes of a delivery
    go; `sends` takes those that wait for their target: without it, dispatch waits itself.
    """

    wakes: WakeQueue
    target: Callable[[Delivery], Target]
    allowed: AllowedTargets
    sends: SendQueue | None = None
