"""Defects put into the code on purpose: of owners and deadlines, of clocks and answers, and of what
takes effect late.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

from botocore.exceptions import ConnectionClosedError

from ojs.domain.errors import BackendError
from ojs.domain.job import lifecycle
from ojs.domain.job.failure import ErrorEntry
from ojs.domain.job.job import Job
from ojs.services.jobs import finish
from ojs.services.jobs.enqueue import JobEnqueuer
from ojs.services.permits.lifecycle import Permits
from ojs.store.derived.recount import Recount
from ojs.store.jobs import records as job_store
from ojs.store.jobs.lease_notes import LeaseNote
from ojs.store.jobs.staged_batches import StagedBatches
from ojs.store.table import keys, table
from ojs.store.table.errors import classify
from ojs.store.table.table import Put, Table, Update
from tests.simulation.faults import Client

Mutation = Callable[[], AbstractContextManager[Any]]


@contextmanager
def updates(mutate: Callable[[Update], Update]) -> Iterator[None]:
    """Every single update is made like this instead."""
    update = Table.update

    def mutated(of: Table, wanted: Update, **how: Any) -> Any:
        changed = mutate(wanted)
        text = f"{changed.condition} {changed.compute}"
        used = {name: v for name, v in changed.values.items() if re.search(rf"{name}\b", text)}
        # DynamoDB rejects values that no expression uses.
        return update(of, replace(changed, values=used), **how)

    with mock.patch.object(Table, "update", mutated):
        yield


def dropped(part: str, *, of: str = "") -> Mutation:
    """The part of a condition that says so is left out, of items whose key begins with `of`."""

    def mutate(wanted: Update) -> Update:
        condition = wanted.condition
        if condition is None or part not in condition or not wanted.pk.startswith(of):
            return wanted
        left = [one for one in condition.split(" AND ") if part not in one]
        return replace(wanted, condition=" AND ".join(left) or None)

    return lambda: updates(mutate)


def _puts(mutate: Callable[[Put], Put]) -> AbstractContextManager[Any]:
    """Every single put is made like this instead."""
    put = Table.put

    def mutated(of: Table, wanted: Put, **how: Any) -> None:
        put(of, mutate(wanted), **how)

    return mock.patch.object(Table, "put", mutated)


def _unconditional(of: str) -> Mutation:
    """Items whose sort key begins so are put whatever is there."""

    def mutate(wanted: Put) -> Put:
        if str(wanted.item["sk"]).startswith(of):
            return replace(wanted, condition=None, values={})
        return wanted

    return partial(_puts, mutate)


def _blind_deletes(of: str) -> Mutation:
    """Records whose key begins so are deleted whatever became of them."""
    delete = Table.delete

    def blind(self: Table, pk: str, sk: str, **how: Any) -> None:
        delete(self, pk, sk, **({} if pk.startswith(of) and sk == keys.RECORD else how))

    return lambda: mock.patch.object(Table, "delete", blind)


# --- whose lease it is ----------------------------------------------------------------------------


def anybody_extends() -> AbstractContextManager[Any]:
    """A heartbeat needs neither worker nor lease."""
    extend, condition = job_store.JobStore.extend, job_store._lease_owner_condition

    def anybody(self: Any, job_id: str, **how: Any) -> Any:
        anyone = condition(None, None, None)
        with mock.patch.object(job_store, "_lease_owner_condition", return_value=anyone):
            return extend(self, job_id, **how)

    return mock.patch.object(job_store.JobStore, "extend", anybody)


def anybody_nacks() -> AbstractContextManager[Any]:
    """A nack needs no lease."""
    return mock.patch.object(finish, "_owns_lease", return_value=True)


def anybody_resumes() -> AbstractContextManager[Any]:
    """Whoever asks goes on with a job whose lease ended."""
    resumable = lifecycle.resumable

    def by_anybody(job: Any, **shown: Any) -> bool:
        return resumable(job, **shown | {"lease_token": job.stalled, "attempt": None})

    return mock.patch.object(lifecycle, "resumable", by_anybody)


@contextmanager
def token_is_not_demanded() -> Iterator[None]:
    """A queue that demands the lease token takes an ack without one."""
    drop = dropped("attribute_not_exists(#fenced)", of="J|")
    with mock.patch.object(finish, "check_token"), drop():
        yield


def demand_is_not_noted() -> AbstractContextManager[Any]:
    """A job is handed out as if its queue did not demand the token, though some have it."""
    claim = job_store.JobStore.claim

    def unfenced(self: Any, *args: Any, **how: Any) -> Any:
        return claim(self, *args, **how | {"fenced": False})

    return mock.patch.object(job_store.JobStore, "claim", unfenced)


def leases_end_early() -> AbstractContextManager[Any]:
    """A lease ends when the index has its end, though it was extended."""
    by_time = lifecycle.by_time

    def early(job: Any, *, now_ms: int, **how: Any) -> Any:
        ahead_ms = 5_000 if job.lease is not None else 0
        return by_time(job, now_ms=now_ms + ahead_ms, **how)

    return mock.patch.object(lifecycle, "by_time", early)


def late_heartbeat_counts() -> AbstractContextManager[Any]:
    """A heartbeat counts whatever the time of the one before."""
    return dropped("#beat", of="J|")()


def heartbeat_shortens() -> AbstractContextManager[Any]:
    """A heartbeat sets the end of a lease, also when it was put off further."""
    return dropped("#lease_until <= :until", of="J|")()


def former_run_hides_progress() -> AbstractContextManager[Any]:
    """As it was: a report of a former run takes the place of the present one's (found likewise)."""

    def mutate(wanted: Put) -> Put:
        if wanted.item["sk"] != keys.PROGRESS:
            return wanted
        condition = "attribute_not_exists(pk) OR #run <> :run OR #value <= :value"
        used = {name: wanted.values[name] for name in (":run", ":value")}
        return replace(wanted, condition=condition, values=used)

    return _puts(mutate)


