"""The S3 bucket: payloads that are too large for the table, and the archive of dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from ojs.store.table.errors import LostRace, classify

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

JSON, GZIP = "application/json", "application/gzip"
# Prefix of archived jobs. The backend deletes them only when an operator erases them.
ARCHIVE = "archive/"


class Blobs(Protocol):
    """Stores objects by key."""

    def put(self, key: str, body: bytes, *, content_type: str = JSON) -> None:
        """Store an object durably, and replace an existing one.

        Args:
            key: Key of the object.
            body: Content of the object.
            content_type: Media type of the content.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return the content of an object. Raises KeyError if it doesn't exist."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object. Does nothing if it doesn't exist."""
        ...

    def names(self, prefix: str, *, after: str, limit: int) -> list[str]:
        """Return the next keys with a prefix, in order.

        Args:
            prefix: Prefix of the keys.
            after: Key before the first one.
            limit: Maximum number of keys.
        """
        ...


class S3Blobs:
    """Stores objects in an S3 bucket. Raises OjsError, as `Table` does."""

    def __init__(self, client: Callable[[], S3Client], bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        # Receives the name of each called operation, for tests of permissions. None: not recorded.
        self.calls: list[str] | None = None

    def _note(self, operation: str) -> None:
        if self.calls is not None:
            self.calls.append(operation)

    def put(self, key: str, body: bytes, *, content_type: str = JSON) -> None:
        """Store an object durably, and replace an existing one.

        Args:
            key: Key of the object.
            body: Content of the object.
            content_type: Media type of the content.
        """
        self._note("PutObject")
        try:
            self._client().put_object(
                Bucket=self._bucket, Key=key, Body=body, ContentType=content_type
            )
        except (ClientError, BotoCoreError) as error:
            raise _meaning(error) from error

    def get(self, key: str) -> bytes:
        """Return the content of an object. Raises KeyError if it doesn't exist."""
        self._note("GetObject")
        try:
            return self._client().get_object(Bucket=self._bucket, Key=key)["Body"].read()
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("NoSuchKey", "404"):
                raise KeyError(key) from None
            raise _meaning(error) from error
        except BotoCoreError as error:
            raise _meaning(error) from error

    def delete(self, key: str) -> None:
        """Delete an object. Does nothing if it doesn't exist."""
        self._note("DeleteObject")
        try:
            self._client().delete_object(Bucket=self._bucket, Key=key)
        except (ClientError, BotoCoreError) as error:
            raise _meaning(error) from error

    def names(self, prefix: str, *, after: str, limit: int) -> list[str]:
        """Return the next keys with a prefix, in order.

        Args:
            prefix: Prefix of the keys.
            after: Key before the first one.
            limit: Maximum number of keys, up to 1,000.
        """
        self._note("ListObjectsV2")
        try:
            found = self._client().list_objects_v2(
                Bucket=self._bucket, Prefix=prefix, StartAfter=after, MaxKeys=limit
            )
        except (ClientError, BotoCoreError) as error:
            raise _meaning(error) from error
        return [each["Key"] for each in found.get("Contents", [])]


def _meaning(error: ClientError | BotoCoreError) -> Exception:
    meaning = classify(error)
    # Writes to S3 have no condition here. A failed condition would be a defect.
    return RuntimeError("unexpected condition") if isinstance(meaning, LostRace) else meaning


class MemoryBlobs:
    """Stores objects in memory, for tests."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put(self, key: str, body: bytes, *, content_type: str = JSON) -> None:
        """Store an object, and replace an existing one.

        Args:
            key: Key of the object.
            body: Content of the object.
            content_type: Not stored.
        """
        self.objects[key] = body

    def get(self, key: str) -> bytes:
        """Return the content of an object. Raises KeyError if it doesn't exist."""
        return self.objects[key]

    def delete(self, key: str) -> None:
        """Delete an object. Does nothing if it doesn't exist."""
        self.objects.pop(key, None)

    def names(self, prefix: str, *, after: str, limit: int) -> list[str]:
        """Return the next keys with a prefix, in order.

        Args:
            prefix: Prefix of the keys.
            after: Key before the first one.
            limit: Maximum number of keys.
        """
        return sorted(key for key in self.objects if key.startswith(prefix) and key > after)[:limit]
