"""How many jobs a second each path can take: `make scale ARGS='--lanes 16 --shards 64'`.

A partition key takes so many units a second (AWS's limits, in assumed.toml); what a job takes of it
is counted. What must be read and written again before the next may do so takes one at a time,
whatever its units.

Partition keys are hashed: several of them can be in one partition, which then has the units for all
of them. A new table has 4 partitions, and so has each of its indexes. DynamoDB splits busy
partitions by itself, in minutes. Two numbers show both: what 95 of 100 tables take of a simulated
placement of the keys (the worst 5 % take less), and what a table takes after splits, when each busy
key has a partition to itself.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from docs.numbers import Numbers, assumed, counted, number, table
from docs.numbers.prices import LIVES, interpolated, of_heartbeats
from ojs.store.queues.replicas import replicas_for
from ojs.store.table.keys import DUE_LINES

# Lanes of a queue, and shards of the stream, which are as many as the table's partitions.
SHOWN = ((1, 4), (4, 16), (16, 16), (64, 64))
# Partitions of the table and of each index, the first ones those of a new table; and lanes.
PARTITIONS = (4, 8, 16, 32, 64)
LANES = (1, 4, 16, 64)
# Simulated tables, and the part of them that takes less than is shown.
DRAWS, WORST = 1_500, 0.05
# Durations of jobs whose leases the sweep checks: once in each minute.
LASTING_S = (61, 300, 900)
_MINUTE_S = 60
# So many shards that they are no limit.
_ENOUGH = 1_000
_QUEUE, _LANE, _SHARD, _ALL = "queue", "lane", "shard", "deployment"
_DUE = f"lane, of {DUE_LINES}"
_COPY = "copy of the queue's record"
_SLOT, _SLOTS = "one of 16 slots", 16


@dataclass(frozen=True)
class Key:
    """A kind of partition key: what it is called, and of what there is one."""

    name: str
    one_of: str
    # Who writes it must have read it, and loses if another one wrote in between.
    one_by_one: bool = False


# Keys that are spread over the table by themselves: there is one for each job, batch or worker.
_SPREAD = frozenset({"table J|", "table B|", "table K|"})
# By kind, as tests/performance/counted.py names them: all there are on the paths it counts.
KEYS = {
    "table Q|": Key("the queue, read by each push and fetch", _COPY),
    "work R|": Key("ready line", _LANE),
    "work D|": Key("due line", _LANE),
    "work B|": Key("staged batches", _SLOT),
    "work X|": Key("dead letters of a queue", _QUEUE),
    "expiry X": Key("dead letters of all queues", _ALL),
    "table G| depth": Key("depth counter", _QUEUE),
    "table G| active": Key("semaphore", _QUEUE),
    "table G| rate": Key("rate window", _QUEUE, one_by_one=True),
    "table L| @": Key("limiter", "key of rate limits", one_by_one=True),
    "table L| active": Key("semaphore of a key", "key of rate limits"),
    "table P| @": Key("worker pool", "worker pool"),
    "table F|": Key("finish tag", "tenant"),
    "table S|": Key("counters", _QUEUE, one_by_one=True),
    "table S|shardId-": Key("counters of a shard", _SHARD),
    "table N|": Key("lease notes", _SLOT),
    "table LEASES": Key("slots of lease notes", _ALL),
    "table M|": Key("dedup records", _ALL, one_by_one=True),
    "table E|": Key("event pages", _ALL),
}
# What another path calls it.
_OTHERWISE = {
    ("pool", "table G| active"): Key("sequencer", "worker pool"),
    # Ends of leases stand in lines of all lanes, starts and retries in a few.
    ("retried once", "work D|"): Key("due line", _DUE),
}


@dataclass(frozen=True)
class Ceiling:
    """What stands in the way on a path. `jobs` a second of one, of which there are `count`."""

    path: str
    what: str
    takes: str  # of a job
    one_of: str
    jobs: float

    def of(self, lanes: int, shards: int) -> float:
        """Jobs a second with so many lanes and shards."""
        return self.jobs * _there(self.one_of, lanes, shards)


def _there(one_of: str, lanes: int, shards: int) -> int:
    """How many of these keys there are."""
    there = {
        _LANE: lanes,
        _DUE: min(lanes, DUE_LINES),
        _SHARD: shards,
        _SLOT: _SLOTS,
        _COPY: 1 + replicas_for(lanes),
    }
    return there.get(one_of, 1)


@dataclass(frozen=True)
class Hashed:
    """Jobs a second where several keys can share a partition."""

    worst: float  # 95 of 100 tables take at least as many
    mean: float

    def __str__(self) -> str:
        return f"{rough(self.worst)} / {rough(self.mean)}"


class Scale:
    """The ceilings of all paths, from what is counted and assumed."""

    def __init__(self, units: Mapping[str, Any], numbers: Numbers) -> None:
        self._units, self._numbers = units, numbers
        self._paths, self._lives = units["paths"], units["lives"]

    def ceilings(self) -> list[Ceiling]:
        """All of them, those of every job first."""
        found = [one for life in LIVES for one in self._keys(life, self._paths[life])]
        found += self._of_consumer()
        found += [one for life in LIVES for one in self._of_deployment(life)]
        found += [one for seconds in LASTING_S for one in self._of_lasting(seconds)]
        usual = {one.what: one.jobs for one in self._keys(LIVES[0], self._paths[LIVES[0]])}
        for path, keys in self._paths.items():
            if path not in {*LIVES, "consumer"}:
                of_path = self._keys(path, keys)
                found += [one for one in of_path if one.jobs < usual.get(one.what, math.inf)]
        return found

    def _keys(self, path: str, keys: Mapping[str, Sequence[float]]) -> Iterator[Ceiling]:
        """Of each partition key that the jobs of a path share."""
        partitions: dict[str, list[str]] = {}
        for kind in keys:
            if kind not in _SPREAD:
                # What differs in its sort key alone, the third word, is in one partition.
                partitions.setdefault(" ".join(kind.split()[:2]), []).append(kind)
        for kinds in partitions.values():
            known = [_OTHERWISE.get((path, kind)) or KEYS[kind] for kind in kinds]
            write, read = (sum(keys[kind][at] for kind in kinds) for at in (0, 1))
            # Who only reads waits for nobody.
            pairs = zip(kinds, known, strict=True)
            one_by_one = any(key.one_by_one and keys[kind][0] for kind, key in pairs)
            jobs = min(
                _ratio(self._numbers["partition_write"], write),
                _ratio(self._numbers["partition_read"], read),
                self._one_by_one(path, write) if one_by_one else math.inf,
            )
            takes = [
                f"{number(units)} {unit}" for units, unit in ((write, "WU"), (read, "RU")) if units
            ]
            if one_by_one:
                takes.append("one at a time")
            yield Ceiling(
                path,
                " and ".join(key.name for key in known),
                ", ".join(takes),
                known[0].one_of,
                jobs,
            )

    def _one_by_one(self, path: str, write: float) -> float:
        """Jobs a second where a read, what follows from it, and a write are one at a time: of a
        unit each, as these items are small.
        """
        if path == "consumer":
            return self._batches() * self._jobs_of_a_batch()
        return 1_000 / (2 * self._numbers["call_ms"]) / write

    def _batches(self) -> float:
        """Full batches of stream records that one shard's consumer is done with in a second."""
        numbers = self._numbers
        return 1_000 / (numbers["consumer_ms"] + numbers["record_ms"] * numbers["batch"])

    def _jobs_of_a_batch(self) -> float:
        return self._numbers["batch"] / float(self._lives[LIVES[0]]["records"])

    def _of_consumer(self) -> Iterator[Ceiling]:
        yield from self._keys("consumer", self._paths["consumer"])
        jobs = self._batches() * self._jobs_of_a_batch()
        ms = 1_000 / self._batches()
        yield Ceiling("consumer", "full batches after each other", f"{ms:g} ms each", _SHARD, jobs)

    def _of_deployment(self, life: str) -> Iterator[Ceiling]:
        numbers, one = self._numbers, self._lives[life]
        requests = one["pushes"] + one["fetches and acks"]
        consumer = sum(write for write, _ in self._paths["consumer"].values())
        write, records = one["write"] + consumer, self._paths[life]["table J|"][0]
        asks = f"{number(requests)} requests"
        for what, takes, one_of, jobs in (
            ("job records", f"{number(records)} WU", _SHARD, numbers["partition_write"] / records),
            (
                "quota: units of the table", f"{number(write)} WU",
                _ALL, numbers["table_write"] / write,
            ),
            ("quota: requests", asks, _ALL, numbers["api_per_s"] / requests),
            (
                "quota: functions at one time", f"{number(requests * numbers['request_ms'])} ms",
                _ALL, numbers["lambda_at_once"] * 1_000 / numbers["request_ms"] / requests,
            ),
            ("setting: throttle_rate_per_s", asks, _ALL, numbers["throttle_rate_per_s"] / requests),
        ):  # fmt: skip
            yield Ceiling(life, what, takes, one_of, jobs)

    def _of_lasting(self, seconds: int) -> Iterator[Ceiling]:
        """Of jobs that last, with the library's heartbeats: starts a second."""
        numbers, path = self._numbers, _lasting(seconds)
        one, checks = self._lives[LIVES[0]], seconds // _MINUTE_S
        more = of_heartbeats(self._units, numbers["heartbeat_s"])
        records = interpolated(more, "records", seconds)
        ms = self._units["running"]["calls"] * numbers["call_ms"] * checks
        swept = numbers["sweep_s"] * 1_000 / _MINUTE_S / ms
        yield Ceiling(path, "lease checks by the sweep", f"{number(ms)} ms", _ALL, swept)
        write = one["records"] + records
        jobs = numbers["partition_write"] / write
        yield Ceiling(path, "job records", f"{number(write)} WU", _SHARD, jobs)
        jobs = self._batches() * numbers["batch"] / write
        records_each = f"{number(write)} records"
        yield Ceiling(path, "full batches after each other", records_each, _SHARD, jobs)

    def hashed(self, life: str, lanes: int, partitions: int, *, one_queue: bool) -> Hashed:
        """Jobs with this life in one queue or in any number of queues, where the keys of the table
        and of each index are hashed into so many partitions.
        """
        # By store and partition key: how many there are, and what one takes of each job.
        found: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)
        even: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0])
        for path in (life, "consumer"):
            for kind, (write, read) in self._paths[path].items():
                store, *words = kind.split()
                known = None if kind in _SPREAD else _OTHERWISE.get((path, kind)) or KEYS[kind]
                if known is None or not (one_queue or known.one_of in {_ALL, _SHARD, _SLOT}):
                    # The keys of all jobs, or of many queues, are in all partitions.
                    even[store][0] += write
                    even[store][1] += read
                    continue
                count = _there(known.one_of, lanes, partitions)
                one = found[store].setdefault(words[0], [count, 0, 0])
                one[1] += write / count
                one[2] += read / count
        limits = (self._numbers["partition_write"], self._numbers["partition_read"])
        most = self.first(life, lanes, partitions, one_queue=one_queue).of(lanes, partitions)
        drawn = [
            _drawn(
                store,
                tuple((int(count), write, read) for count, write, read in found[store].values()),
                tuple(even[store]),
                partitions,
                limits,
            )
            for store in {*found, *even}
        ]
        jobs = sorted(min(most, *each) for each in zip(*drawn, strict=True))
        return Hashed(jobs[int(DRAWS * WORST)], sum(jobs) / DRAWS)

    def first(self, life: str, lanes: int, shards: int, *, one_queue: bool) -> Ceiling:
        """The lowest ceiling for jobs with this life, in one queue or in any number of queues.
        Quotas and settings are left out.
        """
        found = [
            one
            for one in self.ceilings()
            if one.path in {life, "consumer"}
            and not one.what.startswith(("quota", "setting"))
            and (one_queue or one.one_of in {_ALL, _SHARD})
        ]
        return min(found, key=lambda one: one.of(lanes, shards))


