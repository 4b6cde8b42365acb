"""Worker pools as they are asked for: forms that are taken, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from ojs.api.pools import Pool as PoolShown
from ojs.domain.errors import InvalidRequest
from ojs.domain.pool import pool as pools
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import Pool, StarvationPrevention
from ojs.domain.pool.statistics import PoolStatus

THREE = ["critical", "default", "low"]
WEIGHTS = {"critical": 5, "default": 3, "low": 1}


@pytest.mark.requirement("FS-8")
def test_a_pool_by_default() -> None:
    """Round-robin, no limit, no weights, for nobody alone."""
    assert pools.parse("general", {"queues": THREE}) == Pool("general", tuple(THREE))
    assert Pool("general", tuple(THREE)).strategy == DispatchStrategy.ROUND_ROBIN


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize(
    "body",
    [
        {"queues": THREE, "strategy": "weighted", "weights": WEIGHTS},
        {"queues": THREE, "weights": WEIGHTS},
        {"queues": {name: {"weight": weight} for name, weight in WEIGHTS.items()}},
        {"queues": {**{name: {} for name in THREE}}, "weights": WEIGHTS},
        {"queues": {"critical": {"weight": 5}, "default": {}, "low": {}}, "weights": WEIGHTS},
        {"pool": {"name": "general", "queues": THREE, "weights": WEIGHTS}},
        {"queues": THREE, "weights": WEIGHTS, "concurrency": None, "starvation_prevention": None},
    ],
)
def test_weights_in_each_place_that_clients_know(body: dict[str, Any]) -> None:
    """Beside the queues or with each of them, wrapped or not."""
    wanted = Pool("general", tuple(THREE), strategy=DispatchStrategy.WEIGHTED, weights=WEIGHTS)
    assert pools.parse("general", body) == wanted


def shown_as(pool: Pool) -> Any:
    return PoolShown.of(PoolStatus(pool, active_workers=0, active_jobs=0))


@pytest.mark.requirement("FS-8")
def test_all_that_can_be_told() -> None:
    """Concurrency, strategy, isolation and prevention of starvation."""
    prevention = {"enabled": True, "rotation_interval": "PT10S", "min_dispatch_ratio": 0.1}
    body = {
        "queues": THREE, "concurrency": 20, "strategy": "strict", "isolated": True,
        "starvation_prevention": prevention,
    }  # fmt: skip
    pool = pools.parse("payment-workers", body)
    assert (pool.concurrency, pool.strategy, pool.isolated) == (20, DispatchStrategy.STRICT, True)
    assert pool.prevention == StarvationPrevention("PT10S", 0.1)
    assert pool.prevention.interval_ms == 10_000
    shown = shown_as(pool)
    assert {name: shown[name] for name in body} == body
    assert "weights" not in shown


def test_prevention_that_is_not_enabled_is_kept_and_not_in_force() -> None:
    pool = pools.parse("general", {"queues": THREE, "starvation_prevention": {}})
    assert pool.prevention is None
    assert shown_as(pool)["starvation_prevention"] == {
        "enabled": False, "rotation_interval": "PT30S", "min_dispatch_ratio": 0.05,
    }  # fmt: skip


def test_a_pool_shows_no_more_than_was_told() -> None:
    assert shown_as(pools.parse("general", {"queues": ["a"]})).keys() == {
        "name", "id", "queues", "strategy", "isolated", "created_at", "configured_at",
        "active_workers", "workers", "active_jobs", "etag",
    }  # fmt: skip


def prevention(**told: Any) -> dict[str, Any]:
    return {"queues": THREE, "starvation_prevention": {"enabled": True, **told}}


RATIO, INTERVAL = (
    f"starvation_prevention.{name}" for name in ("min_dispatch_ratio", "rotation_interval")
)
NO_WEIGHTS: tuple[Any, ...] = (0, -1, 1.5, 1.0, True, "1", None, [], 1_001, 10**30)
NO_LIMITS: tuple[Any, ...] = (0, -1, 1.5, 1.0, True, "1", [], 1_000_001, 10**30)
NO_STRATEGIES: tuple[Any, ...] = ("random", "Strict", "", 1, ["strict"])
NO_FLAGS: tuple[Any, ...] = ("true", 1, [])
NO_RATIOS: tuple[Any, ...] = (-0.1, 1.1, "5%", True, None)
NO_INTERVALS: tuple[Any, ...] = ("30 s", "", "PT0S", "PT0.5S", "P2D", "-PT30S", 30, None, [])
WRONG: list[tuple[Any, str]] = [
    ({"queues": {"a": {"weight": 2.0}}}, "queues.a.weight"),
    ({"queues": {"a": {"weight": 2}}, "weights": {"a": 3}}, "weights.a"),
    *(
        ({"queues": ["a"], "strategy": "weighted", "weights": {"a": wrong}}, "weights.a")
        for wrong in NO_WEIGHTS
    ),
    ({"queues": ["a"], "strategy": "weighted"}, "weights.a"),
    ({"queues": ["a", "b"], "weights": {"a": 1}}, "weights.b"),
    ({"queues": ["a"], "weights": {"a": 1, "b": 1}}, "weights.b"),
    ({"queues": ["a", "b"], "strategy": "strict", "weights": {"a": 1, "b": 2}}, "weights"),
    (
        {"queues": [f"q{n}" for n in range(20)], "weights": {f"q{n}": 1_000 for n in range(20)}},
        "weights",
    ),
    *(({"queues": ["a"], "concurrency": wrong}, "concurrency") for wrong in NO_LIMITS),
    *(({"queues": ["a"], "strategy": wrong}, "strategy") for wrong in NO_STRATEGIES),
    *(({"queues": ["a"], "isolated": wrong}, "isolated") for wrong in NO_FLAGS),
    *((prevention(min_dispatch_ratio=wrong), RATIO) for wrong in NO_RATIOS),
    # Three times this is more than all.
    (prevention(min_dispatch_ratio=0.34), RATIO),
    *((prevention(rotation_interval=wrong), INTERVAL) for wrong in NO_INTERVALS),
    ({"name": "other", "queues": ["a"]}, "name"),
    ({"pool": {"name": "other", "queues": ["a"]}}, "pool.name"),
]


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize(("body", "field"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong_is_named(body: Any, field: str) -> None:
    """The field and the rule, whatever is sent."""
    with pytest.raises(InvalidRequest) as refused:
        pools.parse("general", body)
    assert refused.value.field == field
    assert refused.value.reason


@pytest.mark.parametrize(
    "name", ["", "a b", "a|b", ":a", "-a", ".a", "ä", "x" * 65, "a/b", "*", "a\n", "\ud800"]
)
def test_a_name_that_is_wrong(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        pools.parse(name, {"queues": ["a"]})
    assert refused.value.field == "name"


@pytest.mark.parametrize("name", ["a", "payment-workers", "GPU_1.large", "9", "x" * 64])
def test_a_name_that_is_right(name: str) -> None:
    assert pools.parse(name, {"queues": ["a"]}).name == name


def test_parts_that_are_all_there_is_are_taken() -> None:
    twenty = [f"q{n}" for n in range(20)]
    body = {"queues": twenty, "starvation_prevention": {"enabled": True}}
    assert pools.parse("general", body).prevention == StarvationPrevention("PT30S", 0.05)


def test_no_gate_of_a_pool_is_one_of_a_queue_or_of_a_worker() -> None:
    pool = Pool("general", ("a",))
    assert pool.semaphore == ":general" != pools.worker_semaphore("general", "w1")
    # No queue's name begins so.
    with pytest.raises(InvalidRequest):
        pools.parse("general", {"queues": [pool.semaphore]})
