"""Access keys on an engine: what a look-up costs, what it tells by its time, what a race leaves."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from ojs.clock import ManualClock, SystemClock
from ojs.domain.access import ALL_SCOPES, ANYBODY, AccessKey, Credential
from ojs.domain.errors import BackendUnavailable, Conflict, Unauthenticated
from ojs.services.operations.access_keys import AccessKeys
from ojs.services.operations.authentication import Authentication
from ojs.services.operations.roles import Roles
from ojs.store.deployment import access_keys
from ojs.store.table.table import Put, Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine


class Door:
    """Keys on a table, with a clock that goes."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.store = store = access_keys.AccessKeyStore(table)
        self.mac = store.made_mac(os.urandom, SystemClock().now_ms() + 60_000)
        table.meter.reset()
        self.keys = AccessKeys(store, SystemClock())
        self.authentication = Authentication(store, SystemClock())

    def make(self) -> str:
        _, credential = self.keys.create(ANYBODY, "k", ALL_SCOPES)
        return credential.text

    def opens(self, key: str) -> bool:
        return self.authentication.who(f"Bearer {key}") is not None


@pytest.fixture
def door(dynamodb: DynamoDBClient, fresh_table: str) -> Door:
    return Door(Table(dynamodb, fresh_table, measure=True))


def test_what_it_costs(dynoxide: Engine, door: Door) -> None:
    assert dynoxide.running
    meter = door.table.meter
    key = door.make()
    # The item and its entry in the index.
    assert (meter.calls, meter.write_units) == (["PutItem"], 2.0)
    for tried in (key, Credential("0" * 16, "0" * 64).text):
        meter.reset()
        door.opens(tried)
        assert meter.calls == ["UpdateItem"]
        assert meter.write_units <= 1.0
        assert meter.read_units == 0.0
    for _ in range(60):
        door.make()
    meter.reset()
    door.keys.list(limit=20)
    assert meter.calls == ["Query", "BatchGetItem"]


def test_known_and_unknown_keys_take_the_same_time(dynoxide: Engine, door: Door) -> None:
    """Of a wrong secret it cannot be told whether there is such a key."""
    assert dynoxide.running
    known, unknown = door.make().split("_")[1], "0" * 16
    took: dict[str, list[float]] = {known: [], unknown: []}
    for number in range(300):
        # In turn, so that whatever else goes on takes as long for both.
        for key_id in (known, unknown) if number % 2 else (unknown, known):
            wrong = door.mac.sign(Credential(key_id, f"{number:064x}")).text
            began = time.perf_counter()
            assert not door.opens(wrong)
            took[key_id].append(time.perf_counter() - began)
    medians = [statistics.median(times) for times in took.values()]
    spread = statistics.quantiles(took[known], n=4)
    # The noise: half of all look-ups of one kind are as far apart.
    assert abs(medians[0] - medians[1]) < spread[2] - spread[0]


def test_a_made_up_key_costs_no_call(dynoxide: Engine, door: Door) -> None:
    assert dynoxide.running
    key = door.make()
    front, _, mac = key.rpartition("_")
    meter = door.table.meter
    for cold in (True, False):
        if cold:
            store = access_keys.AccessKeyStore(door.table)
            door.authentication = Authentication(store, SystemClock())
        for wrong in range(16 if cold else 100):
            meter.reset()
            made_up = Credential(f"{wrong:016x}", f"{wrong:064x}", f"{wrong:016x}").text
            assert not door.opens(made_up if wrong % 2 else f"{front}_{wrong:016x}")
            # A container reads once what MACs are made with.
            assert meter.calls == (["GetItem"] if cold and wrong == 0 else [])
    for at in range(len(mac)):
        other = "0" if mac[at] != "0" else "1"
        assert not door.opens(f"{front}_{mac[:at]}{other}{mac[at + 1 :]}")
    assert meter.calls == []
    assert door.opens(key)


