"""Maintenance mode: nothing is handed out and nothing starts by time; all else goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from ojs.domain.errors import BackendUnavailable, InvalidRequest
from ojs.domain.maintenance import EFFECTIVE_MS, NOTICED_MS
from ojs.services.sweeping import jobs as job_sweep
from ojs.store.table import keys
from ojs.store.table.table import Table
from tests.store import worker_pools
from tests.store.dead_letters import die
from tests.store.spending import WORKER, spending, warm

if TYPE_CHECKING:
    from ojs.runtime import Runtime
    from tests.store.conftest import World

MINUTE_MS = 60_000
IN_A_MINUTE = "+PT1M"
RETRY = {"max_attempts": 2, "initial_interval": "PT10S", "jitter": False}


def begin(world: World, by: Runtime | None = None) -> None:
    (by or world.run).maintenance.begin(None, None, now_ms=world.clock.now_ms())


def sweep(world: World, times: int = 1) -> dict[str, int]:
    found: dict[str, int] = {}
    for _ in range(times):
        found = dict(world.sweep())
    return found


def taken(world: World, count: int = 100, queue: str = "default") -> list[str]:
    return [job.id for job in world.fetch(queue, count)]


@pytest.mark.requirement("ADM-12")
def test_nothing_is_handed_out_and_pushes_are_taken(world: World) -> None:
    waiting = world.push()
    begin(world)
    pushed = world.push()
    assert taken(world) == []
    assert {world.state(job) for job in (waiting, pushed)} == {"available"}
    world.run.maintenance.end()
    assert taken(world) == [waiting.id, pushed.id]


@pytest.mark.requirement("ADM-12")
def test_starts_and_retries_stand_still_and_come_in_order(world: World) -> None:
    """A fetch, a read and the sweep all leave them where they are."""
    first = world.push()
    retried = world.push(retry=RETRY)
    taken(world)
    world.run.finish.nack(retried.id, error={"code": "Boom"}, worker_id=WORKER)
    started = [world.push(scheduled_at=f"+PT{20 + n}S") for n in range(3)]
    begin(world)
    later = world.push()
    world.clock.advance(MINUTE_MS)
    # The job that runs gets a new note.
    assert sweep(world) == {}
    assert taken(world) == []
    assert {world.state(job) for job in started} == {"scheduled"}
    assert world.state(retried) == "retryable"
    world.run.finish.ack(first.id, worker_id=WORKER)
    world.run.maintenance.end()
    assert sweep(world)["promoted"] == 4
    assert taken(world) == [job.id for job in (later, retried, *started)]


@pytest.mark.requirement("ADM-12")
def test_the_sweep_starts_what_stood_still_in_the_order_in_which_it_was_due(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DynamoDB answers a batch of reads in any order."""
    read_records = exact.run.stores.jobs.read_records

    def backwards(*args: Any, **options: Any) -> dict[str, Any]:
        return dict(reversed(read_records(*args, **options).items()))

    monkeypatch.setattr(exact.run.stores.jobs, "read_records", backwards)
    due = [exact.push(scheduled_at=f"+PT{59 - n}S") for n in range(50)]
    begin(exact)
    exact.clock.advance(MINUTE_MS)
    exact.run.maintenance.end()
    assert sweep(exact)["promoted"] == 50
    assert taken(exact) == [job.id for job in reversed(due)]


def test_running_jobs_go_on(world: World) -> None:
    acked, failed, given_back, cancelled = (world.push(retry=RETRY) for _ in range(4))
    assert len(taken(world)) == 4
    begin(world)
    assert world.run.finish.ack(acked.id, worker_id=WORKER).state == "completed"
    error = {"code": "Boom"}
    assert world.run.finish.nack(failed.id, error=error).state == "retryable"
    assert world.run.finish.nack(given_back.id, error=error, requeue=True).state == "available"
    assert world.run.jobs.report_progress(cancelled.id, progress=0.5).progress == 0.5
    beat = world.run.workers.beat(WORKER, active_jobs=[cancelled.id])
    assert (beat.jobs_extended, beat.state) == ([cancelled.id], "running")
    assert world.run.jobs.cancel(cancelled.id).state == "cancelled"
    assert taken(world) == []


