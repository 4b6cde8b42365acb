"""Alarms on what an operator must hear of, and a dashboard of what they may want to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aws_cdk import Annotations, Duration, Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from ojs_aws.cdk import server
from ojs_aws.cdk.functions import API, AUTHORIZER, OUTCOMES, PUSHERS, SEND, SETUP

if TYPE_CHECKING:
    from aws_cdk import aws_dynamodb as dynamodb
    from aws_cdk import aws_lambda as lambda_

    from ojs_aws.cdk.parts.entry import Entry
    from ojs_aws.cdk.parts.push import Queues
    from ojs_aws.cdk.settings import DeploymentSettings

# As functions/sweep/metrics.py and ojs.projections.metrics write them; a test compares.
OLDEST_AGE = "ojs.queue.oldest_age"
BACKLOG = "ojs.workers.backlog"
MISSING = "ojs.workers.missing"
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
CRON_LATENESS = "ojs.cron.lateness"
MIDDLEWARE_FAILED = "ojs.middleware.failed"
LENGTHS = ("ojs.job.queue_time", "ojs.job.duration")

REFUSED = "ojs.api.refused"
# As the stream tells it; a test compares.
DELIVERY_DISABLED = "delivery.disabled"
# The calls of pushes, fetches, acks and sweeps: an alarm is paid for each.
_OPERATIONS = ("PutItem", "UpdateItem", "BatchGetItem", "Query")

_MINUTE = Duration.minutes(1)
_FIVE_MINUTES = Duration.minutes(5)
_STATES = ("available", "scheduled", "retryable", "active", "pending")


class Monitoring(Construct):
    """Alarms, where they are sent to, and a dashboard."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        api: Entry,
        table: dynamodb.ITable,
        functions: Mapping[str, lambda_.Function],
        failures: sqs.IQueue,
        queues: Queues | None = None,
        bus: events.IEventBus,
        topics: Sequence[sns.ITopic] = (),
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(scope, name)
        self._api = api.requests
        self._access_log = api.access_log
        self._table = table
        self._functions = functions
        self._settings = settings
        self._stream_age = functions["stream"].metric(
            "IteratorAge", statistic="Maximum", period=_MINUTE
        )
        self._stream_failures = failures.metric_approximate_number_of_messages_visible(
            statistic="Maximum", period=_MINUTE
        )
        self._table_throttles = _table_throttles(table)
        self._topics = [*topics, *self._make_topics()]
        for topic in self._topics:
            self._let_alarms_in(topic)
        if not self._topics and not settings.is_local:
            Annotations.of(self).add_warning_v2(
                "ojs:alarms-reach-nobody",
                "Nobody is told of alarms: set alarm_email or alarm_topic_arn.",
            )
        self._alarms: list[cloudwatch.Alarm] = []
        self._add_alarms()
        if queues is not None:
            self._watch_push(queues)
            self._tell_of_disabled(bus)
        if settings.dashboard:
            self._dashboard()

    # --- where alarms go ----------------------------------------------------------------------

    def _make_topics(self) -> Sequence[sns.ITopic]:
        settings = self._settings
        topics: list[sns.ITopic] = []
        if settings.alarm_topic_arn:
            topics.append(sns.Topic.from_topic_arn(self, "Given", settings.alarm_topic_arn))
        if settings.alarm_email:
            topic = sns.Topic(
                self, "Topic", display_name=f"{settings.service} alarms", enforce_ssl=True
            )
            topic.add_subscription(subscriptions.EmailSubscription(settings.alarm_email))
            topics.append(topic)
        return topics

    def _let_alarms_in(self, topic: sns.ITopic) -> None:
        # A topic with a policy of its own has lost the one that lets the account's services in.
        # One of another app is left as it is.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                actions=["sns:Publish"],
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Stack.of(self).account}},
            )
        )

    def _alarm(
        self,
        name: str,
        meaning: str,
        metric: cloudwatch.IMetric,
        threshold: float,
        *,
        below: bool = False,
        periods: int = 1,
        breaching: int | None = None,
    ) -> None:
        """Add an alarm: `breaching` (all) of the latest `periods` values reach the threshold.

        With `below` they are below it, or missing.
        """
        if self._settings.is_local and isinstance(metric, cloudwatch.MathExpression):
            return  # the emulator has no alarms on what is calculated
        comparison, missing = cloudwatch.ComparisonOperator, cloudwatch.TreatMissingData
        alarm = cloudwatch.Alarm(
            self,
            name,
            alarm_name=f"{self._settings.service}-{name}",
            alarm_description=meaning,
            metric=metric,
            threshold=threshold,
            comparison_operator=comparison.LESS_THAN_THRESHOLD
            if below
            else comparison.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            evaluation_periods=periods,
            datapoints_to_alarm=breaching or periods,
            treat_missing_data=missing.BREACHING if below else missing.NOT_BREACHING,
        )
        for topic in self._topics:
            alarm.add_alarm_action(actions.SnsAction(topic))
            alarm.add_ok_action(actions.SnsAction(topic))
        self._alarms.append(alarm)

    # --- alarms -------------------------------------------------------------------------------

    def _add_alarms(self) -> None:
        settings, functions = self._settings, self._functions
        self._alarm(
            "oldest-job",
            "A job has been waiting in line for too long: too few workers, or a paused queue. "
            f"The metric {OLDEST_AGE} by queue says which.",
            self._own(OLDEST_AGE),
            settings.alarm_oldest_job_s,
            # One slow minute is none.
            periods=3,
        )
        self._alarm(
            "cron-late",
            "Cron jobs fire too late: the sweep has too much to do, or something keeps it from "
            f"firing them. The metric {CRON_LATENESS} by queue says where.",
            self._own(CRON_LATENESS),
            settings.alarm_cron_late_s,
        )
        self._alarm(
            "dead-letters",
            "Jobs fail for good. GET /ojs/v1/dead-letter lists them with their errors.",
            cloudwatch.MathExpression(
                expression="DIFF(total)",
                using_metrics={"total": self._own(DEAD_LETTERS, period=_FIVE_MINUTES)},
                period=_FIVE_MINUTES,
                label="dead letters more",
            ),
            settings.alarm_dead_letters,
            # A difference needs a value before it.
            periods=2,
            breaching=1,
        )
        self._alarm(
            "stream-age",
            "Events and statistics are behind: see the log of function stream.",
            self._stream_age,
            settings.alarm_stream_age_s * 1_000,
            periods=3,
        )
        self._alarm(
            "stream-failures",
            "Changes could not be projected: statistics and events lack them. The messages in "
            "the failure queue say which records, and why.",
            self._stream_failures,
            1,
        )
        self._alarm(
            "sweep-silent",
            "No sweep has succeeded: schedules, retries and lost leases wait for somebody to "
            "ask for them, and gauges stand still. See the log of function sweep.",
            cloudwatch.MathExpression(
                expression="FILL(runs, 0) - FILL(errors, 0)",
                using_metrics={
                    "runs": functions["sweep"].metric_invocations(period=_MINUTE),
                    "errors": functions["sweep"].metric_errors(period=_MINUTE),
                },
                period=_MINUTE,
                label="sweeps that succeeded",
            ),
            1,
            below=True,
            periods=settings.alarm_sweep_silence_min,
        )
        self._alarm(
            "server-errors",
            f"Requests fail with status 5xx: see the logs of the {self._answering}; a "
            "correlation_id there is the request id of the answer.",
            # A few among very many are none: a caller tries again.
            cloudwatch.MathExpression(
                expression=f"IF(100 * errors >= {settings.alarm_error_percent} * requests, "
                "errors, 0)",
                using_metrics={
                    "errors": self._api.metric_server_error(statistic="Sum"),
                    "requests": self._api.metric_count(statistic="Sum"),
                },
                period=_FIVE_MINUTES,
                label="errors, if they are many",
            ),
            settings.alarm_server_errors,
        )
        self._alarm(
            "latency",
            "Requests are slow: see the dashboard for the functions' durations and throttles, and "
            "the table's.",
            self._api.metric_latency(statistic="p90", period=_FIVE_MINUTES),
            settings.alarm_latency_ms,
            periods=3,
        )
        # A function's log says what was refused at level INFO.
        if not settings.is_local and (
            self._access_log is not None or settings.log_level in ("DEBUG", "INFO")
        ):
            self._alarm(
                "refused",
                "Many more requests than before are refused with 401 or 403: a key has ended or "
                "was revoked, or somebody tries keys. "
                + (
                    "The access log says who, by source_ip and key."
                    if self._access_log
                    else "The log of function api says which operation."
                ),
                cloudwatch.MathExpression(
                    expression="DIFF(FILL(refused, 0))",
                    using_metrics={"refused": self._refused()},
                    period=_FIVE_MINUTES,
                    label="refused requests more",
                ),
                settings.alarm_refused,
                periods=2,
                breaching=1,
            )
        if AUTHORIZER in functions:
            self._alarm(
                "authorizer-errors",
                "Callers cannot be identified: requests with a key fail with status 500. See "
                "the log of function authorizer.",
                functions[AUTHORIZER].metric_errors(period=_FIVE_MINUTES),
                settings.alarm_server_errors,
            )
        if settings.middleware:
            self._alarm(
                "middleware",
                "The deployment's middleware fails or takes too long: pushes are answered with "
                "500 or 504, and cron jobs do not fire. The logs say which, in lines 'middleware "
                "failed'.",
                self._own(MIDDLEWARE_FAILED),
                1,
            )
        self._alarm(
            "table-throttles",
            "The table refuses requests for their rate: clients are asked to try again later. "
            "One hot queue may need more lanes.",
            self._table_throttles,
            settings.alarm_throttles,
        )
        self._alarm(
            "system-errors",
            "DynamoDB fails with errors of its own. Clients are asked to try again; the AWS Health "
            "Dashboard says whether the region is in trouble.",
            _sum(
                [
                    cloudwatch.Metric(
                        namespace="AWS/DynamoDB",
                        metric_name="SystemErrors",
                        dimensions_map={"TableName": self._table.table_name, "Operation": each},
                        statistic="Sum",
                        period=_FIVE_MINUTES,
                    )
                    for each in _OPERATIONS
                ],
                "system errors",
            ),
            settings.alarm_system_errors,
        )
        self._alarm(
            "function-throttles",
            "Functions are not run because the account's concurrency is used up, or what is "
            "reserved for one; of authorizer, nobody who has a key is let in.",
            _sum(
                [
                    each.metric_throttles(period=_FIVE_MINUTES)
                    for name, each in functions.items()
                    # CloudFormation calls that one, and tries again. Of messages that wait for
                    # their function the age says it.
                    if name not in (SETUP, *PUSHERS)
                ],
                "throttles",
            ),
            settings.alarm_throttles,
        )

    def _watch_push(self, queues: Queues) -> None:
        """Of wake-ups there is none: while they wait, jobs do, and oldest-job says so."""
        waiting = {
            OUTCOMES: "What became of pushed jobs is not heard: their leases run out, and they are "
            "pushed again. See the log of function outcomes.",
            SEND: "Jobs for endpoints are claimed and not sent: see the log of function sender, "
            "and raise push_concurrency if it does nothing but wait for endpoints.",
        }
        for name, meaning in waiting.items():
            self._alarm(
                f"push-{name}",
                meaning,
                queues.by_name[name].metric_approximate_age_of_oldest_message(
                    statistic="Maximum", period=_MINUTE
                ),
                self._settings.alarm_push_age_s,
                periods=3,
            )
        self._alarm(
            "push-failures",
            "Messages of push delivery could not be handled: outcomes of jobs, or jobs to be sent, "
            "which are tried again when their leases end. The logs of functions dispatch, sender "
            "and outcomes say why.",
            queues.failures.metric_approximate_number_of_messages_visible(
                statistic="Maximum", period=_MINUTE
            ),
            1,
        )

    def watch_bridge(self, name: str, queue: sqs.IQueue, age_s: int) -> None:
        """Alarms on an SQS queue whose messages become jobs, and on its dead-letter queue where
        the app has made both: of a queue of another app nothing says which that is.
        """
        self._alarm(
            f"bridge-{name}",
            "Messages wait too long to become jobs: the function does not run, the table refuses "
            "it, or they are refused again and again. See the log of the function that is "
            "subscribed to the SQS queue.",
            queue.metric_approximate_age_of_oldest_message(statistic="Maximum", period=_MINUTE),
            age_s,
            periods=3,
        )
        lost = queue.dead_letter_queue if isinstance(queue, sqs.Queue) else None
        if lost is None:
            return
        self._alarm(
            f"bridge-{name}-lost",
            "Messages became no jobs, as often as they were tried. They are in the dead-letter "
            "queue of the SQS queue; the function's log has the codes of the errors and their ids.",
            lost.queue.metric_approximate_number_of_messages_visible(
                statistic="Maximum", period=_MINUTE
            ),
            1,
        )

    def _tell_of_disabled(self, bus: events.IEventBus) -> None:
        """A rule, which costs nothing while nothing is wrong."""
        if not self._topics:
            return
        name = events.EventField.from_path("$.detail.subject")
        told = (
            f"Delivery {name} of {self._settings.service} is disabled: its target is gone, or "
            "refuses to be called. Its jobs wait until it is resumed: "
            f"POST /ojs/v1/admin/deliveries/{name}/resume."
        )
        events.Rule(
            self,
            "Disabled",
            description="Deliveries that are disabled are told where alarms are sent",
            event_bus=bus,
            event_pattern=events.EventPattern(source=["ojs"], detail_type=[DELIVERY_DISABLED]),
            targets=[
                targets.SnsTopic(topic, message=events.RuleTargetInput.from_text(told))
                for topic in self._topics
            ],
        )

    # --- metrics ------------------------------------------------------------------------------

    @property
    def _answering(self) -> str:
        """The functions that answer requests."""
        return "function api" if API in self._functions else "functions jobs, workers and admin"

    def _refused(self) -> cloudwatch.Metric:
        """Requests answered with 401 or 403, counted in the access log, or where there is none in
        that of the function: no other metric tells them from other mistakes of callers.
        """
        statuses = (401, 403)
        return logs.MetricFilter(
            self,
            "Refused",
            log_group=self._access_log or self._functions[API].log_group,
            # Such a metric has no dimensions: the namespace tells deployments apart.
            metric_namespace=f"{self._settings.metrics_namespace}/{self._settings.service}",
            metric_name=REFUSED,
            filter_pattern=logs.FilterPattern.any(
                *(
                    # In the access log all values are texts.
                    logs.FilterPattern.string_value("$.status", "=", str(each))
                    if self._access_log
                    else logs.FilterPattern.number_value("$.status", "=", each)
                    for each in statuses
                )
            ),
            metric_value="1",
            default_value=0,
        ).metric(statistic="Sum", period=_FIVE_MINUTES)

    def _own(
        self, name: str, *, period: Duration = _MINUTE, **dimensions: str
    ) -> cloudwatch.Metric:
        """A gauge that the functions write."""
        return own_metric(self._settings, name, period=period, **dimensions)

    def _search(self, name: str, statistic: str, *dimensions: str, only: str = "") -> str:
        """An expression for every such metric there is, whatever queues there are."""
        schema = ",".join([self._settings.metrics_namespace, *sorted((*dimensions, "service"))])
        wanted = f'MetricName="{name}" service="{self._settings.service}" {only}'.strip()
        return f"SEARCH('{{{schema}}} {wanted}', '{statistic}', 60)"

    # --- dashboard ----------------------------------------------------------------------------

    def _dashboard(self) -> None:
        api, table, functions = self._api, self._table, self._functions.values()
        dashboard = cloudwatch.Dashboard(
            self,
            "Dashboard",
            dashboard_name=self._settings.service,
            default_interval=Duration.hours(3),
        )
        dashboard.add_widgets(
            cloudwatch.AlarmStatusWidget(title="Alarms", alarms=self._alarms, width=24, height=3)
        )
        available = self._search(DEPTH, "Maximum", "queue", "state", only='state="available"')
        counted = {name: self._search(name, "Sum", "queue", "type") for name in COUNTERS}
        lengths = [self._search(name, "p95", "queue", "type") for name in LENGTHS]
        dashboard.add_widgets(
            _graph("Jobs a minute", [_line(f"SUM({counted[name]})", name) for name in COUNTERS]),
            _graph(
                "Jobs by state",
                [_or_zero(self._own(DEPTH, state=state), state) for state in _STATES],
            ),
            _graph("Available jobs by queue", [_line(available)]),
        )
        oldest = self._search(OLDEST_AGE, "Maximum", "queue")
        dashboard.add_widgets(
            _graph("Oldest job in line (s)", [_line(oldest)]),
            _graph("Time in line, 95 % (s)", [_line(lengths[0])]),
            _graph("Duration, 95 % (s)", [_line(lengths[1])]),
        )
        dashboard.add_widgets(
            _graph("Dead letters", [self._own(DEAD_LETTERS)]),
            _graph("Active workers", [_or_zero(self._own(ACTIVE_WORKERS), "workers")]),
            _graph("Stream: age (ms), failures", [self._stream_age], [self._stream_failures]),
        )
        requests = (api.metric_count, api.metric_client_error, api.metric_server_error)
        latencies = ("p50", "p95", "p99")
        units = (
            table.metric_consumed_read_capacity_units,
            table.metric_consumed_write_capacity_units,
        )
        dashboard.add_widgets(
            _graph(
                "Requests a minute", [each(statistic="Sum", period=_MINUTE) for each in requests]
            ),
            _graph(
                "Latency (ms)",
                [api.metric_latency(statistic=each, period=_MINUTE) for each in latencies],
            ),
            _graph(
                "Table: units a minute, throttles",
                [each(period=_MINUTE) for each in units],
                [self._table_throttles],
            ),
        )
        dashboard.add_widgets(
            _graph(
                "Functions: calls a minute",
                [each.metric_invocations(period=_MINUTE) for each in functions],
            ),
            _graph("Functions: errors", [each.metric_errors(period=_MINUTE) for each in functions]),
            _graph(
                "Functions: duration, 95 % (ms)",
                [each.metric_duration(statistic="p95", period=_MINUTE) for each in functions],
            ),
        )


