"""The audit log: one entry for each request that changes the configuration or manages jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs.records import record

DAY_MS = 86_400_000
# Retention of entries, and the period of one partition. A list needs at most four queries.
KEPT_MS = 90 * DAY_MS
PERIOD_MS = 30 * DAY_MS
MAX_PATH = 500
# Maximum size of a configuration in an entry. Larger ones are omitted.
MAX_CONFIGURATION_BYTES = 4_096


@record(frozen=True)
class OperatorAction:
    """A request of an operator that succeeded.

    With a `status` of 500 or higher, the outcome is unknown.

    `id` is a UUID that sorts by time. `actor` is the name of the access key, the subject of the
    token, or the ARN of the role. It is None if the server has no authentication.

    Of a changed configuration, it has the kind, the name, and the values before and after. `etag`
    is the version after the change. With `omitted`, the values are too large for the log.
    """

    id: str
    at_ms: int
    operation: str
    method: str
    path: str
    status: int
    actor: str | None = None
    key: str | None = None
    kind: str = ""
    name: str = ""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    etag: str | None = None
    omitted: bool = False
