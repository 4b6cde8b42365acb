"""What a deployment tells its functions. The only module that reads the environment."""

from __future__ import annotations

import os

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """Settings of one running function."""

    model_config = ConfigDict(frozen=True)

    table: str = Field(min_length=3, description="name of the DynamoDB table (OJS_TABLE)")
    bucket: str | None = Field(default=None, description="bucket for large payloads (OJS_BUCKET)")
    version: str = Field(default="0.1.0", description="version of this deployment (OJS_VERSION)")

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the settings; raises pydantic.ValidationError when OJS_TABLE is missing."""
        names = {"table": "OJS_TABLE", "bucket": "OJS_BUCKET", "version": "OJS_VERSION"}
        given = {field: os.environ[name] for field, name in names.items() if os.environ.get(name)}
        return cls.model_validate(given)
