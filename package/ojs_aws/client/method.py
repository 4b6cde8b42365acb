"""How an operation becomes a method of both clients: one that waits, one to be awaited."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ojs_aws.client.call import Call

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(ABC):
    """A client whose methods return answers."""

    @abstractmethod
    def run(self, call: Call[T]) -> T:
        """The answer to a call. Raises ApiError, Unreachable."""


class Awaiting(ABC):
    """A client whose methods are awaited."""

    @abstractmethod
    async def run(self, call: Call[T]) -> T:
        """The answer to a call. Raises ApiError, Unreachable."""


class Method(Generic[P, T]):
    """An operation as a method: its arguments are the operation's."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaiting, owner: type) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Method[P, T]: ...

    def __get__(self, client: Any, owner: type) -> Any:
        """The method of this client."""
        if client is None:
            return self
        build = self._build

        @wraps(build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.run(build(*args, **kwargs))

        return method
