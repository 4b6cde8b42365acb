"""What every sweep has in common: the call that runs it and the report that it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

# Returns whether there is time left.
GoOn = Callable[[], bool]


def always() -> bool:
    """A `GoOn` without a time limit."""
    return True


@dataclass(frozen=True, eq=False)
class SweepReport(Mapping[str, int]):
    """What one run of a sweep did: a mapping from kinds of work to how often each was done.

    `more` in it is 1 when the run ended early and another should follow.
    """

    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def more(self) -> bool:
        """Whether the run ended early and another should follow."""
        return bool(self.counts.get("more"))

    def has_news(self, usual: frozenset[str]) -> bool:
        """Whether anything was done besides the `usual` kinds of work."""
        return any(count for name, count in self.counts.items() if name not in usual)

    def __getitem__(self, name: str) -> int:
        return self.counts[name]

    def __contains__(self, name: object) -> bool:
        # A Counter raises no KeyError, which Mapping would go by.
        return name in self.counts

    def __iter__(self) -> Iterator[str]:
        return iter(self.counts)

    def __len__(self) -> int:
        return len(self.counts)


class Sweep(Protocol):
    """A bounded piece of background work. Safe to repeat, and to run twice at once."""

    @property
    def name(self) -> str:
        """What the function that runs sweeps calls this one."""
        ...

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Do up to about `limit` units of work while `go_on` says that there is time left."""
        ...
