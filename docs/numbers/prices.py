"""What jobs cost: `make prices`, `make prices ARGS='job_s=300 queues=20 lanes=4 containers=10'`.

Units are counted; durations, and how stream records come, are not: they come independently of each
other (Poisson), evenly on all shards. Lambda gathers them for the window from the first one on, or
until there is a batch. Jobs whose records come soon after each other cost less than here, as these
come together. What throttling, lost claims, retries and larger payloads add is not in it.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

from docs.numbers import Numbers, assumed, counted, number, table

RATES = (0.4, 1, 10, 100, 1_000)
# Those of the picture: from 0.4 to 1 000, evenly on its scale.
DRAWN = tuple(0.4 * 2_500 ** (step / 60) for step in range(61))
LIVES = ("one by one", "in tens")
MONTH_S = 365 / 12 * 86_400
_MILLION = 1e6
# What a job itself costs; the rest of a bill is for workers and the deployment.
JOB = ("requests", "consumer", "API", "Lambda", "traces", "logs")
# Of a job that is pushed to a function.
PUSHED = ("requests", "consumer", "API", "Lambda", "SQS", "logs", "sweeps", "metrics")
# Jobs per second and containers, as counted.
RATES_PUSHED = ((0.4, 1), (1, 1), (10, 1), (10, 4), (10, 10))
# Settings that save money. Each is in addition to those before.
OPTIONS: tuple[tuple[str, Numbers], ...] = (
    ("defaults", {}),
    ("`stream_window_s=30`: events and statistics up to 30 s later", {"window_s": 30}),
    ("`entry=function_url` in addition", {"function_url": 1}),
)
# Queues and lanes whose prices are shown.
SPREAD = ((1, 1), (1, 8), (1, 64), (50, 1))
# Name, acks carried, and seconds between heartbeats of a client.
CLIENTS = (("Python library", 1, 20), ("official SDK", 0, 5))
RUNG = "Python library, each job rings an idle worker"
DURATIONS_S = (1, 60, 300, 900)
BILL = (*JOB, "heartbeats", "sweeps", "metrics")
# How often (s) the record of a worker with jobs is written.
_RECORD_S = 10
# How often (s) a container reads who listens, and an invocation of notify who subscribed.
_LISTENERS_S, _SUBSCRIBERS_S = 10, 2
# The most times that several idle workers look less often than one.
_LESS_OFTEN = 12
# Write units of a connection: its ticket, itself, and its entry as a listener, made and deleted.
_CONNECTION_UNITS = 6
# Idle workers whose prices are shown, and seconds between the polls of one that does not listen.
IDLE_WORKERS, POLLS_S = (1, 20, 1_000), (1, 4)
# Acts of durable code whose prices are shown.
DURABLE = {
    "step": "a step, saved alone",
    "step, in tens": "a step, saved with nine others",
    "checkpoint": "a checkpoint of 1 KB",
    "sleep": "a sleep: suspend, wake, load the steps",
    "sleep by a fetch": "the same; a fetch carries the suspension",
    "wait": "a wait: suspend, signal, wake, load",
    "wait by a fetch": "the same; a fetch carries the suspension",
    "early signal": "a signal before its wait",
    "child": "a child job: start, suspend, wake, load; without the job itself",
}
# Traces that Lambda records: one a second for each function, and this part of the others.
_TRACED = 0.05


@dataclass(frozen=True)
class Load:
    """What happens in a second."""

    pushes: float = 0
    others: float = 0  # requests of workers
    write: float = 0
    read: float = 0
    records: float = 0
    silent: float = 0  # of these records, those of which nothing follows

    def __add__(self, other: Load) -> Load:
        return Load(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Invocations:
    """Of the stream's consumer, in a second."""

    count: float
    records: float  # of one, on average
    write: float
    read: float
    log_bytes: float


