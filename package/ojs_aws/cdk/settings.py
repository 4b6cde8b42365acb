"""The settings of a deployment."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from ojs_aws.cdk.functions import (
    API,
    AUTHORIZER,
    DASHBOARD,
    FUNCTIONS,
    NOTIFY,
    PUSHERS,
    SOCKET,
    TICKET,
    WEBHOOK,
    deployed,
)

Architecture = Literal["arm64", "x86_64"]

# The most common values that CloudWatch allows.
LOG_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 180, 365, 731, 1827, 3653)


def _listed(value: Any) -> Any:
    """Split a comma-separated value of the command line. Other values are unchanged."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _by_function(value: Any) -> Any:
    """Parse numbers by function from the command line: `jobs=200,sweep=1`."""
    if not isinstance(value, str):
        return value
    return dict(part.partition("=")[::2] for part in _listed(value))


# An origin, as browsers send it. The server has the same pattern; a test compares them.
ORIGIN = r"https?://[a-z0-9.-]+(:[0-9]{1,5})?"
_Origin = Annotated[str, StringConstraints(pattern=f"^{ORIGIN}$", max_length=253)]
_Audience = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_Operator = Annotated[
    str,
    StringConstraints(pattern=r"^(\*|arn:aws[a-z-]*:iam::\d{12}:(root|(role|user)/\S+))$"),
]
_Function = Annotated[
    str,
    StringConstraints(pattern=r"^arn:aws[a-z-]*:lambda:[a-z0-9-]+:\d{12}:function:[\w-]{1,64}$"),
]
_Host = Annotated[
    str,
    StringConstraints(pattern=r"^(\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?|[0-9a-f:.]+)$"),
]
_Name = r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}"
_Positive = Annotated[int, Field(ge=1)]
_Memory = Annotated[int, Field(ge=256, le=10_240)]
_Listed = BeforeValidator(_listed)
_ByFunction = BeforeValidator(_by_function)

# The same pattern as the functions' setting OJS_BUS_TYPES; a test compares them.
EVENT_PATTERN = r"^(\*|[a-z_]+\.([a-z_]+\.)*(\*|[a-z_]+\*?))$"
_EventPattern = Annotated[str, StringConstraints(pattern=EVENT_PATTERN)]


# The same pattern as the functions' setting OJS_MIDDLEWARE; a test compares them.
_PART = r"[A-Za-z_][A-Za-z0-9_]*"
_MiddlewareName = Annotated[str, StringConstraints(pattern=rf"^{_PART}(\.{_PART})*:{_PART}$")]


# Settings that `ojs_aws.cdk.local` forces. None: the default.
FORCED: dict[str, Any] = {}


