"""What a deployment tells its functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from ojs import environment


def _listed(value: Any) -> Any:
    """A list as the environment has it, separated by commas; anything else as it is."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]


# An event type, or the beginning of some and `*`: `job.completed`, `job.*`, `*`.
_Pattern = Annotated[str, StringConstraints(pattern=r"^(\*|[a-z_]+\.(\*|[a-z_]+\*?))$")]


class Settings(BaseModel):
    """Settings of one running function."""

    model_config = ConfigDict(frozen=True)

    table: str = Field(min_length=3, description="name of the DynamoDB table (OJS_TABLE)")
    bucket: str | None = Field(default=None, description="bucket for large payloads (OJS_BUCKET)")
    version: str = Field(default="0.2.1", description="version of this deployment (OJS_VERSION)")
    service: str = Field(
        default="ojs-backend-aws",
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,62})$",
        description="name of this service in the source of its events (OJS_SERVICE)",
    )
    bus: str | None = Field(default=None, description="EventBridge bus for events (OJS_BUS)")
    bus_types: Annotated[tuple[_Pattern, ...], BeforeValidator(_listed)] = Field(
        default=(),
        description="event types that go to the bus beside the operational ones, as `job.failed` "
        "or `job.*`, separated by commas (OJS_BUS_TYPES)",
    )
    failure_queue: str | None = Field(
        default=None,
        description="URL of the SQS queue for stream records that cannot be read "
        "(OJS_FAILURE_QUEUE)",
    )
    shard: str | None = Field(
        default=None,
        min_length=1,
        description="the shard that stream records are from if their event does not say so; only "
        "for an emulator of AWS that has one shard and no tumbling windows (OJS_SHARD)",
    )
    authorizer: Literal["keys", "jwt", "iam", "none"] = Field(
        default="none",
        description="how callers are identified: this service's keys, a JWT, IAM; or not at all, "
        "which is for a server that only its own machine reaches. Functions without "
        "OJS_AUTHORIZER use keys",
    )
    strict_queues: bool = Field(
        default=False,
        description="refuse jobs for queues that no operator made "
        "(OJS_STRICT_QUEUES: true or false)",
    )

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the settings; raises pydantic.ValidationError when OJS_TABLE is missing."""
        # Without the setting a function asks every caller for a key.
        closed = {"authorizer": "keys"}
        return cls.model_validate(closed | environment.configured(cls.model_fields))
