"""The simulation can fail: each defect put into the code on purpose is found by some seed."""

from __future__ import annotations

import pytest

from tests.simulation.invariants import Broken
from tests.simulation.mutations import MUTATIONS
from tests.simulation.mutations_late import IN_EVERY_ORDER, LATE
from tests.simulation.run import cover
from tests.simulation.small import every_order
from tests.spread import spread

SEEDS = 90
# The first seed of each that shows it, where it is a late one or the search takes long. A change of
# the code under test moves them.
_KEPT = {
    "a claim does not name its line": 9,
    "the end of a queue is taken back once": 244,
    "nobody looks at what runs in a queue that is gone": 413,
    "room is given back after a repetition": 37,
    "a pool made anew forgets what runs": 43,
    "a pool forgets queues that it had": 61,
    "each try of a transaction is another": 1161,
    "a job is handed out without its content": 3463,
    "a mark of another generation counts": 91,
    "a claim ignores the deadline": 1,
    "a heartbeat needs neither worker nor lease": 54,
    "a nack needs no lease": 235,
    "an ack needs no lease": 104,
    "anybody goes on with a lost lease": 65,
    "the lease token is not demanded": 0,
    "the demand of the token is not noted": 0,
    "a lease ends early": 0,
    "a heartbeat shortens a lease": 385,
    "a heartbeat of an earlier time counts": 14,
    "progress goes back": 4,
    "the backend's error replaces the worker's": 47,
    "an error takes the place of the one before": 1,
    "a dead connection is a defect": 3,
    "keys that were not read are forgotten": 45,
    "items that were not written are forgotten": 175,
    "a queue is read late": 71,
    "staged writes are repeated": 1,
    "an undone batch gives room back twice": 4,
    "what an undone batch wrote late is counted": 283,
    "the item of a batch is repeated": 300,
    "ids of a staged batch are taken": 28,
    "late claims are forgotten": 1239,
    "staged jobs are handed out": 28,
    "a dead letter is deleted blindly": 192,
    "a late worker takes no permits": 6,
    "permits are healed without waiting": 12,
    "a queue goes without a note": 98,
    "a permit is freed before its job may be claimed": 412,
    "an outcome needs no lease": 717,
    "dispatch takes what was settled": 8,
    "due jobs of batches are claimed": 2,
    "each try has ids of its own": 0,
    "any body is taken": 3,
    "keys are not noted": 0,
    "jobs pushed alone are staged again": 87,
    "a later try ends an earlier one": 51,
    "an erasure goes round once": 43,
    "anybody is erased": 0,
    "empty lines are passed over": 13,
    "doubts are settled at once": 1,
    "a reconcile passes over lease notes": 70000016,
    "a fetch ignores cancellations": 0,
    "the directory is read late": 45,
    "outcomes are replaced": 1,
    "a suspension does not look for its signal": 0,
    "a signal does not wake": 9,
    "all attempts count": 4,
    "sleeps start anew": 29,
    "sleepers wake early": 29,
    "nobody ends children": 8,
    "the stream ends no children": 264,
    "all wake with the first": 264,
    "late checkpoint is accepted": 14,
    "a deleted checkpoint leaves nothing": 54,
    # Seed 0 looks for two minutes.
    "the fallback never comes": 2,
    "enqueues of a slice come later": 14,
}


@pytest.mark.parametrize("name", spread([name for name in MUTATIONS if name not in LATE], 3))
def test_a_defect_is_found(name: str) -> None:
    mutation, scenario = MUTATIONS[name]
    seeds = [_KEPT[name]] if name in _KEPT else range(SEEDS)
    with mutation():
        assert any(cover([(scenario, seed)]).failures for seed in seeds)


@pytest.mark.parametrize("name", LATE)
def test_a_defect_is_found_by_its_seed(name: str) -> None:
    mutation, scenario = LATE[name]
    with mutation():
        (failure,) = cover([(scenario, _KEPT[name])]).failures
    # By a promise, and not since the code does not run any more.
    assert failure[2].startswith("Broken: ")


@pytest.mark.parametrize("name", IN_EVERY_ORDER)
def test_a_defect_is_found_in_some_order(name: str) -> None:
    mutation, small = IN_EVERY_ORDER[name]
    with mutation(), pytest.raises(Broken):
        every_order(small)
