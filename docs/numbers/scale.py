"""How many jobs a second each path can take: `make scale ARGS='--lanes 16 --shards 64'`.

A partition key takes so many units a second (AWS's limits, in assumed.toml); what a job takes of it
is counted. What must be read and written again before the next may do so takes one at a time,
whatever its units. DynamoDB splits partitions by itself, in minutes; this is what no split helps.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from docs.numbers import Numbers, assumed, counted, number, table
from docs.numbers.prices import LIVES
from ojs.store.queues.replicas import replicas_for
from ojs.store.table.keys import DUE_LINES

# Lanes of a queue, and shards of the stream, which are as many as the table's partitions.
SHOWN = ((1, 4), (4, 16), (16, 16), (64, 64))
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
        copies = 1 + replicas_for(lanes)
        there = {
            _LANE: lanes,
            _DUE: min(lanes, DUE_LINES),
            _SHARD: shards,
            _SLOT: _SLOTS,
            _COPY: copies,
        }
        return self.jobs * there.get(self.one_of, 1)


class Scale:
    """The ceilings of all paths, from what is counted and assumed."""

    def __init__(self, units: Mapping[str, Any], numbers: Numbers) -> None:
        self._paths, self._lives, self._numbers = units["paths"], units["lives"], numbers

    def ceilings(self) -> list[Ceiling]:
        """All of them, those of every job first."""
        found = [one for life in LIVES for one in self._keys(life, self._paths[life])]
        found += self._of_consumer()
        found += [one for life in LIVES for one in self._of_deployment(life)]
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
    """What falls first, in jobs a second."""
    rows = []
    for lanes, shards in shown:
        for life in LIVES:
            found = (
                scale.first(life, lanes, shards, one_queue=one_queue) for one_queue in (True, False)
            )
            said = (f"{rough(one.of(lanes, shards))}: {one.path}, {one.what}" for one in found)
            rows.append([f"{lanes} / {shards}, {life}", *said])
    return table(["lanes / shards", "one queue", "many queues"], rows, words=3)


def main(arguments: Sequence[str]) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description="How many jobs a second each path can take.")
    parser.add_argument("--lanes", type=int, help="of the queue")
    parser.add_argument("--shards", type=int, help="of the stream: the table's partitions")
    parser.add_argument("others", nargs="*", help="name=value, or a file like assumed.toml")
    options = parser.parse_args(arguments)
    shown: Iterable[tuple[int, int]] = SHOWN
    if options.lanes or options.shards:
        shown = [(options.lanes or 1, options.shards or 4)]
    scale = Scale(counted(), assumed(options.others))
    sys.stdout.write(f"{ceilings(scale, shown)}\n\n{falls_first(scale, shown)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