@contextmanager
def any_error_replaces() -> Iterator[None]:
    """What was noted of an attempt last takes the place of what was there."""
    always = mock.patch.object(ErrorEntry, "replaces", return_value=True)
    with _unconditional(keys.ERROR)(), always:
        yield


def no_error_makes_room() -> AbstractContextManager[Any]:
    """The errors that a job record had get no items when another takes their place."""
    noting = job_store.JobStore.noting

    def mutated(self: Any, before: Job, *rest: Any, **more: Any) -> Any:
        return noting(self, replace(before, noted=()), *rest, **more)

    return mock.patch.object(job_store.JobStore, "noting", mutated)


# --- what an answer means -------------------------------------------------------------------------


def dead_connection_is_a_defect(error: Any) -> Any:
    """A connection that died while the container was frozen ends the request."""
    if isinstance(error, ConnectionClosedError):
        return BackendError("The connection is closed.")
    return classify(error)


def _forgotten(operation: str, left: str) -> Mutation:
    """What a batch left undone is taken for done."""
    call = getattr(Client, operation)

    def forgetful(client: Client, **arguments: Any) -> Any:
        return {**call(client, **arguments), left: {}}

    return lambda: mock.patch.object(Client, operation, forgetful)


def queue_is_read_late() -> AbstractContextManager[Any]:
    """Queues are read as they were a moment ago."""
    batch_get, get = Table.batch_get, Table.get

    def batch(self: Table, wanted: Any, *, consistent: bool = True) -> Any:
        listed = list(wanted)
        of_queue = any(pk.startswith(keys.queue("")) for pk, _ in listed)
        return batch_get(self, listed, consistent=consistent and not of_queue)

    def one(self: Table, pk: str, sk: str, *, consistent: bool = True) -> Any:
        of_queue = pk.startswith(keys.queue(""))
        return get(self, pk, sk, consistent=consistent and not of_queue)

    return mock.patch.multiple(Table, batch_get=batch, get=one)


# --- batches, and what comes late -----------------------------------------------------------------


def staged_writes_are_repeated() -> AbstractContextManager[Any]:
    """As it was: a write of a batch without a condition is repeated (found likewise)."""
    return mock.patch.object(Table, "without_repeats", lambda self: self)


@contextmanager
def room_of_a_batch_twice() -> Iterator[None]:
    """Two that undo a batch at once both give its room back."""
    give_back = StagedBatches._give_back_room

    def twice(*batch: Any) -> None:
        give_back(*batch)
        give_back(*batch)

    both = mock.patch.object(StagedBatches, "_give_back_room", twice)
    with both, dropped("attribute_not_exists(#ttl)", of=keys.batch(""))():
        yield


def late_jobs_are_counted() -> AbstractContextManager[Any]:
    return mock.patch.object(Recount, "_undone", return_value=(0, 0))


def batch_item_is_repeated() -> AbstractContextManager[Any]:
    """As it was: the item of a batch may be written again after its commit (found likewise)."""
    create = StagedBatches.create

    def repeating(self: Any, *jobs: Any, **how: Any) -> Any:
        with mock.patch.object(self._unrepeated, "put", self._table.put):
            return create(self, *jobs, **how)

    return mock.patch.object(StagedBatches, "create", repeating)


