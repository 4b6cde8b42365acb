"""Access control: scopes, access keys, roles, and principals (ojs-security, sections 6 and 7).

The authorizer imports this module, and its cold start delays first requests. Don't add slow imports
here.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from ojs.domain.tenants import matches_pattern, qualified
from ojs.records import record

PREFIX = "ojs"
# Public ID (64 bits), secret (256 bits: ojs-security, section 6.1), and MAC (64 bits) of a key.
ID_BYTES, SECRET_BYTES, MAC_BYTES = 8, 32, 8
_PARTS = rf"([0-9a-f]{{{2 * ID_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})"
_KEY = re.compile(rf"{PREFIX}_{_PARTS}(?:_([0-9a-f]{{{2 * MAC_BYTES}}}))?")
KEY_CHARACTERS = len(PREFIX) + 3 + 2 * (ID_BYTES + SECRET_BYTES + MAC_BYTES)
KEY_ID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}")
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)
# Names of IAM roles and users are unique in an account, regardless of their path.
_NAME = r"(?P<name>[\w+=,.@-]{1,64})"
_ROLE = re.compile(
    rf"arn:(?P<partition>aws[a-z-]*):iam::(?P<account>\d{{12}}):(?P<kind>role|user)"
    rf"/([!-.0-~]+/)*{_NAME}",
    re.ASCII,
)
_SESSION = re.compile(
    rf"arn:(?P<partition>aws[a-z-]*):sts::(?P<account>\d{{12}}):assumed-role/{_NAME}/[\w+=,.@-]+",
    re.ASCII,
)
MAX_ARN_CHARACTERS = 2_048
# Entry in the list of a deployment's operators that represents every role without a record.
EVERY_ROLE = "*"

MAX_NAME_CHARACTERS = 255
MAX_QUEUES = 50
# Maximum `max_requests_per_s` of a key.
MAX_RATE = 100_000
# Maximum number of generations of keys. It limits the time to revoke a key with all its
# descendants.
MAX_ANCESTORS = 9
# Time (ms) for which an expired or revoked key is still listed.
KEPT_S = 90 * 86_400
# Time (ms) for which keys without a MAC are valid after the first deployment that creates keys with
# one.
OLD_KEYS_S = 90 * 86_400


class Scope(StrEnum):
    """A permission of an access key.

    No scope includes another, so a key needs each scope that it uses.
    """

    JOBS_WRITE = "jobs:write"
    JOBS_READ = "jobs:read"
    WORK = "work"
    ADMIN_READ = "admin:read"
    ADMIN_WRITE = "admin:write"


ALL_SCOPES = frozenset(Scope)


@record(frozen=True)
class Principal:
    """The authenticated caller.

    `name` is None if the server has no authentication (local server only).

    `queues` is the queue scope: names of queues, each optionally with `*` at the end. None means
    all queues.
    """

    name: str | None
    scopes: frozenset[str] = ALL_SCOPES
    queues: tuple[str, ...] | None = None
    key: str | None = None
    # When its key or token expires (ms since the epoch); None: never.
    until_ms: int | None = None
    # Maximum rate of its requests, if its key has one.
    max_requests_per_s: int | None = None
    # The tenant that the caller acts for. None: `_default`, and operators of all tenants.
    tenant: str | None = None

    @property
    def limited(self) -> bool:
        """Whether the caller's queue scope is restricted."""
        return self.queues is not None or self.tenant is not None

    @property
    def whole_tenant(self) -> bool:
        """Whether the queue scope contains all queues of the caller's tenant."""
        return self.tenant is not None and self.queues == (qualified(self.tenant, "*"),)

    @property
    def holder(self) -> str | None:
        """The name of the caller's access key, or None without a key.

        A replacement key has the same name.
        """
        return self.name if self.key is not None else None

    @property
    def bound(self) -> bool:
        """Whether the caller can use only worker records that keys with the same name created.

        A tenant's caller can use only records of the tenant.
        """
        return self.tenant is not None or self.bound_by_key

    @property
    def bound_by_key(self) -> bool:
        """Whether only keys with the same name bind the caller.

        Versions before 0.3 had no such records, so the caller also reads the records of these.
        """
        return self.tenant is None and self.limited and self.key is not None

    def reaches(self, queue: str) -> bool:
        """Return whether the caller's queue scope contains a queue."""
        if self.queues is None:
            return self.tenant is None or matches_pattern(qualified(self.tenant, "*"), queue)
        return any(matches_pattern(each, queue) for each in self.queues)

    def with_tenant(self, tenant: str) -> Principal:
        """Return the principal limited to the queues of a tenant. Safe to repeat.

        `queues` of a principal with a tenant are local names. Those of another one are stored
        names, and only the tenant's remain.
        """
        queues: Iterable[str] = ("*",) if self.queues is None else self.queues
        if self.queues is None or self.tenant is not None:
            queues = (each if ":" in each else qualified(tenant, each) for each in queues)
        return replace(
            self,
            tenant=tenant,
            queues=tuple(each for each in queues if matches_pattern(qualified(tenant, "*"), each)),
        )

    def context(self) -> dict[str, str]:
        """Return the authorizer context for functions.

        Strings only, so that the access log can use it.
        """
        context = {"principal": self.name or "", "scopes": " ".join(sorted(self.scopes))}
        if self.key is not None:
            context["key"] = self.key
        if self.max_requests_per_s is not None:
            context["rate"] = str(self.max_requests_per_s)
        if self.queues is not None:
            context["queues"] = " ".join(self.queues)
        if self.until_ms is not None:
            context["until"] = str(self.until_ms)
        if self.tenant is not None:
            context["tenant"] = self.tenant
        return context

    @classmethod
    def of(cls, context: Mapping[str, object]) -> Principal | None:
        """Return the principal of an authorizer context, or None if it contains no principal."""
        name, scopes, queues = (context.get(each) for each in ("principal", "scopes", "queues"))
        if not isinstance(name, str) or not name or not isinstance(scopes, str):
            return None
        key, until, tenant = (context.get(each) for each in ("key", "until", "tenant"))
        return cls(
            name,
            frozenset(scopes.split()),
            None if queues is None else tuple(str(queues).split()),
            str(key) if key is not None else None,
            int(str(until)) if until is not None else None,
            max_requests_per_s=int(str(rate)) if (rate := context.get("rate")) else None,
            tenant=str(tenant) if tenant is not None else None,
        )


