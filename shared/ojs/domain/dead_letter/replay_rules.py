"""Rules that replay dead letters automatically."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from ojs.domain import jsontext, times
from ojs.domain.errors import InvalidRequest
from ojs.domain.fields import Duration, NumberRange, Printable
from ojs.domain.filters import dead_letters as dead_letter_filter
from ojs.domain.filters.dead_letters import DeadLetterFilter, FilterRequest
from ojs.domain.requests import Field, Model
from ojs.records import record

MAX_RULES = 20
MAX_NAME_CHARACTERS = 100
MAX_REPLAYS = 1_000
# Longer than the delay of the index (ms). Rules skip jobs that were discarded within this time.
MARGIN_MS = 60_000


class ReplayRuleRequest(Model):
    """A rule as sent."""

    name: Annotated[Printable, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]
    filter: FilterRequest = Field(
        description="which dead letters; `{}` means all. Not by `older_than`: see `delay`"
    )
    delay: Duration = Field(description="how long after it was discarded; ISO 8601")
    max_replays: Annotated[int, NumberRange(1, MAX_REPLAYS)] = Field(
        description="how many times this rule brings one job back"
    )
    enabled: bool = True


@record(frozen=True)
class ReplayRule:
    """A parsed rule. `digest` changes with `filter`, `delay`, and `max_replays` only."""

    name: str
    filter: DeadLetterFilter
    delay_ms: int
    max_replays: int
    enabled: bool
    digest: str

    def due_ms(self, now_ms: int) -> int:
        """Return the due time (ms): jobs that were discarded at this time or earlier must be
        replayed.
        """
        return now_ms - max(self.delay_ms, MARGIN_MS)


def stored_form(requested: Iterable[ReplayRuleRequest], prefix: str) -> list[dict[str, Any]]:
    """Return the rules in the form in which a queue's configuration stores and returns them.

    Raises InvalidRequest with the name of the field.
    """
    rules: list[dict[str, Any]] = []
    names: set[str] = set()
    for at, rule in enumerate(requested):
        path = f"{prefix}replay_rules[{at}]"
        if rule.name in names:
            raise InvalidRequest(f"{path}.name", "must be unique within the rules of the queue")
        names.add(rule.name)
        wanted = rule.filter.model_dump(exclude_none=True)
        if "older_than" in wanted:
            # A rule checks each dead letter once, at the end of the delay, so `older_than` would
            # have no effect.
            raise InvalidRequest(
                f"{path}.filter.older_than", "is not allowed in a replay rule. Use delay instead"
            )
        dead_letter_filter.parse(wanted, now_ms=times.MAX_MS, prefix=f"{path}.filter.")
        rules.append(rule.model_dump() | {"filter": wanted})
    return rules


def read(stored: Iterable[Mapping[str, Any]]) -> list[ReplayRule]:
    """Parse the rules of a stored configuration."""
    return [
        ReplayRule(
            name=rule["name"],
            filter=dead_letter_filter.parse(rule["filter"], now_ms=times.MAX_MS),
            delay_ms=times.duration_ms(rule["delay"]),
            max_replays=rule["max_replays"],
            enabled=rule["enabled"],
            digest=_digest({name: rule[name] for name in ("filter", "delay", "max_replays")}),
        )
        for rule in stored
    ]


def _digest(what: Mapping[str, Any]) -> str:
    return hashlib.sha256(jsontext.dumps(what).encode()).hexdigest()[:16]


def check_queue(stored: Iterable[Mapping[str, Any]], name: str, prefix: str) -> None:
    """Reject rules whose filter names another queue.

    Args:
        stored: Rules of a queue's configuration.
        name: Name of the queue.
        prefix: Prefix of field names in errors.

    Raises:
        InvalidRequest: A filter names another queue.
    """
    for at, rule in enumerate(stored):
        if rule["filter"].get("queue", name) != name:
            raise InvalidRequest(
                f"{prefix}replay_rules[{at}].filter.queue",
                "must be omitted or equal to the queue that has this replay rule",
                value=rule["filter"]["queue"],
            )
