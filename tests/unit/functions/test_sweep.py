"""The minute sweep's handler."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from functions.sweep import handler as module
from functions.sweep import metrics
from functions.sweep.handler import handler
from ojs import runtime
from ojs.domain.counters import definitions as rows
from ojs.domain.errors import BackendUnavailable
from ojs.domain.job.states import State
from ojs.domain.pool.backlog import Backlog
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import Filling, PoolMetrics, QueueGauges, StateCounts, Totals, WorkerCounts
from ojs.runtime import Runtime
from ojs.services.operations.metrics_sweep import MetricsReport
from ojs.services.sweeps import SweepReport
from ojs.settings import Settings
from ojs.store.queues.registry import QUIET_MS
from ojs.store.table import keys
from ojs.store.table.table import Update

if TYPE_CHECKING:
    from ojs.store.jobs.finding import DueLine
from tests.unit.functions.client import Api

EVENT = json.loads(
    (Path(__file__).parents[3] / "events" / "sweep" / "schedule.json").read_text("utf-8")
)


class Context:
    """A Lambda that has so much time left, less with each look."""

    def __init__(self, left_ms: int, each_ms: int = 0) -> None:
        self.left_ms = left_ms
        self.each_ms = each_ms

    def get_remaining_time_in_millis(self) -> int:
        self.left_ms -= self.each_ms
        return self.left_ms


NOW_MS = 1_780_000_000_000


def gauges_of(
    queue: str, levels: StateCounts, oldest_ms: int | None, filling: Filling | None = None
) -> QueueGauges:
    return QueueGauges(Queue(queue), levels, oldest_ms=oldest_ms, filling=filling)


class Gauges:
    """Gauges that show what they are told to, and remember how they were asked."""

    name = "metrics"

    def __init__(self) -> None:
        self.asked: list[tuple[int, int, bool]] = []
        self.queues: list[QueueGauges] = []
        self.totals: Totals | None = None

    def run_once(self, now_ms: int, limit: int, go_on: Callable[[], bool]) -> MetricsReport:
        self.asked.append((now_ms, limit, go_on()))
        return MetricsReport({}, NOW_MS, self.queues, self.totals)


class Sweep:
    """A sweep that tells what it is told to tell."""

    name = "jobs"

    def __init__(self, *passes: dict[str, int]) -> None:
        self.passes = list(passes)
        self.limits: list[int] = []

    def run_once(self, _now_ms: int, limit: int, go_on: Callable[[], bool]) -> SweepReport:
        self.limits.append(limit)
        if not go_on():
            return SweepReport({"more": 1})
        return SweepReport(self.passes.pop(0) if self.passes else {})


@pytest.fixture(autouse=True)
def gauges(api: Api, monkeypatch: pytest.MonkeyPatch) -> Gauges:
    """What is measured, without the table."""
    stand_in = Gauges()
    monkeypatch.setattr(api.runtime, "metrics_sweep", stand_in)
    return stand_in


@pytest.fixture
def by_queue(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """All metrics are written."""
    monkeypatch.setattr(api.runtime, "settings", replace(api.runtime.settings, metrics="queues"))


def test_the_sweep_does_what_time_has_decided(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert handler(EVENT, Context(50_000)) == {}
    assert not caplog.records
    job_id = api.push(options={"scheduled_at": "+PT5S"})
    api.push(options={"expires_at": "+PT5S"})
    api.clock.advance(6_000)
    assert handler(EVENT, None) == {"promoted": 1, "expired": 1}
    (record,) = (line for line in caplog.records if line.message == "Sweep completed")
    assert record.__dict__["counts"] == {"promoted": 1, "expired": 1}
    assert [job["id"] for job in api.fetch(count=5)] == [job_id]
    assert handler(EVENT, Context(50_000)) == {}


def test_the_sweep_goes_on_while_there_is_more(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep({"promoted": 3, "more": 1}, {"expired": 1, "more": 1}, {"promoted": 1})
    monkeypatch.setattr(api.runtime, "sweep", sweep)
    assert handler(EVENT, Context(50_000)) == {"promoted": 4, "expired": 1}
    assert sweep.limits == [module.PASS_LIMIT] * 3


def test_the_sweep_ends_before_it_is_stopped(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(*[{"promoted": 1, "more": 1}] * 1_000)
    monkeypatch.setattr(api.runtime, "sweep", sweep)
    context = Context(module.SPARE_MS + 6_000, each_ms=2_000)
    result = handler(EVENT, context)
    assert result["more"] == 1
    assert result["promoted"] < 10
    assert context.left_ms >= module.SPARE_MS - 2 * context.each_ms
    assert handler(EVENT, Context(module.SPARE_MS)) == {"more": 1}


def test_the_sweep_leaves_what_fails_to_the_next_minute(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(*[{"failed": 5, "more": 1}] * 1_000)
    monkeypatch.setattr(api.runtime, "sweep", sweep)
    result: dict[str, Any] = handler(EVENT, Context(50_000))
    assert result == {"failed": 5, "more": 1}
    assert len(sweep.limits) == 1


def test_the_sweep_measures_at_the_end(api: Api, gauges: Gauges) -> None:
    handler(EVENT, Context(50_000))
    assert gauges.asked == [(api.clock.now_ms(), module.PROBES, True)]


def test_there_is_time_to_measure_however_much_there_is_to_move(
    api: Api, monkeypatch: pytest.MonkeyPatch, gauges: Gauges
) -> None:
    monkeypatch.setattr(api.runtime, "sweep", Sweep(*[{"promoted": 1, "more": 1}] * 1_000))
    handler(EVENT, Context(40_000, each_ms=2_000))
    ((_, _, time_left),) = gauges.asked
    assert time_left
    # And when it is not enough, measuring ends before the function is stopped.
    handler(EVENT, Context(module.GAUGES_SPARE_MS))
    assert gauges.asked[1][2] is False


@pytest.mark.usefixtures("by_queue")
def test_what_was_seen_is_written_as_metrics(
    gauges: Gauges, capsys: pytest.CaptureFixture[str]
) -> None:
    gauges.queues = [
        gauges_of(
            "email", StateCounts({State.AVAILABLE: 3, State.DISCARDED: 2}, dead=1), NOW_MS - 90
        ),
        gauges_of("idle", StateCounts({State.ACTIVE: 4}), None),
    ]
    gauges.totals = Totals(
        NOW_MS, 2, StateCounts({State.AVAILABLE: 3}, dead=1), WorkerCounts(running=5, quiet=1)
    )
    handler(EVENT, None)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    written = {
        (name, *(line.get(dimension) for dimension in ("queue", "state"))): line[name]
        for line in lines
        for name in line
        if name.startswith("ojs.")
    }
    assert {key: value for key, value in written.items() if key[0] != rows.DEPTH.name} == {
        ("ojs.queue.oldest_age", None, None): [0.09],
        ("ojs.dead_letter.total", None, None): [1.0],
        ("ojs.workers.active", None, None): [5.0],
        ("ojs.queue.oldest_age", "email", None): [0.09],
        ("ojs.dead_letter.total", "email", None): [1.0],
        ("ojs.workers.busy", "email", None): [0.0],
        ("ojs.queue.oldest_age", "idle", None): [0.0],
        ("ojs.dead_letter.total", "idle", None): [0.0],
        ("ojs.workers.busy", "idle", None): [4.0],
    }
    depths = {key[1:]: value for key, value in written.items() if key[0] == rows.DEPTH.name}
    assert depths["email", "available"] == [3.0]
    assert depths["email", "discarded"] == [2.0]
    assert depths["idle", "active"] == [4.0]
    # A zero is news where it can change at any moment.
    assert depths["idle", "available"] == [0.0]
    assert ("idle", "completed") not in depths
    for line in lines:
        (described,) = line["_aws"]["CloudWatchMetrics"]
        assert described["Namespace"] == metrics.NAMESPACE
        assert line["service"] == "ojs-backend-aws"
        units = {metric["Name"]: metric["Unit"] for metric in described["Metrics"]}
        assert units.get("ojs.queue.oldest_age", "Seconds") == "Seconds"


@pytest.mark.usefixtures("by_queue")
def test_bounds_are_written_as_metrics(gauges: Gauges, capsys: pytest.CaptureFixture[str]) -> None:
    gauges.queues = [
        gauges_of("both", StateCounts({}), None, Filling(4, 10, 900, 1_000)),
        gauges_of("bytes", StateCounts({}), None, Filling(4, None, 100, 1_000)),
        gauges_of("none", StateCounts({}), None),
    ]
    handler(EVENT, None)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    written = {
        (line["queue"], name): line[name]
        for line in lines
        for name in ("ojs.queue.max_size", "ojs.queue.utilization", "ojs.backpressure.pressure")
        if name in line
    }
    assert written == {
        ("both", "ojs.queue.max_size"): [10.0],
        ("both", "ojs.queue.utilization"): [0.4],
        ("both", "ojs.backpressure.pressure"): [0.9],
        ("bytes", "ojs.backpressure.pressure"): [0.1],
    }


def test_counters_are_repaired_before_the_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, bool]] = []

    class Reconciling:
        name = "reconcile"

        def run_once(self, now_ms: int, limit: int, go_on: Callable[[], bool]) -> SweepReport:
            asked.append((now_ms, limit, go_on()))
            return SweepReport({"bounded": 1, "healed": 1})

    monkeypatch.setattr(api.runtime, "reconcile", Reconciling())
    handler(EVENT, Context(50_000))
    handler(EVENT, Context(module.RECONCILE_SPARE_MS))
    now_ms = api.clock.now_ms()
    assert asked == [(now_ms, module.RECOUNTS, True), (now_ms, module.RECOUNTS, False)]


@pytest.mark.requirement("BP-k")
def test_queues_without_a_bound_are_warned_of_once(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[int]:
        found = [
            line for line in caplog.records if line.message == "Queues without a size limit found"
        ]
        return [vars(line)["count"] for line in found]

    api("PUT", "/ojs/v1/queues/bounded/config", {"max_size": 5})
    handler(EVENT, None)
    assert warnings() == []
    for name in ("one", "two"):
        api.push(name)
    for _ in range(3):
        handler(EVENT, None)
    assert warnings() == [2]


def test_operators_are_told_of_workflows_that_stand_still(
    api: Api, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def told() -> list[int]:
        handler(EVENT, None)
        found = [line for line in caplog.records if line.message == "Stalled workflows found"]
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        written = [line[rows.STALLED.name] for line in lines if rows.STALLED.name in line]
        assert written == [[1.0]] * len(found)
        caplog.clear()
        return [vars(line)["count"] for line in found]

    body = {"type": "group", "jobs": [{"type": "a", "args": []}]}
    assert api.post("/ojs/v1/workflows", body).status == 201
    assert told() == []
    # Nobody works. It is looked at after five minutes, ten, twenty …
    minutes = []
    for _ in range(120):
        api.clock.advance(60_000)
        minutes.append(told())
    assert minutes[:60] == [[]] * 60
    assert minutes[60:].count([1]) == 1


def test_totals_that_are_not_known_are_not_told(
    gauges: Gauges, capsys: pytest.CaptureFixture[str]
) -> None:
    gauges.queues = [gauges_of("email", StateCounts({}), None)]
    handler(EVENT, None)
    assert all('"queue":"email"' in line for line in capsys.readouterr().out.splitlines())


@pytest.mark.usefixtures("by_queue")
def test_the_fullest_queues_are_told_of(gauges: Gauges, capsys: pytest.CaptureFixture[str]) -> None:
    gauges.queues = [
        gauges_of(f"q{number:04d}", StateCounts({State.AVAILABLE: number}), None)
        for number in range(40)
    ]
    handler(EVENT, None)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = {line["queue"] for line in lines}
    assert told == {f"q{number:04d}" for number in range(20, 40)}


@pytest.mark.parametrize("level", ["alarms", "deployment", "queues"])
def test_a_stuck_job_of_a_named_queue_raises_its_metric_beside_30_fuller_queues(
    level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fuller = [gauges_of(f"q{n}", StateCounts({State.AVAILABLE: 9}), None) for n in range(30)]
    stuck = gauges_of("mail", StateCounts({State.AVAILABLE: 1}), 40_000)
    seen = MetricsReport(at_ms=100_000, queues=[*fuller, stuck])
    written = lines_of(capsys, seen, metrics=level, metric_queues=("mail",))
    mail = [line for line in written if line.get("queue") == "mail"]
    assert [line[rows.OLDEST_AGE.name] for line in mail if rows.OLDEST_AGE.name in line] == [[60.0]]


def lines_of(
    capsys: pytest.CaptureFixture[str], seen: MetricsReport, **settings: Any
) -> list[dict[str, Any]]:
    metrics.write(seen, Settings("table", **settings))
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("waits_s", "named", "written"),
    [
        (0, (), {}),
        # A third of 900 s.
        (299, (), {}),
        (300, (), {"ojs.queue.oldest_age": [300.0]}),
        (0, ("*",), {"ojs.queue.oldest_age": [0.0], "ojs.dead_letter.total": [7.0]}),
        (0, ("mail",), {}),
    ],
)
def test_a_healthy_deployment_writes_no_gauges_but_those_that_are_named(
    waits_s: int, named: tuple[str, ...], written: object, capsys: pytest.CaptureFixture[str]
) -> None:
    mail = gauges_of("mail", StateCounts({State.AVAILABLE: 1}, dead=7), NOW_MS - waits_s * 1_000)
    totals = Totals(NOW_MS, 1, mail.levels, WorkerCounts(running=5))
    seen = MetricsReport(at_ms=NOW_MS, queues=[mail], totals=totals)
    lines = lines_of(capsys, seen, metric_queues=named)
    whole = [line for line in lines if "queue" not in line]
    found = {name: value for line in whole for name, value in line.items() if name[:4] == "ojs."}
    assert found == written
    assert len(lines) == len(whole) + (named == ("mail",))


@pytest.mark.parametrize(
    ("settings", "queues"),
    [
        ({}, 0),
        ({"metrics": "deployment"}, 0),
        ({"metrics": "queues"}, 20),
        ({"metrics": "queues", "queue_metrics_max": 7}, 7),
        ({"metrics": "queues", "queue_metrics_max": 0}, 140),
    ],
)
def test_how_many_queues_are_told_of_is_a_setting(
    settings: dict[str, Any], queues: int, gauges: Gauges, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        gauges_of(f"q{number}", StateCounts({State.AVAILABLE: number}), None)
        for number in range(140)
    ]
    report = MetricsReport({}, 0, found, None)
    metrics.write(report, Settings("table", **settings))
    pools = [PoolMetrics("p", 0.5, {f"q{number}": 0.5 for number in range(140)})]
    metrics.write_pools(pools, Settings("table", **settings))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for metric in (rows.OLDEST_AGE.name, rows.DISPATCH_RATIO.name):
        assert len({line["queue"] for line in lines if metric in line}) == queues


def test_everything_logged_meanwhile_has_the_id_of_the_event(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    class Looking(Sweep):
        def run_once(self, *_: Any) -> SweepReport:
            seen.append(dict(module.logger.thread_safe_get_current_keys()))
            raise BackendUnavailable("down")

    monkeypatch.setattr(api.runtime, "sweep", Looking())
    with pytest.raises(module.SweepFailed):
        handler(EVENT, None)
    assert seen == [{"correlation_id": EVENT["id"]}]
    assert module.logger.thread_safe_get_current_keys() == {}


@pytest.mark.parametrize("name", ["sweep", "bulk", "reconcile", "replay", "pool_health_sweep"])
def test_a_sweep_in_trouble_stops_no_other(
    api: Api,
    gauges: Gauges,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Whatever it raises is logged in a line, and the alarm counts the failure at the end."""
    sweeps = [sweep.name for sweep in api.runtime.sweeps()]
    ran: list[str] = []
    broken = getattr(api.runtime, name).name

    class Noted:
        def __init__(self, name: str) -> None:
            self.name = name

        def run_once(self, *_: Any) -> SweepReport:
            ran.append(self.name)
            if self.name == broken:
                raise KeyError("a damaged record")
            return SweepReport({"failed": 0})

    monkeypatch.setattr(module, "_REPORTERS", {})
    monkeypatch.setattr(type(api.runtime), "sweeps", lambda _: map(Noted, sweeps))
    with pytest.raises(module.SweepFailed, match=f"These steps of the sweep failed: {broken}\\."):
        handler(EVENT, Context(50_000))
    assert list(dict.fromkeys(ran)) == sweeps
    (told,) = (vars(line) for line in caplog.records if line.levelname == "ERROR")
    assert (told["sweep"], told["what"]) == (broken, "the whole sweep")
    assert (told["error"], told["reason"]) == ("KeyError", "'a damaged record'")
    assert told["exc_info"]


