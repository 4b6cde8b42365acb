"""The W3C trace context of a request, which is stored in the `meta` of its jobs.

See ojs-observability, section 5.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ojs.domain.job.envelope import JobRequest
from ojs.records import record

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
# A longer `tracestate` is omitted completely. The W3C requires at least this maximum.
MAX_STATE_CHARACTERS = 512
_MAX_MEMBERS = 32
_VERSION = "00"
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.{0,200})?")
_MEMBER = re.compile(
    r"([a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)


@record(frozen=True)
class TraceContext:
    """The trace that a request belongs to. `traceparent` has the format of version 00."""

    traceparent: str
    tracestate: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> TraceContext | None:
        """Read the context from request headers (lowercase names). None without a valid context.

        As the W3C requires, an invalid `traceparent` is ignored together with `tracestate`. If only
        `tracestate` is invalid, only `tracestate` is ignored.
        """
        sent = headers.get(TRACEPARENT)
        if sent is None:
            return None
        found = _PARENT.fullmatch(sent.strip())
        if found is None:
            return None
        version, trace_id, parent_id, flags, more = found.groups()
        if version == "ff" or (version == _VERSION and more):
            return None
        if not (trace_id.strip("0") and parent_id.strip("0")):
            return None
        if version != _VERSION:
            # In a later version, only the meaning of the flag `sampled` is known.
            flags = f"{int(flags, 16) & 1:02x}"
        parent = f"{_VERSION}-{trace_id}-{parent_id}-{flags}"
        return cls(parent, _state(headers.get(TRACESTATE)))

    @property
    def trace_id(self) -> str:
        """The trace ID: 32 hex digits."""
        return self.traceparent.split("-")[1]

    def into(self, request: JobRequest) -> JobRequest:
        """Add this context to the `meta` of a request, unless the client set one."""
        meta = request.meta or {}
        if TRACEPARENT in meta:
            return request
        added = {TRACEPARENT: self.traceparent}
        if self.tracestate is not None:
            added[TRACESTATE] = self.tracestate
        return request.model_copy(update={"meta": {**added, **meta}})


def _state(sent: str | None) -> str | None:
    if sent is None or len(sent) > MAX_STATE_CHARACTERS:
        return None
    members = [member for part in sent.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    if not 1 <= len(members) == len(keys) <= _MAX_MEMBERS:
        return None
    return ",".join(members) if all(map(_MEMBER.fullmatch, members)) else None
