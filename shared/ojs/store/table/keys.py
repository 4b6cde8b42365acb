"""Partition keys and sort keys of the table and its indexes.

The separator in keys is `|`. Names that users choose never contain it: queue names because of their
pattern, worker IDs because they are validated.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ojs.records import record

# Sort key of the main item of a partition, for example the record of a job or a queue.
RECORD = "@"
PAYLOAD = "payload|"
RESULT = "result|"
ERROR = "err|"
PROGRESS = "progress"
CHECKPOINT = "checkpoint"
STEP = "step|"
UNTIL = "until|"
SPARE = "spare|"
# Sort key of a definition that is too large for the main item of a cron job. The definition of a
# workflow has the same sort key.
DEFINITION = "def|"
# Sort key of a replica of a queue's record. Stream records of replicas are not projected.
REPLICA = "replica"
QUEUES = "QUEUES"
POOLS = "POOLS"
# Partition of the directory of deliveries.
DELIVERIES = "DELIVERIES"
# Partition of the directory of webhook subscriptions.
HOOKS = "HOOKS"
# Partition of the directory of schemas, and the prefix of their versions.
SCHEMAS = "SCHEMAS"
VERSION = "v|"
GONE = "GONE"
# Partition of the items that describe the deployment.
DEPLOYMENT = "DEPLOYMENT"
MAINTENANCE = "maintenance"
# Partition of the names of deleted queues that can still have dead letters.
LEFT = "LEFT"
PRUNING = "PRUNING"
WORKERS = "WORKERS"

# Realtime: the directory, and the prefixes of its entries. Revoked keys come first, so that a
# directory that is too large to be read has them, and lacks groups of workers.
REALTIME = "RT"
REVOKED = "0|"
EVERYTHING = "a"
WATCHED = "j"
CHANNEL = "q|"
GROUP = "w|"

# Priorities from +100 (key 000) to -100 (key 200), highest first.
_TOP_PRIORITY = 100


def job(job_id: str) -> str:
    """Return the partition of a job and all its items."""
    return f"J|{job_id}"


def job_id(pk: str) -> str:
    """Return the ID in a job's partition key."""
    return pk.removeprefix("J|")


def error(life: int, attempt: int, *, ended: bool = False) -> str:
    """Return the sort key of an entry of a job's error history. Entries are in order of time.

    Args:
        life: Life of the job, starting at 0. A retry of a dead letter starts the next one.
        attempt: Number of the attempt that failed.
        ended: Whether the error finished the job while no attempt was running, for example because
            its deadline passed.
    """
    return f"{ERROR}{life:04d}|{attempt:06d}{'x' if ended else ''}"


def step(epoch: int, kind: str, name: str) -> str:
    """Return the sort key of an outcome. `kind` is its letter, so no signal passes for a step."""
    return f"{STEP}{epoch:04d}|{kind}|{name}"


def until(epoch: int, kind: str, name: str) -> str:
    """Return the sort key of the end of a sleep or wait."""
    return f"{UNTIL}{epoch:04d}|{kind}|{name}"


def is_of_end(sort_key: str) -> bool:
    """Return whether an entry of the error history finished a job while no attempt was running."""
    return sort_key.endswith("x")


def queue(name: str) -> str:
    """Return the partition of a queue."""
    return f"Q|{name}"


def replica(queue_name: str, number: int) -> str:
    """Return the partition of a replica of a queue's record. Numbers start at 1."""
    return f"Q|{queue_name}|{number}"


def worker(worker_id: str) -> str:
    """Return the partition of a worker's record."""
    return f"K|{worker_id}"


def pool(name: str) -> str:
    """Return the partition of a worker pool's record."""
    return f"P|{name}"


def delivery(name: str) -> str:
    """Return the partition of a delivery's record."""
    return f"Y|{name}"


def delivery_wake(name: str) -> str:
    """Return the partition of the item with the time of a delivery's last wake-up."""
    return f"YW|{name}"


def tenant_record(tenant_id: str) -> str:
    """Return the partition of a tenant's record."""
    return f"TN|{tenant_id}"


def tenant_name(tenant_id: str) -> str:
    """Return the name of a tenant's semaphore, rate window, and statistics counters.

    No queue or pool has this name.
    """
    return f"%{tenant_id}"


def hook(subscription_id: str) -> str:
    """Return the partition of a webhook subscription and its deliveries."""
    return f"HK|{subscription_id}"


