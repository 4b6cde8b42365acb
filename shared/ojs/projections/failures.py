"""Stores stream records that cannot be read, for an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from ojs.domain import jsontext
from ojs.store.table.clients import CONFIG


class FailureQueue(Protocol):
    """Stores entries that an operator must look at."""

    def send(self, entry: Mapping[str, Any]) -> bool:
        """Store an entry; False when that failed."""
        ...


class SqsFailureQueue:
    """An SQS queue, whose depth raises an alarm."""

    def __init__(self, url: str, client: Any = None) -> None:
        self._url = url
        self._client = client

    def send(self, entry: Mapping[str, Any]) -> bool:
        """Store an entry; False when that failed."""
        if self._client is None:
            self._client = boto3.client("sqs", config=CONFIG)
        try:
            self._client.send_message(QueueUrl=self._url, MessageBody=jsontext.dumps(entry))
        except (BotoCoreError, ClientError):
            return False
        return True