class Model:
    """Loads, and what they cost, from what is counted and assumed."""

    def __init__(self, units: Mapping[str, Any], numbers: Numbers) -> None:
        self.units, self.numbers = units, numbers

    # --- loads ------------------------------------------------------------------------------

    def jobs(self, life: str, rate: float) -> Load:
        """The load of `rate` jobs a second with this life, without fetches that find nothing."""
        one, lanes = self.units["lives"][life], self.units["lanes"]
        # A fetch looks for jobs in several lanes.
        looks = interpolated(lanes, "read", self.numbers["lanes"]) - lanes["1"]["read"]
        read = one["read"] + looks * one["fetches and acks"] / 2
        # A carried ack is a part of the request of the next fetch.
        requests = one["fetches and acks"] * (1 - self.numbers["acks_carried"] / 2)
        return Load(
            one["pushes"] * rate, requests * rate,
            one["write"] * rate, read * rate, one["records"] * rate,
        )  # fmt: skip

    def heartbeats(self, rate: float) -> Load:
        """Of the workers for so many jobs per second, at least one, and of their running jobs."""
        numbers = self.numbers
        workers = max(1, rate * numbers["job_s"] / numbers["jobs_at_once"])
        lasting = of_heartbeats(self.units, numbers["heartbeat_s"])
        write, read, records = (
            interpolated(lasting, name, numbers["job_s"]) * rate
            for name in ("write", "read", "records")
        )
        jobs = Load(write=write, read=read, records=records, silent=records)
        return self._beats(workers, numbers["heartbeat_s"]) + jobs

    def _beats(self, workers: float, every_s: float) -> Load:
        """Of workers, without their jobs. Their records are written at most every 10 s."""
        rate, one = workers / every_s, self.units["heartbeat"]
        written = rate * min(1, every_s / _RECORD_S)
        write, records = one["write"] * written, one["records"] * written
        return Load(others=rate, write=write, records=records, silent=records)

    def idle_worker(self) -> Load:
        """A worker that asks and finds nothing, again and again, and tells that it lives."""
        rate = 1 / self.numbers["poll_s"]
        asking = Load(others=rate, read=self._empty() * rate)
        return asking + self._beats(1, self.numbers["heartbeat_s"])

    def _empty(self) -> float:
        """Read units of a fetch that finds nothing."""
        by_lanes = {
            lanes: one for lanes, one in self.units["empty fetches"].items() if lanes.isdigit()
        }
        return interpolated(by_lanes, "read", self.numbers["lanes"])

    # --- realtime ---------------------------------------------------------------------------

    def unheard(self, load: Load, level: str) -> float:
        """Dollars per second of `realtime` at this level, without listening workers and without
        subscribers.
        """
        numbers = self.numbers
        reads = min(load.pushes, numbers["containers"] / _LISTENERS_S)
        if level == "off":
            return 0
        if level == "wake":
            return self._ddb(0, reads / 2)
        count, mean = self.notified(load)
        reads += min(count, numbers["shards"] / _SUBSCRIBERS_S)
        spent_ms = numbers["notify_ms"] + numbers["record_ms"] * mean
        return self._ddb(0, reads / 2) + self._lambda(count, spent_ms)

    def notified(self, load: Load) -> tuple[float, float]:
        """Invocations of notify in a second, and records in one."""
        numbers, records = self.numbers, load.records - load.silent
        a_read = records / numbers["shards"] * numbers["shard_s"]
        sizes = batch_sizes(a_read, int(numbers["batch"]))
        mean = sum(size * part for size, part in sizes.items())
        return records / mean, mean

    def rung(self) -> float:
        """Dollars that a job costs in addition if it rings an idle worker: the ring, and the fetch
        that sends the ack, and finds no other job.
        """
        numbers = self.numbers
        ring = numbers["socket_messages"] / _MILLION + self._ddb(0, 1)
        ring += self._lambda(1, numbers["ring_ms"]) - self._lambda(1, 0)
        return ring + sum(self.cost(Load(others=1, read=self._empty())).values())

    def polling(self, poll_s: float) -> float:
        """Dollars a second of an idle worker that polls."""
        found = Model(self.units, {**self.numbers, "poll_s": poll_s})
        return sum(found.cost(found.idle_worker()).values())

    def looks_s(self, workers: float) -> float:
        """Seconds between two fetches of one of so many idle workers that listen."""
        return self.numbers["fallback_s"] * min(_LESS_OFTEN, max(1, workers / 2))

    def heard(self, rate: float) -> float:
        """Dollars for a million jobs one by one with `realtime=wake` if each of them rings the
        library's worker, which has no job and listens.
        """
        added = self.unheard(self.jobs("one by one", rate), "wake") + self.listening(1)
        return self.whole("one by one", rate) + (added / rate + self.rung()) * _MILLION

    def listening(self, workers: float) -> float:
        """Dollars a second of idle workers of the same queues that listen."""
        numbers, every_s = self.numbers, self.looks_s(workers)
        rate = workers / every_s
        # A fetch counts the other listeners, too.
        asking = Load(others=rate, read=(self._empty() + 0.5) * rate)
        beats = self._beats(workers, every_s * numbers["looks_a_beat"])
        fallback = sum(self.cost(asking + beats).values())
        # A message and its response, with a call of the function.
        message = 2 * numbers["socket_messages"] / _MILLION
        pings = (message + self._lambda(1, numbers["socket_ms"])) / numbers["ping_s"]
        # The request for a ticket, and the calls for it, the connection, and its end.
        connecting = sum(self.cost(Load(others=1, write=_CONNECTION_UNITS)).values())
        connecting += self._lambda(3, numbers["socket_ms"])
        minutes = numbers["socket_minutes"] / 60 / _MILLION
        return fallback + workers * (pings + connecting / numbers["reconnect_s"] + minutes)

    # --- what follows from a load -----------------------------------------------------------

    def invocations(self, load: Load, queues: float = 0) -> Invocations:
        """Of the consumer, in a second: how many, how full, and what they spend on the jobs of
        this many queues (0: of as many as are assumed).
        """
        if not load.records:
            return Invocations(0, 0, 0, 0, 0)
        numbers = self.numbers
        a_window = load.records / numbers["shards"] * numbers["window_s"]
        sizes = batch_sizes(a_window, int(numbers["batch"]))
        mean = sum(size * part for size, part in sizes.items())
        count = load.records / mean
        telling = load.records - load.silent
        queues = queues or numbers["queues"]
        one, five = (dict(self.units["consumer"][name]) for name in ("one queue", "five queues"))
        of_a_job = float(self.units["lives"]["one by one"]["records"])
        minutes_of = {1: one.pop("a minute"), 5: five.pop("a minute")}

        def of_queues(values: Mapping[int, float], records: float) -> float:
            """Of `queues`, of which no more are met than the records have jobs."""
            each = (values[5] - values[1]) / 4
            return values[1] + each * (min(queues, max(5, records / of_a_job)) - 1)

        # Minutes of shards that have any records, in a second.
        minutes = numbers["shards"] / 60 * (1 - math.exp(-60 * telling / numbers["shards"]))

        def spent(name: str) -> float:
            of_one = (
                part * of_queues({
                    1: interpolated(one, name, size * telling / load.records),
                    5: interpolated(five, name, size * telling / load.records),
                }, size)
                for size, part in sizes.items()
            )  # fmt: skip
            each_minute = {count: float(found.get(name, 0)) for count, found in minutes_of.items()}
            a_minute = 60 * telling / numbers["shards"]
            return count * sum(of_one) + minutes * of_queues(each_minute, a_minute)

        return Invocations(count, mean, spent("write"), spent("read"), spent("log_bytes"))

    def _ddb(self, write: float, read: float) -> float:
        return (write * self.numbers["write_units"] + read * self.numbers["read_units"]) / _MILLION

    def _lambda(self, count: float, ms: float, memory: str = "memory_mb") -> float:
        gb_s = ms / 1_000 * self.numbers[memory] / 1_024
        price = self.numbers["lambda_requests"] + gb_s * self.numbers["lambda_gb_s"]
        return count * price / _MILLION

    def _traces(self, *counts: float) -> float:
        recorded = sum(min(each, 1 + _TRACED * (each - 1)) for each in counts)
        return self.numbers["tracing"] * recorded * self.numbers["traces"] / _MILLION

    def _logs(self, a_second: float) -> float:
        return a_second / 1e9 * self.numbers["log_gb"]

    def cost(self, load: Load) -> dict[str, float]:
        """Dollars a second of a load, by name of `JOB`."""
        numbers, consumer = self.numbers, self.invocations(load)
        requests = load.pushes + load.others
        system = numbers["system_logs"] * numbers["system_log_bytes"]
        # Of an HTTP API.
        api = 1 - numbers["function_url"]
        consumer_ms = numbers["consumer_ms"] + numbers["record_ms"] * consumer.records
        return {
            "requests": self._ddb(load.write, load.read),
            "consumer": self._ddb(consumer.write, consumer.read),
            "API": requests * api * numbers["api_requests"] / _MILLION,
            "Lambda": self._lambda(requests, numbers["request_ms"])
            + self._lambda(consumer.count, consumer_ms, "stream_mb"),
            "traces": self._traces(load.pushes, load.others, consumer.count),
            "logs": self._logs(
                requests * (api * numbers["access_log_bytes"] + system)
                + consumer.count * system
                + consumer.log_bytes
            ),
        }

    def sweeps(self, queues: int = 1) -> float:
        """Dollars a second of the sweep, each minute, with so many queues that are not in use."""
        return self._sweeps(self.units["sweeps"][str(queues)])

    def sweeps_in_use(self) -> float:
        """Dollars a second of the sweep, each minute, with queues in use."""
        # It reads each lane, as it does each queue.
        counted, lanes = self.units["sweeps in use"], self.numbers["queues"] * self.numbers["lanes"]
        names = ("calls", "write", "read", "log_bytes")
        return self._sweeps({name: interpolated(counted, name, lanes) for name in names})

    def _sweeps(self, one: Numbers) -> float:
        numbers = self.numbers
        minutely = 1 / 60
        written = one["log_bytes"] + numbers["system_logs"] * numbers["system_log_bytes"]
        return (
            self._ddb(one["write"], one["read"]) * minutely
            + self._lambda(minutely, one["calls"] * numbers["call_ms"], "sweep_mb")
            + self._traces(minutely)
            + self._logs(written * minutely)
        )

    def notes(self, load: Load) -> float:
        """Dollars a second of noting each queue for the sweep, by each container that answers
        workers. What the consumer notes is among its units.
        """
        one, numbers = self.units["note"], self.numbers
        containers = max(numbers["containers"], load.others * numbers["request_ms"] / 1_000)
        notes = containers * numbers["queues"] / float(one["every_s"])
        return self._ddb(one["write"], one["read"]) * notes

    def polls(self) -> float:
        """Dollars a second of the queues of push delivery that Lambda looks at in vain."""
        numbers = self.numbers
        asked = numbers["push_queues"] * numbers["pollers"] / numbers["poller_s"]
        return asked * numbers["sqs_requests"] / _MILLION

    def metrics(self, level: str = "alarms", queues: int = 0) -> float:
        """Dollars per second of the CloudWatch metrics of a healthy deployment.

        Args:
            level: `alarms` or `deployment`.
            queues: Number of queues with metrics of their own, each with one type of job.
        """
        count: int = self.units["metrics"][level] + queues * self.units["metrics"]["queue"]
        return count * self.numbers["metric_month"] / MONTH_S

    def pushed(self, rate: float, containers: int = 1) -> dict[str, float]:
        """Dollars per second of jobs that are pushed to a function, without the function's own
        cost; by name of `PUSHED`.

        Args:
            rate: Jobs per second.
            containers: Number of containers of each function of the deployment.
        """
        numbers, one = self.numbers, self.pushed_job(rate, containers)
        load = Load(pushes=rate, write=one["write"] * rate, read=one["read"] * rate,
                    records=one["records"] * rate)  # fmt: skip
        found = self.cost(load)
        # Each batch of stream records is looked at for jobs that are still in line.
        again, consumer = self.units["pushed"]["looked at"], self.invocations(load)
        looked_at = min(again["most"] * consumer.count, rate)
        found["consumer"] += self._ddb(0, again["read"] * looked_at)
        for what in ("dispatches", "settles"):
            ms = (
                one[f"calls of {what}"] * numbers["call_ms"]
                + one[f"invokes of {what}"] * numbers["invoke_ms"]
            )
            count = one[what] * rate
            found["Lambda"] += self._lambda(count, ms * rate / count)
        # A message is sent; those that come together are received and deleted together. Of a
        # success Lambda tells without one.
        messages = (one["wakes"] + 2 * one["dispatches"]) * rate
        found["SQS"] = messages * numbers["sqs_requests"] / _MILLION + self.polls()
        found["sweeps"] = self.sweeps_in_use() + self.notes(load)
        found["metrics"] = self.metrics()
        return found

    def pushed_job(self, rate: float, containers: float) -> Numbers:
        """Units of a pushed job, and how often what is called for it; also between the numbers of
        containers that were counted.
        """
        counted: Mapping[str, Any] = self.units["pushed"]
        by_containers = {
            str(each): counted[_run(rate, each)] for at, each in RATES_PUSHED if at == rate
        }
        one: Numbers = by_containers["1"]
        if len(by_containers) == 1:
            return one
        return {name: interpolated(by_containers, name, containers) for name in one}

    def outbox(self, rate: float) -> dict[str, float]:
        """Dollars for a million items of an outbox that come at this rate (items a second), until
        their jobs are stored: of the application, the relay's units, and the relay's duration.
        """
        numbers, units = self.numbers, self.units["outbox"]
        a_read = rate / numbers["shards"] * numbers["shard_s"]
        mean = sum(size * part for size, part in batch_sizes(a_read, int(numbers["batch"])).items())
        by_items = {items: one for items, one in units.items() if items.isdigit()}
        calls = interpolated(by_items, "calls", mean) * mean
        ms = numbers["request_ms"] + numbers["record_ms"] * mean
        # A request makes two calls.
        ms += numbers["call_ms"] * max(0, calls - 2)
        write, read = (interpolated(by_items, name, mean) for name in ("write", "read"))
        return {
            "application": self._ddb(units["1"]["application"], 0) * _MILLION,
            "relay": self._ddb(write, read) * _MILLION,
            "Lambda": self._lambda(1 / mean, ms) * _MILLION,
        }

    # --- bills ------------------------------------------------------------------------------

    def bill(self, life: str, rate: float) -> dict[str, float]:
        """Dollars for a million jobs that come at this rate (jobs a second), by name of `BILL`; and
        what an additional idle worker costs.
        """
        jobs, beats = self.jobs(life, rate), self.heartbeats(rate)
        alone, beating = self.cost(jobs), sum(self.cost(jobs + beats).values())
        polled = sum(self.cost(jobs + beats + self.idle_worker()).values())
        found = alone | {
            "heartbeats": beating - sum(alone.values()),
            "sweeps": self.sweeps_in_use() + self.notes(jobs),
            "metrics": self.metrics(),
            "idle worker": polled - beating,
        }
        return {name: dollars / rate * _MILLION for name, dollars in found.items()}

    def whole(self, life: str, rate: float) -> float:
        """Dollars for a million jobs at this rate, with all but idle workers."""
        bill = self.bill(life, rate)
        return sum(bill[name] for name in BILL)