def hooks_due(subscription_id: str) -> str:
    """Return the index partition of the deliveries of a webhook subscription that must be sent."""
    return f"D|:hk|{subscription_id}"


def schemas(name: str) -> str:
    """Return the partition of the schemas of a job type, or of the schema with a URI."""
    return f"SC|{name}"


def cron(name: str) -> str:
    """Return the partition of a cron job's record."""
    return f"C|{name}"


def cron_name(pk: str) -> str:
    """Return the name in a cron job's partition key."""
    return pk.removeprefix("C|")


def cron_runs(name: str) -> str:
    """Return the partition of a cron job's run log. Its stream records become events."""
    return f"CR|{name}"


def workflow(workflow_id: str) -> str:
    """Return the partition of a workflow: its main item and its definition."""
    return f"W|{workflow_id}"


def workflow_id(pk: str) -> str:
    """Return the ID in a workflow's partition key."""
    return pk.removeprefix("W|")


def workflow_results(workflow_id: str) -> str:
    """Return the partition of the step results that later steps of a workflow use."""
    return f"W|{workflow_id}|r"


def step_result(node: int, generation: int) -> str:
    """Return the sort key of the result of a workflow step, the graph's node `node`."""
    return f"{node:05d}|{generation:02d}"


def fan_in(workflow_id: str, token: str, shard: str) -> str:
    """Return the partition of one shard of the counter of a fan-in, which counts finished steps.

    Each shard has a separate partition, so that many steps can finish at the same time.

    Args:
        workflow_id: ID of the workflow.
        token: Identifies the fan-in.
        shard: Number of the shard, as text.
    """
    return f"W|{workflow_id}|{token}|{shard}"


# Sort key of a shard of a fan-in.
FAN_IN = "fan"


def replays(queue_name: str) -> str:
    """Return the partition of the cursors of a queue's replay rules."""
    return f"V|{queue_name}"


def unique(digest: str) -> str:
    """Return the partition of a unique lock."""
    return f"U|{digest}"


def tenant(queue_name: str, lane: int, priority: int, digest: str) -> str:
    """Return the partition of a tenant's finish tag, which orders the tenants of a fair queue.

    Args:
        queue_name: Name of the queue.
        lane: Lane of the queue.
        priority: Priority of the jobs that the finish tag applies to.
        digest: Digest of the tenant's name.
    """
    return f"F|{queue_name}|{lane}|{priority}|{digest}"


def backfill(queue_name: str) -> str:
    """Return the partition of the cursor of a queue's fairness backfill."""
    return f"F|{queue_name}"


DEPTH = "depth"
REFUSED = "refused"
SEMAPHORE = "active"
RATE = "rate"


def counter(queue_name: str) -> str:
    """Return the partition of a queue's depth counter, semaphore, and rate window."""
    return f"G|{queue_name}"


LIMITERS = "LIMITERS"
# Sort keys of throttle states, in the partition of the limit's counter. Their stream records become
# events.
THROTTLED = "held"
SEMAPHORE_THROTTLED = f"{THROTTLED}_{SEMAPHORE}"
RATE_THROTTLED = f"{THROTTLED}_{RATE}"
ADJUSTED = "adjusted"
OVERRIDE = "f_"


def override(queue_name: str) -> str:
    """Return the attribute of a pool's sequencer item with the time of a queue's last override."""
    return f"{OVERRIDE}{zlib.crc32(queue_name.encode('utf-8')):08x}"


def limiter(name: str) -> str:
    """Return the partition of a limiter's state. `name` is a result of `limiter_name`."""
    return f"L|{name}"


def semaphore(name: str) -> str:
    """Return the partition of a semaphore. A limiter and its semaphore share one partition."""
    return name if name.startswith(limiter("")) else counter(name)


# Projections: data derived from the DynamoDB stream ---------------------------------------

ALL_QUEUES = "*"
# Sort key of a pool's health alerts, in the pool's partition. Its stream records become events.
ALERTS = "watch"
NOW = "@"
GAUGE = "gauge"
DEAD = "dead"
ORDERS = "orders"


def stats(queue_name: str) -> str:
    """Return the partition of a queue's statistics counters, or of the totals (`ALL_QUEUES`)."""
    return f"S|{queue_name}"


def pool_stats(name: str) -> str:
    """Return the name under which the statistics counters of a pool are stored.

    No queue has this name.
    """
    return f"@{name}"


def is_queue(name: str) -> bool:
    """Return whether a name of statistics counters is the name of a queue."""
    return name != ALL_QUEUES and not name.startswith((pool_stats(""), tenant_name("")))


