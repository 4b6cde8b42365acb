from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojs.domain import jsontext, times
from ojs.domain.job import envelope, lifecycle, replay
from ojs.domain.job.copies import Origin
from ojs.domain.job.envelope import SYSTEM_FIELDS, JobRequest
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import MISSING, Job, Lease, expired, to_dict
from ojs.domain.job.retry import RetryPolicy
from ojs.domain.job.states import State
from tests.spread import examples
from tests.unit.domain.arbitrary import (
    NOW_MS,
    contents,
    exactly,
    failures,
    instants,
    jobs,
    json_values,
)

JOB_ID = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
LATER_MS = NOW_MS + 5_000
FAILURE = Failure(1, "handler_error", "SmtpError", "no", NOW_MS)

# What a job shows of itself, apart from what its client gave.
ALWAYS = {
    "specversion", "id", "type", "queue", "args", "meta", "priority", "state", "attempt",
    "max_attempts", "created_at",
}  # fmt: skip


def _new(**given: Any) -> Job:
    """A job as it is stored when it is pushed."""
    request = envelope.parse({"type": "email.send", "args": ["a"], **given})
    asked = envelope.resolve(request, now_ms=NOW_MS)
    return Job(
        id=asked.id or JOB_ID,
        type=asked.type,
        queue=asked.queue,
        state=State.SCHEDULED if asked.scheduled_ms is not None else State.AVAILABLE,
        created_ms=NOW_MS,
        priority=asked.priority,
        content=asked.content,
        enqueued_ms=None if asked.scheduled_ms is not None else NOW_MS,
        scheduled_ms=asked.scheduled_ms,
        expires_ms=asked.expires_ms,
        policy=asked.policy,
        order="00019e0000000aa",
    )


def _claimed(job: Job) -> Job:
    return lifecycle.claim(job, token="lease001", now_ms=NOW_MS, lease_ms=30_000, worker_id="w")


def _failed(job: Job, code: str = "handler_error") -> Job:
    failure = replace(FAILURE, code=code)
    after = lifecycle.fail(job, failure, now_ms=LATER_MS, chance=0.5)
    return replace(after, errors=(*(job.errors or ()), failure))


# --- absent, not null ---------------------------------------------------------------------------


@st.composite
def loaded_jobs(draw: st.DrawFn) -> Job:
    """Jobs with all that is loaded apart."""
    job = draw(jobs(content=contents))
    return replace(
        job,
        errors=draw(st.none() | st.lists(failures, max_size=2).map(tuple)),
        progress=draw(st.sampled_from((None, {"progress": None}, {"progress": 0.5}))),
        previous_state=draw(st.sampled_from((None, *State))),
    )


@settings(max_examples=examples(60))
@given(loaded_jobs())
def test_a_field_that_is_not_set_is_absent_never_null(job: Job) -> None:
    shown = to_dict(job)
    given_null = {name for name, value in (job.content or {}).items() if value is None}
    if job.result is None:
        given_null.add("result")
    assert {name for name, value in shown.items() if value is None} == given_null
    assert None not in shown.get("metadata", {}).values()


@settings(max_examples=examples(60))
@given(loaded_jobs())
def test_what_is_always_there_is_there_in_every_state(job: Job) -> None:
    shown = to_dict(job)
    assert shown.keys() >= ALWAYS
    assert isinstance(shown["args"], list)
    assert isinstance(shown["meta"], dict)
    assert shown["state"] == job.state.value


@settings(max_examples=examples(60))
@given(loaded_jobs())
def test_args_meta_and_unknown_keys_are_shown_exactly_as_given(job: Job) -> None:
    shown = to_dict(job)
    for name, value in (job.content or {}).items():
        # Of a job that a replay rule brought back, `meta` also says so.
        kept = replay.shown(value, job.replayed) if name == "meta" else value
        assert exactly(shown[name]) == exactly(kept)


@settings(max_examples=examples(60))
@given(loaded_jobs())
def test_every_key_the_backend_shows_is_one_a_client_cannot_set_by_an_unknown_key(
    job: Job,
) -> None:
    requested = {name for name in JobRequest.model_fields if name not in {"schema_", "options"}} | {
        "schema"
    }
    own = to_dict(job).keys() - (job.content or {}).keys()
    # `metadata` is anybody's: a dead letter adds its two times to what the client keeps there.
    assert own <= requested | SYSTEM_FIELDS | {"metadata"}


