"""Queue configuration over HTTP (queue-config seed, section 9; requirements section 1.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs.domain import times
from ojs.domain.errors import InvalidRequest
from ojs.domain.queue import config as queue_config
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY, Layers
from ojs.domain.queue.queue import Deletion, Queue, QueueState
from ojs.http.contract import models


def to_create(raw: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str]:
    """Name and configuration of a new queue, and where in the body the configuration is.

    It is under `config` (queue-config seed, section 9.2) or, as the official CLI sends it, beside
    the name. Raises InvalidRequest, Unsupported.
    """
    name = models.parse(models.CreateQueueRequest, raw).name
    config = raw.get("config")
    if config is None:
        return name, {key: value for key, value in raw.items() if key != "name"}, ""
    if not isinstance(config, Mapping):
        raise InvalidRequest("config", "must be an object", value=config)
    for field in models.QUEUE_FIELDS:
        if raw.get(field) is not None:
            # Which of the two counts would be a guess.
            raise InvalidRequest(field, "belongs into config, since there is one")
    return name, config, "config."


def named(config: Mapping[str, Any]) -> list[str]:
    """Other queues that a configuration, as sent, would have jobs go to."""
    target = config.get("dead_letter_queue")
    return [target] if isinstance(target, str) else []


def shown(queue: Queue) -> dict[str, Any]:
    """A queue's configuration, and where each of its fields comes from."""
    return {
        "name": queue.name,
        "state": queue.state.value,
        **_config(queue.layers),
        "created_at": times.format_ms(queue.created_ms),
        "updated_at": times.format_ms(queue.configured_ms or queue.created_ms),
    }


def policy(layers: Layers) -> dict[str, Any]:
    """What holds for queues that are made from now on."""
    # To a new queue it is what `_default` says, not what the queue says itself.
    return {"name": DEFAULT_QUEUE_POLICY, **_config(Layers(inherited=layers.document))}


def deleted(name: str, ending: Deletion, *, gone: bool) -> dict[str, Any]:
    """What becomes of a queue that is deleted."""
    shown: dict[str, Any] = {"queue": name, "strategy": ending.strategy}
    if ending.target is not None:
        shown["target_queue"] = ending.target
    state = "deleted" if gone else QueueState.DRAINING.value
    return {**shown, "jobs_affected": ending.affected, "state": state}


def _config(layers: Layers) -> dict[str, Any]:
    return {"config": queue_config.shown(layers), "config_sources": queue_config.sources(layers)}
