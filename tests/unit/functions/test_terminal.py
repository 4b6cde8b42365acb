"""`ojs-aws` against the handlers: what each command asks, prints, and ends with."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from cli import events, output, target
from cli.target import Exit
from ojs.store.table import keys
from ojs_aws import Event, ServerError
from ojs_aws.client import subscription as subscriptions
from ojs_aws.client.event import LOGGED
from tests.unit.functions.keyed import Keyed
from tests.unit.functions.terminal import (
    GONE,
    HOSTILE,
    Ojs,
    Printed,
    answers,
    away,
    bridge,
    reached,
    runner,
    states,
)

if TYPE_CHECKING:
    from ojs.clock import ManualClock
    from ojs.runtime import Runtime
    from ojs.store.table.values import Item
    from tests.unit.functions.client import Api


@pytest.fixture
def ojs(api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ojs:
    """Runs a command."""
    bridge(monkeypatch, api)
    return runner(capsys)


# --- jobs -----------------------------------------------------------------------------------------


def test_jobs_are_listed_and_filtered(api: Api, ojs: Ojs) -> None:
    mails = [api.push("mail", type="mail.send", args=[number]) for number in range(3)]
    later = api.push("mail", type="pdf.make", options={"delay_until": "+PT1H"})
    api.push("other")
    shown = ojs("jobs", "--queue", "mail")
    assert shown.status == Exit.DONE
    header, *rows = shown.out.splitlines()
    assert header.split() == ["ID", "STATE", "QUEUE", "TYPE", "ATTEMPT", "PRIORITY", "CREATED",
                              "ARGS"]  # fmt: skip
    assert len(rows) == 4
    assert any("pdf.make" in row and "scheduled" in row for row in rows)
    for wanted, meant in (
        (["--type", "mail.*"], set(mails)),
        (["--state", "available,active"], set(mails)),
        (["--state", "scheduled"], {later}),
        (["--since", "5m", "--until", "1m"], set()),
        ([], {*mails, later}),
    ):
        found = ojs("jobs", "--queue", "mail", *wanted, "--json")
        assert {job["id"] for job in found.objects} == meant
    (one,) = ojs("jobs", "--queue", "mail", "--args", "[2]", "--json").objects
    assert one["id"] == mails[2]


def test_a_list_ends_at_the_limit_and_says_so(api: Api, ojs: Ojs) -> None:
    for _ in range(5):
        api.push("mail")
    few = ojs("jobs", "--queue", "mail", "--limit", "3", "--json")
    assert len(few.objects) == 3
    assert "more jobs exist" in few.err
    counted: Item = {"pk": keys.stats("mail"), "sk": keys.NOW, "available": 5}
    api.runtime.table.write_many([counted])
    few = ojs("jobs", "--queue", "mail", "--state", "available", "--limit", "3", "--json")
    assert "3 of 5 jobs shown" in few.err
    exact = ojs("jobs", "--queue", "mail", "--limit", "5", "--json")
    assert (len(exact.objects), exact.err) == (5, "")
    assert len(ojs("jobs", "--queue", "mail", "--limit", "0", "--json").objects) == 5


def test_every_page_of_a_list_is_read(api: Api, ojs: Ojs) -> None:
    for _ in range(2):
        jobs = [{"type": "a", "args": [], "options": {"queue": "many"}}] * 100
        assert api.post("/ojs/v1/jobs/batch", {"jobs": jobs}).status == 201
    found = ojs("jobs", "--queue", "many", "--limit", "0", "--json")
    assert len({job["id"] for job in found.objects}) == 200


def test_one_job_with_its_history(api: Api, ojs: Ojs) -> None:
    job_id = api.dead("mail")
    shown = ojs("job", job_id)
    assert shown.status == Exit.DONE
    for said in (job_id, "discarded", "job.created", "job.attempt_failed", "Boom"):
        assert said in shown.out
    (found,) = ojs("job", job_id, "--json").objects
    assert found["job"]["state"] == "discarded"
    assert "job.attempt_failed" in [event["event_type"] for event in found["history"]]


def test_one_job_is_acted_on(api: Api, ojs: Ojs) -> None:
    job_id = api.dead("mail")
    assert ojs("retry", job_id).out == f"{job_id} is available\n"
    assert ojs("cancel", job_id).out == f"{job_id} is cancelled\n"
    (told,) = ojs("delete", job_id, "--json").objects
    assert told == {"id": job_id, "state": "deleted"}
    assert ojs("job", job_id).status == Exit.NOT_FOUND


def test_many_named_jobs_are_acted_on_and_refusals_are_told(api: Api, ojs: Ojs) -> None:
    first, second = api.push("mail"), api.push("mail")
    done = ojs("cancel", first, second)
    assert (done.status, done.out) == (Exit.DONE, "cancel: 2 succeeded, 0 failed\n")
    api.clock.advance(1_000)
    again = ojs("cancel", first, GONE)
    assert again.status == Exit.FAILED
    assert again.out == "cancel: 0 succeeded, 2 failed\n"
    assert first in again.err
    assert GONE in again.err


def test_a_filter_is_counted_and_asked_about(
    api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails = [api.push("mail") for _ in range(3)]
    other = api.push("other")
    assert ojs("cancel", "--queue", "mail", "--dry-run").out == "matched: 3 jobs\n"
    answers(monkeypatch, "n\n")
    refused = ojs("cancel", "--queue", "mail")
    assert refused.status == Exit.FAILED
    assert "Cancel 3 jobs? [y/N]" in refused.err
    assert states(api, *mails) == {"available"}
    answers(monkeypatch, "yes\n")
    assert ojs("cancel", "--queue", "mail").out == "cancel: 3 succeeded, 0 failed\n"
    assert states(api, *mails) == {"cancelled"}
    assert states(api, other) == {"available"}
    # Nothing is left: nobody is asked.
    assert ojs("cancel", "--queue", "mail").out == "cancel: 0 succeeded, 0 failed\n"


def test_nothing_is_done_where_nobody_can_be_asked(api: Api, ojs: Ojs) -> None:
    job_id = api.push("mail")
    refused = ojs("cancel", "--queue", "mail")
    assert refused.status == Exit.USAGE
    assert "--yes" in refused.err
    assert states(api, job_id) == {"available"}
    (told,) = ojs("cancel", "--queue", "mail", "--yes", "--json").objects
    assert (told["action"], told["succeeded"], told["state"]) == ("cancel", 1, "completed")


def test_a_person_is_erased(api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, asked about, and followed until a round has found nothing."""
    mine = [api.push(queue, meta={"who": "a", "n": 7}) for queue in ("mail", "other")]
    api.push("mail", meta={"who": "b"})
    other = api.push("mail", meta={"who": "a", "n": "7"})

    def sweep(_seconds: float) -> None:
        api.clock.advance(61_000)
        api.runtime.bulk.run_once(api.clock.now_ms(), 100)

    monkeypatch.setattr(output, "wait", sweep)
    # A text is no number.
    who = ("--meta", "who=a", "--meta", "n:=7")
    assert ojs("erase", *who, "--dry-run").out == "matched: 2 jobs\n"
    assert ojs("erase", *who, "--queue", "mail", "--dry-run").out == "matched: 1 job\n"
    assert ojs("erase", *who, "--type", "x.*", "--dry-run").out == "matched: 0 jobs\n"
    refused = ojs("erase", *who)
    assert (refused.status, "erase 2 jobs" in refused.err) == (Exit.USAGE, True)
    answers(monkeypatch, "no\n")
    assert ojs("erase", *who).status == Exit.FAILED
    assert states(api, *mine, other) == {"available"}
    answers(monkeypatch, "y\n")
    done = ojs("erase", *who)
    assert (done.status, done.out) == (Exit.DONE, "erase: 2 succeeded, 0 failed\n")
    assert "copies can remain: event_log, until 20" in done.err
    assert [api.get(f"/ojs/v1/jobs/{job_id}").status for job_id in mine] == [404, 404]
    assert states(api, other) == {"available"}
    (told,) = ojs("erase", other, "--yes", "--json").objects
    assert (told["action"], told["state"], told["succeeded"]) == ("erase", "completed", 1)
    assert ojs("erase", GONE, "--yes").status == Exit.FAILED


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), Exit.USAGE, "--meta: required without IDs"),
        ((GONE, "--meta", "a=1"), Exit.USAGE, "--meta: required without IDs"),
        ((GONE, "--queue", "q"), Exit.USAGE, "--queue, --type: require --meta"),
        (("--queue", "q"), Exit.USAGE, "--meta: required without IDs"),
        (("--meta", "a=1", "--meta", "a=2"), Exit.USAGE, '--meta: duplicate name "a"'),
        (("--meta", "a"), Exit.USAGE, "must be NAME=TEXT or NAME:=JSON, but is 'a'"),
        (("--meta", "=1"), Exit.USAGE, "must be NAME=TEXT or NAME:=JSON, but is '=1'"),
        (("--meta", ":=1"), Exit.USAGE, "must be NAME=TEXT or NAME:=JSON, but is ':=1'"),
        (("--meta", "a:=}"), Exit.USAGE, "must be JSON after :=, but is '}'"),
        (("--meta", "a:=" + "[" * 100_000), Exit.USAGE, "must be JSON after :="),
        (("--meta", "a=", "--yes"), Exit.REFUSED, "'filter.meta.a': must not be empty"),
        (("--meta", "a:=null", "--yes"), Exit.REFUSED, "'filter.meta.a': must not be empty"),
        (("nope", "--yes"), Exit.REFUSED, "'job_ids[0]': must be a lowercase UUIDv7"),
        ((*[GONE] * 1_001, "--yes"), Exit.USAGE, "must have at most 1,000 IDs, but has 1,001"),
    ],
)
def test_an_erasure_that_is_not_meant(
    arguments: tuple[str, ...], status: Exit, said: str, api: Api, ojs: Ojs
) -> None:
    job_id = api.push("q", meta={"a": "1"})
    refused = ojs("erase", *arguments)
    assert refused.status == status
    assert said in refused.err
    assert "Traceback" not in refused.err
    assert states(api, job_id) == {"available"}


