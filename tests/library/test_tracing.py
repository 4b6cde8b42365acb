"""The trace context goes from the enqueuer through a job to the jobs that it enqueues."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import httpx
import pytest

from ojs_aws import Client, Job, JobContext, Worker, tracing

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def pushed_meta(**options: Any) -> dict[str, Any]:
    """The `meta` that a push from here sends."""
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(201, json={"job": {"id": "j", "type": "t", "args": []}})

    with Client("http://stub", transport=httpx.MockTransport(answer)) as client:
        client.enqueue("t", **options)
    found: dict[str, Any] = json.loads(sent[0].content).get("meta", {})
    return found


def performed(meta: dict[str, Any]) -> Any:
    worker = Worker(queues=["q"])
    worker.handler("t")(
        lambda _job: [pushed_meta(), pushed_meta(meta={"a": 1, "traceparent": "x"})]
    )
    return worker.perform(Job("j", "t", meta=meta, attempt=1)).entry["result"]


def test_a_job_of_a_handler_carries_the_trace_on() -> None:
    carried, own = performed({"traceparent": TRACE, "tracestate": "v=1", "other": 2})
    assert carried == {"traceparent": TRACE, "tracestate": "v=1"}
    assert own == {"a": 1, "traceparent": "x"}
    assert pushed_meta() == {}  # not beyond the handler


@pytest.mark.parametrize("odd", ["", "00-zz", 3, None, TRACE + "x"])
def test_what_is_no_trace_context_is_left_out(odd: Any) -> None:
    assert performed({"traceparent": odd})[0] == {}


def test_a_coroutine_carries_it_on_too() -> None:
    worker = Worker(queues=["q"])

    @worker.handler("t")
    async def handle(_job: JobContext) -> Any:
        return pushed_meta()

    ending = worker.perform(Job("j", "t", meta={"traceparent": TRACE}, attempt=1))
    assert ending.entry["result"] == {"traceparent": TRACE}


class Telemetry:
    """The part of OpenTelemetry's API that is used, which writes down what it was asked."""

    class SpanKind:
        CONSUMER = "consumer"

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.raised: list[BaseException] = []
        self.inside = False

    def extract(self, carrier: dict[str, str]) -> Any:
        return {"from": dict(carrier)}

    def inject(self, carrier: dict[str, str]) -> None:
        if self.inside:
            carrier["traceparent"] = OTHER

    def get_tracer(self, name: str) -> Telemetry:
        assert name == "ojs_aws"
        return self

    @contextlib.contextmanager
    def start_as_current_span(self, name: str, **options: Any) -> Iterator[None]:
        self.spans.append((name, options))
        self.inside = True
        try:
            yield
        except BaseException as error:
            self.raised.append(error)
            raise
        finally:
            self.inside = False


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Telemetry]:
    from importlib.machinery import ModuleSpec

    found = Telemetry()
    for name in ("opentelemetry", "opentelemetry.trace", "opentelemetry.propagate"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        module.__path__ = []
        for each in ("extract", "inject", "get_tracer", "SpanKind"):
            setattr(module, each, getattr(found, each))
        monkeypatch.setitem(sys.modules, name, module)
    tracing._api.cache_clear()
    yield found
    tracing._api.cache_clear()


def test_opentelemetry_has_a_span_for_each_handler(telemetry: Telemetry) -> None:
    carried, _ = performed({"traceparent": TRACE})
    ((name, options),) = telemetry.spans
    assert name == "process t"
    assert options["context"] == {"from": {"traceparent": TRACE}}
    assert options["kind"] == "consumer"
    assert options["attributes"]["messaging.message.id"] == "j"
    assert carried == {"traceparent": OTHER}  # below the handler's span
    assert pushed_meta() == {}


def test_opentelemetry_is_told_of_failures(telemetry: Telemetry) -> None:
    worker = Worker(queues=["q"])
    worker.handler("t")(lambda job: job.args[0])
    assert worker.perform(Job("j", "t", attempt=1)).how == "nacks"
    assert [type(error) for error in telemetry.raised] == [IndexError]
