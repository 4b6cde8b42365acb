"""Subjects that chance alone seldom comes to: what is configured for one, and what is done about it
again and again, among all the rest.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.model.dead_letters import DeadLetters
from tests.model.machine import MEMBERS, which
from tests.model.operators import Operators
from tests.model.producers import Producers

PLAIN: dict[str, Any] = {
    "priority": 0, "attempts": 3, "keeps": True, "when": "now", "tenant": "", "limit": None,
}  # fmt: skip
POOLS: dict[str, tuple[Any, ...]] = {
    "isolated": (["a", "b"], "strict", None, True, None),
    "weighted": (["a", "b", "c"], "weighted", None, False, None),
    "turns": (["a", "b", "c"], "strict", None, False, Fraction(3, 10)),
    "loads": (["a", "b"], "least-loaded", None, False, None),
    "robin": (["a", "b", "c"], "round-robin", None, False, None),
}
SCENES = (
    *POOLS, "lanes", "dropping", "blocking", "replays", "pace", "keys", "graves", "tenants",
    "bulk", "copies", "maintenance",
)  # fmt: skip


class Scenes(Producers, Operators, DeadLetters):
    """Set a scene, and play in it."""

    # One that all histories have, else each has its own.
    stage: ClassVar[str | None] = None
    scene: str | None = None

    def set_scene(self, scene: str) -> None:
        """Before anything else is there."""
        self.scene = scene
        self.begin()
        if scene in POOLS:
            self.make_pool("p", *POOLS[scene])
        elif scene == "lanes":
            self.widen(3)
        elif scene == "dropping":
            self.bind("a", 4, "drop_oldest")
        elif scene == "blocking":
            self.bind("b", 2, "block")
        elif scene == "replays":
            self.replay_by_rule("a", self.backend.chance.choice((1, 2)))
        elif scene == "pace":
            self.pace("a", 3)
            self.limit("b", 1)
        elif scene == "graves":
            self.keep_dead("a", None, self.backend.chance.choice((1, 2)))
            self.check()
            self.keep_dead("b", 400_000, None)
        elif scene == "tenants":
            self.share("a", {"x": 3, "y": 2})
        elif scene == "copies":
            self.copy_dead("a", copies=True)
        self.check()

    @precondition(lambda self: self.scene is not None)
    @rule(at=which, count=st.sampled_from((1, 2, 3)))
    def play(self, at: int, count: int) -> None:
        """What the scene is about."""
        act = self.draw if self.scene in POOLS else getattr(self, f"play_{self.scene}")
        act(at, count)

    @precondition(lambda self: self.scene is not None)
    @rule(at=st.lists(which, min_size=2, max_size=3), count=st.sampled_from((1, 2)))
    def go_on(self, at: list[int], count: int) -> None:
        """More of it, with nothing in between."""
        for one in at:
            self.play(one, count)
            self.check()

    def put_in(self, queue: str, count: int, **chosen: Any) -> None:
        """Several jobs at once."""
        self.push_batch([(queue, PLAIN | chosen)] * count)
        self.check()

    def kill(self, queue: str, count: int) -> None:
        """A worker cannot do what is in a queue."""
        self.begin("fetch")
        got = self.fetch_as("w", [queue], count, [queue], None)
        self.check()
        for job in got:
            at = self.model.given.index(job["id"])
            self.nack(at, "w", owner=True, how="DEAD_LETTER")
            self.check()

    def draw(self, at: int, count: int) -> None:
        """More in each queue of the pool than is drawn, and not equally much."""
        pool = self.model.pools.get("p")
        if pool is None:
            return
        for number, queue in enumerate(pool.queues):
            self.put_in(queue, 2 * count + (at + number) % 3, attempts=1)
        for _ in range(2):
            self.begin("fetch")
            self.fetch_as(MEMBERS["p"], None, count, list(pool.queues), pool)
            self.check()
        if at % 2:
            # Anybody else, who may be given nothing of it where it is isolated.
            self.fetch_any(count, "w")

    def play_lanes(self, at: int, count: int) -> None:
        self.put_in("c", 3 + count, priority=(0, 5)[at % 2])
        self.begin("fetch")
        self.fetch_as("w", ["c"], 1 + at % 5, ["c"], None)

    def play_dropping(self, at: int, count: int) -> None:
        self.put_in("a", 1 + count, priority=(0, 5, -3)[at % 3])
        if at % 3 == 0:
            self.begin("fetch")
            self.fetch_as("w", ["a"], count, ["a"], None)

    def play_blocking(self, at: int, count: int) -> None:
        self.put_in("b", count)
        self.begin("fetch")
        self.fetch_as("w", ["b"], 1, ["b"], None)
        self.check()
        if self.waited_for():
            self.push_and_wait(at, PLAIN)

    def play_replays(self, at: int, count: int) -> None:
        self.put_in("a", count)
        self.kill("a", count)
        # Some of them before it is time, and some after.
        self.minutes_pass(1 + at % 3)
        self.check()
        self.kill("a", count)
        if at % 2:
            self.minutes_pass(3)

    def play_pace(self, at: int, count: int) -> None:
        queue = "ab"[at % 2]
        self.put_in(queue, count)
        self.begin("fetch")
        self.fetch_as("w", [queue], 1 + count, [queue], None)

    def play_keys(self, at: int, count: int) -> None:
        limit = ("one", "two", "drop", "later")[at % 4]
        self.put_in("a", count, limit=limit)
        self.put_in("b", 1, limit=limit)
        self.fetch_any(count, "w")
        self.check()
        self.look_at_limit(limit)

    def play_graves(self, at: int, count: int) -> None:
        queue = "ab"[at % 2]
        for _ in range(2):
            self.put_in(queue, count)
            self.kill(queue, count)
        self.minutes_pass(4)

    def play_tenants(self, at: int, count: int) -> None:
        told = [("a", PLAIN | {"tenant": tenant}) for tenant in ("x", "x", "y", "z")[: 1 + count]]
        self.push_batch(told)
        self.check()
        self.begin("fetch")
        self.fetch_as("w", ["a"], 1 + at % 3, ["a"], None)

    def play_bulk(self, at: int, count: int) -> None:
        self.put_in("a", 2 + count)
        self.kill("a", 2 + count)
        self.begin_operation(("retry", "purge")[at % 2], None)
        self.check()
        self.look_at_operation(-1)
        self.check()
        self.sweep()
        self.check()
        self.look_at_operation(-1)

    def play_maintenance(self, at: int, count: int) -> None:
        self.put_in("a", count, when=("now", "later")[at % 2])
        if at % 3 and not self.model.still:
            # Some run when it begins, some of which are lost.
            self.fetch_any(1, "w")
            self.check()
        self.begin()
        self.maintain(begins=not self.model.still)
        self.check()
        if at % 4 == 0:
            self.sweep()
            self.check()
        self.fetch_any(count, "w")

    def play_copies(self, at: int, count: int) -> None:
        self.put_in("a", count)
        self.kill("a", count)
        if at % 2:
            self.read_stream()
            self.check()
        if at % 3 == 0 and any(job.dead for job in self.model.jobs.values()):
            self.retry(at, twice=False)
