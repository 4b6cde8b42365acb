"""Back from dead letter, one at a time: once, whole, or not at all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs import runtime
from ojs.domain.dead_letter.override import JobOverride, JobOverrideRequest
from ojs.domain.errors import (
    Conflict,
    Duplicate,
    JobTypeNotAllowed,
    MetadataTooLarge,
    NotFound,
    OjsError,
    PayloadTooLarge,
    QueueDraining,
    QueueFull,
    QueueNotFound,
    ValidationFailed,
)
from ojs.domain.job import job as jobs
from ojs.settings import Settings
from ojs.store.table import keys
from tests.store.bounded import bound, counter_value
from tests.store.dead_letter_queues import die, goes_to, job_records, waiting
from tests.store.faults import attempt, drain, faults

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

SECOND = 1_000
LARGE = "x" * 5_000
HUGE = "".join(f"{n:x}" for n in range(90_000))
SIZES = {"small": "small", "large": LARGE, "huge": HUGE}


def override(**given: Any) -> JobOverride:
    return JobOverrideRequest.model_validate(given).override()


def shown(world: World, job: Job) -> dict[str, Any]:
    return jobs.to_dict(world.run.jobs.get(job.id))


def record(world: World, job: Job) -> dict[str, Any] | None:
    return world.run.table.get(keys.job(job.id), keys.RECORD)


def texts(world: World) -> list[str]:
    """Contents kept apart, and notes of them; errors and job records are not."""
    found = [i["sk"]["S"] for i in world.items() if i["pk"]["S"].startswith("J|")]
    return [sk for sk in found if sk.startswith(("payload|", "spare|"))] + sorted(
        world.blobs.objects
    )


# --- as it is -----------------------------------------------------------------------------------


@pytest.mark.requirement("DL-13")
@pytest.mark.parametrize("size", SIZES)
def test_a_job_comes_back_with_its_id_policy_and_errors(world: World, size: str) -> None:
    pushed = die(world, SIZES[size], retry={"max_attempts": 7, "initial_interval": "PT9S"})
    before = shown(world, pushed)
    world.clock.advance(SECOND)
    back = world.run.redrive.retry(pushed.id)
    told = jobs.to_dict(back)
    for got in (told, shown(world, pushed)):
        assert (got["id"], got["state"], got["attempt"]) == (pushed.id, "available", 0)
        assert (got["max_attempts"], got["retry"]) == (7, before["retry"])
        assert (got["errors"], got["args"]) == (before["errors"], before["args"])
        assert got["enqueued_at"] > before["enqueued_at"]
        assert got["created_at"] == before["created_at"]
        assert not got.keys() & {"discarded_at", "completed_at", "dead_letter", "started_at"}
    (fetched,) = world.fetch("mail")
    assert (fetched.id, fetched.attempt) == (pushed.id, 1)
    world.run.finish.nack(fetched.id, error={"code": "DEAD_LETTER", "message": "again"})
    assert len(shown(world, pushed)["errors"]) == 2


@pytest.mark.requirement("DL-13")
def test_the_answer_is_what_the_retry_made_of_it(world: World) -> None:
    """Whatever a worker did with the job before the answer was read."""
    pushed = die(world, LARGE)
    redrive = world.run.redrive
    load = redrive._jobs.load

    def late(job_id: str) -> Job | None:
        world.fetch("mail")
        return load(job_id)

    redrive._jobs.load = late  # type: ignore[method-assign]
    back = jobs.to_dict(redrive.retry(pushed.id))
    assert (back["state"], back["attempt"], back["args"]) == ("available", 0, [LARGE])
    assert [e["message"] for e in back["errors"]] == ["no such user"]


@pytest.mark.requirement("DL-13")
@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("changes", ["none", "content"])
@pytest.mark.parametrize("unique", [False, True])
def test_of_many_retries_one_dispatches(
    exact: World, size: str, changes: str, unique: bool
) -> None:
    options: dict[str, Any] = {"unique": {"keys": ["type"]}} if unique else {}
    pushed = die(exact, SIZES[size], **options)
    many = 8
    barrier = threading.Barrier(many)

    def one(number: int) -> str:
        run = exact.another()
        asked = override(args=[LARGE, number]) if changes == "content" else JobOverride()
        barrier.wait()
        try:
            run.redrive.retry(pushed.id, asked)
        except OjsError as error:
            return error.code
        return "back"

    with ThreadPoolExecutor(many) as pool:
        told = list(pool.map(one, range(many)))
    assert told.count("back") == 1
    assert set(told) <= {"back", "conflict", "backend_unavailable"}
    if not unique:
        assert told.count("conflict") == many - 1
    assert len(exact.fetch("mail", 10)) == 1
    # A loser may have left a note of the text that the winner removed: it goes with the job.
    kept = [sk for sk in texts(exact) if not sk.startswith("spare|")]
    assert len(kept) == (0 if size == "small" and changes == "none" else 1)


@pytest.mark.requirement("DL-13")
def test_what_is_no_dead_letter_is_refused(world: World) -> None:
    waiting_job, running = world.push(queue="a"), world.push(queue="b")
    world.fetch("b")
    gone = world.push(queue="c")
    world.fetch("c", worker="w")
    world.run.finish.nack(gone.id, worker_id="w", error={"code": "DISCARD", "message": "no"})
    for job in (waiting_job, running, gone):
        with pytest.raises(NotFound):
            world.run.redrive.retry(job.id)
    back = die(world)
    world.run.redrive.retry(back.id)
    with pytest.raises(Conflict):
        world.run.redrive.retry(back.id)


# --- the queue it enters ------------------------------------------------------------------------


@pytest.mark.requirement("DL-13")
def test_a_queue_that_is_draining_takes_none_back(world: World) -> None:
    job = die(world)
    world.push(queue="mail")
    world.run.deletion.delete("mail", "drain")
    with pytest.raises(QueueDraining):
        world.run.redrive.retry(job.id)
    assert world.state(job) == "discarded"


@pytest.mark.requirement("DL-13")
def test_a_queue_that_was_deleted_is_made_again(world: World) -> None:
    world.run.queues.configure("mail", {"lanes": 5})
    died = [die(world, n) for n in range(10)]
    world.run.deletion.delete("mail", "discard")
    strict = runtime.build(
        Settings(table=world.table, strict_queues=True),
        client=world.client,
        blobs=world.blobs,
        clock=world.clock,
    )
    with pytest.raises(QueueNotFound):
        strict.redrive.retry(died[0].id)
    for job in died:
        world.run.redrive.retry(job.id)
    # The new one has one lane only.
    assert world.run.queues.get("mail").lanes == 1
    assert {job.id for job in world.fetch("mail", 20)} == {job.id for job in died}


@pytest.mark.requirement("DL-13")
def test_a_bounded_queue_must_have_room(world: World) -> None:
    """Requirements section 12: it counts, and is refused with nothing changed."""
    bound(world, "mail", max_size=1, max_size_bytes=20_000)
    job = die(world, LARGE)
    other = world.push(queue="mail")
    before = world.items()
    with pytest.raises(QueueFull):
        world.run.redrive.retry(job.id, override(args=[LARGE + LARGE]))
    assert [i for i in world.items() if i["sk"]["S"] != "refused"] == before
    world.run.jobs.cancel(other.id)
    with pytest.raises(PayloadTooLarge) as refused:
        world.run.redrive.retry(job.id, override(args=[HUGE]))
    assert (refused.value.details["queue"], refused.value.details["limit"]) == ("mail", 20_000)
    world.run.redrive.retry(job.id, override(args=[LARGE, LARGE]))
    record = world.run.redrive._jobs.read_record(job.id)
    assert record is not None
    assert counter_value(world, "mail") == (1, record.reserved_bytes)
    assert counter_value(world, "mail")[1] > 10_000
    (fetched,) = world.fetch("mail")
    world.run.finish.ack(fetched.id)
    assert counter_value(world, "mail") == (0, 0)


@pytest.mark.requirement("DL-13")
def test_a_job_of_a_type_that_is_not_taken_any_more_stays(world: World) -> None:
    job = die(world)
    world.run.queues.configure("mail", {"allowed_job_types": ["other.*"]})
    with pytest.raises(JobTypeNotAllowed):
        world.run.redrive.retry(job.id)
    assert world.state(job) == "discarded"


# --- uniqueness ---------------------------------------------------------------------------------

UNIQUE = {"keys": ["type", "args"]}


@pytest.mark.requirement("DL-13")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("on_conflict", ["reject", "replace", "ignore"])
def test_no_job_comes_back_beside_another_of_its_key(
    world: World, size: str, on_conflict: str
) -> None:
    unique = {**UNIQUE, "on_conflict": on_conflict}
    job = die(world, SIZES[size], unique=unique)
    other = world.push(SIZES[size], queue="mail", unique=unique)
    before = world.items()
    with pytest.raises(Duplicate) as refused:
        world.run.redrive.retry(job.id)
    assert refused.value.details["existing_job_id"] == other.id
    assert world.items() == before
    world.run.jobs.cancel(other.id)
    world.run.redrive.retry(job.id)
    # From here on the key is the job's again.
    if on_conflict == "reject":
        with pytest.raises(Duplicate) as refused:
            world.push(SIZES[size], queue="mail", unique=unique)
        assert refused.value.details["existing_job_id"] == job.id


@pytest.mark.requirement("DL-13")
def test_only_states_that_the_policy_names_stand_in_the_way(world: World) -> None:
    unique = {**UNIQUE, "states": ["active"]}
    job = die(world, unique=unique)
    world.push(queue="mail", unique=unique)
    world.run.redrive.retry(job.id)
    assert world.state(job) == "available"


@pytest.mark.requirement("DL-13")
def test_a_period_that_is_over_stands_in_nobody_s_way_and_begins_anew(world: World) -> None:
    unique = {**UNIQUE, "period": "PT1H"}
    job = die(world, unique=unique)
    world.push(queue="mail", unique=unique)
    world.clock.advance(3_601 * SECOND)
    world.run.redrive.retry(job.id)
    world.clock.advance(3_599 * SECOND)
    with pytest.raises(Duplicate):
        world.push(queue="mail", unique=unique)
    world.clock.advance(2 * SECOND)
    world.push(queue="mail", unique=unique)


@pytest.mark.requirement("DL-15")
def test_a_changed_job_takes_the_key_it_has_then(world: World) -> None:
    job = die(world, "a", unique=UNIQUE)
    other = world.push("b", queue="mail", unique=UNIQUE)
    with pytest.raises(Duplicate) as refused:
        world.run.redrive.retry(job.id, override(args=["b"]))
    assert refused.value.details["existing_job_id"] == other.id
    world.run.redrive.retry(job.id, override(args=["c"]))
    with pytest.raises(Duplicate) as refused:
        world.push("c", queue="mail", unique=UNIQUE)
    assert refused.value.details["existing_job_id"] == job.id
    # What it was before is free.
    world.push("a", queue="mail", unique=UNIQUE)


@pytest.mark.requirement("DL-15")
def test_what_makes_the_key_must_stay_in_the_job(world: World) -> None:
    job = die(world, {"id": 1}, unique={"keys": ["args"], "args_keys": ["id"]})
    with pytest.raises(ValidationFailed) as refused:
        world.run.redrive.retry(job.id, override(args=[{"other": 1}]))
    assert refused.value.field == "override.args"
    assert world.state(job) == "discarded"


@pytest.mark.requirement("DL-13")
def test_a_holder_that_comes_back_is_seen_by_who_was_about_to_take_its_key(
    world: World,
) -> None:
    """Both are dead. Were it not for `life`, the lock would be as the first retry saw it."""
    first, second = die(world, unique=UNIQUE), die(world, unique=UNIQUE)
    redrive = world.another().redrive
    get = redrive._locks.get

    def meanwhile(digest: str) -> Any:
        seen = get(digest)
        assert seen is not None
        assert seen.job_id == second.id
        with suppress(Conflict):
            world.run.redrive.retry(second.id)
        return seen

    redrive._locks.get = meanwhile  # type: ignore[method-assign]
    # The first look at the holder comes before it is back.
    real = redrive._jobs.read_record
    early = [real(second.id)]

    def looked(job_id: str) -> Job | None:
        return early.pop() if job_id == second.id and early else real(job_id)

    redrive._jobs.read_record = looked  # type: ignore[method-assign]
    with pytest.raises(Duplicate) as refused:
        redrive.retry(first.id)
    assert refused.value.details["existing_job_id"] == second.id
    assert not early
    assert [world.state(job) for job in (first, second)] == ["discarded", "available"]


# --- with changes -------------------------------------------------------------------------------


@pytest.mark.requirement("DL-15")
@pytest.mark.parametrize("before", SIZES)
@pytest.mark.parametrize("after", SIZES)
def test_args_are_replaced_wherever_they_are_kept(world: World, before: str, after: str) -> None:
    job = die(world, SIZES[before], 1.50)
    back = world.run.redrive.retry(job.id, override(args=["new", SIZES[after]]))
    assert jobs.to_dict(back)["args"] == ["new", SIZES[after]]
    assert shown(world, job)["args"] == ["new", SIZES[after]]
    (fetched,) = world.fetch("mail")
    assert fetched.content is not None
    assert fetched.content["args"] == ["new", SIZES[after]]
    # The old text is gone, and so are the notes.
    assert len(texts(world)) == (0 if after == "small" else 1)
    world.run.finish.nack(fetched.id, error={"code": "DEAD_LETTER", "message": "no"})
    world.run.dead_letter.delete(job.id)
    assert texts(world) == []


@pytest.mark.requirement("DL-15")
def test_meta_is_laid_over_key_by_key(world: World) -> None:
    pushed = world.run.enqueue.push(
        _request(meta={"keep": 1, "drop": 2, "nested": {"a": 1}, "none": None})
    ).job
    _kill(world, pushed)
    changes = {"drop": None, "nested": {"b": 2}, "new": "n", "absent": None}
    world.run.redrive.retry(pushed.id, override(meta=changes))
    assert shown(world, pushed)["meta"] == {
        "keep": 1, "nested": {"b": 2}, "none": None, "new": "n",
    }  # fmt: skip
    _kill(world, pushed)
    everything = dict.fromkeys(["keep", "nested", "none", "new"])
    world.run.redrive.retry(pushed.id, override(meta=everything))
    assert shown(world, pushed)["meta"] == {}


def _request(**given: Any) -> Any:
    from ojs.domain.job import envelope

    return envelope.parse({"type": "test.job", "args": [1], "queue": "mail", **given})


def _kill(world: World, job: Job) -> None:
    (fetched,) = world.fetch(job.queue, worker="w")
    assert fetched.id == job.id
    error = {"code": "DEAD_LETTER", "message": "no"}
    world.run.finish.nack(job.id, worker_id="w", error=error)


@pytest.mark.requirement("DL-15")
def test_the_policy_is_laid_over_field_by_field(world: World) -> None:
    job = die(
        world,
        retry={
            "max_attempts": 7, "initial_interval": "PT9S", "backoff_type": "linear",
            "jitter": False, "on_exhaustion": "discard",
        },
    )  # fmt: skip
    changes = {"max_attempts": 1, "initial_interval_ms": 500, "backoff_strategy": "constant"}
    back = world.run.redrive.retry(job.id, override(retry=changes))
    got = shown(world, job)
    assert got["max_attempts"] == 1
    assert got["retry"] == {**changes, "jitter": False, "on_exhaustion": "discard"}
    assert (back.policy.initial_ms, back.policy.strategy) == (500, "constant")
    assert (back.policy.jitter, back.policy.on_exhaustion) == (False, "discard")
    world.fetch("mail", worker="w")
    world.run.finish.nack(job.id, worker_id="w", error={"message": "no"})
    got = shown(world, job)
    # One try, and then as `on_exhaustion` says.
    assert (got["state"], got["attempt"]) == ("discarded", 1)
    assert "dead_letter" not in got


@pytest.mark.requirement("DL-15")
def test_a_job_moves_to_another_queue_under_its_rules(world: World) -> None:
    job = die(world)
    world.run.queues.configure(
        "again", {"max_size": 1, "lanes": 4, "allowed_job_types": ["test.*"], "producers": ["none"]}
    )
    back = world.run.redrive.retry(job.id, override(queue="again"), caller="none")
    assert (back.queue, counter_value(world, "again")[0], counter_value(world, "mail")[0]) == (
        "again",
        1,
        0,
    )
    assert world.fetch("mail") == []
    other = die(world)
    with pytest.raises(QueueFull):
        world.run.redrive.retry(other.id, override(queue="again"), caller="none")
    (fetched,) = world.fetch("again")
    world.run.finish.ack(fetched.id)
    assert counter_value(world, "again")[0] == 0
    world.run.queues.configure("again", {"allowed_job_types": ["other.*"]})
    with pytest.raises(JobTypeNotAllowed):
        world.run.redrive.retry(other.id, override(queue="again"), caller="none")
    assert world.run.jobs.get(other.id).queue == "mail"
    world.run.redrive.retry(other.id, override(queue="new"))
    assert world.run.queues.get("new").state == "active"


@pytest.mark.requirement("DL-15")
def test_its_rate_limit_is_known_in_the_queue_it_moves_to(world: World) -> None:
    job = die(world, rate_limit={"concurrency": 1})
    world.run.redrive.retry(job.id, override(queue="again"), caller="none")
    assert "queue:again" in [standing.key for standing in world.run.limits.list(limit=10).items]
    assert len(world.fetch("again")) == 1


@pytest.mark.requirement("DL-15")
@pytest.mark.parametrize(
    ("given", "error", "field"),
    [
        ({"args": ["x" * 1_048_576]}, PayloadTooLarge, "override.args"),
        ({"meta": {"a": "x" * 70_000}}, MetadataTooLarge, "override.meta"),
        (
            {"retry": {"initial_interval": "PT1H", "max_interval": "PT1S"}}, ValidationFailed,
            "override.retry.max_interval",
        ),
        (
            {"retry": {"initial_interval": "soon"}},
            ValidationFailed,
            "override.retry.initial_interval",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_changes_nothing(
    world: World, given: dict[str, Any], error: type[OjsError], field: str
) -> None:
    job = die(world, LARGE)
    before = world.items()
    with pytest.raises(error) as refused:
        world.run.redrive.retry(job.id, override(**given))
    assert refused.value.details["field"] == field
    assert world.items() == before


# --- copies -------------------------------------------------------------------------------------


@pytest.mark.requirement("DL-15")
def test_a_waiting_copy_goes_with_a_changed_retry_too(world: World) -> None:
    goes_to(world)
    job = die(world, LARGE)
    assert waiting(world) == [LARGE]
    world.run.redrive.retry(job.id, override(args=[HUGE], queue="again"))
    assert waiting(world) == []
    (copy,) = job_records(world)
    assert copy.state == "cancelled"
    assert shown(world, job)["args"] == [HUGE]


# --- dying anywhere -----------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.requirement("DL-13", "DL-15")
@pytest.mark.parametrize("what", ["plain", "override", "bounded", "unique", "copy", "everything"])
def test_a_retry_that_dies_anywhere_leaves_the_old_job_or_the_new(exact: World, what: str) -> None:
    everything = what == "everything"
    if what == "bounded" or everything:
        bound(exact, "mail", max_size=1_000, max_size_bytes=10**9)
    if what == "copy" or everything:
        goes_to(exact)
    for number, (run, client) in enumerate(faults(exact)):
        options: dict[str, Any] = {}
        if what == "unique" or everything:
            options["unique"] = {"keys": ["type"]}
        # From the bucket into the table, or the other way round.
        old, new = (HUGE, LARGE) if number % 2 else (LARGE, HUGE)
        job = die(exact, old, **options)
        asked = override(args=[new]) if what == "override" or everything else JobOverride()
        answered = attempt(partial(run.redrive.retry, job.id, asked))
        got = shown(exact, job)
        args = [new] if asked.of_content else [old]
        if answered is not None:
            assert got["state"] == "available"
        assert (got["state"], got["args"]) in (("available", args), ("discarded", [old]))
        if what == "copy" or everything:
            # Both or neither.
            assert len(waiting(exact)) == (got["state"] == "discarded")
        if got["state"] == "discarded":
            assert exact.run.redrive.retry(job.id, asked).state == "available"
        else:
            with pytest.raises(Conflict):
                exact.run.redrive.retry(job.id, asked)
        (fetched,) = drain(exact, "mail")
        assert (fetched.id, fetched.attempt) == (job.id, 1)
        assert fetched.content is not None
        assert fetched.content["args"] == args
        _forget(exact, job)
        assert texts(exact) == [], f"call {client._fail_at} {client._fault}"
    exact.clock.advance(700 * SECOND)
    exact.run.reconcile.run_once(exact.clock.now_ms(), 1_000)
    exact.clock.advance(700 * SECOND)
    exact.run.reconcile.run_once(exact.clock.now_ms(), 1_000)
    assert counter_value(exact, "mail") == (0, 0)


def _forget(world: World, job: Job) -> None:
    """As time to live and the projection do, also with the job's copies."""
    store = world.run.redrive._jobs
    for gone in [job, *job_records(world)]:
        found = store.read_record(gone.id)
        assert found is not None
        world.run.table.delete(keys.job(gone.id), keys.RECORD)
        store.removal.remove_rest(found)


