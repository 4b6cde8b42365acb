"""docs/table.md and the attributes against the written items: kinds, types, index entries."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from docs.numbers import attributes
from ojs.domain import access
from ojs.domain.counters.definitions import OFTEN
from ojs.domain.cron import cron
from ojs.domain.cron.cron import SkipReason
from ojs.domain.fair_queue import tags as tenants
from ojs.domain.job.retention import RETENTION
from ojs.domain.job.states import State
from ojs.domain.pool import statistics as scheduling
from ojs.projections import counters
from ojs.services.jobs import enqueue
from ojs.services.permits.kinds import WORKER_KEPT_S
from ojs.services.queues import deletion as ending
from ojs.store.bulk import operations as bulk
from ojs.store.crons import crons
from ojs.store.dead_letter import counters as dead_letters
from ojs.store.dead_letter import replay
from ojs.store.derived import event_log, pool_health, sharded, shards
from ojs.store.derived import statistics as stats
from ojs.store.jobs import fair_queue as store_tenants
from ojs.store.jobs import items, staged_batches
from ojs.store.jobs import payloads as texts
from ojs.store.permits import key_limits as limits
from ojs.store.permits import rate_window
from ojs.store.queues import workers
from ojs.store.table import keys
from ojs.store.table.schema import TABLE
from ojs.store.table.table import MAX_TRANSACTION
from tests.unit.docs.table_run import everything

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "table.md").read_text("utf-8")
ROWS = attributes.ROWS.read_text("utf-8")
DAY_S = 86_400

# What `{…}` on the page stands for.
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TENANT = r"[A-Za-z0-9][\w.:-]*"
_QUEUE = rf"({_TENANT}:)?[a-z0-9][a-z0-9.-]*"
_PLACEHOLDERS = {
    "attempt": r"\d{6}",
    "bucket": r"\d+",
    "limiter": r"[\w-]{12}",
    "bytes": r"[0-9a-f]+",
    "connection": r"[\w-]+=?",
    "crc": r"[0-9a-f]{8}",
    "cron": _QUEUE,
    "delivery": r"[A-Za-z0-9][\w.-]*",
    "epoch": r"\d{4}",
    "name": r"[\w.:/-]+",
    "letter": r"[sgj]",
    "date": r"\d{4}-\d\d-\d\d",
    "group": r"[0-9a-f]{16}",
    "hash": r"[\w-]+",
    "hints": r"(\|[vtbslc][^|]+)*",
    "hour": r"\d{4}-\d\d-\d\dT\d\d",
    "id": _UUID,
    "interval": r"\d+",
    "key": r"[\w.:-]+",
    "kind": r"sleep|signal|time",
    "lane": r"\d+",
    "life": r"\d{4}",
    "line": r"[DT]\|.+\|\d+|B\|\d\d",
    "mark": r"[a-z][0-9a-z]",
    "minute": r"\d{4}-\d\d-\d\dT\d\d:\d\d",
    "ms": r"\d{15}",
    "node": r"\d{5}",
    "generation": r"\d\d",
    "number": r"\d{4}",
    "page": r"\d{3}",
    "period": r"\d+",
    "operation": _UUID,
    "order": r"[0-9a-f]+",
    "permit": r"[0-9A-Za-z]{26}",
    "place": r"[0-9a-f]+_[0-9a-f]{12}",
    "policy": "reject|block|drop_oldest",
    "pool": r"[A-Za-z0-9][\w.-]*",
    "priority": r"-?\d+",
    "queue": _QUEUE,
    "rank": r"\d{3}",
    "replica": "[1-7]",
    "role": r"arn:aws:iam::\d{12}:(role|user)/[\w+=,.@-]+",
    "rule": r".+",
    "runs": r"\d{9}",
    "second": r"\d+",
    "shard": r"\d\d|shardId-[\w-]+",
    "slot": r"\d\d",
    "shard_of_marks": r"\d+|t",
    "shard_number": r"[1-9]\d*",
    "skip": "|".join(SkipReason),
    "state": "|".join(State),
    "subscription": r"sub_[0-9a-f]{16}",
    "strategy": "concurrency|rate|throttle|pause",
    "tenant": _TENANT,
    "tag": r"[0-9a-f]{12}",
    "token": r"[\w:-]+",
    "transition": "|".join(row.attribute for row in OFTEN.values()),
    "type": r".+",
    "uri": r".+",
    "version": r"[\d.]+",
    "worker": r".+",
    "workflow": _UUID,
}


def pattern(text: str) -> re.Pattern[str]:
    """What a text of the page matches, as a whole."""
    parts = re.split(r"\{(\w+)\}", text.replace(r"\|", "|"))
    found = [
        f"({_PLACEHOLDERS[part]})" if at % 2 else re.escape(part) for at, part in enumerate(parts)
    ]
    return re.compile("".join(found))


@dataclass
class Row:
    """One row of a table of attributes: the patterns of its names, the types, when it is there."""

    names: dict[str, re.Pattern[str]]
    types: set[str]
    when: str


@dataclass
class Kind:
    """One kind of item, as the page has it."""

    title: str
    keys: list[tuple[re.Pattern[str], re.Pattern[str]]]
    indexes: set[str]
    projected: bool
    rows: list[Row] = field(default_factory=list)

    def has(self, item: Mapping[str, Any]) -> bool:
        """Whether an item is of this kind."""
        pk, sk = item["pk"]["S"], item["sk"]["S"]
        return any(one.fullmatch(pk) and other.fullmatch(sk) for one, other in self.keys)


def cells(table: str) -> Iterator[list[str]]:
    """The rows of a table, without its head."""
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def kinds() -> list[Kind]:
    """All kinds of items on the page, with their attributes."""
    found = {}
    for table in re.findall(r"^\| Item \|.*\n(?:\|.*\n?)*", PAGE, re.MULTILINE):
        for title, key, contents, written_by, kept, index, stream in cells(table):
            assert contents, title
            assert kept, title
            assert "`store/" in written_by, title
            named = re.findall(r"`([^`]+)` / `([^`]+)`", key)
            assert title not in found
            found[title] = Kind(
                title,
                [(pattern(pk), pattern(sk)) for pk, sk in named],
                {name for name in ("work", "expiry") if f"`{name}`" in index},
                stream == "yes",
            )
    for title, names, types, holds, when in attributes.listed(ROWS):
        assert "" not in (holds, when), (title, names)
        each = re.findall(r"`([^`]+)`", names)
        row = Row({name: pattern(name) for name in each}, set(types.split(" or ")), when)
        found[title].rows.append(row)
    return list(found.values())


KINDS = kinds()
NAMES = [kind.title for kind in KINDS]


@dataclass
class Written:
    """What a run wrote of one kind: each item as it was after each write."""

    items: list[dict[str, Any]] = field(default_factory=list)

    def attributes(self) -> dict[str, set[str]]:
        """Types by attribute."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for item in self.items:
            for name, value in item.items():
                if name not in ("pk", "sk"):
                    found[name].update(value)
        return found


