"""Maintenance mode by HTTP, under both its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import times
from ojs.domain.maintenance import EFFECTIVE_MS

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

BASE = "/ojs/v1"
PATHS = pytest.mark.parametrize(
    "path", [f"{BASE}/admin/system/maintenance", f"{BASE}/admin/maintenance"]
)
OFF = {"enabled": False, "maintenance": False}


def at(api: Api, after_ms: int = 0) -> str:
    return times.format_ms(api.clock.now_ms() + after_ms)


@pytest.mark.requirement("ADM-12")
@PATHS
def test_it_begins_and_ends(api: Api, path: str) -> None:
    assert api.get(path).json == OFF
    job_id = api.push()
    reply = api.post(
        path,
        {"enabled": True, "reason": "Database migration", "estimated_duration": "PT30M"},
    )
    began, over = at(api), at(api, 30 * 60_000)
    assert reply.json == {
        "enabled": True,
        "maintenance": True,
        "reason": "Database migration",
        "enabled_at": began,
        "started_at": began,
        "effective_at": at(api, EFFECTIVE_MS),
        "estimated_end": over,
        "ends_at": over,
    }
    assert api.fetch() == []
    api.push()
    assert api.get("/health").json["maintenance"] is True
    api.clock.advance(60 * 60_000)
    assert api.get(path).json == reply.json
    assert api.fetch() == []
    assert api.post(path, {"enabled": False}).json == OFF
    assert api.get(path).json == OFF
    assert [job["id"] for job in api.fetch()] == [job_id]
    assert api.post(path, {"enabled": False}).json == OFF


@PATHS
def test_what_the_admin_ui_and_the_command_line_send(api: Api, path: str) -> None:
    assert api.post(path, {"enabled": True, "duration": "15m"}).json["ends_at"] == at(api, 900_000)
    assert "ends_at" not in api.post(path, {"enabled": True, "reason": "x"}).json
    same = {"enabled": True, "duration": "1h", "estimated_duration": "PT60M"}
    assert api.post(path, same).json["ends_at"] == at(api, 3_600_000)


def test_a_repetition_keeps_the_beginning(api: Api) -> None:
    path = f"{BASE}/admin/system/maintenance"
    body = {"enabled": True, "reason": "x", "duration": "PT1H"}
    first = api.post(path, body).json
    api.clock.advance(1_500)
    assert api.post(path, body).json == first


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "enabled"),
        ({"enabled": True, "duration": "PT0S"}, "duration"),
        ({"enabled": True, "estimated_duration": "P1000Y"}, "estimated_duration"),
        ({"enabled": True, "duration": "1h", "estimated_duration": "PT2H"}, "duration"),
        ({"enabled": False, "reason": "over"}, "reason"),
        ({"enabled": False, "duration": "1h"}, "duration"),
    ],
)
@PATHS
def test_a_wrong_request_changes_nothing(
    api: Api, path: str, body: dict[str, Any], field: str
) -> None:
    reply = api.post(path, body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert api.get(path).json == OFF
    assert api.post(path, {"enabled": True}).status == 200
    assert api.post(path, body).status == 400
    assert api.get(path).json["enabled"] is True
    assert api.get(path, verbose="1").status == 400
