"""Messages to connections of API Gateway: what becomes of each answer."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from ojs.domain.realtime import Posted
from ojs.store.table import clients
from ojs.targets.connections import ApiGatewayConnections

ENDPOINT = "https://a1.execute-api.eu-central-1.amazonaws.com/live"


def refused(status: int, code: str) -> ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": "m"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, "PostToConnection")


class Api:
    """The management API, which gives one answer."""

    def __init__(self, answer: Exception | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.answer = answer

    def post_to_connection(self, **arguments: Any) -> None:
        self.calls.append(arguments)
        if self.answer is not None:
            raise self.answer


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (None, Posted.POSTED),
        (refused(410, "GoneException"), Posted.GONE),
        (refused(429, "LimitExceededException"), Posted.FAILED),
        (refused(403, "ForbiddenException"), Posted.FAILED),
        (refused(500, ""), Posted.FAILED),
        (ConnectTimeoutError(endpoint_url=ENDPOINT), Posted.FAILED),
        (ReadTimeoutError(endpoint_url=ENDPOINT), Posted.FAILED),
    ],
    ids=str,
)
def test_each_message_is_sent_once(answer: Exception | None, outcome: Posted) -> None:
    api = Api(answer)
    assert ApiGatewayConnections(ENDPOINT, api).post("c1=", '{"type":"ring"}') is outcome
    assert api.calls == [{"ConnectionId": "c1=", "Data": b'{"type":"ring"}'}]


def test_the_client_is_made_for_the_first_message_and_waits_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[str, Any, dict[str, Any]]] = []

    def make(service: str, config: Any, **arguments: Any) -> Api:
        made.append((service, config, arguments))
        return Api()

    monkeypatch.setattr(clients, "client", make)
    target = ApiGatewayConnections(ENDPOINT)
    assert made == []
    target.post("c1", "{}")
    target.post("c2", "{}")
    ((service, config, arguments),) = made
    assert (service, arguments) == ("apigatewaymanagementapi", {"endpoint_url": ENDPOINT})
    assert config.connect_timeout + config.read_timeout <= 1
    assert config.retries["total_max_attempts"] == 1


def test_the_service_is_one_that_the_sdk_knows() -> None:
    client = clients.client("apigatewaymanagementapi", endpoint_url=ENDPOINT)
    assert client.meta.service_model.operation_model("PostToConnection")
