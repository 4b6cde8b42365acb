"""Tenants: namespaces in the names of queues and cron jobs.

The queue `mail` of the tenant `acme` is stored as `acme:mail`. Names without a tenant belong to the
tenant `_default`, so a deployment without tenants has only this one.
"""

from __future__ import annotations

import re

# The tenant of all names without a prefix. Also the name of the policy for a tenant's new queues.
DEFAULT = "_default"
MAX_CHARACTERS = 64
ID_PATTERN = rf"[A-Za-z0-9][A-Za-z0-9._:\-]{{0,{MAX_CHARACTERS - 1}}}"
_ID = re.compile(ID_PATTERN)


def check_tenant(value: str) -> str:
    """Return `value` if it is a valid tenant ID. Raises ValueError with the violated rule."""
    if not _ID.fullmatch(value):
        raise ValueError(
            f"must have 1 to {MAX_CHARACTERS} letters, digits, or '._:-', and start with a letter "
            "or digit"
        )
    return value


def is_tenant(value: str) -> bool:
    """Return whether a value is a tenant ID, or `_default`."""
    return value == DEFAULT or _ID.fullmatch(value) is not None


def get_tenant(name: str) -> str | None:
    """Return the tenant of a stored name, or None for the tenant `_default`."""
    return name.rpartition(":")[0] or None


def get_local_name(name: str) -> str:
    """Return a stored name without its tenant."""
    return name.rpartition(":")[2]


def qualified(tenant: str | None, name: str) -> str:
    """Return the stored form of a tenant's name."""
    return name if tenant is None else f"{tenant}:{name}"


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a pattern of a queue scope contains a name.

    A `*` at the end represents any characters but a colon, so it stays in one tenant.
    """
    if not pattern.endswith("*"):
        return name == pattern
    return name.startswith(pattern[:-1]) and ":" not in name[len(pattern) - 1 :]
