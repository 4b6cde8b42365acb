"""What the event log and the statistics must say, worked out anew from all that was written.

Of each change of a job record this tells what happened (docs/events.md), and what is counted of it
(docs/statistics.md); nothing of the projection's own reading of it is used here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ojs.domain import times
from ojs.domain.job.states import State
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY
from ojs.domain.tenants import get_tenant
from ojs.store.queues import workers
from ojs.store.table import keys
from tests.store.streams import recount, recount_behind

Item = dict[str, Any]
# (old, new, second) of an item.
Record = tuple[Item | None, Item | None, int]
Place = tuple[str, str]
# Events of a job, and under which name they are counted.
_COUNTED = {
    "job.enqueued": "enqueued",
    "job.started": "started",
    "job.completed": "completed",
    "job.discarded": "failed",
    "job.failed": "failures",
    "job.retrying": "retried",
    "job.cancelled": "cancelled",
    "job.expired": "expired",
}
_BY_DAY = {
    "dead_letter.retried": "dead_retried",
    "dead_letter.pruned": "dead_pruned",
    "backpressure.dropped": "dropped",
}
# By day and type of job, too.
_OF_TYPES = {
    **{kind: name for kind, name in _COUNTED.items() if name not in ("started", "failures")},
    "dead_letter.added": "dead_added",
}
# What this recounts of each kind of item; others are left out of the comparison.
OF_NOW = frozenset(f"t_{name}" for name in _COUNTED.values())
OF_MINUTE = frozenset((*_COUNTED.values(), "wait_ms", "waits", "run_ms", "runs"))
OF_DAY = OF_MINUTE | {*_BY_DAY.values(), "created", "deleted", "rejected"}


@dataclass
class Told:
    """Events, by type and subject, and counters by item of the statistics."""

    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    # Dead letters that were pruned, by queue: one event may tell of several.
    pruned: Counter[str] = field(default_factory=Counter)
    counts: defaultdict[Place, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def tell(self, kind: str, subject: str) -> None:
        self.events[kind, subject] += 1

    def count(self, queue: str, at_ms: int, name: str, count: int = 1, *, often: bool) -> None:
        """In the day's item; `often` is for what is counted by minute, too."""
        text = times.format_ms(at_ms)
        self.counts[queue, keys.day(text[:10])][name] += count
        if often:
            self.counts[queue, keys.minute(text[:16])][name] += count


def told_by(stream: Iterable[Record], errors: Mapping[Place, str]) -> Told:
    """What follows from these records. `errors` are the types of stored errors, by key."""
    told = Told()
    staged: defaultdict[str, list[Item]] = defaultdict(list)
    for old, new, second in stream:
        item = new or old
        assert item is not None
        kind, _, name = str(item["pk"]).partition("|")
        if kind == "J" and old is None and new is not None and "batch" in new:
            # It does not exist before its batch is committed.
            staged[new["batch"]].append(new)
        elif kind == "J":
            _job(told, old, new, second, errors)
        elif kind == "B" and new is None and old is not None and old["state"] == "staging":
            for record in staged.pop(name, []):
                _job(told, None, record, second, errors)
        elif kind == "Q":
            _queue(told, name, old, new, second)
        elif kind in _OTHERS:
            _OTHERS[kind](told, item, old, new)
    return told


