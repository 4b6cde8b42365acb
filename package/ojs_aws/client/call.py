"""One request, and what its answer is read as: no input or output."""

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
    """The answer as it is."""
    return answer


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request that is not sent yet. `path` is below `/ojs/v1`, or from the root with a slash."""

    method: str
    path: str
    read: Callable[[Answer], T]
    body: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    # Whether it does no harm to send it again when it may have been carried out.
    repeatable: bool = True
    # Seconds that the server may take beyond the client's own time-out.
    takes_s: float = 0.0
    # What a `duplicate` means if an earlier try had no clear answer.
    stored: Callable[[str], T | None] | None = None

    def target(self, base: str) -> str:
        """The URL's part after the host; `base` is the prefix of the server's own path."""
        path = self.path if self.path.startswith("/") else f"{BASE}/{self.path}"
        given = {name: _shown(value) for name, value in self.query.items() if value is not None}
        return f"{base}{path}" + (
            # A plus for a space is nothing that can be signed.
            f"?{urlencode(given, quote_via=quote)}" if given else ""
        )

    def content(self) -> bytes | None:
        """The body as it is sent. Raises ValueError or TypeError for what is no JSON."""
        return None if self.body is None else to_json(self.body).encode()


def to_json(value: object) -> str:
    """JSON as the server reads it: compact, and without NaN. Raises ValueError or TypeError."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def place(template: str, *names: str) -> str:
    """A path with these names in it, each one segment. Raises ValueError for what cannot be one."""
    if not {"", ".", ".."}.isdisjoint(names):
        raise ValueError(f"{template} needs a name that is not empty, . or ..")
    return template.format(*(quote(name, safe="") for name in names))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def server_of(url: str | None) -> tuple[str, str]:
    """The root of a server's URL, and the path before `/ojs/v1`: that in OJS_URL, if none is given.
    Raises ValueError.
    """
    url = url or os.environ.get("OJS_URL")
    if not url:
        raise ValueError("the server's URL is needed: the argument, or OJS_URL")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url} is not an http or https URL")
    return f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/").removesuffix(BASE)
