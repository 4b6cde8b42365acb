"""Push delivery in one process: queues of wake-ups, a sender, and handlers instead of functions.

Outcomes of handlers have the format of Lambda destination records. Nothing is persistent. If the
server ends, the leases of its jobs expire, and the sweep finds waiting jobs.
"""

from __future__ import annotations

import heapq
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from local.handlers import HandlerFailed, HandlerProcesses
from ojs import runtime
from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.delivery import forms, outcome
from ojs.domain.delivery.delivery import EVENT_AGE_MS, Delivery
from ojs.domain.delivery.forms import PushEvent
from ojs.domain.delivery.outcome import Outcome, Settled
from ojs.domain.delivery.push import Push, Target
from ojs.domain.errors import InvalidPayload, OjsError
from ojs.services.deliveries.dispatch import DeliveryDispatcher
from ojs.services.deliveries.parts import AllowedTargets, DeliveryDependencies
from ojs.services.for_each import in_threads
from ojs.targets.guard import Blocked, Connector, place
from ojs.targets.https_target import HttpsTarget

# Secret that signs requests to the endpoints of `--deliver`.
LOCAL_SECRET = "whsec_local_development_only"  # noqa: S105 - on this machine alone
# Maximum number of concurrent handlers, and of concurrent endpoint requests.
MAX_CALLS = 32
_RUNS = 4
# Maximum number of retries, and pause before the first retry, as for a queue's messages.
_TRIES = 5
_FIRST_PAUSE_S = 0.2
# Maximum wait of a timer, because tests can move the clock.
_LOOK_S = 0.5
_ARN = "arn:aws:sqs:local:000000000000:"


class LocalDeliveries:
    """Deliveries of a local server. They run between `start` and `stop`."""

    def __init__(
        self, clock: Clock, *, handlers: Collection[str] = (), folder: Path = Path(),
        loopback: bool = False, environment: Callable[[], Mapping[str, str]] = dict[str, str],
    ) -> None:  # fmt: skip
        """Create the deliveries.

        With `handlers`, deliveries can name `module:function`, with modules in `folder`. They get
        the environment variables of `environment`. With `loopback`, endpoints can be on this
        machine.
        """
        self._clock = clock
        self._loopback = loopback
        self._handlers = tuple(handlers)
        self._dispatch: Callable[[], DeliveryDispatcher] | None = None
        self._processes = HandlerProcesses(folder.resolve(), environment)
        self._calls = ThreadPoolExecutor(MAX_CALLS, "delivery")
        self._runs = ThreadPoolExecutor(_RUNS, "dispatch")
        self._timers = Timers(clock, self._run)
        connector = Connector(loopback=loopback)
        self._endpoints = HttpsTarget(clock, each=in_threads, connector=connector)
        self._functions = HandlerTarget(clock, self._processes, self._calls.submit, self._came)

    @property
    def parts(self) -> DeliveryDependencies:
        """Return the collaborators of a runtime."""
        return DeliveryDependencies(
            wakes=self._timers,
            target=self._target,
            allowed=AllowedTargets(
                egress_hosts=("*",),
                check_endpoint=partial(check_endpoint, self._loopback),
                handlers=self._handlers,
            ),
            sends=self,
        )

    def start(self, dispatch: Callable[[], DeliveryDispatcher]) -> Callable[[], None]:
        """Start, and return `stop`.

        `dispatch` is called for each use, because a reset replaces the dispatcher.
        """
        self._dispatch = dispatch
        self._timers.start()
        return self.stop

    def stop(self) -> None:
        """Stop all of it. Running pushes are abandoned."""
        self._dispatch = None
        self._timers.stop()
        self._processes.stop()
        self._runs.shutdown(cancel_futures=True)
        self._calls.shutdown(cancel_futures=True)

    def send(self, delivery: str, pushes: Sequence[Push]) -> Sequence[Push]:
        """Send pushes in threads that wait for the outcome. See `SendQueue`."""
        for push in pushes:
            self._calls.submit(self._send, delivery, push)
        return ()

    def _target(self, delivery: Delivery) -> Target:
        return self._functions if delivery.handler is not None else self._endpoints

    # --- threads ----------------------------------------------------------------------------------

    def _run(self, name: str) -> None:
        self._runs.submit(self._try, f"Dispatch of {name}", lambda it: it.run(name))

    def _send(self, delivery: str, push: Push) -> None:
        self._try(
            f"Push of {push.job.id}", lambda it: it.send_one(delivery, push.job.id, push.token)
        )

    def _came(self, told: Sequence[Settled]) -> None:
        """Process outcomes."""

        def settle(dispatch: DeliveryDispatcher) -> None:
            report = dispatch.settle(told)
            for error in report.failed.values():
                raise error

        self._try("outcome", settle)

    def _try(self, what: str, act: Callable[[DeliveryDispatcher], object]) -> None:
        """Run an action, and retry while the engine is busy, like a queue with redelivery."""
        for tried in range(_TRIES):
            dispatch = self._dispatch
            if dispatch is None:
                return
            try:
                act(dispatch())
                runtime.flush()
            except OjsError as error:
                if tried + 1 == _TRIES:
                    print(f"{what} failed: {error}", file=sys.stderr)
                time.sleep(_FIRST_PAUSE_S * 2**tried)
            except Exception:  # noqa: BLE001 - the next message must be processed
                print(f"{what} failed", file=sys.stderr)
                traceback.print_exc(file=sys.stderr)
                return
            else:
                return


