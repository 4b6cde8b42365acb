"""The middleware's chain, without a table: order, changes, refusals, faults and deadlines."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.errors import (
    MetadataTooLarge,
    MiddlewareError,
    MiddlewareRefusal,
    MiddlewareTimeout,
)
from ojs.domain.job import envelope
from ojs.middleware import Envelope, Middleware, Next, Refused
from ojs.services.jobs.middleware import FAILED, MAX_OVERDUE, MiddlewareChain, of_request

if TYPE_CHECKING:
    from pathlib import Path

    from ojs.domain.job.envelope import JobRequest, Specification

DEEP = json.loads("[" * 101 + "]" * 101)
NOW_MS = 1_800_000_000_000


def chain(*middleware: Middleware | str, timeout_ms: int = 10_000) -> MiddlewareChain:
    return MiddlewareChain(middleware, timeout_ms=timeout_ms, service="mail")


def resolved(*raw: dict[str, Any]) -> list[tuple[JobRequest, Specification]]:
    requests = [envelope.parse({"type": "email.send", "args": [], **each}) for each in raw]
    return [(request, envelope.resolve(request, now_ms=NOW_MS)) for request in requests]


def after(function: Middleware, **raw: Any) -> Specification:
    """What a job is to be after this middleware."""
    ((_, specification),) = chain(function).changed(resolved(raw), now_ms=NOW_MS)
    return specification


def changing(name: str, value: Any) -> Middleware:
    def change(job: Envelope, following: Next) -> Envelope:
        setattr(job, name, value)
        return following(job)

    return change


def fails(function: Middleware, match: str, caplog: pytest.LogCaptureFixture, **raw: Any) -> None:
    """It is a fault of the middleware, which is logged with its reason."""
    caplog.clear()
    with pytest.raises(MiddlewareError) as raised:
        after(function, **raw)
    assert (raised.value.code, raised.value.retryable) == ("middleware_error", True)
    (record,) = caplog.records
    assert match in record.__dict__["reason"]
    assert (record.__dict__["job_type"], record.__dict__["queue"]) == ("email.send", "default")
    assert match not in raised.value.message


# --- order ----------------------------------------------------------------------------------------


def _marks(name: str) -> Middleware:
    def link(job: Envelope, following: Next) -> Envelope:
        job.meta["seen"].append(name)
        result = following(job)
        result.meta["seen"].append(f"{name} back")
        return result

    return link


@pytest.mark.requirement("C-16")
@given(st.lists(st.text("abc", min_size=1), max_size=6))
def test_each_link_calls_the_next_and_sees_its_answer(names: list[str]) -> None:
    passed = chain(*(_marks(name) for name in names)).changed(
        resolved({"meta": {"seen": []}}), now_ms=NOW_MS
    )
    (_, specification) = passed[0]
    seen = specification.content["meta"]["seen"]
    assert seen == [*names, *(f"{name} back" for name in reversed(names))]


def test_a_job_that_is_left_alone_is_the_same_request() -> None:
    sent = resolved({"options": {"timeout": 5, "delay_until": "+PT1H"}}, {"args": [1]})
    same = chain(_marks_nothing).changed(sent, now_ms=NOW_MS + 1)
    assert all(was[0] is now[0] and was[1] is now[1] for was, now in zip(sent, same, strict=True))


def _marks_nothing(job: Envelope, following: Next) -> Envelope:
    return following(job)


@pytest.mark.requirement("C-16")
def test_a_refusal_stops_the_job_before_later_links_see_it() -> None:
    called: list[str] = []

    def witness(job: Envelope, following: Next) -> Envelope:
        called.append(job.type)
        return following(job)

    def picky(_job: Envelope, _following: Next) -> Envelope:
        raise Refused("not welcome", code="unwelcome", details={"field": "type", "n": Decimal(3)})

    with pytest.raises(MiddlewareRefusal, match="not welcome") as raised:
        chain(witness, picky, witness).changed(resolved({}, {}), now_ms=NOW_MS, batch=True)
    assert called == ["email.send"]
    assert raised.value.details == {
        "field": "type", "n": 3, "middleware": "picky", "reason": "unwelcome", "index": 0,
    }  # fmt: skip


def test_a_link_that_does_not_call_the_next_has_the_last_word() -> None:
    def final(_job: Envelope, _following: Next) -> Envelope:
        return Envelope("other", [1])

    def refusing(_job: Envelope, _following: Next) -> Envelope:
        raise Refused("never called")

    ((request, specification),) = chain(final, refusing).changed(
        resolved({"meta": {"k": 1}, "priority": 3}), now_ms=NOW_MS
    )
    assert (request.type, specification.type) == ("other", "other")
    assert (specification.priority, specification.content) == (0, {"args": [1]})


def test_a_link_may_catch_the_refusal_of_a_later_one() -> None:
    def lenient(job: Envelope, following: Next) -> Envelope:
        try:
            return following(job)
        except Refused as refused:
            job.meta["refused"] = refused.code
            return job

    def picky(_job: Envelope, _following: Next) -> Envelope:
        raise Refused("no")

    ((_, specification),) = chain(lenient, picky).changed(resolved({}), now_ms=NOW_MS)
    assert specification.content["meta"] == {"refused": "refused"}


# --- changes --------------------------------------------------------------------------------------

EVERY = {
    "type": "other.type",
    "args": [{"n": Decimal("3.10")}, True],
    "queue": "vip",
    "meta": {"trace": "t"},
    "priority": 7,
    "tags": ["a"],
    "timeout_ms": 5_000,
    "visibility_timeout_ms": 6_000,
    "scheduled_at": "2030-01-01T00:00:00Z",
    "expires_at": "2031-01-01T00:00:00Z",
    "pending": True,
    "retry": {"max_attempts": 9, "initial_interval_ms": 5},
    "unique": {"keys": ["args"]},
    "rate_limit": {"key": "k", "concurrency": 1},
    "metadata": {"m": 1},
    "schema": "urn:x",
    "specversion": "1.0.0",
    "extra": {"x_new": [1]},
}
# A request that has a value for each of them, under other names where there are any.
SENT: dict[str, Any] = {
    "meta": {"old": 1},
    "specversion": "1.0",
    "schema": "urn:old",
    "x_old": 1,
    "timeout": 1,
    "scheduled_at": "2029-01-01T00:00:00Z",
    "max_attempts": 2,
    "options": {
        "queue": "old",
        "priority": 1,
        "tags": ["old"],
        "timeout": 2,
        "visibility_timeout_ms": 1_000,
        "delay_until": "2028-01-01T00:00:00Z",
        "expires_at": "2028-06-01T00:00:00Z",
        "retry": {"max_attempts": 4},
        "unique": {"keys": ["type"]},
        "rate_limit": {"key": "old", "concurrency": 2},
        "metadata": {"old": 1},
    },
}


def test_there_is_a_case_for_every_field() -> None:
    assert {*EVERY, "id"} == {each.name for each in fields(Envelope)}


@pytest.mark.parametrize("sent", [{}, SENT], ids=["absent", "sent"])
@pytest.mark.parametrize("name", EVERY)
def test_every_field_can_be_changed(name: str, sent: dict[str, Any]) -> None:
    sent = dict(sent)
    if name == "pending":  # not together with a start in the future
        sent = {}
    seen = after(changing(name, EVERY[name]), **sent)
    ((request, _),) = chain(changing(name, EVERY[name])).changed(resolved(sent), now_ms=NOW_MS)
    found = of_request(request, seen)
    was = of_request(*resolved(sent)[0])
    for each in fields(Envelope):
        expected = EVERY[name] if each.name == name else getattr(was, each.name)
        assert getattr(found, each.name) == expected, each.name


def test_what_is_removed_is_gone() -> None:
    def bare(job: Envelope, following: Next) -> Envelope:
        job.meta.clear()
        job.extra.clear()
        job.retry = job.unique = job.tags = job.scheduled_at = job.metadata = job.timeout_ms = None
        return following(job)

    found = after(bare, **SENT)
    gone = {"meta", "x_old", "retry", "unique", "tags", "scheduled_at", "options", "timeout_ms"}
    assert not gone & set(found.content)
    assert (found.unique, found.scheduled_ms, found.timeout_ms) == (None, None, None)


def test_the_middleware_sees_what_the_client_sent_in_one_form() -> None:
    (sent,) = resolved(SENT)
    seen = of_request(*sent)
    assert (seen.queue, seen.priority, seen.timeout_ms) == ("old", 1, 2_000)
    assert (seen.scheduled_at, seen.retry) == ("2028-01-01T00:00:00Z", {"max_attempts": 4})
    assert (seen.extra, seen.metadata, seen.id) == ({"x_old": 1}, {"old": 1}, None)


@pytest.mark.parametrize("value", [[True], [Decimal("1.0")], ["1"]])
def test_a_change_that_python_calls_equal_is_one(value: list[Any]) -> None:
    found = after(changing("args", value), args=[1]).content["args"]
    assert type(found[0]) is type(value[0])


def test_a_relative_time_stays_what_it_was() -> None:
    ((_, found),) = chain(changing("priority", 1)).changed(
        resolved({"options": {"delay_until": "+PT1H"}}), now_ms=NOW_MS
    )
    assert found.scheduled_ms == NOW_MS + 3_600_000


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("type", "No Type", "'type'"),
        ("type", None, "'type'"),
        ("args", "text", "'args'"),
        ("args", [float("nan")], "args is not JSON"),
        ("args", [object()], "args is not JSON"),
        ("args", DEEP, "levels of nesting"),
        ("args", [10**1_001], "digits"),
        ("meta", {"k": "\ud800"}, "meta is not JSON"),
        ("queue", "No Queue", "'queue'"),
        ("priority", 101, "'priority'"),
        ("priority", "1", "'priority'"),
        ("retry", {"max_attempts": -1}, "'retry.max_attempts'"),
        ("retry", {"initial_interval": "soon"}, "'retry.initial_interval'"),
        ("unique", {"keys": ["colour"]}, "'unique.keys"),
        ("scheduled_at", "tomorrow", "'scheduled_at'"),
        ("extra", {"queue": "x"}, "extra must not have 'queue'"),
        ("extra", {"state": "active"}, "extra must not have 'state'"),
        ("extra", [1], "extra must be an object"),
        ("metadata", 5, "'options.metadata'"),
        ("id", "019539a4-b68c-7def-8000-1a2b3c4d5e6f", "must not change the id"),
    ],
)
def test_a_job_that_no_client_could_push_is_a_fault(
    name: str, value: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    fails(changing(name, value), reason, caplog)


def _raises(error: BaseException) -> Middleware:
    def link(_job: Envelope, _following: Next) -> Envelope:
        raise error

    return link


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_raises(KeyError("secret-name")), "secret-name"),
        (_raises(SystemExit("the end")), "the end"),
        (_raises(Refused(5)), "must be strings"),  # type: ignore[arg-type]
        (_raises(Refused("no", details={"k": object()})), "details is not JSON"),
        (_raises(Refused("no", details={"k": DEEP})), "levels of nesting"),
        (lambda _job, _following: None, "not NoneType"),
        (lambda job, following: following(job.meta), "not dict"),
        (lambda _job, _following: (_ for _ in ()), "not generator"),
    ],
    ids=[
        "error",
        "exit",
        "no text",
        "no JSON",
        "too deep",
        "nothing",
        "no envelope",
        "a generator",
    ],
)
def test_whatever_goes_wrong_is_told_as_a_fault(
    function: Middleware, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    fails(function, reason, caplog)


def test_a_job_that_becomes_too_large_is_refused_as_the_client_s() -> None:
    with pytest.raises(MetadataTooLarge):
        after(changing("meta", {"k": "x" * 70_000}))


def test_a_fault_is_counted(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL), pytest.raises(MiddlewareError):
        after(_raises(KeyError()))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert [(line[FAILED], line["service"]) for line in lines] == [([1.0], "mail")]


# --- names ----------------------------------------------------------------------------------------


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the module `own_hooks`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def written(text: str) -> None:
        (tmp_path / "own_hooks.py").write_text(text)
        __import__("importlib").invalidate_caches()

    yield written
    sys.modules.pop("own_hooks", None)


def test_functions_are_found_by_name_when_they_are_needed(write: Callable[[str], None]) -> None:
    named = chain("own_hooks:mark")
    assert named.names == ["own_hooks:mark"]
    # A module that cannot be imported does not stay so: what it asked for may be there again.
    with pytest.raises(MiddlewareError):
        named.changed(resolved({}), now_ms=NOW_MS)
    write("def mark(job, following):\n    job.meta['m'] = 1\n    return following(job)\n")
    ((_, found),) = named.changed(resolved({}), now_ms=NOW_MS)
    assert found.content["meta"] == {"m": 1}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("mark = 5\n", TypeError),
        ("other = 5\n", AttributeError),
        ("import no_such_module_at_all\n", ImportError),
        ("1 / 0\n", ZeroDivisionError),
    ],
)
def test_what_cannot_be_loaded_is_a_fault(
    write: Callable[[str], None], text: str, error: type[Exception]
) -> None:
    write(text)
    with pytest.raises(error):
        chain("own_hooks:mark").load()
    with pytest.raises(MiddlewareError):
        chain("own_hooks:mark").changed(resolved({}), now_ms=NOW_MS)


# --- deadlines ------------------------------------------------------------------------------------


class Stuck:
    """Middleware that does not come back before it may."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.changed: list[Envelope] = []

    def wait(self, job: Envelope, following: Next) -> Envelope:
        self.may_end.wait(30)
        job.meta["late"] = True
        self.changed.append(job)
        return following(job)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.may_end.set()


