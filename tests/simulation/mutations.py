"""Defects put into the code on purpose, to see that the simulation finds them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock

from ojs.clock import SystemClock
from ojs.domain.cron.cron import Cron
from ojs.domain.errors import Conflict
from ojs.domain.ids import IdSource
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue, QueueState
from ojs.domain.rate_limit import window as rate
from ojs.domain.rate_limit.window import RateWindow
from ojs.projections.counters import Tally
from ojs.services.crons.firing import _Previous
from ojs.services.dead_letter.archive import Archive
from ojs.services.jobs.batch_finish import BatchFinish, BatchOutcome
from ojs.services.jobs.fetch import JobFetcher
from ojs.services.jobs.transitions import JobChanges
from ojs.services.permits.backpressure import CapacityPending, QueueBounds, Reservation
from ojs.services.permits.reconcile import ReconcileSweep
from ojs.services.permits.repair import CountedPermits, PermitRepair
from ojs.services.pools.configure import PoolConfiguration
from ojs.services.queues.deletion import QueueDeletion
from ojs.services.queues.fairness_backfill import FairnessBackfill
from ojs.services.sweeping.jobs import JobSweep
from ojs.store.bounds.depth_counter import CapacityUse, DepthCounter
from ojs.store.crons.crons import CronStore
from ojs.store.derived.projection import ProjectionStore
from ojs.store.jobs import records as job_store
from ojs.store.jobs.staged_batches import StagedBatches
from ojs.store.permits import semaphore
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.queues import replicas
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Delete, Put, Table, Update
from tests.simulation.faults import Client
from tests.simulation.mutations_due import DUE_NOTES
from tests.simulation.mutations_durable import DURABLE
from tests.simulation.mutations_hooks import HOOKS
from tests.simulation.mutations_keyed import KEYED
from tests.simulation.mutations_late import LATE, Mutation, dropped, updates
from tests.simulation.mutations_leases import LEASES
from tests.simulation.mutations_push import PUSH
from tests.simulation.mutations_rings import RINGS
from tests.simulation.mutations_tenants import TENANTED
from tests.simulation.mutations_workflows import WORKFLOWS


def claim_without_state() -> AbstractContextManager[None]:
    """A claim takes whatever is there."""

    def mutate(wanted: Update) -> Update:
        if ":available" in wanted.values and ":seen" in wanted.values:
            return replace(wanted, condition="attribute_exists(pk)")
        return wanted

    return updates(mutate)


def ack_without_lease() -> AbstractContextManager[Any]:
    """Whoever acks is believed."""
    owner_condition = job_store._lease_owner_condition

    def anybody(*_: object, **__: object) -> Any:
        return owner_condition(None, None, None)

    return mock.patch.object(job_store, "_lease_owner_condition", anybody)


def record_is_swapped_blindly() -> AbstractContextManager[Any]:
    """A job record that was read is replaced, whatever became of it since."""
    replacing = job_store.JobStore.replacing

    def blind(self: Any, before: Any, after: Any, **how: Any) -> Any:
        made, update = replacing(self, before, after, **how)
        return made, replace(update, condition="attribute_exists(pk)", values={})

    return mock.patch.object(job_store.JobStore, "replacing", blind)


def record_before_payload() -> AbstractContextManager[Any]:
    """Two writes are swapped: a job is there before its text is."""
    create = job_store.JobStore.create

    def late(self: Any, job: Any, also: Sequence[Any] = ()) -> Any:
        kept: list[Any] = []
        save = self._payloads.save
        with mock.patch.object(self._payloads, "save", kept.extend):
            made = create(self, job, also)
        save(kept)
        return made

    return mock.patch.object(job_store.JobStore, "create", late)


def release_before_the_end() -> AbstractContextManager[Any]:
    """Two writes are swapped: the room of a job is given back before it is done."""
    ack = JobChanges.ack

    def early(self: JobChanges, job_id: str, **how: Any) -> Any:
        there = self._jobs.read_record(job_id)
        if there is not None:
            self._permits.release(there, ended_ms=how["now_ms"])
        with mock.patch.object(self._permits, "release"):
            return ack(self, job_id, **how)

    return mock.patch.object(JobChanges, "ack", early)


def release_twice() -> AbstractContextManager[Any]:
    """Room is given back once too often."""
    release = DepthCounter.release

    def twice(self: DepthCounter, queue: str, room: CapacityUse, **how: Any) -> None:
        release(self, queue, room, **how)
        release(self, queue, room, **how)

    return mock.patch.object(DepthCounter, "release", twice)


@contextmanager
def permit_is_kept() -> Iterator[None]:
    """A permit whose job does not run with it is found out by nobody."""
    with (
        mock.patch.object(ConcurrencySemaphore, "release", return_value=None),
        mock.patch.object(ConcurrencySemaphore, "heal", return_value=False),
    ):
        yield


def permit_is_freed_early() -> AbstractContextManager[Any]:
    """A permit is free five seconds after it was taken, though its job may be claimed yet."""
    return mock.patch.object(semaphore, "GONE_MS", 0)


def undo_without_mark() -> AbstractContextManager[Any]:
    """A batch is undone without a mark that stops its commit."""
    update = Table.update

    def mutated(table: Table, wanted: Update, **how: Any) -> Any:
        if wanted.set.get("state") == "undone":
            there = table.get(wanted.pk, wanted.sk)
            if there is None:
                raise LostRace([None])
            return there
        return update(table, wanted, **how)

    return mock.patch.object(Table, "update", mutated)


def late_jobs_stay() -> AbstractContextManager[Any]:
    """A batch that was undone is not looked at again."""
    remove = StagedBatches._remove_jobs

    def once(batches: StagedBatches, token: str, batch: Any) -> int:
        return 0 if "ttl" in batch else remove(batches, token, batch)

    return mock.patch.object(StagedBatches, "_remove_jobs", once)


def a_token_for_each_try() -> AbstractContextManager[Any]:
    """A transaction that is repeated after a conflict is another one to the table."""
    tries = count()

    def transact(client: Client, **arguments: Any) -> Any:
        token = {"ClientRequestToken": f"try {next(tries)}"}
        return client._call("transact_write_items", arguments | token)

    return mock.patch.object(Client, "transact_write_items", transact)


def handed_out_without_content() -> AbstractContextManager[Any]:
    """A claimed job goes to its worker whether or not its content is there."""

    def with_contents(fetch: JobFetcher, take: Any) -> Any:
        return fetch._jobs.with_contents(take.jobs)

    return mock.patch.object(JobFetcher, "_with_contents", with_contents)


def lock_without_condition() -> AbstractContextManager[Any]:
    """A unique key is taken whoever has it."""
    transact = Table.transact

    def mutated(table: Table, writes: Sequence[Put | Update | Delete]) -> None:
        made: list[Put | Update | Delete] = []
        for one in writes:
            if isinstance(one, Put) and str(one.item["pk"]).startswith(keys.unique("")):
                made.append(replace(one, condition=None, values={}))
            else:
                made.append(one)
        transact(table, made)

    return mock.patch.object(Table, "transact", mutated)


def end_without_note() -> AbstractContextManager[Any]:
    """A queue goes, and no note of it stays for those that were pushing to it."""

    def finish_deletion(self: QueueStore, queue: Any, _ending: Any, **_: Any) -> None:
        self._table.delete(keys.QUEUES, queue.name)
        self._table.delete(keys.queue(queue.name), keys.RECORD)

    return mock.patch.object(QueueStore, "finish_deletion", finish_deletion)


def a_replica_is_not_changed() -> AbstractContextManager[Any]:
    """The last replica of a queue's record stays as it was."""
    on_all = replicas.on_all
    return mock.patch.object(replicas, "on_all", lambda *args: on_all(*args)[:-1] or on_all(*args))


