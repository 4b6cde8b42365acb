"""Addresses that an endpoint may have: public addresses only.

A client that can configure a delivery must not be able to send requests to addresses that only the
deployment can reach: the instance metadata service, the private network, and the server itself.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")
# IPv6 forms that embed or represent an IPv4 address and that `public` does not decode, NAT64
# addresses with a local prefix, and site-local addresses (deprecated in 2004), which `is_global`
# accepts.
_NEVER = tuple(
    IPv6Network(each)
    for each in ("::/96", "64:ff9b:1::/48", "2001::/23", "2002::/16", "5f00::/16", "fec0::/10")
)
# Reserved for protocols. Older versions of Python report them as global.
_NEVER_V4 = (IPv4Network("192.0.0.0/24"), IPv4Network("192.88.99.0/24"))


def public(address: str) -> bool:
    """Return whether an IP address is a public Internet address.

    False if `address` can't be parsed.
    """
    try:
        found: IPv4Address | IPv6Address = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        if found.scope_id is not None:
            return False
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found in _NAT64:
            found = IPv4Address(int(found) & 0xFFFF_FFFF)
        elif any(found in network for network in _NEVER):
            return False
    if isinstance(found, IPv4Address) and any(found in network for network in _NEVER_V4):
        return False
    return found.is_global and not found.is_multicast and not found.is_reserved


def loopback(address: str) -> bool:
    """Return whether an IP address is a loopback address. False if `address` can't be parsed."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def literal(host: str) -> bool:
    """Return whether the host of a URL is an IP address instead of a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def allowed(host: str, hosts: Collection[str]) -> bool:
    """Return whether one of `hosts` allows a host: its name, `*.` and a parent domain, or `*`."""
    name = host.lower().rstrip(".")
    above = (f"*{name[at:]}" for at, character in enumerate(name) if character == ".")
    return "*" in hosts or name in hosts or any(each in hosts for each in above)