@pytest.mark.requirement("QC-33")
def test_a_copy_shows_the_error_it_was_made_for_until_it_has_one_of_its_own() -> None:
    error = {"code": "E", "message": "no"}
    content = {"args": [], "meta": {"ojs.dead_letter": {"source_job_id": "x", "error": error}}}
    mine = Job("id", "a", "dead", State.AVAILABLE, NOW_MS, content=content, copy_of=Origin("x"))
    assert to_dict(mine)["error"] == error
    assert "errors" not in to_dict(mine)
    own = Failure(1, "MINE", "MINE", "too", NOW_MS)
    assert to_dict(replace(mine, errors=(own,)))["error"]["code"] == "MINE"
    assert "error" not in to_dict(replace(mine, state=State.COMPLETED))
    # What anybody may write into a job's meta is no error of it.
    assert "error" not in to_dict(replace(mine, copy_of=None))
    others: list[Any] = [None, 5, {}, {"ojs.dead_letter": 5}, {"ojs.dead_letter": {}}]
    for meta in others:
        assert "error" not in to_dict(replace(mine, content={"args": [], "meta": meta}))


def test_a_dead_letter_adds_its_times_to_the_clients_own_metadata() -> None:
    sent = {"type": "a", "args": [], "metadata": {"team": "x", "discarded_at": "never"}}
    content = envelope.resolve(envelope.parse(sent), now_ms=NOW_MS).content
    job = Job("id", "a", "q", State.DISCARDED, NOW_MS, content=content)
    assert to_dict(job)["metadata"] == sent["metadata"]
    shown = to_dict(replace(job, dead_letter=True, discarded_ms=NOW_MS))["metadata"]
    time = times.format_ms(NOW_MS)
    assert shown == {"team": "x", "created_at": time, "discarded_at": time}


@settings(max_examples=examples(60))
@given(loaded_jobs())
def test_the_whole_job_can_be_sent_and_its_times_be_read(job: Job) -> None:
    shown = jsontext.loads(jsontext.dumps(to_dict(job)))
    instant_names = [name for name in shown if name.endswith("_at")]
    for name in instant_names:
        assert times.format_ms(times.timestamp_ms(shown[name], now_ms=0)) == shown[name]
    assert "created_at" in instant_names


@given(jobs())
def test_times_show_exactly_where_they_are_set(job: Job) -> None:
    shown = to_dict(job)
    for name, ms in {
        "enqueued_at": job.enqueued_ms,
        "activated_at": job.activated_ms,
        "started_at": job.started_ms,
        "completed_at": job.completed_ms,
        "cancelled_at": job.cancelled_ms,
        "discarded_at": job.discarded_ms,
    }.items():
        assert shown.get(name) == (None if ms is None else times.format_ms(ms))
        assert (name in shown) == (ms is not None)


# --- the life of one job ------------------------------------------------------------------------


def test_a_new_job_shows_what_was_given_and_nothing_of_what_has_not_happened() -> None:
    job = _new(
        priority=7,
        queue="mail",
        meta={"trace.id": "t"},
        tags=["a"],
        expires_at="2099-12-31T23:59:59Z",
        x_team="core",
    )
    assert to_dict(job) == {
        "specversion": "1.0",
        "id": JOB_ID,
        "type": "email.send",
        "queue": "mail",
        "args": ["a"],
        "meta": {"trace.id": "t"},
        "tags": ["a"],
        "expires_at": "2099-12-31T23:59:59Z",
        "x_team": "core",
        "priority": 7,
        "state": "available",
        "attempt": 0,
        "max_attempts": 3,
        "created_at": "2026-05-28T20:26:40.000Z",
        "enqueued_at": "2026-05-28T20:26:40.000Z",
    }


@pytest.mark.requirement("C-2")
def test_a_bare_job_has_the_defaults() -> None:
    assert to_dict(_new()).keys() == ALWAYS | {"enqueued_at"}
    assert to_dict(_new())["meta"] == {}
    assert to_dict(_new())["queue"] == "default"
    assert to_dict(_new())["priority"] == 0


def test_a_scheduled_job_is_not_enqueued_yet() -> None:
    shown = to_dict(_new(scheduled_at="+PT2S"))
    assert shown["state"] == "scheduled"
    assert shown["scheduled_at"] == "2026-05-28T20:26:42.000Z"
    assert "enqueued_at" not in shown


def test_a_running_job_shows_its_worker_lease_and_start() -> None:
    shown = to_dict(_claimed(_new()))
    assert shown["state"] == "active"
    assert shown["attempt"] == 1
    assert shown["worker_id"] == "w"
    assert shown["lease_token"] == "lease001"
    assert shown["lease_expires_at"] == times.format_ms(NOW_MS + 30_000)
    assert shown["started_at"] == times.format_ms(NOW_MS)


