"""Queues: create, configure, pause and delete them."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.domain.queue.queue import QueueState
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.endpoint import BASE
from ojs.http.views import backpressure
from ojs.http.views import queue_config as queue_configs

# The rest of a deletion is left to the sweep when the request has less time than this.
_DELETION_SPARE_MS = 8_000


@app.operation("pause_queue", "admin_pause_queue")
def pause_queue(request: Request) -> Answer:
    """Pause a queue: no more of its jobs are handed out."""
    return _set(request.named, QueueState.PAUSED)


@app.operation("resume_queue", "admin_resume_queue")
def resume_queue(request: Request) -> Answer:
    """Resume a queue: its jobs are handed out again."""
    return _set(request.named, QueueState.ACTIVE)


def _set(name: str, state: QueueState) -> Answer:
    queue, created = runtime.current().queues.set_state(name, state)
    return Answer(queue_configs.queue_state(queue, created=created))


@app.operation("create_queue")
def create_queue(request: Request) -> Answer:
    """Create a queue before its first job."""
    name, config, prefix = queue_configs.to_create(request.object())
    request.touches(name, *queue_configs.named(config))
    queue = runtime.current().queues.create(name, config, prefix=prefix)
    return Answer(queue_configs.shown(queue), 201, {"Location": f"{BASE}/queues/{queue.name}"})


@app.operation("delete_queue", strict_query=True)
def delete_queue(request: Request) -> Answer:
    """Delete a queue; its jobs are treated by the strategy body."""
    body = request.parsed(models.DeleteQueueRequest)
    if body.target_queue is not None:
        request.moves_to(body.target_queue)
    deletion, gone = runtime.current().deletion.delete(
        request.named,
        body.strategy,
        body.target_queue,
        producer=backpressure.producer(request.headers, request.principal),
        go_on=lambda: request.remaining_ms() > _DELETION_SPARE_MS,
    )
    return Answer(queue_configs.deleted(request.named, deletion, gone=gone), 202)


@app.operation("get_queue_config", "admin_get_queue_config", strict_query=True)
def get_queue_config(request: Request) -> Answer:
    """A queue's configuration."""
    return Answer(queue_configs.shown(runtime.current().queues.get(request.named)))


@app.operation("configure_queue", "admin_configure_queue")
def configure_queue(request: Request) -> Answer:
    """Change the fields sent of a queue's configuration; creates the queue if it is new."""
    name, config = request.named, request.object()
    request.touches(*queue_configs.named(config))
    return Answer(queue_configs.shown(runtime.current().queues.configure(name, config)))


@app.operation("get_queue_policy", strict_query=True)
def get_queue_policy(request: Request) -> Answer:
    """The configuration that new queues inherit."""
    return Answer(queue_configs.policy(runtime.current().queues.policy()))


@app.operation("set_queue_policy")
def set_queue_policy(request: Request) -> Answer:
    """Change the configuration that new queues inherit."""
    return Answer(queue_configs.policy(runtime.current().queues.set_policy(request.object())))
