from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ojs.domain.job import lifecycle
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import Job
from ojs.domain.job.retry import RetryPolicy
from ojs.domain.job.states import TERMINAL, State, Trigger
from ojs.store.jobs import items
from ojs.store.table import keys, schema, values
from ojs.store.table.values import Item
from tests.spread import examples
from tests.unit.domain.arbitrary import (
    NOW_MS,
    contents,
    exactly,
    failures,
    jobs,
    json_values,
    plain_failures,
    texts,
    tokens,
)

JOB_ID = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
# The longest worker id a job record is planned for: a host name, or a UUID.
WORKER_ID = "w" * 36


def _stored(item: Item) -> Item:
    """The item as it comes back from DynamoDB."""
    return values.unpack(values.pack(item))


# --- round trips --------------------------------------------------------------------------------


@settings(max_examples=examples(100))
@given(jobs(content=contents))
def test_a_job_is_read_back_from_its_record_exactly(job: Job) -> None:
    back = items.job_of(_stored(items.record_of(job)))
    assert back == job
    assert exactly(back.content) == exactly(job.content)
    assert exactly(back.result) == exactly(job.result)


@settings(max_examples=examples(200))
@given(jobs())
def test_what_stands_in_a_line_of_times_waits_for_a_time(job: Job) -> None:
    """A queue is noted for it, so that the sweep looks there."""
    entries = items.index_entries(job)
    lines = {str(entries.get(name, ""))[:2] for name in ("wpk", "epk")}
    assert items.waits_for_a_time(job) == bool(lines & {"D|", "T|"})


@given(jobs(), tokens, st.integers(1, 10**6))
def test_a_job_whose_content_is_kept_apart_is_read_back_without_it(
    job: Job, ref: str, size: int
) -> None:
    apart = replace(job, content_ref=ref, content_bytes=size)
    record = items.record_of(apart)
    assert "body" not in record
    assert items.job_of(_stored(record)) == replace(apart, content=None)


@given(jobs([State.COMPLETED]), tokens, json_values)
def test_a_result_that_is_kept_apart_is_not_on_the_record(job: Job, ref: str, result: Any) -> None:
    record = items.record_of(replace(job, result=result, result_ref=ref))
    assert "result" not in record
    assert items.job_of(_stored(record)).result_ref == ref


@given(jobs([State.ACTIVE]), plain_failures, st.data())
def test_what_a_life_makes_of_a_stored_job_is_the_same_as_of_the_job_itself(
    job: Job, failure: Failure, data: st.DataObject
) -> None:
    back = items.job_of(_stored(items.record_of(job)))
    chance = data.draw(st.floats(0, 1, exclude_max=True))
    assert lifecycle.fail(back, failure, now_ms=NOW_MS, chance=chance) == lifecycle.fail(
        job, failure, now_ms=NOW_MS, chance=chance
    )


@given(jobs(), failures, st.booleans())
def test_an_error_is_read_back_from_its_item_and_from_the_record_exactly(
    job: Job, failure: Failure, reported: bool
) -> None:
    entry = items.entry(job, failure, reported=reported)
    back = items.entry_from(_stored(items.error(job.id, entry)))
    # Who said so is known from the record alone.
    assert replace(back, reported=reported) == entry
    assert exactly(back.failure.details) == exactly(failure.details)
    there, same = items.job_of(_stored(items.record_of(replace(job, noted=(entry, entry))))).noted
    assert there == same == entry
    assert exactly(there.failure.details) == exactly(failure.details)


@given(jobs(), failures)
def test_an_error_is_filed_under_its_job_by_life_and_attempt(job: Job, failure: Failure) -> None:
    item = items.error(job.id, items.entry(job, failure))
    # What ends a job between attempts must not stand in for the error of the attempt before.
    ended = job.state is not State.ACTIVE
    key = keys.error(job.life, failure.attempt, ended=ended)
    assert (item["pk"], item["sk"]) == (keys.job(job.id), key)


