"""Workflows, end to end: each form, each way in which a job ends, results, cancelling, retrying."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import (
    BackendUnavailable,
    Conflict,
    Duplicate,
    JobTypeNotAllowed,
    MiddlewareRefusal,
    NotFound,
    QueueFull,
)
from ojs.domain.job.job import to_dict
from ojs.domain.workflow.advance import RetryMode, WorkflowState
from ojs.domain.workflow.graph import StepState
from ojs.middleware import Refused
from ojs.services.jobs.middleware import MiddlewareChain
from tests.store.pushing import Pushing
from tests.store.workflow_runs import (
    WORKER,
    ack,
    batch,
    chain,
    create,
    group,
    jobs_of,
    nack,
    noting,
    now,
    running,
    step,
    sweep,
    work,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ojs.domain.job.job import Job
    from ojs.middleware import Envelope, Next
    from ojs.runtime import Runtime
    from tests.store.conftest import World

RUNNING, COMPLETED, FAILED, CANCELLED = WorkflowState


def failing(*types: str) -> Any:
    def does(job: Job) -> str:
        if job.type in types:
            raise ValueError
        return job.type

    return does


def dag(**steps: Any) -> dict[str, Any]:
    """A graph: step → what it depends on."""
    return {
        "steps": [
            {"id": name, "type": name, "args": [], "depends_on": list(needs)}
            for name, needs in steps.items()
        ]
    }


FORMS: list[tuple[str, dict[str, Any], tuple[str, ...], list[set[str]], WorkflowState]] = [
    ("chain", chain(step("a"), step("b"), step("c")), (), [{"a"}, {"b"}, {"c"}], COMPLETED),
    ("chain that fails", chain(step("a"), step("b"), step("c")), ("b",), [{"a"}, {"b"}], FAILED),
    ("group", group(step("a"), step("b")), (), [{"a", "b"}], COMPLETED),
    ("group that fails", group(step("a"), step("b")), ("a",), [{"a", "b"}], FAILED),
    (
        "batch",
        batch([step("a"), step("b")], on_success=step("s"), on_failure=step("f")),
        (),
        [{"a", "b"}, {"s"}],
        COMPLETED,
    ),
    (
        "batch with a failure",
        batch([step("a"), step("b")], on_complete=step("c"), on_failure=step("f")),
        ("a",),
        [{"a", "b"}, {"c", "f"}],
        COMPLETED,
    ),
    (
        "batch whose callback fails",
        batch([step("a")], on_complete=step("c")),
        ("c",),
        [{"a"}, {"c"}],
        FAILED,
    ),
    ("graph", dag(a="", b="a", c="a", d="bc"), (), [{"a"}, {"b", "c"}, {"d"}], COMPLETED),
    ("graph that fails", dag(a="", b="a", c="a", d="bc"), ("b",), [{"a"}, {"b", "c"}], FAILED),
    (
        "a group in a chain",
        chain(step("a"), group(step("b"), step("c")), step("d")),
        (),
        [{"a"}, {"b", "c"}, {"d"}],
        COMPLETED,
    ),
    (
        "a chain in a group",
        group(chain(step("a"), step("b")), step("c")),
        (),
        [{"a", "c"}, {"b"}],
        COMPLETED,
    ),
]


@pytest.mark.parametrize("row", FORMS, ids=lambda row: row[0])
def test_each_form_runs_its_steps_in_order(world: World, row: Any) -> None:
    _, body, fails, waves, state = row
    record = create(world.run, body)
    for wave in waves:
        ran = world.fetch(count=10, worker=WORKER)
        assert {job.type for job in ran} == wave
        for job in ran:
            (nack if job.type in fails else ack)(world.run, job)
    assert world.fetch(count=10) == []
    after = now(world, record)
    assert after.state is state
    assert after.ended_ms == world.clock.now_ms()
    ran_types = set().union(*waves)
    assert after.completed == len(ran_types - set(fails))
    assert after.failed == len(fails)
    assert after.completed + after.failed + after.cancelled + after.skipped == after.jobs


def test_a_job_says_of_which_workflow_it_is(world: World) -> None:
    body = {"steps": [{"id": "first", "type": "a", "args": []}]}
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    record = create(world.run, body, trace=trace, producer="ann")
    (job,) = world.fetch()
    shown = to_dict(world.run.jobs.get(job.id))
    assert (shown["workflow_id"], shown["step"]) == (record.id, "first")
    assert shown["meta"] == {"ojs.workflow.trace_origin": trace}
    assert shown["producer"] == "ann"


# --- results ------------------------------------------------------------------------------------


def test_a_step_of_a_chain_is_told_all_results_before_it(world: World) -> None:
    create(world.run, chain(step("a"), group(step("b"), step("c")), step("d")))
    given: dict[str, Any] = {}
    work(world, noting(given, lambda job: {"of": job.type}))
    assert "parent_results" not in given["a"]
    assert given["b"]["parent_results"] == given["c"]["parent_results"] == [{"of": "a"}]
    assert given["d"]["parent_results"] == [{"of": "a"}, [{"of": "b"}, {"of": "c"}]]


def test_a_callback_is_told_results_and_errors(world: World) -> None:
    create(world.run, batch([step("a"), step("b")], on_complete=step("c")))
    given: dict[str, Any] = {}

    def does(job: Job) -> Any:
        given[job.type] = job.content
        if job.type == "b":
            raise ValueError
        return 7

    work(world, does)
    told = given["c"]
    assert told["parent_results"] == [7, None]
    assert told["parent_errors"][0] is None
    assert told["parent_errors"][1]["message"] == "It broke."


def test_a_step_of_a_graph_is_told_by_name(world: World) -> None:
    create(world.run, dag(a="", b="", c="ba"))
    given: dict[str, Any] = {}
    work(world, noting(given, lambda job: job.type.upper()))
    assert given["c"]["parent_results"] == ["B", "A"]
    assert given["c"]["parent_results_by_step"] == {"b": "B", "a": "A"}


def test_results_that_are_too_large_are_told_by_reference(world: World) -> None:
    """400 KB are in the bucket, and two of them may still stand in a job; three may not."""
    large = "x" * 400_000
    record = create(world.run, chain(step("a"), step("b"), step("c"), step("d")))
    given: dict[str, Any] = {}
    work(world, noting(given, lambda job: large))
    assert given["c"]["parent_results"] == [large, large]
    ref = given["d"]["parent_results"]["$ref"]
    assert ref.startswith(f"/ojs/v1/workflows/{record.id}/results?step=")
    assert given["d"]["parent_results"]["count"] == 3
    node = int(ref.rpartition("=")[2])
    first = world.run.workflow_results.page(record.id, node, limit=2)
    assert [each["result"] for each in first.entries] == [large, large]
    assert first.next_position == 2
    rest = world.run.workflow_results.page(record.id, node, limit=2, after=2)
    assert [each["result"] for each in rest.entries] == [large]
    assert rest.next_position is None


def test_results_are_kept_whatever_their_jobs_retention_is(world: World) -> None:
    create(world.run, chain(step("a"), step("b"), step("c")))
    work(world, most=1)
    world.clock.advance(8 * 86_400_000)
    given: dict[str, Any] = {}
    for item in jobs_of(world):
        if item["state"]["S"] == "completed":
            key = {name: item[name] for name in ("pk", "sk")}
            world.client.delete_item(TableName=world.table, Key=key)
    work(world, noting(given, lambda job: 2))
    assert given["c"]["parent_results"] == ["a", 2]


# --- each way in which a job ends ---------------------------------------------------------------


def cancelled(world: World, job: Job) -> None:
    world.run.jobs.cancel(job.id)


def cancelled_while_it_runs(world: World, job: Job) -> None:
    world.fetch(worker=WORKER)
    world.run.jobs.cancel(job.id)


def failed_for_good(world: World, job: Job) -> None:
    (fetched,) = world.fetch(worker=WORKER)
    nack(world.run, fetched)


def failed_in_many(world: World, job: Job) -> None:
    (fetched,) = world.fetch(worker=WORKER)
    told = {"error": {"type": "x", "message": "m", "retryable": False}, "worker_id": WORKER}
    world.run.batch_finish.end([], [(fetched.id, told)])


def timed_out(world: World, job: Job) -> None:
    world.fetch(worker=WORKER)
    world.clock.advance(2_000)
    world.sweep()
    world.run.jobs.get(job.id)


def lease_lost(world: World, job: Job) -> None:
    world.fetch(worker=WORKER)
    world.clock.advance(3_600_000)
    for _ in range(3):
        world.sweep()


def expired(world: World, job: Job) -> None:
    world.clock.advance(120_000)
    world.sweep()
    world.run.jobs.get(job.id)


def replaced_by_another(world: World, job: Job) -> None:
    world.push(kind="a", unique={"key": "u", "on_conflict": "replace"})


def queue_deleted(world: World, job: Job) -> None:
    world.run.deletion.delete("default", "discard")
    for _ in range(5):
        world.clock.advance(61_000)
        world.sweep()


ONCE = {"retry": {"max_attempts": 1}}
ENDS: list[tuple[Any, dict[str, Any]]] = [
    (cancelled, {}),
    (cancelled_while_it_runs, {}),
    (failed_for_good, {}),
    (failed_in_many, {}),
    (timed_out, {**ONCE, "timeout": 1}),
    (lease_lost, {**ONCE, "visibility_timeout_ms": 5_000}),
    (expired, {"expires_at": "+PT1M"}),
    (replaced_by_another, {"unique": {"key": "u"}}),
    (queue_deleted, {}),
]


@pytest.mark.parametrize(("ends", "options"), ENDS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_step_that_ends_without_success_fails_and_those_after_it_go_on(
    world: World, ends: Any, options: dict[str, Any]
) -> None:
    body = batch([step("a", options=options)], on_failure=step("f", options={"queue": "after"}))
    record = create(world.run, body)
    (item,) = jobs_of(world)
    job = world.run.jobs.get(item["pk"]["S"].removeprefix("J|"))
    ends(world, job)
    after = now(world, record)
    assert (after.failed, after.state) == (1, RUNNING), ends.__name__
    assert [each.type for each in world.fetch("after", worker=WORKER)] == ["f"]


def test_the_oldest_that_a_full_queue_drops_counts_as_failed(world: World) -> None:
    world.run.queues.configure("small", {"max_size": 1, "overflow_policy": "drop_oldest"})
    options = {"queue": "small"}
    body = batch([step("a", options=options)], on_failure=step("f"))
    record = create(world.run, body)
    world.push(kind="other", queue="small")
    assert now(world, record).failed == 1
    assert [each.type for each in world.fetch()] == ["f"]


def test_a_start_that_drops_a_step_of_the_same_workflow_ends_all_the_same(world: World) -> None:
    """Each drops the one before it: they are dealt with one after the other."""
    world.run.queues.configure("small", {"max_size": 1, "overflow_policy": "drop_oldest"})
    steps = [
        {"id": f"s{at}", "type": f"s{at}", "args": [], "options": {"queue": "small"}}
        for at in range(10)
    ]
    body = {"steps": [{"id": "first", "type": "first", "args": []}, *steps]}
    for each in steps:
        each["depends_on"] = ["first"]
    record = create(world.run, body)
    work(world)
    after = now(world, record)
    assert after.failed == 9
    work(world, queue="small")
    assert now(world, record).state is FAILED


# --- what starts is a push ----------------------------------------------------------------------


def test_a_start_that_a_full_queue_refuses_comes_later(world: World) -> None:
    world.run.queues.configure("small", {"max_size": 1})
    other = world.push(queue="small")
    record = create(world.run, chain(step("a"), step("b", options={"queue": "small"})))
    work(world)
    after = now(world, record)
    assert after.starting
    assert after.state is RUNNING
    assert after.check_ms == world.clock.now_ms() + 20_000
    world.clock.advance(20_000)
    assert sweep(world)["checked"] == 1
    assert now(world, record).starting
    (job,) = world.fetch("small", worker=WORKER)
    assert job.id == other.id
    ack(world.run, job)
    world.clock.advance(20_000)
    sweep(world)
    work(world, queue="small")
    assert now(world, record).state is COMPLETED


def test_a_group_larger_than_its_queue_comes_one_by_one(world: World) -> None:
    world.run.queues.configure("small", {"max_size": 2})
    record = create(
        world.run, chain(step("a"), group(*[step("b", options={"queue": "small"})] * 5))
    )
    work(world)
    ran = []
    for _ in range(5):
        ran += work(world, queue="small")
        world.clock.advance(20_000)
        sweep(world)
    assert ran == ["b"] * 5
    assert now(world, record).state is COMPLETED


def test_a_unique_key_that_is_taken_fails_the_step(world: World) -> None:
    options = {"queue": "q", "unique": {"key": "k"}}
    world.push(kind="b", **options)
    record = create(world.run, chain(step("a"), step("b", options=options), step("c")))
    work(world)
    after = now(world, record)
    assert (after.state, after.failed, after.cancelled) == (FAILED, 1, 1)
    assert "unique key" in (after.fault or "")
    assert len(jobs_of(world)) == 2


def test_a_step_that_its_queue_does_not_admit_fails(world: World) -> None:
    record = create(world.run, chain(step("a"), step("b", options={"queue": "q"})))
    world.run.queues.configure("q", {"allowed_job_types": ["other"]})
    work(world)
    after = now(world, record)
    assert (after.state, after.failed) == (FAILED, 1)


def test_a_workflow_whose_first_jobs_are_refused_is_not_stored(world: World) -> None:
    world.run.queues.configure("small", {"max_size": 1})
    world.run.queues.configure("picky", {"allowed_job_types": ["other"]})
    before = len(world.items())
    with pytest.raises(QueueFull):
        create(world.run, group(*[step("a", options={"queue": "small"})] * 2))
    with pytest.raises(JobTypeNotAllowed):
        create(world.run, chain(step("a", options={"queue": "picky"})))
    kinds = Counter(item["pk"]["S"][:2] for item in world.items())
    assert kinds["W|"] == kinds["J|"] == 0
    assert len(world.items()) <= before + 1  # what tells of the refusal


def test_an_id_that_is_taken_is_refused(world: World) -> None:
    chosen = world.run.ids.uuid7()
    record = create(world.run, {**chain(step("a")), "id": chosen})
    assert record.id == chosen
    with pytest.raises(Duplicate) as refused:
        create(world.run, {**group(step("b"), step("c")), "id": chosen})
    assert refused.value.details["existing_workflow_id"] == chosen
    assert work(world) == ["a"]


def test_steps_that_start_later_have_delays_pools_and_tags_of_a_push(world: World) -> None:
    later = {"scheduled_at": "+PT1M", "priority": 5, "tags": ["t"]}
    create(world.run, chain(step("a"), step("b", options=later)))
    work(world)
    assert world.fetch() == []
    world.clock.advance(60_000)
    (job,) = world.fetch(worker=WORKER)
    assert (job.priority, (job.content or {})["tags"]) == (5, ["t"])


# --- cancelling and retrying --------------------------------------------------------------------


def test_a_cancelled_workflow_starts_nothing_and_lets_run_what_runs(world: World) -> None:
    body = group(chain(step("a"), step("b")), chain(step("c"), step("d")), step("e"))
    record = create(world.run, body)
    (job,) = world.fetch(worker=WORKER)
    told = world.run.workflow_control.cancel(record.id)
    assert (told.already_completed, told.cancelled, told.running) == (0, 4, 1)
    assert told.record.state is CANCELLED
    assert world.fetch(count=10) == []
    ack(world.run, job)
    assert world.fetch(count=10) == []
    after = now(world, record)
    assert (after.state, after.completed, running(world)) == (CANCELLED, 1, 0)
    with pytest.raises(Conflict):
        world.run.workflow_control.cancel(record.id)
    with pytest.raises(NotFound):
        world.run.workflow_control.cancel(world.run.ids.uuid7())


def test_no_job_of_a_cancelled_workflow_is_dispatched_before_all_are_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is over before one job is cancelled; a request that dies leaves the same."""
    monkeypatch.setattr("ojs.services.workflows.control.SLICES_MS", 0)
    record = create(world.run, group(*[step("a")] * 30))
    first, second = world.fetch(count=2, worker=WORKER)
    ack(world.run, first)
    other = world.push("other")
    told = world.run.workflow_control.cancel(record.id)
    assert (told.already_completed, told.cancelled, told.running) == (1, 28, 1)
    assert told.record.leaving.bit_count() == 29
    # Behind them is a job of no workflow.
    fetched = [job.id for _ in range(5) for job in world.fetch(count=10, worker=WORKER)]
    assert fetched == [other.id]
    assert running(world) == 2
    ack(world.run, second)
    after = now(world, record)
    assert (after.state, after.completed, after.graph_state.stopped) == (CANCELLED, 2, True)


