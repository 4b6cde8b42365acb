"""Translates names between a tenant's caller and the store. Only such a caller loads this module.

The caller sends and receives local names (`mail`). Services and the store only know stored names
(`acme:mail`). Fields with the content of the client are not translated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ojs.domain import jsontext
from ojs.domain.access import Principal
from ojs.domain.errors import InvalidRequest, forbidden
from ojs.domain.job.copies import META as COPY_META
from ojs.domain.job.job import DEFAULT_QUEUE
from ojs.domain.tenants import DEFAULT, check_tenant, get_tenant, is_tenant, qualified

if TYPE_CHECKING:
    from ojs.http.endpoint import Operation

HEADERS = {"x-ojs-tenant": "X-OJS-Tenant", "x-ojs-tenant-id": "X-OJS-Tenant-ID"}
# Fields with the name of a queue, several names, or an object by name.
QUEUE_FIELDS = frozenset(
    {"queue", "queues", "target_queue", "dead_letter_queue", "rung", "by_queue"}
)
# Query parameters with names of queues, separated by commas.
QUERY_FIELDS = frozenset({"queue", "queues", "target_queue"})
# Fields with the content of the client.
CONTENT = frozenset(
    {
        "args", "checkpoint", "data", "details", "errors", "info", "last_checkpoint", "meta",
        "metadata", "parent_errors", "parent_results", "parent_results_by_step", "payload",
        "result", "schema", "state", "suspend", "value",
    }
)  # fmt: skip
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
# Translates a name. The first argument is its path in the request.
_Name = Callable[[str, str], str]


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
    name = _storing(tenant)
    if path is not None and operation.subject in _SUBJECTS:
        path = name(operation.path_parameter or "", unquote(path))
    query = dict(query)
    for key in QUERY_FIELDS & query.keys():
        query[key] = ",".join(name(key, each) if each else each for each in query[key].split(","))
    kind, _, queue = query.get("channel", "").partition(":")
    if kind == "queue" and queue:
        query["channel"] = f"queue:{name('channel', queue)}"
    return path, query


def read_body_names(body: dict[str, Any], operation: Operation, tenant: str) -> Any:
    """Return the body of a request with the stored names. Jobs without a queue get the default."""
    name, queue = _storing(tenant), qualified(tenant, DEFAULT_QUEUE)
    model = "" if operation.request is None else operation.request.__name__
    found = _walked(body, name, QUEUE_FIELDS, CONTENT)
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


def _storing(tenant: str) -> _Name:
    def change_name(path: str, value: str) -> str:
        if (there := get_tenant(value)) is None:
            return qualified(tenant, value)
        if there != tenant:
            raise InvalidRequest(path, "must be a name without the prefix of a tenant", value=value)
        return value

    return change_name


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
        fields |= {"cron_name", "subject"}
    if not path.endswith("/progress"):
        content -= {"data"}
    if isinstance(body, str):
        return "\n".join(_line_out(line, fields, content, tenant) for line in body.split("\n"))
    return _walked(body, _showing(tenant), fields, content, tenant)


def render_text(text: str, tenant: str) -> str:
    """Return a text of a response, for example a message or a header, with the local names."""
    for mark in (":", "|", "%3A"):
        text = text.replace(f"{tenant}{mark}", "")
    return text


def _line_out(line: str, fields: frozenset[str], content: frozenset[str], tenant: str) -> str:
    """Translate a line of server-sent events."""
    start, data, text = line.partition("data: ")
    if start or not data:
        return line
    found = _walked(jsontext.loads(text.encode()), _showing(tenant), fields, content, tenant)
    return data + jsontext.dumps(found)


def _showing(tenant: str) -> _Name:
    prefix = qualified(tenant, "")

    def change_name(_path: str, value: str) -> str:
        return value.removeprefix(prefix) if get_tenant(value) == tenant else value

    return change_name


def _walked(
    value: Any,
    name: _Name,
    fields: frozenset[str],
    content: frozenset[str],
    tenant: str | None = None,
    path: str = "",
) -> Any:
    """Return the value with translated names. With `tenant`, texts of errors are translated too."""
    if isinstance(value, list):
        parts = enumerate(value)
        return [_walked(e, name, fields, content, tenant, f"{path}[{at}]") for at, e in parts]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, each in value.items():
        place = f"{path}.{key}" if path else key
        if tenant is not None and _is_told(key, each):
            found[key] = _texts_out(each, tenant)
        elif tenant is not None and key == "meta" and isinstance(each, dict):
            found[key] = _meta_out(each, name)
        elif key in content:
            found[key] = each
        elif key in fields and isinstance(each, str):
            found[key] = name(place, each)
        elif key in fields and isinstance(each, list):
            found[key] = [
                name(f"{place}[{at}]", e)
                if isinstance(e, str)
                else _walked(e, name, fields, content, tenant, f"{place}[{at}]")
                for at, e in enumerate(each)
            ]
        elif key in ("queues", "by_queue") and isinstance(each, dict):
            found[key] = {
                name(place, k): _walked(e, name, fields, content, tenant, f"{place}.{k}")
                for k, e in each.items()
            }
        else:
            found[key] = _walked(each, name, fields, content, tenant, place)
    return found


def _meta_out(meta: dict[str, Any], name: _Name) -> dict[str, Any]:
    """Translate the names that the server wrote to the `meta` of a job."""
    found = dict(meta)
    if isinstance(cron := meta.get("cron_name"), str):
        found["cron_name"] = name("", cron)
    origin = meta.get(COPY_META)
    if isinstance(origin, dict) and isinstance(queue := origin.get("source_queue"), str):
        found[COPY_META] = {**origin, "source_queue": name("", queue)}
    return found


def _is_told(key: str, value: Any) -> bool:
    """Return whether a field of a response has texts of this server: an error, or warnings."""
    if key in ("error", "fetch_error"):
        # The stored error of a job is the client's.
        return isinstance(value, dict) and "retryable" in value and "occurred_at" not in value
    return key in ("warnings", "source")


def _texts_out(value: Any, tenant: str) -> Any:
    if isinstance(value, str):
        return render_text(value, tenant)
    if isinstance(value, list):
        return [_texts_out(each, tenant) for each in value]
    if isinstance(value, dict):
        return {render_text(key, tenant): _texts_out(each, tenant) for key, each in value.items()}
    return value
