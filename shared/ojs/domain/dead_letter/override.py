"""Changes to a dead letter that is retried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ojs.domain import jsontext
from ojs.domain.errors import InvalidRequest, MetadataTooLarge, PayloadTooLarge
from ojs.domain.job.envelope import (
    MAX_JOB_BYTES,
    MAX_META_BYTES,
    RETRY_ALIASES,
    QueueName,
    RetryRequest,
)
from ojs.domain.job.job import Job
from ojs.domain.requests import MAX_SHOWN, Field, Model, not_known
from ojs.domain.tenants import get_tenant
from ojs.records import record

_AT = "override"


class JobOverrideRequest(Model):
    """Changes as sent. Null means "not given"."""

    queue: QueueName | None = Field(None, description="moves the job there")
    args: list[Any] | None = Field(None, description="replaces the job's args")
    meta: dict[str, Any] | None = Field(
        None, description="laid over the job's meta key by key; null removes a key"
    )
    retry: RetryRequest | None = Field(
        None, description="laid over the job's retry policy field by field"
    )

    @classmethod
    def refuse(cls, raw: object) -> None:
        """Raise InvalidRequest that names an unknown field."""
        for name in raw if isinstance(raw, Mapping) else ():
            if name not in cls.model_fields:
                rule = not_known(name, cls.model_fields)
                raise InvalidRequest(f"{_AT}.{name[:MAX_SHOWN]}", rule)

    def check(self) -> None:
        """Raise InvalidRequest if two names of one setting have different values."""
        if self.retry is not None:
            self.retry.check_aliases(f"{_AT}.retry")

    def override(self) -> JobOverride:
        """Return the changes as a JobOverride."""
        return JobOverride(self.queue, self.args, self.meta, self.retry)


@record(frozen=True)
class JobOverride:
    """Changes to a job that is retried. None keeps a setting unchanged."""

    queue: str | None = None
    args: list[Any] | None = None
    meta: Mapping[str, Any] | None = None
    retry: RetryRequest | None = None

    @property
    def of_content(self) -> bool:
        """Whether the override changes the job's payload."""
        return self.args is not None or self.meta is not None or self.retry is not None

    def applied(self, job: Job) -> Job:
        """Return the job with these changes. A lane of its queue is not assigned yet.

        If the payload changes, the old payload must be loaded. The new one is not offloaded yet.
        Raises ValidationFailed, PayloadTooLarge, MetadataTooLarge.
        """
        policy = job.policy
        if self.retry is not None:
            policy = self.retry.over(policy, f"{_AT}.retry")
        if self.of_content:
            content = self._content(job.content or {}, self.queue or job.queue)
            job = replace(job, content=content, content_ref=None, content_bytes=0)
        return replace(job, queue=self.queue or job.queue, policy=policy)

    def _content(self, before: Mapping[str, Any], queue: str) -> dict[str, Any]:
        content = dict(before)
        if self.args is not None:
            content["args"] = self.args
        if self.meta is not None:
            # A JSON merge patch (RFC 7396) of one level: nested objects are replaced.
            meta = {**content.pop("meta", {}), **self.meta}
            for key in [key for key, value in self.meta.items() if value is None]:
                del meta[key]
            if (tenant := get_tenant(queue)) is not None:
                meta["tenant_id"] = tenant
            if meta:
                content["meta"] = meta
            if (size := jsontext.size_of(meta)) > MAX_META_BYTES:
                raise MetadataTooLarge(f"{_AT}.meta", size=size, limit=MAX_META_BYTES)
        if self.retry is not None:
            content["retry"] = _shown(content.get("retry") or {}, self.retry)
        if (size := jsontext.size_of(content)) > MAX_JOB_BYTES:
            what = next(
                name for name in ("args", "meta", "retry") if getattr(self, name) is not None
            )
            raise PayloadTooLarge(f"{_AT}.{what}", size=size, limit=MAX_JOB_BYTES)
        return content


def _shown(before: Mapping[str, Any], changes: RetryRequest) -> dict[str, Any]:
    """Return the job's retry policy as in responses, with the new values."""
    new = changes.model_dump(exclude_none=True)
    # A new value under one alias of a setting replaces the values under all its aliases.
    outdated = {
        name
        for setting, aliases in RETRY_ALIASES.items()
        if not new.keys().isdisjoint((setting, *aliases))
        for name in (setting, *aliases)
    }
    return {name: value for name, value in before.items() if name not in outdated} | new
