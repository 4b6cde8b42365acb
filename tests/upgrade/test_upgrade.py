"""This version on the data of earlier ones: nothing is lost, and everything goes on.

The data are what those versions wrote (`make_data.py`), not what this one thinks they did.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import unquote

import pytest

from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.errors import NotFound
from ojs.domain.job import envelope
from ojs.domain.job.job import Job, to_dict
from ojs.domain.job.states import State
from ojs.services.operations.setup import Setup
from ojs.services.sweeps import SweepCounts
from ojs.settings import Settings
from ojs.store.deliveries.deliveries import DeliveryStore
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.table.table import MAX_BATCH_WRITE, Table
from tests.spread import spread
from tests.unit.functions.client import MemoryBlobs

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

RELEASES = sorted((Path(__file__).parent / "data").glob("*.json.gz"))
_MINUTE_MS = 60_000


@dataclass
class Upgraded:
    """A table that an earlier version filled, and this version at work on it."""

    run: runtime.Runtime
    clock: ManualClock
    # As they were written.
    records: dict[str, dict[str, Any]]

    def job(self, job_id: str) -> Job:
        return self.run.jobs.get(job_id)

    def of(self, queue: str) -> list[str]:
        return [job_id for job_id, record in self.records.items() if record["queue"] == queue]

    def sweep(self, minutes: int) -> None:
        self.clock.advance(minutes * _MINUTE_MS)
        now_ms = self.clock.now_ms()
        self.run.sweep.run_once(now_ms, 10_000)
        self.run.deletion.look_after(10_000, SweepCounts())
        self.run.replay.run_once(now_ms, 1_000)
        self.run.throttle_sweep.run_once(now_ms, 1_000)
        self.run.reconcile.run_once(now_ms, 1_000)
        self.run.pool_permit_sweep.run_once(now_ms, 2_000)


def plain(typed: dict[str, Any]) -> dict[str, Any]:
    return {
        name: int(value["N"]) if "N" in value else next(iter(value.values()))
        for name, value in typed.items()
    }


def restored(value: Any) -> Any:
    """Bytes were written as texts."""
    if isinstance(value, dict):
        if set(value) == {"b64"}:
            return base64.b64decode(value["b64"])
        return {name: restored(inner) for name, inner in value.items()}
    return value


@cache
def written(release: Path) -> dict[str, Any]:
    """What a version wrote."""
    data: dict[str, Any] = json.loads(gzip.decompress(release.read_bytes()))
    return data


@pytest.fixture(params=RELEASES, ids=lambda path: path.name.removesuffix(".json.gz"))
def upgraded(
    request: pytest.FixtureRequest, dynamodb: DynamoDBClient, fresh_table: str
) -> Upgraded:
    data = written(request.param)
    puts: list[Any] = [{"PutRequest": {"Item": restored(item)}} for item in data["items"]]
    for at in range(0, len(puts), MAX_BATCH_WRITE):
        dynamodb.batch_write_item(RequestItems={fresh_table: puts[at : at + MAX_BATCH_WRITE]})
    blobs = MemoryBlobs()
    for name, content in data["blobs"].items():
        blobs.put(unquote(name), base64.b64decode(content))
    clock = ManualClock(data["at_ms"])
    table = Table(dynamodb, fresh_table)
    setup = Setup(
        DeploymentStore(table), AccessKeyStore(table), DeliveryStore(table), clock, version="2"
    )
    setup.check_table()
    built = runtime.build(
        Settings(table=fresh_table, bucket="payloads"),
        client=dynamodb,
        blobs=blobs,
        clock=clock,
        sleep=lambda _: None,
    )
    records = {
        item["pk"]["S"].removeprefix("J|"): plain(item)
        for item in data["items"]
        if item["pk"]["S"].startswith("J|") and item["sk"]["S"] == "@"
    }
    return Upgraded(built, clock, records)


def test_there_are_data_of_every_state(upgraded: Upgraded) -> None:
    assert {record["state"] for record in upgraded.records.values()} == {
        state.value for state in State
    }


def test_every_job_reads_as_it_was(upgraded: Upgraded) -> None:
    """Or as time has moved it on since."""
    for job_id, record in upgraded.records.items():
        job = upgraded.job(job_id)
        assert (job.type, job.queue) == (record["type"], record["queue"])
        assert job.content is not None
        shown = to_dict(job)
        assert shown["args"]
        if State(record["state"]) in (State.COMPLETED, State.CANCELLED, State.DISCARDED):
            assert job.state.value == record["state"]
    texts = [upgraded.job(job_id).content for job_id in upgraded.of("plain")]
    lengths = {len(str((content or {})["args"][0])) for content in texts}
    assert {5, 5_000, 400_000} <= lengths
    done = [upgraded.job(job_id) for job_id in upgraded.of("done")]
    results = [job.result for job in done if job.state is State.COMPLETED]
    assert sorted(results, key=str) == ["x" * 5_000, {"ok": True}]


def test_those_who_hold_a_job_end_it(upgraded: Upgraded) -> None:
    held = {i: record for i, record in upgraded.records.items() if record["state"] == "active"}
    for job_id, record in held.items():
        if record["lease_until"] <= upgraded.clock.now_ms():
            continue
        done = upgraded.run.finish.ack(
            job_id,
            worker_id=record["worker"],
            lease_token=record["lease"],
            attempt=record["attempt"],
        )
        assert done.state is State.COMPLETED


def test_everything_goes_on_until_it_is_done(upgraded: Upgraded) -> None:
    run = upgraded.run
    final = {"completed", "cancelled", "discarded"}
    (pending,) = [i for i, record in upgraded.records.items() if record["state"] == "pending"]
    run.jobs.activate(pending)
    run.queues.resume("paused")
    dead = [i for i, record in upgraded.records.items() if "dead" in record]
    assert len(dead) == 3
    # One comes back by hand, one by the queue's rule when it is time.
    run.redrive.retry(next(i for i in dead if upgraded.records[i]["queue"] == "dead"))
    queues = sorted({record["queue"] for record in upgraded.records.values()} | {"copies"})
    started: Counter[str] = Counter()
    for _ in range(200):
        found = 0
        for queue in queues:
            pool = "p" if queue in ("pa", "pb") else None
            worker = "w2" if pool else "w1"
            for job in run.fetch.fetch([queue], 20, worker, pool=pool):
                token = job.lease.token if job.lease else None
                run.finish.ack(job.id, worker_id=worker, lease_token=token)
                started[job.id] += 1
                found += 1
        upgraded.sweep(1 if found else 20)
        if not found and upgraded.clock.now_ms() > _begun(upgraded) + 3 * 3_600_000:
            break
    left = {i for i in upgraded.records if _state(upgraded, i) not in final}
    assert left == set()
    undone = {i for i, record in upgraded.records.items() if record["state"] not in final}
    # Whose deadline passed first needs no run; nothing ran that was done before.
    assert undone - started.keys() <= {i for i in undone if _state(upgraded, i) == "discarded"}
    assert {upgraded.records[i]["queue"] for i in started if i in upgraded.records} >= {
        "plain", "lanes", "bounded", "fair", "pa", "pb", "limited", "slots", "rated", "failing",
        "replayed", "dead", "running", "stalling", "staged", "paused", "ending", "uniquely",
    }  # fmt: skip
    # The deleted queue ended, and places were given back.
    with pytest.raises(NotFound):
        run.queues.get("ending")
    assert run.stores.depth.value("bounded").count == 0
    assert run.stores.semaphore.counts({"slots": None}) == {"slots": 0}


@pytest.mark.parametrize("seed", spread(range(3), 3))
def test_two_versions_side_by_side_lose_and_double_nothing(upgraded: Upgraded, seed: int) -> None:
    """While a deployment is under way: the earlier one claims with due entries and puts in line
    what is due, and its sweep reads no lease notes.
    """
    chance = random.Random(seed)
    new, clock = upgraded.run, upgraded.clock
    client: Any = new.table.client
    old = runtime.build(
        Settings(table=new.table.name),
        client=client,
        blobs=new.blobs,
        clock=clock,
        sleep=lambda _: None,
    )
    as_before = (
        mock.patch.object(old.fetch, "_note", return_value=False),
        mock.patch.object(old.fetch, "_starts_now", return_value=False),
        mock.patch.object(old.sweep._leases, "look"),
    )
    pushed, leases, done = set(), [], []
    with as_before[0], as_before[1], as_before[2]:
        for _ in range(60):
            run = chance.choice((old, new))
            options: dict[str, Any] = {
                "queue": "both",
                "retry": {"max_attempts": 99, "initial_interval": "PT1S"},
            }
            if chance.random() < 0.3:
                options["scheduled_at"] = "+PT3S"
            told = run.enqueue.push(envelope.parse({"type": "t", "args": [], "options": options}))
            pushed.add(told.job.id)
            for job in chance.choice((old, new)).fetch.fetch(
                ["both"], 2, "w", visibility_timeout_ms=20_000
            ):
                leases.append(job.lease.token if job.lease else "")
                ends = chance.choice((old, new)).finish
                match chance.randrange(4):
                    case 0:
                        ends.nack(job.id, error={"code": "x", "message": "x"}, worker_id="w")
                    case 1:
                        pass  # its worker dies
                    case _:
                        done.append(ends.ack(job.id, worker_id="w").id)
            clock.advance(chance.choice((100, 1_500, 30_000)))
            if chance.random() < 0.3:
                swept = chance.choice((old, new)).sweep.run_once(clock.now_ms(), 1_000)
                assert not swept.failures
    # From now on there is the new one alone.
    for _ in range(20):
        clock.advance(61_000)
        new.sweep.run_once(clock.now_ms(), 1_000)
        for job in new.fetch.fetch(["both"], 20, "w"):
            leases.append(job.lease.token if job.lease else "")
            done.append(new.finish.ack(job.id, worker_id="w").id)
    assert sorted(done) == sorted(pushed)
    assert len(leases) == len(set(leases)) == sum(upgraded.job(i).attempt for i in pushed)


def _begun(upgraded: Upgraded) -> int:
    return max(int(record["created"]) for record in upgraded.records.values())


def _state(upgraded: Upgraded, job_id: str) -> str:
    return upgraded.job(job_id).state.value
