"""What can be chosen about a deployment, in one place."""

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

from ojs_aws.cdk.functions import API, AUTHORIZER, DASHBOARD, FUNCTIONS, PUSHERS, deployed

Architecture = Literal["arm64", "x86_64"]

# The common ones among CloudWatch's.
LOG_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 180, 365, 731, 1827, 3653)


def _listed(value: Any) -> Any:
    """A list as the command line has it, separated by commas; anything else as it is."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


def _by_function(value: Any) -> Any:
    """Numbers by function as the command line has them: `jobs=200,sweep=1`."""
    if not isinstance(value, str):
        return value
    return dict(part.partition("=")[::2] for part in _listed(value))


# An origin, as browsers send it; the server has the same, and a test compares the two.
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

# As the functions' own setting has it (OJS_BUS_TYPES); a test compares the two.
EVENT_PATTERN = r"^(\*|[a-z_]+\.([a-z_]+\.)*(\*|[a-z_]+\*?))$"
_EventPattern = Annotated[str, StringConstraints(pattern=EVENT_PATTERN)]


# As the functions' own setting has it (OJS_MIDDLEWARE); a test compares the two.
_PART = r"[A-Za-z_][A-Za-z0-9_]*"
_MiddlewareName = Annotated[str, StringConstraints(pattern=rf"^{_PART}(\.{_PART})*:{_PART}$")]


class DeploymentSettings(BaseModel):
    """Settings of one deployment. Every field is a context key of the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    stage: str = Field("dev", pattern=r"^[a-z][a-z0-9-]{0,19}$")
    """name of the deployment; prefixes its stacks"""
    removal_policy: Literal["retain", "destroy"] = "retain"
    """what happens to table, bucket, keys, and logs with their stack"""
    deletion_protection: bool = True
    """the table and its stack refuse to be deleted"""
    log_retention_days: int = 30
    """days that logs are kept"""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """level of the functions' own logs"""
    tracing: bool = False
    """X-Ray records how long calls of functions take: the first of each second, and one in twenty
    of the others; where jobs are few that costs about as much as all the rest"""
    memory_mb: _Memory = 1024
    """memory of each function"""
    architecture: Architecture = "arm64"
    """instruction set of the functions (bundle=lambda only)"""
    python: Literal["3.11", "3.12", "3.13", "3.14"] = "3.13"
    """Python runtime of the functions (bundle=lambda only)"""
    bundle: Literal["lambda", "host"] = "lambda"
    """for which machine to bundle: AWS Lambda, or this one (local emulator)"""
    memory_mb_by_function: Annotated[Mapping[str, _Memory], _ByFunction] = Field(
        default_factory=dict
    )
    """memory of single functions, as {"sweep": 512}; on the command line as
    sweep=512,stream=2048"""
    reserved_concurrency: Annotated[Mapping[str, _Positive], _ByFunction] = Field(
        default_factory=dict
    )
    """how many of a function may run at once, kept free for it out of what the account has; written
    as memory_mb_by_function is"""
    throttle_rate_per_s: _Positive = 2_000
    """requests a second the API lets through"""
    throttle_burst: _Positive = 1_000
    """requests above the rate that the API lets through at once"""

    entry: Literal["http_api", "function_url", "private_api"] = "http_api"
    """through what requests come: an HTTP API of API Gateway; the URL of a function, which is
    cheapest, and has no throttle, name or firewall; or a REST API that only VPC endpoints of yours
    reach"""
    authorizer: Literal["keys", "jwt", "iam"] = "keys"
    """who says who a caller is: API keys of the deployment's own, an issuer of JSON Web Tokens, or
    IAM (requests signed with AWS credentials); there is no `none`"""
    authorizer_cache_s: int = Field(60, ge=0, le=3_600)
    """authorizer=keys: seconds that API Gateway remembers who a key belongs to; authorizer=iam:
    seconds that a function remembers what a role may do. One that is revoked is refused after so
    long at the latest"""
    old_keys_until: date | None = None
    """authorizer=keys: the day, in UTC, from which keys that a version before 0.3 made are refused;
    without it 90 days after the upgrade"""
    iam_operators: Annotated[tuple[_Operator, ...], _Listed] = Field(("*",), min_length=1)
    """authorizer=iam: ARNs of the roles and users that may do everything, whatever is stored of
    them; on the command line separated by commas. `*` stands for each that was never given scopes;
    safer are the names of your operators: then others may do nothing until they are given some"""
    jwt_issuer: str = Field("", pattern=r"^(https://[^\s?#]+)?$")
    """authorizer=jwt: the issuer's URL, as in the claim `iss`"""
    jwt_audience: Annotated[tuple[_Audience, ...], _Listed] = ()
    """authorizer=jwt: audiences of which a token must have one (`aud` or `client_id`); on the
    command line separated by commas"""
    jwt_scope_claim: str = Field("scope", pattern=r"^[!-~]{1,200}$")
    """authorizer=jwt: the claim that lists scopes, as text or as an array"""
    jwt_scope_prefix: str = Field("", pattern=r"^[!-~]{0,200}$")
    """authorizer=jwt: what stands before a scope in that claim, as the identifier and the slash of
    a resource server of Cognito; what does not begin with it does not count"""
    cors_origins: Annotated[tuple[_Origin, ...], _Listed] = ()
    """web pages that may use the API, as https://jobs.example.com; on the command line separated by
    commas; empty: none"""

    domain_name: str = Field("", pattern=rf"^({_Name})?$")
    """a name for the API; the one that API Gateway gives it then stops working, unless waf=true"""
    certificate_arn: str = Field(
        "", pattern=r"^(arn:[a-z-]+:acm:[a-z0-9-]+:\d{12}:certificate/\S+)?$"
    )
    """certificate for domain_name in AWS Certificate Manager: in the deployment's region, or with
    waf=true in us-east-1"""
    hosted_zone_id: str = Field("", pattern=r"^([A-Z0-9]{1,32})?$")
    """Route 53 zone in which domain_name is entered; empty: you enter it yourself"""
    hosted_zone_name: str = Field("", pattern=rf"^({_Name})?$")
    """name of that zone"""
    waf: bool = False
    """a CloudFront distribution with AWS WAF in front of the API, in a stack of its own in
    us-east-1"""
    waf_acl_arn: str = Field(
        "", pattern=r"^(arn:[a-z-]+:wafv2:us-east-1:\d{12}:global/webacl/\S+)?$"
    )
    """waf: a web ACL that is there already, in place of the stack's own"""
    waf_rate: int = Field(60_000, ge=100, le=2_000_000_000)
    """waf: requests within five minutes from one address before the rest are refused; workers
    behind one NAT gateway are one address"""

    waf_only: bool = True
    """waf: the API refuses what did not come through the distribution; false for the one deployment
    in which a distribution that is there gets the secret to show"""
    waf_rotation: int = Field(0, ge=0, le=1_000_000)
    """waf: how often that secret was rotated: another number changes the distribution, which then
    shows the current value"""
    encryption: Literal["aws", "own"] = "aws"
    """keys that data is encrypted with at rest: those of the AWS services, or a KMS key of the
    deployment's own, which is rotated every year"""
    payload_recovery_days: int = Field(7, ge=0, le=35)
    """days that a deleted large payload can be brought back, for a table restored to a time before;
    0: not at all"""

    max_write_units: int = Field(0, ge=0)
    """write units that the table takes in a second at most: what is above is throttled, and not
    paid; 0: no bound but the account's"""
    max_read_units: int = Field(0, ge=0)
    """the same for read units, of the table and of each of its indexes"""

    backup_days: int = Field(0, ge=0, le=3_650)
    """days that AWS Backup keeps a copy of the table, taken each night; 0: none, as the last 35
    days can be restored without it"""

    strict_queues: bool = False
    """jobs are refused for queues that no operator made"""
    middleware: Annotated[tuple[_MiddlewareName, ...], _Listed] = ()
    """what jobs go through before they are stored: functions of yours, in order, as
    hooks:add_trace; on the command line separated by commas"""
    middleware_folder: str = ""
    """middleware: the folder with their modules, and all that these import; relative to the folder
    in which cdk is run"""
    middleware_timeout_ms: int = Field(3_000, ge=1, le=20_000)
    """middleware: milliseconds that it may take for all jobs of a request"""
    max_queues: int = Field(10_000, ge=0)
    """with so many queues jobs make no more, and operators still may; 0: no limit"""
    max_crons: int = Field(1_000, ge=0)
    """how many cron jobs can be registered; those that are there stay; 0: no limit"""
    min_cron_interval_s: int = Field(1, ge=1, le=86_400)
    """seconds between two ticks of a cron job that is registered or changed, at least"""
    push: bool = False
    """jobs can be pushed to Lambda functions and HTTPS endpoints: three queues, and the functions
    dispatch, sender and outcomes"""
    push_functions: Annotated[tuple[_Function, ...], _Listed] = Field((), max_length=20)
    """push: ARNs of the functions that deliveries may name, without alias or version; on the
    command line separated by commas; a construct's add_worker adds its own"""
    egress_hosts: Annotated[tuple[_Host, ...], _Listed] = Field((), max_length=50)
    """push: hosts that deliveries may send jobs to, as a.example, *.a.example for all below it, or
    * for all; on the command line separated by commas; a construct's add_endpoint adds its own"""
    push_concurrency: int = Field(20, ge=2, le=1_000)
    """push: how many of each of the functions dispatch, sender and outcomes run at once: a sender
    for each endpoint that is waited for, the others for up to ten messages at a time"""
    bus_types: Annotated[tuple[_EventPattern, ...], _Listed] = ()
    """event types that go to the event bus beside the operational ones, as job.completed or job.*;
    on the command line separated by commas"""
    results_in_events: bool = True
    """the log and the bus tell the results of jobs, up to 128 bytes each"""
    stream_batch_size: int = Field(100, ge=1, le=1_000)
    """stream records that are projected together, at most; fuller batches are cheaper"""
    stream_window_s: int = Field(10, ge=0, le=10)
    """seconds that the stream waits for a fuller batch; events and statistics are that far behind
    where jobs are few, and cost least with ten"""
    metrics_namespace: str = Field("OJS", pattern=r"^[A-Za-z0-9][A-Za-z0-9_./#-]{0,99}$")
    """CloudWatch namespace of the metrics of jobs, queues and workers"""
    queue_metrics: Literal["off", "fullest", "all"] = "fullest"
    """which queues have metrics of their own in CloudWatch, each at a price: none, so many as
    queue_metrics_max says, or all"""
    queue_metrics_max: int = Field(20, ge=1, le=500)
    """queue_metrics=fullest: how many queues have metrics of their own, at most"""
    dashboard: bool = True
    """a dashboard in CloudWatch"""
    web_dashboard: bool = True
    """the deployment's own dashboard, at /ojs/admin/; its files are for whoever asks, what it shows
    takes a key"""
    alarm_oldest_job_s: int = Field(900, ge=60)
    """alarm: a job has been waiting in line for so long"""
    alarm_cron_late_s: int = Field(180, ge=60)
    """alarm: a cron job was fired so long after it was due"""
    alarm_dead_letters: _Positive = 10
    """alarm: so many dead letters more within five minutes"""
    alarm_throttles: _Positive = 10
    """alarm: so many requests to the table, or calls of functions, refused for their rate within
    five minutes"""
    alarm_stream_age_s: _Positive = 60
    """alarm: events and statistics are so far behind"""
    alarm_push_age_s: int = Field(120, ge=60)
    """push, alarm: what became of jobs, or jobs for endpoints, have been waiting for so long"""
    alarm_sweep_silence_min: int = Field(5, ge=2, le=60)
    """alarm: no sweep has succeeded for so many minutes"""
    alarm_server_errors: _Positive = 5
    """alarm: so many answers with status 5xx within five minutes, if they are also
    alarm_error_percent of all"""
    alarm_error_percent: int = Field(1, ge=0, le=100)
    """alarm: answers with status 5xx in a hundred; 0: however few they are among the others"""
    alarm_latency_ms: _Positive = 5_000
    """alarm: the slowest tenth of requests takes so long, for a quarter of an hour; those that wait
    for a result, or for room in a queue, count too"""
    alarm_refused: _Positive = 100
    """alarm: so many more answers with status 401 or 403 within five minutes than in the five
    before"""
    alarm_system_errors: _Positive = 5
    """alarm: so many errors of DynamoDB's own within five minutes"""
    alarm_email: str = Field("", pattern=r"^([^@\s]+@[^@\s]+)?$")
    """whom alarms are sent to, through a topic of the deployment; empty: nobody"""
    alarm_topic_arn: str = Field("", pattern=r"^(arn:[a-z-]+:sns:[a-z0-9-]+:\d{12}:\S+)?$")
    """SNS topic that is there already and that alarms are sent to; empty: none"""

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
            raise ValueError(f"no function {', '.join(unknown)}; there are {', '.join(names)}")
        return numbers

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Refuse settings that contradict each other, naming the field to change."""
        for field, wrong, why in self._contradictions():
            if wrong:
                raise ValueError(f"{field}: {why}")
        return self

    def _contradictions(self) -> tuple[tuple[str, object, str], ...]:
        chosen = self.model_fields_set
        jwt, keys = self.authorizer == "jwt", self.authorizer == "keys"
        zone = self.hosted_zone_name
        in_zone = self.domain_name == zone or self.domain_name.endswith(f".{zone}")
        in_us_east_1 = ":acm:us-east-1:" in self.certificate_arn
        functions = {*self.memory_mb_by_function, *self.reserved_concurrency}
        no_certificate = bool(self.domain_name) != bool(self.certificate_arn)
        no_zone_name = bool(self.hosted_zone_id) != bool(zone)
        no_own_acl = not self.waf or self.waf_acl_arn
        return (
            *self._of_entry(functions),
            ("jwt_issuer", jwt and not self.jwt_issuer, "authorizer=jwt needs it"),
            ("jwt_audience", jwt and not self.jwt_audience, "authorizer=jwt needs it"),
            ("jwt_issuer", self.jwt_issuer and not jwt, "only with authorizer=jwt"),
            ("jwt_audience", self.jwt_audience and not jwt, "only with authorizer=jwt"),
            (
                "jwt_scope_claim",
                self.jwt_scope_claim != "scope" and not jwt,
                "only with authorizer=jwt",
            ),
            ("jwt_scope_prefix", self.jwt_scope_prefix and not jwt, "only with authorizer=jwt"),
            (
                "authorizer_cache_s",
                "authorizer_cache_s" in chosen and jwt,
                "not with authorizer=jwt: nothing is remembered there",
            ),
            ("old_keys_until", self.old_keys_until and not keys, "only with authorizer=keys"),
            (
                "iam_operators",
                "iam_operators" in chosen and self.authorizer != "iam",
                "only with authorizer=iam",
            ),
            (
                "reserved_concurrency and memory_mb_by_function",
                "authorizer" in functions and not keys,
                "there is no function authorizer but with authorizer=keys",
            ),
            ("push_functions", self.push_functions and not self.push, "only with push=true"),
            ("egress_hosts", self.egress_hosts and not self.push, "only with push=true"),
            *(
                (name, name in chosen and not self.push, "only with push=true")
                for name in ("push_concurrency", "alarm_push_age_s")
            ),
            (
                "reserved_concurrency and memory_mb_by_function",
                functions.intersection(PUSHERS) and not self.push,
                f"there are functions {', '.join(PUSHERS)} with push=true alone",
            ),
            ("certificate_arn", no_certificate, "domain_name and certificate_arn go together"),
            ("hosted_zone_id", no_zone_name, "hosted_zone_id and hosted_zone_name go together"),
            ("hosted_zone_name", zone and not in_zone, "domain_name must be in this zone"),
            (
                "waf",
                self.waf and not self.domain_name,
                "needs a domain_name: CloudFront's own names accept outdated TLS",
            ),
            (
                "certificate_arn",
                self.waf and not in_us_east_1,
                "with waf=true it must be in us-east-1, where CloudFront looks for it",
            ),
            (
                "waf",
                self.waf and self.authorizer == "iam",
                "not with authorizer=iam: CloudFront sends on to another name than was signed",
            ),
            *(
                (name, name in chosen and not self.waf, "only with waf=true")
                for name in ("waf_acl_arn", "waf_only", "waf_rotation")
            ),
            (
                "middleware_folder",
                bool(self.middleware) != bool(self.middleware_folder),
                "middleware and middleware_folder go together",
            ),
            (
                "middleware_timeout_ms",
                "middleware_timeout_ms" in chosen and not self.middleware,
                "only with middleware",
            ),
            ("backup_days", self.backup_days and self.is_local, "not with bundle=host"),
            (
                "reserved_concurrency and memory_mb_by_function",
                DASHBOARD in functions and not self.web_dashboard,
                "there is no function dashboard with web_dashboard=false",
            ),
            (
                "queue_metrics_max",
                "queue_metrics_max" in chosen and self.queue_metrics != "fullest",
                "only with queue_metrics=fullest",
            ),
            (
                "waf_rate",
                "waf_rate" in chosen and no_own_acl,
                "only with waf=true and without waf_acl_arn",
            ),
            (
                "domain_name",
                self.domain_name and self.is_local,
                "not with bundle=host: the local emulator has no names",
            ),
        )

    def _of_entry(self, functions: AbstractSet[str]) -> tuple[tuple[str, object, str], ...]:
        """What does not go with `entry`, given the functions that other settings name."""
        chosen, other = self.model_fields_set, self.entry != "http_api"
        throttled = {"throttle_rate_per_s", "throttle_burst"} & chosen
        there = deployed(self.authorizer, self.entry, push=True)
        behind = {spec.name for spec in there} | {AUTHORIZER}
        only_here = f"only with entry={'http_api' if other else 'function_url or private_api'}"
        return (
            ("authorizer", other and self.authorizer == "jwt", "jwt only with entry=http_api"),
            ("domain_name", other and self.domain_name, "only with entry=http_api"),
            ("waf", other and self.waf, "only with entry=http_api"),
            (
                "cors_origins",
                self.entry == "private_api" and self.cors_origins,
                "not with entry=private_api: web pages do not reach it",
            ),
            (
                " and ".join(sorted(throttled)) or "throttle_rate_per_s",
                self.entry == "function_url" and throttled,
                "not with entry=function_url: take reserved_concurrency of the function api",
            ),
            (
                "reserved_concurrency and memory_mb_by_function",
                functions - behind,
                f"{', '.join(sorted(functions - behind))}: {only_here}",
            ),
        )

    def memory_of(self, function: str) -> int:
        """Memory of this function, in MB."""
        return self.memory_mb_by_function.get(function, self.memory_mb)

    @property
    def is_local(self) -> bool:
        """Whether the target is the local emulator rather than AWS."""
        return self.bundle == "host"

    @property
    def asks_for_origin(self) -> bool:
        """Whether the API refuses what did not come through the firewall."""
        return self.waf and self.waf_only

    @property
    def service(self) -> str:
        """What the deployment calls itself: in the source of its events, and in its metrics."""
        return f"ojs-{self.stage}"

    @property
    def runtime_python(self) -> str:
        """Version of the functions' Python, such as "3.13"."""
        if self.is_local:
            return f"{sys.version_info.major}.{sys.version_info.minor}"
        return self.python

    @property
    def runtime_architecture(self) -> Architecture:
        """Instruction set that the functions are deployed for."""
        if self.is_local:
            return "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x86_64"
        return self.architecture
