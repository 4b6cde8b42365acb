"""Every key of the table and its indexes (design section 4).

Names that users choose never contain the separator `|`: queue names by their pattern, worker ids
by validation.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

HEAD = "@"
PAYLOAD = "payload|"
RESULT = "result|"
ERROR = "err|"
PROGRESS = "progress"
SPARE = "spare|"
QUEUES = "QUEUES"
POOLS = "POOLS"
GONE = "GONE"
# What a deployment notes about itself.
DEPLOYMENT = "DEPLOYMENT"
# Names of queues that are gone and may have left dead letters.
LEFT = "LEFT"
PRUNING = "PRUNING"
WORKERS = "WORKERS"

# Two hundred and one priorities, highest first: 000 is +100.
_TOP_PRIORITY = 100


def job(job_id: str) -> str:
    """Partition of a job and all that belongs to it."""
    return f"J|{job_id}"


def job_id(pk: str) -> str:
    """The id in a job's partition key."""
    return pk.removeprefix("J|")


def error(life: int, attempt: int, *, ended: bool = False) -> str:
    """Sort key of one entry of the error history; sorts in the order things happened.

    `ended` is for what ended a job between attempts, such as its deadline.
    """
    return f"{ERROR}{life:04d}|{attempt:06d}{'x' if ended else ''}"


def is_of_end(sort_key: str) -> bool:
    """Whether an entry of the error history is of what ended a job between attempts."""
    return sort_key.endswith("x")


def queue(name: str) -> str:
    """Partition of a queue."""
    return f"Q|{name}"


def worker(worker_id: str) -> str:
    """Partition of a worker."""
    return f"K|{worker_id}"


def pool(name: str) -> str:
    """Partition of a worker pool."""
    return f"P|{name}"


def replays(queue_name: str) -> str:
    """Partition of how far a queue's replay rules have come."""
    return f"V|{queue_name}"


def unique(digest: str) -> str:
    """Partition of a unique lock."""
    return f"U|{digest}"


def tenant(queue_name: str, lane: int, priority: int, digest: str) -> str:
    """Partition of where a tenant's jobs of one priority end in a fair line."""
    return f"F|{queue_name}|{lane}|{priority}|{digest}"


def tagging(queue_name: str) -> str:
    """Partition of how far the tagging of a queue's jobs has come."""
    return f"F|{queue_name}"


DEPTH = "depth"
REFUSED = "refused"
SLOTS = "active"
RATE = "rate"


def gate(queue_name: str) -> str:
    """Partition of a bounded queue's gates."""
    return f"G|{queue_name}"


LIMITERS = "LIMITERS"
# That a limit holds jobs back, beside what it counts: its stream record becomes the event.
HELD = "held"
HELD_SLOTS = f"{HELD}_{SLOTS}"
HELD_RATE = f"{HELD}_{RATE}"
ADJUSTED = "adjusted"


FORCED = "f_"


def forced(queue_name: str) -> str:
    """Attribute of a pool's ledger: when this queue had a turn of its own last, whatever the
    strategy says.
    """
    return f"{FORCED}{zlib.crc32(queue_name.encode('utf-8')):08x}"


def limiter(cell: str) -> str:
    """Partition of what is counted for a rate limit's key, by `ojs.domain.rate_limit.limiter.cell_name`."""
    return f"L|{cell}"


# Projections: what follows from the stream (design section 5, "Stream") --------------------------

ALL_QUEUES = "*"
# What a sweep saw of a pool, beside it: its stream record becomes the event.
WATCH = "watch"
NOW = "@"
GAUGE = "gauge"
DEAD = "dead"


def stats(queue_name: str) -> str:
    """Partition of a queue's counters; `ALL_QUEUES` (no queue can be called so) of the totals."""
    return f"S|{queue_name}"


def pool_stats(name: str) -> str:
    """What stands for a queue's name where a pool is counted; no queue can be called so."""
    return f"@{name}"


def day(date: str) -> str:
    """Sort key of the counters of a UTC day, `2026-11-21`."""
    return f"d|{date}"


def hour(text: str) -> str:
    """Sort key of the counters of a UTC hour, `2026-11-21T09`."""
    return f"h|{text}"


def minute(text: str) -> str:
    """Sort key of the counters of a UTC minute, `2026-11-21T09:30`."""
    return f"m|{text}"


def marker(second: int) -> str:
    """Partition of the marks of stream records that were written in one second of the epoch."""
    return f"M|{second}"


def events(date: str) -> str:
    """Partition of the event pages written on a UTC day."""
    return f"E|{date}"


def event_page(ms: int, token: str) -> str:
    """Sort key of an event page: when it was written, and which writer's it is."""
    return f"{instant(ms)}|{token}"


