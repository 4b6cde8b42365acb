"""A worker and its producer, written with the Python client that openapi-python-client makes.

Run with the URL of a server and the file that holds a key; the folder of the client is on the path.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

import ojs_client
from ojs_client import AuthenticatedClient
from ojs_client.api.dead_letter import list_dead_letters, retry_dead_letter
from ojs_client.api.events import list_events
from ojs_client.api.jobs import enqueue_job, get_job, list_jobs
from ojs_client.api.queues import configure_queue, list_queues
from ojs_client.api.workers import ack_job, fetch_jobs, heartbeat, nack_job
from ojs_client.models import (
    AckRequest,
    ConfigureQueueRequest,
    ErrorReport,
    FetchRequest,
    HeartbeatRequest,
    JobRequest,
    NackRequest,
    Options,
    RetryDeadLetterRequest,
    RetryRequest,
)

QUEUE = "python"
WORKER = "python-worker"


def import_everything() -> int:
    """How many modules the client has; all of them are imported."""
    names = [each.name for each in pkgutil.walk_packages(ojs_client.__path__, "ojs_client.")]
    for name in names:
        importlib.import_module(name)
    return len(names)


def use(client: AuthenticatedClient) -> None:
    """Push, fetch, heartbeat, ack; push, fetch, nack, and retry of the dead letter."""

    def fetched() -> Any:
        wanted = FetchRequest(queues=[QUEUE], worker_id=WORKER)
        (job,) = fetch_jobs.sync(client=client, body=wanted).jobs
        return job

    configure_queue.sync(QUEUE, client=client, body=ConfigureQueueRequest(concurrency=5))
    made = enqueue_job.sync(
        client=client, body=JobRequest(type_="mail.send", args=[1], options=Options(queue=QUEUE))
    ).job
    assert (made.state, made.args) == ("available", [1])
    job = fetched()
    assert (job.id, job.state, job.attempt) == (made.id, "active", 1)
    beat = HeartbeatRequest(worker_id=WORKER, active_jobs=[str(job.id)])
    assert heartbeat.sync(client=client, body=beat).directive == "running"
    done = AckRequest(job_id=job.id, worker_id=WORKER, result={"sent": True})
    assert ack_job.sync(client=client, body=done).state == "completed"
    assert get_job.sync(job.id, client=client).job.result == {"sent": True}

    once = Options(queue=QUEUE, retry=RetryRequest(max_attempts=1))
    doomed = enqueue_job.sync(
        client=client, body=JobRequest(type_="mail.send", args=[2], options=once)
    ).job
    failure = NackRequest(job_id=fetched().id, error=ErrorReport(type_="Smtp", message="refused"))
    assert nack_job.sync(client=client, body=failure).state == "discarded"
    (letter,) = list_dead_letters.sync(client=client, queue=QUEUE).jobs
    assert (letter.id, letter.error.type_) == (doomed.id, "Smtp")
    back = retry_dead_letter.sync(letter.id, client=client, body=RetryDeadLetterRequest()).job
    assert (back.id, back.state) == (doomed.id, "available")
    ack_job.sync(client=client, body=AckRequest(job_id=fetched().id))

    assert {each.state for each in list_jobs.sync(client=client, queue=QUEUE).jobs} == {"completed"}
    assert QUEUE in {each.name for each in list_queues.sync(client=client).queues}
    assert list_events.sync(client=client, queues=QUEUE).events
    refused = enqueue_job.sync(client=client, body=JobRequest(type_="No Type", args=[]))
    assert (refused.error.code, refused.error.details["field"]) == ("invalid_request", "type")


if __name__ == "__main__":
    url, key_file = sys.argv[1:]
    key = Path(key_file).read_text().strip()
    count = import_everything()
    with AuthenticatedClient(base_url=url, token=key) as the_client:
        use(the_client)
    sys.stdout.write(f"{count} modules\n")
