"""What an open overview asks for in a minute: a browser is counted, and the table's units are."""

from __future__ import annotations

from collections import Counter

OVERVIEW_MINUTE = Counter(
    {
        "/ojs/v1/admin/stats": 4,
        "/ojs/v1/admin/stats/history": 1,
        "/ojs/v1/health": 1,
        "/ojs/v1/admin/system/maintenance": 1,
        "/ojs/v1/dead-letter/stats": 1,
    }
)