def of_heartbeats(units: Mapping[str, Any], every_s: float) -> Mapping[str, Numbers]:
    """What jobs that last add, by duration: for the interval counted that is closest to this."""
    counted: Mapping[str, Mapping[str, Numbers]] = units["lasting"]
    return counted[min(counted, key=lambda beat_s: abs(float(beat_s) - every_s))]


def interpolated(points: Mapping[str, Numbers], name: str, at: float) -> float:
    """A number between those counted, or beyond the last two; nothing costs nothing."""
    values = {0.0: 0.0} | {float(x): y[name] for x, y in points.items()}
    known = sorted(values)
    right = next((place for place, x in enumerate(known) if place and x >= at), len(known) - 1)
    x0, x1 = known[right - 1], known[right]
    return values[x0] + (values[x1] - values[x0]) * (at - x0) / (x1 - x0)


def batch_sizes(a_window: float, most: int) -> dict[int, float]:
    """How likely a batch has so many records: the first, and those that come in the window that it
    opens, of which there are `a_window` on average (Poisson); `most` at most.
    """
    found: dict[int, float] = {}
    for more in range(most - 1):
        log = more * math.log(a_window) - a_window - math.lgamma(more + 1) if a_window else 0.0
        found[1 + more] = math.exp(log) if a_window or not more else 0.0
    found[most] = max(0.0, 1 - sum(found.values()))
    return found


