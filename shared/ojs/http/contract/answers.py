"""The types of all answers. The OpenAPI document is made from them; `ojs.http.views` returns them.

At run time only the document imports them: making these classes would delay each cold start. A key
that may be missing is `NotRequired`: a field that is not set is absent, not null.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict
from typing_extensions import TypedDict

_WARNINGS = "what was sent and has no effect"
_MOMENT = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z"

OperationState = Literal["running", "stopping", "stopped", "completed"]
Directive = Literal["running", "quiet", "terminate"]
QueueStateName = Literal["active", "paused", "draining"]
CronState = Literal["active", "paused", "ended"]
CronOverlap = Literal["skip", "allow", "cancel_previous", "enqueue"]
AuthorizerName = Literal["keys", "jwt", "iam", "none"]
DeletionStrategy = Literal["reject", "discard", "move", "drain"]
DispatchStrategy = Literal["strict", "round-robin", "weighted", "least-loaded"]
OverflowPolicy = Literal["reject", "block", "drop_oldest"]
PruningPolicy = Literal["delete", "archive"]
ConfigSource = Literal["queue", "_default", "system"]


class OpenApiAnswer(TypedDict):
    """An OpenAPI document."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]
