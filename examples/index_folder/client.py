"""A small client for an Open Job Spec server: JSON over HTTP, with retries. Copy it freely."""

from __future__ import annotations

import http.client
import json
import os
import random
import secrets
import time
import urllib.parse
from contextvars import ContextVar
from typing import Any

BASE = "/ojs/v1"

# The W3C trace that requests belong to (`traceparent`), if they belong to one.
TRACE: ContextVar[str | None] = ContextVar("TRACE", default=None)

# Answers that say "not now": throttled, overloaded, unreachable behind the gateway, too slow.
_TRY_AGAIN = frozenset({429, 502, 503, 504})
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0


class ApiError(Exception):
    """The server refused a request.

    `code` is the error's name (`not_found`, `conflict` …). `repeated` says that an earlier try of
    the same request had no clear answer: it may have been carried out, and then a refusal such as
    `conflict` or `duplicate` only means that it was.
    """

    def __init__(self, status: int, error: dict[str, Any], *, repeated: bool) -> None:
        super().__init__(f"{status} {error.get('code')}: {error.get('message')}")
        self.status = status
        self.code = str(error.get("code"))
        self.details: dict[str, Any] = error.get("details") or {}
        self.repeated = repeated


class Unreachable(Exception):
    """No clear answer from the server, however often it was asked."""


class Client:
    """Talks to one server over a connection that is kept open.

    One client is for one thread: make another for each thread.
    """

    def __init__(
        self, url: str, *, key: str | None = None, timeout_s: float = 30.0, tries: int = 8
    ) -> None:
        """`url` is the server's, with or without `/ojs/v1`. Raises ValueError for another thing.

        `key` is the access key that a deployed server asks for; without it, that in the environment
        as OJS_KEY, if there is one.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is not an http or https URL")
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(parts.hostname, parts.port, timeout=timeout_s)
        self._base = parts.path.rstrip("/").removesuffix(BASE) + BASE
        self._tries = tries
        self._key = key or os.environ.get("OJS_KEY")

    def call(
        self, method: str, path: str, body: object = None, *, tries: int | None = None
    ) -> dict[str, Any]:
        """The answer to one request; tried again while the server is busy or cannot be reached.

        Raises ApiError when it is refused, Unreachable when there is no clear answer.
        """
        tries = tries or self._tries
        wait_s = _FIRST_WAIT_S
        for tried in range(1, tries + 1):
            try:
                status, retry_after_s, answer = self._exchange(method, path, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                # Also a kept connection that the server has closed meanwhile.
                self.close()
                if tried == tries:
                    raise Unreachable(f"{self._connection.host}: {error}") from error
                retry_after_s = 0.0
            else:
                if status < 400:
                    return answer
                if status not in _TRY_AGAIN or tried == tries:
                    # API Gateway itself says only what is wrong.
                    raise ApiError(status, answer.get("error") or answer, repeated=tried > 1)
            # At random, so that many clients that were turned away do not come back as one.
            time.sleep(max(retry_after_s, wait_s * random.uniform(0.5, 1.0)))  # noqa: S311
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
        raise AssertionError("the loop returns or raises")

    def close(self) -> None:
        """End the connection; the next request makes a new one."""
        self._connection.close()

    def _exchange(self, method: str, path: str, body: object) -> tuple[int, float, dict[str, Any]]:
        """One request: status, seconds the server asks to wait, and the JSON answered."""
        text = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        if trace := TRACE.get():
            headers["traceparent"] = trace
        if text is not None:
            headers["Content-Type"] = "application/json"
        self._connection.request(method, self._base + path, text, headers)
        response = self._connection.getresponse()
        content = response.read()
        answer = json.loads(content) if content else {}
        if not isinstance(answer, dict):
            raise ValueError("the answer is no JSON object")  # noqa: TRY004 - not a caller's type
        after = response.headers.get("Retry-After", "")
        return response.status, float(after) if after.isdigit() else 0.0, answer


def uuid7() -> str:
    """A new UUIDv7, which is what job ids are: 48 bits of time in ms, then random bits."""
    value = time.time_ns() // 1_000_000 << 80 | 0x7 << 76 | 0b10 << 62
    value |= secrets.randbits(12) << 64 | secrets.randbits(62)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
