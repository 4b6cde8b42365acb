"""Runs a worker from its start to its stop, with three threads.

- The *server thread* fetches jobs. Each fetch also sends acks and nacks.
- The *beating thread* renews leases, receives cancellations, and sends progress.
- The *watching thread*, which called `run`, enforces timeouts and stops the worker.

The server tells an idle worker when to fetch (`listening`). Without its messages, the worker polls.

Only durations on this machine are measured, so wrong clocks have no effect. The worker acks a job
only after its handler returned. It sends an unconfirmed report again until the lease expires.
"""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ojs_aws import tracing
from ojs_aws.client import background
from ojs_aws.client.blocking import Client
from ojs_aws.client.call import Answer, Call, place
from ojs_aws.client.exchange import RetryPolicy
from ojs_aws.client.job import Job
from ojs_aws.client.operations import worker_call
from ojs_aws.errors import ApiError, OjsError, Unreachable
from ojs_aws.worker.context import CANCELLED, LOST, SHUTDOWN, TIMED_OUT, Lease
from ojs_aws.worker.execution import Loop, Processes, Threads
from ojs_aws.worker.handlers import GIVEN_BACK, Ending, Handlers, failure, stopped
from ojs_aws.worker.listening import Listening
from ojs_aws.worker.outbox import MOST_ENTRIES, Batch, Outbox, Report
from ojs_aws.worker.settings import MOST_FETCHED, Settings
from ojs_aws.worker.trouble import Trouble

if TYPE_CHECKING:
    import asyncio

    from ojs_aws.typed.clients import Clients

logger = logging.getLogger("ojs_aws.worker")

RUNNING, QUIET, TERMINATE = "running", "quiet", "terminate"
_ONCE = RetryPolicy(tries=1)
_WATCH_S = 0.25
_REGISTER_S = 10.0
_SIGN_OFF_S = 1.0
_PROGRESS_EVERY_S = 1.0
# Shortest heartbeat interval in seconds that the server can request. It is also the timeout of a
# heartbeat, so that another heartbeat can be sent before the lease expires.
_SHORTEST_BEAT_S = 1.0
_BEAT_TIMEOUT_S = 10.0
_LONGEST_BEAT_S = 600.0
_TICKET_S = 5.0
# HTTP statuses of a fetch whose reports the server can't process.
_UNREADABLE = frozenset({400, 413, 422})
# HTTP statuses of a fetch whose realtime connection the server may reject.
_NOT_LISTENING = frozenset({400, 403, 404, 422})
# HTTP statuses of client errors that can end without a change of the worker: authentication, rate
# limits.
_PASSING = frozenset({401, 403, 408, 429})


class WorkerStuck(RuntimeError):
    """All slots of the worker are used by handlers that don't stop."""


