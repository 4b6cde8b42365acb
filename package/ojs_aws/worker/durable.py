"""Durable code of a handler: steps, waits, and child jobs. Imported by its first durable call.

Both kinds of handlers use these coroutines. For a function, they never wait for an event loop, so
`now` runs them to their end.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_type_hints
from uuid import uuid4
from weakref import WeakSet

from ojs_aws.client.call import Answer, Call, Misconfigured, json_object, place, to_json
from ojs_aws.client.job import FINAL_STATES
from ojs_aws.client.operations import moment
from ojs_aws.errors import ApiError, Duplicate, OjsError
from ojs_aws.ids import uuid7
from ojs_aws.typed.clients import DEFAULT, Clients
from ojs_aws.typed.options import ISO_DURATION
from ojs_aws.typed.plain import Convert, Refused, iso_duration, read_moment
from ojs_aws.typed.signature import converter
from ojs_aws.worker.context import CANCELLED, LOST, JobCancelled, JobContext, JobFailed
from ojs_aws.worker.handlers import Ending, ended, failure

if TYPE_CHECKING:
    import asyncio

    from ojs_aws.typed.job_type import JobCall
    from ojs_aws.typed.workflows import Workflow

T = TypeVar("T")
Final = type[Exception] | tuple[type[Exception], ...]

EXTENSION = "urn:ojs-aws:ext:durable-steps"
MAX_CALLS = MAX_WAITS = 50
_MAX_SAVES = 25
_MAX_BYTES = 262_144
_MAX_WAIT = timedelta(days=366)
# A shorter sleep waits in place, and stores nothing.
_IN_PLACE = timedelta(seconds=5)
_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9_.:-]{1,64}")
_KEY = re.compile(r"[^|\x00-\x1f]{1,100}")
_UNITS = {"W": "weeks", "D": "days", "H": "hours", "M": "minutes", "S": "seconds"}
# Turns of the event loop without a durable call, after which no parallel branch continues.
_TURNS = 20
# How long (s) a job waits for a child job or a workflow before it reads its state: at first, and at
# most.
_CHILD_S = (3_600, 86_400)
_WORKFLOW_S = (15, 3_600)

# Clients of servers that support durable code.
_supported: WeakSet[Clients] = WeakSet()
# The durable code whose step this code runs in.
_STEP: ContextVar[Durable | None] = ContextVar("ojs_step", default=None)


class StepNameReused(JobFailed):
    """A name was used twice in one attempt. The job is not retried."""

    def __init__(self, name: str) -> None:
        rule = "was used before in this attempt. Pass another name, or a key in a loop"
        super().__init__(f"The name {name!r} {rule}.", code="step_name_reused", retryable=False)


class StepFailed(Exception):
    """A step or a child job failed, and its error is stored. All later attempts raise it.

    Attributes:
        name: Name of the step, with its key.
        error: Its error with `code`, `type`, and `message`.
    """

    def __init__(self, name: str, error: Mapping[str, Any]) -> None:
        self.name = name
        self.error = dict(error)
        super().__init__(f"{name}: {self.error.get('message') or self.error.get('code')}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.name, self.error))


class StepInterrupted(BaseException):
    """A step failed, and its outcome is not stored: the attempt ends. Don't catch it.

    Its `__cause__` is the exception of the step.
    """


class JobSuspended(BaseException):
    """The job waits: the attempt ends, and the handler runs again later. Don't catch it."""


@dataclass(frozen=True)
class Signal:
    """A signal that was sent to a job.

    Attributes:
        data: Its data, a JSON value.
        sent_at: When it was sent.
    """

    data: Any
    sent_at: datetime


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("the coroutine waits for an event loop")


def _invalid(message: str) -> JobFailed:
    return JobFailed(message, code="invalid_durable_call", retryable=False)