def staged_ids_are_taken() -> AbstractContextManager[Any]:
    """As it was: an id of a batch that is not committed is refused for good (found likewise)."""
    in_use = StagedBatches.id_in_use
    free = JobEnqueuer._check_ids_free

    def whatever(self: Any, resolved: Any) -> None:
        with mock.patch.object(
            StagedBatches, "id_in_use", lambda of, job_id, _: in_use(of, job_id, None)
        ):
            free(self, resolved)

    return mock.patch.object(JobEnqueuer, "_check_ids_free", whatever)


def staged_jobs_are_handed_out() -> AbstractContextManager[Any]:
    """A fetch does not ask whether a batch is committed."""
    return mock.patch(
        "ojs.services.jobs.fetch.JobFetcher._committed_only", lambda _, found: list(found)
    )


def late_claims_are_forgotten() -> AbstractContextManager[Any]:
    """A job that a fetch has not claimed yet is not looked at again."""
    return mock.patch.object(LeaseNote, "may_be_claimed", return_value=False)


# --- what is taken and given back -----------------------------------------------------------------


def resumed_without_permits() -> AbstractContextManager[Any]:
    """A late worker goes on without what its job gave back."""
    return mock.patch.object(Permits, "reacquire", lambda _self, _before, after: after)


@contextmanager
def healed_without_waiting() -> Iterator[None]:
    """Permits are taken away while jobs are about to be claimed with them."""
    with ExitStack() as stack:
        for name in ("SETTLED_MS", "GONE_MS"):
            stack.enter_context(mock.patch(f"ojs.store.permits.semaphore.{name}", 0))
        yield


def _classified(as_what: Callable[[Any], Any]) -> Mutation:
    return lambda: mock.patch.object(table, "classify", as_what)


def marked_at_once() -> AbstractContextManager[Any]:
    """A queue is marked as plain whose record was about to change just before."""
    return mock.patch("ojs.store.queues.registry.QUIET_MS", 0)


LATE: Mapping[str, tuple[Mutation, str]] = {
    "a claim ignores the deadline": (dropped("#expires", of="J|"), "owners"),
    "a heartbeat needs neither worker nor lease": (anybody_extends, "owners"),
    "a nack needs no lease": (anybody_nacks, "owners"),
    "anybody goes on with a lost lease": (anybody_resumes, "owners"),
    "the lease token is not demanded": (token_is_not_demanded, "owners"),
    "the demand of the token is not noted": (demand_is_not_noted, "owners"),
    "a lease ends early": (leases_end_early, "owners"),
    "a heartbeat shortens a lease": (heartbeat_shortens, "owners"),
    "a heartbeat of an earlier time counts": (late_heartbeat_counts, "owners"),
    "progress goes back": (_unconditional(keys.PROGRESS), "owners"),
    "the backend's error replaces the worker's": (any_error_replaces, "owners"),
    "an error takes the place of the one before": (no_error_makes_room, "owners"),
    "a dead connection is a defect": (_classified(dead_connection_is_a_defect), "life"),
    "keys that were not read are forgotten": (
        _forgotten("batch_get_item", "UnprocessedKeys"),
        "late",
    ),
    "items that were not written are forgotten": (
        _forgotten("batch_write_item", "UnprocessedItems"),
        "batches",
    ),
    "a queue is read late": (queue_is_read_late, "configured"),
    "staged writes are repeated": (staged_writes_are_repeated, "late"),
    "an undone batch gives room back twice": (room_of_a_batch_twice, "late"),
    "what an undone batch wrote late is counted": (late_jobs_are_counted, "late"),
    "the item of a batch is repeated": (batch_item_is_repeated, "batches"),
    "ids of a staged batch are taken": (staged_ids_are_taken, "batches"),
    "late claims are forgotten": (late_claims_are_forgotten, "leases"),
    "staged jobs are handed out": (staged_jobs_are_handed_out, "batches"),
    "a dead letter is deleted blindly": (_blind_deletes(keys.job("")), "dead-letters"),
    "a late worker takes no permits": (resumed_without_permits, "owners"),
    "permits are healed without waiting": (healed_without_waiting, "slots"),
}

# Those that some order of a few steps shows (`tests.simulation.small`), and seeds hardly ever.
IN_EVERY_ORDER: Mapping[str, tuple[Mutation, str]] = {
    "a former run hides progress": (former_run_hides_progress, "a report and the next run"),
    "a commit after the undo succeeds": (
        _blind_deletes(keys.batch("")),
        "a commit and the sweep",
    ),
    "a queue is marked though it changes": (
        dropped("#changed = :changed", of=keys.QUEUES),
        "a change and the mark of its queue",
    ),
    "a queue is marked as soon as it changed": (
        marked_at_once,
        "a change and the mark of its queue",
    ),
}
