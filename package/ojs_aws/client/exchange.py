"""Sends one request: its attempts, pauses, and result. No I/O.

`exchange` is a generator. It yields steps (`Send`, `Wait`), receives the outcome of each step, and
returns the result of the request. `Client` and `AsyncClient` perform the steps.
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

# HTTP statuses that are retried: throttled, overloaded, unreachable behind the gateway, or timed
# out.
BUSY = frozenset({429, 502, 503, 504})
# Error codes of requests that the server rejected before it changed anything.
_NOT_DONE = frozenset({429})


@dataclass(frozen=True)
class RetryPolicy:
    """The maximum number of attempts of a request, and the pauses between them.

    A pause doubles after each attempt, up to `most_s`, and is multiplied by a random factor from
    0.5 to 1. If `Retry-After` is longer, the client waits for that time, up to `longest_s`.

    Attributes:
        tries: Maximum number of attempts. Default: 6.
        first_s: Pause after the first attempt in seconds. Default: 0.1.
        most_s: Maximum pause in seconds without `Retry-After`. Default: 5.
        longest_s: Maximum `Retry-After` in seconds that the client waits for. Default: 30.
    """

    tries: int = 6
    first_s: float = 0.1
    most_s: float = 5.0
    longest_s: float = 30.0

    def pause_s(self, tried: int, retry_after_s: float) -> float:
        """Return the pause before the next attempt.

        Args:
            tried: Number of attempts so far, 1 or more.
            retry_after_s: `Retry-After` of the last response in seconds. 0 if there is none.

        Returns:
            The pause in seconds.
        """
        doubled: float = min(self.first_s * 2 ** (tried - 1), self.most_s)
        drawn = doubled * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        return max(drawn, min(retry_after_s, self.longest_s))


@dataclass(frozen=True)
class Send:
    """A step: send the request. The outcome of the step is a Reply or a Failure."""


@dataclass(frozen=True)
class Wait:
    """A step: wait for this number of seconds."""

    seconds: float


@dataclass(frozen=True)
class Reply:
    """A response. The names of headers are lowercase."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True)
class Failure:
    """An attempt without a response.

    If `sent` is true, the request might have reached the server.
    """

    reason: str
    sent: bool


Step = Union[Send, Wait]
Outcome = Union[Reply, Failure, None]


def exchange(call: Call[T], policy: RetryPolicy) -> Generator[Step, Outcome, T]:
    """Attempt a request until its outcome is known, or until the policy allows no more attempts.

    Raises:
        ApiError: The server rejected the request.
        Unreachable: No attempt got a valid response.
    """
    unclear = False
    for tried in range(1, policy.tries + 1):
        outcome = yield Send()
        error = _refused(outcome, repeated=unclear)
        if error is None:
            try:
                return call.read(_body(call, outcome))
            except (ValueError, KeyError, TypeError) as wrong:
                error = Unreachable(f"the response is invalid: {wrong!r}")
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
    """Return the ID of the existing job or workflow from the details of the error `duplicate`."""
    return str(details.get("existing_job_id") or details.get("existing_workflow_id") or "")


def _refused(outcome: Outcome, *, repeated: bool) -> OjsError | None:
    """Convert the outcome of an attempt to an error. Return None for a successful response."""
    if not isinstance(outcome, Reply):
        away = Unreachable(outcome.reason if outcome else "nothing was sent")
        away.sent = repeated or (outcome is not None and outcome.sent)
        return away
    if outcome.status < 300:
        return None
    try:
        body = json.loads(outcome.content)
    except ValueError:
        body = {}  # a proxy may respond with an HTML page
    error = refusal(outcome.status, body, repeated=repeated)
    after = outcome.headers.get("retry-after", "")
    error.retry_after_s = float(after) if after.isdigit() else 0.0
    return error


def _body(call: Call[Any], reply: Outcome) -> dict[str, Any]:
    assert isinstance(reply, Reply)
    body = json.loads(reply.content) if reply.content else {}
    if not isinstance(body, dict):
        raise ValueError("the response is not a JSON object")  # noqa: TRY004 - not a caller's type
    return body
