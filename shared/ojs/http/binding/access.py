"""Authenticates the caller of a request and checks its permissions.

API Gateway writes the caller's identity to `requestContext`. A client can't write to it. The
deployment's authorizer determines which field is read. If the function has no authorizer, it looks
up the access key itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ojs.domain.access import ANYBODY, Principal
from ojs.domain.errors import Unauthenticated, forbidden
from ojs.domain.tenants import DEFAULT, is_tenant
from ojs.http.endpoint import QueueScope

if TYPE_CHECKING:
    from ojs.http.binding.request import Request
    from ojs.http.endpoint import Operation
    from ojs.runtime import Runtime

# The claim of a JWT that lists queues, separated by spaces. A setting names the claim with scopes.
QUEUES_CLAIM = "ojs_queues"
_FILTERS = ("queue", "queues")
_TENANT_HEADERS = {"x-ojs-tenant", "x-ojs-tenant-id"}


class Authorizer:
    """Checks each request before its operation runs."""

    def __init__(self, current: Callable[[], Runtime]) -> None:
        """Store `current`, which is called for each request, not before."""
        self._current = current

    def let_in(self, headers: Mapping[str, str]) -> None:
        """Reject a request that bypassed the configured origin.

        Args:
            headers: Headers of the request. Their names are in lower case.

        Raises:
            PermissionDenied: The request bypassed the origin.
            BackendUnavailable: The check is not possible now.
        """
        if (origin := self._current().origin) is not None:
            origin.check(headers)

    def who(self, event: Mapping[str, Any]) -> Principal:
        """Return the caller. Raise Unauthenticated if there is none."""
        current = self._current()
        if current.settings.looks_up_keys:
            headers = event.get("headers") or {}
            given = {name.lower(): value for name, value in headers.items()}
            found = current.callers.who(given.get("authorization"))
        else:
            context = event["requestContext"].get("authorizer") or {}
            found = _READERS[current.settings.authorizer](context, current)
        if found is None:
            raise Unauthenticated
        return found

    @property
    def closed(self) -> bool:
        """Return whether callers must authenticate."""
        return self._current().settings.authorizer != "none"

    def with_tenant_of_headers(self, principal: Principal, headers: Mapping[str, str]) -> Principal:
        """Return the caller, limited to the tenant it acts for.

        Raises InvalidRequest for a malformed header, and PermissionDenied for another tenant.
        """
        if principal.tenant is None and not _TENANT_HEADERS & headers.keys():
            return principal
        from ojs.http.binding import tenancy

        return tenancy.with_tenant_of_headers(principal, headers)

    def with_tenant_of(self, request: Request) -> Principal:
        """Return the caller of a push, limited to the tenant that `meta` of its jobs names.

        Only with the setting `tenant_from_meta`, and for a caller without a tenant. Raises
        InvalidRequest for several tenants, and PermissionDenied for one out of reach.
        """
        principal = request.principal
        if (
            not self._current().settings.tenant_from_meta
            or _TENANT_HEADERS & request.headers.keys()
        ):
            return principal
        from ojs.http.binding import tenancy

        if principal.tenant is not None or not tenancy.is_push(request.operation):
            return principal
        return tenancy.with_tenant_of_meta(principal, request.object())

    def permit(self, principal: Principal, operation: Operation) -> None:
        """Raise PermissionDenied if the caller's scopes or queue scope exclude the operation.

        Raises TooManyRequests if the caller's key exceeds its limit.
        """
        needed = operation.permission
        scopes = principal.scopes
        if needed.scope is not None and not scopes & {needed.scope, *needed.others}:
            raise forbidden()
        if principal.limited and needed.reach is QueueScope.ALL:
            raise forbidden()
        if principal.max_requests_per_s is not None:
            self._current().key_rates.check(principal)

    def admit(self, request: Request) -> None:
        """Raise PermissionDenied for queues outside the caller's queue scope.

        Raise NotFound for a missing job. The operation itself checks the queues that the body
        names (`Request.touches`).
        """
        if not request.principal.limited:
            return
        match request.operation.permission.reach:
            case QueueScope.PATH:
                request.touches(request.named)
            case QueueScope.JOB:
                request.check_job_reach(self._current().jobs.queue_of(request.named), request.named)
            case QueueScope.FILTER:
                request.touches(*(filtered(request.query) or (None,)))
            case QueueScope.TENANT:
                chosen = filtered(request.query)
                if chosen or not request.principal.whole_tenant:
                    request.touches(*(chosen or (None,)))


def filtered(query: Mapping[str, str]) -> list[str]:
    """Return the queues that a query selects. An empty list selects all queues."""
    texts = [query[name] for name in _FILTERS if query.get(name)]
    return [name.strip() for text in texts for name in text.split(",")]


def _anybody(_context: Mapping[str, Any], _current: Runtime) -> Principal | None:
    return ANYBODY


def _of_key(context: Mapping[str, Any], _current: Runtime) -> Principal | None:
    """Return the principal that the authorizer function found."""
    found = context.get("lambda")
    return Principal.of(found) if isinstance(found, Mapping) else None


def _of_token(context: Mapping[str, Any], current: Runtime) -> Principal | None:
    """Return the subject, or else the client, of a JWT that API Gateway has verified.

    Its scopes are the words of one claim that start with a prefix. Settings define both.
    """
    claims = (context.get("jwt") or {}).get("claims") or {}
    name = str(claims.get("sub") or claims.get("client_id") or "")
    if not name:
        return None
    settings, queues = current.settings, claims.get(QUEUES_CLAIM)
    tenant = claims.get(settings.jwt_tenant_claim)
    if tenant is not None and not is_tenant(str(tenant)):
        return None
    prefix = settings.jwt_scope_prefix
    words = _words(claims.get(settings.jwt_scope_claim))
    return Principal(
        name,
        frozenset(word[len(prefix) :] for word in words if word.startswith(prefix)),
        # An empty claim allows no queue.
        None if queues is None else _words(queues),
        until_ms=_expiry_ms(claims.get("exp")),
        tenant=None if tenant in (None, DEFAULT) else str(tenant),
    )


def _expiry_ms(claim: Any) -> int | None:
    """Return when a token expires (ms). API Gateway writes the claim as text, perhaps as 1.7E9."""
    return None if claim is None else int(float(claim) * 1_000)


def _words(claim: Any) -> tuple[str, ...]:
    """Return the words of a claim. API Gateway writes an array as `[a b]`."""
    return tuple(str(claim or "").strip("[]").split())


def _of_role(context: Mapping[str, Any], current: Runtime) -> Principal | None:
    """Return the role that signed the request. IAM has already allowed its method and path."""
    arn = str((context.get("iam") or {}).get("userArn") or "")
    return current.roles.who(arn) if arn else None


_READERS: Mapping[str, Callable[[Mapping[str, Any], Runtime], Principal | None]] = {
    "none": _anybody,
    "keys": _of_key,
    "jwt": _of_token,
    "iam": _of_role,
}
