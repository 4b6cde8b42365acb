"""Dead letters go when they are too old or too many, and never otherwise."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import BackendUnavailable
from ojs.domain.job.retention import PRUNED_EVERY_MS
from ojs.services.dead_letter import archive
from ojs.services.dead_letter import prune as prune_module
from ojs.store.jobs.blobs import MemoryBlobs
from ojs.store.table import keys
from ojs.store.table.table import Update
from tests.store.dead_letters import Worlds, dead, dying, letters, told
from tests.store.faults import Died, attempt, faults
from tests.store.spending import spending
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.runtime import Runtime
    from ojs.store.table.values import Item
    from tests.store.conftest import World

DAY_MS = 86_400_000
BIG = "x" * 5_000


def count(world: World) -> None:
    """Have the counts say what there is, as the projection does within moments."""
    found: Counter[str] = Counter()
    for item in world.items():
        if item["pk"]["S"].startswith(keys.stats("")) and item["sk"]["S"] == keys.NOW:
            found[item["pk"]["S"].removeprefix(keys.stats(""))] += 0
        if "dead" in item and item["pk"]["S"].startswith(keys.job("")):
            found[item["queue"]["S"]] += 1
    for name, number in found.items():
        if name != keys.ALL_QUEUES:
            world.run.table.update(Update(keys.stats(name), keys.NOW, set={"dead": number}))


def prune(world: World, run: Runtime | None = None, limit: int = 100_000) -> dict[str, int]:
    """What the next five-minute mark brings."""
    world.clock.advance(PRUNED_EVERY_MS)
    count(world)
    return dict((run or world.run).prune.run_once(world.clock.now_ms(), limit))


def keep(world: World, queue: str, **retention: Any) -> None:
    """Configure what stays of a queue's dead letters."""
    policy = retention.pop("pruning_policy", None)
    wanted: dict[str, Any] = {"retention": retention}
    if policy:
        wanted["pruning_policy"] = policy
    if queue == "_default":
        world.run.queues.set_policy({"dead_letter": wanted})
    else:
        world.run.queues.configure(queue, {"dead_letter": wanted})


def sample(world: World, *args: Any) -> list[Item]:
    """All items of a dead letter, which is gone again."""
    (job_id,) = dying(world, 1, "mail", *args)
    found = world.run.table.query_all("pk = :pk", {":pk": keys.job(job_id)})
    world.run.dead_letter.delete(job_id)
    return found


def like(world: World, one: Iterable[Item], number: int) -> list[str]:
    """So many dead letters like this one, a second apart, written as their deaths would have."""
    found = []
    for _ in range(number):
        made, now_ms = world.run.ids.uuid7(), world.clock.now_ms()
        place = keys.dead_at(now_ms, made)
        died: Item = {"discarded": now_ms, "wsk": place, "esk": place}
        world.run.table.write_many(
            {**item, **(died if item["sk"] == keys.RECORD else {}), "pk": keys.job(made)}
            for item in one
        )
        found.append(made)
        world.clock.advance(1_000)
    return found


def archived(world: World) -> list[dict[str, Any]]:
    """All lines of the archive, in order of its objects."""
    lines: list[dict[str, Any]] = []
    for key in sorted(world.blobs.objects):
        if key.startswith("archive/"):
            lines += map(json.loads, gzip.decompress(world.blobs.objects[key]).splitlines())
    return lines


# --- age and number -------------------------------------------------------------------------------


@pytest.mark.requirement("DL-10", "DL-19")
def test_what_is_older_than_max_age_goes(world: World) -> None:
    keep(world, "mail", max_age="P2D")
    old = dying(world, 3)
    world.clock.advance(DAY_MS)
    young = dying(world, 2)
    assert prune(world) == {}
    world.clock.advance(DAY_MS)
    assert prune(world) == {"pruned": 3}
    assert dead(world) == young
    for job_id in old:
        assert world.run.table.get(keys.job(job_id), keys.RECORD) is None


@pytest.mark.requirement("DL-10", "DL-19")
def test_the_oldest_beyond_max_count_go(world: World) -> None:
    keep(world, "mail", max_count=2)
    ids = dying(world, 5)
    assert prune(world) == {"pruned": 3}
    assert dead(world) == ids[3:]
    assert prune(world) == {}


