from __future__ import annotations

import base64
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.clock import ManualClock
from ojs.domain import times
from ojs.domain.ids import IdSource, derived_uuid7, is_uuid7
from tests.unit.domain.arbitrary import NOW_MS

# A clock that goes on, stands still and steps back (in ms between two questions).
steps = st.lists(st.integers(-10_000, 10_000) | st.just(0), min_size=1, max_size=60)


class Descending:
    """Random bytes that fall, so that only time and sequence can make ids rise."""

    def __init__(self) -> None:
        self._next = 2**64 - 1

    def __call__(self, count: int) -> bytes:
        self._next -= 2**40
        return self._next.to_bytes(8, "big")[:count]


@given(st.integers(0, times.MAX_MS), st.text(max_size=9))
def test_a_derived_id_is_the_same_for_one_name_and_time_and_no_other(ms: int, name: str) -> None:
    made = derived_uuid7(ms, name)
    assert is_uuid7(made)
    assert int(made[:13].replace("-", ""), 16) == ms
    assert made == derived_uuid7(ms, name)
    assert made[13:] != derived_uuid7(ms, name + "x")[13:]
    assert made != derived_uuid7(ms + 1, name)


def _rising(values: list[str]) -> bool:
    return all(earlier < later for earlier, later in itertools.pairwise(values))


@given(steps)
def test_job_ids_rise_whatever_the_clock_does(moves: list[int]) -> None:
    clock = ManualClock(NOW_MS)
    source = IdSource(clock, Descending())
    made = []
    for move in moves:
        clock.advance(move)
        made += [source.uuid7(), source.uuid7()]
    assert all(is_uuid7(text) for text in made)
    assert _rising(made)


@given(steps)
def test_order_keys_rise_whatever_the_clock_does_and_have_one_length(moves: list[int]) -> None:
    clock = ManualClock(NOW_MS)
    source = IdSource(clock)
    made = []
    for move in moves:
        clock.advance(move)
        made += [source.order(), source.order()]
    assert {len(text) for text in made} == {15}
    assert _rising(made)


@given(st.integers(0, 2**44 - 1), st.integers(1, 2**43))
def test_order_keys_of_two_sources_sort_by_their_clocks(earlier_ms: int, gap_ms: int) -> None:
    earlier = IdSource(ManualClock(earlier_ms)).order()
    later_ms = min(earlier_ms + gap_ms, 2**44 - 1)
    later = IdSource(ManualClock(later_ms)).order()
    assert (earlier < later) == (earlier_ms < later_ms)


@given(st.integers(1, 2**48 - 1))
def test_a_job_id_carries_the_time_it_was_made(now_ms: int) -> None:
    text = IdSource(ManualClock(now_ms)).uuid7()
    assert int(text.replace("-", "")[:12], 16) == now_ms


def test_more_job_ids_than_one_millisecond_has_room_for_still_rise() -> None:
    source = IdSource(ManualClock(NOW_MS), Descending())
    assert _rising([source.uuid7() for _ in range(0x1_0000 + 3)])


def test_more_order_keys_than_one_millisecond_has_room_for_still_rise() -> None:
    source = IdSource(ManualClock(NOW_MS))
    made = [source.order() for _ in range(0x1_0000 + 3)]
    assert _rising(made)
    # The overflow borrows the next millisecond and gives it back once the clock gets there.
    assert int(made[-1][:11], 16) == NOW_MS + 1


def test_ids_made_by_many_threads_are_distinct_and_rise_within_each() -> None:
    source = IdSource(ManualClock(NOW_MS))
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: [source.uuid7() for _ in range(500)], range(4)))
    assert all(_rising(one) for one in made)
    assert len(set(itertools.chain(*made))) == 2_000


def test_ids_of_two_sources_at_the_same_instant_differ() -> None:
    clock = ManualClock(NOW_MS)
    assert IdSource(clock).uuid7() != IdSource(clock).uuid7()


@given(st.binary(min_size=6, max_size=6))
def test_a_token_holds_all_its_random_bits_in_eight_url_safe_characters(random: bytes) -> None:
    token = IdSource(ManualClock(), lambda count: random[:count]).token()
    assert len(token) == 8
    assert base64.urlsafe_b64decode(token) == random


@pytest.mark.requirement("C-1")
@pytest.mark.parametrize(
    "text",
    [
        "019539A4-B68C-7DEF-8000-1A2B3C4D5E6F",  # upper case
        "019539a4-b68c-4def-8000-1a2b3c4d5e6f",  # version 4
        "019539a4-b68c-7def-c000-1a2b3c4d5e6f",  # another variant
        "019539a4b68c7def80001a2b3c4d5e6f",  # no hyphens
        "019539a4-b68c-7def-8000-1a2b3c4d5e6f\n",
        " 019539a4-b68c-7def-8000-1a2b3c4d5e6f",
        "019539a4-b68c-7def-8000-1a2b3c4d5e6",
        "{019539a4-b68c-7def-8000-1a2b3c4d5e6f}",
        "",
        None,
        7,
    ],
)
def test_anything_but_a_lowercase_hyphenated_uuid7_is_refused(text: object) -> None:
    assert not is_uuid7(text)


def test_a_uuid7_of_another_maker_is_accepted() -> None:
    assert is_uuid7("019539a4-b68c-7def-8000-1a2b3c4d5e6f")
