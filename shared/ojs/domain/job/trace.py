"""The W3C trace context of the call that brings a job, which stays with the job in its `meta`
(ojs-observability, section 5.1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ojs.domain.job.envelope import JobRequest
from ojs.records import record

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
# A longer state is left out, as a whole: what the W3C asks for at least.
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
    """Which trace a call belongs to. `traceparent` is in the form of version 00."""

    traceparent: str
    tracestate: str | None = None

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> TraceContext | None:
        """The context in a request's headers, whose names are lowercase; None without a valid one.

        As the W3C asks: a bad `traceparent` counts as none, and `tracestate` with it; a bad
        `tracestate` is left out alone.
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
            # Of a later version only the flag `sampled` has a known meaning.
            flags = f"{int(flags, 16) & 1:02x}"
        parent = f"{_VERSION}-{trace_id}-{parent_id}-{flags}"
        return cls(parent, _state(headers.get(TRACESTATE)))

    @property
    def trace_id(self) -> str:
        """The id of the trace: 32 hex digits."""
        return self.traceparent.split("-")[1]

    def into(self, request: JobRequest) -> JobRequest:
        """The request with this context in its `meta`, unless the client put one there itself."""
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
