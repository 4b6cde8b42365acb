"""What is known of a job's automatic replays (dead-letter seed, section 7.2).

It is kept on the head, apart from what the client gave, and shown in the job's meta.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ojs.domain import jsontext, times

# Where it is shown.
COUNT, AT, RULE = "ojs.replay_count", "ojs.last_replayed_at", "ojs.replay_rule"


@dataclass(frozen=True)
class Replays:
    """The latest replay, by `rule` at `at_ms`, and how many there were by each rule."""

    rule: str
    at_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | None) -> Replays | None:
        """Read back what `text` wrote; None where there was no replay."""
        return None if text is None else cls(*jsontext.stored(text))

    def text(self) -> str:
        """As the head keeps it: each replay leaves another one."""
        return jsontext.dumps([self.rule, self.at_ms, dict(self.counts)])

    def meta(self) -> dict[str, Any]:
        """What the job's meta shows: the latest replay, and how many there were by its rule."""
        return {
            COUNT: self.counts.get(self.rule, 0),
            AT: times.format_ms(self.at_ms),
            RULE: self.rule,
        }


def count(replayed: str | None, rule: str) -> int:
    """How many times a rule has replayed a job."""
    replays = Replays.of(replayed)
    return 0 if replays is None else replays.counts.get(rule, 0)


def after(replayed: str | None, rule: str, *, now_ms: int, rules: Collection[str]) -> str:
    """What the head keeps from now on. What other rules did is kept as long as there are `rules` of
    those names.
    """
    replays = Replays.of(replayed)
    before = {} if replays is None else replays.counts
    counts = {name: times_ for name, times_ in before.items() if name in rules}
    counts[rule] = before.get(rule, 0) + 1
    at_ms = now_ms if replays is None else max(now_ms, replays.at_ms + 1)
    return Replays(rule, at_ms, counts).text()


def shown(meta: Any, replayed: str | None) -> Any:
    """A job's meta with what is known of its replays."""
    replays = Replays.of(replayed)
    return meta if replays is None else {**meta, **replays.meta()}
