"""What must hold at every single write. From the table's items alone.

`Watch` sees each write as it is made, with the items before and after, and says at once which
promise it breaks; so a run that breaks one and mends it again does not go unnoticed.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ojs.clock import Clock
from ojs.domain.delivery.delivery import delivery_of, delivery_semaphore
from ojs.domain.job.failure import ErrorEntry, entries_of
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, Job
from ojs.domain.job.permits import (
    DELIVERY_PERMIT,
    KEY_PERMIT,
    POOL_PERMIT,
    QUEUE_PERMIT,
    TENANT_PERMIT,
    WORKER_PERMIT,
    RunPermits,
    permit_name,
)
from ojs.domain.job.states import TERMINAL, TRANSITIONS, State
from ojs.domain.pool.pool import pool_semaphore, worker_semaphore
from ojs.domain.rate_limit.limiter import RateLimit, limiter_name
from ojs.domain.tenants import get_tenant
from ojs.store.jobs import items
from ojs.store.jobs.lease_notes import slots_in_use
from ojs.store.permits.semaphore import key_of
from ojs.store.queues import pools, queues
from ojs.store.queues.replicas import MAX_COPIES
from ojs.store.table import keys, values
from ojs.store.table.schema import TABLE
from tests.simulation.memory import Change, Key, Memory
from tests.simulation.memory import Item as Typed
from tests.simulation.scheduler import Scheduler

_RESULT = ("result", "result_ref", "completed")
# A request is answered, or given up, within 29 s; more time than this never passes in one, and what
# is late takes effect within as much.
REQUEST_MS = 25_000
LONGEST_MS = 2 * REQUEST_MS
_MOVES = {(before, to) for (before, _), after in TRANSITIONS.items() for to in after}
# A fetch makes two steps at once when a job's time has come.
_WAITS = {State.SCHEDULED.value: "scheduled", State.RETRYABLE.value: "retry_at"}
_MOVES |= {(State(waits), State.ACTIVE) for waits in _WAITS}
Item = dict[str, Any]
# The type of each error that a worker of the simulation reports.
OF_WORKER = "E"
# Stands for the bucket where the key of an item has its partition.
BUCKET = "s3"


class Broken(BaseException):
    """A promise that was not kept. What is under test must not catch it: sweeps catch every
    `Exception` of a job or a queue.
    """


def broken(promise: str, **what: Any) -> Broken:
    told = ", ".join(f"{name}={value}" for name, value in what.items())
    return Broken(f"{promise}: {told}")


@dataclass
class Speech:
    """What an actor does now: of which jobs it speaks, what it shows, what it was just given."""

    # Partition keys.
    about: set[str] = field(default_factory=set)
    lease: str | None = None
    worker: str | None = None
    # A heartbeat or a progress report, which a worker's id is enough for.
    extends: bool = False
    # An operator's act that may start a job before its time.
    hastens: bool = False
    claimed: set[str] = field(default_factory=set)
    # Texts that it wrote apart from a job record.
    texts: set[Key] = field(default_factory=set)
    # How many writes there had been when it began to ask; whoever heals comes after all.
    began: int = 2**60
    # Of a request about many jobs: the lease that it shows of each.
    leases: dict[str, str | None] = field(default_factory=dict)

    def owns(self, pk: str, record: Item) -> bool:
        """Whether the lease of a running job is the speaker's, by all that it shows. Who shows
        nothing may speak for anybody, unless the job's queue demands the token.
        """
        if record["lease"] in self.claimed:
            return True
        lease = self.leases.get(pk, self.lease)
        if "fenced" in record and not lease and not (self.extends and self.worker):
            return False
        named = self.worker is None or record.get("worker") in (None, self.worker)
        return pk in self.about and named and lease in (None, record["lease"])

    def resumes(self, pk: str, before: Item) -> bool:
        """Whether the lease of a job that ended was the speaker's."""
        lease = self.leases.get(pk, self.lease)
        mine = before.get("worker") == self.worker or lease == before["stalled"]
        return pk in self.about and mine


@dataclass(frozen=True)
class Answered:
    """What somebody was told is set, as part of what, and how many writes there had been by
    then.
    """

    value: Any
    owner: str
    writes: int


