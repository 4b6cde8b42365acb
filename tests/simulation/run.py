"""Run many seeds, or one again: `python -m tests.simulation.run --scenario life --seed 7`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests import request_rules
from tests.simulation.invariants import Broken
from tests.simulation.scenarios import SCENARIOS, run


@dataclass
class Covered:
    """What many runs covered, and which went wrong: (scenario, seed, what)."""

    runs: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    writes: int = 0
    jobs: int = 0
    leaked: int = 0
    # By a hash of each, so that millions fit.
    interleavings: set[int] = field(default_factory=set)
    failures: list[tuple[str, int, str]] = field(default_factory=list)

    def add(self, other: Covered) -> None:
        for name in ("runs", "operations", "faults"):
            getattr(self, name).update(getattr(other, name))
        self.calls += other.calls
        self.writes += other.writes
        self.jobs += other.jobs
        self.leaked += other.leaked
        self.interleavings |= other.interleavings
        self.failures += other.failures

    def told(self) -> Iterator[str]:
        """As lines."""
        yield "seeds          " + _listed(self.runs)
        yield "operations     " + _listed(self.operations)
        yield f"DynamoDB calls {self.calls}, writes {self.writes}, jobs {self.jobs}"
        yield "faults         " + _listed(self.faults)
        yield f"texts left     {self.leaked} by writers that died before their record"
        yield f"interleavings  {len(self.interleavings)} different"


def _listed(counts: Counter[str]) -> str:
    parts = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f"{counts.total()} ({parts})"


def replay(scenario: str, seed: int) -> str:
    """The command that runs a seed again."""
    command = "PYTHONPATH=shared:. .venv/bin/python -m tests.simulation.run"
    return f"{command} --scenario {scenario} --seed {seed}"


def cover(cases: Iterable[tuple[str, int]]) -> Covered:
    """Run these; what goes wrong is noted, and the others are run all the same."""
    covered = Covered()
    for scenario, seed in cases:
        covered.runs[scenario] += 1
        try:
            request_rules.rejected.clear()
            outcome = run(scenario, seed)
            if request_rules.rejected:
                raise Broken(f"DynamoDB rejects {request_rules.rejected[0]}")  # noqa: TRY301
        except (Exception, Broken) as error:  # noqa: BLE001 - whatever it is, this seed shows it
            covered.failures.append((scenario, seed, f"{type(error).__name__}: {error}"))
            continue
        covered.operations.update(outcome.operations)
        covered.faults.update(outcome.faults)
        covered.calls += outcome.calls
        covered.writes += outcome.writes
        covered.jobs += outcome.jobs
        covered.leaked += outcome.leaked
        covered.interleavings.add(hash((scenario, outcome.trace)))
    return covered


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and report; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), help="only this one")
    parser.add_argument("--seed", type=int, help="only this one, with what went wrong")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many, over all scenarios")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args(arguments)
    names = [given.scenario] if given.scenario else list(SCENARIOS)
    if given.seed is not None:
        return _once(names, given.seed)
    cases = [(names[at % len(names)], given.first + at // len(names)) for at in range(given.seeds)]
    began = time.perf_counter()
    covered = Covered()
    with ProcessPoolExecutor(given.processes) as processes:
        for part in processes.map(cover, [cases[at : at + 90] for at in range(0, len(cases), 90)]):
            for scenario, seed, what in part.failures:
                print(f"{what}\n    {replay(scenario, seed)}", flush=True)
            covered.add(part)
    took = time.perf_counter() - began
    for line in covered.told():
        print(line)
    print(f"speed          {given.seeds / took:.0f} seeds/s, {took:.0f} s in all")
    print(f"broken         {len(covered.failures)}")
    return 1 if covered.failures else 0


def _once(names: Sequence[str], seed: int) -> int:
    for name in names:
        timeline: list[str] = []
        try:
            outcome = run(name, seed, timeline)
        except (Exception, Broken):  # noqa: BLE001 - this is what it is run for
            print("\n".join(timeline))
            traceback.print_exc()
            print(replay(name, seed))
            return 1
        print(f"{name} {seed}: {outcome.calls} calls, faults {_listed(outcome.faults)}, all kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
