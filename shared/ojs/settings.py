"""The settings that a deployment passes to its functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any, Literal, get_args

from ojs import environment
from ojs.records import record

Authorizer = Literal["keys", "jwt", "iam", "none"]
MetricsLevel = Literal["alarms", "deployment", "queues"]
MessageBody = Literal["json", "text"]
Entry = Literal["http_api", "function_url", "private_api"]
Realtime = Literal["all", "wake", "off"]
SchemaDefault = Literal["strict", "warn", "off"]
# An event type, or a prefix and `*`: `job.completed`, `job.*`, `*`.
EVENT_PATTERN = r"^(\*|[a-z_]+\.([a-z_]+\.)*(\*|[a-z_]+\*?))$"
# A function in a module, for example `hooks:add_trace`.
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
MIDDLEWARE_PATTERN = rf"^{_NAME}(\.{_NAME})*:{_NAME}$"
_MIDDLEWARE = re.compile(MIDDLEWARE_PATTERN)
MAX_QUEUES = 10_000
MAX_CRONS = 1_000
_LISTED = frozenset(
    {
        "bus_types",
        "egress_hosts",
        "iam_operators",
        "metric_queues",
        "middleware",
        "push_functions",
        "socket_origins",
    }
)
_NUMBERS = frozenset(
    {
        "authorizer_cache_s",
        "max_crons",
        "max_queues",
        "middleware_timeout_ms",
        "min_cron_interval_s",
        "alarm_cron_late_s",
        "alarm_oldest_job_s",
        "queue_metrics_max",
    }
)
_SERVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62})")
_EVENTS = re.compile(EVENT_PATTERN)
_FUNCTION = re.compile(r"arn:aws[a-z-]*:lambda:[a-z0-9-]+:\d{12}:function:[A-Za-z0-9_-]{1,64}")
_GROUP = re.compile(r"[a-z][a-z0-9-]{0,39}")
# A host, `*.` and the end of hosts, or `*` for all hosts.
_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?|[0-9a-f:.]+")
_OPERATOR = re.compile(r"\*|arn:aws[a-z-]*:iam::\d{12}:(root|(role|user)/\S+)")


@record(frozen=True)
class Outbox:
    """The relay of an outbox: a table whose items carry jobs (docs/outbox.md).

    Attributes:
        table: Name of the table.
        refused: URL of the queue for refused items.
        later: URL of the queue for jobs that can't be stored now.
        attribute: Attribute with the job as JSON.
        own: Whether the application created the table. Its items are not changed.
        ordered: Whether the stream waits for jobs that can't be stored now.
        keep: Whether items are kept for a week after their jobs are stored. False with `own`.
        queues: Queues that jobs can use, each optionally with `*` at the end. Default: all.
        types: Job types, in the same format. Default: all.
    """

    table: str
    refused: str
    later: str
    attribute: str = "ojs_job"
    own: bool = False
    ordered: bool = False
    keep: bool = False
    queues: tuple[str, ...] = ("*",)
    types: tuple[str, ...] = ("*",)


_SWITCHES = frozenset({"strict_queues", "results_in_events", "destinations", "tenant_from_meta"})


@record(frozen=True)
class Settings:
    """Settings of one running function. `bus` is the environment variable OJS_BUS.

    Raises:
        ValueError: A setting has an invalid value.
    """

    # Name of the DynamoDB table.
    table: str
    # Bucket for large payloads.
    bucket: str | None = None
    # Version of this deployment.
    version: str = "0.2.1"
    # Name of this service in the source of its events.
    service: str = "ojs-backend-aws"
    # EventBridge bus for events.
    bus: str | None = None
    # Event types that are published on the bus in addition to the operational ones, for example
    # `job.failed` or `job.*`. In the environment separated by commas.
    bus_types: tuple[str, ...] = ()
    # URL of the SQS queue for unreadable stream records.
    failure_queue: str | None = None
    # How clients are authenticated: access keys of this service, a JWT, or IAM. `none` is for a
    # server that only its own machine reaches.
    authorizer: Authorizer = "none"
    # The endpoint type. Only an HTTP API has an authorizer that checks access keys.
    entry: Entry = "http_api"
    # ARN of the secret that the firewall's distribution adds to each request. Without it, requests
    # need none.
    origin_secret: str | None = None
    # authorizer=jwt: the claim that lists scopes, and the prefix of this service's scopes.
    jwt_scope_claim: str = "scope"
    jwt_scope_prefix: str = ""
    # authorizer=jwt: the claim with the caller's tenant.
    jwt_tenant_claim: str = "ojs_tenant"
    # authorizer=iam: ARNs of roles with all permissions, regardless of stored roles. `*` means each
    # role that never had a record. In the environment separated by commas.
    iam_operators: tuple[str, ...] = ("*",)
    # Time in seconds for which the permissions of a role or key are cached.
    authorizer_cache_s: int = 60
    # authorizer=keys: the day (UTC) from which keys without a MAC are rejected. None: 90 days after
    # the first deployment that creates keys with a MAC.
    old_keys_until: str | None = None
    # Whether `meta.tenant_id` of new jobs selects the tenant of a caller that has none and sends no
    # header. In the environment `true` or `false`.
    tenant_from_meta: bool = False
    # Reject jobs for queues that no operator created. In the environment `true` or `false`.
    strict_queues: bool = False
    # What an enqueue does with arguments that do not match the schema of their type, if the type
    # has no separate mode: `strict`, `warn`, or `off`. None: this function checks no arguments, and
    # reads nothing for it.
    schema_mode: SchemaDefault | None = None
    # If this number of queues exists, an enqueue creates no queue. 0: no limit.
    max_queues: int = MAX_QUEUES
    # Maximum number of registered cron jobs (0: no limit). Minimum time in seconds between two
    # ticks of a cron job when it is registered or changed.
    max_crons: int = MAX_CRONS
    min_cron_interval_s: int = 1
    # Metrics that CloudWatch receives. `alarms`: those that alarms watch, near their thresholds.
    # `deployment`: all metrics of the deployment. `queues`: also those of queues, up to the number
    # of queues below (0: all).
    metrics: MetricsLevel = "alarms"
    queue_metrics_max: int = 20
    # Queues whose oldest job and dead letters are always written, or `*` for the total of all
    # queues. In the environment separated by commas.
    metric_queues: tuple[str, ...] = ()
    # Thresholds in seconds of the alarms on the oldest job and on late cron jobs.
    alarm_oldest_job_s: int = 900
    alarm_cron_late_s: int = 180
    # The queues of each group of workers that scales with its backlog, by the group's name. In the
    # environment as JSON.
    worker_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Days for which copies of erased data are retained: in the table's recovery, in nightly
    # backups, and in the bucket. In the environment as JSON.
    recovery_days: Mapping[str, int] = field(default_factory=dict)
    # Whether events contain the results of jobs. In the environment `true` or `false`.
    results_in_events: bool = True
    # Enqueue middleware in order, for example `hooks:add_trace`, in the environment separated by
    # commas. Then the time limit for all jobs of a request.
    middleware: tuple[str, ...] = ()
    middleware_timeout_ms: int = 3_000
    # Functions that deliveries can name, by ARN without alias or version, in the environment
    # separated by commas. Then the URLs of the queues of wake-up messages, of pushes for senders,
    # and of outcomes. Without the first queue, no job is pushed.
    push_functions: tuple[str, ...] = ()
    # Hosts that deliveries and webhooks can send data to: `a.example`, `*.a.example` for all its
    # subdomains, `*` for all. In the environment separated by commas. None: no endpoint is called.
    egress_hosts: tuple[str, ...] = ()
    dispatch_queue: str | None = None
    send_queue: str | None = None
    outcome_queue: str | None = None
    # URL of the queue of webhook messages. Without it, no event is posted.
    webhook_queue: str | None = None
    # Whether Lambda sends the outcomes of asynchronous invocations to their destinations. In the
    # environment `true` or `false`. False only in an AWS emulator.
    destinations: bool = True
    # SQS bridge: the type and queue of the jobs. The message's body is their only argument. Without
    # a type, the body is the complete job.
    bridge_type: str | None = None
    bridge_queue: str = "default"
    bridge_body: MessageBody = "json"
    # Relay of an outbox. In the environment as JSON. None: the function reads SQS messages.
    outbox: Outbox | None = None
    # Whether there is a WebSocket API. `all`: for events, and to wake idle workers; `wake`: to wake
    # idle workers. Its address for clients (wss) and that of its management API (https). Origins of
    # web pages that can connect; in the environment separated by commas. Programs have no origin.
    realtime: Realtime = "off"
    socket_url: str | None = None
    socket_endpoint: str | None = None
    socket_origins: tuple[str, ...] = ()
    # The shard of stream records if their event doesn't name it. Only for an AWS emulator that has
    # one shard and no tumbling windows.
    shard: str | None = None

    def __post_init__(self) -> None:
        for name, right in (
            ("table", len(self.table) >= 3),
            ("service", _SERVICE.fullmatch(self.service)),
            ("bus_types", all(_EVENTS.fullmatch(each) for each in self.bus_types)),
            ("authorizer", self.authorizer in get_args(Authorizer)),
            ("entry", self.entry in get_args(Entry)),
            ("iam_operators", all(map(_OPERATOR.fullmatch, self.iam_operators))),
            ("authorizer_cache_s", self.authorizer_cache_s >= 0),
            ("max_queues", self.max_queues >= 0),
            ("max_crons", self.max_crons >= 0),
            ("min_cron_interval_s", self.min_cron_interval_s > 0),
            ("metrics", self.metrics in get_args(MetricsLevel)),
            ("realtime", self.realtime in get_args(Realtime)),
            ("bridge_body", self.bridge_body in get_args(MessageBody)),
            ("queue_metrics_max", self.queue_metrics_max >= 0),
            ("alarm_oldest_job_s", self.alarm_oldest_job_s > 0),
            ("alarm_cron_late_s", self.alarm_cron_late_s > 0),
            (
                "worker_groups",
                all(_GROUP.fullmatch(name) and each for name, each in self.worker_groups.items()),
            ),
            ("middleware", all(_MIDDLEWARE.fullmatch(each) for each in self.middleware)),
            ("push_functions", all(map(_FUNCTION.fullmatch, self.push_functions))),
            ("egress_hosts", all(map(_HOST.fullmatch, self.egress_hosts))),
            ("middleware_timeout_ms", self.middleware_timeout_ms > 0),
        ):
            if not right:
                raise ValueError(f"{name} has an invalid value: {getattr(self, name)!r}")

    @property
    def old_keys_until_ms(self) -> int | None:
        """The time (ms) from which keys without a MAC are rejected. None: see the table."""
        return (
            None if self.old_keys_until is None else environment.beginning_ms(self.old_keys_until)
        )

    @property
    def looks_up_keys(self) -> bool:
        """Whether functions look up the access key of a request, because no authorizer does it."""
        return self.authorizer == "keys" and self.entry != "http_api"

    def is_allowed_origin(self, origin: str | None) -> bool:
        """Whether a page of this origin can connect. None: a program."""
        return origin is None or origin in self.socket_origins

    @property
    def metered_queues(self) -> int | None:
        """The maximum number of queues with separate CloudWatch metrics. None: all."""
        return (self.queue_metrics_max or None) if self.metrics == "queues" else 0

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the settings from the environment.

        Raises:
            LookupError: OJS_TABLE is missing.
            ValueError: A setting has an invalid value.
        """
        found: dict[str, Any] = {
            # Without this setting, a function requires an access key.
            "authorizer": "keys",
            **environment.configured(field.name for field in fields(cls)),
            "table": environment.required("table"),
        }
        for name in _LISTED & found.keys():
            listed = (part.strip() for part in found[name].split(","))
            found[name] = tuple(filter(None, listed))
        for name in _NUMBERS & found.keys():
            found[name] = int(found[name])
        if "worker_groups" in found:
            groups = json.loads(found["worker_groups"])
            found["worker_groups"] = {name: tuple(queues) for name, queues in groups.items()}
        if "recovery_days" in found:
            found["recovery_days"] = json.loads(found["recovery_days"])
        if "outbox" in found:
            found["outbox"] = Outbox(**json.loads(found["outbox"]))
        for name in _SWITCHES & found.keys():
            said = found[name].lower()
            if said not in ("true", "false"):
                raise ValueError(f"{name} must be true or false, not {said!r}")
            found[name] = said == "true"
        return cls(**found)
