"""What an open overview asks for: a browser is counted, and the table's units are.

In a minute without a connection that tells of changes, and in an hour with one in which nothing
changes.
"""

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
OVERVIEW_HOUR = Counter(
    {
        "/ojs/v1/admin/stats": 60,
        "/ojs/v1/admin/stats/history": 15,
        "/ojs/v1/health": 60,
        "/ojs/v1/admin/system/maintenance": 60,
        "/ojs/v1/dead-letter/stats": 15,
    }
)
