"""What can be chosen about a deployment: cdk.json's `context`, or `cdk deploy -c name=value`."""

from __future__ import annotations

import platform
import sys
import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
)

from infra import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

Architecture = Literal["arm64", "x86_64"]

# Those of CloudWatch's that anybody asks for.
LOG_RETENTION_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 180, 365, 731, 1827, 3653)


def _listed(value: Any) -> Any:
    """A list as the command line has it, separated by commas; anything else as it is."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


# As the functions' own setting has it (OJS_BUS_TYPES); a test compares the two.
_EventPattern = Annotated[str, StringConstraints(pattern=r"^(\*|[a-z_]+\.(\*|[a-z_]+\*?))$")]


class DeploymentSettings(BaseModel):
    """Settings of one deployment. Every field is a context key of the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str = Field(
        default="dev",
        pattern=r"^[a-z][a-z0-9-]{0,19}$",
        description="name of the deployment; prefixes its stacks",
    )
    removal_policy: Literal["retain", "destroy"] = Field(
        default="retain", description="what happens to table and bucket with their stack"
    )
    deletion_protection: bool = Field(
        default=True, description="the table and its stack refuse to be deleted"
    )
    log_retention_days: int = Field(default=30, description="days that logs are kept")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="level of the functions' own logs"
    )
    memory_mb: int = Field(default=1024, ge=256, le=10_240, description="memory of each function")
    architecture: Architecture = Field(
        default="arm64", description="instruction set of the functions (bundle=lambda only)"
    )
    python: Literal["3.11", "3.12", "3.13", "3.14"] = Field(
        default="3.13", description="Python runtime of the functions (bundle=lambda only)"
    )
    bundle: Literal["lambda", "host"] = Field(
        default="lambda",
        description="for which machine to bundle: AWS Lambda, or this one (local emulator)",
    )
    throttle_rate_per_s: int = Field(
        default=2_000, ge=1, description="requests a second the API lets through"
    )
    throttle_burst: int = Field(
        default=1_000, ge=1, description="requests above the rate that the API lets through at once"
    )

    strict_queues: bool = Field(
        default=False, description="jobs are refused for queues that nobody made"
    )
    bus_types: Annotated[tuple[_EventPattern, ...], BeforeValidator(_listed)] = Field(
        default=(),
        description="event types that go to the event bus beside the operational ones, as "
        "job.completed or job.*; on the command line separated by commas",
    )
    metrics_namespace: str = Field(
        default="OJS",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_./#-]{0,99}$",
        description="CloudWatch namespace of the metrics of jobs, queues and workers",
    )
    alarm_oldest_job_s: int = Field(
        default=900, ge=60, description="alarm: a job has been waiting in line for so long"
    )
    alarm_dead_letters: int = Field(
        default=10, ge=1, description="alarm: so many dead letters more within five minutes"
    )
    alarm_throttles: int = Field(
        default=10,
        ge=1,
        description="alarm: so many requests to the table, or calls of functions, "
        "refused for their rate within five minutes",
    )
    alarm_stream_age_s: int = Field(
        default=60, ge=1, description="alarm: events and statistics are so far behind"
    )
    alarm_sweep_silence_min: int = Field(
        default=5, ge=2, le=60, description="alarm: no sweep has succeeded for so many minutes"
    )
    alarm_server_errors: int = Field(
        default=5, ge=1, description="alarm: so many answers with status 5xx within five minutes"
    )
    alarm_email: str = Field(
        default="",
        pattern=r"^([^@\s]+@[^@\s]+)?$",
        description="whom alarms are sent to, through a topic of the deployment; empty: nobody",
    )
    alarm_topic_arn: str = Field(
        default="",
        pattern=r"^(arn:[a-z-]+:sns:[a-z0-9-]+:\d{12}:\S+)?$",
        description="SNS topic that is there already and that alarms are sent to; empty: none",
    )

    @field_validator("log_retention_days")
    @classmethod
    def _offered(cls, days: int) -> int:
        if days not in LOG_RETENTION_DAYS:
            raise ValueError(f"must be one of {', '.join(map(str, LOG_RETENTION_DAYS))}")
        return days

    @classmethod
    def from_context(cls, get: Callable[[str], Any]) -> DeploymentSettings:
        """Read every setting with `get` (CDK's `try_get_context`); absent ones keep the default.

        Raises pydantic.ValidationError for a value that is not allowed.
        """
        given = {name: get(name) for name in cls.model_fields}
        return cls.model_validate(
            {name: value for name, value in given.items() if value is not None}
        )

    @property
    def is_local(self) -> bool:
        """Whether the target is the local emulator rather than AWS."""
        return self.bundle == "host"

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


def project_version() -> str:
    """The version that pyproject.toml gives: functions report it as the deployment's."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    return str(version)
