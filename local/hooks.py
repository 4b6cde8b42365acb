"""What only tests may do to a server: reset it, steer a worker, have a job refused, move its clock.

A deployed function has none of this. There, a producer must not be able to steer a worker.
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
    from ojs.services.jobs.fetch import Fetch
    from ojs.services.workers.workers import WorkerRegistry

REJECTED_TYPE = "test.middleware.reject"
_DIRECTIVES = ("quiet", "terminate")

_MOST_MS = 100 * 366 * 86_400_000


class MovedClock:
    """The machine's clock, and as much as tests have moved it on: it goes on by itself, too."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._moved_ms = 0

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, UTC, as the server is to believe."""
        return self._system.now_ms() + self._moved_ms

    def advance(self, body: bytes) -> None:
        """Move on by the `advance_ms` of a JSON object. Raises InvalidPayload, InvalidRequest."""
        asked = jsontext.loads(body)
        ms = asked.get("advance_ms") if isinstance(asked, dict) else None
        if not isinstance(ms, int) or isinstance(ms, bool) or ms < 0:
            raise InvalidRequest("advance_ms", "must be a whole number of ms, and at least 0")
        if self._moved_ms + ms > _MOST_MS:
            raise InvalidRequest("advance_ms", f"the clock can be moved on by {_MOST_MS} ms in all")
        self._moved_ms += ms

    def put_back(self) -> None:
        """Tell the machine's time again."""
        self._moved_ms = 0


def reject_marked(job: Envelope, following: Next) -> Envelope:
    """Enqueue middleware: vetoes jobs of the type that the public conformance suite pushes for
    this, and those whose `meta` has `"reject": true`.
    """
    if job.type == REJECTED_TYPE or job.meta.get("reject") is True:
        field = "type" if job.type == REJECTED_TYPE else "meta.reject"
        message = f"'{field}': the local server's sample middleware vetoes this job"
        raise Refused(message, details={"field": field})
    return following(job)


def steer_workers(runtime: Runtime) -> None:
    """Have a job with `options.metadata.test_directive` direct the worker that fetches it."""
    runtime.fetch = cast("Fetch", _SteeringFetch(runtime.fetch, runtime.workers))


class _SteeringFetch:
    """FETCH, and then what the fetched jobs say about their worker."""

    def __init__(self, fetch: Fetch, workers: WorkerRegistry) -> None:
        self._fetch = fetch
        self._workers = workers

    def fetch(self, queues: Sequence[str] | None, *args: Any, **options: Any) -> list[Job]:
        """As Fetch.fetch."""
        jobs = self._fetch.fetch(queues, *args, **options)
        for job in jobs:
            directive = _directive(job)
            if not directive or not job.worker_id:
                continue
            try:
                self._workers.direct(job.worker_id, directive)
            except NotFound:  # only workers that were heard from can get a directive
                self._workers.beat(job.worker_id)
                self._workers.direct(job.worker_id, directive)
        return jobs


def _directive(job: Job) -> str | None:
    options = (job.content or {}).get("options") or {}
    metadata = options.get("metadata") or {}
    directive = metadata.get("test_directive") if isinstance(metadata, dict) else None
    return directive if directive in _DIRECTIVES else None