ANYBODY = Principal(None)


def build_anybody(context: Mapping[str, object]) -> Principal:
    """Return the caller of a server without authentication, limited to the context's tenant."""
    tenant = context.get("tenant")
    return ANYBODY if tenant is None else ANYBODY.with_tenant(str(tenant))


Reaches = Callable[[str], bool]


def everything(_queue: str) -> bool:
    """Return true: a queue scope that contains all queues."""
    return True


@record(frozen=True)
class AccessKey:
    """A stored key, without its secret. Times in milliseconds since the epoch.

    Several keys can have the same name, so that one can replace another without an interruption.
    """

    id: str
    name: str
    scopes: frozenset[str]
    created_ms: int
    queues: tuple[str, ...] | None = None
    expires_ms: int | None = None
    revoked_ms: int | None = None
    # When the key was last read from the table. Not every use reads it, because API Gateway caches
    # authorizer responses.
    used_ms: int | None = None
    # The name of the key that created this key. None for the bootstrap key.
    made_by: str | None = None
    # The IDs of the keys that this key descends from, the oldest first. Empty for the bootstrap key
    # and for keys that earlier versions created.
    ancestors: tuple[str, ...] = ()
    # ARN of the IAM role or user that has this name, these scopes, and these queues. Such a record
    # has no secret and applies with authorizer=iam only.
    role: str | None = None
    # Whether the key has no MAC. Versions before 0.3 created such keys.
    old: bool = False
    # Maximum rate of the requests with this key. None: no limit.
    max_requests_per_s: int | None = None
    # The tenant of the caller. `queues` are then the tenant's local names.
    tenant: str | None = None

    @property
    def principal(self) -> Principal:
        """The principal of the key."""
        return Principal(
            self.name,
            self.scopes,
            self.queues,
            self.id,
            self.expires_ms,
            max_requests_per_s=self.max_requests_per_s,
            tenant=self.tenant,
        )

    def state(self, now_ms: int) -> str:
        """Return the state of the key at `now_ms`: `active`, `expired`, or `revoked`."""
        if self.revoked_ms is not None:
            return "revoked"
        return "expired" if self.expires_ms is not None and self.expires_ms <= now_ms else "active"

    @property
    def ttl_s(self) -> int | None:
        """When DynamoDB can delete the key, in seconds since the epoch.

        None if the key doesn't expire.
        """
        ends = [ms for ms in (self.expires_ms, self.revoked_ms) if ms is not None]
        return min(ends) // 1_000 + KEPT_S if ends else None

    def revoked(self, now_ms: int) -> AccessKey:
        """Return the key as revoked at `now_ms`, or unchanged if it was revoked before."""
        return self if self.revoked_ms is not None else replace(self, revoked_ms=now_ms)


