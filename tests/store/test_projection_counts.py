"""After anything that may happen to jobs, and however its stream arrives, the counts are right."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ojs.domain.counters.definitions import OFTEN
from ojs.domain.errors import BackendUnavailable, Conflict, Duplicate, NotFound, OjsError
from ojs.domain.job import envelope
from ojs.services.jobs import enqueue
from ojs.store.jobs import staged_batches
from ojs.store.table import keys
from tests.spread import examples
from tests.store.streams import (
    SHARD,
    Projected,
    Stream,
    lambda_form,
    recount,
    recount_behind,
    repeated,
)

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

QUEUES = ("one", "two")
SECONDS = 1_000


class Operations:
    """Everything that changes a job, a queue or a worker, through the use cases."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world, self.run, self.chance = world, world.run, chance
        self.jobs: list[str] = []
        self.held: list[Job] = []

    def do(self, name: str) -> None:
        # Losing to a job's state is as good as anything else that may happen.
        with suppress(Conflict, NotFound, Duplicate):
            getattr(self, name)()

    def request(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "queue": self.chance.choice(QUEUES),
            "priority": self.chance.choice((0, 0, 5, -3)),
            "visibility_timeout_ms": 20 * SECONDS,
            "retry": {
                "max_attempts": self.chance.choice((1, 2, 3)),
                "initial_interval": "PT1S",
                "on_exhaustion": self.chance.choice(("dead_letter", "discard")),
            },
        }
        match self.chance.randrange(8):
            case 0:
                options["delay_until"] = "+PT5S"
            case 1:
                options["pending"] = True
            case 2:
                options["expires_at"] = "+PT8S"
            case 3:
                options["unique"] = {"keys": ["type", "queue"], "on_conflict": "replace"}
            case _:
                pass
        kind = self.chance.choice(("email.send", "report.make"))
        return {"type": kind, "args": ["secret"], "options": options}

    def push(self) -> None:
        self.jobs.append(self.run.enqueue.push(envelope.parse(self.request())).job.id)

    def batch(self, size: int = 3) -> None:
        requests = [self.request() for _ in range(size)]
        for one in requests:
            one["options"].pop("unique", None)
        pushed = self.run.enqueue.push_batch([envelope.parse(one) for one in requests])
        self.jobs += [one.job.id for one in pushed]

    def staged(self) -> None:
        self.batch(5)

    def undone(self) -> None:
        """A batch whose container dies before the commit, undone by the sweep."""
        commit = staged_batches.StagedBatches._commit
        with (
            mock.patch.object(
                staged_batches.StagedBatches, "_commit", side_effect=BackendUnavailable("died")
            ),
            suppress(OjsError),
        ):
            self.batch(5)
        assert staged_batches.StagedBatches._commit is commit
        self.world.clock.advance(staged_batches.STAGING_GRACE_MS)
        self.world.sweep()

    def fetch(self) -> None:
        self.held += self.run.fetch.fetch(list(QUEUES), self.chance.randint(1, 4), "w")

    def ack(self) -> None:
        job = self.one_held()
        self.run.finish.ack(job.id, worker_id="w", attempt=job.attempt, result={"ok": True})

    def nack(self) -> None:
        job = self.one_held()
        error = {
            "code": self.chance.choice(("boom", "boom", "DISCARD", "DEAD_LETTER")),
            "message": "no",
            "retryable": self.chance.random() < 0.8,
        }
        self.run.finish.nack(job.id, error=error, worker_id="w", attempt=job.attempt)

    def requeue(self) -> None:
        self.run.finish.nack(self.one_held().id, error=None, worker_id="w", requeue=True)

    def beat(self) -> None:
        self.run.workers.beat("w", active_jobs=[job.id for job in self.held[-3:]])

    def progress(self) -> None:
        self.run.jobs.report_progress(self.one_held().id, progress=0.5, worker_id="w")

    def cancel(self) -> None:
        self.run.jobs.cancel(self.one())

    def activate(self) -> None:
        self.run.jobs.activate(self.one())

    def revive(self) -> None:
        self.run.redrive.retry(self.one_dead())

    def delete(self) -> None:
        self.run.dead_letter.delete(self.one_dead())

    def look(self) -> None:
        self.run.jobs.get(self.one())

    def wait(self) -> None:
        self.world.clock.advance(self.chance.choice((1, 700, 6 * SECONDS, 25 * SECONDS)))

    def sweep(self) -> None:
        self.world.sweep()

    def pause(self) -> None:
        self.run.queues.pause(QUEUES[0])

    def resume(self) -> None:
        self.run.queues.resume(QUEUES[0])

    def one(self) -> str:
        if not self.jobs:
            raise NotFound("job", "any")
        return self.chance.choice(self.jobs)

    def one_dead(self) -> str:
        dead = self.run.dead_letter.list(limit=10).items
        if not dead:
            raise NotFound("job", "any")
        return self.chance.choice(dead).id

    def one_held(self) -> Job:
        if not self.held:
            raise NotFound("job", "any")
        return self.held.pop(self.chance.randrange(len(self.held)))