@pytest.mark.requirement("DL-10")
def test_the_tighter_limit_wins(world: World) -> None:
    keep(world, "mail", max_age="P2D", max_count=4)
    ids = dying(world, 3)
    world.clock.advance(2 * DAY_MS)
    ids += dying(world, 5)
    assert prune(world) == {"pruned": 4}
    assert dead(world) == ids[4:]


@pytest.mark.requirement("DL-11")
def test_some_retention_always_applies(world: World) -> None:
    ids = dying(world, 2)
    world.clock.advance(180 * DAY_MS - PRUNED_EVERY_MS - 1_500)
    assert prune(world) == {"pruned": 1}
    assert dead(world) == ids[1:]


@pytest.mark.requirement("DL-12")
def test_each_queue_has_its_own(world: World) -> None:
    keep(world, "billing", max_age="P365D", max_count=4)
    keep(world, "mail", max_count=1)
    billing, mail = dying(world, 3, "billing"), dying(world, 3, "mail")
    assert prune(world) == {"pruned": 2}
    assert dead(world) == [*billing, mail[2]]
    world.clock.advance(200 * DAY_MS)
    assert prune(world) == {"pruned": 1}
    assert dead(world) == billing
    world.clock.advance(200 * DAY_MS)
    assert prune(world) == {"pruned": 3}


@pytest.mark.requirement("DL-10")
def test_another_name_of_max_age_counts_as_well(world: World) -> None:
    world.run.queues.configure("mail", {"dead_letter_ttl": "P1D"})
    dying(world, 1)
    world.clock.advance(DAY_MS)
    assert prune(world) == {"pruned": 1}


@pytest.mark.requirement("DL-10")
def test_limits_that_are_changed_later_take_effect(world: World) -> None:
    keep(world, "mail", max_age="P30D", max_count=10)
    ids = dying(world, 6)
    assert prune(world) == {}
    keep(world, "mail", max_count=4)
    assert prune(world) == {"pruned": 2}
    keep(world, "mail", max_count=100)
    ids = ids[2:] + dying(world, 3)
    assert prune(world) == {}
    assert dead(world) == ids
    world.clock.advance(20 * DAY_MS)
    keep(world, "mail", max_age="P90D")
    world.clock.advance(20 * DAY_MS)
    assert prune(world) == {}
    keep(world, "mail", max_age="P30D")
    assert prune(world) == {"pruned": 7}


# --- all queues together --------------------------------------------------------------------------


@pytest.mark.requirement("DL-10")
def test_all_together_are_bounded_by_what_holds_for_all(world: World) -> None:
    keep(world, "_default", max_count=5)
    ids = []
    for _ in range(4):
        for name in ("a", "b"):
            ids += dying(world, 1, name)
    assert prune(world) == {"pruned": 3}
    assert dead(world) == ids[3:]


@pytest.mark.requirement("DL-12")
def test_a_queue_with_a_number_of_its_own_stands_apart(world: World) -> None:
    keep(world, "_default", max_count=3)
    keep(world, "own", max_count=10)
    ids: dict[str, list[str]] = {"a": [], "b": [], "own": []}
    for _ in range(4):
        for name in ids:
            ids[name] += dying(world, 1, name)
    assert prune(world) == {"pruned": 5}
    assert dead(world, "own") == ids["own"]
    assert dead(world, "a", "b") == [ids["b"][2], ids["a"][3], ids["b"][3]]


def test_the_bound_for_all_does_not_rely_on_counts_that_are_late(world: World) -> None:
    """A queue of its own whose dead letters are not counted yet takes no place of the others."""
    keep(world, "_default", max_count=3)
    keep(world, "own", max_count=10)
    ids = dying(world, 4, "a")
    count(world)
    dying(world, 5, "own")
    world.clock.advance(PRUNED_EVERY_MS)
    assert world.run.prune.run_once(world.clock.now_ms(), 100) == {"pruned": 1}
    assert dead(world, "a") == ids[1:]


@pytest.mark.requirement("DL-10")
def test_what_holds_for_all_bounds_the_age_of_queues_without_one(world: World) -> None:
    keep(world, "own", max_age="P60D")
    dying(world, 1, "before")
    keep(world, "_default", max_age="P30D")
    for name in ("own", "after"):
        dying(world, 1, name)
    world.clock.advance(40 * DAY_MS)
    assert prune(world) == {"pruned": 2}
    assert [world.run.jobs.get(job_id).queue for job_id in dead(world)] == ["own"]


