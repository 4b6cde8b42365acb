"""Every operation that is served: the one table behind routes, dispatch and the OpenAPI document.

A function's handler binds one implementation to each of its operations
(`ojs.http.binding.application`). Everything else is answered 404, 405 when only the method is
wrong, or 422 for a feature that is known and not offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ojs.domain.pool.pool import MAX_POOL_BYTES, POOL_PATTERN
from ojs.http.contract import models
from ojs.http.contract.permissions import permissions
from ojs.http.endpoint import BASE, Operation, Parameter, Success
from ojs.http.parameters import (
    text,
)

if TYPE_CHECKING:
    from ojs.domain.requests import Model


# For a wrong request, a wrong version, or a store that fails.
COMMON_ERRORS = (400, 422, 500, 503, 504)


# The tables below have a row for each parameter or operation: the formatter would split each row.
# fmt: off
POOL_SCHEMA = text(POOL_PATTERN, MAX_POOL_BYTES)
# fmt: on


def _row(
    route: str,
    name: str,
    summary: str,
    answers: Success | str | Mapping[int, Success],
    *errors: int,
    tag: str | None = None,
    request: type[Model] | None = None,
    body_required: bool = True,
    query: tuple[Parameter, ...] = (),
    headers: tuple[Parameter, ...] = (),
    derived: bool = False,
) -> Operation:
    """One operation. `route` is its method and its path below BASE, or from the root with a slash.

    The tag is the first part of the path, unless another is given. An answer that is only named is
    described by the summary.
    """
    if isinstance(answers, str):
        answers = Success(answers, f"{summary}.")
    method, path = route.split()
    return Operation(
        name,
        method,
        path if path.startswith("/") else f"{BASE}/{path}",
        tag or path.split("/")[0],
        summary,
        permissions()[name],
        {200: answers} if isinstance(answers, Success) else answers,
        errors,
        request,
        body_required and request is not models.NoOptions,
        query,
        headers,
        derived,
    )


# fmt: off
_OPENAPI = _row("GET openapi.json", "openapi", "Read this description",
    Success("OpenApiAnswer", "The OpenAPI 3.1 document."), tag="system")
# fmt: on


OPERATIONS: tuple[Operation, ...] = (_OPENAPI,)
