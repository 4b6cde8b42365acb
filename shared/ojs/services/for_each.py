"""Several calls at the same time, or one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

# The SDK keeps 64 connections, and a lane of the index takes some 1,000 writes a second.
THREADS = 8

T = TypeVar("T")
R = TypeVar("R")


class ForEach(Protocol):
    """Calls an action for each of some things, and returns what it returned, in their order."""

    def __call__(self, act: Callable[[T], R], each: Sequence[T], /) -> list[R]:
        """As a list comprehension, perhaps with several calls at the same time."""
        ...


def one_by_one(act: Callable[[T], R], each: Sequence[T], /) -> list[R]:
    """One call after the other, in order: for simulations that must be repeatable."""
    return [act(one) for one in each]


def in_threads(act: Callable[[T], R], each: Sequence[T], /) -> list[R]:
    """A few calls at the same time. The threads end with it: between two invocations a Lambda
    function stands still.
    """
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    if len(each) < 2:
        return one_by_one(act, each)
    with ThreadPoolExecutor(min(THREADS, len(each)), "for-each") as pool:
        # With the keys of the log, which are in the context of the thread.
        contexts = [copy_context() for _ in each]
        return list(pool.map(lambda context, one: context.run(act, one), contexts, each))
