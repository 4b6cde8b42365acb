"""Start-time fair queuing (SFQ): how tenants share a queue. Pure functions.

A job that enters a fair line gets a *tag* before its arrival, and the line is sorted by tags. The
tag is the job's start in virtual time: the line's virtual time, or the finish tag of the same
tenant's previous job, whichever is later. Each job advances its tenant's finish tag by a *step*,
the service cost: one over the weight. So waiting tenants take turns in proportion to their weights,
a tenant that was idle begins at the line's virtual time, and the jobs of one tenant stay in order.

Tags are times since the epoch in fractions of a millisecond, so that they can be compared with the
orders of jobs that have none. A job of weight 1 takes a sixteenth of a millisecond: tags run ahead
of the clock only where one tenant's jobs leave a line faster than 16 000 a second.
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

# Five hex digits of a millisecond. A step of the largest weight is 66 ticks: rounded to whole ticks
# no tenant's part is off by more than 0.8 %. With one digit less it would be 12 %.
TICKS_PER_MS = 1 << 20
STEP = TICKS_PER_MS // 16
TAG_DIGITS = 16
_PER_ORDER = 1 << 4 * (TAG_DIGITS - ORDER_DIGITS)
# Base64 of nine bytes. Two tenants of a queue with the same hash would count as one.
_HASH_BYTES, _HASH_DIGITS = 9, 12


# --- positions in line ----------------------------------------------------------------------------


def tagged(order: str) -> bool:
    """Whether an order begins with a tag."""
    return len(order) > ORDER_DIGITS


def arrival(order: str) -> str:
    """The part of an order that is the job's arrival in the line (`ojs.domain.ids.IdSource`)."""
    return order[-ORDER_DIGITS:]


def with_tag(ticks: int, order: str) -> str:
    """An order with a tag before it. Among equal tags the arrival decides."""
    return f"{ticks:0{TAG_DIGITS}x}{arrival(order)}"


def ticks_of(order: str) -> int:
    """The virtual time of a job: its tag, or its arrival if it has none."""
    if tagged(order):
        return int(order[:TAG_DIGITS], 16)
    return int(order, 16) * _PER_ORDER


def ticks_at(ms: int) -> int:
    """A time in ms as virtual time."""
    return ms * TICKS_PER_MS


def start(virtual: int, last: int | None) -> int:
    """The tag of a tenant's next job: the line's virtual time, or the tenant's last finish tag."""
    return virtual if last is None else max(virtual, last)


# --- shares ---------------------------------------------------------------------------------------


@record(frozen=True)
class Share:
    """The tenant of a job (a hash) and its weight."""

    tenant: str
    weight: int = 1

    @property
    def step(self) -> int:
        """The service cost of the job, in ticks: how far it advances its tenant's finish tag."""
        return round(STEP / self.weight)

    def compact(self) -> str:
        """As stored in the job record."""
        return self.tenant if self.weight == 1 else f"{self.tenant}{self.weight}"

    @classmethod
    def of(cls, text: str) -> Share:
        """Read back what `compact` wrote. Raises ValueError."""
        return cls(text[:_HASH_DIGITS], int(text[_HASH_DIGITS:] or 1))


def tags(shares: Iterable[Share], first: int) -> list[int]:
    """The tags of consecutive jobs of one tenant, the first at `first`."""
    found = []
    for share in shares:
        found.append(first)
        first += share.step
    return found


def tenant_of(content: Mapping[str, Any] | None) -> str:
    """The tenant of a job, from its `meta.tenant_id`: a text as it is, any other value as JSON.

    Jobs without one belong to the tenant with the empty name.
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
        """The share of a job with this content."""
        tenant = tenant_of(content)
        digest = hashlib.blake2b(tenant.encode(), digest_size=_HASH_BYTES).digest()
        return Share(_text(digest), self.weights.get(tenant, self.default_weight))

    def compact(self) -> str:
        """For storing."""
        return jsontext.dumps([self.default_weight, dict(sorted(self.weights.items()))])

    @classmethod
    def of(cls, text: str) -> Fairness:
        """Read back what `compact` wrote. Raises ValueError."""
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
    """The weights in force for a stored configuration; None when fairness is not enabled."""
    full = {**SYSTEM, **configured}
    if not full["enabled"]:
        return None
    weights = {name.removeprefix(PREFIX): w for name, w in full.get("weights", {}).items()}
    return Fairness(full["default_weight"], weights)


def shown(configured: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with its defaults, as shown."""
    return {**SYSTEM, "weights": {}, **configured}