def levels(found: Collection[Item]) -> dict[str, Counter[str]]:
    """How many jobs there are, by queue, state, priority and kind; by pool those that run."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for queue, behind in recount_behind(found).items():
        counts[queue].update(behind)
    for queue, there in recount(found).items():
        counts[queue].update(there)
        if (tenant := get_tenant(queue)) is not None:
            counts[f"%{tenant}"].update({state: there[state] for state in State})
    for item in found:
        if item["pk"].startswith(keys.job("")) and item["sk"] == keys.RECORD:
            runs = item["state"] == "active"
            if runs and "pool" in item:
                counts[keys.pool_stats(item["pool"])]["active"] += 1
    return counts


def _cron(told: Told, item: Item, old: Item | None, new: Item | None) -> None:
    if old is None and new is not None:
        name = str(item["pk"]).removeprefix(keys.cron_runs(""))
        told.tell("cron.skipped" if "reason" in item else "cron.triggered", name)


# --- jobs -----------------------------------------------------------------------------------------


def _job(
    told: Told, old: Item | None, new: Item | None, second: int, errors: Mapping[Place, str]
) -> None:
    if new is None:
        assert old is not None
        if "dead" in old and "deleting" in old:
            told.tell("dead_letter.deleted", keys.job_id(old["pk"]))
        elif "dead" in old:
            told.pruned[old["queue"]] += 1
            told.count(old["queue"], second * 1_000, "dead_pruned", often=False)
        return
    for kind, at_ms in _steps(old, new, second, errors):
        subject = new["queue"] if kind == "queue.overflow" else keys.job_id(new["pk"])
        told.tell(kind, subject)
        queue = new["queue"]
        if kind == "dead_letter.retried" and old is not None:
            # Of the queue whose dead letter it was.
            queue = old["queue"]
        if kind in _BY_DAY:
            told.count(queue, at_ms, _BY_DAY[kind], often=False)
        if kind in _OF_TYPES:
            told.count(queue, at_ms, f"{_OF_TYPES[kind]}|{new['type']}", often=False)
        if kind in _COUNTED:
            told.count(queue, at_ms, _COUNTED[kind], often=True)
            if (tenant := get_tenant(queue)) is not None:
                minute = keys.minute(times.format_ms(at_ms)[:16])
                told.counts[f"%{tenant}", minute][_COUNTED[kind]] += 1
            told.counts[queue, keys.NOW][f"t_{_COUNTED[kind]}"] += 1
        _lengths(told, kind, at_ms, old, new)


def _lengths(told: Told, kind: str, at_ms: int, old: Item | None, new: Item) -> None:
    """How long a job waited before it ran, or how long it ran."""
    if kind == "job.started":
        waited = max(0, at_ms - (new.get("enqueued") or new["created"]))
        told.count(new["queue"], at_ms, "wait_ms", waited, often=True)
        told.count(new["queue"], at_ms, "waits", often=True)
        if "pool" in new:
            told.count(new["queue"], at_ms, f"s_{new['pool']}", often=False)
    # A lease that ran out does not tell how long the job ran.
    ended = kind == "job.completed" or (kind == "job.failed" and new["state"] != "available")
    if ended and old is not None:
        ran = max(0, at_ms - new["started"]) if "started" in new else 0
        told.count(new["queue"], at_ms, "run_ms", ran, often=True)
        told.count(new["queue"], at_ms, "runs", often=True)


def _steps(
    old: Item | None, new: Item, second: int, errors: Mapping[Place, str]
) -> Iterator[tuple[str, int]]:
    """What happened, and when."""
    was, now = None if old is None else old["state"], new["state"]
    if old is not None:
        yield from _of_durable_code(old, new, second)
    if now == "active" and old is not None:
        yield from _held(old, new)
    elif now in (was, "pending"):
        return
    elif now == "available":
        yield from _available(old, new)
    elif now == "scheduled":
        yield "job.scheduled", new["created"] if old is None else second * 1_000
    elif now == "retryable":
        at_ms = new["retry_at"] - new["retry_delay"]
        yield "job.failed", at_ms
        yield "job.retrying", at_ms
    elif now == "discarded":
        yield from _discarded(old, new, errors)
    else:
        # Completed, cancelled.
        yield f"job.{now}", new[now]


def _held(old: Item, new: Item) -> Iterator[tuple[str, int]]:
    if old["state"] != "active":
        # A worker that was lost may speak up again, with the lease that it had.
        resumed = old.get("stalled") == new["lease"]
        if old["state"] != "available":
            # It was not put in line first.
            yield "job.enqueued", new["enqueued"]
        yield "job.heartbeat" if resumed else "job.started", new["started"]
    elif new["lease_until"] > old["lease_until"]:
        yield "job.heartbeat", 0


def _of_durable_code(old: Item, new: Item, second: int) -> Iterator[tuple[str, int]]:
    more = {name: new.get(name, 0) > old.get(name, 0) for name in ("cp", "stn", "sgn")}
    if more["cp"]:
        yield "job.checkpointed", second * 1_000
    if more["stn"] and old["state"] == "active" != new["state"]:
        yield "job.suspended", new["enqueued"]
    if more["sgn"] or (more["stn"] and "waits" in old):
        yield "job.signalled", second * 1_000


def _available(old: Item | None, new: Item) -> Iterator[tuple[str, int]]:
    at_ms = new["enqueued"]
    was = None if old is None else old["state"]
    if was == "active" and "stalled" in new:
        yield "job.failed", at_ms
    if was == "discarded" and old is not None:
        by_rule = new.get("replayed") != old.get("replayed")
        yield f"dead_letter.{'replayed' if by_rule else 'retried'}", at_ms
    yield "job.enqueued", at_ms


def _discarded(
    old: Item | None, new: Item, errors: Mapping[Place, str]
) -> Iterator[tuple[str, int]]:
    assert old is not None
    at_ms = new["discarded"]
    if old["state"] == "active":
        yield "job.failed", at_ms
    else:
        place = keys.error(new.get("life", 0), new.get("attempt", 0), ended=True)
        why = errors.get((new["pk"], place))
        if why == "overflow":
            yield "backpressure.dropped", at_ms
            yield "queue.overflow", at_ms
        elif why == "rate_limited":
            yield "rate_limit.dropped", at_ms
        elif old.get("expires", at_ms + 1) <= at_ms:
            yield "job.expired", at_ms
    yield "job.discarded", at_ms
    if "dead" in new:
        yield "dead_letter.added", at_ms


# --- all else -------------------------------------------------------------------------------------


def _queue(told: Told, name: str, old: Item | None, new: Item | None, second: int) -> None:
    if name == DEFAULT_QUEUE_POLICY:
        if (old or {}).get("config", "{}") != (new or {}).get("config", "{}"):
            told.tell("queue.config_updated", name)
        return
    if new is None:
        told.tell("queue.deleted", name)
        told.count(name, second * 1_000, "deleted", often=False)
        return
    if old is None:
        told.count(name, new["created"], "created", often=False)
        if "explicit" in new:
            told.tell("queue.created", name)
    elif old.get("config", "{}") != new.get("config", "{}"):
        told.tell("queue.config_updated", name)
    states = ("active" if old is None else old["state"], new["state"])
    if states == ("active", "paused"):
        told.tell("queue.paused", name)
    elif states == ("paused", "active"):
        told.tell("queue.resumed", name)


def _gate(told: Told, item: Item, old: Item | None, new: Item | None) -> None:
    if new is None:
        return
    name, was = item["pk"].removeprefix(keys.counter("")), old or {}
    if item["sk"] == keys.DEPTH:
        for kind, happened in _filling(was, new):
            if happened:
                told.tell(kind, name)
    elif item["sk"] == keys.REFUSED and name.startswith("%"):
        told.tell("tenant.limit_exceeded", name[1:])
    elif item["sk"] == keys.REFUSED:
        told.tell("backpressure.rejected", name)
        told.count(name, new["at"], "rejected", new["n"] - was.get("n", 0), often=False)
    else:
        _edge(told, old, new)


def _filling(old: Item, new: Item) -> Iterator[tuple[str, bool]]:
    warned, full = (
        [
            any(limit in item and item.get(unit, 0) >= item[limit] for unit, limit in pairs)
            for item in (old, new)
        ]
        for pairs in ((("n", "warn"), ("b", "warn_b")), (("n", "bound"), ("b", "bound_b")))
    )
    yield "backpressure.warning", warned == [False, True]
    yield "queue.full", full == [False, True]
    yield "backpressure.cleared", warned == [True, False]


def _limiter(told: Told, item: Item, old: Item | None, new: Item | None) -> None:
    if new is not None and item["sk"] == keys.ADJUSTED:
        told.tell("rate_limit.dynamic_adjusted", new["key"])
    elif new is not None:
        _edge(told, old, new)


def _edge(told: Told, old: Item | None, new: Item) -> None:
    held = [bool((old or {}).get("held")), bool(new["held"])]
    if held == [False, True]:
        told.tell("rate_limit.exceeded", new["key"])
    elif held == [True, False]:
        told.tell("rate_limit.released", new["key"])


def _pool(told: Told, item: Item, old: Item | None, new: Item | None) -> None:
    if old is None or new is None or item["sk"] != keys.RECORD:
        return
    if any(old.get(name) != new.get(name) for name in ("strategy", "weights")):
        told.tell("scheduling.rebalanced", item["pk"].removeprefix(keys.pool("")))


def _worker(told: Told, item: Item, old: Item | None, new: Item | None) -> None:
    before = None if old is None else workers.from_item(old)
    after = None if new is None else workers.from_item(new)
    if after is None:
        told.tell("worker.stopped", item["sk"])
    elif before is None or before.first_seen_ms != after.first_seen_ms:
        told.tell("worker.started", item["sk"])
    elif before.may_fetch and not after.may_fetch:
        told.tell("worker.quiet", item["sk"])


def _workflow(told: Told, item: Item, old: Item | None, new: Item | None) -> None:
    if new is None or item["sk"] != keys.RECORD:
        return
    name, was, now = keys.workflow_id(item["pk"]), (old or {}).get("state"), new["state"]
    if was is None:
        told.tell("workflow.created", name)
    if was != now and was in (None, "completed", "failed", "cancelled"):
        told.tell("workflow.started", name)
    else:
        for count, kind in (("completed", "step_completed"), ("failed", "step_failed")):
            told.events[f"workflow.{kind}", name] += new.get(count, 0) - (old or {}).get(count, 0)
    if now not in (was, "running"):
        told.tell(f"workflow.{now}", name)


def _delivery(told: Told, item: Item, old: Item | None, new: Item | None) -> None:
    if old is None or new is None:
        return
    name = str(item["pk"]).removeprefix(keys.delivery(""))
    was, now = "disabled" in old, "disabled" in new
    if was != now:
        told.tell("delivery.disabled" if now else "delivery.enabled", name)
    if new.get("until") is not None and new.get("until") != old.get("until"):
        told.tell("delivery.breaker_opened", name)
    elif "until" in old and "until" not in new:
        told.tell("delivery.breaker_closed", name)


def _operation(told: Told, item: Item, old: Item | None, new: Item | None) -> None:
    if new is None or new["state"] != "completed" or (old or {}).get("state") == "completed":
        return
    what, _, of_jobs = new["action"].partition("_")
    if of_jobs and what != "erase" and "dry" not in new:
        told.tell(f"bulk.{what}.completed", keys.operation_id(item["pk"]))


def _bulk_push(told: Told, item: Item, old: Item | None, new: Item | None) -> None:
    if old is None:
        told.tell("bulk.enqueue.completed", keys.bulk_push_id(item["pk"]))


def _tenant(told: Told, item: Item, old: Item | None, new: Item | None) -> None:
    if old is None:
        told.tell("tenant.created", item["pk"].partition("|")[2])


_OTHERS = {
    "TN": _tenant,
    "O": _operation,
    "BP": _bulk_push,
    "Y": _delivery,
    "W": _workflow,
    "G": _gate,
    "L": _limiter,
    "P": _pool,
    "K": _worker,
    "CR": _cron,
}
