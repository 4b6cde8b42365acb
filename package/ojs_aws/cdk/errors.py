"""Names the construct and the property in the errors of the constructs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from constructs import Construct

F = TypeVar("F", bound=Callable[..., Any])
_NAMED = re.compile(r"\w+\(.*?\)\.")


def names_construct(method: F) -> F:
    """Decorator for methods of a construct that raise `ValueError("<property>: <reason>")`.

    The error becomes `OpenJobSpec(<id>).<property>: <reason>`.
    """

    @functools.wraps(method)
    def named(self: Construct, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except ValueError as error:
            if _NAMED.match(str(error)):
                raise
            raise ValueError(f"{type(self).__name__}({self.node.id}).{error}") from error

    return cast("F", named)
