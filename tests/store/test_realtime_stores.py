"""The items of realtime on engines: what each call costs, races, lost answers, and limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.access import ALL_SCOPES, ANYBODY, Principal
from ojs.domain.realtime import (
    MAX_SUBSCRIBERS,
    MAX_WATCHERS,
    Connection,
    Listener,
    Subscriber,
    group_of,
)
from ojs.store.realtime import directory as module
from ojs.store.realtime.directory import RealtimeDirectory
from ojs.store.realtime.listeners import ListenerStore
from ojs.store.table.errors import UnreadableItem
from ojs.store.table.table import Put
from tests.store.faults import Faulty

if TYPE_CHECKING:
    from tests.store.conftest import World

READER = Principal("reader", frozenset({"admin:read"}), ("a", "b.*"), "0" * 16, 1_790_000_000_000)
MINUTE_MS = 60_000


def costs(world: World, act: Any) -> tuple[list[str], float, float]:
    """Calls, write units, and read units."""
    meter = world.run.table.meter
    meter.reset()
    act()
    return meter.calls, meter.write_units, meter.read_units


# --- tickets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [READER, Principal("x", ALL_SCOPES), ANYBODY])
def test_a_ticket_has_its_caller(exact: World, who: Principal) -> None:
    tickets = exact.run.stores.tickets
    secret = tickets.issue(who)
    assert len(secret) == 43
    assert tickets.redeem(secret) == who
    assert tickets.redeem(secret) is None


def test_what_tickets_cost(exact: World) -> None:
    tickets = exact.run.stores.tickets
    secrets: list[str] = []
    added = costs(exact, lambda: secrets.append(tickets.issue(READER)))
    assert added == (["PutItem"], 1.0, 0.0)
    taken = costs(exact, lambda: tickets.redeem(secrets[0]))
    assert taken == (["DeleteItem"], 1.0, 0.0)


def test_of_many_at_once_one_gets_the_caller(exact: World) -> None:
    tickets = exact.run.stores.tickets
    secret = tickets.issue(READER)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: tickets.redeem(secret), range(8)))
    assert sorted(each is not None for each in found) == [False] * 7 + [True]


def test_an_answer_that_is_lost_uses_the_ticket(exact: World) -> None:
    """Never two callers: the client gets another ticket."""
    secret = exact.run.stores.tickets.issue(READER)
    faulty = Faulty(exact.client, 1, "answer lost")
    other = exact.another(faulty).stores.tickets
    assert other.redeem(secret) is None
    assert exact.run.stores.tickets.redeem(secret) is None


# --- connections ----------------------------------------------------------------------------------


def test_connections(exact: World) -> None:
    store, now_ms = exact.run.stores.connections, exact.clock.now_ms()
    connection = Connection("L0SM9cOFvHcCIhw=", READER, now_ms + MINUTE_MS)
    assert costs(exact, lambda: store.add(connection)) == (["PutItem"], 1.0, 0.0)
    assert costs(exact, lambda: store.get(connection.id, now_ms=now_ms))[2] == 1.0
    assert store.get(connection.id, now_ms=now_ms) == connection
    assert store.get(connection.id, now_ms=now_ms + MINUTE_MS) is None
    assert store.get("other", now_ms=now_ms) is None
    assert store.set_group(connection.id, "g1")
    channels = [f"queue:q{number}" for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        # Messages of a connection that come at the same time.
        assert all(pool.map(partial(store.add_channel, connection.id), channels))
    found = store.get(connection.id, now_ms=now_ms)
    assert found is not None
    assert (found.channels, found.group) == (tuple(sorted(channels)), "g1")
    for channel in channels[1:]:
        act = partial(store.remove_channel, connection.id, channel)
        assert costs(exact, act)[:2] == (["UpdateItem"], 1.0)
    changed = store.remove(connection.id)
    assert changed is not None
    assert (changed.channels, changed.group) == (("queue:q0",), "g1")
    assert store.remove(connection.id) is None
    assert not store.add_channel(connection.id, "all")
    assert not store.set_group(connection.id, "g1")
    assert store.get(connection.id, now_ms=now_ms) is None


def test_a_caller_that_cannot_be_read_is_not_anybody(exact: World) -> None:
    store, now_ms = exact.run.stores.connections, exact.clock.now_ms()
    store.add(Connection("c1", Principal("x"), now_ms + 1))
    table = exact.run.table
    item = table.get("RT|c|c1", "@")
    assert item is not None
    for text in ("{}", '{"principal":null}', "", '{"scopes":"work"}'):
        table.put(Put({**item, "caller": text}))
        with pytest.raises(UnreadableItem):
            store.get("c1", now_ms=now_ms)


# --- listeners ------------------------------------------------------------------------------------


def test_listeners(exact: World) -> None:
    store, now_ms = exact.run.stores.listeners, exact.clock.now_ms()
    group = group_of(["b", "a"])
    assert group == group_of(["a", "b", "a"]) != group_of(["ab"])
    listener = Listener("c1", "worker-1", now_ms + MINUTE_MS)
    assert costs(exact, lambda: store.add(group, listener)) == (["PutItem"], 1.0, 0.0)
    assert store.select(group, 3, now_ms=now_ms) == [listener]
    assert store.select(group, 3, now_ms=now_ms + MINUTE_MS) == []
    assert store.select("other", 3, now_ms=now_ms) == []
    assert costs(exact, lambda: store.remove(group, "c1"))[:2] == (["DeleteItem"], 1.0)
    store.remove(group, "c1")
    assert store.select(group, 3, now_ms=now_ms) == []


def test_some_of_many_listeners(exact: World) -> None:
    """One after the other gets its turn, and none comes twice at a time."""
    store, now_ms = ListenerStore(exact.run.table), exact.clock.now_ms()
    for number in range(40):
        store.add("g", Listener(f"NBnZ_F{number:02d}=", "w", now_ms + 1))
    seen = set()
    meter = exact.run.table.meter
    for _ in range(400):
        meter.reset()
        found = store.select("g", 6, now_ms=now_ms)
        assert len(meter.calls) <= 2
        assert meter.read_units <= 2.0
        names = [each.connection for each in found]
        assert len(set(names)) == len(names) == 6
        seen |= set(names)
    assert len(seen) == 40


# --- the directory --------------------------------------------------------------------------------


def test_the_directory(exact: World) -> None:
    directory = exact.run.stores.realtime_directory
    assert costs(exact, lambda: directory.read(remembered_ms=10_000)) == (["Query"], 0.0, 0.5)
    assert directory.note_group("g1", ["b", "a"])
    assert costs(exact, lambda: directory.note_group("g1", ["a", "b"])) == ([], 0.0, 0.0)
    # This container sees what it has written. Others rely on what they have read for some time.
    assert directory.read(remembered_ms=10_000).groups
    assert costs(exact, lambda: directory.read(remembered_ms=10_000)) == ([], 0.0, 0.0)
    for channel in ("queue:mail", "job:01968f2a-0000-7000-8000-000000000000", "all"):
        note = partial(directory.note_channel, channel)
        assert costs(exact, note)[:2] == (["PutItem"], 1.0)
        assert costs(exact, note)[0] == []
    directory.revoke("0" * 16)
    assert costs(exact, lambda: directory.read(remembered_ms=10_000))[2] == 0.5
    found = directory.read(remembered_ms=10_000)
    assert found.groups == {"g1": ("a", "b")}
    assert (found.groups_of("a"), found.groups_of("c")) == (["g1"], [])
    assert found.queues == {"mail"}
    assert found.revoked == {"0" * 16}
    assert (found.everything, found.jobs, found.whole) == (True, True, True)
    exact.clock.advance(5 * MINUTE_MS)
    assert directory.note_group("g1", ["a", "b"])
    exact.clock.advance(15 * MINUTE_MS)
    found = directory.read(remembered_ms=0)
    assert found.groups == {}
    assert found.queues == {"mail"}
    # As long as any connection that subscribed when this container had just written the entry.
    exact.clock.advance(109 * MINUTE_MS)
    assert directory.read(remembered_ms=0).has_subscribers()
    exact.clock.advance(MINUTE_MS)
    assert not directory.read(remembered_ms=0).has_subscribers()


def test_a_directory_that_is_too_large_has_all_revoked_keys(
    exact: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks groups, whose workers poll, and then channels."""
    monkeypatch.setattr(module, "MAX_BYTES", 2_000)
    directory = RealtimeDirectory(exact.run.table, exact.clock)
    directory.note_channel("queue:mail")
    for number in range(30):
        directory.revoke(f"{number:016x}")
        directory.note_group(f"group{number}", [f"{'q' * 100}{number}"])
    monkeypatch.setattr(exact.run.table, "query", _paged(exact.run.table.query))
    found = directory.read(remembered_ms=0)
    assert not found.whole
    assert len(found.revoked) == 30
    assert found.queues == {"mail"}
    assert len(found.groups) < 30


