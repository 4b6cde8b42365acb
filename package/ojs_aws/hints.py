"""Hints in error messages: what replaces the names of Celery, Dramatiq, and BullMQ, and typos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_RETRY = "raise: any exception retries the job, as its policy says"
# By class, what replaces an attribute. By `options` and `Retry`, what replaces an option.
REPLACED: Mapping[str, Mapping[str, str]] = {
    "JobType": {
        "apply_async": "options(…).enqueue(…)",
        "send": "enqueue(…)",
        "s": "job(…)",
        "si": "job(…)",
        "retry": _RETRY,
    },
    "Worker": {
        "task": "job(…)",
        "actor": "job(…)",
        "send_task": "declare(name, Arguments).enqueue(…)",
    },
    "JobContext": {
        "retry": _RETRY,
        "request": "id, attempt, args, or meta",
        "update_state": "progress(…)",
    },
    "options": {
        "countdown": "delay_s",
        "delay": "delay_s",
        "eta": "scheduled_at",
        "expires": "expires_at",
        "attempts": "retry=Retry(max_attempts=…)",
        "autoretry_for": "retry=Retry(…)",
        "backoff": "retry=Retry(initial_interval=…)",
        "max_retries": "retry=Retry(max_attempts=…)",
        "bind": "a first parameter `job: JobContext`",
        "soft_time_limit": "timeout_s",
        "time_limit": "timeout_s",
        "task_id": "id",
    },
    "Retry": {"max_retries": "max_attempts", "delay": "initial_interval"},
}


def hint(place: str, name: str, known: Iterable[str] = ()) -> str:
    """Return the sentence that follows an unknown name, after a space, or "".

    Args:
        place: Entry of `REPLACED`.
        name: The unknown name.
        known: Names that exist. The nearest one is suggested.
    """
    if use := REPLACED.get(place, {}).get(name):
        return f" Use {use}."
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def missing(owner: Any, name: str) -> Any:
    """Raise AttributeError with a hint. `__getattr__` of a class in `REPLACED` calls it."""
    for each in type(owner).__mro__:
        if use := hint(each.__name__, name):
            raise AttributeError(f"{type(owner).__name__} has no {name!r}.{use}")
    return object.__getattribute__(owner, name)  # raises, also what a property raised
