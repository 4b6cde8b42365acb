"""Propagates the W3C trace context of a job (`meta.traceparent`). Supports OpenTelemetry.

A job that a handler enqueues has the trace context of the handler's job, and names that job.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any

FIELDS = ("traceparent", "tracestate")
_FORM = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
# Trace context of the job that this thread or task runs, as in its `meta`.
_RUNNING: ContextVar[Mapping[str, str] | None] = ContextVar("ojs_trace", default=None)

# IDs of the job that this thread or task runs, and of the first job of its line of descent.
_JOB: ContextVar[tuple[str, str] | None] = ContextVar("ojs_line", default=None)


def descent() -> dict[str, str]:
    """Return the fields of a new job that name the running job, or {} outside a handler."""
    running = _JOB.get()
    return {} if running is None else {"parent_id": running[0], "root_id": running[1]}


def incoming(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace context in a job's `meta`. Returns {} if it is missing or invalid."""
    found = {name: meta[name] for name in FIELDS if isinstance(meta.get(name), str)}
    return found if _FORM.fullmatch(found.get("traceparent", "")) else {}


def trace_id(meta: Mapping[str, Any]) -> str | None:
    """Return the ID of the trace that a job belongs to, or None."""
    found = _FORM.fullmatch(incoming(meta).get("traceparent", ""))
    return found[1] if found else None


def outgoing(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `meta` of a new job with the current trace context added."""
    if "traceparent" in meta:
        return dict(meta)
    carried: dict[str, str] = {}
    if (api := _api()) is not None:
        api[0].inject(carried)
    carried = carried or dict(_RUNNING.get() or {})
    return {**meta, **{name: carried[name] for name in FIELDS if name in carried}}


@contextlib.contextmanager
def running(
    kind: str,
    meta: Mapping[str, Any],
    facts: Mapping[str, Any],
    line: tuple[str, str] | None = None,
) -> Iterator[None]:
    """Run a handler in an OpenTelemetry span, if OpenTelemetry is installed.

    The parent of the span is the span that enqueued the job. The span records an exception that
    leaves the block. `line` has the IDs of the job and of the first job of its line of descent.
    """
    there = incoming(meta)
    token, line_token = _RUNNING.set(there or None), _JOB.set(line)
    try:
        if (api := _api()) is None:
            yield
            return
        propagate, trace = api
        context = propagate.extract(there)
        tracer = trace.get_tracer("ojs_aws")
        with tracer.start_as_current_span(
            f"process {kind}", context=context, kind=trace.SpanKind.CONSUMER, attributes=dict(facts)
        ):
            yield
    finally:
        _RUNNING.reset(token)
        _JOB.reset(line_token)


@cache
def _api() -> tuple[Any, Any] | None:
    """Return OpenTelemetry's modules `propagate` and `trace`, or None."""
    try:
        if importlib.util.find_spec("opentelemetry.trace") is None:
            return None
    except ModuleNotFoundError:
        return None
    return (
        importlib.import_module("opentelemetry.propagate"),
        importlib.import_module("opentelemetry.trace"),
    )