def length(called: str, value: object) -> timedelta:
    """Return the length of a sleep or a wait. Raises JobFailed if it isn't 0 to 366 days."""
    found = value
    if isinstance(value, str) and ISO_DURATION.fullmatch(value):
        parts = re.findall(r"([\d.]+)([WDHMS])", value)
        try:
            found = timedelta(**{_UNITS[unit]: float(number) for number, unit in parts})
        except OverflowError:
            found = timedelta.max
    if not isinstance(found, timedelta) or not timedelta() <= found <= _MAX_WAIT:
        rule = 'must be a timedelta or an ISO 8601 duration such as "P3D", of at most 366 days'
        raise _invalid(f"{called}: {rule}, but is {value!r:.100}")
    return found


def _result_of(function: Callable[..., Any]) -> Convert:
    """Return the conversion of a function's result. Raises JobFailed."""
    while isinstance(function, partial):
        function = function.func
    shown = function if inspect.isroutine(function) else type(function).__call__
    try:
        return converter(get_type_hints(shown, include_extras=True).get("return", Any))
    except Exception as error:
        raise _invalid(f"{function!r:.100}: the result can't be converted: {error}") from error


async def _called(aio: bool, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if aio and not inspect.iscoroutinefunction(function):
        import asyncio

        value = await asyncio.to_thread(function, *args, **kwargs)
    else:
        value = function(*args, **kwargs)
    if not inspect.isawaitable(value):
        return value
    if aio:
        return await value
    if inspect.iscoroutine(value):
        value.close()
    raise _invalid(f"{function!r:.100} is a coroutine function. Use it in an `async def` job")


def _is_end(error: BaseException) -> bool:
    """Return whether an exception is, or contains, the end of an attempt."""
    inner = getattr(error, "exceptions", ())  # of a group
    return isinstance(error, (JobSuspended, StepInterrupted)) or any(map(_is_end, inner))


class Durable:
    """The durable code of one attempt.

    In methods, `aio` is whether the handler is a coroutine function. Its parallel branches are
    tasks. A branch that has to end the attempt is *parked* until no other one runs.
    """

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self._shown: Answer = context.job.raw.get("durable") or {}
        self.version = int(self._shown.get("version", context.code_version))
        self.epoch = int(self._shown.get("epoch", 0))
        self.checkpoint = (context.job.raw.get("checkpoint") or {}).get("state")
        self._clients: Clients | None = None
        self._names: set[tuple[str, str]] = set()
        self._outcomes: dict[tuple[str, str], Answer] | None = None
        self._waits: dict[tuple[str, str], Answer] = {}
        self._unsaved: dict[str, Answer] = {}
        self._saved = False
        # How the attempt ends, and the error of a step.
        self._over: Ending | None = None
        self._error: Exception | None = None
        # Durable calls that run, and those that are parked: their waits, and whether all must end.
        self._running = 0
        self._parked: dict[asyncio.Future[NoReturn], tuple[Sequence[Answer], bool]] = {}
        self._moves = 0
        self._lock: Any = None

    # --- requests --------------------------------------------------------------------------------

    def _server(self) -> Clients:
        if self._clients is None:
            given = self.context.server and self.context.server()
            self._clients = Clients.override or given or self.context.clients or DEFAULT
        return self._clients

    async def _ask(self, aio: bool, call: Call[T]) -> T:
        """Send a request. Raises Duplicate; any other error ends the attempt."""
        error: Exception
        try:
            return await self._server().arun(call) if aio else self._server().run(call)
        except Duplicate:
            raise
        except Misconfigured as wrong:
            message = f"Durable code needs a server. {wrong}."
            error = JobFailed(message, code="no_server", retryable=False)
        except ApiError as wrong:
            if wrong.status in (404, 409):
                # Another worker has the job, or it was deleted.
                self.context.cancel(LOST)
                raise JobCancelled(LOST) from wrong
            error = wrong
            if wrong.status in (400, 413, 422):
                error = JobFailed(wrong.message, code=wrong.code, retryable=False)
        except OjsError as wrong:
            error = wrong
        except (TypeError, ValueError, RecursionError) as wrong:
            error = JobFailed(f"must be JSON: {wrong}", code="result_not_json", retryable=False)
        return await self._interrupt(aio, error)

    async def _post(self, aio: bool, path: str, body: Answer) -> Answer:
        # Each of these requests can be sent again.
        path = place(f"jobs/{{}}/{path}", self.context.id)
        body = {"lease_token": self.context.job.lease_token, **body}
        return await self._ask(aio, Call("POST", path, json_object, body))

    async def _ready(self, aio: bool) -> None:
        """Read the stored outcomes, once."""
        if self._outcomes is None:
            async with self._locked(aio):
                if self._outcomes is None:
                    await self._load(aio, self._shown.get("steps", 0) > 0)

    async def _load(self, aio: bool, more: bool) -> None:
        if not self._shown and self._server() not in _supported:
            manifest = await self._ask(aio, Call("GET", "/ojs/manifest", json_object))
            offered = manifest.get("extensions", {}).get("experimental", [])
            if EXTENSION not in [each["uri"] for each in offered]:
                message = "The server doesn't support durable code. Update it."
                failed = JobFailed(message, code="durable_unsupported", retryable=False)
                await self._interrupt(aio, failed)
            _supported.add(self._server())
        outcomes, cursor = dict[tuple[str, str], Answer](), None
        while more:
            path = place("jobs/{}/steps", self.context.id)
            call = Call("GET", path, json_object, query={"cursor": cursor})
            page = await self._ask(aio, call)
            outcomes |= {(each["kind"], each["name"]): each for each in page["steps"]}
            self._waits |= {(each["kind"], each["name"]): each for each in page["waits"]}
            cursor = page["pagination"].get("next_cursor")
            more = cursor is not None
        self._outcomes = outcomes

    def _locked(self, aio: bool) -> Any:
        if aio and self._lock is None:
            import asyncio

            self._lock = asyncio.Lock()
        return self._lock if aio else nullcontext()

    async def _save(self, aio: bool, name: str, kind: str = "step", **outcome: Any) -> Answer:
        """Store an outcome. Return the one that counts: another one can have been first.

        Outcomes that are stored at the same time are sent together.
        """
        entry = {"name": name, "kind": kind, "save": uuid4().hex, **outcome}
        save = entry["save"]
        self._unsaved[save] = entry
        try:
            async with self._locked(aio):
                if "stored" not in entry:
                    sent = [entry, *(one for key, one in self._unsaved.items() if key != save)]
                    sent = sent[:_MAX_SAVES]
                    body = {"version": self.version, "steps": [dict(each) for each in sent]}
                    answer = await self._post(aio, "steps", body)
                    self._saved = True
                    for each, told in zip(sent, answer["steps"]):  # noqa: B905
                        del self._unsaved[each["save"]]
                        if not told["stored"]:
                            each.pop("result", None)
                            each.pop("error", None)
                        each.update(told)
        finally:
            self._unsaved.pop(save, None)
        self._found()[kind, name] = entry
        return entry

    def _found(self) -> dict[tuple[str, str], Answer]:
        assert self._outcomes is not None
        return self._outcomes

    async def _value(self, aio: bool, name: str, outcome: Answer, convert: Convert) -> Any:
        """Return the result of an outcome. Raises StepFailed."""
        if "error" in outcome:
            raise StepFailed(name, outcome["error"])
        try:
            return convert(outcome.get("result"), False)
        except Refused as error:
            message = f"The stored result of {name!r} {error}."
            failed = JobFailed(message, code="step_result_invalid", retryable=False)
        return await self._interrupt(aio, failed)

    async def _json(self, aio: bool, name: str, value: Any, convert: Convert) -> Any:
        """Return a result in JSON."""
        code = "result_not_json"
        try:
            found = convert(value, True)
            size = len(to_json(found).encode())
            if size <= _MAX_BYTES:
                return found
            message = f"It has {size} bytes, but at most {_MAX_BYTES} are allowed"
            code = "result_too_large"
        except (TypeError, ValueError, RecursionError) as error:
            message = str(error)
        message = f"The step {name!r} completed, but its result can't be stored: {message}."
        return await self._interrupt(aio, JobFailed(message, code=code, retryable=False))

    # --- the end of the attempt ------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Count a durable call while it runs."""
        self.context.check()
        if self._over is not None:
            raise self._end()
        if _STEP.get() is self:
            raise _invalid("A step can't contain steps or waits. Call them in the job itself")
        self._running += 1
        self._moves += 1
        try:
            yield
        finally:
            self._running -= 1
            self._look()

    async def _park(self, aio: bool, waits: Sequence[Answer], *, every: bool = False) -> NoReturn:
        """End the attempt as soon as no other branch runs."""
        if not aio:
            self._finish([(waits, every)])
            raise self._end()
        import asyncio

        future: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self._parked[future] = waits, every
        self._running -= 1
        if (task := asyncio.current_task()) is not None:
            # Nobody may await this task any more.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            self._look()
            await future
        finally:
            self._running += 1
            del self._parked[future]
        raise AssertionError("the future has an exception")

    async def _interrupt(self, aio: bool, error: Exception) -> NoReturn:
        self._error = self._error or error
        await self._park(aio, [])

    def _look(self) -> None:
        """Look whether all branches are parked, after those that can continue had their turn."""
        self._moves += 1
        if self._parked and not self._running:
            self._turn(self._moves, _TURNS)

    def _turn(self, moves: int, left: int) -> None:
        if moves != self._moves or self._over is not None:
            return
        future = next(iter(self._parked))
        if left:
            future.get_loop().call_soon(self._turn, moves, left - 1)
            return
        self._finish(list(self._parked.values()))
        for each in self._parked:
            if not each.done():
                each.set_exception(self._end())

    def _finish(self, parked: Sequence[tuple[Sequence[Answer], bool]]) -> None:
        waits = list(
            {(each["kind"], each["name"]): each for many, _ in parked for each in many}.values()
        )
        if len(waits) > MAX_WAITS and self._error is None:
            self._error = _invalid(f"The job has {len(waits)} waits, but at most {MAX_WAITS}")
        if self._error is not None:
            self._over = ended(self._error, self.context)
        else:
            mode = {"mode": "all"} if len(parked) == 1 and parked[0][1] else {}
            self._over = Ending("nacks", {"suspend": {**mode, "waits": waits}})

    def _end(self) -> BaseException:
        if self._error is None:
            return JobSuspended("the job waits")
        raised = StepInterrupted(str(self._error))
        raised.__cause__ = self._error
        return raised

    def ending(self, ending: Ending, error: BaseException | None) -> Ending:
        """Return the outcome of the attempt.

        Args:
            ending: The outcome of a handler without durable code.
            error: The exception of the handler, or None.
        """
        lost = self.context.cancelled in (CANCELLED, LOST)
        if self._over is not None and not lost and (error is None or _is_end(error)):
            return self._over
        if isinstance(error, StepFailed):
            told = error.error
            return failure(
                str(told.get("code") or "step_failed"), str(error), kind=told.get("type"),
                retryable=False, details=told.get("details"),
            )  # fmt: skip
        return ending

    # --- steps -----------------------------------------------------------------------------------

    def _named(self, kind: str, name: Any, key: Any = None) -> str:
        """Return a name with its key. Raises JobFailed if it is invalid or was used before."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _invalid(f"The name {name!r:.100} must be 1 to 64 letters, digits, or _.:-")
        if key is not None and not (isinstance(key, str) and _KEY.fullmatch(key)):
            raise _invalid(f"The key {key!r:.100} must be 1 to 100 characters without |")
        whole = f"{name}" if key is None else f"{name}/{key}"
        if (kind, whole) in self._names:
            raise StepNameReused(whole)
        self._names.add((kind, whole))
        return whole

    async def step(
        self, aio: bool, name: str, function: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a step, unless its outcome is stored. `kwargs` can have `key` and `final`."""
        name, final = self._named("step", name, kwargs.pop("key", None)), kwargs.pop("final", ())
        convert = _result_of(function)
        with self._call():
            await self._ready(aio)
            outcome = self._found().get(("step", name))
            if outcome is None:
                await self._may_start(aio)
                made = await self._made(aio, name, function, args, kwargs, final, convert)
                outcome = await self._save(aio, name, **made)
            return await self._value(aio, name, outcome, convert)

    async def _may_start(self, aio: bool) -> None:
        """End the attempt if another branch failed, or if too little time is left."""
        if self._error is not None:
            await self._park(aio, [])
        if self.context.start_until is not None and time.monotonic() > self.context.start_until:
            await self._park(aio, [{"kind": "time", "name": "time", "for": "PT0S"}])

    async def _made(
        self, aio: bool, name: str, function: Callable[..., Any], args: Any, kwargs: Any,
        final: Final | tuple[()], convert: Convert,
    ) -> Answer:  # fmt: skip
        """Run the function of a step. Return its outcome."""
        began, at = time.monotonic(), datetime.now(timezone.utc)
        token, made = _STEP.set(self), dict[str, Any]()
        try:
            value = await _called(aio, function, args, kwargs)
        except JobCancelled:
            raise
        except Exception as error:  # noqa: BLE001 - a step can raise anything
            told = ended(error, self.context).entry["error"]
            if not (isinstance(error, final) or self._is_last(told)):
                await self._interrupt(aio, error)
            kept = ("code", "type", "message", "details")
            made["error"] = {field: told[field] for field in kept if field in told}
        else:
            made["result"] = await self._json(aio, name, value, convert)
        finally:
            _STEP.reset(token)
        lasted_ms = round((time.monotonic() - began) * 1_000)
        return {**made, "started_at": at.isoformat(), "duration_ms": lasted_ms}

    def _is_last(self, error: Answer) -> bool:
        """Return whether the job isn't retried after an error."""
        job = self.context.job
        retry = job.raw.get("retry") or {}
        for pattern in retry.get("non_retryable_errors") or ():
            prefix = pattern[:-1] if pattern.endswith("*") else None
            for name in (error["type"], error["code"]):
                if name == pattern or (prefix is not None and name.startswith(prefix)):
                    return True
        # Attempts count from the one that last stored a step.
        forgiven = job.attempt - 1 if self._saved else self._shown.get("forgiven_attempts", 0)
        return not error["retryable"] or 0 < job.max_attempts <= job.attempt - forgiven

    async def save_checkpoint(self, aio: bool, state: Any) -> None:
        """Store the state of the job."""
        with self._call():
            await self._ready(aio)
            await self._post(aio, "checkpoint", {"state": state})
            self.checkpoint = state

    # --- waits -----------------------------------------------------------------------------------

    async def sleep(self, aio: bool, value: object, name: str) -> None:
        """Suspend the job for a time."""
        found = length("sleep()", value)
        if found >= _IN_PLACE:
            await self._wait(aio, "sleep", self._named("sleep", name), {"for": iso_duration(found)})
            return
        with self._call():
            await self._pause(aio, found.total_seconds())

    async def _pause(self, aio: bool, seconds: float) -> None:
        if aio:
            import asyncio

            await asyncio.sleep(seconds)
            self.context.check()
        else:
            JobContext.sleep(self.context, seconds)

    async def sleep_until(self, aio: bool, at: str | datetime, name: str) -> None:
        """Suspend the job until a time."""
        try:
            until = read_moment(moment(at))
            distance = until - datetime.now(timezone.utc)
        except (TypeError, ValueError, AttributeError, OverflowError):
            rule = "must be a datetime or an RFC 3339 string, with a time zone"
            raise _invalid(f"sleep_until(): {rule}, but is {at!r:.100}") from None
        if abs(distance) > _MAX_WAIT:
            raise _invalid(f"sleep_until(): must be within 366 days from now, but is {at!r:.100}")
        await self._wait(aio, "sleep", self._named("sleep", name), {"until": until.isoformat()})

    async def wait_for(self, aio: bool, name: str, timeout: object) -> Signal | None:
        """Suspend the job until a signal is sent, or until the timeout."""
        ends = {"for": iso_duration(length("wait_for()", timeout))}
        outcome = await self._wait(aio, "signal", self._named("signal", name), ends)
        if outcome is None or "error" in outcome:
            return None
        return Signal(outcome.get("result"), read_moment(outcome["stored_at"]))

    async def _wait(self, aio: bool, kind: str, name: str, ends: Answer) -> Answer | None:
        with self._call():
            await self._ready(aio)
            outcome = self._found().get((kind, name))
            wait = self._waits.get((kind, name))
            if outcome is not None or (kind == "sleep" and wait is not None and wait["over"]):
                return outcome
            if wait is None or not wait["over"]:
                ends = ends if wait is None else {"until": wait["until"]}
                await self._park(aio, [{"kind": kind, "name": name, **ends}])
            # Nothing was sent in time. A signal that is sent now is refused, or was first.
            await self._save(aio, name, kind, error={"code": "timeout"})
            if "error" not in self._found()[kind, name]:
                await self._load(aio, more=True)
            return self._found()[kind, name]

    # --- child jobs ------------------------------------------------------------------------------

    async def run(self, aio: bool, call: Any, name: str) -> Any:
        """Start a child job or a workflow, and wait for its result."""
        if hasattr(call, "fields"):
            return await self._workflow(aio, call, self._named("job", self._named("step", name)))
        return (await self._children(aio, [call], [self._named("job", name)]))[0]

    async def gather(self, aio: bool, calls: Sequence[JobCall[Any]], name: str) -> list[Any]:
        """Start child jobs, and wait for the results of all."""
        if len(calls) > MAX_CALLS:
            rule = f"takes at most {MAX_CALLS} jobs, but got {len(calls)}. Use run(group(…))"
            raise _invalid(f"gather(): {rule}")
        names = [self._named("job", name, str(number)) for number in range(len(calls))]
        return await self._children(aio, calls, names)

    async def _children(
        self, aio: bool, calls: Sequence[JobCall[Any]], names: Sequence[str]
    ) -> list[Any]:
        if strange := [each for each in calls if not hasattr(each, "job_type")]:
            raise _invalid(f"A child job is a call such as send.job(…), but got {strange[0]!r:.60}")
        with self._call():
            await self._ready(aio)
            new = {
                name: call for name, call in zip(names, calls)  # noqa: B905
                if ("job", name) not in self._found()
            }  # fmt: skip
            if new:
                await self._may_start(aio)
                if waits := await self._start(aio, new):
                    await self._park(aio, waits, every=True)
            return [
                await self._value(aio, name, self._found()["job", name], call.job_type.converted)
                for name, call in zip(names, calls)  # noqa: B905
            ]

    async def _start(self, aio: bool, calls: Mapping[str, JobCall[Any]]) -> list[Answer]:
        """Start child jobs, and store the outcomes of those that have ended.

        Return the waits for the others.
        """
        parent = {"job_id": self.context.id, "lease_token": self.context.job.lease_token}
        jobs = {
            name: {**each.wire(), "parent": {**parent, "name": name}}
            for name, each in calls.items()
        }
        try:
            if len(jobs) > 1:
                body = {"jobs": list(jobs.values())}
                await self._ask(aio, Call("POST", "jobs/batch", json_object, body))
                return [self._wait_for_child(name, _CHILD_S) for name in jobs]
        except Duplicate:
            pass  # They were started before. Or a unique job exists.
        waits = []
        for name, job in jobs.items():
            try:
                await self._ask(aio, Call("POST", "jobs", json_object, job))
                waits.append(self._wait_for_child(name, _CHILD_S))
            except Duplicate as error:
                known = str(error.details.get("existing_job_id") or "")
                found = await self._child(aio, name, known)
                if found is None:
                    told = {"code": error.code, "message": error.message}
                    await self._save(aio, name, "job", error=told)
                elif found["state"] in FINAL_STATES:
                    await self._save(aio, name, "job", **_outcome_of(found))
                else:
                    waits.append(self._wait_for_child(name, _CHILD_S, found["created_at"]))
        return waits

    async def _child(self, aio: bool, name: str, job_id: str) -> Answer | None:
        """Return a child job of this name, or None if the job is another one."""
        if not job_id:
            return None
        answer = await self._ask(aio, Call("GET", place("jobs/{}", job_id), json_object))
        ours = {"job_id": self.context.id, "name": name}
        return answer if answer.get("parent") == ours else None

    async def _workflow(self, aio: bool, workflow: Workflow, name: str) -> Any:
        with self._call():
            await self._ready(aio)
            if ("job", name) not in self._found():
                if (started := self._found().get(("step", name))) is None:
                    await self._may_start(aio)
                    # The ID is stored first, so that a repeated attempt starts no second workflow.
                    started = await self._save(aio, name, result=uuid7())
                body = {"id": started["result"], **workflow.wire()}
                try:
                    await self._ask(aio, Call("POST", "workflows", json_object, body))
                    await self._park(aio, [self._wait_for_child(name, _WORKFLOW_S)])
                except Duplicate:
                    outcome = await self._results(aio, name, str(started["result"]))
                await self._save(aio, name, "job", **outcome)
            return await self._value(aio, name, self._found()["job", name], converter(list[Any]))

    async def _results(self, aio: bool, name: str, workflow_id: str) -> Answer:
        """Return the outcome of a workflow: the results of its steps. Park until it has ended."""
        steps, query = list[Answer](), dict[str, Any]()
        while True:
            path = place("workflows/{}", workflow_id)
            shown = await self._ask(aio, Call("GET", path, json_object, query=query))
            found = shown.get("workflow", shown)
            if found["state"] not in ("completed", "failed", "cancelled"):
                await self._park(
                    aio, [self._wait_for_child(name, _WORKFLOW_S, found["created_at"])]
                )
            if found["state"] != "completed":
                message = f"The workflow {workflow_id} is {found['state']}."
                return {"error": {"code": f"workflow_{found['state']}", "message": message}}
            steps += found.get("steps", [])
            if not (query := {"cursor": found["next_cursor"]} if "next_cursor" in found else {}):
                break
        results = [each.get("result") for each in steps if "callback" not in each]
        return {"result": await self._json(aio, name, results, converter(list[Any]))}

    def _wait_for_child(
        self, name: str, bounds: tuple[int, int], created_at: str | None = None
    ) -> Answer:
        """Return the wait for a child. Its time doubles as the child gets older."""
        seconds, most = bounds
        began = self.context.job.started_at  # by the clock of the server
        if created_at is not None and began is not None:
            age = read_moment(began) - read_moment(created_at)
            seconds = max(seconds, min(round(age.total_seconds()), most))
        return {"kind": "job", "name": name, "for": f"PT{seconds}S"}


def _outcome_of(child: Answer) -> Answer:
    """Return the outcome of a finished child job, as the server stores it."""
    state = child["state"]
    if state == "completed":
        return {"result": child.get("result")}
    found = child.get("error") or {}
    message = found.get("message", f"The child job is {state}.")
    told = {"code": found.get("code", state), "type": found.get("type", state), "message": message}
    return {"error": {**told, "job_id": child["id"]}}