class DeploymentSettings(BaseModel):
    """Settings of one deployment. Each field is a CDK context key with the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    stage: str = Field("dev", pattern=r"^[a-z][a-z0-9-]{0,19}$")
    """Name of the deployment. Prefixes its stacks."""
    removal_policy: Literal["retain", "destroy"] = "retain"
    """Whether the table, bucket, keys, and logs are retained or destroyed with their stack."""
    deletion_protection: bool = True
    """Protects the table and its stack against deletion."""
    replace_table: str = Field("", pattern=r"^([A-Za-z0-9_.-]{3,255})?$")
    """Name of the table that a new, empty one replaces. A deployment that would replace a table
    fails without this setting."""
    log_retention_days: int = 30
    """Retention of logs in days."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Log level of the functions."""
    tracing: bool = False
    """X-Ray records durations of function calls: the first call of each second, and 1 in 20 of the
    others. With few jobs, this costs about as much as the rest of the deployment."""
    memory_mb: _Memory = 1024
    """Memory of each function in MB."""
    architecture: Architecture = "arm64"
    """Instruction set of the functions. Requires bundle=lambda."""
    python: Literal["3.11", "3.12", "3.13", "3.14"] = "3.13"
    """Python runtime of the functions. Requires bundle=lambda."""
    bundle: Literal["lambda", "host"] = "lambda"
    """Target machine of the bundle: AWS Lambda, or this machine (local emulator)."""
    memory_mb_by_function: Annotated[Mapping[str, _Memory], _ByFunction] = Field(
        default_factory=dict
    )
    """Memory of single functions in MB, for example {"sweep": 512}. On the command line:
    sweep=512,stream=2048."""
    reserved_concurrency: Annotated[Mapping[str, _Positive], _ByFunction] = Field(
        default_factory=dict
    )
    """Maximum concurrency of single functions, reserved from the account's quota. Same format as
    memory_mb_by_function. entry=function_url requires it for the function api."""
    throttle_rate_per_s: _Positive = 2_000
    """Maximum requests per second that the API accepts."""
    throttle_burst: _Positive = 1_000
    """Maximum burst of requests above that rate."""

    entry: Literal["http_api", "function_url", "private_api"] = "http_api"
    """Endpoint of the API. http_api: an HTTP API of API Gateway. function_url: the URL of a
    function, which costs least, has no throttle, domain name, or firewall, and requires
    reserved_concurrency of the function api. private_api: a REST API that only your VPC endpoints
    can reach."""
    authorizer: Literal["keys", "jwt", "iam"] = "keys"
    """Authentication of clients: access keys, JSON Web Tokens of an issuer (jwt), or requests
    signed with AWS credentials (iam). A value none doesn't exist."""
    authorizer_cache_s: int = Field(60, ge=0, le=3_600)
    """authorizer=keys: seconds that API Gateway caches the owner of a key. authorizer=iam: seconds
    that a function caches the scopes of a role. A revoked key or role is rejected after at most
    this time."""
    old_keys_until: date | None = None
    """authorizer=keys: date (UTC) from which keys created by versions before 0.3 are rejected.
    Default: 90 days after the upgrade."""
    iam_operators: Annotated[tuple[_Operator, ...], _Listed] = Field(("*",), min_length=1)
    """authorizer=iam: ARNs of roles and users that have all scopes, regardless of stored scopes. On
    the command line separated by commas. `*` matches each principal without stored scopes. Listing
    your operators is safer: other principals then need stored scopes."""
    jwt_issuer: str = Field("", pattern=r"^(https://[^\s?#]+)?$")
    """authorizer=jwt: URL of the issuer, equal to the claim `iss`."""
    jwt_audience: Annotated[tuple[_Audience, ...], _Listed] = ()
    """authorizer=jwt: accepted audiences (claim `aud` or `client_id`). On the command line
    separated by commas."""
    jwt_scope_claim: str = Field("scope", pattern=r"^[!-~]{1,200}$")
    """authorizer=jwt: claim that lists the scopes, as a string or an array."""
    jwt_scope_prefix: str = Field("", pattern=r"^[!-~]{0,200}$")
    """authorizer=jwt: prefix of a scope in that claim, for example the identifier and slash of a
    Cognito resource server. Scopes without the prefix are ignored."""
    jwt_tenant_claim: str = Field("ojs_tenant", pattern=r"^[!-~]{1,200}$")
    """authorizer=jwt: claim with the tenant of the caller. A token without it has no tenant."""
    tenant_from_meta: bool = False
    """Whether `meta.tenant_id` of new jobs selects the tenant, if the caller has none and sends no
    header. Jobs of queues that share turns by this field then move to queues of tenants."""
    cors_origins: Annotated[tuple[_Origin, ...], _Listed] = ()
    """Origins of web pages that can use the API, for example https://jobs.example.com. On the
    command line separated by commas. Empty: none."""

    realtime: Literal["all", "wake", "off"] = "wake"
    """WebSocket API. wake: idle workers start a new job at once. all: clients also receive events;
    this adds a second reader of the table's stream. off: workers poll. Default with
    entry=private_api: off."""
    realtime_domain: str = Field("", pattern=rf"^({_Name})?$")
    """Domain name of the WebSocket API, with the certificate and zone of domain_name. Can't be
    domain_name itself."""

    domain_name: str = Field("", pattern=rf"^({_Name})?$")
    """Domain name of the API. Disables API Gateway's default name, unless waf=true."""
    certificate_arn: str = Field(
        "", pattern=r"^(arn:[a-z-]+:acm:[a-z0-9-]+:\d{12}:certificate/\S+)?$"
    )
    """ACM certificate for domain_name and realtime_domain: in the deployment's region, or in
    us-east-1 with waf=true."""
    hosted_zone_id: str = Field("", pattern=r"^([A-Z0-9]{1,32})?$")
    """Route 53 zone that receives the records of domain_name and realtime_domain. Empty: you create
    the records."""
    hosted_zone_name: str = Field("", pattern=rf"^({_Name})?$")
    """Name of that zone."""
    waf: bool = False
    """Adds a CloudFront distribution with AWS WAF in front of the API, in a separate stack in
    us-east-1."""
    waf_acl_arn: str = Field(
        "", pattern=r"^(arn:[a-z-]+:wafv2:us-east-1:\d{12}:global/webacl/\S+)?$"
    )
    """waf: existing web ACL to use instead of a new one."""
    waf_rate: int = Field(60_000, ge=100, le=2_000_000_000)
    """waf: maximum requests per address within 5 minutes. Later requests are rejected. Workers
    behind one NAT gateway have one address."""

    waf_only: bool = True
    """waf: the API rejects requests that did not pass the distribution. Set it to false for the one
    deployment in which an existing distribution receives the secret header."""
    waf_rotation: int = Field(0, ge=0, le=1_000_000)
    """waf: number of rotations of that secret. Change the number to deploy the current secret to
    the distribution."""
    encryption: Literal["aws", "own"] = "aws"
    """Encryption keys at rest: keys of the AWS services, or a separate KMS key that is rotated
    every year (own)."""
    payload_recovery_days: int = Field(7, ge=0, le=35)
    """Days that a deleted large payload can be restored, for a restore of the table to an earlier
    time.
    0: not restorable."""

    max_write_units: int = Field(0, ge=0)
    """Maximum write units per second of the table. DynamoDB throttles requests above it, which cost
    nothing. 0: the account's quota."""
    max_read_units: int = Field(0, ge=0)
    """Maximum read units per second of the table and of each index. 0: the account's quota."""

    backup_days: int = Field(0, ge=0, le=3_650)
    """Days that AWS Backup retains the nightly copy of the table. 0: no copies; the last 35 days
    can still be restored."""

    strict_queues: bool = False
    """Rejects jobs for queues that no operator created."""
    schema_mode: Literal["strict", "warn", "off"] = "warn"
    """What an enqueue does with arguments that don't match the schema of their job type: rejects
    the job, stores it with a warning, or doesn't check. For types without a separate mode."""
    middleware: Annotated[tuple[_MiddlewareName, ...], _Listed] = ()
    """Middleware functions that process jobs before they are stored, in order, for example
    hooks:add_trace. On the command line separated by commas."""
    middleware_folder: str = ""
    """middleware: folder with the modules and everything they import. Relative to the folder in
    which cdk runs."""
    middleware_timeout_ms: int = Field(3_000, ge=1, le=20_000)
    """middleware: maximum duration in milliseconds for all jobs of a request."""
    max_queues: int = Field(10_000, ge=0)
    """Number of queues above which a job can't create a queue. Operators still can. 0: no limit."""
    max_crons: int = Field(1_000, ge=0)
    """Maximum number of registered cron jobs. Existing ones stay. 0: no limit."""
    min_cron_interval_s: int = Field(1, ge=1, le=86_400)
    """Minimum interval of a new or changed cron job in seconds."""
    push: bool = False
    """Enables push delivery to Lambda functions and HTTPS endpoints. Adds three queues and the
    functions dispatch, sender, and outcomes."""
    push_functions: Annotated[tuple[_Function, ...], _Listed] = Field((), max_length=20)
    """push: ARNs of functions that deliveries can target, without alias or version. On the command
    line separated by commas. add_worker of the construct adds more."""
    webhooks: bool = False
    """Enables webhooks, which post events to HTTPS endpoints. Adds a queue and the function
    webhook. Set egress_hosts too."""
    egress_hosts: Annotated[tuple[_Host, ...], _Listed] = Field((), max_length=50)
    """push, webhooks: hosts that deliveries and webhooks can target: a.example, *.a.example for all
    subdomains, or * for all. On the command line separated by commas. add_endpoint of the construct
    adds more."""
    push_concurrency: int = Field(20, ge=2, le=1_000)
    """push: maximum concurrency of each of the functions dispatch, sender, and outcomes. A sender
    waits for one endpoint. The others process up to 10 messages at a time."""
    prove: bool = False
    """push: adds a function that `ojs-aws prove` pushes jobs to, to verify their outcomes. It costs
    nothing while no jobs are pushed to it."""
    bus_types: Annotated[tuple[_EventPattern, ...], _Listed] = ()
    """Event types for the event bus in addition to operational ones, for example job.completed or
    job.*. On the command line separated by commas."""
    results_in_events: bool = True
    """Includes the results of jobs in the log and in events, up to 128 bytes each."""
    stream_batch_size: int = Field(100, ge=1, le=1_000)
    """Maximum number of stream records per batch. Larger batches cost less."""
    stream_window_s: int = Field(10, ge=0, le=30)
    """Seconds that the stream waits for a larger batch. With few jobs, events and statistics are
    delayed by this time. 30 costs least."""
    metrics_namespace: str = Field("OJS", pattern=r"^[A-Za-z0-9][A-Za-z0-9_./#-]{0,99}$")
    """CloudWatch namespace of the metrics of jobs, queues, and workers."""
    metrics: Literal["alarms", "deployment", "queues"] = "alarms"
    """CloudWatch metrics, which cost extra: those that alarms watch (alarms), also those of the
    deployment as a whole (deployment), or also those of queues (queues)."""
    queue_metrics_max: int = Field(20, ge=0, le=500)
    """metrics=queues: maximum number of queues with separate metrics. 0: all queues."""
    queue_metrics: Literal["off", "fullest", "all"] | None = None
    """Deprecated, use metrics. off: metrics=deployment. fullest: metrics=queues. all:
    metrics=queues with queue_metrics_max=0."""
    dashboard: bool = True
    """Creates a CloudWatch dashboard."""
    web_dashboard: bool = True
    """Deploys the web dashboard at /ojs/admin/. Its files are public. Its data requires an access
    key."""
    alarm_oldest_job_s: int = Field(900, ge=60)
    """Alarm: age of the oldest available job in seconds."""
    alarm_cron_late_s: int = Field(180, ge=60)
    """Alarm: delay of a cron job in seconds."""
    alarm_dead_letters: _Positive = 10
    """Alarm: increase of dead letters within 5 minutes."""
    alarm_throttles: _Positive = 10
    """Alarm: throttled requests to the table, or throttled function calls, within 5 minutes."""
    alarm_stream_age_s: _Positive = 60
    """Alarm: delay of events and statistics in seconds."""
    alarm_push_age_s: int = Field(120, ge=60)
    """push, alarm: age in seconds of an unprocessed outcome, or of a job to send to an endpoint."""
    alarm_sweep_silence_min: int = Field(5, ge=2, le=60)
    """Alarm: minutes without a successful sweep."""
    alarm_server_errors: _Positive = 5
    """Alarm: responses with status 5xx within 5 minutes. They must also be alarm_error_percent of
    all responses."""
    alarm_error_percent: int = Field(1, ge=0, le=100)
    """Alarm: minimum percentage of responses with status 5xx. 0: any percentage."""
    alarm_latency_ms: _Positive = 5_000
    """Alarm: duration in milliseconds that the slowest 10 % of requests exceed for 15 minutes.
    Includes requests that wait for a result, or for space in a queue."""
    alarm_refused: _Positive = 100
    """Alarm: increase of responses with status 401 or 403, from one period of 5 minutes to the
    next."""
    alarm_system_errors: _Positive = 5
    """Alarm: system errors of DynamoDB within 5 minutes."""
    alarm_email: str = Field("", pattern=r"^([^@\s]+@[^@\s]+)?$")
    """Email address that receives alarms, through a topic of the deployment. Empty: no email."""
    alarm_topic_arn: str = Field("", pattern=r"^(arn:[a-z-]+:sns:[a-z0-9-]+:\d{12}:\S+)?$")
    """Existing SNS topic that receives alarms. Empty: none."""

    @model_validator(mode="before")
    @classmethod
    def _forced(cls, chosen: Any) -> Any:
        """Apply the settings of the local cloud emulator."""
        if not FORCED:
            return chosen
        return {name: each for name, each in {**chosen, **FORCED}.items() if each is not None}

    @model_validator(mode="before")
    @classmethod
    def _without_realtime(cls, chosen: Any) -> Any:
        """Default to realtime=off with entry=private_api."""
        private = isinstance(chosen, Mapping) and chosen.get("entry") == "private_api"
        return {"realtime": "off", **chosen} if private else chosen

    @field_validator("log_retention_days")
    @classmethod
    def _offered(cls, days: int) -> int:
        if days not in LOG_RETENTION_DAYS:
            raise ValueError(f"must be one of {', '.join(map(str, LOG_RETENTION_DAYS))}")
        return days

    @field_validator("memory_mb_by_function", "reserved_concurrency")
    @classmethod
    def _functions(cls, numbers: Mapping[str, int]) -> Mapping[str, int]:
        names = sorted({API, *(spec.name for spec in FUNCTIONS)})
        if unknown := sorted(set(numbers) - set(names)):
            raise ValueError(f"unknown function: {', '.join(unknown)}. Allowed: {', '.join(names)}")
        return numbers

    @property
    def metrics_level(self) -> str:
        """The level of CloudWatch metrics, also if the deprecated setting selects it."""
        if self.queue_metrics is None:
            return self.metrics
        return "deployment" if self.queue_metrics == "off" else "queues"

    @property
    def metered_queues(self) -> int:
        """Maximum number of queues with separate metrics, 0 for all."""
        return 0 if self.queue_metrics == "all" else self.queue_metrics_max

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Reject settings that contradict each other, and name the field to change."""
        for field, wrong, why in self._contradictions():
            if wrong:
                raise ValueError(f"{field}: {why}")
        return self

    def _contradictions(self) -> tuple[tuple[str, object, str], ...]:
        chosen = self.model_fields_set
        jwt, keys = self.authorizer == "jwt", self.authorizer == "keys"
        zone = self.hosted_zone_name
        names = [name for name in (self.domain_name, self.realtime_domain) if name]
        in_zone = names and all(f".{name}".endswith(f".{zone}") for name in names)
        in_us_east_1 = ":acm:us-east-1:" in self.certificate_arn
        functions = {*self.memory_mb_by_function, *self.reserved_concurrency}
        no_certificate = bool(names) != bool(self.certificate_arn)
        no_zone_name = bool(self.hosted_zone_id) != bool(zone)
        no_own_acl = not self.waf or self.waf_acl_arn
        return (
            *self._of_entry(functions),
            *self._of_realtime(functions),
            ("jwt_issuer", jwt and not self.jwt_issuer, "required with authorizer=jwt"),
            ("jwt_audience", jwt and not self.jwt_audience, "required with authorizer=jwt"),
            ("jwt_issuer", self.jwt_issuer and not jwt, "requires authorizer=jwt"),
            ("jwt_audience", self.jwt_audience and not jwt, "requires authorizer=jwt"),
            (
                "jwt_scope_claim",
                self.jwt_scope_claim != "scope" and not jwt,
                "requires authorizer=jwt",
            ),
            ("jwt_scope_prefix", self.jwt_scope_prefix and not jwt, "requires authorizer=jwt"),
            (
                "jwt_tenant_claim",
                self.jwt_tenant_claim != "ojs_tenant" and not jwt,
                "requires authorizer=jwt",
            ),
            (
                "authorizer_cache_s",
                "authorizer_cache_s" in chosen and jwt,
                "can't be combined with authorizer=jwt, which caches nothing",
            ),
            ("old_keys_until", self.old_keys_until and not keys, "requires authorizer=keys"),
            (
                "iam_operators",
                "iam_operators" in chosen and self.authorizer != "iam",
                "requires authorizer=iam",
            ),
            (
                "reserved_concurrency and memory_mb_by_function",
                "authorizer" in functions and not keys,
                "the function authorizer requires authorizer=keys",
            ),
            ("push_functions", self.push_functions and not self.push, "requires push=true"),
            (
                "egress_hosts",
                self.egress_hosts and not (self.push or self.webhooks),
                "requires push=true or webhooks=true",
            ),
            ("prove", self.prove and not self.push, "requires push=true"),
            *(
                (name, name in chosen and not self.push, "requires push=true")
                for name in ("push_concurrency", "alarm_push_age_s")
            ),
            (
                "reserved_concurrency and memory_mb_by_function",
                functions.intersection(PUSHERS) and not self.push,
                f"the functions {', '.join(PUSHERS)} require push=true",
            ),
            (
                "reserved_concurrency and memory_mb_by_function",
                WEBHOOK in functions and not self.webhooks,
                f"the function {WEBHOOK} requires webhooks=true",
            ),
            (
                "certificate_arn",
                no_certificate,
                "requires domain_name or realtime_domain, and the other way around",
            ),
            ("hosted_zone_id", no_zone_name, "requires hosted_zone_name, and the other way around"),
            ("hosted_zone_name", zone and not in_zone, "must be domain_name or a parent of it"),
            (
                "waf",
                self.waf and not self.domain_name,
                "requires domain_name, because CloudFront's names accept outdated TLS versions",
            ),
            (
                "certificate_arn",
                self.waf and not in_us_east_1,
                "must be in us-east-1 with waf=true, because CloudFront requires it",
            ),
            (
                "waf",
                self.waf and self.authorizer == "iam",
                "can't be combined with authorizer=iam, because CloudFront changes the signed host",
            ),
            *(
                (name, name in chosen and not self.waf, "requires waf=true")
                for name in ("waf_acl_arn", "waf_only", "waf_rotation")
            ),
            (
                "middleware_folder",
                bool(self.middleware) != bool(self.middleware_folder),
                "requires middleware, and the other way around",
            ),
            (
                "middleware_timeout_ms",
                "middleware_timeout_ms" in chosen and not self.middleware,
                "requires middleware",
            ),
            (
                "backup_days",
                self.backup_days and self.is_local,
                "can't be combined with bundle=host",
            ),
            (
                "reserved_concurrency and memory_mb_by_function",
                DASHBOARD in functions and not self.web_dashboard,
                "the function dashboard requires web_dashboard=true",
            ),
            (
                "queue_metrics_max",
                "queue_metrics_max" in chosen
                and (self.metrics_level != "queues" or self.queue_metrics == "all"),
                "requires metrics=queues",
            ),
            (
                "queue_metrics",
                self.queue_metrics is not None and "metrics" in chosen,
                "can't be combined with metrics, which replaces it",
            ),
            (
                "waf_rate",
                "waf_rate" in chosen and no_own_acl,
                "requires waf=true, and can't be combined with waf_acl_arn",
            ),
            (
                "domain_name",
                self.domain_name and self.is_local,
                "can't be combined with bundle=host, because the emulator has no domain names",
            ),
        )

    def _of_realtime(self, functions: AbstractSet[str]) -> tuple[tuple[str, object, str], ...]:
        """Return the settings that contradict `realtime`. `functions`: named in other settings."""
        name, off = self.realtime_domain, self.realtime == "off"
        no_events = self.realtime != "all" and NOTIFY in functions
        return (
            (
                "realtime",
                self.entry == "private_api" and not off,
                "must be off with entry=private_api, because a WebSocket API can't be private",
            ),
            ("realtime_domain", name and off, "requires realtime=wake or all"),
            (
                "realtime_domain",
                name and self.waf,
                "can't be combined with waf=true, which serves the WebSocket API at domain_name",
            ),
            (
                "realtime_domain",
                name and name == self.domain_name,
                "must differ from domain_name: one name can't serve both kinds of APIs",
            ),
            (
                "realtime_domain",
                name and self.is_local,
                "can't be combined with bundle=host, because the emulator has no domain names",
            ),
            (
                "reserved_concurrency and memory_mb_by_function",
                off and functions & {SOCKET, TICKET},
                f"the functions {SOCKET} and {TICKET} require realtime=wake or all",
            ),
            (
                "reserved_concurrency and memory_mb_by_function",
                no_events,
                f"the function {NOTIFY} requires realtime=all",
            ),
        )

    def _of_entry(self, functions: AbstractSet[str]) -> tuple[tuple[str, object, str], ...]:
        """Return the settings that contradict `entry`. `functions`: named in other settings."""
        chosen, other = self.model_fields_set, self.entry != "http_api"
        throttled = {"throttle_rate_per_s", "throttle_burst"} & chosen
        there = deployed(self.authorizer, self.entry, push=True, realtime="all", webhooks=True)
        behind = {spec.name for spec in there} | {AUTHORIZER}
        only_here = f"requires entry={'http_api' if other else 'function_url or private_api'}"
        return (
            ("authorizer", other and self.authorizer == "jwt", "jwt requires entry=http_api"),
            ("domain_name", other and self.domain_name, "requires entry=http_api"),
            ("waf", other and self.waf, "requires entry=http_api"),
            (
                "cors_origins",
                self.entry == "private_api" and self.cors_origins,
                "can't be combined with entry=private_api, which web pages can't reach",
            ),
            (
                " and ".join(sorted(throttled)) or "throttle_rate_per_s",
                self.entry == "function_url" and throttled,
                "can't be combined with entry=function_url. Set reserved_concurrency instead",
            ),
            (
                "reserved_concurrency and memory_mb_by_function",
                functions - behind,
                f"{', '.join(sorted(functions - behind))}: {only_here}",
            ),
            (
                "reserved_concurrency",
                self.entry == "function_url" and API not in self.reserved_concurrency,
                (
                    f"must contain {API} with entry=function_url, for example {API}=50. A function "
                    "URL has no throttle: the function accepts 10 requests per second for each, "
                    "also requests with an invalid key"
                ),
            ),
        )

    def memory_of(self, function: str) -> int:
        """Return the memory of this function in MB."""
        return self.memory_mb_by_function.get(function, self.memory_mb)

    @property
    def is_local(self) -> bool:
        """Whether the target is the local emulator rather than AWS."""
        return self.bundle == "host"

    @property
    def asks_for_origin(self) -> bool:
        """Whether the API rejects requests that bypass the firewall."""
        return self.waf and self.waf_only

    @property
    def service(self) -> str:
        """Name of the deployment in the source of its events and in its metrics."""
        return f"ojs-{self.stage}"

    @property
    def runtime_python(self) -> str:
        """Version of the functions' Python, for example "3.13"."""
        if self.is_local:
            return f"{sys.version_info.major}.{sys.version_info.minor}"
        return self.python

    @property
    def runtime_architecture(self) -> Architecture:
        """Instruction set of the deployed functions."""
        if self.is_local:
            return "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x86_64"
        return self.architecture
