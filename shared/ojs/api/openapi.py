"""Builds the OpenAPI 3.1 document from the operations, request models, and response types.

Each container builds it once, at the first request for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from inspect import cleandoc
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ojs.api.bulk import FinalState, JobAction
from ojs.api.crons import CronState
from ojs.api.operations import OPERATIONS
from ojs.api.queue_config import ConfigSource
from ojs.api.system import AuthorizerName
from ojs.api.workflows import StepState
from ojs.domain import tenant_limits, tenants, webhooks
from ojs.domain.access import KEY_ID, Scope
from ojs.domain.bulk.operation import Phase
from ojs.domain.cron.definition import OverlapName, OverlapPolicy
from ojs.domain.delivery import delivery as deliveries
from ojs.domain.fair_queue import tags
from ojs.domain.ids import UUID7
from ojs.domain.job import envelope, retry
from ojs.domain.job.durable import NAME, STEP_NAME, OutcomeKind, Resumption
from ojs.domain.job.retention import PruningPolicy
from ojs.domain.job.states import State
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import SHOWN_BACK, PoolRequest
from ojs.domain.pool.worker import Directive
from ojs.domain.queue.config import OverflowPolicy
from ojs.domain.queue.queue import DeletionStrategy, QueueState
from ojs.domain.rate_limit import limiter as limits
from ojs.domain.requests import Model, RequestField, split
from ojs.domain.workflow.advance import WorkflowState
from ojs.domain.workflow.graph import Callback, StepTrigger
from ojs.http import models
from ojs.http.answer import Answer, fields, is_kept
from ojs.http.answers import ErrorAnswer
from ojs.http.binding import errors, negotiation
from ojs.http.endpoint import PARAMETER, Operation, Parameter
from ojs.http.parameters import POOL_SCHEMA, PRODUCER, QUEUE_SCHEMA, text

# Statuses of all operations: an invalid request, an unsupported version, or a DynamoDB failure.
COMMON_ERRORS = (400, 422, 500, 503, 504)
_REF = "#/components/schemas/{model}"

# Status → name and description of the response.
_ERRORS = {
    400: ("BadRequest", "A field, the body, a header, or a parameter is invalid."),
    401: ("Unauthenticated", "The access key is missing or invalid."),
    403: (
        "Forbidden",
        "The key doesn't allow the operation, or the queue doesn't allow the producer.",
    ),
    404: (
        "NotFound",
        "The job, workflow, queue, worker, pool, delivery, key, or route doesn't exist.",
    ),
    409: (
        "Conflict",
        "The resource is in a different state or already exists. Nothing was changed.",
    ),
    410: ("Gone", "The result of the job has expired."),
    412: (
        "PreconditionFailed",
        "The configuration doesn't have the version in If-Match. Nothing was changed.",
    ),
    413: ("TooLarge", "The job, the result, or the request is too large."),
    422: (
        "Unprocessable",
        "The request breaks a rule of a policy, or is not supported by this server.",
    ),
    429: (
        "QueueFull",
        "A queue is full, or a limit of the key or the tenant is reached. Nothing was stored.",
    ),
    500: ("InternalError", "An internal error."),
    501: ("NotImplemented", "This server doesn't have this optional part of the operation."),
    503: (
        "Unavailable",
        "DynamoDB throttles requests or can't be reached. Retry after `Retry-After` seconds.",
    ),
    504: ("Timeout", "The storage service did not respond in time. The outcome is unknown."),
}

_HEADERS: Mapping[str, tuple[dict[str, Any], str]] = {
    "OJS-Version": ({"type": "string", "const": negotiation.VERSION}, "version that was served"),
    "X-Request-Id": ({"type": "string"}, "the client's id for the request, or one made for it"),
    "X-OJS-Version": ({"type": "string", "const": negotiation.VERSION}, "the same as OJS-Version"),
    "X-OJS-Media-Type": ({"type": "string", "const": negotiation.MEDIA_TYPE}, "OJS's media type"),
    "Location": (
        {"type": "string"},
        "path of the new job, queue, pool, delivery, cron job, workflow or key",
    ),
    "ETag": (
        {"type": "string"},
        "version of the configuration, for If-Match; counts and states are not part of it",
    ),
    "Retry-After": ({"type": "integer", "minimum": 1}, "seconds to wait before a retry"),
    "X-OJS-Queue-Depth": (
        {"type": "integer", "minimum": 0},
        "number of jobs in the queue that are not final, or their bytes if the limit is in bytes",
    ),
    "X-OJS-Queue-Bound": ({"type": "integer", "minimum": 1}, "how many there may be"),
    "X-OJS-Queue-Pressure": (
        {"type": "number", "minimum": 0, "maximum": 1},
        "depth divided by bound, beyond the queue's warning threshold; of several the fullest",
    ),
    "X-OJS-Batch-Size": ({"type": "integer", "minimum": 1}, "jobs in the request"),
    "X-OJS-Limit-Clamped": ({"type": "string", "const": "true"}, "limit was above the maximum"),
    "X-OJS-Max-Batch-Size": ({"type": "integer"}, "how many jobs one request may have"),
    "X-RateLimit-Limit": (
        {"type": "integer", "minimum": 0},
        "of a job with a rate limit: how many may start, by the one of its limits with least room",
    ),
    "X-RateLimit-Remaining": ({"type": "integer", "minimum": 0}, "how many of these may start now"),
    "X-RateLimit-Reset": (
        {"type": "integer", "minimum": 0},
        "when one more may start: seconds since the epoch",
    ),
}
_ALWAYS = ("OJS-Version", "X-Request-Id", "X-OJS-Version", "X-OJS-Media-Type")

_JOB_ID = "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"
# Second parameters in paths.
_BESIDE: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "step": ({"type": "string", "pattern": STEP_NAME.pattern}, "the step's name"),
    "signal": ({"type": "string", "pattern": NAME.pattern}, "the signal's name"),
    "version": ({"type": "string", "pattern": envelope.VERSION.pattern}, "the schema's version"),
}
_PATH_PARAMETERS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "job": ({"type": "string", "pattern": UUID7.pattern}, "the job's id"),
    "operation": ({"type": "string", "pattern": UUID7.pattern}, "the operation's id"),
    "action": ({"type": "string", "pattern": UUID7.pattern}, "the action's id"),
    "worker": (models.WORKER_ID_SCHEMA, "the worker's id"),
    "queue": (QUEUE_SCHEMA, "the queue's name"),
    "pool": (POOL_SCHEMA, "the worker pool's name"),
    "delivery": (
        text(deliveries.DELIVERY_PATTERN, deliveries.MAX_DELIVERY_BYTES),
        "the delivery's name",
    ),
    "schema": ({"type": "string", "maxLength": 2_048}, "the job type, or the URI of a schema"),
    "subscription": (
        {"type": "string", "pattern": deliveries.SUBSCRIPTION_ID.pattern},
        "the subscription's id",
    ),
    "tenant": ({"type": "string", "pattern": tenants.ID_PATTERN}, "the tenant's id"),
    "key": ({"type": "string", "pattern": KEY_ID.pattern}, "the access key's id"),
    "cron job": (QUEUE_SCHEMA, "the cron job's name"),
    "workflow": ({"type": "string", "pattern": UUID7.pattern}, "the workflow's id"),
    "rate limit": (
        {"type": "string", "pattern": limits.KEY_PATTERN, "maxLength": limits.MAX_KEY + 6},
        "the rate limit's key; `queue:` and a queue's name for limits that name none",
    ),
}

# Rules that `ojs.domain.job.envelope` checks in code, so its types don't express them:
# type → field → JSON Schema keywords. A test compares them with the checks.
_DURATION = (
    r"P(?=.)(\d+(\.\d+)?W|(\d+(\.\d+)?D)?"
    r"(T(?=.)(\d+(\.\d+)?H)?(\d+(\.\d+)?M)?(\d+(\.\d+)?S)?)?)"
)
_RFC3339 = r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})"
_MOMENT = {
    "pattern": rf"{_RFC3339}|\+{_DURATION}",
    "maxLength": 65,
    "description": "RFC 3339 with a time zone, or '+' and an ISO 8601 duration from now",
}
_SHORT = r"(?=.)(\d{1,9}d)?(\d{1,9}h)?(\d{1,9}m)?(\d{1,9}s)?(\d{1,9}ms)?"
_LENGTH = {"pattern": f"{_SHORT}|{_DURATION}", "maxLength": 64}
# A segment of a path in a dead letter filter (`ojs.domain.filters.dead_letters`).
_STEP = (
    r"\.(\*|[^0-9.\[=*\s][^.\[=]*)"
    r"|\[(\*|-?\d{1,9}|\"([^\"\\]|\\.)*\"|'([^'\\]|\\.)*')\]"
)
_FILTER: Mapping[str, Mapping[str, Any]] = {
    "since": {"pattern": _RFC3339},
    "until": {"pattern": _RFC3339},
    "before": {"pattern": _RFC3339},
    "older_than": {"pattern": f"{_RFC3339}|{_SHORT}|{_DURATION}"},
    "args": {"pattern": rf"[^$][\s\S]*|\$({_STEP})*(=[\s\S]*)?"},
}
_TIMING: Mapping[str, Mapping[str, Any]] = {
    "scheduled_at": _MOMENT,
    "delay_until": _MOMENT,
    "expires_at": _MOMENT,
}
_FIELD_RULES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "JobRequest": {
        **_TIMING,
        "specversion": {"pattern": r"1(\.0(\.[0-9]{1,3})?(-rc\.[0-9]{1,3})?)?"},
        "schema": {"pattern": r"[A-Za-z][A-Za-z0-9+.\-]*:\S+", "maxLength": envelope.MAX_URI},
        "args": {"description": f"the job in all has at most {envelope.MAX_JOB_BYTES} bytes"},
        "meta": {"description": f"at most {envelope.MAX_META_BYTES} bytes"},
    },
    "CronRequest": {"starts_at": {"pattern": _RFC3339}, "ends_at": {"pattern": _RFC3339}},
    "Options": _TIMING,
    "RetryRequest": {
        "initial_interval": _LENGTH,
        "max_interval": _LENGTH,
    },
    "UniqueRequest": {"period": _LENGTH, "within": _LENGTH},
    "ConfigureQueueRequest": {
        "dead_letter_ttl": _LENGTH,
        "allowed_job_types": {
            "items": {
                "type": "string",
                "minLength": 1,
                "maxLength": envelope.MAX_NAME_BYTES,
                "pattern": r"[a-z0-9_\-.*]+",
            }
        },
        "producers": {"items": PRODUCER.schema},
    },
    "QueueRateLimit": {"period": _LENGTH},
    "StartsRequest": {"period": _LENGTH},
    # For the array form. The names of an object are always unique.
    "PoolRequest": {"queues": {"uniqueItems": True}},
    "StarvationPreventionRequest": {"rotation_interval": _LENGTH},
    "RateLimitRequest": {
        "key": {"pattern": limits.KEY_PATTERN},
        "period": {"pattern": f"second|minute|hour|day|{_LENGTH['pattern']}", "maxLength": 64},
    },
    "OverrideRequest": {"expires_at": _MOMENT, "period": _LENGTH},
    "FilterRequest": _FILTER,
    "PurgeDeadLettersRequest": _FILTER,
    "ErrorReport": {"rate_limit_until": _MOMENT},
    "DeadLetterRetentionRequest": {"max_age": _LENGTH},
    "ReplayRuleRequest": {"delay": _LENGTH},
    "RetentionRequest": {"completed": _LENGTH, "discarded": _LENGTH, "cancelled": _LENGTH},
}
# `UniqueRequest`: if `keys` contains `meta`, `meta_keys` is required.
_META_KEYS = {
    "if": {
        "required": ["keys"],
        "properties": {"keys": {"type": "array", "contains": {"const": "meta"}}},
    },
    "then": {"required": ["meta_keys"], "properties": {"meta_keys": {"type": "array"}}},
}
# `CreateQueueRequest`: the configuration is under `config`, or at the same level as the name.
_CONFIGURATION = {"$ref": _REF.format(model=models.ConfigureQueueRequest.__name__)}
_CONFIG_UNDER_OR_BESIDE = {
    "properties": {
        "config": {"anyOf": [_CONFIGURATION, {"type": "null"}]},
    },
    "additionalProperties": False,
    "if": {"required": ["config"], "properties": {"config": {"not": {"type": "null"}}}},
    "then": {
        "properties": {name: {"type": "null"} for name in models.QUEUE_FIELDS}
    },
}  # fmt: skip


def _present(name: str) -> dict[str, Any]:
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


# `RateLimitRequest`: if `rate` is a number, `period` is a separate field. An object contains it.
_RATE_LIMIT: dict[str, Any] = {
    "anyOf": [
        _present(name) for name in ("key", "concurrency", "rate", "max_per_second", "throttle")
    ],
    "not": {"allOf": [_present("rate"), _present("max_per_second")]},
    "if": {"required": ["rate"], "properties": {"rate": {"type": "integer"}}},
    "then": _present("period"),
    "else": {"properties": {"period": {"type": "null"}}},
}
_SHOWN_BACK = {"description": "as shown; without effect, but a name must be that of the path"}
_AS_SHOWN = {"description": "as shown; without effect"}
_SUBSCRIPTION = {"properties": dict.fromkeys(sorted(webhooks.SHOWN_BACK), _AS_SHOWN)}
_TYPE_RULES: Mapping[str, dict[str, Any]] = {
    "RateLimitRequest": _RATE_LIMIT,
    "OverrideRequest": {
        "anyOf": [{"required": [name]} for name in ("concurrency", "rate", "throttle", "limit")],
        "dependentRequired": {"limit": ["period"], "period": ["limit"]},
        "not": {"required": ["limit", "rate"]},
        "properties": {
            "limit": {"type": "integer", "minimum": 1, "maximum": limits.MAX_RATE},
            "period": {"type": "string", **_LENGTH},
        },
    },
    "UniqueRequest": _META_KEYS,
    "CreateQueueRequest": _CONFIG_UNDER_OR_BESIDE,
    "PoolRequest": {"properties": dict.fromkeys(sorted(SHOWN_BACK), _SHOWN_BACK)},
    "DeliveryRequest": {
        "properties": dict.fromkeys(sorted(deliveries.SHOWN_BACK - {"name"}), _SHOWN_BACK)
    },
    "TenantRequest": {"properties": dict.fromkeys(sorted(tenant_limits.SHOWN_BACK), _SHOWN_BACK)},
    "SubscriptionRequest": _SUBSCRIPTION,
    "SubscriptionChange": _SUBSCRIPTION,
}

# Operation ID → example of a request.
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    **{each.id: each.example for each in OPERATIONS if each.example is not None},
}

_ERROR_EXAMPLE = {
    "error": {
        "code": "not_found",
        "type": "not_found",
        "message": f"Job '{_JOB_ID}' not found.",
        "retryable": False,
        "details": {"resource": "job", "id": _JOB_ID},
        "hint": errors.KINDS["not_found"].hint,
        "docs_url": errors.KINDS["not_found"].docs_url,
        "request_id": "req_019414d4-0001-7000-a000-000000000001",
        "catalog_code": errors.KINDS["not_found"].catalogue,
    }
}


@cache
def document(version: str, authorizer: str = "none") -> dict[str, Any]:
    """Build the document for a version and an authorizer (`ojs.settings`)."""
    schemas: dict[str, Any] = {}
    _named(ErrorAnswer, schemas)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        described = _operation(operation, schemas, closed=authorizer != "none")
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Open Job Spec on AWS",
            "version": version,
            "summary": "An Open Job Spec backend: API Gateway, Lambda and one DynamoDB table.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in sorted({each.tag for each in OPERATIONS})],
        "paths": paths,
        "components": {
            "schemas": {name: _shared(schema) for name, schema in schemas.items()}
            | {name: {**schema, "title": name} for name, schema in _SHARED.items()},
            "headers": {name: _header(name, required=True) for name in _HEADERS},
            "responses": {name: _error(status) for status, (name, _) in _ERRORS.items()},
            **_SCHEMES[authorizer],
        },
    }


def _one_of(members: Any) -> dict[str, Any]:
    """Build the schema of a string with the values of a Literal or an enumeration."""
    return {"type": "string", "enum": [str(each) for each in get_args(members) or members]}


# Schemas that are used in several places, or that can be null. Each is a separate type, so that a
# generated client has one type with this name. A test detects missing entries.
_SHARED: Mapping[str, Mapping[str, Any]] = {
    "JsonObject": {"type": "object", "additionalProperties": True},
    "JobStateName": _one_of(State),
    "FinalStateName": _one_of(FinalState),
    "QueueStateName": _one_of(QueueState),
    "WorkerStateName": _one_of(models.WorkerState),
    "OperationStateName": _one_of(Phase),
    "JobAction": _one_of(JobAction),
    "Directive": _one_of(Directive),
    "KeepOrClear": _one_of(Resumption),
    "OutcomeKind": _one_of(OutcomeKind),
    "DispatchStrategy": _one_of(DispatchStrategy),
    "DeletionStrategy": _one_of(DeletionStrategy),
    "OverflowPolicy": _one_of(OverflowPolicy),
    "PruningPolicy": _one_of(PruningPolicy),
    "ConfigSource": _one_of(ConfigSource),
    "BackoffStrategy": _one_of(envelope.Backoff),
    "OnExhaustion": _one_of(retry.OnExhaustion),
    "OnConflict": _one_of(envelope.OnConflict),
    "OnLimit": _one_of(limits.OnLimit),
    "DeliveryForm": _one_of(deliveries.Form),
    "CronStateName": _one_of(CronState),
    "CronOverlap": _one_of(OverlapPolicy),
    "CronOverlapName": _one_of(OverlapName),
    "TenantFairnessStrategy": _one_of((tags.FAIR_SHARE,)),
    "WorkflowKind": _one_of(models.WorkflowKind),
    "WorkflowStateName": _one_of(WorkflowState),
    "StepStateName": _one_of(StepState),
    "StepTrigger": _one_of(StepTrigger),
    "StepCallback": _one_of(Callback),
    "RetryModeName": _one_of(models.RetryModeName),
    "UniqueKey": _one_of(envelope.Dimension),
    "AccessScope": _one_of(Scope),
    "AuthorizerName": _one_of(AuthorizerName),
}
_ANNOTATIONS = frozenset({"title", "description", "default"})


def _schema_signature(schema: Mapping[str, Any]) -> str:
    """Return a comparable text of a schema, without annotations and with sorted values."""
    said = {word: schema[word] for word in sorted(schema) if word not in _ANNOTATIONS}
    return repr(
        said | ({"enum": sorted(said["enum"])} if isinstance(said.get("enum"), list) else {})
    )


_NAMES = {_schema_signature(schema): name for name, schema in _SHARED.items()}


def _shared(schema: Any) -> Any:
    """Replace each part of a schema that equals a type of `_SHARED` with a reference."""
    if isinstance(schema, list):
        return [_shared(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    if (name := _NAMES.get(_schema_signature(schema))) is None:
        return {word: _shared(value) for word, value in schema.items()}
    about = {word: schema[word] for word in ("description", "default") if word in schema}
    return {"$ref": _REF.format(model=name), **about}


# Authorizer → security schemes.
_SCHEMES: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "keys": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    "jwt": {
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}}
    },
    "iam": {
        "securitySchemes": {
            "key": {
                "type": "apiKey",
                "in": "header",
                "name": "Authorization",
                "description": "AWS Signature Version 4 for the service `execute-api`",
            }
        }
    },
}


def _operation(operation: Operation, schemas: dict[str, Any], *, closed: bool) -> dict[str, Any]:
    """Describe an operation and define its types.

    Args:
        operation: The operation to describe.
        schemas: Schemas by name. The types of the operation are added.
        closed: Whether callers must authenticate.
    """
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
    }
    if parameters := [
        *_path_parameters(operation),
        *(_parameter(each, "query") for each in operation.query),
        *(_parameter(each, "header") for each in operation.headers),
    ]:
        described["parameters"] = parameters
    if operation.request is not None:
        _define_request(operation.request, schemas)
        content: dict[str, Any] = {
            "schema": _body(operation.request.__name__, schemas),
            "example": EXAMPLES[operation.id],
        }
        # One media type. For two, client generators create two bodies, or invalid code.
        described["requestBody"] = {
            "description": f"Also taken as `{negotiation.MEDIA_TYPE}`.",
            "required": operation.body_required,
            "content": {negotiation.JSON: content},
        }
    responses: dict[str, Any] = {}
    for status, success in operation.answers.items():
        tagged = operation.versioned and success.shape and "etag" in dict(fields(success.shape))
        named = (*_ALWAYS, *success.headers, *(("ETag",) if tagged else ()))
        responses[str(status)] = {
            "description": success.description,
            "headers": _headers(named) | _sometimes(success.sometimes),
        }
        if success.shape is not None:
            ref = _named(success.shape, schemas)["$ref"]
            responses[str(status)]["content"] = _content(ref)
        if success.text:
            content = responses[str(status)].setdefault("content", {})
            content[success.text_type] = {"schema": {"type": "string"}}
    for status in (*operation.errors, *COMMON_ERRORS, *((401, 403, 429) if closed else ())):
        # A failed health check has its own body.
        ref = f"#/components/responses/{_ERRORS[status][0]}"
        responses.setdefault(str(status), {"$ref": ref})
    described["responses"] = dict(sorted(responses.items()))
    if closed:
        scope = operation.permission.scope
        scopes = () if scope is None else (scope, *operation.permission.others)
        described["security"] = [{"key": [each.value]} for each in scopes] or [{"key": []}]
    return described


# Request for one job → field of the batched form, and the batched request.
MANY: Mapping[str, tuple[str, type[models.RequestModel]]] = {
    models.AckRequest.__name__: ("acks", models.AcksRequest),
    models.NackRequest.__name__: ("nacks", models.NacksRequest),
}


def _body(model: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """Build the schema of a body. If the body has two forms, each is a named type."""
    ref = {"$ref": _REF.format(model=model)}
    if model == models.RegisterRequest.__name__:
        # `ojs.http.models.registration`
        name, other = "worker", "WrappedRegisterRequest"
        schemas[other] = _wrapper(other, {name: ref})
        one: dict[str, Any] = {"required": [name]}
    elif model == PoolRequest.__name__:
        # `ojs.domain.pool.pool.parse`
        name, other = "pool", "WrappedPoolRequest"
        beside: dict[str, Any] = {name: {} for name in (*PoolRequest.model_fields, *SHOWN_BACK)}
        schemas[other] = _wrapper(other, {**beside, name: ref}) | {"additionalProperties": False}
        one = {"required": [name], "properties": {name: {"type": "object"}}}
    elif (many := MANY.get(model)) is not None:
        _define_request(many[1], schemas)
        other, one = many[1].__name__, _present(many[0])
    else:
        return ref
    return {"oneOf": [{**ref, "not": one}, {"$ref": _REF.format(model=other)}]}


def _wrapper(title: str, properties: dict[str, Any]) -> dict[str, Any]:
    """Build the schema of an object whose last property is required."""
    return {
        "type": "object",
        "title": title,
        "properties": properties,
        "required": [[*properties][-1]],
    }


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    if operation.path_parameter is None or operation.subject is None:
        return []
    parameter = Parameter(operation.path_parameter, *_PATH_PARAMETERS[operation.subject])
    found = [parameter]
    found += [Parameter(name, *_BESIDE[name]) for name in PARAMETER.findall(operation.path)[1:]]
    return [{**_parameter(each, "path"), "required": True} for each in found]


def _parameter(parameter: Parameter, place: str) -> dict[str, Any]:
    described = {
        "name": parameter.name,
        "in": place,
        "schema": _anchored(parameter.schema),
        "description": parameter.description,
    }
    # A parameter without a value is ignored.
    return {**described, "allowEmptyValue": True} if place == "query" else described


def _headers(names: tuple[str, ...]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _header(name: str, *, required: bool) -> dict[str, Any]:
    schema, text = _HEADERS[name]
    return {"schema": schema, "description": text, "required": required}


def _sometimes(names: tuple[str, ...]) -> dict[str, Any]:
    # A reference can't mark a header as optional.
    return {name: _header(name, required=False) for name in names}


def _content(ref: str, example: Any = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": ref}}
    if example is not None:
        content["example"] = example
    return {negotiation.MEDIA_TYPE: content, negotiation.JSON: content}


def _error(status: int) -> dict[str, Any]:
    extra = {503: ("Retry-After",)}
    # Optional, because a batch that can never fit doesn't get `Retry-After`, and only a full queue
    # has a depth.
    sometimes: dict[int, tuple[str, ...]] = {
        409: ("Retry-After",), 413: ("X-OJS-Max-Batch-Size",),
        429: ("Retry-After", "X-OJS-Queue-Depth", "X-OJS-Queue-Bound"),
    }  # fmt: skip
    example = _ERROR_EXAMPLE if status == 404 else None
    return {
        "description": _ERRORS[status][1],
        "headers": _headers((*_ALWAYS, *extra.get(status, ())))
        | _sometimes(sometimes.get(status, ())),
        "content": _content(_REF.format(model="ErrorAnswer"), example),
    }


def _define_request(model: type[Model], schemas: dict[str, Any]) -> None:
    """Add the schemas of a request and of its parts."""
    name = model.__name__
    if name in schemas:
        return
    schemas[name] = {}
    properties: dict[str, Any] = {}
    fields = {field.alias or at: field for at, field in model.resolved().items()}
    for key, field in fields.items():
        described = _type(field.annotation, schemas)
        if model.filled:
            # The field is omitted or has its type. It can't be null.
            members = [one for one in described.pop("anyOf", ()) if one.get("type") != "null"]
            several: dict[str, Any] = {"anyOf": members} if members else {}
            described = (members[0] if len(members) == 1 else several) | described
        elif not field.required and field.default not in (None, ()):
            described["default"] = field.default
        properties[key] = _bounded(described, field)
    if model is models.CreateQueueRequest:
        _define_request(models.ConfigureQueueRequest, schemas)
        properties |= schemas[models.ConfigureQueueRequest.__name__]["properties"]
    schema: dict[str, Any] = {
        "type": "object",
        "title": name,
        "description": cleandoc(model.__doc__ or ""),
        "properties": properties,
    }
    if required := [key for key, field in fields.items() if field.required]:
        schema["required"] = required
    if model.unknown != "ignored":
        schema["additionalProperties"] = model.unknown == "kept"
    if issubclass(model, models.RequestModel):
        for key, reason in model.not_offered.items():
            properties[key] = {
                "type": "null",
                "description": f"422 unless null: the field {reason}",
            }
        properties |= model.described.get("properties", {})
        schema |= {**model.described, "properties": properties}
    schemas[name] = _anchored(_checked_together(_completed(name, schema)))


# Keywords that define which fields depend on each other.
_TOGETHER = frozenset({"anyOf", "oneOf", "not", "dependentRequired", "if", "then", "else"})


def _checked_together(schema: dict[str, Any]) -> dict[str, Any]:
    """Move the rules of an object that concern several fields to `then`."""
    # Validators apply rules under `then`, and client generators ignore them. From `anyOf` next to
    # `properties`, a generator creates a type for each choice, without any of the fields.
    rules = {word: schema[word] for word in schema if word in _TOGETHER}
    fields = {word: schema[word] for word in schema if word not in _TOGETHER}
    return {**fields, "if": {}, "then": rules} if rules else fields


def _type(annotation: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Build the JSON schema of the type of a field."""
    kind, rules = split(annotation)
    origin, inner = get_origin(kind), get_args(kind)
    schema: dict[str, Any] = {}
    if origin is Union or origin is UnionType:
        choices = [_type(each, schemas) for each in inner]
        schema = {"anyOf": [each for one in choices for each in one.get("anyOf", [one])]}
    elif origin is Literal:
        constant = _JSON_TYPES[type(inner[0])]
        schema = {"const": inner[0], "type": constant} if constant != "string" else _one_of(inner)
    elif origin is list:
        schema = {"type": "array", "items": _type(inner[0], schemas)}
    elif origin is dict:
        schema = {"type": "object", "additionalProperties": _type(inner[1], schemas) or True}
        names = _type(inner[0], schemas)
        if names != {"type": "string"}:
            schema["propertyNames"] = names
    elif kind in _JSON_TYPES:
        schema = {"type": _JSON_TYPES[kind]}
    elif kind is not Any:
        schema = _named(kind, schemas)
    for rule in rules:
        if isinstance(rule, RequestField):
            schema = _bounded(schema, rule)
    return schema


