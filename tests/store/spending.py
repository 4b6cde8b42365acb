"""What a call reads and writes, in DynamoDB's units."""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ojs.domain.job import envelope
from ojs.store.table import keys

if TYPE_CHECKING:
    from tests.store.conftest import World

# Retry settings that are not the defaults, a long worker id: an ordinary job, not a bare one.
RETRY = {"max_attempts": 5, "initial_interval": "PT2S"}
WORKER = "worker_019414d4-aaaa-7000-c000-111111111111"


@dataclass
class Spent:
    """What a block of code spent."""

    calls: int = 0
    writes: float = 0.0
    reads: float = 0.0


@contextmanager
def spending(world: World) -> Iterator[Spent]:
    meter, spent = world.run.table.meter, Spent()
    meter.reset()
    yield spent
    spent.calls, spent.writes, spent.reads = len(meter.calls), meter.write_units, meter.read_units


def reading_notes(world: World) -> Spent:
    """What reading the due notes costs now: a run of the minute reads them once for all sweeps."""
    with spending(world) as spent:
        world.run.stores.due_notes.lines()
    return spent


def incompressible(size: int) -> str:
    """Text that no compression makes smaller by much, the same each time."""
    return "".join(random.Random(size).choices(string.ascii_letters + string.digits, k=size))


def warm(world: World) -> None:
    """The queue exists, its line is noted, and the worker is known, as in steady operation."""
    world.run.stores.due_notes.note([(keys.due("default", 0), world.clock.now_ms())])
    world.push()
    (job,) = world.fetch(worker=WORKER)
    world.run.workers.beat(WORKER, active_jobs=[job.id])
    world.run.finish.ack(job.id)


def stage_once(world: World) -> None:
    """Stage a batch, so that the container has noted its slot of staged batches.

    It does so once in five minutes: a call and a write unit, which are part of no batch.
    """
    job = {"type": "t", "args": [], "options": {"queue": "staged"}}
    world.run.enqueue.push_batch([envelope.parse(job)] * 5)
