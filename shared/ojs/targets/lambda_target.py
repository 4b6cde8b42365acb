"""Targets that are Lambda functions.

Asynchronous invocations report their outcomes through the function's destinations. Synchronous ones
are for events that would not fit there.

The SDK makes each call once. If a call has no response, its outcome is unknown, and the function
might have run. Sending the event again would run it twice.
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
# The longest time that one of our functions can wait for another one.
_LONGEST_WAIT_S = 885
# For an asynchronous invocation, which Lambda accepts before the function runs.
_ACCEPTED_S = 5

# Calls a function for each item, several at a time.
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
        # By the time for which they wait for a response.
        self._clients: BoundedMap[int, Any] = BoundedMap(16)

    def waits_for(self, push: Push, *, delivery: Delivery) -> bool:
        """Return whether the invocation is synchronous, and lasts as long as the function."""
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
                # No queue exists. The ARN names the delivery.
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
        """Return the response, the outcome if there was none, or None if it arrives later."""
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
            # Nothing was sent.
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
        """Return the outcome of an invocation that might not have been made.

        An asynchronous one might have been made: its outcome arrives, or the lease of its jobs
        expires. An earlier push could run the function twice at the same time.
        """
        if waits:
            return outcome.trouble(Verdict.FAULT, code, message)
        ids = [push.job.id for push in event.pushes]
        logger.warning("Invocation failed", extra={"jobs": ids, "reason": message})
        return None

    def _client(self, timeout_ms: int | None) -> Any:
        """Return a client that waits long enough for a function with this timeout."""
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
    """Read the outcomes in the response to a synchronous invocation."""
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
    """Return the outcome for an invocation that Lambda rejected."""
    told, meta = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    return outcome.of_invoke_error(
        str(told.get("Code", "")),
        str(told.get("Message", "")),
        status=int(meta.get("HTTPStatusCode", 0)),
        retry_after=meta.get("HTTPHeaders", {}).get("retry-after"),
        now_ms=now_ms,
    )


def _queue_arn(delivery: Delivery) -> str:
    """Return an ARN like that of a queue, in the region and account of the function."""
    parts = (delivery.function or "").split(":")
    partition, region, account = (
        (parts[1], parts[3], parts[4]) if len(parts) > 4 else ("aws", "local", "000000000000")
    )
    return f"arn:{partition}:sqs:{region}:{account}:{delivery.name}"
