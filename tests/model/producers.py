"""Rules of producers: jobs one by one and in batches, unique, limited, of tenants."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ojs.store.table import keys
from tests.model.machine import SECOND, duration, queues, refuse, which
from tests.model.model import FOR_EVER, LIMITS, Job, Refused
from tests.model.workers import Workers

options = st.fixed_dictionaries(
    {
        "priority": st.sampled_from((0, 0, 0, 5, -3)),
        "attempts": st.sampled_from((3, 2, 1)),
        "keeps": st.booleans(),
        "when": st.sampled_from(("now", "now", "now", "now", "later", "pending", "deadline")),
        "tenant": st.sampled_from(("", "x", "x", "y", "z")),
        "limit": st.sampled_from((*(None,) * 8, *LIMITS)),
    }
)


class Producers(Workers):
    """Push jobs."""

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
        if chosen["limit"] is not None:
            given["rate_limit"] = limit_of(chosen["limit"])
        there = self.model.queues.get(queue)
        job = Job(
            id=self.backend.run.ids.uuid7(),
            queue=queue,
            state=state,
            priority=chosen["priority"],
            place=(Fraction(now_ms), self.model.step, sub),
            max_attempts=chosen["attempts"],
            keeps=chosen["keeps"],
            start_ms=start_ms,
            expires_ms=expires_ms,
            came=self.model.step,
            key=chosen.get("key"),
            tenant=chosen["tenant"],
            weight=self.model.weight(queue, chosen["tenant"]),
            limit=chosen["limit"],
            copies_to=there.copies_to if there is not None else None,
        )
        raw = {"type": "t", "args": [chosen.get("key")], "id": job.id, "options": given}
        if job.tenant:
            raw["meta"] = {"tenant_id": job.tenant}
        if job.key is not None:
            given["unique"] = {"keys": ["type", "args"]}
        return job, raw

    def drop(self) -> None:
        """What gave way to those that come; nothing does for what is refused.

        Of jobs that came into line in one step it is whichever was first.
        """
        there = self.backend.storage.items()

        def went(job: Job) -> bool:
            item = there.get((keys.job(job.id), keys.RECORD))
            return item is not None and item["state"] == "discarded"

        for job_id in self.model.dropped:
            job = self.now(job_id)
            line = [each for each in self.model.of(job.queue) if each.state == "available"]
            alike = [each for each in line if each.place[1:] == job.place[1:]]
            gone = next((each for each in alike if went(each)), job)
            self.model.put(gone.ended("discarded"))

    @rule(queue=queues, chosen=options)
    def push(self, queue: str, chosen: dict[str, Any]) -> None:
        self.begin()
        job, raw = self.wanted(queue, chosen)
        answer = self.ask(lambda: self.model.push([job]), "POST", "/jobs", raw)
        if answer is not None:
            self.drop()
            assert answer.status == 201
            assert (answer["job"]["id"], answer["job"]["state"]) == (job.id, job.state)
            self.come(self.model.entering([job]))

    @rule(queue=queues, chosen=options)
    def push_unique(self, queue: str, chosen: dict[str, Any]) -> None:
        self.begin()
        job, raw = self.wanted(queue, chosen | {"key": "k"})
        holder = self.model.holder("k")

        def expected() -> None:
            # Who is told first, of the key or of the queue, is not promised.
            try:
                self.model.push([job])
            except Refused as refused:
                statuses = [s for s in refused.statuses if s or holder is None]
                raise Refused(*statuses, *([409] if holder else [])) from None
            if holder is not None:
                raise Refused(409)

        answer = self.ask(expected, "POST", "/jobs", raw)
        if answer is not None:
            self.drop()
            self.come(self.model.entering([job]))

    @rule(chosen=st.lists(st.tuples(queues, options), min_size=2, max_size=6))
    def push_batch(self, chosen: list[tuple[str, dict[str, Any]]]) -> None:
        self.begin()
        made = [self.wanted(queue, told, sub) for sub, (queue, told) in enumerate(chosen)]
        jobs = [job for job, _ in made]
        answer = self.ask(
            lambda: self.model.push(jobs), "POST", "/jobs/batch", {"jobs": [raw for _, raw in made]}
        )
        if answer is not None:
            self.drop()
            assert [one["id"] for one in answer["jobs"]] == [job.id for job in jobs]
            self.come(self.model.entering(jobs))

    @precondition(lambda self: self.model.pools)
    @rule(at=which, times=st.sampled_from((3, 7)))
    def work_in_pool(self, at: int, times: int) -> None:
        """All queues of a pool have jobs, and it works some off."""
        pools = list(self.model.pools.values())
        pool = pools[at % len(pools)]
        plain = {"priority": 0, "attempts": 1, "keeps": True, "when": "now", "tenant": "x"}
        told = [(name, {**plain, "limit": None}) for name in pool.queues for _ in range(3)]
        self.push_batch(told)
        self.check()
        for _ in range(times):
            self.fetch_by_pool(at, count=1, times=1)
            self.check()
            for job in self.model.permit_holders(pool.name):
                self.ack(self.model.given.index(job.id), str(job.worker), twice=False, owner=True)
                self.check()

    @precondition(lambda self: self.ids)
    @rule(at=which)
    def push_again(self, at: int) -> None:
        """An answer was lost: the same id is refused, and nothing changes."""
        self.begin()
        job_id = self.job(at)
        if job_id not in self.model.jobs:
            return
        raw = {"type": "t", "id": job_id, "args": [], "options": {"queue": "e"}}
        self.model.make("e")
        self.ask(lambda: refuse(409), "POST", "/jobs", raw)

    def waited_for(self) -> list[Job]:
        """Running jobs whose end makes room for a push that waits for it."""
        found = []
        for queue in self.model.queues.values():
            there = self.model.of(queue.name)
            full = len(there) == queue.bound and not self.model.unseen.get(queue.name)
            if queue.policy == "block" and full and not queue.ending:
                found += self.model.sure(self.model.running(queue.name))
        return found

    @precondition(lambda self: self.waited_for())
    @rule(at=which, chosen=options)
    def push_and_wait(self, at: int, chosen: dict[str, Any]) -> None:
        """A push waits for room, and a worker makes some meanwhile."""
        self.begin()
        running = self.waited_for()
        done = running[at % len(running)]
        job, raw = self.wanted(done.queue, chosen | {"limit": None})
        self.backend.meanwhile.append(
            lambda: self.backend.containers[1].finish.ack(done.id, worker_id=done.worker)
        )
        began_ms = self.model.now_ms
        answer = self.call("POST", "/jobs", raw, OJS_Block_Timeout="5")
        assert answer.status == 201, f"there was room in time: {answer}"
        self.model.now_ms = self.clock.now_ms()
        assert 0 < self.model.now_ms - began_ms < SECOND, "it waited for too long"
        self.model.put(done.ended("completed"))
        self.come(self.model.entering([job]))


def limit_of(name: str) -> dict[str, Any]:
    """A rate limit as a job asks for it."""
    limit = LIMITS[name]
    told: dict[str, Any] = {"key": name, "on_limit": limit.on_limit}
    if limit.concurrency is not None:
        told["concurrency"] = limit.concurrency
    if limit.starts is not None:
        told["rate"] = {"limit": limit.starts, "period": duration(limit.period_ms)}
    return told
