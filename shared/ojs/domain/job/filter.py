"""Filters of jobs in any state, for listings and bulk operations.

All conditions of a filter must hold. As with dead letters, a field that is empty or null is
refused: a variable that is not set must not turn "the jobs of this queue" into "all jobs".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any

from ojs.domain import times
from ojs.domain.dead_letter.filter import (
    MAX_ARGS_CHARACTERS,
    ArgsMatch,
    all_applied,
    moment_of,
    same,
)
from ojs.domain.errors import InvalidRequest, naming_field
from ojs.domain.job import envelope
from ojs.domain.job.envelope import MAX_NAME_BYTES, MAX_PRIORITY, TYPE_PATTERN, QueueName
from ojs.domain.job.job import Job
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.pool.worker import check_worker_id
from ojs.domain.requests import After, Field, Model
from ojs.records import record

# A job's type, or the beginning of one and a star.
KIND_PATTERN = rf"({TYPE_PATTERN}|[a-z][a-z0-9_\-.]*\*)"
_PREFIX = re.compile(r"[a-z][a-z0-9_\-.]*\*")
MAX_META = 20


def check_kind(value: str) -> str:
    """Return a job type, or the beginning of one with `*`. Raises ValueError with the rule."""
    if not value.endswith("*"):
        return envelope.check_type(value)
    if len(value) > MAX_NAME_BYTES or not _PREFIX.fullmatch(value):
        raise ValueError("must be a job type, or the beginning of one followed by '*'")
    return value


class JobFilterRequest(Model):
    """A filter as sent: in the body of a bulk operation, or as parameters of a listing."""

    filled = True

    queue: QueueName | None = None
    state: Annotated[list[State], Field(min_length=1)] | State | None = Field(
        None, description="one state, or several"
    )
    type: Annotated[str, After(check_kind), Field(json_schema_extra={"pattern": KIND_PATTERN})] | (
        None
    ) = Field(None, description="a job type, or the beginning of one with `*`")
    tag: Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)] | None = Field(
        None, description="one of the job's tags"
    )
    worker_id: Annotated[str, After(check_worker_id)] | None = Field(
        None, description="run by this worker, now or last"
    )
    producer: Annotated[str, Field(min_length=1, max_length=MAX_NAME_BYTES)] | None = Field(
        None, description="enqueued by this producer: the name on its key"
    )
    since: str | None = Field(None, description="created then or later; RFC 3339")
    until: str | None = Field(None, description="created before; RFC 3339")
    enqueued_after: str | None = Field(None, description="available since then or later; RFC 3339")
    enqueued_before: str | None = Field(None, description="available since before; RFC 3339")
    older_than: str | None = Field(
        None, description="ended before; RFC 3339, or how long ago: `P30D`, `72h`"
    )
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    meta: Annotated[dict[str, Any], Field(min_length=1, max_length=MAX_META)] | None = Field(
        None, description="keys of the job's meta, each with its value"
    )
    args: Annotated[str, Field(min_length=1, max_length=MAX_ARGS_CHARACTERS)] | None = Field(
        None,
        description="a part of the JSON text of args; or, beginning with `$`, a JSON path of "
        "children, indexes and `*` which leads somewhere, with `=` and a value that is found there",
    )


class EraseFilter(Model):
    """Whose jobs are erased: all that have these values in their meta."""

    filled = True

    meta: Annotated[dict[str, Any], Field(min_length=1, max_length=MAX_META)] = Field(
        description="keys of the job's meta, each with its value; none may be empty or null"
    )
    queue: QueueName | None = None
    type: Annotated[str, After(check_kind), Field(json_schema_extra={"pattern": KIND_PATTERN})] | (
        None
    ) = Field(None, description="a job type, or the beginning of one with `*`")


FIELDS = tuple(JobFilterRequest.model_fields)
_MOMENTS = ("since", "until", "enqueued_after", "enqueued_before", "older_than")


@record(frozen=True)
class JobFilter:
    """A filter as it is applied. Times in ms; those that end a span are not in it.

    `states` is empty for all. `since_ms` and `until_ms` are of the creation, `ended_until_ms` of
    the end.
    """

    queue: str | None = None
    states: tuple[State, ...] = ()
    type: str | None = None
    tag: str | None = None
    worker_id: str | None = None
    producer: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    enqueued_since_ms: int | None = None
    enqueued_until_ms: int | None = None
    ended_until_ms: int | None = None
    priority: int | None = None
    meta: Mapping[str, Any] | None = None
    args: ArgsMatch | None = None
    # Only unique jobs. No request for jobs says so, but one for their locks.
    unique: bool = False

    @property
    def counted(self) -> bool:
        """Whether it asks for queue and states at most. Then counters know how many jobs match, and
        what stands where such jobs are found does match.
        """
        return JobFilter(self.queue, self.states) == self

    @property
    def of_content(self) -> bool:
        """Whether it has conditions on what the client sent, which may be offloaded."""
        return not (self.tag is None and self.meta is None and self.args is None)

    def wants(self, *states: State) -> bool:
        """Whether jobs in one of these states may match."""
        return (not self.states and bool(states)) or not set(states).isdisjoint(self.states)

    def matches_type(self, name: str) -> bool:
        """Whether jobs of this type may match."""
        if self.type is not None and self.type.endswith("*"):
            return name.startswith(self.type[:-1])
        return self.type in (None, name)

    def matches_record(self, job: Job) -> bool:
        """Whether a job may match, by its record alone."""
        return not (self.unique and job.unique_key is None) and all(
            condition.matches(self, job)
            for condition in CONDITIONS.values()
            if not condition.content
        )

    def matches_content(self, job: Job) -> bool:
        """Whether what the client sent matches; it must be loaded."""
        return all(
            condition.matches(self, job) for condition in CONDITIONS.values() if condition.content
        )

    def forgotten(self) -> JobFilter:
        """The filter without the values that it asks meta for."""
        return self if self.meta is None else replace(self, meta=dict.fromkeys(self.meta))

    def to_dict(self) -> dict[str, Any]:
        """An equivalent request, with durations as times; `parse` reads it."""
        fields = {name: condition.write(self) for name, condition in CONDITIONS.items()}
        fields["unique"] = self.unique or None
        return {name: value for name, value in fields.items() if value is not None}


def _has_meta(wanted: JobFilter, job: Job) -> bool:
    meta = _sent(job).get("meta") or {}
    sought = (wanted.meta or {}).items()
    return all(key in meta and same(meta[key], value) for key, value in sought)


def _sent(job: Job) -> Mapping[str, Any]:
    return job.content or {}


def _text(ms: int | None) -> str | None:
    return None if ms is None else times.format_ms(ms)


@record(frozen=True)
class Condition:
    """How one field of a request is applied to jobs, and written as a request again. `content` says
    that it needs what the client sent, `listed` that listings take it as a parameter.
    """

    matches: Callable[[JobFilter, Job], bool]
    write: Callable[[JobFilter], object]
    content: bool = False
    listed: bool = False


# Each field of a request.
CONDITIONS: Mapping[str, Condition] = {
    "queue": Condition(lambda f, job: f.queue in (None, job.queue), lambda f: f.queue, listed=True),
    "state": Condition(
        lambda f, job: f.wants(job.state),
        lambda f: [state.value for state in f.states] or None,
        listed=True,
    ),
    "type": Condition(lambda f, job: f.matches_type(job.type), lambda f: f.type, listed=True),
    "tag": Condition(
        lambda f, job: f.tag is None or f.tag in (_sent(job).get("tags") or ()),
        lambda f: f.tag,
        content=True,
        listed=True,
    ),
    "worker_id": Condition(
        lambda f, job: f.worker_id in (None, job.worker_id), lambda f: f.worker_id, listed=True
    ),
    "producer": Condition(
        lambda f, job: f.producer in (None, job.producer), lambda f: f.producer, listed=True
    ),
    "since": Condition(
        lambda f, job: _within(job.created_ms, f.since_ms, None),
        lambda f: _text(f.since_ms),
        listed=True,
    ),
    "until": Condition(
        lambda f, job: _within(job.created_ms, None, f.until_ms),
        lambda f: _text(f.until_ms),
        listed=True,
    ),
    "enqueued_after": Condition(
        lambda f, job: _within(job.enqueued_ms, f.enqueued_since_ms, None),
        lambda f: _text(f.enqueued_since_ms),
    ),
    "enqueued_before": Condition(
        lambda f, job: _within(job.enqueued_ms, None, f.enqueued_until_ms),
        lambda f: _text(f.enqueued_until_ms),
    ),
    "older_than": Condition(
        lambda f, job: _within(job.ended_ms, None, f.ended_until_ms),
        lambda f: _text(f.ended_until_ms),
    ),
    "priority": Condition(lambda f, job: f.priority in (None, job.priority), lambda f: f.priority),
    "meta": Condition(_has_meta, lambda f: None if f.meta is None else dict(f.meta), content=True),
    "args": Condition(
        lambda f, job: f.args is None or f.args.matches(_sent(job).get("args", [])),
        lambda f: None if f.args is None else f.args.text,
        content=True,
        listed=True,
    ),
}
all_applied(JobFilterRequest, CONDITIONS)
# Erasing applies its filter as one of jobs.
all_applied(EraseFilter, {name: CONDITIONS[name] for name in ("meta", "queue", "type")})
# The fields that listings take as parameters.
LISTED = tuple(name for name, condition in CONDITIONS.items() if condition.listed)


def parse(raw: object, *, now_ms: int, prefix: str = "filter.") -> JobFilter:
    """The filter that a body describes; `{}` matches all jobs.

    `older_than` counts back from `now_ms`. Raises InvalidRequest naming the field, also for a field
    that is empty or null, and for fields that contradict each other.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRequest(prefix.rstrip(".") or "body", "must be a JSON object", value=raw)
    request = JobFilterRequest.model_validate(raw, prefix)
    bounds = {
        name: moment_of(text, name, prefix, now_ms)
        for name in _MOMENTS
        if (text := getattr(request, name)) is not None
    }
    for first, last in (("since", "until"), ("enqueued_after", "enqueued_before")):
        if first not in bounds:
            continue
        if bounds[first] >= bounds.get(last, now_ms + 1):
            rule = f"must be before '{last}'" if last in bounds else "must not be in the future"
            raise InvalidRequest(f"{prefix}{first}", rule, value=getattr(request, first))
    with naming_field(f"{prefix}args", request.args):
        args = None if request.args is None else ArgsMatch.of(request.args)
    states = [request.state] if isinstance(request.state, str) else request.state or []
    wanted = JobFilter(
        queue=request.queue,
        states=tuple(dict.fromkeys(map(State, states))),
        type=request.type,
        tag=request.tag,
        worker_id=request.worker_id,
        producer=request.producer,
        since_ms=bounds.get("since"),
        until_ms=bounds.get("until"),
        enqueued_since_ms=bounds.get("enqueued_after"),
        enqueued_until_ms=bounds.get("enqueued_before"),
        ended_until_ms=bounds.get("older_than"),
        priority=request.priority,
        meta=request.meta,
        args=args,
    )
    if wanted.ended_until_ms is not None:
        if wanted.states and TERMINAL.isdisjoint(wanted.states):
            rule = f"is for jobs that have ended; none is {' or '.join(wanted.states)} then"
            raise InvalidRequest(f"{prefix}older_than", rule, value=request.older_than)
        wanted = limited(wanted, TERMINAL)
    return wanted


def limited(wanted: JobFilter, states: Collection[State]) -> JobFilter:
    """The filter for no other states than these."""
    kept = tuple(state for state in State if state in states and wanted.wants(state))
    return replace(wanted, states=kept)


def from_query(query: Mapping[str, str], *, now_ms: int) -> JobFilter:
    """The filter that parameters of a listing describe. Raises InvalidRequest naming the parameter,
    also for an empty one.
    """
    sent: dict[str, object] = {name: query[name] for name in LISTED if name in query}
    if query.get("state"):
        sent["state"] = query["state"].split(",")
    return parse(sent, now_ms=now_ms, prefix="")


def _within(ms: int | None, since_ms: int | None, until_ms: int | None) -> bool:
    """Whether a time is in a span; one that is not set is in none that has an end."""
    if since_ms is None and until_ms is None:
        return True
    if ms is None:
        return False
    return (since_ms is None or since_ms <= ms) and (until_ms is None or ms < until_ms)
