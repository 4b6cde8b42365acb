from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.events.types import EventType
from ojs.domain.job.copies import Origin
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.stats import DURATION_BUCKETS_S, QUEUE_TIME_BUCKETS_S
from ojs.projections.counters import MAX_TYPES, Tally, counted_as, day_of, named_types
from ojs.projections.transitions import JobEvent
from ojs.store.dead_letter import counters as dead_letters
from ojs.store.table import keys
from tests.unit.domain.arbitrary import NOW_MS, jobs
from tests.unit.projections.tallies import sums, tally

JOB = Job(
    "019539a4-b68c-7def-8000-1a2b3c4d5e6f", "email.send", "mail", State.AVAILABLE, NOW_MS,
    enqueued_ms=NOW_MS, priority=-3,
)  # fmt: skip
DAY = ("mail", keys.day("2026-05-28"))
MINUTE = ("mail", keys.minute("2026-05-28T20:26"))
BEHIND = ("held", "held_b", "loose", "loose_b")
NOW = ("mail", keys.NOW)


def test_a_new_job() -> None:
    assert sums(tally((None, JOB))) == {
        NOW: {"available": 1, "p-3": 1, "loose": 1, "t_enqueued": 1},
        DAY: {"enqueued": 1, "enqueued|email.send": 1},
        MINUTE: {"enqueued": 1},
    }


def test_a_job_that_is_gone() -> None:
    dead = replace(JOB, state=State.DISCARDED, dead_letter=True)
    assert sums(tally((dead, None))) == {
        NOW: {"discarded": -1, "dead": -1},
        DAY: {"dead_pruned": 1},
        # Whatever it was counted as: it has no name.
        ("mail", keys.DEAD): {"e|other": -1, "t|other": -1, "rev": 1},
    }


@pytest.mark.requirement("DL-25")
def test_dead_letters_are_counted_by_type_and_error() -> None:
    dead = [
        replace(JOB, state=State.DISCARDED, dead_letter=True, error_type=kind)
        for kind in ("Boom", "Boom", None)
    ]
    place = ("mail", keys.DEAD)
    found = tally(*((replace(JOB, state=State.ACTIVE), one) for one in dead))
    assert sums(found)[place] == {"t|email.send": 3, "e|Boom": 2, "e|Unknown": 1, "rev": 1}
    # What comes and goes again leaves nothing to write.
    found.merge(tally(*((one, replace(JOB, life=1)) for one in dead)), "mail")
    assert place not in sums(found)
    gone = tally((dead[0], None))
    (delta,) = [
        one for one in gone.deltas({}, {"mail": {"t|email.send", "e|Boom"}}) if one.sk == keys.DEAD
    ]
    assert delta.add == {"t|email.send": -1, "e|Boom": -1, "rev": 1}


def test_errors_without_a_name_are_counted_together() -> None:
    dead = [
        (None, replace(JOB, state=State.DISCARDED, dead_letter=True, error_type=f"E{n}"))
        for n in range(60)
    ]
    known = {f"e|E{n}" for n in range(50, 60)}
    (delta,) = [one for one in tally(*dead).deltas({}, {"mail": known}) if one.sk == keys.DEAD]
    errors = {name: n for name, n in delta.add.items() if name.startswith("e|")}
    assert len(errors) == dead_letters.MAX_NAMES + 1
    assert (errors["e|other"], errors["e|E55"], sum(errors.values())) == (20, 1, 60)
    assert delta.add["t|email.send"] == 60


def test_a_job_that_changes_its_queue_leaves_the_one_and_is_in_the_other() -> None:
    moved = replace(JOB, queue="post")
    assert sums(tally((JOB, moved))) == {
        NOW: {"available": -1, "p-3": -1, "loose": -1},
        ("post", keys.NOW): {"available": 1, "p-3": 1, "loose": 1},
    }


def test_copies_that_wait_are_counted_unless_whoever_dropped_them_has_done_so() -> None:
    copy = replace(JOB, copy_of=Origin("x", 5))
    assert sums(tally((None, copy)))[NOW]["copies"] == 1
    assert "copies" not in sums(tally((None, JOB)))[NOW]
    active = replace(copy, state=State.ACTIVE, attempt=1)
    assert sums(tally((copy, active)))[NOW]["copies"] == -1
    assert sums(tally((active, replace(copy, attempt=1))))[NOW]["copies"] == 1
    gone = replace(copy, state=State.DISCARDED)
    assert sums(tally((copy, gone)))[NOW]["copies"] == -1
    trimmed = replace(gone, trimmed=True)
    assert "copies" not in sums(tally((copy, trimmed)))[NOW]
    assert "copies" not in sums(tally((trimmed, None)))[NOW]


