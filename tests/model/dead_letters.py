"""Rules of dead letters: one by one, many at a time, by rule; their copies; how long they stay."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.model.backend import AT_ONCE
from tests.model.machine import COPIES, RULE, WORKERS, duration, queues, refuse, which
from tests.model.model import FOR_EVER, Job, Operation, Queue, Refused
from tests.model.workers import Workers

DELAY_MS = 150_000
NONE = Queue("")
keeping = st.one_of(
    st.tuples(st.just("replay_by_rule"), queues, st.sampled_from((1, 2, None))),
    st.tuples(st.just("copy_dead"), queues, st.booleans()),
    st.tuples(
        st.just("keep_dead"),
        queues,
        st.sampled_from((None, 400_000)),
        st.sampled_from((None, 1, 2)),
    ),
)


class DeadLetters(Workers):
    """Look after what could not be done."""

    def a_dead_one(self, at: int) -> str:
        dead = [j.id for j in self.model.jobs.values() if j.dead]
        return dead[at % len(dead)] if dead else self.job(at)

    def revive(self, job: Job) -> None:
        """A dead letter is back in line; its copy is not to be done as well."""
        copy = self.model.jobs.get(job.copy or "")
        if copy is not None and copy.state in ("available", "scheduled", "retryable", "pending"):
            # What time has made of it already is decided first.
            self.model.put(copy.ended("cancelled"))
        self.model.revived.add(job.copy)
        (back,) = self.model.entering([self.model.returned(job)])
        self.model.put(back)

    @rule(count=st.sampled_from((1, 3, 5)), worker=st.sampled_from(WORKERS))
    def let_die(self, count: int, worker: str) -> None:
        """A worker takes jobs that cannot be done."""
        self.fetch_any(count, worker)
        self.check()
        held = [j for j in self.model.jobs.values() if j.state == "active" and j.worker == worker]
        for job in held[:count]:
            self.nack(self.model.given.index(job.id), worker, owner=True, how="DEAD_LETTER")
            self.check()

    @precondition(lambda self: any(j.dead for j in self.model.jobs.values()))
    @rule(at=which, twice=st.booleans())
    def retry(self, at: int, twice: bool) -> None:
        self.begin()
        job_id = self.a_dead_one(at)

        def expected() -> None:
            job = self.model.jobs.get(job_id)
            self.model.dropped = []
            if job is None or not job.dead:
                raise Refused(404, 409)
            holder = self.model.holder(job.key)
            try:
                self.model.push([job])
            except Refused as refused:
                raise Refused(*refused.statuses, *([409] if holder else [])) from None
            if holder is not None:
                raise Refused(409)

        answer = self.ask(expected, "POST", f"/dead-letter/{job_id}/retry")
        if answer is None:
            return
        for dropped in self.model.dropped:
            self.model.put(self.now(dropped).ended("discarded"))
        self.revive(self.now(job_id))
        if twice:
            self.ask(lambda: refuse(404, 409), "POST", f"/dead-letter/{job_id}/retry")

    @precondition(lambda self: any(j.dead for j in self.model.jobs.values()))
    @rule(at=which)
    def delete(self, at: int) -> None:
        self.begin()
        job_id = self.a_dead_one(at)
        self.call("DELETE", f"/dead-letter/{job_id}")
        del self.model.jobs[job_id]
        self.ask(lambda: refuse(404), "DELETE", f"/dead-letter/{job_id}")

    @precondition(lambda self: any(j.dead for j in self.model.jobs.values()))
    @rule(queue=st.one_of(st.none(), queues))
    def list_dead(self, queue: str | None) -> None:
        """The dead letters that there are, the latest first."""
        self.begin()
        told = self.call("GET", "/dead-letter" + (f"?queue={queue}" if queue else ""))["items"]
        dead = [j for j in self.model.jobs.values() if j.dead and queue in (None, j.queue)]
        assert {one["id"] for one in told} == {job.id for job in dead}
        times = [self.now(one["id"]).died_ms for one in told]
        assert times == sorted(times, reverse=True), "not in order"

    # --- many at a time ---------------------------------------------------------------------

    @precondition(lambda self: any(j.dead for j in self.model.jobs.values()))
    @rule(action=st.sampled_from(("retry", "retry", "purge")), queue=st.one_of(st.none(), queues))
    def begin_operation(self, action: str, queue: str | None) -> None:
        """What is meant is dealt with in order, a part of it at once."""
        self.begin()
        wanted = {"all": True} if queue is None else {"filter": {"queue": queue}}
        body = {**wanted, "confirm": True}
        self.model.dropped = []
        dead = [j for j in self.model.jobs.values() if j.dead and queue in (None, j.queue)]
        dead = [job for job in dead if job.died_ms < self.model.now_ms]
        if action == "retry":
            answer = self.call("POST", "/dead-letter/retry", body)
            done = answer["job_ids"]
            failed = [error["job_id"] for error in answer["errors"]]
        else:
            answer = self.call("DELETE", "/dead-letter", body)
            died = sorted(dead, key=lambda job: (job.died_ms, job.id))
            done, failed = [job.id for job in died[: answer["deleted"]]], []
        told = answer["operation"]
        operation = Operation(
            told["id"], action, {job.id: job.lives for job in dead}, len(dead), told["state"]
        )
        self.dealt_with(operation, action, dead, done, failed)
        waits = told["waiting_for_room"]
        full = [job for job in dead if self.model.queues.get(job.queue, NONE).bound is not None]
        assert not waits or full, "it waits, and no queue is bounded"
        if told["state"] == "running":
            assert waits or len(done) + len(failed) == AT_ONCE
        else:
            assert told["state"] == "completed"
            assert not operation.left, f"it is over, and {operation.left} were left out"
        self.model.operations[operation.id] = operation

    def dealt_with(
        self,
        operation: Operation,
        action: str,
        dead: list[Job],
        done: list[str],
        failed: list[str],
    ) -> None:
        """What a request did at once."""
        meant = {job.id: job for job in dead}
        dealt = [meant[job_id].died_ms for job_id in (*done, *failed)]
        rest = [job.died_ms for job in dead if job.id not in (*done, *failed)]
        assert not dealt or not rest or max(dealt) <= min(rest), "not in order"
        for job_id in done:
            job = self.now(job_id)
            del operation.left[job_id]
            operation.done += 1
            if action == "purge":
                del self.model.jobs[job_id]
                continue
            assert self.model.holder(job.key) is None, f"{job_id} has the key of another"
            there = self.model.make(job.queue)
            assert not there.ending
            if there.bound is not None:
                assert len(self.model.of(job.queue)) < there.bound, "there was no room"
            self.revive(job)
        for job_id in failed:
            job = self.now(job_id)
            ends = self.model.queues.get(job.queue, NONE).ending
            assert ends or self.model.holder(job.key) is not None, f"{job_id} may come back"
            del operation.left[job_id]
            operation.refused += 1

    @precondition(lambda self: self.model.operations)
    @rule(at=which)
    def look_at_operation(self, at: int) -> None:
        """How far one is."""
        self.begin()
        operation = list(self.model.operations.values())[at % len(self.model.operations)]
        told = self.call("GET", f"/dead-letter/operations/{operation.id}")["operation"]
        if operation.state != "running":
            assert told["state"] == operation.state
        if not operation.shared:
            assert told["succeeded"] == operation.done, f"{told} and not {operation}"
        assert told["matched"] == told["succeeded"] + told["failed"] <= operation.matched
        operation.state = told["state"]

    @precondition(lambda self: self.model.operations)
    @rule(at=which)
    def stop(self, at: int) -> None:
        self.begin()
        operation = list(self.model.operations.values())[at % len(self.model.operations)]
        path = f"/dead-letter/operations/{operation.id}"
        running = self.call("GET", path)["operation"]["state"] == "running"
        expected = (lambda: None) if running else (lambda: refuse(409))
        if self.ask(expected, "POST", f"{path}/stop") is not None:
            operation.state = "stopped"
        self.ask(lambda: refuse(409), "POST", f"{path}/stop")

    # --- what is configured -------------------------------------------------------------------

    @rule(what=keeping)
    def look_after(self, what: tuple[Any, ...]) -> None:
        """Say what becomes of the dead letters of a queue."""
        name, *arguments = what
        getattr(self, name)(*arguments)

    def replay_by_rule(self, queue: str, most: int | None) -> None:
        self.begin()
        rules: list[dict[str, Any]] = []
        if most is not None:
            told = {"filter": {}, "delay": duration(DELAY_MS), "max_replays": most}
            rules.append({"name": RULE, **told})
        self.call("PUT", f"/queues/{queue}/config", {"replay_rules": rules})
        self.model.make(queue).rule = None if most is None else (DELAY_MS, most)

    def copy_dead(self, queue: str, copies: bool) -> None:
        self.begin()
        target = COPIES if copies else None
        self.call("PUT", f"/queues/{queue}/config", {"dead_letter_queue": target})
        self.model.make(queue).copies_to = target

    def keep_dead(self, queue: str, age_ms: int | None, most: int | None) -> None:
        self.begin()
        age = None if age_ms is None else duration(age_ms)
        kept = {"retention": {"max_age": age, "max_count": most}}
        self.call("PUT", f"/queues/{queue}/config", {"dead_letter": kept})
        there = self.model.make(queue)
        there.keeps_ms, there.keeps = age_ms or FOR_EVER, most or 10**9

    @precondition(lambda self: any(j.dead for j in self.model.jobs.values()))
    @rule(times=st.sampled_from((1, 2, 4)))
    def minutes_pass(self, times: int) -> None:
        """Long enough for what is due after minutes."""
        for _ in range(times):
            self.wait(100_000)
            self.check()
        self.sweep()
