"""Items of an outbox: jobs that an application writes in its own DynamoDB transactions. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol, Union

from ojs_aws.client.call import to_json
from ojs_aws.client.operations import JobRequest
from ojs_aws.ids import uuid7

MAX_META_BYTES = 65_536
# An item of DynamoDB has at most 400 KB, with the names of its attributes and the ID.
MAX_JOB_BYTES = 409_600 - len("id") - 36 - len("ojs_job")
MAX_DEPTH = 100


class TypedCall(Protocol):
    """A job of a typed function: `place.job(order)`."""

    @property
    def request(self) -> JobRequest:
        """The job."""


def outbox_item(
    job: Union[str, JobRequest, TypedCall],
    args: Sequence[Any] = (),
    *,
    table: str,
    style: Literal["client", "resource"] = "client",
    **options: Any,
) -> dict[str, Any]:
    """Return an action for `TransactWriteItems` that writes a job to an outbox. Nothing is sent.

    The outbox enqueues the job after the transaction. Relative times count from then.

    Args:
        job: Job type, a `JobRequest`, or a job of a typed function (`place.job(order)`).
        args: Positional arguments of the job, if `job` is a job type.
        table: Name of the outbox table.
        style: `client` for typed attribute values, `resource` for plain values, as the clients of
            boto3 resources expect them. Default: `client`.
        **options: As in `enqueue`, if `job` is a job type.

    Returns:
        `{"Put": {"TableName": table, "Item": {"id", "ojs_job"}}}`. The job has the ID of the item.

    Raises:
        TypeError: An argument is unknown, or can't be represented in JSON.
        ValueError: The server would reject the job, or it doesn't fit into an item. Contradictions
            within a policy are found by the outbox, which then refuses the item.
    """
    if isinstance(job, str):
        request = JobRequest(job, args, **options)
    elif args or options:
        raise TypeError("args and options can't be combined with a complete job")
    else:
        request = job if isinstance(job, JobRequest) else job.request
    if style not in ("client", "resource"):
        raise ValueError(f"style must be 'client' or 'resource', but is {style!r}")
    wire = request.wire(uuid7() if request.id is None else request.id)
    text = to_json(wire)
    found = json.loads(text)
    _check(found, _schemas()["JobRequest"], "")
    for name, value, most in (
        ("job", found, MAX_JOB_BYTES),
        ("meta", wire.get("meta"), MAX_META_BYTES),
    ):
        if (size := len(to_json(value).encode())) > most:
            raise ValueError(f"'{name}': has {size} bytes as JSON. At most {most} are allowed")
    if _depth(found) > MAX_DEPTH:
        raise ValueError(f"'job': must have at most {MAX_DEPTH} levels of nesting")
    item = {"id": wire["id"], "ojs_job": text}
    typed = {name: {"S": value} for name, value in item.items()}
    return {"Put": {"TableName": table, "Item": item if style == "resource" else typed}}


_TYPES: Mapping[str, Any] = {
    "array": list, "boolean": bool, "integer": int, "null": type(None), "number": (int, float),
    "object": dict, "string": str,
}  # fmt: skip
# By keyword: the Python types that it applies to, whether a value obeys it, and the rule.
_RULES: Mapping[str, tuple[Any, Callable[[Any, Any], object], str]] = {
    "enum": (object, lambda value, allowed: value in allowed, "must be one of {}"),
    "pattern": (str, lambda value, pattern: re.fullmatch(pattern, value), "must match {}"),
    "minLength": (str, lambda value, least: len(value) >= least, "must have {} or more characters"),
    "maxLength": (str, lambda value, most: len(value) <= most, "must have at most {} characters"),
    "minimum": ((int, float), lambda value, least: value >= least, "must be at least {}"),
    "maximum": ((int, float), lambda value, most: value <= most, "must be at most {}"),
    "minItems": (list, lambda value, least: len(value) >= least, "must have {} or more items"),
    "maxItems": (list, lambda value, most: len(value) <= most, "must have at most {} items"),
    "required": (dict, lambda value, names: value.keys() >= {*names}, "requires {}"),
}


@cache
def _schemas() -> Any:
    """Return the server's schemas of a job and its parts (`make facts`)."""
    return json.loads(Path(__file__).with_name("job.json").read_text("utf-8"))


def _check(value: Any, schema: Mapping[str, Any], path: str) -> None:
    """Raise ValueError with the first rule of a schema that a value breaks."""
    schema = _form(value, schema)
    if "type" in schema and not _is(value, schema["type"]):
        raise ValueError(f"'{path}': must be a JSON {schema['type']}")
    for keyword, (types, obeys, rule) in _RULES.items():
        if keyword in schema and isinstance(value, types) and not obeys(value, schema[keyword]):
            raise ValueError(f"'{path or 'job'}': {rule.format(schema[keyword])}")
    for index, each in enumerate(value if "items" in schema else ()):
        _check(each, schema["items"], f"{path}[{index}]")
    properties = schema.get("properties", {})
    for name, each in value.items() if isinstance(value, dict) else ():
        if name in properties:
            _check(each, properties[name], f"{path}.{name}".lstrip("."))
        elif schema.get("additionalProperties") is False:
            raise ValueError(f"'{path}.{name}': is not an option of the API")


def _form(value: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema for a value: without references, and the form that has its type."""
    while "$ref" in schema or "anyOf" in schema:
        forms = [each for each in schema.get("anyOf", ()) if _is(value, each.get("type"))]
        schema = (
            (forms or schema["anyOf"])[0]
            if "anyOf" in schema
            else _schemas()[schema["$ref"].rpartition("/")[2]]
        )
    return schema


def _is(value: Any, kind: str | None) -> bool:
    types = _TYPES.get(kind or "", ())
    return isinstance(value, types) and (kind == "boolean" or not isinstance(value, bool))


def _depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inside), default=0) if isinstance(value, (dict, list)) else 0
