"""Erasing a person's data: nothing of it is left in table or bucket, whatever dies."""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain import times
from ojs.domain.bulk.operation import CLOCKS_MS, Action, JobIds, Phase
from ojs.domain.dead_letter.override import JobOverride
from ojs.domain.errors import NotFound
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job import envelope
from ojs.domain.job.states import State
from ojs.services.bulk import runner as bulk
from ojs.store.jobs.blobs import ARCHIVE
from ojs.store.table import keys
from tests.spread import examples
from tests.store.durable_jobs import done, save, signal, suspend
from tests.store.faults import Faulty, attempt
from tests.store.spending import incompressible, spending
from tests.store.streams import Projected, Stream
from tests.store.workflow_runs import chain, create, step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from ojs.domain.job.job import Job
    from tests.store.conftest import World

SECRET = "alice-4711"
WHO = {"customer": SECRET}
ALICE = JobFilter(meta=WHO)
DAY_MS = 86_400_000


class Scene:
    """A world whose stream is read."""

    def __init__(self, world: World) -> None:
        self.world, self.run = world, world.run
        self.stream = Stream(world.client, world.table)
        self.projected = Projected(
            world.client,
            world.table,
            world.clock,
            copies=self.run.copies,
            blobs=world.blobs,
            workflows=lambda: self.run.workflow_advance,
        )

    def read_stream(self) -> None:
        assert self.projected.run(self.stream.take()) == []

    def push(self, *args: Any, who: Any = WHO, **options: Any) -> Job:
        raw: dict[str, Any] = {"type": "test.job", "args": list(args), "options": options}
        if who:
            raw["meta"] = who
        return self.run.enqueue.push(envelope.parse(raw)).job

    def fetched(self, queue: str = "default") -> Job:
        (got,) = self.world.fetch(queue)
        return got

    def minutes(self, count: int = 1) -> None:
        """As the scheduler runs the stream function and the sweep."""
        for _ in range(count):
            self.read_stream()
            self.world.clock.advance(61_000)
            self.run.bulk.run_once(self.world.clock.now_ms(), 5_000)
        self.read_stream()

    def erase(self, **more: Any) -> str:
        """Have Alice's jobs erased; the operation's id."""
        return self.run.bulk.begin(Action.ERASE_JOBS, ALICE, **more).operation.id

    def left(self) -> list[str]:
        """Where the secret is, in the table and in the bucket."""
        found = [
            f"{item['pk']} {item['sk']} {name}"
            for item in self.projected.stored().values()
            for name, value in item.items()
            if _has(value)
        ]
        return found + [key for key, body in self.world.blobs.objects.items() if _has(body)]


def _has(value: Any) -> bool:
    """Whether a value, or what is compressed in it, has the secret."""
    if isinstance(value, bytes | bytearray):
        body = bytes(value)
        for unpack in (bytes, zlib.decompress, gzip.decompress):
            try:
                if SECRET.encode() in unpack(body):
                    return True
            except (OSError, zlib.error, EOFError):
                continue
        return False
    return SECRET in str(value)


@contextmanager
def _scene(streamed: Callable[[], AbstractContextManager[World]]) -> Iterator[Scene]:
    with streamed() as world:
        yield Scene(world)


@pytest.fixture
def scene(streamed: Callable[[], AbstractContextManager[World]]) -> Iterator[Scene]:
    with _scene(streamed) as made:
        yield made


