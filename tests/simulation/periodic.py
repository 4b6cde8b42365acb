"""Cron jobs under faults: evaluated by fetches and sweeps of several containers at once, changed
and triggered meanwhile. They end with the run, so that all comes to rest.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

from ojs.domain import times
from ojs.domain.access import ANYBODY
from ojs.store.table import keys
from tests.simulation.actors import Operator, Producer, Worker
from tests.simulation.acts import RETRY, some
from tests.simulation.invariants import broken
from tests.simulation.memory import Change
from tests.simulation.world import Acts, World

NAME = "c"
POLICIES = ("skip", "allow", "cancel_previous", "enqueue")
_FINAL = ("completed", "cancelled", "discarded")
_LENGTH_MS = 60_000


class CronHand(Operator):
    """Manages the cron job."""

    def register(self, overlap: str, **more: Any) -> None:
        raw = {
            "name": NAME,
            "expression": "*/5 * * * * *",
            "ends_at": times.format_ms(self.world.clock.now_ms() + _LENGTH_MS),
            "overlap_policy": overlap,
            "job_template": {"type": "periodic", "args": ["x"], "options": {"retry": RETRY}},
            **more,
        }
        self.ask("register cron", lambda: self.run.crons.register(raw, ANYBODY, None))

    def change(self, **change: Any) -> None:
        self.ask("change cron", lambda: self.run.crons.change(NAME, change, ANYBODY, None))

    def trigger(self) -> None:
        self.ask("trigger cron", lambda: self.run.crons.trigger(NAME, ANYBODY, None))


def cron(world: World) -> list[Acts]:
    """A cron job whose ticks come every five seconds, by each overlap policy."""
    overlap = world.chance.choice(POLICIES)
    bound = world.chance.choice(({}, {}, {"max_size": 2}))
    world.queues.add("default")
    world.run.queues.create("default", bound)
    one, other, third = (CronHand(world, name) for name in ("o1", "o2", "o3"))
    one.register(overlap)
    world.memory.watchers.append(Overlaps(overlap))
    workers = [Worker(world, "w1"), Worker(world, "w2")]
    producer = Producer(world, "p")
    waiting: Acts = [partial(one.wait, 5_000), partial(one.wait, 5_000), one.wait]
    managing: Acts = [
        partial(third.register, overlap),
        partial(third.register, overlap, description="new"),
        partial(third.change, enabled=False),
        partial(third.change, enabled=True),
        partial(third.change, timezone="Asia/Tokyo"),
    ]
    if overlap == "allow":
        managing.append(third.trigger)
    return [
        [one.does(act) for act in some(world.chance, [*waiting, one.sweep], 8)],
        [other.does(act) for act in some(world.chance, [other.sweep, other.wait], 5)],
        [third.does(act) for act in some(world.chance, managing, 3)],
        [producer.does(partial(producer.push, retry=RETRY))],
        *[
            [worker.does(act) for act in some(world.chance, [worker.fetch, worker.ack], 6)]
            for worker in workers
        ],
    ]


class Overlaps:
    """Sees at each write that jobs overlap only as the policy allows."""

    def __init__(self, overlap: str) -> None:
        self._overlap = overlap
        self._open: dict[str, str] = {}

    def __call__(self, changes: list[Change]) -> None:
        for (pk, sk), _, after in changes:
            if sk != keys.RECORD or not pk.startswith(keys.job("")):
                continue
            if after is None or after["type"]["S"] != "periodic" or after["state"]["S"] in _FINAL:
                self._open.pop(pk, None)
            else:
                self._open[pk] = after["state"]["S"]
        states = Counter(self._open.values())
        if self._overlap in ("skip", "cancel_previous") and len(self._open) > 1:
            raise broken("jobs of a cron job do not overlap", jobs=sorted(self._open))
        if self._overlap == "enqueue" and states["active"] > 1:
            raise broken("jobs of a cron job wait for each other", jobs=sorted(self._open))


def crons_are_exact(found: Mapping[tuple[str, str], dict[str, Any]]) -> None:
    """Each tick has at most one job, each job is logged and counted, and each entry is true."""
    logs: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    jobs: Counter[str] = Counter()
    for (pk, sk), item in found.items():
        if pk.startswith(keys.cron_runs("")):
            logs[pk.removeprefix(keys.cron_runs(""))].append(item)
        elif pk.startswith(keys.job("")) and sk == keys.RECORD and item["type"] == "periodic":
            jobs[json.loads(item["body"])["meta"]["cron_name"]] += 1
    for (pk, sk), item in found.items():
        if not pk.startswith(keys.cron("")) or sk != keys.RECORD:
            continue
        name = keys.cron_name(pk)
        fired = [entry for entry in logs[name] if "job" in entry]
        ticks = Counter(entry["tick"] for entry in fired if "tick" in entry)
        if ticks and max(ticks.values()) > 1:
            raise broken("a tick fires once", cron=name, ticks=dict(ticks))
        if len({entry["job"] for entry in fired}) != len(fired) or item["runs"] != len(fired):
            raise broken("each run is logged once", cron=name, runs=item["runs"], log=len(fired))
        if jobs[name] != len(fired):
            raise broken("each run has its job", cron=name, jobs=jobs[name], log=len(fired))