def test_a_key_of_an_earlier_version_opens_until_its_end(dynoxide: Engine, door: Door) -> None:
    assert dynoxide.running
    clock, credential = ManualClock(), Credential.make(os.urandom)
    key = AccessKey(credential.id, "old", ALL_SCOPES, clock.now_ms())
    assert door.store.add(key, credential)
    role = AccessKey("1" * 16, "role", ALL_SCOPES, clock.now_ms(), role="arn")
    assert door.store.add_role(role, "arn", instead_of=None)
    store = access_keys.AccessKeyStore(door.table, until_ms := clock.now_ms() + 1_000)
    keys, who = AccessKeys(store, clock), Authentication(store, clock).who
    shown = keys.get(key.id)
    assert (shown.expires_ms, shown.state(clock.now_ms())) == (until_ms, "active")
    assert {each.id: each.expires_ms for each in keys.list().items} == {
        key.id: until_ms, role.id: None,
    }  # fmt: skip
    clock.advance(999)
    assert who(f"Bearer {credential.text}") is not None
    # What it makes is no old key, and ends by itself.
    made, _ = keys.create(key.principal, "new", ["work"])
    assert keys.get(made.id).expires_ms is None
    clock.advance(1)
    door.table.meter.reset()
    assert who(f"Bearer {credential.text}") is None
    assert door.table.meter.calls == []
    assert keys.get(key.id).state(clock.now_ms()) == "expired"
    # Its own end, if that is sooner, is shown.
    early = AccessKey("2" * 16, "early", ALL_SCOPES, 1, expires_ms=2)
    assert store.add(early, Credential(early.id, "0" * 64))
    assert keys.get(early.id).expires_ms == 2


def test_without_what_macs_are_made_with_the_look_up_decides(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = door.make()
    front, _, _ = key.rpartition("_")
    store = access_keys.AccessKeyStore(door.table)
    door.authentication = Authentication(store, SystemClock())

    def busy(*_: Any, **__: Any) -> Any:
        raise BackendUnavailable("busy")

    monkeypatch.setattr(door.table, "get", busy)
    door.table.meter.reset()
    assert door.opens(key)
    assert not door.opens(f"{front[:-1]}{'0' if front[-1] != '0' else '1'}_{'0' * 16}")
    assert door.table.meter.calls == ["UpdateItem"] * 2
    monkeypatch.undo()
    assert not door.opens(f"{front}_{'0' * 16}")


def test_of_two_that_make_it_the_first_one_stays(door: Door) -> None:
    later = access_keys.AccessKeyStore(door.table)
    assert later.made_mac(os.urandom, 5) == door.mac


def test_once_revoked_it_opens_nothing(dynoxide: Engine, door: Door) -> None:
    """Sixteen use a key that is revoked meanwhile: nobody gets in after that was answered."""
    assert dynoxide.running
    key = door.make()
    revoked_at: list[float] = []
    let_in: list[float] = []
    refused: list[float] = []
    done = threading.Event()

    def use() -> None:
        while not done.is_set():
            began = time.monotonic()
            (let_in if door.opens(key) else refused).append(began)

    def often(tries: list[float]) -> None:
        deadline = time.monotonic() + 60
        while len(tries) < 64:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with ThreadPoolExecutor(16) as pool:
        users = [pool.submit(use) for _ in range(16)]
        try:
            often(let_in)
            door.keys.revoke(ANYBODY, key.split("_")[1])
            revoked_at.append(time.monotonic())
            often(refused)
        finally:
            done.set()
        for user in users:
            user.result()
    assert max(let_in) < revoked_at[0]


def test_many_may_revoke_at_once(dynoxide: Engine, door: Door) -> None:
    assert dynoxide.running
    key_id = door.make().split("_")[1]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: door.keys.revoke(ANYBODY, key_id), range(32)))
    assert len({key.revoked_ms for key in found}) == 1


