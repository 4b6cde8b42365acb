"""Alarms on what an operator must hear of, and a dashboard of what they may want to see."""

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


class Alarm(NamedTuple):
    """An alarm: its name, what it means, and the metric that it looks at.

    It is raised when `breaching` (all) of the latest `periods` values reach the threshold, or with
    `below` are below it, or missing. Threshold and periods are numbers, or the names of settings;
    `times` is how often the metric's unit is in that of the threshold.
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
                "Nobody is told of alarms: set alarm_email or alarm_topic_arn.",
            )
        self._alarms: list[cloudwatch.Alarm] = []
        for alarm in ALARMS:
            if alarm.where(self):
                self._add(alarm, alarm.metric(self))
        if queues is not None:
            for alarm in PUSH_ALARMS:
                self._add(alarm, alarm.metric(queues))
            self._tell_of_disabled(bus)
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

    def _add(self, alarm: Alarm, metric: cloudwatch.IMetric) -> None:
        if self.settings.is_local and isinstance(metric, cloudwatch.MathExpression):
            return  # the emulator has no alarms on what is calculated
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
        """A number, or that of a setting."""
        found: float = getattr(self.settings, value) if isinstance(value, str) else value
        return found

    def watch_bridge(self, name: str, queue: sqs.IQueue, age_s: int) -> None:
        """Alarms on an SQS queue whose messages become jobs, and on its dead-letter queue where
        the app has made both: of a queue of another app nothing says which that is.
        """
        waits = Alarm(f"bridge-{name}", _BRIDGE_WAITS, lambda _: _age(queue), age_s, periods=3)
        self._add(waits, waits.metric(self))
        if isinstance(queue, sqs.Queue) and (lost := queue.dead_letter_queue) is not None:
            metric = _visible(lost.queue)
            self._add(Alarm(f"bridge-{name}-lost", _BRIDGE_LOST, lambda _: metric, 1), metric)

    def _tell_of_disabled(self, bus: events.IEventBus) -> None:
        """A rule, which costs nothing while nothing is wrong."""
        if not self._topics:
            return
        name = events.EventField.from_path("$.detail.subject")
        told = (
            f"Delivery {name} of {self.settings.service} is disabled: its target is gone, or "
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
    def answering(self) -> str:
        """The functions that answer requests."""
        return "function api" if API in self.functions else "functions jobs, workers and admin"

    @property
    def who(self) -> str:
        """Where it is said which requests were refused."""
        if self.access_log:
            return "The access log says who, by source_ip and key."
        return "The log of function api says which operation."

    def refused(self) -> cloudwatch.Metric:
        """Requests answered with 401 or 403, counted in the access log, or where there is none in
        that of the function: no other metric tells them from other mistakes of callers.
        """
        statuses = (401, 403)
        return logs.MetricFilter(
            self,
            "Refused",
            log_group=self.access_log or self.functions[API].log_group,
            # Such a metric has no dimensions: the namespace tells deployments apart.
            metric_namespace=f"{self.settings.metrics_namespace}/{self.settings.service}",
            metric_name=REFUSED,
            filter_pattern=logs.FilterPattern.any(
                *(
                    # In the access log all values are texts.
                    logs.FilterPattern.string_value("$.status", "=", str(each))
                    if self.access_log
                    else logs.FilterPattern.number_value("$.status", "=", each)
                    for each in statuses
                )
            ),
            metric_value="1",
            default_value=0,
        ).metric(statistic="Sum", period=_FIVE_MINUTES)

    def own(self, name: str, *, period: Duration = _MINUTE, **dimensions: str) -> cloudwatch.Metric:
        """A gauge that the functions write."""
        return own_metric(self.settings, name, period=period, **dimensions)

    def _search(self, name: str, statistic: str, *dimensions: str, only: str = "") -> str:
        """An expression for every such metric there is, whatever queues there are."""
        schema = ",".join([self.settings.metrics_namespace, *sorted((*dimensions, "service"))])
        wanted = f'MetricName="{name}" service="{self.settings.service}" {only}'.strip()
        return f"SEARCH('{{{schema}}} {wanted}', '{statistic}', 60)"

    # --- dashboard ----------------------------------------------------------------------------

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
        available = self._search(DEPTH, "Maximum", "queue", "state", only='state="available"')
        counted = {name: self._search(name, "Sum", "queue", "type") for name in COUNTERS}
        lengths = [self._search(name, "p95", "queue", "type") for name in LENGTHS]
        dashboard.add_widgets(
            _graph("Jobs a minute", [_line(f"SUM({counted[name]})", name) for name in COUNTERS]),
            _graph(
                "Jobs by state",
                [_or_zero(self.own(DEPTH, state=state), state) for state in _STATES],
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
            _graph("Dead letters", [self.own(DEAD_LETTERS)]),
            _graph("Active workers", [_or_zero(self.own(ACTIVE_WORKERS), "workers")]),
            _graph("Stream: age (ms), failures", [self.stream_age], [self.stream_failures]),
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
                [self.table_throttles],
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


def _visible(queue: sqs.IQueue) -> cloudwatch.Metric:
    """How many messages of a queue wait."""
    return queue.metric_approximate_number_of_messages_visible(statistic="Maximum", period=_MINUTE)


def _age(queue: sqs.IQueue) -> cloudwatch.Metric:
    """How long the oldest message of a queue has waited."""
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


def _sum(metrics: Iterable[cloudwatch.IMetric], label: str) -> cloudwatch.MathExpression:
    names = {f"m{at}": metric for at, metric in enumerate(metrics)}
    # Without FILL one that has no value would take the others' with it.
    return _math(label, " + ".join(f"FILL({name}, 0)" for name in names), names)


def _or_zero(metric: cloudwatch.Metric, name: str) -> cloudwatch.MathExpression:
    """A gauge whose zeros are not written, under a name that no other has in its graph."""
    return _math(name, f"FILL({name}, 0)", {name: metric}, _MINUTE)


def _line(expression: str, label: str = "") -> cloudwatch.MathExpression:
    return _math(label, expression, {}, _MINUTE)


def _graph(
    title: str, left: Sequence[cloudwatch.IMetric], right: Sequence[cloudwatch.IMetric] = ()
) -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(title=title, left=list(left), right=list(right), width=8)


def _errors(of: Monitoring) -> cloudwatch.MathExpression:
    # A few among very many are none: a caller tries again.
    least = of.settings.alarm_error_percent
    return _math(
        "errors, if they are many",
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
    return _math("sweeps that succeeded", "FILL(runs, 0) - FILL(errors, 0)", metrics, _MINUTE)


def _system_errors(of: Monitoring, operation: str) -> cloudwatch.Metric:
    return cloudwatch.Metric(
        namespace="AWS/DynamoDB",
        metric_name="SystemErrors",
        dimensions_map={"TableName": of.table.table_name, "Operation": operation},
        statistic="Sum",
        period=_FIVE_MINUTES,
    )


def _counts_refusals(of: Monitoring) -> bool:
    # A function's log says what was refused at level INFO.
    told = of.access_log is not None or of.settings.log_level in ("DEBUG", "INFO")
    return told and not of.settings.is_local


_BRIDGE_WAITS = (
    "Messages wait too long to become jobs: the function does not run, the table refuses "
    "it, or they are refused again and again. See the log of the function that is "
    "subscribed to the SQS queue."
)
_BRIDGE_LOST = (
    "Messages became no jobs, as often as they were tried. They are in the dead-letter "
    "queue of the SQS queue; the function's log has the codes of the errors and their ids."
)
ALARMS = (
    Alarm(
        "oldest-job",
        "A job has been waiting in line for too long: too few workers, or a paused queue. "
        f"The metric {OLDEST_AGE} by queue says which.",
        lambda of: of.own(OLDEST_AGE),
        "alarm_oldest_job_s",
        # One slow minute is none.
        periods=3,
    ),
    Alarm(
        "cron-late",
        "Cron jobs fire too late: the sweep has too much to do, or something keeps it from "
        f"firing them. The metric {CRON_LATENESS} by queue says where.",
        lambda of: of.own(CRON_LATENESS),
        "alarm_cron_late_s",
    ),
    Alarm(
        "dead-letters",
        "Jobs fail for good. GET /ojs/v1/dead-letter lists them with their errors.",
        lambda of: _math(
            "dead letters more",
            "DIFF(total)",
            {"total": of.own(DEAD_LETTERS, period=_FIVE_MINUTES)},
        ),
        "alarm_dead_letters",
        # A difference needs a value before it.
        periods=2,
        breaching=1,
    ),
    Alarm(
        "stream-age",
        "Events and statistics are behind: see the log of function stream.",
        lambda of: of.stream_age,
        "alarm_stream_age_s",
        periods=3,
        times=1_000,
    ),
    Alarm(
        "stream-failures",
        "Changes could not be projected: statistics and events lack them. The messages in "
        "the failure queue say which records, and why.",
        lambda of: of.stream_failures,
        1,
    ),
    Alarm(
        "sweep-silent",
        "No sweep has succeeded: schedules, retries and lost leases wait for somebody to "
        "ask for them, and gauges stand still. See the log of function sweep.",
        _sweeps,
        1,
        "alarm_sweep_silence_min",
        below=True,
    ),
    Alarm(
        "server-errors",
        "Requests fail with status 5xx: see the logs of the {0.answering}; a "
        "correlation_id there is the request id of the answer.",
        _errors,
        "alarm_server_errors",
    ),
    Alarm(
        "latency",
        "Requests are slow: see the dashboard for the functions' durations and throttles, and "
        "the table's.",
        lambda of: of.api.metric_latency(statistic="p90", period=_FIVE_MINUTES),
        "alarm_latency_ms",
        periods=3,
    ),
    Alarm(
        "refused",
        "Many more requests than before are refused with 401 or 403: a key has ended or "
        "was revoked, or somebody tries keys. {0.who}",
        lambda of: _math(
            "refused requests more", "DIFF(FILL(refused, 0))", {"refused": of.refused()}
        ),
        "alarm_refused",
        periods=2,
        breaching=1,
        where=_counts_refusals,
    ),
    Alarm(
        "authorizer-errors",
        "Callers cannot be identified: requests with a key fail with status 500. See "
        "the log of function authorizer.",
        lambda of: of.functions[AUTHORIZER].metric_errors(period=_FIVE_MINUTES),
        "alarm_server_errors",
        where=lambda of: AUTHORIZER in of.functions,
    ),
    Alarm(
        "middleware",
        "The deployment's middleware fails or takes too long: pushes are answered with "
        "500 or 504, and cron jobs do not fire. The logs say which, in lines 'middleware "
        "failed'.",
        lambda of: of.own(MIDDLEWARE_FAILED),
        1,
        where=lambda of: of.settings.middleware,
    ),
    Alarm(
        "table-throttles",
        "The table refuses requests for their rate: clients are asked to try again later. "
        "One hot queue may need more lanes.",
        lambda of: of.table_throttles,
        "alarm_throttles",
    ),
    Alarm(
        "system-errors",
        "DynamoDB fails with errors of its own. Clients are asked to try again; the AWS Health "
        "Dashboard says whether the region is in trouble.",
        lambda of: _sum((_system_errors(of, each) for each in _OPERATIONS), "system errors"),
        "alarm_system_errors",
    ),
    Alarm(
        "function-throttles",
        "Functions are not run because the account's concurrency is used up, or what is "
        "reserved for one; of authorizer, nobody who has a key is let in.",
        lambda of: _sum(
            (
                each.metric_throttles(period=_FIVE_MINUTES)
                for name, each in of.functions.items()
                # CloudFormation calls that one, and tries again. Of messages that wait for their
                # function the age says it.
                if name not in (SETUP, *PUSHERS)
            ),
            "throttles",
        ),
        "alarm_throttles",
    ),
)
# Where jobs are pushed, of the queues for that. Of wake-ups there is none: while they wait, jobs
# do, and oldest-job says so.
PUSH_ALARMS = (
    Alarm(
        f"push-{OUTCOMES}",
        "What became of pushed jobs is not heard: their leases run out, and they are "
        "pushed again. See the log of function outcomes.",
        lambda queues: _age(queues.by_name[OUTCOMES]),
        "alarm_push_age_s",
        periods=3,
    ),
    Alarm(
        f"push-{SEND}",
        "Jobs for endpoints are claimed and not sent: see the log of function sender, "
        "and raise push_concurrency if it does nothing but wait for endpoints.",
        lambda queues: _age(queues.by_name[SEND]),
        "alarm_push_age_s",
        periods=3,
    ),
    Alarm(
        "push-failures",
        "Messages of push delivery could not be handled: outcomes of jobs, or jobs to be sent, "
        "which are tried again when their leases end. The logs of functions dispatch, sender "
        "and outcomes say why.",
        lambda queues: _visible(queues.failures),
        1,
    ),
)
