"""Every minute: apply to jobs what time has decided and no request has noticed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from aws_lambda_powertools import Logger

from ojs import runtime

logger = Logger()

# Jobs moved by one pass; the clock is read anew for each.
PASS_LIMIT = 1_000
MAX_PASSES = 50
# A pass ends, and no other begins, when less than this is left before the function is stopped.
SPARE_MS = 5_000
_DEFAULT_MS = 55_000


def handler(_event: Mapping[str, Any], context: object) -> dict[str, int]:
    """Sweep until nothing is left to do or time runs out; returns counts by what was done."""
    current = runtime.current()
    remaining = getattr(context, "get_remaining_time_in_millis", None)
    end_ms = current.clock.now_ms() + _DEFAULT_MS

    def go_on() -> bool:
        left_ms = remaining() if callable(remaining) else end_ms - current.clock.now_ms()
        return bool(left_ms > SPARE_MS)

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
