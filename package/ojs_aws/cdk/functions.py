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
API = "api"
AUTHORIZER = "authorizer"
SETUP = "setup"
DECLARE = "declare"
BRIDGE = "bridge"
DASHBOARD = "dashboard"


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
    origin: frozenset[str] = frozenset()
    """Secrets Manager actions on the secret that a distribution shows; with waf=true."""
    queues: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """SQS actions by queue of push delivery (`QUEUES`); with push=true."""
    targets: frozenset[str] = frozenset()
    """Lambda actions on the functions that deliveries may name; with push=true."""


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
    consumes: str | None = None
    """The queue of push delivery whose messages it is called with; deployed with push=true."""
    open: bool = False
    """Whether its routes are for whoever asks: no authorizer is before them."""

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

# Queues of push delivery: wake-ups of dispatch, what the sender is to send, and what became of it.
DISPATCH, SEND, OUTCOMES = QUEUES = ("dispatch", "send", "outcomes")
_SENDS = frozenset({"SendMessage"})
# What Lambda does as the role of a function that it calls with a queue's messages.
QUEUE_SOURCE = frozenset({"DeleteMessage", "GetQueueAttributes", "ReceiveMessage"})
# Whoever makes a job available wakes dispatch.
_WAKES = {DISPATCH: _SENDS}
# Whoever claims jobs for a delivery invokes functions, and leaves the rest to the sender.
_PUSHES = {DISPATCH: _SENDS, SEND: _SENDS}
# An outcome that cannot be settled when Lambda tells it comes again from the queue.
_RETURNS = {**_PUSHES, OUTCOMES: _SENDS}
_INVOKES = frozenset({"InvokeFunction"})

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
    queues=_WAKES,
)
# Dead letters of all queues, and bulk operations, are listed by the second.
_WORK_AND_EXPIRY = replace(_WORK, indexes={"work": _QUERY, "expiry": _QUERY})

# Whoever answers requests asks whether they came through the distribution.
_READS_SECRET = frozenset({"GetSecretValue"})

# Partitions of all access keys.
_KEYS = "A|*"


def _pushing(consumed: str, sends: Mapping[str, frozenset[str]] = _PUSHES) -> Access:
    """Of a function that is called with the messages of this queue, and pushes jobs."""
    queues = {**sends, consumed: QUEUE_SOURCE | sends.get(consumed, frozenset())}
    return replace(_WORK, queues=queues, targets=_INVOKES)


# What Lambda asks for before it maps a stream to a function.
STREAM_SOURCE = frozenset({"DescribeStream", "GetRecords", "GetShardIterator", "ListStreams"})

FUNCTIONS: tuple[FunctionSpec, ...] = (
    FunctionSpec(
        name="jobs",
        description="Jobs: enqueue, read, list, cancel, progress, result, many at once",
        routes=("/ojs/v1/jobs", "/ojs/v1/jobs/{proxy+}"),
        timeout_s=HTTP_TIMEOUT_S,
        access=replace(_WORK_AND_EXPIRY, origin=_READS_SECRET),
    ),
    FunctionSpec(
        name="workers",
        description="Workers: fetch, acknowledge, fail, heartbeat, registration",
        routes=("/ojs/v1/workers", "/ojs/v1/workers/{proxy+}"),
        timeout_s=HTTP_TIMEOUT_S,
        access=replace(_WORK, origin=_READS_SECRET),
    ),
    FunctionSpec(
        name="admin",
        description="Health, manifest, dead letter, queues, worker listing, unknown routes",
        routes=(DEFAULT_ROUTE,),
        timeout_s=HTTP_TIMEOUT_S,
        # A delivery's test call, which the request waits for.
        access=replace(_WORK_AND_EXPIRY, targets=_INVOKES, origin=_READS_SECRET),
    ),
    FunctionSpec(
        name=DASHBOARD,
        description="The files of the dashboard, for whoever asks; what it shows takes a key",
        # A path that ends in a slash is the one or the other: the function answers both.
        routes=("/ojs/admin", "/ojs/admin/{proxy+}"),
        # Files of its own bundle.
        timeout_s=5,
        access=Access(origin=_READS_SECRET),
        open=True,
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
        # Looking a key up and noting its use are one call. What MACs are made with is read once.
        access=Access(table=frozenset({"GetItem", "UpdateItem"}), items=(_KEYS,)),
    ),
    FunctionSpec(
        name=SETUP,
        description="A step of each deployment: check the table, leave the first key",
        timeout_s=60,
        access=Access(
            table=frozenset({"GetItem", "PutItem", "UpdateItem"}),
            items=(_KEYS, "DEPLOYMENT", "DELIVERIES", "Y|*"),
            secret=frozenset({"GetSecretValue", "PutSecretValue"}),
        ),
    ),
    FunctionSpec(
        name="dispatch",
        description="Claims jobs for deliveries, and hands them to functions and to the sender",
        consumes=DISPATCH,
        # A wake-up whose run died comes again after six times as long; the sweep is sooner.
        timeout_s=30,
        access=_pushing(DISPATCH),
    ),
    FunctionSpec(
        name="outcomes",
        description="Settles what deliveries did, and claims the jobs that follow",
        consumes=OUTCOMES,
        # An outcome whose run died comes again after six times as long: while its lease lasts, as
        # that counts on two minutes beyond what the function takes.
        timeout_s=20,
        access=_pushing(OUTCOMES, _RETURNS),
    ),
    FunctionSpec(
        name="sender",
        description="Sends jobs to endpoints, waits for the answers, and settles them",
        consumes=SEND,
        # As long as an endpoint may take.
        timeout_s=900,
        access=_pushing(SEND),
    ),
)

# Those that push jobs to targets: with push=true.
PUSHERS = tuple(spec.name for spec in FUNCTIONS if spec.consumes)

# Where one address stands for the whole API, in place of the three functions with routes and of the
# authorizer: it looks keys up itself.
_API = FunctionSpec(
    name=API,
    description="The whole API: jobs, workers, queues, dead letters and all else",
    routes=(DEFAULT_ROUTE,),
    timeout_s=HTTP_TIMEOUT_S,
    access=replace(_WORK_AND_EXPIRY, targets=_INVOKES),
)

# Made where a CDK app declares anything. It does what the function admin does, but for test calls.
DECLARING = FunctionSpec(
    name=DECLARE,
    description="Queues, worker pools, cron jobs and rate limits that a CDK app declares",
    timeout_s=60,
    access=_WORK_AND_EXPIRY,
)

# Made for each SQS queue that is bridged; the mapping of the queue adds what reads it.
BRIDGING = FunctionSpec(
    name=BRIDGE,
    description="Jobs from the messages of an SQS queue",
    # SQS shows a message again after 30 s unless the queue says otherwise, and Lambda takes no
    # queue that does so before the function has ended.
    timeout_s=29,
    access=_WORK,
)


def deployed(
    authorizer: str, entry: str = "http_api", *, push: bool = False, dashboard: bool = True
) -> tuple[FunctionSpec, ...]:
    """The functions of a deployment with these settings `authorizer`, `entry` and `push`, with the
    dashboard or not.
    """
    found = tuple(
        spec
        for spec in FUNCTIONS
        if spec.authorizer in {None, authorizer}
        and (push or spec.consumes is None)
        and (dashboard or spec.name != DASHBOARD)
    )
    if entry == "http_api":
        return found
    return _API, *(spec for spec in found if not spec.routes and spec.name != AUTHORIZER)


def by_name(name: str) -> FunctionSpec:
    """The function of that name; raises KeyError for another one."""
    return {spec.name: spec for spec in FUNCTIONS}[name]
