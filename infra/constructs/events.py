"""The bus on which others hear of what happens to jobs, queues and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import aws_events as events
from constructs import Construct

if TYPE_CHECKING:
    from infra.settings import DeploymentSettings


class EventBus(Construct):
    """An EventBridge bus of the deployment's own, for the rules of other applications. `bus`."""

    def __init__(self, scope: Construct, name: str, *, settings: DeploymentSettings) -> None:
        super().__init__(scope, name)
        # A name that can be known beforehand: rules are made elsewhere, and name it.
        self.bus = events.EventBus(
            self,
            "Bus",
            event_bus_name=settings.service,
            description=f"Open Job Spec events of {settings.service}",
        )
