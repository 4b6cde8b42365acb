"""Reads jobs: the job record only, or with the other items of its partition."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from typing import Any

from ojs.domain import jsontext
from ojs.domain.errors import NotFound
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.store.jobs import items
from ojs.store.jobs.payloads import PayloadRef, PayloadStore, payload_of, payloads_of
from ojs.store.jobs.progress import progress_of
from ojs.store.table import keys
from ojs.store.table.errors import Unreadable, UnreadableItem, readable
from ojs.store.table.table import Table
from ojs.store.table.values import Item, Value


class JobReader:
    """Reads jobs. Reads are strongly consistent by default."""

    def __init__(self, table: Table, payloads: PayloadStore) -> None:
        self._table = table
        self._payloads = payloads

    def read_record(self, job_id: str) -> Job | None:
        """Return the job record without other items.

        Decisions are based on it. Raises UnknownForm.
        """
        item = self._table.get(keys.job(job_id), keys.RECORD)
        return items.job_of(item) if item else None

    def existing(self, job_id: str, now_ms: int) -> Job:
        """Return the job record, unless its retention has ended. Raises NotFound."""
        job = self.read_record(job_id)
        if job is None or job.gone(now_ms):
            raise NotFound("job", job_id)
        return job

    def read_records(
        self,
        job_ids: Iterable[str],
        unreadable: Unreadable | None = None,
        *,
        consistent: bool = True,
        progress: bool = False,
    ) -> dict[str, Job]:
        """Return several job records by ID.

        Records that don't exist, or that only a newer version can read, are skipped. A listing can
        set `consistent` to false, at half the cost, because its index is eventually consistent as
        well.

        Args:
            job_ids: IDs of the jobs.
            unreadable: Called for each record that can't be read, which is then skipped.
            consistent: Whether to read consistently.
            progress: Whether to read the progress of each run, at the cost of another item.

        Raises:
            UnreadableItem: A record can't be read, and `unreadable` is None.
        """
        kinds = (keys.RECORD, keys.PROGRESS) if progress else (keys.RECORD,)
        wanted = ((keys.job(job_id), kind) for job_id in job_ids for kind in kinds)
        found = self._table.batch_get(wanted, consistent=consistent)
        records = [item for (_, kind), item in found.items() if kind == keys.RECORD]
        jobs = {job.id: job for job in readable(items.job_of, records, unreadable)}
        if not progress:
            return jobs
        reported = {job_id: found.get((keys.job(job_id), keys.PROGRESS)) for job_id in jobs}
        return {
            job_id: changed(job, progress=progress_of(reported[job_id], job))
            for job_id, job in jobs.items()
        }

    def with_progress(self, job_id: str) -> Job | None:
        """Return the job record with the progress.

        Makes one call, regardless of the size of the job.
        """
        head, progress = (keys.job(job_id), keys.RECORD), (keys.job(job_id), keys.PROGRESS)
        found = self._table.batch_get([head, progress])
        if head not in found:
            return None
        job = items.job_of(found[head])
        return changed(job, progress=progress_of(found.get(progress), job))

    def load(self, job_id: str) -> Job | None:
        """Return the whole job: record, content, errors, result, progress.

        Makes one consistent query.

        If the query stops at DynamoDB's 1 MB because of a long error history, the latest 1 MB of
        the errors is read, and the other parts by key.
        """
        # Outcomes of steps are read in pages (`ojs.store.jobs.steps`).
        values: dict[str, Value] = {":job": keys.job(job_id)}
        found = self._table.query(
            "pk = :job AND sk < :steps", values | {":steps": keys.STEP}, consistent=True
        )
        by_key = {str(item["sk"]): item for item in found.items}
        if keys.RECORD not in by_key:
            return None
        job = items.job_of(by_key[keys.RECORD])
        if found.last is not None:
            latest = self._table.query(
                "pk = :job AND begins_with(sk, :error)",
                values | {":error": keys.ERROR},
                consistent=True,
                forward=False,
            )
            by_key = {keys.RECORD: by_key[keys.RECORD]}
            by_key |= {str(item["sk"]): item for item in latest.items}
            in_table = [at.key for at in payloads_of(job) if not at.in_bucket]
            apart = [(keys.job(job_id), keys.PROGRESS), *in_table]
            by_key |= {sk: item for (_, sk), item in self._table.batch_get(apart).items()}
        return self._assembled(by_key)

    def load_whole(self, job_id: str) -> Job | None:
        """Return the whole job as `load` does, with all errors. Makes any number of calls."""
        values: dict[str, Value] = {":job": keys.job(job_id), ":steps": keys.STEP}
        found = self._table.query_all("pk = :job AND sk < :steps", values)
        by_key = {str(item["sk"]): item for item in found}
        return self._assembled(by_key) if keys.RECORD in by_key else None

    def _assembled(self, by_key: Mapping[str, Item]) -> Job:
        """Build a job from the items of its partition."""
        job = items.job_of(by_key[keys.RECORD])
        payloads = {
            at: payload_of(by_key[at.key[1]]) for at in payloads_of(job) if at.key[1] in by_key
        }
        ended = job.state is State.DISCARDED and not job.dead_letter
        errors = {
            sk: item
            for sk, item in by_key.items()
            # If the job record has no space for the reason, a sweep stores the reason before it
            # finishes the job. A worker might then finish the job first.
            if sk.startswith(keys.ERROR) and (ended or not keys.is_of_end(sk))
        }
        own = map(items.error_key, job.noted)
        progress = progress_of(by_key.get(keys.PROGRESS), job)
        return changed(
            self._filled(job, payloads),
            errors=_failures(sorted({*errors, *own}), errors, job),
            progress=progress,
        )

    def with_contents(self, jobs: Sequence[Job], unreadable: Unreadable | None = None) -> list[Job]:
        """Return the same jobs with their contents and results.

        Makes one call for all payloads in the table.

        `unreadable` is called for each job with a damaged payload, which is then returned
        unchanged. If it is None, UnreadableItem is raised.
        """
        missing = [
            at
            for job in jobs
            for at in payloads_of(job)
            if at.kind != keys.PAYLOAD or job.content is None
        ]
        try:
            payloads = self._payloads.load(missing)
            return [self._filled(job, payloads) for job in jobs]
        except (KeyError, ValueError, zlib.error) as error:
            damaged = UnreadableItem(" or ".join(f"job {job.id}" for job in jobs[:10]), error)
            if unreadable is None:
                raise damaged from error
        if len(jobs) == 1:
            unreadable(damaged.what, damaged)
            return list(jobs)
        return [one for job in jobs for one in self.with_contents([job], unreadable)]

    def with_results(self, jobs: Sequence[Job], most: int) -> list[Job]:
        """Return the same jobs with their results, without their contents.

        Makes one call for all results in the table, and one for each result in the bucket until
        these have `most` bytes. A result that is not read or damaged stays missing.
        """
        refs = {job.id: at for job in jobs for at in payloads_of(job) if at.kind == keys.RESULT}
        found = self._payloads.load(at for at in refs.values() if not at.in_bucket)
        for at in refs.values():
            if at.in_bucket and most > 0:
                found |= self._payloads.load([at])
                most -= len(found.get(at, ""))
        results = dict[str, Any]()
        for job_id, at in refs.items():
            with suppress(KeyError, ValueError, zlib.error):
                results[job_id] = jsontext.stored(found[at])
        return [changed(job, result=results.get(job.id, job.result)) for job in jobs]

    def with_checkpoints(
        self, jobs: Sequence[Job], unreadable: Unreadable | None = None
    ) -> list[Job]:
        """Return the same jobs with their checkpoints. Makes one call if a job can have one.

        `unreadable` is as for `CheckpointStore.loaded`.
        """
        if not any(job.durable.resumable for job in jobs):
            return list(jobs)
        from ojs.store.jobs.checkpoints import CheckpointStore

        return CheckpointStore(self._table, self._payloads).loaded(jobs, unreadable)

    def with_sent(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the same jobs with their contents as sent by the client, if offloaded to the
        table.

        Makes one call, for listings. Payloads that are damaged, or missing in an eventually
        consistent read, are skipped.
        """
        refs = {job.id: at for job in jobs for at in payloads_of(job) if at.kind == keys.PAYLOAD}
        in_table = [at.key for at in refs.values() if not at.in_bucket]
        found = self._table.batch_get(in_table, consistent=False) if in_table else {}
        contents = dict[str, Any]()
        for job_id, at in refs.items():
            with suppress(KeyError, ValueError, zlib.error):
                contents[job_id] = jsontext.stored(payload_of(found[at.key]))
        return [changed(job, content=contents.get(job.id, job.content)) for job in jobs]

    def _filled(self, job: Job, payloads: dict[PayloadRef, str]) -> Job:
        """Return a job with its content and result, from the payloads that were read."""
        # A payload that no query of the table found might be in the bucket.
        missing = [at for at in payloads_of(job) if at not in payloads and at.in_bucket]
        if missing:
            payloads = payloads | self._payloads.load(missing)
        for at in payloads_of(job):
            if at in payloads:
                value = jsontext.stored(payloads[at])
                job = (
                    changed(job, content=value)
                    if at.kind == keys.PAYLOAD
                    else changed(job, result=value)
                )
        return job

    def with_errors(self, jobs: Sequence[Job], *, latest: int = 10) -> list[Job]:
        """Return the same jobs with the most recent errors of their current life.

        Errors that are not in the job record are read by key. Listings use this, because their cost
        must not increase with the number of attempts. `load` reads all errors.
        """
        wanted = {
            job.id: [
                sk
                for attempt in range(max(0, job.attempt - latest + 1), job.attempt + 1)
                for sk in _error_keys(job, attempt)
            ]
            for job in jobs
        }
        known = {job.id: items.final_keys(job) for job in jobs}
        found = self._table.batch_get(
            (keys.job(job_id), sk)
            for job_id, group in wanted.items()
            for sk in group
            if sk not in known[job_id]
        )
        return [
            changed(
                job,
                errors=_failures(
                    wanted[job.id],
                    {sk: item for (pk, sk), item in found.items() if pk == keys.job(job.id)},
                    job,
                ),
            )
            for job in jobs
        ]


def _error_keys(job: Job, attempt: int) -> list[str]:
    """Return the keys of the errors of an attempt.

    These are the error of the attempt itself, and an error that finished the job after it.
    """
    own = [keys.error(job.life, attempt)] if attempt else []
    if attempt == job.attempt and job.state is State.DISCARDED and not job.dead_letter:
        own.append(keys.error(job.life, attempt, ended=True))
    return own


def _failures(wanted: Iterable[str], found: Mapping[str, Item], job: Job) -> tuple[Failure, ...]:
    """Return the errors of a job at these sort keys, from the error items and the job record.

    The order is that of the keys. Errors of an earlier job with the same ID are skipped.
    """
    entries = {sk: items.entry_from(item) for sk, item in found.items()}
    for noted in job.noted:
        at = items.error_key(noted)
        if at not in entries or noted.replaces(entries[at]):
            entries[at] = noted
    failures = (entries[sk].failure for sk in wanted if sk in entries)
    return tuple(failure for failure in failures if failure.occurred_ms >= job.created_ms)