@cache
def written() -> dict[str, Written]:
    """What a run wrote, by kind; an item of no kind or of several fails."""
    found = {kind.title: Written() for kind in KINDS}
    for item in everything():
        of = [kind.title for kind in KINDS if kind.has(item)]
        assert len(of) == 1, (item["pk"], item["sk"], of)
        found[of[0]].items.append(item)
    return found


def test_the_attributes_of_records_are_written_by_make_facts() -> None:
    assert attributes.declared(ROWS) == ROWS
    assert attributes.TO_DESCRIBE not in ROWS
    assert attributes.page(ROWS) == attributes.PAGE.read_text("utf-8")


def test_an_attribute_that_is_not_listed_is_added() -> None:
    row = "Cron job\t`full`\tN\tTick whose full queue"
    assert row in ROWS
    without = re.sub(rf"^{re.escape(row)}.*\n", "", ROWS, flags=re.MULTILINE)
    assert f"Cron job\t`full`\tN\t{attributes.TO_DESCRIBE}\t" in attributes.declared(without)
    assert attributes.declared(ROWS.replace(row, row.replace("\tN\t", "\tS\t"))) == ROWS


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_every_kind_of_item_is_written(kind: Kind) -> None:
    """In every form of its key."""
    places = [(item["pk"]["S"], item["sk"]["S"]) for item in written()[kind.title].items]
    for pk, sk in kind.keys:
        assert any(pk.fullmatch(of) and sk.fullmatch(at) for of, at in places)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_every_attribute_is_listed_and_no_other(kind: Kind) -> None:
    """With the types that it is written with."""
    attributes = written()[kind.title].attributes()
    shown: dict[str, list[str]] = {name: [] for name in attributes}
    for row in kind.rows:
        types: set[str] = set()
        for told, names in row.names.items():
            of = [name for name in attributes if names.fullmatch(name)]
            assert of, f"{told} of {kind.title} is never written"
            for name in of:
                shown[name].append(told)
                types |= attributes[name]
        assert types == row.types, (kind.title, list(row.names))
    assert {name: told for name, told in shown.items() if len(told) != 1} == {}


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_what_is_always_there_is(kind: Kind) -> None:
    """And what is not always there is missing from one item at least."""
    of = written()[kind.title].items
    named = [(told, row.when) for row in kind.rows for told in row.names if "{" not in told]
    always = {told for told, when in named if when == "always"}
    assert {told for told, _ in named if all(told in item for item in of)} == always


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_the_stream_function_reads_what_is_said(kind: Kind) -> None:
    read = {
        TABLE.projects(item["pk"]["S"], item["sk"]["S"]) for item in written()[kind.title].items
    }
    assert read == {kind.projected}


