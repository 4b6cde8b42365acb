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

from collections.abc import Iterable, Sequence
from dataclasses import replace as changed
from typing import Any, Literal

from ojs.domain import jsontext, lifecycle
from ojs.domain.errors import BackendUnavailable
from ojs.domain.failure import Failure
from ojs.domain.ids import IdSource
from ojs.domain.job import DEFAULT_TIMEOUT_MS, MISSING, Job
from ojs.domain.states import State, Trigger, sources
from ojs.store import items, keys
from ojs.store.errors import LostRace
from ojs.store.items import Item
from ojs.store.table import MAX_TRANSACTION, Put, Table, Update
from ojs.store.texts import TextAt, Texts, text_of

_NEW = "attribute_not_exists(pk)"
STAGING_GRACE_MS = 300_000


class JobTaken(Exception):
    """A job with this id exists already."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id)
        self.job_id = job_id


class Jobs:
    """The store of jobs."""

    def __init__(self, table: Table, texts: Texts, ids: IdSource) -> None:
        self._table = table
        self._texts = texts
        self._ids = ids

    # --- create -----------------------------------------------------------------------------

    def prepare(self, job: Job) -> tuple[Job, list[tuple[TextAt, str]]]:
        """Give a new job its write token, and decide whether its content lives on the head."""
        job = changed(job, op=self._ids.token())
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
            if lost.item and lost.item.get("op") == job.op:
                return job
            self._texts.delete([at for at, _ in texts])
            if lost.item is not None:
                raise JobTaken(job.id) from None
            raise
        return job

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
            if not _ours(lost, stored):
                self._texts.delete([at for at, _ in texts])
                raise _taken(lost, stored) from None
        return [job for job, _ in prepared]

    def create_staged(self, jobs: Sequence[Job], *, now_ms: int, chosen_ids: bool) -> list[Job]:
        """Write any number of new jobs that count as absent until all of them are there.

        The batch's item exists while the batch is staged: claims and reads leave its jobs alone.
        Deleting it is the commit. What is never committed is undone by the sweep after
        STAGING_GRACE_MS. Raises JobTaken, BackendUnavailable.
        """
        token = self._ids.token()
        prepared = [self.prepare(changed(job, batch=token)) for job in jobs]
        self._table.put(
            Put(
                {
                    "pk": keys.batch(token),
                    "sk": keys.HEAD,
                    "state": "staging",
                    "ids": b"".join(_id_bytes(job.id) for job in jobs),
                    "wpk": keys.STAGED,
                    "wsk": keys.instant(now_ms + STAGING_GRACE_MS),
                }
            )
        )
        self._texts.save([text for _, texts in prepared for text in texts])
        heads = [items.head(job) for job, _ in prepared]
        if not chosen_ids:
            # Our own fresh ids: nobody can hold them, no condition is needed.
            self._table.write_many(puts=heads)
        else:
            for start in range(0, len(heads), MAX_TRANSACTION):
                chunk = heads[start : start + MAX_TRANSACTION]
                try:
                    self._table.transact([Put(head, condition=_NEW) for head in chunk])
                except LostRace as lost:
                    written = [job for job, _ in prepared[start : start + MAX_TRANSACTION]]
                    if not _ours(lost, written):
                        self.undo_batch(token)
                        raise _taken(lost, written) from None
        self._commit(token)
        return [changed(job, batch=None) for job, _ in prepared]

    def _commit(self, token: str) -> None:
        # Race: the sweep gives the batch up at the same time. Whoever changes the item first
        # wins; a commit that comes too late finds `undone` and the caller is told to try again.
        # No item at all means that an earlier try of ours went through.
        try:
            self._table.delete(
                keys.batch(token),
                keys.HEAD,
                condition="attribute_not_exists(pk) OR #state = :staging",
                values={":staging": "staging"},
            )
        except LostRace:
            raise BackendUnavailable("The batch took too long and was undone.") from None

    def undo_batch(self, token: str) -> int:
        """Remove a batch that was never committed, jobs first. Returns how many heads went.

        Safe to repeat and to run twice at once; does nothing to a committed batch.
        """
        # Race: the commit. Once `undone` stands here, no commit can succeed.
        try:
            batch = self._table.update(
                Update(
                    keys.batch(token),
                    keys.HEAD,
                    set={"state": "undone"},
                    condition="attribute_exists(pk)",
                )
            )
        except LostRace:
            return 0
        # A client id may belong to another, older job: only our own staged heads go. Nobody claims
        # or changes those, so that what was read still holds when it is deleted.
        found = self.heads(_ids_of(batch["ids"]))
        ours = [job for job in found.values() if job.batch == token]
        self._texts.delete([at for job in ours for at in self.texts_of(job)])
        self._table.write_many(deletes=[(keys.job(job.id), keys.HEAD) for job in ours])
        self._table.delete(keys.batch(token), keys.HEAD)
        return len(ours)

    def staged(self, tokens: Iterable[str]) -> set[str]:
        """Which of these batches are not committed."""
        found = self._table.batch_get((keys.batch(token), keys.HEAD) for token in tokens)
        return {pk.removeprefix(keys.batch("")) for pk, _ in found}

    def stale_batches(self, *, now_ms: int, limit: int) -> list[str]:
        """Tokens of batches that should have been committed by now."""
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
        """The whole job: head, content, errors, result, progress. One consistent query."""
        found = self._table.query_all("pk = :job", {":job": keys.job(job_id)})
        by_key = {str(item["sk"]): item for item in found}
        if keys.HEAD not in by_key:
            return None
        job = items.job_from_head(by_key[keys.HEAD])
        texts = {at: text_of(by_key[at.key[1]]) for at in self.texts_of(job) if at.key[1] in by_key}
        job = self._with_texts(job, texts)
        errors = tuple(
            items.failure_from(by_key[sk]) for sk in sorted(by_key) if sk.startswith(keys.ERROR)
        )
        return changed(job, errors=errors, progress=_progress(by_key.get(keys.PROGRESS), job))

    def texts_of(self, job: Job) -> list[TextAt]:
        """Where the job's content and result are, if they are kept apart."""
        places = []
        if job.content_ref is not None:
            places.append(TextAt(job.id, keys.PAYLOAD, job.content_ref))
        if job.result_ref is not None:
            places.append(TextAt(job.id, keys.RESULT, job.result_ref))
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
                (keys.job(job.id), keys.error(job.life, attempt))
                for attempt in range(max(1, job.attempt - latest + 1), job.attempt + 1)
            ]
            for job in jobs
        }
        found = self._table.batch_get(key for group in wanted.values() for key in group)
        return [
            changed(
                job,
                errors=tuple(items.failure_from(found[k]) for k in wanted[job.id] if k in found),
            )
            for job in jobs
        ]

    def _with_texts(self, job: Job, texts: dict[TextAt, str]) -> Job:
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
            {":where": value, ":now": keys.instant(now_ms)},
            index=index,
            limit=limit,
        )
        return [keys.job_id(str(item["pk"])) for item in found.items]

    def dead(self, queue: str, *, limit: int, before: str | None = None) -> list[tuple[str, str]]:
        """Dead letters of a queue, latest first: (job id, sort key), below the key `before`."""
        condition, values = "wpk = :dead", {":dead": keys.dead(queue)}
        if before is not None:
            condition += " AND wsk < :before"
            values[":before"] = before
        found = self._table.query(condition, values, index="work", limit=limit, forward=False)
        return [(keys.job_id(str(i["pk"])), str(i["wsk"])) for i in found.items]

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
    ) -> Job:
        """Available to active, without reading first. Raises LostRace."""
        token = self._ids.token()
        timeout_ms = position.timeout_ms or DEFAULT_TIMEOUT_MS
        setting: dict[str, items.Value] = {
            "state": State.ACTIVE.value,
            "wpk": keys.due(queue, lane),
            "wsk": keys.instant(now_ms + min(lease_ms, timeout_ms)),
            "started": now_ms,
            "lease": token,
            "lease_until": now_ms + lease_ms,
            "lease_ms": lease_ms,
            "op": token,
        }
        if worker_id is not None:
            setting["worker"] = worker_id
        try:
            item = self._table.update(
                Update(
                    keys.job(job_id),
                    keys.HEAD,
                    set=setting,
                    compute={"attempt": "if_not_exists(#attempt, :zero) + :one"},
                    remove=["batch"] if worker_id is not None else ["batch", "worker"],
                    # Race: other fetchers, a cancel, a promotion to another place, a stale index.
                    # One wins; the losers see another state or place and try the next job.
                    # The place is compared too: it carries the hints this claim relied on.
                    condition="#state = :available AND #wsk = :seen "
                    "AND (attribute_not_exists(#expires) OR #expires > :now)",
                    values={
                        ":available": State.AVAILABLE.value,
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
        setting: dict[str, items.Value] = {
            "state": State.COMPLETED.value,
            "completed": now_ms,
            "ttl": now_ms // 1000 + lifecycle.RETAIN_COMPLETED_S,
            "op": token,
        }
        kept_apart: TextAt | None = None
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
        try:
            item = self._table.update(
                Update(
                    keys.job(job_id),
                    keys.HEAD,
                    set=setting,
                    remove=[
                        "wpk", "wsk", "epk", "esk", "expires", "lease", "lease_until", "lease_ms",
                    ],
                    condition=" AND ".join(conditions),
                    values=values,
                )
            )  # fmt: skip
        except LostRace as lost:
            if lost.item and lost.item.get("op") == token:
                return self._result(items.job_from_head(lost.item), result)
            if kept_apart is not None:
                self._texts.delete([kept_apart])
            raise
        return self._result(items.job_from_head(item), result)

    @staticmethod
    def _result(job: Job, result: Any) -> Job:
        return changed(job, result=result)

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
        setting: dict[str, items.Value] = {"op": token}
        compute: dict[str, str] = {}
        # Race: the job was finished, cancelled, or taken back after its lease ran out. The loser
        # sees whose it is now.
        conditions, values = _held_by(worker_id, None, lease_token)
        if lease_ms is None:
            compute["lease_until"] = ":now + #lease_ms"
            values[":now"] = now_ms
        else:
            setting["lease_until"] = now_ms + lease_ms
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
        after, update = self.replacing(before, after, guard=guard)
        try:
            self._table.update(update)
        except LostRace as lost:
            if lost.item and lost.item.get("op") == after.op:
                return after
            raise
        return after

    def replacing(
        self, before: Job, after: Job, *, guard: Literal["op", "lease"] = "op"
    ) -> tuple[Job, Update]:
        """The write that `replace` makes, for use in a transaction."""
        after = changed(after, op=self._ids.token())
        old, new = items.head(before), items.head(after)
        setting = {name: value for name, value in new.items() if old.get(name) != value}
        # A heartbeat may have left the stored due entry behind the one worked out from the head:
        # index keys are always written out.
        setting |= {name: new[name] for name in ("wpk", "wsk") if name in new}
        removing = [name for name in old if name not in new]
        removing += [n for n in ("wpk", "wsk") if n not in new and n not in removing]
        values: dict[str, items.Value]
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
        # Race: a worker reports the very attempt that the sweep is ending. What the worker said
        # tells more; the backend's own entry gives way.
        condition = None if reported else _NEW
        try:
            self._table.put(Put(item, condition=condition))
        except LostRace:
            return

    def refile(self, job: Job) -> None:
        """Move an active job's due entry to where its lease ends now. Losing is no matter."""
        # Race: anybody who changed the head since. They filed it, or the next sweep finds it.
        try:
            self._table.update(
                Update(
                    keys.job(job.id),
                    keys.HEAD,
                    set={"wsk": keys.instant(job.due_ms), "op": self._ids.token()},
                    condition="#op = :seen",
                    values={":seen": job.op or ""},
                )
            )
        except LostRace:
            return

    def save_progress(self, job: Job, progress: dict[str, Any], *, now_ms: int) -> bool:
        """Store the progress of a job's running attempt; False when more was reported before."""
        value = progress.get("progress")
        millionths = round(value * 1_000_000) if value is not None else -1
        # Race: two reports of one attempt. The higher stays (ojs-progress section 5.1); a new
        # attempt starts afresh.
        try:
            self._table.put(
                Put(
                    {
                        "pk": keys.job(job.id),
                        "sk": keys.PROGRESS,
                        "run": _run(job),
                        "value": millionths,
                        "progress": jsontext.dumps(progress),
                        "updated": now_ms,
                    },
                    condition="attribute_not_exists(pk) OR #run <> :run OR #value <= :value",
                    values={":run": _run(job), ":value": millionths},
                )
            )
        except LostRace:
            return False
        return True

    def delete(self, job: Job) -> None:
        """Remove a job and all that belongs to it, the head first. Raises LostRace if it moved."""
        # Race: a retry that brought the job back: the loser sees that it lives. That it is gone
        # already, by our own lost call or by another's, is what was asked for.
        try:
            self._table.delete(
                keys.job(job.id), keys.HEAD, condition="#op = :seen", values={":seen": job.op or ""}
            )
        except LostRace as lost:
            if lost.item is not None:
                raise
        self._texts.delete(at for at in self.texts_of(job) if at.in_bucket)
        rest = self._table.query_all("pk = :job", {":job": keys.job(job.id)})
        self._table.write_many(deletes=[(str(i["pk"]), str(i["sk"])) for i in rest])


def _held_by(
    worker_id: str | None, attempt: int | None, lease_token: str | None
) -> tuple[list[str], dict[str, items.Value]]:
    """Conditions: the job is active, and held by whom the caller claims to be."""
    (active,) = sources(Trigger.ACK)
    conditions = ["#state = :active"]
    values: dict[str, items.Value] = {":active": active.value}
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


def _ours(lost: LostRace, jobs: Sequence[Job]) -> bool:
    """Whether what stands in the way are our own heads: the transaction went through before."""
    pairs = list(zip(lost.items, jobs, strict=False))
    return all(found is not None and found.get("op") == job.op for found, job in pairs)


def _taken(lost: LostRace, jobs: Sequence[Job]) -> JobTaken | LostRace:
    for found, job in zip(lost.items, jobs, strict=False):
        if found is not None:
            return JobTaken(job.id)
    return lost


def _run(job: Job) -> str:
    """What tells one run of a job from all others, handed-back ones included."""
    return f"{job.life}.{job.attempt}.{job.started_ms}"


def _progress(item: Item | None, job: Job) -> dict[str, Any] | None:
    """The progress of the current or final run; a job that waits to run again has none."""
    ran = job.state is State.ACTIVE or job.state.terminal
    if item is None or not ran or item["run"] != _run(job):
        return None
    stored: dict[str, Any] = jsontext.stored(str(item["progress"]))
    return stored | {"updated_ms": item["updated"]}


def _id_bytes(job_id: str) -> bytes:
    return bytes.fromhex(job_id.replace("-", ""))


def _ids_of(packed: Any) -> list[str]:
    raw = bytes(packed)
    texts = (raw[start : start + 16].hex() for start in range(0, len(raw), 16))
    return [f"{t[:8]}-{t[8:12]}-{t[12:16]}-{t[16:20]}-{t[20:]}" for t in texts]
