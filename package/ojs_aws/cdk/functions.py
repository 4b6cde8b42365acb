"""The functions: their routes and their permissions.

This table is the only source of permissions. Tests compare it with the template, and with the calls
that the code makes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_ROUTE = "$default"
API = "api"
AUTHORIZER = "authorizer"
SETUP = "setup"
DECLARE = "declare"
BRIDGE = "bridge"
DASHBOARD = "dashboard"
WEBHOOK = "webhook"
SOCKET, TICKET, NOTIFY = "socket", "ticket", "notify"


@dataclass(frozen=True)
class Access:
    """Permissions of a function, as IAM actions without their service prefix."""

    table: frozenset[str] = frozenset()
    """DynamoDB actions on the table itself."""
    items: tuple[str, ...] = ()
    """Partition keys that these actions are limited to. `*` matches any text. Empty: all."""
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
    """Secrets Manager actions on the secret of the bootstrap key. Requires authorizer=keys."""
    origin: frozenset[str] = frozenset()
    """Secrets Manager actions on the secret header of the distribution. Requires waf=true."""
    queues: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """SQS actions by queue of push delivery (`QUEUES`). Requires push=true."""
    targets: frozenset[str] = frozenset()
    """Lambda actions on the functions that deliveries can target. Requires push=true."""
    webhooks: frozenset[str] = frozenset()
    """SQS actions on the queue of webhooks. Requires webhooks=true."""
    connections: frozenset[str] = frozenset()
    """API Gateway actions on connections of the WebSocket API. Requires realtime=all or wake."""


@dataclass(frozen=True, eq=False)
class FunctionSpec:
    """A Lambda function. Its code is `functions/<name>/handler.py`."""

    name: str
    description: str
    access: Access
    timeout_s: int
    routes: tuple[str, ...] = ()
    """Paths of the HTTP API, for all methods. `$default` matches all other paths."""
    authorizer: str | None = None
    """Value of the setting `authorizer` that deploys this function. None: all values."""
    consumes: str | None = None
    """Queue of push delivery that triggers this function. Requires push=true."""
    webhooks: bool = False
    """Whether this function requires webhooks=true."""
    open: bool = False
    """Whether its routes are public, without an authorizer."""
    realtime: tuple[str, ...] = ("all", "wake", "off")
    """Values of the setting `realtime` that deploy this function."""

    @property
    def handler(self) -> str:
        """Name of the handler in the bundle."""
        return f"functions.{self.name}.handler.handler"


# Maximum time that CloudFormation waits for a custom resource (its default is 1 hour): the timeout
# of the function, plus the two retries of Lambda.
CUSTOM_RESOURCE_S = 300

# An HTTP API times out after 30 s, so a function must respond earlier.
HTTP_TIMEOUT_S = 29

_QUERY = frozenset({"Query"})

# Queues of push delivery: wake-ups of dispatch, jobs for the sender, and outcomes.
DISPATCH, SEND, OUTCOMES = QUEUES = ("dispatch", "send", "outcomes")
_SENDS = frozenset({"SendMessage"})
# Permissions that Lambda needs to read a queue for a function.
QUEUE_SOURCE = frozenset({"DeleteMessage", "GetQueueAttributes", "ReceiveMessage"})
# A function that makes jobs available wakes dispatch.
_WAKES = {DISPATCH: _SENDS}
# A function that claims jobs for deliveries invokes targets, or sends the jobs to the sender.
_PUSHES = {DISPATCH: _SENDS, SEND: _SENDS}
# An outcome that can't be processed immediately is sent to the queue of outcomes.
_RETURNS = {**_PUSHES, OUTCOMES: _SENDS}
_INVOKES = frozenset({"InvokeFunction"})
# Permission to send messages to connections.
_RINGS = frozenset({"ManageConnections"})

# Permissions shared by requests, the stream consumer, and the sweep. No function scans the table.
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
    # Used by fetches, by the overflow policy drop_oldest, and to delete copies of dead letters.
    indexes={"work": _QUERY},
    # Offloaded payloads: of new jobs, of dead letters with changed args, and of their copies.
    payloads=frozenset({"DeleteObject", "GetObject", "PutObject"}),
    # With this permission S3 returns 404 for a missing object, otherwise 403. All functions that
    # read objects need it to distinguish the two.
    bucket=frozenset({"ListBucket"}),
    queues=_WAKES,
    # A function that makes jobs available rings idle workers.
    connections=_RINGS,
)
# The index for dead letters of all queues, and for bulk operations.
_WORK_AND_EXPIRY = replace(_WORK, indexes={"work": _QUERY, "expiry": _QUERY})
# The table actions of functions that suspend jobs, or delete their steps. A transaction checks that
# what a job waits for has not happened.
_SUSPENDS = _WORK.table | {"ConditionCheckItem"}

# Functions that process requests check whether the distribution forwarded them.
_READS_SECRET = frozenset({"GetSecretValue"})

# Partitions of access keys.
_KEYS = "A|*"


def _pushing(consumed: str, sends: Mapping[str, frozenset[str]] = _PUSHES) -> Access:
    """Return the permissions of a function that reads this queue and pushes jobs."""
    queues = {**sends, consumed: QUEUE_SOURCE | sends.get(consumed, frozenset())}
    return replace(_WORK, table=_SUSPENDS, queues=queues, targets=_INVOKES)


# Items of connections and subscribers, and the jobs that they name.
_SUBSCRIPTIONS = ("RT", "RT|*", "J|*")

# Permissions that Lambda requires to map a stream to a function.
STREAM_SOURCE = frozenset({"DescribeStream", "GetRecords", "GetShardIterator", "ListStreams"})

FUNCTIONS: tuple[FunctionSpec, ...] = (
    FunctionSpec(
        name="jobs",
        description="Jobs API: enqueue, read, list, cancel, progress, results, and bulk operations",
        routes=("/ojs/v1/jobs", "/ojs/v1/jobs/{proxy+}"),
        timeout_s=HTTP_TIMEOUT_S,
        access=replace(_WORK_AND_EXPIRY, table=_SUSPENDS, origin=_READS_SECRET),
    ),
    FunctionSpec(
        name="workers",
        description="Workers API: fetch, ack, nack, heartbeat, and registration",
        routes=("/ojs/v1/workers", "/ojs/v1/workers/{proxy+}"),
        timeout_s=HTTP_TIMEOUT_S,
        access=replace(_WORK, table=_SUSPENDS, origin=_READS_SECRET),
    ),
    FunctionSpec(
        name="admin",
        description="All other API routes: health, manifest, dead letters, queues, administration",
        routes=(DEFAULT_ROUTE,),
        timeout_s=HTTP_TIMEOUT_S,
        # The request for a test call waits for the target's response.
        access=replace(_WORK_AND_EXPIRY, targets=_INVOKES, origin=_READS_SECRET, webhooks=_SENDS),
    ),
    FunctionSpec(
        name=DASHBOARD,
        description="Files of the web dashboard. They are public; the data requires an access key",
        # API Gateway routes a path with or without a trailing slash. The function handles both.
        routes=("/ojs/admin", "/ojs/admin/{proxy+}"),
        # Reads files of its bundle only.
        timeout_s=5,
        access=Access(origin=_READS_SECRET),
        open=True,
    ),
    FunctionSpec(
        name="stream",
        description="Stream consumer: counters, events, metrics, and cleanup",
        # A batch takes 1 second. The rest is for delays of the table or the bus.
        timeout_s=60,
        access=replace(
            _WORK,
            # The event source mapping reads the stream and reports discarded records as this role.
            stream=STREAM_SOURCE,
            bus=frozenset({"PutEvents"}),
            failures=frozenset({"SendMessage"}),
            webhooks=_SENDS,
        ),
    ),
    FunctionSpec(
        name="sweep",
        description="Sweep, every minute: promotes, expires, and times out due jobs, and measures",
        # Ends before the next run, which starts after one minute.
        timeout_s=55,
        # Publishes events that the bus rejected earlier.
        access=replace(_WORK_AND_EXPIRY, bus=frozenset({"PutEvents"}), webhooks=_SENDS),
    ),
    FunctionSpec(
        name=AUTHORIZER,
        description="Authorizer: identifies the owner of an access key",
        authorizer="keys",
        # One request to the table. A longer duration means that the table fails.
        timeout_s=5,
        # One request reads the key and records its use. The MAC secret is read once.
        access=Access(table=frozenset({"GetItem", "UpdateItem"}), items=(_KEYS,)),
    ),
    FunctionSpec(
        name=TICKET,
        description="Authorizer of the WebSocket API: redeems a ticket",
        realtime=("all", "wake"),
        # One request to the table, as for a key.
        timeout_s=5,
        access=Access(table=frozenset({"DeleteItem"}), items=("RT|t|*",)),
    ),
    FunctionSpec(
        name=SOCKET,
        description="WebSocket API: connections, and the messages of clients",
        realtime=("all", "wake"),
        timeout_s=HTTP_TIMEOUT_S,
        access=Access(
            table=frozenset({"DeleteItem", "GetItem", "PutItem", "Query", "UpdateItem"}),
            # Also queues, and the event log.
            items=(*_SUBSCRIPTIONS, "E|*", "Q|*"),
            connections=_RINGS,
        ),
    ),
    FunctionSpec(
        name=NOTIFY,
        description="Second stream consumer: sends events to subscribers",
        realtime=("all",),
        # Records older than this are not sent.
        timeout_s=60,
        access=Access(
            table=frozenset({"BatchGetItem", "DeleteItem", "Query", "UpdateItem"}),
            items=_SUBSCRIPTIONS,
            stream=STREAM_SOURCE,
            connections=_RINGS,
        ),
    ),
    FunctionSpec(
        name=SETUP,
        description="Deployment step: checks the table and creates the bootstrap key",
        timeout_s=60,
        access=Access(
            table=frozenset({"GetItem", "PutItem", "UpdateItem"}),
            items=(_KEYS, "DEPLOYMENT", "DELIVERIES", "Y|*"),
            secret=frozenset({"GetSecretValue", "PutSecretValue"}),
        ),
    ),
    FunctionSpec(
        name="dispatch",
        description="Push delivery: claims jobs and sends them to functions or to the sender",
        consumes=DISPATCH,
        # SQS redelivers the wake-up of a crashed run after six times this. The sweep is earlier.
        timeout_s=30,
        access=_pushing(DISPATCH),
    ),
    FunctionSpec(
        name="outcomes",
        description="Push delivery: processes outcomes and claims the next jobs",
        consumes=OUTCOMES,
        # SQS redelivers the outcome of a crashed run after six times this. The lease lasts longer:
        # two minutes plus the target's timeout.
        timeout_s=20,
        access=_pushing(OUTCOMES, _RETURNS),
    ),
    FunctionSpec(
        name="sender",
        description="Push delivery: sends jobs to endpoints and processes their responses",
        consumes=SEND,
        # The maximum timeout of an endpoint.
        timeout_s=900,
        access=_pushing(SEND),
    ),
    FunctionSpec(
        name=WEBHOOK,
        description="Webhooks: posts events to endpoints",
        webhooks=True,
        # The maximum timeout of an endpoint, and time to record the outcomes.
        timeout_s=70,
        access=Access(
            table=frozenset({"BatchGetItem", "GetItem", "PutItem", "UpdateItem"}),
            items=("HK|*", "HOOKS", _KEYS),
            webhooks=QUEUE_SOURCE | _SENDS,
        ),
    ),
)

# Functions that push jobs. Require push=true.
PUSHERS = tuple(spec.name for spec in FUNCTIONS if spec.consumes)

# Replaces the three functions with API routes and the authorizer if the API has one address. It
# reads access keys itself.
_API = FunctionSpec(
    name=API,
    description="Complete API: jobs, workers, queues, dead letters, and administration",
    routes=(DEFAULT_ROUTE,),
    timeout_s=HTTP_TIMEOUT_S,
    access=replace(_WORK_AND_EXPIRY, table=_SUSPENDS, targets=_INVOKES, webhooks=_SENDS),
)

# Created if a CDK app declares resources. Same permissions as admin, without test calls.
DECLARING = FunctionSpec(
    name=DECLARE,
    description="Applies the queues, worker pools, cron jobs, and rate limits of a CDK app",
    timeout_s=60,
    access=_WORK_AND_EXPIRY,
)

# Created for each bridged SQS queue. The mapping adds the permissions to read the queue.
BRIDGING = FunctionSpec(
    name=BRIDGE,
    description="Creates jobs from the messages of an SQS queue",
    # The default visibility timeout of SQS is 30 s. Lambda rejects a queue whose visibility timeout
    # is shorter than the function's timeout.
    timeout_s=29,
    access=_WORK,
)

# Created for each outbox. Its mapping adds the permissions for the table and the queues.
OUTBOX_RELAY = replace(BRIDGING, description="Creates jobs from the items of a table", timeout_s=60)


def deployed(
    authorizer: str,
    entry: str = "http_api",
    *,
    push: bool = False,
    dashboard: bool = True,
    realtime: str = "wake",
    webhooks: bool = False,
) -> tuple[FunctionSpec, ...]:
    """Return the functions of a deployment.

    Args:
        authorizer: The setting `authorizer`.
        entry: The setting `entry`.
        push: The setting `push`.
        dashboard: The setting `web_dashboard`.
        realtime: The setting `realtime`.
        webhooks: The setting `webhooks`.

    Returns:
        The functions, in the order of `FUNCTIONS`.
    """
    found = tuple(
        spec
        for spec in FUNCTIONS
        if spec.authorizer in {None, authorizer}
        and (push or spec.consumes is None)
        and (dashboard or spec.name != DASHBOARD)
        and (webhooks or not spec.webhooks)
        and realtime in spec.realtime
    )
    if entry == "http_api":
        return found
    return _API, *(spec for spec in found if not spec.routes and spec.name != AUTHORIZER)


def by_name(name: str) -> FunctionSpec:
    """Return the function with this name. Raises KeyError."""
    return {spec.name: spec for spec in FUNCTIONS}[name]
