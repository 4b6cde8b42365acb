"""What runs by the clock."""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_lambda as lambda_
from constructs import Construct


class EveryMinute(Construct):
    """Calls a function every minute with EventBridge's scheduled event."""

    def __init__(
        self, scope: Construct, name: str, *, function: lambda_.Function, description: str
    ) -> None:
        super().__init__(scope, name)
        # A run that failed is not repeated: the next one, a minute later, takes up what it left.
        # Neither EventBridge nor Lambda's own queue for asynchronous calls may pile up old runs.
        function.configure_async_invoke(retry_attempts=0, max_event_age=Duration.minutes(1))
        events.Rule(
            self,
            "Rule",
            description=description,
            schedule=events.Schedule.rate(Duration.minutes(1)),
            targets=[
                targets.LambdaFunction(
                    function, retry_attempts=0, max_event_age=Duration.minutes(1)
                )
            ],
        )
