"""What a deployment tells its functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from ojs import environment

Authorizer = Literal["keys", "jwt", "iam", "none"]
QueueMetrics = Literal["off", "fullest", "all"]
# An event type, or the beginning of some and `*`: `job.completed`, `job.*`, `*`.
EVENT_PATTERN = r"^(\*|[a-z_]+\.(\*|[a-z_]+\*?))$"
# A function in a module, as `hooks:add_trace`.
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
MIDDLEWARE_PATTERN = rf"^{_NAME}(\.{_NAME})*:{_NAME}$"
_MIDDLEWARE = re.compile(MIDDLEWARE_PATTERN)
MAX_QUEUES = 10_000
_SERVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62})")
_EVENTS = re.compile(EVENT_PATTERN)
_OPERATOR = re.compile(r"\*|arn:aws[a-z-]*:iam::\d{12}:(root|(role|user)/\S+)")


@dataclass(frozen=True)
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
    # authorizer=jwt: the claim that lists scopes, and what stands before those of this service.
    jwt_scope_claim: str = "scope"
    jwt_scope_prefix: str = ""
    # authorizer=iam: ARNs of roles that may do everything, whatever is stored of them; `*` stands
    # for each role that never had a record. In the environment separated by commas.
    iam_operators: tuple[str, ...] = ("*",)
    # For how long (s) what a role may do is remembered once it was looked up.
    authorizer_cache_s: int = 60
    # Refuse jobs for queues that no operator made; in the environment `true` or `false`.
    strict_queues: bool = False
    # With so many queues a push makes no more; 0: it always may.
    max_queues: int = MAX_QUEUES
    # Which queues have CloudWatch metrics of their own, and with `fullest` how many at most.
    queue_metrics: QueueMetrics = "fullest"
    queue_metrics_max: int = 20
    # What jobs go through before they are stored, as `hooks:add_trace`, in order; in the
    # environment separated by commas. And how long that may take for all jobs of a request.
    middleware: tuple[str, ...] = ()
    middleware_timeout_ms: int = 3_000
    # The shard that stream records are from if their event does not say so; only for an emulator of
    # AWS that has one shard and no tumbling windows.
    shard: str | None = None

    def __post_init__(self) -> None:
        for name, right in (
            ("table", len(self.table) >= 3),
            ("service", _SERVICE.fullmatch(self.service)),
            ("bus_types", all(_EVENTS.fullmatch(each) for each in self.bus_types)),
            ("authorizer", self.authorizer in get_args(Authorizer)),
            ("iam_operators", all(map(_OPERATOR.fullmatch, self.iam_operators))),
            ("authorizer_cache_s", self.authorizer_cache_s >= 0),
            ("max_queues", self.max_queues >= 0),
            ("queue_metrics", self.queue_metrics in get_args(QueueMetrics)),
            ("queue_metrics_max", self.queue_metrics_max > 0),
            ("middleware", all(_MIDDLEWARE.fullmatch(each) for each in self.middleware)),
            ("middleware_timeout_ms", self.middleware_timeout_ms > 0),
        ):
            if not right:
                raise ValueError(f"{name} must not be {getattr(self, name)!r}")

    @property
    def metered_queues(self) -> int | None:
        """How many queues have CloudWatch metrics of their own at most; None: all."""
        return {"off": 0, "fullest": self.queue_metrics_max, "all": None}[self.queue_metrics]

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
        for name in {"bus_types", "iam_operators", "middleware"} & found.keys():
            listed = (part.strip() for part in found[name].split(","))
            found[name] = tuple(filter(None, listed))
        numbers = {"queue_metrics_max", "authorizer_cache_s", "max_queues", "middleware_timeout_ms"}
        for name in numbers & found.keys():
            found[name] = int(found[name])
        strict = found.get("strict_queues", "false").lower()
        if strict not in ("true", "false"):
            raise ValueError(f"strict_queues must be true or false, not {strict!r}")
        return cls(**{**found, "strict_queues": strict == "true"})
