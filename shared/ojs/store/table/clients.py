"""Creates the AWS SDK clients, one of each kind per container, with timeouts that fit a request."""

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
    # AWS also checks parameters. Checking them here would take a fifth of the time of a call.
    parameter_validation=False,
    # Without this setting, the SDK builds the user agent again for each call.
    user_agent=f"ojs-backend-aws Botocore/{botocore.__version__}",
)
# The class `Table` retries calls itself, because it must know the outcome of each attempt. All
# calls share one client and its connection pool. Connections can be dead after Lambda froze the
# container. The first call of a request detects this, and it is a call that can be retried.
DYNAMODB_CONFIG = CONFIG.merge(Config(retries={"mode": "standard", "total_max_attempts": 1}))
# S3 takes longer for a large object.
BUCKET_CONFIG = CONFIG.merge(Config(read_timeout=5))
# Settings of the calls that authenticate a request. They end within 4 s, because the dashboard
# waits 5 s for a response.
FIRST_CONFIG = CONFIG.merge(
    Config(read_timeout=1, retries={"mode": "standard", "total_max_attempts": 2})
)


@cache
def _session() -> Session:
    # botocore's client is sufficient. Importing boto3 would take additional time.
    return botocore.session.get_session()


def client(service: str, config: Config = CONFIG, **arguments: Any) -> Any:
    """Create a client of a service. `arguments` go to botocore (endpoint, region, credentials)."""
    return _session().create_client(service, config=config, **arguments)


def dynamodb(**arguments: Any) -> DynamoDBClient:
    """Create a DynamoDB client that makes one attempt per call. `arguments` are as for `client`."""
    made: DynamoDBClient = client("dynamodb", **({"config": DYNAMODB_CONFIG} | arguments))
    return made


def secrets_manager(config: Config = BUCKET_CONFIG) -> SecretsManagerClient:
    """Create a Secrets Manager client."""
    made: SecretsManagerClient = client("secretsmanager", config)
    return made


@cache
def s3() -> S3Client:
    """Return the container's S3 client. The first call creates it, because few requests need it."""
    made: S3Client = client("s3", BUCKET_CONFIG)
    return made
