"""Filters of dead letters, for listings, bulk operations, and replay rules.

Listings ignore an empty parameter. Bulk operations reject a filter without fields and a filter with
an empty field. Replay rules accept a filter without fields: the filter is a required field, applies
to one queue, and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from ojs.domain.errors import InvalidRequest
from ojs.domain.filters import conditions
from ojs.domain.filters.conditions import MAX_ARGS_CHARACTERS, Condition, Filter, all_applied
from ojs.domain.job.envelope import JobType, QueueName
from ojs.domain.job.failure import MAX_NAME_CHARACTERS, UNKNOWN_TYPE, kept_type
from ojs.domain.job.job import Job
from ojs.domain.requests import Field, Model

# The error for a value of `all` other than true.
EVERY = "must be true. To select dead letters by a filter, omit it"


class FilterRequest(Model):
    """A filter as sent, in the body of a bulk operation or as parameters of a listing."""

    filled = True

    queue: QueueName | None = None
    type: JobType | None = None
    error_type: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)] | None = Field(
        None, description="the type of the latest error; `Unknown` where there is none"
    )
    since: str | None = Field(None, description="discarded then or later; RFC 3339")
    until: str | None = Field(None, description="discarded before; RFC 3339")
    before: str | None = Field(None, description="the same as until")
    older_than: str | None = Field(
        None, description="discarded before; RFC 3339, or how long ago: `P30D`, `72h`"
    )
    args: Annotated[str, Field(min_length=1, max_length=MAX_ARGS_CHARACTERS)] | None = Field(
        None,
        description="a part of the JSON text of args; or, beginning with `$`, a JSON path of "
        "children, indexes and `*` which leads somewhere, with `=` and a value that is found there",
    )


# Its field names, for tables of parameters.
FIELDS = tuple(FilterRequest.model_fields)
# End fields of the time range. A filter stores the earliest of them as `until`.
_ENDS = ("until", "before", "older_than")


def _discarded_ms(job: Job) -> int:
    return job.discarded_ms or 0


class DeadLetterFilter(Filter):
    """A parsed filter of dead letters, discarded at or after `since_ms` and before `until_ms`."""

    request = FilterRequest
    conditions: ClassVar = {
        "queue": conditions.QUEUE,
        "tenant": conditions.TENANT,
        "type": conditions.TYPE,
        "error_type": Condition(
            lambda job, name: name == (job.error_type or UNKNOWN_TYPE),
            lambda sent, now_ms: kept_type(sent),
        ),
        "since": conditions.since(_discarded_ms),
        "until": conditions.until(_discarded_ms),
        "before": conditions.until(_discarded_ms),
        "older_than": conditions.until(_discarded_ms, conditions.age),
        "args": conditions.ARGS,
    }
    spans: ClassVar = {"since": _ENDS}

    def __init__(self, queue: str | None = None, **values: Any) -> None:
        super().__init__(queue, **values)
        self.until_ms: int | None = self.values.get("until")

    @property
    def everything(self) -> bool:
        """Whether the filter matches all dead letters, or all of one queue."""
        return self.values.keys() <= {"queue"}

    @property
    def picky(self) -> bool:
        """Whether the filter has conditions that the index can't check: all
        except queue and times.
        """
        return not self.values.keys() <= {"queue", "since", "until"}

    def matches_record(self, job: Job) -> bool:
        """Return whether a job record is a dead letter that matches.

        The payload might not match.
        """
        return job.dead_letter and super().matches_record(job)


# The tenant is the caller's. No request contains it.
all_applied(FilterRequest, DeadLetterFilter.conditions.keys() - {"tenant"})
EVERYTHING = DeadLetterFilter()


def parse(raw: object, *, now_ms: int, prefix: str = "filter.") -> DeadLetterFilter:
    """Parse a filter. `{}` matches all dead letters.

    Args:
        raw: Request body, decoded.
        now_ms: Current time in milliseconds since the epoch. Ages are relative to it.
        prefix: Prefix of field names in errors. Default: `filter.`.

    Raises:
        InvalidRequest: A field is invalid, empty, or null, or two fields contradict each other.
    """
    values = DeadLetterFilter.read(raw, now_ms=now_ms, prefix=prefix)
    ends = [values.pop(name) for name in _ENDS if name in values]
    return DeadLetterFilter(**values, until=min(ends, default=None))


def parse_bulk(
    filters: Mapping[str, Mapping[str, object]], every: object, *, now_ms: int
) -> DeadLetterFilter:
    """Parse the filter of a bulk operation: a filter with conditions, or all dead letters.

    To select all dead letters, the request must set `all`. An empty or missing filter is rejected,
    because it might be caused by a mistake in the client.

    Args:
        filters: Filters of the request, by the prefix of their field names.
        every: Value of `all`, or None if it is not set.
        now_ms: Current time in milliseconds since the epoch. `older_than` is relative to it.

    Raises:
        InvalidRequest: The filter is invalid or missing. The error names the field.
    """
    if every is not None:
        if every is not True:
            raise InvalidRequest("all", EVERY, value=every)
        if filters:
            raise InvalidRequest("all", "can't be combined with a filter")
        return EVERYTHING
    if not filters:
        rule = f"is required. Send one of {', '.join(FIELDS)}, or all: true for all dead letters"
        raise InvalidRequest("filter", rule)
    (prefix, wanted), *others = filters.items()
    if others:
        raise InvalidRequest("filter", "can't be combined with other filters")
    if not wanted:
        rule = f"must have one of {', '.join(FIELDS)}. For all dead letters, send all: true instead"
        raise InvalidRequest(prefix.rstrip(".") or "filter", rule)
    return parse(wanted, now_ms=now_ms, prefix=prefix)


def from_query(query: Mapping[str, str], *, now_ms: int) -> DeadLetterFilter:
    """Parse the parameters of a listing. Empty parameters are ignored.

    Raises InvalidRequest that names the parameter.
    """
    sent = {name: query[name] for name in FIELDS if query.get(name)}
    return parse(sent, now_ms=now_ms, prefix="")
