"""The order in which a pool's queues are served. Pure.

Each dispatch has a unique sequence number (`ojs.store.permits.sequencer`). The number determines
the queue. Therefore all fetchers agree on the order, and none of them waits for another.

- Round-robin and weighted: a repeating sequence in which each queue occurs in proportion to its
  weight, as evenly as possible.
- Strict and least-loaded: numbers are *free*. The fetch with the number chooses the queue.
- With a guaranteed ratio, numbers are grouped in frames. In each frame, one number is reserved for
  each queue, and the other numbers follow the strategy.

If the queue of a number has no jobs, the number is distributed among the queues with jobs, in the
same proportions (`instead`). The empty queue gets no credit for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from functools import cached_property, lru_cache
from heapq import heappop, heappush
from typing import assert_never

from ojs.records import record


class DispatchStrategy(StrEnum):
    """The order in which the queues of a pool, or of a fetch, are served."""

    STRICT = "strict"
    ROUND_ROBIN = "round-robin"
    WEIGHTED = "weighted"
    LEAST_LOADED = "least-loaded"


# A frame is shorter by this factor than the ratio requires, if possible: concurrent fetches end in
# a different order than they start, and a measurement can start in the middle of a frame.
_MARGIN = 1.1


@record(frozen=True)
class DispatchSequence:
    """Maps sequence numbers to queues.

    `weights` has one weight per queue if the numbers follow a repeating sequence, and is empty
    otherwise. `ratio` is the guaranteed share of each queue, 0 for no guarantee.
    """

    queues: tuple[str, ...]
    weights: tuple[int, ...] = ()
    ratio: float = 0.0

    @classmethod
    def of(
        cls,
        queues: Sequence[str],
        strategy: DispatchStrategy,
        weights: Mapping[str, int] | None = None,
        ratio: float = 0.0,
    ) -> DispatchSequence:
        """Create the sequence of a strategy.

        Args:
            queues: Names of the queues.
            strategy: Dispatch strategy.
            weights: Weights by queue, used by `weighted`. Default of a queue: 1.
            ratio: Guaranteed share of each queue, 0 to 1. Default: 0, no guarantee.
        """
        sequence: tuple[int, ...]
        match strategy:
            case DispatchStrategy.ROUND_ROBIN:
                sequence = (1,) * len(queues)
            case DispatchStrategy.WEIGHTED:
                sequence = tuple((weights or {}).get(name, 1) for name in queues)
            case DispatchStrategy.STRICT | DispatchStrategy.LEAST_LOADED:
                sequence = ()
            case _:
                assert_never(strategy)
        return cls(tuple(queues), sequence, ratio)

    @property
    def counted(self) -> bool:
        """Whether dispatches need numbers. False if all numbers are free or with a single queue."""
        return len(self.queues) > 1 and bool(self.weights or self.ratio)

    @cached_property
    def frame(self) -> int:
        """Number of sequence numbers in a frame. 0 without a guaranteed ratio."""
        if not self.ratio:
            return 0
        return max(len(self.queues), math.floor(1 / (self.ratio * _MARGIN) + 1e-9), 1)

    @cached_property
    def _own(self) -> Mapping[int, str]:
        """The reserved numbers of a frame, evenly spaced, with their queues."""
        if not self.frame:
            return {}
        return {at * self.frame // len(self.queues): name for at, name in enumerate(self.queues)}

    @cached_property
    def _passed(self) -> Sequence[int]:
        """For each number of a frame, the number of reserved numbers before it."""
        counts = [0]
        for at in range(self.frame):
            counts.append(counts[-1] + (at in self._own))
        return counts

    def at(self, number: int) -> str | None:
        """Return the queue of a number, or None for a free number."""
        if self.frame:
            frames, at = divmod(number, self.frame)
            if at in self._own:
                return self._own[at]
            number = frames * (self.frame - len(self._own)) + at - self._passed[at]
        if not self.weights:
            return None
        sequence = _sequence(self.queues, self.weights)
        return sequence[number % len(sequence)]

    def instead(self, number: int, queues: Collection[str]) -> str:
        """Return the queue that gets a number whose own queue has no jobs.

        `queues` are the queues with jobs. It must not be empty. The n-th of such numbers goes to
        the n-th queue of a sequence that contains only these queues. Without weights, it goes to
        the first of them.
        """
        left = tuple(name for name in self.queues if name in queues)
        if not self.weights:
            return left[0]
        by_name = dict(zip(self.queues, self.weights, strict=True))
        sequence = _sequence(left, tuple(by_name[name] for name in left))
        return sequence[self._others_before(number, left) % len(sequence)]

    def _others_before(self, number: int, left: tuple[str, ...]) -> int:
        """Return how many lower numbers belong to none of the queues `left`."""
        others = 0
        if self.frame:
            frames, at = divmod(number, self.frame)
            skipped = [place for place, name in self._own.items() if name not in left]
            others = frames * len(skipped) + sum(place < at for place in skipped)
            number = frames * (self.frame - len(self._own)) + at - self._passed[at]
        before = _before(self.queues, self.weights, left)
        rounds, at = divmod(number, len(before) - 1)
        return others + rounds * before[-1] + before[at]


@lru_cache(maxsize=256)
def _sequence(queues: tuple[str, ...], weights: tuple[int, ...]) -> tuple[str, ...]:
    """Build a sequence in which each queue occurs in proportion to its weight.

    After any prefix, the count of a queue differs from its exact share by less than one place. The
    j-th place of a queue has a window: it opens when the queue would no longer be ahead of its
    share, and closes when the queue would be behind. The open window that closes first is next. If
    several close together, the first listed queue is next. Such a schedule always exists, and this
    rule finds it (Baruah et al., Proportionate progress, 1996).
    """
    divisor = math.gcd(*weights)
    parts = [weight // divisor for weight in weights]
    total = sum(parts)
    # Heap of open windows: closing place, queue, and number of the queue's places so far. Heap of
    # closed windows: opening place, and then the same values.
    opened = sorted((-(-total // part), at, 0) for at, part in enumerate(parts))
    closed: list[tuple[int, int, int, int]] = []
    sequence = []
    for place in range(total):
        while closed and closed[0][0] <= place:
            heappush(opened, heappop(closed)[1:])
        _, at, had = heappop(opened)
        sequence.append(queues[at])
        if (had := had + 1) < parts[at]:
            opens, closes = had * total // parts[at], -(-(had + 1) * total // parts[at])
            heappush(closed, (opens, closes, at, had))
    return tuple(sequence)


@lru_cache(maxsize=1_024)
def _before(
    queues: tuple[str, ...], weights: tuple[int, ...], left: tuple[str, ...]
) -> tuple[int, ...]:
    """Return, for each place of a sequence, the number of earlier places outside `left`.

    The last value is the total.
    """
    counts = [0]
    for name in _sequence(queues, weights):
        counts.append(counts[-1] + (name not in left))
    return tuple(counts)
