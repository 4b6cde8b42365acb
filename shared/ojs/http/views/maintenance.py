"""Maintenance mode as answers show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ojs.domain import times

if TYPE_CHECKING:
    from ojs.domain.maintenance import Maintenance
    from ojs.http.contract import answers


def shown(found: Maintenance | None) -> answers.MaintenanceAnswer:
    """Whether it is on; the names are those of the specification and those of clients."""
    if found is None:
        return {"enabled": False, "maintenance": False}
    since = times.format_ms(found.since_ms)
    answer: answers.MaintenanceAnswer = {
        "enabled": True,
        "maintenance": True,
        "enabled_at": since,
        "started_at": since,
        "effective_at": times.format_ms(found.effective_ms),
    }
    if found.reason is not None:
        answer["reason"] = found.reason
    if found.until_ms is not None:
        answer["estimated_end"] = answer["ends_at"] = times.format_ms(found.until_ms)
    return answer