def day(date: str) -> str:
    """Return the sort key of the statistics counters of a UTC day, `2026-11-21`."""
    return f"d|{date}"


def hour(text: str) -> str:
    """Return the sort key of the statistics counters of a UTC hour, `2026-11-21T09`."""
    return f"h|{text}"


def minute(text: str) -> str:
    """Return the sort key of the statistics counters of a UTC minute, `2026-11-21T09:30`."""
    return f"m|{text}"


# Sort key of the list of stream shards that have separate counters. The item is in the partition of
# the totals.
SHARDS = "shards"


def shard_stats(shard: str) -> str:
    """Return the partition of the counters that changes of one DynamoDB stream shard add to.

    Names of stream shards start with `shardId-`. Names of queues can't contain capital letters.
    """
    return f"S|{shard}"


def dedup_records(second: int) -> str:
    """Return the partition of dedup records that version 0.2.0 wrote in a second of the epoch."""
    return f"M|{second}"


def events(date: str) -> str:
    """Return the partition of the event pages written on a UTC day."""
    return f"E|{date}"


def event_page(ms: int, token: str) -> str:
    """Return the sort key of an event page: its time of writing, and a token of its writer."""
    return f"{instant(ms)}|{token}"


def idempotency(name: str) -> str:
    """Return the partition of an idempotency key, by the `name` of its record."""
    return f"I|{name}"


def bulk_push(request_id: str) -> str:
    """Return the partition of the result of a bulk enqueue. Its stream record becomes an event."""
    return f"BP|{request_id}"


def bulk_push_id(pk: str) -> str:
    """Return the ID in the partition key of a bulk enqueue."""
    return pk.removeprefix("BP|")


def batch(token: str) -> str:
    """Return the partition of a staged batch. The item exists until the batch is committed."""
    return f"B|{token}"


# The first interval of due notes that is not done.
DUE_NOTES = "DN"


def due_notes(bucket: int) -> str:
    """Partition of the due notes of an interval."""
    return f"DN|{bucket}"


def staged(token: str) -> str:
    """Return the index partition of a staged batch.

    The sort key is the time by which a batch must be committed, or the time when an undone batch is
    undone again.
    """
    return staged_slot(zlib.crc32(token.encode("utf-8")) % STAGED_SLOTS)


def staged_slot(slot: int) -> str:
    """Return the index partition of a slot of staged batches."""
    return f"B|{slot:02d}"


def staged_lines() -> list[str]:
    """Return all index partitions of staged batches: the slots, and that of earlier versions."""
    return [STAGED_WITHOUT_SLOT, *map(staged_slot, range(STAGED_SLOTS))]


def is_staged(line: str) -> bool:
    """Whether a partition of an index has staged batches."""
    return line.partition("|")[0] == STAGED_WITHOUT_SLOT


# Sort key of the item with the slots in use and the last checked lease note of each slot.
LEASE_SLOTS = "LEASES"


def lease_notes(slot: int) -> str:
    """Return the partition of the lease notes of one slot."""
    return f"N|{slot:02d}"


def lease_note(look_ms: int, token: str) -> str:
    """Return the sort key of a lease note: its check time `look_ms`, and a token of the fetch."""
    return f"{instant(look_ms)}|{token}"


def actions(period: int) -> str:
    """Return the partition of the audit log of a period."""
    return f"ACTIONS|{period}"


def access_key(key_id: str) -> str:
    """Return the partition of an access key."""
    return f"A|{key_id}"


# Partition and sort key of the item with the secret for the MACs of all access keys.
KEY_MAC = "mac"


def access_key_id(pk: str) -> str:
    """Return the ID in an access key's partition key."""
    return pk.removeprefix("A|")


# Sort key prefix of the access keys that a key created. The ID of the created key follows.
MADE = "made|"


def role(arn: str) -> str:
    """Return the partition of the item that maps an IAM role to the record of an access key."""
    return f"A|{arn}"


ROLE = "role"


def operation(operation_id: str) -> str:
    """Return the partition of a bulk operation."""
    return f"O|{operation_id}"


def operation_id(pk: str) -> str:
    """Return the ID in a bulk operation's partition key."""
    return pk.removeprefix("O|")


# Index `work` ---------------------------------------------------------------------------------


def ready(queue_name: str, lane: int) -> str:
    """Return the ready index partition of a lane: its available jobs."""
    return f"R|{queue_name}|{lane}"


