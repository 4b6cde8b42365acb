"""What must hold once all is quiet. From the table's items alone."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ojs.domain.fair_queue.tags import tagged
from ojs.domain.job.job import Job
from ojs.domain.job.permits import POOL_PERMIT, QUEUE_PERMIT
from ojs.domain.job.states import State
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import DEFAULT_POOL
from ojs.services.queues.rest import needs_sweeps
from ojs.store.dead_letter import counters as dead_letters
from ojs.store.derived.projection import COPIES
from ojs.store.jobs import items
from ojs.store.jobs.blobs import ARCHIVE
from ojs.store.jobs.payloads import PayloadRef
from ojs.store.queues import pools, queues, workers
from ojs.store.table import keys, values
from tests.simulation.invariants import BUCKET, Watch, broken, permits_of
from tests.simulation.memory import Key, Memory
from tests.simulation.recount import OF_DAY, OF_MINUTE, OF_NOW, Told, told_by
from tests.store.streams import whole

Item = dict[str, Any]


def everything(memory: Memory) -> dict[Key, Item]:
    return whole({key: dict(values.unpack(item)) for key, item in memory.items.items()})


def job_records(found: Mapping[Key, Item]) -> dict[str, Job]:
    """All jobs by id."""
    return {
        keys.job_id(pk): items.job_of(item)
        for (pk, sk), item in found.items()
        if pk.startswith(keys.job("")) and sk == keys.RECORD
    }


def gates_are_exact(found: Mapping[Key, Item], watch: Watch) -> None:
    """Every counter counts what is there, once it was repaired. That of a queue or pool which is
    gone, or has no limit now, may stay as it was left: it is repaired once it has one again.
    """
    for (pk, sk), item in found.items():
        counter = pk.removeprefix(keys.counter(""))
        if not pk.startswith(keys.counter("")) or sk not in (keys.DEPTH, keys.SEMAPHORE):
            continue
        if not (
            _of_pool(found, counter) if counter.startswith(":") else _of_queue(found, counter, sk)
        ):
            continue
        there = watch.tracked[counter] if sk == keys.DEPTH else watch.permits[counter]
        if item.get("n", 0) - item.get("loose", 0) != there:
            raise broken(
                "a counter is exact once repaired", counter=counter, of=sk, n=item["n"], there=there
            )


def _of_queue(found: Mapping[Key, Item], counter: str, sk: str) -> bool:
    """Whether a queue's counter is in use."""
    queue = queues.from_item(counter, found.get((keys.queue(counter), keys.RECORD), {}))
    return queue.tracks_depth if sk == keys.DEPTH else queue.limits_concurrency


def _of_pool(found: Mapping[Key, Item], counter: str) -> bool:
    """Whether the counter of a pool, or of one of its workers, is in use."""
    name, _, worker = counter[1:].partition(":")
    there = found.get((keys.pool(name), keys.RECORD))
    if there is None:
        return False
    pool = pools.POOL.of(there)
    if not worker:
        return pool.limits_concurrency
    record = found.get(workers.key_of(worker))
    belongs = record is not None and (record.get("pool") or DEFAULT_POOL) == name
    return belongs and pool.strategy == DispatchStrategy.LEAST_LOADED


def nothing_is_due(found: Mapping[Key, Item], now_ms: int) -> None:
    """No job waits for a time that has come, once the sweep has run."""
    for job in job_records(found).values():
        waits = job.state in (State.SCHEDULED, State.RETRYABLE, State.ACTIVE)
        times = [job.due_ms] if waits else []
        if job.expires_ms is not None and not job.state.terminal and job.state is not State.ACTIVE:
            times.append(job.expires_ms)
        staged = job.batch is not None and (keys.batch(job.batch), keys.RECORD) in found
        if times and min(times) <= now_ms and not staged:
            raise broken("what is due is found by the sweep alone", job=job.id, state=job.state)


def plain_queues_need_nothing(found: Mapping[Key, Item]) -> None:
    """Sweeps do not pass over a queue whose record has something that they look at."""
    for (pk, name), item in found.items():
        if pk != keys.QUEUES or "plain" not in item:
            continue
        if needs_sweeps(queues.from_item(name, found.get((keys.queue(name), keys.RECORD), {}))):
            raise broken("a plain queue needs no sweep", queue=name)


