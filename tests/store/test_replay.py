"""Dead letters come back by rule: when they are due, so many times, once for each replay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import BackendUnavailable
from ojs.domain.job import envelope, replay
from ojs.domain.job.job import to_dict
from ojs.store.table import keys
from tests.store.dead_letters import Worlds, dead, die, letters, told
from tests.store.faults import attempt, faults
from tests.store.spending import reading_notes, spending
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.runtime import Runtime
    from tests.store.conftest import World

HOUR_MS = 3_600_000
BIG = "x" * 5_000


def rule(name: str = "all", **given: Any) -> dict[str, Any]:
    return {"name": name, "filter": {}, "delay": "PT1H", "max_replays": 3} | given


def rules(world: World, *given: Mapping[str, Any], queue: str = "mail") -> None:
    world.run.queues.configure(queue, {"replay_rules": list(given)})


def run(world: World, by: Runtime | None = None, limit: int = 10_000) -> dict[str, int]:
    """What the next minute brings."""
    world.clock.advance(60_000)
    return dict((by or world.run).replay.run_once(world.clock.now_ms(), limit).counts)


def again(world: World, queue: str = "mail", error: str = "Boom") -> list[str]:
    """All that wait die anew."""
    found = []
    for job in world.run.fetch.fetch([queue], 100, "w"):
        said = {"code": "DEAD_LETTER", "type": error, "message": "no"}
        world.run.finish.nack(job.id, error=said, worker_id="w")
        found.append(job.id)
    return found


def shown(world: World, job_id: str) -> dict[str, Any]:
    meta: dict[str, Any] = to_dict(world.run.jobs.get(job_id))["meta"]
    return meta


@pytest.mark.requirement("DL-16")
def test_what_matches_comes_back_when_its_delay_is_over(world: World) -> None:
    rules(world, rule(filter={"error_type": "Boom"}))
    first = die(world, "mail", error="Boom")
    other = die(world, "mail", error="Bang")
    elsewhere = die(world, "post", error="Boom")
    world.clock.advance(HOUR_MS - 61_000)
    assert run(world) == {}
    assert run(world) == {"looked": 2, "replayed": 1}
    assert world.state(first) == "available"
    assert {world.state(job) for job in (other, elsewhere)} == {"discarded"}
    back = world.run.jobs.get(first.id)
    assert (back.attempt, back.life, len(back.errors or ())) == (0, 1, 1)
    assert run(world) == {}


@pytest.mark.requirement("DL-17")
def test_replays_are_counted_and_shown(world: World) -> None:
    rules(world, rule(max_replays=2))
    job = world.push(BIG, queue="mail")
    world.run.fetch.fetch(["mail"], 1, "w")
    world.run.finish.nack(job.id, error={"code": "DEAD_LETTER", "message": "no"}, worker_id="w")
    texts = [item for item in world.items() if item["sk"]["S"].startswith(keys.PAYLOAD)]
    for number in (1, 2):
        world.clock.advance(HOUR_MS)
        assert run(world) == {"looked": 1, "replayed": 1}
        (fetched,) = world.run.fetch.fetch(["mail"], 1, "w")
        meta = to_dict(fetched)["meta"]
        assert (meta[replay.COUNT], meta[replay.RULE]) == (number, "all")
        assert meta[replay.AT].endswith("Z")
        assert shown(world, job.id) == meta
        world.run.finish.nack(job.id, error={"code": "DEAD_LETTER", "message": "no"}, worker_id="w")
        assert shown(world, job.id) == meta
    world.clock.advance(HOUR_MS)
    assert run(world) == {"looked": 1}
    assert dead(world) == [job.id]
    # The large content was never written anew.
    assert [i for i in world.items() if i["sk"]["S"].startswith(keys.PAYLOAD)] == texts
    assert world.run.jobs.get(job.id).content == {"args": [BIG]}


@pytest.mark.requirement("DL-17")
def test_what_the_client_put_into_meta_stays(world: World) -> None:
    rules(world, rule())
    request = envelope.parse({"type": "t", "queue": "mail", "args": [], "meta": {"mine": 1}})
    job_id = world.run.enqueue.push(request).job.id
    again(world)
    world.clock.advance(HOUR_MS)
    run(world)
    assert shown(world, job_id) == {
        "mine": 1, replay.COUNT: 1, replay.AT: shown(world, job_id)[replay.AT], replay.RULE: "all",
    }  # fmt: skip
    assert world.run.jobs.get(job_id).content == {"args": [], "meta": {"mine": 1}}


@pytest.mark.requirement("DL-16")
def test_each_rule_has_its_own_count(world: World) -> None:
    rules(world, rule("a", max_replays=1), rule("b", max_replays=2, delay="PT2H"))
    job = die(world, "mail")
    names = []
    for _ in range(12):
        world.clock.advance(HOUR_MS)
        if run(world).get("replayed"):
            names.append(shown(world, job.id)[replay.RULE])
            again(world)
    assert names == ["a", "b", "b"]


@pytest.mark.requirement("DL-16")
def test_a_rule_that_is_off_does_nothing_until_it_is_on(world: World) -> None:
    rules(world, rule(enabled=False))
    die(world, "mail")
    world.clock.advance(HOUR_MS)
    assert run(world) == {}
    rules(world, rule(enabled=True))
    assert run(world) == {"looked": 1, "replayed": 1}


@pytest.mark.requirement("DL-16")
def test_a_policy_holds_for_queues_without_rules_of_their_own(world: World) -> None:
    world.run.queues.set_policy({"replay_rules": [rule(filter={"error_type": "Boom"})]})
    rules(world, rule(filter={"error_type": "Bang"}), queue="own")
    for name in ("mail", "own"):
        die(world, name, error="Boom")
    world.clock.advance(HOUR_MS)
    assert run(world) == {"looked": 2, "replayed": 1}
    assert [world.run.jobs.get(job_id).queue for job_id in dead(world)] == ["own"]


@pytest.mark.requirement("DL-16")
@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        ({"type": "mail.send"}, True),
        ({"type": "mail.sent"}, False),
        ({"args": "$[0].id=7"}, True),
        ({"args": "nothing"}, False),
        ({"since": "2020-01-01T00:00:00Z", "until": "2099-01-01T00:00:00Z"}, True),
        ({"until": "2020-01-01T00:00:00Z"}, False),
        ({"queue": "mail"}, True),
    ],
)
def test_the_filter_is_that_of_bulk_operations(
    world: World, wanted: dict[str, str], matches: bool
) -> None:
    rules(world, rule(filter=wanted))
    die(world, "mail", "mail.send", "Boom", {"id": 7, "text": BIG})
    world.clock.advance(HOUR_MS)
    assert run(world).get("replayed", 0) == matches


@pytest.mark.requirement("DL-16")
def test_a_rule_that_is_changed_looks_at_everything_anew(world: World) -> None:
    rules(world, rule(filter={"error_type": "Bang"}))
    die(world, "mail", error="Boom")
    world.clock.advance(HOUR_MS)
    assert run(world) == {"looked": 1}
    assert run(world) == {}
    rules(world, rule(filter={"error_type": "Boom"}))
    assert run(world) == {"looked": 1, "replayed": 1}
    rules(world, rule("another", filter={"type": "none"}))
    again(world)
    world.clock.advance(HOUR_MS)
    assert run(world) == {"looked": 1}
    assert [*world.run.replay._replays.cursors("mail")] == ["another"]
    rules(world)
    assert run(world) == {}


def test_what_comes_late_to_the_index_is_not_missed(exact: World) -> None:
    """However short the delay, a minute is left to the index."""
    rules(exact, rule(delay="PT1S"))
    job = die(exact, "mail")
    exact.clock.advance(-1_000)
    assert run(exact) == {}
    assert run(exact) == {"looked": 1, "replayed": 1}
    assert exact.state(job) == "available"


def test_a_full_queue_is_tried_again(world: World) -> None:
    world.run.queues.configure("mail", {"max_size": 1, "overflow_policy": "drop_oldest"})
    rules(world, rule())
    ids = [die(world, "mail").id, die(world, "mail").id]
    waiting = world.push(queue="mail")
    world.clock.advance(HOUR_MS)
    assert run(world) == {"looked": 1, "blocked": 1}
    # No job that waits gave way.
    assert world.state(waiting) == "available"
    world.run.jobs.cancel(waiting.id)
    assert run(world) == {"looked": 2, "replayed": 1, "blocked": 1}
    assert dead(world) == ids[1:]
    assert run(world) == {"looked": 1, "blocked": 1}


def test_a_queue_that_ends_takes_nothing_back(world: World) -> None:
    rules(world, rule())
    die(world, "mail")
    world.push(queue="mail")
    world.run.fetch.fetch(["mail"], 1, "w")
    world.run.deletion.delete("mail", "drain")
    world.clock.advance(HOUR_MS)
    assert run(world) == {}


def test_what_cannot_come_back_is_passed_over_and_told_of(world: World) -> None:
    rules(world, rule())
    job = world.push(queue="mail", unique={"keys": ["type"]})
    again(world)
    holder = world.push(queue="mail", unique={"keys": ["type"]})
    world.run.fetch.fetch(["mail"], 1, "w")
    second = world.push(queue="mail", kind="other")
    said = {"code": "DEAD_LETTER", "message": "no"}
    assert [job.id for job in world.run.fetch.fetch(["mail"], 1, "w")] == [second.id]
    world.run.finish.nack(second.id, error=said, worker_id="w")
    world.clock.advance(HOUR_MS - 1_700_000)
    world.run.workers.beat("w", active_jobs=[holder.id])
    world.clock.advance(1_700_000)
    done = world.run.replay.run_once(world.clock.now_ms(), 100)
    assert done.counts == {"looked": 2, "skipped": 1, "replayed": 1}
    (skipped,) = done.skipped
    assert (skipped.job_id, skipped.rule, skipped.queue) == (job.id, "all", "mail")
    assert skipped.reason.startswith("duplicate: ")
    assert run(world) == {}


def test_a_store_that_is_down_is_tried_again(exact: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rules(exact, rule())
    ids = [die(exact, "mail").id for _ in range(2)]
    exact.clock.advance(HOUR_MS)
    with monkeypatch.context() as patch:
        patch.setattr(exact.run.redrive, "bring_back", _down)
        assert run(exact) == {"looked": 1, "failed": 1}
    assert run(exact) == {"looked": 2, "replayed": 2}
    assert {exact.run.jobs.get(job_id).state for job_id in ids} == {"available"}


def _down(*_: object, **__: object) -> None:
    raise BackendUnavailable("down")


# --- two at once, and dying -----------------------------------------------------------------------


def minute(by: Runtime, now_ms: int) -> dict[str, int]:
    return dict(by.replay.run_once(now_ms, 1_000).counts)


@pytest.mark.exhaustive
def test_two_at_once_replay_each_once(exact: World) -> None:
    rules(exact, rule())
    ids = [die(exact, "mail").id for _ in range(24)]
    for number in (1, 2):
        exact.clock.advance(HOUR_MS + 60_000)
        once = partial(minute, now_ms=exact.clock.now_ms())
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(once, [exact.another() for _ in range(4)]))
        assert sum(counts.get("replayed", 0) for counts in done) == 24
        for job_id in ids:
            job = exact.run.jobs.get(job_id)
            assert (job.state, job.life) == ("available", number)
            assert replay.count(job.replayed, "all") == number
        again(exact)


def test_one_that_died_anew_meanwhile_waits_for_its_delay(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that read the line long ago finds the job where it was not."""
    rules(exact, rule())
    job = die(exact, "mail")
    exact.clock.advance(HOUR_MS)
    slow = exact.another()
    records = slow.replay._jobs.read_records

    def late(wanted: Iterable[str], *more: Any) -> dict[str, Job]:
        if exact.run.jobs.get(job.id).life == 0:
            assert run(exact) == {"looked": 1, "replayed": 1}
            again(exact)
        return records(wanted, *more)

    monkeypatch.setattr(slow.replay._jobs, "read_records", late)
    assert run(exact, slow) == {"looked": 1}
    assert exact.run.jobs.get(job.id).life == 1
    assert dead(exact) == [job.id]


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", ["small", "unique and large"])
def test_a_kill_at_any_call_loses_nothing_and_replays_nothing_twice(
    exact: World, size: str
) -> None:
    rules(exact, rule())
    for by, _ in faults(exact):
        ids: list[str] = []
        for _ in range(2):
            options: dict[str, Any] = {"queue": "mail"}
            if size != "small":
                options["unique"] = {"keys": ["type"], "states": ["available"]}
            kind = f"kind.k{len(ids)}"
            ids.append(exact.push(BIG if size != "small" else 1, kind=kind, **options).id)
        again(exact)
        exact.clock.advance(HOUR_MS)
        attempt(partial(run, exact, by))
        for _ in range(2):
            run(exact)
        for job_id in ids:
            job = exact.run.jobs.get(job_id)
            assert (job.state, job.life) == ("available", 1)
            assert replay.count(job.replayed, "all") == 1
        for job in exact.run.fetch.fetch(["mail"], 10, "w"):
            exact.run.finish.ack(job.id, worker_id="w")


