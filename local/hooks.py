"""Hooks for tests: reset the server, direct a worker, reject a job, and move the clock.

Deployed functions have none of them: there, a producer must not control workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ojs.clock import SystemClock
from ojs.domain import jsontext
from ojs.domain.errors import InvalidRequest, NotFound
from ojs.middleware import Refused

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.middleware import Envelope, Next
    from ojs.runtime import Runtime
    from ojs.services.jobs.fetch import JobFetcher
    from ojs.services.workers.workers import WorkerRegistry

REJECTED_TYPE = "test.middleware.reject"
_DIRECTIVES = ("quiet", "terminate")

_MOST_MS = 100 * 366 * 86_400_000


class MovedClock:
    """The machine's clock plus the time that tests have added."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._moved_ms = 0

    def now_ms(self) -> int:
        """Return the server's time in milliseconds since the epoch."""
        return self._system.now_ms() + self._moved_ms

    def advance(self, body: bytes) -> None:
        """Add the `advance_ms` of a JSON object. Raises InvalidPayload, InvalidRequest."""
        asked = jsontext.loads(body)
        ms = asked.get("advance_ms") if isinstance(asked, dict) else None
        if not isinstance(ms, int) or isinstance(ms, bool) or ms < 0:
            raise InvalidRequest("advance_ms", "must be a whole number of ms, 0 or more")
        if self._moved_ms + ms > _MOST_MS:
            raise InvalidRequest("advance_ms", f"can add at most {_MOST_MS} ms in total")
        self._moved_ms += ms

    def put_back(self) -> None:
        """Return to the machine's time."""
        self._moved_ms = 0


def reject_marked(job: Envelope, following: Next) -> Envelope:
    """Middleware that rejects jobs of the conformance suite's test type.

    It also rejects jobs whose `meta` has `"reject": true`.
    """
    if job.type == REJECTED_TYPE or job.meta.get("reject") is True:
        field = "type" if job.type == REJECTED_TYPE else "meta.reject"
        message = f"'{field}': The sample middleware of the local server rejects this job."
        raise Refused(message, details={"field": field})
    return following(job)


def steer_workers(runtime: Runtime) -> None:
    """Make jobs with `options.metadata.test_directive` direct the worker that fetches them."""
    runtime.fetch = cast("JobFetcher", _SteeringFetch(runtime.fetch, runtime.workers))


class _SteeringFetch:
    """Fetches jobs, then applies their directives to the worker."""

    def __init__(self, fetch: JobFetcher, workers: WorkerRegistry) -> None:
        self._fetch = fetch
        self._workers = workers

    def fetch(self, queues: Sequence[str] | None, *args: Any, **options: Any) -> list[Job]:
        """Fetch jobs. See Fetch.fetch."""
        jobs = self._fetch.fetch(queues, *args, **options)
        for job in jobs:
            directive = _directive(job)
            if not directive or not job.worker_id:
                continue
            try:
                self._workers.direct(job.worker_id, directive)
            except NotFound:  # only registered workers can receive a directive
                self._workers.beat(job.worker_id)
                self._workers.direct(job.worker_id, directive)
        return jobs


def _directive(job: Job) -> str | None:
    options = (job.content or {}).get("options") or {}
    metadata = options.get("metadata") or {}
    directive = metadata.get("test_directive") if isinstance(metadata, dict) else None
    return directive if directive in _DIRECTIVES else None
