"""Every minute: apply to jobs what time has decided and no request has noticed, carry on bulk
operations, give jobs tags whose queues have become fair, set the gates of queues and worker pools
right, look at limits that hold jobs back, bring back dead letters by rule, prune them; look at
worker pools; then measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any
from weakref import WeakSet

from aws_lambda_powertools import Logger

from functions.sweep import metrics
from ojs import runtime
from ojs.runtime import Runtime

logger = Logger()

# Jobs moved by one pass; the clock is read anew for each.
PASS_LIMIT = 1_000
MAX_PASSES = 50
# Each part ends when less than this is left before the function is stopped: however much one has to
# do, those after it have their turn. Alarms stand on the gauges, which come last.
SPARE_MS = 20_000
BULK_SPARE_MS = 16_000
RECONCILE_SPARE_MS = 12_000
DEAD_LETTERS_SPARE_MS = 8_000
GAUGES_SPARE_MS = 5_000
# Queues whose jobs one run counts one by one; it goes on with another queue the next minute.
RECOUNTS = 50
# Jobs that get tags in one run at the most.
TAGGED = 10_000
# Worker pools that one run looks at; where there are more it goes on with others the next minute.
POOLS = 100
# Limits that hold jobs back which one run looks at.
HOLDING = 100
# Looks for oldest jobs that one run makes; it goes on with another queue the next minute.
PROBES = 1_000
# Dead letters that rules look at, and those that are pruned, in one run at the most.
LOOKS = 10_000
PRUNED = 10_000
# Dead letters that bulk operations retry or purge in one run at the most.
BULK = 10_000
_DEFAULT_MS = 55_000
_LOOKED_AT = frozenset({"unbounded", "bounded", "counted", "slotted"})
_warned: WeakSet[Runtime] = WeakSet()


def handler(event: Mapping[str, Any], context: object) -> dict[str, int]:
    """Sweep until nothing is left to do or time runs out; returns counts by what was done."""
    current = runtime.current()
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    end_ms = current.clock.now_ms() + _DEFAULT_MS

    def more_than(spare_ms: int) -> Callable[[], bool]:
        def go_on() -> bool:
            left_ms = remaining() if callable(remaining) else end_ms - current.clock.now_ms()
            return bool(left_ms > spare_ms)

        return go_on

    # Of the event that EventBridge sent; everything logged below this call carries it.
    logger.thread_safe_append_keys(correlation_id=event.get("id"))
    try:
        result = _sweep(current, more_than(SPARE_MS))
        _bulk(current, more_than(BULK_SPARE_MS))
        _tag(current, more_than(BULK_SPARE_MS))
        _reconcile(current, more_than(RECONCILE_SPARE_MS))
        _seat(current, more_than(RECONCILE_SPARE_MS))
        _look_at_limits(current, more_than(RECONCILE_SPARE_MS))
        _dead_letters(current, more_than(DEAD_LETTERS_SPARE_MS))
        _look_at_pools(current, more_than(DEAD_LETTERS_SPARE_MS))
        seen = current.gauges.run_once(current.clock.now_ms(), PROBES, more_than(GAUGES_SPARE_MS))
        logger.debug("measured", extra={"counts": dict(seen.counts)})
        metrics.write(seen, service=current.settings.service)
    finally:
        logger.thread_safe_remove_keys(["correlation_id"])
    return result


def _reconcile(current: Runtime, go_on: Callable[[], bool]) -> None:
    counts = current.reconcile.run_once(current.clock.now_ms(), RECOUNTS, go_on)
    if counts.get("unbounded") and current not in _warned:
        # Backpressure seed, section 6.3: operators should know. Once for each container.
        _warned.add(current)
        logger.warning("queues have no bound", extra={"count": counts["unbounded"]})
    if {name for name, count in counts.items() if count} - _LOOKED_AT:
        logger.info("reconciled", extra={"counts": counts})


def _seat(current: Runtime, go_on: Callable[[], bool]) -> None:
    counts = current.seating.run_once(current.clock.now_ms(), go_on)
    if {name for name, count in counts.items() if count} - _LOOKED_AT:
        logger.info("set places in pools right", extra={"counts": counts})


def _bulk(current: Runtime, go_on: Callable[[], bool]) -> None:
    counts = current.bulk.run_once(current.clock.now_ms(), BULK, go_on)
    if counts.keys() - {"more"}:
        logger.info("carried on bulk operations", extra={"counts": counts})


def _tag(current: Runtime, go_on: Callable[[], bool]) -> None:
    counts = current.tagging.run_once(current.clock.now_ms(), TAGGED, go_on)
    if counts.keys() - {"tagging", "passes"}:
        logger.info("gave jobs tags", extra={"counts": counts})


def _dead_letters(current: Runtime, go_on: Callable[[], bool]) -> None:
    """What may come back does so before what is kept no longer goes."""
    replayed = current.replay.run_once(current.clock.now_ms(), LOOKS, go_on)
    for one in replayed.skipped:
        # It may be a duplicate, or of a type that its queue does not take any more.
        logger.warning("a dead letter cannot be replayed", extra=asdict(one))
    if replayed.counts.keys() - {"looked"}:
        logger.info("replayed", extra={"counts": dict(replayed.counts)})
    if counts := current.prune.run_once(current.clock.now_ms(), PRUNED, go_on):
        logger.info("pruned", extra={"counts": counts})


def _look_at_limits(current: Runtime, go_on: Callable[[], bool]) -> None:
    counts = current.holding.run_once(current.clock.now_ms(), HOLDING, go_on)
    if counts.keys() - {"holding"}:
        logger.info("looked at limits", extra={"counts": counts})


def _look_at_pools(current: Runtime, go_on: Callable[[], bool]) -> None:
    watched = current.pool_watch.run_once(current.clock.now_ms(), POOLS, go_on)
    if watched.counts.keys() - {"pools"}:
        logger.info("looked at pools", extra={"counts": dict(watched.counts)})
    metrics.write_pools(watched.pools, service=current.settings.service)


def _sweep(current: Runtime, go_on: Callable[[], bool]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    more = True
    for _ in range(MAX_PASSES):
        if not (more and go_on()):
            break
        done = dict(current.sweep.run_once(current.clock.now_ms(), PASS_LIMIT, go_on))
        more = bool(done.pop("more", 0))
        counts.update(done)
        # What cannot be moved now is found again and again: leave it to the next minute.
        if done and done.keys() <= {"failed"}:
            break
    result = {name: count for name, count in counts.items() if count}
    if result:
        logger.info("swept", extra={"counts": result, "more": more})
    return result | ({"more": 1} if more else {})
