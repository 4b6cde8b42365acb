"""Runs an action for several items, at the same time or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

# Maximum number of threads. The SDK keeps 64 connections, and a lane of the index allows about
# 1,000 writes per second.
THREADS = 8

T = TypeVar("T")
R = TypeVar("R")


class ForEach(Protocol):
    """Calls an action for each item, and returns the results in the same order."""

    def __call__(self, act: Callable[[T], R], each: Sequence[T], /) -> list[R]:
        """Call `act` for each item, possibly with several calls at the same time.

        Return the results.
        """
        ...


def one_by_one(act: Callable[[T], R], each: Sequence[T], /) -> list[R]:
    """Call `act` for one item after the other, in order, for reproducible simulations."""
    return [act(one) for one in each]


def in_threads(act: Callable[[T], R], each: Sequence[T], /) -> list[R]:
    """Call `act` for several items at the same time.

    The threads end with this call, because a Lambda function is frozen between invocations.
    """
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    if len(each) < 2:
        return one_by_one(act, each)
    with ThreadPoolExecutor(min(THREADS, len(each)), "for-each") as pool:
        # The context of the thread contains the log keys of the request.
        contexts = [copy_context() for _ in each]
        return list(pool.map(lambda context, one: context.run(act, one), contexts, each))
