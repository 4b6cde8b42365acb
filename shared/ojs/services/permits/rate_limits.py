"""Job-level rate limits: what one fetch may claim, and what an operator sees and overrides.

Jobs without a limit cost nothing here. Of limited ones a fetch reads what is counted for their keys
(one call for a page of the line), takes under the limit before it claims (one write for all jobs of
the page with one limit), and gives back what it did not use.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ojs.clock import Clock
from ojs.domain.errors import NotFound, OjsError
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.rate_limit.limiter import (
    CONCURRENCY,
    DROP,
    WAIT,
    LimitBounds,
    LimitDecision,
    LimiterState,
    LimitSpec,
    Override,
    RateLimit,
    cell_name,
    place_of,
)
from ojs.store.jobs.records import JobStore
from ojs.store.permits.key_limits import KeyLimits, LimitGrant, LimitRequest, as_found
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.table.errors import LostRace
from ojs.store.table.keys import Position

# Jobs that one fetch puts off or drops, where they ask for it.
_ENDED_AT_ONCE = 10
# Jobs for which one write takes: DynamoDB takes expressions of 4 KB.
_TAKEN_AT_ONCE = 25
# When a job is put off and nobody knows when there will be room.
_UNKNOWN_MS = 5_000
# A key is made known by each container, and for each kind of limit, this often.
_REGISTER_EVERY_MS = 86_400_000
_REMEMBERED = 10_000
_LINE_PAGES = 5
# Characters.
_MAX_REASON = 1_000

Entry = tuple[str, Position]


@dataclass
class FetchRateLimitState:
    """What one fetch knows of the limits it has met."""

    cells: dict[str, LimiterState] = field(default_factory=dict)
    hints: dict[str, LimitSpec] = field(default_factory=dict)
    # By hint: no more of these now.
    shut: dict[str, LimitDecision] = field(default_factory=dict)
    # Places that may be claimed with, each with what it was taken by.
    open: dict[str, LimitGrant] = field(default_factory=dict)
    overdue: dict[str, LimitDecision] = field(default_factory=dict)
    # By cell: why a job of the key had to wait, and which; a job that was let pass though others
    # had to wait before.
    stopped: dict[str, tuple[LimitDecision, str]] = field(default_factory=dict)
    passing: dict[str, str] = field(default_factory=dict)
    skipped: int = 0

    def hint(self, text: str) -> LimitSpec:
        """A hint, read once."""
        if text not in self.hints:
            self.hints[text] = LimitSpec.of(text)
        return self.hints[text]


class FetchRateLimits:
    """Says which limited jobs a fetch may claim."""

    def __init__(
        self,
        store: KeyLimits,
        edges: ThrottleStates,
        jobs: JobStore,
        clock: Clock,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._store = store
        self._edges = edges
        self._jobs = jobs
        self._clock = clock
        self._choose = choose

    def look(self, round_: FetchRateLimitState, positions: Iterable[Position]) -> None:
        """Read what is counted for the keys of these jobs, as far as it is not known. One call."""
        names = {round_.hint(p.limit).cell for p in positions if p.limit is not None}
        if unknown := names - round_.cells.keys():
            round_.cells |= self._store.get_many(sorted(unknown))

    def shut(self, round_: FetchRateLimitState, job_id: str, position: Position) -> bool:
        """Whether it is known already that this job's limit is reached; costs nothing."""
        if position.limit is None or position.limit not in round_.shut:
            return False
        if place_of(job_id, position.order) in round_.open:
            # Others were refused since the rest of the room was taken for this one, in its line.
            return False
        self._pass_over(round_, job_id, position.limit, round_.shut[position.limit])
        return True

    def allow(
        self,
        round_: FetchRateLimitState,
        entry: Entry,
        following: Sequence[Entry],
        *,
        wanted: int,
        lease: Callable[[Position], int],
    ) -> LimitGrant | None:
        """What was taken for this job to be claimed with, or None: it must wait.

        Takes for jobs that follow with the same limit too, up to `wanted` in all. `lease` tells how
        long, in ms, a job at a position would be held. Raises OjsError.
        """
        job_id, position = entry
        limit = position.limit or ""
        if (place := place_of(job_id, position.order)) in round_.open:
            return round_.open[place]
        hint = round_.hint(limit)
        alike = [entry]
        alike += [
            (other, p)
            for other, p in following
            if p.limit == limit and place_of(other, p.order) not in round_.open
        ]
        most = max(1, min(wanted - len(round_.open), _TAKEN_AT_ONCE))
        asked = [LimitRequest(other, p.order, lease(p)) for other, p in alike[:most]]
        cell = round_.cells.get(hint.cell) or LimiterState()
        for healed in (False, True):
            now_ms = self._clock.now_ms()
            taken, verdict, cell = self._store.take(
                hint.cell, hint.bounds, asked, now_ms=now_ms, seen=cell
            )
            if healed or taken is not None or not self._healed(hint.cell, cell, verdict, now_ms):
                break
            cell = self._store.get(hint.cell) or LimiterState()
        round_.cells[hint.cell] = cell
        if taken is not None:
            round_.open |= dict.fromkeys(taken.names, taken)
            if cell.held_ms is not None and self._free(round_, hint, taken, entry, following):
                round_.passing[hint.cell] = job_id
            if place in taken.names:
                return taken
            # Another one goes first: its fetch died before it could claim it.
            return None
        if verdict.strategy:
            round_.shut[limit] = verdict
            round_.stopped.setdefault(hint.cell, (verdict, job_id))
        self._pass_over(round_, job_id, limit, verdict)
        return None

    def _free(
        self,
        round_: FetchRateLimitState,
        hint: LimitSpec,
        taken: LimitGrant,
        entry: Entry,
        following: Sequence[Entry],
    ) -> bool:
        """Whether a key holds nothing back any more, as far as one sees: there is room for more, or
        no other job of it in what was read of the line.
        """
        if taken.after.room(hint.bounds, self._clock.now_ms(), 1).count:
            return True
        return not any(
            p.limit is not None
            and round_.hint(p.limit).cell == hint.cell
            and place_of(other, p.order) not in round_.open
            for other, p in (entry, *following)
        )

    def _healed(self, name: str, cell: LimiterState, verdict: LimitDecision, now_ms: int) -> bool:
        if verdict.strategy != CONCURRENCY:
            return False
        return self._store.heal(name, cell, self._jobs.heads, now_ms=now_ms, choose=self._choose)

    def _pass_over(
        self, round_: FetchRateLimitState, job_id: str, limit: str, verdict: LimitDecision
    ) -> None:
        round_.skipped += 1
        wants_more = round_.hint(limit).on_limit != WAIT and len(round_.overdue) < _ENDED_AT_ONCE
        if wants_more and verdict.strategy:
            round_.overdue[job_id] = verdict

    @staticmethod
    def use(round_: FetchRateLimitState, job_id: str, position: Position) -> LimitGrant | None:
        """What was taken for a job that is about to be claimed; None for one without a limit.

        From now on it is the claim's: if nobody knows how that ended, it is not given back.
        """
        if position.limit is None:
            return None
        return round_.open.pop(place_of(job_id, position.order))

    def lost(
        self,
        taken: LimitGrant | None,
        job_id: str,
        position: Position,
        there: Job | None,
        *,
        started: bool,
    ) -> None:
        """The job could not be claimed; `there` is what stands in its place. `started` if an
        earlier try may have claimed it, for somebody to end it since: that counts as a start.
        """
        if taken is None:
            return
        place = place_of(job_id, position.order)
        if there is not None and there.state is State.ACTIVE and there.place == place:
            # Whoever has the job has it with this very place.
            return
        self._store.give_back(taken, [place], started=started)

    def settle(self, round_: FetchRateLimitState) -> None:
        """Give back what was not used, and do what jobs asked for when their limit is reached."""
        unused: dict[int, tuple[LimitGrant, list[str]]] = {}
        for place, taken in round_.open.items():
            unused.setdefault(id(taken), (taken, []))[1].append(place)
        for taken, places in unused.values():
            self._store.give_back(taken, places)
        round_.open.clear()
        # None of it is worth losing the jobs that were claimed.
        with suppress(OjsError):
            self._tell(round_)
        if not round_.overdue:
            return
        try:
            heads = self._jobs.heads(round_.overdue)
            for job_id, job in heads.items():
                self._end(job, round_.overdue[job_id])
        except OjsError:
            # They stay available; the next fetch sees to them.
            return
        finally:
            round_.overdue.clear()

    def _tell(self, round_: FetchRateLimitState) -> None:
        """Tell of keys that hold jobs back now, or do so no more."""
        now_ms = self._clock.now_ms()
        for name, (verdict, job_id) in round_.stopped.items():
            cell = round_.cells[name]
            if cell.held_ms is None and cell.key is not None:
                self._edges.begin(
                    LimitName.of_key(cell.key),
                    strategy=verdict.strategy,
                    limit=verdict.limit,
                    current=verdict.current,
                    job_id=job_id,
                    now_ms=now_ms,
                    unless=as_found(cell),
                )
        for name, job_id in round_.passing.items():
            cell = round_.cells[name]
            if name not in round_.stopped and cell.key is not None:
                self._edges.end(
                    LimitName.of_key(cell.key), job_id=job_id, since_ms=cell.held_ms, now_ms=now_ms
                )
        round_.stopped.clear()
        round_.passing.clear()

    def _end(self, job: Job, verdict: LimitDecision) -> None:
        """Put a job off or drop it (ojs-rate-limiting section 6.2)."""
        now_ms = self._clock.now_ms()
        if job.state is not State.AVAILABLE or job.limit is None:
            return
        failure = None
        if job.limit.on_limit == DROP:
            after, failure = lifecycle.give_up(job, now_ms=now_ms)
        else:
            free_ms = verdict.free_ms or now_ms + _UNKNOWN_MS
            after = lifecycle.postpone(job, until_ms=max(free_ms, now_ms + 1))
        # Race: a fetch that found room after all, a cancel, a deadline. The loser leaves it alone.
        try:
            self._jobs.replace(job, after, failure=failure)
        except LostRace:
            return