@cache
def _drawn(
    store: str,
    keys: tuple[tuple[int, float, float], ...],
    even: tuple[float, ...],
    partitions: int,
    limits: tuple[float, float],
) -> list[float]:
    """Jobs a second in each simulated table, as the fullest partition allows. The same each time.

    `keys` has how many there are of a kind, and the write and read units that one takes of each
    job. `even` has those that all partitions share.
    """
    chance = random.Random(f"{store} {partitions}")  # noqa: S311  # a simulation
    found = []
    for _ in range(DRAWS):
        write, read = ([units / partitions] * partitions for units in even)
        for count, writes, reads in keys:
            for place in chance.choices(range(partitions), k=count):
                write[place] += writes
                read[place] += reads
        found.append(min(_ratio(limits[0], max(write)), _ratio(limits[1], max(read))))
    return found


def _lasting(seconds: int) -> str:
    return f"jobs of {seconds} s" if seconds % _MINUTE_S else f"jobs of {seconds // _MINUTE_S} min"


def _ratio(limit: float, units: float) -> float:
    return limit / units if units else math.inf


def rough(value: float) -> str:
    """With two digits that count, rounded down: more would say what nobody knows."""
    unit = 10 ** max(0, math.floor(math.log10(value)) - 1)
    return f"{math.floor(value / unit) * unit:,}"