def test_leases_timeouts_and_deadlines_count_on(world: World) -> None:
    """A lost lease brings its job back in line, where it waits; a deadline is the producer's."""
    lost = world.push(visibility_timeout_ms=10_000)
    slow = world.push(timeout_ms=20_000, visibility_timeout_ms=600_000, retry=RETRY)
    assert len(taken(world)) == 2
    late = world.push(expires_at=IN_A_MINUTE)
    later = world.push(scheduled_at="+PT30S", expires_at=IN_A_MINUTE)
    begin(world)
    world.clock.advance(2 * MINUTE_MS)
    assert sweep(world) == {"stalled_or_timed_out": 2, "expired": 2}
    assert (world.state(lost), world.state(slow)) == ("available", "retryable")
    assert {world.state(job) for job in (late, later)} == {"discarded"}
    assert taken(world) == []
    world.run.maintenance.end()
    assert taken(world, 1) == [lost.id]


def test_lost_leases_are_found_behind_any_number_of_jobs_that_stand_still(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And reading past these is bounded: the next run goes on where one ended."""
    monkeypatch.setattr(job_sweep, "_PAGE", 2)
    monkeypatch.setattr(job_sweep, "_FEW", 2)
    monkeypatch.setattr(job_sweep, "_LOOK", 4)
    monkeypatch.setattr(job_sweep, "_LOOKS", 8)
    for n in range(20):
        exact.push(scheduled_at=f"+PT{n % 9 + 1}S")
    # Leases so short that they have an entry in the line from the claim on.
    running = [exact.push(visibility_timeout_ms=10_000 + n) for n in range(5)]
    assert len(taken(exact)) == 5
    begin(exact)
    exact.clock.advance(MINUTE_MS)
    # The queries for staged batches are not for lines, and always as many.
    monkeypatch.setattr(exact.run.stores.jobs.batches, "stale", lambda **_: [])
    counted = []
    for _ in range(6):
        with spending(exact):
            done = sweep(exact)
            queries = exact.run.table.meter.calls.count("Query")
        counted.append((done.get("stalled_or_timed_out", 0), queries <= 9))
    assert [ok for _, ok in counted] == [True] * 6
    assert sum(found for found, _ in counted) == 5
    assert counted[0] == (0, True), "it looked through more than it should"
    assert {exact.state(job) for job in running} == {"available"}


def test_what_the_sweep_could_not_deal_with_is_met_again(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact.push(scheduled_at="+PT1S")
    running = exact.push(visibility_timeout_ms=10_000)
    assert len(taken(exact)) == 1
    begin(exact)
    exact.clock.advance(MINUTE_MS)

    def down(*_: Any, **__: Any) -> None:
        raise BackendUnavailable("DynamoDB throttled the request.")

    with monkeypatch.context() as broken:
        broken.setattr(exact.run.stores.jobs, "replace", down)
        assert sweep(exact) == {"failed": 1}
    assert sweep(exact) == {"stalled_or_timed_out": 1}
    assert exact.state(running) == "available"


def test_an_operator_s_acts_are_done(world: World) -> None:
    scheduled = world.push(scheduled_at="+PT1H")
    dead = die(world, "mail", error="Boom")
    begin(world)
    assert world.run.acts.run_now(scheduled.id).state == "available"
    assert world.run.acts.retry(dead.id).state == "available"
    assert taken(world) == taken(world, queue="mail") == []


def test_replay_rules_stand_still(world: World) -> None:
    rule = {"name": "all", "filter": {}, "delay": "PT1M", "max_replays": 3}
    world.run.queues.configure("mail", {"replay_rules": [rule]})
    dead = die(world, "mail", error="Boom")
    begin(world)
    for _ in range(3):
        world.clock.advance(MINUTE_MS)
        assert world.run.replay.run_once(world.clock.now_ms(), 100).counts == {}
    assert world.state(dead) == "discarded"
    world.run.maintenance.end()
    report = world.run.replay.run_once(world.clock.now_ms(), 100)
    assert report.counts == {"looked": 1, "replayed": 1}


def test_no_queue_of_a_pool_is_called_starved(exact: World) -> None:
    worker_pools.make(exact, "general", ["low"])
    worker_pools.counted(exact, "low", available=9, oldest_ago_ms=45_000)
    begin(exact)
    look = exact.run.pool_health_sweep.run_once
    assert look(exact.clock.now_ms(), 100).counts == {"pools": 1}
    exact.run.maintenance.end()
    assert look(exact.clock.now_ms(), 100).counts == {"pools": 1, "starved": 1}


# --- containers ---------------------------------------------------------------------------------


def test_other_containers_notice_within_seconds(world: World) -> None:
    """Until then they hand out what they would have: so does one that reads just before."""
    other = world.another()
    for _ in range(4):
        world.push()
    assert len(other.fetch.fetch(["default"])) == 1
    begin(world)
    world.clock.advance(NOTICED_MS - 1)
    assert len(other.fetch.fetch(["default"])) == 1
    world.clock.advance(1)
    assert other.fetch.fetch(["default"]) == []
    world.run.maintenance.end()
    assert other.fetch.fetch(["default"]) == []
    world.clock.advance(NOTICED_MS)
    assert len(other.fetch.fetch(["default"])) == 1
    assert NOTICED_MS < EFFECTIVE_MS


def test_a_fetch_that_takes_long_ends(exact: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        exact.push()
    claim = exact.run.stores.jobs.claim
    other = exact.another()

    def slow(*args: Any, **options: Any) -> Any:
        begin(exact, other)
        exact.clock.advance(NOTICED_MS)
        return claim(*args, **options)

    monkeypatch.setattr(exact.run.stores.jobs, "claim", slow)
    assert len(taken(exact)) == 1


def test_a_clock_that_is_put_back_keeps_nothing_from_being_noticed(exact: World) -> None:
    exact.push()
    other = exact.another()
    assert taken(exact) != []
    exact.push()
    exact.clock.advance(-3_600_000)
    begin(exact, other)
    assert taken(exact) == []
    other.maintenance.end()
    exact.clock.advance(NOTICED_MS)
    assert len(taken(exact)) == 1


def test_an_older_read_does_not_hide_a_later_one(exact: World) -> None:
    """Of two requests of one container, one read before the mode began, and says so after."""
    store, asked_ms = exact.run.maintenance, exact.clock.now_ms()
    exact.clock.advance(10)
    begin(exact)
    store.note({}, asked_ms=asked_ms)
    assert store.on()


def test_a_request_is_still_checked(exact: World) -> None:
    begin(exact)
    with pytest.raises(InvalidRequest, match="queues"):
        exact.run.fetch.fetch(None, 1, "w")


def test_a_fetch_that_cannot_learn_of_it_fails(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hands out nothing that it might have to keep back."""
    exact.push()

    def busy(*_: Any, **__: Any) -> None:
        raise BackendUnavailable("DynamoDB throttled the request.")

    monkeypatch.setattr(Table, "batch_get", busy)
    with pytest.raises(BackendUnavailable):
        taken(exact)


def test_a_repetition_changes_nothing_but_what_it_says(world: World) -> None:
    """Its beginning stays, so a client may ask again when the answer was lost."""
    store = world.run.maintenance
    now_ms = world.clock.now_ms()
    first = store.begin("migration", 60_000, now_ms=now_ms)
    assert (first.since_ms, first.until_ms) == (now_ms, now_ms + 60_000)
    assert store.begin("migration", 60_000, now_ms=now_ms + 500) == first
    second = store.begin("longer", 120_000, now_ms=now_ms + 1_000)
    assert (second.since_ms, second.reason, second.until_ms) == (now_ms, "longer", now_ms + 120_000)
    third = store.begin(None, None, now_ms=now_ms + 2_000)
    assert (third.since_ms, third.reason, third.until_ms) == (now_ms, None, None)
    assert world.another().maintenance.read() == third
    for _ in range(2):
        store.end()
        assert store.read() is None
    world.clock.advance(60_000)
    again = store.begin(None, None, now_ms=world.clock.now_ms())
    assert again.since_ms == now_ms + 60_000


def test_what_comes_late_changes_nothing(exact: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first try without an answer takes effect after its repetition, and what came next."""
    store, put = exact.run.maintenance, exact.run.table.client.put_item
    tries: list[dict[str, Any]] = []

    def lost_once(**arguments: Any) -> Any:
        tries.append(arguments)
        if len(tries) == 1:
            raise ConnectionClosedError(endpoint_url="dynamodb")
        return put(**arguments)

    with monkeypatch.context() as lossy:
        lossy.setattr(exact.run.table.client, "put_item", lost_once)
        store.begin("first", None, now_ms=exact.clock.now_ms())
    assert len(tries) == 2
    store.end()
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        put(**tries[0])
    assert store.read() is None


def test_two_operators_at_once(exact: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between one's read and write the other writes: the loser reads again."""
    other, put = exact.another().maintenance, exact.run.table.put
    now_ms = exact.clock.now_ms()
    acts = [lambda: other.begin("other", None, now_ms=now_ms - 5), other.end]

    def second(*args: Any, **options: Any) -> None:
        if acts:
            acts.pop(0)()
        put(*args, **options)

    monkeypatch.setattr(exact.run.table, "put", second)
    mine = exact.run.maintenance.begin("mine", None, now_ms=now_ms)
    # The other one had begun it and ended it.
    assert (mine.since_ms, mine.reason) == (now_ms, "mine")
    acts.append(lambda: other.begin("longer", 60_000, now_ms=now_ms + 5))
    exact.run.maintenance.end()
    assert other.read() is None
    acts.append(other.end)
    exact.run.maintenance.begin(None, None, now_ms=now_ms)
    exact.run.maintenance.end()
    assert other.read() is None


def test_it_does_not_end_by_itself(exact: World) -> None:
    exact.push()
    exact.run.maintenance.begin(None, 60_000, now_ms=exact.clock.now_ms())
    exact.clock.advance(24 * 60 * MINUTE_MS)
    assert taken(exact) == []


# --- what it costs ------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["off", "on"])
def test_sixty_fetches_in_a_minute_make_no_call_more(exact: World, mode: str) -> None:
    """A read unit in NOTICED_MS, in the call that a fetch makes anyway."""
    warm(exact)
    if mode == "on":
        begin(exact)
    asked = []
    for second in range(61):
        with spending(exact) as spent:
            if second:
                taken(exact, 1)
        if second:
            asked.append((exact.run.table.meter.calls.count("GetItem"), spent.reads))
        exact.clock.advance(1_000)
    assert sum(calls for calls, _ in asked) == 0
    least = min(reads for _, reads in asked)
    more = [reads for _, reads in asked if reads > least]
    assert len(more) <= MINUTE_MS // NOTICED_MS
    assert all(reads <= least + 1.5 for reads in more)


def test_in_maintenance_a_fetch_is_one_call(exact: World) -> None:
    warm(exact)
    for _ in range(5):
        exact.push()
    begin(exact)
    with spending(exact) as spent:
        assert taken(exact) == []
    assert (spent.calls, spent.writes) == (1, 0)


def test_a_sweep_without_anything_due_does_not_ask(exact: World) -> None:
    exact.push()
    exact.clock.advance(NOTICED_MS)
    read: list[tuple[str, str]] = []
    get = exact.run.table.get

    def noted(pk: str, sk: str, **options: Any) -> Any:
        read.append((pk, sk))
        return get(pk, sk, **options)

    exact.run.table.get = noted  # type: ignore[method-assign]
    sweep(exact)
    assert (keys.DEPLOYMENT, keys.MAINTENANCE) not in read
    for n in range(40):
        exact.push(scheduled_at=f"+PT{n + 1}S")
    exact.clock.advance(MINUTE_MS)
    sweep(exact)
    assert read.count((keys.DEPLOYMENT, keys.MAINTENANCE)) == 1


def test_jobs_that_stand_still_are_not_read(exact: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(40):
        exact.push(scheduled_at=f"+PT{n + 1}S")
    begin(exact)
    exact.clock.advance(MINUTE_MS)
    read: list[str] = []
    read_records = exact.run.stores.jobs.read_records

    def noted(job_ids: Any, *args: Any, **options: Any) -> Any:
        ids = list(job_ids)
        read.extend(ids)
        return read_records(ids, *args, **options)

    monkeypatch.setattr(exact.run.stores.jobs, "read_records", noted)
    sweep(exact)
    assert read == []
