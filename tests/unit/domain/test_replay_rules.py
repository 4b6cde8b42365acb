"""Replay rules: what may be said, and what is kept of it."""

from __future__ import annotations

from typing import Any

import pytest

from ojs.domain.dead_letter import replay, replay_rules
from ojs.domain.errors import InvalidRequest
from ojs.domain.queue import config as queue_config
from ojs.domain.queue.config import Layers

RULE: dict[str, Any] = {
    "name": "retry-connection-errors",
    "filter": {"error_type": "ConnectionError"},
    "delay": "PT1H",
    "max_replays": 3,
}


def parsed(*rules: object, **options: Any) -> Any:
    return queue_config.parse({"replay_rules": list(rules)}, **options)["replay_rules"]


@pytest.mark.requirement("DL-16")
def test_a_rule_is_kept_as_it_is_shown() -> None:
    (told,) = parsed(RULE)
    assert list(told) == ["name", "filter", "delay", "max_replays", "enabled"]
    assert told == RULE | {"enabled": True}
    (rule,) = replay_rules.read([told])
    assert (rule.name, rule.delay_ms, rule.max_replays) == (RULE["name"], 3_600_000, 3)
    assert rule.enabled
    assert rule.filter.values["error_type"] == "ConnectionError"
    # The one place where `{}` means all: the field must be there, and the rule is of one queue.
    assert parsed(RULE | {"filter": {}})[0]["filter"] == {}


@pytest.mark.requirement("DL-16")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": 5}, "name"),
        ({"name": None}, "name"),
        ({"filter": None}, "filter"),
        ({"filter": "all"}, "filter"),
        ({"filter": {"all": True}}, "filter.all"),
        ({"filter": {"error_type": None}}, "filter.error_type"),
        ({"filter": {"type": "a.b", "args": None}}, "filter.args"),
        ({"filter": {"colour": "red"}}, "filter.colour"),
        ({"filter": {"queue": "No Queue"}}, "filter.queue"),
        ({"filter": {"type": "No.Type"}}, "filter.type"),
        ({"filter": {"error_type": ""}}, "filter.error_type"),
        ({"filter": {"since": "yesterday"}}, "filter.since"),
        ({"filter": {"args": "$[0"}}, "filter.args"),
        ({"filter": {"older_than": "P1D"}}, "filter.older_than"),
        (
            {"filter": {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}},
            "filter.since",
        ),
        ({"delay": "PT0S"}, "delay"),
        ({"delay": "-PT1S"}, "delay"),
        ({"delay": "1 h"}, "delay"),
        ({"delay": 60}, "delay"),
        ({"max_replays": 0}, "max_replays"),
        ({"max_replays": 1.0}, "max_replays"),
        ({"max_replays": True}, "max_replays"),
        ({"max_replays": 1_001}, "max_replays"),
        ({"enabled": "yes"}, "enabled"),
        ({"colour": "red"}, "colour"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "config."])
def test_what_is_wrong_is_named(change: dict[str, Any], field: str, prefix: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed(RULE | {"name": "another"}, RULE | change, prefix=prefix)
    assert refused.value.field == f"{prefix}replay_rules[1].{field}"
    assert type(refused.value) is InvalidRequest


@pytest.mark.requirement("DL-16")
@pytest.mark.parametrize("name", [*RULE])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed({key: value for key, value in RULE.items() if key != name})
    assert refused.value.field == f"replay_rules[0].{name}"


@pytest.mark.requirement("DL-16")
def test_names_are_unique_and_rules_few() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed(RULE, RULE)
    assert refused.value.field == "replay_rules[1].name"
    many = [RULE | {"name": f"r{number}", "filter": {}} for number in range(21)]
    assert len(parsed(*many[:20])) == 20
    with pytest.raises(InvalidRequest) as refused:
        parsed(*many)
    assert refused.value.field == "replay_rules"


@pytest.mark.requirement("DL-16")
def test_a_rule_is_for_its_own_queue() -> None:
    changes = {"replay_rules": parsed(RULE, RULE | {"name": "b", "filter": {"queue": "mail"}})}
    queue_config.check_name("mail", changes)
    queue_config.check_name("_default", changes)
    queue_config.check_name("mail", {"replay_rules": None})
    with pytest.raises(InvalidRequest) as refused:
        queue_config.check_name("post", changes, prefix="config.")
    assert refused.value.field == "config.replay_rules[1].filter.queue"


@pytest.mark.requirement("DL-16")
def test_rules_are_those_of_one_layer() -> None:
    policy, own = (parsed(RULE | {"name": name}) for name in ("policy", "own"))
    inherited = {"replay_rules": policy}
    for layers, names in (
        (Layers(), []),
        (Layers({}, inherited), ["policy"]),
        (Layers({"replay_rules": own}, inherited), ["own"]),
        # A queue may say that it has none.
        (Layers({"replay_rules": []}, inherited), []),
    ):
        assert [rule["name"] for rule in layers.replay_rules] == names
        assert layers.in_force().replay_rules == (layers.document.get("replay_rules"))
    assert queue_config.merge({"replay_rules": own}, {"replay_rules": None}) == {}
    assert queue_config.sources(Layers({}, inherited))["replay_rules"] == "_default"
    assert "replay_rules" not in queue_config.shown(Layers())


def test_what_a_rule_does_tells_whether_it_was_changed() -> None:
    def digest(**change: Any) -> str:
        (rule,) = replay_rules.read(parsed(RULE | change))
        return rule.digest

    assert digest() == digest(enabled=False) == digest(name="another")
    others = [digest(delay="PT2H"), digest(max_replays=4), digest(filter={})]
    assert len({digest(), *others}) == 4


@pytest.mark.requirement("DL-17")
def test_replays_are_counted_by_rule() -> None:
    assert replay.count(None, "a") == 0
    assert replay.shown({"mine": 1}, None) == {"mine": 1}
    text = replay.after(None, "a", now_ms=1_000, rules=["a", "b"])
    again = replay.after(text, "b", now_ms=1_000, rules=["a", "b"])
    assert again != text
    assert (replay.count(again, "a"), replay.count(again, "b")) == (1, 1)
    third = replay.after(again, "b", now_ms=5_000, rules=["b"])
    assert (replay.count(third, "a"), replay.count(third, "b")) == (0, 2)
    assert replay.shown({"mine": 1}, third) == {
        "mine": 1,
        "ojs.replay_count": 2,
        "ojs.last_replayed_at": "1970-01-01T00:00:05.000Z",
        "ojs.replay_rule": "b",
    }
