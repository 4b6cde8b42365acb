"""Finds lost leases of jobs that are not in the index: a part of the job sweep.

It reads the lease notes whose time has come (`ojs.store.jobs.lease_notes`). Most of the jobs are
done by then. A job whose lease has ended goes back in line; one that still runs gets its due entry
in the index, where later sweeps and fetches find it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice

from ojs.clock import Clock
from ojs.domain.errors import UnknownForm
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.sweeps import GoOn, SweepCounts, counting_failures, rotated
from ojs.store.jobs import items
from ojs.store.jobs.lease_notes import LeaseNote, LeaseSlot
from ojs.store.jobs.records import JobStore
from ojs.store.table.values import Item

# Jobs that are read in one call, and notes between two writes of how far a slot was looked at.
_JOBS = 100
_NOTES = 500
# Pages of one slot in one pass; the next pass goes on.
_PAGES = 4


class LostLeases:
    """Looks at the lease notes of all slots. Safe to run twice at once, and to die anywhere."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        transitions: TimeTransitions,
        clock: Clock,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._jobs = jobs
        self._notes = jobs.notes
        self._transitions = transitions
        self._clock = clock
        self._choose = choose

    def look(self, now_ms: int, counts: SweepCounts, go_on: GoOn) -> None:
        """Look at the notes whose time has come. Counts `filed` and `stalled_or_timed_out` jobs,
        `failed`, and `more` if another pass should follow. Raises OjsError.
        """
        for slot in rotated(self._notes.slots(), self._choose):
            # A slot in trouble must not hold up the others; the next run goes on where it was.
            with counting_failures(counts, f"lease notes of slot {slot.number}"):
                self._slot(slot, now_ms, counts, go_on)

    def _slot(self, slot: LeaseSlot, now_ms: int, counts: SweepCounts, go_on: GoOn) -> None:
        seen = slot.seen
        for _ in range(_PAGES):
            if not go_on():
                break
            page, whole = self._notes.unseen(slot.number, seen, until_ms=now_ms, limit=_NOTES)
            if page:
                self._page(page, counts)
                # Only now: if we die before, the page is looked at once more.
                seen = page[-1].key
                self._notes.advance(slot.number, seen)
            elif slot.used_ms < now_ms:
                self._notes.retire(slot)
            if whole:
                return
        counts["more"] = 1

    def _page(self, page: Sequence[LeaseNote], counts: SweepCounts) -> None:
        records: dict[str, Item] = {}
        listed = iter(dict.fromkeys(job_id for note in page for job_id in note.jobs))
        while ids := list(islice(listed, _JOBS)):
            records |= self._notes.records(ids)
        for note in page:
            left = set(self._unsettled(note, records, counts))
            if left:
                again = {job_id: seen for job_id, seen in note.jobs.items() if job_id in left}
                self._notes.again(note, again, self._clock)

    def _unsettled(
        self, note: LeaseNote, records: dict[str, Item], counts: SweepCounts
    ) -> Iterable[str]:
        """Deal with the jobs of a note. Yields those that must be looked at again: jobs that the
        fetch may be about to claim, jobs in trouble, and those that only a newer version knows.
        """
        for job_id in note.jobs:
            record = records.get(job_id)
            if record is None:
                continue
            if note.may_be_claimed(job_id, record, self._clock.now_ms()):
                yield job_id
            elif record["state"] == State.ACTIVE.value and "wpk" not in record:
                settled = False
                with counting_failures(counts, f"job {job_id}"), suppress(UnknownForm):
                    self._running(items.job_of(record), counts)
                    settled = True
                if not settled:
                    yield job_id

    def _running(self, job: Job, counts: SweepCounts) -> None:
        after = self._transitions.apply(job)
        if after is None or after.state is not State.ACTIVE:
            counts["stalled_or_timed_out"] += after is not None and after.attempt == job.attempt
            return
        # Its lease is not over. Or it runs again by now, and has a note of that run; then it gets
        # its entry early.
        self._jobs.file_running(after)
        counts["filed"] += 1