def test_a_completed_job_keeps_its_errors_but_has_no_error_and_no_lease() -> None:
    failed = _failed(_claimed(_new()))
    again = _claimed(lifecycle.promote(failed, now_ms=LATER_MS, order="00019e0000000ab"))
    done = replace(lifecycle.complete(again, now_ms=LATER_MS), result={"sent": 1})
    shown = to_dict(done)
    assert shown["result"] == {"sent": 1}
    assert shown["completed_at"] == times.format_ms(LATER_MS)
    assert len(shown["errors"]) == 1
    assert shown.keys().isdisjoint({"error", "lease_token", "lease_expires_at", "discarded_at"})


@pytest.mark.parametrize("result", [None, False, 0, "", [], {}])
def test_a_result_is_shown_whatever_its_value_and_null_is_a_value(result: Any) -> None:
    done = replace(lifecycle.complete(_claimed(_new()), now_ms=LATER_MS), result=result)
    assert to_dict(done)["result"] == result
    assert "result" not in to_dict(replace(done, result=MISSING))


def test_a_failed_job_shows_its_last_error_its_history_and_its_next_attempt() -> None:
    job = _failed(_claimed(_new(retry={"jitter": False})))
    shown = to_dict(job)
    assert shown["state"] == "retryable"
    assert shown["retry_delay_ms"] == 1_000
    assert shown["next_attempt_at"] == shown["next_retry_at"] == times.format_ms(LATER_MS + 1_000)
    assert shown["error"] == shown["errors"][-1] == FAILURE.to_dict()
    assert shown.keys().isdisjoint({"completed_at", "discarded_at", "lease_token"})


def test_a_retried_job_shows_the_delay_it_waited_and_no_next_attempt() -> None:
    failed = _failed(_claimed(_new(retry={"jitter": False})))
    shown = to_dict(_claimed(lifecycle.promote(failed, now_ms=LATER_MS, order="1")))
    assert shown["retry_delay_ms"] == 1_000
    assert shown["attempt"] == 2
    assert shown.keys().isdisjoint({"next_attempt_at", "next_retry_at"})


@pytest.mark.parametrize(
    ("code", "dead_letter"), [("DISCARD", False), ("DEAD_LETTER", True), ("handler_error", True)]
)
def test_a_job_discarded_by_a_failure_is_completed_and_discarded_at_once(
    code: str, dead_letter: bool
) -> None:
    shown = to_dict(_failed(_claimed(_new(max_attempts=1)), code))
    assert shown["state"] == "discarded"
    assert shown["completed_at"] == shown["discarded_at"] == times.format_ms(LATER_MS)
    assert shown.get("dead_letter", False) is dead_letter
    if dead_letter:
        assert shown["metadata"] == {
            "created_at": shown["created_at"],
            "discarded_at": shown["discarded_at"],
        }
    else:
        assert "metadata" not in shown


@pytest.mark.parametrize("claimed", [False, True])
def test_a_cancelled_job_has_no_completion(claimed: bool) -> None:
    job = _claimed(_new()) if claimed else _new()
    shown = to_dict(lifecycle.cancel(job, now_ms=LATER_MS))
    assert shown["state"] == "cancelled"
    assert shown["cancelled_at"] == times.format_ms(LATER_MS)
    assert shown["previous_state"] == ("active" if claimed else "available")
    assert shown.keys().isdisjoint({"completed_at", "discarded_at", "lease_token"})


def test_an_expired_job_is_discarded_without_completion_and_still_shows_its_deadline() -> None:
    job = _new(expires_at="+PT1S")
    after, failure = lifecycle.expire(job, now_ms=LATER_MS)
    shown = to_dict(replace(after, errors=(failure,)))
    assert shown["state"] == "discarded"
    assert shown["discarded_at"] == times.format_ms(LATER_MS)
    assert shown["expires_at"] == times.format_ms(NOW_MS + 1_000)
    assert shown["error"]["type"] == "expired"
    assert shown.keys().isdisjoint({"completed_at", "dead_letter", "started_at"})


