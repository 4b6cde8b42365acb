"""Webhooks: subscriptions to events, and their deliveries (ojs-webhooks)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ojs import runtime
from ojs.domain import times
from ojs.domain.access import Scope
from ojs.domain.delivery.delivery import check_subscription
from ojs.domain.events.types import EventType
from ojs.domain.webhooks import (
    HookDisabled,
    HookStatus,
    SecretRequest,
    SubscriptionChange,
    SubscriptionRequest,
)
from ojs.http.answer import Answer, made, moment, shown, source, unless_empty
from ojs.http.answers import Count, CreatedBy, Etag, Moment, Positive
from ojs.http.binding import paging, query
from ojs.http.binding.paging import Paged
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE, Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import NoOptions
from ojs.http.parameters import CURSOR, LIMIT, PAGING, one_of, text

if TYPE_CHECKING:
    from ojs.domain.webhooks import HookDelivery, HookOutcome, Subscription
    from ojs.http.binding.paging import Listed
    from ojs.services.webhooks.manage import SubscriptionStatus

_s: SubscriptionStatus = source()
_w = _s.subscription
_of: Subscription = source()
_n: str = source()
_l: Listed[SubscriptionStatus] = source()
_d: HookDelivery = source()
_p: HookOutcome = source()
_ld: Listed[HookDelivery] = source()


class WebhookFilter(Answer["Subscription"]):
    """Further conditions of events. Empty: no condition."""

    queues: list[str] = made(list, _of.queues)
    job_types: list[str] = made(list, _of.job_types)


class Webhook(Answer["SubscriptionStatus"]):
    """A subscription to events."""

    id: str = _w.id
    url: str = _w.url
    events: list[str] = made(list, _w.events)
    active: bool = _w.active
    filter: WebhookFilter = WebhookFilter.of(_w)
    metadata: dict[str, Any] = made(dict, _w.metadata)
    timeout_s: Positive = _w.timeout_s
    disabled_reason: HookDisabled = shown(_w.disabled, absent=True)
    last_delivery_at: Moment = shown(moment(_s.last[0]), absent=True)
    last_delivery_status: int = shown(_s.last[1], absent=True, says="status code; 0: no response")
    success_count: Count = shown(_s.successes.count, says="without those of the last seconds")
    failure_count: Count = shown(_w.failed, says="failed attempts")
    secret: str = shown(_s.secret, absent=True, says="signing secret, when it is created")
    etag: Etag = _w.etag
    created_at: Moment = moment(_w.created_ms)
    updated_at: Moment = moment(_w.updated_ms)
    created_by: CreatedBy = shown(
        made(lambda line: line[-1] if line else None, _w.line), absent=True
    )


class WebhookAnswer(Webhook):
    """A subscription, at the top level and under `subscription`."""

    subscription: Webhook = Webhook.of(_s)


class WebhooksAnswer(Paged["SubscriptionStatus"]):
    """A page of subscriptions."""

    items: list[Webhook] = Webhook.each(_l.items)
    subscriptions: list[Webhook] = items


class WebhookDeletedAnswer(Answer[str]):
    """The ID of the subscription that was deleted."""

    deleted: Literal[True] = True
    id: str = _n


class WebhookSecretAnswer(Answer["SubscriptionStatus"]):
    """The new secret. The one before signs too, until `previous_valid_until`."""

    id: str = _w.id
    new_secret: str = made(str, _s.secret)
    secret: str = new_secret
    previous_valid_until: Moment = made(lambda ms: times.format_ms(ms or 0), _w.old_until_ms)


class WebhookTestAnswer(Answer["HookOutcome"]):
    """The response of the endpoint to a test event."""

    success: bool = made(lambda verdict: verdict == "delivered", _p.verdict)
    status_code: Count = shown(_p.status, says="0: no response")
    status: Count = status_code
    response_time_ms: Count = _p.took_ms
    response_body: str = shown(_p.body, says="up to 1 KiB")
    error: str = shown(unless_empty(_p.error), absent=True)


class WebhookDelivery(Answer["HookDelivery"]):
    """The attempts to post an event."""

    id: str = _d.id
    subscription_id: str = _d.subscription
    event_id: str = made(lambda event: event["id"], _d.event)
    event_type: str = made(lambda event: event["type"], _d.event)
    status: HookStatus = _d.status
    attempts: Count = _d.attempts
    status_code: int = shown(
        unless_empty(_d.last_status), absent=True, says="of the latest response"
    )
    response_time_ms: Count = _d.took_ms
    response_body: str = shown(unless_empty(_d.response), absent=True)
    error: str = shown(unless_empty(_d.error), absent=True)
    next_attempt_at: Moment = shown(moment(_d.next_ms), absent=True)
    last_attempt_at: Moment = shown(moment(_d.last_ms), absent=True)
    created_at: Moment = moment(_d.created_ms)


class WebhookDeliveryAnswer(WebhookDelivery):
    """A delivery, at the top level and under `delivery`."""

    delivery: WebhookDelivery = WebhookDelivery.of(_d)


class WebhookDeliveriesAnswer(Paged["HookDelivery"]):
    """A page of deliveries."""

    items: list[WebhookDelivery] = WebhookDelivery.each(_ld.items)
    deliveries: list[WebhookDelivery] = items


# --- endpoints ------------------------------------------------------------------------------------

_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.ALL)
_EXAMPLE = {
    "events": [EventType.JOB_COMPLETED, EventType.JOB_DISCARDED],
    "filter": {"queues": ["billing"]},
}
_STATUS = Parameter("status", one_of(*HookStatus), "only deliveries with this status")
_SUBSCRIPTION = Parameter(
    "subscription", text("sub_[0-9a-f]{16}", 20), "only deliveries of this subscription"
)
subscriptions = Resource("webhooks/subscriptions", "webhooks")
deliveries = Resource("webhooks/deliveries", "webhooks")


def _may_read(request: Request) -> None:
    # A webhook sends events of jobs to its endpoint.
    request.needs(Scope.JOBS_READ)


@subscriptions.endpoint(
    "POST",
    _MANAGE,
    {201: Success(WebhookAnswer, "The subscription and its secret, shown once.", ("Location",))},
    errors=(409,),
    request=SubscriptionRequest,
    example={"url": "https://api.example.com/webhooks/ojs", **_EXAMPLE},
)
def create_webhook(request: Request) -> Reply:
    """Subscribe an endpoint to events."""
    _may_read(request)
    found = runtime.current().webhooks.create(request.object(), request.principal)
    place = f"{BASE}/webhooks/subscriptions/{found.subscription.id}"
    return Reply(WebhookAnswer.of(found), 201, {"Location": place})


@subscriptions.endpoint("GET", _LOOK, WebhooksAnswer, query=PAGING)
def list_webhooks(request: Request) -> Reply:
    """List subscriptions to events.

    One page of subscriptions, in order of ID.
    """
    return Reply(WebhooksAnswer.of(paging.asked(request.query, runtime.current().webhooks.list)))


@subscriptions.endpoint("GET /{id}", _LOOK, WebhookAnswer, errors=(404,), versioned=True)
def get_webhook(request: Request) -> Reply:
    """Read a subscription to events."""
    return Reply(WebhookAnswer.of(runtime.current().webhooks.get(request.named)))


def _change(request: Request) -> Reply:
    _may_read(request)
    change = runtime.current().webhooks.change
    found = change(request.named, request.object(), request.principal, request.edit)
    return Reply(WebhookAnswer.of(found))


@subscriptions.endpoint(
    "PATCH /{id}",
    _MANAGE,
    WebhookAnswer,
    errors=(404, 409),
    request=SubscriptionChange,
    example=_EXAMPLE,
    versioned=True,
)
def update_webhook(request: Request) -> Reply:
    """Change a subscription to events."""
    return _change(request)


@subscriptions.endpoint(
    "PUT /{id}",
    _MANAGE,
    WebhookAnswer,
    errors=(404, 409),
    request=SubscriptionChange,
    example={"active": True},
    versioned=True,
)
def put_webhook(request: Request) -> Reply:
    """Change a subscription to events, as with PATCH."""
    return _change(request)


@subscriptions.endpoint(
    "DELETE /{id}", _MANAGE, WebhookDeletedAnswer, errors=(404,), versioned=True
)
def delete_webhook(request: Request) -> Reply:
    """Delete a subscription to events.

    Its pending deliveries are not sent.
    """
    runtime.current().webhooks.delete(request.named, request.edit)
    return Reply(WebhookDeletedAnswer.of(request.named))


@subscriptions.endpoint(
    "POST /{id}/test", _MANAGE, WebhookTestAnswer, errors=(404,), request=NoOptions
)
def test_webhook(request: Request) -> Reply:
    """Send a test event to an endpoint."""
    return Reply(WebhookTestAnswer.of(runtime.current().webhooks.test(request.named)))


@subscriptions.endpoint(
    "POST /{id}/rotate-secret",
    _MANAGE,
    WebhookSecretAnswer,
    errors=(404,),
    request=SecretRequest,
    body_required=False,
    example={"secret": "whsec_Zm9yIGV4YW1wbGUsIGFuIG93biBzZWNyZXQ="},
)
def rotate_webhook_secret(request: Request) -> Reply:
    """Replace the signing secret of a subscription."""
    _may_read(request)
    body = SecretRequest.model_validate(request.object())
    rotate = runtime.current().webhooks.rotate
    return Reply(WebhookSecretAnswer.of(rotate(request.named, body.secret, request.principal)))


@deliveries.endpoint(
    "GET",
    _LOOK,
    WebhookDeliveriesAnswer,
    errors=(404,),
    query=(_SUBSCRIPTION, _STATUS, Parameter("limit", LIMIT, "most items of one page"), CURSOR),
    derived=True,
)
def list_webhook_deliveries(request: Request) -> Reply:
    """List deliveries of webhooks.

    One page of deliveries, newest first: those with a failed attempt of the last 30 days, and the
    latest successes.
    """
    window = paging.window(request.query)
    status = None
    if "status" in request.query:
        status = HookStatus(query.choice(request.query, "status", [*HookStatus], default=""))
    found = runtime.current().webhooks.list_deliveries(
        subscription=query.single(request.query, "subscription", check_subscription),
        status=status,
        limit=window.limit,
        cursor=window.cursor,
    )
    return Reply(WebhookDeliveriesAnswer.of(paging.listed(window, found)))


@deliveries.endpoint("GET /{id}", _LOOK, WebhookDeliveryAnswer, errors=(404,))
def get_webhook_delivery(request: Request) -> Reply:
    """Read a delivery of a webhook."""
    return Reply(WebhookDeliveryAnswer.of(runtime.current().webhooks.get_delivery(request.named)))


@deliveries.endpoint(
    "POST /{id}/retry", _MANAGE, WebhookDeliveryAnswer, errors=(404, 409), request=NoOptions
)
def retry_webhook_delivery(request: Request) -> Reply:
    """Send a dead delivery again."""
    return Reply(WebhookDeliveryAnswer.of(runtime.current().webhooks.retry(request.named)))
