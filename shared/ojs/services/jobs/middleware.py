"""The enqueue chain: what may look at, change or veto a request before it is stored.

Core seed, "Middleware": each link calls the next. Empty in the cloud; the local server adds its
test hooks here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ojs.domain.job.envelope import JobRequest

Next = Callable[[JobRequest], JobRequest]
Middleware = Callable[[JobRequest, Next], JobRequest]


def run(chain: Sequence[Middleware], request: JobRequest) -> JobRequest:
    """Pass a request through the chain. A link vetoes by raising an OjsError."""

    def step(position: int, current: JobRequest) -> JobRequest:
        if position == len(chain):
            return current
        return chain[position](current, lambda following: step(position + 1, following))

    return step(0, request)
