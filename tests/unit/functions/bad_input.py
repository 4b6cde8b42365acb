"""Bad requests: wrong kinds in every place, values that are refused, and what is nearly right."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ojs.api import openapi
from ojs.api import operations as contract
from ojs.http.endpoint import Operation
from tests.spread import spread

UNKNOWN = "019539a4-0000-7000-8000-000000000000"
WITH_BODY = [operation for operation in contract.OPERATIONS if operation.request is not None]
# Long tests have every twelfth of them in `make test`, a third in `make test-exhaustive`.
SPREAD = pytest.mark.parametrize(
    "operation",
    spread(WITH_BODY, 12, ids=[operation.id for operation in WITH_BODY], rest=3),
)
LONG = "x" * 1_048_576


WRONG: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "negative": -1,
    "fraction": 1.5,
    "whole fraction": 1.0,
    "huge": 10**400,
    "large": 2**63,
    "empty string": "",
    "string": "No Such: Thing|",
    "control": "a\x00b",
    "long": "x" * 5_000,
    "array": [],
    "array of nulls": [None],
    "array of arrays": [[[]]],
    "object": {},
    "object of nulls": {"a": None},
}


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a JSON value, but for what belongs to the client alone."""
    if path:
        yield path
    if path and path[-1] in ("args", "meta", "data", "details", "result"):
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*path, index))


