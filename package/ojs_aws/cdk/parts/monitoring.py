"""CloudWatch alarms and a CloudWatch dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
from ojs_aws.cdk.functions import API, AUTHORIZER, OUTCOMES, PUSHERS, SEND, SETUP, WEBHOOK

if TYPE_CHECKING:
    from aws_cdk import aws_dynamodb as dynamodb
    from aws_cdk import aws_lambda as lambda_

    from ojs_aws.cdk.parts.entry import Entry
    from ojs_aws.cdk.parts.outbox import Outbox
    from ojs_aws.cdk.parts.push import Queues
    from ojs_aws.cdk.parts.webhooks import Webhooks
    from ojs_aws.cdk.settings import DeploymentSettings

# Names that functions/sweep/metrics.py and ojs.projections.metrics write; a test compares them.
OLDEST_AGE = "ojs.queue.oldest_age"
BACKLOG = "ojs.workers.backlog"
MISSING = "ojs.workers.missing"
DEAD_LETTERS = "ojs.dead_letter.total"
DEAD_ADDED = "ojs.dead_letter.added_total"
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
# The event type of the server; a test compares them.
DELIVERY_DISABLED = "delivery.disabled"
WEBHOOK_DISABLED = "webhook.subscription.disabled"
# Operations of enqueue, fetch, ack, and sweep. Each alarm costs money.
_OPERATIONS = ("PutItem", "UpdateItem", "BatchGetItem", "Query")

_MINUTE = Duration.minutes(1)
_FIVE_MINUTES = Duration.minutes(5)
_STATES = ("available", "scheduled", "retryable", "active", "pending")


class Alarm(NamedTuple):
    """An alarm: name, description, and metric.

    The alarm is raised if `breaching` (default: all) of the last `periods` values reach the
    threshold. With `below` it is raised if they are below it, or missing. Threshold and periods are
    numbers, or names of settings. `times` converts the threshold to the unit of the metric.
    """

    name: str
    meaning: str
    metric: Callable[[Any], cloudwatch.IMetric]
    threshold: str | float
    periods: str | int = 1
    breaching: int | None = None
    below: bool = False
    times: int = 1
    where: Callable[[Any], object] = lambda _: True


class Monitoring(Construct):
    """Alarms, their topics, and a dashboard."""

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
        webhooks: Webhooks | None = None,
        bus: events.IEventBus,
        topics: Sequence[sns.ITopic] = (),
        settings: DeploymentSettings,
    ) -> None:
        super().__init__(scope, name)
        self.api = api.requests
        self.access_log = api.access_log
        self.table = table
        self.functions = functions
        self.settings = settings
        self.stream_age = functions["stream"].metric(
            "IteratorAge", statistic="Maximum", period=_MINUTE
        )
        self.stream_failures = _visible(failures)
        self.table_throttles = _table_throttles(table)
        self._topics = [*topics, *self._make_topics()]
        for topic in self._topics:
            self._let_alarms_in(topic)
        if not self._topics and not settings.is_local:
            Annotations.of(self).add_warning_v2(
                "ojs:alarms-reach-nobody",
                "No alarm notifications are configured. Set alarm_email or alarm_topic_arn.",
            )
        self._alarms: list[cloudwatch.Alarm] = []
        for alarm in ALARMS:
            if alarm.where(self):
                self._add(alarm, alarm.metric(self))
        if queues is not None:
            for alarm in PUSH_ALARMS:
                self._add(alarm, alarm.metric(queues))
            self._tell_of(bus, "Disabled", DELIVERY_DISABLED, "deliveries", _DELIVERY_OFF)
        if webhooks is not None:
            self._add(WEBHOOK_ALARM, WEBHOOK_ALARM.metric(webhooks))
            self._tell_of(bus, "WebhookDisabled", WEBHOOK_DISABLED, "webhooks", _WEBHOOK_OFF)
        if settings.dashboard:
            self._dashboard()

    # --- where alarms go ----------------------------------------------------------------------

    def _make_topics(self) -> Sequence[sns.ITopic]:
        settings = self.settings
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
        # A topic with its own policy has lost the default policy, which allows services of the
        # account. A topic of another app is unchanged.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                actions=["sns:Publish"],
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                resources=[topic.topic_arn],
                conditions={"StringEquals": {"aws:SourceAccount": Stack.of(self).account}},
            )
        )

    def _add(self, alarm: Alarm, metric: cloudwatch.IMetric) -> None:
        if self.settings.is_local and isinstance(metric, cloudwatch.MathExpression):
            return  # the emulator doesn't support alarms on math expressions
        comparison, missing = cloudwatch.ComparisonOperator, cloudwatch.TreatMissingData
        periods = int(self._number(alarm.periods))
        made = cloudwatch.Alarm(
            self,
            alarm.name,
            alarm_name=f"{self.settings.service}-{alarm.name}",
            alarm_description=alarm.meaning.format(self),
            metric=metric,
            threshold=alarm.times * self._number(alarm.threshold),
            comparison_operator=comparison.LESS_THAN_THRESHOLD
            if alarm.below
            else comparison.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            evaluation_periods=periods,
            datapoints_to_alarm=alarm.breaching or periods,
            treat_missing_data=missing.BREACHING if alarm.below else missing.NOT_BREACHING,
        )
        for topic in self._topics:
            made.add_alarm_action(actions.SnsAction(topic))
            made.add_ok_action(actions.SnsAction(topic))
        self._alarms.append(made)

    def _number(self, value: str | float) -> float:
        """Return a number, or the value of a setting."""
        found: float = getattr(self.settings, value) if isinstance(value, str) else value
        return found

    def watch_bridge(self, name: str, queue: sqs.IQueue, age_s: int) -> None:
        """Add alarms for an SQS queue whose messages become jobs, and for its dead-letter queue.

        The dead-letter queue is known only if the app creates both queues.
        """
        waits = Alarm(f"bridge-{name}", _BRIDGE_WAITS, lambda _: _age(queue), age_s, periods=3)
        self._add(waits, waits.metric(self))
        if isinstance(queue, sqs.Queue) and (lost := queue.dead_letter_queue) is not None:
            metric = _visible(lost.queue)
            self._add(Alarm(f"bridge-{name}-lost", _BRIDGE_LOST, lambda _: metric, 1), metric)

    def watch_outbox(
        self, name: str, function: lambda_.Function, outbox: Outbox, age_s: int
    ) -> None:
        """Add alarms for an outbox: its stream, waiting jobs, and refused items."""
        behind = function.metric("IteratorAge", statistic="Maximum", period=_MINUTE)
        later, refused = _age(outbox.later), _visible(outbox.refused)
        for alarm in (
            Alarm(f"outbox-{name}", _OUTBOX_BEHIND, lambda _: behind, 1_000 * age_s, 3),
            Alarm(f"outbox-{name}-later", _OUTBOX_WAITS, lambda _: later, age_s, 3),
            Alarm(f"outbox-{name}-refused", _OUTBOX_REFUSED, lambda _: refused, 1),
        ):
            self._add(alarm, alarm.metric(self))

    def _tell_of(
        self, bus: events.IEventBus, rule: str, kind: str, what: str, message: str
    ) -> None:
        """Add a rule that sends a message for each event of a type. It costs nothing without them.

        Args:
            bus: Bus with the events.
            rule: ID of the rule.
            kind: Type of the events.
            what: The disabled resources.
            message: Message, with the places `name` and `service`.
        """
        if not self._topics:
            return
        name = events.EventField.from_path("$.detail.subject")
        told = message.format(name=name, service=self.settings.service)
        events.Rule(
            self,
            rule,
            description=f"Notifies the topics of alarms about disabled {what}",
            event_bus=bus,
            event_pattern=events.EventPattern(source=["ojs"], detail_type=[kind]),
            targets=[
                targets.SnsTopic(topic, message=events.RuleTargetInput.from_text(told))
                for topic in self._topics
            ],
        )

    # --- metrics ------------------------------------------------------------------------------

    @property
    def answering(self) -> str:
        """Names of the functions that process requests."""
        return "function api" if API in self.functions else "functions jobs, workers and admin"

    @property
    def who(self) -> str:
        """Location of the facts about rejected requests."""
        if self.access_log:
            return "Find their source_ip and key in the access log."
        return "Find their operations in the log of function api."

    def refused(self) -> cloudwatch.Metric:
        """Return the number of responses with 401 or 403, from the access log or the function's
        log.

        Other metrics don't distinguish them from other client errors.
        """
        statuses = (401, 403)
        return logs.MetricFilter(
            self,
            "Refused",
            log_group=self.access_log or self.functions[API].log_group,
            # A metric filter without dimensions: the namespace separates the deployments.
            metric_namespace=f"{self.settings.metrics_namespace}/{self.settings.service}",
            metric_name=REFUSED,
            filter_pattern=logs.FilterPattern.any(
                *(
                    # The access log has strings only.
                    logs.FilterPattern.string_value("$.status", "=", str(each))
                    if self.access_log
                    else logs.FilterPattern.number_value("$.status", "=", each)
                    for each in statuses
                )
            ),
            metric_value="1",
            default_value=0,
        ).metric(statistic="Sum", period=_FIVE_MINUTES)

    def own(
        self,
        name: str,
        *,
        period: Duration = _MINUTE,
        statistic: str = "Maximum",
        **dimensions: str,
    ) -> cloudwatch.Metric:
        """A metric that the functions write."""
        return own_metric(self.settings, name, period=period, statistic=statistic, **dimensions)

    def _search(self, name: str, statistic: str, *dimensions: str, only: str = "") -> str:
        """Return a search expression for this metric of all queues."""
        schema = ",".join([self.settings.metrics_namespace, *sorted((*dimensions, "service"))])
        wanted = f'MetricName="{name}" service="{self.settings.service}" {only}'.strip()
        return f"SEARCH('{{{schema}}} {wanted}', '{statistic}', 60)"

    # --- dashboard ----------------------------------------------------------------------------

    def _job_graphs(self) -> list[cloudwatch.IWidget]:
        """Return the graphs of metrics that the level `alarms` doesn't have."""
        level = self.settings.metrics_level
        if level == "alarms":
            return []
        by_queue = level == "queues"
        counted = {
            name: _line(f"SUM({self._search(name, 'Sum', 'queue', 'type')})", name)
            if by_queue
            else self.own(name, statistic="Sum")
            for name in COUNTERS
        }
        lengths = [
            _line(self._search(name, "p95", "queue", "type"))
            if by_queue
            else self.own(name, statistic="p95")
            for name in LENGTHS
        ]
        states = [_or_zero(self.own(DEPTH, state=state), state) for state in _STATES]
        available = self._search(DEPTH, "Maximum", "queue", "state", only='state="available"')
        return [
            _graph("Jobs per minute", list(counted.values())),
            _graph("Jobs by state", states),
            *([_graph("Available jobs by queue", [_line(available)])] if by_queue else []),
            _graph("Time in queue, p95 (s)", lengths[:1]),
            _graph("Duration, p95 (s)", lengths[1:]),
            _graph("Active workers", [_or_zero(self.own(ACTIVE_WORKERS), "workers")]),
            _graph("Dead letters", [_or_zero(self.own(DEAD_LETTERS), "total")]),
        ]

    def _dashboard(self) -> None:
        api, table, functions = self.api, self.table, self.functions.values()
        dashboard = cloudwatch.Dashboard(
            self,
            "Dashboard",
            dashboard_name=self.settings.service,
            default_interval=Duration.hours(3),
        )
        dashboard.add_widgets(
            cloudwatch.AlarmStatusWidget(title="Alarms", alarms=self._alarms, width=24, height=3)
        )
        dashboard.add_widgets(*self._job_graphs())
        dashboard.add_widgets(
            _graph(
                "Age of oldest available job (s)",
                [_line(self._search(OLDEST_AGE, "Maximum", "queue"))]
                if self.settings.metrics_level == "queues"
                else [_or_zero(self.own(OLDEST_AGE), "oldest")],
            ),
            _graph("New dead letters", [_or_zero(self.own(DEAD_ADDED, statistic="Sum"), "added")]),
            _graph("Stream: age (ms), failed records", [self.stream_age], [self.stream_failures]),
        )
        requests = (api.metric_count, api.metric_client_error, api.metric_server_error)
        latencies = ("p50", "p95", "p99")
        units = (
            table.metric_consumed_read_capacity_units,
            table.metric_consumed_write_capacity_units,
        )
        dashboard.add_widgets(
            _graph(
                "Requests per minute", [each(statistic="Sum", period=_MINUTE) for each in requests]
            ),
            _graph(
                "Latency (ms)",
                [api.metric_latency(statistic=each, period=_MINUTE) for each in latencies],
            ),
            _graph(
                "Table: units per minute, throttles",
                [each(period=_MINUTE) for each in units],
                [self.table_throttles],
            ),
        )
        dashboard.add_widgets(
            _graph(
                "Functions: calls per minute",
                [each.metric_invocations(period=_MINUTE) for each in functions],
            ),
            _graph("Functions: errors", [each.metric_errors(period=_MINUTE) for each in functions]),
            _graph(
                "Functions: duration, p95 (ms)",
                [each.metric_duration(statistic="p95", period=_MINUTE) for each in functions],
            ),
        )


