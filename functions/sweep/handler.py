"""Every minute: apply to jobs what time has decided and no request has noticed, set the gates of
queues right, look at limits that hold jobs back, then measure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
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
# A pass ends, and no other begins, when less than this is left before the function is stopped. The
# gauges need some of it, however much there is to move: alarms stand on them.
SPARE_MS = 15_000
RECONCILE_SPARE_MS = 10_000
GAUGES_SPARE_MS = 5_000
# Queues whose jobs one run counts one by one; it goes on with another queue the next minute.
RECOUNTS = 50
# Limits that hold jobs back which one run looks at.
HOLDING = 100
# Looks for oldest jobs that one run makes; it goes on with another queue the next minute.
PROBES = 1_000
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
        _reconcile(current, more_than(RECONCILE_SPARE_MS))
        _look_at_limits(current, more_than(RECONCILE_SPARE_MS))
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


def _look_at_limits(current: Runtime, go_on: Callable[[], bool]) -> None:
    counts = current.holding.run_once(current.clock.now_ms(), HOLDING, go_on)
    if counts.keys() - {"holding"}:
        logger.info("looked at limits", extra={"counts": counts})


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