def due(queue_name: str, lane: int) -> str:
    """Return the due index partition of a lane: scheduled starts, retries, and ends of leases and
    attempts.
    """
    return f"D|{queue_name}|{lane}"


# Number of due index partitions of a queue with scheduled starts and retries, for any number of
# lanes. It is small, so that a fetch can read all of them every few seconds.
DUE_LINES = 8


def due_lane(lane: int) -> int:
    """Return the lane whose due index partition contains the starts and retries of `lane`."""
    return lane % DUE_LINES


def pending(queue_name: str, lane: int) -> str:
    """Return the index partition of a lane's pending jobs."""
    return f"P|{queue_name}|{lane}"


def dead(queue_name: str) -> str:
    """Return the index partition of a queue's dead letters."""
    return f"X|{queue_name}"


def dead_at(discarded_ms: int, job_id: str) -> str:
    """Return the sort key of a dead letter, in its queue's index partition and in `all_dead`."""
    return f"{instant(discarded_ms)}|{job_id}"


# Slots of the index partition of staged batches, and the partition that versions without slots use.
STAGED_SLOTS = 16
STAGED_WITHOUT_SLOT = "B"
# Index partition of bulk operations. In the index `work`: unfinished operations, by the time of
# their next step. In the index `expiry`: all retained operations, by ID.
OPERATIONS = "O"
# Index partition (`expiry`) of bulk operations on jobs in any state.
JOB_OPERATIONS = "OJ"
# Index partition of the limits that are throttling jobs.
THROTTLED_LIMITS = "H"
# Index partition of event pages with events that EventBridge has not accepted yet. The sort key is
# the key of the page.
UNPUBLISHED = "E"
# Index partition of all access keys, by creation time.
ACCESS_KEYS = "A"
# Index partition (`expiry`) of all tenants, by ID.
TENANTS = "TN"
# Index partition of workflows. In the index `work`: by the time of their next check. In the index
# `expiry`: all workflows, by creation time. No queue has this name.
WORKFLOWS_DUE = "D|:wf"
WORKFLOWS = "W"
# Sort keys below a webhook subscription: its latest successes, and its deliveries by ID.
HOOK_SUCCESSES = "ok"
HOOK_DELIVERIES = "d|"
# Index partition of all cron jobs, by name. In the table: partition of the record of the time zone
# data.
CRONS = "C"
ZONES = "zones"


def instant(ms: int) -> str:
    """Return a time as a sort key: 15 digits, milliseconds since the epoch."""
    return f"{ms:015d}"


def instant_of(key: str) -> int:
    """Return the time at the start of a sort key, in milliseconds since the epoch."""
    return int(key[:15])


def just_before(key: str) -> str:
    """Return a key between a dead letter's sort key and the next smaller one."""
    return f"{key[:-1]}{chr(ord(key[-1]) - 1)}~"


def just_after(key: str) -> str:
    """Return a key between a dead letter's sort key and the next larger one."""
    return f"{key}~"


def upto(ms: int) -> str:
    """Return a sort key that is greater than all entries up to and including a time."""
    return f"{ms:015d}~"


# Letters in the sort key of a due entry that show the state of its job. The index is keys-only, so
# that counts by state need these letters.
START = "s"
RETRY = "r"
LEASE_END = "a"
# Letter of a cron job's entry. The entry is in the due index partition of the first lane of the
# cron job's queue, with the time of the next run.
TICK = "c"


def due_at(ms: int, waits_for: str) -> str:
    """Return the sort key of an entry of the due index.

    `waits_for` is the letter of the job's state.
    """
    return f"{ms:015d}{waits_for}"


@record(frozen=True)
class Position:
    """A job's position in the ready index, with the data that a claim needs before reading it.

    The index is keys-only, so that these data are part of the sort key. They are at its end, where
    they can't change the order: the job's own lease and timeout (ms), the batch that it was staged
    with, the size of its offloaded payload (KiB), its rate limit
    (`ojs.domain.rate_limit.limiter.LimitSpec`), and whether it is a copy of a dead letter.
    """

    priority: int
    order: str
    visibility_ms: int | None = None
    timeout_ms: int | None = None
    batch: str | None = None
    size_kib: int = 0
    limit: str | None = None
    copy: bool = False

    def key(self) -> str:
        """Return the sort key: inverted priority, order, claim data."""
        data = [
            f"|{letter}{int(value) if value is True else value}"
            for letter, (name, _) in _CLAIM_DATA.items()
            if (value := getattr(self, name)) != getattr(Position, name)
        ]
        return f"{of_priority(self.priority)}{self.order}{''.join(data)}"

    @classmethod
    def parse(cls, key: str) -> Position:
        """Parse a sort key that `key` created."""
        bare, *data = key.split("|")
        known = [(*_CLAIM_DATA[part[0]], part[1:]) for part in data if part[0] in _CLAIM_DATA]
        return cls(
            priority=_TOP_PRIORITY - int(bare[:3]),
            order=bare[3:],
            **{name: read(value) for name, read, value in known},
        )