def curve(model: Model, life: str) -> dict[str, list[float]]:
    """Dollars for a million jobs by name of `BILL`, for each rate of the picture."""
    bills = [model.bill(life, rate) for rate in DRAWN]
    return {name: [bill[name] for bill in bills] for name in BILL}


def fingerprint(model: Model) -> str:
    """What a picture of these curves is known by."""
    parts = [part for life in LIVES for part in curve(model, life).values()]
    told = [f"{value:.3g}" for part in parts for value in part]
    return hashlib.sha256(" ".join(told).encode()).hexdigest()[:16]


# --- tables -------------------------------------------------------------------------------------


def dollars(value: float) -> str:
    """With as many digits as say something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def prices(model: Model, life: str) -> str:
    """Dollars for a million jobs, by rate."""
    rows = []
    for rate in RATES:
        bill = model.bill(life, rate)
        job, whole = sum(bill[name] for name in JOB), model.whole(life, rate)
        idle = bill["idle worker"]
        rows.append([
            f"{rate:,}", *(dollars(bill[name]) for name in JOB), f"**{dollars(job)}**",
            *(dollars(bill[name]) for name in BILL if name not in JOB), f"**{dollars(whole)}**",
            dollars(whole + idle),
        ])  # fmt: skip
    header = (
        f"{life}: jobs a second", "requests", "consumer", "API Gateway", "Lambda", "X-Ray", "logs",
        "**per job**", "heartbeats", "sweeps", "metrics", "**all**", "with an idle worker",
    )  # fmt: skip
    return table(header, rows)


def pushed(model: Model) -> str:
    """Dollars for a million jobs that are pushed to a function, by rate."""
    rows, own = [], int(model.numbers["containers"])
    shown = RATES_PUSHED if (10, own) in RATES_PUSHED else (*RATES_PUSHED, (10, own))
    for rate, containers in shown:
        found = model.pushed(rate, containers)
        bill = {name: each / rate * _MILLION for name, each in found.items()}
        row = [dollars(bill[name]) for name in PUSHED]
        whole = f"**{dollars(sum(bill.values()))}**"
        rows.append([f"{rate:,}", f"{containers}", *row, whole])
    header = (
        "pushed to a function: jobs/s", "containers", "requests", "consumer", "API Gateway",
        "Lambda", "SQS", "logs", "sweeps", "metrics", "**all**",
    )  # fmt: skip
    return table(header, rows)


def pushed_units(model: Model) -> str:
    """Units of a job that is pushed to a function, and the dollars of a million, by rate."""
    rows = []
    for rate, containers in RATES_PUSHED:
        one = model.pushed_job(rate, containers)
        bill = sum(model.pushed(rate, containers).values()) / rate * _MILLION
        counts = (number(one[name]) for name in ("write", "read", "wakes", "dispatches", "settles"))
        rows.append([f"{rate:,}", f"{containers}", *counts, f"**{dollars(bill)}**"])
    header = (
        "pushed to a function: jobs/s", "containers", "WU of a job", "RU of a job", "wake-ups",
        "dispatches", "outcomes settled", "**dollars for a million**",
    )  # fmt: skip
    return table(header, rows)


def outbox(model: Model) -> str:
    """Dollars for a million items of an outbox by rate, and for requests that enqueue as much."""
    asked = model.units["outbox"]["request"]
    cost = model.cost(Load(pushes=1, write=asked["write"], read=asked["read"]))
    request = sum(cost.values()) * _MILLION
    rows = []
    for rate in RATES:
        bill = model.outbox(rate)
        row = [dollars(each) for each in bill.values()]
        rows.append([f"{rate:,}", *row, f"**{dollars(sum(bill.values()))}**", dollars(request)])
    header = (
        "items/s", "put of the application", "relay: units", "relay: Lambda",
        "**a million items**", "a million requests",
    )  # fmt: skip
    return table(header, rows)


def durable(model: Model) -> str:
    """Dollars for a million acts of durable code, without the stream's consumer, and by rate."""
    rows = []
    for name, what in DURABLE.items():
        one = model.units["durable"][name]

        def paid(rate: float, records: float, one: Numbers = one) -> str:
            load = Load(
                others=one["requests"] * rate, write=one["write"] * rate, read=one["read"] * rate,
                records=records * rate,
            )  # fmt: skip
            return dollars(sum(model.cost(load).values()) / rate * _MILLION)

        units = (number(one[each]) for each in ("requests", "calls", "write", "read", "records"))
        by_rate = (f"**{paid(rate, one['records'])}**" for rate in (0.4, 10, 100))
        rows.append([what, *units, paid(1, 0), *by_rate])
    header = (
        "durable code", "requests", "calls", "WU", "RU", "stream records", "without the stream",
        "0.4/s", "10/s", "100/s",
    )  # fmt: skip
    return table(header, rows)