@record(frozen=True)
class Credential:
    """A key with its secret: ID, secret, and MAC (None in keys of versions before 0.3)."""

    id: str
    secret: str
    mac: str | None = None

    @classmethod
    def make(cls, random_bytes: Callable[[int], bytes]) -> Credential:
        """Create a key without a MAC from a cryptographic source of random bytes."""
        return cls(random_bytes(ID_BYTES).hex(), random_bytes(SECRET_BYTES).hex())

    @classmethod
    def parse(cls, text: str) -> Credential | None:
        """Parse the text of a key. Return None if the text is not a key."""
        found = _KEY.fullmatch(text) if len(text) <= KEY_CHARACTERS else None
        return cls(found[1], found[2], found[3]) if found else None

    @property
    def text(self) -> str:
        """The text of the key, as clients send it."""
        mac = "" if self.mac is None else f"_{self.mac}"
        return f"{PREFIX}_{self.id}_{self.secret}{mac}"

    @property
    def digest(self) -> str:
        """The hash that is stored instead of the secret.

        The salt is the key's ID, which the caller sends. Therefore one call can read the key,
        compare the hash, and record the use (ADR 19). A slow hash is not necessary, because 256
        random bits can't be guessed.
        """
        return hashlib.sha256(f"{PREFIX}-key|{self.id}|{self.secret}".encode()).hexdigest()


@record(frozen=True)
class KeyMac:
    """The MAC secret of a deployment (hex). It shows without a read whether a key can exist.

    Until `old_until_ms` (ms since the epoch), keys without a MAC are still looked up in the table.
    """

    secret: str
    old_until_ms: int

    def sign(self, credential: Credential) -> Credential:
        """Return the credential with its MAC."""
        told = f"{credential.id}{credential.secret}".encode()
        mac = hmac.digest(bytes.fromhex(self.secret), told, "sha256")[:MAC_BYTES].hex()
        return replace(credential, mac=mac)

    def admits(self, credential: Credential, now_ms: int) -> bool:
        """Return whether a credential can belong to this deployment."""
        if credential.mac is None:
            return now_ms < self.old_until_ms
        return hmac.compare_digest(self.sign(credential).mac or "", credential.mac)


def bearer(authorization: str) -> str | None:
    """Return the token of an `Authorization` header, or None if it isn't
    exactly one bearer token.
    """
    # Longer tokens are JWTs, which API Gateway validates.
    if len(authorization) > KEY_CHARACTERS + 100:
        return None
    found = _BEARER.fullmatch(authorization.strip())
    return found[1] if found else None


def role_arn(arn: str) -> str | None:
    """Return the ARN of an IAM role or user, without its path, or None for other ARNs.

    `arn` is the ARN of a role, of a user, or of a session of an assumed role.
    """
    if len(arn) > MAX_ARN_CHARACTERS:
        return None
    found = _ROLE.fullmatch(arn) or _SESSION.fullmatch(arn)
    if found is None:
        return None
    part = found.groupdict()
    kind = part.get("kind", "role")
    return f"arn:{part['partition']}:iam::{part['account']}:{kind}/{part['name']}"


def covers(holder: Principal, scopes: Iterable[str]) -> bool:
    """Return whether a principal can create a key with these scopes.

    The principal must have all of them, and an unrestricted queue scope.
    """
    return holder.scopes >= frozenset(scopes) and not holder.limited
