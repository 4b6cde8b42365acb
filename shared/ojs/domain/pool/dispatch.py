"""The order in which a pool's queues are served.

Every dispatch has a sequence number, which is allotted once (`ojs.store.permits.sequencer`). The
number alone tells which queue it belongs to, so any number of fetchers agree on the order and none
has to wait for another. Pure.

- round-robin and weighted: a repeating sequence in which each queue occurs as often as its weight
  says, as evenly as possible
- strict and least-loaded: numbers are *free*; the fetch that has one decides which queue to serve
- with a guaranteed ratio, numbers are grouped in frames; in each frame every queue has one number
  of its own, and the others follow the strategy

A number whose queue has no jobs goes to the queues that have some, in the same proportions
(`instead`). The empty queue gets no credit for it.
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


# A frame is shorter than the ratio requires by this factor, where possible: concurrent fetchers end
# in another order than they began, and a window of measurement may begin in the middle of a frame.
_MARGIN = 1.1


@record(frozen=True)
class DispatchSequence:
    """Which sequence number belongs to which queue.

    `weights` has one for each queue where they follow a repeating sequence, else it is empty.
    `ratio` is the smallest part of all numbers that each queue is guaranteed; 0 for no guarantee.
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
        """The sequence of a strategy; a queue without a weight has weight 1."""
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
        """Whether dispatches need numbers: not if all are free, nor with a single queue."""
        return len(self.queues) > 1 and bool(self.weights or self.ratio)

    @cached_property
    def frame(self) -> int:
        """How many numbers a frame has; 0 without a guaranteed ratio."""
        if not self.ratio:
            return 0
        return max(len(self.queues), math.floor(1 / (self.ratio * _MARGIN) + 1e-9), 1)

    @cached_property
    def _own(self) -> Mapping[int, str]:
        """The numbers in a frame that are guaranteed to a queue, evenly spaced."""
        if not self.frame:
            return {}
        return {at * self.frame // len(self.queues): name for at, name in enumerate(self.queues)}

    @cached_property
    def _passed(self) -> Sequence[int]:
        """For each number of a frame, how many guaranteed ones are before it."""
        counts = [0]
        for at in range(self.frame):
            counts.append(counts[-1] + (at in self._own))
        return counts

    def at(self, number: int) -> str | None:
        """The queue that a number belongs to; None for a free number."""
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
        """Which of `queues`, those that have jobs, gets a number that belongs to none of them.

        Such numbers are distributed like all others: the n-th of them to the n-th queue of the
        sequence of these queues alone. Without weights it is the first queue as listed. `queues`
        must not be empty.
        """
        left = tuple(name for name in self.queues if name in queues)
        if not self.weights:
            return left[0]
        by_name = dict(zip(self.queues, self.weights, strict=True))
        sequence = _sequence(left, tuple(by_name[name] for name in left))
        return sequence[self._others_before(number, left) % len(sequence)]

    def _others_before(self, number: int, left: tuple[str, ...]) -> int:
        """How many numbers before this one belong to none of these queues."""
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
    """Each queue as often as its weight says, as evenly as possible: after any prefix, no queue is
    a whole place ahead of its part or behind it.

    The j-th place of a queue has a window, which opens where it would no longer be ahead and closes
    where it would be behind. Of the open windows the one that closes first is next, of several the
    first listed. Such a schedule always exists, and this rule finds it (Baruah et al.,
    Proportionate progress, 1996).
    """
    divisor = math.gcd(*weights)
    parts = [weight // divisor for weight in weights]
    total = sum(parts)
    # Open windows: where they close, the queue, and its places so far. Closed: where they open,
    # and then the same.
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
    """How many places of a sequence belong to no queue of `left`: before each place, in all."""
    counts = [0]
    for name in _sequence(queues, weights):
        counts.append(counts[-1] + (name not in left))
    return tuple(counts)
