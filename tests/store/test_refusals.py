"""What DynamoDB refuses was certainly not done: what was acquired for it is free again at once."""

from __future__ import annotations

from typing import Any

import pytest

from ojs.domain.errors import BackendUnavailable
from ojs.domain.job import envelope
from ojs.store.table import keys
from tests.store.conftest import World
from tests.store.faults import Faulty

QUEUE = "default"
REFUSALS = ("ThrottlingException", "TransactionConflictException")


class Refusing:
    """A client that refuses so many writes of job records in a row, and does the rest."""

    def __init__(self, client: Any, code: str, times: int) -> None:
        self._client, self._code, self.left = client, code, times

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**arguments: Any) -> Any:
            of_job = str(arguments.get("Key", arguments.get("Item"))).find(keys.job("")) >= 0
            if self.left and of_job and name in ("put_item", "update_item"):
                self.left -= 1
                return getattr(Faulty(self._client, 1, self._code), name)(**arguments)
            return method(**arguments)

        return call


def limits(world: World, kind: str) -> dict[str, Any]:
    """Limit what runs to one job, by a limit of this kind; the options of its jobs."""
    if kind == "queue":
        world.run.queues.configure(QUEUE, {"concurrency": 1})
        return {}
    return {"rate_limit": {"key": "api", "concurrency": 1}}


@pytest.mark.parametrize("code", REFUSALS)
@pytest.mark.parametrize("kind", ["queue", "key"])
def test_a_refused_claim_gives_its_permits_back_at_once(world: World, kind: str, code: str) -> None:
    options = limits(world, kind)
    for _ in range(3):
        world.push(**options)
    for _ in range(3):
        fetch = world.another(Refusing(world.client, code, 4)).fetch.fetch
        with pytest.raises(BackendUnavailable):
            fetch([QUEUE], 1, "w")
        (job,) = fetch([QUEUE], 1, "w")
        assert fetch([QUEUE], 1, "w") == []
        world.run.finish.ack(job.id, worker_id="w")


@pytest.mark.parametrize("kind", ["queue", "key"])
def test_a_claim_refused_at_first_and_lost_then_leaks_no_permit(world: World, kind: str) -> None:
    options = limits(world, kind)
    first, second = world.push(**options), world.push(**options)
    refusing = world.another(Refusing(world.client, REFUSALS[0], 1))
    claim = refusing.fetch._jobs.claim

    def meanwhile(job_id: str, *args: Any, **how: Any) -> Any:
        # Race: the job is cancelled between its place in line and the claim.
        if job_id == first.id:
            world.run.jobs.cancel(first.id)
        return claim(job_id, *args, **how)

    refusing.fetch._jobs.claim = meanwhile  # type: ignore[method-assign]
    refusing.fetch.fetch([QUEUE], 1, "w")
    world.another().fetch.fetch([QUEUE], 1, "v")
    assert world.state(second) == "active"
    world.run.finish.ack(second.id)
    world.push(**options)
    assert len(world.fetch()) == 1


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refused_push_gives_its_room_back_at_once(world: World, code: str) -> None:
    world.run.queues.configure(QUEUE, {"max_size": 1})
    request = envelope.parse({"type": "test.job", "args": []})
    for _ in range(3):
        with pytest.raises(BackendUnavailable):
            world.another(Refusing(world.client, code, 4)).enqueue.push(request)
    assert world.run.stores.depth.value(QUEUE).count == 0
    assert world.another(Refusing(world.client, code, 3)).enqueue.push(request).job.id
    assert world.run.stores.depth.value(QUEUE).count == 1


def test_a_refused_payload_is_not_left_behind(world: World) -> None:
    """Nothing names it, as its job was never written."""
    request = envelope.parse({"type": "test.job", "args": ["x" * 5_000]})
    with pytest.raises(BackendUnavailable):
        world.another(Refusing(world.client, REFUSALS[0], 4)).enqueue.push(request)
    assert not [item for item in world.items() if item["pk"]["S"].startswith(keys.job(""))]


def test_counters_and_jobs_share_one_client_and_its_connections(world: World) -> None:
    """A connection that died while the container was frozen is found by a call that may be
    repeated, before the one that may not.
    """
    assert world.run.stores.semaphore._table.client is world.run.table.client
