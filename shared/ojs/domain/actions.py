"""What operators do: an entry for each request that changes what is configured, or jobs by hand."""

from __future__ import annotations

from ojs.records import record

DAY_MS = 86_400_000
# How long entries are kept, and how long a partition is for: a list is four queries at most.
KEPT_MS = 90 * DAY_MS
PERIOD_MS = 30 * DAY_MS
MAX_PATH = 500


@record(frozen=True)
class OperatorAction:
    """One request of an operator that was done, or may have been (`status` 500 and above).

    `id` is a UUID in order of time.

    `actor` is the name on the key, the subject of the token or the ARN of the role; None where
    nobody has to say who they are.
    """

    id: str
    at_ms: int
    operation: str
    method: str
    path: str
    status: int
    actor: str | None = None
    key: str | None = None