def test_what_failed_is_named_and_the_rest_is_counted(
    api: Api, gauges: Gauges, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A throttled line of one queue, with everything else swept, and measured."""
    caplog.set_level("INFO")
    for queue in ("good", "hot"):
        api.push(queue, options={"scheduled_at": "+PT5S"})
    api.clock.advance(6_000)
    index = api.runtime.stores.jobs.index
    due = index.due_until

    def throttled(queue: str, lane: int, **more: Any) -> DueLine:
        if queue == "hot":
            raise BackendUnavailable("DynamoDB throttled the request.")
        return due(queue, lane, **more)

    monkeypatch.setattr(index, "due_until", throttled)
    with pytest.raises(module.SweepFailed, match="jobs"):
        handler(EVENT, Context(50_000))
    told = [vars(line) for line in caplog.records]
    (swept,) = (line for line in told if line["message"] == "Sweep completed")
    assert swept["counts"] == {"promoted": 1, "failed": 1}
    (failed,) = (line for line in told if line["levelname"] == "ERROR")
    assert (failed["what"], failed["error"]) == ("queue hot, lane 0", "BackendUnavailable")
    assert len(gauges.asked) == 1


def test_the_real_gauges_are_measured(
    make_runtime: Callable[[], Runtime], capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.use(make_runtime())
    assert handler(EVENT, Context(50_000)) == {}
    names = {name for line in capsys.readouterr().out.splitlines() for name in json.loads(line)}
    # Each metric costs something in the hours in which it is written.
    assert not {name for name in names if name.startswith("ojs.")}


@pytest.mark.usefixtures("by_queue")
def test_queues_rest_and_are_measured_all_the_same(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is due in them later is found in time."""
    monkeypatch.delattr(api.runtime, "metrics_sweep")
    job_id = api.push(options={"scheduled_at": "+PT30M"})
    api.clock.advance(QUIET_MS)
    handler(EVENT, None)
    api.clock.advance(60_000)
    capsys.readouterr()
    assert handler(EVENT, None) == {}
    assert api.runtime.sweep_queues.plan().names == []
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in told if line.get("queue") == "default"]
    # A queue without a bound is told of, though nobody looks at it.
    assert api.runtime.reconcile.run_once(api.clock.now_ms(), 10) == {"unbounded": 1}
    api.clock.advance(19 * 60_000)
    assert handler(EVENT, None) == {"promoted": 1}
    assert [job["id"] for job in api.fetch()] == [job_id]