def _visible(queue: sqs.IQueue) -> cloudwatch.Metric:
    """Return the number of available messages of a queue."""
    return queue.metric_approximate_number_of_messages_visible(statistic="Maximum", period=_MINUTE)


def _age(queue: sqs.IQueue) -> cloudwatch.Metric:
    """Return the age of the oldest message of a queue."""
    return queue.metric_approximate_age_of_oldest_message(statistic="Maximum", period=_MINUTE)


def _math(
    label: str,
    expression: str,
    metrics: Mapping[str, cloudwatch.IMetric],
    period: Duration = _FIVE_MINUTES,
) -> cloudwatch.MathExpression:
    return cloudwatch.MathExpression(
        expression=expression, using_metrics=metrics, label=label, period=period
    )


def own_metric(
    settings: DeploymentSettings,
    name: str,
    *,
    period: Duration,
    statistic: str = "Maximum",
    **dimensions: str,
) -> cloudwatch.Metric:
    """Return a metric of this deployment."""
    return cloudwatch.Metric(
        namespace=settings.metrics_namespace,
        metric_name=name,
        dimensions_map={"service": settings.service, **dimensions},
        statistic=statistic,
        period=period,
    )


def _table_throttles(table: dynamodb.ITable) -> cloudwatch.MathExpression:
    """Return the number of throttled requests to the table and its indexes."""
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


