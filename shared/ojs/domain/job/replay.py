"""The record of a job's replays by rules.

It is kept in the job record, apart from what the client sent, and shown in the job's meta.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from ojs.domain import jsontext, times
from ojs.records import record

# Names in the job's meta.
COUNT, AT, RULE = "ojs.replay_count", "ojs.last_replayed_at", "ojs.replay_rule"


@record(frozen=True)
class Replays:
    """The latest replay, by `rule` at `at_ms`, and how many there were by each rule."""

    rule: str
    at_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | None) -> Replays | None:
        """Read back what `compact` wrote; None where there was no replay."""
        return None if text is None else cls(*jsontext.stored(text))

    def compact(self) -> str:
        """The stored form in a job record, which differs after each replay."""
        return jsontext.dumps([self.rule, self.at_ms, dict(self.counts)])

    def meta(self) -> dict[str, Any]:
        """The entries in the job's meta: the latest replay, and how many there were by its rule."""
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
    """The stored form after another replay by `rule`. The counts of other rules stay while they are
    among `rules`.
    """
    replays = Replays.of(replayed)
    before = {} if replays is None else replays.counts
    counts = {name: times_ for name, times_ in before.items() if name in rules}
    counts[rule] = before.get(rule, 0) + 1
    at_ms = now_ms if replays is None else max(now_ms, replays.at_ms + 1)
    return Replays(rule, at_ms, counts).compact()


def shown(meta: Any, replayed: str | None) -> Any:
    """A job's meta with the entries about its replays."""
    replays = Replays.of(replayed)
    return meta if replays is None else {**meta, **replays.meta()}
