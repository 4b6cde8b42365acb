"""SDK clients: one for each container, made with timeouts that fit a request."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_secretsmanager import SecretsManagerClient

# AWS answers in milliseconds: three tries of at most 2 s leave a request time to answer by itself
# before API Gateway ends it after 29 s.
CONFIG = Config(
    connect_timeout=1,
    read_timeout=2,
    retries={"mode": "standard", "total_max_attempts": 3},
    max_pool_connections=64,
    tcp_keepalive=True,
)
# `Table` repeats calls itself, since it must know what became of each try. One client makes all
# calls: after a container was frozen, the first call, which may be repeated, finds out that a
# connection of the pool is dead, and not one that may not.
DYNAMODB_CONFIG = CONFIG.merge(Config(retries={"mode": "standard", "total_max_attempts": 1}))
# S3 takes longer for a large object.
BUCKET_CONFIG = CONFIG.merge(Config(read_timeout=5))


def dynamodb(**arguments: Any) -> DynamoDBClient:
    """A DynamoDB client that makes each call once; `arguments` go to boto3 (endpoint, region,
    credentials).
    """
    return boto3.client("dynamodb", **({"config": DYNAMODB_CONFIG} | arguments))


def secrets_manager() -> SecretsManagerClient:
    """A Secrets Manager client."""
    return boto3.client("secretsmanager", config=BUCKET_CONFIG)


@cache
def s3() -> S3Client:
    """The container's S3 client; most requests never need one, so it is made when first used."""
    return boto3.client("s3", config=BUCKET_CONFIG)
