"""Sums that a batch of stream records adds to the counters."""

from __future__ import annotations

from ojs.domain.job.job import Job
from ojs.projections.counters import Tally
from ojs.projections.transitions import happened
from tests.unit.domain.arbitrary import NOW_MS


def tally(*changes: tuple[Job | None, Job | None]) -> Tally:
    found = Tally()
    for before, after in changes:
        found.move(before, after)
        for what in happened(before, after, written_ms=NOW_MS):
            found.add(what)
    return found


def sums(found: Tally) -> dict[tuple[str, str], dict[str, int]]:
    return {(delta.queue, delta.sk): dict(delta.add) for delta in found.deltas({})}
