"""The job sweep: applies due time transitions, and undoes batches that a crash left incomplete.

Two runs at the same time are safe: each step is the same conditional write as in a fetch or a read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

from ojs.bounded import BoundedMap
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue
from ojs.services.for_each import ForEach, in_threads
from ojs.services.jobs.lost_leases import LostLeases
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.queues.deletion import QueueDeletion
from ojs.services.sweeps import (
    GoOn,
    SweepCounts,
    SweepPlan,
    SweepQueues,
    SweepReport,
    always,
    counting_failures,
    rotated,
    third_of,
)
from ojs.store.deployment.maintenance import MaintenanceStore
from ojs.store.jobs.finding import DueLine
from ojs.store.jobs.records import JobStore
from ojs.store.queues.due_notes import AHEAD_MS, DueLines, DueNotes
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys

_PAGE = 100
# Entries of a line that are read first.
_FEW = 25
_BATCHES = 10
_MINUTE_MS = 60_000
# For maintenance mode: maximum number of entries of a partition that one run reads to find active
# jobs; entries per call; and time (ms) after which a container starts again at the beginning of the
# partition.
_LOOKS = 10_000
_LOOK = 1_000
_AGAIN_MS = 10 * 60_000
_REMEMBERED = 10_000


class JobSweep:
    """Sweeps all queues."""

    name = "jobs"

    def __init__(
        self,
        *,
        jobs: JobStore,
        sweep_queues: SweepQueues,
        transitions: TimeTransitions,
        lost_leases: LostLeases,
        deletion: QueueDeletion,
        maintenance: MaintenanceStore,
        fire: Callable[[str], object],
        queues: QueueStore,
        due_notes: DueNotes,
        choose: Callable[[int], int] = random.randrange,
        for_each: ForEach = in_threads,
    ) -> None:
        """Create the sweep from its stores and services. `fire` fires a due cron job."""
        self._fire = fire
        self._for_each = for_each
        self._leases = lost_leases
        self._maintenance = maintenance
        # By partition: when this container started to read it (ms), and the last key that it read.
        self._looked: BoundedMap[tuple[str, int], tuple[int, dict[str, str] | None]] = BoundedMap(
            _REMEMBERED
        )
        self._jobs = jobs
        self._queues = sweep_queues
        self._transitions = transitions
        self._deletion = deletion
        self._store = queues
        self._due_notes = due_notes
        self._choose = choose

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Sweep every queue once.

        Starts at a random queue, so that shortened runs starve no queue.

        Args:
            now_ms: Current time in ms since the epoch.
            limit: Approximate maximum number of changed jobs.
            go_on: Returns False when the time is up.

        Returns:
            Numbers by kind: promoted, stalled_or_timed_out, expired, batches_undone, refiled,
            failed, ended (jobs of deleted queues), queues_deleted, unnoted (active jobs without a
            lease note), crons (processed cron ticks). `more` is 1 if the run ended early and
            another one must follow.
        """
        counts = SweepCounts()
        # A failure of one part must not delay the others. Each part takes at most a third of the
        # remaining time.
        deleting: list[Queue] = []
        due = DueLines(None, 0, [])
        staged, complete = keys.staged_lines(), False
        with counting_failures(counts, "the list of queues"):
            plan = self._queues.plan()
            due, staged = plan.due, plan.staged
            complete = self._lines(plan, now_ms, limit, third_of(go_on), counts, deleting)
        with counting_failures(counts, "lease notes"):
            self._leases.look(now_ms, counts, third_of(go_on))
        with counting_failures(counts, "running jobs without a lease note"):
            self._leases.search(now_ms, counts, third_of(go_on))
        with counting_failures(counts, "staged batches"):
            complete = self._undo_batches(staged, now_ms, counts, third_of(go_on)) and complete
            if complete:
                # Last: a sweep that dies or is cut short before reads all lines again.
                self._due_notes.advance(due)
        self._deletion.resume(deleting, counts, limit=limit, go_on=go_on)
        with counting_failures(counts, "deleted queues"):
            self._deletion.look_after(limit, counts, go_on)
        return SweepReport(counts, failures=counts.failures)

    def _lines(
        self,
        plan: SweepPlan,
        now_ms: int,
        limit: int,
        go_on: GoOn,
        counts: SweepCounts,
        deleting: list[Queue],
    ) -> bool:
        """Sweep the lines that are due, up to the limit, and find queues to be deleted. Return
        whether all lines were read, and noted again if an entry is left.
        """
        failed = counts["failed"]
        lines = self._due_lines(plan, now_ms, counts, deleting)
        complete = counts["failed"] == failed or not plan.due.late
        # The queues were all read, because deletions have a separate limit.
        for (queue, lane), mine in lines.items():
            if counts.total() >= limit or not go_on():
                counts["more"] = 1
                return False
            left, failed = True, counts["failed"]
            with counting_failures(counts, f"queue {queue}, lane {lane}"):
                left = self._lane(queue, lane, mine, now_ms, go_on, counts)
            if left or counts["failed"] > failed:
                self._due_notes.note((line, now_ms) for line in mine)
        return complete

    def _due_lines(
        self, plan: SweepPlan, now_ms: int, counts: SweepCounts, deleting: list[Queue]
    ) -> dict[tuple[str, int], list[str]]:
        """Return the lines to read by queue and lane: those that are noted, from a random one on,
        then all of this minute's queues.
        """
        # Notes of a deleted queue stay until they expire.
        lanes = filter(keys.is_sweepable, plan.due.lines)
        noted = [line for line in lanes if keys.lane_of(line)[0] in plan.queues]
        lines = dict.fromkeys(rotated(noted, self._choose))
        for part in self._queues.parts(counts, plan, anew=True):
            for queue in part:
                if queue.deletion is not None:
                    deleting.append(queue)
                elif now_ms >= plan.relied_on_ms:
                    # Functions of versions without replicas have been replaced by now.
                    with counting_failures(counts, f"replicas of queue {queue.name}"):
                        self._store.replicate(queue)
                if queue.name in plan.turn:
                    for lane in range(queue.lanes):
                        lines |= {keys.due(queue.name, lane): None}
                        lines |= {keys.expiry(queue.name, lane): None}
        of_lane: dict[tuple[str, int], list[str]] = {}
        for line in lines:
            of_lane.setdefault(keys.lane_of(line), []).append(line)
        return of_lane

    def _lane(
        self,
        queue: str,
        lane: int,
        lines: Sequence[str],
        now_ms: int,
        go_on: GoOn,
        counts: SweepCounts,
    ) -> bool:
        """Process the due entries in these lines of a lane, and note the next entry of each. Return
        whether a due entry is left. In maintenance mode, only active jobs are processed.
        """
        due, expiring = DueLine([], []), DueLine([], [])
        held = False
        if (line := keys.due(queue, lane)) in lines:
            due = self._read(self._jobs.index.due_until, queue, lane, now_ms)
            self._note_next(line, due)
            held = bool(due.jobs or due.crons) and self._maintenance.on()
            if held:
                due = DueLine(self._overdue(queue, lane, now_ms), [])
            else:
                self._looked.forget((queue, lane))
        # Deadlines are in a different index, which can work while the other one is throttled.
        if (line := keys.expiry(queue, lane)) in lines:
            with counting_failures(counts, f"deadlines of queue {queue}, lane {lane}"):
                expiring = self._read(self._jobs.index.expiring, queue, lane, now_ms)
                self._note_next(line, expiring)
        ticked = self._tick(due.crons, go_on, counts)
        full = len(due.jobs) == _PAGE or len(expiring.jobs) == _PAGE
        if full:
            counts["more"] = 1
        ids = dict.fromkeys([*due.jobs, *expiring.jobs])
        settled = self._apply(ids, frozenset(due.jobs), counts)
        return full or held or not ticked or settled < len(ids)

    def _note_next(self, line: str, found: DueLine) -> None:
        if found.next_ms is not None:
            self._due_notes.note([(line, found.next_ms)])

    @staticmethod
    def _read(read: Callable[..., DueLine], queue: str, lane: int, now_ms: int) -> DueLine:
        """Read a line: a few entries, or a page if these are all due."""
        for limit in sorted({_FEW, _PAGE}):
            found = read(queue, lane, now_ms=now_ms, until_ms=now_ms + AHEAD_MS, limit=limit)
            if len(found.jobs) + len(found.crons) < limit:
                break
        return found

    def _overdue(self, queue: str, lane: int, now_ms: int) -> list[str]:
        """Return active jobs whose lease or timeout has expired, without the other due jobs.

        Reads at most _LOOKS entries. The next run continues after them.
        """
        began_ms, after = self._looked.get((queue, lane)) or (now_ms, None)
        found: list[str] = []
        for _ in range(_LOOKS // _LOOK):
            page, last = self._jobs.index.running(queue, lane, limit=_LOOK, after=after)
            overdue = [one for one in page if keys.instant_of(one[1]) <= now_ms]
            overdue = overdue[: _PAGE - len(found)]
            found += [job_id for job_id, _ in overdue]
            if len(found) == _PAGE:
                job_id, key = overdue[-1]
                line = {"wpk": keys.due(queue, lane), "wsk": key}
                after = {"pk": keys.job(job_id), "sk": keys.RECORD, **line}
                break
            if last is None or keys.instant_of(last["wsk"]) > now_ms:
                # Jobs whose processing failed come before this key. They are read again after
                # _AGAIN_MS.
                if now_ms - began_ms >= _AGAIN_MS:
                    began_ms, after = now_ms, None
                break
            after = last
        self._looked.put((queue, lane), (began_ms, after))
        return found

    def _tick(self, names: Sequence[str], go_on: GoOn, counts: SweepCounts) -> bool:
        """Fire cron jobs, several at the same time; return whether there was time for all. A
        failing one delays no other.
        """

        def fire(name: str) -> Exception | None:
            try:
                self._fire(name)
            # Catches the same errors as `counting_failures`, which is not thread-safe.
            except Exception as error:  # noqa: BLE001
                return error
            return None

        for start in range(0, len(names), _PAGE):
            if not go_on():
                counts["more"] = 1
                return False
            part = names[start : start + _PAGE]
            for name, error in zip(part, self._for_each(fire, part), strict=True):
                if error is None:
                    counts["crons"] += 1
                else:
                    counts.fail(f"cron job {name}", error)
        return True

    def _apply(self, job_ids: Iterable[str], due: frozenset[str], counts: SweepCounts) -> int:
        """Apply the time transitions of jobs; return how many have no due entry now."""
        ids, settled = list(job_ids), 0
        records = self._jobs.read_records(ids, counts.fail)
        # Jobs are processed in index order, so that delayed jobs start in the order in which they
        # were due.
        for job in (records[job_id] for job_id in ids if job_id in records):
            after = None
            with counting_failures(counts, f"job {job.id}"):
                # Only jobs that were found in the due index have an entry to update.
                apply = (
                    self._transitions.apply_indexed if job.id in due else self._transitions.apply
                )
                after = apply(job)
            if after is None:
                continue
            settled += after is not job or (job.id in due and job.lease is not None)
            if after is job:
                if job.id in due:
                    counts["refiled"] += 1
            elif after.state is State.DISCARDED and not after.completed_ms:
                counts["expired"] += 1
            elif job.state is State.ACTIVE:
                counts["stalled_or_timed_out"] += 1
            else:
                counts["promoted"] += 1
        return settled

    def _undo_batches(
        self, lines: Sequence[str], now_ms: int, counts: SweepCounts, go_on: GoOn
    ) -> bool:
        """Undo abandoned batches. Return whether all their lines were read, and noted again if a
        batch is left.
        """
        for line in rotated(lines, self._choose):
            # A failure of one batch or line must not affect the others, or the jobs of the queues.
            left, failed = True, counts["failed"]
            with counting_failures(counts, f"staged batches of {line}"):
                tokens = self._jobs.batches.stale(line, now_ms=now_ms, limit=_BATCHES)
                left = len(tokens) == _BATCHES
                for token in tokens:
                    if not go_on():
                        counts["more"] = 1
                        return False
                    with counting_failures(counts, f"staged batch {token}"):
                        undone = self._jobs.batches.undo(token, now_ms=now_ms)
                        # A batch that is undone again counts only if some of its jobs were stored
                        # late.
                        if undone.first or undone.jobs:
                            counts["batches_undone"] += 1
            if left or counts["failed"] > failed:
                self._due_notes.note([(line, now_ms)])
        return True