def everywhere(scene: Scene) -> None:
    """Jobs of Alice's in every state, and the secret wherever a job may have it."""
    world, run = scene.world, scene.run
    later = times.format_ms(world.clock.now_ms() + 3_600_000)
    scene.push(SECRET, queue="waits")
    scene.push(SECRET, "y" * 5_000, queue="waits")
    scene.push(SECRET * 50_000, queue="waits")
    scene.push(SECRET, queue="waits", scheduled_at=later)
    scene.push(SECRET, queue="waits", pending=True)
    scene.push(SECRET, queue="waits", unique={"keys": ["type", "args"]})
    # Jobs that have ended: with a small result, one beside the record, one in the bucket.
    for result in (SECRET, SECRET * 100, {"text": SECRET * 50_000}):
        job = scene.push(SECRET, queue="done")
        got = scene.fetched("done")
        run.jobs.report_progress(got.id, progress=0.5, data={"of": SECRET})
        run.finish.ack(job.id, result=result)
    cancelled = scene.push(SECRET, queue="done")
    run.jobs.cancel(cancelled.id)
    # One that failed, more than once, and runs again.
    failed = scene.push(
        SECRET, queue="fails", retry={"max_attempts": 9, "initial_interval": "PT1S"}
    )
    for _ in range(2):
        scene.fetched("fails")
        error = {"message": SECRET, "details": {"who": SECRET * 200}, "backtrace": [SECRET]}
        run.finish.nack(failed.id, error=error)
        world.clock.advance(60_000)
    running = scene.fetched("fails")
    run.jobs.report_progress(running.id, progress=0.1, message=SECRET)
    # A dead letter that came back with other args, and died again; and its copy.
    run.queues.create("dies", {"dead_letter_queue": "copies"})
    dead = scene.push("first", queue="dies", retry={"max_attempts": 1})
    for text in (SECRET, SECRET * 50_000):
        scene.fetched("dies")
        run.finish.nack(dead.id, error={"message": SECRET, "type": "Broken"})
        run.redrive.retry(dead.id, JobOverride(args=[text]))
    scene.fetched("dies")
    run.finish.nack(dead.id, error={"message": SECRET})
    # Jobs with durable code, suspended and dead. Their checkpoints are in the bucket.
    for queue in ("sleeps", "fell"):
        scene.push("first", queue=queue)
        job = scene.fetched(queue)
        save(world, job, done("charge", SECRET), done("mail", {"of": SECRET * 200}, ok=False))
        run.checkpoints.save(job.id, {"who": SECRET, "more": incompressible(500_000)})
        run.signals.send(job.id, "early", SECRET)
        if queue == "sleeps":
            suspend(world, job, signal("late"))
        else:
            run.finish.nack(job.id, error={"code": "DEAD_LETTER"})
    # Somebody else's.
    scene.push("bob", queue="waits", who={"customer": "bob"})
    scene.push("nobody", queue="waits", who=None)


def test_nothing_of_a_person_is_left(scene: Scene) -> None:
    everywhere(scene)
    scene.read_stream()
    assert len(scene.left()) > 15
    for place in ("step|0000|s|charge", "step|0000|s|mail", "step|0000|g|early", "checkpoint"):
        assert len([each for each in scene.left() if place in each]) == 2, place
    operation = scene.erase()
    scene.minutes(3)
    found = scene.run.bulk.get(operation)
    assert (found.phase, found.failed) == (Phase.COMPLETED, 0)
    # Results and errors stay in the event log for its days: docs/data-retention.md says so.
    assert {place.split("|")[0] for place in scene.left()} <= {"E"}
    scene.world.clock.advance(8 * DAY_MS)
    assert _after_time_to_live(scene) == []
    assert len(_listed(scene, JobFilter("waits"))) == 2, "those of others are there"


def _after_time_to_live(scene: Scene) -> list[str]:
    """Where the secret is in what DynamoDB does not remove by now."""
    now_s = scene.world.clock.now_ms() // 1_000
    return [
        f"{item['pk']} {item['sk']} {name}"
        for item in scene.projected.stored().values()
        if not ("ttl" in item and item["ttl"] <= now_s)
        for name, value in item.items()
        if _has(value)
    ]


def test_the_log_forgets_results_where_it_must_list_their_jobs(scene: Scene) -> None:
    """A queue keeps its jobs for long: the page that lists them has nothing but that they ended."""
    scene.run.queues.create("kept", {"retention": {"completed": "P60D"}})
    job = scene.push(queue="kept", who=None)
    scene.fetched("kept")
    scene.run.finish.ack(job.id, result=SECRET)
    scene.read_stream()
    assert any(place.startswith("E|") for place in scene.left())
    # Lists find the days on which jobs ended by their sums.
    scene.run.metrics_sweep.run_once(scene.world.clock.now_ms(), 100)
    scene.world.clock.advance(9 * DAY_MS)
    assert [p for p in _after_time_to_live(scene) if p.startswith("E|")] == []
    gone = [i for i in scene.projected.stored().values() if i.get("ttl", 1 << 60) <= _now_s(scene)]
    for removed in (gone, []):
        scene.run.table.write_many(deletes=[(str(i["pk"]), str(i["sk"])) for i in removed])
        assert _listed(scene, JobFilter("kept", (State.COMPLETED,))) == [job.id]


