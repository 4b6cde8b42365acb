"""Alarms on what an operator must hear of, and a dashboard of what they may want to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aws_cdk import Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from infra.functions import AUTHORIZER
from ojs.store.table.schema import TABLE

if TYPE_CHECKING:
    from aws_cdk import aws_apigatewayv2 as apigatewayv2
    from aws_cdk import aws_dynamodb as dynamodb
    from aws_cdk import aws_lambda as lambda_
    from aws_cdk import aws_sqs as sqs

    from infra.settings import DeploymentSettings

# As functions/sweep/metrics.py and ojs.projections.metrics write them; a test compares.
OLDEST_AGE = "ojs.queue.oldest_age"
DEAD_LETTERS = "ojs.dead_letter.total"
DEPTH = "ojs.queue.depth"
ACTIVE_WORKERS = "ojs.workers.active"
COUNTERS = (
    "ojs.job.enqueued",
    "ojs.job.completed",
    "ojs.job.retried",
    "ojs.job.failed",
    "ojs.job.cancelled",
    "ojs.job.expired",
    "ojs.dead_letter.added_total",
)
LENGTHS = ("ojs.job.queue_time", "ojs.job.duration")

_MINUTE = Duration.minutes(1)
_FIVE_MINUTES = Duration.minutes(5)
_STATES = ("available", "scheduled", "retryable", "active", "pending")

Threshold = cloudwatch.ComparisonOperator
Missing = cloudwatch.TreatMissingData


@dataclass(frozen=True)
class Observed:
    """What a deployment's alarms and dashboard look at."""

    api: apigatewayv2.HttpApi
    table: dynamodb.ITable
    functions: Mapping[str, lambda_.Function]
    failures: sqs.IQueue


