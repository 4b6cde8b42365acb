"""Access control: scopes, access keys, roles, and who holds them (ojs-security, sections 6, 7).

The authorizer imports this module, and its cold start delays first requests: no heavy imports here.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from ojs.records import record

PREFIX = "ojs"
# A key's public id (64 bits), its secret (256 bits: ojs-security, section 6.1), and its MAC.
ID_BYTES, SECRET_BYTES, MAC_BYTES = 8, 32, 8
_PARTS = rf"([0-9a-f]{{{2 * ID_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})"
_KEY = re.compile(rf"{PREFIX}_{_PARTS}(?:_([0-9a-f]{{{2 * MAC_BYTES}}}))?")
KEY_CHARACTERS = len(PREFIX) + 3 + 2 * (ID_BYTES + SECRET_BYTES + MAC_BYTES)
KEY_ID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}")
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)
# Names of IAM roles and users are unique in an account, whatever their path.
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
# Among the operators of a deployment: every role that has no record.
EVERY_ROLE = "*"

MAX_NAME_CHARACTERS = 255
MAX_QUEUES = 50
# Generations of keys: all that a key made, and that those made, can be revoked in bounded time.
MAX_ANCESTORS = 9
# How long a key is listed after it has expired or was revoked.
KEPT_S = 90 * 86_400
# How long keys without a MAC work after the first deployment that makes keys with one.
OLD_KEYS_S = 90 * 86_400


class Scope(StrEnum):
    """What a key permits. No scope includes another: a key has each scope that it needs."""

    JOBS_WRITE = "jobs:write"
    JOBS_READ = "jobs:read"
    WORK = "work"
    ADMIN_READ = "admin:read"
    ADMIN_WRITE = "admin:write"


ALL_SCOPES = frozenset(Scope)


@record(frozen=True)
class Principal:
    """The caller. `name` is None if the server needs no keys: the open local server.

    `queues` are the names of the queues it may touch, each of which may end in `*`; None means all.
    """

    name: str | None
    scopes: frozenset[str] = ALL_SCOPES
    queues: tuple[str, ...] | None = None
    key: str | None = None
    # When its key or token expires (ms since the epoch); None: never.
    until_ms: int | None = None

    @property
    def limited(self) -> bool:
        """Whether its queues are restricted."""
        return self.queues is not None

    @property
    def holder(self) -> str | None:
        """The name on its key; None if it came without one. Keys that replace each other have one
        name.
        """
        return self.name if self.key is not None else None

    @property
    def bound(self) -> bool:
        """Whether it may use records of workers only that keys of its own name made."""
        return self.limited and self.key is not None

    def reaches(self, queue: str) -> bool:
        """Whether it may touch a queue."""
        if self.queues is None:
            return True
        return any(
            queue.startswith(each[:-1]) if each.endswith("*") else queue == each
            for each in self.queues
        )

    def context(self) -> dict[str, str]:
        """As the authorizer passes it to functions: texts only, which the access log can show."""
        context = {"principal": self.name or "", "scopes": " ".join(sorted(self.scopes))}
        if self.key is not None:
            context["key"] = self.key
        if self.queues is not None:
            context["queues"] = " ".join(self.queues)
        if self.until_ms is not None:
            context["until"] = str(self.until_ms)
        return context

    @classmethod
    def of(cls, context: Mapping[str, object]) -> Principal | None:
        """Read back what `context` made; None if there is no principal."""
        name, scopes, queues = (context.get(each) for each in ("principal", "scopes", "queues"))
        if not isinstance(name, str) or not name or not isinstance(scopes, str):
            return None
        key, until = context.get("key"), context.get("until")
        return cls(
            name,
            frozenset(scopes.split()),
            None if queues is None else tuple(str(queues).split()),
            str(key) if key is not None else None,
            int(str(until)) if until is not None else None,
        )


ANYBODY = Principal(None)
Reaches = Callable[[str], bool]


def everything(_queue: str) -> bool:
    """Every queue is in reach."""
    return True


@record(frozen=True)
class AccessKey:
    """A key as it is stored, without its secret. Times in ms since the epoch.

    Several keys may have the same name, so that one can replace another without a gap.
    """

    id: str
    name: str
    scopes: frozenset[str]
    created_ms: int
    queues: tuple[str, ...] | None = None
    expires_ms: int | None = None
    revoked_ms: int | None = None
    # When it was last looked up. That is not each use: the authorizer's answers are cached.
    used_ms: int | None = None
    # The name of the key that created it; None for the first key.
    made_by: str | None = None
    # The id of that key, after the ids of those that it descends from; empty for the first key, and
    # for keys that earlier versions made.
    ancestors: tuple[str, ...] = ()
    # ARN of the IAM role, or user, that has this name, these scopes and queues. Such a record has
    # no secret, and is of use with authorizer=iam only.
    role: str | None = None
    # Whether it has no MAC, as the keys that versions before 0.3 made.
    old: bool = False

    @property
    def principal(self) -> Principal:
        """The principal that the key stands for."""
        return Principal(self.name, self.scopes, self.queues, self.id, self.expires_ms)

    def state(self, now_ms: int) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_ms is not None:
            return "revoked"
        return "expired" if self.expires_ms is not None and self.expires_ms <= now_ms else "active"

    @property
    def ttl_s(self) -> int | None:
        """When the table may delete it, in s since the epoch; None for a key without an end."""
        ends = [ms for ms in (self.expires_ms, self.revoked_ms) if ms is not None]
        return min(ends) // 1_000 + KEPT_S if ends else None

    def revoked(self, now_ms: int) -> AccessKey:
        """The key after it is revoked."""
        return self if self.revoked_ms is not None else replace(self, revoked_ms=now_ms)


@record(frozen=True)
class Credential:
    """A key as its holder has it: id, secret, and a MAC, which versions before 0.3 did not make."""

    id: str
    secret: str
    mac: str | None = None

    @classmethod
    def make(cls, random_bytes: Callable[[int], bytes]) -> Credential:
        """A new key, from a cryptographic source of random bytes."""
        return cls(random_bytes(ID_BYTES).hex(), random_bytes(SECRET_BYTES).hex())

    @classmethod
    def parse(cls, text: str) -> Credential | None:
        """Parse the text of a key; None if it is none."""
        found = _KEY.fullmatch(text) if len(text) <= KEY_CHARACTERS else None
        return cls(found[1], found[2], found[3]) if found else None

    @property
    def text(self) -> str:
        """The text that its holder sends."""
        mac = "" if self.mac is None else f"_{self.mac}"
        return f"{PREFIX}_{self.id}_{self.secret}{mac}"

    @property
    def digest(self) -> str:
        """The hash that is stored instead of the secret.

        Its salt is the key's own id, which the caller sends: so one call looks the key up, compares
        it and records its use (ADR 19). 256 random bits need no slow hash: they cannot be guessed.
        """
        return hashlib.sha256(f"{PREFIX}-key|{self.id}|{self.secret}".encode()).hexdigest()


@record(frozen=True)
class KeyMac:
    """The secret (hex) of a deployment that tells its keys from made-up ones without a look-up, and
    until when (ms) keys without a MAC are looked up.
    """

    secret: str
    old_until_ms: int

    def sign(self, credential: Credential) -> Credential:
        """The credential with its MAC."""
        told = f"{credential.id}{credential.secret}".encode()
        mac = hmac.digest(bytes.fromhex(self.secret), told, "sha256")[:MAC_BYTES].hex()
        return replace(credential, mac=mac)

    def admits(self, credential: Credential, now_ms: int) -> bool:
        """Whether a credential may be one of this deployment's."""
        if credential.mac is None:
            return now_ms < self.old_until_ms
        return hmac.compare_digest(self.sign(credential).mac or "", credential.mac)


def bearer(authorization: str) -> str | None:
    """The token in an `Authorization` header; None unless it is a bearer token, and just one."""
    # Longer tokens are JWTs, which API Gateway checks itself.
    if len(authorization) > KEY_CHARACTERS + 100:
        return None
    found = _BEARER.fullmatch(authorization.strip())
    return found[1] if found else None


def role_arn(arn: str) -> str | None:
    """The ARN, without a path, of the IAM role or user that an ARN means: also that of a session of
    an assumed role, or of a role with its path. None for anything else.
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
    """Whether a principal may create a key with these scopes: it needs all of them itself."""
    return holder.scopes >= frozenset(scopes) and not holder.limited