def _listed(scene: Scene, wanted: JobFilter) -> list[str]:
    """The ids of all jobs of a listing."""
    return [job.id for job in _all(scene, wanted)]


def _all(scene: Scene, wanted: JobFilter) -> list[Job]:
    found: list[Job] = []
    cursor = None
    while True:
        page = scene.run.listing.page(wanted, limit=10, cursor=cursor)
        found += page.items
        if (cursor := page.next_cursor) is None:
            return found


def _now_s(scene: Scene) -> int:
    return scene.world.clock.now_ms() // 1_000


def test_the_bus_and_the_log_never_have_args_or_meta(scene: Scene) -> None:
    """Args and meta of jobs that take every way there is; results and errors are no part here."""
    run = scene.run
    job = scene.push(SECRET, queue="ends")
    scene.fetched("ends")
    run.finish.ack(job.id, result={"ok": True})
    run.jobs.cancel(scene.push(SECRET, queue="ends").id)
    dead = scene.push(SECRET, queue="ends", retry={"max_attempts": 1})
    scene.fetched("ends")
    run.finish.nack(dead.id, error={"message": "no"})
    run.redrive.retry(dead.id, JobOverride(args=[SECRET, 2]))
    create(run, chain(step("a", SECRET, meta=WHO), step("b", SECRET)))
    scene.read_stream()
    kinds = {event["type"] for event in scene.projected.events()}
    assert {"job.enqueued", "job.completed", "job.cancelled", "job.discarded"} <= kinds
    assert not _has(scene.projected.events())
    assert not _has([event.to_dict() for event in scene.projected.bus.taken])


def test_an_archive_is_written_anew_without_a_person(scene: Scene) -> None:
    run, clock = scene.run, scene.world.clock
    run.queues.create(
        "old", {"dead_letter": {"retention": {"max_age": "P1D"}, "pruning_policy": "archive"}}
    )
    for who in (WHO, {"customer": "bob"}):
        dead = scene.push(who["customer"], who=who, queue="old", retry={"max_attempts": 1})
        scene.fetched("old")
        run.finish.nack(dead.id, error={"message": who["customer"]})
    scene.read_stream()
    clock.advance(2 * DAY_MS)
    run.prune.run_once(clock.now_ms(), 100)
    scene.read_stream()
    (name,) = (key for key in scene.world.blobs.objects if key.startswith(ARCHIVE))
    assert scene.left() != []
    counted = run.bulk.begin(Action.ERASE_JOBS, ALICE, dry_run=True).operation
    assert (counted.phase, counted.matched) == (Phase.COMPLETED, 1)
    operation = scene.erase()
    scene.minutes(2)
    assert run.bulk.get(operation).succeeded == 1
    assert [p for p in scene.left() if not p.startswith("E|")] == []
    lines = gzip.decompress(scene.world.blobs.objects[name]).splitlines()
    assert [json.loads(line)["meta"] for line in lines] == [{"customer": "bob"}]
    # What is left of it goes with its last job.
    bob = JobFilter(queue="old", meta={"customer": "bob"})
    run.bulk.begin(Action.ERASE_JOBS, bob)
    assert name not in scene.world.blobs.objects


def test_an_archive_that_cannot_be_read_keeps_an_erasure_from_its_end(scene: Scene) -> None:
    scene.world.blobs.put(f"{ARCHIVE}q/2026/01/01/1-a.jsonl.gz", b"\x1f\x8bnonsense")
    operation = scene.erase()
    scene.minutes(3)
    assert scene.run.bulk.get(operation).phase is Phase.RUNNING


