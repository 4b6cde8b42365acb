"""Durable code of a handler: steps, waits, and child jobs. Imported by its first durable call.

Both kinds of handlers use these coroutines. For a function, they never wait for an event loop, so
`now` runs them to their end.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_type_hints
from uuid import uuid4
from weakref import WeakSet

from ojs_aws.client.call import Answer, Call, Misconfigured, json_object, place, to_json
from ojs_aws.client.operations import moment
from ojs_aws.errors import ApiError, Duplicate, NotFound, OjsError
from ojs_aws.ids import uuid7
from ojs_aws.typed.clients import DEFAULT, Clients
from ojs_aws.typed.options import ISO_DURATION
from ojs_aws.typed.plain import Convert, Refused, iso_duration, read_moment
from ojs_aws.typed.signature import converter
from ojs_aws.worker.context import CANCELLED, LOST, JobCancelled, JobContext, JobFailed
from ojs_aws.worker.handlers import Ending, ended, failure
from ojs_aws.worker.steps import JobSuspended, Signal, StepFailed, StepInterrupted

if TYPE_CHECKING:
    import asyncio

    from ojs_aws.typed.parents import Reference
    from ojs_aws.worker.steps import ChildCall, Final, WorkflowCall

T = TypeVar("T")

EXTENSION = "urn:ojs-aws:ext:durable-steps"
MAX_CALLS = MAX_WAITS = 50
_MAX_BYTES = 262_144
# Outcomes in one request, and about how many characters.
_MAX_SAVES, _MAX_REQUEST = 25, 1_000_000
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
# States of child jobs that have not finished.
_RUNNING = ("available", "scheduled", "pending", "active", "retryable")

# Clients of servers that support durable code.
_supported: WeakSet[Clients] = WeakSet()
# The durable code whose step this code runs in.
_STEP: ContextVar[Durable | None] = ContextVar("ojs_step", default=None)


class StepNameReused(JobFailed):
    """A name was used twice in one attempt. The job is not retried."""

    def __init__(self, name: str) -> None:
        rule = "was used before in this attempt. Pass another name, or a key in a loop"
        super().__init__(f"The name {name!r} {rule}.", code="step_name_reused", retryable=False)


class _Ended(BaseException):
    """A durable call ends the attempt: with waits (`every`: all of them must end), or an error."""

    def __init__(
        self, waits: Sequence[Answer] = (), *, every: bool = False, error: Exception | None = None
    ) -> None:
        super().__init__()
        self.waits, self.every, self.error = waits, every, error


def _failed(code: str, message: str) -> _Ended:
    """Return the end of an attempt that is not retried."""
    return _Ended(error=JobFailed(message, code=code, retryable=False))


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

    The parallel branches of a coroutine function are tasks. A branch that has to end the attempt is
    *parked* until no other one runs. In a function, it ends the attempt immediately.
    """

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.aio = False  # whether the handler is a coroutine function
        self._shown: Answer = context.job.raw.get("durable") or {}
        self.version = int(self._shown.get("version", context.code_version))
        self.epoch = int(self._shown.get("epoch", 0))
        self.checkpoint = (context.job.raw.get("checkpoint") or {}).get("state")
        self._clients: Clients | None = None
        self._names: set[tuple[str, str]] = set()
        self._is_read = False
        self._outcomes: dict[tuple[str, str], Answer] = {}
        self._waits: dict[tuple[str, str], Answer] = {}
        self._unsaved: dict[str, Answer] = {}
        self._saved = False
        # How the attempt ends, and the error of a step.
        self._over: Ending | None = None
        self._error: Exception | None = None
        # Durable calls that run, those that are parked, and the tasks of both.
        self._running = 0
        self._parked: dict[asyncio.Future[NoReturn], _Ended] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._moves = 0
        self._lock: Any = None

    # --- requests --------------------------------------------------------------------------------

    def _server(self) -> Clients:
        if self._clients is None:
            given = self.context.server and self.context.server()
            self._clients = Clients.override or given or self.context.clients or DEFAULT
        return self._clients

    async def _ask(self, call: Call[T], *, other: bool = False) -> T:
        """Send a request. Raises Duplicate, and with `other` NotFound.

        Any other error ends the attempt.
        """
        try:
            return await self._server().arun(call) if self.aio else self._server().run(call)
        except Misconfigured as error:
            raise _failed("no_server", f"Durable code needs a server. {error}.") from None
        except ApiError as error:
            if isinstance(error, Duplicate) or (other and isinstance(error, NotFound)):
                raise
            mine = self.context.id in call.path or self.context.id in error.details.values()
            if mine and error.status in (404, 409):
                # Another worker has the job, or it was deleted.
                self.context.cancel(LOST)
                raise JobCancelled(LOST) from error
            if error.status in (400, 413, 422):
                raise _failed(error.code, error.message) from error
            raise _Ended(error=error) from None
        except OjsError as error:
            raise _Ended(error=error) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise _failed("result_not_json", f"must be JSON: {error}") from None

    async def _post(self, path: str, body: Answer) -> Answer:
        # Each of these requests can be sent again.
        path = place(f"jobs/{{}}/{path}", self.context.id)
        body = {"lease_token": self.context.job.lease_token, **body}
        return await self._ask(Call("POST", path, json_object, body))

    async def _ready(self) -> None:
        """Read the stored outcomes, once."""
        if not self._is_read:
            async with self._locked():
                if not self._is_read:
                    await self._check_server()
                    if self._shown.get("steps", 0) > 0:
                        await self._read()
                    self._is_read = True

    async def _check_server(self) -> None:
        if not self._shown and self._server() not in _supported:
            manifest = await self._ask(Call("GET", "/ojs/manifest", json_object))
            offered = manifest.get("extensions", {}).get("experimental", [])
            if EXTENSION not in [each["uri"] for each in offered]:
                raise _failed("durable_unsupported", "The server doesn't support durable code.")
            _supported.add(self._server())

    async def _read(self) -> None:
        query: Answer | None = {}
        while query is not None:
            path = place("jobs/{}/steps", self.context.id)
            page = await self._ask(Call("GET", path, json_object, query=query))
            self._outcomes |= {(each["kind"], each["name"]): each for each in page["steps"]}
            self._waits |= {(each["kind"], each["name"]): each for each in page["waits"]}
            cursor = page["pagination"].get("next_cursor")
            query = None if cursor is None else {"cursor": cursor}

    def _locked(self) -> Any:
        if self._lock is None:
            self._lock = nullcontext()
            if self.aio:
                import asyncio

                self._lock = asyncio.Lock()
        return self._lock

    async def _save(self, name: str, kind: str = "step", **outcome: Any) -> Answer:
        """Store an outcome. Return the one that counts: another one can have been first.

        Outcomes that are stored at the same time are sent together.
        """
        entry = {"name": name, "kind": kind, "save": uuid4().hex, **outcome}
        save = entry["save"]
        self._unsaved[save] = entry
        try:
            async with self._locked():
                if "stored" not in entry:
                    sent, size = [entry], 0
                    for key, one in self._unsaved.items():
                        size += len(to_json(one))
                        if key != save and len(sent) < _MAX_SAVES and size < _MAX_REQUEST:
                            sent.append(one)
                    body = {"version": self.version, "steps": [dict(each) for each in sent]}
                    answer = await self._post("steps", body)
                    self._saved = True
                    for each, told in zip(sent, answer["steps"]):  # noqa: B905
                        self._unsaved.pop(each["save"], None)
                        if not told["stored"]:
                            each.pop("result", None)
                            each.pop("error", None)
                        each.update(told)
        finally:
            self._unsaved.pop(save, None)
        self._outcomes[kind, name] = entry
        return entry

    def _value(self, name: str, outcome: Answer, convert: Convert) -> Any:
        """Return the result of an outcome. Raises StepFailed."""
        if "error" in outcome:
            raise StepFailed(name, outcome["error"])
        try:
            return convert(outcome.get("result"), False)
        except Refused as error:
            message = f"The stored result of {name!r} {error}."
            raise _failed("step_result_invalid", message) from None

    @staticmethod
    def _json(name: str, value: Any, convert: Convert) -> Any:
        """Return a result in JSON."""
        prefix = f"The step {name!r} completed, but its result can't be stored"
        try:
            found = convert(value, True)
            size = len(to_json(found).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise _failed("result_not_json", f"{prefix}: {error}.") from None
        if size > _MAX_BYTES:
            why = f"It has {size} bytes, but at most {_MAX_BYTES} are allowed"
            raise _failed("result_too_large", f"{prefix}: {why}.")
        return found

    # --- the end of the attempt ------------------------------------------------------------------

    @asynccontextmanager
    async def _call(self, *, reads: bool = True) -> AsyncIterator[None]:
        """Count a durable call while it runs. The first one reads the stored outcomes."""
        self.context.check()
        if self._over is not None:
            raise self._end()
        if _STEP.get() is self:
            raise _invalid("A step can't contain steps or waits. Call them in the job itself")
        self._running += 1
        self._moves += 1
        if self.aio:
            import asyncio

            if (task := asyncio.current_task()) is not None:
                self._tasks.add(task)
        try:
            if reads:
                await self._ready()
            yield
        except _Ended as ended:
            self._error = self._error or ended.error
            await self._park(ended)
        finally:
            self._running -= 1
            self._look()

    async def _park(self, ended: _Ended) -> NoReturn:
        if not self.aio:
            self._finish([ended])
            raise self._end()
        import asyncio

        future: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        self._parked[future] = ended
        self._running -= 1
        self._look()
        try:
            await future
        finally:
            self._running += 1
            del self._parked[future]
        raise AssertionError("the future has an exception")

    def _look(self) -> None:
        """Look whether all branches are parked, after those that can continue had their turn."""
        self._moves += 1
        if self._parked and not self._running:
            self._turn(self._moves, _TURNS)

    def _turn(self, moves: int, left: int) -> None:
        if moves != self._moves or self._over is not None:
            return
        if left:
            loop = next(iter(self._parked)).get_loop()
            loop.call_soon(self._turn, moves, left - 1)
            return
        self._finish(list(self._parked.values()))
        for each in self._parked:
            if not each.done():
                each.set_exception(self._end())

    def _finish(self, parked: Sequence[_Ended]) -> None:
        waits = {(each["kind"], each["name"]): each for one in parked for each in one.waits}
        if len(waits) > MAX_WAITS and self._error is None:
            self._error = _invalid(f"The job has {len(waits)} waits, but at most {MAX_WAITS}")
        if self._error is not None:
            self._over = ended(self._error, self.context)
        else:
            mode = {"mode": "all"} if len(parked) == 1 and parked[0].every else {}
            suspend = {**mode, "waits": list(waits.values())}
            self._over = Ending("nacks", {"suspend": suspend})

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
        self._cancel_branches()
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

    def _cancel_branches(self) -> None:
        """Cancel the branches that the handler didn't await."""
        if self._tasks:
            import asyncio

            for task in self._tasks - {asyncio.current_task()}:
                task.cancel()
                # asyncio logs an exception that no task retrieves.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())

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

    async def step(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a step, unless its outcome is stored. `kwargs` can have `key` and `final`."""
        name, final = self._named("step", name, kwargs.pop("key", None)), kwargs.pop("final", ())
        convert = _result_of(function)
        async with self._call():
            outcome = self._outcomes.get(("step", name))
            if outcome is None:
                await self._may_start()
                made = await self._made(name, function, args, kwargs, final, convert)
                outcome = await self._save(name, **made)
            return self._value(name, outcome, convert)

    async def _may_start(self) -> None:
        """End the attempt if another branch failed, or if too little time is left."""
        if self._error is not None:
            raise _Ended([])
        if self.context.start_until is not None and time.monotonic() > self.context.start_until:
            raise _Ended([{"kind": "time", "name": "time", "for": "PT0S"}])

    async def _made(
        self, name: str, function: Callable[..., Any], args: Any, kwargs: Any,
        final: Final | tuple[()], convert: Convert,
    ) -> Answer:  # fmt: skip
        """Run the function of a step. Return its outcome."""
        began, at = time.monotonic(), datetime.now(timezone.utc)
        token, made = _STEP.set(self), dict[str, Any]()
        try:
            value = await _called(self.aio, function, args, kwargs)
        except JobCancelled:
            raise
        except Exception as error:  # noqa: BLE001 - a step can raise anything
            told = ended(error, self.context).entry["error"]
            if not (isinstance(error, final) or self._is_last(told)):
                raise _Ended(error=error) from None
            kept = ("code", "type", "message", "details")
            made["error"] = {field: told[field] for field in kept if field in told}
        else:
            made["result"] = self._json(name, value, convert)
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

    async def save_checkpoint(self, state: Any) -> None:
        """Store the state of the job."""
        async with self._call():
            await self._post("checkpoint", {"state": state})
            self.checkpoint = state

    # --- waits -----------------------------------------------------------------------------------

    async def sleep(self, value: object, name: str) -> None:
        """Suspend the job for a time."""
        found = length("sleep()", value)
        if found >= _IN_PLACE:
            await self._wait("sleep", self._named("sleep", name), {"for": iso_duration(found)})
            return
        async with self._call(reads=False):
            await self._pause(found.total_seconds())

    async def _pause(self, seconds: float) -> None:
        if self.aio:
            import asyncio

            await asyncio.sleep(seconds)
            self.context.check()
        else:
            JobContext.sleep(self.context, seconds)

    async def sleep_until(self, at: str | datetime, name: str) -> None:
        """Suspend the job until a time."""
        try:
            until = read_moment(moment(at))
            distance = until - datetime.now(timezone.utc)
        except (TypeError, ValueError, AttributeError, OverflowError):
            rule = "must be a datetime or an RFC 3339 string, with a time zone"
            raise _invalid(f"sleep_until(): {rule}, but is {at!r:.100}") from None
        if abs(distance) > _MAX_WAIT:
            raise _invalid(f"sleep_until(): must be within 366 days from now, but is {at!r:.100}")
        await self._wait("sleep", self._named("sleep", name), {"until": until.isoformat()})

    async def wait_for(self, name: str, timeout: object) -> Signal | None:
        """Suspend the job until a signal is sent, or until the timeout."""
        ends = {"for": iso_duration(length("wait_for()", timeout))}
        outcome = await self._wait("signal", self._named("signal", name), ends)
        if outcome is None or "error" in outcome:
            return None
        return Signal(outcome.get("result"), read_moment(outcome["stored_at"]))

    async def _wait(self, kind: str, name: str, ends: Answer) -> Answer | None:
        async with self._call():
            outcome = self._outcomes.get((kind, name))
            wait = self._waits.get((kind, name))
            if outcome is not None or (kind == "sleep" and wait is not None and wait["over"]):
                return outcome
            if wait is None or not wait["over"]:
                ends = ends if wait is None else {"until": wait["until"]}
                raise _Ended([{"kind": kind, "name": name, **ends}])
            # Nothing was sent in time. A signal that is sent now is refused, or was first.
            await self._save(name, kind, error={"code": "timeout"})
            if "error" not in self._outcomes[kind, name]:
                await self._read()
            return self._outcomes[kind, name]

    # --- child jobs ------------------------------------------------------------------------------

    async def run(self, call: Any, name: str) -> Any:
        """Start a child job or a workflow, and wait for its result."""
        if hasattr(call, "fields"):
            return await self._workflow(call, self._named("job", self._named("step", name)))
        return (await self._children([call], [self._named("job", name)]))[0]

    async def gather(self, calls: Sequence[ChildCall[Any]], name: str) -> list[Any]:
        """Start child jobs, and wait for the results of all."""
        if len(calls) > MAX_CALLS:
            rule = f"takes at most {MAX_CALLS} jobs, but got {len(calls)}. Use run(group(…))"
            raise _invalid(f"gather(): {rule}")
        names = [self._named("job", name, str(number)) for number in range(len(calls))]
        return await self._children(calls, names)

    async def _children(self, calls: Sequence[ChildCall[Any]], names: Sequence[str]) -> list[Any]:
        if strange := [each for each in calls if not hasattr(each, "job_type")]:
            raise _invalid(f"A child job is a call such as send.job(…), but got {strange[0]!r:.60}")
        async with self._call():
            new = {
                name: call for name, call in zip(names, calls)  # noqa: B905
                if ("job", name) not in self._outcomes
            }  # fmt: skip
            if new:
                await self._may_start()
                if waits := await self._start(new):
                    raise _Ended(waits, every=True)
            return [
                self._value(name, self._outcomes["job", name], _reader(call.job_type))
                for name, call in zip(names, calls)  # noqa: B905
            ]

    async def _start(self, calls: Mapping[str, ChildCall[Any]]) -> list[Answer]:
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
                await self._ask(Call("POST", "jobs/batch", json_object, body))
                return [self._wait_for_child(name, _CHILD_S) for name in jobs]
        except Duplicate:
            pass  # They were started before. Or a unique job exists.
        waits = []
        for name, job in jobs.items():
            created_at = None
            try:
                await self._ask(Call("POST", "jobs", json_object, job))
            except Duplicate as error:
                child = await self._child(name, error)
                if child.get("state") not in _RUNNING:
                    await self._save(name, "job", **_outcome_of(child))
                    continue
                created_at = child["created_at"]
            waits.append(self._wait_for_child(name, _CHILD_S, created_at))
        return waits

    async def _child(self, name: str, error: Duplicate) -> Answer:
        """Return the child job of this name that exists, or an error."""
        found: ApiError = error
        try:
            if job_id := error.details.get("existing_job_id"):
                call = Call("GET", place("jobs/{}", str(job_id)), json_object)
                child = await self._ask(call, other=True)
                if child.get("parent") == {"job_id": self.context.id, "name": name}:
                    return child
        except NotFound as missing:
            found = missing
        # Another job has the unique key, or the child was deleted.
        return {"error": {"code": found.code, "message": found.message}}

    async def _workflow(self, workflow: WorkflowCall, name: str) -> Any:
        async with self._call():
            if ("job", name) not in self._outcomes:
                if (started := self._outcomes.get(("step", name))) is None:
                    await self._may_start()
                    # The ID is stored first, so that a repeated attempt starts no second workflow.
                    started = await self._save(name, result=uuid7())
                body = {"id": started["result"], **workflow.wire()}
                try:
                    await self._ask(Call("POST", "workflows", json_object, body))
                    raise _Ended([self._wait_for_child(name, _WORKFLOW_S)])
                except Duplicate:
                    outcome = await self._results(name, str(started["result"]))
                await self._save(name, "job", **outcome)
            return self._value(name, self._outcomes["job", name], converter(list[Any]))

    async def _results(self, name: str, workflow_id: str) -> Answer:
        """Return the outcome of a workflow: the results of its steps. Park until it has ended."""
        steps, query = list[Answer](), dict[str, Any]()
        while True:
            path = place("workflows/{}", workflow_id)
            try:
                shown = await self._ask(Call("GET", path, json_object, query=query), other=True)
            except NotFound as error:
                return {"error": {"code": error.code, "message": error.message}}
            found = shown.get("workflow", shown)
            if found["state"] not in ("completed", "failed", "cancelled"):
                raise _Ended([self._wait_for_child(name, _WORKFLOW_S, found["created_at"])])
            if found["state"] != "completed":
                message = f"The workflow {workflow_id} is {found['state']}."
                return {"error": {"code": f"workflow_{found['state']}", "message": message}}
            steps += found.get("steps", [])
            if not (query := {"cursor": found["next_cursor"]} if "next_cursor" in found else {}):
                break
        results = [each.get("result") for each in steps if "callback" not in each]
        return {"result": self._json(name, results, converter(list[Any]))}

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


def _reader(job_type: Reference[Any]) -> Convert:
    return lambda value, _out: job_type.read_result(value)


def _outcome_of(child: Answer) -> Answer:
    """Return the outcome of a finished child job, as the server stores it."""
    state = child.get("state", "failed")
    if state == "completed":
        return {"result": child.get("result")}
    told = {"code": state, "type": state, "message": f"The child job is {state}."}
    found = child.get("error") or {}
    return {"error": {field: found.get(field, told[field]) for field in told}}
