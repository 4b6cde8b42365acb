"""The permits of one run of a job: one of each concurrency limit that it is under.

All permits of a run have one name, made of the job's id and a token of the fetch that claims the
job: so a permit leads to the record of its job, and no two runs of a job have the same one.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import field
from uuid import UUID

from ojs.records import record

# The limits, as the job record names them: of its queue, its worker pool, its worker there, its
# rate limit key, and the delivery that pushes it.
QUEUE_PERMIT, POOL_PERMIT, WORKER_PERMIT, KEY_PERMIT, DELIVERY_PERMIT = "q", "p", "w", "k", "d"
RUN_LENGTH = 4
# Names of attributes are made of these.
_DIGITS = string.digits + string.ascii_letters
_ID_LENGTH = 22
_SHARD = re.compile(r"([a-z])(\d+)")


@record(frozen=True)
class RunPermits:
    """The permits that a job has while it runs: the token of the run, and the shard of the
    semaphore that each is of, by limit.
    """

    run: str
    shards: Mapping[str, int] = field(default_factory=dict)

    def compact(self) -> str:
        """As stored in the job record: `x7Gq|q0|p2`."""
        return "|".join((self.run, *(f"{limit}{at}" for limit, at in self.shards.items())))

    @classmethod
    def of(cls, text: str) -> RunPermits:
        """Read back what `compact` wrote; permits of limits that are not known stay."""
        run, *parts = text.split("|")
        found = (_SHARD.fullmatch(part) for part in parts)
        return cls(run, {match[1]: int(match[2]) for match in found if match})


def permit_name(job_id: str, run: str) -> str:
    """The name of the permits of one run of a job: 26 letters and digits."""
    number, digits = UUID(job_id).int, ""
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_DIGITS))
        digits += _DIGITS[digit]
    return digits + run


def holder_of(permit: str) -> tuple[str, str]:
    """The id of the job that has a permit of this name, and the token of its run."""
    number = 0
    for digit in reversed(permit[:_ID_LENGTH]):
        number = number * len(_DIGITS) + _DIGITS.index(digit)
    return str(UUID(int=number)), permit[_ID_LENGTH:]