def lasting(model: Model) -> str:
    """Dollars for a million jobs one by one, by client, duration, and rate."""
    rows = []
    for client, carried, beat_s in CLIENTS:
        for job_s in DURATIONS_S:
            own = {"acks_carried": carried, "heartbeat_s": beat_s, "job_s": job_s}
            found = Model(model.units, {**model.numbers, **own})
            load = found.jobs("one by one", 10) + found.heartbeats(10)
            paid = (f"**{dollars(found.whole('one by one', rate))}**" for rate in (0.4, 10, 100))
            duration = f"{job_s} s" if job_s <= 60 else f"{job_s // 60} min"
            rows.append([client, duration, number(load.write / 10), *paid])
    rung = (f"**{dollars(model.heard(rate))}**" for rate in (0.4, 10, 100))
    rows.insert(1, [RUNG, "1 s", rows[0][2], *rung])
    header = (
        "client",
        "duration",
        "WU of a job at 10 jobs/s",
        "0.4 jobs/s",
        "10 jobs/s",
        "100 jobs/s",
    )
    return table(header, rows, words=2)


def options(model: Model) -> str:
    """Dollars for a million jobs one by one, by settings and rate."""
    rows, chosen = [], dict(model.numbers)
    for name, changed in OPTIONS:
        chosen |= changed
        found = Model(model.units, chosen)
        rows.append([name, *(dollars(found.whole("one by one", rate)) for rate in RATES[:-1])])
    return table(("settings", *(f"{rate:,} jobs/s" for rate in RATES[:-1])), rows)


