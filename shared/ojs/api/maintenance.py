"""Maintenance mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ojs import runtime
from ojs.domain import times
from ojs.domain.access import Scope
from ojs.domain.errors import InvalidRequest
from ojs.domain.fields import Duration
from ojs.domain.requests import Field
from ojs.http.answer import Answer, maybe, moment, shown, source
from ojs.http.answers import Moment
from ojs.http.binding.request import Request
from ojs.http.endpoint import Permission, QueueScope, Reply, Resource
from ojs.http.models import Configuration
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.maintenance import Maintenance

MAX_REASON = 1_000


class MaintenanceRequest(Configuration):
    """Begin or end maintenance mode. A reason and a duration belong to a beginning."""

    enabled: bool
    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON)] | None = Field(
        None, description="reason, which other operators see"
    )
    estimated_duration: Duration | None = Field(
        None, description="how long it should take, from its beginning: ISO 8601, or short as `30m`"
    )
    duration: Duration | None = Field(None, description="the same as estimated_duration")

    def check(self, prefix: str = "") -> None:
        """Raise InvalidRequest for different durations, or for a reason or duration on disable."""
        sent = {
            name: value
            for name in ("reason", "estimated_duration", "duration")
            if (value := getattr(self, name)) is not None
        }
        if not self.enabled and sent:
            name, value = next(iter(sent.items()))
            rule = "requires enabled true. Omit it when you disable maintenance"
            raise InvalidRequest(f"{prefix}{name}", rule, value=value)
        lengths = {times.duration_ms(value) for name, value in sent.items() if name != "reason"}
        if len(lengths) > 1:
            rule = "must have the same value as estimated_duration. Send only one of them"
            raise InvalidRequest(f"{prefix}duration", rule, value=self.duration)

    @property
    def duration_ms(self) -> int | None:
        """The expected duration in milliseconds."""
        said = self.estimated_duration or self.duration
        return None if said is None else times.duration_ms(said)


@record(frozen=True)
class _Mode:
    """Maintenance mode. `found` is None while it is disabled."""

    found: Maintenance | None

    @property
    def on(self) -> bool:
        return self.found is not None


_m: _Mode = source()
_found = maybe(_m.found)


class MaintenanceAnswer(Answer[_Mode]):
    """Whether maintenance mode is on. Times and reason are there while it is."""

    enabled: bool = _m.on
    maintenance: bool = enabled
    reason: str = shown(_found.reason, absent=True)
    enabled_at: Moment = shown(moment(_found.since_ms), absent=True)
    started_at: Moment = enabled_at
    effective_at: Moment = shown(
        moment(_found.effective_ms), absent=True, says="from then on no job is dispatched"
    )
    estimated_end: Moment = shown(
        moment(_found.until_ms),
        absent=True,
        says="planned end; maintenance doesn't end automatically",
    )
    ends_at: Moment = estimated_end


maintenance = Resource("admin/system/maintenance", "system", also={"{}_alias": "admin/maintenance"})


@maintenance.endpoint("GET", Permission(Scope.ADMIN_READ, QueueScope.ALL), MaintenanceAnswer)
def get_maintenance(_request: Request) -> Reply:
    """Read whether maintenance mode is on.

    Since when, why and for how long.
    """
    return Reply(MaintenanceAnswer.of(_Mode(runtime.current().maintenance.read())))


@maintenance.endpoint(
    "POST",
    Permission(Scope.ADMIN_WRITE, QueueScope.ALL),
    MaintenanceAnswer,
    request=MaintenanceRequest,
    example={
        "enabled": True,
        "reason": "Database migration in progress",
        "estimated_duration": "PT30M",
    },
)
def set_maintenance(request: Request) -> Reply:
    """Begin or end maintenance mode.

    What holds from now on.
    """
    body = request.parsed(MaintenanceRequest)
    current = runtime.current()
    if not body.enabled:
        current.maintenance.end()
        if current.wake is not None:
            current.wake.maintenance_ended()
        return Reply(MaintenanceAnswer.of(_Mode(None)))
    now_ms = current.clock.now_ms()
    begun = current.maintenance.begin(body.reason, body.duration_ms, now_ms=now_ms)
    return Reply(MaintenanceAnswer.of(_Mode(begun)))