def ceilings(scale: Scale, shown: Iterable[tuple[int, int]] = SHOWN) -> str:
    """All ceilings, in jobs a second."""
    shown = list(shown)
    rows = [
        [
            one.path, one.what, one.takes, one.one_of,
            *(rough(one.of(lanes, shards)) for lanes, shards in shown),
        ]
        for one in scale.ceilings()
    ]  # fmt: skip
    columns = (
        f"{lanes} {'lane' if lanes == 1 else 'lanes'}, {shards} shards" for lanes, shards in shown
    )
    return table(["jobs", "limited by", "use per job", "one per", *columns], rows, words=4)


def falls_first(scale: Scale, shown: Iterable[tuple[int, int]] = SHOWN) -> str:
    """What falls first, in jobs a second: in 95 of 100 tables, and after splits."""
    rows = []
    for lanes, shards in shown:
        for life in LIVES:
            row = [f"{lanes} / {shards}, {life}"]
            for one_queue in (True, False):
                one = scale.first(life, lanes, shards, one_queue=one_queue)
                worst = scale.hashed(life, lanes, shards, one_queue=one_queue).worst
                row += [rough(worst), f"{rough(one.of(lanes, shards))}: {one.path}, {one.what}"]
            rows.append(row)
    header = ("one queue, 95 of 100 tables", "one queue, after splits")
    many = ("many queues, 95 of 100 tables", "many queues, after splits")
    return table(["lanes / shards", *header, *many], rows, words=1)


