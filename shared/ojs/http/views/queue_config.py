"""Queue configuration: reading requests and building answers (ojs-queue-config section 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ojs.domain import times
from ojs.domain.errors import InvalidRequest
from ojs.domain.queue import config as queue_config
from ojs.domain.queue import queue as queues
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY, Layers
from ojs.domain.queue.queue import Deletion, Queue, QueueState
from ojs.domain.requests import MAX_SHOWN, not_known
from ojs.http.contract import models

if TYPE_CHECKING:
    from ojs.http.contract import answers


def to_create(raw: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str]:
    """Read name and configuration of a new queue, and the prefix of the configuration's fields.

    The configuration is under `config` (ojs-queue-config section 9.2) or, as the official CLI sends
    it, beside the name. Raises InvalidRequest, Unsupported.
    """
    name = models.parse(models.CreateQueueRequest, raw).name
    config = raw.get("config")
    if config is None:
        return name, {key: value for key, value in raw.items() if key not in ("name", "config")}, ""
    if not isinstance(config, Mapping):
        raise InvalidRequest("config", "must be an object", value=config)
    known = ("name", "config", *models.QUEUE_FIELDS)
    for field, value in raw.items():
        if field not in known:
            raise InvalidRequest(field[:MAX_SHOWN], not_known(field, known))
        if field in models.QUEUE_FIELDS and value is not None:
            # It would be a guess which of the two holds.
            raise InvalidRequest(field, "must be inside config when config is present")
    return name, config, "config."


def named(config: Mapping[str, Any]) -> list[str]:
    """Other queues to which a configuration, as sent, lets jobs go."""
    target = config.get("dead_letter_queue")
    return [target] if isinstance(target, str) else []


def queue_state(changed: Queue, *, created: bool) -> answers.QueueAnswer:
    """A queue after pause or resume, at the top level and wrapped; `created` if that made it."""
    queue = cast("answers.Queue", queues.to_dict(changed))
    answer = cast("answers.QueueAnswer", {**queue, "queue": queue})
    if created:
        answer["created"] = True
    return answer


def shown(queue: Queue) -> answers.QueueConfigAnswer:
    """A queue's configuration, and where each of its fields comes from."""
    return {
        "name": queue.name,
        "state": queue.state.value,
        "config": in_force(queue.layers),
        "config_sources": sources(queue.layers),
        "created_at": times.format_ms(queue.created_ms),
        "updated_at": times.format_ms(queue.configured_ms or queue.created_ms),
    }


def policy(layers: Layers) -> answers.QueuePolicyAnswer:
    """The policy for queues that are made from now on."""
    # New queues inherit the policy, so its fields come from `_default`, not from the queue.
    inherited = Layers(inherited=layers.document)
    return {
        "name": DEFAULT_QUEUE_POLICY,
        "config": in_force(inherited),
        "config_sources": sources(inherited),
    }


def deleted(name: str, deletion: Deletion, *, gone: bool) -> answers.QueueDeletedAnswer:
    """How a queue is deleted, and how many jobs that concerns; `gone`: it is done already."""
    answer: answers.QueueDeletedAnswer = {
        "queue": name,
        "strategy": deletion.strategy.value,
        "jobs_affected": deletion.affected,
        "state": "deleted" if gone else QueueState.DRAINING.value,
    }
    if deletion.target is not None:
        answer["target_queue"] = deletion.target
    if deletion.refused:
        answer["details"] = {"refused": deletion.refused}
    return answer


def in_force(layers: Layers) -> answers.QueueConfig:
    """The configuration in force, defaults filled in."""
    return cast("answers.QueueConfig", queue_config.shown(layers))


def sources(layers: Layers) -> answers.ConfigSources:
    """Where each field of the configuration comes from."""
    return cast("answers.ConfigSources", queue_config.sources(layers))