def replicas_are_made_of_what_was() -> AbstractContextManager[Any]:
    """The sweep copies a record that has changed since it was read."""
    transact = Table.transact

    def mutated(table: Table, writes: Sequence[Put | Update | Delete]) -> None:
        transact(
            table,
            [
                replace(one, condition="attribute_exists(pk)", values={})
                if isinstance(one, Update) and list(one.set) == ["replicas"]
                else one
                for one in writes
            ],
        )

    return mock.patch.object(Table, "transact", mutated)


def replicas_are_counted_by_nobody() -> AbstractContextManager[Any]:
    """Who changes a queue believes that it has no replicas."""
    on_all = replicas.on_all

    def alone(change: Any, name: str, _replicas: int) -> Any:
        first = on_all(change, name, 0)[0]
        return [replace(first, condition=change.condition)]

    return mock.patch.object(replicas, "on_all", alone)


def nobody_looks_at_what_runs() -> AbstractContextManager[Any]:
    """As it was: of a queue that is gone nobody looks at the leases (found by the simulation)."""
    waiting = QueueDeletion._waiting

    def only_waiting(self: Any, queue: Any, *, pages: int, running: bool = False) -> Any:
        return waiting(self, queue, pages=pages, running=running and pages == 1)

    return mock.patch.object(QueueDeletion, "_waiting", only_waiting)