def test_work_that_goes_on_is_followed_to_its_end(
    api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request has no time; the sweep does the work while the command waits."""
    mails = [api.push("mail") for _ in range(3)]
    api.context = SimpleNamespace(get_remaining_time_in_millis=lambda: 1_000)
    waited: list[float] = []

    def sweep(seconds: float) -> None:
        waited.append(seconds)
        api.clock.advance(60_000)
        api.runtime.bulk.run_once(api.clock.now_ms(), 100)

    monkeypatch.setattr(output, "wait", sweep)
    assert ojs("cancel", "--queue", "mail", "--yes").out == "cancel: 3 succeeded, 0 failed\n"
    assert waited
    assert states(api, *mails) == {"cancelled"}


def test_a_bar_shows_how_far_the_work_is(
    api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        api.push("mail")
    monkeypatch.setenv("TERM", "xterm")
    seen = io.StringIO()
    seen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", seen)
    answers(monkeypatch, "y\n")
    assert ojs("cancel", "--queue", "mail").out == "cancel: 3 succeeded, 0 failed\n"
    assert "3/3" in seen.getvalue()
    # Without a terminal there is none.
    monkeypatch.setattr(sys, "stderr", silent := io.StringIO())
    api.push("mail")
    assert ojs("cancel", "--queue", "mail", "--yes").status == Exit.DONE
    assert silent.getvalue() == ""


def test_work_that_goes_on_is_left_and_stopped(
    api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = api.push("mail")
    api.context = SimpleNamespace(get_remaining_time_in_millis=lambda: 1_000)

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "wait", interrupted)
    left = ojs("cancel", "--queue", "mail", "--yes")
    assert left.status == Exit.INTERRUPTED
    assert left.err.count("\n") == 1
    operation = left.err.partition("`ojs-aws operation ")[2].partition("`")[0]

    def sweep(_seconds: float) -> None:
        api.clock.advance(60_000)
        api.runtime.bulk.run_once(api.clock.now_ms(), 100)

    monkeypatch.setattr(output, "wait", sweep)
    stopped = ojs("operation", operation, "--stop")
    assert stopped.status == Exit.FAILED
    assert "stopped before it finished" in stopped.err
    assert states(api, job_id) == {"available"}
    (row,) = ojs("operation").out.splitlines()[1:]
    assert row.split()[:6] == [operation, "cancel", "stopped", "0", "0", "0"]
    (told,) = ojs("operation", "--json").objects
    assert (told["id"], told["filter"]) == (operation, {"queue": "mail", **told["filter"]})
    assert ojs("operation", "--stop").status == Exit.USAGE
    assert ojs("operation", GONE).status == Exit.NOT_FOUND


# --- dead letters, queues -------------------------------------------------------------------------


def test_dead_letters_are_listed_counted_and_brought_back(api: Api, ojs: Ojs) -> None:
    mail, other = api.dead("mail"), api.dead("other")
    shown = ojs("dead", "list")
    assert "Boom: no" in shown.out
    assert {job["id"] for job in ojs("dead", "list", "--json").objects} == {mail, other}
    (only,) = ojs("dead", "list", "--queue", "mail", "--error-type", "Boom", "--json").objects
    assert only["id"] == mail
    assert ojs("dead", "retry", "--queue", "mail", "--dry-run").out == "matched: 1 dead letter\n"
    assert ojs("dead", "retry").status == Exit.USAGE
    assert ojs("dead", "retry", "--all", "--queue", "mail").status == Exit.USAGE
    assert ojs("dead", "retry", "--queue", "mail").status == Exit.USAGE
    assert states(api, mail, other) == {"discarded"}
    assert ojs("dead", "retry", "--queue", "mail", "--yes").out == "retry: 1 succeeded, 0 failed\n"
    assert states(api, mail) == {"available"}
    assert states(api, other) == {"discarded"}
    assert ojs("dead", "retry", "--all", "--yes").out == "retry: 1 succeeded, 0 failed\n"


def test_dead_letters_are_counted_by_group(api: Api, ojs: Ojs) -> None:
    (stats,) = ojs("dead", "groups", "--json").objects
    assert stats == api.get("/ojs/v1/admin/dead-letter/stats").json
    shown = ojs("dead", "groups").out
    assert all(title in shown for title in ("QUEUE", "TYPE", "ERROR", "0 in total"))
    assert "QUEUE" not in ojs("dead", "groups", "--by", "error").out


def test_queues_are_paused_and_resumed(api: Api, ojs: Ojs) -> None:
    api.push("mail")
    assert ojs("pause", "mail").out == "mail is paused\n"
    assert api.fetch("mail") == []
    (told,) = ojs("resume", "mail", "--json").objects
    assert (told["name"], told["state"]) == ("mail", "active")
    assert len(api.fetch("mail")) == 1
    assert ojs("pause", "No").status == Exit.REFUSED


def test_queues_are_listed_page_by_page(api: Api, ojs: Ojs) -> None:
    names = [f"q-{number:02}" for number in range(25)]
    for name in names:
        api.push(name)
    api.runtime.metrics_sweep.run_once(api.clock.now_ms(), 1_000)
    first = ojs("queues")
    header, *rows = first.out.splitlines()
    assert header.split() == [
        "QUEUE", "STATE", "DEPTH", "AVAILABLE", "ACTIVE", "SCHEDULED", "RETRYABLE", "PENDING",
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == names[:20]
    assert "20 of 25 queues shown" in first.err
    every = ojs("queues", "--limit", "0", "--json")
    assert ([each["name"] for each in every.objects], every.err) == (names, "")


def test_status_shows_depth_and_age(api: Api, ojs: Ojs) -> None:
    api.push("mail")
    api.push("mail", options={"delay_until": "+PT1H"})
    api.push("other")
    api.clock.advance(192_000)
    header, *rows = ojs("status").out.splitlines()
    assert header.split()[:4] == ["QUEUE", "STATE", "DEPTH", "AVAILABLE"]
    shown = {row.split()[0]: row for row in rows if row}
    assert "3m 12s" in shown["mail"]
    assert shown["mail"].split()[1:6] == ["active", "2", "1", "0", "1"]
    (told,) = ojs("status", "other", "--json").objects
    (queue,) = told["queues"]
    assert (queue["name"], queue["depth"]) == ("other", 1)
    assert queue["oldest_available_age_seconds"] == 192
    assert ojs("status", "--limit", "1", "--json").objects[0]["queues_left_out"] == 1
    assert ojs("status", "nowhere").status == Exit.NOT_FOUND


def test_status_is_shown_again_and_again(
    api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.push("mail")
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            raise KeyboardInterrupt
        api.push("mail")

    monkeypatch.setattr(output, "wait", wait)
    seen = ojs("status", "--watch", "7", "--json")
    assert seen.status == Exit.INTERRUPTED
    assert [told["queues"][0]["depth"] for told in seen.objects] == [1, 2, 3]
    assert waited == [7, 7, 7]
    assert seen.err == ""


def test_on_a_terminal_status_is_drawn_in_its_place(
    api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.push("mail")
    reach = bridge(monkeypatch, api)
    waits = 0

    def wait(_seconds: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 3:
            raise KeyboardInterrupt
        api.push("mail")
        # The server is away once: what was read last stays.
        reached(monkeypatch, away if waits == 1 else reach)

    seen = io.StringIO()
    seen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "stdout", seen)
    monkeypatch.setattr(output, "wait", wait)
    done = ojs("status", "--watch")
    assert done.status == Exit.INTERRUPTED
    drawn = [line.split()[2] for line in seen.getvalue().splitlines() if "mail" in line]
    assert drawn[0] == "1"
    assert drawn[-1] == "3"
    # The cursor goes up, to where the table begins.
    assert "\x1b[1A" in seen.getvalue()
    assert "busy. Retrying" in seen.getvalue() + done.err


# --- events ---------------------------------------------------------------------------------------


def told(number: int) -> dict[str, Any]:
    return {
        "id": f"evt_{number}", "type": "job.enqueued", "time": "2026-11-22T23:00:00.000Z",
        "subject": f"job-{number}", "data": {"job_id": f"job-{number}", "queue": HOSTILE},
    }  # fmt: skip


def test_events_are_followed_and_none_is_missed(ojs: Ojs, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = iter(
        [
            (200, {"events": [told(1)], "cursor": "c1", "has_more": False}),
            (200, {"events": [told(2)], "cursor": "c2", "has_more": True}),
            (503, {"message": "Service Unavailable"}),
            (200, {"events": [told(3)], "cursor": "c3", "has_more": False}),
        ]
    )
    asked: list[dict[str, str]] = []

    def answer(sent: httpx.Request) -> httpx.Response:
        if sent.url.path.endswith("/realtime/tickets"):
            return httpx.Response(422, json={"error": {"code": "unsupported"}})
        asked.append(dict(sent.url.params))
        status, body = next(scripted)
        return httpx.Response(status, json=body)

    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(asked) == 4:
            raise KeyboardInterrupt

    reached(monkeypatch, answer)
    monkeypatch.setattr(output, "wait", wait)
    seen = ojs("events", "--follow", "--queue", "mail", "--limit", "5")
    assert seen.status == Exit.INTERRUPTED
    assert [line.split()[2] for line in seen.out.splitlines()] == ["job-1", "job-2", "job-3"]
    assert all(each.isprintable() or each == "\n" for each in seen.out)
    assert seen.err.count("\n") == 1
    assert asked[0] == {"queues": "mail", "limit": "5"}
    # After the failure it asks for the same again.
    assert [each["after"] for each in asked[1:]] == ["c1", "c2", "c2"]
    # At once where there are more; not after a failure.
    assert len(waited) == 3


class Live:
    """A subscription that receives these messages, and then fails or is interrupted."""

    def __init__(self, *received: Event | BaseException | None) -> None:
        self.received = list(received)
        self.closed = 0

    def open(self) -> None:
        pass

    def get(self, _timeout_s: float) -> Event | None:
        got = self.received.pop(0)
        if isinstance(got, BaseException):
            raise got
        return got

    def unsubscribe(self) -> None:
        self.closed += 1


def live(*envelopes: dict[str, Any]) -> Event:
    return Event("job.state_changed", "all", "evt", data={"events": list(envelopes)})


def test_events_that_the_server_sends_are_shown_at_once_and_only_once(
    ojs: Ojs, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = told(9) | {"data": {"queue": "other"}}
    subscription = Live(
        None, live(told(2), other), live(told(1)), ServerError(500, {"message": "away"})
    )
    asked: list[tuple[str, Any]] = []

    def subscribe(_self: object, channel: str, **options: Any) -> Live:
        asked.append((channel, options))
        return subscription

    # The log has the second event later, and one that the server doesn't send.
    pages = iter([[told(1)], [told(2), told(3)]])
    reached(monkeypatch, lambda _: httpx.Response(200, json={
        "events": next(pages), "cursor": "c", "has_more": False,
    }))  # fmt: skip

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(target.Server, "subscribe", subscribe)
    monkeypatch.setattr(output, "wait", interrupt)
    seen = ojs("events", "--follow", "--queue", HOSTILE, "--json")
    assert seen.status == Exit.INTERRUPTED
    assert [each["subject"] for each in seen.objects] == ["job-1", "job-2", "job-3"]
    assert "The event log is read each 2 s" in seen.err
    assert asked == [(f"queue:{HOSTILE}", {"types": LOGGED, "detail": True})]
    assert subscription.closed == 1


@pytest.mark.parametrize(
    ("types", "received", "read_s"),
    [
        # Some events of the log belong to none that the server sends, and some to one of these.
        ((), [None], [300]),
        ((), [live(told(2))], [15]),
        (("job.*",), [live(told(2))], [15]),
        (("job.completed,worker.*",), [live(told(2))], [15]),
        (("job.completed,queue.paused",), [live(told(2))], [300]),
        (("job.completed",), [Event("system.gap", "all", None)], [15]),
        (("job.completed",), [live(told(2)), Event("system.events_dropped", "all", "e")], [15]),
    ],
)  # fmt: skip
def test_with_a_subscription_the_log_is_read_only_for_what_it_lacks(
    ojs: Ojs,
    monkeypatch: pytest.MonkeyPatch,
    types: tuple[str, ...],
    received: list[Event | None],
    read_s: list[int],
) -> None:
    now, reads = [0.0], []

    class Idle(Live):
        def get(self, timeout_s: float) -> Event | None:
            if self.received:
                return super().get(timeout_s)
            now[0] += timeout_s
            return None

    def answer(_request: httpx.Request) -> httpx.Response:
        reads.append(now[0])
        if len(reads) > 1:
            raise KeyboardInterrupt
        return httpx.Response(200, json={"events": [], "cursor": "c", "has_more": False})

    reached(monkeypatch, answer)
    monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(target.Server, "subscribe", lambda *_, **__: Idle(*received))
    selected = [part for each in types for part in ("--type", each)]
    assert ojs("events", "--follow", *selected).status == Exit.INTERRUPTED
    assert reads == [0, *read_s]


def test_a_job_is_waited_for(api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_POLL_S", (0.01, 0.01))
    job_id = api.push("mail")
    busy = ojs("jobs", "wait", job_id, "--timeout", "0.1")
    assert (busy.status, busy.out) == (Exit.BUSY, "")
    assert "is available" in busy.err
    ojs("cancel", job_id)
    done = ojs("jobs", "--json", "wait", job_id)
    assert (done.status, done.objects[0]["state"]) == (Exit.FAILED, "cancelled")
    assert done.err == "error: the job is cancelled\n"
    other = api.push("mail")
    api.fetch("mail")
    api.post("/ojs/v1/workers/ack", {"job_id": other})
    done = ojs("jobs", "wait", other)
    assert (done.status, done.out) == (Exit.DONE, f"{other} is completed\n")
    assert ojs("jobs", "wait", GONE).status == Exit.NOT_FOUND
    assert ojs("jobs", "--queue", "mail", "wait", job_id).status == Exit.USAGE
    assert ojs("jobs", "wait", job_id, "--timeout", "-1").status == Exit.USAGE


# --- what goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["job", GONE], Exit.NOT_FOUND, "not_found: "),
        (["job", ".."], Exit.USAGE, "must be a name"),
        (["retry", GONE], Exit.NOT_FOUND, "not_found: "),
        (["jobs", "--state", "waiting"], Exit.REFUSED, "'state"),
        (["jobs", "--since", "yesterday"], Exit.REFUSED, "'since'"),
        (["jobs", "--limit", "-1"], Exit.USAGE, "--limit"),
        (["cancel", "--state", "completed", "--yes"], Exit.REFUSED, "'filter.state'"),
        (["cancel"], Exit.USAGE, "id: "),
        (["cancel", GONE, "--queue", "mail"], Exit.USAGE, "id: "),
        (["status", "--watch", "0"], Exit.USAGE, "--watch"),
        (["events", "--type", "No Type"], Exit.REFUSED, "'types'"),
        (["nonsense"], Exit.USAGE, "invalid choice"),
    ],
)
def test_what_is_wrong_is_one_clear_line_and_a_status(
    arguments: list[str], status: Exit, said: str, ojs: Ojs
) -> None:
    done = ojs(*arguments)
    assert (done.status, done.out) == (status, "")
    assert said in done.err.splitlines()[-1]
    assert done.err.startswith(("error: ", "usage: "))


@pytest.mark.parametrize(
    ("status", "body", "headers", "exit_status", "said"),
    [
        (401, {"message": "Unauthorized"}, {}, Exit.NOT_ALLOWED, "HTTP 401: Unauthorized"),
        (429, {"error": {"code": "queue_full", "message": "Full."}}, {"Retry-After": "7"},
         Exit.BUSY, "queue_full: Full. (retry after 7 s)"),
        (503, {"message": "Service Unavailable"}, {}, Exit.BUSY, "HTTP 503"),
        (500, {"error": {"code": "internal", "message": "No."}}, {}, Exit.FAILED, "internal: No."),
        (200, "<html>", {}, Exit.UNREACHABLE, "the response is invalid"),
        (200, "", {}, Exit.UNREACHABLE, "the response is empty"),
        (404, "<html>", {}, Exit.UNREACHABLE, "Is this an OJS server?"),
        (400, {"error": {"code": "x", "message": HOSTILE}}, {}, Exit.REFUSED, "x: a\\x1b[2J"),
    ],
)  # fmt: skip
def test_each_kind_of_failure_has_a_status(
    status: int, body: Any, headers: dict[str, str], exit_status: Exit, said: str,
    ojs: Ojs, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    data = body if isinstance(body, str) else json.dumps(body)
    answer = httpx.Response(status, text=data, headers=headers)
    reached(monkeypatch, lambda _: answer)
    done = ojs("jobs")
    assert (done.status, done.out) == (exit_status, "")
    assert said in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "failure", "doubt"),
    [
        (("jobs",), httpx.ReadError("Connection aborted."), False),
        (("cancel", "--queue", "mail", "--yes"), httpx.ReadError("Connection aborted."), True),
        (("cancel", "--queue", "mail", "--yes"), httpx.ConnectError("refused"), False),
    ],
)
def test_an_answer_that_is_lost(
    command: tuple[str, ...], failure: Exception, doubt: bool, ojs: Ojs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The command asks once, and says whether the request may have taken effect."""
    asked: list[str] = []

    def lost(sent: httpx.Request) -> httpx.Response:
        asked.append(sent.method)
        raise failure

    reached(monkeypatch, lost)
    done = ojs(*command)
    assert (done.status, len(asked)) == (Exit.UNREACHABLE, 1)
    assert ("may have processed the request" in done.err) == doubt


def test_a_failure_in_between_does_not_end_what_follows(
    api: Api, ojs: Ojs, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.push("mail")
    api.context = SimpleNamespace(get_remaining_time_in_millis=lambda: 1_000)
    reach = bridge(monkeypatch, api)
    failing: list[bool] = []

    def wait(_seconds: float) -> None:
        if failing:
            failing.clear()
            api.clock.advance(60_000)
            api.runtime.bulk.run_once(api.clock.now_ms(), 100)
        else:
            failing.append(True)

    reached(monkeypatch, lambda sent: away(sent) if failing else reach(sent))
    monkeypatch.setattr(output, "wait", wait)
    done = ojs("cancel", "--queue", "mail", "--yes")
    assert (done.status, done.out) == (Exit.DONE, "cancel: 1 succeeded, 0 failed\n")
    assert done.err == "error: HTTP 503: busy. Retrying\n"
    # For ever it does not wait.
    api.push("mail")
    monkeypatch.setattr(output, "wait", lambda _: failing.append(True))
    given_up = ojs("cancel", "--queue", "mail", "--yes")
    assert given_up.status == Exit.UNREACHABLE
    assert "`ojs-aws operation " in given_up.err


def test_a_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OJS_KEY", raising=False)
    done = runner(capsys)("jobs", "--url", "http://127.0.0.1:9")
    assert (done.status, done.out) == (Exit.UNREACHABLE, "")
    assert done.err.startswith("error: No response from http://127.0.0.1:9: ")
    for url in ("ftp://x", "http://", "http://x:y"):
        done = runner(capsys)("jobs", "--url", url)
        assert (done.status, done.err.count("\n")) == (Exit.UNREACHABLE, 1)


def test_keys_that_do_not_allow_it(
    make_runtime: Callable[..., Runtime],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    closed = Keyed(make_runtime(authorizer="keys"), clock)
    holding: list[str | None] = [None]

    def ask(*arguments: Any, headers: Any, **more: Any) -> Any:
        shown = headers.get("authorization", "").removeprefix("Bearer ") or None
        holding[0] = shown
        if shown is None:
            # What API Gateway answers by itself.
            return SimpleNamespace(status=401, text='{"message":"Unauthorized"}', headers={})
        return closed.holding(shown)(*arguments, **more)

    bridge(monkeypatch, ask)
    run = runner(capsys)
    assert run("jobs").status == Exit.NOT_ALLOWED
    monkeypatch.setenv("OJS_KEY", closed.make("reader", "admin:read"))
    assert run("jobs").status == Exit.DONE
    assert holding[0] is not None
    refused = run("pause", "mail", "--yes")
    assert refused.status == Exit.NOT_ALLOWED
    assert "permission_denied" in refused.err
    # The history of a job has a scope of its own; the job is shown without it.
    monkeypatch.setenv("OJS_KEY", closed.make("writer", "jobs:write", "admin:read"))
    server = target.Server("http://x", closed.make("pusher", "jobs:write"))
    made = server.enqueue("a")
    shown = run("job", made.id)
    assert shown.status == Exit.DONE
    assert made.id in shown.out
    assert "the history is not available" in shown.err


def test_roles_are_given_scopes_and_lose_them(
    make_runtime: Callable[..., Runtime],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    account = "arn:aws:iam::123456789012:role"
    settings = {"iam_operators": (f"{account}/operator",), "authorizer_cache_s": 0}
    closed = Keyed(make_runtime(authorizer="iam", **settings), clock)

    def ask(*arguments: Any, headers: Any, **more: Any) -> Any:
        # API Gateway and IAM: whose signature it is.
        signed = headers["authorization"].removeprefix("AWS4-HMAC-SHA256 Credential=")
        told = {"iam": {"userArn": f"{account}/{signed.partition('/')[0]}"}}
        return closed(*arguments, told=told, **more)

    bridge(monkeypatch, ask)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    ojs = runner(capsys)

    def run(role: str, *arguments: str) -> Printed:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", role)
        return ojs(*arguments, "--iam")

    assert run("mailer", "status").status == Exit.NOT_ALLOWED
    create = ("roles", "create", "mail team", f"{account}/path/mailer", "--scope", "work")
    made = run("operator", *create, "--queue", "mail", "--expires", "+P90D")
    assert made.status == Exit.DONE, made.err
    key_id, state, rest = made.out.split(maxsplit=2)
    assert (state, made.err) == ("active", "")
    assert rest.startswith("mail team  work  mail  expires ")
    assert rest.endswith(f"  {account}/mailer\n")
    again = run("operator", *create)
    assert again.status == Exit.REFUSED
    assert key_id in again.err
    for wrong, named in (("mailer", "role"), (f"{account}/operator", "iam_operators")):
        refused = run("operator", "roles", "create", "k", wrong, "--scope", "work")
        assert (refused.status, refused.out) == (Exit.REFUSED, "")
        assert named in refused.err
    # Its own account of what it may do is not for it.
    assert run("mailer", "roles", "list").status == Exit.NOT_ALLOWED
    (listed,) = run("operator", "roles", "list", "--json").objects
    assert (listed["id"], listed["role"]) == (key_id, f"{account}/mailer")
    assert run("operator", "keys", "list").out == run("operator", "roles", "list").out
    gone = run("operator", "roles", "revoke", key_id, "--made")
    assert gone.out.startswith(f"{key_id}  revoked  mail team")
    # Of a key, which could be made before, there is no role.
    closed.make("old", "work")
    assert "old" in run("operator", "keys", "list").out
    assert "old" not in run("operator", "roles", "list").out
    assert run("operator", "keys", "create", "k", "--scope", "work").status == Exit.REFUSED


WRONG: tuple[tuple[list[str], Exit, str], ...] = (
    (["keys", "create", "k"], Exit.USAGE, "--scope"),
    (["keys", "create", "k", "--scope", "all"], Exit.USAGE, "invalid choice"),
    (["keys", "create", "", "--scope", "work"], Exit.REFUSED, "'name'"),
    (["keys", "create", 'a"b', "--scope", "work"], Exit.REFUSED, "'name'"),
    (["keys", "create", "k", "--scope", "work", "--scope", "work"], Exit.REFUSED, "'scopes'"),
    (["keys", "create", "k", "--scope", "work", "--queue", "A b"], Exit.REFUSED, "'queues[0]'"),
    (["keys", "create", "k", "--scope", "work", "--queue", ""], Exit.REFUSED, "'queues[0]'"),
    (["keys", "create", "k", "--scope", "work", "--expires", "x"], Exit.REFUSED, "'expires_at'"),
    (
        ["keys", "create", "k", "--scope", "work", "--expires", "2020-01-01T00:00:00Z"],
        Exit.REFUSED,
        "'expires_at': must be in the future",
    ),
    (["keys", "revoke", "../jobs"], Exit.USAGE, "letters and digits"),
    (["keys", "revoke", ""], Exit.USAGE, "letters and digits"),
    (["keys", "revoke", "nobody", "--made"], Exit.REFUSED, "'id'"),
    (["keys", "revoke", "0123456789abcdef", "--made"], Exit.NOT_FOUND, "not found"),
    (["keys", "revoke"], Exit.USAGE, "id"),
    (["keys"], Exit.USAGE, "create|list|revoke"),
    (["roles", "create", "k", "--scope", "work"], Exit.USAGE, "ARN"),
    (["roles", "revoke", "a/b"], Exit.USAGE, "letters and digits"),
    # An open server knows nobody by a role.
    (["roles", "create", "k", "arn:aws:iam::123456789012:role/r", "--scope", "work"],
     Exit.REFUSED, "unsupported"),
)  # fmt: skip


@pytest.mark.parametrize(("arguments", "status", "named"), WRONG, ids=str)
def test_what_is_wrong_about_a_key_is_named(
    arguments: list[str], status: Exit, named: str, api: Api, ojs: Ojs
) -> None:
    done = ojs(*arguments)
    assert (done.status, done.out) == (status, "")
    assert named in done.err
    assert "Traceback" not in done.err
    assert api.runtime.access_keys.list().items == []


# --- hostile text ---------------------------------------------------------------------------------


def test_hostile_text_is_escaped_everywhere(api: Api, ojs: Ojs) -> None:
    job_id = api.active("mail", args=[HOSTILE], meta={HOSTILE: HOSTILE})
    api.push("mail", args=[HOSTILE])
    error = {"type": HOSTILE, "message": HOSTILE, "retryable": False}
    api.post("/ojs/v1/workers/nack", {"job_id": job_id, "error": error})
    for command in (
        ["jobs", "--queue", "mail"], ["jobs", "--queue", "mail", "--json"],
        ["job", job_id], ["job", job_id, "--json"],
        ["dead", "list"], ["dead", "list", "--json"], ["status"],
    ):  # fmt: skip
        done = ojs(*command)
        for text in (done.out, done.err):
            assert all(each.isprintable() or each == "\n" for each in text), command
        assert "owned" in done.out + done.err or command == ["status"]
    (told,) = ojs("job", job_id, "--json").objects
    assert told["job"]["args"] == [HOSTILE]


# --- workflows ------------------------------------------------------------------------------------


def test_workflows_listed_shown_retried_and_cancelled(ojs: Ojs, api: Api) -> None:
    inner = {"type": "group", "jobs": [{"type": "x", "args": []}, {"type": "y", "args": []}]}
    graph = {
        "name": HOSTILE,
        "steps": [
            {"id": "a", "type": "a", "args": []},
            {"id": HOSTILE, "depends_on": ["a"], **inner},
        ],
    }
    workflow_id = api.post("/ojs/v1/workflows", graph).json["id"]
    api.dead("other")
    (found,) = api.fetch()
    error = {"type": "Boom", "message": HOSTILE, "retryable": False}
    api.post("/ojs/v1/workers/nack", {"job_id": found["id"], "error": error})
    (listed,) = ojs("workflows", "list", "--state", "failed", "--json").objects
    assert (listed["id"], listed["name"]) == (workflow_id, HOSTILE)
    assert ojs("workflows", "list", "--state", "running", "--json").objects == []
    for printed in (ojs("workflows", "list"), ojs("workflows", "show", workflow_id)):
        assert printed.status == Exit.DONE, printed.err
        assert workflow_id in printed.out
        assert not set(HOSTILE) & set("\x1b\r\u202e") & set(printed.out)
    shown = ojs("workflows", "show", workflow_id).out.splitlines()
    assert [line.split()[1:3] for line in shown if line.startswith(("a ", "  0", "  1"))] == [
        ["a", "failed"], ["x", "cancelled"], ["y", "cancelled"],
    ]  # fmt: skip
    assert (
        ojs("workflows", "retry", workflow_id, "--mode", "all").out == f"{workflow_id} is running\n"
    )
    early = ojs("workflows", "retry", workflow_id)
    assert (early.status, early.err.startswith("error: conflict")) == (Exit.REFUSED, True)
    cancelled = ojs("workflows", "cancel", workflow_id).out
    assert cancelled == f"{workflow_id} is cancelled: 3 steps cancelled, 0 still active\n"
    assert ojs("workflows", "show", GONE).status == Exit.NOT_FOUND


def test_more_workflows_than_are_listed(ojs: Ojs, api: Api) -> None:
    body = {"type": "group", "jobs": [{"type": "x", "args": []}]}
    ids = [api.post("/ojs/v1/workflows", body).json["id"] for _ in range(3)]
    printed = ojs("workflows", "list", "--limit", "2", "--json")
    assert len(printed.objects) == 2
    assert "more workflows exist" in printed.err
    every = ojs("workflows", "list", "--limit", "0", "--json").objects
    assert sorted(each["id"] for each in every) == sorted(ids)
