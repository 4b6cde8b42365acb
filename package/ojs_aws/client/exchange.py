"""How one call becomes an answer, whatever tries that takes: no input or output.

`exchange` is a generator. It yields what is to be done (`Send`, `Wait`), is sent what came of it,
and returns the answer; both clients run the same one.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, Union

from ojs_aws.client.call import Call
from ojs_aws.errors import ApiError, Duplicate, OjsError, Unreachable, refusal

T = TypeVar("T")

# Answers that say "not now": throttled, overloaded, unreachable behind the gateway, too slow.
BUSY = frozenset({429, 502, 503, 504})
# Turned away before anything was done.
_NOT_DONE = frozenset({429})


@dataclass(frozen=True)
class RetryPolicy:
    """How often a call is tried, and how long the pauses between are (seconds). They double, and
    are cut at random, so that many clients do not come back as one; `Retry-After` counts if it is
    longer, up to `longest_s` of it.
    """

    tries: int = 6
    first_s: float = 0.1
    most_s: float = 5.0
    longest_s: float = 30.0

    def pause_s(self, tried: int, retry_after_s: float) -> float:
        """How long to wait after so many tries."""
        doubled: float = min(self.first_s * 2 ** (tried - 1), self.most_s)
        drawn = doubled * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        return max(drawn, min(retry_after_s, self.longest_s))


@dataclass(frozen=True)
class Send:
    """Send the call; its outcome is a Reply or a Failure."""


@dataclass(frozen=True)
class Wait:
    """Wait."""

    seconds: float


@dataclass(frozen=True)
class Reply:
    """An answer, as it came. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True)
class Failure:
    """There was no answer. `sent` says that the request may have reached the server."""

    reason: str
    sent: bool


Step = Union[Send, Wait]
Outcome = Union[Reply, Failure, None]


def exchange(call: Call[T], policy: RetryPolicy) -> Generator[Step, Outcome, T]:
    """Try a call until there is a clear answer. Raises ApiError, Unreachable."""
    unclear = False
    for tried in range(1, policy.tries + 1):
        outcome = yield Send()
        error = _refused(outcome, repeated=unclear)
        if error is None:
            try:
                return call.read(_body(call, outcome))
            except (ValueError, KeyError, TypeError) as wrong:
                error = Unreachable(f"the answer cannot be read: {wrong!r}")
        if isinstance(error, Duplicate) and unclear and call.stored is not None:
            found = call.stored(_existing(error.details))
            if found is not None:
                return found
        ambiguous = not (
            (isinstance(outcome, Failure) and not outcome.sent)
            or (isinstance(outcome, Reply) and outcome.status in _NOT_DONE)
        )
        busy = not isinstance(error, ApiError) or error.status in BUSY
        if not busy or tried == policy.tries or (ambiguous and not call.repeatable):
            raise error
        unclear = unclear or ambiguous
        asked_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
        yield Wait(policy.pause_s(tried, asked_s))
    raise AssertionError("the loop returns or raises")


def _existing(details: Mapping[str, Any]) -> str:
    """The id that was taken already."""
    return str(details.get("existing_job_id") or details.get("existing_workflow_id") or "")


def _refused(outcome: Outcome, *, repeated: bool) -> OjsError | None:
    """The error that an outcome is; None for an answer that can be read."""
    if not isinstance(outcome, Reply):
        away = Unreachable(outcome.reason if outcome else "nothing was sent")
        away.sent = repeated or (outcome is not None and outcome.sent)
        return away
    if outcome.status < 300:
        return None
    try:
        body = json.loads(outcome.content)
    except ValueError:
        body = {}  # what is in between may answer with a page
    error = refusal(outcome.status, body, repeated=repeated)
    after = outcome.headers.get("retry-after", "")
    error.retry_after_s = float(after) if after.isdigit() else 0.0
    return error


def _body(call: Call[Any], reply: Outcome) -> dict[str, Any]:
    assert isinstance(reply, Reply)
    body = json.loads(reply.content) if reply.content else {}
    if not isinstance(body, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - not a caller's type
    return body