# Letter in the sort key → field of a position, and the function that parses its value.
_CLAIM_DATA: dict[str, tuple[str, Callable[[str], Any]]] = {
    "v": ("visibility_ms", int),
    "t": ("timeout_ms", int),
    "b": ("batch", str),
    "s": ("size_kib", int),
    "l": ("limit", str),
    "c": ("copy", bool),
}


# First letter of an index partition → pattern of the sort keys of jobs in it. Version 0.1.0 did not
# store the letter of the job's state. Newer versions might store other entries in these partitions.
# Readers skip such entries.
_JOB_ENTRIES = {
    "R": re.compile(rf"\d{{3}}[^|]*(\|[{''.join(_CLAIM_DATA)}][^|]*)*"),
    "D": re.compile(rf"\d{{15}}[{START}{RETRY}{LEASE_END}]?"),
    "P": re.compile(r"\d{15}"),
    "X": re.compile(r"\d{15}\|.+"),
    "T": re.compile(r"\d{15}"),
}


def is_job_entry(entry: Mapping[str, Any], index: str = "w") -> bool:
    """Return whether an index entry is a job's, in a format that this version can read.

    `index` is `w` (index `work`) or `e` (index `expiry`). A claim must understand all parts of a
    sort key of the ready index. If a part is unknown, only the version that wrote the entry can
    claim the job.
    """
    form = _JOB_ENTRIES.get(str(entry[f"{index}pk"])[:1])
    return (
        entry["sk"] == RECORD
        and str(entry["pk"]).startswith(job(""))
        and form is not None
        and form.fullmatch(str(entry[f"{index}sk"])) is not None
    )


_CRON_ENTRY = re.compile(rf"\d{{15}}{TICK}")


def is_cron_entry(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry of a due index partition is a cron job's."""
    return (
        entry["sk"] == RECORD
        and str(entry["pk"]).startswith(cron(""))
        and _CRON_ENTRY.fullmatch(str(entry["wsk"])) is not None
    )


def positions(entries: Iterable[Mapping[str, Any]]) -> list[Position]:
    """Return the positions of the jobs in a ready index partition. Other entries are skipped."""
    return [Position.parse(str(entry["wsk"])) for entry in entries if is_job_entry(entry)]


def of_priority(priority: int) -> str:
    """Return the prefix of the sort keys of all jobs of a priority in the ready index."""
    return f"{_TOP_PRIORITY - priority:03d}"


def below(priority: int) -> str:
    """Return a sort key between the jobs of a priority and those of the next lower priority."""
    return f"{of_priority(priority)}~"


# Realtime -------------------------------------------------------------------------------------


def ticket(digest: str) -> str:
    """Partition of a ticket, by the SHA-256 digest of its secret."""
    return f"RT|t|{digest}"


def connection(connection_id: str) -> str:
    """Partition of a WebSocket connection."""
    return f"RT|c|{connection_id}"


def listeners(group: str) -> str:
    """Partition of the idle workers of a group."""
    return f"RT|g|{group}"


def subscribers(queue_name: str | None) -> str:
    """Partition of the subscribers of a queue. None: of all events."""
    return "RT|a" if queue_name is None else f"RT|q|{queue_name}"


def watchers(job_id: str) -> str:
    """Partition of the connections that watch a job."""
    return f"RT|j|{job_id}"


# Index `expiry` -------------------------------------------------------------------------------


def expiry(queue_name: str, lane: int) -> str:
    """Return the index partition of a lane's jobs that have a start deadline (`expires_at`)."""
    return f"T|{queue_name}|{lane}"


def is_sweepable(line: str) -> bool:
    """Whether a partition of an index has entries that the sweep processes at a time."""
    return line.startswith(("D|", "T|"))


def lane_of(line: str) -> tuple[str, int]:
    """The queue and lane of a partition of an index that belongs to a lane."""
    _, queue_name, lane = line.split("|")
    return queue_name, int(lane)


def all_dead() -> str:
    """Return the index partition of the dead letters of all queues."""
    return "X"