def test_a_revived_job_is_as_new_but_for_its_history() -> None:
    dead = _failed(_claimed(_new(max_attempts=1)))
    shown = to_dict(lifecycle.revive(dead, now_ms=LATER_MS + 1, order="00019e0000000ab"))
    assert (shown["id"], shown["state"], shown["attempt"]) == (JOB_ID, "available", 0)
    assert shown["enqueued_at"] == times.format_ms(LATER_MS + 1)
    assert len(shown["errors"]) == 1
    assert shown.keys().isdisjoint(
        {
            "started_at", "completed_at", "discarded_at", "result", "dead_letter", "metadata",
            "worker_id", "retry_delay_ms", "next_attempt_at",
        }
    )  # fmt: skip


def test_an_activated_job_shows_when_and_from_where() -> None:
    pending = replace(_new(), state=State.PENDING, enqueued_ms=None, order=None)
    shown = to_dict(lifecycle.activate(pending, now_ms=LATER_MS, order="1"))
    assert (shown["state"], shown["previous_state"]) == ("available", "pending")
    assert shown["activated_at"] == shown["enqueued_at"] == times.format_ms(LATER_MS)


# --- single fields ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "1", "1.0.0-rc.1"])
def test_the_specversion_is_the_clients(version: str) -> None:
    assert to_dict(_new(specversion=version))["specversion"] == version


@pytest.mark.parametrize(
    ("state", "progress", "shown"),
    [
        (State.ACTIVE, {"progress": 0.5, "message": "half"}, 0.5),
        (State.ACTIVE, {"progress": 0.0}, 0.0),
        (State.ACTIVE, {"progress": None, "data": {"rows": 5}}, None),
        (State.ACTIVE, None, None),
        (State.COMPLETED, {"progress": 0.5}, 1.0),
        (State.COMPLETED, {"progress": None}, 1.0),
        (State.COMPLETED, None, None),
        (State.RETRYABLE, {"progress": 0.5}, 0.5),
    ],
)
def test_progress_is_shown_as_reported_and_complete_once_the_job_is(
    state: State, progress: dict[str, Any] | None, shown: float | None
) -> None:
    job = replace(_new(), state=state, started_ms=NOW_MS, progress=progress)
    assert to_dict(job).get("progress") == shown
    assert ("progress" in to_dict(job)) == (shown is not None)


def test_a_record_without_its_content_shows_no_args_rather_than_empty_ones() -> None:
    shown = to_dict(replace(_new(), content=None))
    assert shown.keys().isdisjoint({"args", "meta"})


@given(instants, st.none() | instants)
def test_a_job_is_expired_from_its_deadline_on(now_ms: int, expires_ms: int | None) -> None:
    job = replace(_new(), expires_ms=expires_ms)
    assert expired(job, now_ms) is (expires_ms is not None and now_ms >= expires_ms)


@given(jobs([State.SCHEDULED, State.RETRYABLE, State.ACTIVE]))
def test_a_job_that_waits_for_a_time_knows_it(job: Job) -> None:
    if job.state is State.ACTIVE:
        assert job.lease is not None
        assert job.started_ms is not None
        assert job.due_ms == min(job.lease.until_ms, job.started_ms + job.timeout_ms)
    else:
        due = job.scheduled_ms if job.state is State.SCHEDULED else job.retry_at_ms
        assert job.due_ms == due


@given(jobs([State.AVAILABLE, State.PENDING, State.COMPLETED, State.CANCELLED, State.DISCARDED]))
def test_a_job_that_waits_for_no_time_has_no_due_time(job: Job) -> None:
    with pytest.raises(ValueError, match="has no due time"):
        _ = job.due_ms


@pytest.mark.requirement("C-3")
@given(json_values)
def test_meta_is_shown_exactly_as_it_was_sent_number_forms_included(value: Any) -> None:
    sent = jsontext.loads(jsontext.dumps({"type": "a", "args": [value], "meta": {"k.x": value}}))
    shown = to_dict(_new(**{name: sent[name] for name in ("args", "meta")}))
    assert jsontext.dumps(shown["meta"]) == jsontext.dumps({"k.x": value})
    assert jsontext.dumps(shown["args"]) == jsontext.dumps([value])


def test_the_number_of_attempts_is_that_of_the_policy() -> None:
    assert replace(_new(), policy=RetryPolicy(max_attempts=9)).max_attempts == 9
    assert to_dict(_new(max_attempts=0))["max_attempts"] == 0


def test_the_attempt_ends_at_its_start_plus_the_timeout() -> None:
    job = replace(_new(), timeout_ms=5)
    assert job.timeout_at_ms is None
    assert replace(job, started_ms=NOW_MS).timeout_at_ms == NOW_MS + 5
    assert Lease("t", 1, 1).worker_id is None
