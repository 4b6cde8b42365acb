"""Recomputes the next ticks of cron jobs after a change of the time zone rules.

A tick is computed when the previous one fires, which can be a year earlier. A deployment with new
rules can move it in both directions. The first sweep of a container therefore compares the version
of its rules with the version of the last recomputation: one read. If they are not equal, all cron
jobs are recomputed, a limited number in each run.
"""

from __future__ import annotations

from ojs.domain.cron.cron import Cron
from ojs.domain.cron.schedule import zone_data_version
from ojs.services.sweeps import GoOn, SweepReport, SweepRun, always, counting_failures
from ojs.store.crons.crons import CronStore
from ojs.store.table.races import retry_on_race

_PAGE = 100


class ZoneSweep:
    """Recomputes the ticks of cron jobs."""

    name = "zones"

    def __init__(self, crons: CronStore) -> None:
        self._crons = crons
        self._done = False

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check cron jobs for changed time zone rules, starting at the end of the previous run.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of cron jobs.
            go_on: Returns whether enough time is left to continue.

        Returns:
            Numbers: looked (cron jobs), aimed (cron jobs whose tick has changed), failed. `more`
            is 1 if cron jobs are left for the next run.
        """
        run = SweepRun(now_ms, limit, go_on)
        if self._done:
            return SweepReport({})
        version = zone_data_version()
        seen, after = self._crons.zones_seen()
        if seen == version and after is None:
            self._done = True
            return SweepReport({})
        # The rules have changed again: restart.
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
        """Recompute the next tick of a cron job, unless it is due.

        Return whether the tick has changed.
        """

        def attempt() -> bool:
            seen = self._crons.get(cron.name)
            if seen is None or seen.tick_ms is None or (seen.due_ms or 0) <= now_ms:
                return False
            if not seen.definition.follows_zone:
                return False
            after = seen.after(now_ms, anchor_ms=now_ms)
            if after.due_ms == seen.due_ms and after.tick_ms == seen.tick_ms:
                return False
            self._crons.replace(seen, after)
            return True

        return retry_on_race(attempt, busy="Concurrent requests changed this cron job.")
