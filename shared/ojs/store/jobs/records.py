"""Jobs in the table: every read of a head, and every conditional write on it.

Three ways of writing a head, by what they guard against:

    create    the id is new
    claim/ack/extend   the head is in the state (and under the lease) the caller speaks of;
              nothing is read first
    replace   compare-and-swap: the head is still the version (`op`) or under the lease that was
              read before

Every write stores a fresh token in `op`. When an answer is lost and the SDK asks again, the
condition fails, but the head found carries our own token: the write did happen.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from itertools import groupby
from typing import Any, Literal

from ojs.domain import jsontext, times
from ojs.domain.errors import BackendUnavailable, OjsError
from ojs.domain.fair_queue.tags import Share, arrival, tagged
from ojs.domain.ids import IdSource
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, MISSING, POOL_SEAT, Job
from ojs.domain.job.retention import RETENTION
from ojs.domain.job.states import State, Trigger, sources
from ojs.store.jobs import items
from ojs.store.jobs.payloads import PayloadRef, PayloadStore, text_of
from ojs.store.permits.counters import Gates
from ojs.store.permits.key_limits import KeyLimits
from ojs.store.permits.pool_permits import PoolPermits
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import MAX_TRANSACTION, Put, Table, Update
from ojs.store.table.values import Item, Value, pack, unpack

_NEW = "attribute_not_exists(pk)"
_NO_SEATS = " AND attribute_not_exists(#seats)"
STAGING_GRACE_MS = 300_000
# When an undone batch is undone once more. A write that had no answer was sent at least
# STAGING_GRACE_MS, or at the end of its request, before; no network delivers it an hour late.
UNDONE_AGAIN_MS = 3_600_000
# States of a batch's item.
_STAGING, _UNDONE = "staging", "undone"
_PAGE = 100
# Jobs of one priority that are passed over in search of copies of dead letters.
_PASSED = 1_000
# Longer than any outage of the sweep that should be lived through.
_UNDONE_KEPT_MS = 7 * 86_400_000
_Prepared = tuple[Job, list[tuple[PayloadRef, str]]]


@dataclass(frozen=True)
class UndoneBatch:
    """What undoing a batch did: how many jobs went, and whether it was the first undoing."""

    jobs: int
    first: bool


class JobIdTaken(Exception):
    """A job with this id exists already."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def winner(lost: LostRace) -> Job | None:
    """The job as whoever won left it, from a lost write of its head; None when there is none."""
    if not lost.item or "state" not in lost.item:
        return None
    return items.job_from_head(lost.item)


