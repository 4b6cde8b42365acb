"""Sweep that aims cron jobs anew when the rules of time zones have changed.

A tick is worked out when the one before it fires, perhaps a year ahead. New rules come with a
deployment, and may move it either way. So the first sweep of a container compares the version of
its rules with that under which all ticks were looked at last: one read. If they differ, all cron
jobs are looked at, a bounded number in each run.
"""

from __future__ import annotations

from ojs.domain.cron.cron import Cron
from ojs.domain.cron.schedule import zone_data_version
from ojs.services.sweeps import GoOn, SweepReport, SweepRun, always, counting_failures
from ojs.store.crons.crons import CronStore
from ojs.store.table.races import retry_on_race

_PAGE = 100


class ZoneSweep:
    """Aims cron jobs anew."""

    name = "zones"

    def __init__(self, crons: CronStore) -> None:
        self._crons = crons
        self._done = False

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Look at up to `limit` cron jobs, from where the run before ended.

        Counts: looked (cron jobs), aimed (those whose tick has moved), failed, and `more` (1 when
        others are left for the next run).
        """
        run = SweepRun(now_ms, limit, go_on)
        if self._done:
            return SweepReport({})
        version = zone_data_version()
        seen, after = self._crons.zones_seen()
        if seen == version and after is None:
            self._done = True
            return SweepReport({})
        # Rules that are newer still: begin again.
        after = after if seen == version else None
        while not run.stop(run.counts["looked"]):
            page = self._crons.page(limit=_PAGE, after=after)
            for cron in page.items:
                run.counts["looked"] += 1
                with counting_failures(run.counts, f"cron job {cron.name}"):
                    run.counts["aimed"] += self._aim(cron, now_ms)
            after = page.next_cursor
            self._crons.see_zones(version, after)
            if after is None:
                self._done = True
                break
        return SweepReport(+run.counts, failures=run.counts.failures)

    def _aim(self, cron: Cron, now_ms: int) -> bool:
        """Aim one anew; whether its tick has moved. One that is due is left to who fires it."""

        def attempt() -> bool:
            seen = self._crons.get(cron.name)
            if seen is None or seen.tick_ms is None or (seen.due_ms or 0) <= now_ms:
                return False
            if not seen.definition.follows_zone:
                return False
            after = seen.after(now_ms, anchor_ms=now_ms)
            if after.due_ms == seen.due_ms and after.tick_ms == seen.tick_ms:
                return False
            self._crons.note(after)
            self._crons.replace(seen, after)
            return True

        return retry_on_race(attempt, busy="Others are changing this cron job; try again.")
