"""The fingerprint of a unique job (ojs-unique-jobs, section 4)."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from decimal import Decimal
from typing import Any

from ojs.domain import jsontext
from ojs.domain.access import Reaches
from ojs.domain.errors import Duplicate, ValidationFailed
from ojs.domain.job.envelope import Specification, Unique
from ojs.domain.job.job import Job
from ojs.domain.tenants import get_tenant

# Format of a fingerprint in errors and listings.
KEY_PATTERN = r"[0-9a-f]{64}"


def check_key(value: str) -> str:
    """Return `value` if it is a fingerprint.

    Raises ValueError with the violated rule if it is invalid.
    """
    if not re.fullmatch(KEY_PATTERN, value):
        raise ValueError("must be a unique key of 64 hexadecimal digits, as in responses")
    return value


def fingerprint(job: Specification | Job, policy: Unique) -> str:
    """Compute the SHA-256 (hex) of the canonical JSON of the policy's dimensions.

    The payload must be loaded. Raises ValidationFailed if `args_keys` or `meta_keys` names a key
    that the job doesn't have.
    """
    content = job.content or {}
    chosen: dict[str, Any] = {"type": job.type}
    if (tenant := get_tenant(job.queue)) is not None:
        chosen["tenant"] = tenant
    if policy.custom is not None:
        chosen["key"] = policy.custom
    if "queue" in policy.keys:
        chosen["queue"] = job.queue
    if "args" in policy.keys:
        args = content["args"]
        if policy.args_keys is not None:
            objects = [value for value in args if isinstance(value, dict)]
            args = _pick(policy.args_keys, objects, f"{policy.path}.args_keys")
        chosen["args"] = args
    if "meta" in policy.keys:
        meta = content.get("meta", {})
        chosen["meta"] = _pick(policy.meta_keys or (), [meta], f"{policy.path}.meta_keys")
    canonical = jsontext.dumps(_canonical(chosen))
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def held(holder: Job, digest: str, reaches: Reaches, **known: str) -> Duplicate:
    """Create the error for a unique key that another job has.

    Args:
        holder: The other job. The error names it only if its queue is in the caller's queue scope.
        digest: Fingerprint.
        reaches: Whether a queue is in the caller's queue scope.
        **known: Additional details of the error.
    """
    details = {"unique_key": digest, "uniqueness_key": digest, **known}
    if reaches(holder.queue):
        state = holder.state.value
        details |= {"existing_job_id": holder.id, "existing_state": state}
        details |= {"existing_job_state": state}
    return Duplicate("A job with the same unique key already exists.", details=details)


def _pick(names: tuple[str, ...], holders: list[dict[str, Any]], field: str) -> dict[str, Any]:
    picked = {}
    for name in names:
        holder = next((holder for holder in holders if name in holder), None)
        if holder is None:
            raise ValidationFailed(field, "must contain only keys of the job", value=name)
        picked[name] = holder[name]
    return picked


def _canonical(value: Any) -> Any:
    """Return the value with sorted keys, NFC strings, and one form for equal numbers (as in RFC
    8785).
    """
    if isinstance(value, dict):
        normal = {unicodedata.normalize("NFC", key): _canonical(v) for key, v in value.items()}
        return dict(sorted(normal.items()))
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, Decimal | float):
        # Integers of any size stay exact, so that two IDs above 2^53 differ.
        exact = Decimal(value)
        if exact == exact.to_integral_value():
            return int(exact)
        number = float(value)
        return int(number) if number.is_integer() else number
    return value
