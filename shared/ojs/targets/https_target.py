"""Target for HTTPS endpoints: sends signed POST requests with the timeout of the delivery."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.delivery import forms, outcome, signing
from ojs.domain.delivery.delivery import Delivery
from ojs.domain.delivery.outcome import Outcome, Verdict
from ojs.domain.delivery.push import Push
from ojs.domain.job.envelope import MAX_JOB_BYTES
from ojs.records import record
from ojs.targets.guard import Blocked, Connector, EndpointAddress, TimeLimit, place

# Maximum size of a response: the maximum size of a result, and space for the fields around it.
MAX_ANSWER_BYTES = MAX_JOB_BYTES + 65_536
USER_AGENT = "ojs-backend-aws"
# Maximum time to wait for a response. The sender runs for up to 900 s and must still process the
# outcome.
LONGEST_WAIT_MS = 885_000
# Code of the error of an endpoint that is not allowed.
BLOCKED = "endpoint_blocked"

# The status of a response, its headers by lowercase name, and its body.
HttpAnswer = tuple[int, dict[str, str], bytes]

# Calls a function for each item, with several calls at the same time.
Each = Callable[[Callable[[Push], Outcome], Sequence[Push]], list[Any]]


class SignedTarget:
    """A target that receives signed POST requests."""

    def __init__(
        self,
        clock: Clock,
        *,
        connector: Connector | None = None,
        limit: Callable[[float], TimeLimit] = TimeLimit,
    ) -> None:
        """Create a target.

        Args:
            clock: Current time.
            connector: Opens connections. Default: to public addresses only.
            limit: Creates the time limit of a request from a number of seconds.
        """
        self._clock = clock
        self._connector = connector or Connector()
        self._limit = limit

    def _place(self, url: str) -> EndpointAddress:
        return place(url, loopback=self._connector.loopback)

    def _headers(
        self, to: EndpointAddress, body: bytes, secrets: Sequence[str], delivery_id: str
    ) -> dict[str, str]:
        """Return the headers of all requests, with the signatures."""
        return {
            "Host": to.authority,
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": USER_AGENT,
            "Connection": "close",
            **signing.signed(
                secrets,
                body,
                delivery_id=delivery_id,
                url=f"{to.authority}{to.path}",
                now_ms=self._clock.now_ms(),
            ),
        }


class HttpsTarget(SignedTarget):
    """Posts jobs to the endpoints of deliveries. The caller decides about retries."""

    def __init__(self, clock: Clock, *, each: Each, **more: Any) -> None:
        """Create a target. `each` makes calls in parallel. For `more`, see `SignedTarget`."""
        super().__init__(clock, **more)
        self._each = each

    def waits_for(self, push: Push, *, delivery: Delivery) -> bool:
        """Return true: the response to the request is the outcome of the job."""
        return True

    def send(
        self,
        pushes: Sequence[Push],
        *,
        delivery: Delivery,
        wait: bool = True,
    ) -> Sequence[Outcome | None]:
        """Post these jobs to the delivery's endpoint. See `Target`.

        Args:
            pushes: Jobs to post.
            delivery: The delivery.
            wait: Ignored: the response is always the outcome.
        """
        return self._each(lambda push: self._post(push, delivery), pushes)

    def _post(self, push: Push, delivery: Delivery) -> Outcome:
        body = jsontext.dumps(forms.pushed(push)).encode()
        timeout_ms = min(push.timeout_ms, LONGEST_WAIT_MS)
        with self._limit(timeout_ms / 1_000) as limit:
            found = send_within(
                limit, timeout_ms, lambda: self._exchange(push, delivery, body, limit)
            )
        if isinstance(found, NoAnswer):
            verdict = Verdict.FORBIDDEN if found.code == BLOCKED else Verdict.FAULT
            return outcome.trouble(verdict, found.code, found.message)
        status, headers, answer = found
        if len(answer) > MAX_ANSWER_BYTES and 200 <= status < 300:
            return outcome.invalid(f"The response has more than {MAX_ANSWER_BYTES} bytes.")
        return outcome.of_response(
            status, headers, answer, job_id=push.job.id, now_ms=self._clock.now_ms()
        )

    def _exchange(
        self, push: Push, delivery: Delivery, body: bytes, limit: TimeLimit
    ) -> HttpAnswer:
        """Post one job. Return the status, the headers by lowercase name, and the body.

        The body is read up to its size limit. Redirects are not followed, because their addresses
        are not checked.
        """
        to = self._place(delivery.endpoint or "")
        headers = {
            "Accept": "application/json",
            **signing.named(push),
            **self._headers(to, body, delivery.signing_secrets, push.delivery_id),
        }
        return send_request(self._connector, to, headers, body, limit, MAX_ANSWER_BYTES)


@record(frozen=True)
class NoAnswer:
    """Why a response is missing: the code of the error, and its text."""

    code: str
    message: str


def send_within(
    limit: TimeLimit, timeout_ms: int, exchange: Callable[[], HttpAnswer]
) -> HttpAnswer | NoAnswer:
    """Call `exchange` within a time limit. Return its response, or why there is none."""
    try:
        found = exchange()
        if limit.over:
            # When the time limit shuts down a connection, the response can look complete.
            raise TimeoutError
    except Blocked as refusal:
        return NoAnswer(BLOCKED, f"The endpoint {refusal}.")
    # ValueError: the lookup rejects the host name, or the host name is not valid in the DNS.
    except (OSError, http.client.HTTPException, ValueError) as error:
        if limit.over or isinstance(error, TimeoutError):
            return NoAnswer("timeout", f"The endpoint did not respond within {timeout_ms} ms.")
        told = f"The endpoint did not respond: {type(error).__name__}: {error}"
        return NoAnswer("delivery_error", told[:1_000])
    return found


def send_request(
    connector: Connector,
    to: EndpointAddress,
    headers: Mapping[str, str],
    body: bytes,
    limit: TimeLimit,
    most_bytes: int,
) -> HttpAnswer:
    """Post a body. Return the status, the headers by lowercase name, and the body.

    The body is read up to one byte more than `most_bytes`.
    """
    connection = http.client.HTTPConnection(to.host, to.port)
    connection.sock = connector.connect(to, limit)
    try:
        connection.request("POST", to.path, body, dict(headers))
        with connection.getresponse() as answer:
            read = answer.read(most_bytes + 1)
            shown = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, shown, read
    finally:
        connection.close()
