"""Bounded collections: what they forget, and that threads may share them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ojs.bounded import BoundedMap, BoundedSet


def test_what_was_set_longest_ago_is_forgotten_first() -> None:
    numbers: BoundedMap[str, int] = BoundedMap(2)
    numbers.put("a", 1)
    numbers.put("b", 2)
    numbers.put("a", 3)
    numbers.put("c", 4)
    assert [numbers.get(key) for key in "abc"] == [3, None, 4]
    assert numbers.get("b", 0) == 0


def test_reading_does_not_keep_a_key() -> None:
    numbers: BoundedMap[str, int] = BoundedMap(2)
    numbers.put("a", 1)
    numbers.put("b", 2)
    assert numbers.get("a") == 1
    numbers.put("c", 3)
    assert numbers.get("a") is None


def test_an_update_sees_the_value_before_and_returns_it() -> None:
    numbers: BoundedMap[str, int] = BoundedMap(2)
    assert numbers.update("a", lambda before: (before or 0) + 5) is None
    assert numbers.update("a", lambda before: (before or 0) + 2) == 5
    assert numbers.get("a") == 7
    numbers.forget("a")
    numbers.forget("a")
    assert numbers.get("a") is None


def test_a_set_forgets_what_was_added_longest_ago() -> None:
    seen: BoundedSet[str] = BoundedSet(2)
    for member in "abc":
        seen.add(member)
    assert [member in seen for member in "abc"] == [False, True, True]


def test_threads_lose_no_update_and_stay_within_the_bound() -> None:
    counts: BoundedMap[int, int] = BoundedMap(10)
    seen: BoundedSet[int] = BoundedSet(10)

    def work(thread: int) -> None:
        for step in range(500):
            counts.update(0, lambda before: (before or 0) + 1)
            counts.put(1 + (thread * 500 + step) % 9, step)
            seen.add(thread * 500 + step)
            counts.forget(20)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert counts.get(0) == 8 * 500
    assert sum(number in seen for number in range(8 * 500)) == 10
