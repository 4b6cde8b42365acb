"""Sends messages to the connections of a WebSocket API. None is sent twice."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from ojs.domain.realtime import Posted
from ojs.store.table import clients

logger = Logger()

_GONE = 410
# A request waits for its messages: a second in all, and no retry.
_CONFIG = clients.CONFIG.merge(
    Config(
        connect_timeout=0.3,
        read_timeout=0.7,
        retries={"mode": "standard", "total_max_attempts": 1},
    )
)


class ApiGatewayConnections:
    """The connections of an API Gateway stage."""

    def __init__(self, endpoint: str, client: Any = None) -> None:
        """Use the management API at `endpoint`. The client is created for the first message."""
        self._endpoint = endpoint
        self._client = client

    def post(self, connection: str, text: str) -> Posted:
        """Send a text to a connection. See `Connections`."""
        if self._client is None:
            self._client = clients.client(
                "apigatewaymanagementapi", _CONFIG, endpoint_url=self._endpoint
            )
        try:
            self._client.post_to_connection(ConnectionId=connection, Data=text.encode())
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == _GONE:
                return Posted.GONE
            return _failed(error.response.get("Error", {}).get("Code", ""))
        except BotoCoreError as error:
            return _failed(type(error).__name__)
        return Posted.POSTED


def _failed(code: str) -> Posted:
    logger.warning("Sending a message to a connection failed", extra={"code": code})
    return Posted.FAILED
