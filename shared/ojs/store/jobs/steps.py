"""Outcomes of steps, and ends of sleeps and waits: items in the partition of their job.

An outcome is written once: whichever outcome of a name is first counts. An item that is older than
its job belongs to an earlier job with the same ID, and does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ojs.domain import jsontext
from ojs.domain.errors import BAD_CURSOR, InvalidRequest
from ojs.domain.ids import IdSource
from ojs.domain.job.durable import KINDS, LETTERS, DurableOutcome, Wait
from ojs.domain.job.job import Job
from ojs.records import record
from ojs.store.jobs.payloads import packed, payload_of
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.races import lost_race
from ojs.store.table.table import Check, Delete, Put, Table, Update
from ojs.store.table.values import Item, Value

_FIRST = "attribute_not_exists(pk) OR #at < :born"
# Size of an item without the result, in bytes.
_BESIDE = 180
# Size of the results in one page.
_PAGE_BYTES = 1_048_576


@record(frozen=True)
class StepPage:
    """A page of outcomes, the ends of waits, and where the next page starts."""

    outcomes: list[DurableOutcome]
    waits: list[Wait]
    last: str | None


class StepStore:
    """Reads and writes outcomes."""

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._table = table
        self._ids = ids

    def save(self, job: Job, outcome: DurableOutcome) -> DurableOutcome | None:
        """Store an outcome, unless one of this name exists. Return the one that exists, or None.

        `job` is the record from the write that checked the lease.
        """
        # Race: an earlier owner of the job, or the same request. The first outcome counts.
        lost = lost_race(lambda: self._table.put(self.putting(job, outcome)))
        return None if lost is None or lost.item is None else _outcome(lost.item)

    def putting(self, job: Job, outcome: DurableOutcome) -> Put:
        """Return the write of an outcome. Its condition is that it is the first of its name."""
        stored: dict[str, Value | None] = {
            "ok": int(outcome.ok),
            "save": outcome.save,
            "attempt": outcome.attempt,
            "began": outcome.started_ms,
            "ms": outcome.duration_ms,
            "woke": 1 if outcome.woken else None,
            "at": max(outcome.stored_ms, job.created_ms),
        }
        item: Item = {
            "pk": keys.job(job.id),
            "sk": keys.step(job.durable.epoch, LETTERS[outcome.kind], outcome.name),
            **{name: value for name, value in stored.items() if value is not None},
            **packed(jsontext.dumps(outcome.value), _BESIDE),
        }
        return Put(item, condition=_FIRST, values={":born": job.created_ms})

    def add_signal(self, job: Job, outcome: DurableOutcome) -> None:
        """Store an outcome that a job doesn't wait for, and count it, in one transaction.

        Raises LostRace: the job has changed, or the outcome exists.
        """
        token = self._ids.token()
        # Race: a suspension for this signal, or any other change. The loser reads again.
        count = Update(
            keys.job(job.id),
            keys.RECORD,
            set={
                "sgn": job.durable.signals + 1,
                "stb": job.durable.bytes + weight([outcome]),
                "op": token,
            },
            condition="#op = :seen",
            values={":seen": job.op or ""},
        )
        try:
            self._table.transact([count, self.putting(job, outcome)])
        except LostRace as lost:
            if (lost.items[0] or {}).get("op") != token:
                raise

    def get(self, job: Job, like: DurableOutcome) -> DurableOutcome | None:
        """Return the outcome of the kind and name of another one, or None if there is none."""
        item = self._table.get(
            keys.job(job.id), keys.step(job.durable.epoch, LETTERS[like.kind], like.name)
        )
        return None if item is None or int(item["at"]) < job.created_ms else _outcome(item)

    @staticmethod
    def existing(lost: LostRace) -> DurableOutcome | None:
        """Return the outcome that made a transaction fail, or None."""
        found = (item for item in lost.items if item and str(item["sk"]).startswith(keys.STEP))
        return next((_outcome(item) for item in found), None)

    def missing(self, job: Job, wait: Wait) -> Check:
        """Return the check that what a job waits for has not happened."""
        sk = keys.step(job.durable.epoch, LETTERS[wait.kind], wait.name)
        return Check(keys.job(job.id), sk, _FIRST, {":born": job.created_ms})

    def end_of(self, job: Job, wait: Wait, *, now_ms: int) -> int:
        """Store when a sleep or wait ends (ms), once. Return the stored time."""
        # Race: an attempt before suspended itself for the same wait. Its time counts.
        lost = lost_race(lambda: self._table.put(self.ending(job, wait, now_ms=now_ms, once=True)))
        if lost is not None and lost.item is not None:
            return int(lost.item["ms"])
        return wait.until_ms

    @staticmethod
    def ending(job: Job, wait: Wait, *, now_ms: int, once: bool = False) -> Put:
        """Return the write of the end of a sleep or wait. It replaces another one unless `once`."""
        item: Item = {
            "pk": keys.job(job.id),
            "sk": keys.until(job.durable.epoch, wait.kind, wait.name),
            "ms": wait.until_ms,
            "at": max(now_ms, job.created_ms),
        }
        if not once:
            return Put(item)
        return Put(item, condition=_FIRST, values={":born": job.created_ms})

    def page(self, job: Job, *, results: bool, after: str | None = None) -> StepPage:
        """Return a page of the outcomes of a job. Makes one consistent query.

        Args:
            job: The job.
            results: Whether to return results and errors.
            after: Sort key of the last item of the page before, or None.
        """
        epoch = job.durable.epoch
        values: dict[str, Value] = {
            ":job": keys.job(job.id),
            ":first": keys.step(epoch, "", "")[:-1],
            ":last": keys.until(epoch, "~", ""),
        }
        start = None
        if after is not None and not str(values[":first"]) <= after <= str(values[":last"]):
            raise InvalidRequest("cursor", BAD_CURSOR)
        if after is not None:
            start = {"pk": {"S": keys.job(job.id)}, "sk": {"S": after}}
        found = self._table.query(
            "pk = :job AND sk BETWEEN :first AND :last", values, consistent=True, after=start
        )
        outcomes, waits, size, last = list[DurableOutcome](), list[Wait](), 0, None
        # A race: the job starts over, and stores outcomes of its next epoch.
        of_epoch = f"{epoch:04d}|"
        first, until = keys.STEP + of_epoch, keys.UNTIL + of_epoch
        for at, item in enumerate(found.items):
            sk, last = str(item["sk"]), str(item["sk"])
            if int(item["at"]) < job.created_ms:
                continue
            if sk.startswith(until):
                kind, name = sk.removeprefix(until).split("|", 1)
                waits.append(Wait(kind, name, int(item["ms"])))
            elif sk.startswith(first):
                outcome = _outcome(item, results=results)
                outcomes.append(outcome)
                size += jsontext.size_of(outcome.value)
            if size > _PAGE_BYTES and at + 1 < len(found.items):
                return StepPage(outcomes, waits, last)
        return StepPage(outcomes, waits, last if found.last is not None else None)

    def forget(self, job: Job, name: str) -> bool:
        """Delete the outcomes and the end of the wait of a name, if the job is unchanged.

        Return false if there are none. Raises LostRace.
        """
        epoch = job.durable.epoch
        wanted = [keys.step(epoch, letter, name) for letter in KINDS]
        wanted += [keys.until(epoch, kind, name) for kind in ("sleep", "signal")]
        found = self._table.batch_get((keys.job(job.id), sk) for sk in wanted)
        if not found:
            return False
        # Race: a worker claims the job and reads its outcomes. The loser reads again.
        unchanged = Check(keys.job(job.id), keys.RECORD, "#op = :seen", {":seen": job.op or ""})
        self._table.transact([unchanged, *(Delete(pk, sk) for pk, sk in found)])
        return True


def _outcome(item: Mapping[str, Any], *, results: bool = True) -> DurableOutcome:
    _, _, letter, name = str(item["sk"]).split("|", 3)
    return DurableOutcome(
        name,
        KINDS[letter],
        bool(item["ok"]),
        jsontext.stored(payload_of(dict(item))) if results else None,
        str(item["save"]),
        int(item["attempt"]),
        item.get("began"),
        item.get("ms"),
        int(item["at"]),
        "woke" in item,
    )


def weight(outcomes: Sequence[DurableOutcome]) -> int:
    """Return the size of outcomes in bytes, as it counts for a job."""
    return sum(jsontext.size_of(one.value) + len(one.name) + _BESIDE for one in outcomes)
