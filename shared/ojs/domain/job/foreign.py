"""Names of job options in other queue products, and the corresponding names here.

If the server accepted and ignored such a name, the job would not behave as its producer intended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import islice

from ojs.domain.requests import MAX_SHOWN, NOT_KNOWN, nearest, not_known

MAX_WARNINGS = 20
# Maximum unknown names of one job that are compared with options.
MAX_LOOKED_AT = 100
# Minimum similarity of a top-level name and an option name to suggest the option.
_SLIP = 0.85
# Top-level fields with any name are stored. Names with these prefixes are custom fields.
_OWN_PREFIXES = ("x_", "x-", "ext_")
# A dead letter shows it, together with its own times (ojs-dead-letter section 9.2).
_SHOWN_LATER = "metadata"

# The name here → names in other products: Celery, Sidekiq, BullMQ, Oban, River, SQS, and others.
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
    "depends_on of a workflow step (POST /ojs/v1/workflows)": ("depends_on dependsOn parents"),
    "retention in the configuration of the queue": (
        "remove_on_complete removeOnComplete remove_on_fail removeOnFail result_expires retention"
    ),
}
# Checked in `options` only. At the top level, these names are fields of the job or custom data.
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
    """Return the error text for an unknown option, with a suggestion if one exists."""
    here = _IN_OPTIONS.get(name)
    return not_known(name, known) if here is None else f"{NOT_KNOWN}. Use {here}"


def warnings(names: Iterable[str], known: Iterable[str], prefix: str = "") -> list[str]:
    """Warn about unknown top-level fields of a job. Names with a custom prefix are exempt.

    Args:
        names: Unknown fields. At most `MAX_LOOKED_AT` are checked.
        known: Known fields of a job.
        prefix: Prefix of the names in the warnings. Default: none.

    Returns:
        One or two sentences for each of these fields.
    """
    options = frozenset(known)
    # Finding a suggestion takes time, and a request can have a million unknown fields.
    return [
        f"'{prefix}{name[:MAX_SHOWN]}' is stored as data and has no effect."
        f"{_meant(name[:MAX_SHOWN], options)}"
        for name in islice(names, MAX_LOOKED_AT)
        if name in _MISPLACED or not (name == _SHOWN_LATER or name.startswith(_OWN_PREFIXES))
    ]


@lru_cache(maxsize=1_000)
def _meant(name: str, known: frozenset[str]) -> str:
    if name in _MISPLACED:
        return f" Use {_MISPLACED[name]}."
    like = nearest(name, known, least=_SLIP)
    return (
        " Start the names of own fields with 'x_'." if like is None else f" Did you mean '{like}'?"
    )
