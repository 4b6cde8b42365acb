from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ojs.domain.times import MAX_MS
from ojs.store.table import keys
from ojs.store.table.keys import Position
from tests.unit.domain.arbitrary import job_ids, lengths, names, orders, tokens

positions = st.builds(
    Position,
    priority=st.integers(-100, 100),
    order=orders,
    visibility_ms=st.none() | lengths,
    timeout_ms=st.none() | lengths,
    batch=st.none() | tokens,
    size_kib=st.integers(0, 1_024),
    copy=st.booleans(),
)


@given(positions)
@example(Position(100, "0" * 15))
@example(Position(-100, "f" * 15, 0, 0, "--------", 1))
def test_a_position_is_read_back_from_its_key(position: Position) -> None:
    assert Position.parse(position.key()) == position


@given(positions, positions)
def test_positions_stand_by_priority_first_and_then_by_order(
    one: Position, other: Position
) -> None:
    expected = (-one.priority, one.order) < (-other.priority, other.order)
    if (one.priority, one.order) != (other.priority, other.order):
        assert (one.key() < other.key()) == expected


@given(positions, positions)
def test_hints_never_change_the_place_in_line(one: Position, other: Position) -> None:
    bare_one, bare_other = (
        Position(position.priority, position.order).key() for position in (one, other)
    )
    if bare_one != bare_other:
        assert (one.key() < other.key()) == (bare_one < bare_other)


def test_the_key_of_a_small_job_with_defaults_is_its_place_alone() -> None:
    assert Position(0, "00019e0000000aa").key() == "10000019e0000000aa"


@given(st.integers(0, MAX_MS), st.integers(0, MAX_MS))
def test_instants_sort_as_keys_as_they_do_as_numbers(one: int, other: int) -> None:
    assert (keys.instant(one) < keys.instant(other)) == (one < other)


attempts = st.tuples(st.integers(0, 9_999), st.integers(0, 999_999))


@given(attempts, attempts)
def test_errors_sort_by_life_and_then_by_attempt(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    assert (keys.error(*one) < keys.error(*other)) == (one < other)
    assert keys.error(*one).startswith(keys.ERROR)


@given(job_ids)
def test_a_job_id_is_read_back_from_its_partition(job_id: str) -> None:
    assert keys.job_id(keys.job(job_id)) == job_id


@given(names, names, st.integers(0, 30), st.integers(0, 30))
def test_no_two_lines_of_any_two_lanes_share_a_partition(
    one: str, other: str, lane: int, other_lane: int
) -> None:
    builders = (keys.ready, keys.due, keys.pending, keys.expiry)
    first = {builder(one, lane) for builder in builders} | {keys.dead(one)}
    second = {builder(other, other_lane) for builder in builders} | {keys.dead(other)}
    assert len(first) == len(builders) + 1
    if one != other:
        assert first.isdisjoint(second)
    elif lane != other_lane:
        assert first & second == {keys.dead(one)}


@given(st.text("abc-:.", min_size=1, max_size=5))
def test_one_name_stands_for_different_things_in_different_partitions(name: str) -> None:
    built = [builder(name) for builder in (keys.job, keys.queue, keys.worker, keys.unique)]
    built += [keys.batch(name), keys.dead(name), keys.QUEUES, keys.WORKERS]
    built += [keys.STAGED_WITHOUT_SLOT, keys.staged(name)]
    assert len(set(built)) == len(built)


@pytest.mark.parametrize(
    ("one", "other"),
    list(
        itertools.combinations((keys.RECORD, keys.PAYLOAD, keys.RESULT, keys.ERROR, "progress"), 2)
    ),
)
def test_the_items_of_one_job_are_told_apart_by_the_beginning_of_their_sort_key(
    one: str, other: str
) -> None:
    assert not one.startswith(other)
    assert not other.startswith(one)
