"""HTTP to event and answer to HTTP, against what an API Gateway HTTP API sends and accepts."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.events import InvalidAnswer, event_from_request, response_from_answer
from local.http_server import Request

# What AWS documents as the shape of a payload in format 2.0, less what depends on the call.
RECORDED_KEYS = {
    "version", "routeKey", "rawPath", "rawQueryString", "cookies", "headers",
    "queryStringParameters", "requestContext", "body", "pathParameters", "isBase64Encoded",
}  # fmt: skip
RECORDED_CONTEXT_KEYS = {
    "accountId", "apiId", "domainName", "domainPrefix", "http", "requestId", "routeKey", "stage",
    "time", "timeEpoch",
}  # fmt: skip
RECORDED_HTTP_KEYS = {"method", "path", "protocol", "sourceIp", "userAgent"}


def request(
    method: str = "GET",
    target: str = "/ojs/v1/jobs",
    headers: list[tuple[str, str]] | None = None,
    body: bytes = b"",
) -> Request:
    all_headers = [("host", "localhost:8080"), *(headers or [])]
    return Request(method, target, all_headers, body, "1.1", "127.0.0.1")


def event(**arguments: Any) -> dict[str, Any]:
    return event_from_request(request(**arguments), "$default")


def test_a_full_event_has_the_documented_shape() -> None:
    made = event_from_request(
        request(
            "POST",
            "/ojs/v1/jobs/a?x=1&x=2&y=%20z",
            [("user-agent", "curl/8"), ("cookie", "a=1; b=2"), ("content-type", "text/plain")],
            b"hello",
        ),
        "ANY /ojs/v1/jobs/{proxy+}",
        {"proxy": "a"},
    )
    assert set(made) == RECORDED_KEYS
    context = made["requestContext"]
    assert set(context) == RECORDED_CONTEXT_KEYS
    assert set(context["http"]) == RECORDED_HTTP_KEYS
    assert context["http"] == {
        "method": "POST",
        "path": "/ojs/v1/jobs/a",
        "protocol": "HTTP/1.1",
        "sourceIp": "127.0.0.1",
        "userAgent": "curl/8",
    }
    assert made["version"] == "2.0"
    assert made["routeKey"] == context["routeKey"] == "ANY /ojs/v1/jobs/{proxy+}"
    assert context["stage"] == "$default"
    assert made["pathParameters"] == {"proxy": "a"}
    assert made["rawQueryString"] == "x=1&x=2&y=%20z"
    assert made["queryStringParameters"] == {"x": "1,2", "y": " z"}
    assert made["cookies"] == ["a=1", "b=2"]
    assert "cookie" not in made["headers"]
    assert made["body"] == "hello"
    assert made["isBase64Encoded"] is False
    json.dumps(made)


def test_what_is_not_there_is_left_out() -> None:
    made = event()
    assert not {"body", "cookies", "queryStringParameters", "pathParameters"} & set(made)
    assert made["rawQueryString"] == ""
    assert made["isBase64Encoded"] is False


def test_headers_are_lower_case_and_joined() -> None:
    made = event(headers=[("accept", "a/b"), ("accept", "c/d"), ("transfer-encoding", "chunked")])
    assert made["headers"]["accept"] == "a/b,c/d"
    assert made["headers"]["host"] == "localhost:8080"
    assert made["headers"]["x-forwarded-for"] == "127.0.0.1"
    assert made["headers"]["x-forwarded-port"] == "8080"
    assert "transfer-encoding" not in made["headers"]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/ojs/v1/jobs", "/ojs/v1/jobs", ""),
        ("/ojs/v1/jobs/a%20b%2Fc", "/ojs/v1/jobs/a b/c", ""),
        ("/ojs/v1/jobs/%C3%BC+", "/ojs/v1/jobs/ü+", ""),
        ("/ojs/v1/jobs?", "/ojs/v1/jobs", ""),
        ("/ojs/v1/jobs?q=%2F&e=", "/ojs/v1/jobs", "q=%2F&e="),
        ("http://localhost:8080/ojs/v1/jobs?a=1", "/ojs/v1/jobs", "a=1"),
        ("http://localhost:8080", "/", ""),
        ("/%ff", "/\N{REPLACEMENT CHARACTER}", ""),
    ],
)
def test_the_path_is_decoded_and_the_query_is_not(target: str, path: str, query: str) -> None:
    made = event(target=target)
    assert (made["rawPath"], made["rawQueryString"]) == (path, query)
    assert made["requestContext"]["http"]["path"] == path


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("application/json", b'{"a": "\xc3\xa4"}', True),
        ("application/json; charset=utf-8", b"{}", True),
        ("text/plain", b"x", True),
        ("application/json", b"\xff", False),
        ("application/openjobspec+json", b"{}", False),
        ("application/octet-stream", b"x", False),
        ("", b"x", False),
    ],
)
def test_which_bodies_come_in_base64(content_type: str, body: bytes, text: bool) -> None:
    made = event(headers=[("content-type", content_type)], body=body)
    assert made["isBase64Encoded"] is not text
    seen = made["body"].encode() if text else base64.b64decode(made["body"])
    assert seen == body


@given(st.binary(max_size=200), st.sampled_from(["application/json", "a/b", ""]))
def test_no_byte_of_a_body_is_lost(body: bytes, content_type: str) -> None:
    made = event(headers=[("content-type", content_type)], body=body)
    seen = made.get("body", "")
    assert (base64.b64decode(seen) if made["isBase64Encoded"] else seen.encode()) == body


def test_an_answer_becomes_http() -> None:
    response = response_from_answer(
        {
            "statusCode": 201,
            "headers": {"Content-Type": "application/json", "Location": "/x"},
            "cookies": ["a=1", "b=2"],
            "body": '{"ä": 1}',
            "isBase64Encoded": False,
        },
        "request-1",
    )
    assert response.status == 201
    assert response.headers == [
        ("content-type", "application/json"),
        ("location", "/x"),
        ("set-cookie", "a=1"),
        ("set-cookie", "b=2"),
        ("apigw-requestid", "request-1"),
    ]
    assert response.body == '{"ä": 1}'.encode()


def test_no_content_has_no_type() -> None:
    for answer in ({"statusCode": 204}, {"statusCode": 204, "headers": {}, "body": ""}):
        response = response_from_answer(answer, "r")
        assert (response.status, response.body) == (204, b"")
        assert [name for name, _ in response.headers] == ["apigw-requestid"]
    shown = response_from_answer({"statusCode": 200}, "r")
    assert ("content-type", "text/plain; charset=utf-8") in shown.headers


def test_a_base64_answer_is_decoded() -> None:
    answer = {"statusCode": 200, "body": base64.b64encode(b"\xff\x00").decode()}
    assert response_from_answer(answer | {"isBase64Encoded": True}, "r").body == b"\xff\x00"


def test_an_answer_without_a_status_is_the_body() -> None:
    response = response_from_answer({"a": 1}, "r")
    assert (response.status, response.body) == (200, b'{"a": 1}')
    assert ("content-type", "application/json") in response.headers


@pytest.mark.parametrize(
    "answer",
    [
        {"statusCode": "x"},
        {"statusCode": None},
        {"statusCode": 99},
        {"statusCode": 200, "body": {}},
        {"statusCode": 200, "body": "%", "isBase64Encoded": True},
    ],
)
def test_an_answer_that_is_none(answer: dict[str, Any]) -> None:
    with pytest.raises(InvalidAnswer):
        response_from_answer(answer, "r")
