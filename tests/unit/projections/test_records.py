from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain import jsontext
from ojs.domain.errors import UnknownForm
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.projections.pools import WorkerChange
from ojs.projections.queues import QueueChange
from ojs.projections.records import PART_JOBS, Malformed, parse
from ojs.store.jobs import items
from ojs.store.jobs.staged_batches import batch_item as staged_item
from ojs.store.table import keys
from tests.store.streams import Record, lambda_form, made_record
from tests.unit.domain.arbitrary import NOW_MS, jobs

ID = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
JOB = Job(
    ID, "email.send", "mail", State.AVAILABLE, NOW_MS, enqueued_ms=NOW_MS, order="0" * 15,
    content={"args": ["secret"]}, op="AAAAAAAA",
)  # fmt: skip
HEAD = items.record_of(JOB)


def insert(item: Any = None) -> Record:
    return made_record(1, None, item or HEAD)


@given(jobs(), jobs(), st.booleans())
def test_a_record_is_read_as_it_was_written(before: Job, after: Job, as_lambda: bool) -> None:
    after = replace(after, id=before.id)
    record = made_record(7, items.record_of(before), items.record_of(after))
    (change,) = parse(lambda_form(record) if as_lambda else record)
    # All but the content: nothing that follows from a change may tell of it.
    expected = [
        replace(
            read := items.job_of(items.record_of(one)),
            content=None,
            # Its length alone counts.
            content_bytes=read.content_bytes
            or (len(jsontext.dumps(one.content).encode()) if one.content is not None else 0),
        )
        for one in (before, after)
    ]
    assert change.jobs == ((expected[0], expected[1]),)
    assert change.sequence == record["dynamodb"]["SequenceNumber"]
    assert change.second == 1_780_000_000
    assert len(change.identity) == 8


def test_both_forms_of_a_record_are_the_same_change() -> None:
    record = insert()
    assert parse(record) == parse(lambda_form(record))


def test_an_identity_is_the_events_id_or_else_the_sequence_number() -> None:
    first = parse(insert())[0]
    again = insert()
    again["dynamodb"]["SequenceNumber"] = "5"
    assert parse(again)[0].identity == first.identity
    for one in (first_without := insert(), second_without := insert()):
        del one["eventID"]
    second_without["dynamodb"]["SequenceNumber"] = "5"
    identities = {parse(one)[0].identity for one in (first_without, second_without, insert())}
    assert len(identities) == 3
    for wrong in (None, "", "x1"):
        unnumbered = insert()
        unnumbered["dynamodb"]["SequenceNumber"] = wrong
        with pytest.raises(Malformed):
            parse(unnumbered)


def test_places_have_the_order_of_sequence_numbers() -> None:
    """These have up to 40 digits: more than a number of DynamoDB keeps exactly."""
    numbers = ["9", "10", "8" * 21, "1" + "0" * 39, "9" * 40]
    places = []
    for number in numbers:
        record = insert()
        record["dynamodb"]["SequenceNumber"] = number
        places.append(parse(record)[0].place)
    assert places == sorted(places)
    assert {len(place) for place in places} == {40}


@pytest.mark.parametrize(
    ("pk", "sk"),
    [
        (keys.job(ID), "err|0000|000001"),
        (keys.job(ID), "payload|"),
        (keys.job(ID), "progress"),
        (keys.stats("a"), "@"),
        (keys.dedup_records(1), "0000"),
        (keys.events("2026-01-01"), "1|a"),
        (keys.unique("ab"), "@"),
        (keys.QUEUES, "a"),
    ],
)
def test_what_is_not_a_job_queue_worker_or_batch_is_passed_over(pk: str, sk: str) -> None:
    assert parse(made_record(1, None, {"pk": pk, "sk": sk, "n": 1})) == []


def test_jobs_of_a_batch_count_when_it_is_committed() -> None:
    staged = items.record_of(replace(JOB, batch="token"))
    assert parse(made_record(1, None, staged)) == []
    assert parse(made_record(1, staged, None)) == []
    # From the commit on they are jobs like any other.
    (change,) = parse(made_record(1, staged, HEAD))
    assert change.jobs[0][0] is not None


def batch_item(count: int) -> tuple[list[Job], dict[str, Any]]:
    made = [
        replace(
            JOB,
            id=f"019539a4-b68c-7def-8000-{n:012x}",
            queue=f"q{n % 2}",
            priority=n % 3,
            state=State.SCHEDULED if n % 5 == 0 else State.AVAILABLE,
            scheduled_ms=NOW_MS + n if n % 5 == 0 else None,
            enqueued_ms=None if n % 5 == 0 else NOW_MS,
        )
        for n in range(count)
    ]
    return made, staged_item("token", [(job, []) for job in made], NOW_MS, keys.staged("token"))


