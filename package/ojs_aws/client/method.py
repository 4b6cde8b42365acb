"""Makes an operation a method of both clients: a blocking method, or one to await."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ojs_aws.client.call import Call

P = ParamSpec("P")
T = TypeVar("T")


class Blocking(ABC):
    """Base class of a client whose methods return when the result is known."""

    @abstractmethod
    def run(self, call: Call[T]) -> T:
        """Send a request and return its result."""


class Awaiting(ABC):
    """Base class of a client whose methods must be awaited."""

    @abstractmethod
    async def run(self, call: Call[T]) -> T:
        """Send a request and return its result."""


class Method(Generic[P, T]):
    """Descriptor that makes an operation a method of a client.

    The method has the arguments of the operation, sends the request, and returns its result.
    """

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
        """Return the method of this client."""
        if client is None:
            return self
        build = self._build

        @wraps(build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.run(build(*args, **kwargs))

        return method
