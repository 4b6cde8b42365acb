"""Which web pages may use the local server: those that are named, and no others.

A browser lets every page that is open in it send requests to this machine, and the server does not
ask for a key. Three headers, which a page cannot set, show what a request comes from:

- Host: the name by which the server was reached. A page can have the name that it was loaded from
  lead to this machine afterwards (DNS rebinding); the browser then takes the server for the page's
  own. So only names that mean this machine are answered.
- Origin: the page that sends the request. Programs send none.
- Sec-Fetch-Site: whether another site's page caused a request that has no Origin, as an image does.

A request of a page that is not named is refused before anything is done, and the answer has no
header that would let the page read it.
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

# What the options are called, for messages.
ORIGINS_OPTION = "--cors-origins"
HOSTS_OPTION = "--allowed-hosts"

_MAX_NAME = 253
_NAME = r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?"
# A name or an IP address, an IPv6 one in brackets, and perhaps a port.
_HOST = re.compile(
    rf"(?P<name>{_NAME}|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{{0,5}}))?", re.ASCII | re.IGNORECASE
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_MAX_PORT = 65_535
_OTHER_SITES = ("cross-site", "same-site")


def cors_origins(text: str) -> tuple[str, ...]:
    """Read the option's value: origins of web pages, separated by commas.

    The rule is that of a deployment's setting `cors_origins`, so `*` is refused: it would let in
    every page. Raises argparse.ArgumentTypeError.
    """
    found = _listed(text)
    for origin in found:
        if not re.fullmatch(negotiation.ORIGIN, origin) or len(origin) > _MAX_NAME:
            raise argparse.ArgumentTypeError(
                f"{shorten(origin)!r} is no origin; name each page's, as http://localhost:5173"
            )
    return found


def allowed_hosts(text: str) -> tuple[str, ...]:
    """Read the option's value: names of this machine, separated by commas.

    Raises argparse.ArgumentTypeError.
    """
    found = tuple(name.lower() for name in _listed(text))
    for name in found:
        if not re.fullmatch(_NAME, name) or len(name) > _MAX_NAME:
            raise argparse.ArgumentTypeError(
                f"{shorten(name)!r} is no host name; write it alone, without scheme and port"
            )
    return found


class OriginCheck:
    """Stands before the gateway: refuses requests of web pages that are not named."""

    def __init__(
        self,
        answer: Callable[[Request], Response],
        refuse: Callable[[OjsError, int], Response],
        *,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        """`refuse` shapes an error with its status; `origins` are of pages that may use the server;
        `hosts` are further names of this machine.
        """
        self._answer = answer
        self._refuse = refuse
        self._origins = frozenset(map(_without_default_port, origins))
        self._hosts = frozenset(name.lower().removesuffix(".") for name in hosts)

    def __call__(self, request: Request) -> Response:
        """Answer one request, if what it comes from may ask."""
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
        """The origin of the page that asks; empty for none. Raises PermissionDenied."""
        own = {self._own_origin(host) for host in _hosts_of(request)}
        origins = _values(request, "origin")
        if not origins:
            _check_fetch(request)
            return ""
        # A browser sends one. Several, or several in one, come from nothing that is known here.
        origin = ", ".join(origins)
        if origin not in own and origin not in self._origins:
            raise _denied(
                "Origin",
                origin,
                "web pages of this origin may not use the local server. If you trust them, start "
                f"it with {ORIGINS_OPTION}.",
                ORIGINS_OPTION,
            )
        return origin

    def _own_origin(self, host: str) -> str:
        """The origin of pages of the server itself under this name. Raises PermissionDenied."""
        parts = _HOST.fullmatch(host)
        port = int(parts["port"] or 80) if parts else 0
        if parts and port <= _MAX_PORT and self._is_ours(name := parts["name"].lower()):
            return _without_default_port(f"http://{name}:{port}")
        raise _denied(
            "Host",
            host,
            "the local server does not answer to this name. If it means this machine, start it "
            f"with {HOSTS_OPTION}.",
            HOSTS_OPTION,
        )

    def _is_ours(self, name: str) -> bool:
        bare = name.removesuffix(".")
        if bare in self._hosts or bare == "localhost" or bare.endswith(".localhost"):
            return True
        try:
            # An address cannot be made to lead elsewhere, as a name can.
            if bare.startswith("["):
                ipaddress.IPv6Address(bare[1:-1])
            else:
                ipaddress.IPv4Address(bare)
        except ValueError:
            return False
        return True


def _check_fetch(request: Request) -> None:
    """Raise PermissionDenied for what the page of another site loads without saying who it is.

    Images, scripts, frames and forms with GET have no Origin. A person who follows a link may read:
    that changes nothing, and the page with the link does not see the answer.
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
            "web pages of other sites may load nothing from the local server. If you trust them, "
            f"start it with {ORIGINS_OPTION}, and use fetch().",
            ORIGINS_OPTION,
        )


def _hosts_of(request: Request) -> list[str]:
    """The names by which the server was asked for: of the header and, in the form that is meant
    for proxies, of the target. HTTP/1.0 needs none, and browsers speak it no more.
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
    """An origin as a browser sends it: the port of its scheme is left out."""
    return origin.removesuffix(_DEFAULT_PORTS.get(origin.partition(":")[0], ""))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