# --- cost -----------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_what_matches_no_rule_costs_nothing_once_it_was_looked_at(exact: World) -> None:
    rules(exact, rule(filter={"error_type": "Bang"}))
    costs = []
    for size in (50, 1_000):
        letters(exact, size)
        exact.clock.advance(HOUR_MS)
        while run(exact).get("looked"):
            pass
        exact.clock.advance(60_000)
        noted = reading_notes(exact)
        with spending(exact) as spent:
            done = minute(exact.run, exact.clock.now_ms())
        assert not done
        costs.append((spent.calls - noted.calls, spent.reads - noted.reads, spent.writes))
    # The deployment, names, queues, cursors of the one with rules, and what is due by it.
    assert costs[0] == costs[1]
    calls, reads, writes = costs[0]
    assert (calls, writes) == (5, 0)
    assert reads <= 5


@pytest.mark.exhaustive
def test_a_replay_costs_what_a_retry_costs(exact: World) -> None:
    rules(exact, rule())
    for _ in range(100):
        die(exact, "mail")
    exact.clock.advance(HOUR_MS + 60_000)
    noted = reading_notes(exact)
    with spending(exact) as spent:
        done = exact.run.replay.run_once(exact.clock.now_ms(), 1_000)
    assert done.counts["replayed"] == 100
    # The record: itself, its places in two indexes, one of them another place in the same index.
    assert spent.writes <= 100 * 4 + 2
    assert spent.calls - noted.calls <= 100 + 10
    assert spent.reads - noted.reads <= 100 * 1 + 10


