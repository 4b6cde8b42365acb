"""Room of new jobs of which nobody knows whether they are stored: it is free again half a minute
later if they are not, whatever the size of the queue, and never while they may still come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ReadTimeoutError

from ojs.domain.errors import BackendTimeout, QueueFull
from ojs.domain.job import envelope
from ojs.services.permits.backpressure import DOUBTED_MS, IN_DOUBT_MS
from ojs.store.table import keys

if TYPE_CHECKING:
    from ojs.runtime import Runtime
    from tests.store.conftest import World

# A small queue, and one whose counter has no marks.
BOUNDS = (1, 100)


class Unanswered:
    """A client on which no write of a new job is answered, while it is `on`. With `effect` its
    first try takes effect; else it may come `late`.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self.on = self.effect = False
        self.late: list[Callable[[], Any]] = []
        self.reads = 0
        self.job_id = ""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            self.reads += name == "get_item"
            if not self.on or name != "put_item" or "state" not in arguments["Item"]:
                return method(**arguments)
            if self.effect:
                self.effect = False
                method(**arguments)
            elif not self.late:
                self.late.append(lambda: method(**arguments))
                self.job_id = arguments["Item"]["pk"]["S"].removeprefix(keys.job(""))
            raise ReadTimeoutError(endpoint_url="dynamodb")

        return call


def push(run: Runtime, **more: Any) -> Any:
    return run.enqueue.push(envelope.parse({"type": "t", "args": [1], **more})).job


def depth(world: World) -> int:
    return world.run.stores.depth.value("default").count


class Scene:
    """A bounded queue with room for one more job, and a container that has one in doubt."""

    def __init__(self, world: World, bound: int) -> None:
        self.world, self.bound = world, bound
        world.run.queues.configure("default", {"max_size": bound})
        self.client = Unanswered(world.client)
        self.run = world.another(self.client)
        for _ in range(bound - 1):
            push(self.run)
        self.client.on = True
        with pytest.raises(BackendTimeout):
            push(self.run)
        self.client.on = False

    def is_full(self) -> bool:
        try:
            push(self.run)
        except QueueFull:
            return True
        return False


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_job_that_is_stored_after_all_is_answered(world: World, bound: int) -> None:
    """One read shows it; nothing is in doubt."""
    world.run.queues.configure("default", {"max_size": bound})
    client = Unanswered(world.client)
    run = world.another(client)
    client.on = client.effect = True
    reads = client.reads
    job = push(run)
    assert client.reads == reads + 2  # the queue, as before, and the job
    assert world.run.jobs.get(job.id).id == job.id
    assert depth(world) == 1


@pytest.mark.parametrize("bound", BOUNDS)
def test_room_of_a_job_that_is_not_stored_is_free_after_half_a_minute(
    world: World, bound: int
) -> None:
    scene = Scene(world, bound)
    world.clock.advance(IN_DOUBT_MS - 1)
    assert scene.is_full()
    world.clock.advance(1)
    assert not scene.is_full()
    assert depth(world) == bound
    assert scene.is_full()


@pytest.mark.parametrize("bound", BOUNDS)
def test_room_of_a_job_that_comes_late_stays(world: World, bound: int) -> None:
    scene = Scene(world, bound)
    world.clock.advance(IN_DOUBT_MS - 1)
    scene.client.late[0]()
    world.clock.advance(2)
    assert scene.is_full()
    assert depth(world) == bound


@pytest.mark.parametrize("moves", [False, True])
def test_room_of_a_job_that_came_ended_and_went_is_not_freed_twice(
    world: World, moves: bool
) -> None:
    """Its end has freed it: one more push has the room, and no two."""
    scene = Scene(world, 2)
    scene.client.late[0]()
    late = scene.client.job_id
    if moves:
        world.run.acts.change(late, priority=None, queue="there")
    world.run.jobs.cancel(late)
    world.run.acts.delete(late)
    world.clock.advance(IN_DOUBT_MS)
    assert depth(world) == 1
    assert not scene.is_full()
    assert scene.is_full()


def test_what_is_in_doubt_for_too_long_is_left_to_the_sweep(world: World) -> None:
    scene = Scene(world, 1)
    world.clock.advance(DOUBTED_MS)
    assert scene.is_full()
