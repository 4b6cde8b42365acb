"""Makes an operation a method of both clients: a blocking method, or one to await."""

from __future__ import annotations

import inspect
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
        self._name = build.__name__
        self.__doc__ = build.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _check(self, owner: type, args: Any, kwargs: Any) -> None:
        """Raise TypeError with the name of the method if the arguments don't fit it."""
        signature = inspect.signature(self._build)
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            names = ", ".join(signature.parameters) or "none"
            called = f"{owner.__name__}.{self._name}()"
            raise TypeError(f"{called}: {error}. Its parameters are {names}") from None

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
            try:
                call = build(*args, **kwargs)
            except TypeError:
                self._check(owner, args, kwargs)
                raise
            return client.run(call)

        return method
