"""Deliveries, as answers show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ojs.domain.delivery import delivery as deliveries
from ojs.domain.delivery.delivery import Delivery
from ojs.domain.delivery.outcome import Outcome
from ojs.domain.job.job import MISSING
from ojs.http.binding import paging

if TYPE_CHECKING:
    from ojs.http.contract import answers


def shown(delivery: Delivery, now_ms: int) -> answers.DeliveryAnswer:
    """A delivery, without its secrets."""
    return cast("answers.DeliveryAnswer", deliveries.to_dict(delivery, now_ms))


def page(
    found: Sequence[Delivery], pagination: answers.Pagination, now_ms: int
) -> answers.DeliveriesAnswer:
    """A page of deliveries, under both names that clients know of lists."""
    items = [shown(each, now_ms) for each in found]
    return {"items": items, "deliveries": items, **paging.with_total(pagination)}


def deleted(name: str) -> answers.DeliveryDeletedAnswer:
    """A delivery that was deleted."""
    return {"deleted": True, "name": name}


def tested(outcome: Outcome, length_ms: int) -> answers.DeliveryTestAnswer:
    """What a target answered to a push that no job stands for."""
    answer: answers.DeliveryTestAnswer = {"outcome": outcome.verdict, "duration_ms": length_ms}
    if outcome.result is not MISSING:
        answer["result"] = outcome.result
    if outcome.error is not None:
        answer["error"] = dict(outcome.error)
    return answer
