"""The definition of a cron job: the request formats of all clients, and the stored format.

The conformance suite sends `expression` and `job_template`. SDKs send `cron` and the fields of the
job at the top level. The admin UI sends `schedule`. Responses contain all of these fields, so a
client can send back a response as a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal

from ojs.domain import times
from ojs.domain.access import Principal
from ojs.domain.cron.schedule import MIN_INTERVAL_MS, Schedule, Tick
from ojs.domain.errors import InvalidRequest, naming_field
from ojs.domain.fields import Duration
from ojs.domain.job import envelope
from ojs.domain.job.envelope import MAX_NAME_BYTES, QUEUE_PATTERN, JobRequest, JobType, QueueName
from ojs.domain.job.job import DEFAULT_QUEUE
from ojs.domain.rate_limit.limiter import MAX_KEY, limiter_name
from ojs.domain.requests import After, Field, Model
from ojs.records import record

NAME_PATTERN = QUEUE_PATTERN
MAX_DESCRIPTION = 1_000
# The URL path of a cron job with this name belongs to another operation of the API.
RESERVED_NAME = "preview"
MAX_JITTER_MS = 3_600_000
# Number of future ticks whose distances are checked at registration.
CHECKED_TICKS = 100
# Field names of the expression in requests, in order of precedence.
EXPRESSION_NAMES = ("expression", "cron", "schedule")
TEMPLATE = "job_template"
# Fields of a template that a request can also have at the top level.
_FLAT = ("type", "args", "meta", "options")
# Time fields of a template. They must be relative: a fixed time would fit one run only.
_MOMENTS = ("scheduled_at", "delay_until", "expires_at")


class OverlapPolicy(StrEnum):
    """The action at a tick if an earlier job of the cron job is not in a
    final state (section 6).
    """

    SKIP = "skip"
    ALLOW = "allow"
    CANCEL_PREVIOUS = "cancel_previous"
    ENQUEUE = "enqueue"


_OTHER_NAMES = {
    "cancel": OverlapPolicy.CANCEL_PREVIOUS,
    "replace": OverlapPolicy.CANCEL_PREVIOUS,
    "queue": OverlapPolicy.ENQUEUE,
}
OverlapName = Literal[
    "skip", "allow", "cancel_previous", "enqueue", "cancel", "replace", "queue"
]  # fmt: skip


def check_name(value: str) -> str:
    """Return `value` if it is a valid cron job name.

    Raises ValueError with the violated rule if it is invalid.
    """
    if value == RESERVED_NAME:
        raise ValueError("is reserved. Use another name")
    return envelope.check_queue(value)


CronName = Annotated[
    str,
    After(check_name),
    Field(json_schema_extra={"pattern": NAME_PATTERN, "maxLength": MAX_NAME_BYTES}),
]
_IGNORED: Any = Field(None, description="set by the server; ignored")


class CronRequest(Model):
    """A cron job to register, or changes to one. Null means "not set"."""

    name: CronName | None = Field(None, description="needed, unless it is in the path")
    expression: str | None = Field(None, description="when it fires: docs/cron.md")
    cron: str | None = Field(None, description="the same as expression")
    schedule: str | None = Field(None, description="the same as expression")
    timezone: str | None = Field(None, description="IANA name; UTC when not given")
    job_template: dict[str, Any] | None = Field(
        None, description="the job to push at each tick, as POST /jobs takes it, without an id"
    )
    type: JobType | None = Field(None, description="the same as job_template.type")
    args: list[Any] | None = Field(None, description="the same as job_template.args")
    meta: dict[str, Any] | None = Field(None, description="the same as job_template.meta")
    options: dict[str, Any] | None = Field(None, description="the same as job_template.options")
    queue: QueueName | None = Field(None, description="the same as job_template.options.queue")
    overlap_policy: OverlapName | None = None
    enabled: bool | None = None
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION)] | None = None
    starts_at: str | None = Field(None, description="RFC 3339: it does not fire earlier")
    ends_at: str | None = Field(None, description="RFC 3339: it does not fire later")
    catchup_window: Duration | None = Field(
        None, description="maximum delay of a tick that still fires; default: no maximum"
    )
    jitter: Duration | None = Field(
        None, description="maximum random delay of each firing, at most an hour"
    )
    pause_on_failure: bool | None = Field(
        None, description="whether it pauses when one of its jobs is discarded"
    )
    id: Any = _IGNORED
    etag: Any = _IGNORED
    status: Any = _IGNORED
    next_run_at: Any = _IGNORED
    last_run_at: Any = _IGNORED
    last_job_id: Any = _IGNORED
    run_count: Any = _IGNORED
    created_at: Any = _IGNORED
    updated_at: Any = _IGNORED
    warnings: Any = _IGNORED


@record(frozen=True)
class CronSettings:
    """The settings of a request, by one name each. `values` contains only settings that are set.

    Errors use the client's names: `expression_name` is its name of the expression, and
    `template_path` is the prefix of template fields.
    """

    name: str | None
    enabled: bool | None
    values: Mapping[str, Any]
    expression_name: str
    template_path: str

    @classmethod
    def read(cls, raw: object) -> CronSettings:
        """Parse a request. Raises InvalidRequest that names the field."""
        body = CronRequest.model_validate(raw)
        given = [name for name in EXPRESSION_NAMES if getattr(body, name) is not None]
        for name in given[1:]:
            _must_agree(name, getattr(body, name), given[0], getattr(body, given[0]))
        beside = any(getattr(body, name) is not None for name in (*_FLAT, "queue"))
        values: dict[str, Any] = {
            "expression": getattr(body, given[0]) if given else None,
            "timezone": body.timezone,
            "overlap": body.overlap_policy
            and OverlapPolicy(_OTHER_NAMES.get(body.overlap_policy, body.overlap_policy)),
            "description": body.description,
            "starts_ms": _moment(body, "starts_at"),
            "ends_ms": _moment(body, "ends_at"),
            "catchup_ms": _length(body.catchup_window),
            "jitter_ms": _length(body.jitter),
            "pause_on_failure": body.pause_on_failure,
            "template": _template(body) or None,
        }
        return cls(
            name=body.name,
            enabled=body.enabled,
            values={name: value for name, value in values.items() if value is not None},
            expression_name=given[0] if given else EXPRESSION_NAMES[0],
            template_path="" if beside and body.job_template is None else f"{TEMPLATE}.",
        )


def _must_agree(name: str, value: Any, other: str, there: Any) -> None:
    if value != there:
        raise InvalidRequest(
            name, f"conflicts with {other}: both set the same value. Send only one of them"
        )


def _moment(body: CronRequest, name: str) -> int | None:
    text = getattr(body, name)
    if text is None:
        return None
    with naming_field(name, text, "must be an RFC 3339 timestamp with a time zone"):
        if text.startswith("+"):
            raise ValueError
        return times.timestamp_ms(text, now_ms=0)


def _length(duration: str | None) -> int | None:
    return None if duration is None else times.duration_ms(duration)


def _template(body: CronRequest) -> dict[str, Any]:
    """Return the template fields of a request. Empty if it has none."""
    template = {k: value for k, value in (body.job_template or {}).items() if value is not None}
    for name in _FLAT:
        value = getattr(body, name)
        if value is not None:
            _must_agree(name, value, f"{TEMPLATE}.{name}", template.setdefault(name, value))
    if body.queue is not None:
        options = template.setdefault("options", {})
        if isinstance(options, dict):
            there = template.get("queue")
            there = options.get("queue") or there
            if there is None:
                template["options"] = {**options, "queue": body.queue}
            else:
                _must_agree("queue", body.queue, "that of the template", there)
    return template


def merged(stored: Any, change: Any) -> Any:
    """Apply the changes of a PATCH: merge objects, replace other values, ignore null."""
    if change is None:
        return stored
    if not isinstance(stored, Mapping) or not isinstance(change, Mapping):
        return change
    return {
        name: merged(stored.get(name), change.get(name))
        for name in dict.fromkeys((*stored, *change))
    }


@record(frozen=True)
class CronDefinition:
    """The expression, the job template, and the options of a cron job. Times in ms.

    `template` is the enqueue request of its jobs. `producer` is the name of the caller that
    registered it, and `queues` is the queue scope of that caller (None: all queues).
    """

    expression: str
    template: Mapping[str, Any]
    timezone: str = "UTC"
    overlap: OverlapPolicy = OverlapPolicy.SKIP
    description: str | None = None
    starts_ms: int | None = None
    ends_ms: int | None = None
    catchup_ms: int | None = None
    jitter_ms: int = 0
    pause_on_failure: bool = False
    producer: str | None = None
    queues: tuple[str, ...] | None = None
    # The client's name of the expression.
    expression_name: str = field(default=EXPRESSION_NAMES[0], compare=False)

    def compact(self) -> dict[str, Any]:
        """Return the stored form: the fields that differ from their defaults."""
        found = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if each.compare and value != each.default:
                found[each.name] = list(value) if isinstance(value, tuple) else value
        return found

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> CronDefinition:
        """Read the result of `compact`. Fields of newer versions are ignored."""
        known = {each.name for each in fields(cls)}
        values = {name: value for name, value in stored.items() if name in known}
        if "overlap" in values:
            values["overlap"] = OverlapPolicy(values["overlap"])
        if values.get("queues") is not None:
            values["queues"] = tuple(values["queues"])
        return cls(**values)

    @cached_property
    def schedule(self) -> Schedule:
        """The parsed schedule. Raises InvalidRequest with the name of the field."""
        return Schedule.parse(self.expression, self.timezone, field=self.expression_name)

    @property
    def follows_zone(self) -> bool:
        """Whether new time zone rules can change the ticks of the cron job."""
        every = self.expression.strip().lower().startswith("@every")
        return self.timezone != "UTC" and not every

    @property
    def queue(self) -> str:
        """The queue of the cron job's jobs."""
        options = self.template.get("options") or {}
        return options.get("queue") or self.template.get("queue") or DEFAULT_QUEUE

    def reaches(self, queue: str) -> bool:
        """Return whether the caller that registered the cron job has access to a queue."""
        return Principal(self.producer, queues=self.queues).reaches(queue)

    def next_after(self, ms: int, *, anchor_ms: int) -> Tick | None:
        """Return the first tick later than `ms` between `starts_ms` and `ends_ms`, or None.

        `anchor_ms` is the time of the previous tick, or of the registration.
        """
        tick = self.schedule.next_after(max(ms, (self.starts_ms or 0) - 1), anchor_ms=anchor_ms)
        if tick is None or (self.ends_ms is not None and tick.at_ms > self.ends_ms):
            return None
        return tick

    def check(self, *, now_ms: int, path: str = "", least_ms: int = 0) -> None:
        """Check that the definition can be registered.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            path: Prefix of template fields in errors. Default: none.
            least_ms: Minimum time between two ticks in milliseconds. Default: no minimum.

        Raises:
            InvalidRequest: The cron job never fires, two ticks are too close, or the template is
                not a valid job that can be repeated.
        """
        following = self.schedule.next_after(now_ms, anchor_ms=now_ms)
        if following is None:
            raise InvalidRequest(
                self.expression_name, "has no run in the next eight years", value=self.expression
            )
        if self.ends_ms is not None and self.ends_ms <= (self.starts_ms or 0):
            raise InvalidRequest("ends_at", "must be later than starts_at")
        self._check_jitter(following)
        self._check_interval(following, least_ms)
        if "type" not in self.template:
            raise InvalidRequest(f"{path}type", "is required")
        request = envelope.parse(self.template, path)
        if request.id is not None:
            raise InvalidRequest(f"{path}id", "can't be set: each run creates a job with a new ID")
        for name in _MOMENTS:
            value, where = request.choose(name)
            if value is not None and not value.startswith("+"):
                rule = "must be relative to the time of the run: '+' and an ISO 8601 duration"
                raise InvalidRequest(path + where, rule, value=value)
        limit, where = request.choose("rate_limit")
        if self.overlap is OverlapPolicy.ENQUEUE and limit is not None:
            rule = "can't be combined with the overlap policy 'enqueue'"
            raise InvalidRequest(path + where, rule)

    def _check_jitter(self, following: Tick) -> None:
        if not self.jitter_ms:
            return
        if self.jitter_ms > MAX_JITTER_MS:
            raise InvalidRequest("jitter", "must be at most one hour")
        later = self.schedule.next_after(following.at_ms, anchor_ms=following.at_ms)
        if later is not None and later.at_ms - following.at_ms <= self.jitter_ms:
            raise InvalidRequest("jitter", "must be shorter than the time between two runs")

    def _check_interval(self, tick: Tick | None, least_ms: int) -> None:
        """Raise InvalidRequest if the time between two of the next ticks is below `least_ms`."""
        for _ in range(CHECKED_TICKS if least_ms > MIN_INTERVAL_MS else 0):
            if tick is None:
                return
            later = self.schedule.next_after(tick.at_ms, anchor_ms=tick.at_ms)
            if later is not None and later.at_ms - tick.at_ms < least_ms:
                rule = (
                    f"must leave at least {least_ms // 1_000} s between two runs (setting "
                    "min_cron_interval_s)"
                )
                raise InvalidRequest(self.expression_name, rule, value=self.expression)
            tick = later

    def job_request(self, name: str, tick_ms: int, job_id: str | None = None) -> JobRequest:
        """Build the enqueue request for a tick.

        Args:
            name: Name of the cron job.
            tick_ms: Time of the tick in milliseconds since the epoch.
            job_id: ID of the job. Default: generated.

        Raises:
            InvalidRequest: The template is not a valid job.
            ValidationFailed: The template breaks a rule of a policy.
        """
        raw = dict(self.template)
        raw["meta"] = {
            **(raw.get("meta") or {}),
            "cron_name": name,
            "cron_triggered_at": times.format_ms(tick_ms),
        }
        if job_id is not None:
            raw["id"] = job_id
        if self.overlap is OverlapPolicy.ENQUEUE:
            limit = {"key": limit_key(name), "concurrency": 1}
            raw["options"] = {**(raw.get("options") or {}), "rate_limit": limit}
        return envelope.parse(raw)


def limit_key(name: str) -> str:
    """Return the rate limit key that allows one active job of a cron job at a time."""
    key = f"ojs:cron:{name}"
    return key if len(key) <= MAX_KEY else f"ojs:cron:{limiter_name(name)}"
