"""The permits of one run of a job: one permit per concurrency limit that applies to the job.

All permits of a run have the same name. It consists of the job ID and a token of the fetch that
claims the job. Therefore a permit identifies its job record, and each run of a job has another
name.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import field
from uuid import UUID

from ojs.records import record

# The limits in a job record: of its queue, its worker pool, its worker in that pool, its rate limit
# key, the delivery that pushes it, and its tenant.
QUEUE_PERMIT, POOL_PERMIT, WORKER_PERMIT, KEY_PERMIT, DELIVERY_PERMIT = "q", "p", "w", "k", "d"
TENANT_PERMIT = "t"
RUN_LENGTH = 4
# Attribute names consist of these characters.
_DIGITS = string.digits + string.ascii_letters
_ID_LENGTH = 22
_SHARD = re.compile(r"([a-z])(\d+)")


@record(frozen=True)
class RunPermits:
    """The permits of an active job: the token of the run, and the semaphore shard by limit."""

    run: str
    shards: Mapping[str, int] = field(default_factory=dict)

    def compact(self) -> str:
        """Return the stored form in a job record, for example `x7Gq|q0|p2`."""
        return "|".join((self.run, *(f"{limit}{at}" for limit, at in self.shards.items())))

    @classmethod
    def of(cls, text: str) -> RunPermits:
        """Read the result of `compact`. Permits of unknown limits are kept."""
        run, *parts = text.split("|")
        found = (_SHARD.fullmatch(part) for part in parts)
        return cls(run, {match[1]: int(match[2]) for match in found if match})


def permit_name(job_id: str, run: str) -> str:
    """Return the name of the permits of one run of a job: 26 letters and digits."""
    number, digits = UUID(job_id).int, ""
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits += _DIGITS[digit]
    return digits + run


def holder_of(permit: str) -> tuple[str, str]:
    """Return the job ID and the run token in the name of a permit."""
    number = 0
    for digit in reversed(permit[:_ID_LENGTH]):
        number = number * len(_DIGITS) + _DIGITS.index(digit)
    return str(UUID(int=number)), permit[_ID_LENGTH:]