def test_an_erasure_forgets_for_whom_it_was(scene: Scene) -> None:
    scene.push(queue="waits")
    ended = scene.erase()
    assert scene.run.bulk.get(ended).wanted == ALICE
    assert scene.left() != [], "while it goes on it must know"
    scene.minutes(3)
    assert scene.run.bulk.get(ended).wanted == JobFilter(meta={"customer": None})
    stopped = scene.erase()
    scene.run.bulk.stop(stopped)
    assert scene.run.bulk.get(stopped).wanted == JobFilter(meta={"customer": None})
    scene.erase(dry_run=True)
    assert [p for p in scene.left() if not p.startswith("E|")] == []


def test_jobs_can_be_named(scene: Scene) -> None:
    waiting, running = scene.push(queue="a"), scene.push(queue="b")
    got = scene.fetched("b")
    assert got.id == running.id
    done = scene.run.bulk.begin(Action.ERASE_JOBS, JobIds((waiting.id, running.id)))
    assert sorted(done.job_ids) == sorted((waiting.id, running.id))
    assert done.operation.phase is Phase.COMPLETED
    with pytest.raises(NotFound):
        scene.run.finish.ack(running.id, lease_token=got.lease.token if got.lease else None)
    assert scene.left() == []


def test_only_jobs_that_were_there_when_it_began(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "REQUEST_JOBS", 1)
    scene.push(queue="a")
    scene.push(queue="b")
    scene.erase()
    scene.world.clock.advance(CLOCKS_MS + 1)
    later = scene.push(queue="a")
    scene.minutes(4)
    assert scene.run.jobs.get(later.id).state is State.AVAILABLE


