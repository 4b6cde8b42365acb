"""Keeps the outcomes of jobs until the server has received them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ojs_aws.worker.context import Lease
from ojs_aws.worker.handlers import Ending, failure

# Limits of one request. The server processes eight entries at the same time and needs at most 29 s.
MOST_ENTRIES = 200
MOST_CHARACTERS = 1_000_000
# HTTP statuses after which a report is sent again.
_AGAIN = frozenset({429, 500, 502, 503, 504})
# HTTP statuses of an entry that the server can't process.
_MALFORMED = frozenset({400, 413, 422})
_REFUSED = "report_refused"


@dataclass(eq=False)
class Report:
    """An ack or a nack that the server has not confirmed."""

    lease: Lease
    ending: Ending
    since: float = field(default_factory=time.monotonic)

    @property
    def entry(self) -> dict[str, Any]:
        """The report in the format of the API.

        Because of its lease token, the server rejects a late report.
        """
        job = self.lease.job
        named = {"job_id": job.id, "attempt": job.attempt, "lease_token": job.lease_token}
        return {name: value for name, value in named.items() if value} | self.ending.entry


@dataclass(frozen=True)
class Batch:
    """The reports of one request."""

    reports: tuple[Report, ...]

    def body(self) -> dict[str, Any]:
        """Return the non-empty lists `acks` and `nacks`."""
        found: dict[str, list[dict[str, Any]]] = {}
        for how in ("acks", "nacks"):
            if entries := [one.entry for one in self.reports if one.ending.how == how]:
                found[how] = entries
        return found

    def outcomes(self, answer: dict[str, Any]) -> Iterable[tuple[Report, dict[str, Any]]]:
        """Return pairs of report and outcome. Raises ValueError if outcomes are missing."""
        found = []
        for how in ("acks", "nacks"):
            mine = [one for one in self.reports if one.ending.how == how]
            told = answer.get(how, [])
            ids = [each.get("job_id") if isinstance(each, dict) else None for each in told]
            if ids != [one.lease.job.id for one in mine]:
                raise ValueError(f"the response must have one outcome for each of the {how}")
            found += list(zip(mine, told))  # noqa: B905 - the lengths are equal
        return found


class Outbox:
    """The unconfirmed reports, in the order in which their jobs finished. One for each lease."""

    def __init__(self) -> None:
        self._reports: dict[Any, Report] = {}
        self._lock = threading.Lock()

    def add(self, lease: Lease, ending: Ending) -> None:
        """Add a report."""
        with self._lock:
            self._reports[lease.key] = Report(lease, ending)

    def __len__(self) -> int:
        """Return the number of reports."""
        return len(self._reports)

    def waiting_s(self) -> float:
        """Return the age of the oldest report in seconds. 0 if the outbox is empty."""
        with self._lock:
            oldest = next(iter(self._reports.values()), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.since

    def batch(self) -> Batch:
        """Return the reports of the next request, oldest first. Contains a job at most once."""
        chosen: list[Report] = []
        size, ids = 0, set()
        with self._lock:
            for report in self._reports.values():
                size += report.ending.size
                if len(chosen) == MOST_ENTRIES or (chosen and size > MOST_CHARACTERS):
                    break
                if report.lease.job.id not in ids:
                    ids.add(report.lease.job.id)
                    chosen.append(report)
        return Batch(tuple(chosen))

    def settle(self, report: Report, outcome: dict[str, Any]) -> bool:
        """Process the server's outcome of a report. Returns whether the job needs no more reports.

        If the server can't process the report, a nack with the code `report_refused` replaces it.
        """
        status = outcome.get("status")
        if status in _AGAIN:
            return False
        if status in _MALFORMED and report.ending.code != _REFUSED:
            why = (outcome.get("error") or {}).get("message", status)
            message = f"The server rejected the {report.ending.how[:-1]}: {why}"
            report.ending = failure(_REFUSED, message[:1_000], retryable=False)
            return False
        with self._lock:
            self._reports.pop(report.lease.key, None)
        return True
