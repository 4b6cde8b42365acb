"""Parses a web server's access log in the combined or common format."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

_LINE = re.compile(
    r"(?P<host>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] "
    r'"(?P<method>[A-Z]+) (?P<path>[^ ?"]+)[^"]*" (?P<status>\d{3}) (?P<size>\d+|-)'
)
_MOST = 5


class NotALog(ValueError):
    """The text has no line of an access log."""


def report(lines: Iterable[str]) -> dict[str, Any]:
    """Count requests by status and path, visitors, and bytes. Raise NotALog."""
    statuses: Counter[str] = Counter()
    paths: Counter[str] = Counter()
    missing: Counter[str] = Counter()
    hosts: set[str] = set()
    sent = unread = 0
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            unread += bool(line.strip())
            continue
        statuses[found["status"]] += 1
        paths[found["path"]] += 1
        hosts.add(found["host"])
        sent += 0 if found["size"] == "-" else int(found["size"])
        if found["status"] == "404":
            missing[found["path"]] += 1
    if not statuses:
        raise NotALog(f"none of {unread} lines is one of an access log")
    return {
        "requests": statuses.total(),
        "visitors": len(hosts),
        "bytes": sent,
        "by_status": dict(sorted(statuses.items())),
        "most_wanted": paths.most_common(_MOST),
        "not_found": missing.most_common(_MOST),
        "lines_not_read": unread,
    }