def limits_count_all(found: Mapping[Key, Item]) -> None:
    """Where there is a bound or a limit everything counts, whenever it came."""
    for (pk, sk), item in found.items():
        if not pk.startswith(keys.job("")) or sk != keys.RECORD:
            continue
        queue = queues.from_item(
            item["queue"], found.get((keys.queue(item["queue"]), keys.RECORD), {})
        )
        if item["state"] != State.ACTIVE.value:
            continue
        if queue.limits_concurrency and QUEUE_PERMIT not in permits_of(item):
            raise broken("what runs under a limit takes a permit", job=pk)
        there = found.get((keys.pool(item.get("pool", "")), keys.RECORD))
        if there is not None and POOL_PERMIT not in permits_of(item):
            pool = pools.POOL.of(there)
            if pool.limits_concurrency and item["queue"] in pool.queues:
                raise broken("what runs in a limited pool takes a permit", job=pk)


def untracked_are_counted(found: Mapping[Key, Item]) -> None:
    """The counter of a queue with a bound counts jobs that came before the bound, too."""
    untracked: Counter[str] = Counter()
    for job in job_records(found).values():
        if not job.state.terminal and job.reserved_bytes is None:
            untracked[job.queue] += 1
    for (pk, sk), item in found.items():
        if not pk.startswith(keys.counter("")) or sk != keys.DEPTH:
            continue
        name = pk.removeprefix(keys.counter(""))
        if _of_queue(found, name, sk) and item.get("loose", 0) != untracked[name]:
            raise broken(
                "a counter counts what came before its bound", counter=name, there=untracked[name]
            )


def tenants_take_turns(found: Mapping[Key, Item]) -> None:
    """Where tenants share a queue all its jobs have a share, those in line a tag, once it settled;
    no queue stays marked.
    """
    for (pk, sk), item in found.items():
        if not pk.startswith(keys.queue("")) or sk != keys.RECORD:
            continue
        queue = queues.from_item(pk.removeprefix(keys.queue("")), item)
        if queue.backfill_since_ms is not None:
            raise broken("the tagging of a queue ends", queue=queue.name)
        if queue.fairness is None:
            continue
        for job in job_records(found).values():
            if job.queue != queue.name or job.state.terminal or job.state is State.ACTIVE:
                continue
            in_line = job.state is State.AVAILABLE
            if job.share is None or (in_line and not tagged(job.order or "")):
                raise broken("jobs of a shared queue take turns by tenant", job=job.id)


# Of a queue: its dead letters, copies that wait in it, and what a bound would count.
_KINDS = ("dead", COPIES, "held", "held_b", "loose", "loose_b")


def _is_level(name: str, levels: Collection[str]) -> bool:
    return name in levels or (name[:1] == "p" and name[1:].lstrip("-").isdigit())


def counters_are_exact(found: Mapping[Key, Item], expected: Mapping[str, Counter[str]]) -> None:
    """What was projected is what a recount of all records says: by state, priority and kind; of
    pools what runs in them.
    """
    names = {*(state.value for state in State), *_KINDS}
    told = {
        pk.removeprefix(keys.stats("")) for pk, sk in found if sk == keys.NOW and pk[:2] == "S|"
    }
    for queue in (told | expected.keys()) - {keys.ALL_QUEUES}:
        item = found.get((keys.stats(queue), keys.NOW), {})
        counted = {name: n for name, n in item.items() if _is_level(name, names) and n}
        there = {name: n for name, n in expected.get(queue, {}).items() if n}
        if counted != there:
            raise broken("counters equal a recount", queue=queue, counted=counted, there=there)


def dead_letters_are_exact(found: Mapping[Key, Item]) -> None:
    """Dead letters are counted by type of job and by error: in all as many as there are. By name
    only what comes in the order of its job is, as streams have it; here records come in any.
    """
    there = Counter(job.queue for job in job_records(found).values() if job.dead_letter)
    told = {pk.removeprefix(keys.stats("")) for pk, sk in found if sk == keys.DEAD}
    for queue in (told | there.keys()) - {keys.ALL_QUEUES}:
        item = found.get((keys.stats(queue), keys.DEAD), {})
        for by in (dead_letters.BY_TYPE, dead_letters.BY_ERROR):
            counted = sum(n for name, n in item.items() if name.startswith(f"{by}|"))
            if counted != there[queue]:
                raise broken("dead letters are counted", queue=queue, by=by, counted=counted)