class JobStore:
    """The store of jobs."""

    def __init__(self, table: Table, texts: PayloadStore, ids: IdSource, gates: Gates) -> None:
        self._table = table
        self._texts = texts
        self._ids = ids
        self._gates = gates
        self._limits = KeyLimits(table, ids)
        self._queues = QueueStore(table)
        self._seats = PoolPermits(table, gates)

    # --- create -----------------------------------------------------------------------------

    def prepare(self, job: Job) -> _Prepared:
        """Give a new job its write token, and decide whether its content lives on the head."""
        token = self._ids.token()
        job = changed(job, op=token, made_by=token if job.chosen_id else None)
        if items.fits_inline(job):
            return job, []
        text = jsontext.dumps(job.content)
        size = len(text.encode("utf-8"))
        at = self._texts.place(job.id, keys.PAYLOAD, self._ids.token(), size)
        return changed(job, content_ref=at.ref, content_bytes=size), [(at, text)]

    def create(self, job: Job, also: Sequence[Put | Update] = ()) -> Job:
        """Write a new job, with `also` in one transaction if given.

        Raises JobTaken when the id exists, LostRace when a condition of `also` failed.
        """
        job, texts = self.prepare(job)
        self._texts.save(texts)
        # Race: two pushes with one client id. The loser finds the winner's head and stores
        # nothing; its text, under a name of its own, is removed again.
        head = Put(items.head(job), condition=_NEW)
        try:
            if also:
                self._table.transact([head, *also])
            else:
                self._table.put(head)
        except LostRace as lost:
            found = lost.item
            if _is_ours(found, job):
                return job
            self._texts.delete(_unnamed(texts, found))
            if found is not None:
                raise self._taken_by(found) from None
            raise
        return job

    def _taken_by(self, found: Item) -> JobIdTaken | BackendUnavailable:
        """Why a new job's place is not free."""
        there = items.job_from_head(found)
        if there.batch is not None:
            batch = self._table.get(keys.batch(there.batch), keys.HEAD)
            if batch is not None:
                # Perhaps what an earlier try of the same caller left half done: until its batch is
                # committed or undone it is open whether the id is taken.
                if batch["state"] == _UNDONE:
                    # This head was written after the batch was undone: it goes now.
                    self._remove_batch(there.batch, batch)
                return BackendUnavailable(
                    "A batch with this id is being stored or undone; try again.", retry_after_s=5
                )
        return JobIdTaken(there.id)

    def create_all(self, jobs: Sequence[Job], also: Sequence[Put | Update] = ()) -> list[Job]:
        """Write up to 100 new jobs and `also` (100 writes in all), all or none.

        Raises JobTaken when an id exists, LostRace when a condition of `also` failed.
        """
        prepared = [self.prepare(job) for job in jobs]
        texts = [text for _, texts in prepared for text in texts]
        self._texts.save(texts)
        try:
            heads = [Put(items.head(job), condition=_NEW) for job, _ in prepared]
            self._table.transact([*heads, *also])
        except LostRace as lost:
            stored = [job for job, _ in prepared]
            if not _any_ours(lost, stored):
                self._texts.delete(at for at, _ in texts)
                raise self._taken(lost, stored) from None
        return [job for job, _ in prepared]

    def _taken(self, lost: LostRace, jobs: Sequence[Job]) -> Exception:
        for found, _ in zip(lost.items, jobs, strict=False):
            if found:
                return self._taken_by(found)
        return lost

    def create_staged(self, jobs: Sequence[Job], *, now_ms: int, chosen_ids: bool) -> list[Job]:
        """Write any number of new jobs that count as absent until all of them are there.

        The batch's item exists while the batch is staged: claims and reads leave its jobs alone.
        Deleting it is the commit. What fails is undone at once, and what is never committed by
        the sweep after STAGING_GRACE_MS. Raises JobTaken, OjsError.
        """
        token = self._ids.token()
        prepared = [self.prepare(changed(job, batch=token)) for job in jobs]
        self._table.put(Put(_batch_item(token, prepared, now_ms)))
        try:
            for start in range(0, len(prepared), MAX_TRANSACTION):
                self._stage(prepared[start : start + MAX_TRANSACTION], chosen_ids=chosen_ids)
            self._commit(token)
        except (JobIdTaken, OjsError):
            # The caller will try again with the same ids: what stands in its way should go now.
            # Should this fail too, the sweep does it. A commit whose answer was lost stays.
            with contextlib.suppress(OjsError):
                self.undo_batch(token, now_ms=now_ms)
            raise
        return [changed(job, batch=None) for job, _ in prepared]

    def _stage(self, prepared: Sequence[_Prepared], *, chosen_ids: bool) -> None:
        self._texts.save([text for _, texts in prepared for text in texts])
        jobs = [job for job, _ in prepared]
        if not chosen_ids:
            # Our own fresh ids: no other job can have them, no condition is needed. A write that
            # had no answer may still come, even after the batch is undone (`undo_batch`).
            self._table.write_many(puts=[items.head(job) for job in jobs])
            return
        # Race: another job with a client's id. Nothing of the batch will count.
        try:
            self._table.transact([Put(items.head(job), condition=_NEW) for job in jobs])
        except LostRace as lost:
            if not _any_ours(lost, jobs):
                raise self._taken(lost, jobs) from None

    def _commit(self, token: str) -> None:
        # Race: the sweep gives the batch up at the same time. Whoever changes the item first
        # wins; a commit that comes too late finds `undone`, which stays for a day, and the caller
        # is told to try again. No item at all means that an earlier try of ours went through.
        try:
            self._table.delete(
                keys.batch(token),
                keys.HEAD,
                condition="attribute_not_exists(pk) OR #state = :staging",
                values={":staging": _STAGING},
            )
        except LostRace:
            raise BackendUnavailable("The batch took too long and was undone.") from None

    def undo_batch(self, token: str, *, now_ms: int) -> UndoneBatch:
        """Remove a batch that was never committed, jobs first.

        Safe to repeat and to run twice at once; does nothing to a committed batch. A write of the
        batch that had no answer may take effect after all this. Its jobs count as absent as long
        as the batch's item says that it is undone, and they are removed when the batch is undone
        once more, UNDONE_AGAIN_MS later (`stale_batches`); the item stays for days after that.
        """
        # Race: the commit. Once `undone` stands here, no commit can succeed; where nothing
        # stands, the batch is committed and nothing is undone.
        try:
            batch = self._table.update(
                Update(
                    keys.batch(token),
                    keys.HEAD,
                    set={"state": _UNDONE},
                    condition="attribute_exists(pk)",
                )
            )
        except LostRace:
            return UndoneBatch(0, first=False)
        removed = self._remove_batch(token, batch)
        first = "ttl" not in batch
        if first:
            self._give_back_room(token, batch, now_ms)
        else:
            self._close_batch(token, now_ms)
        return UndoneBatch(removed, first=first)

    def _remove_batch(self, token: str, batch: Item) -> int:
        """Remove the jobs of a batch that is undone; returns how many heads went."""
        job_ids = _ids_of(batch["ids"])
        # Texts first, also those whose heads were never written: only the batch's item names them.
        refs: dict[str, str] = _unpacked(batch["refs"]) if "refs" in batch else {}
        self._texts.delete(
            [PayloadRef(job_ids[int(at)], keys.PAYLOAD, ref) for at, ref in refs.items()]
        )
        # A client id may belong to another, older job: only our own staged heads go. Jobs of an
        # undone batch are never claimed or changed, so that what was read still holds.
        ours = [job for job in self.heads(job_ids).values() if job.batch == token]
        self._table.write_many(deletes=[(keys.job(job.id), keys.HEAD) for job in ours])
        return len(ours)

    def _give_back_room(self, token: str, batch: Item, now_ms: int) -> None:
        """Give back the room that an undone batch took, and have it undone once more, later."""
        # Race: the request that stored the batch and the sweep undo it at once. One of them gives
        # back the room; the other finds the batch waiting to be undone once more.
        try:
            self._table.update(
                Update(
                    keys.batch(token),
                    keys.HEAD,
                    set={
                        "wsk": keys.instant(now_ms + UNDONE_AGAIN_MS),
                        "ttl": (now_ms + _UNDONE_KEPT_MS) // 1000,
                    },
                    remove=["held"],
                    condition="attribute_not_exists(#ttl)",
                )
            )
        except LostRace:
            return
        held: dict[str, list[int]] = _unpacked(batch["held"]) if "held" in batch else {}
        for queue, (count, size) in held.items():
            self._gates.release(queue, count=count, size=size, now_ms=int(batch["created"]))

    def _close_batch(self, token: str, now_ms: int) -> None:
        """Note that a batch was undone once more, if that is due."""
        # Race: another sweep. The loser finds it closed.
        with contextlib.suppress(LostRace):
            self._table.update(
                Update(
                    keys.batch(token),
                    keys.HEAD,
                    remove=["wpk", "wsk"],
                    condition="attribute_exists(#ttl) AND #wsk <= :now",
                    values={":now": keys.instant(now_ms)},
                )
            )

    def staged(self, tokens: Iterable[str]) -> set[str]:
        """Which of these batches are not committed."""
        found = self._table.batch_get((keys.batch(token), keys.HEAD) for token in tokens)
        return {pk.removeprefix(keys.batch("")) for pk, _ in found}

    def stale_batches(self, *, now_ms: int, limit: int) -> list[str]:
        """Tokens of batches that should have been committed by now, and of those that are to be
        undone once more. May be stale.
        """
        found = self._table.query(
            "wpk = :staged AND wsk <= :now",
            {":staged": keys.STAGED, ":now": keys.instant(now_ms)},
            index="work",
            limit=limit,
        )
        return [str(item["pk"]).removeprefix(keys.batch("")) for item in found.items]

    # --- read -------------------------------------------------------------------------------

    def head(self, job_id: str) -> Job | None:
        """The head alone, consistently: what decisions are made on."""
        item = self._table.get(keys.job(job_id), keys.HEAD)
        return items.job_from_head(item) if item else None

    def heads(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """Several heads, consistently."""
        found = self._table.batch_get((keys.job(job_id), keys.HEAD) for job_id in job_ids)
        return {keys.job_id(pk): items.job_from_head(item) for (pk, _), item in found.items()}

    def load(self, job_id: str) -> Job | None:
        """The whole job: head, content, errors, result, progress. One consistent query.

        Where a long error history makes the query stop at DynamoDB's 1 MB, what lies behind it is
        read by key, and of the errors the latest 1 MB.
        """
        everything = "pk = :job"
        values: dict[str, Value] = {":job": keys.job(job_id)}
        found = self._table.query(everything, values, consistent=True)
        by_key = {str(item["sk"]): item for item in found.items}
        if keys.HEAD not in by_key:
            return None
        job = items.job_from_head(by_key[keys.HEAD])
        if found.last is not None:
            latest = self._table.query(
                f"{everything} AND begins_with(sk, :error)",
                values | {":error": keys.ERROR},
                consistent=True,
                forward=False,
            )
            by_key = {keys.HEAD: by_key[keys.HEAD]}
            by_key |= {str(item["sk"]): item for item in latest.items}
            apart = [(keys.job(job_id), keys.PROGRESS), *(at.key for at in self._in_table(job))]
            by_key |= {sk: item for (_, sk), item in self._table.batch_get(apart).items()}
        return self._assembled(by_key)

    def load_whole(self, job_id: str) -> Job | None:
        """As `load`, with every error there ever was, however long that takes."""
        found = self._table.query_all("pk = :job", {":job": keys.job(job_id)})
        by_key = {str(item["sk"]): item for item in found}
        return self._assembled(by_key) if keys.HEAD in by_key else None

    def _assembled(self, by_key: Mapping[str, Item]) -> Job:
        """A job from the items of its partition."""
        job = items.job_from_head(by_key[keys.HEAD])
        texts = {at: text_of(by_key[at.key[1]]) for at in self.texts_of(job) if at.key[1] in by_key}
        ended = job.state is State.DISCARDED and not job.dead_letter
        errors = [
            by_key[sk]
            for sk in sorted(by_key)
            # Whoever would have ended a job and lost it to a worker may have said why already.
            if sk.startswith(keys.ERROR) and (ended or not keys.is_of_end(sk))
        ]
        progress = _progress(by_key.get(keys.PROGRESS), job)
        job = self._with_texts(job, texts)
        return changed(job, errors=_failures(errors, job), progress=progress)

    def with_progress(self, job_id: str) -> Job | None:
        """The head and the progress alone, consistently: one call, whatever happened to the job."""
        head, progress = (keys.job(job_id), keys.HEAD), (keys.job(job_id), keys.PROGRESS)
        found = self._table.batch_get([head, progress])
        if head not in found:
            return None
        job = items.job_from_head(found[head])
        return changed(job, progress=_progress(found.get(progress), job))

    def _in_table(self, job: Job) -> list[PayloadRef]:
        return [at for at in self.texts_of(job) if not at.in_bucket]

    def texts_of(self, job: Job) -> list[PayloadRef]:
        """Where the job's content and result are, if they are kept apart."""
        places = []
        if job.content_ref is not None:
            places.append(PayloadRef(job.id, keys.PAYLOAD, job.content_ref))
        if job.result_ref is not None:
            places.append(PayloadRef(job.id, keys.RESULT, job.result_ref))
        return places

    def with_contents(self, jobs: Sequence[Job]) -> list[Job]:
        """The same jobs with contents and results filled in; one call for all in the table."""
        places = [
            at
            for job in jobs
            for at in self.texts_of(job)
            if (job.content if at.kind == keys.PAYLOAD else None) is None
        ]
        texts = self._texts.load(places)
        return [self._with_texts(job, texts) for job in jobs]

    def with_errors(self, jobs: Sequence[Job], *, latest: int = 10) -> list[Job]:
        """The same jobs with the latest errors of their current life, read by key.

        Listings use it: their cost must not grow with the number of attempts. `load` has them all.
        """
        wanted = {
            job.id: [
                (keys.job(job.id), sk)
                for attempt in range(max(0, job.attempt - latest + 1), job.attempt + 1)
                for sk in _error_keys(job, attempt)
            ]
            for job in jobs
        }
        found = self._table.batch_get(key for group in wanted.values() for key in group)
        return [
            changed(job, errors=_failures([found[k] for k in wanted[job.id] if k in found], job))
            for job in jobs
        ]

    def _with_texts(self, job: Job, texts: dict[PayloadRef, str]) -> Job:
        # What is not in the query's answer may be in the bucket.
        missing = [at for at in self.texts_of(job) if at not in texts and at.in_bucket]
        if missing:
            texts = texts | self._texts.load(missing)
        for at in self.texts_of(job):
            if at in texts:
                value = jsontext.stored(texts[at])
                job = (
                    changed(job, content=value)
                    if at.kind == keys.PAYLOAD
                    else changed(job, result=value)
                )
        return job

    # --- find -------------------------------------------------------------------------------

    def ready(
        self, queue: str, lane: int, *, limit: int, after: Any = None
    ) -> tuple[list[tuple[str, str]], Any]:
        """The head of the line: (job id, sort key) in order, and where to go on. May be stale."""
        found = self._table.query(
            "wpk = :ready", {":ready": keys.ready(queue, lane)}, index="work", limit=limit,
            after=after,
        )  # fmt: skip
        return [(keys.job_id(str(i["pk"])), str(i["wsk"])) for i in found.items], found.last

    def listed(
        self, line: str, *, limit: int, after: Mapping[str, str] | None = None
    ) -> tuple[list[tuple[str, str]], dict[str, str] | None]:
        """A page of a line of the index: (job id, sort key) in order, and what to go on after, in a
        form that can be kept. May be stale.
        """
        found = self._table.query(
            "wpk = :line",
            {":line": line},
            index="work",
            limit=limit,
            after=pack(after) if after else None,
        )
        last = {name: str(value) for name, value in unpack(found.last or {}).items()}
        return [(keys.job_id(str(i["pk"])), str(i["wsk"])) for i in found.items], last or None

    def oldest(self, queue: str, lanes: int, *, limit: int, copies: bool = False) -> list[str]:
        """The jobs that stand in line longest, whatever their priority. May be stale.

        One query for each priority in use in each lane: the line is sorted by priority first. With
        `copies` those that are copies of dead letters, among the first thousand of each. In a fair
        line the oldest among the first hundred of each: it stands there as long as no more than a
        hundred tenants of equal weight wait.
        """
        found: list[tuple[str, str]] = []
        for lane in range(lanes):
            after, passed = " ", 0  # before every digit
            size = _PAGE if copies else min(limit, _PASSED)
            while True:
                page = self._table.query(
                    "wpk = :ready AND wsk > :after",
                    {":ready": keys.ready(queue, lane), ":after": after},
                    index="work",
                    limit=size,
                )
                entries = [(str(i["wsk"]), keys.job_id(str(i["pk"]))) for i in page.items]
                if not entries:
                    break
                first = keys.Position.parse(entries[0][0])
                if size < _PAGE and tagged(first.order):
                    # A fair line is not in order of arrival: look further.
                    size = _PAGE
                    continue
                priority = first.priority
                alike = [
                    (place, job_id)
                    for key, job_id in entries
                    if (place := keys.Position.parse(key)).priority == priority
                ]
                wanted = [(arrival(p.order), job_id) for p, job_id in alike if p.copy or not copies]
                found += wanted
                passed += len(alike)
                # Others may stand before the copies that are looked for.
                if copies and len(alike) == size and len(wanted) < limit and passed < _PASSED:
                    after = entries[-1][0]
                else:
                    after, passed = keys.below(priority), 0
        return [job_id for _, job_id in sorted(found)[:limit]]

    def lined_up(
        self, queue: str, lane: int, *, pages: int, running: bool = False
    ) -> Iterator[str]:
        """Jobs that wait in a lane, also for a time or an activation; those that run if asked.

        At most so many pages of each line. May be stale.
        """
        due = keys.due(queue, lane)
        for line in (keys.ready(queue, lane), keys.pending(queue, lane), due):
            after: Any = None
            for _ in range(pages):
                found = self._table.query(
                    "wpk = :line", {":line": line}, index="work", limit=_PAGE, after=after
                )
                for item in found.items:
                    # Only what is due has marks at the end of its position.
                    runs = line == due and str(item["wsk"]).endswith(keys.LEASE_END)
                    if running or not runs:
                        yield keys.job_id(str(item["pk"]))
                after = found.last
                if after is None:
                    break

    def due(self, queue: str, lane: int, *, now_ms: int, limit: int) -> list[str]:
        """Jobs whose time has come, earliest first. May be stale."""
        return self._upto("work", "wpk", "wsk", keys.due(queue, lane), now_ms, limit)

    def expiring(self, queue: str, lane: int, *, now_ms: int, limit: int) -> list[str]:
        """Jobs whose `expires_at` has passed, earliest first. May be stale."""
        return self._upto("expiry", "epk", "esk", keys.expiry(queue, lane), now_ms, limit)

    def _upto(
        self, index: str, hash_key: str, range_key: str, value: str, now_ms: int, limit: int
    ) -> list[str]:
        found = self._table.query(
            f"{hash_key} = :where AND {range_key} <= :now",
            {":where": value, ":now": keys.upto(now_ms)},
            index=index,
            limit=limit,
        )
        return [keys.job_id(str(item["pk"])) for item in found.items]

    def dead(
        self,
        queue: str | None = None,
        *,
        limit: int,
        since_ms: int | None = None,
        until_ms: int | None = None,
        before: str | None = None,
        after: str | None = None,
        oldest_first: bool = False,
    ) -> list[tuple[str, str]]:
        """Dead letters of a queue, or of all, latest first: (job id, sort key). May be stale.

        Discarded at `since_ms` or later, before `until_ms`, between the keys `after` and `before`,
        neither included. One query.
        """
        index, line, place = ("expiry", "epk", "esk") if queue is None else ("work", "wpk", "wsk")
        # Keys are of one length, times have no id: no key is equal to an end of the span.
        first = max(keys.instant(since_ms or 0), "" if after is None else keys.just_after(after))
        last = min(
            keys.instant(times.MAX_MS + 1 if until_ms is None else until_ms),
            "~" if before is None else keys.just_before(before),
        )
        if first > last:
            return []
        found = self._table.query(
            f"{line} = :dead AND {place} BETWEEN :first AND :last",
            {
                ":dead": keys.all_dead() if queue is None else keys.dead(queue),
                ":first": first,
                ":last": last,
            },
            index=index,
            limit=limit,
            forward=oldest_first,
        )
        return [(keys.job_id(str(i["pk"])), str(i[place])) for i in found.items]

    # --- change -----------------------------------------------------------------------------

    def claim(
        self,
        job_id: str,
        position: keys.Position,
        *,
        queue: str,
        lane: int,
        now_ms: int,
        lease_ms: int,
        worker_id: str | None,
        slot: bool = False,
        place: str | None = None,
        pool: str | None = None,
        seats: str = "",
    ) -> Job:
        """Available to active, without reading first. Raises LostRace.

        `slot` notes that it takes one of its queue's places for running jobs, `place` the one it
        takes under its rate limit, `seats` those in the `pool` that it is handed out to.
        """
        token = self._ids.token()
        timeout_ms = position.timeout_ms or DEFAULT_TIMEOUT_MS
        setting: dict[str, Value] = {
            "state": State.ACTIVE.value,
            "wpk": keys.due(queue, lane),
            "wsk": keys.due_at(now_ms + min(lease_ms, timeout_ms), keys.LEASE_END),
            "started": now_ms,
            "lease": token,
            "lease_until": now_ms + lease_ms,
            "lease_ms": lease_ms,
            "op": token,
        }
        if worker_id is not None:
            setting["worker"] = worker_id
        if slot:
            setting["slot"] = 1
        if place is not None:
            setting["place"] = place
        if pool is not None:
            setting["pool"] = pool
        if seats:
            setting["seats"] = seats
        try:
            item = self._table.update(
                Update(
                    keys.job(job_id),
                    keys.HEAD,
                    set=setting,
                    compute={"attempt": "if_not_exists(#attempt, :zero) + :one"},
                    # A deadline ends with the start; the expiry index must not list it any more.
                    remove=[
                        "batch",
                        "epk",
                        "esk",
                        "stalled",
                        *([] if worker_id else ["worker"]),
                        *([] if pool else ["pool"]),
                    ],
                    # Race: other fetchers, a cancel, a promotion to another place, a stale index.
                    # One wins; the losers see another state or place and try the next job.
                    # The place is compared too: it carries the hints this claim relied on. And the
                    # line: moved to another queue, a job may stand at an equal place.
                    condition="#state = :available AND #wpk = :line AND #wsk = :seen "
                    "AND (attribute_not_exists(#expires) OR #expires > :now)",
                    values={
                        ":available": State.AVAILABLE.value,
                        ":line": keys.ready(queue, lane),
                        ":seen": position.key(),
                        ":now": now_ms,
                        ":zero": 0,
                        ":one": 1,
                    },
                )
            )
        except LostRace as lost:
            if lost.item and lost.item.get("op") == token:
                return items.job_from_head(lost.item)
            raise
        return items.job_from_head(item)

    def ack(
        self,
        job_id: str,
        *,
        now_ms: int,
        worker_id: str | None = None,
        attempt: int | None = None,
        lease_token: str | None = None,
        result: Any = MISSING,
    ) -> Job:
        """Active to completed, without reading first. Raises LostRace."""
        token = self._ids.token()
        setting: dict[str, Value] = {
            "state": State.COMPLETED.value,
            "completed": now_ms,
            "op": token,
        }
        kept_apart: PayloadRef | None = None
        if result is not MISSING:
            text = jsontext.dumps(result)
            size = len(text.encode("utf-8"))
            if size <= items.INLINE_RESULT_BYTES:
                setting["result"] = text
            else:
                kept_apart = self._texts.place(job_id, keys.RESULT, token, size)
                setting["result_ref"] = kept_apart.ref
                self._texts.save([(kept_apart, text)])
        # Race: the lease ran out and the job went to somebody else, was cancelled or finished.
        # The loser sees the state, worker and attempt that stand there now.
        conditions, values = _held_by(worker_id, attempt, lease_token)
        values |= {":now_s": now_ms // 1000, ":keep": RETENTION.completed_s}
        try:
            item = self._table.update(
                Update(
                    keys.job(job_id),
                    keys.HEAD,
                    set=setting,
                    compute={"ttl": f"if_not_exists(#{items.KEEP_COMPLETED}, :keep) + :now_s"},
                    remove=[
                        "wpk", "wsk", "epk", "esk", "expires", "lease", "lease_until", "lease_ms",
                    ],
                    condition=" AND ".join(conditions),
                    values=values,
                )
            )  # fmt: skip
        except LostRace as lost:
            found = lost.item or {}
            # A result kept apart has a name of its own, which tells whose ack it was.
            named = kept_apart is not None and found.get("result_ref") == kept_apart.ref
            if named or found.get("op") == token:
                return self._acked(found, result, now_ms)
            if kept_apart is not None:
                self._texts.delete([kept_apart])
            raise
        return self._acked(item, result, now_ms)

    def _acked(self, item: Item, result: Any, now_ms: int) -> Job:
        job = items.job_from_head(item)
        self.let_go(job, now_ms=now_ms)
        return changed(job, result=result)

    def let_go(self, job: Job, *, now_ms: int) -> None:
        """Give back the room of a job that is done. Only for whoever's write ended it."""
        if job.held is not None:
            self._gates.release(job.queue, count=1, size=job.held, now_ms=now_ms)
        if job.slot:
            self._gates.free_slots(job.queue, count=1, now_ms=now_ms)
        self._seats.free(job, now_ms=now_ms)
        self._limits.release(job)

    def extend(
        self,
        job_id: str,
        *,
        now_ms: int,
        worker_id: str | None,
        lease_ms: int | None = None,
        lease_token: str | None = None,
    ) -> Job:
        """Put off the end of a lease, by its own length unless `lease_ms` is given.

        Touches no index key: one write unit. The due entry keeps the first end; whoever finds it
        files the job again. A lease is never shortened. Raises LostRace.
        """
        token = self._ids.token()
        setting: dict[str, Value] = {"op": token}
        compute: dict[str, str] = {}
        # Race: the job was finished, cancelled, or taken back after its lease ran out. The loser
        # sees whose it is now.
        conditions, values = _held_by(worker_id, None, lease_token)
        if lease_ms is None:
            compute["lease_until"] = ":now + #lease_ms"
            values[":now"] = now_ms
        else:
            # Its length too: a later beat or progress report must not make the lease shorter.
            setting |= {"lease_until": now_ms + lease_ms, "lease_ms": lease_ms}
            conditions.append("#lease_until <= :until")
            values[":until"] = now_ms + lease_ms
        try:
            item = self._table.update(
                Update(
                    keys.job(job_id),
                    keys.HEAD,
                    set=setting,
                    compute=compute,
                    condition=" AND ".join(conditions),
                    values=values,
                )
            )
        except LostRace as lost:
            if lost.item and lost.item.get("op") == token:
                return items.job_from_head(lost.item)
            raise
        return items.job_from_head(item)

    def replace(
        self,
        before: Job,
        after: Job,
        *,
        failure: Failure | None = None,
        reported: bool = False,
        guard: Literal["op", "lease"] = "op",
    ) -> Job:
        """Compare-and-swap of a head that was read. Raises LostRace when it has moved on.

        `failure` is written to the history first: if we die in between, the entry of this attempt
        is there and the job is still where it was, to be dealt with by lease expiry. An entry a
        worker `reported` is never overwritten by what the backend observed.
        """
        if failure is not None:
            self._add_failure(before, failure, reported=reported)
        if before.state is State.AVAILABLE and after.state is State.ACTIVE:
            after = self._placed(before, after)
        after, update = self.replacing(before, after, guard=guard)
        try:
            self._table.update(update)
        except LostRace as lost:
            if not lost.item or lost.item.get("op") != after.op:
                # After a repetition it may have gone on, and its places be given back by now.
                resumed = after.lease if before.state is State.AVAILABLE else None
                if resumed is not None and not lost.repeated:
                    self._unplaced(after, resumed.until_ms - resumed.length_ms)
                raise
        self._replaced(before, after)
        return after

    def replace_all(
        self, changes: Sequence[tuple[Job, Job]], also: Sequence[Put | Update] = ()
    ) -> list[Job]:
        """Several compare-and-swaps of heads that were read, and `also`: all or none.

        Raises LostRace when one has moved on, or a condition of `also` failed.
        """
        made = [self.replacing(before, after) for before, after in changes]
        try:
            self._table.transact([*(update for _, update in made), *also])
        except LostRace as lost:
            # What was found of each head: all ours, when an earlier answer was lost.
            heads = zip(lost.items, made, strict=False)
            if not all(found and found.get("op") == after.op for found, (after, _) in heads):
                raise
        stored = [after for after, _ in made]
        for (before, _), after in zip(changes, stored, strict=True):
            self._replaced(before, after)
        return stored

    def _replaced(self, before: Job, after: Job) -> None:
        """Give back what a job took that it has no use for any more."""
        if after.state.terminal and not before.state.terminal:
            self.let_go(before, now_ms=_ended_ms(after))
        elif before.state is State.ACTIVE and after.state is not State.ACTIVE:
            if before.slot:
                self._gates.free_slots(before.queue, count=1, now_ms=_left_ms(after))
            self._seats.free(before, now_ms=_left_ms(after))
            self._limits.release(before)

    def _placed(self, before: Job, after: Job) -> Job:
        """A job that goes on with a lost attempt, with a place under its own limit, its queue's and
        its pool's if it needs one.

        Raises LostRace when there is none: others took it meanwhile. What was taken for a job that
        somebody else got under its own limit heals.
        """
        if before.order is None or after.lease is None:
            return after
        lease_ms = after.lease.length_ms
        now_ms = after.lease.until_ms - lease_ms
        queue = self._queues.get(before.queue)
        if queue is not None and queue.slotted:
            granted = self._gates.take_slots(
                queue.name,
                count=1,
                limit=queue.config.concurrency,
                version=queue.version,
                now_ms=now_ms,
            )
            if not granted.count:
                raise LostRace([items.head(before)])
            after = changed(after, slot=True)
        seats = self._seats.take_again(before, now_ms=now_ms)
        if seats is None:
            self._unplaced(after, now_ms)
            raise LostRace([items.head(before)])
        after = changed(after, seats=seats)
        if before.limit is None:
            return after
        place = self._limits.take_again(before, now_ms=now_ms, lease_ms=lease_ms)
        if place is None:
            self._unplaced(after, now_ms)
            raise LostRace([items.head(before)])
        return changed(after, place=place or None)

    def _unplaced(self, after: Job, now_ms: int) -> None:
        """Give back what was taken for a job that does not go on after all."""
        if after.slot:
            self._gates.free_slots(after.queue, count=1, now_ms=now_ms)
        self._seats.free(after, now_ms=now_ms)

    def take_slot(self, job_id: str, lease: str) -> bool:
        """Note that a running job takes one of its queue's places for such; False if it was noted,
        or the job does not run under this lease any more.
        """
        # Race: it ends, and would give back no place; or somebody else notes it. The loser gives
        # back the place that it took for the job. A token tells our own note from theirs.
        token = self._ids.token()
        try:
            self._table.update(
                Update(
                    keys.job(job_id),
                    keys.HEAD,
                    set={"slot": token},
                    condition="#state = :active AND #lease = :lease "
                    "AND attribute_not_exists(#slot)",
                    values={":active": State.ACTIVE.value, ":lease": lease},
                )
            )
        except LostRace as lost:
            # After a repetition it may have been noted, and the place be given back by now.
            return lost.repeated or bool(lost.item and lost.item.get("slot") == token)
        return True

    def take_seat(self, job_id: str, lease: str, seats: str) -> bool:
        """Note that a running job takes one of its pool's places, beside `seats`, which it takes;
        False if it was noted, or the job does not run under this lease any more.
        """
        # Race: as in `take_slot`. The first letter is ours, whoever wrote it: of two sweeps that
        # wrote the same at once both have taken a place, and one too many counts until healed.
        taken = "attribute_not_exists(#seats)" if not seats else "#seats = :seats"
        try:
            self._table.update(
                Update(
                    keys.job(job_id),
                    keys.HEAD,
                    set={"seats": POOL_SEAT + seats},
                    condition=f"#state = :active AND #lease = :lease AND {taken}",
                    values={
                        ":active": State.ACTIVE.value,
                        ":lease": lease,
                        **({":seats": seats} if seats else {}),
                    },
                )
            )
        except LostRace as lost:
            return lost.repeated
        return True

    def replacing(
        self, before: Job, after: Job, *, guard: Literal["op", "lease"] = "op"
    ) -> tuple[Job, Update]:
        """The write that `replace` makes, for use in a transaction."""
        # Only a running job takes a place for running ones.
        if after.state is not State.ACTIVE:
            after = changed(after, slot=False, place=None, seats="")
        after = changed(after, op=self._ids.token())
        old, new = items.head(before), items.head(after)
        setting = {name: value for name, value in new.items() if old.get(name) != value}
        # A heartbeat may have left the stored due entry behind the one worked out from the head:
        # index keys are always written out.
        setting |= {name: new[name] for name in ("wpk", "wsk") if name in new}
        removing = [name for name in old if name not in new]
        removing += [n for n in ("wpk", "wsk") if n not in new and n not in removing]
        values: dict[str, Value]
        if guard == "op":
            # Race: anybody who changed the head since it was read, a heartbeat included. The
            # loser reads again and decides anew.
            condition, values = "#op = :seen", {":seen": before.op or ""}
        else:
            # Race: the lease was lost since. A heartbeat in between does no harm.
            condition = "#state = :active AND #lease = :lease"
            values = {
                ":active": State.ACTIVE.value,
                ":lease": before.lease.token if before.lease else "",
            }
        if before.state is State.ACTIVE:
            # Race: a place is noted for a job that ran before its queue had a limit. The loser
            # would not give it back, and reads again.
            condition += f" AND attribute_{'' if before.slot else 'not_'}exists(#slot)"
            # The same of its places in a pool.
            condition += " AND #seats = :seats" if before.seats else _NO_SEATS
            values |= {":seats": before.seats} if before.seats else {}
        return after, Update(
            keys.job(before.id),
            keys.HEAD,
            set=setting,
            remove=removing,
            condition=condition,
            values=values,
        )

    def _add_failure(self, job: Job, failure: Failure, *, reported: bool) -> None:
        item = items.error(job, failure)
        # Races: a worker reports the very attempt that the sweep is ending. What the worker said
        # tells more; the backend's own entry gives way. And an entry may stand here from before
        # this run began (a job handed back does not count the attempt): that one gives way.
        mine = "attribute_not_exists(pk) OR #occurred < :began"
        values: dict[str, Value] = {":began": job.started_ms or job.created_ms}
        if reported:
            mine += " OR #lease = :lease"
            values[":lease"] = job.lease.token if job.lease else ""
        try:
            self._table.put(Put(item, condition=mine, values=values))
        except LostRace:
            return

    def tag(self, job: Job, share: Share, order: str | None) -> bool:
        """Give a job as read its share, and one that stands in line this order; False when it has
        moved on.

        Nothing else about it changes, and its version does not either: a push whose answer was lost
        still finds its own head, and what somebody else is about to make of it goes through.
        """
        tagged_job = changed(job, share=share, order=order)
        setting: dict[str, Value] = {"fair": share.compact()}
        condition, values = "#op = :seen", {":seen": job.op or ""}
        if order is not None:
            setting["wsk"] = items.position(tagged_job).key()
            condition += " AND #wsk = :place"
            values[":place"] = items.position(job).key()
        # Race: a claim, a cancel, a promotion, another pass. The loser leaves the job alone; if it
        # still needs a tag the next pass finds it.
        try:
            self._table.update(
                Update(keys.job(job.id), keys.HEAD, set=setting, condition=condition, values=values)
            )
        except LostRace as lost:
            found = lost.item or {}
            return order is not None and found.get("wsk") == setting["wsk"]
        return True

    def refile(self, job: Job) -> None:
        """Move an active job's due entry to where its lease ends now. Losing is no matter."""
        # Race: anybody who changed the head since. They filed it, or the next sweep finds it.
        try:
            self._table.update(
                Update(
                    keys.job(job.id),
                    keys.HEAD,
                    set={
                        "wsk": keys.due_at(job.due_ms, keys.LEASE_END),
                        "op": self._ids.token(),
                    },
                    condition="#op = :seen",
                    values={":seen": job.op or ""},
                )
            )
        except LostRace:
            return

    def save_progress(
        self, job: Job, value: float | None, told: Mapping[str, Any], *, now_ms: int
    ) -> bool:
        """Store the progress of a job's running attempt; False when more was reported before.

        Without a value, what is told is renewed and the value stays.
        """
        pk, sk = keys.job(job.id), keys.PROGRESS
        report: dict[str, Value] = {
            "run": _run(job),
            "told": jsontext.dumps(told),
            "updated": now_ms,
        }
        if value is None:
            # Race: the job runs anew. The loser's report is the first of the new run.
            try:
                self._table.update(
                    Update(
                        pk, sk, set=report, condition="#run = :run", values={":run": report["run"]}
                    )
                )
            except LostRace:
                pass
            else:
                return True
        number = -1 if value is None else round(value * 1_000_000)
        report["value"] = number
        if value is not None:
            report["number"] = jsontext.dumps(value)
        # Race: two reports of one attempt. The higher stays (ojs-progress section 5.1); a new
        # attempt starts afresh.
        try:
            self._table.put(
                Put(
                    {"pk": pk, "sk": sk, **report},
                    condition="attribute_not_exists(pk) OR #run <> :run OR #value <= :value",
                    values={":run": report["run"], ":value": number},
                )
            )
        except LostRace:
            return False
        return True

    def mark_deleting(self, job: Job) -> Job:
        """Note that somebody deletes a dead letter by hand, before it is deleted: its last stream
        record cannot say why it went otherwise. Returns it as it is then. Raises LostRace.
        """
        # Race: a retry, or the pruning. The loser looks again: what stands there now decides.
        token = self._ids.token()
        marked = changed(job, deleting=True, op=token)
        try:
            self._table.update(
                Update(
                    keys.job(job.id),
                    keys.HEAD,
                    set={"deleting": 1, "op": token},
                    condition="#op = :seen",
                    values={":seen": job.op or ""},
                )
            )
        except LostRace as lost:
            if not lost.item or lost.item.get("op") != token:
                raise
        return marked

    def delete(self, job: Job) -> None:
        """Remove a job and all that belongs to it, the head first. Raises LostRace if it moved."""
        # What belongs to it is listed before: afterwards the id may be a new job's. If we die in
        # between, the head's stream record leads to the same cleaning (`remove_rest`).
        rest, objects, _ = self._belongings(job)
        # Race: a retry that brought the job back: the loser sees that it lives. That it is gone
        # already, by our own lost call or by another's, is what was asked for.
        try:
            self._table.delete(
                keys.job(job.id), keys.HEAD, condition="#op = :seen", values={":seen": job.op or ""}
            )
        except LostRace as lost:
            if lost.item is not None:
                raise
        self._remove(objects, rest)

    def prune(self, job: Job) -> bool:
        """Remove the head of a dead letter as read; False when it has moved on. One call.

        What belongs to it goes when the head's stream record is projected (`remove_rest`).
        """
        # Race: a retry, a replay, a deletion by hand. The loser sees what stands there now, and
        # leaves it alone. That it is gone, by our own lost call or by another's, is all the same.
        try:
            self._table.delete(
                keys.job(job.id), keys.HEAD, condition="#op = :seen", values={":seen": job.op or ""}
            )
        except LostRace as lost:
            return lost.item is None
        return True

    def remove_rest(self, job: Job) -> int:
        """Remove what a head that is gone left behind; returns how many items went.

        Does nothing when the id is in use again.
        """
        rest, objects, head = self._belongings(job)
        if head:
            return 0
        self._remove(objects, rest)
        return len(rest)

    def _belongings(self, job: Job) -> tuple[list[tuple[str, str]], list[PayloadRef], bool]:
        """What belongs to a job beside its head: items, objects; and whether there is a head.

        A text of another name may be the beginning of a new job with the same id: its head is
        written next. Errors and progress are written only where there is a head, and so are the
        names of texts that a change of content may have left (`ojs.store.jobs.payload_change`).
        """
        found = self._table.query_all("pk = :job", {":job": keys.job(job.id)})
        keys_found = [(str(item["pk"]), str(item["sk"])) for item in found]
        spare = [
            PayloadRef(job.id, keys.PAYLOAD, sk.removeprefix(keys.SPARE))
            for _, sk in keys_found
            if sk.startswith(keys.SPARE)
        ]
        texts = dict.fromkeys([*self.texts_of(job), *spare])
        in_table = {at.key for at in texts if not at.in_bucket}
        rest = [
            (pk, sk)
            for pk, sk in keys_found
            if (pk, sk) in in_table
            or sk == keys.PROGRESS
            or sk.startswith((keys.ERROR, keys.SPARE))
        ]
        objects = [at for at in texts if at.in_bucket]
        return rest, objects, any(sk == keys.HEAD for _, sk in keys_found)

    def _remove(self, objects: Iterable[PayloadRef], rest: Sequence[tuple[str, str]]) -> None:
        self._texts.delete(objects)
        self._table.write_many(deletes=rest)


def _held_by(
    worker_id: str | None, attempt: int | None, lease_token: str | None
) -> tuple[list[str], dict[str, Value]]:
    """Conditions: the job is active, and held by whom the caller claims to be."""
    (active,) = sources(Trigger.ACK)
    conditions = ["#state = :active"]
    values: dict[str, Value] = {":active": active.value}
    if worker_id is not None:
        # A job fetched without a worker id belongs to whoever speaks for it.
        conditions.append("(attribute_not_exists(#worker) OR #worker = :worker)")
        values[":worker"] = worker_id
    if attempt is not None:
        conditions.append("#attempt = :attempt")
        values[":attempt"] = attempt
    if lease_token is not None:
        conditions.append("#lease = :lease")
        values[":lease"] = lease_token
    return conditions, values


def _is_ours(found: Item | None, job: Job) -> bool:
    """Whether a head that stands in the way is what we wrote ourselves, by an answer that was lost.

    What never changes tells, since the job may have been claimed, put off, moved or ended since:
    the name of the push where the id was chosen. Any other id is our own and a moment old.
    """
    if not found:
        return False
    if job.made_by is None:
        return found.get("created") == job.created_ms
    return found.get("made") == job.made_by


def _any_ours(lost: LostRace, jobs: Sequence[Job]) -> bool:
    """Whether one of our own heads stands in the way: then the transaction went through before, and
    wrote all of them.
    """
    return any(_is_ours(found, job) for found, job in zip(lost.items, jobs, strict=False))


def _unnamed(texts: Sequence[tuple[PayloadRef, str]], head: Item | None) -> list[PayloadRef]:
    """Those of the texts that a head does not name: only they may be deleted."""
    named = (head or {}).get("payload")
    return [at for at, _ in texts if at.ref != named]


def _batch_item(token: str, prepared: Sequence[_Prepared], now_ms: int) -> dict[str, Value]:
    """A staged batch: all that its undoing, and its commit's stream record, need to know."""
    jobs = [job for job, _ in prepared]
    item: dict[str, Value] = {
        "pk": keys.batch(token),
        "sk": keys.HEAD,
        "state": _STAGING,
        "created": now_ms,
        "ids": b"".join(_id_bytes(job.id) for job in jobs),
        "runs": _runs(jobs),
        "wpk": keys.STAGED,
        "wsk": keys.instant(now_ms + STAGING_GRACE_MS),
    }
    if refs := {str(at): job.content_ref for at, job in enumerate(jobs) if job.content_ref}:
        item["refs"] = _packed(refs)
    held: dict[str, list[int]] = {}
    loose: dict[str, list[int]] = {}
    for job in jobs:
        charged = job.held is not None
        length = job.held or job.content_bytes or jsontext.size_of(job.content or {})
        sums = (held if charged else loose).setdefault(job.queue, [0, 0])
        sums[0] += 1
        sums[1] += length
    if held:
        item["held"] = _packed(held)
    if loose:
        # No gate was charged for these; the projection counts them, for one that may come.
        item["loose"] = _packed(loose)
    return item


def _error_keys(job: Job, attempt: int) -> list[str]:
    """Where the errors of an attempt are: its own, and what ended the job without an attempt."""
    own = [keys.error(job.life, attempt)] if attempt else []
    if attempt == job.attempt and job.state is State.DISCARDED and not job.dead_letter:
        own.append(keys.error(job.life, attempt, ended=True))
    return own


def _failures(found: Iterable[Item], job: Job) -> tuple[Failure, ...]:
    """The errors of a job; those that an earlier job of the same id left behind are not its own."""
    failures = (items.failure_from(item) for item in found)
    return tuple(failure for failure in failures if failure.occurred_ms >= job.created_ms)


def _ended_ms(job: Job) -> int:
    return job.discarded_ms or job.cancelled_ms or job.completed_ms or 0


def _left_ms(job: Job) -> int:
    """When a job that is not done stopped running."""
    if job.state is State.RETRYABLE:
        return (job.retry_at_ms or 0) - (job.retry_delay_ms or 0)
    return job.enqueued_ms or 0


def _run(job: Job) -> str:
    """What tells one run of a job from all others, handed-back ones included."""
    return f"{job.life}.{job.attempt}.{job.started_ms}"


def _progress(item: Item | None, job: Job) -> dict[str, Any] | None:
    """The progress of the current or final run; a job that waits to run again has none."""
    ran = job.state is State.ACTIVE or job.state.terminal
    if item is None or not ran or item["run"] != _run(job):
        return None
    told: dict[str, Any] = jsontext.stored(str(item["told"]))
    value = jsontext.stored(str(item["number"])) if "number" in item else None
    return told | {"progress": value, "updated_ms": item["updated"]}


def _runs(jobs: Sequence[Job]) -> bytes:
    """Jobs in order as runs of equals: [how many, type, queue, state, priority, start], packed."""
    alike = groupby(
        (job.type, job.queue, job.state, job.priority, job.scheduled_ms) for job in jobs
    )
    runs = [[sum(1 for _ in same), *what] for what, same in alike]
    return _packed(runs)


def _packed(value: Any) -> bytes:
    return zlib.compress(jsontext.dumps(value).encode("utf-8"))


def _unpacked(packed: Any) -> Any:
    return jsontext.stored(zlib.decompress(bytes(packed)).decode("utf-8"))


def _id_bytes(job_id: str) -> bytes:
    return bytes.fromhex(job_id.replace("-", ""))


def _ids_of(packed: Any) -> list[str]:
    raw = bytes(packed)
    texts = (raw[start : start + 16].hex() for start in range(0, len(raw), 16))
    return [f"{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}" for t in texts]
