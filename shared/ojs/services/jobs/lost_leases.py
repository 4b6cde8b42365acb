"""Detects expired leases of jobs that are not in the index. The job sweep calls it.

It reads the lease notes that are due (`ojs.store.jobs.lease_notes`). Most of their jobs are
finished by then. A job whose lease has expired becomes available again. A job that is still active
gets a new note, which is due when its lease expires.

A second search finds active jobs without a note. Such a job can exist if clocks differ by more than
the notes tolerate, or if a write takes effect too late. The search reads the event log every 10
minutes. It checks the jobs that started more than 30 minutes ago and are still active, and writes a
new note for those without one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ojs.clock import Clock
from ojs.domain.errors import UnknownForm
from ojs.domain.events.types import EventType
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.services.for_each import ForEach, in_threads
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.sweeps import GoOn, SweepCounts, counting_failures, rotated
from ojs.store.jobs import items
from ojs.store.jobs.lease_notes import LOOK_MS, LeaseNote, LeaseSlot, NotedJob
from ojs.store.jobs.records import JobStore
from ojs.store.table import keys
from ojs.store.table.values import Item

if TYPE_CHECKING:
    from ojs.store.derived.event_log import EventLog

# Maximum number of jobs that are read in one call, before each check of the time limit.
_JOBS = 100
# Number of notes that are read in one call, and number of notes between two writes of a slot's
# position.
_NOTES = 500
_PART = 100
# How often (minutes) the event log is searched for running jobs without a note, how old (ms) an
# entry of the log must be, and how far back (ms) the first search goes.
_SEARCH_MINUTES = 10
_MINUTE_MS = 60_000
_STARTED_MS = 30 * _MINUTE_MS
_FIRST_MS = 120 * _MINUTE_MS
# Pages of one slot in one run. The next run continues after them.
_PAGES = 4

# Events after which a job is not active.
_OVER = frozenset({EventType.JOB_COMPLETED, EventType.JOB_FAILED, EventType.JOB_CANCELLED})


class LostLeases:
    """Checks the lease notes of all slots. Safe to run concurrently, and to crash at any point."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        transitions: TimeTransitions,
        clock: Clock,
        log: Callable[[], EventLog],
        choose: Callable[[int], int] = random.randrange,
        for_each: ForEach = in_threads,
    ) -> None:
        self._jobs = jobs
        self._notes = jobs.notes
        self._transitions = transitions
        self._clock = clock
        self._log = log
        self._choose = choose
        self._for_each = for_each

    def look(self, now_ms: int, counts: SweepCounts, go_on: GoOn) -> None:
        """Process the lease notes that are due.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            counts: Receives `stalled_or_timed_out` (jobs), `failed`, and `more` if another run must
                follow.
            go_on: Returns whether enough time is left to continue.

        Raises:
            OjsError: The slots can't be read.
        """
        for slot in rotated(self._notes.slots(), self._choose):
            # A failing slot must not delay the others. The next run continues from its position.
            with counting_failures(counts, f"lease notes of slot {slot.number}"):
                self._slot(slot, now_ms, counts, go_on)

    def search(self, now_ms: int, counts: SweepCounts, go_on: GoOn) -> None:
        """Find running jobs without a lease note and without an index entry, every _SEARCH_MINUTES.

        Jobs with an expired lease are processed. The others get a note.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            counts: Receives `unnoted` (jobs), and the counts of `look`.
            go_on: Returns whether enough time is left to continue.

        Raises:
            OjsError: A read or a write failed.
        """
        if now_ms // _MINUTE_MS % _SEARCH_MINUTES:
            return
        from ojs.store.derived.event_log import Budget

        first_ms = keys.instant(max(0, now_ms - _FIRST_MS))
        seen, last = self._notes.searched() or first_ms, keys.instant(now_ms - _STARTED_MS)
        while go_on():
            begin, started = seen, dict[str, None]()
            # Each failed attempt and each restart has a separate event.
            for page in self._log().forward(f"{seen}~", last, Budget()):
                for event in page.events():
                    if event["type"] == EventType.JOB_STARTED:
                        started[event["subject"]] = None
                    elif event["type"] in _OVER:
                        started.pop(event["subject"], None)
                seen = page.key
            if seen == begin:
                return
            self._give_notes(list(started), counts)
            # The position is stored last: if the process crashes before, the next search reads the
            # pages again.
            self._notes.advance_search(seen)
        counts["more"] = 1

    def _give_notes(self, job_ids: Sequence[str], counts: SweepCounts) -> None:
        unnoted: dict[str, str] = {}
        for start in range(0, len(job_ids), _JOBS):
            for job_id, record in self._notes.records(job_ids[start : start + _JOBS]).items():
                if record["state"] == State.ACTIVE.value and "wpk" not in record:
                    unnoted[job_id] = str(record["queue"])
        if not unnoted:
            return
        # The slots are read before the notes. A job that gets a new note now is then in the earlier
        # note or in the new one.
        slots = self._notes.slots()
        for job_id in self._notes.noted(slots):
            unnoted.pop(job_id, None)
        slot = slots[0] if slots else LeaseSlot(0, 0, "")
        notes = [LeaseNote(slot.number, "", 0, queue, {job: 0}) for job, queue in unnoted.items()]
        for start in range(0, len(notes), _JOBS):
            again = self._unsettled(notes[start : start + _JOBS], counts)
            self._notes.again(slot, again.values(), self._clock)
            counts["unnoted"] += len(again)

    def _slot(self, slot: LeaseSlot, now_ms: int, counts: SweepCounts, go_on: GoOn) -> None:
        seen = slot.seen
        for _ in range(_PAGES):
            if not go_on():
                break
            page, whole = self._notes.unseen(slot.number, seen, until_ms=now_ms, limit=_NOTES)
            for start in range(0, len(page), _PART):
                part = page[start : start + _PART]
                done = self._page(part, slot, counts, go_on)
                if done:
                    # The position is stored last: if the process crashes before, the next sweep
                    # processes the notes again.
                    seen = part[done - 1].key
                    self._notes.advance(slot.number, seen)
                if done < len(part):
                    counts["more"] = 1
                    return
            if not page and slot.used_ms < now_ms:
                self._notes.retire(slot)
            if whole:
                return
        counts["more"] = 1

    def _page(
        self, notes: Sequence[LeaseNote], slot: LeaseSlot, counts: SweepCounts, go_on: GoOn
    ) -> int:
        """Process notes until the time is up. Returns how many notes were processed."""
        done = 0
        again: dict[str, NotedJob] = {}
        while done < len(notes) and go_on():
            end, jobs = done, 0
            while end < len(notes) and (end == done or jobs + len(notes[end].jobs) <= _JOBS):
                jobs += len(notes[end].jobs)
                end += 1
            again |= self._unsettled(notes[done:end], counts)
            done = end
        # The new notes are written before `advance`. After a crash in between, a job is in two
        # notes, which costs one more read.
        self._notes.again(slot, again.values(), self._clock)
        return done

    def _unsettled(self, notes: Sequence[LeaseNote], counts: SweepCounts) -> Mapping[str, NotedJob]:
        """Process the jobs of some notes. Return the jobs that need a new note.

        These are jobs that are active, that a fetch can still claim, that failed, or that only a
        newer version can read.
        """
        records = self._notes.records(
            dict.fromkeys(job_id for note in notes for job_id in note.jobs)
        )
        now_ms = self._clock.now_ms()
        again: dict[str, NotedJob] = {}
        running: dict[str, Item] = {}
        for note in notes:
            for job_id, seen in note.jobs.items():
                record = records.get(job_id)
                if record is None:
                    continue
                claimable = note.may_be_claimed(job_id, record, now_ms)
                if claimable or (record["state"] == State.ACTIVE.value and "wpk" not in record):
                    # A job whose processing failed is read again one minute later.
                    again[job_id] = NotedJob(note.queue, job_id, seen, note.at_ms, now_ms + LOOK_MS)
                    if not claimable:
                        running[job_id] = record
        for job_id, found in zip(
            running, self._for_each(self._settled, list(running.values())), strict=True
        ):
            if isinstance(found, UnknownForm):
                continue
            if isinstance(found, Exception):
                counts.fail(f"job {job_id}", found)
                continue
            before, after = found
            if after is not None and after.state is State.ACTIVE:
                # The job's lease has not ended, or the job runs again and has a note of that run.
                # In the second case, it is then in two notes.
                again[job_id] = replace(again[job_id], look_ms=after.due_ms)
                continue
            del again[job_id]
            counts["stalled_or_timed_out"] += after is not None and after.attempt == before.attempt
        return again

    def _settled(self, record: Item) -> tuple[Job, Job | None] | Exception:
        """Return a running job before and after its time transitions, or the error."""
        try:
            job = items.job_of(record)
            return job, self._transitions.apply(job)
        # Catches the same errors as `counting_failures`, which is not thread-safe.
        except Exception as error:  # noqa: BLE001
            return error