def realtime(model: Model) -> str:
    """Dollars for a million jobs one by one, by the setting `realtime` and rate."""
    rates = RATES[:-1]
    loads = {rate: model.jobs("one by one", rate) for rate in rates}

    def whole(level: str) -> list[str]:
        each = (
            model.whole("one by one", rate) + model.unheard(load, level) / rate * _MILLION
            for rate, load in loads.items()
        )
        return [f"{one:,.2f}" for one in each]

    messages = (
        model.notified(load)[0] / rate * model.numbers["socket_messages"]
        for rate, load in loads.items()
    )
    rows = [
        ["`off`", *whole("off")],
        ["`wake` (default), without idle workers", *whole("wake")],
        ["`all`, without subscribers", *whole("all")],
        [
            "`wake`, one listening worker, which each job rings",
            *(f"{model.heard(rate):,.2f}" for rate in rates),
        ],
        ["in addition: each job rings an idle worker", *[dollars(model.rung() * _MILLION)] * 4],
        ["in addition: a subscriber of all events with `batch`", *map(dollars, messages)],
    ]
    return table(("`realtime`", *(f"{rate:,} jobs/s" for rate in rates)), rows)


def idle_workers(model: Model) -> str:
    """Dollars of a month for idle workers of the same queues, by how they wait."""
    rows = []
    for workers in IDLE_WORKERS:
        polling = (model.polling(each) * workers for each in POLLS_S)
        each = [*polling, model.listening(workers)]
        rows.append([f"{workers:,}", *(dollars(one * MONTH_S) for one in each)])
    header = ("idle workers, a month", *(f"poll every {each} s" for each in POLLS_S))
    return table((*header, "listen (`realtime=wake` or `all`)"), rows)


def bare(numbers: Numbers) -> str:
    """Duration of two bare requests, for comparison with the pick-up of a listening worker."""
    times = f"{numbers['bare_ms']:g} ms (95 of 100: {numbers['bare_late_ms']:g} ms)"
    return f"a push and a fetch took {times} at a load of {numbers['measured_load']:g} on two cores"