@dataclass
class Counting:
    """Counters that count, by kind of limit and name; and the queues of pools, by counter."""

    counters: set[tuple[str, str]] = field(default_factory=set)
    queues: dict[str, set[str]] = field(default_factory=dict)


class Watch:
    """Sees every write."""

    def __init__(
        self, memory: Memory, clock: Clock, scheduler: Scheduler, *, spread_ms: int = 0
    ) -> None:
        """`spread_ms` is how far the clocks of two containers may differ."""
        self._memory = memory
        self._clock = clock
        self._spread_ms = spread_ms
        self._scheduler = scheduler
        self.writes = 0
        # By actor, None for who heals.
        self.speech: defaultdict[int | None, Speech] = defaultdict(Speech)
        # Runs of the current life, by partition key; what `attempt` must say.
        self._runs: Counter[str] = Counter()
        self._leases: set[str] = set()
        # Jobs that were tracked and are not done, permits that running ones hold, by counter.
        self.tracked: Counter[str] = Counter()
        self.permits: Counter[str] = Counter()
        # Running jobs by the key of their rate limit.
        self.limited: Counter[str] = Counter()
        self._unique: defaultdict[str, set[str]] = defaultdict(set)
        # What was told of by the stream: (old, new, second).
        self.stream: list[tuple[Item | None, Item | None, int]] = []
        # Jobs whose end somebody may ask for by hand.
        self.deleted: set[str] = set()
        # Whether any dead letter may be removed: by a bulk operation, or by the pruning.
        self.purged = False
        # Whether any job that has ended may be removed.
        self.erased = False
        # Texts whose writer died, or got no answer, perhaps before a job record named them.
        self.left: set[Key] = set()
        # Of every error that was stored its type, by key.
        self.errors: dict[Key, str] = {}
        # The runs that failed so, and where the errors are: in items, and in job records.
        self._failed_runs: dict[Key, str | None] = {}
        self._error_items: dict[Key, ErrorEntry] = {}
        self._noted_errors: dict[str, Mapping[str, ErrorEntry]] = {}
        # What operators set and nobody is changing, by kind and name: requests from then on heed
        # it.
        self.set: dict[tuple[str, str], Answered] = {}
        # How many writes there had been when each job came, and when it was handed out.
        self._came: dict[str, int] = {}
        self._claimed: dict[str, int] = {}
        # Of jobs that a late worker went on with, its counter.
        self._resumed: dict[str, str] = {}
        # Lease notes by slot and key: the jobs that each lists. And of the slots in use, the last
        # note that was looked at.
        self._notes: dict[Key, set[str]] = {}
        self._looked: dict[str, str] = {}
        # Running jobs without an entry in the index.
        self._unfiled: set[str] = set()
        # Jobs that were written after their batch was undone.
        self._late: set[str] = set()
        # Whether limits are changed while jobs run.
        self.changes = False
        # Starts under the rate limit of a queue, or of a key: its length in ms and most starts.
        self.rates: dict[str, tuple[int, int]] = {}
        self._starts: defaultdict[str, list[int]] = defaultdict(list)
        # How often a rule may bring one job back, and did.
        self.most_replays: int | None = None
        self._replays: Counter[str] = Counter()
        # Where dead letters must be before they are pruned, if anywhere.
        self.archived: Callable[[str, int], bool] | None = None
        memory.watchers.append(self)

    def __call__(self, changes: list[Change]) -> None:
        touched: set[str] = set()
        second = self._clock.now_ms() // 1_000
        for (pk, sk), typed_before, typed_after in changes:
            self.writes += 1
            self._apart(pk, sk, typed_before, typed_after)
            self._noted(pk, sk, typed_after)
            if typed_after is None and sk == keys.RECORD and pk.startswith(keys.queue("")):
                # What was set of a queue goes with it; until then it holds, also while it ends.
                self.set.pop(("paused", pk.removeprefix(keys.queue(""))), None)
            wanted = sk == keys.RECORD and pk.startswith(keys.job(""))
            told = TABLE.projects(pk, sk)
            counts = pk.startswith((keys.counter(""), keys.limiter("")))
            if not wanted and not told and not counts:
                continue
            before, after = _unpacked(typed_before), _unpacked(typed_after)
            if told:
                self.stream.append((before, after, second))
            if wanted:
                touched |= self._job(pk, before, after)
            elif counts:
                self._gate(pk, sk, before, after)
                touched.add(pk.removeprefix(keys.counter("")))
        self._alike(changes)
        for counter in touched:
            self._covered(counter)
        self._leases_are_found()
        for key, holders in self._unique.items():
            if len(holders) > 1:
                raise broken("one job for a unique key", key=key[:8], jobs=sorted(holders))

    def _alike(self, changes: list[Change]) -> None:
        """Every replica of a queue's record is as the record is, and there are as many as it
        says.
        """
        of_queue = keys.queue("")
        for queue in {pk.split("|")[1] for (pk, _), *_ in changes if pk.startswith(of_queue)}:
            record = self._memory.items.get((keys.queue(queue), keys.RECORD)) or {}
            wanted = int(record.get("replicas", {"N": "0"})["N"])
            for number in range(1, MAX_COPIES):
                key = keys.replica(queue, number), keys.REPLICA
                found = self._memory.items.get(key)
                expected = {**record, "pk": {"S": key[0]}, "sk": {"S": key[1]}}
                if found != (expected if number <= wanted else None):
                    raise broken("a replica is as the record", of=queue, number=number, now=found)

    def _apart(self, pk: str, sk: str, before: Typed | None, after: Typed | None) -> None:
        """Remember texts that are kept apart from job records, and the errors of jobs."""
        if sk.startswith((keys.PAYLOAD, keys.RESULT)) and before is None:
            self.speech[self._scheduler.current].texts.add((pk, sk))
        if sk.startswith(keys.ERROR):
            self._error_items.pop((pk, sk), None)
            if (item := _unpacked(after)) is not None:
                self._error_items[pk, sk] = items.entry_from(item)
                self._error(pk, sk)
        elif sk == keys.RECORD and pk.startswith(keys.job("")):
            texts = [(record or {}).get("errors", {"S": "[]"})["S"] for record in (before, after)]
            if texts[0] != texts[1]:
                was, now = (
                    {items.error_key(entry): entry for entry in entries_of(text)} for text in texts
                )
                self._noted_errors[pk] = now
                for place in {**was, **now} if after is not None else ():
                    self._error(pk, place)
        if sk == keys.PROGRESS and before is not None and after is not None:
            self._progress(pk, _unpacked(before) or {}, _unpacked(after) or {})

    def _error(self, pk: str, sk: str) -> None:
        """An error that a reader finds at this place now, in an item or the job record."""
        shown, noted = self._error_items.get((pk, sk)), self._noted_errors.get(pk, {}).get(sk)
        if noted is not None:
            shown = noted if shown is None or noted.replaces(shown) else shown
        if shown is None:
            raise broken("no error of a job is lost", job=pk, error=sk)
        kind = shown.failure.type
        if kind == "content_missing":
            raise broken("a job has its content as long as it is there", job=pk)
        same = self._failed_runs.get((pk, sk), "") == shown.run
        if same and self.errors[pk, sk] == OF_WORKER != kind:
            raise broken("what the worker said of its attempt stays", job=pk, now=kind)
        self.errors[pk, sk], self._failed_runs[pk, sk] = kind, shown.run

    def _noted(self, pk: str, sk: str, after: Typed | None) -> None:
        """Remember lease notes, how far they were looked at, and what runs without an entry."""
        if pk.startswith(keys.lease_notes(0)[:2]):
            assert after is not None
            packed = bytes(after["jobs"]["B"])
            ids = (UUID(bytes=packed[at : at + 16]) for at in range(0, len(packed), 20))
            self._notes[pk, sk] = {keys.job(str(job_id)) for job_id in ids}
        elif pk == keys.LEASE_SLOTS:
            assert after is not None
            used = slots_in_use(values.unpack(after))
            self._looked = {keys.lease_notes(slot.number): slot.seen for slot in used}
        elif pk.startswith(keys.job("")) and sk == keys.RECORD:
            unfiled = after is not None and after["state"]["S"] == State.ACTIVE.value
            if unfiled and after is not None and "wpk" not in after:
                self._unfiled.add(pk)
            else:
                self._unfiled.discard(pk)

    def _leases_are_found(self) -> None:
        """A running job is in the index, or in a note that the sweep has yet to look at."""
        if not self._unfiled:
            return
        ahead = {
            job
            for (slot, key), jobs in self._notes.items()
            if slot in self._looked and key > self._looked[slot]
            for job in jobs
        }
        if lost := self._unfiled - ahead:
            raise broken("a lost lease is found", jobs=sorted(lost))

    def _progress(self, pk: str, before: Item, after: Item) -> None:
        """The progress of a run never goes back, and no former one hides it."""
        record = _unpacked(self._memory.items.get((pk, keys.RECORD))) or {}
        run = f"{record.get('life', 0)}.{record.get('attempt', 0)}.{record.get('started')}"
        if before["run"] == after["run"] and after["value"] < before["value"]:
            raise broken("progress never goes back", job=pk, was=before["value"])
        # By when each report was received: a clock may be ahead.
        newer = after["updated"] + self._spread_ms >= before["updated"]
        if before["run"] == run != after["run"] and not (self._spread_ms and newer):
            raise broken("a former run hides no progress", job=pk, run=run, of=after["run"])

    # --- a job ------------------------------------------------------------------------------------

    def _job(self, pk: str, before: Item | None, after: Item | None) -> set[str]:
        """Look at one that came, changed or went; returns the counters it counts at."""
        if self._hidden(pk, before, after):
            return set()
        self._record(pk, before, after)
        touched = self._count(pk, before, after)
        if after is not None:
            self._heeded(pk, before, after)
        return touched

    def _hidden(self, pk: str, before: Item | None, after: Item | None) -> bool:
        """Whether a job does not exist: it was written after its batch was undone."""
        if before is None and after is not None and self._undone(after):
            self._late.add(pk)
        if pk not in self._late:
            return False
        if after is None:
            self._late.discard(pk)
        elif after["state"] == State.ACTIVE.value:
            raise broken("no job of an undone batch is handed out", job=pk)
        return True

    def _undone(self, record: Item) -> bool:
        batch = self._memory.items.get((keys.batch(str(record.get("batch"))), keys.RECORD))
        return batch is not None and batch["state"]["S"] == "undone"

    def _record(self, pk: str, before: Item | None, after: Item | None) -> None:
        if before is not None and after is None:
            self._gone(pk, before)
            return
        assert after is not None
        now = State(after["state"])
        if now not in TERMINAL and not (pk in self._unfiled or found_by(after)):
            raise broken("each job is in a line of the index", job=pk, state=now.value)
        if before is None:
            self._runs[pk] = 0
            if now in TERMINAL or now is State.ACTIVE:
                raise broken("a job begins by waiting", job=pk, state=now.value)
            return
        was = State(before["state"])
        if was is not now and (was, now) not in _MOVES:
            raise broken("a known transition", job=pk, was=was.value, now=now.value)
        revived = after.get("life", 0) != before.get("life", 0)
        if was in TERMINAL and was is not now and not ("dead" in before and revived):
            raise broken("terminal is final", job=pk, was=was.value, now=now.value)
        if was is now is State.COMPLETED and any(before.get(r) != after.get(r) for r in _RESULT):
            raise broken("the result of a job is stored once", job=pk)
        self._stood_still(pk, was, now)
        self._lease(pk, before, after)
        self._attempt(pk, before, after)
        if revived and before.get("replayed") != after.get("replayed"):
            self._replays[pk] += 1
            if self.most_replays is not None and self._replays[pk] > self.most_replays:
                raise broken("a rule brings a job back so many times", job=pk)

    def _stood_still(self, pk: str, was: State, now: State) -> None:
        """In maintenance mode no start or retry comes by time."""
        waited = was in (State.SCHEDULED, State.RETRYABLE)
        hastens = self.speech[self._scheduler.current].hastens
        if waited and now is State.AVAILABLE and self._holds("maintenance", "") and not hastens:
            raise broken("in maintenance nothing starts by time", job=pk, was=was.value)

    def _heeded(self, pk: str, before: Item | None, after: Item) -> None:
        """What an operator was told is set holds for every request from then on."""
        if before is None:
            self._came[pk] = self.writes
            queue = after["queue"]
            most = self._holds("bound", queue)
            if most is not None and self.tracked[queue] > most:
                there = self.tracked[queue]
                raise broken("a bound holds from the answer on", queue=queue, bound=most, n=there)
        elif before["state"] != after["state"] == State.ACTIVE.value:
            self._claimed[pk] = self.writes
            self._within_limits(pk, after)
            self._named(pk, after)
            if before.get("stalled") != after["lease"]:
                self._open(pk, after)
                self._given(after)
                self._started(after)
            elif WORKER_PERMIT in permits_of(after):
                # A lost worker speaks up again.
                self._resumed[pk] = worker_semaphore(after["pool"], after["worker"])
        elif after["state"] != State.ACTIVE.value:
            self._resumed.pop(pk, None)

    def _open(self, pk: str, item: Item) -> None:
        """Whether the queue that a job was handed out from hands out any, and to this pool."""
        queue, pool = item["queue"], item.get("pool", "")
        if self._holds("maintenance", ""):
            raise broken("in maintenance nothing is handed out", job=pk)
        if self._holds("paused", queue):
            raise broken("a paused queue hands out nothing", job=pk)
        if self._holds("token", queue) and "fenced" not in item:
            raise broken("what is handed out demands the token", job=pk)
        alone = self._holds("isolated", queue)
        if alone is not None and pool != alone:
            raise broken("an isolated queue serves its pool alone", job=pk, pool=pool)

    def _within_limits(self, pk: str, item: Item) -> None:
        """A job that runs takes a permit, and there is one."""
        in_pool = POOL_PERMIT in permits_of(item)
        for counter, taken in (
            (item["queue"], QUEUE_PERMIT in permits_of(item)),
            (pool_semaphore(item.get("pool", "")), in_pool),
            (f"%{get_tenant(item['queue'])}", TENANT_PERMIT in permits_of(item)),
        ):
            most, runs = self._holds("limit", counter), self.permits[counter]
            if most is not None and not taken:
                raise broken("a limited job takes a permit", job=pk, counter=counter)
            if most is not None and runs > most:
                raise broken(
                    "a limit holds from the answer on", counter=counter, limit=most, runs=runs
                )

    def _named(self, pk: str, item: Item) -> None:
        """A job that is handed out has the permits that it notes."""
        noted = RunPermits.of(item.get("permits", ""))
        attribute = f"h_{permit_name(pk.removeprefix(keys.job('')), noted.run)}"
        shards = zip(_permits(item), noted.shards.values(), strict=True)
        for name, shard in shards:
            if attribute not in self._memory.items.get(key_of(name, shard), {}):
                raise broken("a job has the permit that it notes", job=pk, counter=name)

    def _holds(self, kind: str, name: str) -> Any:
        """What was set before whoever acts began; None if nothing was, or it is being changed."""
        answered = self.set.get((kind, name))
        if answered is None or self.speech[self._scheduler.current].began < answered.writes:
            return None
        return answered.value

    def handed_out(self, jobs: Iterable[Job]) -> None:
        """Of a workflow whose cancellation was answered before, no job is handed out."""
        for job in jobs:
            if job.workflow is not None and self._holds("stopped", job.workflow.workflow_id):
                raise broken("a cancelled workflow hands out nothing", job=job.id)

    def counting(self) -> Counting:
        """Which counters count already, and which queues each pool has."""
        found = Counting()
        for (pk, sk), typed in self._memory.items.items():
            if sk != keys.RECORD:
                continue
            if pk.startswith(keys.queue("")):
                queue = queues.from_item(pk.removeprefix(keys.queue("")), values.unpack(typed))
                found.counters |= {("bound", queue.name)} if queue.tracks_depth else set()
                found.counters |= {("limit", queue.name)} if queue.limits_concurrency else set()
            elif pk.startswith(keys.pool("")):
                pool = pools.POOL.of(values.unpack(typed))
                found.counters |= {("limit", pool.semaphore)} if pool.limits_concurrency else set()
                found.queues[pool.semaphore] = set(pool.queues)
        return found

    def counted(self, what: Iterable[tuple[str, str]], before: Counting, began: int) -> None:
        """Whoever sets a bound or a limit where there was none is answered when all counts that was
        there before; of a pool, what runs from queues that it has or had until then.
        """
        fresh = {
            one for one in what if one not in before.counters and self.set[one].value is not None
        }
        now = self.counting()
        untracked: Counter[str] = Counter()
        for (pk, sk), typed in self._memory.items.items():
            if not pk.startswith(keys.job("")) or sk != keys.RECORD or pk in self._late:
                continue
            item: Item = dict(values.unpack(typed))
            queue, counter = item["queue"], pool_semaphore(item.get("pool", ""))
            if item["state"] == State.ACTIVE.value and self._claimed[pk] < began:
                of_pool = queue in before.queues.get(counter, set()) | now.queues.get(
                    counter, set()
                )
                in_pool = not of_pool or POOL_PERMIT in permits_of(item)
                in_queue = QUEUE_PERMIT in permits_of(item)
                for name, counts in ((queue, in_queue), (counter, in_pool)):
                    if ("limit", name) in fresh and not counts:
                        raise broken("what runs counts from the answer on", job=pk, counter=name)
            if item["state"] not in TERMINAL and "held" not in item and self._came[pk] < began:
                untracked[queue] += 1
        for name in (name for kind, name in fresh if kind == "bound"):
            level = _unpacked(self._memory.items.get((keys.counter(name), keys.DEPTH))) or {}
            if level.get("loose", 0) < untracked[name]:
                raise broken("what is there counts from the answer on", queue=name)

    def _given(self, item: Item) -> None:
        """A worker is given no more jobs than it said that it can run. What it goes on with after
        its lease ran out it was not given: it may do so with others being under way to it.
        """
        if WORKER_PERMIT not in permits_of(item):
            return
        semaphore = worker_semaphore(item["pool"], item["worker"])
        most = _unpacked(self._memory.items.get((keys.counter(semaphore), keys.SEMAPHORE))) or {}
        runs = self.permits[semaphore] - Counter(self._resumed.values())[semaphore]
        if runs > most["limit"]:
            raise broken("a worker gets what it can run", worker=semaphore, runs=runs)

    def _started(self, item: Item) -> None:
        """No stretch of time as long as the period has more starts than the rate."""
        names = [item["queue"]]
        if "limit" in item:
            names.append(RateLimit.of(item["limit"]).key_in(item["queue"]))
        for name in names:
            if name not in self.rates:
                continue
            period_ms, most = self.rates[name]
            starts = self._starts[name]
            insort(starts, item["started"])
            for first, last in zip(starts, starts[most:], strict=False):
                if last - first < period_ms:
                    raise broken("a rate is never passed", of=name, starts=starts)

    def _gone(self, pk: str, before: Item) -> None:
        was = State(before["state"])
        undone = self._undone(before)
        dead = "dead" in before
        by_hand = dead and (pk in self.deleted or self.purged)
        by_hand = by_hand or (self.erased and was in TERMINAL)
        kept = not dead or "deleting" in before or self._kept(pk, before["discarded"])
        if by_hand and not kept:
            raise broken("what is pruned is in the archive", job=pk)
        if by_hand:
            self.deleted.add(pk)
        elif not (undone and was not in TERMINAL):
            raise broken("no job is lost", job=pk, state=was.value)

    def _kept(self, pk: str, died_ms: int) -> bool:
        return self.archived is None or self.archived(keys.job_id(pk), died_ms)

    def _lease(self, pk: str, before: Item, after: Item) -> None:
        """Only who holds a live lease ends it, or an operator; nobody gets a second one."""
        if after["state"] == State.ACTIVE.value:
            if before["state"] == State.ACTIVE.value:
                self._extended(pk, before, after)
            else:
                self._leased(pk, before, after)
            return
        if before["state"] != State.ACTIVE.value:
            return
        mine, lease = self.speech[self._scheduler.current], before["lease"]
        until_ms = min(
            before["lease_until"], before["started"] + before.get("timeout", DEFAULT_TIMEOUT_MS)
        )
        by_holder = mine.owns(pk, before)
        if after["state"] == State.COMPLETED.value and not by_holder:
            raise broken("only the holder of a lease acks", job=pk, lease=lease, by=mine.lease)
        live = until_ms > self._clock.now_ms() + self._spread_ms
        if live and not by_holder and after["state"] != State.CANCELLED.value:
            raise broken("a live lease is its holder's", job=pk, lease=lease, now=after["state"])

    def _leased(self, pk: str, before: Item, after: Item) -> None:
        mine = self.speech[self._scheduler.current]
        resumed = before.get("stalled") == after["lease"]
        if after["lease"] in self._leases and not resumed:
            raise broken("each lease is new", job=pk)
        if resumed and not mine.resumes(pk, before):
            raise broken("who lost a lease alone goes on with it", job=pk, by=mine.worker)
        if not resumed:
            self._in_time(pk, before, after)
        self._leases.add(after["lease"])
        mine.claimed.add(after["lease"])

    def _extended(self, pk: str, before: Item, after: Item) -> None:
        mine = self.speech[self._scheduler.current]
        if after["lease"] != before["lease"]:
            raise broken("one lease at a time", job=pk, was=before["lease"], now=after["lease"])
        longer_ms = after["lease_until"] - before["lease_until"]
        if longer_ms and not mine.owns(pk, before):
            raise broken("only its holder extends a lease", job=pk, by=mine.worker)
        if longer_ms < 0:
            raise broken("no lease is made shorter", job=pk, by_ms=-longer_ms)

    def _in_time(self, pk: str, before: Item, after: Item) -> None:
        """No job is handed out after its `expires_at`, as its container has the time; what a
        request takes for the time is no older than it is.
        """
        time_ms = before.get(_WAITS.get(before["state"], ""), 0)
        if time_ms > self._clock.now_ms() + self._spread_ms:
            raise broken("no job starts before its time", job=pk, time=time_ms)
        if before.get("expires", 2**60) <= after["started"]:
            raise broken("no job starts after its deadline", job=pk, started=after["started"])
        if self._clock.now_ms() - after["started"] > LONGEST_MS + self._spread_ms:
            raise broken("a job starts when it is handed out", job=pk, started=after["started"])

    def _attempt(self, pk: str, before: Item, after: Item) -> None:
        """Each run counts once, one that was handed back not at all."""
        was, now = before["state"], after["state"]
        if after.get("life", 0) != before.get("life", 0):
            self._runs[pk] = 0
        elif was in (State.AVAILABLE.value, *_WAITS) and now == State.ACTIVE.value:
            self._runs[pk] += before.get("stalled") != after["lease"]
        elif was == State.ACTIVE.value and now == State.AVAILABLE.value and "stalled" not in after:
            self._runs[pk] -= 1
        elif was == State.ACTIVE.value and now == State.SCHEDULED.value:
            # Its code waits.
            self._runs[pk] -= 1
        if after.get("attempt", 0) != self._runs[pk]:
            raise broken(
                "each run counts once", job=pk, runs=self._runs[pk], attempt=after.get("attempt", 0)
            )

    # --- counters ------------------------------------------------------------------------------

    def _count(self, pk: str, before: Item | None, after: Item | None) -> set[str]:
        touched = set()
        for item, by in ((before, -1), (after, 1)):
            if item is None:
                continue
            live = item["state"] not in TERMINAL
            if live and "held" in item:
                self.tracked[item["queue"]] += by
                touched.add(item["queue"])
            if item["state"] == State.ACTIVE.value:
                for counter in _permits(item):
                    self.permits[counter] += by
                    touched.add(counter)
                self._limited(item, by)
            if live and "unique" in item:
                holders = self._unique[item["unique"]]
                (holders.add if by > 0 else holders.discard)(pk)
        return touched

    def _limited(self, item: Item, by: int) -> None:
        if "limit" not in item:
            return
        limit = RateLimit.of(item["limit"])
        key = limit.key_in(item["queue"])
        self.limited[key] += by
        most = limit.bounds.concurrency
        if by > 0 and most is not None and self.limited[key] > most:
            # One that was claimed so late that its lease was over by then does not run.
            live = self.limited[key] - self._claimed_too_late(key)
            if live > most:
                raise broken("a rate limit is never passed", key=key, running=live)

    def _claimed_too_late(self, key: str) -> int:
        """Jobs of a rate limit that are active, and whose lease is over."""
        now_ms = self._clock.now_ms()
        found = [_unpacked(item) or {} for item in self._memory.items.values() if "limit" in item]
        return sum(
            RateLimit.of(item["limit"]).key_in(item["queue"]) == key
            for item in found
            if item["state"] == State.ACTIVE.value and item["lease_until"] <= now_ms
        )

    def _gate(self, pk: str, sk: str, before: Item | None, after: Item | None) -> None:
        if after is None or sk not in (keys.DEPTH, keys.SEMAPHORE):
            return
        was, now = ((item or {}).get("n", 0) for item in (before, after))
        if now < 0:
            raise broken("a counter counts no less than nothing", counter=pk, of=sk, n=now)
        of_worker = pk.count(":") > 1 or pk.startswith(keys.counter(delivery_semaphore("")))
        if sk == keys.SEMAPHORE and (self.changes or of_worker):
            # Jobs that ran before the limit are given places beyond it, and a late worker goes on
            # with what it runs. `_heeded` looks at claims.
            return
        # What was there before the bound is counted beyond it, too.
        more = now - after.get("loose", 0) > was - (before or {}).get("loose", 0)
        most = after.get("bound" if sk == keys.DEPTH else "limit")
        if more and most is not None and now > most:
            raise broken("a bound is never passed", counter=pk, of=sk, n=now, bound=most)

    def _covered(self, counter: str) -> None:
        """A counter counts no less than there are."""
        for sk, there in (
            (keys.DEPTH, self.tracked[counter]),
            (keys.SEMAPHORE, self.permits[counter]),
        ):
            # Where jobs flow, a semaphore has several small shards (tests.simulation.pushed).
            shards = (sk, *(f"{sk}_{shard}" for shard in range(1, 4)))
            found = (self._memory.items.get((keys.semaphore(counter), one)) for one in shards)
            count = sum((_unpacked(one) or {}).get("n", 0) for one in found)
            if there > count:
                raise broken(
                    "a counter counts no less than there are",
                    counter=counter,
                    of=sk,
                    n=count,
                    there=there,
                )