def put(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    return changed


# --- what the OpenAPI document says of a place ------------------------------------------------

DOCUMENT = openapi.document("1")


@cache
def validator(operation_id: str) -> Draft202012Validator:
    """Of the bodies of an operation."""
    operation = contract.get(operation_id)
    described = DOCUMENT["paths"][operation.path][operation.method.lower()]["requestBody"]
    schema = described["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def read_parts(body: Any) -> Any:
    """A body without what is not read because another field outranks it, right or wrong."""
    if isinstance(body, list):
        return [read_parts(one) for one in body]
    if not isinstance(body, dict):
        return body
    kept = {name: read_parts(value) for name, value in body.items()}
    options = kept.get("options")
    for first, second in (("delay_until", "scheduled_at"), ("period", "within")):
        if kept.get(first) is not None:
            kept.pop(second, None)
        if isinstance(options, dict) and {first, second} & options.keys():
            kept.pop(first, None)
            kept.pop(second, None)
    for name in ("expires_at", "retry", "unique"):
        if isinstance(options, dict) and options.get(name) is not None:
            kept.pop(name, None)
    return kept


def _parts(schema: Any) -> Iterator[Any]:
    """The schemas of which a value must fit one or all."""
    if name := schema.get("$ref"):
        yield from _parts(DOCUMENT["components"]["schemas"][name.rpartition("/")[2]])
    yield schema
    for choice in ("anyOf", "oneOf", "allOf"):
        for each in schema.get(choice, ()):
            yield from _parts(each)


def _below(schema: Any, key: str | int) -> Iterator[Any]:
    for part in _parts(schema):
        others = part.get("items" if isinstance(key, int) else "additionalProperties")
        found = part.get("properties", {}).get(key, others)
        if isinstance(found, dict):
            yield found


# A word of a schema, and of its value and the good one in this place a value that breaks it.
_BREAKS: dict[str, Callable[[Any, Any], Any]] = {
    "minimum": lambda least, _: least - 1,
    "maximum": lambda most, _: most + 1,
    "exclusiveMinimum": lambda least, _: least,
    "maxLength": lambda most, _: "x" * (most + 1),
    "maxItems": lambda most, good: [*good, *good[:1] * most] if isinstance(good, list) else good,
    "additionalProperties": lambda _, good: (
        good | {"nonsense": 1} if isinstance(good, dict) else good
    ),
}


def wrong_values(operation_id: str, path: tuple[str | int, ...]) -> Iterator[Any]:
    """What the document says is wrong in a place of the example: other kinds of values, and those
    that are just beyond a bound.
    """
    good: Any = EXAMPLES[operation_id]
    schemas: list[Any] = [validator(operation_id).schema]
    for key in path:
        schemas = [below for schema in schemas for below in _below(schema, key)]
        good = good[key]
    beyond = [
        make(part[word], good)
        for schema in schemas
        for part in _parts(schema)
        for word, make in _BREAKS.items()
        if word in part
    ]
    for wrong in (*WRONG.values(), *beyond):
        body = read_parts(put(EXAMPLES[operation_id], path, wrong))
        if not validator(operation_id).is_valid(body):
            yield wrong


_TEXTS = (
    "-1", "1.5", "abc", "9" * 30, "\u0663", "No Such: Thing|", "*", "a*b", "yesterday",
    "2026-01-01", "2h", "$[", "%%%", "x" * 10_240, "\u00fc\U0001f984\u202e",
    "a\ud800",
)  # fmt: skip


def wrong_texts(operation: Operation, name: str) -> Iterator[str]:
    """What the document says is wrong as a parameter of the query."""
    methods = DOCUMENT["paths"][operation.path]
    described = methods[operation.method.lower()]["parameters"]
    (schema,) = (
        each["schema"] for each in described if (each["name"], each["in"]) == (name, "query")
    )
    parts = list(_parts(schema))
    least = [part["minimum"] for part in parts if "minimum" in part]
    most = [part["maximum"] for part in parts if "maximum" in part]
    whole = any(part.get("type") == "integer" for part in parts)
    fits = Draft202012Validator({**schema, "components": DOCUMENT["components"]}).is_valid
    for text in (*_TEXTS, *(f"{n - 1}" for n in least), *(f"{n + 1}" for n in most)):
        number = int(text) if whole and text.isascii() and text.lstrip("-").isdecimal() else text
        if not fits(number):
            yield text


EVERY_OPTION = {
    **openapi.EXAMPLES["enqueue_job"],
    "id": UNKNOWN,
    "specversion": "1.0",
    "schema": "urn:ojs:schema:email.send:v1",
    "options": {
        "queue": "email",
        "priority": 1,
        "timeout": 5,
        "timeout_ms": 5_000,
        "delay_until": "2020-01-01T00:00:00Z",
        "scheduled_at": "+PT1S",
        "expires_at": "2099-01-01T00:00:00Z",
        "visibility_timeout_ms": 1_000,
        "pending": False,
        "tags": ["a"],
        "max_attempts": 3,
        "metadata": {"a": 1},
        "retry": {
            "max_attempts": 5,
            "initial_interval": "PT1S",
            "backoff_coefficient": 2.0,
            "max_interval": "PT5M",
            "jitter": True,
            "backoff_strategy": "linear",
            "non_retryable_errors": ["Auth.*"],
            "on_exhaustion": "discard",
        },
        "unique": {
            "keys": ["type", "args"],
            "period": "PT1H",
            "states": ["available"],
            "on_conflict": "reject",
        },
    },
}
EVERY_FIELD = {
    "max_size": 10,
    "max_size_bytes": 10_000,
    "overflow_policy": "block",
    "warning_threshold": 0.5,
    "concurrency": 3,
    "rate_limit": {"limit": 5, "period": "PT1M"},
    "visibility_timeout": 60,
    "default_timeout": 60,
    "default_retry": EVERY_OPTION["options"]["retry"],
    "retention": {"completed": "P1D", "discarded": "P2D", "cancelled": "PT1H"},
    "allowed_job_types": ["payment.*", "test.echo"],
    "producers": ["billing", "*"],
    "lanes": 2,
    "require_lease_token": True,
    "dead_letter": {
        "retention": {"max_age": "P365D", "max_count": 50_000},
        "pruning_policy": "archive",
    },
}
EXAMPLES = {
    **openapi.EXAMPLES,
    "create_queue": {"name": "payments", "config": EVERY_FIELD},
    "configure_queue": {
        **EVERY_FIELD,
        "max_depth": 10,
        "strategy": "block",
        "backpressure": {
            "max_depth": 10,
            "max_size_bytes": 10_000,
            "strategy": "block",
            "warning_threshold": 0.5,
        },
    },
    "set_queue_policy": EVERY_FIELD,
    "enqueue_job": EVERY_OPTION,
    "enqueue_batch": {"jobs": [{"type": "a", "args": []}, EVERY_OPTION]},
    "enqueue_bulk": {
        "jobs": [{"type": "a", "args": []}, EVERY_OPTION],
        "atomicity": "partial",
        "idempotency_key": "k",
    },
    "fetch_jobs": {
        **openapi.EXAMPLES["fetch_jobs"],
        "visibility_timeout_ms": 1_000,
        "strategy": "strict",
        "acks": [{**openapi.EXAMPLES["ack_job"], "attempt": 1, "lease_token": "AAAAAAAA"}],
        "nacks": [openapi.EXAMPLES["nack_job"]],
    },
    "heartbeat": {
        **openapi.EXAMPLES["register_worker"],
        **openapi.EXAMPLES["heartbeat"],
        "active_job_ids": [UNKNOWN],
        "visibility_timeout_ms": 1_000,
        "started_at": "2026-01-01T00:00:00Z",
        "version": "1",
    },
    "ack_job": {**openapi.EXAMPLES["ack_job"], "attempt": 1, "lease_token": "AAAAAAAA"},
    "nack_job": {
        **openapi.EXAMPLES["nack_job"],
        "attempt": 1,
        "lease_token": "AAAAAAAA",
        "requeue": False,
    },
}


# Operation, place, wrong value → field. What the document cannot say, or not of this example.
REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("enqueue_job", "meta", {"a": "x" * 70_000}, 413, "meta"),
    ("enqueue_job", "args", [LONG], 413, "args"),
    ("enqueue_job", "options.priority", 1.0, 400, "options.priority"),
    ("enqueue_job", "options.delay_until", "2026-13-01T00:00:00Z", 400, "options.delay_until"),
    ("put_pool", "queues", ["default", "default"], 400, "queues[1]"),
    ("put_pool", "queues", {"default": {"weight": 0}}, 400, "queues.default.weight"),
    ("put_pool", "concurrency", 10.0, 400, "concurrency"),
    ("put_pool", "weights.default", 3.0, 400, "weights.default"),
    ("enqueue_bulk", "jobs", [], 400, "jobs"),
    ("enqueue_bulk", "atomicity", None, 400, "atomicity"),
    ("enqueue_bulk", "jobs", [{}] * 1_001, 413, "jobs"),
    ("enqueue_bulk", "jobs", [{}], 422, "jobs[0].type"),
    ("fetch_jobs", "count", 5.0, 400, "count"),
    ("fetch_jobs", "worker_id", "ü" * 128, 400, "worker_id"),
    ("fetch_jobs", "weights", {"other": 1}, 400, "weights.other"),
    ("fetch_jobs", "acks", [{}], 400, "acks[0].job_id"),
    ("fetch_jobs", "nacks", [{"job_id": UNKNOWN}], 400, "nacks[0].error"),
    ("fetch_jobs", "nacks", [{"job_id": UNKNOWN, "error": {}}], 400, "nacks[0].error.message"),
    ("ack_job", "acks", [{"job_id": UNKNOWN}], 400, "attempt"),
    ("nack_job", "nacks", [{"job_id": UNKNOWN, "requeue": True}], 400, "attempt"),
    ("register_worker", "strategy", "weighted", 400, "weights.email"),
    ("register_worker", "weights", {"other": 1}, 400, "weights.other"),
    ("heartbeat", "labels", [f"{n:0>250}" for n in range(50)], 413, "worker"),
    ("register_worker", "labels", {str(n): "x" * 250 for n in range(50)}, 413, "worker"),
    ("beat", "labels", ["x" * 250] * 50, 413, "worker"),
    ("report_worker_progress", "percentage", 10**400, 400, "percentage"),
    ("report_progress", "progress", 10**400, 400, "progress"),
    ("report_progress", "data", {"a": "x" * 5_000}, 413, "data"),
    ("set_queue_limits", "rate_limit", {"limit": 1, "period": "PT1S"}, 400, "rate_limit"),
    ("set_queue_limits", "throttle", {"limit": 1, "period": "PT1S"}, 422, "throttle"),
    ("set_queue_limits", "limit", 5, 400, "period"),
    *(
        (operation_id, place, wrong, 400, place)
        for operation_id in ("retry_dead_letters", "purge_dead_letters")
        for place, wrong in (
            ("filter.since", "2999-01-01T00:00:00Z"), ("filter.before", "2026-13-01T00:00:00Z"),
            ("filter", {}), ("all", True), ("filters", {}), ("job_ids", []),
        )
    ),
    ("admin_purge_dead_letters", "filter", {"queue": "a"}, 400, "filter"),
    ("create_queue", "max_size", 5, 400, "max_size"),
    ("create_queue", "dead_letter_queue", "dlq", 400, "dead_letter_queue"),
    ("configure_queue", "max_size", 10.0, 400, "max_size"),
    ("configure_queue", "default_retry.tries", 3, 400, "default_retry.tries"),
    ("set_queue_policy", "max_size", 10.0, 400, "max_size"),
]  # fmt: skip


WORDS = st.sampled_from(
    sorted(
        {
            key
            for example in EXAMPLES.values()
            for path in places(example)
            for key in path
            if isinstance(key, str)
        }
        | {"worker", "override", "checkpoint", "pool", "weights", "wait", "schema", "key"}
    )
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(
        [UNKNOWN, "default", "a.b", "w1", "PT1S", "+PT1S", "running", "type", 10**400]
    )
    | st.datetimes().map(lambda moment: moment.isoformat() + "Z")
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(WORDS | st.text(), inner, max_size=6)
    ),
    max_leaves=25,
)


@st.composite
def nearly_right(draw: st.DrawFn, operation_id: str) -> Any:
    """An example with one to three places changed to anything."""
    example = copy.deepcopy(EXAMPLES[operation_id])
    for _ in range(draw(st.integers(1, 3))):
        every = list(places(example))
        if not every:
            return draw(ANYTHING)
        example = put(example, draw(st.sampled_from(every)), draw(ANYTHING))
    return example