class Session:
    """One run of a worker, from its start to its stop."""

    def __init__(
        self,
        settings: Settings,
        handlers: Handlers,
        client: Client,
        worker_id: str,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.id = worker_id
        self.client = client
        # Returns the clients of durable code.
        self.server: Callable[[], Clients] | None = None
        self._settings = settings
        self._handlers = handlers
        self._facts: dict[str, object] = {"worker_id": worker_id}
        self._leases: dict[Any, Lease] = {}
        self._outbox = Outbox()
        self._lock = threading.Lock()
        self._held = 0  # used slots: handlers that have not returned
        self._directive = RUNNING
        self._told_state = RUNNING
        self._stopping = threading.Event()
        self._stop_at = 0.0
        self._signalled = ""
        self._over = threading.Event()
        self._wake = threading.Event()
        self._beat_now = threading.Event()
        self._fatal: BaseException | None = None
        self._welcome = False  # the server has accepted a request of this worker
        # Time of the next fetch, earliest time of the next request, and pause after an empty fetch.
        self._next_fetch = 0.0
        self._not_before = 0.0
        self._pause_s = settings.first_poll_s
        self._freed_at: float | None = None
        self._listening = Listening(settings, self._ticket, self._wake.set, self._beat_now.set)
        self._asking = Trouble(logger, "Server request", self._facts)
        self._beat_s = settings.longest_beat_s
        self._beating = Trouble(logger, "Heartbeat", self._facts)
        self._unknown: set[str] = set()
        self._blocked = False
        runner = Processes if settings.processes else Threads
        self._functions: Threads = runner(handlers, settings.concurrency, self._ended)
        coroutines = any(handlers.asynchronous(kind) for kind in handlers.by_type)
        self._loop = Loop(handlers, self._ended, loop) if coroutines or loop else None
        self._reached = -math.inf

    # --- life --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until `stop`.

        Raises:
            ApiError: The server rejected the worker.
            WorkerStuck: Handlers that don't stop hold all slots.
            ValueError: A resource of a job is unknown.
        """
        on_loop = background.result if self._loop is None else self._loop.result
        server = threading.Thread(target=self._serve, name="ojs-server", daemon=True)
        beats = threading.Thread(target=self._beat_until_over, name="ojs-beats", daemon=True)
        try:
            self._handlers.prepare(on_loop)
            if self._introduced():
                logger.info("Worker started: %s", self.id, extra=self._facts)
                server.start()
                beats.start()
                self._watch(server)
                # The heartbeats must have stopped: a heartbeat after the deregistration would
                # register the worker again.
                self._over.set()
                self._beat_now.set()
                self._wake.set()
                self._listening.want(wanted=False)
                beats.join(_SIGN_OFF_S)
                if not beats.is_alive():
                    self._sign_off()
        finally:
            self._functions.stop()
            if self._handlers.resources is not None:
                self._handlers.resources.stop()
            if self._loop is not None:
                self._loop.stop()
        logger.info("Worker stopped: %s", self.id, extra=self._facts)
        if self._fatal is not None:
            raise self._fatal

    def stop(self, why: str) -> None:
        """Stop fetching, and end within `grace_s` plus a few seconds. Later calls do nothing."""
        if not self._stopping.is_set():
            logger.info("Worker stop requested: %s: %s", self.id, why, extra=self._facts)
            self._stop_at = time.monotonic() + self._settings.grace_s
            self._stopping.set()
            self._not_before = 0.0
            self._wake.set()
            self._beat_now.set()

    def signal(self, why: str) -> None:
        """Make the watching thread call `stop`.

        For signal handlers, which can interrupt a thread with a lock.
        """
        self._signalled = why

    def _introduced(self) -> bool:
        """Register the worker. Return false if it was stopped before the registration succeeded."""
        settings = self._settings
        body = {
            "worker_id": self.id,
            "hostname": socket.gethostname()[:255],
            "pid": os.getpid(),
            "concurrency": settings.concurrency,
            **({"labels": list(settings.labels)} if settings.labels else {}),
            **settings.order(),
        }
        while not (self._signalled or self._stopping.is_set()):
            try:
                self._ask("workers/register", body, seconds=_REGISTER_S)
            except OjsError as error:
                if self._is_fatal(error):
                    raise
                again_at = time.monotonic() + self._asking.note(error)
                while time.monotonic() < again_at and not self._signalled:
                    if self._stopping.wait(_WATCH_S):
                        break
            else:
                self._asking.over()
                self._welcome = True
                return True
        return False

    def _sign_off(self) -> None:
        try:
            self._ask(place("workers/{}", self.id), None, method="DELETE", seconds=_SIGN_OFF_S)
        except OjsError as error:
            logger.info("Deregistration failed: %s", error, extra=self._facts)

    def _ask(
        self, path: str, body: Any, *, method: str = "POST", seconds: float | None = None
    ) -> Answer:
        """Send one request without retries. The caller handles a failure."""
        call: Call[Answer] = worker_call(path, body, method=method)
        answer = self.client.try_call(call, _ONCE, seconds or self._settings.request_s)
        self._reached = time.monotonic()
        return answer

    def reached_s(self) -> float:
        """Return how many seconds ago the server was reached. An open connection counts as now."""
        return 0.0 if self._listening.connected else time.monotonic() - self._reached

    def _ticket(self, call: Call[Any]) -> Any:
        """Send a request of the realtime connection."""
        return self.client.try_call(call, _ONCE, _TICKET_S)

    def _is_fatal(self, error: OjsError) -> bool:
        """Return whether an error means that the server rejects this worker permanently."""
        refused = isinstance(error, ApiError) and 400 <= error.status < 500
        return refused and not self._welcome and getattr(error, "status", 0) not in _PASSING

    # --- the watching thread -----------------------------------------------------------------

    def _watch(self, server: threading.Thread) -> None:
        """Enforce timeouts until the server thread has ended, or the time for stopping is used."""
        settings = self._settings
        stop_by: dict[Any, float] = {}
        while server.is_alive():
            if self._signalled:
                self.stop(self._signalled)
            now = time.monotonic()
            ending = self._stopping.is_set() and now >= self._stop_at
            for key, lease in self._running():
                if ending:
                    lease.stop(SHUTDOWN)
                elif lease.until is not None and now >= lease.until and not lease.settled:
                    lease.stop(TIMED_OUT)
                if not lease.context.cancelled:
                    continue
                if now >= stop_by.setdefault(key, now + settings.stop_s):
                    self._abandon(lease)
            stop_by = {key: at for key, at in stop_by.items() if key in self._leases}
            if ending and now >= self._stop_at + settings.stop_s + settings.settle_s:
                logger.warning(
                    "Reports were not confirmed in time: %d. These jobs run again after their "
                    "leases expire", len(self._outbox), extra=self._facts,
                )  # fmt: skip
                return
            server.join(_WATCH_S)

    def _running(self) -> list[tuple[Any, Lease]]:
        with self._lock:
            return [(key, lease) for key, lease in self._leases.items() if lease.running]

    def _abandon(self, lease: Lease) -> None:
        """Abandon a handler that doesn't stop: kill its process, or stop waiting for it."""
        if isinstance(self._functions, Processes) and self._functions.kill(lease):
            return
        with self._lock:
            if lease.settled or not lease.running:
                return
            lease.settled = True
            self._settle(lease, stopped(lease.context.cancelled))
            hanging = sum(one.settled for one in self._leases.values() if one.running)
        logger.error(
            "Handler did not stop: job %s (%s). Its slot stays in use",
            lease.job.id, lease.context.cancelled, extra=self._of(lease),
        )  # fmt: skip
        if hanging >= self._settings.concurrency and not self._stopping.is_set():
            self._fatal = WorkerStuck(f"all {hanging} slots are held by handlers that don't stop")
            self.stop("no handler stops")
        self._wake.set()

    # --- the server thread -------------------------------------------------------------------

    def _serve(self) -> None:
        """Fetch and report until the worker stops."""
        try:
            while True:
                wait_s = self._turn()
                if self._done():
                    return
                self._wake.wait(wait_s)
                self._wake.clear()
        except Exception as error:  # noqa: BLE001 - without this thread the worker must stop
            self._fatal = error
            self.stop(repr(error))

    def _done(self) -> bool:
        if self._over.is_set():
            return True  # the time for the last reports is used
        if not self._stopping.is_set():
            return False
        unsettled = any(not lease.settled for _, lease in self._running())
        return not unsettled and not len(self._outbox)

    def _turn(self) -> float:
        """Perform the next due step. Return the number of seconds until the following step."""
        settings, now = self._settings, time.monotonic()
        if now < self._not_before:
            return self._not_before - now
        free = settings.concurrency - self._held
        wanted = self._directive == RUNNING and not self._stopping.is_set() and free > 0
        told_s = self._outbox.waiting_s()
        urgent = len(self._outbox) > 0 and (
            told_s >= self._report_s() or len(self._outbox) >= MOST_ENTRIES or self._no_more()
        )
        # A worker that receives messages about new jobs needs no fetch for its reports.
        with_fetch = urgent and not self._listening.idle_s()
        if wanted and (with_fetch or now >= self._due(free)):
            self._fetch(min(free, MOST_FETCHED))
            return 0.0 if len(self._outbox) >= MOST_ENTRIES else self._until_next()
        if urgent:
            self._report()
        return self._until_next()

    def _report_s(self) -> float:
        """Return how long a report waits for others. An idle worker has no others."""
        idle = self._held == 0 and self._listening.idle_s() > 0
        return self._settings.gather_s if idle else self._settings.report_s

    def _no_more(self) -> bool:
        """Return whether no later fetch can include a report."""
        return self._stopping.is_set() or self._directive != RUNNING

    def _due(self, free: int) -> float:
        """Return the time of the next fetch: when enough slots are free, or after `gather_s`."""
        due = min(self._next_fetch, self._listening.due())
        if free < max(1, self._settings.concurrency // 4) and self._freed_at is not None:
            due = max(due, self._freed_at + self._settings.gather_s)
        return due

    def _until_next(self) -> float:
        settings, now = self._settings, time.monotonic()
        free = settings.concurrency - self._held
        waits = [settings.poll_s]
        if len(self._outbox):
            waits.append(self._report_s() - self._outbox.waiting_s())
        if free > 0 and not self._no_more():
            waits.append(self._due(free) - now)
        return max(0.0, min(waits), self._not_before - now)

    def _fetch(self, count: int) -> None:
        """Fetch jobs and send reports."""
        batch, asked = self._outbox.batch(), self._listening.asks()
        body = {
            "count": count,
            "worker_id": self.id,
            "visibility_timeout_ms": self._settings.lease_ms,
            **self._settings.order(),
            **batch.body(),
            **asked,
        }
        try:
            # If the response is lost, the jobs in it are retried after their leases expire.
            answer = self._ask("workers/fetch", body)
            jobs = self._jobs_in(answer)
            again = self._heard(batch, answer)
        except OjsError as error:
            if asked and isinstance(error, ApiError) and error.status in _NOT_LISTENING:
                self._listening.refused()
                return
            self._listening.failed()
            self._failed(error, batch)
            return
        self._freed_at = None
        taken = self._take(jobs)
        self._went(answer.get("fetch_error") or again)
        full = taken >= count
        # Each fetch has a cost. If it returned no jobs, the pause doubles, up to `poll_s`.
        settings = self._settings
        self._pause_s = settings.first_poll_s if taken else min(self._pause_s * 2, settings.poll_s)
        drawn_s = self._pause_s * random.uniform(0.8, 1.0)  # noqa: S311
        chosen_s = self._listening.answered(asked, answer, jobs, full=full)
        pause_s = drawn_s if chosen_s is None else chosen_s
        self._next_fetch = time.monotonic() + (0.0 if full else pause_s)

    def _jobs_in(self, answer: Answer) -> list[Job]:
        """Return the jobs of a response. Raises Unreachable if the response is invalid."""
        try:
            return [Job.of(shown) for shown in answer["jobs"]]
        except (KeyError, TypeError, ValueError) as error:
            raise Unreachable(f"the response to a fetch is invalid: {error!r}") from error

    def _take(self, jobs: Iterable[Job]) -> int:
        """Start these jobs. Returns their number."""
        count = 0
        for job in jobs:
            count += 1
            lease = Lease(job, self._settings.timeout_s)
            lease.context.server = self.server
            with self._lock:
                earlier = [one for one in self._leases.values() if one.job.id == job.id]
                if lease.key in self._leases:
                    continue  # a duplicate of the same response
                self._leases[lease.key] = lease
                self._held += 1
            for one in earlier:
                if one.running:
                    one.stop(LOST)
            self._start(lease)
        return count

    def _start(self, lease: Lease) -> None:
        kind = lease.job.type
        if self._stopping.is_set():
            self._ended(lease, GIVEN_BACK)
        elif self._handlers.of(kind) is None:
            if kind not in self._unknown:
                self._unknown.add(kind)
                extra = self._of(lease)
                logger.error("Handler not found: job type %s. Its jobs fail", kind, extra=extra)
            message = f"The worker has no handler for job type {kind}."
            self._ended(lease, failure("no_handler", message))
        elif self._handlers.asynchronous(kind) and self._loop is not None:
            self._loop.start(lease)
        else:
            self._functions.start(lease)

    def _failed(self, error: OjsError, batch: Batch) -> None:
        """Handle a failed fetch or report. Raises the error if a retry can't succeed."""
        if isinstance(error, ApiError) and error.status in _UNREADABLE and batch.reports:
            # One report might be invalid. The reports are sent separately, so that it doesn't delay
            # the others.
            for report in batch.reports:
                if not self._report_one(report):
                    return
            if len(self._outbox):
                self._back_off(error)
            return
        if self._is_fatal(error):
            raise error
        self._back_off(error)

    def _report(self) -> None:
        """Send reports in a separate request, without a fetch."""
        batch = self._outbox.batch()
        for how, entries in batch.body().items():
            part = Batch(tuple(one for one in batch.reports if one.ending.how == how))
            body = {"worker_id": self.id, how: entries}
            try:
                answer = self._ask(f"workers/{how[:-1]}", body, seconds=self._patience_s())
                self._went(self._heard(part, answer))
            except OjsError as error:
                self._failed(error, part)
                return

    def _went(self, error: dict[str, Any] | None) -> None:
        """Record a successful request. `error` is the error of one report in it, or None."""
        if error:
            self._back_off(ApiError(503, error))
        else:
            self._asking.over()

    def _report_one(self, report: Report) -> bool:
        """Send one report. Returns whether the server responded."""
        how = report.ending.how
        body = {"worker_id": self.id, **report.entry}
        try:
            self._ask(f"workers/{how[:-1]}", body, seconds=self._patience_s())
            outcome: dict[str, Any] = {"status": 200}
        except ApiError as error:
            outcome = {"status": error.status, "error": {"message": error.message}}
            if error.status == 401:
                self._back_off(error)
                return False
        except OjsError as error:
            self._back_off(error)
            return False
        self._go_by(report, outcome)
        return True

    def _back_off(self, error: OjsError) -> None:
        """Record the earliest time of the next request, after the pause that an error requires."""
        pause_s = self._asking.note(error)
        # While the worker stops, little time remains for the last reports.
        most_s = 0.5 if self._stopping.is_set() else pause_s
        self._not_before = time.monotonic() + min(pause_s, most_s)

    def _patience_s(self) -> float:
        """Return the timeout of a report in seconds."""
        if not self._stopping.is_set():
            return self._settings.request_s
        return self._settings.settle_s

    def _heard(self, batch: Batch, answer: Answer) -> dict[str, Any] | None:
        """Process the outcomes in a response.

        Return the error of a report that must be sent again, or None.

        Raises:
            Unreachable: The outcomes are invalid.
        """
        try:
            outcomes = list(batch.outcomes(answer))
        except (TypeError, ValueError) as error:
            raise Unreachable(str(error)) from error
        again = None
        for report, outcome in outcomes:
            if not self._go_by(report, outcome):
                again = outcome.get("error") or {"message": "The server did not process a report."}
        return again

    def _go_by(self, report: Report, outcome: dict[str, Any]) -> bool:
        """Process the outcome of one report. Returns whether the job needs no more reports."""
        if not self._outbox.settle(report, outcome):
            return False
        if error := outcome.get("error"):
            logger.warning(
                "Report rejected by the server: job %s: %s",
                report.lease.job.id, error.get("message"), extra=self._of(report.lease),
            )  # fmt: skip
        with self._lock:
            self._forget(report.lease)
        return True

    # --- endings -----------------------------------------------------------------------------

    def _ended(self, lease: Lease, ending: Ending) -> None:
        """Record that a handler ended. Called once for each lease, from any thread."""
        with self._lock:
            lease.running = False
            self._held -= 1
            if self._freed_at is None:
                self._freed_at = time.monotonic()
            if lease.settled:
                # The worker stopped waiting for this handler and has reported an outcome.
                self._forget(lease)
                late = True
            else:
                lease.settled, late = True, False
                if lease.context.cancelled == CANCELLED:
                    ending = stopped(CANCELLED)
                self._settle(lease, ending)
        self._tell(lease, ending, late=late)
        self._wake.set()

    def _settle(self, lease: Lease, ending: Ending) -> None:
        """Record the outcome of a job. Requires the lock."""
        if ending.how:
            self._outbox.add(lease, ending)
        else:
            self._forget(lease)

    def _forget(self, lease: Lease) -> None:
        """Delete the lease after its handler ended. Requires the lock."""
        if not lease.running and self._leases.get(lease.key) is lease:
            del self._leases[lease.key]

    def _tell(self, lease: Lease, ending: Ending, *, late: bool) -> None:
        """Log one record for each job."""
        if not logger.isEnabledFor(logging.INFO) and ending.how == "acks" and not late:
            return
        name, lasted_s = f"{lease.job.type} {lease.job.id}", time.monotonic() - lease.began
        extra = self._of(lease) | {"duration_ms": round(lasted_s * 1_000)}
        if late:
            logger.warning("Job ended after its handler was abandoned: %s", name, extra=extra)
        elif ending.how == "acks":
            logger.info("Job completed: %s", name, extra=extra | {"state": "completed"})
        elif not ending.how:
            logger.info("Job stopped: %s: %s", name, lease.context.cancelled, extra=extra)
        elif ending.entry.get("requeue"):
            logger.info("Job returned to its queue: %s", name, extra=extra)
        elif "suspend" in ending.entry:
            logger.info("Job suspended: %s", name, extra=extra)
        else:
            error = ending.entry["error"]
            logger.warning(
                "Job failed: %s: %s: %s", name, error["type"], error["message"],
                extra=extra | {"error_code": error["code"]},
            )  # fmt: skip

    def _of(self, lease: Lease) -> dict[str, object]:
        job = lease.job
        return self._facts | {
            "job_id": job.id,
            "job_type": job.type,
            "queue": job.queue,
            "attempt": job.attempt,
            "trace_id": tracing.trace_id(job.meta),
        }

    # --- the beating thread ------------------------------------------------------------------

    def _beat_until_over(self) -> None:
        """Send heartbeats, and between them the progress that handlers report."""
        sent = time.monotonic()
        due = sent + self._beat_s
        while not self._over.is_set():
            self._listen()
            now = time.monotonic()
            if now >= due or self._beat_now.is_set():
                self._beat_now.clear()
                sent = now
                retry_s = self._beat()
                due = now + (self._beat_s if self._leases else self._idle_s())
                if retry_s is not None:
                    due = min(due, time.monotonic() + retry_s)
            self._send_progress(due)
            # Jobs started since the last heartbeat. Or the realtime connection ended.
            latest = time.monotonic() + self._beat_s if self._leases else sent + self._idle_s()
            due = min(due, latest)
            # A request to beat may have been cleared after the end of the session.
            if not self._over.is_set():
                self._beat_now.wait(min(_PROGRESS_EVERY_S, max(0.0, due - time.monotonic())))

    def _idle_s(self) -> float:
        """Return the interval of heartbeats without jobs: two pauses between fetches, if longer."""
        twice_s = min(2 * self._listening.idle_s(), _LONGEST_BEAT_S)
        return max(self._settings.idle_heartbeat_s, twice_s)

    def _listen(self) -> None:
        """Open or close the realtime connection. A worker that doesn't fetch has none."""
        wanted = self._settings.realtime and not self._no_more()
        self._listening.want(wanted=wanted)

    @property
    def _answer_s(self) -> float:
        return min(self._beat_s, _BEAT_TIMEOUT_S)

    def _state(self) -> str:
        return TERMINATE if self._stopping.is_set() else self._directive

    def _beat(self) -> float | None:
        """Renew the leases, stop lost and cancelled jobs, and follow the server's directive.

        Returns:
            Seconds until the next attempt if the heartbeat failed, else None.
        """
        retry_s = None
        with self._lock:
            leases = list(self._leases.values())
        state = self._state()
        body: dict[str, Any] = {
            "worker_id": self.id,
            "active_jobs": sorted({lease.job.id for lease in leases}),
            "visibility_timeout_ms": self._settings.lease_ms,
            **self._settings.membership(),
        }
        if state != self._told_state:
            # The state is sent only if it changed, because the server then writes the worker's
            # record.
            body["state"] = state
        if not leases and self._listening.idle_s():
            body["next_ms"] = round(self._idle_s() * 1_000)
        try:
            answer = self._ask("workers/heartbeat", body, seconds=self._answer_s)
            kept, cancelled = set(answer["jobs_extended"]), set(answer["cancelled_jobs"])
            directive = str(answer["state"])
            # Earlier versions of the server don't return the interval.
            asked_s = float(answer.get("heartbeat_interval_ms", math.inf)) / 1_000
        except OjsError as error:
            # Only log the failure: a lease is longer than several heartbeat intervals.
            retry_s = self._beating.note(error)
        except (KeyError, TypeError, ValueError) as error:
            retry_s = self._beating.note(Unreachable(f"the response is invalid: {error!r}"))
        else:
            self._beating.over()
            self._told_state = state
            self._beat_s = min(self._settings.longest_beat_s, max(_SHORTEST_BEAT_S, asked_s))
            for lease in leases:
                if lease.running and lease.job.id not in kept:
                    lease.stop(CANCELLED if lease.job.id in cancelled else LOST)
            self._obey(directive)
        self._look_at_loop()
        return retry_s

    def _obey(self, directive: str) -> None:
        if directive == TERMINATE:
            self.stop("directive terminate of the server")
        elif directive in (RUNNING, QUIET) and directive != self._directive:
            logger.info("Directive received: %s", directive, extra=self._facts)
            self._directive = directive
            self._wake.set()

    def _look_at_loop(self) -> None:
        blocked = self._loop is not None and self._loop.blocked()
        if blocked and not self._blocked:
            logger.error(
                "Event loop blocked: a coroutine handler doesn't return control. Make it a "
                "function, or use await", extra=self._facts,
            )  # fmt: skip
        self._blocked = blocked

    def _send_progress(self, due: float) -> None:
        with self._lock:
            leases = [lease for lease in self._leases.values() if lease.progress is not None]
        for lease in leases:
            if time.monotonic() >= due:
                return  # leases take precedence
            report, lease.progress = lease.progress, None
            if report is None or not lease.running:
                continue
            path = place("jobs/{}/progress", lease.job.id)
            body = {"worker_id": self.id, **report}
            try:
                self._ask(path, body, method="PUT", seconds=self._answer_s)
            except (OjsError, TypeError, ValueError) as error:
                # The job continues without the progress report.
                logger.info("Progress report failed: %s", error, extra=self._of(lease))