plain_items: st.SearchStrategy[Item] = st.dictionaries(
    st.text(min_size=1, max_size=8),
    texts | st.integers(-(10**37), 10**37) | st.binary(max_size=20),
    max_size=6,
)


@given(plain_items)
@example({"a": "", "b": b"", "c": 0})
def test_an_item_is_read_back_from_typed_attributes(item: Item) -> None:
    assert exactly(_stored(item)) == exactly(item)
    assert all(len(typed) == 1 for typed in values.pack(item).values())


# --- what is on a job record --------------------------------------------------------------------


def _small(**given: Any) -> Job:
    return replace(
        Job(
            id=JOB_ID,
            type="email.send",
            queue="default",
            state=State.AVAILABLE,
            created_ms=NOW_MS,
            enqueued_ms=NOW_MS,
            content={"args": []},
            order="00019e0000000aa",
            op="op000000",
        ),
        **given,
    )


def test_the_record_of_a_job_with_defaults_holds_nothing_it_could_do_without() -> None:
    assert items.record_of(_small()) == {
        "pk": f"J|{JOB_ID}",
        "sk": "@",
        "state": "available",
        "type": "email.send",
        "queue": "default",
        "created": NOW_MS,
        "enqueued": NOW_MS,
        "body": '{"args":[]}',
        "op": "op000000",
        "wpk": "R|default|0",
        "wsk": "10000019e0000000aa",
    }


@given(jobs(content=contents))
def test_keys_and_index_keys_are_texts_and_no_attribute_is_null(job: Job) -> None:
    record = items.record_of(job)
    key_names = {schema.TABLE.hash_key, schema.TABLE.range_key}
    for index in schema.TABLE.indexes:
        key_names |= {index.hash_key, index.range_key}
    for name in key_names & record.keys():
        assert isinstance(record[name], str)
        assert record[name] != ""
    assert None not in record.values()
    assert ("ttl" in record) == (job.ttl_s is not None)


@given(jobs())
def test_a_job_that_is_not_terminal_can_always_be_found_by_the_index(job: Job) -> None:
    entries = items.index_entries(job)
    where = {
        State.AVAILABLE: keys.ready(job.queue, job.lane),
        State.PENDING: keys.pending(job.queue, job.lane),
        State.SCHEDULED: keys.due(job.queue, job.lane % 8),
        State.RETRYABLE: keys.due(job.queue, job.lane % 8),
        State.ACTIVE: keys.due(job.queue, job.lane),
    }
    if job.state in where:
        assert entries["wpk"] == where[job.state]
        assert entries["wsk"]
    elif job.dead_letter:
        assert entries["wpk"] == keys.dead(job.queue)
        assert str(entries["wsk"]).startswith(keys.instant(job.discarded_ms or 0))
    else:
        assert entries == {}


@given(jobs([State.SCHEDULED, State.RETRYABLE, State.ACTIVE]))
def test_a_job_that_waits_for_a_time_is_filed_under_that_time(job: Job) -> None:
    waits_for = {"scheduled": "s", "retryable": "r", "active": "a"}[job.state.value]
    assert items.index_entries(job)["wsk"] == f"{job.due_ms:015d}{waits_for}"
    assert keys.instant(job.due_ms) < str(items.index_entries(job)["wsk"]) < keys.upto(job.due_ms)


@given(jobs())
def test_only_a_job_that_may_still_expire_is_filed_under_its_deadline(job: Job) -> None:
    entries = items.index_entries(job)
    if job.expires_ms is not None and job.state not in TERMINAL | {State.ACTIVE}:
        assert entries["epk"] == keys.expiry(job.queue, job.lane)
        assert entries["esk"] == keys.instant(job.expires_ms)
    elif job.dead_letter:
        # All dead letters stand in one line there, in the order of their queues' lines.
        assert entries["epk"] == keys.all_dead()
        assert entries["esk"] == entries["wsk"]
    else:
        assert entries.keys().isdisjoint({"epk", "esk"})