def test_no_job_of_a_cancelled_workflow_is_pushed(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is over before one job is cancelled. A delivery's dispatch claims none either."""
    monkeypatch.setattr("ojs.services.workflows.control.SLICES_MS", 0)
    pushing = Pushing(exact)
    pushing.put(concurrency=2)
    record = create(exact.run, group(*[step("a")] * 30))
    assert exact.run.dispatch.run("work").pushed == 2
    told = exact.run.workflow_control.cancel(record.id)
    assert (told.already_completed, told.cancelled, told.running) == (0, 28, 2)
    other = exact.push("other")
    assert pushing.end() == 2
    exact.run.dispatch.run("work")
    for _ in range(3):
        exact.clock.advance(60_000)
        pushing.minute()
        pushing.pump()
    assert [push.job.id for push in pushing.target.pushes[2:]] == [other.id]
    after = now(exact, record)
    assert (after.state, after.completed, after.cancelled) == (CANCELLED, 2, 0)
    assert (after.failed, running(exact)) == (28, 1)


def test_a_claim_that_a_cancellation_overtakes_hands_out_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = create(world.run, group(*[step("a")] * 3))
    claim = world.run.stores.jobs.claim

    def claimed(*args: Any, **more: Any) -> Job:
        monkeypatch.setattr(world.run.stores.jobs, "claim", claim)
        job = claim(*args, **more)
        world.run.workflow_control.cancel(record.id)
        return job

    monkeypatch.setattr(world.run.stores.jobs, "claim", claimed)
    assert world.fetch(count=3, worker=WORKER) == []
    assert running(world) == 0
    after = now(world, record)
    assert (after.state, after.failed, after.leaving) == (CANCELLED, 3, 0)


def test_jobs_go_back_while_it_is_unknown_whether_their_workflow_is_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = create(world.run, chain(step("a"), step("b")))

    def busy(_ids: Any, **_more: Any) -> Any:
        raise BackendUnavailable("DynamoDB throttled the request.")

    with monkeypatch.context() as patch:
        patch.setattr(world.run.stores.workflows, "get_many", busy)
        with pytest.raises(BackendUnavailable):
            world.fetch(worker=WORKER)
    (item,) = jobs_of(world)
    assert item["state"]["S"] == "available"
    assert work(world) == ["a", "b"]
    assert now(world, record).state is COMPLETED


def test_a_cancelled_group_with_a_fan_in_closes_it(world: World) -> None:
    record = create(world.run, group(*[step("a")] * 30))
    first, second = world.fetch(count=2, worker=WORKER)
    ack(world.run, first)
    told = world.run.workflow_control.cancel(record.id)
    assert (told.already_completed, told.cancelled, told.running) == (1, 28, 1)
    assert told.record.fan_ins
    assert told.record.check_ms is None
    ack(world.run, second)
    after = now(world, record)
    assert after.completed == 2
    retried = world.run.workflow_control.retry(record.id, RetryMode.FAILED)
    assert len(work(world)) == 28
    after = now(world, retried)
    assert (after.state, after.completed) == (COMPLETED, 30)


MODES = [
    (RetryMode.ALL, ["a", "b", "c"]),
    (RetryMode.FAILED, ["b", "c"]),
    (RetryMode.FAILED_AND_FOLLOWING, ["b", "c"]),
]


@pytest.mark.parametrize(("mode", "again"), MODES)
def test_a_retry_runs_again_what_its_mode_says(
    world: World, mode: RetryMode, again: list[str]
) -> None:
    record = create(world.run, chain(step("a"), step("b"), step("c")))
    work(world, failing("b"))
    assert now(world, record).state is FAILED
    world.run.workflow_control.retry(record.id, mode)
    given: dict[str, Any] = {}
    assert work(world, noting(given, lambda job: job.type)) == again
    after = now(world, record)
    assert (after.state, after.completed, after.failed) == (COMPLETED, 3, 0)
    assert given["c"]["parent_results"] == ["a", "b"]
    with pytest.raises(Conflict):
        world.run.workflow_control.retry(record.id, RetryMode.FAILED)


def test_a_late_mark_of_an_earlier_generation_counts_nowhere(world: World) -> None:
    record = create(world.run, group(*[step("a")] * 25))
    work(world, failing("a"))
    old = world.run.jobs.get(jobs_of(world)[0]["pk"]["S"].removeprefix("J|"))
    world.run.workflow_control.retry(record.id, RetryMode.ALL)
    world.run.workflow_advance.repeat(old)
    world.run.workflow_advance.job_ended(old)
    after = now(world, record)
    assert (after.state, after.failed, after.completed) == (RUNNING, 0, 0)
    work(world)
    assert now(world, record).state is COMPLETED


def test_a_retried_dead_letter_changes_nothing_of_what_was_decided(world: World) -> None:
    record = create(world.run, batch([step("a")], on_complete=step("c")))
    (job,) = world.fetch(worker=WORKER)
    nack(world.run, job)
    world.run.redrive.retry(job.id)
    assert sorted(work(world)) == ["a", "c"]
    after = now(world, record)
    assert (after.state, after.failed, after.completed) == (COMPLETED, 1, 1)


# --- the stream and the sweep -------------------------------------------------------------------


def forgetful(world: World) -> Runtime:
    """A container that ends jobs and dies before it tells their workflow."""
    run = world.another()
    run.workflow_advance.job_ended = lambda job: None  # type: ignore[method-assign]
    return run


@pytest.mark.parametrize("size", [2, 30, pytest.param(250, marks=pytest.mark.exhaustive)])
def test_what_a_request_has_not_done_the_stream_does(world: World, size: int) -> None:
    record = create(world.run, chain(group(*[step("a")] * size), step("b")))
    run = forgetful(world)
    ended = []
    while jobs := run.fetch.fetch(["default"], 100, WORKER):
        ended += [run.finish.ack(job.id, worker_id=WORKER, result=1) for job in jobs]
    assert now(world, record).completed == 0
    for job in [*ended, *ended]:
        world.run.workflow_advance.repeat(job)
    (last,) = world.fetch(worker=WORKER)
    assert (last.content or {})["parent_results"] == [[1] * size]
    assert now(world, record).completed == size


@pytest.mark.parametrize("size", [2, 30])
def test_what_the_stream_has_lost_the_sweep_finds(world: World, size: int) -> None:
    record = create(world.run, chain(group(*[step("a")] * size), step("b")))
    run = forgetful(world)
    while jobs := run.fetch.fetch(["default"], 100, WORKER):
        for job in jobs:
            run.finish.ack(job.id, worker_id=WORKER, result=1)
    assert sweep(world) == {}
    world.clock.advance(300_000)
    assert sweep(world)["checked"] == 1
    assert work(world) == ["b"]
    assert now(world, record).state is COMPLETED
    world.clock.advance(3_600_000)
    assert sweep(world) == {}


def test_a_job_that_is_gone_counts_as_failed(world: World) -> None:
    record = create(world.run, chain(step("a"), step("b")))
    (item,) = jobs_of(world)
    key = {name: item[name] for name in ("pk", "sk")}
    world.client.delete_item(TableName=world.table, Key=key)
    world.clock.advance(300_000)
    sweep(world)
    assert now(world, record).state is FAILED


def test_a_full_queue_is_asked_once_however_many_jobs_wait_for_it(world: World) -> None:
    world.run.queues.configure("small", {"max_size": 1})
    world.push(queue="small")
    body = chain(step("a"), group(*[step("b", options={"queue": "small"})] * 40, step("c")))
    record = create(world.run, body)
    work(world, most=1)
    assert now(world, record).starting.bit_count() == 40
    assert [job.type for job in world.fetch(worker=WORKER)] == ["c"]
    world.clock.advance(20_000)
    meter = world.run.table.meter
    meter.reset()
    sweep(world)
    assert len(meter.calls) < 40


def test_a_workflow_in_which_nothing_happens_is_told(world: World) -> None:
    create(world.run, chain(step("a")))
    told = []
    for _ in range(6):
        world.clock.advance(1_200_000)
        told.append(sweep(world).get("stalled", 0))
    # It is looked at after 20, 40 and 80 minutes.
    assert told == [0, 0, 0, 1, 0, 0]


def test_checks_become_rarer_up_to_one_an_hour(world: World) -> None:
    record = create(world.run, chain(step("a")))
    gaps = []
    for _ in range(7):
        due = now(world, record).check_ms or 0
        gaps.append((due - world.clock.now_ms()) // 60_000)
        world.clock.advance(due - world.clock.now_ms())
        assert sweep(world)["checked"] == 1
    assert gaps == [5, 5, 10, 20, 40, 60, 60]


def test_nodes_have_their_states(world: World) -> None:
    record = create(world.run, chain(step("a"), step("b"), step("c")))
    work(world, failing("b"))
    definition, after = world.run.workflow_advance.current(record.id)
    states = [after.graph_state.state_of(definition.graph, node) for node in definition.graph.jobs]
    assert states == [StepState.COMPLETED, StepState.FAILED, StepState.CANCELLED]


# --- middleware ---------------------------------------------------------------------------------


def link(world: World, act: Callable[[Envelope], None]) -> None:
    """Have every job that is pushed go through this."""

    def middleware(job: Envelope, following: Next) -> Envelope:
        act(job)
        return following(job)

    world.run.enqueue._chain = MiddlewareChain([middleware], timeout_ms=10_000, service="s")


def test_steps_go_through_the_middleware_and_keep_what_they_are_told(world: World) -> None:
    link(world, lambda job: job.meta.update(team="growth"))
    create(world.run, chain(step("a"), step("b")))
    given: dict[str, Any] = {}
    assert work(world, noting(given, lambda job: job.type)) == ["a", "b"]
    assert [given[kind]["meta"] for kind in "ab"] == [{"team": "growth"}] * 2
    assert given["b"]["parent_results"] == ["a"]


def test_a_step_that_the_middleware_refuses_has_failed(world: World) -> None:
    def act(job: Envelope) -> None:
        if job.type == "b":
            raise Refused("closed")

    link(world, act)
    record = create(world.run, chain(step("a"), step("b"), step("c")))
    assert work(world) == ["a"]
    after = now(world, record)
    assert (after.state, after.completed, after.failed, after.cancelled) == (FAILED, 1, 1, 1)


def test_a_step_waits_while_the_middleware_fails(world: World) -> None:
    """It is the deployment's fault, and none of the job's."""
    broken = {"b"}

    def act(job: Envelope) -> None:
        if job.type in broken:
            raise RuntimeError("no connection")

    link(world, act)
    record = create(world.run, chain(step("a"), step("b"), step("c")))
    assert work(world) == ["a"]
    assert now(world, record).state is RUNNING
    broken.clear()
    world.clock.advance(60_000)
    sweep(world)
    assert work(world) == ["b", "c"]
    assert now(world, record).state is COMPLETED


def test_a_workflow_that_the_middleware_refuses_is_not_stored(world: World) -> None:
    def act(_: Envelope) -> None:
        raise Refused("closed")

    link(world, act)
    with pytest.raises(MiddlewareRefusal):
        create(world.run, group(step("a"), step("b")))
    assert jobs_of(world) == []
    assert world.run.stores.workflows.page(limit=10, after=None).items == []
