"""Replays dead letters every minute, by the rules of their queue.

A rule checks each dead letter of its queue once, after the delay of the rule, in the order in which
they were discarded. A cursor records its progress (`ojs.store.dead_letter.replay`). One conditional
write of the job record makes the job available and counts the replay. Each job is therefore
replayed once, also after a crash or with concurrent sweeps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping, Sequence
from dataclasses import field

from ojs.domain.dead_letter.replay_rules import ReplayRule, read
from ojs.domain.errors import BackendError, OjsError, QueueDraining, QueueFull
from ojs.domain.job import replay
from ojs.domain.job.job import Job
from ojs.domain.queue.queue import Queue, QueueState
from ojs.records import record
from ojs.services.dead_letter.redrive import DeadLetterRetrier
from ojs.services.listing.dead_letters import still_listed
from ojs.services.sweeps import (
    GoOn,
    SweepQueues,
    SweepReport,
    SweepRun,
    always,
    counting_failures,
)
from ojs.store.dead_letter.replay import ReplayCursor, ReplayCursors
from ojs.store.deployment.maintenance import MaintenanceStore
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import LostRace

_SLICE = 100
_TRIES = 3
# Maximum number of skipped jobs that the report names.
MAX_SKIPPED = 100


@record(frozen=True)
class Skipped:
    """A dead letter that a rule could not replay. The rule doesn't retry it."""

    job_id: str
    queue: str
    rule: str
    reason: str


@record(frozen=True, eq=False)
class ReplayReport(SweepReport):
    """The counts of a run, and the first MAX_SKIPPED jobs that it skipped.

    `counts` has: looked (dead letters that were due), replayed, skipped, blocked (rules whose queue
    is full), failed (rules or queues), `more`.
    """

    skipped: Sequence[Skipped] = ()


@record
class _ReplayRun(SweepRun):
    skipped: list[Skipped] = field(default_factory=list)

    def over(self) -> bool:
        return self.stop(self.counts["looked"])


class _Blocked(Exception):
    """The queue accepts no jobs now, so the rule must wait."""