def test_a_lost_answer_makes_no_second_key(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK asks again for what was stored: it is the same key."""
    put = door.table.put

    def twice(what: Put, **how: Any) -> None:
        put(what, **how)
        put(what, **how)

    monkeypatch.setattr(door.table, "put", twice)
    key = door.make()
    assert door.opens(key)
    assert len(door.keys.list(limit=10).items) == 1


def child_of(door: Door, maker: AccessKey) -> AccessKey:
    return door.keys.create(maker.principal, "child", ["work"])[0]


def test_what_a_key_costs_that_another_makes(dynoxide: Engine, door: Door) -> None:
    assert dynoxide.running
    maker, _ = door.keys.create(ANYBODY, "k", ALL_SCOPES)
    meter = door.table.meter
    meter.reset()
    child_of(door, maker)
    assert meter.calls == ["GetItem", "TransactWriteItems"]
    child_of(door, maker)
    meter.reset()
    door.keys.revoke_with_made(ANYBODY, maker.id)
    own, each = ["GetItem", "UpdateItem"], ["Query", "GetItem", "UpdateItem", "Query", "DeleteItem"]
    assert meter.calls == own + 2 * each + ["Query"]


def test_a_maker_that_is_revoked_meanwhile_makes_none(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its record was read, and before the new key is stored."""
    maker, _ = door.keys.create(ANYBODY, "k", ALL_SCOPES)
    transact = door.table.transact

    def after_revocation(writes: Any) -> None:
        door.keys.revoke_with_made(ANYBODY, maker.id)
        transact(writes)

    monkeypatch.setattr(door.table, "transact", after_revocation)
    with pytest.raises(Unauthenticated):
        child_of(door, maker)
    assert [key.id for key in door.keys.list(limit=10).items] == [maker.id]


def test_a_crash_leaves_the_rest_to_a_repetition(door: Door) -> None:
    root, _ = door.keys.create(ANYBODY, "k", ALL_SCOPES)
    made = [child_of(door, root) for _ in range(2)]
    made += [child_of(door, each) for each in made]
    for looks in range(12):
        left = iter(range(looks))

        def go_on(left: Iterator[int] = left) -> bool:
            return next(left, None) is not None

        try:
            door.keys.revoke_with_made(ANYBODY, root.id, go_on)
        except BackendUnavailable:
            continue
        assert looks < 9  # what an earlier try has done is not done again
        break
    assert all(door.keys.get(each.id).revoked_ms for each in made)


ROLE = "arn:aws:iam::123456789012:role/mailer"


def test_what_a_role_costs(dynoxide: Engine, door: Door) -> None:
    assert dynoxide.running
    maker, _ = door.keys.create(ANYBODY, "k", ALL_SCOPES)
    meter = door.table.meter
    meter.reset()
    record = door.keys.name_role(ANYBODY, ROLE, "mailer", ["work"])
    # The record and what leads to it, each twice in a transaction, and the entry in the index.
    assert meter.calls == ["GetItem", "TransactWriteItems"]
    assert (meter.read_units, meter.write_units) == (1.0, 5.0)
    roles = Roles(door.store, SystemClock(), operators=(), remembered_ms=60_000)
    meter.reset()
    assert roles.who(ROLE).key == record.id
    assert meter.calls == ["GetItem", "UpdateItem"]
    assert (meter.read_units, meter.write_units) == (1.0, 1.0)
    roles.who(ROLE)
    assert len(meter.calls) == 2
    # Named by a key it is one of those that the key made.
    door.keys.revoke(ANYBODY, record.id)
    meter.reset()
    again = door.keys.name_role(maker.principal, ROLE, "mailer", ["work"])
    assert meter.calls == ["GetItem", "GetItem", "GetItem", "TransactWriteItems"]
    _, also = door.keys.revoke_with_made(ANYBODY, maker.id)
    assert also == [again.id]


def test_of_two_who_name_a_role_one_is_refused(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other comes between the read and the write. Of a role that had a record before, too."""
    transact = door.table.transact
    for _ in range(2):
        others: list[AccessKey] = []

        def after_another(writes: Any, others: list[AccessKey] = others) -> None:
            monkeypatch.setattr(door.table, "transact", transact)
            others.append(door.keys.name_role(ANYBODY, ROLE, "other", ["jobs:read"]))
            transact(writes)

        monkeypatch.setattr(door.table, "transact", after_another)
        with pytest.raises(Conflict):
            door.keys.name_role(ANYBODY, ROLE, "mailer", ["work"])
        (other,) = others
        roles = Roles(door.store, SystemClock(), operators=("*",), remembered_ms=0)
        assert roles.who(ROLE).key == other.id
        door.keys.revoke(ANYBODY, other.id)
        assert roles.who(ROLE).scopes == frozenset()
    assert {key.name for key in door.keys.list(limit=10).items} == {"other"}


def test_a_record_counts_for_its_role_alone(door: Door) -> None:
    """Neither as a key, nor for another role."""
    record = door.keys.name_role(ANYBODY, ROLE, "mailer", ["work"])
    assert not door.opens(Credential(record.id, "0" * 64).text)
    assert door.store.use_role(record.id, f"{ROLE}s", now_ms=0) is None
    key, _ = door.keys.create(ANYBODY, "k", ["work"])
    assert door.store.use_role(key.id, ROLE, now_ms=0) is None


def test_an_id_that_is_taken_keeps_its_key(door: Door) -> None:
    store = access_keys.AccessKeyStore(door.table)
    key, credential = door.keys.create(ANYBODY, "k", ["work"])
    assert not store.add(key, Credential(credential.id, "0" * 64))
    assert door.opens(credential.text)
