"""What the parts of a run share: clients, names, durations, and the outcomes of checks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from cli.output import printable
from cli.prove.aws import Skip, Wrong
from ojs_aws import JobRequest, OjsError

if TYPE_CHECKING:
    from cli.prove.aws import Cloud
    from cli.prove.made import Made
    from cli.prove.probe import Probe

T = TypeVar("T")
Verdict = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Pace:
    """Counts and durations of the checks. Tests use smaller ones; no check is looser with them."""

    samples: int = 200
    """Requests of each operation."""
    parallel: int = 20
    """Requests that are sent at the same time to start new containers."""
    pickups: int = 10
    """Jobs of each kind of wake-up."""
    polls_s: tuple[float, ...] = (0.2, 1.0, 4.0)
    counted: int = 50
    """Jobs that the counters must count within `counted_s`."""
    counted_s: float = 90.0
    lease_s: float = 5.0
    """Duration of a lease that is lost."""
    listed_s: float = 12.0
    """Time until all containers know a worker that listens."""
    noticed_s: float = 2.5
    """Time until the server sends events to a new subscriber."""
    cron: str = "* * * * *"
    ticks: int = 3
    ticks_s: float = 300.0
    step_s: float = 30.0
    """Duration of each step of the ramp."""
    metrics_s: float = 180.0
    """Time until CloudWatch has all metrics."""
    quiet_s: float = 15.0
    """Time in which nothing may appear after the clean-up."""
    long_s: float = 1_200.0
    look_s: float = 0.5


@dataclass(frozen=True)
class Check:
    """The outcome of a check: the observation, and after a failure a remedy."""

    part: str
    name: str
    verdict: Verdict
    seen: str
    todo: str = ""


@dataclass
class Run:
    """A run. `operator` creates keys and cleans up; `own` has the key of the run."""

    name: str
    operator: Probe
    own: Probe
    made: Made
    pace: Pace
    cloud: Cloud | None = None
    rate: int = 50
    long: bool = False
    began: float = field(default_factory=time.time)
    checks: list[Check] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    say: Callable[[str], object] = print
    sleep: Callable[[float], object] = time.sleep
    # Returns whether the ceiling allows these jobs and requests, and adds their price to the bill.
    affords: Callable[[float, float], bool] = lambda _jobs, _requests: True

    def named(self, what: str) -> str:
        """Return the name of a thing of this run."""
        return f"{self.name}-{what}"

    def check(self, part: str, name: str, test: Callable[[Run], str], todo: str) -> None:
        """Run a check. The test returns its observation, or raises Wrong or Skip."""
        verdict: Verdict = "passed"
        try:
            seen = test(self)
        except Skip as reason:
            verdict, seen = "skipped", str(reason)
        except (Wrong, OjsError) as error:
            verdict, seen = "failed", str(error)
        except (KeyError, TypeError, ValueError) as error:
            verdict, seen = "failed", f"the response is unexpected: {error!r}"
        check = Check(part, name, verdict, seen, todo if verdict == "failed" else "")
        self.checks.append(check)
        self.say(printable(f"{verdict:8}{part}: {name}: {seen}"))

    def queue(self, what: str, **config: Any) -> str:
        """Create a queue of this run, unless it exists. Returns its name."""
        name = self.named(what)
        if self.made.note("queue", name):
            self.own.create_queue(name, **config)
        return name

    def push(self, queue: str, *args: Any, **options: Any) -> str:
        """Enqueue a job of this run. Returns its ID."""
        return self.own.enqueue("prove.job", args, queue=queue, **options).id

    def push_many(self, queue: str, count: int) -> list[str]:
        """Enqueue jobs in one request. Returns their IDs."""
        jobs = [JobRequest("prove.job", [number], queue) for number in range(count)]
        return [job.id for job in self.own.enqueue_many(jobs)]

    def take(self, queue: str, count: int = 1, within_s: float = 5.0) -> list[dict[str, Any]]:
        """Fetch exactly `count` jobs. Raises Wrong if they don't arrive."""
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            found.extend(self.own.fetch(queue, count - len(found), worker_id=self.named("a")))
            return len(found) >= count

        self.until(enough, within_s, lambda: f"{len(found)} of {count} jobs were fetched")
        return found

    def complete(self, queue: str, count: int = 0) -> list[str]:
        """Fetch and ack exactly `count` jobs, or all (0). Returns their IDs."""
        jobs = self.take(queue, count) if count else self.own.fetch(queue, 100)
        for job in jobs:
            self.own.ack(job)
        return [job["id"] for job in jobs]

    def until(
        self, look: Callable[[], T], within_s: float, otherwise: Callable[[], str] | str
    ) -> T:
        """Return what `look` finds. Raises Wrong after `within_s` seconds."""
        end = time.monotonic() + within_s
        while not (found := look()):
            if time.monotonic() >= end:
                what = otherwise if isinstance(otherwise, str) else otherwise()
                raise Wrong(f"{what} after {within_s:g} s")
            self.sleep(self.pace.look_s)
        return found


def require(holds: object, seen: str) -> None:
    """Raise Wrong unless something holds."""
    if not holds:
        raise Wrong(seen)
