"""What became of jobs, kept until the server has heard it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ojs_aws.worker.context import Lease
from ojs_aws.worker.handlers import Ending, failure

# Of one request. The server settles eight at a time, within its 29 s.
MOST_ENTRIES = 200
MOST_CHARACTERS = 1_000_000
# Outcomes that say "send it again".
_AGAIN = frozenset({429, 500, 502, 503, 504})
# Outcomes of an entry that the server will never take as it is.
_MALFORMED = frozenset({400, 413, 422})
_REFUSED = "report_refused"


@dataclass(eq=False)
class Report:
    """An ack or a nack that was not heard yet."""

    lease: Lease
    ending: Ending
    since: float = field(default_factory=time.monotonic)

    @property
    def entry(self) -> dict[str, Any]:
        """The report as the server reads it. The token has one that comes too late refused."""
        job = self.lease.job
        named = {"job_id": job.id, "attempt": job.attempt, "lease_token": job.lease_token}
        return {name: value for name, value in named.items() if value} | self.ending.entry


@dataclass(frozen=True)
class Batch:
    """Reports that go into one request."""

    reports: tuple[Report, ...]

    def body(self) -> dict[str, Any]:
        """`acks` and `nacks`, those that there are."""
        found: dict[str, list[dict[str, Any]]] = {}
        for how in ("acks", "nacks"):
            if entries := [one.entry for one in self.reports if one.ending.how == how]:
                found[how] = entries
        return found

    def outcomes(self, answer: dict[str, Any]) -> Iterable[tuple[Report, dict[str, Any]]]:
        """Each report with its outcome. Raises ValueError if the answer has not one for each."""
        found = []
        for how in ("acks", "nacks"):
            mine = [one for one in self.reports if one.ending.how == how]
            told = answer.get(how, [])
            ids = [each.get("job_id") if isinstance(each, dict) else None for each in told]
            if ids != [one.lease.job.id for one in mine]:
                raise ValueError(f"the answer does not say what became of the {how}")
            found += list(zip(mine, told))  # noqa: B905 - they are as many
        return found


class Outbox:
    """Reports in the order in which their jobs ended, one for each lease."""

    def __init__(self) -> None:
        self._reports: dict[Any, Report] = {}
        self._lock = threading.Lock()

    def add(self, lease: Lease, ending: Ending) -> None:
        """Keep a report."""
        with self._lock:
            self._reports[lease.key] = Report(lease, ending)

    def __len__(self) -> int:
        """How many reports there are."""
        return len(self._reports)

    def waiting_s(self) -> float:
        """How long the oldest report has waited; 0 without one."""
        with self._lock:
            oldest = next(iter(self._reports.values()), None)
        return 0.0 if oldest is None else time.monotonic() - oldest.since

    def batch(self) -> Batch:
        """The reports for one request, the oldest first. A job is in it once."""
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
        """Go by the server's outcome for a report; whether there is no more to be told of the job.

        A report that the server cannot take is replaced by one that it can.
        """
        status = outcome.get("status")
        if status in _AGAIN:
            return False
        if status in _MALFORMED and report.ending.code != _REFUSED:
            why = (outcome.get("error") or {}).get("message", status)
            message = f"the server did not take the {report.ending.how[:-1]}: {why}"
            report.ending = failure(_REFUSED, message[:1_000], retryable=False)
            return False
        with self._lock:
            self._reports.pop(report.lease.key, None)
        return True
