"""Storage of cron jobs: one item each in the due index partition of its queue, and a run log.

    C|{name}    @              attributes, next tick, latest jobs; at most 1 KB
    C|{name}    def|{token}    the definition, if it is too large for the item above
    CR|{name}   {ms}|{runs}|{token}   an entry of the run log, kept for 30 days

A tick is the time of a scheduled run. When the tick is due, the next fetch, or otherwise the sweep,
finds the entry in the due index and runs the cron job. The record is not read before. The condition
on the attribute `op` ensures that only one process runs it. The index `expiry` lists all cron jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace as changed

from ojs.domain import jsontext
from ojs.domain.cron.cron import Cron, CronRun, SkipReason
from ojs.domain.cron.definition import CronDefinition
from ojs.domain.errors import OjsError
from ojs.domain.ids import IdSource
from ojs.domain.page import Page
from ojs.store.jobs.payloads import PayloadRef, PayloadStore
from ojs.store.queues.due_notes import DueNotes
from ojs.store.table import keys
from ojs.store.table.errors import LostRace, WriteNotApplied, ignore_unreadable, readable
from ojs.store.table.races import lost_race
from ojs.store.table.record import Attribute, Record, member, rewriting, words
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value, pack, size

ITEM_BYTES = 1_024
# Space for attributes that are added later: times, counts, and the IDs of jobs.
GROWTH_BYTES = 260
LOG_KEPT_S = 30 * 86_400
# Maximum length of the name in the sort key of the list. A longer one would make the item too
# large.
_SORTED = 64
_TRIES = 3
_DEFINITION, _REF = "definition", "apart"
CRON = Record(
    Cron,
    "cron job",
    {
        _DEFINITION: Attribute(
            "definition",
            lambda definition: jsontext.dumps(definition.compact()),
            lambda text: CronDefinition.of(jsontext.stored(text)),
        ),
        _REF: "definition_ref",
        "created": "created_ms",
        "updated": "updated_ms",
        "since": "enabled_ms",
        "tick": "tick_ms",
        "gap": "gap_ms",
        "past": "past_ms",
        "runs": "runs",
        "last": "last_ms",
        "full": "full_ms",
        "op": "op",
        "off": Attribute("enabled", lambda _: 1, lambda _: False, "N"),
        "jobs": words("jobs"),
        "line": words("line"),
    },
    apart={
        "name": lambda item: keys.cron_name(str(item["pk"])),
        "due_ms": lambda item: keys.instant_of(item["wsk"]) if "wsk" in item else None,
    },
    always=("since", "past", "runs"),
)
RUN = Record(
    CronRun,
    "run of the cron job",
    {
        "at": "at_ms",
        "tick": "scheduled_ms",
        "expression": "expression",
        "zone": "timezone",
        "type": "job_type",
        "queue": "queue",
        "fired": "runs",
        "job": "job_id",
        "reason": member("reason", SkipReason, "a skipped tick"),
        "other": "active_job_id",
        "waiting": "waiting",
        "late": "late_ms",
        "local": "local",
        "skipped": "count",
        "error": "error",
    },
    apart={"name": lambda item: str(item["pk"]).removeprefix(keys.cron_runs(""))},
)


class CronStore:
    """Reads and writes cron jobs."""

    def __init__(
        self, table: Table, payloads: PayloadStore, ids: IdSource, due_notes: DueNotes
    ) -> None:
        self._table = table
        self._payloads = payloads
        self._ids = ids
        self._due_notes = due_notes

    def get(self, name: str) -> Cron | None:
        """Read one cron job, strongly consistent.

        Makes one call, or two if the definition is a separate item.

        Raises:
            UnknownForm: Only a newer version can read the cron job.
            UnreadableItem: The cron job is damaged.
        """
        for _ in range(_TRIES):
            item = self._table.get(keys.cron(name), keys.RECORD)
            if item is None:
                return None
            # Race: the definition is replaced between the two reads, and the old one no longer
            # exists.
            (whole,) = self._with_definitions([item])
            if _DEFINITION in whole:
                break
        return CRON.of(whole)

    def _with_definitions(self, found: Sequence[Item]) -> Sequence[Item]:
        """Return the items with their definitions from separate items."""
        apart = {_apart(keys.cron_name(str(i["pk"])), str(i[_REF])): i for i in found if _REF in i}
        for ref, text in (self._payloads.load(apart) if apart else {}).items():
            apart[ref][_DEFINITION] = text
        return found

    def add(self, cron: Cron) -> Cron:
        """Store a new cron job. Raises LostRace when there is one of this name."""
        self._note(cron)
        cron = self._prepared(cron)
        # Race: two requests create a cron job with the same name. The loser reads the winner's item
        # and updates it.
        put = Put(_item(cron), condition="attribute_not_exists(pk)")
        with self._removing(cron):
            self._table.put(put, own=("op", str(cron.op)))
        return cron

    def replace(self, before: Cron, after: Cron) -> Cron:
        """Replace a cron job if it is unchanged. Raise LostRace if it has changed."""
        if after.definition == before.definition:
            after, update = self.replacing(before, after)
            self._table.update(update, own=("op", str(after.op)))
            return after
        after = self._prepared(changed(after, definition_ref=None))
        with self._removing(after):
            self._table.update(self._update(before, after), own=("op", str(after.op)))
        self._discard(before)
        return after

    def replacing(self, before: Cron, after: Cron) -> tuple[Cron, Update]:
        """Return the write of `replace` for a transaction, without a change of the definition."""
        after = changed(after, op=self._ids.token())
        return after, self._update(before, after)

    def _update(self, before: Cron, after: Cron) -> Update:
        self._note(after)
        # Race: two evaluators of one tick, a change, a pause, a deletion. One wins; the losers
        # write nothing, not even the job of the tick, which is in the same transaction. They read
        # again, and see the next tick, the change, or nothing.
        return rewriting(_item(before), _item(after), "#op = :seen", {":seen": before.op or ""})

    def advance(self, before: Cron, after: Cron, run: CronRun | None) -> Cron:
        """Write the result of a tick without a job, and its entry of the run log.

        Args:
            before: Cron job as read.
            after: Cron job to store.
            run: Entry of the run log, or None.

        Raises:
            LostRace: The cron job has changed.
        """
        after, update = self.replacing(before, after)
        if run is None:
            self._table.update(update, own=("op", str(after.op)))
        else:
            self._table.transact([update, self.logging(run, after)])
        return after

    @staticmethod
    def logging(run: CronRun, after: Cron) -> Put:
        """Return the write of a run log entry, for the transaction that changes the cron job."""
        return Put(
            RUN.item(
                run,
                pk=keys.cron_runs(run.name),
                # Two entries can have the same time. The number of runs keeps their order.
                sk=f"{keys.instant(run.at_ms)}|{run.runs:09d}|{after.op}",
                ttl=run.at_ms // 1_000 + LOG_KEPT_S,
            )
        )

    def _note(self, cron: Cron) -> None:
        """Note the line of a cron job that is about to wait for a tick. Raises OjsError."""
        if cron.due_ms is not None:
            self._due_notes.note([(keys.due(cron.definition.queue, 0), cron.due_ms)])

    def remove(self, cron: Cron) -> None:
        """Delete a cron job as read. Raises LostRace if the cron job has changed."""
        # Race: the cron job runs, or is changed, at the same time. The loser reads it again, so
        # that the response contains the cron job that was deleted.
        lost = lost_race(
            lambda: self._table.delete(
                keys.cron(cron.name),
                keys.RECORD,
                condition="#op = :seen",
                values={":seen": cron.op or ""},
            )
        )
        # The response was lost, and the cron job no longer exists. This call or another one deleted
        # it.
        if lost is not None and (lost.item or not lost.repeated):
            raise lost
        self._discard(cron)

    def page(self, *, limit: int, after: str | None) -> Page[Cron]:
        """Return a page of all cron jobs in order of name, and the name at which the next page
        starts.

        The index is eventually consistent.
        """
        start = None if after is None else pack({**_key(after), **_listed(after)})
        found = self._table.query(
            "epk = :all", {":all": keys.CRONS}, index="expiry", limit=limit + 1, after=start
        )
        names = [keys.cron_name(str(item["pk"])) for item in found.items]
        wanted = [(keys.cron(name), keys.RECORD) for name in names[:limit]]
        there = self._table.batch_get(wanted)
        whole = self._with_definitions([there[key] for key in wanted if key in there])
        more = names[limit - 1] if len(names) > limit else None
        return Page(list(readable(CRON.of, whole, ignore_unreadable)), more)

    def count(self, key_id: str | None, *, most: int) -> tuple[int, int]:
        """Return the number of cron jobs, and how many of them this access key changed last.

        The second number is read only if it can be at least `most`. The index is eventually
        consistent.
        """
        found, after = [], None
        while True:
            page = self._table.query(
                "epk = :all", {":all": keys.CRONS}, index="expiry", after=after
            )
            found += [(str(item["pk"]), keys.RECORD) for item in page.items]
            if (after := page.last) is None:
                break
        reads = key_id and len(found) >= most
        items = self._table.batch_get(found, consistent=False) if reads else {}
        own = [item for item in items.values() if str(item.get("line", "")).endswith(str(key_id))]
        return len(found), len(own)

    def runs(
        self, name: str, *, since_ms: int, limit: int, after: str | None = None
    ) -> Page[CronRun]:
        """Return a page of the run log, the most recent first, and the key of the next page.

        Args:
            name: Name of the cron job.
            since_ms: Earliest time of an entry.
            limit: Maximum number of entries.
            after: Key of the last page. Default: start with the most recent.
        """
        found = self._table.query(
            "pk = :log AND sk BETWEEN :since AND :last",
            {
                ":log": keys.cron_runs(name),
                ":since": keys.instant(since_ms),
                ":last": "~" if after is None else keys.just_before(after),
            },
            limit=limit,
            forward=False,
            consistent=True,
        )
        last = str(found.items[-1]["sk"]) if found.items and found.last is not None else None
        return Page([RUN.of(item) for item in found.items], last)

    def zones_seen(self) -> tuple[str | None, str | None]:
        """Return the version of the time zone rules that the ticks of cron jobs were computed with.

        Also return the name of the last cron job that was computed, or None if all were computed.
        """
        item = self._table.get(keys.CRONS, keys.ZONES) or {}
        version, after = (str(item.get(name, "")) or None for name in ("version", "after"))
        return version, after

    def see_zones(self, version: str, after: str | None) -> None:
        """Record that ticks up to the cron job `after` were computed with this version of the
        rules.

        If `after` is None, the ticks of all cron jobs were computed.
        """
        # Race: containers of two versions. Each computes all cron jobs, and the last record is
        # kept.
        item: Item = {"pk": keys.CRONS, "sk": keys.ZONES, "version": version}
        self._table.put(Put(item if after is None else {**item, "after": after}))

    def _prepared(self, cron: Cron) -> Cron:
        """Return a cron job with its write token. Store its definition if it is a separate item."""
        cron = changed(cron, op=self._ids.token())
        if size(_item(cron)) + GROWTH_BYTES <= ITEM_BYTES:
            return cron
        text = str(_item(cron)[_DEFINITION])
        at = self._payloads.new_ref(
            cron.name, keys.DEFINITION, str(cron.op), len(text.encode("utf-8"))
        )
        self._payloads.save([(at, text)])
        return changed(cron, definition_ref=at.ref)

    @contextmanager
    def _removing(self, cron: Cron) -> Iterator[None]:
        """Remove the new definition if the block fails, because no cron job then refers to it."""
        try:
            yield
        except (LostRace, WriteNotApplied):
            with suppress(OjsError):
                self._discard(cron)
            raise

    def _discard(self, cron: Cron) -> None:
        """Remove the definition of a cron job, if it is a separate item."""
        if cron.definition_ref is not None:
            self._payloads.delete([_apart(cron.name, cron.definition_ref)])


def _apart(name: str, ref: str) -> PayloadRef:
    return PayloadRef(name, keys.DEFINITION, ref)


def _key(name: str) -> dict[str, Value]:
    return {"pk": keys.cron(name), "sk": keys.RECORD}


def _listed(name: str) -> dict[str, Value]:
    return {"epk": keys.CRONS, "esk": name[:_SORTED]}


def _item(cron: Cron) -> Item:
    due: Item = {}
    if cron.due_ms is not None:
        due["wpk"] = keys.due(cron.definition.queue, 0)
        due["wsk"] = keys.due_at(cron.due_ms, keys.TICK)
    item = CRON.item(cron, **_key(cron.name), **_listed(cron.name), **due)
    if cron.definition_ref is not None:
        del item[_DEFINITION]
    return item