def check_endpoint(loopback: bool, url: str) -> None:
    """Raise ValueError if an endpoint is not allowed. `loopback` allows this machine."""
    try:
        place(url, loopback=loopback)
    except Blocked as refusal:
        here = "" if loopback else ". To allow this machine, use --allow-loopback-endpoints"
        raise ValueError(f"{refusal}{here}") from None


class Timers:
    """Wakes deliveries: once for all requests since the last time."""

    def __init__(self, clock: Clock, run: Callable[[str], None]) -> None:
        self._clock = clock
        self._run = run
        self._due: list[tuple[int, str]] = []
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._watch, name="wake-ups", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def wake(self, names: Iterable[str], *, delay_s: int = 0) -> None:
        """Schedule the check of deliveries. See `WakeQueue`."""
        at_ms = self._clock.now_ms() + 1_000 * delay_s
        with self._changed:
            for name in names:
                if (at_ms, name) not in self._due:
                    heapq.heappush(self._due, (at_ms, name))
            self._changed.notify()

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._ended:
                    return
                names = self._take()
                if not names:
                    left_s = _LOOK_S if self._due else None
                    if self._due:
                        left_s = min(_LOOK_S, (self._due[0][0] - self._clock.now_ms()) / 1_000)
                    self._changed.wait(left_s)
            for name in names:
                self._run(name)

    def _take(self) -> list[str]:
        """Return the due names, each once."""
        found: dict[str, None] = {}
        while self._due and self._due[0][0] <= self._clock.now_ms():
            found[heapq.heappop(self._due)[1]] = None
        return list(found)


class Submit(Protocol):
    """Runs a call in another thread."""

    def __call__(self, act: Callable[..., object], /, *arguments: Any) -> object:
        """Run a function with these arguments."""
        ...


class HandlerTarget:
    """Calls Python handlers like Lambda invokes functions asynchronously."""

    def __init__(
        self,
        clock: Clock,
        processes: HandlerProcesses,
        submit: Submit,
        came: Callable[[Sequence[Settled]], None],
    ) -> None:
        self._clock = clock
        self._processes = processes
        self._submit = submit
        self._came = came

    def waits_for(self, push: Push, *, delivery: Delivery) -> bool:
        """Return False: a handler is always called by this process."""
        del push, delivery
        return False

    def send(
        self, pushes: Sequence[Push], *, delivery: Delivery, wait: bool = False
    ) -> Sequence[Outcome | None]:
        """Call the delivery's handler for these pushes. See `Target`."""
        events = forms.events(
            pushes,
            delivery.form,
            source=_ARN + delivery.name,
            batch_size=delivery.batch_size,
            now_ms=self._clock.now_ms(),
        )
        if not wait:
            for event in events:
                self._submit(self._call, event, delivery, self._clock.now_ms())
            return [None] * len(pushes)
        found: dict[str, Outcome] = {}
        for event in events:
            told = outcome.settled_by(self._record(event, delivery))
            found |= {one.job_id: one.outcome for one in told}
        return [found[push.job.id] for push in pushes]

    def _call(self, event: PushEvent, delivery: Delivery, came_ms: int) -> None:
        if self._clock.now_ms() - came_ms > EVENT_AGE_MS:
            # Too many calls wait for a thread. Lambda reports a throttled function in the same way.
            record = _record(event, "EventAgeExceeded")
        else:
            record = self._record(event, delivery)
        self._came(outcome.settled_by(record))

    def _record(self, event: PushEvent, delivery: Delivery) -> dict[str, Any]:
        """Return the record that Lambda would send to the function's destination."""
        timeout_s = delivery.timeout_ms / 1_000
        try:
            text = self._processes.call(
                delivery.handler or "", event.text.decode(), timeout_s=timeout_s
            )
            answer = jsontext.loads(text)
        except HandlerFailed as error:
            response = {"statusCode": 200, "functionError": "Unhandled"}
            return _record(event, "RetriesExhausted", response, error.payload)
        except InvalidPayload:
            answer = None  # for example, nested too deeply
        return _record(event, "Success", {"statusCode": 200}, answer)


def _record(
    event: PushEvent, condition: str, response: Any = None, payload: Any = None
) -> dict[str, Any]:
    return {
        "version": "1.0",
        "requestContext": {"condition": condition, "approximateInvokeCount": int(bool(response))},
        "requestPayload": jsontext.stored(event.text.decode()),
        "responseContext": response,
        "responsePayload": payload,
    }


def described(queue: str, target: str) -> dict[str, Any]:
    """Return the delivery for `--deliver QUEUE=TARGET`."""
    if "://" in target:
        return {"target": {"endpoint": target}, "queues": [queue], "signing_secret": LOCAL_SECRET}
    return {"target": {"handler": target}, "queues": [queue]}
