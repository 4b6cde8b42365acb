"""GET /ojs/v1/events through the handler, over pages as the stream's projection writes them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import jsontext, times
from ojs.domain.events.event import Event, event_id
from ojs.store.table import keys

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

PATH = "/ojs/v1/events"
HALF = "\ud800"


def write(api: Api, *kinds: str, queue: str = "email", **data: Any) -> list[str]:
    """A page of events, one for each kind; their ids."""
    now_ms = api.clock.now_ms()
    told = [
        Event(
            id=event_id(now_ms, str(number), kind, queue),
            type=kind,
            source="ojs://shop/workers/w-1" if kind == "job.completed" else "ojs://shop/api",
            time_ms=now_ms,
            subject="019539a4-0000-7000-8000-000000000000",
            data={"job_type": "email.send", "queue": queue, **data},
        )
        for number, kind in enumerate(kinds)
    ]
    text = jsontext.dumps([event.to_dict() for event in told])
    item: dict[str, str | int | bytes] = {
        "pk": keys.events(times.format_ms(now_ms)[:10]),
        "sk": keys.event_page(now_ms, api.runtime.ids.token()),
        "zip": zlib.compress(text.encode()),
        "n": len(told),
        "ttl": now_ms // 1_000 + 8 * 86_400,
    }
    api.runtime.table.write_many([item])
    api.clock.advance(1_000)
    return [event.id for event in told]


def ids(shown: Any) -> list[str]:
    return [event["id"] for event in shown["events"]]


def test_the_admin_ui_shows_when_an_event_was_and_turns_pages(api: Api) -> None:
    """It computes the pages from `pagination.total`, and shows `timestamp`."""
    for _ in range(5):
        write(api, "job.enqueued")
        api.clock.advance(1_000)
    totals = []
    for page in ("1", "2", "3"):
        shown = api.get(PATH, page=page, per_page="2").json
        totals.append(shown["pagination"]["total"])
        assert all(event["timestamp"] == event["time"] for event in shown["items"])
    # One more than is shown leads on to the next page.
    assert totals == [3, 5, 5]
    assert "total" not in api.get(PATH, after=shown["cursor"]).json["pagination"]


def test_events_are_listed(api: Api) -> None:
    first = write(api, "job.enqueued", "job.started")
    second = write(api, "job.completed", result=[1, {"a": None}], duration_ms=12)
    shown = api.get(PATH).json
    assert ids(shown) == first + second
    assert shown["items"] == shown["events"]
    assert shown["has_more"] is False
    assert shown["pagination"] == {
        "has_more": False, "limit": 100, "offset": 0, "page": 1, "per_page": 100, "total": 3,
    }  # fmt: skip
    event = shown["events"][-1]
    assert event["specversion"] == "1.0"
    assert event["time"] == times.format_ms(api.clock.now_ms() - 1_000)
    assert event["data"] == {
        "job_type": "email.send", "queue": "email", "result": [1, {"a": None}], "duration_ms": 12,
    }  # fmt: skip


def test_numbers_come_back_as_they_were(api: Api) -> None:
    write(
        api, "job.completed", result=jsontext.loads('{"a":3.10,"b":1e2,"c":12345678901234567890}')
    )
    assert '"result":{"a":3.10,"b":1E+2,"c":12345678901234567890}' in api.get(PATH).text


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"types": "job.completed"}, [2]),
        ({"type": "job.completed"}, [2]),
        ({"types": "job.completed,queue.paused"}, [2, 3]),
        ({"types": "job.*"}, [0, 1, 2, 4]),
        ({"types": "queue.*,job.started"}, [1, 3]),
        ({"types": "*"}, [0, 1, 2, 3, 4]),
        ({"types": "job"}, []),
        ({"queues": "email"}, [0, 1, 2, 3]),
        ({"queue": "other"}, [4]),
        ({"queues": "email,other", "types": "job.enqueued"}, [0, 4]),
        ({"job_types": "email.send"}, [0, 1, 2, 3, 4]),
        ({"job_types": "no.such"}, []),
        ({"sources": "ojs://shop/workers/*"}, [2]),
        ({"sources": "ojs://shop/api,ojs://shop/workers/w-1"}, [0, 1, 2, 3, 4]),
        ({"limit": "2"}, [3, 4]),
        ({"per_page": "2"}, [3, 4]),
        ({"limit": "2", "page": "2"}, [1, 2]),
        ({"limit": "2", "page": "4"}, []),
    ],
)
def test_filters(api: Api, query: dict[str, str], expected: list[int]) -> None:
    written = write(api, "job.enqueued", "job.started")
    written += write(api, "job.completed")
    written += write(api, "queue.paused")
    written += write(api, "job.enqueued", queue="other")
    reply = api.get(PATH, **query)
    assert ids(reply.json) == [written[at] for at in expected]


def test_a_span_of_time(api: Api) -> None:
    written = [write(api, "job.enqueued")[0] for _ in range(5)]
    start_ms = api.clock.now_ms() - 5_000
    since, until = times.format_ms(start_ms + 1_000), times.format_ms(start_ms + 3_000)
    assert ids(api.get(PATH, since=since).json) == written[1:]
    assert ids(api.get(PATH, until=until).json) == written[:3]
    assert ids(api.get(PATH, since=since, until=until).json) == written[1:3]
    offset = since.replace("Z", "+00:00")
    assert ids(api.get(PATH, since=offset).json) == written[1:]


def test_paging_back(api: Api) -> None:
    written = [event for _ in range(4) for event in write(api, "job.enqueued", "job.started")]
    shown = api.get(PATH, limit="3").json
    assert ids(shown) == written[5:]
    assert shown["has_more"] is False, "nothing is newer"
    assert shown["pagination"]["has_more"] is True
    found = ids(shown)
    cursor = shown["cursor"]
    while "next_cursor" in shown["pagination"]:
        shown = api.get(PATH, limit="3", cursor=shown["pagination"]["next_cursor"]).json
        found = ids(shown) + found
        assert shown["cursor"] == cursor
    assert found == written


def test_following(api: Api) -> None:
    cursor = api.get(PATH).json["cursor"]
    written, found = [], []
    for _ in range(3):
        written += write(api, "job.enqueued", "job.started", "job.completed")
        more = True
        while more:
            shown = api.get(PATH, after=cursor, limit="2").json
            found += ids(shown)
            cursor, more = shown["cursor"], shown["has_more"]
            assert shown["pagination"]["has_more"] is more
            assert shown["pagination"].get("next_cursor") == (cursor if more else None)
    assert found == written
    # Either parameter takes it.
    assert api.get(PATH, cursor=cursor).json["events"] == []


def test_after_an_event(api: Api) -> None:
    written = write(api, "job.enqueued", "job.started") + write(api, "job.completed")
    assert ids(api.get(PATH, after=written[0]).json) == written[1:]
    assert ids(api.get(PATH, after=written[0], types="job.completed").json) == written[2:]
    assert ids(api.get(PATH, after=written[2]).json) == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"types": "job.completed,"}, "types"),
        ({"types": ",".join(["job.a"] * 51)}, "types"),
        ({"types": "job.*", "type": "job.completed"}, "type"),
        ({"queues": f"a,{HALF}"}, "queues"),
        ({"sources": f"ojs://{HALF}"}, "sources"),
        ({"since": "2099-01-01T00:00:00Z"}, "since"),
        ({"since": "2026-01-02T00:00:00Z", "until": "2026-01-02T00:00:00Z"}, "since"),
        ({"page": "12"}, "page"),
        ({"page": "2", "cursor": "Zg"}, "page"),
        ({"after": "Zg", "cursor": "Zg"}, "cursor"),
        ({"after": "evt_1"}, "after"),
        ({"after": "evt_019539a4-0000-4000-8000-000000000000"}, "after"),
        ({"after": f"evt_{HALF}"}, "after"),
        ({"after": "Zg"}, "after"),
        ({"after": HALF}, "after"),
        ({"after": "7aCA"}, "after"),
        ({"cursor": "Zg"}, "cursor"),
        ({"cursor": "evt_019539a4-b68c-7def-8000-aabbccddeeff"}, "cursor"),
        ({"cursor": "7aCA"}, "cursor"),
    ],
)
def test_a_wrong_parameter_is_named(api: Api, query: dict[str, str], field: str) -> None:
    write(api, "job.enqueued")
    reply = api("GET", PATH, query=query)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request"), reply.text
    assert reply.error["details"]["field"] == field
    reply.text.encode("utf-8")


# --- history of all jobs --------------------------------------------------------------------------

HISTORY = "/ojs/v1/history"


def told(shown: Any) -> list[str]:
    return [event["event_type"] for event in shown.json["events"]]


def test_the_history_has_the_newest_events_of_jobs_first(api: Api) -> None:
    write(api, "job.enqueued", "queue.paused")
    write(api, "job.started", "job.failed", worker_id="w-1")
    assert told(api.get(HISTORY)) == ["job.attempt_failed", "job.attempt_started", "job.created"]
    (event, *_) = api.get(HISTORY).json["events"]
    assert event["actor"] == {"type": "worker", "id": "w-1"}
    assert event["job_id"] == "019539a4-0000-7000-8000-000000000000"


def test_pages_of_the_history(api: Api) -> None:
    for _ in range(3):
        write(api, "job.enqueued", "job.started")
    found, cursor = list[str](), dict[str, str]()
    for _ in range(6):
        page = api.get(HISTORY, limit="2", **cursor)
        found += [event["id"] for event in page.json["events"]]
        if "next_cursor" not in page.json:
            break
        cursor = {"cursor": page.json["next_cursor"]}
    assert len(set(found)) == len(found) == 6
    most = api.get(HISTORY, limit="5000")
    assert (len(most.json["events"]), most.headers["X-OJS-Limit-Clamped"]) == (6, "true")
    assert "X-OJS-Limit-Clamped" not in api.get(HISTORY, limit="1000").headers


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"event_types": "job.created"}, ["job.created"]),
        ({"event_types": "job.enqueued"}, ["job.created"]),
        ({"event_types": "job.attempt_*"}, ["job.attempt_failed", "job.attempt_started"]),
        ({"event_types": "job.cancelled"}, []),
        ({"queues": "other"}, []),
        ({"queues": "email", "job_types": "email.send", "event_types": "job.failed"},
         ["job.attempt_failed"]),
    ],
)  # fmt: skip
def test_filters_of_the_history(api: Api, query: dict[str, str], expected: list[str]) -> None:
    write(api, "job.enqueued", "job.started", "job.failed", "queue.paused")
    assert told(api.get(HISTORY, **query)) == expected


def test_a_span_of_the_history(api: Api) -> None:
    begin = times.format_ms(api.clock.now_ms() + 1_000)
    for kind in ("job.enqueued", "job.started", "job.completed"):
        write(api, kind)
    end = times.format_ms(api.clock.now_ms() - 1_000)
    assert told(api.get(HISTORY, start=begin, end=end)) == ["job.attempt_started"]


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ({"query": "SMTP"}, 501, "query"),
        ({"event_types": "queue.paused"}, 400, "event_types"),
        ({"event_types": "X"}, 400, "event_types"),
        ({"start": "soon"}, 400, "start"),
        ({"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, 400, "start"),
        ({"limit": "0"}, 400, "limit"),
        ({"cursor": "!"}, 400, "cursor"),
        ({"actor": "x"}, 400, "actor"),
    ],
)
def test_a_bad_search_of_the_history(
    api: Api, query: dict[str, str], status: int, field: str
) -> None:
    reply = api.get(HISTORY, **query)
    assert (reply.status, reply.error["details"]["field"]) == (status, field)
