"""Who may do what: scopes, access keys, and who holds one (ojs-security sections 6 and 7).

Imported by the authorizer, whose cold start every first request pays for: nothing heavy here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

PREFIX = "ojs"
# The part that names the key (64 bits), and the part that nobody can guess (256 bits: section 6.1).
ID_BYTES, SECRET_BYTES = 8, 32
_KEY = re.compile(rf"{PREFIX}_([0-9a-f]{{{2 * ID_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})")
KEY_CHARACTERS = len(PREFIX) + 2 + 2 * (ID_BYTES + SECRET_BYTES)
KEY_ID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}")
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)

MAX_NAME_CHARACTERS = 255
MAX_QUEUES = 50
# How long after its end a key is still listed.
KEPT_S = 90 * 86_400


class Scope(StrEnum):
    """What a key may be for. None holds another: a key has each that it needs."""

    JOBS_WRITE = "jobs:write"
    JOBS_READ = "jobs:read"
    WORK = "work"
    ADMIN_READ = "admin:read"
    ADMIN_WRITE = "admin:write"


ALL_SCOPES = frozenset(Scope)


@dataclass(frozen=True)
class Principal:
    """Who asks. `name` is None where nobody has to say who they are: the open local server.

    `queues` are the names it may touch, of which one may end in `*`; None are all.
    """

    name: str | None
    scopes: frozenset[str] = ALL_SCOPES
    queues: tuple[str, ...] | None = None
    key: str | None = None

    @property
    def limited(self) -> bool:
        """Whether there are queues that it may not touch."""
        return self.queues is not None

    def reaches(self, queue: str) -> bool:
        """Whether it may touch a queue."""
        if self.queues is None:
            return True
        return any(
            queue.startswith(each[:-1]) if each.endswith("*") else queue == each
            for each in self.queues
        )

    def context(self) -> dict[str, str]:
        """As the authorizer hands it to functions: texts only, which the access log can show."""
        told = {"principal": self.name or "", "scopes": " ".join(sorted(self.scopes))}
        if self.key is not None:
            told["key"] = self.key
        if self.queues is not None:
            told["queues"] = " ".join(self.queues)
        return told

    @classmethod
    def of(cls, context: Mapping[str, object]) -> Principal | None:
        """Read back what `context` made; None for nobody."""
        name, scopes, queues = (context.get(each) for each in ("principal", "scopes", "queues"))
        if not isinstance(name, str) or not name or not isinstance(scopes, str):
            return None
        key = context.get("key")
        return cls(
            name,
            frozenset(scopes.split()),
            None if queues is None else tuple(str(queues).split()),
            str(key) if key is not None else None,
        )


ANYBODY = Principal(None)
Reaches = Callable[[str], bool]


def everything(_queue: str) -> bool:
    """No queue is out of reach."""
    return True


@dataclass(frozen=True)
class AccessKey:
    """A key as it is stored: all but its secret. Times in ms since the epoch.

    Several keys may have one name, which is how one is replaced by another without a gap.
    """

    id: str
    name: str
    scopes: frozenset[str]
    created_ms: int
    queues: tuple[str, ...] | None = None
    expires_ms: int | None = None
    revoked_ms: int | None = None
    # When it was last looked up, which is not each time it is used: answers are cached.
    used_ms: int | None = None
    # The name of who made it; None for the first key.
    made_by: str | None = None

    @property
    def principal(self) -> Principal:
        """Who holds it."""
        return Principal(self.name, self.scopes, self.queues, self.id)

    def state(self, now_ms: int) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_ms is not None:
            return "revoked"
        return "expired" if self.expires_ms is not None and self.expires_ms <= now_ms else "active"

    @property
    def ttl_s(self) -> int | None:
        """When the table may forget it, in s; None while it has no end."""
        ends = [ms for ms in (self.expires_ms, self.revoked_ms) if ms is not None]
        return min(ends) // 1_000 + KEPT_S if ends else None

    def revoked(self, now_ms: int) -> AccessKey:
        """The key as it is once nobody may use it any more."""
        return self if self.revoked_ms is not None else replace(self, revoked_ms=now_ms)


@dataclass(frozen=True)
class Credential:
    """A key as its holder has it."""

    id: str
    secret: str

    @classmethod
    def make(cls, random_bytes: Callable[[int], bytes]) -> Credential:
        """A new one, from a source of random bytes that nobody can predict."""
        return cls(random_bytes(ID_BYTES).hex(), random_bytes(SECRET_BYTES).hex())

    @classmethod
    def parse(cls, text: str) -> Credential | None:
        """Read a key; None for what is none, whatever its length."""
        found = _KEY.fullmatch(text) if len(text) == KEY_CHARACTERS else None
        return cls(found[1], found[2]) if found else None

    @property
    def text(self) -> str:
        """What its holder keeps and sends."""
        return f"{PREFIX}_{self.id}_{self.secret}"

    @property
    def digest(self) -> str:
        """What is stored in place of the secret.

        Salted with the key's own random id, which is known before anything is read: so looking
        it up, comparing it and noting the use are one call (ADR 19). 256 random bits need no slow
        hash: there are no likely ones to try first.
        """
        return hashlib.sha256(f"{PREFIX}-key|{self.id}|{self.secret}".encode()).hexdigest()


def bearer(authorization: str) -> str | None:
    """The token in an `Authorization` header; None unless it is a bearer token, and just one."""
    # The longest token there is, by far, is a JWT, which API Gateway looks at itself.
    if len(authorization) > KEY_CHARACTERS + 100:
        return None
    found = _BEARER.fullmatch(authorization.strip())
    return found[1] if found else None


def covers(holder: Principal, scopes: Iterable[str]) -> bool:
    """Whether who holds these may give them to others: nobody gives what they do not have."""
    return holder.scopes >= frozenset(scopes) and not holder.limited
