"""Hypothesis strategies for what the domain knows: JSON values, policies, failures, jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from ojs.domain.job.copies import CopyTarget, Origin
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, MISSING, Job, Lease
from ojs.domain.job.retry import BackoffStrategy, OnExhaustion, RetryPolicy
from ojs.domain.job.states import State

NOW_MS = 1_780_000_000_000

# Composed and decomposed forms, surrogate pairs in UTF-16, control characters, brackets, quotes.
AWKWARD_TEXTS = (
    "", "\u00e9", "e\u0301", "\U0001f600", "\x00", "\u2028", '"', "\\", '{"[', "]}", "a.b-c d",
)  # fmt: skip

texts = st.one_of(
    st.sampled_from(AWKWARD_TEXTS), st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
)

# Numbers as a client may write them: whole, with a fraction, with an exponent.
whole_numbers = st.one_of(
    st.integers(-(10**40), 10**40), st.sampled_from((0, 2**53, 2**53 + 1, -(2**63), 10**999))
)
fraction_texts = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
    st.sampled_from(("", "-")),
    st.integers(0, 10**25),
    st.sampled_from((".0", ".10", ".000", ".1000000000000000055", ".9999999999999999999999999")),
    st.sampled_from(("", "", "", "e0", "E+2", "e-7", "e25", "E-99")),
)


def _written(text: str) -> bool:
    """Whether a Decimal is written with a fraction or an exponent, and so read back as one."""
    return any(mark in text for mark in ".eE")


fractions = fraction_texts.map(Decimal).filter(lambda number: _written(str(number)))
numbers = st.one_of(whole_numbers, fractions)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)

# Few instants close together, so that jobs stand right before, at and after their times.
_INSTANTS = (
    *(NOW_MS - 10**9, NOW_MS - 60_000, NOW_MS - 2, NOW_MS - 1, NOW_MS),
    *(NOW_MS + 1, NOW_MS + 2, NOW_MS + 60_000, NOW_MS + 10**9),
)
instants = st.sampled_from(_INSTANTS)
_maybe_instants = st.sampled_from((None, *_INSTANTS))
_LENGTHS = (1, 2, 999, 60_000, DEFAULT_TIMEOUT_MS, 10**9)
lengths = st.sampled_from(_LENGTHS)
_maybe_lengths = st.sampled_from((None, *_LENGTHS))
tokens = st.sampled_from(("AAAAAAAA", "________", "--------", "aZ09-_bc"))
orders = st.integers(0, 16**15 - 1).map(lambda number: f"{number:015x}")
job_ids = st.sampled_from(
    ("019539a4-b68c-7def-8000-1a2b3c4d5e6f", "0196ffff-ffff-7fff-bfff-ffffffffffff")
)
names = st.sampled_from(("a", "email.send", "dlq.test.list-first", "q" * 60))
copy_targets = st.sampled_from(
    (
        None,
        None,
        CopyTarget("dlq"),
        CopyTarget("a", 5),
        CopyTarget("d-l.q", ttl_ms=1),
        CopyTarget("dlq", 10**9, 7),
    )
)
copy_origins = st.sampled_from((None, None)) | st.builds(
    Origin, job_ids, st.sampled_from((None, 1, 10**9))
)
worker_ids = st.sampled_from((None, "w", "host-1:4711", "worker-019539a4-b68c-7def-8000-1a2b3c"))

policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(0, 12),
    initial_ms=st.integers(1, 10**7),
    coefficient=st.floats(1.0, 1_000.0),
    max_ms=st.integers(1, 10**9),
    jitter=st.booleans(),
    strategy=st.sampled_from(BackoffStrategy),
    non_retryable=st.sampled_from(
        ((), ("timeout",), ("Auth.*",), ("*",), ("\u00e9", "E*", '{"['), ("handler_error", "Auth."))
    ),
    on_exhaustion=st.sampled_from(OnExhaustion),
)

# The ones a generated job may have.
_POLICIES = (
    RetryPolicy(),
    *(RetryPolicy(max_attempts=tries, on_exhaustion=OnExhaustion.DISCARD) for tries in (0, 1, 2)),
    RetryPolicy(
        max_attempts=5, non_retryable=("timeout", "Auth.*"), strategy=BackoffStrategy.LINEAR
    ),
    RetryPolicy(max_attempts=2, initial_ms=1, max_ms=1),
    RetryPolicy(
        max_attempts=12, jitter=False, strategy=BackoffStrategy.POLYNOMIAL, coefficient=1.5
    ),
)

# What a worker may say; codes that decide the outcome included.
failure_names = st.sampled_from(
    ("handler_error", "timeout", "DISCARD", "DEAD_LETTER", "RETRY", "Auth.TokenExpired", "\u00e9")
)
plain_failures = st.builds(
    Failure,
    attempt=st.just(1),
    code=failure_names,
    type=failure_names,
    message=st.just("no"),
    occurred_ms=st.just(NOW_MS),
    retryable=st.booleans(),
)
failures = st.builds(
    Failure,
    attempt=st.integers(0, 12),
    code=failure_names,
    type=texts.filter(bool),
    message=texts,
    occurred_ms=instants,
    retryable=st.booleans(),
    backtrace=st.lists(texts, max_size=3).map(tuple),
    details=st.none() | st.dictionaries(texts, json_values, min_size=1, max_size=3),
)

contents = st.builds(
    lambda extra, args, meta: extra | {"args": args} | ({"meta": meta} if meta else {}),
    extra=st.dictionaries(texts.map(lambda text: f"x_{text}"), json_values, max_size=2),
    args=st.lists(json_values, max_size=3),
    meta=json_objects,
)


_NO_CONTENT: st.SearchStrategy[Mapping[str, Any]] = st.just({"args": []})


@st.composite
def jobs(
    draw: st.DrawFn,
    states: Iterable[State] = tuple(State),
    content: st.SearchStrategy[Mapping[str, Any]] = _NO_CONTENT,
) -> Job:
    """A job as a life may have left it, in one of `states`; just what its state calls for is set.

    Errors, progress and the previous state are loaded apart and left out.
    """
    state = draw(st.sampled_from(list(states)))
    policy = draw(st.sampled_from(_POLICIES))
    if state is State.RETRYABLE:
        policy = replace(policy, max_attempts=max(2, policy.max_attempts))
    tries = max(1, policy.max_attempts)
    job = Job(
        id=draw(job_ids),
        type=draw(names),
        queue=draw(names),
        state=state,
        created_ms=draw(instants),
        lane=draw(st.integers(0, 3)),
        priority=draw(st.integers(-100, 100)),
        content=draw(content),
        scheduled_ms=draw(instants if state is State.SCHEDULED else _maybe_instants),
        timeout_ms=draw(lengths),
        visibility_ms=draw(_maybe_lengths),
        policy=policy,
        life=draw(st.integers(0, 3)),
        activated_ms=draw(_maybe_instants),
        retry_delay_ms=draw(_maybe_lengths),
        unique_key=draw(st.sampled_from((None, "0f" * 32))),
        result_ttl_s=draw(st.sampled_from((None, 0, 1, 34_560_000))),
        copies_to=draw(copy_targets),
        copy_of=draw(copy_origins),
        op=draw(tokens),
    )
    if not state.terminal:
        job = replace(job, expires_ms=draw(_maybe_instants))
    match state:
        case State.SCHEDULED | State.PENDING:
            return replace(job, batch=draw(st.sampled_from((None, "aZ09-_bc"))))
        case State.AVAILABLE:
            return replace(
                job,
                attempt=draw(st.integers(0, tries - 1)),
                enqueued_ms=draw(instants),
                order=draw(orders),
                batch=draw(st.sampled_from((None, "aZ09-_bc"))),
            )
        case State.CANCELLED:
            return replace(
                job,
                attempt=draw(st.integers(0, tries)),
                cancelled_ms=draw(instants),
                ttl_s=draw(instants) // 1000,
            )
    return _after_a_claim(draw, job, tries)


def _after_a_claim(draw: st.DrawFn, job: Job, tries: int) -> Job:
    """What is set on jobs that a worker has had."""
    started_ms = draw(instants)
    last = tries - 1 if job.state is State.RETRYABLE else tries
    job = replace(
        job,
        attempt=draw(st.integers(1, last)),
        enqueued_ms=draw(instants),
        started_ms=started_ms,
        worker_id=draw(worker_ids),
        fenced=draw(st.booleans()),
    )
    match job.state:
        case State.ACTIVE:
            length_ms = draw(lengths)
            until_ms = started_ms + length_ms + draw(st.sampled_from((0, 1, length_ms)))
            return replace(job, lease=Lease(draw(tokens), until_ms, length_ms, job.worker_id))
        case State.RETRYABLE:
            return replace(job, retry_at_ms=draw(instants))
        case State.DISCARDED:
            ended_ms = draw(instants)
            dead = draw(st.booleans())
            copy_id = draw(st.none() | job_ids) if dead and job.copies_to else None
            return replace(
                job,
                discarded_ms=ended_ms,
                completed_ms=draw(st.sampled_from((None, ended_ms))),
                dead_letter=dead,
                copy_id=copy_id,
                copy_due=copy_id is not None and draw(st.booleans()),
                error_type=draw(st.none() | st.sampled_from(("Boom", "a|b ü"))) if dead else None,
                deleting=dead and draw(st.booleans()),
                replayed=draw(st.none() | st.just('["rule",1,{"rule":2}]')),
                trimmed=not dead and draw(st.booleans()),
                ttl_s=None if dead else ended_ms // 1000,
            )
    return replace(
        job,
        completed_ms=draw(instants),
        ttl_s=draw(instants) // 1000,
        result=draw(st.just(MISSING) | json_values),
    )


def exactly(value: Any) -> str:
    """A text that tells apart what `==` does not: 1 and 1.0 and True, 3.1 and 3.10, key order."""
    return repr(value)
