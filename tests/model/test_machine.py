"""The whole API against a model, in any order of calls, with the clock in hand.

`MACHINE_EXAMPLES=2000 make test-exhaustive ARGS=tests/model` looks further, each time elsewhere.
The steps that lead to a failure are printed; they are to be kept as a test below. With `SHRINK=1`
they are made fewer first, which takes minutes.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from ojs.store.bounds import depth_counter
from ojs.store.table import keys
from tests.model.backend import InProcess, OnEngine, Storage
from tests.model.machine import HOUR, QUEUES, queues
from tests.model.producers import options
from tests.model.scenes import SCENES, Scenes
from tests.spread import examples
from tests.store.streams import BEHIND, is_event_page, recount, recount_behind, unpacked, whole

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


# `make test-all` has all of them.
EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES") or (40 if examples(100) == 100 else 16))
STEPS = 40
PHASES = [Phase.explicit, Phase.generate, *([Phase.shrink] if os.environ.get("SHRINK") else [])]


class Machine(Scenes):
    """Does to a backend what clients, operators, workers and time do."""

    @initialize(
        seed=st.integers(0, 10**6),
        chosen=st.lists(st.tuples(queues, options), min_size=3, max_size=8),
        pool=st.sampled_from(
            (("round-robin", None), ("strict", None), ("strict", 2), ("least-loaded", 3), None)
        ),
        share=st.booleans(),
        copies=st.booleans(),
        scene=st.sampled_from((None, *SCENES)),
    )
    def start(
        self,
        seed: int,
        chosen: list[tuple[str, dict[str, Any]]],
        pool: tuple[str, int | None] | None,
        share: bool,
        copies: bool,
        scene: str | None,
    ) -> None:
        """Something is there to begin with."""
        # Which container serves, and how the stream arrives, is drawn from this.
        self.backend.chance.seed(seed)
        random.seed(seed)
        if scene := self.stage or scene:
            self.set_scene(scene)
            # Once with nothing in the way.
            self.go_on([seed % 61, seed // 61 % 61], 1 + seed % 3)
        if share:
            self.operate(("share", "a", {"x": 3}))
            self.check()
        if copies:
            self.copy_dead("b", copies=True)
            self.check()
        self.push_batch(chosen)
        if pool is not None and not self.model.pools:
            self.check()
            self.operate(("make_pool", "p", ["a", "b"], *pool, False, None))

    # --- the end ------------------------------------------------------------------------------

    def drain(self) -> None:
        """All that can be done is done, once each; then nothing is left over."""
        self.open_all()
        seen: Counter[tuple[str, int]] = Counter()
        for _ in range(12):
            if self.model.quiet:
                break
            self.wait(HOUR)
            self.check()
            self.sweep()
            while got := self.work_off():
                seen.update(got)
                # Of some only so many may start in ten seconds.
                self.wait(12_000)
        assert all(times == 1 for times in seen.values())
        left = [job for job in self.model.jobs.values() if not job.done]
        assert left == [], f"nobody is ever given {left}"
        self.read_stream()
        self.check()
        self.check_rest()
        self.check_counters()

    def open_all(self) -> None:
        """Nothing keeps jobs from being handed out any more."""
        if self.model.still:
            self.begin()
            self.maintain(begins=False)
        for name in list(self.model.pools):
            self.begin()
            self.delete_pool(name)
        for limit in list(self.model.closed):
            self.begin()
            self.close(limit, closes=False)
        for queue in list(self.model.queues.values()):
            if not queue.ending:
                self.begin()
                self.call("POST", f"/queues/{queue.name}/resume")
                none = dict.fromkeys(("max_size", "concurrency", "rate_limit"))
                self.configure(queue.name, **none, replay_rules=[])
                queue.paused, queue.bound, queue.limit, queue.starts = False, None, None, None
                queue.rule = None
        self.check()
        for job in list(self.model.jobs.values()):
            if self.model.applied(self.now(job.id)).state == "pending":
                self.begin()
                self.call("POST", f"/jobs/{job.id}/activate", {})
                (back,) = self.model.entering([self.now(job.id).available()])
                self.model.put(back)
                self.check()

    def work_off(self) -> list[tuple[str, int]]:
        """A worker does what there is; which jobs it was given."""
        self.begin("fetch")
        names = sorted(self.model.queues)
        got = self.fetch_as("z", names, 50, names, None) if names else []
        self.check()
        for job in got:
            self.begin()
            told = self.call("POST", "/workers/ack", {"job_id": job["id"], "worker_id": "z"})
            assert told["state"] == "completed"
            self.model.put(self.now(job["id"]).ended("completed"))
        self.check()
        return [(job["id"], self.now(job["id"]).lives) for job in got]

    def check_rest(self) -> None:
        """What is in the table when all is quiet belongs to something."""
        there = self.backend.storage.items()
        for (pk, sk), item in there.items():
            kind = pk.split("|")[0]
            if kind == "J":
                assert (pk, keys.RECORD) in there, f"{pk} {sk} is nobody's"
            elif kind == "G":
                tracked = depth_counter.value_from(item).tracked
                assert sk != keys.DEPTH or tracked == 0, f"{pk} {sk}"
                assert sk != keys.SEMAPHORE or item.get("n", 0) == 0, f"{pk} {sk}: {item}"
            else:
                assert kind != "B" or "ttl" in item, f"{pk} was never undone"
        assert {sk for pk, sk in there if pk == "QUEUES"} == set(self.model.queues)

    def check_counters(self) -> None:
        """However its stream arrived, the counters are what a recount is, and no event is told
        twice.
        """
        there = whole(self.backend.storage.items())
        records, behind = recount(there.values()), recount_behind(there.values())
        for name in QUEUES:
            now = there.get((keys.stats(name), keys.NOW), {})
            for state in ("available", "active", "completed", "cancelled", "discarded", "dead"):
                assert now.get(state, 0) == records[name][state], f"{state} of {name}"
            for counted in BEHIND:
                assert now.get(counted, 0) == behind[name][counted], f"{counted} of {name}"
        pages = [page for key, page in there.items() if is_event_page(key)]
        told = [event["id"] for page in pages for event in unpacked(page)]
        assert told or not self.ids
        assert len(set(told)) == len(told), "an event was told twice"


def look_at(
    storage: Callable[[], Storage], histories: int, *, streamed: bool, stage: str | None = None
) -> None:
    attributes = {"storage": staticmethod(storage), "streamed": streamed, "stage": stage}
    machine = type("OnThisTable", (Machine,), attributes)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=histories,
            stateful_step_count=STEPS,
            derandomize="MACHINE_EXAMPLES" not in os.environ,
            suppress_health_check=list(HealthCheck),
            # Shrinking a whole history takes minutes: it is asked for where it is wanted.
            phases=PHASES,
        ),
    )


# `make test` has as many as this.
FEW = 4


@pytest.mark.parametrize(
    "histories", [FEW, pytest.param(EXAMPLES, marks=pytest.mark.exhaustive)], ids=["few", "many"]
)
def test_the_api_does_what_the_model_says(histories: int) -> None:
    look_at(InProcess, histories, streamed=False)


@pytest.mark.exhaustive
def test_what_the_stream_is_to_do_is_done_by_it() -> None:
    look_at(InProcess, EXAMPLES // 2, streamed=True)


@pytest.mark.exhaustive
def test_it_does_so_on_an_engine(streaming_dynamodb: DynamoDBClient) -> None:
    look_at(lambda: OnEngine(streaming_dynamodb), max(2, EXAMPLES // 20), streamed=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scene", SCENES)
def test_each_subject_is_come_to(scene: str) -> None:
    """Left to chance, some would be in none of a few histories."""
    look_at(InProcess, max(3, EXAMPLES // 10), streamed=scene == "copies", stage=scene)


# --- what it found --------------------------------------------------------------------------------


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine to be led by hand."""
    with mock.patch.object(Machine, "storage", InProcess, create=True):
        made = Machine()
    yield made
    made.teardown()


NOW = {
    "priority": 0, "attempts": 3, "keeps": True, "when": "now", "tenant": "", "limit": None,
}  # fmt: skip


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
