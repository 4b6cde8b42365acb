"""Manages cron jobs: register, change, pause, trigger, list, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ojs.clock import Clock
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.cron.cron import Cron, CronRun
from ojs.domain.cron.definition import CronDefinition, CronSettings, check_name, merged
from ojs.domain.errors import (
    InvalidRequest,
    JobTypeNotAllowed,
    LimitReached,
    NotFound,
    PayloadTooLarge,
    SchemaMismatch,
    Unsupported,
    forbidden,
    naming_field,
)
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.domain.job.trace import TraceContext
from ojs.domain.page import Page
from ojs.records import record
from ojs.services.jobs.enqueue import JobEnqueuer, Pushed, StaleRead, TransactionExtras
from ojs.services.operations.key_states import KeyStates, check_time
from ojs.services.sweeps import GoOn, always
from ojs.store.crons.crons import CronStore
from ojs.store.jobs.records import JobStore
from ojs.store.queues.workers import WorkerStore
from ojs.store.table.errors import LostRace
from ojs.store.table.races import retry_on_race

if TYPE_CHECKING:
    from ojs.domain.edits import Edit

_BUSY = "Concurrent requests changed this cron job."
_TRIES = 8
# A worker whose last heartbeat is within this time (ms) is considered to fetch from its queues.
_POLLS_MS = 60_000
_WORKERS = 100
_PAGE = 100
MAX_BY_KEY = 100
UNREAD_SECONDS = (
    "no worker polls the queue '{queue}': jobs are due on the minute, not on the second"
)


@record(frozen=True)
class RegisteredCron:
    """A cron job that was registered or changed. `created` is true if its name is new."""

    cron: Cron
    created: bool = False
    warnings: tuple[str, ...] = ()


class CronJobs:
    """Manages cron jobs."""

    def __init__(
        self,
        *,
        crons: CronStore,
        jobs: JobStore,
        enqueue: JobEnqueuer,
        workers: WorkerStore,
        makers: KeyStates,
        clock: Clock,
        ids: IdSource,
        max_crons: int,
        min_cron_interval_s: int,
    ) -> None:
        """Create the service.

        `max_crons` is the maximum number of cron jobs (0: no limit). `min_cron_interval_s` is the
        minimum time between two ticks in seconds.
        """
        self._most = max_crons
        self._least_s = min_cron_interval_s
        self._crons = crons
        self._jobs = jobs
        self._enqueue = enqueue
        self._workers = workers
        self._makers = makers
        self._clock = clock
        self._ids = ids

    def register(
        self, raw: object, caller: Principal, producer: str | None, edit: Edit | None = None
    ) -> RegisteredCron:
        """Register a cron job, or replace the definition of the one that has its name.

        Its template is validated like an enqueue request. If the expression, the zone, and the
        time limits are unchanged, the next tick is unchanged, too.

        Args:
            raw: The definition, as received.
            caller: The caller.
            producer: Name of the producer, for queues that allow only certain producers.
            edit: Precondition and record of the change. Default: none.

        Returns:
            The cron job, whether it is new, and warnings.

        Raises:
            InvalidRequest: A field is invalid.
            QueueNotFound: The queue doesn't exist, and the server is in strict mode.
            QueueDraining: The queue is being deleted.
            PermissionDenied: The caller can't use the queue.
            LimitReached: The maximum number of cron jobs is reached.
            PreconditionFailed: The cron job has another version.
        """
        settings = CronSettings.read(raw)
        name = settings.name
        if name is None:
            raise InvalidRequest("name", "is required")
        if "expression" not in settings.values:
            raise InvalidRequest(settings.expression_name, "is required")
        template = {"args": [], **settings.values.get("template", {})}
        values = {**settings.values, "template": template}
        definition = self._checked(name, values, settings, caller, producer)
        line = self._makers.line(caller)

        def attempt() -> tuple[Cron, bool]:
            now_ms = self._clock.now_ms()
            seen = self._crons.get(name)
            if seen is not None:
                # A definition includes whether the cron job is enabled, like all other settings.
                enabled = settings.enabled is not False
                return self._update(seen, definition, enabled, caller, line, edit), False
            self._check_count(caller)
            cron = Cron(name, definition, created_ms=now_ms, updated_ms=now_ms, line=line)
            cron = cron.enable(now_ms) if settings.enabled is not False else cron.pause()
            if edit is not None:
                edit.change("cron", name, None, cron.configuration)
            return self._crons.add(cron), True

        cron, created = retry_on_race(attempt, tries=_TRIES, busy=_BUSY)
        return RegisteredCron(cron, created, tuple(self._warnings(cron)))

    def change(
        self,
        name: str,
        raw: object,
        caller: Principal,
        producer: str | None,
        edit: Edit | None = None,
    ) -> RegisteredCron:
        """Change the fields that a request sets. Objects of the template are merged.

        Args:
            name: Name of the cron job.
            raw: The changes, as received.
            caller: The caller.
            producer: Name of the producer, for queues that allow only certain producers.
            edit: Precondition and record of the change. Default: none.

        Returns:
            The cron job, and warnings.

        Raises:
            NotFound: The cron job doesn't exist.
            PermissionDenied: The caller can't use the queue of the cron job.
            OjsError: The errors of `register`.
        """
        settings = CronSettings.read(raw)
        if settings.name not in (None, name):
            rule = "can't be changed. Omit it, or send the name in the path"
            raise InvalidRequest("name", rule, value=settings.name)
        # A request that only pauses the cron job does not change which access key set it.
        pauses = settings.enabled is False and not settings.values
        line = None if pauses else self._makers.line(caller)

        def attempt() -> Cron:
            seen = self._within_reach(name, caller)
            definition, enabled = seen.definition, settings.enabled
            if settings.values:
                values = merged(definition.compact(), settings.values)
                definition = self._checked(name, values, settings, caller, producer)
            enabled = seen.enabled if enabled is None else enabled
            return self._update(
                seen, definition, enabled, caller, seen.line if line is None else line, edit
            )

        cron = retry_on_race(attempt, tries=_TRIES, busy=_BUSY)
        return RegisteredCron(cron, warnings=tuple(self._warnings(cron)))

    def _check_count(self, caller: Principal) -> None:
        """Raise LimitReached if the server or the caller's key has the maximum of cron jobs."""
        count, own = self._crons.count(caller.key, most=MAX_BY_KEY)
        if 0 < self._most <= count:
            raise LimitReached(
                "name",
                f"The server has {count} cron jobs, and its setting max_crons allows {self._most}. "
                "Delete a cron job, or increase max_crons.",
                self._most,
            )
        if own >= MAX_BY_KEY:
            raise LimitReached(
                "name",
                f"This access key has created {own} cron jobs, and at most {MAX_BY_KEY} are "
                "allowed. Delete one of them, or use another key.",
                MAX_BY_KEY,
            )

    def _checked(
        self,
        name: str,
        values: Mapping[str, object],
        settings: CronSettings,
        caller: Principal,
        producer: str | None,
    ) -> CronDefinition:
        """Return the definition of these values. Raises InvalidRequest for invalid fields."""
        definition = CronDefinition.of(
            {
                **values,
                "producer": producer,
                "queues": caller.queues,
                "expression_name": settings.expression_name,
            }
        )
        now_ms = self._clock.now_ms()
        with _as_invalid():
            definition.check(
                now_ms=now_ms, path=settings.template_path, least_ms=self._least_s * 1_000
            )
        # The following checks don't know the path of a field in the request, so the errors are
        # converted.
        with _as_invalid(settings.template_path):
            self._enqueue.check(
                definition.job_request(name, now_ms), producer=producer, reaches=caller.reaches
            )
        return definition

    def _update(
        self,
        seen: Cron,
        definition: CronDefinition,
        enabled: bool,
        caller: Principal,
        line: tuple[str, ...],
        edit: Edit | None,
    ) -> Cron:
        """Write a definition, and whether it is enabled, if it has changed. Raises LostRace."""
        if not caller.reaches(seen.definition.queue):
            raise forbidden()
        now_ms = self._clock.now_ms()
        after = replace(seen, definition=definition, line=line, updated_ms=now_ms)
        if edit is not None:
            wanted = replace(after, enabled=enabled).configuration
            edit.change("cron", seen.name, seen.configuration, wanted)
        if (seen.definition, seen.enabled, seen.line) == (definition, enabled, line):
            return seen
        if not enabled:
            after = after.pause()
        elif not seen.enabled:
            after = after.enable(now_ms)
        elif _times(definition) != _times(seen.definition):
            after = after.after(now_ms, anchor_ms=now_ms)
        return self._crons.replace(seen, after)

    def _warnings(self, cron: Cron) -> list[str]:
        """Return the warnings for the caller about a registered cron job."""
        if not cron.enabled:
            return []
        schedule, queue = cron.definition.schedule, cron.definition.queue
        found = [] if schedule.warning is None else [schedule.warning]
        if schedule.has_seconds and not self._polled(queue):
            found.append(UNREAD_SECONDS.format(queue=queue))
        return found

    def _polled(self, queue: str) -> bool:
        """Return whether a worker of the queue has sent a heartbeat recently."""
        now_ms = self._clock.now_ms()
        after: str | None = None
        while True:
            found, after = self._workers.page(limit=_WORKERS, after=after)
            for worker in found:
                queues = worker.info.get("queues") or ()
                if queue in queues and worker.is_alive(now_ms, _POLLS_MS):
                    return True
            if after is None:
                return False

    def enable(
        self, name: str, caller: Principal, *, enabled: bool, edit: Edit | None = None
    ) -> RegisteredCron:
        """Pause or resume a cron job. Safe to repeat.

        Args:
            name: Name of the cron job.
            caller: The caller.
            enabled: Whether it runs on its schedule.
            edit: Record of the change. Default: none.

        Returns:
            The cron job, and warnings.

        Raises:
            NotFound: The cron job doesn't exist.
            PermissionDenied: The caller can't use the queue of the cron job.
        """
        return self.change(name, {"enabled": enabled}, caller, None, edit)

    def pause_made(self, key_id: str, go_on: GoOn = always) -> int:
        """Pause the cron jobs that a key or one of its descendants set.

        Returns the number of cron jobs that were not paused before.

        Raises:
            BackendUnavailable: The time is up. Some cron jobs are not paused yet.
        """
        paused, after = 0, None
        while True:
            check_time(go_on)
            found = self._crons.page(limit=_PAGE, after=after)
            for cron in found.items:
                if cron.enabled and key_id in cron.line:
                    check_time(go_on)
                    with suppress(NotFound):
                        self.enable(cron.name, ANYBODY, enabled=False)
                        paused += 1
            if (after := found.next_cursor) is None:
                return paused

    def trigger(
        self,
        name: str,
        caller: Principal,
        producer: str | None,
        trace: TraceContext | None = None,
    ) -> Pushed:
        """Enqueue a job of a cron job now, even if it is paused. Its next tick is unchanged.

        Args:
            name: Name of the cron job.
            caller: The caller.
            producer: Name of the producer, for queues that allow only certain producers.
            trace: Trace context of the request.

        Returns:
            The stored job.

        Raises:
            NotFound: The cron job doesn't exist.
            PermissionDenied: The caller can't use the queue of the cron job.
            OjsError: The errors of `JobEnqueuer.push`.
        """

        def attempt() -> Pushed:
            seen = self._within_reach(name, caller)
            now_ms, job_id = self._clock.now_ms(), self._ids.uuid7()
            after, update = self._crons.replacing(seen, seen.ran(job_id, seen.jobs, now_ms))
            run = replace(CronRun.of(after, now_ms, None), job_id=job_id)
            try:
                return self._enqueue.push(
                    seen.definition.job_request(name, now_ms, job_id),
                    producer=producer,
                    reaches=caller.reaches,
                    trace=trace,
                    alongside=TransactionExtras([update, self._crons.logging(run, after)]),
                )
            except StaleRead:
                raise LostRace([]) from None

        return retry_on_race(attempt, tries=_TRIES, busy=_BUSY)

    def get(self, name: str, caller: Principal) -> Cron:
        """Return a cron job. Raises NotFound, PermissionDenied."""
        return self._within_reach(name, caller)

    def list(self, caller: Principal, *, enabled: bool | None = None) -> Callable[..., Page[Cron]]:
        """Return a listing by name of the cron jobs whose queues the caller can use."""

        def page(*, limit: int, cursor: str | None) -> Page[Cron]:
            if cursor is not None:
                with naming_field("cursor", cursor):
                    check_name(cursor)
            found = self._crons.page(limit=limit, after=cursor)
            return Page(
                [
                    cron
                    for cron in found.items
                    if enabled in (None, cron.enabled) and caller.reaches(cron.definition.queue)
                ],
                found.next_cursor,
            )

        return page

    def history(
        self, name: str, caller: Principal, *, limit: int, cursor: str | None = None
    ) -> Page[tuple[CronRun, Job | None]]:
        """Return a page of the run log, most recent first.

        Args:
            name: Name of the cron job.
            caller: The caller.
            limit: Maximum number of runs.
            cursor: Cursor of the previous page.

        Returns:
            The runs, each with its job, if the job is stored.

        Raises:
            NotFound: The cron job doesn't exist.
            PermissionDenied: The caller can't use the queue of the cron job.
        """
        cron = self._within_reach(name, caller)
        page = self._crons.runs(name, since_ms=cron.created_ms, limit=limit, after=cursor)
        ids = [run.job_id for run in page.items if run.job_id is not None]
        jobs = self._jobs.read_records(ids, consistent=False)
        return Page([(run, jobs.get(run.job_id or "")) for run in page.items], page.next_cursor)

    def delete(self, name: str, caller: Principal, edit: Edit | None = None) -> Cron:
        """Delete a cron job; its jobs stay. Raises NotFound, PreconditionFailed."""

        def attempt() -> Cron:
            seen = self._within_reach(name, caller)
            if edit is not None:
                edit.change("cron", name, seen.configuration, None)
            self._crons.remove(seen)
            return seen

        return retry_on_race(attempt, tries=_TRIES, busy=_BUSY)

    def _within_reach(self, name: str, caller: Principal) -> Cron:
        cron = self._crons.get(name)
        if cron is None:
            raise NotFound("cron", name)
        if not caller.reaches(cron.definition.queue):
            raise forbidden()
        return cron


def _times(definition: CronDefinition) -> tuple[object, ...]:
    """Return the fields of a definition that determine the ticks."""
    return (
        definition.expression,
        definition.timezone,
        definition.starts_ms,
        definition.ends_ms,
        definition.jitter_ms,
    )


@contextmanager
def _as_invalid(path: str = "") -> Iterator[None]:
    """Convert the errors of a rejected enqueue request to InvalidRequest with the field.

    `path` is the prefix of the field's name.
    """
    try:
        yield
    except SchemaMismatch:
        raise
    except (InvalidRequest, JobTypeNotAllowed, PayloadTooLarge, Unsupported) as error:
        name = str(error.details.get("field", "body"))
        rule = error.reason if isinstance(error, InvalidRequest) else error.message
        value = error.details.get("value")
        raise InvalidRequest(f"{path}{name}", rule, value=value) from None
