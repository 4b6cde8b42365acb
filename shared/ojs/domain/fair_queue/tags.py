"""Tenants that share a queue fairly: start-time fair queuing in the scale of time (pure).

A job that enters a fair line gets a *tag* in front of its order of arrival, and the line is sorted
by tags. The tag is the job's start in virtual time: where the line has come to, or where the jobs
of the same tenant end that entered before, whichever is later. Each job moves its tenant's end on
by a *step*, one over the weight. So tenants that wait take turns in proportion to their weights,
one that was idle begins where the line is, and the jobs of one tenant stay in order.

Tags are times since the epoch in fractions of a millisecond, so that they can be compared with the
orders of jobs that have none. A job of weight 1 takes a sixteenth of a millisecond: tags run ahead
of the clock only where one tenant's jobs leave a line faster than 16 000 a second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ojs.domain import jsontext
from ojs.domain.ids import ORDER_DIGITS
from ojs.domain.numbers import whole_number

STRATEGY = "fair-share"
MAX_WEIGHT = 1_000
MAX_WEIGHTS = 100
MAX_TENANT = 128
PREFIX = "tenant:"

# Five hex digits of a millisecond. A step of the largest weight is 66 of these: rounded to whole
# ones, no share is off by more than 0.8 %. With one digit less it would be 12 %.
TICKS_PER_MS = 1 << 20
STEP = TICKS_PER_MS // 16
TAG_DIGITS = 16
_PER_ORDER = 1 << 4 * (TAG_DIGITS - ORDER_DIGITS)
# Base64 of nine bytes: two tenants of a queue that share a hash would share one turn.
_HASH_BYTES, _HASH_DIGITS = 9, 12


# --- places in line -------------------------------------------------------------------------------


def tagged(order: str) -> bool:
    """Whether an order has a tag in front."""
    return len(order) > ORDER_DIGITS


def arrival(order: str) -> str:
    """The part of an order that tells when its job entered the line (`ojs.domain.ids.IdSource`)."""
    return order[-ORDER_DIGITS:]


def with_tag(ticks: int, order: str) -> str:
    """An order behind a tag. Among equal tags the arrival decides."""
    return f"{ticks:0{TAG_DIGITS}x}{arrival(order)}"


def ticks_of(order: str) -> int:
    """Where in virtual time a job stands: its tag, or its arrival if it has none."""
    if tagged(order):
        return int(order[:TAG_DIGITS], 16)
    return int(order, 16) * _PER_ORDER


def ticks_at(ms: int) -> int:
    """A time, in ms, as virtual time."""
    return ms * TICKS_PER_MS


def start(virtual: int, last: int | None) -> int:
    """The tag of a tenant's next job: where the line is, but not before the tenant's own jobs."""
    return virtual if last is None else max(virtual, last)


# --- shares ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """A job's part in its queue's fairness: whose turn it takes (a hash), and with what weight."""

    tenant: str
    weight: int = 1

    @property
    def step(self) -> int:
        """How far the job moves its tenant's end on, in ticks."""
        return round(STEP / self.weight)

    def compact(self) -> str:
        """As a job's head keeps it."""
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
    """Whose a job is, by its `meta.tenant_id`: a text as it is, anything else as its JSON text.

    Jobs that name nobody share one tenant without a name, the empty one.
    """
    meta = (content or {}).get("meta")
    tenant = meta.get("tenant_id") if isinstance(meta, Mapping) else None
    if tenant is None:
        return ""
    return tenant if isinstance(tenant, str) else jsontext.dumps(tenant)


@dataclass(frozen=True)
class Fairness:
    """How the tenants of a queue share it: what a turn of each is worth."""

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
        raise ValueError(f"must begin with '{PREFIX}'")
    if not 1 <= len(tenant) <= MAX_TENANT:
        raise ValueError(f"must name a tenant of 1 to {MAX_TENANT} characters")
    if not tenant.isprintable():
        raise ValueError("must hold printable characters only")
    return value


Weight = Annotated[int, Field(ge=1, le=MAX_WEIGHT), BeforeValidator(whole_number)]
Named = Annotated[str, AfterValidator(_named)]


class TenantFairnessRequest(BaseModel):
    """How tenants share what is handed out (fair-scheduling seed, section 9.2). Null takes a field
    back, also a weight.
    """

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, defer_build=True)

    enabled: bool | None = None
    strategy: Literal["fair-share"] | None = None
    weights: Annotated[dict[Named, Weight | None], Field(max_length=MAX_WEIGHTS)] | None = None
    default_weight: Weight | None = None


# What counts where nothing is said.
SYSTEM: Mapping[str, Any] = {"enabled": False, "strategy": STRATEGY, "default_weight": 1}


def in_force(given: Mapping[str, Any]) -> Fairness | None:
    """What an object as it is kept comes to; None when it is not switched on."""
    told = {**SYSTEM, **given}
    if not told["enabled"]:
        return None
    weights = {name.removeprefix(PREFIX): w for name, w in told.get("weights", {}).items()}
    return Fairness(told["default_weight"], weights)


def shown(given: Mapping[str, Any]) -> dict[str, Any]:
    """An object as it is kept, with all that it comes to."""
    return {**SYSTEM, "weights": {}, **given}
