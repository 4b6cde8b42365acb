"""What a deployment tells its functions."""

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
# An event type, or the beginning of some and `*`: `job.completed`, `job.*`, `*`.
EVENT_PATTERN = r"^(\*|[a-z_]+\.([a-z_]+\.)*(\*|[a-z_]+\*?))$"
# A function in a module, as `hooks:add_trace`.
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
# A host, `*.` and the end of some, or `*`: all.
_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?|[0-9a-f:.]+")
_OPERATOR = re.compile(r"\*|arn:aws[a-z-]*:iam::\d{12}:(root|(role|user)/\S+)")


@record(frozen=True)
class Settings:
    """Settings of one running function; `bus` is OJS_BUS in its environment. Raises ValueError for
    one that is wrong.
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
    # Event types that go to the bus beside the operational ones, as `job.failed` or `job.*`; in the
    # environment separated by commas.
    bus_types: tuple[str, ...] = ()
    # URL of the SQS queue for stream records that cannot be read.
    failure_queue: str | None = None
    # How callers are identified: this service's keys, a JWT, IAM; or not at all, which is for a
    # server that only its own machine reaches.
    authorizer: Authorizer = "none"
    # Through what requests come: only an HTTP API has an authorizer in front that knows keys.
    entry: Entry = "http_api"
    # ARN of the secret that a distribution in front adds to each request; without it none is asked
    # for.
    origin_secret: str | None = None
    # authorizer=jwt: the claim that lists scopes, and what stands before those of this service.
    jwt_scope_claim: str = "scope"
    jwt_scope_prefix: str = ""
    # authorizer=iam: ARNs of roles that may do everything, whatever is stored of them; `*` stands
    # for each role that never had a record. In the environment separated by commas.
    iam_operators: tuple[str, ...] = ("*",)
    # For how long (s) what a role or a key may do is remembered once it was looked up.
    authorizer_cache_s: int = 60
    # authorizer=keys: the day (UTC) from which keys without a MAC are refused; None: 90 days after
    # the first deployment that makes keys with one.
    old_keys_until: str | None = None
    # Refuse jobs for queues that no operator made; in the environment `true` or `false`.
    strict_queues: bool = False
    # With so many queues a push makes no more; 0: it always may.
    max_queues: int = MAX_QUEUES
    # How many cron jobs can be registered; 0: no limit. And the shortest time (s) between two ticks
    # of one that is registered or changed.
    max_crons: int = MAX_CRONS
    min_cron_interval_s: int = 1
    # Which metrics CloudWatch receives: `alarms`: those that alarms watch, near their thresholds;
    # `deployment`: all of the deployment as a whole; `queues`: also those of queues, and of how
    # many queues at most (0: all).
    metrics: MetricsLevel = "alarms"
    queue_metrics_max: int = 20
    # Queues whose oldest job and dead letters are always written, or `*` for all queues together;
    # in the environment separated by commas.
    metric_queues: tuple[str, ...] = ()
    # Thresholds (s) of the alarms on the oldest job and on late cron jobs.
    alarm_oldest_job_s: int = 900
    alarm_cron_late_s: int = 180
    # Workers that are scaled by their backlog: the queues of each group, by its name; in the
    # environment as JSON.
    worker_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # For how many days copies of what is erased are kept, by where: of the table, each night's, of
    # objects in the bucket; in the environment as JSON.
    recovery_days: Mapping[str, int] = field(default_factory=dict)
    # Whether events tell the results of jobs; in the environment `true` or `false`.
    results_in_events: bool = True
    # What jobs go through before they are stored, as `hooks:add_trace`, in order; in the
    # environment separated by commas. And how long that may take for all jobs of a request.
    middleware: tuple[str, ...] = ()
    middleware_timeout_ms: int = 3_000
    # Functions that deliveries may name, by ARN without alias or version; in the environment
    # separated by commas. URLs of the queues that wake deliveries, name pushes for senders, and
    # bring outcomes. Without the first nothing is pushed.
    push_functions: tuple[str, ...] = ()
    # Hosts that deliveries may send jobs to: `a.example`, `*.a.example` for all below it, `*` for
    # all; in the environment separated by commas. None: no endpoint is called.
    egress_hosts: tuple[str, ...] = ()
    dispatch_queue: str | None = None
    send_queue: str | None = None
    outcome_queue: str | None = None
    # Whether Lambda sends the outcomes of asynchronous invocations to their destinations; in the
    # environment `true` or `false`. Only an emulator of AWS does not.
    destinations: bool = True
    # Of a bridge: the type and queue of the jobs that messages become, whose only argument is the
    # message's body. Without a type the body is a whole job.
    bridge_type: str | None = None
    bridge_queue: str = "default"
    bridge_body: MessageBody = "json"
    # Whether there is a WebSocket API. `all`: for events, and to wake idle workers; `wake`: to wake
    # idle workers. Its address for clients (wss) and that of its management API (https). Origins of
    # web pages that can connect; in the environment separated by commas. Programs have no origin.
    realtime: Realtime = "off"
    socket_url: str | None = None
    socket_endpoint: str | None = None
    socket_origins: tuple[str, ...] = ()
    # The shard that stream records are from if their event does not say so; only for an emulator of
    # AWS that has one shard and no tumbling windows.
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
                raise ValueError(f"{name} must not be {getattr(self, name)!r}")

    @property
    def old_keys_until_ms(self) -> int | None:
        """From when on keys without a MAC are refused; None: as the table says."""
        return (
            None if self.old_keys_until is None else environment.beginning_ms(self.old_keys_until)
        )

    @property
    def looks_up_keys(self) -> bool:
        """Whether functions find out themselves who holds the key of a request."""
        return self.authorizer == "keys" and self.entry != "http_api"

    def admits_origin(self, origin: str | None) -> bool:
        """Whether a page of this origin can connect. None: a program."""
        return origin is None or origin in self.socket_origins

    @property
    def metered_queues(self) -> int | None:
        """How many queues have CloudWatch metrics of their own at most; None: all."""
        return (self.queue_metrics_max or None) if self.metrics == "queues" else 0

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the settings. Raises LookupError when OJS_TABLE is missing, ValueError for a setting
        that is wrong.
        """
        found: dict[str, Any] = {
            # Without the setting a function asks every caller for a key.
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
        for name in {"strict_queues", "results_in_events", "destinations"} & found.keys():
            said = found[name].lower()
            if said not in ("true", "false"):
                raise ValueError(f"{name} must be true or false, not {said!r}")
            found[name] = said == "true"
        return cls(**found)
