"""A backend in your own stack: a queue, a role that runs its jobs, and an address for alarms.

pip install "ojs_backend_aws-….whl[cdk]"
cdk deploy --app "python app.py" -c email=ops@example.com
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aws_cdk import App, CfnOutput, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions

from ojs_aws.cdk import DeploymentSettings, OpenJobSpec

if TYPE_CHECKING:
    from constructs import Construct


class MailStack(Stack):
    """E-mail of a shop: its web site enqueues jobs, and a task on ECS sends the mail."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        settings: DeploymentSettings | None = None,
        email: str | None = None,
    ) -> None:
        """Create the stack.

        Args:
            scope: The app.
            name: Name of the stack.
            settings: Settings of the backend. Default: the stage `mail`.
            email: Address that receives alarms. Default: none.
        """
        super().__init__(scope, name)
        trouble = sns.Topic(self, "Trouble", display_name="Mail: trouble", enforce_ssl=True)
        if email:
            trouble.add_subscription(subscriptions.EmailSubscription(email))

        jobs = OpenJobSpec(
            self,
            "Jobs",
            settings=settings or DeploymentSettings(stage="mail"),
            alarm_topics=[trouble],
        )
        jobs.add_queue("mail", max_size=10_000, rate_limit=(100, "PT1S"))
        jobs.add_cron(
            "digest",
            expression="0 7 * * 1-5",
            timezone="Europe/Berlin",
            job_type="mail.digest",
            queue="mail",
        )

        sender = iam.Role(
            self, "Sender", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com")
        )
        granted = jobs.grant_work(sender, queues=["mail"])

        late = cloudwatch.Alarm(
            self,
            "MailIsLate",
            alarm_description="Mail has been waiting for five minutes",
            metric=jobs.metric_oldest_job("mail"),
            threshold=300,
            evaluation_periods=3,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
        )
        late.add_alarm_action(actions.SnsAction(trouble))
        lost = f"Mail was not sent: job {events.EventField.from_path('$.detail.subject')}."
        jobs.on_event(
            "dead_letter.added",
            targets.SnsTopic(trouble, message=events.RuleTargetInput.from_text(lost)),
        )

        CfnOutput(self, "Url", value=jobs.url)
        CfnOutput(self, "Topic", value=trouble.topic_arn)
        if granted.secret is not None:
            # The task reads its key from this secret: `secrets` of a container, or GetSecretValue.
            CfnOutput(self, "SenderKey", value=granted.secret.secret_arn)


def main() -> None:
    """Write the cloud assembly, with the values of the context."""
    app = App()
    MailStack(app, "mail", email=app.node.try_get_context("email"))
    app.synth()


if __name__ == "__main__":
    main()