@dataclass(frozen=True)
class RateLimitStatus:
    """How a key stands at a time, for showing. `waiting` is None where it was not counted."""

    key: str
    cell: LimiterState
    now_ms: int
    waiting: int | None = None
    waiting_exact: bool = True

    @property
    def bounds(self) -> LimitBounds:
        """What holds: the bounds of the job pushed last, under the override."""
        return self.cell.in_force(self.cell.bounds, self.now_ms)


class RateLimits:
    """Makes keys known, shows them, pauses and overrides them."""

    def __init__(
        self, store: KeyLimits, jobs: JobStore, lanes: Callable[[str], int], clock: Clock
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._lanes = lanes
        self._clock = clock
        self._known: OrderedDict[tuple[str, str], int] = OrderedDict()

    def register(self, jobs: Iterable[tuple[RateLimit, str]]) -> None:
        """Make the keys of jobs known that are about to be pushed, each with its queue."""
        now_ms = self._clock.now_ms()
        for limit, queue in dict.fromkeys(jobs):
            kind = (limit.compact(), queue)
            if now_ms - self._known.get(kind, -_REGISTER_EVERY_MS) < _REGISTER_EVERY_MS:
                continue
            self._store.register(limit, queue, now_ms=now_ms)
            self._known[kind] = now_ms
            self._known.move_to_end(kind)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

    def pause(self, job: Job, until_ms: int, reason: str) -> None:
        """Start no job of this one's key before a time, in ms; `reason` is for the event."""
        now_ms = self._clock.now_ms()
        if job.limit is not None and until_ms > now_ms:
            self._store.pause(job, until_ms=until_ms, reason=reason[:_MAX_REASON], now_ms=now_ms)

    def standing(self, limit: RateLimit, queue: str) -> RateLimitStatus:
        """How a job's key stands now; may be a moment old."""
        key = limit.key_in(queue)
        cell = self._store.get(cell_name(key), consistent=False) or LimiterState()
        return RateLimitStatus(key, cell, self._clock.now_ms())

    def get(self, key: str) -> RateLimitStatus:
        """How a key stands, and how many jobs wait for it. Raises NotFound."""
        cell = self._store.get(cell_name(key))
        if cell is None:
            raise NotFound("rate_limit", key)
        waiting, exact = self.waiting(cell_name(key), cell.queues)
        return RateLimitStatus(key, cell, self._clock.now_ms(), waiting, exact)

    def list(self, *, limit: int, cursor: str | None = None) -> Page[RateLimitStatus]:
        """A page of keys in order, without how many jobs wait for each."""
        names, following = self._store.keys(limit=limit, after=cursor)
        cells = self._store.get_many(cell_name(key) for key in names)
        now_ms = self._clock.now_ms()
        shown = [RateLimitStatus(key, cells[cell_name(key)], now_ms) for key in names]
        return Page(shown, following)

    def override(self, key: str, override: Override) -> RateLimitStatus:
        """Lay bounds over those of a key's jobs, in place of what was laid over them before."""
        now_ms = self._clock.now_ms()
        return RateLimitStatus(key, self._store.override(key, override, now_ms=now_ms), now_ms)

    def lift(self, key: str) -> RateLimitStatus:
        """Take back the override and the pause of a key. Raises NotFound."""
        cell = self._store.lift(key)
        if cell is None:
            raise NotFound("rate_limit", key)
        return RateLimitStatus(key, cell, self._clock.now_ms())

    def waiting(self, name: str, queues: Sequence[str]) -> tuple[int, bool]:
        """Available jobs of a key in the first pages of its queues; whether these are all."""
        count, exact = 0, True
        for queue in queues:
            for lane in range(self._lanes(queue)):
                found, whole = self._in_line(name, queue, lane)
                count, exact = count + found, exact and whole
        return count, exact

    def _in_line(self, name: str, queue: str, lane: int) -> tuple[int, bool]:
        count, after = 0, None
        for _ in range(_LINE_PAGES):
            entries, after = self._jobs.ready(queue, lane, limit=200, after=after)
            limits = (Position.parse(key).limit for _, key in entries)
            count += sum(1 for limit in limits if limit and LimitSpec.of(limit).cell == name)
            if after is None:
                return count, True
        return count, False


def registered(jobs: Iterable[Job]) -> list[tuple[RateLimit, str]]:
    """The limits of jobs, with their queues."""
    return [(job.limit, job.queue) for job in jobs if job.limit is not None]
