"""Options of a job as other queues call them, and what they are called here.

Taken and ignored, each would make a job that does something else than its producer meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import islice

from ojs.domain.requests import MAX_SHOWN, NOT_KNOWN, nearest, not_known

MAX_WARNINGS = 20
# Unknown names of one job that are compared with options.
MAX_LOOKED_AT = 100
# How much of a top-level name agrees with that of an option, at least, to be taken for one.
_SLIP = 0.85
# What is said at the top level is kept whatever it is called; these are a client's own.
_OWN_PREFIXES = ("x_", "x-", "ext_")

# What it is here → its names elsewhere: Celery, Sidekiq, BullMQ, Oban, River, SQS and others.
_OPTIONS = {
    "delay_until with a time, or with '+' and a duration such as '+PT5M'": (
        "delay delay_seconds delay_ms DelaySeconds countdown eta run_at run_in schedule "
        "schedule_at schedule_in scheduled_for start_after startAfter perform_in perform_at "
        "wait_until delayUntil scheduledAt visible_at"
    ),
    "retry: {max_attempts}, which includes the first attempt": (
        "retries attempts max_retries maxRetries maxAttempts retry_count retry_limit "
        "retryLimit tries"
    ),
    "retry: {backoff_strategy, initial_interval, max_interval}": (
        "backoff backoff_strategy retry_delay retryDelay retry_backoff initial_interval "
        "max_interval non_retryable_errors"
    ),
    "unique: {key, period}, an `id` of the job outside options, or the header Idempotency-Key": (
        "dedup_id dedup_key deduplication_id MessageDeduplicationId idempotency_key "
        "unique_key uniqueKey unique_for unique_by unique_opts unique_until"
    ),
    "rate_limit: {key, concurrency}": (
        "group_id message_group_id MessageGroupId concurrency_key concurrency throttle "
        "max_concurrency"
    ),
    "timeout_ms": (
        "timeout_seconds timeoutMs time_limit soft_time_limit execution_timeout job_timeout"
    ),
    "visibility_timeout_ms": "visibility_timeout visibilityTimeout lease_ms",
    "expires_at": "ttl expires expires_in expiresAt expiry",
    "queue": "queue_name queueName",
}
_ARGS = {
    "args, an array outside options": "kwargs arguments",
}
_NOWHERE = {
    "the expression of a cron job (POST /ojs/v1/cron)": ("cron crontab repeat repeat_every every"),
    "depends_on of a workflow step (POST /ojs/v1/workflows)": (
        "depends_on dependsOn parents parent_id"
    ),
    "retention in the configuration of the queue": (
        "remove_on_complete removeOnComplete remove_on_fail removeOnFail result_expires retention"
    ),
}
# Inside options only: at the top level they are that, or a client's own data.
_BESIDE = {
    "meta, outside options": "meta headers attributes MessageAttributes",
    "args, an array outside options": "args params payload body data",
    "type, outside options": "type name task class kind job_type",
    "the same field outside options": "id schema specversion",
}


def _by_name(*groups: dict[str, str]) -> dict[str, str]:
    return {
        name: here for group in groups for here, names in group.items() for name in names.split()
    }


_MISPLACED = _by_name(_OPTIONS, _ARGS, _NOWHERE)
_IN_OPTIONS = _MISPLACED | _by_name(_BESIDE)


def rule(name: str, known: Collection[str]) -> str:
    """The rule that an unknown option breaks: it says what is probably meant."""
    here = _IN_OPTIONS.get(name)
    return not_known(name, known) if here is None else f"{NOT_KNOWN}. Use {here}"


def warnings(names: Iterable[str], known: Iterable[str], prefix: str = "") -> list[str]:
    """What looks like an option among the unknown `names` at the top level of a job; `prefix` goes
    before each name. `known` are the fields that a job may have.
    """
    options = frozenset(known)
    # Looking for what was meant takes time: there may be a million of them.
    found = ((name, _meant(name[:MAX_SHOWN], options)) for name in islice(names, MAX_LOOKED_AT))
    return [
        f"'{prefix}{name[:MAX_SHOWN]}' is stored as data and has no effect. {meant}"
        for name, meant in found
        if meant is not None
    ]


@lru_cache(maxsize=1_000)
def _meant(name: str, known: frozenset[str]) -> str | None:
    if name in _MISPLACED:
        return f"Use {_MISPLACED[name]}."
    if name.startswith(_OWN_PREFIXES):
        return None
    like = nearest(name, known, least=_SLIP)
    return None if like is None else f"Did you mean '{like}'?"