def end_is_taken_back_once() -> AbstractContextManager[Any]:
    """As it was: who takes the end of a queue back must be the only one (found likewise)."""

    def cancel_deletion(self: Any, queue: Any, ending: Any) -> None:
        self._table.update(
            Update(
                keys.queue(queue.name),
                keys.RECORD,
                set={"state": ending.before.value},
                remove=["ending"],
                condition="#state = :draining",
                values={":draining": QueueState.DRAINING.value},
            )
        )

    return mock.patch.object(QueueStore, "cancel_deletion", cancel_deletion)


def repetition_is_a_lost_race() -> AbstractContextManager[Any]:
    """As it was: a claim that was repeated and lost cannot have gone through (found likewise)."""
    never = property(lambda _: False, lambda _, __: None)
    return mock.patch.object(LostRace, "repeated", never, create=True)


# --- what operators set, and what is counted ------------------------------------------------------


def _constant(place: str, value: object) -> Mutation:
    """A constant, or a function, is another."""
    return lambda: mock.patch(place, value)


def events_are_lost() -> AbstractContextManager[Any]:
    """Pages of events are counted, and not written."""
    return mock.patch.object(ProjectionStore, "add_page", return_value=None)


def a_record_leaves_no_mark() -> AbstractContextManager[Any]:
    """What was counted is counted again when it comes again."""
    return mock.patch("ojs.projections.project._Batch.is_new", return_value=True)


def waits_are_not_counted() -> AbstractContextManager[Any]:
    """How long a job ran is not measured."""
    return mock.patch("ojs.projections.transitions._run_ms", return_value=1)


def a_pool_is_counted_late() -> AbstractContextManager[Any]:
    """The running jobs of pools are not counted."""
    move = Tally.move

    def outside(self: Tally, before: Any, after: Any) -> None:
        bare = [job and replace(job, pool=None) for job in (before, after)]
        move(self, *bare)

    return mock.patch.object(Tally, "move", outside)


def running_jobs_do_not_count() -> AbstractContextManager[Any]:
    """A limit is set, and what runs already is not given places."""
    return mock.patch.object(PermitRepair, "_give_all", return_value=(0, []))


def waiting_jobs_do_not_count() -> AbstractContextManager[Any]:
    """A bound is set, and what is there already is not counted."""
    return mock.patch.object(ReconcileSweep, "count_untracked", return_value=None)


def pool_made_anew_forgets() -> AbstractContextManager[Any]:
    """As it was: of a pool that is made what ran under its name is not counted (found likewise)."""
    put = PoolConfiguration._put

    def forgetful(self: PoolConfiguration, wanted: Any, edit: Any) -> Any:
        if self._pools.get(wanted.name) is None:
            with running_jobs_do_not_count():
                return put(self, wanted, edit)
        return put(self, wanted, edit)

    return mock.patch.object(PoolConfiguration, "_put", forgetful)


def pool_forgets_queues() -> AbstractContextManager[Any]:
    """As it was: what runs from queues that a pool had before is not counted (found likewise)."""
    put, of_pool = PoolConfiguration._put, CountedPermits.of_pool

    def forgetful(self: PoolConfiguration, wanted: Any, edit: Any) -> Any:
        def of_some(pool: Any, queues: Sequence[Any]) -> CountedPermits:
            return of_pool(pool, [queue for queue in queues if queue.name in wanted.queues])

        with mock.patch.object(CountedPermits, "of_pool", of_some):
            return put(self, wanted, edit)

    return mock.patch.object(PoolConfiguration, "_put", forgetful)


def isolation_is_ignored() -> AbstractContextManager[Any]:
    """Whoever asks is served from an isolated queue."""
    return mock.patch.object(Queue, "isolated_by", None)


def nothing_is_tagged() -> AbstractContextManager[Any]:
    """Jobs that wait get no tags when tenants begin to share their queue."""
    return mock.patch.object(FairnessBackfill, "_update", return_value=0)


