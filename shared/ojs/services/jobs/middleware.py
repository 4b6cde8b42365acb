"""The enqueue middleware: functions that may change or refuse a request before it is stored.

Each calls the next (ojs-core, section 9). The chain is empty in the cloud; the local server adds
its test hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ojs.domain.job.envelope import JobRequest

Next = Callable[[JobRequest], JobRequest]
Middleware = Callable[[JobRequest, Next], JobRequest]


def run(chain: Sequence[Middleware], request: JobRequest) -> JobRequest:
    """Pass a request through the chain. A middleware refuses it by raising an OjsError."""

    def step(position: int, current: JobRequest) -> JobRequest:
        if position == len(chain):
            return current
        return chain[position](current, lambda following: step(position + 1, following))

    return step(0, request)