@pytest.mark.requirement("DL-12")
@pytest.mark.parametrize("policy", ["delete", "archive"])
def test_a_queue_that_is_gone_keeps_its_retention(world: World, policy: str) -> None:
    keep(world, "old", max_age="P20D", max_count=2, pruning_policy=policy)
    ids = dying(world, 3, "old")
    world.run.deletion.delete("old", "discard")
    world.clock.advance(700_000)
    world.sweep()
    assert world.run.table.get(keys.queue("old"), keys.RECORD) is None
    expected = {"pruned": 1} | ({"archived": 1} if policy == "archive" else {})
    assert prune(world) == expected
    assert dead(world) == ids[1:]
    world.clock.advance(19 * DAY_MS)
    assert prune(world) == {}
    # Made anew it has a configuration of its own: none.
    world.push(queue="old")
    world.clock.advance(2 * DAY_MS)
    assert prune(world) == {}
    world.clock.advance(160 * DAY_MS)
    assert prune(world) == {"pruned": 2}


# --- turns ----------------------------------------------------------------------------------------


@pytest.mark.requirement("DL-18", "DL-19")
def test_it_runs_once_for_each_mark_and_makes_up_for_what_was_missed(exact: World) -> None:
    keep(exact, "mail", max_count=1)
    now_ms = exact.clock.now_ms()
    exact.clock.advance(PRUNED_EVERY_MS - now_ms % PRUNED_EVERY_MS + 70_000)
    dying(exact, 2)
    count(exact)
    # The mark is over a minute ago, and nobody pruned for it.
    assert exact.run.prune.run_once(exact.clock.now_ms(), 10) == {"pruned": 1}
    dying(exact, 1)
    count(exact)
    exact.clock.advance(60_000)
    with spending(exact) as spent:
        assert exact.another().prune.run_once(exact.clock.now_ms(), 10) == {}
        # The container that pruned knows that it is done.
        assert exact.run.prune.run_once(exact.clock.now_ms(), 10) == {}
    assert (spent.calls, spent.writes) == (0, 0)
    exact.clock.advance(180_000)
    assert exact.run.prune.run_once(exact.clock.now_ms(), 10) == {"pruned": 1}


def test_a_run_that_was_cut_short_goes_on_the_next_minute(exact: World) -> None:
    keep(exact, "mail", max_count=2)
    ids = dying(exact, 8)
    assert prune(exact, limit=4) == {"pruned": 4, "more": 1}
    assert dead(exact) == ids[4:]
    count(exact)
    exact.clock.advance(60_000)
    assert exact.run.prune.run_once(exact.clock.now_ms(), 100) == {"pruned": 2}
    assert dead(exact) == ids[6:]
    exact.clock.advance(60_000)
    assert exact.run.prune.run_once(exact.clock.now_ms(), 100) == {}


def test_it_stops_when_time_is_up(exact: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune_module, "_SLICE", 20)
    keep(exact, "mail", max_age="PT1S")
    dying(exact, 50)
    exact.clock.advance(PRUNED_EVERY_MS)
    count(exact)
    left = iter([True] * 4)
    done = exact.run.prune.run_once(exact.clock.now_ms(), 1_000, lambda: next(left, False))
    assert done["more"] == 1
    assert done["pruned"] == 40
    assert len(dead(exact)) == 50 - done["pruned"]
    assert exact.run.prune.run_once(exact.clock.now_ms(), 1_000, lambda: False) == {"more": 1}


def test_two_at_once_prune_nothing_twice_and_nothing_else(exact: World) -> None:
    keep(exact, "mail", max_count=30)
    ids = dying(exact, 50)
    exact.clock.advance(PRUNED_EVERY_MS)
    count(exact)
    now_ms = exact.clock.now_ms()
    runs = [exact.another() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda run: run.prune.run_once(now_ms, 1_000), runs))
    # One of them has the lock.
    assert sorted(one.get("pruned", 0) for one in done) == [0, 0, 0, 20]
    assert dead(exact) == ids[20:]
    # And where a lock lapsed and another took over, both at once.
    keep(exact, "mail", max_count=5)
    for run in runs:
        run.prune._pruning.lock = lambda *_, **__: "token"  # type: ignore[method-assign]
    exact.clock.advance(PRUNED_EVERY_MS)
    count(exact)
    now_ms = exact.clock.now_ms()
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda run: run.prune.run_once(now_ms, 1_000), runs))
    assert sum(one.get("pruned", 0) for one in done) >= 25
    assert dead(exact) == ids[45:]