def test_what_does_not_come_back_in_time_is_not_waited_for(stuck: Stuck) -> None:
    sent = resolved({"meta": {"k": 1}})
    with pytest.raises(MiddlewareTimeout) as raised:
        chain(stuck.wait, timeout_ms=5).changed(sent, now_ms=NOW_MS)
    assert (raised.value.code, raised.value.retryable) == ("middleware_timeout", True)
    stuck.may_end.set()
    for thread in threading.enumerate():
        if thread.name == "middleware":
            thread.join(30)
    # It has run to its end, and changed nothing but its own copy.
    assert [job.meta for job in stuck.changed] == [{"k": 1, "late": True}]
    assert sent[0][0].meta == {"k": 1}


def test_calls_that_do_not_come_back_do_not_pile_up(
    stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    busy = chain(stuck.wait, timeout_ms=1)
    for _ in range(MAX_OVERDUE + 2):
        with pytest.raises(MiddlewareTimeout):
            busy.changed(resolved({}), now_ms=NOW_MS)
    running = [thread for thread in threading.enumerate() if thread.name == "middleware"]
    assert len(running) == MAX_OVERDUE
    assert "have not returned" in caplog.records[-1].__dict__["reason"]
    stuck.may_end.set()
    for thread in running:
        thread.join(30)
    # With room again they are tried again.
    busy.timeout_ms = 30_000
    ((_, found),) = busy.changed(resolved({}), now_ms=NOW_MS)
    assert found.content["meta"] == {"late": True}


def test_all_jobs_of_a_request_share_one_deadline(stuck: Stuck) -> None:
    calls: list[str] = []

    def second_waits(job: Envelope, following: Next) -> Envelope:
        calls.append(job.type)
        return stuck.wait(job, following) if len(calls) == 2 else following(job)

    with pytest.raises(MiddlewareTimeout):
        chain(second_waits, timeout_ms=50).changed(resolved({}, {}, {}), now_ms=NOW_MS, batch=True)
    assert len(calls) == 2
