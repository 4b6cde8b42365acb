"""Creates, changes, lists, pauses, tests, and deletes deliveries.

A change applies to later dispatches. Active jobs finish unchanged: their outcomes are settled by
lease token, even if the delivery was changed or deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ojs.clock import Clock
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.delivery import delivery as domain
from ojs.domain.delivery.breaker import Breaker
from ojs.domain.delivery.delivery import (
    MAX_DELIVERIES,
    OF_DEPLOYMENT,
    Delivery,
    DeliveryCounts,
)
from ojs.domain.delivery.outcome import Outcome
from ojs.domain.delivery.push import Push
from ojs.domain.errors import (
    BAD_CURSOR,
    Conflict,
    NotFound,
    QueueNotFound,
    Unsupported,
    ValidationFailed,
    naming_field,
)
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job, Lease
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.services.deliveries.parts import DeliveryDependencies
from ojs.services.deliveries.wake import DeliveryWake
from ojs.services.operations.key_states import KeyStates, check_time
from ojs.services.sweeps import GoOn, always
from ojs.store.deliveries import deliveries as store
from ojs.store.deliveries.deliveries import DeliveryStore, Directory, DirectoryEntry
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table.races import retry_on_race

if TYPE_CHECKING:
    from ojs.domain.edits import Edit

# The class below has a method with the name `list`.
_Deliveries = list[Delivery]
_BUSY = "Concurrent requests changed this delivery."
# Maximum time (ms) to wait for the target in a test request.
TEST_TIMEOUT_MS = 20_000
TEST_TYPE = "ojs.test"


class Deliveries:
    """Manages deliveries."""

    def __init__(
        self,
        *,
        deliveries: DeliveryStore,
        queues: QueueStore,
        pools: PoolStore,
        statistics: StatisticsStore,
        semaphore: ConcurrencySemaphore,
        push_parts: DeliveryDependencies | None,
        wake: DeliveryWake | None,
        makers: KeyStates,
        clock: Clock,
        ids: IdSource,
        strict_queues: bool = False,
    ) -> None:
        """Create the service. Without `push_parts`, it rejects deliveries."""
        self._deliveries = deliveries
        self._queues = queues
        self._pools = pools
        self._statistics = statistics
        self._semaphore = semaphore
        self._parts = push_parts
        self._wake = wake
        self._makers = makers
        self._clock = clock
        self._ids = ids
        self._strict = strict_queues

    def put(
        self,
        name: str | None,
        body: object,
        caller: Principal = ANYBODY,
        edit: Edit | None = None,
    ) -> tuple[Delivery, bool]:
        """Create or replace a delivery. Missing queues are created.

        A new concurrency limit applies to later dispatches. A new target starts with a closed
        breaker.

        Args:
            name: Name of the delivery. None: derived from the target.
            body: The delivery, as received.
            caller: The caller.
            edit: Precondition and record of the change. Default: none.

        Returns:
            The delivery, and whether it is new.

        Raises:
            InvalidRequest: A field is invalid.
            ValidationFailed: A value is not allowed.
            Unsupported: The deployment doesn't support push delivery or this target.
            Conflict: Another delivery serves one of the queues.
            NotFound: The pool doesn't exist.
            QueueNotFound: A queue doesn't exist, in strict mode.
            PreconditionFailed: The delivery has another version.
        """
        wanted, says_secrets = domain.parse(name, body)
        self._pushing().allowed.check(wanted, named=domain.endpoint_field(body))
        line = self._makers.line(caller)

        def attempt() -> tuple[Delivery, bool]:
            before = self._deliveries.get(wanted.name)
            directory = self._deliveries.directory()
            self._check_free(wanted, directory, new=before is None)
            after = _replacing(before, wanted, says_secrets=says_secrets)
            if after.endpoint is not None and not after.signing_secrets:
                rule = "is required with target.endpoint, because each request is signed"
                raise ValidationFailed("signing_secret", rule)
            if edit is not None:
                self._note(edit, wanted.name, before, after)
            domain.check_secrets(before, after, body)
            self._make_queues(wanted)
            after = replace(after, line=line, updated_ms=self._clock.now_ms())
            stored = self._deliveries.save(before, after, directory)
            if edit is not None:
                edit.tag = stored.etag
            return stored, before is None

        stored, created = retry_on_race(attempt, busy=_BUSY)
        self._semaphore.set_limit(
            stored.semaphore,
            limit=stored.concurrency,
            version=stored.version,
            now_ms=stored.updated_ms,
        )
        if self._wake is not None:
            self._wake.changed(stored.name)
        return self._counted([stored])[0], created

    def get(self, name: str) -> Delivery:
        """Return a delivery. Raises NotFound."""
        return self._counted([self._there(name)])[0]

    def list(self, *, limit: int, cursor: str | None = None) -> Page[Delivery]:
        """Return a page of deliveries, ordered by name. Raises InvalidRequest."""
        if cursor is not None:
            with naming_field("cursor", cursor, BAD_CURSOR):
                domain.check_delivery(cursor)
        names = sorted(self._deliveries.directory().entries)
        left = [name for name in names if cursor is None or name > cursor]
        found = self._counted(self._deliveries.get_many(left[:limit]))
        return Page(found, left[limit - 1] if len(left) > limit else None)

    def pause(self, name: str, edit: Edit | None = None) -> Delivery:
        """Stop sending jobs until `resume`. Active jobs finish. Safe to repeat. Raises NotFound."""
        return self._change(name, lambda before: replace(before, paused=True), edit)

    def resume(self, name: str, caller: Principal = ANYBODY, edit: Edit | None = None) -> Delivery:
        """Resume a paused or disabled delivery with a closed breaker. Safe to repeat.

        Raises NotFound, and Unsupported or ValidationFailed if the target is not allowed.
        """
        line = self._makers.line(caller)

        def begun(before: Delivery) -> Delivery:
            if self._parts is not None:
                self._parts.allowed.check(before)
            return _begun(replace(before, paused=False, disabled=None, line=line))

        resumed = self._change(name, begun, edit)
        if self._wake is not None:
            self._wake.wake([name])
        return resumed

    def pause_made(self, key_id: str, go_on: GoOn = always) -> int:
        """Pause the deliveries that an access key or one of its descendants set.

        Returns how many it paused. Raises BackendUnavailable if the time is not sufficient.
        """
        names = sorted(self._deliveries.directory().entries)
        paused = 0
        for each in self._deliveries.get_many(names):
            if key_id in each.line and not each.paused:
                check_time(go_on)
                with suppress(NotFound):
                    self.pause(each.name)
                    paused += 1
        return paused

    def delete(self, name: str, edit: Edit | None = None) -> None:
        """Delete a delivery. Raises NotFound, PreconditionFailed.

        Its jobs stay in their queues. Outcomes of jobs that were sent before are still settled.
        """
        tried = False

        def attempt() -> None:
            nonlocal tried
            delivery = self._deliveries.get(name)
            if delivery is None and tried:
                # Deleted by an earlier try without a response, or by another request.
                return
            delivery = delivery or self._there(name)
            tried = True
            if edit is not None:
                self._note(edit, name, delivery, None)
            exact = edit is not None and edit.conditional
            self._deliveries.remove(delivery, self._deliveries.directory(), exact=exact)

        retry_on_race(attempt, busy=_BUSY)
        if self._wake is not None:
            self._wake.forget()

    def test(self, name: str, body: object) -> tuple[Outcome, int]:
        """Send a test job that is not stored. Returns the outcome and its duration (ms).

        The outcome doesn't change the delivery. Raises NotFound, InvalidRequest.
        """
        delivery = self._there(name)
        parts = self._pushing()
        parts.allowed.check(delivery)
        job = self._test_job(delivery, body)
        timeout_ms = min(delivery.timeout_ms, TEST_TIMEOUT_MS)
        push = Push.of(job, delivery.name, timeout_ms=timeout_ms)
        began_ms = self._clock.now_ms()
        patient = replace(delivery, timeout_ms=timeout_ms)
        (outcome,) = parts.target(delivery).send([push], delivery=patient, wait=True)
        assert outcome is not None, "with wait a target tells each outcome"
        return outcome, self._clock.now_ms() - began_ms

    # --- helpers --------------------------------------------------------------------------------

    def _pushing(self) -> DeliveryDependencies:
        if self._parts is None:
            raise Unsupported(
                "Push delivery is not supported by this deployment, because it has no dispatch "
                "queue. Fetch jobs instead: POST /ojs/v1/workers/fetch."
            )
        return self._parts

    def _there(self, name: str) -> Delivery:
        delivery = self._deliveries.get(name)
        if delivery is None:
            raise NotFound("delivery", name)
        return delivery

    @staticmethod
    def _note(edit: Edit, name: str, before: Delivery | None, after: Delivery | None) -> None:
        """Check the precondition of a change and record it. Raises PreconditionFailed."""
        seen, wanted = (None if it is None else it.configuration for it in (before, after))
        secrets = [() if it is None else it.signing_secrets for it in (before, after)]
        tag = None if before is None else before.etag
        same = seen == wanted and secrets[0] == secrets[1]
        edit.change("delivery", name, seen, wanted, tag=tag, same=same)

    def _change(
        self, name: str, change: Callable[[Delivery], Delivery], edit: Edit | None = None
    ) -> Delivery:
        def attempt() -> Delivery:
            before = self._there(name)
            after = change(before)
            if edit is not None:
                self._note(edit, name, before, after)
                edit.tag = after.etag
            if after == before:
                return before
            now_ms = self._clock.now_ms()
            return self._deliveries.note(before, replace(after, updated_ms=now_ms))

        return self._counted([retry_on_race(attempt, busy=_BUSY)])[0]

    def _check_free(self, wanted: Delivery, directory: Directory, *, new: bool) -> None:
        """Raise Conflict for a queue that another delivery serves."""
        others = {name: it for name, it in directory.entries.items() if name != wanted.name}
        if new and len(others) >= MAX_DELIVERIES:
            raise Conflict(
                f"The server has {MAX_DELIVERIES} deliveries, which is the maximum. Delete one "
                "first."
            )
        entry = DirectoryEntry(wanted.queues, wanted.pool)
        with_it = Directory({**others, wanted.name: entry}, directory.revision)
        if len(with_it.text().encode()) > store.MAX_DIRECTORY_BYTES:
            raise Conflict(
                "All deliveries together have too many queues. Set pool instead of queues."
            )
        if wanted.pool is not None and self._pools.get(wanted.pool) is None:
            raise NotFound("pool", wanted.pool)
        for queue, names in store.served(with_it, self._pools).items():
            other = [name for name in names if name != wanted.name]
            if wanted.name in names and other:
                raise Conflict(
                    f"Queue '{queue}' is already served by delivery '{other[0]}'. Remove it from "
                    "one of the deliveries.",
                    details={"field": "queues", "queue": queue, "delivery": other[0]},
                )

    def _make_queues(self, wanted: Delivery) -> None:
        found, _ = self._queues.get_many(wanted.queues)
        for at, name in enumerate(wanted.queues):
            if name not in found:
                if self._strict:
                    raise QueueNotFound(name)
                self._queues.ensure(name, now_ms=self._clock.now_ms())
            elif found[name].isolated_by is not None:
                raise Conflict(
                    f"Queue '{name}' is isolated by pool '{found[name].isolated_by}'. Set pool "
                    "instead of queues.",
                    details={"field": f"queues[{at}]", "queue": name},
                )

    def _counted(self, deliveries: Sequence[Delivery]) -> _Deliveries:
        """Return the deliveries with the counts of the stream consumer.

        Makes one call per 20 queues.
        """
        names = {each.pool for each in deliveries if each.pool is not None}
        pools = {pool.name: pool.queues for pool in self._pools.get_many(names)} if names else {}
        queues_of = {
            each.name: each.queues if each.pool is None else pools.get(each.pool, ())
            for each in deliveries
        }
        wanted = dict.fromkeys(queue for queues in queues_of.values() for queue in queues)
        pushes = self._statistics.pushes(list(wanted))
        return [
            replace(each, counts=_sum(each, (pushes[queue] for queue in queues_of[each.name])))
            for each in deliveries
        ]

    def _test_job(self, delivery: Delivery, body: object) -> Job:
        request = domain.DeliveryTestRequest.model_validate(body)
        now_ms = self._clock.now_ms()
        return Job(
            id=self._ids.uuid7(),
            # This job type is not one of the delivery's job types, because a test must not run real
            # work.
            type=request.type or TEST_TYPE,
            queue=next(iter(delivery.queues), delivery.pool or "default"),
            state=State.ACTIVE,
            created_ms=now_ms,
            attempt=1,
            started_ms=now_ms,
            worker_id=delivery.worker_id,
            lease=Lease(self._ids.token(), now_ms + delivery.lease_ms, delivery.lease_ms),
            content={"args": request.args or [], "meta": {"delivery_test": True}},
        )


def _replacing(before: Delivery | None, wanted: Delivery, *, says_secrets: bool) -> Delivery:
    """Return the delivery to store.

    It keeps omitted secrets, and the state of an unchanged target.
    """
    if before is None:
        return wanted
    after = replace(
        wanted,
        signing_secrets=wanted.signing_secrets if says_secrets else before.signing_secrets,
        counts=before.counts,
        armed_ms=before.armed_ms,
    )
    if before.target != wanted.target:
        return after
    disabled = before.disabled
    if disabled is not None and disabled.reason in OF_DEPLOYMENT:
        # A valid access key sets the delivery with this request, and its target is allowed.
        disabled = None
    return replace(
        after,
        disabled=disabled,
        breaker=before.breaker,
        backoff_until_ms=before.backoff_until_ms,
        throttles=before.throttles,
    )


def _begun(delivery: Delivery) -> Delivery:
    """Return the delivery with a closed breaker and without backoff."""
    return replace(delivery, breaker=Breaker(), backoff_until_ms=None, throttles=0)


def _sum(delivery: Delivery, pushes: Iterable[Mapping[str, int]]) -> DeliveryCounts:
    """Return the delivery with the job counts of the stream consumer added to its target counts."""
    total: dict[str, Any] = {"pushed": 0, "completed": 0, "failed": 0}
    for each in pushes:
        for name in total:
            total[name] += each.get(name, 0)
    return replace(delivery.counts, **total)
