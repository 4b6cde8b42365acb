"""Whose turn it is: the order in which a pool's queues are served (fair-scheduling seed, sections 7
and 8).

Every dispatch has a number, its *turn*, which is given out once (`ojs.store.permits.sequencer`). Which queue a
turn belongs to is worked out from the number alone, so that any number of fetchers agree on it and
none of them has to wait for another. Pure.

- round-robin and weighted: a sequence that comes round again; in it each queue stands as often as
  its weight says, as evenly as can be
- strict and least-loaded: turns are *free*, whoever has one looks which queue is to be served
- with a guaranteed ratio, turns are in frames; in each frame every queue has one turn of its own,
  and the others go by the strategy

A turn whose queue has no jobs is not lost, and gives no credit either: it goes to the queues that
have, in the same proportions (`instead`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import heappop, heappush

STRICT, ROUND_ROBIN, WEIGHTED, LEAST_LOADED = "strict", "round-robin", "weighted", "least-loaded"
STRATEGIES = (STRICT, ROUND_ROBIN, WEIGHTED, LEAST_LOADED)

# A frame is this much shorter than the ratio asks for, where there is room: fetchers at work at the
# same time end in another order than they began, and a window may begin in the midst of a frame.
_MARGIN = 1.1


@dataclass(frozen=True)
class DispatchSequence:
    """The turns of some queues. `weights` by queue for those that go by a sequence, else empty;
    `ratio` is the part of all turns that each queue has at least, 0 for no such promise.
    """

    queues: tuple[str, ...]
    weights: tuple[int, ...] = ()
    ratio: float = 0.0

    @classmethod
    def of(
        cls,
        queues: Sequence[str],
        strategy: str,
        weights: Mapping[str, int] | None = None,
        ratio: float = 0.0,
    ) -> DispatchSequence:
        """The turns of a strategy; a queue without a weight has 1."""
        sequence: tuple[int, ...] = ()
        if strategy == ROUND_ROBIN:
            sequence = (1,) * len(queues)
        elif strategy == WEIGHTED:
            sequence = tuple((weights or {}).get(name, 1) for name in queues)
        return cls(tuple(queues), sequence, ratio)

    @property
    def counted(self) -> bool:
        """Whether turns must have numbers: not where all are free, nor where there is no choice."""
        return len(self.queues) > 1 and bool(self.weights or self.ratio)

    @cached_property
    def frame(self) -> int:
        """How many turns a frame has; 0 without a guaranteed ratio."""
        if not self.ratio:
            return 0
        return max(len(self.queues), math.floor(1 / (self.ratio * _MARGIN) + 1e-9), 1)

    @cached_property
    def _own(self) -> Mapping[int, str]:
        """The turns of a frame that belong to a queue, evenly apart."""
        if not self.frame:
            return {}
        return {at * self.frame // len(self.queues): name for at, name in enumerate(self.queues)}

    @cached_property
    def _passed(self) -> Sequence[int]:
        """How many such turns there are before each of a frame."""
        counts = [0]
        for at in range(self.frame):
            counts.append(counts[-1] + (at in self._own))
        return counts

    def at(self, turn: int) -> str | None:
        """The queue whose turn it is; None for a free one."""
        if self.frame:
            frames, at = divmod(turn, self.frame)
            if at in self._own:
                return self._own[at]
            turn = frames * (self.frame - len(self._own)) + at - self._passed[at]
        if not self.weights:
            return None
        sequence = _sequence(self.queues, self.weights)
        return sequence[turn % len(sequence)]

    def instead(self, turn: int, queues: Collection[str]) -> str:
        """Which of `queues`, those that have jobs, gets a turn that none of them has.

        Turns of this kind are shared out as all are: the first of them to the first of a sequence
        of these queues alone, and so on. There must be one queue at least; without a sequence it is
        the first as listed.
        """
        left = tuple(name for name in self.queues if name in queues)
        if not self.weights:
            return left[0]
        by_name = dict(zip(self.queues, self.weights, strict=True))
        sequence = _sequence(left, tuple(by_name[name] for name in left))
        return sequence[self._others_before(turn, left) % len(sequence)]

    def _others_before(self, turn: int, left: tuple[str, ...]) -> int:
        """How many turns before this one belong to none of these queues."""
        others = 0
        if self.frame:
            frames, at = divmod(turn, self.frame)
            skipped = [place for place, name in self._own.items() if name not in left]
            others = frames * len(skipped) + sum(place < at for place in skipped)
            turn = frames * (self.frame - len(self._own)) + at - self._passed[at]
        before = _before(self.queues, self.weights, left)
        rounds, at = divmod(turn, len(before) - 1)
        return others + rounds * before[-1] + before[at]


@lru_cache(maxsize=256)
def _sequence(queues: tuple[str, ...], weights: tuple[int, ...]) -> tuple[str, ...]:
    """Each queue as often as its weight says, as evenly as can be: wherever one stops, none is a
    whole turn ahead of its part or behind it.

    The j-th turn of a queue has a window: from where it would not be ahead to where it would be
    behind. Of the turns whose window is open the one that closes first is next, of several the
    first listed; on one line that finds a way whenever there is one, and there is one (Baruah et
    al., Proportionate progress, 1996).
    """
    divisor = math.gcd(*weights)
    parts = [weight // divisor for weight in weights]
    total = sum(parts)
    # Windows: where they close, of which queue, and how many turns it had; and where those open
    # that are shut.
    opened = sorted((-(-total // part), at, 0) for at, part in enumerate(parts))
    shut: list[tuple[int, int, int, int]] = []
    sequence = []
    for place in range(total):
        while shut and shut[0][0] <= place:
            heappush(opened, heappop(shut)[1:])
        _, at, had = heappop(opened)
        sequence.append(queues[at])
        if (had := had + 1) < parts[at]:
            opens, closes = had * total // parts[at], -(-(had + 1) * total // parts[at])
            heappush(shut, (opens, closes, at, had))
    return tuple(sequence)


@lru_cache(maxsize=1_024)
def _before(
    queues: tuple[str, ...], weights: tuple[int, ...], left: tuple[str, ...]
) -> tuple[int, ...]:
    """How many turns of a sequence belong to none of these queues, before each place and in all."""
    counts = [0]
    for name in _sequence(queues, weights):
        counts.append(counts[-1] + (name not in left))
    return tuple(counts)