def _paged(query: Any) -> Any:
    """Pages of ten items, as DynamoDB ends one at 1 MB."""
    return lambda *args, **more: query(*args, limit=10, **more)


# --- subscribers ----------------------------------------------------------------------------------


def test_subscribers(exact: World) -> None:
    store, now_ms = exact.run.stores.subscribers, exact.clock.now_ms()
    job = "01968f2a-0000-7000-8000-000000000000"
    for channel in ("all", "queue:mail", f"job:{job}"):
        one = Subscriber("c1=", channel, READER, now_ms + MINUTE_MS, ("job.progress",), True, True)
        calls, writes, reads = costs(exact, partial(store.add, one, now_ms=now_ms))
        assert (len(calls), writes) == (2, 1.0)
        assert reads <= 1.0
        # Other options take the place.
        two = Subscriber("c1=", channel, READER, now_ms + MINUTE_MS, digest=channel == "all")
        assert store.add(two, now_ms=now_ms)
        assert store.get(channel, "c1=", now_ms=now_ms) == two
        assert store.get(channel, "c1=", now_ms=now_ms + MINUTE_MS) is None
        assert store.get(channel, "other", now_ms=now_ms) is None
        if channel.startswith("job:"):
            assert store.list_watching([job, job[:-1] + "1"], now_ms=now_ms) == {job: [two]}
        else:
            assert store.list_of(channel, now_ms=now_ms) == [two]
        for _ in range(2):
            assert costs(exact, partial(store.remove, channel, "c1="))[0] in (
                ["DeleteItem"],
                ["UpdateItem"],
            )
        assert store.get(channel, "c1=", now_ms=now_ms) is None
    assert store.list_watching([job], now_ms=now_ms) == {}
    # A job that nobody watches costs no item.
    store.remove("job:01968f2a-0000-7000-8000-000000000001", "c1=")
    assert exact.run.table.get("RT|j|01968f2a-0000-7000-8000-000000000001", "@") is None