def listening(model: Model) -> str:
    """An idle worker that polls, and one that listens: how late, how many requests, what price."""
    numbers = model.numbers

    def asked(workers: int) -> list[str]:
        """Fetches and heartbeats of all of them in an hour."""
        every_s = model.looks_s(workers)
        an_hour = [1 / each + 1 / numbers["heartbeat_s"] for each in POLLS_S]
        an_hour.append((1 + 1 / numbers["looks_a_beat"]) / every_s)
        return [f"{each * 3_600 * workers:,.0f}" for each in an_hour]

    def price(workers: int) -> list[float]:
        polling = (model.polling(each) * workers for each in POLLS_S)
        return [each * MONTH_S for each in (*polling, model.listening(workers))]

    def crossing(workers: int) -> list[str]:
        *polling, listening = price(workers)
        jobs = ((each - listening) / model.rung() for each in polling)
        return [*(f"{each / _MILLION:.1f} million" for each in jobs), ""]

    some = IDLE_WORKERS[:-1]
    each = [f"{workers} idle worker{'s' * (workers > 1)}" for workers in some]
    late = [f"{1_000 * part * each:,.0f} ms" for part in (0.5, 0.95) for each in POLLS_S]
    rows = [
        ["a job starts after (median)", *late[: len(POLLS_S)], f"{numbers['rung_ms']:.0f} ms"],
        ["95 of 100 jobs", *late[len(POLLS_S) :], f"{numbers['rung_late_ms']:.0f} ms"],
        *([f"{name}: requests per hour", *asked(of)] for name, of in zip(each, some, strict=True)),
        *(
            [f"{name}: dollars per month", *map(dollars, price(of))]
            for name, of in zip(each, some, strict=True)
        ),
        [
            "a million jobs that each wake a worker",
            *"0" * len(POLLS_S),
            dollars(model.rung() * _MILLION),
        ],
        *(
            [f"{name}: polling costs less with more such jobs per month", *crossing(of)]
            for name, of in zip(each, some, strict=True)
        ),
    ]
    return table(("", *(f"poll every {each} s" for each in POLLS_S), "listen"), rows)


def spread(model: Model) -> str:
    """Dollars for a million jobs one by one, and of an idle worker, by queues and lanes."""
    rows = []
    for queues, lanes in SPREAD:
        found = Model(model.units, {**model.numbers, "queues": queues, "lanes": lanes})
        paid = (dollars(found.whole("one by one", rate)) for rate in RATES[:-1])
        idle = sum(found.cost(found.idle_worker()).values()) * MONTH_S
        rows.append([f"{queues}", f"{lanes}", *paid, dollars(idle)])
    header = ("queues", "lanes", *(f"{rate:,} jobs/s" for rate in RATES[:-1]))
    return table((*header, "an idle worker, a month"), rows, words=2)


def brief(model: Model) -> str:
    """The table of the README: dollars for a million jobs, by client, duration, and rate."""
    rows = []
    for client, carried, beat_s in CLIENTS:
        own = {"acks_carried": carried, "heartbeat_s": beat_s}
        models = [
            Model(model.units, {**model.numbers, **own, "job_s": job_s}) for job_s in (1, 60, 300)
        ]
        rows.append([client, *(_quiet_and_busy(partial(m.whole, "one by one")) for m in models)])
        if carried:
            rows.append([RUNG, *(_quiet_and_busy(m.heard) for m in models)])
    pushed = _quiet_and_busy(lambda rate: sum(model.pushed(rate).values()) / rate * _MILLION)
    rows.append(["pushed to a function", pushed, pushed, pushed])
    return table(("at 0.4 / 10 jobs/s, jobs of", "1 s", "60 s", "5 min"), rows)


def _quiet_and_busy(price: Callable[[float], float]) -> str:
    """The prices at 0.4 and at 10 jobs/s."""
    return " / ".join(dollars(price(rate)) for rate in (0.4, 10))


def empty_fetches(model: Model) -> str:
    """Calls and units of a fetch that finds no job, by lanes and queues."""
    rows = []
    for name, one in model.units["empty fetches"].items():
        what = f"{name} lane{'s' * (name != '1')}" if name.isdigit() else name
        rows.append([what, number(one["calls"]), number(one["most"]), number(one["read"])])
    return table(("no job available, polled each second", "calls", "first fetch", "RU"), rows)


def _run(rate: float, containers: int) -> str:
    """The name of a counted run."""
    return f"{rate:g}" if containers == 1 else f"{rate:g} by {containers}"


def units(model: Model) -> str:
    """Units of a job with the consumer's part, by rate."""
    rows = []
    for life in LIVES:
        for rate in RATES:
            load = model.jobs(life, rate)
            consumer = model.invocations(load)
            five = model.invocations(load, queues=5).write / rate
            write = consumer.write / rate
            rows.append([
                life, f"{rate:,}", number(load.write / rate), f"{consumer.records:.1f}",
                number(write), f"**{number(load.write / rate + write)}**",
                number(load.write / rate + five), number((load.read + consumer.read) / rate),
            ])  # fmt: skip
    header = (
        "", "jobs a second", "WU of requests", "records in an invocation", "WU of the consumer",
        "**WU of a job**", "of five queues", "RU of a job",
    )  # fmt: skip
    return table(header, rows, words=2)


