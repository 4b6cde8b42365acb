"""Serves the dashboard's files at /ojs/admin/.

The files are the same for all users, and contain no data of the deployment. The page requests data
from the API with the user's key.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ojs.domain.errors import BackendUnavailable, PermissionDenied

if TYPE_CHECKING:
    from ojs.services.operations.origin import OriginGuard

ROOT = "/ojs/admin"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Compressed by the build, best first.
_ENCODINGS = (("br", ".br"), ("gzip", ".gz"))
_FOREVER = "public, max-age=31536000, immutable"
_POLICY = "content-security-policy"
_SECURITY = {
    # The page can load only files of the build: no code, style, or frame from elsewhere, and none
    # inline. It can send requests only to the API of the same origin.
    _POLICY: (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "strict-transport-security": "max-age=31536000",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_NOT_BUILT = (
    "The dashboard was not built. Run `make dashboard`, which requires Node.js 20 or later with "
    "npm. The API works without the dashboard.\n"
)


class Dashboard:
    """Answers requests below /ojs/admin with the files of a folder."""

    def __init__(
        self,
        folder: Path,
        authorizer: str,
        origin: OriginGuard | None = None,
        *,
        socket_url: str | None = None,
    ) -> None:
        """Create the dashboard.

        Args:
            folder: Folder with the files of the build.
            authorizer: The setting `authorizer`. The page reads it before the user signs in.
            origin: Check of the header that the firewall adds. Default: none.
            socket_url: Address of the WebSocket API, if it sends events. The page can connect to
                this address, and to no other. Default: none.
        """
        self._folder = folder
        self._origin = origin
        self._served = {"authorizer": authorizer, "realtime": socket_url is not None}
        sources = "connect-src 'self'" if socket_url is None else f"connect-src 'self' {socket_url}"
        self._policy = _SECURITY[_POLICY].replace("connect-src 'self'", sources)

    def __call__(self, event: Mapping[str, Any], _context: object = None) -> dict[str, Any]:
        """Answer one event of API Gateway."""
        headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        try:
            if self._origin is not None:
                self._origin.check(headers)
        except PermissionDenied as refused:
            return _text(403, f"{refused.message}\n")
        except BackendUnavailable as unknown:
            again = {"retry-after": str(unknown.retry_after_s)}
            return _text(503, f"{unknown.message}\n", **again)
        method = event["requestContext"]["http"]["method"].upper()
        if method not in {"GET", "HEAD"}:
            return _text(
                405, "This path doesn't support the method. Use GET or HEAD.\n", allow="GET, HEAD"
            )
        path = event["rawPath"].removeprefix(ROOT)
        if path == "/served.json":
            body = json.dumps(self._served).encode()
            return _answer(200, body, {"content-type": "application/json"}, "no-store")
        return self._file(path, headers)

    def _file(self, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return an asset in an encoding that the client accepts, or the page for other paths."""
        asset = path.startswith("/assets/")
        # The name has no slash, so the path can't leave the folder.
        name = f"assets/{Path(path).name}" if asset else "index.html"
        kind = _TYPES.get(Path(name).suffix)
        for encoding, ending in _wanted(headers.get("accept-encoding", "")) if kind else ():
            if found := self._read(name + ending):
                body, tag = found
                extra = {"content-type": str(kind), "etag": tag, _POLICY: self._policy}
                extra |= {"vary": "accept-encoding"}
                if encoding:
                    extra["content-encoding"] = encoding
                kept = _FOREVER if asset else "no-cache"
                if tag in headers.get("if-none-match", ""):
                    return _answer(304, b"", extra, kept)
                return _answer(200, body, extra, kept)
        if asset:
            return _text(404, "This file doesn't exist. Reload the page, which might be older.\n")
        return _text(503, _NOT_BUILT)

    def _read(self, name: str) -> tuple[bytes, str] | None:
        """Return a file of the build and its entity tag, or None if it doesn't exist."""
        try:
            body = (self._folder / name).read_bytes()
        except (OSError, ValueError):  # ValueError: a name with a zero byte
            return None
        # A browser keeps the policy of a page that it has, until the tag changes.
        return body, f'"{hashlib.sha256(body + self._policy.encode()).hexdigest()[:20]}"'


def _wanted(accepted: str) -> list[tuple[str, str]]:
    """Return the encodings that the client accepts, and the endings of their files."""
    parts = [part.strip().replace(" ", "").lower() for part in accepted.split(",")]
    taken = {part.partition(";")[0] for part in parts if not part.endswith((";q=0", ";q=0.0"))}
    return [each for each in _ENCODINGS if each[0] in taken] + [("", "")]


def _text(status: int, text: str, **headers: str) -> dict[str, Any]:
    headers["content-type"] = "text/plain; charset=utf-8"
    return _answer(status, text.encode(), headers, "no-store")


def _answer(status: int, body: bytes, headers: Mapping[str, str], kept: str) -> dict[str, Any]:
    return {
        "statusCode": status,
        "headers": {**_SECURITY, "cache-control": kept, **headers},
        "body": base64.b64encode(body).decode("ascii"),
        "isBase64Encoded": True,
    }