OPERATIONS = tuple(
    name for name in vars(Operations) if not name.startswith(("_", "one", "do", "request"))
)
# What makes and moves jobs comes more often than what is odd.
LIKELY = ("push", "fetch", "fetch", "ack", "nack", "nack", "wait", "sweep", "revive")


@pytest.mark.exhaustive
@given(
    names=st.lists(st.sampled_from(OPERATIONS + LIKELY), min_size=10, max_size=60),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_counts_equal_a_recount_of_the_records(
    streamed: Callable[[], AbstractContextManager[World]], names: list[str], seed: int
) -> None:
    chance = random.Random(seed)
    with streamed() as world, mock.patch.object(enqueue, "MAX_TRANSACTION", 4):
        operations = Operations(world, chance)
        for name in ("push", "push", "fetch", *names):
            operations.do(name)
        records = Stream(world.client, world.table).take()
        projected = Projected(world.client, world.table, world.clock)
        containers = [projected.projector, projected.another()]
        for batch in repeated(records, chance):
            form = [lambda_form(one) for one in batch] if chance.random() < 0.5 else batch
            assert chance.choice(containers).run(form, SHARD) == []
        assert containers[0].run(records, SHARD) == []

        found = projected.everything()
        job_records, behind = recount(found.values()), recount_behind(found.values())
        for queue in QUEUES:
            now = projected.stats(queue)
            levels = {name: n for name, n in now.items() if not name.startswith("t_")}
            assert levels == dict(job_records[queue])
            assert projected.behind(queue) == dict(behind[queue])
            check_history(projected, found, queue, now)


def check_history(
    projected: Projected, found: dict[tuple[str, str], dict[str, Any]], queue: str, now: Any
) -> None:
    """Totals, days, minutes, events and metrics all tell the same."""
    totals = {name.removeprefix("t_"): n for name, n in now.items() if name.startswith("t_")}
    told = [event for event in projected.events() if event["data"].get("queue") == queue]
    assert len({event["id"] for event in told}) == len(told)
    kinds = Counter(event["type"] for event in told)
    assert {row.attribute: kinds[kind] for kind, row in OFTEN.items() if kinds[kind]} == totals
    stats = {sk: item for (pk, sk), item in found.items() if pk == keys.stats(queue)}
    for prefix in ("d|", "m|"):
        sums: Counter[str] = Counter()
        for sk, item in stats.items():
            if sk.startswith(prefix):
                sums.update({n: v for n, v in item.items() if isinstance(v, int)})
        assert {
            row.attribute: sums[row.attribute] for row in OFTEN.values() if sums[row.attribute]
        } == totals
        assert sums["waits"] == totals.get("started", 0)
        if prefix == "d|":
            assert sum(n for name, n in sums.items() if name.startswith("bw")) == sums["waits"]
            assert sum(n for name, n in sums.items() if name.startswith("bd")) == sums["runs"]
            for counter in ("enqueued", "completed", "failed"):
                by_type = sum(n for name, n in sums.items() if name.startswith(f"{counter}|"))
                assert by_type == totals.get(counter, 0)
    measured: Counter[str] = Counter()
    for dimensions, values in projected.metrics.sums.items():
        if dict(dimensions).get("queue") == queue:
            measured.update(values)
    for metric, counter in (
        ("ojs.job.enqueued", "enqueued"), ("ojs.job.completed", "completed"),
        ("ojs.job.failed", "failed"), ("ojs.job.retried", "retried"),
        ("ojs.job.cancelled", "cancelled"), ("ojs.job.expired", "expired"),
    ):  # fmt: skip
        assert measured[metric] == totals.get(counter, 0)
    assert "secret" not in repr(told)


def test_every_operation_is_tried() -> None:
    assert {"staged", "undone", "requeue", "beat", "revive", "delete", "sweep"} <= set(OPERATIONS)