def consumer(model: Model) -> str:
    """Units of an invocation of the consumer, as counted."""
    one, five = (model.units["consumer"][name] for name in ("one queue", "five queues"))
    rows = [
        [
            "in addition, per shard and minute" if size == "a minute" else size,
            *(number(each[size][name]) for each in (one, five) for name in _SPENT),
        ]
        for size in one
    ]
    header = ["records in an invocation", *(f"one queue: {name}" for name in _SHOWN)]
    return table([*header, *(f"five queues: {name}" for name in _SHOWN)], rows)


_SPENT = ("calls", "write", "read")
_SHOWN = ("calls", "WU", "RU")


def idle(model: Model) -> dict[str, float]:
    """Dollars of a month without requests, with `dashboard=false`, by what they are paid for."""
    numbers = model.numbers
    return {
        "sweep": model.sweeps() * MONTH_S,
        "secret": numbers["secret_month"],
        "alarms": numbers["alarm_metrics"] * numbers["alarm_metric_month"],
        "metrics": model.units["metrics"]["alarms"] * numbers["metric_month"],
    }


def idle_push(model: Model) -> float:
    """Dollars of such a month that push=true adds."""
    alarms = model.numbers["push_alarm_metrics"] * model.numbers["alarm_metric_month"]
    return model.polls() * MONTH_S + alarms


def idle_month(model: Model) -> str:
    """A month without requests."""
    numbers, counted_metrics, least = model.numbers, model.units["metrics"], idle(model)
    sweep, many = (model.units["sweeps"][count] for count in ("1", "200"))
    in_use = counted_metrics["deployment"]
    alarms, watched = int(numbers["alarms"]), int(numbers["alarm_metrics"])
    worker = sum(model.cost(model.idle_worker()).values())
    metric, queues = numbers["metric_month"], int(numbers["queue_metrics_max"])
    waits, watched_too = (int(numbers[each]) for each in ("push_queues", "push_alarm_metrics"))
    rows = [
        (f"the sweep, every minute, one queue: {_spent(sweep)}", least["sweep"]),
        ("the secret of the first key", least["secret"]),
        (f"{alarms} alarms on {watched} metrics", least["alarms"]),
    ]
    extra = [
        (f"the sweep with 200 queues: {_spent(many)}", model.sweeps(200) * MONTH_S),
        ("`dashboard` (the first three of an account are free)", numbers["dashboard_month"]),
        (
            f"`metrics=deployment`: {in_use} metrics of the deployment as a whole",
            in_use * metric,
        ),
        (
            f"`metrics=queues`: {counted_metrics['queue']} metrics per queue with one type of job",
            counted_metrics["queue"] * metric,
        ),
        (
            f"the same for {queues} queues, the default of `queue_metrics_max`",
            queues * counted_metrics["queue"] * metric,
        ),
        ("the metric of rejected requests, for an alarm", metric),
        (
            f"`push=true`: {waits} queues that Lambda polls, {watched_too} alarms",
            idle_push(model),
        ),
        (f"an idle worker that polls every {numbers['poll_s']:g} s", worker * MONTH_S),
    ]
    whole = sum(least.values())
    shown = [
        *((what, dollars(value)) for what, value in rows),
        ("**total, with `dashboard=false`**", f"**{dollars(whole)}**"),
        (
            f"**total, with `dashboard` and a worker that polls every {numbers['poll_s']:g} s**",
            f"**{dollars(whole + numbers['dashboard_month'] + worker * MONTH_S)}**",
        ),
        *((f"in addition: {what}", dollars(value)) for what, value in extra),
    ]
    return table(("", "dollars"), shown)


def _spent(one: Numbers) -> str:
    return f"{one['calls']:.0f} calls, {one['read']:.0f} RU, {one['write']:.0f} WU"


def durations(numbers: Numbers) -> str:
    """What is assumed of them, in a sentence."""
    return (
        f"{numbers['request_ms']:g} ms of {numbers['memory_mb']:g} MB for a request; for an "
        f"invocation of the stream's consumer {numbers['consumer_ms']:g} ms, and "
        f"{numbers['record_ms']:g} ms for each record, on {numbers['shards']:g} shards"
    )


def sentence(model: Model) -> str:
    """The sentence of the README."""
    busy, tens, quiet = (
        f"${float(dollars(model.whole(life, rate))):.2f}"
        for life, rate in (("one by one", 10), ("in tens", 10), ("one by one", 0.4))
    )
    return (
        f"1 million jobs cost {busy} at 10 jobs/s ({tens} in batches of 10)"
        f" and {quiet} at 0.4 jobs/s"
    )


def main(others: list[str]) -> None:
    """Print all tables."""
    model = Model(counted(), assumed(others))
    for text in (
        *(prices(model, life) for life in LIVES), options(model), realtime(model),
        idle_workers(model), listening(model), spread(model), lasting(model),
        pushed(model), idle_month(model), durable(model), units(model), consumer(model),
        empty_fetches(model),
        sentence(model),
    ):  # fmt: skip
        sys.stdout.write(f"{text}\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
