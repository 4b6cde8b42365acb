"""A request of the API and the function that parses its response. No I/O."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode, urlsplit

T = TypeVar("T")
Answer = dict[str, Any]

BASE = "/ojs/v1"


def json_object(answer: Answer) -> Answer:
    """Return the JSON object of a response unchanged."""
    return answer


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request that a client has not sent yet.

    `path` is relative to `/ojs/v1`, or absolute if it starts with a slash. `Client.run` sends the
    request and returns its result.
    """

    method: str
    path: str
    read: Callable[[Answer], T]
    body: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    # Whether the client can send the request again if the outcome is unknown.
    repeatable: bool = True
    # Additional time in seconds that the server needs. The client adds it to its timeout.
    takes_s: float = 0.0
    # Used for the error `duplicate` if an earlier attempt of this request had an unknown outcome:
    # receives the ID of the existing job or workflow, and returns the result.
    stored: Callable[[str], T | None] | None = None

    def target(self, base: str) -> str:
        """Return the path and the query. `base` is the path of the server's URL."""
        path = self.path if self.path.startswith("/") else f"{BASE}/{self.path}"
        given = {name: _shown(value) for name, value in self.query.items() if value is not None}
        return f"{base}{path}" + (
            # AWS signatures require %20, not a plus sign, for a space.
            f"?{urlencode(given, quote_via=quote)}" if given else ""
        )

    def content(self) -> bytes | None:
        """Return the body as bytes, or None without a body.

        Raises:
            ValueError: A value such as NaN is not JSON.
            TypeError: An object can't be represented in JSON.
        """
        return None if self.body is None else to_json(self.body).encode()


def to_json(value: object) -> str:
    """Encode a value as compact JSON.

    Raises:
        ValueError: A value such as NaN is not JSON.
        TypeError: An object can't be represented in JSON.
    """
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def place(template: str, *names: str) -> str:
    """Return a path with names in place of `{}`. Each name is one path segment.

    Raises:
        ValueError: A name is empty, `.`, or `..`.
    """
    if not {"", ".", ".."}.isdisjoint(names):
        raise ValueError(f"{template}: the name must not be empty, '.', or '..'")
    return template.format(*(quote(name, safe="") for name in names))


def if_match_header(etag: str | None) -> dict[str, str]:
    """Return the header of a change that requires this version. Empty without a version."""
    return {} if etag is None else {"If-Match": etag if etag == "*" else f'"{etag}"'}


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


class Misconfigured(ValueError):
    """The program can't run with its settings. The message says what to set."""


def server_of(url: str | None) -> tuple[str, str]:
    """Split the server's URL into its root and the path before `/ojs/v1`. Default: `OJS_URL`.

    Raises:
        Misconfigured: No URL is given, or it isn't an HTTP or HTTPS URL.
    """
    url = url or os.environ.get("OJS_URL")
    if not url:
        raise Misconfigured("Set OJS_URL to the URL of the server, or pass it as url")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Misconfigured(f"The URL of the server must be an http or https URL, but is {url}")
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/").removesuffix(BASE)
