"""What an error of the SDK means: lost race, contention, throttling, outage, or a bug.

- LostRace: a condition did not hold, because another write came first; nothing was written
- BackendUnavailable: throttled, contended or unreachable; try again (HTTP 503)
- BackendTimeout: no answer; the outcome is unknown (HTTP 504)
- BackendError: anything else, a defect of the code or of the deployment (HTTP 500)
"""

from __future__ import annotations

from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
)
from botocore.exceptions import ConnectionError as NoConnection

from ojs.domain.errors import BackendError, BackendTimeout, BackendUnavailable, OjsError

_BUSY = frozenset(
    {
        "ProvisionedThroughputExceededException", "ProvisionedThroughputExceeded",
        "ThrottlingException", "Throttling", "ThrottlingError", "ThrottledException",
        "RequestLimitExceeded", "TooManyRequestsException", "SlowDown",
        "TransactionConflictException", "TransactionConflict", "TransactionInProgressException",
        "InternalServerError", "InternalError", "ServiceUnavailable",
        "ServiceUnavailableException",
    }
)  # fmt: skip
_SERVER_FAULT = 500


class Contended(BackendUnavailable):
    """A transaction conflicted with another on the same item, and this try wrote nothing.

    It may be repeated, with the same client token: an earlier try, whose answer was lost, may have
    succeeded all the same.
    """


class LostRace(Exception):
    """A condition did not hold. `items` are the items as found, in the order of the writes.

    `repeated` says that the SDK sent the write more than once: an earlier try may have succeeded
    and others have changed the item since, so that the outcome is unknown.
    """

    def __init__(self, items: list[dict[str, Any] | None], *, repeated: bool = False) -> None:
        super().__init__("a conditional write lost")
        self.items = items
        self.repeated = repeated

    @property
    def item(self) -> dict[str, Any] | None:
        """The item as found, for a write of one item."""
        return self.items[0] if self.items else None


def classify(error: BotoCoreError | ClientError) -> LostRace | OjsError:
    """The meaning of an error of the SDK."""
    if isinstance(error, ReadTimeoutError):
        return BackendTimeout("The store did not answer in time; the outcome is unknown.")
    if isinstance(error, NoConnection):
        return BackendUnavailable("The store cannot be reached.")
    if isinstance(error, HTTPClientError | IncompleteReadError):
        return BackendUnavailable("The connection to the store failed.")
    if not isinstance(error, ClientError):
        # Wrong parameters, no credentials, no region: trying again changes nothing.
        return BackendError(f"The store could not be asked: {type(error).__name__}.")
    code = error.response.get("Error", {}).get("Code", "")
    if code == "ConditionalCheckFailedException":
        item: Any = error.response.get("Item")
        tries = error.response.get("ResponseMetadata", {}).get("RetryAttempts", 0)
        return LostRace([item], repeated=tries > 0)
    if code == "TransactionCanceledException":
        reasons: list[Any] = list(error.response.get("CancellationReasons", []))
        if any(reason.get("Code") == "ConditionalCheckFailed" for reason in reasons):
            return LostRace(
                [
                    reason.get("Item", {})
                    if reason.get("Code") == "ConditionalCheckFailed"
                    else None
                    for reason in reasons
                ]
            )
        if all(reason.get("Code", "None") in _BUSY | {"None"} for reason in reasons):
            return Contended("The store is busy with these jobs.")
        return BackendError(f"The store refused a transaction: {code}.")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _BUSY or status >= _SERVER_FAULT:
        return BackendUnavailable("The store is busy.")
    return BackendError(f"The store refused a request: {code or 'unknown error'}.")
