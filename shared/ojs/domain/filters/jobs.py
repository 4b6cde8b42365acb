"""Filters of jobs in any state, for listings and bulk operations."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar

from ojs.domain.errors import InvalidRequest, any_of
from ojs.domain.filters import conditions
from ojs.domain.filters.conditions import (
    MAX_ARGS_CHARACTERS,
    Condition,
    Filter,
    all_applied,
    is_of_type,
    same,
)
from ojs.domain.job import envelope
from ojs.domain.job.envelope import MAX_NAME_BYTES, MAX_PRIORITY, TYPE_PATTERN, QueueName
from ojs.domain.job.job import Job
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.pool.worker import check_worker_id
from ojs.domain.requests import After, Field, Model

# A job type, or the prefix of one followed by a star.
KIND_PATTERN = rf"({TYPE_PATTERN}|[a-z][a-z0-9_\-.]*\*)"
_PREFIX = re.compile(r"[a-z][a-z0-9_\-.]*\*")
MAX_META = 20


def check_kind(value: str) -> str:
    """Return `value` if it is a job type or a prefix with `*`. Raises ValueError if not."""
    if not value.endswith("*"):
        return envelope.check_type(value)
    if len(value) > MAX_NAME_BYTES or not _PREFIX.fullmatch(value):
        raise ValueError("must be a job type, or a prefix of one followed by '*'")
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


def _has_meta(job: Job, wanted: Mapping[str, Any]) -> bool:
    meta = (job.content or {}).get("meta") or {}
    return all(key in meta and same(meta[key], value) for key, value in wanted.items())


# The condition of each field.
CONDITIONS: Mapping[str, Condition] = {
    "queue": conditions.QUEUE,
    "state": Condition(
        lambda job, states: job.state in states,
        lambda sent, now_ms: tuple(dict.fromkeys([sent] if isinstance(sent, State) else sent)),
        lambda states: [state.value for state in states],
        listed=True,
    ),
    "type": conditions.TYPE,
    "tag": Condition(
        lambda job, tag: tag in ((job.content or {}).get("tags") or ()), content=True, listed=True
    ),
    "worker_id": Condition(lambda job, worker_id: job.worker_id == worker_id, listed=True),
    "producer": Condition(lambda job, producer: job.producer == producer, listed=True),
    "since": conditions.since(lambda job: job.created_ms, listed=True),
    "until": conditions.until(lambda job: job.created_ms, listed=True),
    "enqueued_after": conditions.since(lambda job: job.enqueued_ms),
    "enqueued_before": conditions.until(lambda job: job.enqueued_ms),
    "older_than": conditions.until(lambda job: job.ended_ms, conditions.age),
    "priority": Condition(lambda job, priority: job.priority == priority),
    "meta": Condition(_has_meta, write=dict, content=True),
    "args": conditions.ARGS,
}
all_applied(JobFilterRequest, CONDITIONS)
# An erasure applies its filter as a JobFilter.
all_applied(EraseFilter, {name: CONDITIONS[name] for name in ("meta", "queue", "type")})
# The fields that listings accept as parameters.
LISTED = tuple(name for name, condition in CONDITIONS.items() if condition.listed)


class JobFilter(Filter):
    """A parsed filter of jobs. Without `states`, it matches all states.

    If `unique` is true, it matches unique jobs only. If `tenant` is set, it matches jobs of this
    tenant only. Requests for jobs don't have these fields. Requests for the locks of unique jobs
    use the first one, and the tenant is the caller's.
    """

    request = JobFilterRequest
    conditions: ClassVar = {
        **CONDITIONS,
        "unique": Condition(lambda job, _: job.unique_key is not None),
        "tenant": conditions.TENANT,
    }
    spans: ClassVar = {"since": ("until",), "enqueued_after": ("enqueued_before",)}

    def __init__(
        self, queue: str | None = None, state: Collection[State] = (), **values: Any
    ) -> None:
        super().__init__(queue, state=tuple(state) or None, **values)
        self.states: tuple[State, ...] = self.values.get("state", ())

    @property
    def counted(self) -> bool:
        """Whether the filter has no conditions except queue and states.

        If true, the number of matching jobs can be read from counters, and all index entries of the
        queue and the states match.
        """
        return self.values.keys() <= {"queue", "state"}

    def wants(self, *states: State) -> bool:
        """Return whether jobs in one of these states can match."""
        return (not self.states and bool(states)) or not set(states).isdisjoint(self.states)

    def matches_type(self, name: str) -> bool:
        """Return whether jobs of this type can match."""
        return is_of_type(name, self.values.get("type", "*"))

    def forgotten(self) -> JobFilter:
        """Return the filter with the keys but without the values of its condition on `meta`."""
        meta = self.values.get("meta")
        return self if meta is None else self.but(meta=dict.fromkeys(meta))


def parse(raw: object, *, now_ms: int, prefix: str = "filter.") -> JobFilter:
    """Parse a filter. `{}` matches all jobs.

    Args:
        raw: Request body, decoded.
        now_ms: Current time in milliseconds since the epoch. Ages are relative to it.
        prefix: Prefix of field names in errors. Default: `filter.`.

    Raises:
        InvalidRequest: A field is invalid, empty, or null, or two fields contradict each other.
    """
    wanted = JobFilter(**JobFilter.read(raw, now_ms=now_ms, prefix=prefix))
    if "older_than" in wanted.values:
        if wanted.states and TERMINAL.isdisjoint(wanted.states):
            rule = f"applies to finished jobs only, but state is {any_of(wanted.states)}"
            assert isinstance(raw, Mapping)
            raise InvalidRequest(f"{prefix}older_than", rule, value=raw["older_than"])
        wanted = limited(wanted, TERMINAL)
    return wanted


def limited(wanted: JobFilter, states: Collection[State]) -> JobFilter:
    """Limit a filter to these states.

    Raises ValueError if no state remains, because a filter without a state matches all jobs.
    """
    kept = [state for state in State if state in states and wanted.wants(state)]
    if not kept:
        raise ValueError(f"{wanted} matches none of the states {any_of(sorted(states))}")
    return wanted.but(state=kept)


def from_query(query: Mapping[str, str], *, now_ms: int) -> JobFilter:
    """Parse the parameters of a listing.

    Raises InvalidRequest that names the parameter, also if a parameter is empty.
    """
    sent: dict[str, object] = {name: query[name] for name in LISTED if name in query}
    if query.get("state"):
        sent["state"] = query["state"].split(",")
    return parse(sent, now_ms=now_ms, prefix="")
