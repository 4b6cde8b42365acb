"""Translates names between a tenant's caller and the store. Only such a caller loads this module.

The caller sends and receives local names (`mail`). Services and the store only know stored names
(`acme:mail`). Fields with the content of the client are not translated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ojs.domain import jsontext
from ojs.domain.access import Principal
from ojs.domain.errors import InvalidRequest, forbidden
from ojs.domain.job.job import DEFAULT_QUEUE
from ojs.domain.tenant_names import (
    CONTENT,
    EVENT_FIELDS,
    QUEUE_FIELDS,
    change_names,
    format_channel,
    make_showing,
    make_storing,
    render_message,
)
from ojs.domain.tenants import DEFAULT, check_tenant, is_tenant, qualified

if TYPE_CHECKING:
    from ojs.http.endpoint import Operation

HEADERS = {"x-ojs-tenant": "X-OJS-Tenant", "x-ojs-tenant-id": "X-OJS-Tenant-ID"}
# Query parameters with names of queues, separated by commas.
QUERY_FIELDS = frozenset({"queue", "queues", "target_queue"})
# Requests whose field `name` is the name of a queue or a cron job.
NAMED_REQUESTS = frozenset({"CreateQueueRequest", "CronRequest"})
# Requests with new jobs.
_PUSHES = frozenset(
    {"JobRequest", "BatchRequest", "BulkPushRequest", "WorkflowRequest", "CronRequest"}
)
# Subjects of paths that are names.
_SUBJECTS = frozenset({"queue", "cron job"})
# Fields of a workflow with steps.
_STEPS = ("steps", "jobs", "tasks")
_CALLBACKS = ("on_complete", "on_success", "on_failure")


def with_tenant_of_headers(principal: Principal, headers: Mapping[str, str]) -> Principal:
    """Return the caller, limited to the tenant it acts for.

    Args:
        principal: The authenticated caller.
        headers: Headers of the request. Their names are in lower case.

    Raises:
        InvalidRequest: The header is not a tenant ID, or both headers differ.
        PermissionDenied: The header names a tenant that the caller can't act for.
    """
    sent = {name: headers[key].strip() for key, name in HEADERS.items() if key in headers}
    wanted = DEFAULT
    for name, value in sent.items():
        if value != DEFAULT:
            try:
                check_tenant(value)
            except ValueError as error:
                raise InvalidRequest(name, str(error), value=value) from None
        if wanted not in (DEFAULT, value) or value != next(iter(sent.values())):
            raise InvalidRequest(name, "must have the same value as X-OJS-Tenant. Send only one")
        wanted = value
    if principal.tenant is not None:
        if sent and wanted != principal.tenant:
            raise forbidden()
        return principal.with_tenant(principal.tenant)
    if wanted == DEFAULT:
        return principal
    found = principal.with_tenant(wanted)
    if not found.queues:
        raise forbidden()
    return found


def is_push(operation: Operation) -> bool:
    """Return whether a request has new jobs."""
    model = operation.request
    return operation.method == "POST" and model is not None and model.__name__ in _PUSHES


def with_tenant_of_meta(principal: Principal, body: Mapping[str, Any]) -> Principal:
    """Return the caller of a push, limited to the tenant in `meta.tenant_id` of its jobs.

    Jobs without this field get the tenant of the others. Raises InvalidRequest for several tenants,
    or for a malformed one, and PermissionDenied.
    """
    found = {jsontext.dumps(each): each for each in _tenants_in(body)}
    if len(found) > 1:
        rule = "must be the same in all jobs of a request"
        raise InvalidRequest("meta.tenant_id", rule, value=next(reversed(found.values())))
    for tenant in found.values():
        if not isinstance(tenant, str) or not is_tenant(tenant):
            raise InvalidRequest("meta.tenant_id", "must be a tenant ID", value=tenant)
        return with_tenant_of_headers(principal, {"x-ojs-tenant": tenant})
    return principal


def _tenants_in(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _tenants_in(each)
    elif isinstance(value, dict):
        meta = value.get("meta")
        if isinstance(meta, dict) and "tenant_id" in meta:
            yield meta["tenant_id"]
        for key, each in value.items():
            if key not in CONTENT:
                yield from _tenants_in(each)


# --- requests -------------------------------------------------------------------------------------


def read_address(
    operation: Operation, path: str | None, query: Mapping[str, str], tenant: str
) -> tuple[str | None, Mapping[str, str]]:
    """Return the parameter of a path and the query, with the stored names."""
    name = make_storing(tenant)
    if path is not None and operation.subject in _SUBJECTS:
        path = name(operation.path_parameter or "", unquote(path))
    query = dict(query)
    for key in QUERY_FIELDS & query.keys():
        query[key] = ",".join(name(key, each) if each else each for each in query[key].split(","))
    if "channel" in query:
        query["channel"] = format_channel(query["channel"], tenant)
    return path, query


def read_body_names(body: dict[str, Any], operation: Operation, tenant: str) -> Any:
    """Return the body of a request with the stored names. Jobs without a queue get the default."""
    name, queue = make_storing(tenant), qualified(tenant, DEFAULT_QUEUE)
    model = "" if operation.request is None else operation.request.__name__
    found = change_names(body, name, QUEUE_FIELDS, CONTENT)
    if model in NAMED_REQUESTS and isinstance(found.get("name"), str):
        found["name"] = name("name", found["name"])
    if model == "JobRequest":
        return _in_queue(found, queue)
    if model in ("BatchRequest", "BulkPushRequest") and isinstance(found.get("jobs"), list):
        return {**found, "jobs": [_in_queue(job, queue) for job in found["jobs"]]}
    if model == "WorkflowRequest":
        return _workflow(found, queue)
    # A change of a cron job keeps its queue.
    if model == "CronRequest" and operation.method == "POST" and not _has_queue(found):
        if found.get("job_template") is None:
            return {**found, "queue": queue}
        return {**found, "job_template": _in_queue(found["job_template"], queue)}
    return found


def _has_queue(job: Mapping[str, Any]) -> bool:
    options = job.get("options")
    own = options.get("queue") if isinstance(options, dict) else None
    return own is not None or job.get("queue") is not None


def _in_queue(job: Any, queue: str) -> Any:
    return job if not isinstance(job, dict) or _has_queue(job) else {**job, "queue": queue}


def _workflow(raw: Any, queue: str | None) -> Any:
    """Return a workflow, or a step, whose jobs have a queue. None: they inherit its options."""
    if isinstance(raw, list):
        return [_workflow(step, queue) for step in raw]
    if not isinstance(raw, dict):
        return raw
    if not {*_STEPS, "callbacks"} & raw.keys():
        return raw if queue is None else _in_queue(raw, queue)
    if _has_queue({"options": raw.get("options")}):
        queue = None
    found = {key: _workflow(raw[key], queue) for key in (*_STEPS, *_CALLBACKS) if key in raw}
    if isinstance(callbacks := raw.get("callbacks"), dict):
        found["callbacks"] = {key: _workflow(step, queue) for key, step in callbacks.items()}
    return {**raw, **found}


# --- responses ------------------------------------------------------------------------------------


def render_answer(body: Any, operation: Operation | None, tenant: str) -> Any:
    """Return the body of a response with the local names."""
    path = "" if operation is None else operation.path
    fields, content = QUEUE_FIELDS, CONTENT
    if any(f"/{part}" in path for part in ("queues", "cron", "stats")):
        fields |= {"name", "id"}
    if "/events" in path:
        fields |= EVENT_FIELDS
    if not path.endswith("/progress"):
        content -= {"data"}
    if isinstance(body, str):
        return "\n".join(_line_out(line, tenant) for line in body.split("\n"))
    return change_names(body, make_showing(tenant), fields, content, tenant)


def _line_out(line: str, tenant: str) -> str:
    """Translate a line of server-sent events."""
    start, data, text = line.partition("data: ")
    return line if start or not data else data + render_message(text, tenant)