def test_tracked_jobs_are_told_from_untracked_ones() -> None:
    loose, held = replace(JOB, content_bytes=70), replace(JOB, reserved_bytes=50, content_bytes=50)
    assert sums(tally((None, loose), (None, held)))[NOW] == {
        "available": 2, "p-3": 2, "t_enqueued": 2, "loose": 1, "loose_b": 70, "held": 1,
        "held_b": 50,
    }  # fmt: skip
    for job, names in ((loose, ("loose", "loose_b")), (held, ("held", "held_b"))):
        # Whatever becomes of it, it is counted until it is done.
        active = replace(job, state=State.ACTIVE, attempt=1)
        assert not sums(tally((job, active)))[NOW].keys() & set(BEHIND)
        done = replace(active, state=State.COMPLETED)
        found = sums(tally((active, done)))[NOW]
        assert found.keys() & set(BEHIND) == set(names)
        assert not sums(tally((done, None)))[NOW].keys() & set(BEHIND)


def test_what_is_counted_by_day_only() -> None:
    found = Tally()
    found.of_day("mail", NOW_MS, "rejected", 3)
    found.add(JobEvent(EventType.BACKPRESSURE_DROPPED, NOW_MS, JOB, JOB))
    assert sums(found) == {DAY: {"rejected": 3, "dropped": 1, "o_drop_oldest": 1}}


def test_what_changes_nothing_is_not_written() -> None:
    beaten = tally((JOB, replace(JOB, op="x")))
    assert sums(beaten) == {}
    assert beaten.queues() == []
    assert tally((None, JOB)).queues() == ["mail"]


def test_what_happened_counts_in_its_own_minute_and_day() -> None:
    midnight_ms = 1_780_012_800_000
    late = replace(JOB, created_ms=midnight_ms - 1, enqueued_ms=midnight_ms - 1)
    early = replace(JOB, created_ms=midnight_ms, enqueued_ms=midnight_ms)
    found = sums(tally((None, late), (None, early)))
    assert sorted(sk for _, sk in found) == [
        "@", "d|2026-05-28", "d|2026-05-29", "m|2026-05-28T23:59", "m|2026-05-29T00:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "length_ms", "bucket"),
    [
        (EventType.JOB_STARTED, 0, "bw0"),
        (EventType.JOB_STARTED, 10, "bw0"),
        (EventType.JOB_STARTED, 11, "bw1"),
        (EventType.JOB_STARTED, 3_600_000, "bw12"),
        (EventType.JOB_STARTED, 3_600_001, "bw13"),
        (EventType.JOB_COMPLETED, 5, "bd0"),
        (EventType.JOB_COMPLETED, 6, "bd1"),
        (EventType.JOB_FAILED, 300_001, f"bd{len(DURATION_BUCKETS_S)}"),
    ],
)
def test_lengths_go_into_buckets(kind: EventType, length_ms: int, bucket: str) -> None:
    found = Tally()
    found.add(JobEvent(kind, NOW_MS, None, JOB, length_ms))
    day = sums(found)[DAY]
    assert {name for name in day if name.startswith("b")} == {bucket}
    what = "wait" if kind is EventType.JOB_STARTED else "run"
    assert (day.get(f"{what}_ms", 0), day[f"{what}s"]) == (length_ms, 1)
    assert len(QUEUE_TIME_BUCKETS_S) == 13


@given(st.lists(st.tuples(st.none() | jobs(), st.none() | jobs()), max_size=8), st.randoms())
def test_sums_do_not_depend_on_order_or_company(
    changes: list[tuple[Job | None, Job | None]], chance: random.Random
) -> None:
    expected = sums(tally(*changes))
    shuffled = changes[:]
    chance.shuffle(shuffled)
    assert sums(tally(*shuffled)) == expected
    middle = chance.randint(0, len(changes))
    merged = tally(*shuffled[:middle])
    rest = tally(*shuffled[middle:])
    for queue in rest.queues():
        merged.merge(rest, queue)
    assert sums(merged) == expected
    assert {queue for queue, _ in expected} == set(merged.queues())


def test_types_have_names_as_long_as_there_is_room() -> None:
    known = {f"kind.n{n}" for n in range(MAX_TYPES - 1)}
    assert named_types(known, ["new.one", "new.two", "kind.n1"]) == known | {"new.one"}
    full = known | {"old"}
    assert named_types(full, ["new.one", "old"]) == full
    what = JobEvent(EventType.JOB_ENQUEUED, NOW_MS, None, JOB)
    assert counted_as(what, known) == "email.send"
    assert counted_as(what, full) == "other"
    assert counted_as(what, {*known, "email.send"}) == "email.send"
    assert day_of(what) == DAY


def test_types_without_a_name_are_counted_together() -> None:
    changes = [(None, replace(JOB, type=f"kind.n{n}")) for n in range(100)]
    known = {DAY: {f"kind.n{n}" for n in range(90, 100)}}
    (day,) = [one.add for one in tally(*changes).deltas(known) if (one.queue, one.sk) == DAY]
    types = Counter({name: n for name, n in day.items() if "|" in name})
    assert len(types) == MAX_TYPES + 1
    assert types["enqueued|other"] == 60
    assert types["enqueued|kind.n95"] == 1
    assert types.total() == day["enqueued"] == 100
