"""Bad requests: wrong kinds in every place, values that are refused, and what is nearly right."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from ojs.api import openapi
from ojs.api import operations as contract
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


# Operation, place, wrong value → field. What the general test cannot know: that it is refused.
REFUSED: list[tuple[str, str, Any, int, str]] = [
    ("enqueue_job", "type", "Email.Send", 400, "type"),
    ("enqueue_job", "type", LONG, 400, "type"),
    ("enqueue_job", "type", None, 400, "type"),
    ("enqueue_job", "args", {}, 400, "args"),
    ("enqueue_job", "args", None, 400, "args"),
    ("enqueue_job", "id", UNKNOWN.upper(), 400, "id"),
    ("enqueue_job", "id", "0" * 36, 400, "id"),
    ("enqueue_job", "id", "019539a4-0000-4000-8000-000000000000", 400, "id"),
    ("enqueue_job", "meta", [], 400, "meta"),
    ("enqueue_job", "meta", {"a": "x" * 70_000}, 413, "meta"),
    ("enqueue_job", "args", [LONG], 413, "args"),
    ("enqueue_job", "specversion", "2.0", 400, "specversion"),
    ("enqueue_job", "schema", "no uri", 400, "schema"),
    ("enqueue_job", "options", [], 400, "options"),
    ("enqueue_job", "options.queue", "_default", 400, "options.queue"),
    ("enqueue_job", "options.queue", "a|b", 400, "options.queue"),
    ("enqueue_job", "options.queue", LONG, 400, "options.queue"),
    ("enqueue_job", "options.priority", 101, 400, "options.priority"),
    ("enqueue_job", "options.priority", 10**400, 400, "options.priority"),
    ("enqueue_job", "options.priority", 1.0, 400, "options.priority"),
    ("enqueue_job", "options.priority", "1", 400, "options.priority"),
    ("enqueue_job", "options.priority", True, 400, "options.priority"),
    ("enqueue_job", "options.timeout_ms", 0, 400, "options.timeout_ms"),
    ("enqueue_job", "options.expires_at", "tomorrow", 400, "options.expires_at"),
    ("enqueue_job", "options.delay_until", "2026-13-01T00:00:00Z", 400, "options.delay_until"),
    ("enqueue_job", "options.retry.max_attempts", -1, 422, "options.retry.max_attempts"),
    ("enqueue_job", "options.retry.max_attempts", 10**400, 422, "options.retry.max_attempts"),
    (
        "enqueue_job", "options.retry.backoff_coefficient", 0.5, 422,
        "options.retry.backoff_coefficient",
    ),
    ("enqueue_job", "options.retry.nonsense", 1, 422, "options.retry.nonsense"),
    ("enqueue_job", "options.unique.keys", ["colour"], 422, "options.unique.keys[0]"),
    ("enqueue_job", "options.rate_limit", {}, 422, "options.rate_limit"),
    ("enqueue_job", "options.rate_limit", 5, 422, "options.rate_limit"),
    ("enqueue_job", "options.rate_limit", {"key": "a|b"}, 422, "options.rate_limit.key"),
    ("enqueue_job", "options.rate_limit", {"key": LONG}, 422, "options.rate_limit.key"),
    (
        "enqueue_job", "options.rate_limit", {"key": "a", "concurrency": 1_001}, 422,
        "options.rate_limit.concurrency",
    ),
    (
        "enqueue_job", "options.rate_limit", {"rate": {"limit": 1, "period": "P1Y"}}, 422,
        "options.rate_limit.rate.period",
    ),
    ("enqueue_job", "options.rate_limit", {"rate": 1}, 422, "options.rate_limit"),
    ("put_rate_limit", "concurrency", -1, 400, "concurrency"),
    ("put_rate_limit", "concurrency", 1.5, 400, "concurrency"),
    ("put_rate_limit", "expires_at", "soon", 400, "expires_at"),
    ("put_rate_limit_override", "rate.limit", 0, 400, "rate.limit"),
    ("put_rate_limit_override", "nonsense", 1, 400, "nonsense"),
    ("set_queue_limits", "concurrency", 0, 400, "concurrency"),
    ("set_queue_limits", "concurrency", 1_000_001, 400, "concurrency"),
    ("set_queue_limits", "rate", 5, 400, "rate"),
    ("set_queue_limits", "rate.limit", 0, 400, "rate.limit"),
    ("set_queue_limits", "rate.period", 5, 400, "rate.period"),
    ("set_queue_limits", "limit", 5, 400, "period"),
    ("set_queue_limits", "rate_limit", {"limit": 1, "period": "PT1S"}, 400, "rate_limit"),
    ("set_queue_limits", "throttle", {"limit": 1, "period": "PT1S"}, 422, "throttle"),
    ("put_pool", "queues", None, 400, "queues"),
    ("put_pool", "queues", [], 400, "queues"),
    ("put_pool", "queues", "default", 400, "queues"),
    ("put_pool", "queues", ["default", "No"], 400, "queues[1]"),
    ("put_pool", "queues", ["default", 5], 400, "queues[1]"),
    ("put_pool", "queues", ["default", "default"], 400, "queues[1]"),
    ("put_pool", "queues", [f"q{n}" for n in range(49)], 400, "queues"),
    ("put_pool", "queues", {"default": {"weight": 0}}, 400, "queues.default.weight"),
    ("put_pool", "queues", {"default": 1}, 400, "queues.default"),
    ("put_pool", "concurrency", 0, 400, "concurrency"),
    ("put_pool", "concurrency", -1, 400, "concurrency"),
    ("put_pool", "concurrency", 2.5, 400, "concurrency"),
    ("put_pool", "concurrency", 10.0, 400, "concurrency"),
    ("put_pool", "concurrency", True, 400, "concurrency"),
    ("put_pool", "concurrency", "10", 400, "concurrency"),
    ("put_pool", "concurrency", 1_000_001, 400, "concurrency"),
    ("put_pool", "strategy", "random", 400, "strategy"),
    ("put_pool", "strategy", ["strict"], 400, "strategy"),
    ("put_pool", "weights", [5, 3, 1], 400, "weights"),
    ("put_pool", "weights.default", 0, 400, "weights.default"),
    ("put_pool", "weights.default", -3, 400, "weights.default"),
    ("put_pool", "weights.default", 0.5, 400, "weights.default"),
    ("put_pool", "weights.default", 3.0, 400, "weights.default"),
    ("put_pool", "weights.default", "3", 400, "weights.default"),
    ("put_pool", "weights.default", True, 400, "weights.default"),
    ("put_pool", "weights.default", 1_001, 400, "weights.default"),
    ("put_pool", "isolated", "yes", 400, "isolated"),
    ("put_pool", "starvation_prevention", True, 400, "starvation_prevention"),
    (
        "put_pool", "starvation_prevention.enabled", 1, 400, "starvation_prevention.enabled",
    ),
    (
        "put_pool", "starvation_prevention.rotation_interval", "30 s", 400,
        "starvation_prevention.rotation_interval",
    ),
    (
        "put_pool", "starvation_prevention.min_dispatch_ratio", 1.5, 400,
        "starvation_prevention.min_dispatch_ratio",
    ),
    (
        "put_pool", "starvation_prevention.min_dispatch_ratio", -0.1, 400,
        "starvation_prevention.min_dispatch_ratio",
    ),
    ("enqueue_batch", "jobs", None, 400, "jobs"),
    ("enqueue_batch", "jobs", [], 400, "jobs"),
    ("enqueue_batch", "jobs", {}, 400, "jobs"),
    ("enqueue_batch", "jobs", [{}] * 1_001, 400, "jobs"),
    ("enqueue_bulk", "jobs", [], 400, "jobs"),
    ("enqueue_bulk", "jobs", [{}] * 1_001, 413, "jobs"),
    ("enqueue_bulk", "jobs", [{}], 422, "jobs[0].type"),
    ("enqueue_bulk", "atomicity", None, 400, "atomicity"),
    ("fetch_jobs", "queues", None, 400, "queues"),
    ("fetch_jobs", "queues", [], 400, "queues"),
    ("fetch_jobs", "queues", "default", 400, "queues"),
    ("fetch_jobs", "queues", ["a"] * 51, 400, "queues"),
    ("fetch_jobs", "queues", ["a", "B"], 400, "queues[1]"),
    ("fetch_jobs", "queues", ["a", None], 400, "queues[1]"),
    ("fetch_jobs", "count", 0, 400, "count"),
    ("fetch_jobs", "count", 101, 400, "count"),
    ("fetch_jobs", "count", 5.0, 400, "count"),
    ("fetch_jobs", "count", True, 400, "count"),
    ("fetch_jobs", "count", "5", 400, "count"),
    ("fetch_jobs", "count", 10**400, 400, "count"),
    ("fetch_jobs", "worker_id", "", 400, "worker_id"),
    ("fetch_jobs", "worker_id", "a|b", 400, "worker_id"),
    ("fetch_jobs", "worker_id", "a\nb", 400, "worker_id"),
    ("fetch_jobs", "worker_id", "ü" * 128, 400, "worker_id"),
    ("fetch_jobs", "worker_id", LONG, 400, "worker_id"),
    ("fetch_jobs", "worker_id", 7, 400, "worker_id"),
    ("fetch_jobs", "visibility_timeout_ms", 0, 400, "visibility_timeout_ms"),
    ("fetch_jobs", "visibility_timeout_ms", 43_200_001, 400, "visibility_timeout_ms"),
    ("fetch_jobs", "visibility_timeout_ms", 10**400, 400, "visibility_timeout_ms"),
    ("fetch_jobs", "strategy", "random", 400, "strategy"),
    ("fetch_jobs", "strategy", ["strict"], 400, "strategy"),
    ("fetch_jobs", "weights", {"email": 0}, 400, "weights.email"),
    ("fetch_jobs", "weights", {"email": -1}, 400, "weights.email"),
    ("fetch_jobs", "weights", {"email": 1.5}, 400, "weights.email"),
    ("fetch_jobs", "weights", {"email": True}, 400, "weights.email"),
    ("fetch_jobs", "weights", {"email": "1"}, 400, "weights.email"),
    ("fetch_jobs", "weights", {"email": 1_001}, 400, "weights.email"),
    ("fetch_jobs", "weights", [1], 400, "weights"),
    ("fetch_jobs", "weights", {"other": 1}, 400, "weights.other"),
    ("fetch_jobs", "pool", "", 400, "pool"),
    ("fetch_jobs", "pool", "a b", 400, "pool"),
    ("fetch_jobs", "pool", "a|b", 400, "pool"),
    ("fetch_jobs", "pool", ["a", "b"], 400, "pool"),
    ("fetch_jobs", "pool", "x" * 65, 400, "pool"),
    ("register_worker", "pool", ["a", "b"], 400, "pool"),
    ("register_worker", "strategy", "fast", 400, "strategy"),
    ("register_worker", "strategy", "weighted", 400, "weights.email"),
    ("register_worker", "weights", {"other": 1}, 400, "weights.other"),
    ("heartbeat", "pool", 5, 400, "pool"),
    ("fetch_jobs", "acks", {}, 400, "acks"),
    ("fetch_jobs", "acks", [{}], 400, "acks[0].job_id"),
    ("fetch_jobs", "acks", [{"job_id": UNKNOWN, "attempt": 0}], 400, "acks[0].attempt"),
    ("fetch_jobs", "acks", [{"job_id": UNKNOWN}] * 1_001, 400, "acks"),
    ("fetch_jobs", "nacks", [{"job_id": UNKNOWN}], 400, "nacks[0].error"),
    ("fetch_jobs", "nacks", [{"job_id": UNKNOWN, "error": {}}], 400, "nacks[0].error.message"),
    ("ack_job", "acks", [{"job_id": UNKNOWN}], 400, "attempt"),
    ("nack_job", "nacks", [{"job_id": UNKNOWN, "requeue": True}], 400, "attempt"),
    ("ack_job", "job_id", None, 400, "job_id"),
    ("ack_job", "job_id", UNKNOWN.upper(), 400, "job_id"),
    ("ack_job", "job_id", "job_1", 400, "job_id"),
    ("ack_job", "attempt", 0, 400, "attempt"),
    ("ack_job", "attempt", 10**400, 400, "attempt"),
    ("ack_job", "lease_token", "", 400, "lease_token"),
    ("nack_job", "error", None, 400, "error"),
    ("nack_job", "error", "boom", 400, "error"),
    ("nack_job", "error.message", 5, 400, "error.message"),
    ("nack_job", "error.retryable", "no", 400, "error.retryable"),
    ("nack_job", "error.backtrace", [1], 400, "error.backtrace"),
    ("nack_job", "error.details", [], 400, "error.details"),
    ("nack_job", "error.rate_limit_until", "soon", 400, "error.rate_limit_until"),
    ("nack_job", "requeue", "yes", 400, "requeue"),
    ("heartbeat", "worker_id", None, 400, "worker_id"),
    ("heartbeat", "state", "bananas", 400, "state"),
    ("heartbeat", "active_jobs", "1", 400, "active_jobs"),
    ("heartbeat", "active_jobs", -1, 400, "active_jobs"),
    ("heartbeat", "active_jobs", True, 400, "active_jobs"),
    ("heartbeat", "active_jobs", [1], 400, "active_jobs[0]"),
    ("heartbeat", "active_jobs", 10**400, 400, "active_jobs"),
    ("heartbeat", "pid", -1, 400, "pid"),
    ("heartbeat", "labels", [1], 400, "labels"),
    ("heartbeat", "labels", ["x"] * 101, 400, "labels"),
    ("heartbeat", "labels", {"x" * 300: "a"}, 400, "labels"),
    ("heartbeat", "labels", [f"{n:0>250}" for n in range(50)], 413, "worker"),
    ("register_worker", "labels", {str(n): "x" * 250 for n in range(50)}, 413, "worker"),
    ("beat", "labels", ["x" * 250] * 50, 413, "worker"),
    ("beat", "state", None, 400, "state"),
    ("beat", "state", "asleep", 400, "state"),
    ("report_worker_progress", "percentage", "47%", 400, "percentage"),
    ("report_worker_progress", "percentage", 10**400, 400, "percentage"),
    ("report_progress", "progress", True, 400, "progress"),
    ("report_progress", "progress", 10**400, 400, "progress"),
    ("report_progress", "data", [1], 400, "data"),
    ("report_progress", "data", {"a": "x" * 5_000}, 413, "data"),
    ("report_progress", "message", 5, 400, "message"),
    ("direct_worker", "directive", "stop", 400, "directive"),
    ("direct_worker", "directive", None, 400, "directive"),
    ("retry_dead_letter", "override", [], 400, "override"),
    ("retry_dead_letter", "override", "queue", 400, "override"),
    ("retry_dead_letter", "override.priority", 1, 400, "override.priority"),
    ("retry_dead_letter", "override.unique", {}, 400, "override.unique"),
    ("retry_dead_letter", "override.max_attempts", 1, 400, "override.max_attempts"),
    ("retry_dead_letter", "override.queue", "_default", 400, "override.queue"),
    ("retry_dead_letter", "override.queue", 5, 400, "override.queue"),
    ("retry_dead_letter", "override.args", {}, 400, "override.args"),
    ("retry_dead_letter", "override.args", "[]", 400, "override.args"),
    ("retry_dead_letter", "override.meta", [], 400, "override.meta"),
    ("retry_dead_letter", "override.meta", 5, 400, "override.meta"),
    ("retry_dead_letter", "override.retry", 3, 422, "override.retry"),
    ("retry_dead_letter", "override.retry.max_attempts", -1, 422, "override.retry.max_attempts"),
    ("retry_dead_letter", "override.retry.tries", 3, 422, "override.retry.tries"),
    *(
        (operation_id, *row)
        for operation_id in ("retry_dead_letters", "purge_dead_letters")
        for row in (
            ("confirm", False, 400, "confirm"),
            ("confirm", "true", 400, "confirm"),
            ("confirm", 1, 400, "confirm"),
            ("filter", [], 400, "filter"),
            ("filter", "billing", 400, "filter"),
            ("filter.queue", "No", 400, "filter.queue"),
            ("filter.queue", ["billing"], 400, "filter.queue"),
            ("filter.type", "No Such", 400, "filter.type"),
            ("filter.error_type", "", 400, "filter.error_type"),
            ("filter.error_type", "x" * 256, 400, "filter.error_type"),
            ("filter.since", "yesterday", 400, "filter.since"),
            ("filter.since", "+PT1H", 400, "filter.since"),
            ("filter.since", "2999-01-01T00:00:00Z", 400, "filter.since"),
            ("filter.until", 5, 400, "filter.until"),
            ("filter.before", "2026-13-01T00:00:00Z", 400, "filter.before"),
            ("filter.older_than", "90 days", 400, "filter.older_than"),
            ("filter.args", "$..a", 400, "filter.args"),
            ("filter.args", {"a": 1}, 400, "filter.args"),
            ("filter.state", "discarded", 400, "filter.state"),
            ("filter.queue", None, 400, "filter.queue"),
            ("filter.queue", "", 400, "filter.queue"),
            ("filter", {}, 400, "filter"),
            ("filter", None, 400, "filter"),
            ("all", True, 400, "all"),
            ("all", False, 400, "all"),
            ("all", None, 400, "all"),
            ("all", "true", 400, "all"),
            ("filters", {}, 400, "filters"),
            ("job_ids", [], 400, "job_ids"),
        )
    ),
    ("retry_dead_letters", "confirm", None, 400, "confirm"),
    ("admin_purge_dead_letters", "queue", "No", 400, "queue"),
    ("admin_purge_dead_letters", "older_than", "90 days", 400, "older_than"),
    ("admin_purge_dead_letters", "filter", {"queue": "a"}, 400, "filter"),
    ("create_queue", "name", None, 400, "name"),
    ("create_queue", "name", 5, 400, "name"),
    ("create_queue", "name", "", 400, "name"),
    ("create_queue", "name", "_default", 400, "name"),
    ("create_queue", "name", "Payments", 400, "name"),
    ("create_queue", "name", "a|b", 400, "name"),
    ("create_queue", "name", LONG, 400, "name"),
    ("create_queue", "config", [], 400, "config"),
    ("create_queue", "config", "max_size=5", 400, "config"),
    ("create_queue", "max_size", 5, 400, "max_size"),
    ("create_queue", "dead_letter_queue", "dlq", 400, "dead_letter_queue"),
    ("create_queue", "config.max_size", -1, 400, "config.max_size"),
    ("create_queue", "config.dead_letter_queue", "Dlq", 400, "config.dead_letter_queue"),
    ("create_queue", "config.dead_letter", [], 400, "config.dead_letter"),
    ("create_queue", "config.replay_rules", {}, 400, "config.replay_rules"),
    ("create_queue", "config.replay_rules", [{}], 400, "config.replay_rules[0].name"),
    *(
        row
        for operation_id in ("configure_queue", "set_queue_policy")
        for row in (
            (operation_id, "max_size", -1, 400, "max_size"),
            (operation_id, "max_size", 1.5, 400, "max_size"),
            (operation_id, "max_size", 10.0, 400, "max_size"),
            (operation_id, "max_size", "10", 400, "max_size"),
            (operation_id, "max_size", True, 400, "max_size"),
            (operation_id, "max_size", 10**400, 400, "max_size"),
            (operation_id, "max_depth", -1, 400, "max_depth"),
            (operation_id, "max_size_bytes", 0.5, 400, "max_size_bytes"),
            (operation_id, "max_size_bytes", 2**53, 400, "max_size_bytes"),
            (operation_id, "overflow_policy", "drop_newest", 400, "overflow_policy"),
            (operation_id, "overflow_policy", ["reject"], 400, "overflow_policy"),
            (operation_id, "strategy", "wait", 400, "strategy"),
            (operation_id, "warning_threshold", 1.01, 400, "warning_threshold"),
            (operation_id, "warning_threshold", -0.1, 400, "warning_threshold"),
            (operation_id, "warning_threshold", "80%", 400, "warning_threshold"),
            (operation_id, "concurrency", 0, 400, "concurrency"),
            (operation_id, "concurrency", 2.5, 400, "concurrency"),
            (operation_id, "rate_limit", 5, 400, "rate_limit"),
            (operation_id, "rate_limit", {"limit": 5}, 400, "rate_limit.period"),
            (operation_id, "rate_limit", {"period": "PT1S"}, 400, "rate_limit.limit"),
            (operation_id, "rate_limit.limit", 0, 400, "rate_limit.limit"),
            (operation_id, "rate_limit.period", "1 m", 400, "rate_limit.period"),
            (operation_id, "visibility_timeout", 0, 400, "visibility_timeout"),
            (operation_id, "visibility_timeout", 43_201, 400, "visibility_timeout"),
            (operation_id, "default_timeout", "PT1M", 400, "default_timeout"),
            (operation_id, "default_retry", 3, 400, "default_retry"),
            (operation_id, "default_retry.max_attempts", -1, 400, "default_retry.max_attempts"),
            (operation_id, "default_retry.tries", 3, 400, "default_retry.tries"),
            (
                operation_id, "default_retry.initial_interval", "soon", 400,
                "default_retry.initial_interval",
            ),
            (operation_id, "retention", "P7D", 400, "retention"),
            (operation_id, "retention.completed", "7 days", 400, "retention.completed"),
            (operation_id, "retention.completed", "P1Y", 400, "retention.completed"),
            (operation_id, "retention.completed", 7, 400, "retention.completed"),
            (operation_id, "retention.discarded", "P", 400, "retention.discarded"),
            (operation_id, "allowed_job_types", [], 400, "allowed_job_types"),
            (operation_id, "allowed_job_types", ["a"] * 101, 400, "allowed_job_types"),
            (operation_id, "allowed_job_types", ["a", "B"], 400, "allowed_job_types[1]"),
            (operation_id, "allowed_job_types", "payment.*", 400, "allowed_job_types"),
            (operation_id, "producers", [], 400, "producers"),
            (operation_id, "producers", ["a\nb"], 400, "producers[0]"),
            (operation_id, "producers", ["x" * 256], 400, "producers[0]"),
            (operation_id, "lanes", 0, 400, "lanes"),
            (operation_id, "lanes", 65, 400, "lanes"),
            (operation_id, "dead_letter_queue", "_default", 400, "dead_letter_queue"),
            (operation_id, "dead_letter_queue", ["dlq"], 400, "dead_letter_queue"),
            (operation_id, "dead_letter_queue", LONG, 400, "dead_letter_queue"),
            (operation_id, "dead_letter_max_size", -1, 400, "dead_letter_max_size"),
            (operation_id, "dead_letter_max_size", 0.5, 400, "dead_letter_max_size"),
            (operation_id, "dead_letter_ttl", "P1Y", 400, "dead_letter_ttl"),
            (operation_id, "dead_letter_ttl", "30 days", 400, "dead_letter_ttl"),
            (operation_id, "dead_letter_ttl", 30, 400, "dead_letter_ttl"),
            (operation_id, "dead_letter", "P1D", 400, "dead_letter"),
            (
                operation_id,
                "dead_letter.retention.max_age",
                "180 days",
                400,
                "dead_letter.retention.max_age",
            ),
            (
                operation_id,
                "dead_letter.retention.max_count",
                0,
                400,
                "dead_letter.retention.max_count",
            ),
            (
                operation_id,
                "dead_letter.pruning_policy",
                "keep",
                400,
                "dead_letter.pruning_policy",
            ),
            (operation_id, "replay_rules", {}, 400, "replay_rules"),
            (operation_id, "replay_rules", ["a"], 400, "replay_rules[0]"),
        )
    ),
    ("configure_queue", "backpressure", 5, 400, "backpressure"),
    ("configure_queue", "backpressure.max_depth", -1, 400, "backpressure.max_depth"),
    ("configure_queue", "backpressure.max_depth", 0.5, 400, "backpressure.max_depth"),
    ("configure_queue", "backpressure.max_size_bytes", -5, 400, "backpressure.max_size_bytes"),
    ("configure_queue", "backpressure.strategy", "drop", 400, "backpressure.strategy"),
    (
        "configure_queue", "backpressure.warning_threshold", 80, 400,
        "backpressure.warning_threshold",
    ),
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
