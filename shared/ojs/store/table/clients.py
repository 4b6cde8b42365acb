"""SDK clients: one for each container, made with timeouts that fit a request."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import botocore
import botocore.session
from botocore.config import Config

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_secretsmanager import SecretsManagerClient

# AWS responds in milliseconds. With three tries of at most 2 s, a request has time to send an error
# response before API Gateway ends it after 29 s.
CONFIG = Config(
    connect_timeout=1,
    read_timeout=2,
    retries={"mode": "standard", "total_max_attempts": 3},
    max_pool_connections=64,
    tcp_keepalive=True,
    # AWS checks parameters, too; doing it here as well takes a fifth of the time of a call.
    parameter_validation=False,
    # Else it would be put together for each call.
    user_agent=f"ojs-backend-aws Botocore/{botocore.__version__}",
)
# `Table` retries calls, since it must know the outcome of each try. One client makes all calls:
# after a container was frozen, the first call, which may be retried, detects that a connection of
# the pool is dead, and not a call that may not be retried.
DYNAMODB_CONFIG = CONFIG.merge(Config(retries={"mode": "standard", "total_max_attempts": 1}))
# S3 takes longer for a large object.
BUCKET_CONFIG = CONFIG.merge(Config(read_timeout=5))
# Settings of calls before a request is processed: they end within 4 s, and the dashboard waits 5 s.
FIRST_CONFIG = CONFIG.merge(
    Config(read_timeout=1, retries={"mode": "standard", "total_max_attempts": 2})
)


@cache
def _session() -> Session:
    # Without boto3: only its client is used here, which is botocore's.
    return botocore.session.get_session()


def client(service: str, config: Config = CONFIG, **arguments: Any) -> Any:
    """Create a client of a service. `arguments` go to botocore (endpoint, region, credentials)."""
    return _session().create_client(service, config=config, **arguments)


def dynamodb(**arguments: Any) -> DynamoDBClient:
    """Create a DynamoDB client that makes each call once. `arguments` are as for `client`."""
    made: DynamoDBClient = client("dynamodb", **({"config": DYNAMODB_CONFIG} | arguments))
    return made


def secrets_manager(config: Config = BUCKET_CONFIG) -> SecretsManagerClient:
    """Create a Secrets Manager client."""
    made: SecretsManagerClient = client("secretsmanager", config)
    return made


@cache
def s3() -> S3Client:
    """Return the container's S3 client. The first call creates it: few requests need one."""
    made: S3Client = client("s3", BUCKET_CONFIG)
    return made
