"""Who asks, as API Gateway tells it, and whether they may.

Which of the events' fields count is the deployment's choice: what a client sends never ends up in
`requestContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ojs.domain.access import ANYBODY, Principal
from ojs.domain.errors import Unauthenticated, forbidden
from ojs.http.contract.permissions import Reach, permissions

if TYPE_CHECKING:
    from ojs.http.binding.request import Request
    from ojs.http.contract.operations import Operation
    from ojs.runtime import Runtime

# Of a JWT: what it may do and which queues it may touch, each separated by spaces.
SCOPE_CLAIM, QUEUES_CLAIM = "scope", "ojs_queues"
_FILTERS = ("queue", "queues")


class Guard:
    """Stands before every operation."""

    def __init__(self, current: Callable[[], Runtime]) -> None:
        """`current` is asked for only when a request comes."""
        self._current = current

    def who(self, event: Mapping[str, Any]) -> Principal:
        """Who asks. Raises Unauthenticated."""
        found = _READERS[self._current().settings.authorizer](
            event["requestContext"].get("authorizer") or {}
        )
        if found is None:
            raise Unauthenticated
        return found

    @property
    def closed(self) -> bool:
        """Whether anybody has to say who they are."""
        return self._current().settings.authorizer != "none"

    def permit(self, principal: Principal, operation: Operation) -> None:
        """Raise PermissionDenied for an operation that is not theirs, whatever it is about."""
        needed = permissions()[operation.id]
        if needed.scope is not None and needed.scope not in principal.scopes:
            raise forbidden()
        if principal.limited and needed.reach is Reach.ALL:
            raise forbidden()

    def admit(self, request: Request) -> None:
        """Raise PermissionDenied for queues out of reach; NotFound for a job that is not there.

        What the body names is left to whoever reads it.
        """
        if not request.principal.limited:
            return
        match permissions()[request.operation.id].reach:
            case Reach.PATH:
                request.touches(request.named)
            case Reach.JOB:
                request.touches(self._current().jobs.queue_of(request.named))
            case Reach.FILTER:
                asked = filtered(request.query)
                request.touches(*asked) if asked else request.touches(None)


def filtered(query: Mapping[str, str]) -> list[str]:
    """The queues that a query asks for; none stands for all."""
    given = [query[name] for name in _FILTERS if query.get(name)]
    return [name.strip() for text in given for name in text.split(",")]


def _nobody_asked(_told: Mapping[str, Any]) -> Principal | None:
    return ANYBODY


def _of_key(told: Mapping[str, Any]) -> Principal | None:
    """What the authorizer function said."""
    context = told.get("lambda")
    return Principal.of(context) if isinstance(context, Mapping) else None


def _of_token(told: Mapping[str, Any]) -> Principal | None:
    """What is in a JWT that API Gateway has verified: its subject, or the client it is of."""
    claims = (told.get("jwt") or {}).get("claims") or {}
    name = str(claims.get("sub") or claims.get("client_id") or "")
    if not name:
        return None
    queues = claims.get(QUEUES_CLAIM)
    return Principal(
        name,
        frozenset(_words(claims.get(SCOPE_CLAIM))),
        # A claim that names no queue allows none.
        None if queues is None else _words(queues),
    )


def _words(claim: Any) -> tuple[str, ...]:
    """A list as claims have it: API Gateway writes arrays as `[a b]`."""
    return tuple(str(claim or "").strip("[]").split())


def _of_role(told: Mapping[str, Any]) -> Principal | None:
    """Whoever signed the request. What they may do IAM has decided, by method and path."""
    name = str((told.get("iam") or {}).get("userArn") or "")
    return Principal(name) if name else None


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Principal | None]] = {
    "none": _nobody_asked,
    "keys": _of_key,
    "jwt": _of_token,
    "iam": _of_role,
}