def _objects_of(job: Job) -> Iterable[str]:
    """The keys under which a job's large texts are in the bucket."""
    for kind, ref in ((keys.PAYLOAD, job.content_ref), (keys.RESULT, job.result_ref)):
        if ref is not None and (at := PayloadRef(job.id, kind, ref)).in_bucket:
            yield at.blob_key


def log_is_exact(found: Mapping[Key, Item], watch: Watch) -> None:
    """The event log tells of everything that happened, once; the statistics count it, once."""
    told = told_by(watch.stream, watch.errors)
    _events_are_exact(found, told)
    _statistics_are_exact(found, told)


def _events_are_exact(found: Mapping[Key, Item], told: Told) -> None:
    logged: Counter[tuple[str, str]] = Counter()
    pruned: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    for (pk, sk), page in found.items():
        # Pages of ends repeat what lists need of another page.
        if not pk.startswith(keys.events("")) or sk.endswith(".ends"):
            continue
        for event in json.loads(zlib.decompress(page["zip"])):
            ids[event["id"]] += 1
            if event["type"].startswith("webhook."):
                continue  # of no job
            if event["type"] == "dead_letter.pruned":
                pruned[event["subject"]] += event["data"]["count"]
            else:
                logged[event["type"], event["subject"]] += 1
    if twice := [event_id for event_id, count in ids.items() if count > 1]:
        raise broken("an event is in the log once", ids=twice)
    if logged != told.events or pruned != told.pruned:
        raise broken(
            "the log tells what happened",
            missing=dict(told.events - logged) | dict(told.pruned - pruned),
            unexpected=dict(logged - told.events) | dict(pruned - told.pruned),
        )


def _statistics_are_exact(found: Mapping[Key, Item], told: Told) -> None:
    for place in {(pk.removeprefix(keys.stats("")), sk) for pk, sk in found if pk[:2] == "S|"} | {
        *told.counts
    }:
        queue, sk = place
        if queue == keys.ALL_QUEUES or queue.startswith("@"):
            continue
        names = OF_NOW if sk == keys.NOW else OF_MINUTE if sk[:2] == "m|" else OF_DAY
        if sk != keys.NOW and sk[:2] not in ("m|", "d|"):
            continue
        item = found.get((keys.stats(queue), sk), {})
        wanted = {name: count for name, count in told.counts[place].items() if count}
        # By pool, and by type of job.
        names = names | {name for name in (*item, *wanted) if name[:2] == "s_" or "|" in name}
        counted = {name: item[name] for name in names if item.get(name)}
        if counted != wanted:
            raise broken("what happened is counted", of=place, counted=counted, there=wanted)


def no_orphans(found: Mapping[Key, Item], objects: Iterable[str], left: set[Key]) -> int:
    """Nothing is left of jobs that are gone, nor payloads that no record names, but those of
    `left`; how many of them there are. `objects` are the keys of the bucket.
    """
    count = 0
    jobs = job_records(found)
    in_bucket = {at for job in jobs.values() for at in _objects_of(job)}
    for name in objects:
        if name not in in_bucket and not name.startswith(ARCHIVE):
            if (BUCKET, name) not in left:
                raise broken("no orphans in the bucket", key=name)
            count += 1
    if gone := in_bucket - set(objects):
        raise broken("a large text is there as long as its job", keys=gone)
    for pk, sk in found:
        if pk.startswith(keys.batch("")) and "ttl" not in found[pk, sk]:
            raise broken("no batch is left half done", batch=pk)
        if not pk.startswith(keys.job("")) or sk == keys.RECORD:
            continue
        job = jobs.get(keys.job_id(pk))
        named = job is not None and (
            sk.startswith((keys.ERROR, keys.STEP, keys.UNTIL))
            or sk in (keys.PROGRESS, keys.CHECKPOINT, f"{keys.PAYLOAD}{job.content_ref}")
            or sk == f"{keys.RESULT}{job.result_ref}"
        )
        if not named and (pk, sk) not in left:
            raise broken("no orphans", item=f"{pk} {sk}", job_record=job is not None)
        count += not named
    return count
