"""Defects put into the code on purpose: of lease notes, and of the sweep that looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from ojs.services.jobs import fetch
from ojs.services.jobs.lost_leases import LostLeases
from ojs.services.permits.reconcile import ReconcileSweep
from ojs.store.derived.recount import Recount
from ojs.store.jobs import lease_notes
from ojs.store.jobs.lease_notes import LOOK_MS, ClaimIntents
from ojs.store.jobs.records import JobStore
from ojs.store.table import keys
from ojs.store.table.table import Update
from tests.simulation.mutations_late import Mutation, updates


def note_is_forgotten() -> AbstractContextManager[Any]:
    """A fetch claims, and tells nobody of it."""
    return mock.patch.object(ClaimIntents, "write", return_value=None)


@contextmanager
def note_comes_after_the_claim() -> Iterator[None]:
    """Two writes are swapped: a job is claimed before the note lists it."""
    write, claim = ClaimIntents.write, JobStore.claim
    kept: list[tuple[Any, Any]] = []

    def late(self: ClaimIntents, *args: Any, **how: Any) -> None:
        kept.append((args, how))

    def claimed(self: JobStore, *args: Any, **how: Any) -> Any:
        job = claim(self, *args, **how)
        while kept:
            noted, how = kept.pop()
            write(self.notes, *noted, **how)
        return job

    with (
        mock.patch.object(ClaimIntents, "write", late),
        mock.patch.object(JobStore, "claim", claimed),
    ):
        yield


def slots_are_skipped() -> AbstractContextManager[Any]:
    """The sweep looks at every other slot."""
    look = LostLeases._slot

    def some(self: LostLeases, slot: Any, *args: Any) -> None:
        if slot.number % 2:
            look(self, slot, *args)

    return mock.patch.object(LostLeases, "_slot", some)


def missed_minutes_are_skipped() -> AbstractContextManager[Any]:
    """What an earlier sweep should have looked at is not looked at by the next one."""
    look = LostLeases._slot

    def latest(self: LostLeases, slot: Any, now_ms: int, *args: Any) -> None:
        last = keys.instant(max(0, now_ms - LOOK_MS))
        look(self, replace(slot, seen=max(slot.seen, last)), now_ms, *args)

    return mock.patch.object(LostLeases, "_slot", latest)


def advanced_before_the_look() -> AbstractContextManager[Any]:
    """Two writes are swapped: that a page was looked at is stored before it is."""
    page = LostLeases._page

    def early(self: LostLeases, notes: Any, *args: Any) -> int:
        self._notes.advance(notes[-1].slot, notes[-1].key)
        return page(self, notes, *args)

    return mock.patch.object(LostLeases, "_page", early)


def running_jobs_get_no_new_note() -> AbstractContextManager[Any]:
    """A job whose lease goes on after its note was processed gets no new note."""
    return mock.patch.object(ClaimIntents, "again", return_value=None)


def reconcile_passes_over_notes() -> AbstractContextManager[Any]:
    """As it was: the reconcile counts what a queue gets its bound with by the index alone."""
    check, count = ReconcileSweep._check, Recount.count

    def blind(of: Recount, queue: Any, *, most: int, **_: Any) -> Any:
        return count(of, queue, most=most)

    def mutated(of: ReconcileSweep, *args: Any) -> None:
        with mock.patch.object(Recount, "count", blind):
            check(of, *args)

    return mock.patch.object(ReconcileSweep, "_check", mutated)


LEASES: Mapping[str, tuple[Mutation, str]] = {
    "a lease note is forgotten": (note_is_forgotten, "leases"),
    "a lease note comes after the claim": (note_comes_after_the_claim, "leases"),
    "slots of lease notes are skipped": (slots_are_skipped, "leases"),
    "minutes without a sweep are skipped": (missed_minutes_are_skipped, "leases"),
    "a look is stored before it is done": (advanced_before_the_look, "leases"),
    "running jobs get no new note": (running_jobs_get_no_new_note, "leases"),
    "a reconcile passes over lease notes": (reconcile_passes_over_notes, "leases"),
}


def slot_retires_without_condition() -> AbstractContextManager[Any]:
    """A slot of lease notes is retired, though a container has said since that it uses it."""

    def mutate(wanted: Update) -> Update:
        alone = bool(wanted.remove) and wanted.remove[0].startswith("used_")
        return replace(wanted, condition=None) if alone else wanted

    return updates(mutate)


@contextmanager
def notes_are_valid_for_ever() -> Iterator[None]:
    """A fetch claims under a lease note however long ago it wrote it."""
    with ExitStack() as stack:
        for module in (fetch, lease_notes):
            if hasattr(module, "VALID_MS"):
                stack.enter_context(mock.patch.object(module, "VALID_MS", 2**40))
        yield


# Found by `tests/store/test_promises.py`, each by the check that it names.
CHECKED: Mapping[str, Mutation] = {
    "a slot is retired without its condition": slot_retires_without_condition,
    "a lease note is valid for ever": notes_are_valid_for_ever,
}