def nothing_is_archived() -> AbstractContextManager[Any]:
    """Dead letters are said to be in the archive, and are not."""

    def keep(_self: Any, _queue: str, dead: Sequence[Any], **_: Any) -> Any:
        return list(dead), len(dead)

    return mock.patch.object(Archive, "keep", keep)


def one_lane_is_swept() -> AbstractContextManager[Any]:
    """The sweep looks at the first lane alone."""
    whole = JobSweep._lane

    def first(self: JobSweep, queue: str, lane: int, *rest: Any) -> bool:
        return lane == 0 and whole(self, queue, lane, *rest)

    return mock.patch.object(JobSweep, "_lane", first)


def who_has_waited_goes_in() -> AbstractContextManager[Any]:
    """A push that waited for room is stored without any."""
    enter = QueueBounds.enter
    waited: set[tuple[str, ...]] = set()

    def impatient(self: QueueBounds, jobs: Any, queues: Any, **how: Any) -> Any:
        ids = tuple(job.id for job in jobs)
        try:
            return enter(self, jobs, queues, **how)
        except CapacityPending:
            if ids in waited:
                return Reservation()
            waited.add(ids)
            raise

    return mock.patch.object(QueueBounds, "enter", impatient)


def many_show_nothing() -> AbstractContextManager[Any]:
    """Of many acks and nacks in one request what they show of the lease is not looked at."""
    end = BatchFinish.end

    def bare(self: BatchFinish, acks: Any, nacks: Any = (), **how: Any) -> Any:
        shown = ("worker_id", "attempt", "lease_token")
        left = [
            [(job_id, {k: v for k, v in told.items() if k not in shown}) for job_id, told in each]
            for each in (acks, nacks)
        ]
        return end(self, *left, **how)

    return mock.patch.object(BatchFinish, "end", bare)


def failure_is_told_as_done() -> AbstractContextManager[Any]:
    """Of many acks one that failed is told to be done."""
    end = BatchFinish.end

    def hopeful(self: BatchFinish, *ends: Any, **how: Any) -> Any:
        def done(one: BatchOutcome) -> BatchOutcome:
            if not isinstance(one.result, Conflict):
                return one
            there = self._jobs.read_record(one.job_id)
            return (
                one
                if there is None
                else BatchOutcome(one.job_id, replace(there, state=State.COMPLETED))
            )

        return tuple([done(one) for one in outcomes] for outcomes in end(self, *ends, **how))

    return mock.patch.object(BatchFinish, "end", hopeful)


def a_tenth_too_short() -> AbstractContextManager[Any]:
    """What passed is forgotten a step of the window too early."""

    def recent(self: RateWindow, now_ms: int, period_ms: int) -> RateWindow:
        oldest = rate._step(now_ms, period_ms) - rate.STEPS + 1
        return RateWindow(tuple(pair for pair in self.passed if pair[0] >= oldest))

    return mock.patch.object(RateWindow, "recent", recent)


def time_goes_on() -> AbstractContextManager[Any]:
    """What is due starts, whatever operators say."""
    return _constant("ojs.services.jobs.time_transitions.sources", lambda _: ())()


@contextmanager
def cron_is_swapped_blindly() -> Iterator[None]:
    """Whoever fires or changes a cron job writes it whatever became of it."""
    update = CronStore._update

    def blind(self: CronStore, before: Cron, after: Cron) -> Update:
        return replace(update(self, before, after), condition=None, values={})

    with mock.patch.object(CronStore, "_update", blind):
        yield


@contextmanager
def tick_fires_for_each() -> Iterator[None]:
    """The same, and each job of a tick has an id of its own."""
    ids = IdSource(SystemClock())
    new_id = mock.patch.object(Cron, "job_id", side_effect=ids.uuid7)
    with cron_is_swapped_blindly(), new_id:
        yield


