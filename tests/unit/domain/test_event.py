from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.events import event as events
from ojs.domain.events.event import Event
from ojs.domain.ids import is_uuid7
from tests.unit.domain.arbitrary import NOW_MS


def test_an_envelope() -> None:
    event = Event("evt_1", "job.started", "ojs://s/workers/w", NOW_MS, "j", {"queue": "a"})
    assert event.to_dict() == {
        "specversion": "1.0",
        "id": "evt_1",
        "type": "job.started",
        "source": "ojs://s/workers/w",
        "time": "2026-05-28T20:26:40.000Z",
        "subject": "j",
        "data": {"queue": "a"},
    }


@given(st.integers(0, 2**48 - 1), st.lists(st.text(max_size=5), max_size=4))
def test_an_id_is_a_uuid7_of_the_time_and_always_the_same(time_ms: int, what: list[str]) -> None:
    found = events.event_id(time_ms, *what)
    assert found == events.event_id(time_ms, *what)
    prefix, _, rest = found.partition("_")
    assert prefix == "evt"
    assert is_uuid7(rest)
    assert int(rest[:13].replace("-", ""), 16) == time_ms
    assert found != events.event_id(time_ms, *what, "more")


def test_ids_of_different_things_differ() -> None:
    whats = [("a", "b"), ("ab",), ("ab", ""), ("", "ab"), ("b", "a")]
    assert len({events.event_id(NOW_MS, *what) for what in whats}) == len(whats)


@pytest.mark.parametrize(
    ("instance", "source"),
    [
        (None, "ojs://mail-service/workers"),
        ("worker-1", "ojs://mail-service/workers/worker-1"),
        ("a b/ü?#", "ojs://mail-service/workers/a%20b%2F%C3%BC%3F%23"),
    ],
)
def test_a_source_is_a_valid_uri(instance: str | None, source: str) -> None:
    found = events.source("mail-service", "workers", instance)
    assert found == source
    assert urlsplit(found).netloc == "mail-service"


@pytest.mark.parametrize(
    ("name", "patterns", "taken"),
    [
        ("job.failed", ("job.failed",), True),
        ("job.failed", ("job.*",), True),
        ("job.failed", ("*",), True),
        ("job.failed", ("queue.*", "job.fail"), False),
        ("jobs.failed", ("job.*",), False),
        ("job.failed", (), False),
    ],
)
def test_patterns(name: str, patterns: tuple[str, ...], taken: bool) -> None:
    assert events.matches(name, patterns) is taken
