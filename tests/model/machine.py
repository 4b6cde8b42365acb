"""What all rules share: a step, a request and its answer, and what always holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant

from ojs.domain.fair_queue.tags import TICKS_PER_MS, tagged, ticks_of
from ojs.domain.job import replay
from ojs.domain.job.permits import RunPermits
from ojs.services.permits.kinds import semaphore_of
from ojs.store.bounds import depth_counter
from ojs.store.jobs import items
from ojs.store.table import keys, values
from tests.model.backend import Answer, Backend, Storage, There
from tests.model.model import DONE, Job, Model, Refused, Shown

SECOND, HOUR = 1_000, 3_600_000
QUEUES = ("a", "b", "c")
# Where copies of dead letters go.
COPIES = "d"
# What the rule is called that brings dead letters back.
RULE = "r"
WORKERS = ("v", "w")
# Each of these belongs to a pool, whether that is configured or not.
MEMBERS = {"p": "m", "o": "n"}
POOL_OF = {member: pool for pool, member in MEMBERS.items()}

queues = st.sampled_from(QUEUES)
workers = st.sampled_from((*WORKERS, *POOL_OF))
which = st.integers(0, 60)


class Base(RuleBasedStateMachine):
    """A backend, and the model of it."""

    storage: ClassVar[Callable[[], Storage]]
    streamed: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.backend = Backend(type(self).storage(), streamed=self.streamed)
        self.clock = self.backend.clock
        self.model = Model(now_ms=self.clock.now_ms())
        # Jobs in the order in which they came; what is done is asked for again, too.
        self.ids: list[str] = []
        # Whether the step that was begun last was found to be right.
        self.right = True
        # What was read of a job record, as long as it is the same.
        self.read: dict[str, tuple[values.Item, Shown]] = {}
        # Gone since the last look.
        self.lately: dict[str, Job] = {}
        self.call("PUT", f"/queues/{COPIES}/config", COPY_QUEUE)
        self.model.make(COPIES)

    # --- calls ------------------------------------------------------------------------------

    def begin(self, *doing: str) -> None:
        """One more step. A little time passes, as it does between any two requests."""
        self.clock.advance(10)
        self.model.begin(self.clock.now_ms(), doing)
        self.right = False

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """One request, to either container."""
        return self.backend.call(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )

    def ask(
        self,
        expected: Callable[[], object],
        method: str,
        path: str,
        body: Any = None,
        **headers: str,
    ) -> Answer | None:
        """What the API answers; None where it refuses as the model does."""
        try:
            expected()
            right: tuple[int, ...] = (0,)
        except Refused as refused:
            right = refused.statuses
        answer = self.call(method, path, body, **headers)
        status = 0 if answer.ok else answer.status
        assert status in right, f"answered {answer}, and right were {right}"
        return answer if answer.ok else None

    def job(self, at: int) -> str:
        """One of the jobs."""
        return self.ids[at % len(self.ids)]

    def now(self, job_id: str) -> Job:
        """It as the model has it."""
        return self.model.jobs[job_id]

    def come(self, jobs: list[Job]) -> None:
        """They are acknowledged."""
        for job in jobs:
            self.model.put(job)
            self.ids.append(job.id)

    # --- what always holds --------------------------------------------------------------------

    @invariant()
    def check(self) -> None:
        self.check_all(self.backend.storage.items())
        self.right = True

    def check_all(self, there: There) -> None:
        """Each acknowledged job is as the model says, each queue, and each counter."""
        records = {
            keys.job_id(pk): item
            for (pk, sk), item in there.items()
            if pk.startswith(keys.job("")) and sk == keys.RECORD
        }
        self.lately.clear()
        for job in list(self.model.jobs.values()):
            if job.id not in records:
                assert self.model.may_go(job), f"{job.id} is gone, and nobody asked for that"
                self.lately[job.id] = self.model.applied(job)
                self.model.gone(job)
        copies = []
        for job_id, item in records.items():
            if job_id in self.model.jobs:
                if job_id not in self.read or self.read[job_id][0] is not item:
                    self.read[job_id] = item, shown(item)
                self.model.see(job_id, self.read[job_id][1])
            else:
                copies.append(job_id)
            # Whatever is not final is in a line that somebody reads, or runs.
            found = "wpk" in item or item["state"] == "active"
            assert found == (live(item) or bool(item.get("dead")) or "gpk" in item)
        for job_id in copies:
            self.see_copy(job_id, records[job_id])
        self.model.turn()
        self.check_copies(records)
        self.check_queues(there)
        self.check_permits(there, records)
        self.check_bounds()

    def see_copy(self, job_id: str, item: values.Item) -> None:
        """A job that nobody pushed: it can only be a copy of a dead letter that has none yet."""
        record = items.job_of(item)
        assert record.copy_of is not None, f"nobody pushed {job_id}"
        # One that died and was pruned in one sweep has left its copy as well.
        origin = self.lately.pop(record.copy_of.job_id, None) or self.now(record.copy_of.job_id)
        assert origin.dead, f"{job_id} is a copy of {origin.id}, which is no dead letter"
        assert (origin.copy, origin.copies_to) == (None, record.queue), "one copy too many"
        origin = replace(origin, copy=job_id)
        if origin.id in self.model.jobs:
            self.model.jobs[origin.id] = origin
        copy = self.copy(job_id, record.queue, origin)
        assert copy.view == shown(item).view
        self.come([copy])

    def copy(self, job_id: str, queue: str, origin: Job) -> Job:
        """The copy of a dead letter, as it comes."""
        return Job(
            id=job_id, queue=queue, state="available", priority=origin.priority,
            place=(Fraction(self.model.now_ms), self.model.step, 0), max_attempts=2,
            tenant=origin.tenant, copy_of=origin.id, came=self.model.step,
        )  # fmt: skip

    def come_copies(self, job_ids: list[str]) -> None:
        """Of jobs that are handed out some may be copies that the same fetch made: it found that
        the last attempt of a job is over.
        """
        for job_id in (each for each in job_ids if each not in self.model.jobs):
            item = self.backend.storage.items()[keys.job(job_id), keys.RECORD]
            record = items.job_of(item)
            assert record.copy_of is not None, f"nobody pushed {job_id}"
            origin = self.now(record.copy_of.job_id)
            assert self.model.applied(origin).dead, f"{origin.id} is no dead letter"
            assert (origin.copy, origin.copies_to) == (None, record.queue), "one copy too many"
            self.model.jobs[origin.id] = replace(origin, copy=job_id)
            self.come([self.copy(job_id, record.queue, origin)])

    def check_copies(self, records: dict[str, values.Item]) -> None:
        """Each dead letter has the copy that it names; not before the stream is read, perhaps."""
        for job in self.model.jobs.values():
            if not job.dead or job.copies_to is None:
                continue
            told = items.job_of(records[job.id])
            assert job.copy in (None, told.copy_id)
            late = self.streamed and "stream" not in self.model.doing
            assert late or job.copy is not None, f"{job.id} has no copy"
        for job in self.model.jobs.values():
            # One that was done may have been asked for itself.
            if job.id in self.model.revived and job.came != self.model.step:
                assert job.state not in ("available", "pending"), "both would be done"

    def check_queues(self, there: There) -> None:
        found = {pk[2:]: i for (pk, sk), i in there.items() if pk[:2] == "Q|" and sk == keys.RECORD}
        ending = "end" in self.model.doing
        for name, queue in list(self.model.queues.items()):
            if name not in found:
                assert queue.ending, f"the queue {name} is gone, and nobody asked for that"
                assert not self.model.of(name), f"the queue {name} went before its jobs"
                self.model.graves[name] = self.model.queues.pop(name)
                self.model.unseen.pop(name, None)
                continue
            state = "draining" if queue.ending else "paused" if queue.paused else "active"
            assert found[name]["state"] == state
            if ending and queue.ending in ("discard", "move", "drain"):
                bound = None
                if queue.target in self.model.queues:
                    bound = self.model.queues[queue.target].bound
                left = [job for job in self.model.of(name) if job.state != "active"]
                late = any(job.stalled for job in left)
                assert not left or queue.ending == "drain" or bound or late, "left in its queue"
        for name in found.keys() - self.model.queues.keys():
            targets = {queue.target for queue in self.model.queues.values()}
            assert ending, f"a queue {name}"
            assert name in targets or self.model.of(name), f"a queue {name}"
            self.model.make(name)

    def check_permits(self, there: There, records: dict[str, values.Item]) -> None:
        """Nobody died: each counter counts exactly what is there."""
        held = Counter(str(i["queue"]) for i in records.values() if live(i) and "held" in i)
        running = [item for item in records.values() if item["state"] == "active"]
        taken: Counter[str] = Counter()
        for item in running:
            job = items.job_of(item)
            limits = (job.permits or RunPermits("")).shards
            taken.update(str(semaphore_of(job, limit)) for limit in limits)
        for (pk, sk), item in there.items():
            if pk.startswith(keys.limiter("")) and sk.startswith(keys.SEMAPHORE):
                # Of any of its shards.
                taken[pk] -= int(item["n"])
            if not pk.startswith(keys.counter("")):
                continue
            name, level = pk.removeprefix(keys.counter("")), depth_counter.value_from(item)
            if sk == keys.DEPTH:
                assert level.tracked == held[name], f"the counter of {name} says {level}"
            elif sk == keys.SEMAPHORE:
                assert item.get("n", 0) == taken.pop(name, 0), f"places of {name}: {item}"
        assert not any(taken.values()), f"jobs run without a place, or the other way: {taken}"

    def check_bounds(self) -> None:
        """No queue has more jobs than it may."""
        for name, queue in self.model.queues.items():
            if queue.bound is not None:
                depth = len(self.model.of(name))
                assert depth <= queue.most, f"{depth} jobs in {name}, and no room for so many"
                queue.most = max(queue.bound, depth)

    def teardown(self) -> None:
        try:
            if self.right and self.model.step:
                self.drain()
        finally:
            self.backend.close()

    def drain(self) -> None:
        """All that can be done is done."""


COPY_QUEUE = {
    "default_retry": {"max_attempts": 2, "initial_interval": "PT1S", "jitter": False},
    "visibility_timeout": 20,
    "default_timeout": 60,
}


def shown(item: values.Item) -> Shown:
    """A job as the table has it."""
    job = items.job_of(item)
    lease, order = job.lease, job.order
    return Shown(
        view=(
            job.state.value,
            job.queue,
            job.attempt,
            job.dead_letter,
            job.worker_id if lease else None,
            lease.until_ms if lease else None,
            job.retry_at_ms if job.state.value == "retryable" else None,
        ),
        place=Fraction(ticks_of(order), TICKS_PER_MS) if order and tagged(order) else None,
        lane=job.lane,
        died_ms=job.discarded_ms or 0,
        start_ms=job.scheduled_ms or 0,
        replays=replay.count(job.replayed, RULE),
    )


def view_of(told: Any) -> tuple[object, ...]:
    """What a client sees of a job in an answer."""
    running = told["state"] == "active"
    return (
        told["state"],
        told["queue"],
        told["attempt"],
        told.get("dead_letter", False),
        told["worker_id"] if running else None,
        milliseconds(told["lease_expires_at"]) if running else None,
        milliseconds(told["next_retry_at"]) if told["state"] == "retryable" else None,
    )


def milliseconds(text: str) -> int:
    """A time of an answer."""
    return round(datetime.fromisoformat(text).timestamp() * 1_000)


def instant(ms: int) -> str:
    """A time for a request."""
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds")


def live(record: values.Item) -> bool:
    """Whether a job is not final."""
    return record["state"] not in DONE


def refuse(*statuses: int) -> None:
    """Say that a request is refused."""
    raise Refused(*statuses)


def duration(ms: int) -> str:
    """As ISO 8601."""
    return f"PT{ms // 1_000}S"