def hashed(scale: Scale) -> str:
    """Jobs a second one by one, by lanes and partitions: of 95 of 100 tables, and the mean."""
    rows = []
    for lanes in (*LANES, 0):
        one_queue = lanes > 0
        found = [
            str(scale.hashed(LIVES[0], max(1, lanes), count, one_queue=one_queue))
            for count in PARTITIONS
        ]
        last = scale.first(LIVES[0], max(1, lanes), _ENOUGH, one_queue=one_queue)
        name = f"one queue, {lanes} lane{'s' * (lanes > 1)}" if lanes else "many queues"
        rows.append([name, *found, rough(last.of(max(1, lanes), _ENOUGH))])
    header = ("4 partitions (new)", *(f"{count}" for count in PARTITIONS[1:]))
    return table(["jobs one by one", *header, "after splits"], rows)


# The feature, its path, and the key that limits it.
_FEATURES = (
    ("queue with a size limit (`max_size`)", "bounded", "depth counter"),
    ("queue with a concurrency limit", "concurrency", "semaphore"),
    ("queue with both", "bounded, concurrency", "semaphore and depth counter"),
    ("queue with `rate_limit`", "rate limit", "rate window"),
    ("key of a [rate limit](rate-limits.md)", "key limit", "limiter"),
    ("tenant of a queue with [tenant fairness](tenant-fairness.md)", "fair", "finish tag"),
    ("[worker pool](fair-scheduling.md)", "pool", "sequencer"),
    ("dead letters of the deployment", "dead letter", "dead letters of all queues"),
)
# The limit, its path, how to increase it, and the shards of the stream.
_OF_DEPLOYMENT = (
    ("quota: units of the table", "one by one", "request a quota", 4),
    ("quota: requests", "one by one", "request a quota, or send batches", 4),
    ("quota: functions at one time", "one by one", "request a quota", 4),
    ("staged batches", "in tens", "enqueue in larger batches", 4),
    ("job records", "one by one", "DynamoDB adds shards when it splits partitions", 4),
    ("job records", "one by one", "the same", 16),
    ("event pages", "consumer", "fixed", 4),
    ("lease checks by the sweep", "jobs of 61 s", "fixed", 4),
    ("lease checks by the sweep", "jobs of 5 min", "fixed", 4),
    ("job records", "jobs of 5 min", "DynamoDB adds shards", 4),
    ("job records", "jobs of 5 min", "the same", 16),
)


