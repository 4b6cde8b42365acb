"""The W3C trace context of a job: `meta.traceparent`. OpenTelemetry takes part if it is installed.

A job that a handler enqueues carries the context of the handler's own job on.
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
# The trace context of the job that runs here, as its `meta` has it.
_RUNNING: ContextVar[Mapping[str, str] | None] = ContextVar("ojs_trace", default=None)


def incoming(meta: Mapping[str, Any]) -> dict[str, str]:
    """The trace context in a job's `meta`; {} if there is none, or none that can be read."""
    found = {name: meta[name] for name in FIELDS if isinstance(meta.get(name), str)}
    return found if _FORM.fullmatch(found.get("traceparent", "")) else {}


def trace_id(meta: Mapping[str, Any]) -> str | None:
    """The id of the trace that a job belongs to."""
    found = _FORM.fullmatch(incoming(meta).get("traceparent", ""))
    return found[1] if found else None


def outgoing(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The `meta` of a new job: as given, with the trace context of what runs here."""
    if "traceparent" in meta:
        return dict(meta)
    carried: dict[str, str] = {}
    if (api := _api()) is not None:
        api[0].inject(carried)
    carried = carried or dict(_RUNNING.get() or {})
    return {**meta, **{name: carried[name] for name in FIELDS if name in carried}}


@contextlib.contextmanager
def running(kind: str, meta: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[None]:
    """Around a handler: a span of its own, if OpenTelemetry is there, below that of the enqueuer.

    An error that leaves the block is recorded there.
    """
    there = incoming(meta)
    token = _RUNNING.set(there or None)
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


@cache
def _api() -> tuple[Any, Any] | None:
    """OpenTelemetry's `propagate` and `trace`, if they are installed."""
    try:
        if importlib.util.find_spec("opentelemetry.trace") is None:
            return None
    except ModuleNotFoundError:
        return None
    return (
        importlib.import_module("opentelemetry.propagate"),
        importlib.import_module("opentelemetry.trace"),
    )
