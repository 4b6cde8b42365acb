"""Stores the progress that workers report for active jobs: an item in the job's partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs.domain import jsontext
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.store.table import keys
from ojs.store.table.races import wins
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value


class JobProgress:
    """Writes progress reports."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def save(
        self, job: Job, value: float | None, report: Mapping[str, Any], *, now_ms: int
    ) -> bool:
        """Store the progress of a job's running attempt.

        Args:
            job: The active job.
            value: Progress from 0 to 1. If None, the stored value stays, and the other parts
                change.
            report: All parts of the report.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            False if a higher value was reported before.
        """
        pk, sk = keys.job(job.id), keys.PROGRESS
        stored: dict[str, Value] = {
            "run": _run(job),
            "told": jsontext.dumps(report),
            "updated": now_ms,
        }
        if value is None:
            # Race: a new run of the job started. The loser's report is stored as the first one of
            # that run.
            same = Update(
                pk, sk, set=stored, condition="#run = :run", values={":run": stored["run"]}
            )
            if wins(lambda: self._table.update(same)):
                return True
        millionths = -1 if value is None else round(value * 1_000_000)
        stored["value"] = millionths
        if value is not None:
            stored["number"] = jsontext.dumps(value)
        # Races: two reports of one attempt. The higher value is kept (ojs-progress section 5.1),
        # and a new attempt starts at its own value. Or a late report of an earlier attempt: the
        # report of the new attempt is kept.
        return wins(
            lambda: self._table.put(
                Put(
                    {"pk": pk, "sk": sk, **stored},
                    condition="attribute_not_exists(pk) OR (#run = :run AND #value <= :value) "
                    "OR (#run <> :run AND #updated <= :now)",
                    values={":run": stored["run"], ":value": millionths, ":now": now_ms},
                )
            )
        )


def progress_of(item: Item | None, job: Job) -> dict[str, Any] | None:
    """Return the progress of a job's current or last run, or None if it will run again."""
    ran = job.state is State.ACTIVE or job.state.terminal
    if item is None or not ran or item["run"] != _run(job):
        return None
    report: dict[str, Any] = jsontext.stored(str(item["told"]))
    value = jsontext.stored(str(item["number"])) if "number" in item else None
    return report | {"progress": value, "updated_ms": item["updated"]}


def _run(job: Job) -> str:
    """Return a value that identifies one run of a job.

    A released job runs again without a new attempt, so the attempt number is not sufficient.
    """
    return f"{job.life}.{job.attempt}.{job.started_ms}"