# What is done, and the scenario that shows it.
MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "a claim has no condition": (claim_without_state, "life"),
    "an ack needs no lease": (ack_without_lease, "slots"),
    "a job record is swapped blindly": (record_is_swapped_blindly, "life"),
    "a job record is written before its payload": (record_before_payload, "life"),
    "a batch is undone without a mark": (undo_without_mark, "batches"),
    "late jobs of an undone batch stay": (late_jobs_stay, "late"),
    "each try of a transaction is another": (a_token_for_each_try, "dropped"),
    "a job is handed out without its content": (handed_out_without_content, "contents"),
    "a unique key is taken blindly": (lock_without_condition, "unique"),
    "a counter reserves without condition": (dropped(":room", of="G|default"), "bounded"),
    "room is given back twice": (release_twice, "bounded"),
    "room is given back before the end": (release_before_the_end, "bounded"),
    "a permit that no job has is not found out": (permit_is_kept, "slots"),
    "a permit is freed before its job may be claimed": (permit_is_freed_early, "slots"),
    "a permit is released twice": (dropped("attribute_exists(#h_", of="G|"), "slots"),
    "a ledger draws without limit": (dropped(":room", of="G|:"), "pool"),
    "a queue goes without a note": (end_without_note, "ending"),
    "a claim does not name its line": (dropped("#wpk = :line"), "ending"),
    "nobody looks at what runs in a queue that is gone": (nobody_looks_at_what_runs, "ending"),
    "room is given back after a repetition": (repetition_is_a_lost_race, "dead-letters"),
    "the end of a queue is taken back once": (end_is_taken_back_once, "rejected"),
    "events are not written": (events_are_lost, "life"),
    "a record leaves no mark": (a_record_leaves_no_mark, "life"),
    "how long jobs run is not measured": (waits_are_not_counted, "life"),
    "what runs in pools is not counted": (a_pool_is_counted_late, "pool"),
    "what runs does not count": (running_jobs_do_not_count, "configured"),
    "what is there does not count": (waiting_jobs_do_not_count, "configured"),
    "a pause is ignored": (_constant("ojs.domain.queue.queue.Queue.paused", False), "configured"),
    "a worker's places are not limited": (dropped(":room", of="G|:p:"), "least-loaded"),
    "isolation is ignored": (isolation_is_ignored, "pools"),
    "a pool made anew forgets what runs": (pool_made_anew_forgets, "pools"),
    "a pool forgets queues that it had": (pool_forgets_queues, "pools"),
    "waiting jobs get no tags": (nothing_is_tagged, "fairness"),
    "large texts stay in the bucket": (
        _constant("ojs.store.jobs.blobs.S3Blobs.delete", lambda *_: None),
        "bucket",
    ),
    "a pass does not wait for who writes": (
        _constant("ojs.services.operations.tidy.WAIT_S", 0.0),
        "bucket",
    ),
    "nothing is archived": (nothing_is_archived, "archive"),
    "replays are not counted": (
        _constant("ojs.domain.job.replay.count", lambda *_: 0),
        "replayed",
    ),
    "who has waited goes in": (who_has_waited_goes_in, "blocked"),
    "one lane is swept": (one_lane_is_swept, "lanes"),
    "a replica is not changed": (a_replica_is_not_changed, "lanes"),
    "replicas are made of what was": (replicas_are_made_of_what_was, "lanes"),
    "replicas are counted by nobody": (replicas_are_counted_by_nobody, "lanes"),
    "a rate forgets too early": (a_tenth_too_short, "rates"),
    "what is counted is not noted": (
        _constant("ojs.store.table.keys.is_queue", lambda _: False),
        "due_notes",
    ),
    **DUE_NOTES,
    "many acks show nothing": (many_show_nothing, "ended"),
    "one of many that failed is told as done": (failure_is_told_as_done, "ended"),
    "a drop is not told": (_constant("ojs.projections.events._DROPPED", {}), "dropped"),
    "the end of bulk work is not told": (_constant("ojs.projections.bulk._TOLD", {}), "acts"),
    **LEASES,
    **DURABLE,
    "maintenance is not noticed": (
        _constant("ojs.store.deployment.maintenance.MaintenanceStore.on", lambda _: False),
        "acts",
    ),
    "maintenance is remembered for long": (
        _constant("ojs.store.deployment.maintenance.NOTICED_MS", 60_000),
        "acts",
    ),
    "time goes on in maintenance": (time_goes_on, "acts"),
    "a job is moved blindly": (record_is_swapped_blindly, "acts"),
    "a tick fires for each who looks": (tick_fires_for_each, "cron"),
    "a cron job is swapped blindly": (cron_is_swapped_blindly, "cron"),
    "a cron job forgets what runs": (
        _constant("ojs.services.crons.firing.CronFiring._previous", lambda *_: _Previous()),
        "cron",
    ),
    "jobs of a cron job do not wait for each other": (
        _constant("ojs.domain.cron.definition.limit_key", lambda _: uuid.uuid4().hex),
        "cron",
    ),
    **WORKFLOWS,
    **KEYED,
    **HOOKS,
    **PUSH,
    **RINGS,
    **TENANTED,
    **LATE,
}
