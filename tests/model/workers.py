"""Rules of workers: fetch, ack, nack, beat, in time or late; and of who looks at jobs by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.model.fetches import fetched
from tests.model.machine import (
    COPIES,
    MEMBERS,
    POOL_OF,
    QUEUES,
    SECOND,
    WORKERS,
    Base,
    instant,
    queues,
    view_of,
    which,
    workers,
)
from tests.model.model import LIMITS, Job, Pool, Refused

HASTENED = ("scheduled", "retryable")
ALL = (*QUEUES, COPIES)
WAIT_MS = 10 * SECOND


class Workers(Base):
    """Do jobs."""

    def fetch_as(
        self, worker: str, asked: list[str] | None, count: int, names: list[str], pool: Pool | None
    ) -> list[Any]:
        """What a fetch hands out, which is as it may be."""
        body: dict[str, Any] = {"worker_id": worker, "count": count}
        if asked is not None:
            body["queues"] = asked
        if worker in POOL_OF:
            body["pool"] = POOL_OF[worker]
        got: list[Any] = self.call("POST", "/workers/fetch", body)["jobs"]
        self.come_copies([job["id"] for job in got])
        fetched(self.model, [job["id"] for job in got], names, count, worker, pool)
        for job in got:
            assert view_of(job) == self.now(job["id"]).view
            assert "args" in job
        return got

    @rule(
        asked=st.lists(queues, min_size=1, max_size=3, unique=True),
        count=st.sampled_from((1, 1, 2, 5)),
        worker=workers,
    )
    def fetch(self, asked: list[str], count: int, worker: str) -> None:
        self.begin("fetch")
        pool = self.model.pools.get(POOL_OF.get(worker, ""))
        names = asked if pool is None else [q for q in pool.queues if q in asked]
        self.fetch_as(worker, asked, count, names, pool)

    @rule(count=st.sampled_from((1, 2, 3)), worker=st.sampled_from(WORKERS))
    def fetch_any(self, count: int, worker: str) -> None:
        self.begin("fetch")
        self.fetch_as(worker, list(ALL), count, list(ALL), None)

    @precondition(lambda self: self.model.pools)
    @rule(at=which, count=st.sampled_from((1, 1, 3)), times=st.sampled_from((1, 3)))
    def fetch_by_pool(self, at: int, count: int, times: int) -> None:
        pools = list(self.model.pools.values())
        pool = pools[at % len(pools)]
        for _ in range(times):
            self.begin("fetch")
            self.fetch_as(MEMBERS[pool.name], None, count, list(pool.queues), pool)
            self.check()

    @precondition(lambda self: self.ids)
    @rule(at=which, worker=workers, twice=st.booleans(), owner=st.sampled_from((True, True, False)))
    def ack(self, at: int, worker: str, twice: bool, owner: bool) -> None:
        self.begin()
        job_id = self.running(at)
        worker = self.owner(job_id, worker) if owner else worker
        body = {"job_id": job_id, "worker_id": worker}
        answer = self.ask(
            lambda: self.speak(job_id, worker, completes=True), "POST", "/workers/ack", body
        )
        if answer is None:
            return
        assert answer["state"] == "completed"
        self.model.put(self.now(job_id).ended("completed"))
        if twice:
            again = self.call("POST", "/workers/ack", body)
            assert (again["state"], again["job"]) == ("completed", answer["job"])

    @precondition(lambda self: self.ids)
    @rule(
        at=st.lists(which, min_size=1, max_size=4),
        worker=workers,
        owner=st.sampled_from((True, True, False)),
        fetches=st.booleans(),
    )
    def ack_many(self, at: list[int], worker: str, owner: bool, fetches: bool) -> None:
        """In one request, or with a fetch: each is settled, and answered, for itself, and once."""
        self.begin()
        acks = [
            {"job_id": job_id, "worker_id": self.owner(job_id, worker) if owner else worker}
            for job_id in map(self.running, at)
        ]
        path, more = ("fetch", {"queues": ["nothing-here"]}) if fetches else ("ack", {})
        answer = self.call("POST", f"/workers/{path}", {"acks": acks, **more})
        assert answer.status == (200 if fetches else 207)
        seen = set()
        for ack, outcome in zip(acks, answer["acks"], strict=True):
            right: tuple[int, ...] = (400,)
            if ack["job_id"] not in seen:
                try:
                    self.speak(ack["job_id"], ack["worker_id"], completes=True)
                    right = (200,)
                except Refused as refused:
                    right = refused.statuses
            seen.add(ack["job_id"])
            assert outcome["status"] in right, f"answered {outcome}, and right were {right}"
            if outcome["status"] == 200:
                assert outcome["state"] == "completed"
                self.model.put(self.now(ack["job_id"]).ended("completed"))

    @precondition(lambda self: self.ids)
    @rule(
        at=which,
        worker=workers,
        owner=st.sampled_from((True, True, False)),
        how=st.sampled_from(("boom", "boom", "final", "DISCARD", "DEAD_LETTER", "requeue", "wait")),
    )
    def nack(self, at: int, worker: str, owner: bool, how: str) -> None:
        self.begin()
        job_id = self.running(at)
        worker = self.owner(job_id, worker) if owner else worker
        code = how if how.isupper() else "boom"
        error: dict[str, Any] = {"code": code, "message": "no", "retryable": how != "final"}
        if how == "wait":
            error["rate_limit_until"] = instant(self.model.now_ms + WAIT_MS)
        body: dict[str, Any] = {"job_id": job_id, "worker_id": worker, "error": error}
        if how == "requeue":
            body["requeue"] = True
        answer = self.ask(lambda: self.speak(job_id, worker), "POST", "/workers/nack", body)
        if answer is None:
            return
        job, now_ms = self.now(job_id), self.model.now_ms
        if how == "requeue":
            back = replace(job.available(), attempt=job.attempt - 1)
            self.model.put(self.model.entering([back])[0])
        else:
            after = job.failed(now_ms, code=code, retryable=how != "final")
            if after.dead:
                after = replace(after, died_ms=now_ms, died=self.model.step)
            self.model.put(after)
        if how == "wait" and job.limit is not None:
            self.model.waits[job.limit] = now_ms + WAIT_MS
        assert view_of(answer["job"]) == self.now(job_id).view

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
        if again and worker in WORKERS:
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
        room = True
        if queue is not None and queue.limit is not None:
            room = len(self.model.running(job.queue)) < queue.limit
        if pool is not None and pool.limit is not None:
            room = room and len(self.model.permit_holders(pool.name)) < pool.limit
        if job.limit is not None:
            most = 0 if job.limit in self.model.closed else LIMITS[job.limit].concurrency
            # It has started before: only how many run is asked.
            under = sum(
                j.state == "active" and j.limit == job.limit for j in self.model.jobs.values()
            )
            room = room and (most is None or under < most)
        return room

    @precondition(lambda self: self.ids)
    @rule(at=st.lists(which, min_size=1, max_size=3), worker=workers)
    def beat(self, at: list[int], worker: str) -> None:
        self.begin()
        asked = list(dict.fromkeys(self.running(one) for one in at))
        body: dict[str, Any] = {"worker_id": worker, "active_jobs": asked}
        if worker in POOL_OF:
            body["pool"] = POOL_OF[worker]
        told = self.call("POST", "/workers/heartbeat", body)
        extended, cancelled = [], []
        for job_id in asked:
            job = self.model.jobs.get(job_id)
            if job is None or job.worker != worker:
                continue
            if job.state == "active" or self.may_resume(job, worker):
                now_ms = self.model.now_ms
                # With more than two thirds of its lease left a job stays as it is.
                if job.state != "active" or 3 * (job.lease_until - now_ms) <= 2 * job.lease_ms:
                    self.model.put(job.resumed(now_ms))
                extended.append(job_id)
            elif job.state == "cancelled" and job.attempt:
                cancelled.append(job_id)
        assert (told["jobs_extended"], told["cancelled_jobs"]) == (extended, cancelled)

    # --- by hand ----------------------------------------------------------------------------

    @precondition(lambda self: self.ids)
    @rule(at=which)
    def look(self, at: int) -> None:
        self.begin()
        job_id = self.job(at)
        found = self.ask(lambda: self.exists(job_id), "GET", f"/jobs/{job_id}")
        if found is not None:
            assert view_of(found["job"]) == self.model.applied(self.now(job_id)).view
            errors = found["job"].get("errors", [])
            told = {(e["attempt"], e["code"], e["occurred_at"]) for e in errors}
            assert len(told) == len(errors)

    def exists(self, job_id: str) -> Job:
        if job_id not in self.model.jobs:
            raise Refused(404)
        return self.model.applied(self.now(job_id))

    @precondition(lambda self: self.ids)
    @rule(at=which)
    def cancel(self, at: int) -> None:
        self.begin()
        job_id = self.job(at)

        def expected() -> None:
            if self.exists(job_id).done:
                raise Refused(409)

        if self.ask(expected, "DELETE", f"/jobs/{job_id}") is not None:
            self.model.put(self.exists(job_id).ended("cancelled"))

    @precondition(lambda self: any(j.state == "pending" for j in self.model.jobs.values()))
    @rule(at=which)
    def activate(self, at: int) -> None:
        self.begin()
        pending = [j.id for j in self.model.jobs.values() if j.state == "pending"]
        job_id = pending[at % len(pending)] if pending else self.job(at)

        def expected() -> None:
            if self.exists(job_id).state != "pending":
                raise Refused(409)

        if self.ask(expected, "POST", f"/jobs/{job_id}/activate", {}) is not None:
            (back,) = self.model.entering([self.now(job_id).available()])
            self.model.put(back)

    @precondition(lambda self: any(j.state in HASTENED for j in self.model.jobs.values()))
    @rule(at=which)
    def run_now(self, at: int) -> None:
        """A start or retry comes before its time, also when all others stand still."""
        self.begin()
        waiting = [j.id for j in self.model.jobs.values() if j.state in HASTENED]
        job_id = waiting[at % len(waiting)] if waiting else self.job(at)

        def expected() -> None:
            if self.exists(job_id).state not in HASTENED:
                raise Refused(409)

        base = ("/jobs", "/admin/jobs")[at % 2]
        if self.ask(expected, "POST", f"{base}/{job_id}/run", {}) is not None:
            (back,) = self.model.entering([self.now(job_id).available()])
            self.model.put(back)

    # --- time -------------------------------------------------------------------------------

    @rule(ms=st.sampled_from((500, 1_100, 5_000, 9_000, 21_000, 61_000)))
    def wait(self, ms: int) -> None:
        self.begin()
        self.clock.advance(ms)
        self.model.now_ms = self.clock.now_ms()

    @rule()
    def read_stream(self) -> None:
        self.begin("stream")
        self.backend.read_stream()

    @rule()
    def sweep(self) -> None:
        model = self.model
        self.read_stream()
        self.check()
        self.begin("sweep", "end", "fetch")
        over = {q.name for q in model.queues.values() if q.ending and not model.of(q.name)}
        mark_ms = model.now_ms - model.now_ms % 300_000
        model.pruning, model.pruned_ms = mark_ms > model.pruned_ms, mark_ms
        dying = {job.id for job in model.jobs.values() if not job.dead}
        self.backend.sweep()
        model.unseen.clear()
        self.check()
        late = [
            job
            for job in model.jobs.values()
            if model.applied(job) is not job and not model.queues[job.queue].ending
        ]
        assert late == [], f"the sweep passed over {late} at {model.now_ms}"
        assert not over & model.queues.keys(), "a queue without jobs did not end"
        for job in model.jobs.values():
            if job.dead and job.id not in dying:
                self.check_dead(job)
        model.pruning, model.swept = False, model.step

    def check_dead(self, job: Job) -> None:
        """What a sweep must do with a dead letter that was there before it."""
        queue = self.model.queues.get(job.queue)
        if queue is None or queue.bound is not None or queue.ending or job.key is not None:
            return
        assert not self.model.by_rule(job), f"no rule brought {job.id} back"
        held_up = any(
            self.model.queues[there.queue].bound is not None
            for operation in self.model.operations.values()
            if operation.left.get(job.id) == job.lives
            for other in operation.left
            if (there := self.model.jobs.get(other)) and there.queue in self.model.queues
        )
        # It takes them in order, and waits where one finds no room.
        assert held_up or not self.model.by_operation(job), f"no operation retried {job.id}"
        assert not self.model.by_operation(job, "purge"), f"no operation purged {job.id}"
        # They are counted at the end of a sweep: the next one prunes by that.
        before = [j for j in self.model.jobs.values() if j.dead and j.died < self.model.swept]
        if self.model.pruning and not self.streamed and job in before:
            assert not self.model.too_many(job, before), f"{job.id} should have been pruned"
