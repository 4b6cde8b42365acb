"""Opens connections to the endpoints of deliveries and blocks addresses that are not public.

A host name is resolved once. All its addresses are checked, and the connection uses one of them. A
second lookup could return an address that was not checked. The certificate must match the host
name.
"""

from __future__ import annotations

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from ojs.domain.delivery import addresses
from ojs.records import record

_MAX_NAME = 253
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")

# Resolves the addresses of a host and port.
Resolve = Callable[[str, int], Sequence[str]]


class Blocked(Exception):
    """The endpoint is blocked: its URL is invalid or not https, or an address is not public."""


@record(frozen=True)
class EndpointAddress:
    """The parts of an endpoint's URL. `path` includes the query, as in a request line."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


def place(url: str, *, loopback: bool = False) -> EndpointAddress:
    """Parse the URL of an endpoint.

    If `loopback` is true, loopback addresses are allowed, and they can use HTTP.

    Raises:
        Blocked: The URL is invalid, is not HTTPS, or has an address that is not public.
    """
    if not url.isprintable() or " " in url:
        raise Blocked("must have only printable characters, without spaces")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        name = host.encode("idna").decode() if not host.isascii() else host
    except ValueError:
        raise Blocked("must be a URL, for example https://api.example.com/jobs") from None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    own = name.rstrip(".") == "localhost" or name.rstrip(".").endswith(".localhost")
    own = own or addresses.loopback(name)
    here = loopback and own
    if not name or parts.username is not None or parts.password is not None:
        raise Blocked("must have a host and no user name or password")
    if not (addresses.literal(name) or _NAME.fullmatch(name)) or len(name) > _MAX_NAME or port == 0:
        raise Blocked("must have a valid host and port")
    if not path.isascii():
        raise Blocked("must have an ASCII path. Percent-encode other characters")
    if parts.scheme != "https" and not (here and parts.scheme == "http"):
        raise Blocked("must use https")
    if not here and (own or (_is_address(name) and not addresses.public(name))):
        raise Blocked("must have a public address")
    secure = parts.scheme == "https"
    usual = 443 if secure else 80
    return EndpointAddress(secure, name, usual if port is None else port, path)


def _is_address(name: str) -> bool:
    """Return whether a host name is an IP address.

    `127.1` and `2130706433` are IP addresses, too.
    """
    if addresses.literal(name):
        return True
    try:
        socket.inet_aton(name)
    except (OSError, ValueError):
        return False
    return True


def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host. Raise OSError if the look-up fails."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class TimeLimit:
    """Limits the total duration of a connection.

    The timeout of a socket applies to each read. A server that sends one byte per second never
    exceeds it.
    """

    def __init__(self, timeout_s: float) -> None:
        self._until = time.monotonic() + timeout_s
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self.over = False
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    @property
    def left_s(self) -> float:
        """Return the remaining time in seconds. Raise TimeoutError if it is 0 or less."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time limit is exceeded")
        return left

    def watch(self, connection: socket.socket) -> None:
        """Shut a connection down when the time limit is reached. Its reads and writes then fail."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()  # of the connection before a redirect
            # The TLS socket is a different object for the same connection.
            self._socket = connection.dup()
        if self.over:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self.over = True
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    return  # the connection is already closed


class Connector:
    """Opens connections to endpoints."""

    def __init__(
        self,
        *,
        loopback: bool = False,
        find: Resolve = resolve,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.loopback = loopback
        self._find = find
        self._context = context

    def connect(self, to: EndpointAddress, limit: TimeLimit) -> socket.socket:
        """Connect to one of the endpoint's addresses, with TLS if it is secure.

        Raises:
            Blocked: One of the addresses is not public.
            OSError: The host has no address, or the connection failed.
        """
        found = self._look_up(to, limit)
        for address in found:
            if not (addresses.public(address) or (self.loopback and addresses.loopback(address))):
                raise Blocked("must have only public addresses")
        if not to.secure and not all(map(addresses.loopback, found)):
            raise Blocked("must use https")
        return self._secure(self._open(found, to.port, limit), to, limit)

    def _look_up(self, to: EndpointAddress, limit: TimeLimit) -> Sequence[str]:
        """Resolve a host within the time limit. The system's resolver has a longer one."""
        answers: SimpleQueue[Sequence[str] | Exception] = SimpleQueue()

        def find_addresses() -> None:
            try:
                answers.put(self._find(to.host, to.port))
            except Exception as error:  # noqa: BLE001 - raised by the caller
                answers.put(error)

        threading.Thread(target=find_addresses, name="look-up", daemon=True).start()
        try:
            found = answers.get(timeout=limit.left_s)
        except Empty:
            raise TimeoutError("the look-up of the host takes too long") from None
        if isinstance(found, Exception):
            raise found
        return found

    @staticmethod
    def _open(found: Sequence[str], port: int, limit: TimeLimit) -> socket.socket:
        last: OSError = OSError("the host has no address")
        for address in found:
            try:
                made = socket.create_connection((address, port), timeout=limit.left_s)
            except TimeoutError:
                raise
            except OSError as error:
                last = error
            else:
                limit.watch(made)
                return made
        raise last

    def _secure(self, plain: socket.socket, to: EndpointAddress, limit: TimeLimit) -> socket.socket:
        if not to.secure:
            plain.settimeout(limit.left_s)
            return plain
        if self._context is None:
            self._context = ssl.create_default_context()
        try:
            return self._context.wrap_socket(plain, server_hostname=to.host)
        except BaseException:
            plain.close()
            raise
