"""Rules of operators: queues, their limits, tenants and lanes; pools; rate limits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ojs.domain.maintenance import EFFECTIVE_MS
from tests.model.machine import duration, queues, refuse
from tests.model.model import LIMITS, Pool, Refused
from tests.model.workers import ALL, Workers

pools = st.sampled_from(("p", "p", "o"))
operations = st.one_of(
    st.tuples(st.just("pause"), queues, st.sampled_from((False, False, True))),
    st.tuples(
        st.just("bind"),
        queues,
        st.sampled_from((None, 2, 4, 6)),
        st.sampled_from(("reject", "drop_oldest", "block")),
    ),
    st.tuples(st.just("limit"), queues, st.sampled_from((None, 1, 2))),
    st.tuples(st.just("pace"), queues, st.sampled_from((None, 1, 3))),
    st.tuples(
        st.just("share"),
        st.sampled_from(("a", "b")),
        st.sampled_from(({}, {"x": 2}, {"x": 3, "y": 2}, None)),
    ),
    st.tuples(st.just("widen"), st.sampled_from((2, 3))),
    st.tuples(
        st.just("make_pool"),
        pools,
        st.lists(queues, min_size=1, max_size=3, unique=True),
        st.sampled_from(("strict", "round-robin", "least-loaded", "weighted")),
        st.sampled_from((None, None, None, 1, 3)),
        st.sampled_from((False, False, True)),
        st.sampled_from((None, None, Fraction(3, 10))),
    ),
    st.tuples(st.just("delete_pool"), pools),
    st.tuples(
        st.just("delete_queue"),
        queues,
        st.sampled_from(("reject", "discard", "move", "drain")),
        queues,
    ),
    st.tuples(st.just("close"), st.sampled_from(tuple(LIMITS)), st.sampled_from((True, False))),
)


class Operators(Workers):
    """Configure."""

    @rule(what=operations)
    def operate(self, what: tuple[Any, ...]) -> None:
        self.begin()
        name, *arguments = what
        getattr(self, name)(*arguments)

    def configure(self, queue: str, **config: Any) -> None:
        """A change that holds from the answer on."""
        self.call("PUT", f"/queues/{queue}/config", config)

    def pause(self, queue: str, pauses: bool) -> None:

        def expected() -> None:
            if self.model.make(queue).ending:
                raise Refused(409)

        verb = "pause" if pauses else "resume"
        if self.ask(expected, "POST", f"/queues/{queue}/{verb}") is not None:
            self.model.queues[queue].paused = pauses

    def maintain(self, *, begins: bool) -> None:
        """Maintenance begins, or ends, for all once every container knows."""
        path = ("/admin/system/maintenance", "/admin/maintenance")[self.model.step % 2]
        told = self.call("POST", path, {"enabled": begins})
        assert (told["enabled"], "enabled_at" in told.body) == (begins, begins)
        assert self.call("GET", path).body == told.body
        self.wait(EFFECTIVE_MS)
        self.model.still = begins

    def bind(self, queue: str, bound: int | None, policy: str) -> None:
        there = self.model.make(queue)
        if self.model.of(queue):
            # How many of these there are, the depth counter knows after a while.
            policy = "reject"
        self.configure(queue, max_size=bound, overflow_policy=policy)
        if bound is not None and there.bound is None:
            there.bounded = self.model.step
            self.model.unseen.pop(queue, None)
        there.bound, there.policy = bound, policy
        there.most = max(bound or 0, len(self.model.of(queue)))

    def limit(self, queue: str, limit: int | None) -> None:
        self.configure(queue, concurrency=limit)
        self.model.make(queue).limit = limit

    def pace(self, queue: str, most: int | None) -> None:
        there = self.model.make(queue)
        rate = None if most is None else {"limit": most, "period": duration(10_000)}
        self.configure(queue, rate_limit=rate)
        if there.starts is None:
            there.limited = self.model.now_ms
        there.starts, there.period_ms = most, 10_000

    def share(self, queue: str, weights: dict[str, int] | None) -> None:
        there = self.model.make(queue)
        told: dict[str, Any] = {"enabled": weights is not None}
        if weights is not None:
            told["weights"] = {f"tenant:{tenant}": weight for tenant, weight in weights.items()}
            told["weights"] |= {
                f"tenant:{gone}": None for gone in (there.weights or {}) if gone not in weights
            }
        else:
            told["weights"] = None
        self.configure(queue, tenant_fairness=told)
        begins = there.weights is None and weights is not None
        there.weights = weights
        if begins:
            self.take_turns(queue)

    def take_turns(self, queue: str) -> None:
        """Those that are there take their turns, too, in the order in which they stood."""
        for job in sorted(self.model.of(queue), key=lambda job: job.line):
            if job.weight is not None:
                continue
            weight = self.model.weight(queue, job.tenant)
            # Where they stand is taken as it is seen; those of a tenant stay in order.
            self.model.jobs[job.id] = replace(job, weight=weight)
            if job.state == "available":
                self.model.turned.add(job.id)

    def widen(self, lanes: int) -> None:
        there = self.model.make("c")
        if lanes >= there.lanes:
            self.configure("c", lanes=lanes)
            there.lanes = lanes

    def make_pool(
        self,
        name: str,
        members: list[str],
        strategy: str,
        limit: int | None,
        isolated: bool,
        ratio: Fraction | None,
    ) -> None:
        others = [pool for pool in self.model.pools.values() if pool.name != name]

        def expected() -> None:
            there = [self.model.queues[each] for each in members if each in self.model.queues]
            if any(queue.ending for queue in there):
                raise Refused(409)
            for pool in others:
                if (pool.isolated or isolated) and set(pool.queues) & set(members):
                    raise Refused(409)

        weights = tuple(range(1, len(members) + 1))
        body: dict[str, Any] = {
            "queues": members,
            "strategy": strategy,
            "concurrency": limit,
            "isolated": isolated,
        }
        if strategy == "weighted":
            body["weights"] = dict(zip(members, weights, strict=True))
        if ratio is not None:
            body["starvation_prevention"] = {
                "enabled": True,
                "min_dispatch_ratio": float(ratio),
            }
        answer = self.ask(expected, "PUT", f"/admin/pools/{name}", body)
        for each in members:
            self.model.make(each)
        if answer is not None:
            # What runs of a queue that is not in it any more may not count.
            left = [job for job in self.model.permit_holders(name) if job.queue not in members]
            self.model.forsaken |= {job.id for job in left}
            self.model.pools[name] = Pool(
                name, tuple(members), strategy, limit, isolated, weights, ratio,
                since_ms=self.model.began.setdefault(name, self.model.now_ms),
            )  # fmt: skip

    def delete_pool(self, name: str) -> None:
        if name not in self.model.pools:
            self.ask(lambda: refuse(404), "DELETE", f"/admin/pools/{name}")
            return
        self.call("DELETE", f"/admin/pools/{name}")
        del self.model.pools[name]
        self.model.forsaken |= {job.id for job in self.model.permit_holders(name)}

    def delete_queue(self, queue: str, strategy: str, to: str) -> None:
        if strategy == "move" and to == queue:
            return
        there = self.model.queues.get(queue)

        def expected() -> None:
            if there is None:
                raise Refused(404)
            aim = self.model.queues.get(to)
            if strategy == "move" and aim is not None and aim.ending:
                raise Refused(409)
            if there.ending or self.model.pools_of(queue):
                raise Refused(409)
            if strategy == "reject" and self.model.of(queue):
                raise Refused(409)

        body = {"strategy": strategy}
        if strategy == "move":
            body["target_queue"] = to
        answer = self.ask(expected, "DELETE", f"/queues/{queue}", body)
        if answer is None or there is None:
            return
        assert answer.status == 202
        there.ending, there.paused = strategy, False
        there.target = to if strategy == "move" else None
        if strategy == "move":
            self.model.make(to)
        self.model.doing.add("end")

    def close(self, limit: str, closes: bool) -> None:
        """Lay a bound of none over a rate limit, or take it back, and any pause with it."""
        known = any(job.limit == limit for job in self.model.jobs.values())
        path = f"/rate-limits/{limit}/override"
        if closes:
            self.call("PUT", path, {"concurrency": 0})
            self.model.closed.add(limit)
        elif self.ask(lambda: None if known else refuse(0, 404), "DELETE", path) is not None:
            self.model.closed.discard(limit)
            self.model.waits.pop(limit, None)

    @precondition(lambda self: any(job.limit for job in self.model.jobs.values()))
    @rule(name=st.sampled_from(tuple(LIMITS)))
    def look_at_limit(self, name: str) -> None:
        """How a rate limit stands: who runs, and who waits."""
        self.begin()
        told = self.call("GET", f"/rate-limits/{name}")
        if told.status == 404:
            assert not any(job.limit == name for job in self.model.jobs.values())
            return
        jobs = [job for job in self.model.jobs.values() if job.limit == name]
        if LIMITS[name].concurrency is not None:
            running = [job for job in jobs if job.state == "active"]
            active = told["concurrency"]["active"]
            assert active == len(running), f"{active} active, and not {len(running)}"
        waiting = [job for job in jobs if job.state == "available"]
        assert told["waiting_count"] == len(waiting)
        paused = self.model.waits.get(name, 0) > self.model.now_ms
        assert ("paused_until" in told.body) == paused

    @rule(name=st.sampled_from(ALL))
    def look_at_queue(self, name: str) -> None:
        """The counters of a queue, after the stream is read: as many jobs as there are."""
        self.read_stream()
        self.check()
        self.begin()

        answer = self.call("GET", f"/queues/{name}/stats")
        counted = answer["stats"] if "stats" in answer.body else answer.body
        jobs = [job for job in self.model.jobs.values() if job.queue == name]
        for state in ("available", "active", "scheduled", "retryable"):
            there = sum(job.state == state for job in jobs)
            assert counted[state] == there, f"{state}: {counted[state]} and not {there}"
