"""Target for Lambda functions.

Lambda sends the outcome of an asynchronous invocation to the function's destinations. Events that
are too large for an asynchronous invocation are sent by synchronous ones.

The SDK makes one attempt per call. If a call has no response, its outcome is unknown, and the
function might have run. Another attempt could run it twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aws_lambda_powertools import Logger
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.delivery import forms, outcome
from ojs.domain.delivery.delivery import Delivery, Form
from ojs.domain.delivery.forms import PushEvent
from ojs.domain.delivery.outcome import Outcome, Verdict
from ojs.domain.delivery.push import Push
from ojs.domain.errors import InvalidPayload
from ojs.store.table import clients

logger = Logger()

# Additional time of a synchronous invocation, for a cold start.
_COLD_START_S = 10
# Maximum time that a function of this deployment can wait for a target function.
_LONGEST_WAIT_S = 885
# Timeout of an asynchronous invocation. Lambda responds before the target function runs.
_ACCEPTED_S = 5

# Calls a function for each item, with several calls at the same time.
Each = Callable[[Callable[[PushEvent], Sequence[Outcome | None]], Sequence[PushEvent]], list[Any]]


class LambdaTarget:
    """Invokes the functions of deliveries."""

    def __init__(
        self,
        clock: Clock,
        *,
        each: Each,
        make: Callable[[Config], Any] | None = None,
        destinations: bool = True,
    ) -> None:
        """Create a target.

        Args:
            clock: Current time.
            each: Makes calls in parallel.
            make: Creates a client from a Config. Default: a boto client of this region.
            destinations: Whether Lambda sends the outcomes of asynchronous invocations. If false,
                every invocation is synchronous.
        """
        self._clock = clock
        self._destinations = destinations
        self._each = each
        self._make = make or (lambda config: clients.client("lambda", config))
        # Clients by their read timeout.
        self._clients: BoundedMap[int, Any] = BoundedMap(16)

    def waits_for(self, push: Push, *, delivery: Delivery) -> bool:
        """Return whether the job needs a synchronous invocation, which lasts as long as the job."""
        return not self._destinations or forms.alone(push, delivery.form)

    def send(
        self, pushes: Sequence[Push], *, delivery: Delivery, wait: bool = False
    ) -> Sequence[Outcome | None]:
        """Invoke the delivery's function for these jobs. See `Target`.

        Args:
            pushes: Jobs to push.
            delivery: The delivery.
            wait: Whether to invoke the function synchronously.

        Returns:
            The outcome of each job, or None if it arrives later.
        """
        found: dict[str, Outcome | None] = {}
        events = list(
            forms.events(
                pushes,
                delivery.form,
                # The event has the ARN of a queue that doesn't exist. It contains the name of the
                # delivery.
                source=_queue_arn(delivery),
                batch_size=delivery.batch_size,
                now_ms=self._clock.now_ms(),
            )
        )

        wait = wait or not self._destinations

        def invoke(event: PushEvent) -> Sequence[Outcome | None]:
            return self._invoke(event, delivery, waits=wait or event.alone)

        for event, outcomes in zip(events, self._each(invoke, events), strict=True):
            ids = [push.delivery_id for push in event.pushes]
            found |= dict(zip(ids, outcomes, strict=True))
        return [found[push.delivery_id] for push in pushes]

    def _invoke(
        self, event: PushEvent, delivery: Delivery, *, waits: bool
    ) -> Sequence[Outcome | None]:
        answer = self._call(event, delivery, waits=waits)
        if isinstance(answer, Outcome) or answer is None:
            return [answer] * len(event.pushes)
        return _read(answer, event, delivery.form)

    def _call(
        self, event: PushEvent, delivery: Delivery, *, waits: bool
    ) -> dict[str, Any] | Outcome | None:
        """Invoke the function.

        Return its response, an outcome, or None if the outcome arrives later.

        If Lambda doesn't respond, an outcome is returned.
        """
        kind = "RequestResponse" if waits else "Event"
        try:
            client = self._client(delivery.timeout_ms if waits else None)
            answer = client.invoke(
                FunctionName=delivery.function or "",
                InvocationType=kind,
                Payload=event.text,
            )
            if not waits:
                return None
            payload = answer["Payload"].read(forms.MAX_ANSWER_BYTES + 1)
        except ClientError as error:
            return _refused(error, now_ms=self._clock.now_ms())
        except (ConnectTimeoutError, EndpointConnectionError, NoCredentialsError) as error:
            # The request was not sent.
            return outcome.throttled(f"Lambda can't be reached: {error}")
        except ReadTimeoutError:
            message = f"The function did not respond within {delivery.timeout_ms} ms."
            return self._unknown(event, message, "timeout", waits=waits)
        except (BotoCoreError, OSError) as error:
            return self._unknown(
                event, f"Lambda did not respond: {error}", "delivery_error", waits=waits
            )
        return {"failed": answer.get("FunctionError"), "payload": payload}

    @staticmethod
    def _unknown(event: PushEvent, message: str, code: str, *, waits: bool) -> Outcome | None:
        """Return the outcome of an invocation whose own outcome is unknown.

        If an asynchronous invocation was accepted, its outcome arrives later. Otherwise the lease
        of its jobs expires. An earlier retry could run the function twice at the same time.
        """
        if waits:
            return outcome.trouble(Verdict.FAULT, code, message)
        ids = [push.job.id for push in event.pushes]
        logger.warning("Invocation failed", extra={"jobs": ids, "reason": message})
        return None

    def _client(self, timeout_ms: int | None) -> Any:
        """Return a client whose read timeout is long enough for a function with this timeout."""
        if timeout_ms is None:
            wait_s = _ACCEPTED_S
        else:
            wait_s = min(-(-timeout_ms // 1_000) + _COLD_START_S, _LONGEST_WAIT_S)
        found = self._clients.get(wait_s)
        if found is None:
            once = Config(
                read_timeout=wait_s, retries={"mode": "standard", "total_max_attempts": 1}
            )
            found = self._make(clients.CONFIG.merge(once))
            self._clients.put(wait_s, found)
        return found


def _read(answer: dict[str, Any], event: PushEvent, form: Form) -> Sequence[Outcome]:
    """Return the outcomes from the response to a synchronous invocation."""
    ids = [push.job.id for push in event.pushes]
    payload: bytes = answer["payload"]
    try:
        told = jsontext.loads(payload) if payload else None
    except InvalidPayload as broken:
        if not answer["failed"]:
            return [outcome.invalid(f"The response can't be read: {broken}")] * len(ids)
        told = payload.decode("utf-8", errors="replace")
    if answer["failed"]:
        return [outcome.of_function_error(told)] * len(ids)
    if form is Form.SQS:
        return outcome.of_batch(told, ids)
    return [outcome.of_answer(told, job_id=ids[0])]


def _refused(error: ClientError, *, now_ms: int) -> Outcome:
    """Return the outcome of an invocation that Lambda rejected."""
    told, meta = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    return outcome.of_invoke_error(
        str(told.get("Code", "")),
        str(told.get("Message", "")),
        status=int(meta.get("HTTPStatusCode", 0)),
        retry_after=meta.get("HTTPHeaders", {}).get("retry-after"),
        now_ms=now_ms,
    )


def _queue_arn(delivery: Delivery) -> str:
    """Return an ARN with the format of an SQS ARN, in the region and account of the function."""
    parts = (delivery.function or "").split(":")
    partition, region, account = (
        (parts[1], parts[3], parts[4]) if len(parts) > 4 else ("aws", "local", "000000000000")
    )
    return f"arn:{partition}:sqs:{region}:{account}:{delivery.name}"