def test_it_ends_at_its_limit_and_goes_on_from_there(exact: World) -> None:
    rules(exact, rule())
    for _ in range(25):
        die(exact, "mail")
    exact.clock.advance(HOUR_MS)
    assert run(exact, limit=10) == {"looked": 10, "replayed": 10, "more": 1}
    assert run(exact, limit=10) == {"looked": 10, "replayed": 10, "more": 1}
    assert run(exact, limit=10) == {"looked": 5, "replayed": 5}
    assert exact.run.replay.run_once(exact.clock.now_ms(), 9, lambda: False).counts == {"more": 1}


def test_a_cursor_is_kept_as_long_as_its_rule(exact: World) -> None:
    rules(exact, rule(filter={"error_type": "Bang"}))
    die(exact, "mail")
    exact.clock.advance(HOUR_MS)
    run(exact)
    (before,) = exact.run.replay._replays.cursors("mail").values()
    exact.clock.advance(HOUR_MS)
    run(exact)
    assert [*exact.run.replay._replays.cursors("mail").values()] == [before]
    exact.clock.advance(24 * HOUR_MS)
    assert run(exact) == {}
    (after,) = exact.run.replay._replays.cursors("mail").values()
    assert after.upto == before.upto
    assert after.ends_s >= before.ends_s + 86_400


# --- the stream -----------------------------------------------------------------------------------


@pytest.mark.requirement("DL-26")
def test_a_replay_is_told_of_as_such(streamed: Worlds) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        projected = Projected(world.client, world.table, world.clock)
        rules(world, rule())
        job = die(world, "mail")
        for _ in range(2):
            world.clock.advance(HOUR_MS)
            run(world)
            again(world)
        world.run.redrive.retry(job.id)
        projected.run(stream.take())
        kinds = [kind for kind, _ in told(projected)]
        assert kinds == ["added", "replayed", "added", "replayed", "added", "retried"]