@pytest.mark.requirement("DL-15")
def test_of_two_changes_at_once_the_loser_leaves_nothing(world: World) -> None:
    job = die(world, LARGE)
    redrive = world.another().redrive
    swap = redrive._swap

    def late(*args: Any) -> Job:
        with suppress(Conflict):
            world.run.redrive.retry(job.id, override(args=[HUGE]))
        return swap(*args)

    redrive._swap = late  # type: ignore[method-assign, assignment]
    with pytest.raises(Conflict):
        redrive.retry(job.id, override(args=[LARGE + "2"]))
    assert shown(world, job)["args"] == [HUGE]
    assert len(texts(world)) == 1


@pytest.mark.requirement("DL-15")
def test_a_dead_letter_that_is_deleted_meanwhile_stays_deleted(world: World) -> None:
    job = die(world, LARGE)
    redrive = world.another().redrive
    swap = redrive._swap

    def late(*args: Any) -> Job:
        with suppress(NotFound):
            world.run.dead_letter.delete(job.id)
        return swap(*args)

    redrive._swap = late  # type: ignore[method-assign, assignment]
    with pytest.raises(NotFound):
        redrive.retry(job.id, override(args=[HUGE]))
    assert texts(world) == []
    assert record(world, job) is None


# --- what it costs ------------------------------------------------------------------------------


@pytest.mark.requirement("DL-13")
@pytest.mark.parametrize(
    ("what", "calls", "writes"),
    [("plain", 4, 4.0), ("bounded", 5, 5.0), ("unique", 5, 7.0), ("copy", 5, 9.0)],
)
def test_a_retry_costs_the_same_whatever_there_is(
    exact: World, what: str, calls: int, writes: float
) -> None:
    if what == "bounded":
        bound(exact, "mail", max_size=50)
    if what == "copy":
        goes_to(exact)
    options: dict[str, Any] = {"unique": {"keys": ["type", "args"]}} if what == "unique" else {}
    died = [die(exact, n, **options) for n in range(8)]
    spent = set()
    for job in died:
        meter = exact.run.table.meter
        meter.reset()
        exact.run.redrive.retry(job.id)
        spent.add((len(meter.calls), meter.write_units))
    assert spent == {(calls, writes)}