class ReplaySweep:
    """Applies the replay rules of all queues."""

    name = "replay"

    def __init__(
        self,
        *,
        jobs: JobStore,
        queues: QueueStore,
        sweep_queues: SweepQueues,
        replays: ReplayCursors,
        redrive: DeadLetterRetrier,
        maintenance: MaintenanceStore,
    ) -> None:
        self._jobs = jobs
        self._queues = queues
        self._every = sweep_queues
        self._replays = replays
        self._redrive = redrive
        self._maintenance = maintenance

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> ReplayReport:
        """Replay due dead letters. Replays none in maintenance mode.

        Starts at a random queue, so that shortened runs starve none. Takes one read per queue, one
        query per queue with rules, one query per rule, and one read of the job record per dead
        letter and rule.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Approximate maximum number of dead letters to check.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The counts of the run, and the skipped dead letters.
        """
        run = _ReplayRun(now_ms, limit, go_on)
        for queue in self._with_rules(run):
            # A queue that is being deleted gets no more jobs.
            if queue.state is QueueState.DRAINING:
                continue
            with counting_failures(run.counts, f"queue {queue.name}"):
                self._queue(run, queue)
            if run.counts["more"]:
                break
        return ReplayReport(+run.counts, run.skipped, failures=run.counts.failures)

    def _with_rules(self, run: _ReplayRun) -> Iterator[Queue]:
        for part in self._every.parts(run.counts):
            if run.over():
                return
            yield from (queue for queue in part if queue.layers.replay_rules)

    def _queue(self, run: _ReplayRun, queue: Queue) -> None:
        rules = read(queue.layers.replay_rules)
        named = [rule.name for rule in rules]
        cursors = self._replays.cursors(queue.name)
        if gone := [cursor for name, cursor in cursors.items() if name not in named]:
            self._replays.forget(gone)
        for rule in rules:
            # A rule of the policy for new queues can name another queue.
            if not rule.enabled or rule.filter.queue not in (None, queue.name):
                continue
            if run.over():
                return
            with counting_failures(run.counts, f"rule {rule.name} of queue {queue.name}"):
                self._rule(run, queue.name, rule, cursors.get(rule.name), named)

    def _rule(
        self,
        run: _ReplayRun,
        queue: str,
        rule: ReplayRule,
        cursor: ReplayCursor | None,
        rules: Collection[str],
    ) -> None:
        upto = cursor.upto if cursor is not None and cursor.digest == rule.digest else None
        first = upto
        # Exclusive, in ms.
        until_ms = rule.due_ms(run.now_ms) + 1
        if rule.filter.until_ms is not None:
            until_ms = min(until_ms, rule.filter.until_ms)
        blocked = False
        while not blocked and not run.over():
            size = min(_SLICE, run.limit - run.counts["looked"])
            entries = self._jobs.index.dead(
                queue,
                limit=size,
                since_ms=rule.filter.since_ms,
                until_ms=max(0, until_ms),
                after=upto,
                oldest_first=True,
            )
            if entries and self._maintenance.on():
                break
            last = upto
            try:
                for key in self._slice(run, entries, queue, rule, rules):
                    last = key
            except _Blocked:
                blocked = True
            if last != upto and last is not None:
                cursor = self._replays.move(queue, rule, cursor, last, now_ms=run.now_ms)
                if cursor is None:
                    return
                upto = last
            if len(entries) < size:
                break
        if upto is not None and upto == first and cursor is not None and cursor.lapses(run.now_ms):
            self._replays.move(queue, rule, cursor, upto, now_ms=run.now_ms)

    def _slice(
        self,
        run: _ReplayRun,
        entries: Sequence[tuple[str, str]],
        queue: str,
        rule: ReplayRule,
        rules: Collection[str],
    ) -> Iterator[str]:
        """Replay the matching dead letters, and yield the index key of each processed one.

        Raises _Blocked.
        """
        # The rule doesn't retry records that it can't read.
        records = self._jobs.read_records((job_id for job_id, _ in entries), run.counts.fail)
        known: dict[str, Queue] = {}
        for job_id, key in entries:
            run.counts["looked"] += 1
            job = records.get(job_id)
            try:
                if job is not None and self._matches(rule, job, key):
                    self._replay(run, job, key, rule, rules, known)
            except (QueueFull, QueueDraining):
                run.counts["blocked"] += 1
                raise _Blocked from None
            except BackendError as error:
                # It is unknown whether the job was replayed. The next run checks it again.
                run.counts.fail(f"job {job_id}", error)
                raise _Blocked from None
            except OjsError as error:
                run.counts["skipped"] += 1
                if len(run.skipped) < MAX_SKIPPED:
                    skipped = Skipped(job_id, queue, rule.name, f"{error.code}: {error}")
                    run.skipped.append(skipped)
            yield key

    def _matches(self, rule: ReplayRule, job: Job, key: str) -> bool:
        """Return whether a job is still the listed dead letter, and matches the rule."""
        # If the job was retried and discarded again, its new dead letter is due later.
        if not still_listed(job, key) or job.deleting:
            return False
        if replay.count(job.replayed, rule.name) >= rule.max_replays:
            return False
        if not rule.filter.matches_record(job):
            return False
        if rule.filter.of_content and job.content is None:
            (job,) = self._jobs.with_contents([job])
        return rule.filter.matches_content(job)

    def _replay(
        self,
        run: _ReplayRun,
        job: Job,
        key: str,
        rule: ReplayRule,
        rules: Collection[str],
        known: MutableMapping[str, Queue],
    ) -> None:
        """Replay a job, unless another request has retried it. Raises OjsError, _Blocked."""
        if job.queue not in known:
            queue = self._queues.get(job.queue)
            if queue is None:
                # The queue was deleted. A replay doesn't create it again.
                raise _Blocked
            known[job.queue] = queue
        for _ in range(_TRIES):
            replayed = replay.after(job.replayed, rule.name, now_ms=run.now_ms, rules=rules)
            try:
                # No other job is discarded if the queue is full.
                self._redrive.bring_back(job, drops=False, known=known, replayed=replayed)
            except LostRace:
                found = self._jobs.read_records([job.id]).get(job.id)
                if found is None or not self._matches(rule, found, key):
                    return
                job = found
                continue
            run.counts["replayed"] += 1
            return
        # Concurrent requests keep changing the job. The next run checks it again.
        raise _Blocked
