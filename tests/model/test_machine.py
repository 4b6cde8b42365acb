"""The whole API against a model, in any order of calls, with the clock in hand.

`MACHINE_EXAMPLES=2000 make test ARGS=tests/model` looks further, each time elsewhere. The steps
that lead to a failure are printed; they are to be kept as a test below. With `SHRINK=1` they are
made fewer first, which takes minutes.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from functions.sweep import metrics
from functions.sweep.handler import handler as minute
from ojs import runtime
from ojs.domain import envelope
from ojs.domain.errors import Conflict, Duplicate, NotFound, OjsError, QueueFull
from ojs.services import enqueue
from ojs.store import gates, items, keys, values
from tests.model.model import DONE, FOR_EVER, Job, Model, Pool, Refused
from tests.store.conftest import make_world
from tests.store.streams import Projected, Stream, recount, recount_behind, scattered

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine

T = TypeVar("T")
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "40"))
STEPS = 40
PHASES = [Phase.explicit, Phase.generate, *([Phase.shrink] if os.environ.get("SHRINK") else [])]
EVENT = json.loads(
    (Path(__file__).parents[2] / "events" / "sweep" / "schedule.json").read_text("utf-8")
)
SECOND, HOUR = 1_000, 3_600_000
QUEUES = ("a", "b", "c")
WORKERS = ("v", "w")
# This one belongs to the pool, whether that is configured or not.
POOL, MEMBER = "p", "m"
STAGED = 4  # a batch of more jobs than this is staged

queues = st.sampled_from(QUEUES)
workers = st.sampled_from((*WORKERS, MEMBER))
which = st.integers(0, 60)
options = st.fixed_dictionaries(
    {
        "priority": st.sampled_from((0, 0, 0, 5, -3)),
        "attempts": st.sampled_from((3, 2, 1)),
        "keeps": st.booleans(),
        "when": st.sampled_from(("now", "now", "now", "now", "later", "pending", "deadline")),
    }
)

operations = st.one_of(
    st.tuples(st.just("pause"), queues, st.sampled_from((False, False, True))),
    st.tuples(st.just("bind"), queues, st.sampled_from((None, 2, 4, 6))),
    st.tuples(st.just("limit"), queues, st.sampled_from((None, 1, 2))),
    st.tuples(
        st.just("make_pool"),
        st.lists(queues, min_size=1, max_size=3, unique=True),
        st.sampled_from(("strict", "round-robin", "least-loaded")),
        st.sampled_from((None, None, 1, 3)),
    ),
    st.tuples(st.just("delete_pool")),
    st.tuples(
        st.just("delete_queue"),
        queues,
        st.sampled_from(("reject", "discard", "move", "drain")),
        queues,
    ),
)


class Machine(RuleBasedStateMachine):
    """Does to a backend what clients, operators, workers and time do."""

    client: DynamoDBClient
    streamed = False

    def __init__(self) -> None:
        super().__init__()
        self.world = make_world(self.client, stream=self.streamed)
        # Small batches are staged like large ones; what is measured is written to nobody.
        self.patches: list[Any] = [
            mock.patch.object(enqueue, "MAX_TRANSACTION", STAGED),
            mock.patch.object(metrics, "_put"),
        ]
        for patch in self.patches:
            patch.start()
        self.run, self.clock = self.world.run, self.world.clock
        runtime.use(self.run)
        self.model = Model(now_ms=self.clock.now_ms())
        # Jobs in the order in which they came; what is done is asked for again, too.
        self.ids: list[str] = []
        # Whether what queues that end do with their jobs may have happened in this step.
        self.ending = False
        # Whether the step that was begun last was found to be right.
        self.right = True

    # --- calls ------------------------------------------------------------------------------

    def begin(self) -> None:
        """One more step. A little time passes, as it does between any two requests."""
        self.clock.advance(10)
        self.model.now_ms = self.clock.now_ms()
        self.model.step += 1
        self.ending = self.right = False

    def ask(self, act: Callable[[], T], expected: Callable[[], object]) -> T | None:
        """What the API answers; None where it refuses as the model does."""
        try:
            expected()
            right: tuple[int, ...] = (0,)
        except Refused as refused:
            right = refused.statuses
        try:
            answer, status = act(), 0
        except OjsError as error:
            answer, status = None, status_of(error)
        assert status in right, f"answered with {status}, and right were {right}"
        return answer

    def job(self, at: int) -> str:
        """One of the jobs."""
        return self.ids[at % len(self.ids)]

    def now(self, job_id: str) -> Job:
        """It as the model has it."""
        return self.model.jobs[job_id]

    def wanted(self, queue: str, chosen: dict[str, Any], sub: int = 0) -> tuple[Job, Any]:
        """A job to be pushed: as the model has it, and the request."""
        now_ms, when = self.model.now_ms, chosen["when"]
        given: dict[str, Any] = {
            "queue": queue,
            "priority": chosen["priority"],
            "visibility_timeout_ms": 20 * SECOND,
            "timeout_ms": 60 * SECOND,
            "retry": {
                "max_attempts": chosen["attempts"],
                "initial_interval": "PT1S",
                "jitter": False,
                "on_exhaustion": "dead_letter" if chosen["keeps"] else "discard",
            },
        }
        state, start_ms, expires_ms = "available", 0, FOR_EVER
        if when == "later":
            state, start_ms = "scheduled", now_ms + 5 * SECOND
            given["delay_until"] = "+PT5S"
        elif when == "pending":
            state = "pending"
            given["pending"] = True
        elif when == "deadline":
            expires_ms = now_ms + 8 * SECOND
            given["expires_at"] = "+PT8S"
        job = Job(
            id=self.run.ids.uuid7(),
            queue=queue,
            state=state,
            priority=chosen["priority"],
            place=(self.model.step, sub),
            max_attempts=chosen["attempts"],
            keeps=chosen["keeps"],
            start_ms=start_ms,
            expires_ms=expires_ms,
            came=self.model.step,
            key=chosen.get("key"),
        )
        raw = {"type": "t", "args": [chosen.get("key")], "id": job.id, "options": given}
        if job.key is not None:
            given["unique"] = {"keys": ["type", "args"]}
        return job, envelope.parse(raw)

    def come(self, jobs: list[Job]) -> None:
        """They are acknowledged."""
        for job in jobs:
            self.model.put(job)
            self.ids.append(job.id)

    # --- producers --------------------------------------------------------------------------

    @initialize(
        chosen=st.lists(st.tuples(queues, options), min_size=3, max_size=8),
        pool=st.sampled_from(
            (("round-robin", None), ("strict", None), ("strict", 2), ("least-loaded", 3), None)
        ),
    )
    def start(
        self, chosen: list[tuple[str, dict[str, Any]]], pool: tuple[str, int | None] | None
    ) -> None:
        """Something is there to begin with."""
        self.push_batch(chosen)
        if pool is not None:
            self.operate(("make_pool", ["a", "b"], *pool))

    @rule(queue=queues, chosen=options)
    def push(self, queue: str, chosen: dict[str, Any]) -> None:
        self.begin()
        job, request = self.wanted(queue, chosen)
        answer = self.ask(
            lambda: self.run.enqueue.push(request).job, lambda: self.model.push([job])
        )
        if answer is not None:
            assert (answer.id, answer.state) == (job.id, job.state)
            self.come([job])

    @rule(queue=queues, chosen=options)
    def push_unique(self, queue: str, chosen: dict[str, Any]) -> None:
        self.begin()
        job, request = self.wanted(queue, chosen | {"key": "k"})

        def expected() -> None:
            holder = self.model.holder("k")
            if holder is None:
                self.model.push([job])
                return
            # Who is told first, of the key or of the queue, is not promised.
            try:
                self.model.push([job])
            except Refused as refused:
                raise Refused(409, *(s for s in refused.statuses if s)) from None
            raise Refused(409)

        if self.ask(lambda: self.run.enqueue.push(request), expected) is not None:
            self.come([job])

    @rule(chosen=st.lists(st.tuples(queues, options), min_size=2, max_size=6))
    def push_batch(self, chosen: list[tuple[str, dict[str, Any]]]) -> None:
        self.begin()
        made = [self.wanted(queue, told, sub) for sub, (queue, told) in enumerate(chosen)]
        jobs = [job for job, _ in made]
        answer = self.ask(
            lambda: self.run.enqueue.push_batch([request for _, request in made]),
            lambda: self.model.push(jobs),
        )
        if answer is not None:
            assert [one.job.id for one in answer] == [job.id for job in jobs]
            self.come(jobs)

    @precondition(lambda self: self.ids)
    @rule(at=which)
    def push_again(self, at: int) -> None:
        """An answer was lost: the same id is refused, and nothing changes."""
        self.begin()
        job_id = self.job(at)
        if job_id not in self.model.jobs:
            return
        request = envelope.parse({"type": "t", "id": job_id, "args": [], "options": {"queue": "d"}})
        self.model.make("d")
        self.ask(lambda: self.run.enqueue.push(request), lambda: refuse(409))

    # --- workers ----------------------------------------------------------------------------

    @rule(
        asked=st.lists(queues, min_size=1, max_size=3, unique=True),
        count=st.sampled_from((1, 1, 2, 5)),
        worker=workers,
    )
    def fetch(self, asked: list[str], count: int, worker: str) -> None:
        self.begin()
        pool = self.model.pools.get(POOL) if worker == MEMBER else None
        names = asked if pool is None else [q for q in pool.queues if q in asked]
        got = self.run.fetch.fetch(asked, count, worker, pool=POOL if worker == MEMBER else None)
        self.handed_out(got, names, count, worker, pool)

    @rule(count=st.sampled_from((1, 2, 3)), worker=st.sampled_from(WORKERS))
    def fetch_any(self, count: int, worker: str) -> None:
        self.begin()
        got = self.run.fetch.fetch(QUEUES, count, worker)
        self.handed_out(got, list(QUEUES), count, worker, None)

    @precondition(lambda self: POOL in self.model.pools)
    @rule(count=st.sampled_from((1, 3)))
    def fetch_by_pool(self, count: int) -> None:
        self.begin()
        pool = self.model.pools[POOL]
        got = self.run.fetch.fetch(None, count, MEMBER, pool=POOL)
        self.handed_out(got, list(pool.queues), count, MEMBER, pool)

    def handed_out(
        self, got: list[Any], names: list[str], count: int, worker: str, pool: Pool | None
    ) -> None:
        self.model.fetched([job.id for job in got], names, count, worker, pool)
        for job in got:
            assert view_of(job) == self.now(job.id).view
            assert job.content is not None

    @precondition(lambda self: self.ids)
    @rule(at=which, worker=workers, twice=st.booleans(), owner=st.sampled_from((True, True, False)))
    def ack(self, at: int, worker: str, twice: bool, owner: bool) -> None:
        self.begin()
        job_id = self.running(at)
        worker = self.owner(job_id, worker) if owner else worker

        def expected() -> None:
            self.speak(job_id, worker, completes=True)

        answer = self.ask(lambda: self.run.finish.ack(job_id, worker_id=worker), expected)
        if answer is None:
            return
        assert answer.state == "completed"
        self.model.put(self.now(job_id).ended("completed"))
        if twice:
            again = self.run.finish.ack(job_id, worker_id=worker)
            assert (again.state, again.attempt) == ("completed", answer.attempt)

    @precondition(lambda self: self.ids)
    @rule(
        at=which,
        worker=workers,
        owner=st.sampled_from((True, True, False)),
        how=st.sampled_from(("boom", "boom", "final", "DISCARD", "DEAD_LETTER", "requeue")),
    )
    def nack(self, at: int, worker: str, owner: bool, how: str) -> None:
        self.begin()
        job_id = self.running(at)
        worker = self.owner(job_id, worker) if owner else worker
        code = how if how.isupper() else "boom"
        error = {"code": code, "message": "no", "retryable": how != "final"}
        answer = self.ask(
            lambda: self.run.finish.nack(
                job_id, error=error, worker_id=worker, requeue=how == "requeue"
            ),
            lambda: self.speak(job_id, worker),
        )
        if answer is None:
            return
        job = self.now(job_id)
        if how == "requeue":
            back = replace(job.available(), attempt=job.attempt - 1)
            self.model.put(replace(back, place=(self.model.step, 0)))
        else:
            retryable = how != "final"
            self.model.put(job.failed(self.model.now_ms, code=code, retryable=retryable))
        assert view_of(answer) == self.now(job_id).view

    @precondition(lambda self: self.model.given)
    @rule(
        at=which,
        how=st.sampled_from(("ack", "boom", "boom", "requeue", "final")),
        again=st.booleans(),
    )
    def finish(self, at: int, how: str, again: bool) -> None:
        """A worker ends what it was given, and perhaps asks for more at once."""
        worker = self.owner(self.running(at), WORKERS[0])
        if how == "ack":
            self.ack(at, worker, twice=again, owner=True)
        else:
            self.nack(at, worker, owner=True, how=how)
        self.check()
        if again and worker != MEMBER:
            self.fetch_any(1, worker)

    @precondition(lambda self: self.model.given)
    @rule(at=which, late=st.booleans(), how=st.sampled_from(("ack", "beat", "boom")))
    def come_late(self, at: int, late: bool, how: str) -> None:
        """A worker is not heard of until its lease is over, and then speaks up after all."""
        job_id = self.running(at)
        worker = self.owner(job_id, WORKERS[0])
        self.wait(21_000)
        self.check()
        if late:
            self.sweep()
            self.check()
        at = self.model.given.index(job_id) if job_id in self.model.given else at
        if how == "ack":
            self.ack(at, worker, twice=True, owner=False)
        elif how == "beat":
            self.beat([at], worker)
        else:
            self.nack(at, worker, owner=False, how=how)

    def running(self, at: int) -> str:
        """A job that somebody was given, if there is one; any other if not."""
        running = self.model.given
        return running[at % len(running)] if running else self.job(at)

    def owner(self, job_id: str, worker: str) -> str:
        job = self.model.jobs.get(job_id)
        return worker if job is None else job.worker or worker

    def speak(self, job_id: str, worker: str, *, completes: bool = False) -> None:
        """Whether a worker may end an attempt; one that was thought lost has it back first."""
        job = self.model.jobs.get(job_id)
        if job is None:
            raise Refused(404)
        if job.state == "active" and job.worker == worker:
            return
        if self.may_resume(job, worker):
            self.model.put(job.resumed(self.model.now_ms))
            return
        if completes and job.state == "completed" and job.worker == worker:
            return
        raise Refused(409)

    def may_resume(self, job: Job, worker: str) -> bool:
        """Whether nobody was given it since, and there is a place for it."""
        if job.state != "available" or not job.stalled or job.worker != worker:
            return False
        queue, pool = self.model.queues.get(job.queue), self.model.pools.get(job.pool or "")
        room = queue is None or queue.limit is None
        room = room or len(self.model.running(job.queue)) < (queue.limit or 0)  # type: ignore[union-attr]
        if pool is not None and pool.limit is not None:
            room = room and len(self.model.seats(pool.name)) < pool.limit
        return room

    @precondition(lambda self: self.ids)
    @rule(at=st.lists(which, min_size=1, max_size=3), worker=workers)
    def beat(self, at: list[int], worker: str) -> None:
        self.begin()
        asked = list(dict.fromkeys(self.running(one) for one in at))
        told = self.run.workers.beat(
            worker, active_jobs=asked, pool=POOL if worker == MEMBER else None
        )
        extended, cancelled = [], []
        for job_id in asked:
            job = self.model.jobs.get(job_id)
            if job is None or job.worker != worker:
                continue
            if job.state == "active" or self.may_resume(job, worker):
                self.model.put(job.resumed(self.model.now_ms))
                extended.append(job_id)
            elif job.state == "cancelled" and job.attempt:
                cancelled.append(job_id)
        assert (told.jobs_extended, told.cancelled_jobs) == (extended, cancelled)

    # --- by hand ----------------------------------------------------------------------------

    @precondition(lambda self: self.ids)
    @rule(at=which)
    def look(self, at: int) -> None:
        self.begin()
        job_id = self.job(at)
        found = self.ask(lambda: self.run.jobs.get(job_id), lambda: self.exists(job_id))
        if found is not None:
            assert view_of(found) == self.now(job_id).settled(self.model.now_ms).view
            errors = found.errors or ()
            assert len({(e.attempt, e.code, e.occurred_ms) for e in errors}) == len(errors)

    def exists(self, job_id: str) -> Job:
        if job_id not in self.model.jobs:
            raise Refused(404)
        return self.now(job_id).settled(self.model.now_ms)

    @precondition(lambda self: self.ids)
    @rule(at=which)
    def cancel(self, at: int) -> None:
        self.begin()
        job_id = self.job(at)

        def expected() -> None:
            if self.exists(job_id).done:
                raise Refused(409)

        if self.ask(lambda: self.run.jobs.cancel(job_id), expected) is not None:
            self.model.put(self.exists(job_id).ended("cancelled"))

    @precondition(lambda self: self.ids)
    @rule(at=which)
    def activate(self, at: int) -> None:
        self.begin()
        pending = [j.id for j in self.model.jobs.values() if j.state == "pending"]
        job_id = pending[at % len(pending)] if pending else self.job(at)

        def expected() -> None:
            if self.exists(job_id).state != "pending":
                raise Refused(409)

        if self.ask(lambda: self.run.jobs.activate(job_id), expected) is not None:
            self.model.put(replace(self.now(job_id).available(), place=(self.model.step, 0)))

    def a_dead_one(self, at: int) -> str:
        dead = [j.id for j in self.model.jobs.values() if j.dead]
        return dead[at % len(dead)] if dead else self.job(at)

    @precondition(lambda self: self.ids)
    @rule(at=which, twice=st.booleans())
    def retry(self, at: int, twice: bool) -> None:
        self.begin()
        job_id = self.a_dead_one(at)

        def expected() -> None:
            job = self.model.jobs.get(job_id)
            if job is None or not job.dead:
                raise Refused(404, 409)
            holder = self.model.holder(job.key)
            try:
                self.model.push([job])
            except Refused as refused:
                raise Refused(*refused.statuses, *([409] if holder else [])) from None
            if holder is not None:
                raise Refused(409)

        answer = self.ask(lambda: self.run.redrive.retry(job_id), expected)
        if answer is None:
            return
        job = self.now(job_id)
        back = replace(
            job.available(), attempt=0, dead=False, worker=None, pool=None,
            lives=job.lives + 1, place=(self.model.step, 0), came=self.model.step,
        )  # fmt: skip
        self.model.put(back)
        if twice:
            self.ask(lambda: self.run.redrive.retry(job_id), lambda: refuse(404, 409))

    @precondition(lambda self: any(j.dead for j in self.model.jobs.values()))
    @rule(at=which)
    def delete(self, at: int) -> None:
        self.begin()
        job_id = self.a_dead_one(at)
        self.run.dead_letter.delete(job_id)
        del self.model.jobs[job_id]
        self.ask(lambda: self.run.dead_letter.delete(job_id), lambda: refuse(404))

    # --- operators --------------------------------------------------------------------------

    @rule(what=operations)
    def operate(self, what: tuple[Any, ...]) -> None:
        self.begin()
        name, *arguments = what
        getattr(self, name)(*arguments)

    def pause(self, queue: str, pauses: bool) -> None:

        def expected() -> None:
            if self.model.make(queue).ending:
                raise Refused(409)

        act = self.run.queues.pause if pauses else self.run.queues.resume
        if self.ask(lambda: act(queue), expected) is not None:
            self.model.queues[queue].paused = pauses

    def bind(self, queue: str, bound: int | None) -> None:
        there = self.model.make(queue)
        self.run.queues.configure(queue, {"max_size": bound})
        if bound is not None and there.bound is None:
            there.bounded = self.model.step
            self.model.unseen.pop(queue, None)
        there.bound = bound
        there.most = max(bound or 0, len(self.model.of(queue)))

    def limit(self, queue: str, limit: int | None) -> None:
        self.run.queues.configure(queue, {"concurrency": limit})
        self.model.make(queue).limit = limit

    def make_pool(self, members: list[str], strategy: str, limit: int | None) -> None:

        def expected() -> None:
            there = [self.model.queues[name] for name in members if name in self.model.queues]
            if any(queue.ending for queue in there):
                raise Refused(409)

        body = {"queues": members, "strategy": strategy, "concurrency": limit}
        if self.ask(lambda: self.run.pools.put(POOL, body), expected) is not None:
            for name in members:
                self.model.make(name)
            self.model.pools[POOL] = Pool(POOL, tuple(members), strategy, limit)
            self.model.last.pop(POOL, None)
        else:
            for name in members:
                self.model.make(name)

    def delete_pool(self) -> None:
        if POOL not in self.model.pools:
            self.ask(lambda: self.run.pools.delete(POOL), lambda: refuse(404))
            return
        self.run.pools.delete(POOL)
        del self.model.pools[POOL]
        self.model.last.pop(POOL, None)
        self.model.forsaken |= {job.id for job in self.model.seats(POOL)}

    def delete_queue(self, queue: str, strategy: str, to: str) -> None:
        if strategy == "move" and to == queue:
            return
        there = self.model.queues.get(queue)

        def expected() -> None:
            if there is None:
                raise Refused(404)
            aim = self.model.queues.get(to)
            if strategy == "move":
                if aim is not None and aim.ending:
                    raise Refused(409)
                self.model.make(to)
            if there.ending or self.model.pools_of(queue):
                raise Refused(409)
            if strategy == "reject" and self.model.of(queue):
                raise Refused(409)

        answer = self.ask(
            lambda: self.run.ending.delete(queue, strategy, to if strategy == "move" else None),
            expected,
        )
        if answer is None or there is None:
            return
        there.ending, there.paused = strategy, False
        there.target = to if strategy == "move" else None
        self.ending = True

    # --- time -------------------------------------------------------------------------------

    @rule(ms=st.sampled_from((500, 1_100, 5_000, 9_000, 21_000, 61_000)))
    def wait(self, ms: int) -> None:
        self.begin()
        self.clock.advance(ms)
        self.model.now_ms = self.clock.now_ms()

    @rule()
    def sweep(self) -> None:
        self.begin()
        over = {
            q.name for q in self.model.queues.values() if q.ending and not self.model.of(q.name)
        }
        minute(EVENT, None)
        self.ending = True
        self.model.unseen.clear()
        self.check()
        late = [
            job.id
            for job in self.model.jobs.values()
            if job.by_time(self.model.now_ms) and not self.model.queues[job.queue].ending
        ]
        assert late == [], "the sweep passed over them"
        assert not over & self.model.queues.keys(), "a queue without jobs did not end"

    # --- what always holds --------------------------------------------------------------------

    @invariant()
    def check(self) -> None:
        self.check_all({(str(i["pk"]), str(i["sk"])): i for i in map(values.unpack, self.scan())})
        self.right = True

    def scan(self) -> list[Any]:
        found: list[Any] = []
        for page in self.world.client.get_paginator("scan").paginate(TableName=self.world.table):
            found += page["Items"]
        return found

    def check_all(self, there: dict[tuple[str, str], values.Item]) -> None:
        """Each acknowledged job is as the model says, each queue, and each gate."""
        heads = {
            keys.job_id(pk): item
            for (pk, sk), item in there.items()
            if pk.startswith(keys.job("")) and sk == keys.HEAD
        }
        assert heads.keys() == self.model.jobs.keys()
        for job_id, item in heads.items():
            head = items.job_from_head(item)
            self.model.see(job_id, view_of(head), ending=self.ending)
            # Whatever is not final is in a line that somebody reads.
            assert ("wpk" in item) == (not head.state.terminal or head.dead_letter)
        self.check_queues(there)
        self.check_gates(there, heads)

    def check_queues(self, there: dict[tuple[str, str], values.Item]) -> None:
        found = {pk[2:]: i for (pk, sk), i in there.items() if pk[:2] == "Q|" and sk == keys.HEAD}
        for name, queue in list(self.model.queues.items()):
            if name not in found:
                assert queue.ending, f"the queue {name} is gone, and nobody asked for that"
                assert not self.model.of(name), f"the queue {name} went before its jobs"
                del self.model.queues[name]
                self.model.unseen.pop(name, None)
                continue
            state = "draining" if queue.ending else "paused" if queue.paused else "active"
            assert found[name]["state"] == state
            if self.ending and queue.ending in ("discard", "move", "drain"):
                bound = None
                if queue.target in self.model.queues:
                    bound = self.model.queues[queue.target].bound
                left = [job for job in self.model.of(name) if job.state != "active"]
                late = any(job.stalled for job in left)
                assert not left or queue.ending == "drain" or bound or late, "left in its queue"
        for name in found.keys() - self.model.queues.keys():
            targets = {queue.target for queue in self.model.queues.values()}
            assert self.ending, f"a queue {name}"
            assert name in targets or self.model.of(name), f"a queue {name}"
            self.model.make(name)

    def check_gates(
        self, there: dict[tuple[str, str], values.Item], heads: dict[str, values.Item]
    ) -> None:
        """Nobody died: each gate counts exactly what is there."""
        held = Counter(str(i["queue"]) for i in heads.values() if live(i) and "held" in i)
        running = [item for item in heads.values() if item["state"] == "active"]
        slots = Counter(str(i["queue"]) for i in running if "slot" in i)
        seats = Counter(str(i["pool"]) for i in running if "p" in str(i.get("seats", "")))
        by_worker = Counter(
            f":{i['pool']!s}:{i['worker']!s}" for i in running if "w" in str(i.get("seats", ""))
        )
        taken = slots + Counter({f":{name}": n for name, n in seats.items()}) + by_worker
        for (pk, sk), item in there.items():
            if not pk.startswith(keys.gate("")):
                continue
            name, level = pk.removeprefix(keys.gate("")), gates.level_from(item)
            if sk == keys.DEPTH:
                assert level.charged == held[name], f"the gate of {name} counts {level}"
            elif sk == keys.SLOTS:
                assert level.count == taken.pop(name, 0), f"places of {name}: {level}"
        assert not taken, f"jobs run without a place: {taken}"
        for name, queue in self.model.queues.items():
            if queue.bound is not None:
                depth = len(self.model.of(name))
                assert depth <= queue.most, f"{depth} jobs in {name}, and no room for so many"
                queue.most = max(queue.bound, depth)

    # --- the end ------------------------------------------------------------------------------

    def teardown(self) -> None:
        for patch in self.patches:
            patch.stop()
        try:
            if self.right and self.model.step:
                self.drain()
        finally:
            self.world.client.delete_table(TableName=self.world.table)

    def drain(self) -> None:
        """All that can be done is done, once each; then nothing is left over."""
        self.open_all()
        seen: Counter[str] = Counter()
        for _ in range(8):
            if self.model.quiet:
                break
            self.begin()
            self.clock.advance(HOUR)
            self.model.now_ms = self.clock.now_ms()
            self.sweep()
            while got := self.work_off():
                seen.update(got)
        assert all(times == 1 for times in seen.values())
        left = [job for job in self.model.jobs.values() if not job.done]
        assert left == [], f"nobody is ever given {left}"
        self.check_rest()
        if self.streamed:
            self.check_projection()

    def open_all(self) -> None:
        """Nothing keeps jobs from being handed out any more."""
        for queue in list(self.model.queues.values()):
            if not queue.ending:
                self.begin()
                self.run.queues.resume(queue.name)
                self.run.queues.configure(queue.name, {"max_size": None, "concurrency": None})
                queue.paused, queue.bound, queue.limit = False, None, None
        self.check()
        for job in list(self.model.jobs.values()):
            if job.settled(self.model.now_ms).state == "pending":
                self.begin()
                self.run.jobs.activate(job.id)
                back = replace(self.now(job.id).available(), place=(self.model.step, 0))
                self.model.put(back)
                self.check()

    def work_off(self) -> list[str]:
        """A worker does what there is; which jobs it was given."""
        self.begin()
        names = sorted(self.model.queues)
        got = self.run.fetch.fetch(names, 50, "z") if names else []
        self.handed_out(got, names, 50, "z", None)
        for job in got:
            assert self.run.finish.ack(job.id, worker_id="z").state == "completed"
            self.model.put(self.now(job.id).ended("completed"))
        self.check()
        return [job.id for job in got]

    def check_rest(self) -> None:
        """What is in the table when all is quiet belongs to something."""
        there = {(str(i["pk"]), str(i["sk"])): i for i in map(values.unpack, self.scan())}
        for (pk, sk), item in there.items():
            kind = pk.split("|")[0]
            if kind == "J":
                assert (pk, keys.HEAD) in there, f"{pk} {sk} is nobody's"
            elif kind == "G":
                level = gates.level_from(item)
                assert sk not in (keys.DEPTH, keys.SLOTS) or level.charged == 0, f"{pk} {sk}"
                assert sk != keys.SLOTS or level.count == 0, f"{pk} {sk}: {level}"
            else:
                assert kind != "B" or "ttl" in item, f"{pk} was never undone"
        assert {sk for pk, sk in there if pk == "QUEUES"} == set(self.model.queues)

    def check_projection(self) -> None:
        """However its stream arrives, the counters are what a recount is."""
        records = Stream(self.world.client, self.world.table).take()
        projected = Projected(self.world.client, self.world.table, self.clock)
        chance = random.Random(len(records))
        for batch in scattered(records, chance):
            assert projected.run(batch) == []
        assert projected.run(records) == []
        found = projected.everything()
        heads, behind = recount(found.values()), recount_behind(found.values())
        for name in QUEUES:
            now = projected.stats(name)
            levels = {key: n for key, n in now.items() if not key.startswith("t_")}
            assert levels == dict(heads[name])
            assert projected.behind(name) == dict(behind[name])
        assert projected.stats(keys.pool_stats(POOL)).get("active", 0) == 0
        told = [event["id"] for event in projected.events()]
        assert len(set(told)) == len(told)


def view_of(job: Any) -> tuple[object, ...]:
    """What a client sees of a job that the API shows."""
    lease = job.lease
    return (
        job.state.value,
        job.queue,
        job.attempt,
        job.dead_letter,
        job.worker_id if lease else None,
        lease.until_ms if lease else None,
        job.retry_at_ms if job.state.value == "retryable" else None,
    )


def live(head: values.Item) -> bool:
    return head["state"] not in DONE


def status_of(error: OjsError) -> int:
    if isinstance(error, NotFound):
        return 404
    if isinstance(error, Conflict | Duplicate):
        return 409
    if isinstance(error, QueueFull):
        return 429
    raise error


def refuse(*statuses: int) -> None:
    raise Refused(*statuses)


def look_at(client: DynamoDBClient, examples: int, *, streamed: bool = False) -> None:
    machine = type("OnThisEngine", (Machine,), {"client": client, "streamed": streamed})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            derandomize="MACHINE_EXAMPLES" not in os.environ,
            suppress_health_check=list(HealthCheck),
            # Shrinking a whole history takes minutes: it is asked for where it is wanted.
            phases=PHASES,
        ),
    )


@pytest.mark.slow
def test_the_api_does_what_the_model_says(dynoxide: Engine, dynamodb: DynamoDBClient) -> None:
    look_at(dynamodb, EXAMPLES)


@pytest.mark.slow
def test_counters_and_events_follow_whatever_was_done(streaming_dynamodb: DynamoDBClient) -> None:
    look_at(streaming_dynamodb, max(2, EXAMPLES // 10), streamed=True)


# --- what it found --------------------------------------------------------------------------------


@pytest.fixture
def machine(dynoxide: Engine, dynamodb: DynamoDBClient) -> Iterator[Machine]:
    """A machine to be led by hand."""
    with mock.patch.object(Machine, "client", dynamodb, create=True):
        made = Machine()
    yield made
    made.teardown()


NOW = {"priority": 0, "attempts": 3, "keeps": True, "when": "now"}


def test_a_queue_made_anew_was_ended_by_the_note_of_its_first_end(machine: Machine) -> None:
    """Its jobs were discarded, though they were to be moved."""
    steps: list[Callable[[], object]] = [
        lambda: machine.push("a", NOW),
        lambda: machine.operate(("delete_queue", "a", "discard", "a")),
        lambda: machine.push("a", NOW),
        lambda: machine.fetch_any(1, "w"),
        lambda: machine.operate(("delete_queue", "a", "move", "b")),
        lambda: machine.wait(21_000),
        machine.sweep,
    ]
    for step in steps:
        step()
        machine.check()