def test_a_job_stored_by_a_clock_that_is_ahead(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when the erasure began, by whose clock it came later."""
    monkeypatch.setattr(bulk, "REQUEST_JOBS", 1)
    scene.push(queue="a")
    scene.push(queue="b")
    scene.erase()
    scene.world.clock.advance(2_000)
    ahead = scene.push(queue="a")
    scene.minutes(4)
    with pytest.raises(NotFound):
        scene.run.jobs.get(ahead.id)


def test_a_job_that_was_done_a_moment_ago_is_found(scene: Scene) -> None:
    """It runs no more, and the log does not know of it yet; a lease note does."""
    job = scene.push(SECRET, queue="a")
    scene.fetched("a")
    scene.run.finish.ack(job.id, result=SECRET)
    operation = scene.erase()
    assert scene.run.bulk.get(operation).succeeded == 1
    assert scene.run.bulk.get(operation).phase is Phase.RUNNING
    scene.minutes(3)
    assert scene.run.bulk.get(operation).phase is Phase.COMPLETED
    assert {place.split("|")[0] for place in scene.left()} <= {"E"}


def test_counters_that_are_behind_hide_no_job(scene: Scene) -> None:
    """The counters say that the queue is empty, and the stream is not read meanwhile."""
    job = scene.push(queue="a", who=None)
    scene.fetched("a")
    scene.run.finish.ack(job.id)
    scene.read_stream()
    scene.push(SECRET, queue="a")
    operation = scene.erase()
    for _ in range(2):
        scene.world.clock.advance(61_000)
        scene.run.bulk.run_once(scene.world.clock.now_ms(), 5_000)
    assert scene.run.bulk.get(operation).phase is Phase.COMPLETED
    assert scene.run.bulk.get(operation).succeeded == 1
    assert scene.left() == []


# --- workflows ------------------------------------------------------------------------------------


def test_a_workflow_that_is_over_goes_with_its_job(scene: Scene) -> None:
    run = scene.run
    made = create(run, chain(step("a", SECRET, meta=WHO), step("b", SECRET)))
    first = scene.fetched()
    run.finish.ack(first.id, result=SECRET)
    refused = run.bulk.begin(Action.ERASE_JOBS, JobIds((first.id,)))
    assert (refused.operation.failed, refused.errors[0].code) == (1, "conflict")
    assert refused.operation.to_dict()["state"] == "completed_with_failures"
    assert "workflow" in refused.errors[0].message
    second = scene.fetched()
    run.finish.ack(second.id, result=SECRET)
    scene.read_stream()
    operation = scene.erase()
    scene.minutes(3)
    assert run.bulk.get(operation).failed == 0
    assert run.stores.workflows.get(made.id) is None
    left = [place for place in scene.left() if not place.startswith("E|")]
    # The other step's job has nothing in its meta that says whose it is.
    assert {place.split()[0] for place in left} == {keys.job(second.id)}


def test_a_workflow_that_was_cancelled_while_a_job_ran(scene: Scene) -> None:
    run = scene.run
    made = create(run, chain(step("a", SECRET, meta=WHO), step("b", SECRET)))
    running = scene.fetched()
    run.workflow_control.cancel(made.id)
    refused = run.bulk.begin(Action.ERASE_JOBS, JobIds((running.id,)))
    assert refused.operation.failed == 1, "its end would be noted where nobody looks"
    run.finish.ack(running.id, result=SECRET)
    scene.read_stream()
    done = run.bulk.begin(Action.ERASE_JOBS, JobIds((running.id,)))
    assert done.operation.succeeded == 1
    scene.minutes()
    assert [p for p in scene.left() if not p.startswith("E|")] == []


# --- crashes and costs ----------------------------------------------------------------------------


def _small(scene: Scene) -> None:
    """A job that waits, one that runs, one that is done, and a dead letter; and Bob's."""
    scene.push(SECRET, "y" * 5_000, unique={"keys": ["type", "args"]})
    scene.push(SECRET, priority=2)
    scene.fetched()
    done = scene.push(SECRET, priority=2)
    scene.fetched()
    scene.run.finish.ack(done.id, result=SECRET * 100)
    dead = scene.push(SECRET, priority=2, retry={"max_attempts": 1})
    scene.fetched()
    scene.run.finish.nack(dead.id, error={"message": SECRET})
    scene.push("bob", who={"customer": "bob"})
    scene.read_stream()


@pytest.mark.exhaustive
@pytest.mark.parametrize(("fault", "by_request"), [("died after", True), ("timed out", False)])
def test_whatever_dies_it_ends_with_nothing_left(
    streamed: Callable[[], AbstractContextManager[World]],
    monkeypatch: pytest.MonkeyPatch,
    by_request: bool,
    fault: str,
) -> None:
    if not by_request:
        monkeypatch.setattr(bulk, "REQUEST_JOBS", 0)
    for number in range(1, 100, 3 if examples(2) < 2 else 1):
        with _scene(streamed) as scene:
            client = Faulty(scene.world.client, number, fault)
            broken = scene.world.another(client)
            _small(scene)
            if by_request:
                attempt(partial(broken.bulk.begin, Action.ERASE_JOBS, ALICE))
            else:
                scene.erase()
                scene.world.clock.advance(61_000)
                now_ms = scene.world.clock.now_ms()
                attempt(partial(broken.bulk.run_once, now_ms, 5_000))
            if not scene.run.bulk.list(of_jobs=True).items:
                # It was never stored: nothing was begun, and who asked for it asks again.
                assert _listed(scene, JobFilter("default", (State.AVAILABLE,)))
                scene.erase()
            scene.minutes(6)
            assert all(o.phase.over for o in scene.run.bulk.list(of_jobs=True).items)
            assert [p for p in scene.left() if not p.startswith("E|")] == [], number
            bobs = [job.content for job in _all(scene, JobFilter("default"))]
            assert [found["meta"] for found in bobs if found] == [{"customer": "bob"}]
            if client.calls < number:
                return
    pytest.fail("a path with a hundred calls")


def test_what_it_costs(scene: Scene) -> None:
    """For each job that is looked at half a read unit; for each that is erased what its deletion
    and, if it waits, its cancellation cost.
    """
    for _ in range(60):
        scene.push("bob", queue="a", who={"customer": "bob"})
    for _ in range(10):
        scene.push(SECRET, queue="a")
    scene.read_stream()
    with spending(scene.world) as spent:
        done = scene.run.bulk.begin(Action.ERASE_JOBS, ALICE)
    assert len(done.job_ids) == 10
    # 4 units to cancel a waiting job (its record and two entries of indexes), 2 to remove it.
    assert spent.writes <= 10 * 6 + 4
    assert spent.reads <= 70 + 10 * 3 + 20
    assert spent.calls <= 10 * 4 + 20
