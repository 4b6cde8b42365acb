"""Restricts web pages that can use the local server to named origins.

Every page in a browser can send requests to this machine, and the server requires no key. A page
can't set these three headers, so they identify the source of a request:

- Host: the name of the server in the URL. A page can redirect its own host name to this machine
  (DNS rebinding), and the browser then treats the server as the page's origin. So the server
  accepts only names of this machine.
- Origin: the page that sends the request. Programs send none.
- Sec-Fetch-Site: whether a page of another site caused a request without an Origin, as for images.

The server rejects a request of another page before it does anything. The response has no header
that would allow the page to read it.
"""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import re
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from local.http_server import Request, Response
from ojs.domain.errors import OjsError, PermissionDenied, shorten
from ojs.http.binding import negotiation

# Names of the options, for messages.
ORIGINS_OPTION = "--cors-origins"
HOSTS_OPTION = "--allowed-hosts"

_MAX_NAME = 253
_NAME = r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?"
# A host name or an IP address (IPv6 in brackets), with an optional port.
_HOST = re.compile(
    rf"(?P<name>{_NAME}|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{{0,5}}))?", re.ASCII | re.IGNORECASE
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_MAX_PORT = 65_535
_OTHER_SITES = ("cross-site", "same-site")


def cors_origins(text: str) -> tuple[str, ...]:
    """Parse the option: origins of web pages, separated by commas.

    Same rule as the deployment setting `cors_origins`: `*` is rejected, because it would allow all
    pages. Raises argparse.ArgumentTypeError.
    """
    found = _listed(text)
    for origin in found:
        if not re.fullmatch(negotiation.ORIGIN, origin) or len(origin) > _MAX_NAME:
            raise argparse.ArgumentTypeError(
                f"must be origins such as http://localhost:5173, but is {shorten(origin)!r}"
            )
    return found


def allowed_hosts(text: str) -> tuple[str, ...]:
    """Parse the option: host names of this machine, separated by commas.

    Raises argparse.ArgumentTypeError.
    """
    found = tuple(name.lower() for name in _listed(text))
    for name in found:
        if not re.fullmatch(_NAME, name) or len(name) > _MAX_NAME:
            raise argparse.ArgumentTypeError(
                f"must be host names without scheme and port, but is {shorten(name)!r}"
            )
    return found


class OriginCheck:
    """Rejects requests of web pages that are not named. Runs before the gateway."""

    def __init__(
        self,
        answer: Callable[[Request], Response],
        refuse: Callable[[OjsError, int], Response],
        *,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        """Create the check.

        `refuse` formats an error with its status. `origins` can use the server. `hosts` are more
        host names of this machine.
        """
        self._answer = answer
        self._refuse = refuse
        self._origins = frozenset(map(_without_default_port, origins))
        self._hosts = frozenset(name.lower().removesuffix(".") for name in hosts)

    def __call__(self, request: Request) -> Response:
        """Process one request, if its source is allowed."""
        try:
            origin = self._checked(request)
        except PermissionDenied as error:
            return self._refuse(error, 403)
        response = self._answer(request)
        if origin not in self._origins:
            return response
        headers = [
            *response.headers,
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", ", ".join(negotiation.EXPOSED_HEADERS)),
            ("vary", "Origin"),
        ]
        return dataclasses.replace(response, headers=headers)

    def _checked(self, request: Request) -> str:
        """Return the origin of the page, or "" without one. Raises PermissionDenied."""
        own = {self._own_origin(host) for host in _hosts_of(request)}
        origins = _values(request, "origin")
        if not origins:
            _check_fetch(request)
            return ""
        # A browser sends one origin. Several are never allowed.
        origin = ", ".join(origins)
        if origin not in own and origin not in self._origins:
            raise _denied(
                "Origin",
                origin,
                "web pages of this origin can't use the local server. To allow it, start the "
                f"server with {ORIGINS_OPTION}.",
                ORIGINS_OPTION,
            )
        return origin

    def _own_origin(self, host: str) -> str:
        """Return the server's own origin under this host name. Raises PermissionDenied."""
        parts = _HOST.fullmatch(host)
        port = int(parts["port"] or 80) if parts else 0
        if parts and port <= _MAX_PORT and self._is_ours(name := parts["name"].lower()):
            return _without_default_port(f"http://{name}:{port}")
        raise _denied(
            "Host",
            host,
            "this is not an allowed host name of the local server. To allow it, start the server "
            f"with {HOSTS_OPTION}.",
            HOSTS_OPTION,
        )

    def _is_ours(self, name: str) -> bool:
        bare = name.removesuffix(".")
        if bare in self._hosts or bare == "localhost" or bare.endswith(".localhost"):
            return True
        try:
            # Unlike a name, an IP address can't be redirected.
            if bare.startswith("["):
                ipaddress.IPv6Address(bare[1:-1])
            else:
                ipaddress.IPv4Address(bare)
        except ValueError:
            return False
        return True


def _check_fetch(request: Request) -> None:
    """Raise PermissionDenied for requests that a page of another site causes without an Origin.

    These are images, scripts, frames, and forms with GET. Following a link is allowed: it changes
    nothing, and the page with the link can't read the response.
    """
    sites = _values(request, "sec-fetch-site")
    if not any(site.strip().lower() in _OTHER_SITES for each in sites for site in each.split(",")):
        return
    followed = (
        request.method == "GET"
        and _values(request, "sec-fetch-mode") == ["navigate"]
        and _values(request, "sec-fetch-dest") in ([], ["document"])
    )
    if not followed:
        raise _denied(
            "Sec-Fetch-Site",
            ", ".join(sites),
            "web pages of other sites can't load content from the local server. To allow it, start "
            f"the server with {ORIGINS_OPTION}, and use fetch().",
            ORIGINS_OPTION,
        )


def _hosts_of(request: Request) -> list[str]:
    """Return the host names in the header and, in a proxy request, in the target.

    HTTP/1.0 doesn't require a host name, and browsers don't use it.
    """
    hosts = _values(request, "host")
    if not request.target.startswith("/"):
        try:
            named = urlsplit(request.target).netloc
        except ValueError:
            named = request.target
        if named:
            hosts.append(named)
    return hosts


def _values(request: Request, name: str) -> list[str]:
    return [value for header, value in request.headers if header == name]


def _denied(header: str, value: str, why: str, option: str) -> PermissionDenied:
    value = shorten(value)
    return PermissionDenied(
        f"{header} '{value}': {why}",
        details={"header": header, "value": value, "option": option},
    )


def _without_default_port(origin: str) -> str:
    """Format an origin like a browser, without the default port of its scheme."""
    return origin.removesuffix(_DEFAULT_PORTS.get(origin.partition(":")[0], ""))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