def _sum(metrics: Iterable[cloudwatch.IMetric], label: str) -> cloudwatch.MathExpression:
    names = {f"m{at}": metric for at, metric in enumerate(metrics)}
    # Without FILL, a missing value would make the sum missing.
    return _math(label, " + ".join(f"FILL({name}, 0)" for name in names), names)


def _or_zero(metric: cloudwatch.Metric, name: str) -> cloudwatch.MathExpression:
    """Return a gauge whose zeros are not written, with a unique name in its graph."""
    return _math(name, f"FILL({name}, 0)", {name: metric}, _MINUTE)


def _line(expression: str, label: str = "") -> cloudwatch.MathExpression:
    return _math(label, expression, {}, _MINUTE)


def _graph(
    title: str, left: Sequence[cloudwatch.IMetric], right: Sequence[cloudwatch.IMetric] = ()
) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(left), right=list(right), width=8)


def _errors(of: Monitoring) -> cloudwatch.MathExpression:
    # Few errors among many requests raise no alarm, because clients retry.
    least = of.settings.alarm_error_percent
    return _math(
        "errors, if above the percentage",
        f"IF(100 * errors >= {least} * requests, errors, 0)",
        {
            "errors": of.api.metric_server_error(statistic="Sum"),
            "requests": of.api.metric_count(statistic="Sum"),
        },
    )