_JSON_TYPES = {
    str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null",
}  # fmt: skip
_LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}


def _bounded(schema: dict[str, Any], field: RequestField) -> dict[str, Any]:
    """Add the bounds and the description of a field to its type."""
    # An optional field has its type or null. Only the type has rules.
    bounded = schema["anyOf"][0] if "anyOf" in schema else schema
    unit = _LENGTHS.get(str(bounded.get("type")), "")
    bounds = {
        "minimum": field.ge,
        "maximum": field.le,
        f"min{unit}": field.min_length,
        f"max{unit}": field.max_length,
    }
    bounded |= {word: value for word, value in bounds.items() if value is not None}
    described = {} if field.description is None else {"description": field.description}
    return {**schema, **described, **field.json_schema_extra}


def _named(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Define a class under its name, and return a reference, or the schema of a shared type."""
    name, about = kind.__name__, cleandoc(kind.__doc__ or "")
    if issubclass(kind, StrEnum):
        if _schema_signature(_one_of(kind)) in _NAMES:
            return _one_of(kind)
        schemas[name] = {**_one_of(kind), "title": name, "description": about}
    elif issubclass(kind, Model):
        _define_request(kind, schemas)
    else:
        _define_answer(kind, schemas)
    return {"$ref": _REF.format(model=name)}


def _define_answer(kind: type[Answer[Any]], schemas: dict[str, Any]) -> None:
    """Add the schemas of a response object and of its parts."""
    if kind.__name__ in schemas:
        return
    schemas[kind.__name__] = {}
    properties, required = {}, []
    for name, field in fields(kind):
        described = _type(field.annotation, schemas)
        choices = described.get("anyOf", [])
        for one in (described, *choices):
            if len(one.get("enum", ())) == 1:
                one["const"] = one.pop("enum")[0]
        named = [one for one in choices if one != {"type": "null"}] or [described]
        if len(named) > 1 or "$ref" not in named[0]:
            described = {"title": name.replace("_", " ").title(), **described}
        properties[name] = described | ({"description": field.says} if field.says else {})
        if not field.absent:
            required.append(name)
    schema: dict[str, Any] = {
        "type": "object",
        "title": kind.__name__,
        "description": cleandoc(kind.__doc__ or ""),
        "properties": properties,
    }
    if required:
        schema["required"] = required
    if is_kept(kind):
        schema["additionalProperties"] = True
    schemas[kind.__name__] = _anchored(_completed(kind.__name__, schema))


def _completed(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Add the rules of `_FIELD_RULES` and `_TYPE_RULES` to a type."""
    for field, keywords in _FIELD_RULES.get(name, {}).items():
        described = schema["properties"][field]
        described |= {word: keywords[word] for word in keywords if word == "description"}
        rules = {word: keywords[word] for word in keywords if word != "description"}
        # An optional field has its type or null. Only the type has rules.
        (described["anyOf"][0] if "anyOf" in described else described).update(rules)
    rules = _TYPE_RULES.get(name, {})
    named = {**schema.get("properties", {}), **rules.get("properties", {})}
    return schema | rules | ({"properties": named} if named else {})


def _anchored(schema: Any) -> Any:
    """Anchor all patterns. The server matches the full text, but JSON Schema searches in it."""
    if isinstance(schema, Mapping):
        anchored = {
            key: f"^({value})$"
            if key == "pattern" and isinstance(value, str) and not value.startswith("^")
            else _anchored(value)
            for key, value in schema.items()
        }
        return anchored | ({"format": "uuid"} if schema.get("pattern") == UUID7.pattern else {})
    if isinstance(schema, list):
        return [_anchored(part) for part in schema]
    return schema