@given(jobs([State.AVAILABLE]))
def test_the_place_in_line_tells_a_claim_what_the_record_says(job: Job) -> None:
    place = keys.Position.parse(str(items.index_entries(job)["wsk"]))
    assert (place.priority, place.order, place.batch) == (job.priority, job.order, job.batch)
    assert place.visibility_ms == job.visibility_ms
    if place.timeout_ms is None:
        assert job.timeout_ms == Job("", "", "", State.PENDING, 0).timeout_ms
    else:
        assert place.timeout_ms == job.timeout_ms


def test_the_place_in_line_tells_the_size_of_a_payload_that_is_kept_apart() -> None:
    job = _small(content_ref="ref00000", content_bytes=100 * 1_024 + 5)
    assert keys.Position.parse(str(items.index_entries(job)["wsk"])).size_kib == 100


# --- size ---------------------------------------------------------------------------------------


def _counted(item: Item) -> int:
    """Bytes by DynamoDB's rules: names and texts in UTF-8, bytes as they are, numbers one byte for
    two significant digits and one more, another one for a minus."""
    total = 0
    for name, value in item.items():
        total += len(name.encode())
        match value:
            case str():
                total += len(value.encode())
            case bytes():
                total += len(value)
            case int():
                digits = str(abs(value)).strip("0")
                total += (len(digits) + 1) // 2 + 1 + (value < 0)
    return total


@pytest.mark.parametrize(
    ("item", "size"),
    [
        ({}, 0),
        ({"a": ""}, 1),
        ({"pk": "J|1"}, 5),
        ({"\u00e9": "\u00e9"}, 4),
        ({"a": "\U0001f600"}, 5),
        ({"a": b"\x00\xff"}, 3),
        ({"a": "x" * 1_000, "bc": b"y" * 10}, 1_013),
    ],
)
def test_names_texts_and_bytes_count_as_dynamodb_counts_them(item: Item, size: int) -> None:
    assert values.size(item) == _counted(item) == size


@given(plain_items)
def test_an_items_size_is_never_counted_too_low(item: Item) -> None:
    assert values.size(item) >= _counted(item)


@given(st.integers(-(10**37), 10**37))
def test_a_number_is_counted_too_high_by_a_byte_and_the_zeros_at_its_end(number: int) -> None:
    digits = str(abs(number))
    zeros = len(digits) - len(digits.rstrip("0"))
    over = values.size({"n": number}) - _counted({"n": number})
    assert 0 <= over <= 1 + (zeros + 1) // 2


@given(jobs(content=contents))
def test_a_records_size_is_never_counted_too_low(job: Job) -> None:
    record = items.record_of(job)
    assert values.size(record) >= _counted(record)


# --- inline or apart ----------------------------------------------------------------------------


def _filled(job: Job) -> Job:
    """The same job with as large a content as still fits on its job record."""
    room = items.RECORD_BYTES - items.growth(job) - values.size(items.record_of(job))
    filled = replace(job, content={"args": ["x" * max(0, room - 2)]})
    assert (
        room < 2 or values.size(items.record_of(filled)) + items.growth(job) == items.RECORD_BYTES
    )
    return filled


def test_content_is_inline_up_to_the_byte_that_leaves_room_for_growth() -> None:
    fits = _filled(_small())
    assert items.fits_inline(fits)
    assert fits.content is not None
    text = fits.content["args"][0]
    assert not items.fits_inline(replace(fits, content={"args": [text + "x"]}))


def test_content_counts_in_bytes_not_in_characters() -> None:
    assert items.fits_inline(_small(content={"args": ["x" * 400]}))
    assert not items.fits_inline(_small(content={"args": ["\U0001f600" * 400]}))


ORDER = "00019e0000000ab"


def _claimed(job: Job, now_ms: int) -> Job:
    return lifecycle.claim(
        job, token="lease001", now_ms=now_ms, lease_ms=43_199_999, worker_id=WORKER_ID
    )


def _failed(job: Job, now_ms: int) -> Job:
    failure = Failure(job.attempt, "c", "c", "", now_ms)
    return lifecycle.fail(job, failure, now_ms=now_ms, chance=0.999)


