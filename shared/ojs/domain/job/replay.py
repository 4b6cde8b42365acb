"""Records the replays of a job by replay rules.

The job record stores them separately from the payload. Responses include them in the job's `meta`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from ojs.domain import jsontext, times
from ojs.records import record

# Keys in the job's `meta`.
COUNT, AT, RULE = "ojs.replay_count", "ojs.last_replayed_at", "ojs.replay_rule"


@record(frozen=True)
class Replays:
    """The most recent replay, by `rule` at `at_ms`, and the number of replays by each rule."""

    rule: str
    at_ms: int
    counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str | None) -> Replays | None:
        """Read the result of `compact`. None if there was no replay."""
        return None if text is None else cls(*jsontext.stored(text))

    def compact(self) -> str:
        """Return the stored form in a job record. Each replay changes it."""
        return jsontext.dumps([self.rule, self.at_ms, dict(self.counts)])

    def meta(self) -> dict[str, Any]:
        """Return the entries in the job's `meta`: the most recent replay and the
        count of its rule.
        """
        return {
            COUNT: self.counts.get(self.rule, 0),
            AT: times.format_ms(self.at_ms),
            RULE: self.rule,
        }


def count(replayed: str | None, rule: str) -> int:
    """Return the number of times that a rule has replayed a job."""
    replays = Replays.of(replayed)
    return 0 if replays is None else replays.counts.get(rule, 0)


def after(replayed: str | None, rule: str, *, now_ms: int, rules: Collection[str]) -> str:
    """Record another replay.

    Args:
        replayed: Stored form before the replay, or None.
        rule: Name of the rule that replays the job.
        now_ms: Current time in milliseconds since the epoch.
        rules: Names of all current rules. Counts of other rules are removed.

    Returns:
        The new stored form.
    """
    replays = Replays.of(replayed)
    before = {} if replays is None else replays.counts
    counts = {name: times_ for name, times_ in before.items() if name in rules}
    counts[rule] = before.get(rule, 0) + 1
    at_ms = now_ms if replays is None else max(now_ms, replays.at_ms + 1)
    return Replays(rule, at_ms, counts).compact()


def shown(meta: Any, replayed: str | None) -> Any:
    """Return a job's `meta` with the entries about its replays."""
    replays = Replays.of(replayed)
    return meta if replays is None else {**meta, **replays.meta()}