def test_the_sweep_is_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(*[{"promoted": 1, "more": 1}] * 1_000)
    monkeypatch.setattr(api.runtime, "sweep", sweep)
    assert handler(EVENT, Context(10**9))["promoted"] == module.MAX_PASSES


def test_dead_letters_come_back_and_go_and_it_is_told(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    rule = {"name": "a", "filter": {"type": "test.back"}, "delay": "PT1H", "max_replays": 1}
    config = {"replay_rules": [rule], "dead_letter": {"retention": {"max_age": "P1D"}}}
    assert api("PUT", "/ojs/v1/queues/default/config", config).status == 200
    jobs = {}
    for kind, options in (("back", {}), ("back", {"unique": {"keys": ["type"]}}), ("gone", {})):
        job_id = api.push(type=f"test.{kind}", options=options)
        error = {"code": "DEAD_LETTER", "message": "no"}
        api.fetch()
        api.post("/ojs/v1/workers/nack", {"job_id": job_id, "error": error})
        jobs[job_id] = kind
    holder = api.push(type="test.back", options={"unique": {"keys": ["type"]}})
    api.clock.advance(3_700_000)
    with caplog.at_level("INFO"):
        handler(EVENT, Context(50_000))
    first, second, third = jobs
    told = {line.message: line.__dict__ for line in caplog.records}
    assert told["Dead letters replayed"]["counts"] == {"looked": 3, "replayed": 1, "skipped": 1}
    skipped = told["Replaying a dead letter failed"]
    assert (skipped["job_id"], skipped["rule"], skipped["queue"]) == (second, "a", "default")
    assert {job["id"] for job in api.fetch(count=5)} == {first, holder}
    # As the stream will have it.
    update = Update(keys.stats("default"), keys.NOW, set={"dead": 2})
    api.runtime.table.update(update)
    api.clock.advance(86_400_000)
    caplog.clear()
    with caplog.at_level("INFO"):
        handler(EVENT, Context(50_000))
        # With little time left it waits.
        handler(EVENT, Context(module.DEAD_LETTERS_SPARE_MS))
    told = {line.message: line.__dict__ for line in caplog.records}
    assert told["Dead letters pruned"]["counts"] == {"pruned": 2}
    for job_id in (second, third):
        assert api.get(f"/ojs/v1/dead-letter/{job_id}").status == 404


# --- worker pools -------------------------------------------------------------------------------


@pytest.mark.usefixtures("by_queue")
@pytest.mark.requirement("FS-25", "FS-26")
def test_pools_are_looked_at_and_told_of_as_metrics(
    api: Api, gauges: Gauges, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the gauges, which have the last seconds to themselves."""
    api.runtime.pools.put("general", {"queues": ["critical", "low"], "concurrency": 4})
    api.runtime.pools.put("free", {"queues": ["aside"]})
    table = api.runtime.table
    table.update(Update(keys.counter(":general"), keys.SEMAPHORE, set={"n": 3}))
    table.update(
        Update(keys.stats("low"), keys.minute("2026-05-28T20:26"), set={"started": 5}),
    )
    handler(EVENT, Context(50_000))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    written = {
        (line.get("queue") or line.get("pool"), name): line[name]
        for line in lines
        for name in (rows.DISPATCH_RATIO.name, rows.POOL_UTILIZATION.name)
        if name in line
    }
    assert written == {
        ("general", rows.POOL_UTILIZATION.name): [0.75],
        ("critical", rows.DISPATCH_RATIO.name): [0.0],
        ("low", rows.DISPATCH_RATIO.name): [1.0],
        ("aside", rows.DISPATCH_RATIO.name): [0.0],
    }
    units = {
        each["Name"]: each["Unit"]
        for line in lines
        for described in line.get("_aws", {}).get("CloudWatchMetrics", ())
        for each in described["Metrics"]
    }
    assert units[rows.DISPATCH_RATIO.name] == units[rows.POOL_UTILIZATION.name] == "None"
    assert len(gauges.asked) == 1


def test_only_so_many_pools_and_queues_are_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    """CloudWatch is paid for by metric."""
    pools = [PoolMetrics(f"p{n:03d}", 0.5, {f"q{n:03d}": 0.5}) for n in range(150)]
    metrics.write_pools(pools, Settings("table", metrics="queues"))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == metrics.MAX_POOLS + 20
    assert not [line for line in lines if line.get("pool", "")[1:] >= "100"]
    assert not [line for line in lines if line.get("queue", "")[1:] >= "020"]


def test_pools_leave_the_gauges_their_time(api: Api, gauges: Gauges) -> None:
    api.runtime.pools.put("general", {"queues": ["low"]})
    handler(EVENT, Context(module.DEAD_LETTERS_SPARE_MS))
    ((_, _, time_left),) = gauges.asked
    assert time_left


def test_backlogs_are_written_for_groups_with_workers(capsys: pytest.CaptureFixture[str]) -> None:
    """And that jobs wait where there is none; of a group with nothing to do and nobody, nothing."""
    found = [
        Backlog("busy", waiting=6, running=3, workers=2),
        Backlog("idle", workers=1),
        Backlog("alone", waiting=1),
        Backlog("away", running=1),
        Backlog("nothing"),
    ]
    lines = lines_of(capsys, MetricsReport({}, NOW_MS, backlogs=found))
    told = {
        (line["group"], name): line[name]
        for line in lines
        for name in (rows.BACKLOG.name, rows.MISSING.name)
        if name in line
    }
    assert told == {
        ("busy", rows.BACKLOG.name): [4.5],
        ("idle", rows.BACKLOG.name): [0.0],
        ("alone", rows.MISSING.name): [1.0],
    }