def _done(job: Job, now_ms: int) -> Job:
    result = "x" * (items.INLINE_RESULT_BYTES - len('""'))
    return replace(lifecycle.complete(job, now_ms=now_ms), result=result)


STEPS: dict[Trigger, Callable[[Job, int], Job]] = {
    Trigger.DUE: lambda job, now_ms: lifecycle.promote(job, now_ms=now_ms, order=ORDER),
    Trigger.ACTIVATE: lambda job, now_ms: lifecycle.activate(job, now_ms=now_ms, order=ORDER),
    Trigger.CLAIM: _claimed,
    Trigger.ACK: _done,
    Trigger.FAIL: _failed,
    Trigger.REQUEUE: lambda job, now_ms: lifecycle.requeue(job, now_ms=now_ms, order=ORDER),
    Trigger.STALL: lambda job, now_ms: lifecycle.stall(job, now_ms=now_ms, order=ORDER)[0],
    Trigger.CANCEL: lambda job, now_ms: lifecycle.cancel(job, now_ms=now_ms),
    Trigger.EXPIRE: lambda job, now_ms: lifecycle.expire(job, now_ms=now_ms)[0],
    Trigger.REVIVE: lambda job, now_ms: lifecycle.revive(job, now_ms=now_ms, order=ORDER),
}

RETRIED = (Trigger.CLAIM, Trigger.FAIL, Trigger.DUE, Trigger.CLAIM)
LIVES = {
    "acknowledged": (State.AVAILABLE, (*RETRIED, Trigger.ACK)),
    "lost and taken again": (State.AVAILABLE, (Trigger.CLAIM, Trigger.STALL, Trigger.CLAIM)),
    "handed back": (State.AVAILABLE, (Trigger.CLAIM, Trigger.REQUEUE, Trigger.CLAIM, Trigger.ACK)),
    "cancelled": (State.AVAILABLE, (*RETRIED, Trigger.CANCEL)),
    "scheduled": (State.SCHEDULED, (Trigger.DUE, *RETRIED, Trigger.ACK)),
    "expired": (State.SCHEDULED, (Trigger.EXPIRE,)),
    "pending": (State.PENDING, (Trigger.ACTIVATE, *RETRIED, Trigger.ACK)),
    "dead": (State.AVAILABLE, (*RETRIED, Trigger.FAIL)),
    "revived": (State.AVAILABLE, (*RETRIED, Trigger.FAIL, Trigger.REVIVE, *RETRIED, Trigger.ACK)),
    "pending and revived": (
        State.PENDING,
        (Trigger.ACTIVATE, *RETRIED, Trigger.FAIL, Trigger.REVIVE, *RETRIED, Trigger.ACK),
    ),
}


@pytest.mark.parametrize("expires_ms", [None, NOW_MS + 10**9 + 1])
@pytest.mark.parametrize(
    ("visibility_ms", "timeout_ms"), [(None, 1_800_000), (43_199_999, 31_535_999_999)]
)
@pytest.mark.parametrize("queue", ["q", "default", "q" * 60])
@pytest.mark.parametrize("life", list(LIVES))
def test_content_that_is_inline_never_costs_a_second_write_unit_in_the_jobs_life(
    life: str, queue: str, visibility_ms: int | None, timeout_ms: int, expires_ms: int | None
) -> None:
    state, triggers = LIVES[life]
    job = _small(
        state=state,
        queue=queue,
        visibility_ms=visibility_ms,
        timeout_ms=timeout_ms,
        expires_ms=expires_ms,
        scheduled_ms=NOW_MS + 12_345 if state is State.SCHEDULED else None,
        enqueued_ms=NOW_MS if state is State.AVAILABLE else None,
        policy=RetryPolicy(max_attempts=2),
    )
    job = _filled(job)
    assert items.fits_inline(job)
    now_ms = NOW_MS
    for trigger in triggers:
        now_ms += 1_000_001
        job = STEPS[trigger](job, now_ms)
        assert _counted(items.record_of(job)) <= items.RECORD_BYTES, trigger
