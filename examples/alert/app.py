"""Send an e-mail when a job becomes a dead letter: a rule on the event bus, and a topic.

    node_modules/.bin/cdk deploy --app ".venv/bin/python examples/alert/app.py" \
      -c bus=ojs-dev -c email=ops@example.com

This is a separate CDK app. It needs only the name of the backend's event bus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import App, CfnOutput, CliCredentialsStackSynthesizer, Stack
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions

if TYPE_CHECKING:
    from constructs import Construct


class DeadLetterAlert(Stack):
    """Sends one line to a topic for each job that becomes a dead letter."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        bus: str,
        queue: str | None = None,
        email: str | None = None,
    ) -> None:
        """Create the stack.

        Args:
            scope: The app.
            name: Name of the stack.
            bus: Name of the backend's event bus.
            queue: The only queue to report. Default: all queues.
            email: Address that receives the lines. Default: none.
        """
        # The stack has no assets, so the account needs no bootstrapping.
        super().__init__(scope, name, synthesizer=CliCredentialsStackSynthesizer())
        topic = sns.Topic(self, "Topic", display_name="Jobs failed", enforce_ssl=True)
        if email:
            topic.add_subscription(subscriptions.EmailSubscription(email))
        field = events.EventField.from_path
        # Don't add the text of the error: EventBridge inserts values without escaping, and a quote
        # in the text would prevent the delivery.
        line = (
            f"Job {field('$.detail.subject')} ({field('$.detail.data.job_type')}) of queue "
            f"{field('$.detail.data.queue')} is a dead letter after "
            f"{field('$.detail.data.total_attempts')} attempts."
        )
        events.Rule(
            self,
            "Rule",
            description="Open Job Spec: a job went to the dead letter",
            event_bus=events.EventBus.from_event_bus_name(self, "Bus", bus),
            event_pattern=events.EventPattern(
                source=["ojs"],
                detail_type=["dead_letter.added"],
                detail={"data": {"queue": [queue]}} if queue else None,
            ),
            targets=[targets.SnsTopic(topic, message=events.RuleTargetInput.from_text(line))],
        )
        CfnOutput(self, "TopicArn", value=topic.topic_arn)


def main() -> None:
    """Write the cloud assembly, with the values of the context."""
    app = App()
    context = app.node.try_get_context
    bus = context("bus") or "ojs-dev"
    DeadLetterAlert(app, f"{bus}-alert", bus=bus, queue=context("queue"), email=context("email"))
    app.synth()


if __name__ == "__main__":
    main()
