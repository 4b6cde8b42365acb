"""The functions: which requests reach each, and exactly what each may do.

This is the one table of permissions. A role is built from nothing else, and the tests compare it
with the template on one side and with the calls that the code really makes on the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_ROUTE = "$default"
AUTHORIZER = "authorizer"
SETUP = "setup"
DECLARE = "declare"


@dataclass(frozen=True)
class Access:
    """What a function may do, as IAM actions without their service prefix."""

    table: frozenset[str] = frozenset()
    """DynamoDB actions on the table itself."""
    items: tuple[str, ...] = ()
    """Partition keys of the only items that these actions may touch, with `*` for any text; empty:
    all."""
    indexes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """DynamoDB actions by index name."""
    payloads: frozenset[str] = frozenset()
    """S3 actions on the payload bucket's objects."""
    bucket: frozenset[str] = frozenset()
    """S3 actions on the payload bucket itself."""
    stream: frozenset[str] = frozenset()
    """DynamoDB actions on the table's stream."""
    bus: frozenset[str] = frozenset()
    """EventBridge actions on the event bus."""
    failures: frozenset[str] = frozenset()
    """SQS actions on the queue for stream records that failed."""
    secret: frozenset[str] = frozenset()
    """Secrets Manager actions on the secret that takes the first key; with authorizer=keys."""


@dataclass(frozen=True, eq=False)
class FunctionSpec:
    """One Lambda function; its code is `functions/<name>/handler.py`."""

    name: str
    description: str
    access: Access
    timeout_s: int
    routes: tuple[str, ...] = ()
    """Paths of the HTTP API, every method; `$default` takes what no other path matches."""
    authorizer: str | None = None
    """The setting `authorizer` that it is deployed with; None: with each."""

    @property
    def handler(self) -> str:
        """The handler's name inside the bundle."""
        return f"functions.{self.name}.handler.handler"


# How long CloudFormation waits for a custom resource, an hour otherwise: the timeout of its
# function, and the two tries that Lambda makes after a failure.
CUSTOM_RESOURCE_S = 300

# An HTTP API gives up after 30 s: a function must have answered, or failed, before.
HTTP_TIMEOUT_S = 29

_QUERY = frozenset({"Query"})

# What serving requests, projecting and sweeping need alike; nothing scans the table.
_WORK = Access(
    table=frozenset(
        {
            "BatchGetItem",
            "BatchWriteItem",
            "DeleteItem",
            "GetItem",
            "PutItem",
            "Query",
            "UpdateItem",
        }
    ),
    # Fetches, and whoever drops the oldest job of a full queue or surplus copies of dead letters,
    # find jobs there.
    indexes={"work": _QUERY},
    # Offloaded payloads: of new jobs, of dead letters that get other args, and of their copies.
    payloads=frozenset({"DeleteObject", "GetObject", "PutObject"}),
    # Without it S3 answers 403 instead of 404 for an object that is gone; the store tells the two
    # apart. Every function that gets objects needs it.
    bucket=frozenset({"ListBucket"}),
)
# Dead letters of all queues, and bulk operations, are listed by the second.
_WORK_AND_EXPIRY = replace(_WORK, indexes={"work": _QUERY, "expiry": _QUERY})

# Partitions of all access keys.
_KEYS = "A|*"

# What Lambda asks for before it maps a stream to a function.
STREAM_SOURCE = frozenset({"DescribeStream", "GetRecords", "GetShardIterator", "ListStreams"})

FUNCTIONS: tuple[FunctionSpec, ...] = (
    FunctionSpec(
        name="jobs",
        description="Jobs: enqueue, read, list, cancel, progress, result, many at once",
        routes=("/ojs/v1/jobs", "/ojs/v1/jobs/{proxy+}"),
        timeout_s=HTTP_TIMEOUT_S,
        access=_WORK_AND_EXPIRY,
    ),
    FunctionSpec(
        name="workers",
        description="Workers: fetch, acknowledge, fail, heartbeat, registration",
        routes=("/ojs/v1/workers", "/ojs/v1/workers/{proxy+}"),
        timeout_s=HTTP_TIMEOUT_S,
        access=_WORK,
    ),
    FunctionSpec(
        name="admin",
        description="Health, manifest, dead letter, queues, worker listing, unknown routes",
        routes=(DEFAULT_ROUTE,),
        timeout_s=HTTP_TIMEOUT_S,
        access=_WORK_AND_EXPIRY,
    ),
    FunctionSpec(
        name="stream",
        description="What follows from the table's stream: counters, events, metrics, tidying up",
        # A batch takes a second; this is for one that has to wait for the table or the bus.
        timeout_s=60,
        access=replace(
            _WORK,
            # The event source mapping reads the stream, and reports what it gave up, as this role.
            stream=STREAM_SOURCE,
            bus=frozenset({"PutEvents"}),
            failures=frozenset({"SendMessage"}),
        ),
    ),
    FunctionSpec(
        name="sweep",
        description="Every minute: promote, expire and time out what is due; measure",
        # The next run starts a minute after this one: end before it.
        timeout_s=55,
        # Events that the bus refused when they came are published later.
        access=replace(_WORK_AND_EXPIRY, bus=frozenset({"PutEvents"})),
    ),
    FunctionSpec(
        name=AUTHORIZER,
        description="Who holds the key that a request bears",
        authorizer="keys",
        # One call of the table: what takes longer is a table in trouble.
        timeout_s=5,
        # Looking a key up and noting its use are one call.
        access=Access(table=frozenset({"UpdateItem"}), items=(_KEYS,)),
    ),
    FunctionSpec(
        name=SETUP,
        description="A step of each deployment: check the table, leave the first key",
        timeout_s=60,
        access=Access(
            table=frozenset({"GetItem", "PutItem", "UpdateItem"}),
            items=(_KEYS, "DEPLOYMENT"),
            secret=frozenset({"GetSecretValue", "PutSecretValue"}),
        ),
    ),
)

# Made where a CDK app declares anything. It does what the function admin does.
DECLARING = FunctionSpec(
    name=DECLARE,
    description="Queues, worker pools, cron jobs and rate limits that a CDK app declares",
    timeout_s=60,
    access=_WORK_AND_EXPIRY,
)


def deployed(authorizer: str) -> tuple[FunctionSpec, ...]:
    """The functions of a deployment with this setting `authorizer`."""
    return tuple(spec for spec in FUNCTIONS if spec.authorizer in {None, authorizer})


def by_name(name: str) -> FunctionSpec:
    """The function of that name; raises KeyError for another one."""
    return {spec.name: spec for spec in FUNCTIONS}[name]