@pytest.mark.parametrize(
    ("channel", "most"),
    [
        ("all", MAX_SUBSCRIBERS),
        ("queue:mail", MAX_SUBSCRIBERS),
        ("job:01968f2a-0000-7000-8000-000000000000", MAX_WATCHERS),
    ],
)
def test_limits_of_a_channel(exact: World, channel: str, most: int) -> None:
    store, now_ms = exact.run.stores.subscribers, exact.clock.now_ms()

    def add(name: str, until_ms: int = now_ms + MINUTE_MS) -> bool:
        return store.add(Subscriber(name, channel, READER, until_ms), now_ms=now_ms)

    assert all(add(f"c{number}") for number in range(most - 1))
    assert add("ended", now_ms + 1)
    assert not add("more")
    assert add("c1")
    now_ms += 1
    assert add("more")
    assert not add("most")


def test_many_watch_a_job_at_once(exact: World) -> None:
    """Each has an attribute of its own: none is lost."""
    store, now_ms = exact.run.stores.subscribers, exact.clock.now_ms()
    channel = "job:01968f2a-0000-7000-8000-000000000000"

    def add(number: int) -> bool:
        one = Subscriber(f"c{number}", channel, READER, now_ms + MINUTE_MS)
        return store.add(one, now_ms=now_ms)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(add, range(8)))
    (watching,) = store.list_watching([channel[4:]], now_ms=now_ms).values()
    assert {each.connection for each in watching} == {f"c{number}" for number in range(8)}
