"""Parameters that several operations have, and what their schemas are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs.domain.job.envelope import MAX_NAME_BYTES, QUEUE_PATTERN
from ojs.domain.pool.pool import MAX_POOL_BYTES, POOL_PATTERN
from ojs.http.endpoint import Parameter

DEFAULT_LIMIT = 50
MAX_LIMIT = 200
# Longest wait for room in a queue, and characters of a producer's name.
MAX_BLOCK_S = 25
MAX_PRODUCER = MAX_NAME_BYTES
# Skipping costs reading what is skipped; cursors have no such bound.
MAX_OFFSET = 1_000
# Queues are shown with counts and rates, and an answer reads a bounded number of items: a page may
# have fewer than that.
MAX_QUEUES_LIMIT = 100
MAX_QUEUES_OFFSET = 300
# Entries of a list in a query parameter.
MAX_FILTER_NAMES = 50


def whole(least: int, most: int, default: int) -> dict[str, Any]:
    """A whole number from `least` to `most`."""
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


def text(pattern: str, most: int) -> dict[str, Any]:
    """A text of at most so many characters, all of which match the pattern."""
    return {"type": "string", "pattern": pattern, "maxLength": most}


def one_of(*values: str, default: str | None = None) -> dict[str, Any]:
    """One of these texts."""
    schema: dict[str, Any] = {"type": "string", "enum": [*values]}
    return schema if default is None else {**schema, "default": default}


def listed(*names: str, pattern: str, what: str) -> tuple[Parameter, ...]:
    """Texts separated by commas, in a parameter of one of these names."""
    schema = {"type": "string", "pattern": f"{pattern}(,{pattern}){{0,{MAX_FILTER_NAMES - 1}}}"}
    return (
        Parameter(names[0], schema, what),
        *(Parameter(name, schema, f"the same as {names[0]}") for name in names[1:]),
    )


def paged(
    limit: Mapping[str, Any], farthest: int, what: str = "most items of one page"
) -> tuple[Parameter, ...]:
    """How to ask for a page; at most `farthest` items are skipped."""
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
# The unprintable characters that the regular expressions of all JSON Schema validators can name.
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
