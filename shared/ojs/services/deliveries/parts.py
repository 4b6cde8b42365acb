"""Parts of a deployment that deliveries use: message queues, targets, and allowed targets."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ojs.domain.delivery import addresses
from ojs.domain.delivery.delivery import Delivery, DisabledReason
from ojs.domain.delivery.push import SendQueue, Target, WakeQueue
from ojs.domain.errors import Unsupported, ValidationFailed
from ojs.records import record


@record(frozen=True)
class AllowedTargets:
    """Targets that deliveries of this deployment can have.

    Attributes:
        functions: ARNs of Lambda functions, without alias or version.
        egress_hosts: Hosts of allowed endpoints.
        check_endpoint: Raises ValueError, with the rule, for an endpoint that is not allowed.
        handlers: Handler names. Local server only.
    """

    functions: Collection[str] = ()
    egress_hosts: Collection[str] = ()
    check_endpoint: Callable[[str], None] | None = None
    handlers: Collection[str] = ()

    def check(self, delivery: Delivery, *, named: str = "target.endpoint") -> None:
        """Check that the target of a delivery is allowed.

        Raises Unsupported or ValidationFailed with the field. `named` is the field of the endpoint.
        """
        if delivery.handler is not None and delivery.handler not in self.handlers:
            message = (
                "'target.handler': requires a local server with --deliver for this handler. "
                "Otherwise set target.function or target.endpoint."
            )
            raise Unsupported(message, field="target.handler")
        refused = self.refused(delivery)
        if refused is DisabledReason.FUNCTION_NOT_ALLOWED:
            raise ValidationFailed(
                "target.function",
                "is not allowed. Add the function with backend.add_worker or to the setting "
                "push_functions",
                value=delivery.function,
            )
        if delivery.endpoint is not None:
            if self.check_endpoint is None:
                told = f"'{named}': is not supported by this server. Use target.function."
                raise Unsupported(told, field=named)
            try:
                self.check_endpoint(delivery.endpoint)
            except ValueError as error:
                raise ValidationFailed(named, str(error), value=delivery.endpoint) from None
        if refused is DisabledReason.ENDPOINT_NOT_ALLOWED:
            rule = f"has a host that is missing in the setting egress_hosts. Add {delivery.host}"
            raise ValidationFailed(named, rule, value=delivery.endpoint)

    def refused(self, delivery: Delivery) -> DisabledReason | None:
        """Return the reason why the target of a delivery is not allowed, or None."""
        function, host = delivery.unqualified_function, delivery.host
        if function is not None and function not in self.functions:
            return DisabledReason.FUNCTION_NOT_ALLOWED
        if host is not None and not addresses.allowed(host, self.egress_hosts):
            return DisabledReason.ENDPOINT_NOT_ALLOWED
        return None


@record(frozen=True)
class DeliveryDependencies:
    """Parts that a deployment or a local server provides.

    `target` returns the target of a delivery. `sends` queues pushes that wait for their target. If
    None, dispatch waits.
    """

    wakes: WakeQueue
    target: Callable[[Delivery], Target]
    allowed: AllowedTargets
    sends: SendQueue | None = None
