"""Parameters of several operations, and functions that build their schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs.domain.job.envelope import MAX_NAME_BYTES, QUEUE_PATTERN
from ojs.domain.pool.pool import MAX_POOL_BYTES, POOL_PATTERN
from ojs.http.endpoint import Parameter

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
# Maximum wait for space in a queue, and maximum length of a producer name.
MAX_BLOCK_S = 25
MAX_PRODUCER = MAX_NAME_BYTES
# Maximum number of items to skip, because the request reads them. Cursors have no such limit.
MAX_OFFSET = 1_000
# Maximum number of queues on a page. A response with counts and rates reads a limited number of
# items, so a page can have fewer queues.
MAX_QUEUES_LIMIT = 100
MAX_QUEUES_OFFSET = 300
# Maximum number of entries in a list in a query parameter.
MAX_FILTER_NAMES = 50


def whole(least: int, most: int, default: int) -> dict[str, Any]:
    """Build the schema of an integer.

    Args:
        least: Minimum value.
        most: Maximum value.
        default: Default value.
    """
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


def text(pattern: str, most: int) -> dict[str, Any]:
    """Build the schema of a string with at most `most` characters that fully matches `pattern`."""
    return {"type": "string", "pattern": pattern, "maxLength": most}


def one_of(*values: str, default: str | None = None) -> dict[str, Any]:
    """Build the schema of a string with one of these values."""
    schema: dict[str, Any] = {"type": "string", "enum": [*values]}
    return schema if default is None else {**schema, "default": default}


def listed(*names: str, pattern: str, what: str) -> tuple[Parameter, ...]:
    """Declare a parameter with a comma-separated list, under each of these names."""
    schema = {"type": "string", "pattern": f"{pattern}(,{pattern}){{0,{MAX_FILTER_NAMES - 1}}}"}
    return (
        Parameter(names[0], schema, what),
        *(Parameter(name, schema, f"the same as {names[0]}") for name in names[1:]),
    )


def paged(
    limit: Mapping[str, Any], farthest: int, what: str = "most items of one page"
) -> tuple[Parameter, ...]:
    """Declare the parameters that select a page.

    Args:
        limit: Schema of the number of items on a page.
        farthest: Maximum number of items to skip.
        what: Description of `limit`.
    """
    return (
        Parameter("limit", limit, what),
        CURSOR,
        Parameter("offset", whole(0, farthest, 0), "items to skip; a cursor has no such bound"),
        Parameter(
            "page",
            whole(1, farthest + 1, 1),
            f"page number; the pages before it may have {farthest} items in all",
        ),
        Parameter("per_page", limit, "the same as limit"),
    )


POOL_SCHEMA = text(POOL_PATTERN, MAX_POOL_BYTES)
QUEUE_SCHEMA = text(QUEUE_PATTERN, MAX_NAME_BYTES)
MOMENT_SCHEMA = {"type": "string", "format": "date-time"}
LIMIT = whole(1, MAX_LIMIT, DEFAULT_LIMIT)
SEALED = {"type": "string", "pattern": "[A-Za-z0-9_-]*={0,2}"}
CURSOR = Parameter(
    "cursor", SEALED, "`next_cursor` of the page before; not together with offset or page"
)
PAGING = paged(LIMIT, MAX_OFFSET)
# Excludes unprintable characters, as far as all JSON Schema validators can match them.
_PRINTABLE = r"[^\u0000-\u001f\u007f-\u00a0\u00ad\u2028\u2029]+"
PRODUCER = Parameter(
    "X-OJS-Producer",
    text(_PRINTABLE, MAX_PRODUCER) | {"minLength": 1},
    "who enqueues, for queues that take jobs of some producers only",
)
QUEUES_LIMIT = Parameter(
    "limit",
    whole(1, MAX_QUEUES_LIMIT, DEFAULT_LIMIT),
    "most queues of one page, which may have fewer",
)
QUEUES_PAGING = paged(QUEUES_LIMIT.schema, MAX_QUEUES_OFFSET, QUEUES_LIMIT.description)
