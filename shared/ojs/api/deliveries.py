"""Push deliveries: the targets that the server sends jobs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from ojs import runtime
from ojs.domain.access import Scope
from ojs.domain.delivery.breaker import BreakerState
from ojs.domain.delivery.delivery import (
    DeliveryRequest,
    DeliveryState,
    DeliveryTestRequest,
    DisabledReason,
    Form,
)
from ojs.domain.delivery.outcome import Verdict
from ojs.domain.job.job import MISSING
from ojs.http.answer import Answer, made, maybe, moment, shown, source, unless_empty
from ojs.http.answers import Count, CreatedBy, Etag, Moment, Positive
from ojs.http.binding import paging
from ojs.http.binding.paging import Paged
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE, Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import NoOptions
from ojs.http.parameters import PAGING
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.delivery.delivery import Delivery
    from ojs.domain.delivery.outcome import Outcome
    from ojs.http.binding.paging import Listed


@record(frozen=True)
class _Seen:
    """A delivery and its state at a time."""

    delivery: Delivery
    now_ms: int

    @property
    def backoff_until_ms(self) -> int | None:
        until_ms = self.delivery.backoff_until_ms
        return until_ms if until_ms is not None and until_ms > self.now_ms else None

    @property
    def breaker(self) -> BreakerState:
        return self.delivery.breaker.state(self.now_ms)

    @property
    def queues(self) -> list[str] | None:
        return None if self.delivery.pool else [*self.delivery.queues]


_s: _Seen = source()
_d = _s.delivery
_c = _d.counts
_off = maybe(_d.disabled)
_n: str = source()
_l: Listed[_Seen] = source()
_t: tuple[Outcome, int] = source()
_o = _t[0]


class DeliveryTarget(Answer[_Seen]):
    """Where jobs are pushed: one of these."""

    function: str = shown(_d.function, absent=True, says="ARN of a Lambda function")
    endpoint: str = shown(_d.endpoint, absent=True, says="URL")
    handler: str = shown(
        _d.handler, absent=True, says="`module:function`, on the local server alone"
    )


class DeliveryStatistics(Answer[_Seen]):
    """Results of pushes: of jobs in the queues of the delivery, as counted from the stream; of the
    target since the delivery was created.
    """

    pushed: Count = _c.pushed
    completed: Count = _c.completed
    failed: Count = shown(_c.failed, says="attempts that failed, faults among them")
    faults: Count = shown(_c.faults, says="crashes, timeouts, 5xx, invalid answers")
    throttled: Count = _c.throttled


class DeliveryAnswer(Answer[_Seen]):
    """A delivery; of its signing secrets only how many there are."""

    name: str = _d.name
    target: DeliveryTarget = DeliveryTarget.of(_s)
    queues: list[str] = shown(_s.queues, absent=True)
    pool: str = shown(unless_empty(_d.pool), absent=True)
    job_types: list[str] = shown(made(list, _d.job_types), says="empty: all types")
    concurrency: Positive = shown(_d.concurrency, says="most pushes at a time")
    batch_size: Positive = shown(_d.batch_size, says="jobs of one event")
    timeout_ms: Positive = _d.timeout_ms
    form: Form = _d.form
    signing_secrets_count: Count = made(len, _d.signing_secrets)
    paused: bool = _d.paused
    state: DeliveryState = _d.state
    disabled_reason: DisabledReason = shown(_off.reason, absent=True)
    disabled_at: Moment = shown(moment(_off.since_ms), absent=True)
    backoff_until: Moment = shown(
        moment(_s.backoff_until_ms),
        absent=True,
        says="the target throttles: nothing is pushed until then",
    )
    breaker: BreakerState = _s.breaker
    statistics: DeliveryStatistics = DeliveryStatistics.of(_s)
    etag: Etag = _d.etag
    created_at: Moment = moment(_d.created_ms)
    updated_at: Moment = moment(_d.updated_ms)
    created_by: CreatedBy = shown(
        made(lambda line: line[-1] if line else None, _d.line), absent=True
    )


class DeliveriesAnswer(Paged[_Seen]):
    """A page of deliveries."""

    items: list[DeliveryAnswer] = DeliveryAnswer.each(_l.items)
    deliveries: list[DeliveryAnswer] = items


class DeliveryDeletedAnswer(Answer[str]):
    """The name of the delivery that was deleted."""

    deleted: Literal[True] = True
    name: str = _n


class DeliveryTestAnswer(Answer["tuple[Outcome, int]"]):
    """The response of the target to a test event, which belongs to no job."""

    outcome: Verdict = _o.verdict
    result: Any = shown(_o.result, absent=MISSING)
    error: dict[str, Any] = shown(
        made(lambda error: None if error is None else {**error}, _o.error),
        absent=True,
        says="as a nack's error",
    )
    duration_ms: Count = _t[1]


# --- endpoints ------------------------------------------------------------------------------------

_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.ALL)
_NOW = Success(DeliveryAnswer, "The updated delivery.")
_PUT = {200: _NOW, 201: Success(DeliveryAnswer, "The new delivery.", ("Location",))}
deliveries = Resource("admin/deliveries", "deliveries")


def _seen(delivery: Delivery) -> _Seen:
    return _Seen(delivery, runtime.current().clock.now_ms())


@deliveries.endpoint("GET", _LOOK, DeliveriesAnswer, query=PAGING, derived=True)
def list_deliveries(request: Request) -> Reply:
    """List deliveries.

    One page of deliveries, in order of name.
    """
    found = paging.asked(request.query, runtime.current().deliveries.list)
    return Reply(DeliveriesAnswer.of(found.of([_seen(each) for each in found.items])))


@deliveries.endpoint(
    "POST",
    _MANAGE,
    _PUT,
    errors=(404, 409),
    request=DeliveryRequest,
    example={
        "endpoint": "https://worker.example.com/ojs",
        "job_types": ["email.send"],
        "queues": ["email"],
        "config": {"max_concurrency": 20, "timeout_ms": 30_000, "signing_secret": "whsec_example"},
    },
    versioned=True,
)
def create_delivery(request: Request) -> Reply:
    """Push the jobs of queues to an endpoint or function."""
    return _put(None, request)


@deliveries.endpoint(
    "PUT /{name}",
    _MANAGE,
    _PUT,
    errors=(404, 409),
    request=DeliveryRequest,
    example={
        "target": {"function": "arn:aws:lambda:eu-central-1:123456789012:function:thumbnails"},
        "queues": ["images"],
        "concurrency": 50,
        "timeout_ms": 60_000,
    },
    versioned=True,
)
def put_delivery(request: Request) -> Reply:
    """Create or replace a delivery."""
    return _put(request.named, request)


def _put(name: str | None, request: Request) -> Reply:
    # A delivery claims and finishes jobs like a worker.
    request.needs(Scope.WORK)
    put = runtime.current().deliveries.put
    delivery, created = put(name, request.object(), request.principal, request.edit)
    answer = DeliveryAnswer.of(_seen(delivery))
    if created:
        return Reply(answer, 201, {"Location": f"{BASE}/admin/deliveries/{delivery.name}"})
    return Reply(answer)


@deliveries.endpoint("GET /{name}", _LOOK, _NOW, errors=(404,), derived=True, versioned=True)
def get_delivery(request: Request) -> Reply:
    """Read a delivery and its statistics."""
    return Reply(DeliveryAnswer.of(_seen(runtime.current().deliveries.get(request.named))))


@deliveries.endpoint(
    "DELETE /{name}", _MANAGE, DeliveryDeletedAnswer, errors=(404,), versioned=True
)
def delete_delivery(request: Request) -> Reply:
    """Delete a delivery.

    Its queues and jobs are kept.
    """
    runtime.current().deliveries.delete(request.named, request.edit)
    return Reply(DeliveryDeletedAnswer.of(request.named))


@deliveries.endpoint("POST /{name}/pause", _MANAGE, _NOW, errors=(404,), request=NoOptions)
def pause_delivery(request: Request) -> Reply:
    """Pause a delivery."""
    found = runtime.current().deliveries.pause(request.named, request.edit)
    return Reply(DeliveryAnswer.of(_seen(found)))


@deliveries.endpoint("POST /{name}/resume", _MANAGE, _NOW, errors=(404,), request=NoOptions)
def resume_delivery(request: Request) -> Reply:
    """Resume a paused or disabled delivery."""
    request.needs(Scope.WORK)
    found = runtime.current().deliveries.resume(request.named, request.principal, request.edit)
    return Reply(DeliveryAnswer.of(_seen(found)))


@deliveries.endpoint(
    "POST /{name}/test",
    _MANAGE,
    DeliveryTestAnswer,
    errors=(404,),
    request=DeliveryTestRequest,
    body_required=False,
    example={"type": "image.resize", "args": ["photo.jpg"]},
)
def test_delivery(request: Request) -> Reply:
    """Send a test event to a delivery's target.

    The result that a job would have had.
    """
    body = request.object()
    if body:
        # The target runs the test event like a job.
        request.needs(Scope.JOBS_WRITE)
    return Reply(DeliveryTestAnswer.of(runtime.current().deliveries.test(request.named, body)))