def own_metric(
    settings: DeploymentSettings, name: str, *, period: Duration, **dimensions: str
) -> cloudwatch.Metric:
    """A gauge that the functions of this deployment write."""
    return cloudwatch.Metric(
        namespace=settings.metrics_namespace,
        metric_name=name,
        dimensions_map={"service": settings.service, **dimensions},
        statistic="Maximum",
        period=period,
    )


def _table_throttles(table: dynamodb.ITable) -> cloudwatch.MathExpression:
    """Requests to the table and its indexes that were refused for their rate."""
    name = {"TableName": table.table_name}
    indexes = [{**name, "GlobalSecondaryIndexName": index.name} for index in server.INDEXES]
    return _sum(
        [
            cloudwatch.Metric(
                namespace="AWS/DynamoDB",
                metric_name=f"{kind}ThrottleEvents",
                dimensions_map=dimensions,
                statistic="Sum",
                period=_FIVE_MINUTES,
            )
            for dimensions in (name, *indexes)
            for kind in ("Read", "Write")
        ],
        "throttles",
    )


def _sum(metrics: Sequence[cloudwatch.IMetric], label: str) -> cloudwatch.MathExpression:
    names = {f"m{at}": metric for at, metric in enumerate(metrics)}
    return cloudwatch.MathExpression(
        # Without FILL one that has no value would take the others' with it.
        expression=" + ".join(f"FILL({name}, 0)" for name in names),
        using_metrics=names,
        label=label,
        period=_FIVE_MINUTES,
    )


def _or_zero(metric: cloudwatch.Metric, name: str) -> cloudwatch.MathExpression:
    """A gauge whose zeros are not written, under a name that no other has in its graph."""
    return cloudwatch.MathExpression(
        expression=f"FILL({name}, 0)", using_metrics={name: metric}, label=name, period=_MINUTE
    )


def _line(expression: str, label: str = "") -> cloudwatch.MathExpression:
    return cloudwatch.MathExpression(
        expression=expression, using_metrics={}, label=label, period=_MINUTE
    )


def _graph(
    title: str, left: Sequence[cloudwatch.IMetric], right: Sequence[cloudwatch.IMetric] = ()
) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(left), right=list(right), width=8)