def batch(token: str) -> str:
    """Partition of a staged batch. Its item exists only while the batch is not committed."""
    return f"B|{token}"


def access_key(key_id: str) -> str:
    """Partition of an access key."""
    return f"A|{key_id}"


def access_key_id(pk: str) -> str:
    """The id in an access key's partition key."""
    return pk.removeprefix("A|")


def operation(operation_id: str) -> str:
    """Partition of a bulk operation."""
    return f"O|{operation_id}"


def operation_id(pk: str) -> str:
    """The id in a bulk operation's partition key."""
    return pk.removeprefix("O|")


# Index `work` ---------------------------------------------------------------------------------


def ready(queue_name: str, lane: int) -> str:
    """Where available jobs of a lane stand in line."""
    return f"R|{queue_name}|{lane}"


def due(queue_name: str, lane: int) -> str:
    """Where jobs wait for a time: start, retry, end of lease or attempt."""
    return f"D|{queue_name}|{lane}"


def pending(queue_name: str, lane: int) -> str:
    """Where jobs wait to be activated."""
    return f"P|{queue_name}|{lane}"


def dead(queue_name: str) -> str:
    """The dead letters of a queue."""
    return f"X|{queue_name}"


def dead_at(discarded_ms: int, job_id: str) -> str:
    """The place of a dead letter in its queue's line, and in the line of all."""
    return f"{instant(discarded_ms)}|{job_id}"


# Batches that are being stored, by when they should have been committed; and undone ones, by when
# they are to be undone once more.
STAGED = "B"
# Bulk operations that are not over, by when they are to be looked at; in the index `expiry` all
# that are kept, by id.
OPERATIONS = "O"
# Limits that hold jobs back.
HOLDING = "H"
# All access keys, by when they were made.
ACCESS_KEYS = "A"


def instant(ms: int) -> str:
    """A time as a sort key, 15 digits of ms."""
    return f"{ms:015d}"


def instant_of(key: str) -> int:
    """The time that a sort key begins with, in ms."""
    return int(key[:15])


def just_before(key: str) -> str:
    """A key after all those of a line of dead letters that are smaller than this one of them."""
    return f"{key[:-1]}{chr(ord(key[-1]) - 1)}~"


def just_after(key: str) -> str:
    """A key before all those of a line of dead letters that are larger than this one of them."""
    return f"{key}~"


def upto(ms: int) -> str:
    """A sort key after everything of that time or earlier."""
    return f"{ms:015d}~"


# What a job of the due line waits for, so that a keys-only index can count them by state.
START = "s"
RETRY = "r"
LEASE_END = "a"


def due_at(ms: int, waits_for: str) -> str:
    """The sort key of an entry of the due line."""
    return f"{ms:015d}{waits_for}"


@dataclass(frozen=True)
class Position:
    """A place in the ready line, and what a claim must know before it reads the head.

    The index is keys-only, so the hints ride at the end of its sort key, where they cannot change
    the order: the job's own lease and timeout (ms), the batch it was staged with, the size of a
    payload stored apart (KiB), the rate limit it is under (`ojs.domain.rate_limit.limiter.LimitSpec`), and whether
    it is a copy of a dead letter.
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
        """The sort key: inverted priority, order, hints."""
        hints = "".join(
            f"|{letter}{value}"
            for letter, value in (
                ("v", self.visibility_ms),
                ("t", self.timeout_ms),
                ("b", self.batch),
                ("s", self.size_kib or None),
                ("l", self.limit),
                ("c", 1 if self.copy else None),
            )
            if value is not None
        )
        return f"{_TOP_PRIORITY - self.priority:03d}{self.order}{hints}"

    @classmethod
    def parse(cls, key: str) -> Position:
        """Read back what `key` wrote."""
        place, *hints = key.split("|")
        given = {hint[0]: hint[1:] for hint in hints}
        return cls(
            priority=_TOP_PRIORITY - int(place[:3]),
            order=place[3:],
            visibility_ms=int(given["v"]) if "v" in given else None,
            timeout_ms=int(given["t"]) if "t" in given else None,
            batch=given.get("b"),
            size_kib=int(given.get("s", 0)),
            limit=given.get("l"),
            copy="c" in given,
        )


def level(priority: int) -> str:
    """What the sort keys of all jobs of a priority in the ready line begin with."""
    return f"{_TOP_PRIORITY - priority:03d}"


def below(priority: int) -> str:
    """A sort key after all jobs of a priority in the ready line, before those of the next."""
    return f"{_TOP_PRIORITY - priority:03d}~"


# Index `expiry` -------------------------------------------------------------------------------


def expiry(queue_name: str, lane: int) -> str:
    """Jobs of a lane that must not start after a deadline."""
    return f"T|{queue_name}|{lane}"


def all_dead() -> str:
    """The dead letters of all queues."""
    return "X"
