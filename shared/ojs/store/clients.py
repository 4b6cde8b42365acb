"""SDK clients: one for each container, made with timeouts that fit a request."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client

# A lost answer is recognised by the write's own token (ojs.store.jobs), so retrying is safe. API
# Gateway gives a request 29 s.
CONFIG = Config(
    connect_timeout=1,
    read_timeout=5,
    retries={"mode": "standard", "total_max_attempts": 4},
    max_pool_connections=64,
    tcp_keepalive=True,
)


def dynamodb(**arguments: Any) -> DynamoDBClient:
    """A DynamoDB client; `arguments` go to boto3 (endpoint, region, credentials)."""
    return boto3.client("dynamodb", **({"config": CONFIG} | arguments))


@cache
def s3() -> S3Client:
    """The container's S3 client; most requests never need one, so it is made when first used."""
    return boto3.client("s3", config=CONFIG)