def _sweeps(of: Monitoring) -> cloudwatch.MathExpression:
    sweep = of.functions["sweep"]
    metrics = {
        "runs": sweep.metric_invocations(period=_MINUTE),
        "errors": sweep.metric_errors(period=_MINUTE),
    }
    return _math("successful sweeps", "FILL(runs, 0) - FILL(errors, 0)", metrics, _MINUTE)


def _system_errors(of: Monitoring, operation: str) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace="AWS/DynamoDB",
        metric_name="SystemErrors",
        dimensions_map={"TableName": of.table.table_name, "Operation": operation},
        statistic="Sum",
        period=_FIVE_MINUTES,
    )


def _counts_refusals(of: Monitoring) -> bool:
    # The function logs rejected requests at level INFO.
    told = of.access_log is not None or of.settings.log_level in ("DEBUG", "INFO")
    return told and not of.settings.is_local


_BRIDGE_WAITS = (
    "Messages of an SQS queue wait too long to become jobs. Likely cause: the bridge function "
    "fails, the table throttles requests, or the server rejects the messages. Next step: check "
    "the log of the function that is subscribed to the queue."
)
_BRIDGE_LOST = (
    "Messages of an SQS queue did not become jobs after all receives. Likely cause: the messages "
    "are not valid jobs. Next step: find the error codes and message IDs in the function's log, "
    "then redrive the queue's dead-letter queue."
)
_OUTBOX_BEHIND = (
    "The stream of an outbox is behind. Likely cause: a full queue of an ordered outbox, or the "
    "relay fails. Next step: check the relay's log. Stream records are deleted after 24 hours."
)
_OUTBOX_WAITS = (
    "Jobs of an outbox wait too long. Likely cause: their queue is full, or the table throttles "
    "requests. Next step: add workers, or increase the limit of the queue."
)
_OUTBOX_REFUSED = (
    "Items of an outbox did not become jobs. Likely cause: the items are not valid jobs, or the "
    "outbox or the queue doesn't allow them. Next step: read the keys and error codes in the queue "
    "of refused items, correct the cause, then run ojs-aws outbox replay."
)
ALARMS = (
    Alarm(
        "oldest-job",
        "The oldest available job waits too long. Likely cause: too few workers, or a paused "
        "queue. Next step: find the queue on the page Queues of the dashboard, or with GET "
        "/ojs/v1/admin/queues, then check its workers.",
        lambda of: of.own(OLDEST_AGE),
        "alarm_oldest_job_s",
        # One slow minute raises no alarm.
        periods=3,
    ),
    Alarm(
        "cron-late",
        "Cron jobs run too late. Likely cause: the sweep is overloaded, or fails. Next step: check "
        "the log of function sweep, and the cron jobs with GET /ojs/v1/cron.",
        lambda of: of.own(CRON_LATENESS),
        "alarm_cron_late_s",
    ),
    Alarm(
        "dead-letters",
        "Dead letters increased. Likely cause: jobs failed all attempts. Next step: list them with "
        "their errors: GET /ojs/v1/dead-letter.",
        lambda of: of.own(DEAD_ADDED, period=_FIVE_MINUTES, statistic="Sum"),
        "alarm_dead_letters",
    ),
    Alarm(
        "stream-age",
        "Events and statistics are delayed. Likely cause: the stream consumer fails, or is "
        "overloaded. Next step: check the log of function stream.",
        lambda of: of.stream_age,
        "alarm_stream_age_s",
        periods=3,
        times=1_000,
    ),
    Alarm(
        "stream-failures",
        "Changes could not be processed, so statistics and events lack them. Likely cause: an "
        "error of the stream consumer. Next step: read the records and the error in the messages "
        "of the failure queue.",
        lambda of: of.stream_failures,
        1,
    ),
    Alarm(
        "sweep-silent",
        "No sweep has succeeded, so schedules, retries, and expired leases are processed only on "
        "request, and gauges are stale. Likely cause: function sweep fails or is throttled. Next "
        "step: check its log.",
        _sweeps,
        1,
        "alarm_sweep_silence_min",
        below=True,
    ),
    Alarm(
        "server-errors",
        "Requests fail with status 5xx. Likely cause: errors of the server, or an overloaded "
        "table. Next step: check the logs of the {0.answering}. The correlation_id there is the "
        "request ID of the response.",
        _errors,
        "alarm_server_errors",
    ),
    Alarm(
        "latency",
        "Requests are slow. Likely cause: throttling, or a slow table. Next step: compare the "
        "durations and throttles of the functions and the table on the dashboard.",
        lambda of: of.api.metric_latency(statistic="p90", period=_FIVE_MINUTES),
        "alarm_latency_ms",
        periods=3,
    ),
    Alarm(
        "refused",
        "Rejected requests (401 or 403) increased. Likely cause: a key expired or was revoked, "
        "or a client tries invalid keys. Next step: {0.who}",
        lambda of: _math(
            "increase of rejected requests", "DIFF(FILL(refused, 0))", {"refused": of.refused()}
        ),
        "alarm_refused",
        periods=2,
        breaching=1,
        where=_counts_refusals,
    ),
    Alarm(
        "authorizer-errors",
        "Clients can't be authenticated. Requests with a key fail with status 500. Likely cause: "
        "the table is unavailable. Next step: check the log of function authorizer.",
        lambda of: of.functions[AUTHORIZER].metric_errors(period=_FIVE_MINUTES),
        "alarm_server_errors",
        where=lambda of: AUTHORIZER in of.functions,
    ),
    Alarm(
        "middleware",
        "The deployment's middleware fails or is too slow. Enqueue requests return 500 or 504, "
        "and cron jobs don't run. Likely cause: an error of a middleware function. Next step: "
        "search the logs for 'Middleware failed'.",
        lambda of: of.own(MIDDLEWARE_FAILED),
        1,
        where=lambda of: of.settings.middleware,
    ),
    Alarm(
        "table-throttles",
        "DynamoDB throttles requests, and clients receive 503. Likely cause: a busy queue with few "
        "lanes, or max_write_units. Next step: find the queue, and increase its lanes.",
        lambda of: of.table_throttles,
        "alarm_throttles",
    ),
    Alarm(
        "system-errors",
        "DynamoDB returns system errors, and clients receive 503. Likely cause: a failure of the "
        "region. Next step: check the AWS Health Dashboard.",
        lambda of: _sum((_system_errors(of, each) for each in _OPERATIONS), "system errors"),
        "alarm_system_errors",
    ),
    Alarm(
        "function-throttles",
        "Function calls are throttled, so requests fail or can't be authenticated. Likely cause: "
        "the account's concurrency or the reserved_concurrency is used up. Next step: increase it.",
        lambda of: _sum(
            (
                each.metric_throttles(period=_FIVE_MINUTES)
                for name, each in of.functions.items()
                # CloudFormation retries this function. For functions that read a queue, the age of
                # the oldest message is measured.
                if name not in (SETUP, WEBHOOK, *PUSHERS)
            ),
            "throttles",
        ),
        "alarm_throttles",
    ),
)
_DELIVERY_OFF = (
    "Delivery {name} of {service} was disabled. Likely cause: its target was deleted, or rejects "
    "calls. Next step: fix the target, then resume the delivery: POST "
    "/ojs/v1/admin/deliveries/{name}/resume. Its jobs stay in their queues."
)
_WEBHOOK_OFF = (
    "Webhook {name} of {service} was disabled. Likely cause: its endpoint failed for 3 days, or "
    "responded with status 410. Next step: fix the endpoint, then send "
    '{{"active": true}} with PATCH /ojs/v1/webhooks/subscriptions/{name}. Events in the meantime '
    "are not sent."
)
# Alarms of the queues of push delivery. Wake-ups have none: while they wait, jobs wait, and
# oldest-job reports it.
PUSH_ALARMS = (
    Alarm(
        f"push-{OUTCOMES}",
        "Outcomes of pushed jobs are not processed. Their leases expire, and the jobs are pushed "
        "again. Likely cause: function outcomes fails. Next step: check its log.",
        lambda queues: _age(queues.by_name[OUTCOMES]),
        "alarm_push_age_s",
        periods=3,
    ),
    Alarm(
        f"push-{SEND}",
        "Claimed jobs are not sent to endpoints. Likely cause: function sender fails, or waits for "
        "slow endpoints. Next step: check its log. If it only waits, increase push_concurrency.",
        lambda queues: _age(queues.by_name[SEND]),
        "alarm_push_age_s",
        periods=3,
    ),
    Alarm(
        "push-failures",
        "Messages of push delivery could not be processed. They contain outcomes, or jobs that are "
        "retried after their leases expire. Likely cause: an error of a function. Next step: check "
        "the logs of functions dispatch, sender, and outcomes.",
        lambda queues: _visible(queues.failures),
        1,
    ),
)
WEBHOOK_ALARM = Alarm(
    "webhook-failures",
    "Messages of webhooks could not be processed. They contain events that are not posted. Likely "
    "cause: an error of function webhook. Next step: check its log, then move the messages back.",
    lambda webhooks: _visible(webhooks.failures),
    1,
)
