"""Cost: expected units of the model in docs/numbers, and measured units."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cli.prove.aws import REQUESTS
from cli.prove.state import Run, require
from cli.prove.wiring import cloud_of
from docs.numbers import assumed, counted
from docs.numbers.prices import Load, Model

# Measured above this multiple of the assumption fails.
MAX_RATIO = 1.2
# A part is skipped if this multiple of its price could exceed the ceiling.
MARGIN = 1.5
# Traffic in the minutes before the run is subtracted.
_BEFORE_MIN = 5
_ADVICE = "Run `make prices ARGS=measured.toml`, and look for other traffic, or for retries"


def model() -> Model:
    """Return the model of prices."""
    return Model(counted(), assumed())


class Budget:
    """Adds up the prices of parts."""

    def __init__(self, ceiling: float) -> None:
        found = model()
        self.ceiling, self.spent = ceiling, 0.0
        self._job: float = found.whole("one by one", 10) / 1e6
        self._request: float = sum(found.cost(Load(others=1, write=1, read=1)).values())

    def price(self, jobs: float, requests: float) -> float:
        """Return the price in dollars of a number of jobs, and of other requests."""
        return float(jobs * self._job + requests * self._request)

    def affords(self, jobs: float, requests: float) -> bool:
        """Return whether the ceiling allows this. If it does, add it to the bill."""
        price = self.price(jobs, requests)
        if MARGIN * (self.spent + price) > self.ceiling:
            return False
        self.spent += price
        return True


def run_cost(run: Run) -> None:
    """Compare units, requests, and durations of the ramp with the model."""
    run.check("cost", "units, requests, and durations", _compare, _ADVICE)


def _compare(run: Run) -> str:
    cloud = cloud_of(run)
    cloud.on_aws()
    steps = run.numbers.get("ramp", [])
    require(steps, "the ramp has no step to compare: run it, too")
    jobs = sum(each["jobs"] for each in steps)
    first, last = run.numbers["ramp_span"]
    # Whole minutes, until the consumer has processed the last record.
    begin, end = first // 60 * 60, (last + 90) // 60 * 60 + 60
    idle = run.began // 60 * 60
    run.sleep(max(0.0, end + run.pace.metrics_s - time.time()))
    spans = [(_time(begin), _time(end)), (_time(idle - 60 * _BEFORE_MIN), _time(idle))]
    part = (end - begin) / (60 * _BEFORE_MIN)

    def less(during: float, earlier: float) -> float:
        return max(0.0, during - earlier * float(part))

    write, read = (less(*(cloud.units(name, each) for each in spans)) for name in ("Write", "Read"))
    (calls, request_ms), (calls_before, _) = (cloud.calls(REQUESTS, each) for each in spans)
    batches, consumer_ms = cloud.calls(("stream",), spans[0])
    found = model()
    rate = jobs / (last - first)
    load = found.jobs("one by one", rate)
    consumer = found.invocations(load)
    minutes = (end - begin) / 60
    wanted = {
        "write units": (load.write + consumer.write) / rate * jobs,
        "read units": (load.read + consumer.read) / rate * jobs,
        # This client sends acks as separate requests.
        "requests": float(sum(each["requests"] for each in steps)),
        "ms of a request": found.numbers["request_ms"],
        "ms of a stream batch": found.numbers["consumer_ms"]
        + found.numbers["record_ms"] * consumer.records,
    }
    values = (write, read, less(calls, calls_before), request_ms, consumer_ms)
    rows: dict[str, dict[str, float]] = {
        name: {
            "assumed": round(a, 1),
            "measured": round(m, 1),
            "ratio": round(m / a, 2) if a else 0,
        }
        for (name, a), m in zip(wanted.items(), values, strict=True)
    }
    run.numbers["cost"] = {"jobs": jobs, "minutes": minutes, "batches": batches, "rows": rows}
    mapping = cloud.stream_mapping()
    run.numbers["measured"] = {
        "window_s": mapping["MaximumBatchingWindowInSeconds"],
        "batch": mapping["BatchSize"],
        "request_ms": round(request_ms, 1),
        "consumer_ms": round(
            max(1.0, consumer_ms - found.numbers["record_ms"] * consumer.records), 1
        ),
    }
    shown = ", ".join(f"{name} {one['ratio']:g}" for name, one in rows.items())
    wrong = [name for name, one in rows.items() if one["ratio"] > MAX_RATIO]
    require(not wrong, f"above {MAX_RATIO} times the assumption: {', '.join(wrong)} ({shown})")
    return f"measured / assumed for {jobs} jobs: {shown}"


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def baseline(run: Run) -> float | None:
    """Return other requests per second in the last minutes, or None if they are unknown."""
    if run.cloud is not None and not run.cloud.emulated:
        now = datetime.now(UTC)
        calls, _ = run.cloud.calls(REQUESTS, (now - timedelta(minutes=_BEFORE_MIN), now))
        return calls / (60 * _BEFORE_MIN)
    stats: dict[str, Any] = run.operator.stats()
    per_minute: float = stats.get("throughput", {}).get("processed_per_minute", 0.0)
    return per_minute / 60


def write_measured(run: Run, folder: Path) -> None:
    """Write `measured.toml`, with names of docs/numbers/assumed.toml."""
    found: dict[str, float] = dict(run.numbers.get("measured", {}))
    rung = run.numbers.get("pickup", {}).get("listening")
    if rung:
        found |= {"rung_ms": rung["p50"], "rung_late_ms": rung["p99"]}
    lines = "".join(f"{name} = {value:g}\n" for name, value in found.items())
    text = f"# Written by ojs-aws prove: {run.name}.\n[measured]\n{lines}"
    (folder / "measured.toml").write_text(text, "utf-8")
