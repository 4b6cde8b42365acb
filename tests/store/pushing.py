"""Doubles for deliveries: queues in memory, and a target that does what a test says; and a world in
which jobs are pushed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ojs.domain.delivery.outcome import Outcome, Settled, Verdict, throttled, trouble
from ojs.domain.errors import BackendUnavailable
from ojs.services.deliveries.parts import AllowedTargets, DeliveryDependencies

if TYPE_CHECKING:
    from ojs.clock import Clock
    from ojs.domain.delivery.delivery import Delivery
    from ojs.domain.delivery.push import Push
    from tests.store.conftest import World

FUNCTION = "arn:aws:lambda:eu-central-1:123456789012:function:work"
DONE = Outcome(Verdict.COMPLETED, result={"ok": True})
FAILED = Outcome(Verdict.FAILED, error={"code": "handler_error", "message": "no"})
CRASHED = trouble(Verdict.FAULT, "crash", "Runtime exited")
GONE = trouble(Verdict.GONE, "ResourceNotFoundException", "no such function")
FORBIDDEN = trouble(Verdict.FORBIDDEN, "AccessDeniedException", "not allowed")
REFUSED = trouble(Verdict.REFUSED, "refused", "422")
THROTTLED = throttled("no room")


@dataclass
class Wakes:
    """A queue of wake-ups with delays; `lost` ones are refused."""

    clock: Clock
    waiting: list[tuple[int, str]] = field(default_factory=list)
    sent: list[tuple[int, str]] = field(default_factory=list)
    lost: bool = False

    def wake(self, names: Iterable[str], *, delay_s: int = 0) -> None:
        if self.lost:
            raise BackendUnavailable("no queue")
        at_ms = self.clock.now_ms() + 1_000 * delay_s
        for name in names:
            self.waiting.append((at_ms, name))
            self.sent.append((at_ms, name))

    def due(self) -> list[str]:
        """Take the wake-ups whose time has come."""
        now_ms = self.clock.now_ms()
        found = [name for at_ms, name in self.waiting if at_ms <= now_ms]
        self.waiting = [each for each in self.waiting if each[0] > now_ms]
        return found


Answer = Outcome | None
AnswerOf = Callable[["Push"], Answer]


@dataclass
class FakeTarget:
    """A target: `answer` says what becomes of a push. None: it is under way, see `flying`."""

    answer: AnswerOf = lambda _: None
    waits: bool = False
    pushes: list[Push] = field(default_factory=list)
    flying: list[Push] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def waits_for(self, push: Push, *, delivery: Delivery) -> bool:
        return self.waits

    def send(
        self, pushes: Sequence[Push], *, delivery: Delivery, wait: bool = False
    ) -> Sequence[Answer]:
        self.sizes.append(len(pushes))
        found = []
        for push in pushes:
            self.pushes.append(push)
            answer = self.answer(push)
            if answer is None and wait:
                answer = DONE
            if answer is None:
                self.flying.append(push)
            found.append(answer)
        return found


@dataclass
class Sends:
    """A queue for senders."""

    waiting: list[tuple[str, str, str]] = field(default_factory=list)
    lost: bool = False

    def send(self, delivery: str, pushes: Sequence[Push]) -> Sequence[Push]:
        if self.lost:
            return pushes
        self.waiting += [(delivery, push.job.id, push.token) for push in pushes]
        return []


def settled(push: Push, outcome: Outcome) -> Settled:
    """The outcome of a push, as a destination brings it."""
    return Settled(push.job.id, push.token, push.delivery, outcome)


class Pushing:
    """A world with a delivery: wakes, dispatches, settles as its Lambda functions would."""

    def __init__(self, world: World, *, sends: bool = False) -> None:
        self.world = world
        self.wakes = Wakes(world.clock)
        self.target = FakeTarget()
        self.sends = Sends() if sends else None
        world.pushing = DeliveryDependencies(
            wakes=self.wakes,
            target=lambda _: self.target,
            allowed=AllowedTargets([FUNCTION], ["*"], check_endpoint=lambda _: None),
            sends=self.sends,
        )
        world.run = world.another()

    def put(self, name: str = "work", **fields: Any) -> Delivery:
        body = {"target": {"function": FUNCTION}, "queues": ["default"], **fields}
        if "pool" in fields:
            del body["queues"]
        return self.world.run.deliveries.put(name, body)[0]

    def pump(self) -> int:
        """Handle the wake-ups whose time has come; how many jobs were sent."""
        return sum(self.world.run.dispatch.run(name).pushed for name in self.wakes.due())

    def end(self, outcome: Outcome | Callable[[Push], Outcome] = DONE) -> int:
        """Let all that is under way end; how many ended."""
        ended, self.target.flying = self.target.flying, []
        for push in ended:
            what = outcome(push) if callable(outcome) else outcome
            report = self.world.run.dispatch.settle([settled(push, what)])
            assert not report.failed
        return len(ended)

    def settle(self, *each: tuple[Push, Outcome]) -> Any:
        return self.world.run.dispatch.settle(settled(push, what) for push, what in each)

    def minute(self) -> None:
        """A sweep, as each minute."""
        now_ms = self.world.clock.now_ms()
        self.world.sweep()
        sweep = self.world.run.delivery_sweep
        assert sweep is not None
        report = sweep.run_once(now_ms, 1_000)
        assert not report.failures, report.failures

    def later(self, ms: int = 5_000) -> None:
        """Let time pass, and what was woken until then be forgotten."""
        self.world.clock.advance(ms)
        self.wakes.waiting.clear()

    def read(self, name: str = "work") -> Delivery:
        return self.world.run.deliveries.get(name)
