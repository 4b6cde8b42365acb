"""Start-time fair queuing (SFQ): how tenants share a queue. Pure functions.

If tenant fairness is enabled, the order key of a new job consists of a *tag* and its arrival, and
the index partition is sorted by tags. The tag is the start of the job in virtual time. It is the
later of two values: the virtual time of the partition, and the finish tag of the tenant's previous
job. Each job advances the finish tag of its tenant by a *step*, the service cost: 1 / weight.

Therefore tenants are served in proportion to their weights, an idle tenant restarts at the virtual
time of the partition, and the jobs of one tenant keep their order.

Tags are times since the epoch in fractions of a millisecond, so they can be compared with the order
keys of jobs without a tag. A job of weight 1 takes 1/16 ms. Tags run ahead of the clock only if the
jobs of one tenant leave a partition faster than 16,000 per second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from ojs.domain import jsontext
from ojs.domain.fields import NumberRange
from ojs.domain.ids import ORDER_DIGITS
from ojs.domain.requests import After, Field, Model
from ojs.records import record

FAIR_SHARE = "fair-share"
MAX_WEIGHT = 1_000
MAX_WEIGHTS = 100
MAX_TENANT = 128
PREFIX = "tenant:"

# Five hex digits per millisecond. A step of the largest weight is 66 ticks, so rounding to whole
# ticks changes the share of a tenant by at most 0.8 %. With one digit less, it would be 12 %.
TICKS_PER_MS = 1 << 20
STEP = TICKS_PER_MS // 16
TAG_DIGITS = 16
_PER_ORDER = 1 << 4 * (TAG_DIGITS - ORDER_DIGITS)
# Base64 of nine bytes. Two tenants of a queue with the same hash would be treated as one.
_HASH_BYTES, _HASH_DIGITS = 9, 12


# --- order keys -----------------------------------------------------------------------------------


def tagged(order: str) -> bool:
    """Return whether an order key starts with a tag."""
    return len(order) > ORDER_DIGITS


def arrival(order: str) -> str:
    """Return the arrival part of a job's order key (`ojs.domain.ids.IdSource`)."""
    return order[-ORDER_DIGITS:]


def with_tag(ticks: int, order: str) -> str:
    """Return the order key with a tag. Jobs with equal tags are sorted by arrival."""
    return f"{ticks:0{TAG_DIGITS}x}{arrival(order)}"


def ticks_of(order: str) -> int:
    """Return the virtual time of a job: its tag, or its arrival if it has no tag."""
    if tagged(order):
        return int(order[:TAG_DIGITS], 16)
    return int(order, 16) * _PER_ORDER


def ticks_at(ms: int) -> int:
    """Convert a time in ms to virtual time."""
    return ms * TICKS_PER_MS


def start(virtual: int, last: int | None) -> int:
    """Return the tag of a tenant's next job: the virtual time or the finish tag, whichever is
    later.
    """
    return virtual if last is None else max(virtual, last)


# --- shares ---------------------------------------------------------------------------------------


@record(frozen=True)
class Share:
    """The tenant of a job (a hash) and its weight."""

    tenant: str
    weight: int = 1

    @property
    def step(self) -> int:
        """The service cost of the job in ticks: the step by which its
        tenant's finish tag advances.
        """
        return round(STEP / self.weight)

    def compact(self) -> str:
        """Return the stored form in a job record."""
        return self.tenant if self.weight == 1 else f"{self.tenant}{self.weight}"

    @classmethod
    def of(cls, text: str) -> Share:
        """Read the result of `compact`. Raises ValueError."""
        return cls(text[:_HASH_DIGITS], int(text[_HASH_DIGITS:] or 1))


def tags(shares: Iterable[Share], first: int) -> list[int]:
    """Return the tags of consecutive jobs of one tenant. The first tag is `first`."""
    found = []
    for share in shares:
        found.append(first)
        first += share.step
    return found


def get_tenant(content: Mapping[str, Any] | None) -> str:
    """Return the tenant of a job: its `meta.tenant_id`. Other JSON types are converted to a string.

    Jobs without a tenant belong to the tenant with the empty name.
    """
    meta = (content or {}).get("meta")
    tenant = meta.get("tenant_id") if isinstance(meta, Mapping) else None
    if tenant is None:
        return ""
    return tenant if isinstance(tenant, str) else jsontext.dumps(tenant)


@record(frozen=True)
class Fairness:
    """The weights of the tenants that share a queue."""

    default_weight: int = 1
    weights: Mapping[str, int] = field(default_factory=dict)

    def share(self, content: Mapping[str, Any] | None) -> Share:
        """Return the share of a job with this payload."""
        tenant = get_tenant(content)
        digest = hashlib.blake2b(tenant.encode(), digest_size=_HASH_BYTES).digest()
        return Share(_text(digest), self.weights.get(tenant, self.default_weight))

    def compact(self) -> str:
        """Return the stored form."""
        return jsontext.dumps([self.default_weight, dict(sorted(self.weights.items()))])

    @classmethod
    def of(cls, text: str) -> Fairness:
        """Read the result of `compact`. Raises ValueError."""
        default_weight, weights = jsontext.stored(text)
        return cls(default_weight, weights)


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def _text(digest: bytes) -> str:
    number = int.from_bytes(digest, "big")
    shifts: Sequence[int] = range(6 * (_HASH_DIGITS - 1), -1, -6)
    return "".join(_ALPHABET[number >> shift & 63] for shift in shifts)


# --- configuration --------------------------------------------------------------------------------


def _named(value: str) -> str:
    tenant = value.removeprefix(PREFIX)
    if tenant == value:
        raise ValueError(f"must start with '{PREFIX}'")
    if not 1 <= len(tenant) <= MAX_TENANT:
        raise ValueError(f"must have 1 to {MAX_TENANT} characters after '{PREFIX}'")
    if not tenant.isprintable():
        raise ValueError("must contain only printable characters")
    return value


Weight = Annotated[int, NumberRange(1, MAX_WEIGHT)]
Named = Annotated[str, After(_named)]


class TenantFairnessRequest(Model):
    """How tenants share a queue (ojs-fair-scheduling, section 9.2). Null resets a field, or a
    weight.
    """

    enabled: bool | None = None
    strategy: Literal["fair-share"] | None = None
    weights: Annotated[dict[Named, Weight | None], Field(max_length=MAX_WEIGHTS)] | None = None
    default_weight: Weight | None = None


# The defaults.
SYSTEM: Mapping[str, Any] = {"enabled": False, "strategy": FAIR_SHARE, "default_weight": 1}


def in_force(configured: Mapping[str, Any]) -> Fairness | None:
    """Return the weights of a stored configuration, or None if fairness is not enabled."""
    full = {**SYSTEM, **configured}
    if not full["enabled"]:
        return None
    weights = {name.removeprefix(PREFIX): w for name, w in full.get("weights", {}).items()}
    return Fairness(full["default_weight"], weights)


def shown(configured: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with its defaults, for responses."""
    return {**SYSTEM, "weights": {}, **configured}