# --- races ----------------------------------------------------------------------------------------


def test_what_was_retried_meanwhile_stays(exact: World, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(exact, "mail", max_count=1, pruning_policy="archive")
    ids = dying(exact, 4)
    records = exact.run.prune._jobs.read_records

    def late(wanted: Iterable[str], *more: Any) -> dict[str, Job]:
        found = records(wanted, *more)
        if ids[0] in found:
            exact.another().redrive.retry(ids[0])
        return found

    monkeypatch.setattr(exact.run.prune._jobs, "read_records", late)
    assert prune(exact) == {"pruned": 2, "archived": 2}
    assert [line["id"] for line in archived(exact)] == ids[1:3]
    assert dead(exact) == ids[3:]
    assert exact.run.jobs.get(ids[0]).state == "available"


def test_what_died_anew_stays_as_long_as_any_other(exact: World) -> None:
    """An entry of the index that is late leads to a job that stands elsewhere now."""
    keep(exact, "mail", max_count=1)
    ids = dying(exact, 3)
    index = exact.run.prune._jobs.index
    entries = index.dead("mail", limit=10, oldest_first=True)
    exact.run.redrive.retry(ids[0])
    exact.run.fetch.fetch(["mail"], 1, "w")
    exact.run.finish.nack(ids[0], error={"code": "DEAD_LETTER", "message": "no"}, worker_id="w")
    calls = iter([entries])
    dead_ = index.dead
    index.dead = lambda *args, **given: (  # type: ignore[method-assign]
        next(calls, []) if given.get("oldest_first") and args else dead_(*args, **given)
    )
    assert prune(exact) == {"pruned": 2}
    assert dead(exact) == [ids[0]]


def test_a_copy_that_is_still_to_be_made_is_made_first(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact.run.queues.configure("mail", {"dead_letter_queue": "failed"})
    keep(exact, "mail", max_count=1)
    with monkeypatch.context() as patch:
        patch.setattr(exact.run.copies, "follow", lambda record: record)
        dying(exact, 2)
    with monkeypatch.context() as patch:
        patch.setattr(exact.run.copies, "make", _down)
        assert prune(exact) == {"waiting": 1}
    assert prune(exact) == {"pruned": 1}
    assert len(exact.fetch("failed", 10)) == 1


def _down(_: object) -> None:
    raise BackendUnavailable("down")


def test_a_queue_that_fails_does_not_hold_up_the_others(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        keep(exact, name, max_age="PT1S")
        dying(exact, 2, name)
    index = exact.run.prune._jobs.index
    dead_ = index.dead

    def failing(queue: str | None = None, **given: Any) -> list[tuple[str, str]]:
        if queue == "b":
            raise BackendUnavailable("down")
        return dead_(queue, **given)

    with monkeypatch.context() as patch:
        patch.setattr(index, "dead", failing)
        assert prune(exact) == {"pruned": 4, "failed": 1}
    exact.clock.advance(60_000)
    assert exact.run.prune.run_once(exact.clock.now_ms(), 100) == {"pruned": 2}


# --- archive --------------------------------------------------------------------------------------


@pytest.mark.requirement("DL-20")
def test_what_is_pruned_is_archived_whole(world: World) -> None:
    keep(world, "mail", max_count=1, pruning_policy="archive")
    job = world.push(
        BIG, Decimal("3.10"), 10**30, kind="mail.send", queue="mail", retry={"max_attempts": 2}
    )
    for _ in range(2):
        world.run.fetch.fetch(["mail"], 1, "w")
        world.run.finish.nack(job.id, error={"type": "Boom", "message": "no"}, worker_id="w")
        world.clock.advance(60_000)
        world.sweep()
    shown = world.run.dead_letter.get(job.id)
    dying(world, 1)
    assert prune(world) == {"pruned": 1, "archived": 1}
    (key,) = (key for key in world.blobs.objects if key.startswith("archive/"))
    day = archive._key("mail", [shown], world.clock.now_ms()).split("/")[2:5]
    assert key.split("/")[:5] == ["archive", "mail", *day]
    assert key.endswith(".jsonl.gz")
    (line,) = archived(world)
    assert (line["id"], line["type"], line["queue"]) == (job.id, "mail.send", "mail")
    assert line["args"] == [BIG, 3.1, 10**30]
    assert [error["attempt"] for error in line["errors"]] == [1, 2]
    assert line["metadata"]["discarded_at"]
    raw = gzip.decompress(world.blobs.objects[key]).decode()
    assert "3.10" in raw, "numbers as they were written"


@pytest.mark.requirement("DL-20")
def test_long_histories_and_large_contents_are_archived_in_parts(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(exact, "mail", max_age="PT1S", pruning_policy="archive")
    monkeypatch.setattr(archive, "MAX_BYTES", 20_000)
    ids = dying(exact, 20, "mail", BIG)
    assert prune(exact) == {"pruned": 20, "archived": 20}
    slices = [key for key in exact.blobs.objects if key.startswith("archive/")]
    assert len(slices) == 5
    assert [line["id"] for line in archived(exact)] == ids


@pytest.mark.exhaustive
@pytest.mark.requirement("DL-20")
def test_a_history_of_more_than_a_megabyte_is_whole(exact: World) -> None:
    keep(exact, "mail", max_age="PT1S", pruning_policy="archive")
    retry = {"max_attempts": 1_000, "initial_interval": "PT1S", "max_interval": "PT1S"}
    job = exact.push(queue="mail", retry=retry)
    for number in range(120):
        exact.clock.advance(60_000)
        exact.sweep()
        exact.run.fetch.fetch(["mail"], 1, "w")
        error = {"message": str(number).ljust(10_000, "x"), "retryable": number < 119}
        exact.run.finish.nack(job.id, error=error, worker_id="w")
    assert prune(exact) == {"pruned": 1, "archived": 1}
    (line,) = archived(exact)
    assert [error["attempt"] for error in line["errors"]] == list(range(1, 121))


@pytest.mark.requirement("DL-20")
def test_what_somebody_deletes_by_hand_is_not_archived(exact: World) -> None:
    keep(exact, "mail", max_age="PT1S", pruning_policy="archive")
    (job_id, _) = dying(exact, 2)
    job_record = exact.run.prune._jobs.read_record(job_id)
    assert job_record is not None
    exact.run.dead_letter._jobs.removal.mark_deleting(job_record)
    assert prune(exact) == {"pruned": 2, "archived": 1}
    assert job_id not in [line["id"] for line in archived(exact)]


# --- dying, losing answers ------------------------------------------------------------------------


class FaultyBlobs(MemoryBlobs):
    """A bucket that fails before or after each second thing it stores."""

    def __init__(self, objects: dict[str, bytes], fail_at: int, *, after: bool) -> None:
        super().__init__()
        self.objects, self._fail_at, self._after = objects, fail_at, after
        self.calls = 0

    def put(self, key: str, body: bytes, *, content_type: str = "") -> None:
        self.calls += 1
        if self.calls == self._fail_at and not self._after:
            raise Died
        super().put(key, body, content_type=content_type)
        if self.calls == self._fail_at:
            raise Died


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", ["delete", "archive"])
def test_a_kill_at_any_call_loses_no_job_that_should_stay(exact: World, policy: str) -> None:
    keep(exact, "mail", max_age="P1D", max_count=2, pruning_policy=policy)
    # It is pruning that is killed here, and not dying.
    large, small = sample(exact, BIG), sample(exact)
    for run, _ in faults(exact):
        before = set(like(exact, large, 3))
        exact.clock.advance(DAY_MS)
        ids = like(exact, small, 3)
        attempt(partial(prune, exact, run))
        # Whatever it left, the next minutes make up for.
        for _ in range(2):
            exact.clock.advance(61_000)
            count(exact)
            exact.run.prune.run_once(exact.clock.now_ms(), 100)
        assert dead(exact) == ids[1:]
        if policy == "archive":
            lines = {line["id"] for line in archived(exact)}
            assert before | {ids[0]} <= lines
            assert not lines & set(ids[1:])
        for job_id in ids[1:]:
            exact.run.dead_letter.delete(job_id)


@pytest.mark.exhaustive
@pytest.mark.requirement("DL-20")
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_any_call_of_the_bucket(exact: World, after: bool) -> None:
    keep(exact, "mail", max_age="PT1S", pruning_policy="archive")
    number = 0
    while True:
        number += 1
        blobs = FaultyBlobs(exact.blobs.objects, number, after=after)
        ids = set(dying(exact, 3, "mail", BIG))
        run = exact.another()
        run.prune._archive._blobs = blobs
        attempt(partial(prune, exact, run))
        assert set(dead(exact)) | {line["id"] for line in archived(exact)} >= ids
        exact.clock.advance(61_000)
        exact.run.prune.run_once(exact.clock.now_ms(), 100)
        assert dead(exact) == []
        lines = [line["id"] for line in archived(exact)]
        assert set(lines) >= ids
        # The same slice has the same name: it is there once.
        assert len(lines) == len(set(lines))
        if blobs.calls < number:
            return


# --- cost -----------------------------------------------------------------------------------------


def test_where_nothing_is_due_nothing_is_read_but_what_is_configured(exact: World) -> None:
    for name in ("a", "b", "c"):
        dying(exact, 30, name)
    exact.clock.advance(PRUNED_EVERY_MS)
    count(exact)
    with spending(exact) as spent:
        assert exact.run.prune.run_once(exact.clock.now_ms(), 100) == {}
    # Whose turn, taken and given back; the oldest of all; the policy; the names there are and those
    # that are gone; what the queues have.
    assert (spent.calls, spent.writes) == (8, 2)
    assert spent.reads <= 1 + 0.5 + 1 + 1 + 6


@pytest.mark.exhaustive
@pytest.mark.parametrize("jobs", [2_000, pytest.param(10_000, marks=pytest.mark.whole)])
def test_thousands_go_in_slices_at_a_cost_that_is_known(exact: World, jobs: int) -> None:
    letters(exact, jobs)
    keep(exact, "mail", max_count=100)
    exact.clock.advance(PRUNED_EVERY_MS)
    exact.run.table.update(Update(keys.stats("mail"), keys.NOW, set={"dead": jobs}))
    passes = peak = 0
    gone = jobs - 100
    with spending(exact) as spent:
        while True:
            # Tracing makes it slow: one pass is like another.
            if passes == 1:
                tracemalloc.start()
            more = exact.run.prune.run_once(exact.clock.now_ms(), jobs // 4).get("more")
            if passes == 1:
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
            if not more:
                break
            passes += 1
            left = jobs - jobs // 4 * passes
            exact.run.table.update(Update(keys.stats("mail"), keys.NOW, set={"dead": left}))
            exact.clock.advance(60_000)
    assert passes == 3
    assert len(dead(exact)) == 100
    # The record and its two places in the indexes; to read, a record and a hundredth of a page.
    assert spent.writes <= gone * 3 + 20
    assert spent.reads <= gone * 1.1 + 40
    assert spent.calls <= gone + 2 * gone // 100 + 60
    assert peak < 10_000_000


# --- the stream -----------------------------------------------------------------------------------


@pytest.mark.requirement("DL-19")
def test_pruning_is_told_of_with_the_number(streamed: Worlds) -> None:
    with streamed() as world:
        stream, projected = (
            Stream(world.client, world.table),
            Projected(world.client, world.table, world.clock),
        )
        keep(world, "mail", max_count=2)
        ids = dying(world, 5, "mail", BIG)
        projected.run(stream.take())
        assert projected.stats("mail")["dead"] == 5
        world.clock.advance(PRUNED_EVERY_MS)
        assert world.run.prune.run_once(world.clock.now_ms(), 100) == {"pruned": 3}
        projected.run(stream.take())
        assert projected.stats("mail")["dead"] == 2
        assert told(projected)[-1] == ("pruned", "mail")
        (event,) = (e for e in projected.events() if e["type"] == "dead_letter.pruned")
        assert event["data"] == {"queue": "mail", "count": 3}
        # What belonged to them follows: contents, errors.
        there = {item["pk"]["S"] for item in world.items() if item["pk"]["S"].startswith("J|")}
        assert there == {keys.job(job_id) for job_id in ids[3:]}