@pytest.mark.parametrize("index", TABLE.indexes, ids=lambda index: index.name)
def test_every_line_of_an_index_is_listed_and_no_other(index: Any) -> None:
    (table,) = re.findall(rf"^\| `{index.hash_key}` \|.*\n(?:\|.*\n?)*", PAGE, re.MULTILINE)
    told = [
        (pattern(pk.strip("`")), pattern(sk.strip("`")), kind) for pk, sk, kind, _ in cells(table)
    ]
    used: set[int] = set()
    for title, of in written().items():
        stands = [item for item in of.items if index.hash_key in item]
        for item in stands:
            line, place = item[index.hash_key]["S"], item[index.range_key]["S"]
            rows = [
                at
                for at, (pk, sk, kind) in enumerate(told)
                if kind == title and pk.fullmatch(line) and sk.fullmatch(place)
            ]
            assert len(rows) == 1, (title, line, place)
            used.update(rows)
        (kind,) = (kind for kind in KINDS if kind.title == title)
        assert bool(stands) == (index.name in kind.indexes), title
    assert used == set(range(len(told)))


def test_every_hint_is_listed_and_no_other() -> None:
    (table,) = re.findall(r"a letter and a value:\n\n(\|.*\n(?:\|.*\n?)*)", PAGE)
    told = {names.strip("`") for names, _ in cells(table)}
    waiting = [item for item in written()["Job record"].items if item["state"]["S"] == "available"]
    places = [item["wsk"]["S"] for item in waiting]
    assert told == {hint[0] for place in places for hint in place.split("|")[1:]}


def test_modules_that_are_named_are_there() -> None:
    named = set(re.findall(r"`store/([\w/]+\.py)`", PAGE))
    store = ROOT / "shared" / "ojs" / "store"
    there = {path.relative_to(store).as_posix() for path in store.rglob("*.py")}
    assert named
    assert named <= there


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("7 days after `completed` and `cancelled`, 30 days after `discarded`",
         (RETENTION.completed_s, RETENTION.cancelled_s, RETENTION.discarded_s)
         == (7 * DAY_S, 7 * DAY_S, 30 * DAY_S)),
        ("it is longer than 128 bytes and has at most 300 KiB",
         (items.INLINE_RESULT_BYTES, texts.MAX_ITEM_BYTES) == (128, 300 * 1_024)),
        ("a batch of more than 100 jobs, or of five or more",
         (MAX_TRANSACTION, enqueue.STAGED_FROM) == (100, 5)),
        ("A removed batch stays 7 days", staged_batches._UNDONE_KEPT_MS == 7 * DAY_S * 1_000),
        ("ten minutes from the start of the deletion", ending.TOMBSTONE_KEPT_MS == 600_000),
        ("a day after the period", rate_window._KEPT_S == DAY_S),
        ("400 days after the last start", limits.KEPT_S == 400 * DAY_S),
        ("spread over 16 partitions", workers.SHARDS == 16),
        ("a day after `seen`", workers._FORGET_AFTER_S == DAY_S),
        ("30 days after the last fetch", WORKER_KEPT_S == 30 * DAY_S),
        ("Two days later (s); the sweep renews it", pool_health.KEPT_S == 2 * DAY_S),
        ("1,048,576 per ms", tenants.TICKS_PER_MS == 1_048_576),
        ("30 days after the last enqueue", store_tenants._KEPT_S == 30 * DAY_S),
        ("7 days after its end", bulk.KEPT_S == 7 * DAY_S),
        ("30 days later (s); renewed each day", replay._KEPT_S == 30 * DAY_S),
        ("up to 40 types, the others", counters.MAX_TYPES == 40),
        ("up to 40 names of each", dead_letters.MAX_NAMES == 40),
        ("Changes in a queue on a UTC day | `store/derived/projection.py` | 90 days |",
         shards.DAY_KEPT_S == 90 * DAY_S),
        ("Changes in a queue in a UTC minute | `store/derived/projection.py` | 25 hours |",
         shards.MINUTE_KEPT_S == 25 * 3_600),
        ("25 hours, 8 days, 400 days",
         [stats.KEPT_MS[of] + stats._SPARE_MS[of] for of in stats.KEPT_MS]
         == [25 * 3_600_000, 8 * DAY_S * 1_000, 400 * DAY_S * 1_000]),
        ("two days after the shard was found closed", sharded._POSITION_KEPT_S == 2 * DAY_S),
        ("8 days later", event_log.KEPT_S == 8 * DAY_S),
        ("if there are more than 1,000 in total", scheduling.MAX_COUNTED_WORKERS == 1_000),
        ("in the transaction that sets the next tick | 30 days |", crons.LOG_KEPT_S == 30 * DAY_S),
        ("IDs of up to five jobs", cron.MAX_JOBS == 5),
        ("by the first 64 characters of their names", crons._SORTED == 64),
        ("90 days after its expiry or revocation", access.KEPT_S == 90 * DAY_S),
        ("`{rank}` is 100 minus the priority", keys.of_priority(-100) == "200"),
    ],
)  # fmt: skip
def test_what_is_said_holds(text: str, holds: bool) -> None:
    assert any(text in " ".join(written.split()) for written in (PAGE, ROWS))
    assert holds