def permits_of(item: Mapping[str, Any]) -> Mapping[str, int]:
    """The shards of the permits that a job's record notes, by limit."""
    return RunPermits.of(item.get("permits", "")).shards


def _permits(item: Mapping[str, Any]) -> Iterable[str]:
    """The semaphores of the permits that a job's record notes, as it notes them."""
    for limit in permits_of(item):
        if limit == QUEUE_PERMIT:
            yield item["queue"]
        elif limit == POOL_PERMIT:
            yield pool_semaphore(item["pool"])
        elif limit == WORKER_PERMIT:
            yield worker_semaphore(item["pool"], item["worker"])
        elif limit == DELIVERY_PERMIT:
            yield delivery_semaphore(delivery_of(item["worker"]) or "")
        elif limit == TENANT_PERMIT:
            yield f"%{get_tenant(item['queue'])}"
        elif limit == KEY_PERMIT:
            key = RateLimit.of(item["limit"]).key_in(item["queue"])
            yield keys.limiter(limiter_name(key))


def found_by(record: Item) -> bool:
    """Whether a sweep finds the job: by a line of its queue, where its state belongs."""
    line = {"available": "R", "pending": "P"}.get(record["state"], "D")
    return record.get("wpk") == f"{line}|{record['queue']}|{record.get('lane', 0)}" and isinstance(
        record.get("wsk"), str
    )


def _unpacked(typed: Typed | None) -> Item | None:
    return None if typed is None else dict(values.unpack(typed))
