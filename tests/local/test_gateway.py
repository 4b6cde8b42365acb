"""Which function gets a request, and what becomes of one that fails."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from local.folder import DataFolder
from local.gateway import FUNCTION_BYTES, DiskCheck, Gateway, refusal, route
from local.http_server import Request, Response


def call(
    gateway: Callable[[Request], Response],
    target: str,
    body: bytes = b"",
    content_type: str = "application/json",
) -> Response:
    return gateway(
        Request("POST", target, [("content-type", content_type)], body, "1.1", "127.0.0.1")
    )


def gateway(answer: Any = None) -> Gateway:
    def named(name: str) -> Any:
        def handler(event: dict[str, Any], context: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            if answer is not None:
                return answer
            assert context.function_name == name
            assert 0 < context.get_remaining_time_in_millis() <= 30_000
            return {"statusCode": 200, "body": f"{name} {event['routeKey']}"}

        return handler

    return Gateway({name: named(name) for name in ("jobs", "workers", "admin")})


@pytest.mark.parametrize(
    ("path", "function", "key", "parameters"),
    [
        ("/ojs/v1/jobs", "jobs", "ANY /ojs/v1/jobs", {}),
        ("/ojs/v1/jobs/1/ack", "jobs", "ANY /ojs/v1/jobs/{proxy+}", {"proxy": "1/ack"}),
        ("/ojs/v1/workers/fetch", "workers", "ANY /ojs/v1/workers/{proxy+}", {"proxy": "fetch"}),
        ("/ojs/v1/jobsite", "admin", "$default", {}),
        ("/ojs/v1/health", "admin", "$default", {}),
        ("/", "admin", "$default", {}),
        ("/ojs/admin", "dashboard", "ANY /ojs/admin", {}),
        ("/ojs/admin/", "dashboard", "ANY /ojs/admin/{proxy+}", {"proxy": ""}),
        ("/ojs/admin/jobs/1", "dashboard", "ANY /ojs/admin/{proxy+}", {"proxy": "jobs/1"}),
    ],
)
def test_routes(path: str, function: str, key: str, parameters: dict[str, str]) -> None:
    found = route(path)
    assert (found.function, found.key, found.parameters) == (function, key, parameters)


def test_the_function_of_the_route_is_called() -> None:
    assert call(gateway(), "/ojs/v1/workers/x").body == b"workers ANY /ojs/v1/workers/{proxy+}"


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("defect"),
        {"statusCode": "no number"},
        {"statusCode": 200, "body": "x" * (FUNCTION_BYTES + 1)},
    ],
)
def test_a_failing_function(answer: Any, capfd: pytest.CaptureFixture[str]) -> None:
    response = call(gateway(answer), "/ojs/v1/jobs")
    assert response.status == 500
    assert json.loads(response.body) == {"message": "Internal Server Error"}
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("size", "content_type", "status"),
    [
        (FUNCTION_BYTES - 5_000, "application/json", 200),
        (FUNCTION_BYTES, "application/json", 413),
        # Base64 makes a third more of it.
        (FUNCTION_BYTES * 3 // 4 - 5_000, "application/openjobspec+json", 200),
        (FUNCTION_BYTES * 3 // 4, "application/openjobspec+json", 413),
    ],
)
def test_more_than_a_function_takes(size: int, content_type: str, status: int) -> None:
    response = call(gateway(), "/ojs/v1/jobs", b"x" * size, content_type)
    assert response.status == status
    if status == 413:
        error = json.loads(response.body)["error"]
        assert error["code"] == "payload_too_large"
        assert error["details"]["limit"] == FUNCTION_BYTES < error["details"]["size"]


def test_a_refusal_is_shaped_like_the_bindings_errors() -> None:
    response = refusal(400, "Malformed HTTP.", {})
    error = json.loads(response.body)["error"]
    assert error["code"] == "invalid_payload"
    assert error["message"] == "Malformed HTTP."
    assert error["retryable"] is False
    assert ("content-type", "application/json") in response.headers


def test_a_hook_answers_instead_of_a_function() -> None:
    hooked = gateway()
    hooked.hook("POST", "/ojs/v1/admin/reset", lambda _: {"reset": True})
    assert json.loads(call(hooked, "/ojs/v1/admin/reset?x=1").body) == {"reset": True}
    assert call(hooked, "/ojs/v1/admin/other").body == b"admin $default"


def test_a_browser_may_ask_about_a_hook() -> None:
    hooked = gateway()
    hooked.hook("POST", "/ojs/v1/admin/reset", lambda _: pytest.fail("nothing is to be done"))
    response = hooked(Request("OPTIONS", "/ojs/v1/admin/reset", [], b"", "1.1", "127.0.0.1"))
    headers = dict(response.headers)
    assert (response.status, response.body) == (204, b"")
    assert headers["Access-Control-Allow-Methods"] == headers["Allow"] == "POST, OPTIONS"
    assert "Authorization" in headers["Access-Control-Allow-Headers"].split(", ")


@pytest.mark.parametrize(
    ("target", "status", "told"),
    [
        ("/ojs/v1/jobs", 503, True),
        ("/ojs/v1/jobs", 500, True),
        ("/ojs/v1/jobs", 201, False),
        ("/ojs/v1/jobs", 401, False),
        ("/ojs/v1/health?x=1", 200, True),
        ("/ready", 200, True),
        ("/health", 401, False),
    ],
)
@pytest.mark.parametrize("full", [True, False])
def test_a_full_disk_is_told_of(target: str, status: int, told: bool, full: bool) -> None:
    """The engine says that it is busy, and reads go on."""
    behind = Response(status, [], b"behind")
    answer = call(DiskCheck(lambda _request: behind, lambda: full, "/data"), target)
    if not (told and full):
        assert answer is behind
        return
    assert answer.status == 503
    assert "/data is full" in json.loads(answer.body)["error"]["message"]


def test_a_full_disk_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DataFolder(tmp_path / "data")
    try:
        assert not folder.full()
        assert {each.name for each in folder.path.iterdir()} == {"server.lock"}
        for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO):

            def fails(number: int = number, **_: Any) -> Any:
                raise OSError(number, "no")

            monkeypatch.setattr("local.folder.tempfile.TemporaryFile", fails)
            if number == errno.EIO:
                with pytest.raises(OSError, match="no"):
                    folder.full()
            else:
                assert folder.full()
    finally:
        folder.close()