@pytest.mark.parametrize("as_lambda", [True, False])
def test_a_commit_tells_of_its_jobs_in_parts_of_one_queue(as_lambda: bool) -> None:
    made, item = batch_item(1_500)
    record = made_record(1, item, None)
    changes = parse(lambda_form(record) if as_lambda else record)
    assert [len(change.jobs) for change in changes] == [500, 250, 500, 250]
    assert all(len(change.jobs) <= PART_JOBS for change in changes)
    assert len({change.identity for change in changes}) == 4
    found = {after.id: after for change in changes for _, after in change.jobs if after}
    for job in made:
        told = found[job.id]
        shown = ("type", "queue", "state", "priority", "scheduled_ms", "created_ms", "enqueued_ms")
        assert [getattr(told, name) for name in shown] == [getattr(job, name) for name in shown]
    assert parse(record) == changes


def test_a_batch_that_is_undone_tells_nothing() -> None:
    _, item = batch_item(3)
    undone = item | {"state": "undone"}
    assert parse(made_record(1, None, item)) == []
    assert parse(made_record(1, item, undone)) == []
    assert parse(made_record(1, undone, None)) == []


@pytest.mark.parametrize("by", ["service", "time"])
def test_what_went_because_its_time_was_over(by: str) -> None:
    ends = 1_780_000_000 if by == "time" else 1_790_000_000
    worker = {"pk": keys.worker("03"), "sk": "w|1", "first": 5, "seen": 6, "info": "{}"}
    record = made_record(1, worker | {"ttl": ends}, None)
    if by == "service":
        record["userIdentity"] = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    assert _pruned(record)
    assert not _pruned(made_record(1, worker | {"ttl": 1_790_000_000}, None))
    assert not _pruned(made_record(1, worker, None))


def _pruned(record: dict[str, Any]) -> bool:
    (change,) = parse(record)
    assert isinstance(change.other, WorkerChange)
    return change.other.pruned


def spoil(path: str, value: Any = None) -> Record:
    """A good record with one part changed, or left out."""
    record = copy.deepcopy(insert())
    at: Any = record
    *way, last = path.split(".")
    for step in way:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return record


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dynamodb", None),
        ("dynamodb", "secret"),
        ("eventName", None),
        ("eventName", "TRUNCATE"),
        ("dynamodb.Keys.pk", None),
        ("dynamodb.NewImage", None),
        ("dynamodb.NewImage", {"a": "secret"}),
        ("dynamodb.ApproximateCreationDateTime", None),
        ("dynamodb.ApproximateCreationDateTime", "secret"),
        ("dynamodb.NewImage.state", None),
        ("dynamodb.NewImage.state", {"N": "1"}),
        ("dynamodb.NewImage.type", {"N": "1"}),
        ("dynamodb.NewImage.created", {"S": "secret"}),
        ("dynamodb.NewImage.created", {"N": "secret"}),
        ("dynamodb.NewImage.created", {"S": "1", "N": "1"}),
        ("dynamodb.NewImage.queue", None),
        ("dynamodb.NewImage.result", {"S": "{secret"}),
        ("dynamodb.NewImage.retry", {"S": "[1]"}),
        ("dynamodb.NewImage.lease_until", {"N": "5"}),
    ],
)
def test_a_malformed_record_is_told_without_what_it_holds(path: str, value: Any) -> None:
    with pytest.raises(Malformed) as caught:
        parse(spoil(path, value))
    assert caught.value.__suppress_context__
    told = caught.value.to_dict()
    assert "secret" not in jsontext.dumps(told)
    assert told["event_id"] == f"{1:032x}"
    if "Keys" not in path and path != "dynamodb":
        assert told["keys"] == {"pk": keys.job(ID), "sk": "@"}
        assert told["sequence_number"] == f"{1:021d}"


def test_a_state_that_only_a_newer_version_knows_is_not_malformed() -> None:
    with pytest.raises(UnknownForm):
        parse(spoil("dynamodb.NewImage.state", {"S": "paused_by_future"}))


@pytest.mark.parametrize("raw", [{}, {"dynamodb": {"Keys": []}}, {"dynamodb": {"Keys": {"pk": 1}}}])
def test_what_is_no_record_at_all(raw: Any) -> None:
    with pytest.raises(Malformed) as caught:
        parse(raw)
    assert caught.value.to_dict()["sequence_number"] == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("runs", b"no zlib"),
        ("ids", b"too short"),
        ("ids", None),
        ("created", None),
        ("runs", "!"),
    ],
)
def test_a_malformed_commit(name: str, value: Any) -> None:
    _, item = batch_item(3)
    item = {key: one for key, one in item.items() if key != name} | (
        {} if value is None else {name: value}
    )
    with pytest.raises(Malformed):
        parse(made_record(1, item, None))


def test_queues_and_workers() -> None:
    queue = {"pk": keys.queue("mail"), "sk": "@", "created": 1}
    (change,) = parse(made_record(1, queue, queue | {"state": "paused", "changed": 5}))
    assert isinstance(change.other, QueueChange)
    before, after = change.other.before, change.other.after
    assert before is not None
    assert after is not None
    assert (before.paused, after.paused, after.changed_ms) == (False, True, 5)
    worker = {"pk": keys.worker("03"), "sk": "w|1", "first": 5, "seen": 6, "info": '{"pid":1}'}
    (change,) = parse(made_record(1, None, worker))
    assert isinstance(change.other, WorkerChange)
    assert change.other.before is None
    assert change.other.after is not None
    assert change.other.after.info == {"pid": 1}