def features(scale: Scale) -> str:
    """Jobs a second of one item of each feature."""

    def jobs(path: str, what: str) -> str:
        found = (one for one in scale.ceilings() if one.path == path and one.what.startswith(what))
        return next((rough(one.of(1, 4)) for one in found), "–")  # noqa: RUF001

    rows = [
        [name, jobs(path, what), jobs(f"{path}, in tens", what)] for name, path, what in _FEATURES
    ]
    return table(["feature", "one by one", "in tens"], rows)


def of_deployment(scale: Scale) -> str:
    """Jobs a second of a deployment, by what limits them."""
    found = {(one.path, one.what): one for one in scale.ceilings()}
    rows = []
    for what, path, increase, shards in _OF_DEPLOYMENT:
        one = found[path, what]
        name = f"{what}, {shards} shards" if one.one_of == _SHARD else what
        rows.append([f"{name}, {path}", rough(one.of(1, shards)), increase])
    return "\n".join(
        f"| {' | '.join(row)} |"
        for row in (["limit", "jobs per second", "increase it"], ["---", "---:", "---"], *rows)
    )


def defaults(scale: Scale) -> str:
    """Jobs a second of a default deployment, in 95 of 100 new tables."""
    new = PARTITIONS[0]
    rows = [
        [
            f"{'one queue' if one_queue else 'many queues'}, 95 of 100 new tables",
            *(rough(scale.hashed(life, 1, new, one_queue=one_queue).worst) for life in LIVES),
        ]
        for one_queue in (True, False)
    ]
    setting = "setting: throttle_rate_per_s"
    found = {one.path: rough(one.of(1, new)) for one in scale.ceilings() if one.what == setting}
    rows.append(["`throttle_rate_per_s`", *(found[life] for life in LIVES)])
    return table(["jobs per second", *LIVES], rows)


def main(arguments: Sequence[str]) -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description="How many jobs a second each path can take.")
    parser.add_argument("--lanes", type=int, help="of the queue")
    parser.add_argument("--shards", type=int, help="of the stream: the table's partitions")
    parser.add_argument("others", nargs="*", help="name=value, or a file like assumed.toml")
    options = parser.parse_args(arguments)
    shown: Iterable[tuple[int, int]] = SHOWN
    if options.lanes or options.shards:
        shown = [(options.lanes or 1, options.shards or 4)]
    scale = Scale(counted(), assumed(options.others))
    sys.stdout.write(f"{ceilings(scale, shown)}\n\n{falls_first(scale, shown)}\n\n")
    sys.stdout.write(f"{hashed(scale)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