class Monitoring(Construct):
    """Alarms, where they are sent to, and a dashboard."""

    def __init__(
        self, scope: Construct, name: str, *, observed: Observed, settings: DeploymentSettings
    ) -> None:
        super().__init__(scope, name)
        self._observed = observed
        self._settings = settings
        self._targets = self._topics()
        self._alarms: list[cloudwatch.Alarm] = []
        self._watch_jobs()
        self._watch_the_stream()
        self._watch_requests()
        self._dashboard()

    # --- where alarms go ----------------------------------------------------------------------

    def _topics(self) -> Sequence[sns.ITopic]:
        settings = self._settings
        topics: list[sns.ITopic] = []
        if settings.alarm_topic_arn:
            topics.append(sns.Topic.from_topic_arn(self, "Given", settings.alarm_topic_arn))
        if settings.alarm_email:
            topic = sns.Topic(
                self, "Topic", display_name=f"{settings.service} alarms", enforce_ssl=True
            )
            topic.add_subscription(subscriptions.EmailSubscription(settings.alarm_email))
            # A topic with a policy of its own has lost the one that lets the account's services in.
            topic.add_to_resource_policy(
                iam.PolicyStatement(
                    actions=["sns:Publish"],
                    principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                    resources=[topic.topic_arn],
                    conditions={"StringEquals": {"aws:SourceAccount": Stack.of(self).account}},
                )
            )
            topics.append(topic)
        return topics

    def _alarm(
        self,
        name: str,
        meaning: str,
        metric: cloudwatch.IMetric,
        threshold: float,
        *,
        comparison: Threshold = Threshold.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        missing: Missing = Missing.NOT_BREACHING,
        periods: int = 1,
        breaching: int | None = None,
    ) -> None:
        """An alarm when `breaching` (all) of the latest `periods` values are over the threshold."""
        if self._settings.is_local and isinstance(metric, cloudwatch.MathExpression):
            return  # the emulator has no alarms on what is calculated
        alarm = cloudwatch.Alarm(
            self,
            name,
            alarm_name=f"{self._settings.service}-{name}",
            alarm_description=meaning,
            metric=metric,
            threshold=threshold,
            comparison_operator=comparison,
            evaluation_periods=periods,
            datapoints_to_alarm=breaching or periods,
            treat_missing_data=missing,
        )
        for topic in self._targets:
            alarm.add_alarm_action(actions.SnsAction(topic))
            alarm.add_ok_action(actions.SnsAction(topic))
        self._alarms.append(alarm)

    # --- alarms -------------------------------------------------------------------------------

    def _watch_jobs(self) -> None:
        settings = self._settings
        self._alarm(
            "oldest-job",
            "A job has been waiting in line for too long: too few workers, or a paused queue. "
            f"The metric {OLDEST_AGE} by queue says which.",
            self._own(OLDEST_AGE, "Maximum"),
            settings.alarm_oldest_job_s,
            # One slow minute is none.
            periods=3,
        )
        self._alarm(
            "dead-letters",
            "Jobs fail for good. GET /ojs/v1/dead-letter lists them with their errors.",
            cloudwatch.MathExpression(
                expression="DIFF(total)",
                using_metrics={"total": self._own(DEAD_LETTERS, "Maximum", period=_FIVE_MINUTES)},
                period=_FIVE_MINUTES,
                label="dead letters more",
            ),
            settings.alarm_dead_letters,
            # A difference needs a value before it.
            periods=2,
            breaching=1,
        )

    def _watch_the_stream(self) -> None:
        settings = self._settings
        sweep = self._observed.functions["sweep"]
        self._alarm(
            "stream-age",
            "Events and statistics are behind: see the log of function stream.",
            self._stream_age(),
            settings.alarm_stream_age_s * 1_000,
            periods=3,
        )
        self._alarm(
            "stream-failures",
            "Changes could not be projected: statistics and events lack them. The messages in "
            "the failure queue say which records, and why.",
            self._failures(),
            1,
        )
        self._alarm(
            "sweep-silent",
            "No sweep has succeeded: schedules, retries and lost leases wait for somebody to "
            "ask for them, and gauges stand still. See the log of function sweep.",
            cloudwatch.MathExpression(
                expression="FILL(runs, 0) - FILL(errors, 0)",
                using_metrics={
                    "runs": sweep.metric_invocations(period=_MINUTE),
                    "errors": sweep.metric_errors(period=_MINUTE),
                },
                period=_MINUTE,
                label="sweeps that succeeded",
            ),
            1,
            comparison=Threshold.LESS_THAN_THRESHOLD,
            missing=Missing.BREACHING,
            periods=settings.alarm_sweep_silence_min,
        )

    def _watch_requests(self) -> None:
        settings = self._settings
        self._alarm(
            "server-errors",
            "Requests fail with status 5xx: see the logs of the functions jobs, workers and "
            "admin; a correlation_id there is the request id of the answer.",
            self._observed.api.metric_server_error(statistic="Sum", period=_FIVE_MINUTES),
            settings.alarm_server_errors,
        )
        if AUTHORIZER in self._observed.functions:
            self._alarm(
                "authorizer-errors",
                "Callers cannot be identified: requests with a key fail with status 500. See "
                "the log of function authorizer.",
                self._observed.functions[AUTHORIZER].metric_errors(period=_FIVE_MINUTES),
                settings.alarm_server_errors,
            )
        self._alarm(
            "table-throttles",
            "The table refuses requests for their rate: clients are asked to try again later. "
            "One hot queue may need more lanes.",
            _sum("throttles", self._table_throttles()),
            settings.alarm_throttles,
        )
        self._alarm(
            "function-throttles",
            "Functions are not run because the account's concurrency is used up, or what is "
            "reserved for one; of authorizer, nobody who has a key is let in.",
            _sum(
                "throttles",
                [
                    function.metric_throttles(period=_FIVE_MINUTES)
                    for function in self._observed.functions.values()
                ],
            ),
            settings.alarm_throttles,
        )

    # --- metrics ------------------------------------------------------------------------------

    def _own(
        self, name: str, statistic: str, *, period: Duration = _MINUTE, **dimensions: str
    ) -> cloudwatch.Metric:
        """A metric that the functions write."""
        return cloudwatch.Metric(
            namespace=self._settings.metrics_namespace,
            metric_name=name,
            dimensions_map={"service": self._settings.service, **dimensions},
            statistic=statistic,
            period=period,
        )

    def _search(
        self, name: str, statistic: str, *dimensions: str, only: str = ""
    ) -> cloudwatch.MathExpression:
        """Every such metric there is: one line for each queue, whatever queues there are."""
        schema = ",".join([self._settings.metrics_namespace, *sorted((*dimensions, "service"))])
        wanted = f'MetricName="{name}" service="{self._settings.service}" {only}'.strip()
        return cloudwatch.MathExpression(
            expression=f"SEARCH('{{{schema}}} {wanted}', '{statistic}', 60)",
            using_metrics={},
            label="",
            period=_MINUTE,
        )

    def _summed(self, name: str) -> cloudwatch.MathExpression:
        """One counter of all queues and types."""
        every = self._search(name, "Sum", "queue", "type")
        return cloudwatch.MathExpression(
            expression=f"SUM({every.expression})", using_metrics={}, label=name, period=_MINUTE
        )

    def _stream_age(self) -> cloudwatch.Metric:
        return self._observed.functions["stream"].metric(
            "IteratorAge", statistic="Maximum", period=_MINUTE
        )

    def _failures(self) -> cloudwatch.Metric:
        return self._observed.failures.metric_approximate_number_of_messages_visible(
            statistic="Maximum", period=_MINUTE
        )

    def _table_throttles(self) -> Sequence[cloudwatch.Metric]:
        """Requests to the table and its indexes that were refused for their rate."""
        table = {"TableName": self._observed.table.table_name}
        places = [table]
        places += [{**table, "GlobalSecondaryIndexName": index.name} for index in TABLE.indexes]
        return [
            cloudwatch.Metric(
                namespace="AWS/DynamoDB",
                metric_name=f"{kind}ThrottleEvents",
                dimensions_map=place,
                statistic="Sum",
                period=_FIVE_MINUTES,
            )
            for place in places
            for kind in ("Read", "Write")
        ]

    # --- dashboard ----------------------------------------------------------------------------

    def _dashboard(self) -> None:
        observed, functions = self._observed, self._observed.functions
        dashboard = cloudwatch.Dashboard(
            self,
            "Dashboard",
            dashboard_name=self._settings.service,
            default_interval=Duration.hours(3),
        )
        dashboard.add_widgets(
            cloudwatch.AlarmStatusWidget(title="Alarms", alarms=self._alarms, width=24, height=3)
        )
        dashboard.add_widgets(
            _graph("Jobs a minute", [self._summed(name) for name in COUNTERS]),
            _graph(
                "Jobs by state",
                [self._own(DEPTH, "Maximum", state=state) for state in _STATES],
            ),
            _graph(
                "Available jobs by queue",
                [self._search(DEPTH, "Maximum", "queue", "state", only='state="available"')],
            ),
        )
        dashboard.add_widgets(
            _graph("Oldest job in line (s)", [self._search(OLDEST_AGE, "Maximum", "queue")]),
            _graph("Time in line, 95 % (s)", [self._search(LENGTHS[0], "p95", "queue", "type")]),
            _graph("Duration, 95 % (s)", [self._search(LENGTHS[1], "p95", "queue", "type")]),
        )
        dashboard.add_widgets(
            _graph("Dead letters", [self._own(DEAD_LETTERS, "Maximum")]),
            _graph("Active workers", [self._own(ACTIVE_WORKERS, "Maximum")]),
            _graph("Stream: age (ms), failures", [self._stream_age()], [self._failures()]),
        )
        dashboard.add_widgets(
            _graph(
                "Requests a minute",
                [
                    observed.api.metric_count(statistic="Sum", period=_MINUTE),
                    observed.api.metric_client_error(statistic="Sum", period=_MINUTE),
                    observed.api.metric_server_error(statistic="Sum", period=_MINUTE),
                ],
            ),
            _graph(
                "Latency (ms)",
                [
                    observed.api.metric_latency(statistic=each, period=_MINUTE)
                    for each in ("p50", "p95", "p99")
                ],
            ),
            _graph(
                "Table: units a minute, throttles",
                [
                    observed.table.metric_consumed_read_capacity_units(period=_MINUTE),
                    observed.table.metric_consumed_write_capacity_units(period=_MINUTE),
                ],
                [_sum("throttles", self._table_throttles())],
            ),
        )
        dashboard.add_widgets(
            _graph(
                "Functions: calls a minute",
                [each.metric_invocations(period=_MINUTE) for each in functions.values()],
            ),
            _graph(
                "Functions: errors",
                [each.metric_errors(period=_MINUTE) for each in functions.values()],
            ),
            _graph(
                "Functions: duration, 95 % (ms)",
                [
                    each.metric_duration(statistic="p95", period=_MINUTE)
                    for each in functions.values()
                ],
            ),
        )


def _sum(label: str, metrics: Sequence[cloudwatch.IMetric]) -> cloudwatch.MathExpression:
    names = {f"m{at}": metric for at, metric in enumerate(metrics)}
    return cloudwatch.MathExpression(
        # Without FILL one that has no value would take the others' with it.
        expression=" + ".join(f"FILL({name}, 0)" for name in names),
        using_metrics=names,
        label=label,
        period=_FIVE_MINUTES,
    )


def _graph(
    title: str,
    left: Sequence[cloudwatch.IMetric],
    right: Sequence[cloudwatch.IMetric] = (),
) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(left), right=list(right), width=8)
