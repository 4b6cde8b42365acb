"""Repairs counters that have drifted: depth counters, and semaphores of queues, pools and workers.

A counter is raised before the write that it counts, and lowered after the write that ends it. So it
drifts only when a function dies in between, and only upwards: it never shows too few. It must not
do so after a repair either, so a counter is lowered only when no function can be about to make a
write that it counts, or to lower it:

1. it has not changed for SETTLED_MS, which is longer than any function runs: everything counted is
   stored, or never will be
2. the jobs are counted, by their records and by the projection. The larger number counts
3. the number is recorded, and nothing else happens for SETTLED_MS: a job that had ended when it was
   counted, but was not yet subtracted, is subtracted by then, which changes the counter
4. if the counter did not change in that time, it was too high already: it is set to the recorded
   number, or to the number counted now if that is larger, on condition that it is still unchanged

Under constant traffic drift stays: a full queue or pool gets its permits back when it is at rest.
"""

from __future__ import annotations

from enum import Enum, auto

from ojs.store.permits.counter_items import CounterStore, CounterValue

# The sweep runs for 55 s, a request for 29 s; the index is late by less than the rest.
SETTLED_MS = 60_000
# How long to wait for fetches that began before they could know of a limit, in seconds.
GRACE_S = 1.0
_ROUNDS = 4
# For so long after that, the sweep looks for fetches that took longer, and for jobs that the index
# did not list.
_CONFIGURED_MS = 180_000
# Running jobs of one queue that are read one by one; each costs a read unit or half of one.
MOST_COUNTED = 20_000
# Running jobs that one request gives a permit, a write each.
MOST_TAKEN = 1_000


class Repair(Enum):
    """What was done about a counter that differs from a recount."""

    NOTHING = auto()
    SUSPECTED = auto()
    RAISED = auto()
    LOWERED = auto()


def at_rest(value: CounterValue, now_ms: int) -> bool:
    """Whether every function that changed the counter has ended by now."""
    return now_ms - value.changed_ms >= SETTLED_MS


def larger(recounted: int, projected: int, shown: int) -> int:
    """The larger of two counts; but the projection may be late, so that it alone is no reason to
    count more than the counter shows.
    """
    return max(recounted, min(projected, shown))


def repair(
    store: CounterStore, name: str, value: CounterValue, count: int, size: int, now_ms: int
) -> Repair:
    """Set the tracked part of a counter at rest to what was recounted: at once when it is too low,
    otherwise when a second recount, SETTLED_MS later, finds it too high as well. Raises OjsError.
    """
    tracked = (value.tracked, value.tracked_bytes)
    if (count, size) == tracked:
        return Repair.NOTHING
    done = Repair.LOWERED
    if count > value.tracked or size > value.tracked_bytes:
        done = Repair.RAISED
        count, size = max(count, value.tracked), max(size, value.tracked_bytes)
    elif value.drift is None:
        store.record_drift(name, value, count=count, size=size, now_ms=now_ms)
        return Repair.SUSPECTED
    elif now_ms - value.drift.at_ms < SETTLED_MS:
        return Repair.NOTHING
    else:
        count, size = max(count, value.drift.count), max(size, value.drift.size)
    if (count, size) == tracked or not store.repair(name, value, count=count, size=size):
        return Repair.NOTHING
    return done
