"""Classifies the errors of the AWS SDK and defines an exception for each class.

- LostRace: the condition of a write failed, because another write came first; nothing was written
- WriteNotApplied: throttled, or DynamoDB was not reached; certainly nothing was written (HTTP 503)
- Contended: conflicts with a transaction on the same item; certainly nothing was written (HTTP 503)
- BackendUnavailable: DynamoDB or the connection to it failed; the outcome is unknown (HTTP 503)
- BackendTimeout: no response; the outcome is unknown (HTTP 504)
- BackendError: any other error, a defect of the code or of the deployment (HTTP 500)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
)
from botocore.exceptions import ConnectionError as NoConnection

from ojs.domain.errors import (
    BackendContended,
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    OjsError,
    UnknownForm,
)

T = TypeVar("T")
R = TypeVar("R")
# Errors that DynamoDB returns before it writes anything.
_REFUSED = frozenset(
    {
        "ProvisionedThroughputExceededException", "ProvisionedThroughputExceeded",
        "ThrottlingException", "Throttling", "ThrottlingError", "ThrottledException",
        "RequestLimitExceeded", "TooManyRequestsException", "SlowDown",
    }
)  # fmt: skip
_CONFLICTS = frozenset({"TransactionConflictException", "TransactionConflict"})
# An earlier attempt of the same transaction is still in progress.
_UNDER_WAY = "TransactionInProgressException"
_SERVER_FAULT = 500
_FAILED_CONDITION = "ConditionalCheckFailed"


class WriteNotApplied(BackendUnavailable):
    """DynamoDB was too busy, or could not be reached: certainly nothing was written.

    Permits or space acquired for the write can be released immediately.
    """


class UnknownOutcome(BackendUnavailable):
    """An earlier try of the same transaction has not finished: its outcome is still unknown."""


class Contended(WriteNotApplied, BackendContended):
    """Each try conflicted with a transaction on the same item: certainly nothing was written."""


class UnreadableItem(BackendError):
    """A stored item is damaged, or has a format that this version can't read."""

    def __init__(self, what: str, cause: Exception) -> None:
        super().__init__(f"The record of {what} can't be read: {type(cause).__name__}.")
        self.what = what


# Receives the name of an unreadable item, such as "job 42", and the error.
Unreadable = Callable[[str, UnreadableItem], object]


def readable(
    read: Callable[[T], R], each: Iterable[T], unreadable: Unreadable | None
) -> Iterator[R]:
    """Yield the result of `read` for each item. Items that can't be read are skipped.

    Args:
        read: Reads one item.
        each: The items.
        unreadable: Called for each item that raises UnreadableItem. The item is then skipped. If
            None, the error is raised.
    """
    for one in each:
        try:
            result = read(one)
        except UnknownForm:
            continue
        except UnreadableItem as error:
            if unreadable is None:
                raise
            unreadable(error.what, error)
        else:
            yield result


def ignore_unreadable(_what: str, _error: UnreadableItem) -> None:
    """Skip an unreadable item.

    Requests still show or dispatch the others, and the sweep reports it.
    """


class LostRace(Exception):
    """The condition of a write failed. `items` are the stored items, in the order of the writes.

    `repeated` is true if an earlier attempt of the write had no response. That attempt might have
    succeeded, and another write might have changed the item after it. The outcome is then unknown.
    """

    def __init__(self, items: list[dict[str, Any] | None], *, repeated: bool = False) -> None:
        super().__init__("a conditional write lost")
        self.items = items
        self.repeated = repeated

    @property
    def item(self) -> dict[str, Any] | None:
        """The stored item that the condition was checked against, for a write of one item."""
        return self.items[0] if self.items else None


def classify(error: BotoCoreError | ClientError) -> LostRace | OjsError:
    """Convert an error of the AWS SDK to one of the exceptions of this module."""
    if isinstance(error, ReadTimeoutError):
        return BackendTimeout(
            "The storage service did not respond in time. The outcome is unknown."
        )
    if isinstance(error, NoConnection):
        return WriteNotApplied("The storage service can't be reached.")
    if isinstance(error, HTTPClientError | IncompleteReadError):
        return BackendUnavailable("The connection to the storage service failed.")
    if not isinstance(error, ClientError):
        # Invalid parameters, missing credentials, or a missing region. A retry would fail as well.
        return BackendError(f"The request to the storage service failed: {type(error).__name__}.")
    code = error.response.get("Error", {}).get("Code", "")
    if code == "ConditionalCheckFailedException":
        item: Any = error.response.get("Item")
        return LostRace([item])
    if code == "TransactionCanceledException":
        return _cancelled(error.response.get("CancellationReasons", []))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _CONFLICTS:
        return Contended("Concurrent transactions changed the same items.")
    if code in _REFUSED:
        return WriteNotApplied("The storage service throttled the request.")
    if code == _UNDER_WAY or status >= _SERVER_FAULT:
        kind = UnknownOutcome if code == _UNDER_WAY else BackendUnavailable
        return kind("The storage service did not complete the request.")
    return BackendError(f"The storage service rejected a request: {code or 'unknown error'}.")


def _cancelled(reasons: Sequence[Any]) -> LostRace | OjsError:
    """Return why a transaction was cancelled, from the reasons of its writes."""
    codes = [reason.get("Code", "None") for reason in reasons]
    if _FAILED_CONDITION in codes:
        found = zip(codes, reasons, strict=True)
        return LostRace([r.get("Item", {}) if c == _FAILED_CONDITION else None for c, r in found])
    if _CONFLICTS.issuperset(set(codes) - {"None"}):
        return Contended("Concurrent transactions changed the same items.")
    if (_REFUSED | _CONFLICTS).issuperset(set(codes) - {"None"}):
        return WriteNotApplied("DynamoDB throttled the request.")
    return BackendError("DynamoDB rejected a transaction: TransactionCanceledException.")
