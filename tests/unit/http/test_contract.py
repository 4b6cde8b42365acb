"""The table of operations, and that handlers and the OpenAPI document follow it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from ojs.api import openapi, rate_limits
from ojs.api import operations as contract
from ojs.api import queues as queue_configs
from ojs.domain import errors, jsontext, schemas, tenant_limits, webhooks
from ojs.domain.cron.definition import CronRequest, CronSettings
from ojs.domain.delivery import delivery as deliveries
from ojs.domain.delivery.delivery import DeliveryRequest, DeliveryTestRequest
from ojs.domain.job import envelope
from ojs.domain.pool import pool as pools
from ojs.domain.pool.pool import PoolRequest
from ojs.domain.pool.worker import STOPPING
from ojs.domain.queue import config as queue_config
from ojs.domain.rate_limit.limiter import OverrideRequest
from ojs.domain.workflow import request as workflow_request
from ojs.http import endpoint, models
from ojs.http.binding import errors as http_errors

ROOT = Path(__file__).parents[3]
IDS = [operation.id for operation in contract.OPERATIONS]


def test_operations_and_routes_are_unique() -> None:
    assert len(set(IDS)) == len(IDS)
    routes = {(operation.method, operation.path) for operation in contract.OPERATIONS}
    assert len(routes) == len(IDS)


@pytest.mark.parametrize("operation", contract.OPERATIONS, ids=IDS)
def test_an_operation_is_served_where_its_path_is_dispatched(operation: endpoint.Operation) -> None:
    path = operation.path.replace("{id}", "x").replace("{name}", "x")
    assert endpoint.function_for(path) == operation.function
    assert contract.at(path)[operation.method] is operation
    assert (operation.path_parameter is None) == (operation.subject is None)


@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("/ojs/v1/jobs", "jobs"),
        ("/ojs/v1/jobs/", "jobs"),
        ("/ojs/v1/jobs/a/b", "jobs"),
        ("/ojs/v1/jobsx", "admin"),
        ("/ojs/v1/workers", "workers"),
        ("/ojs/v1/workers/fetch", "workers"),
        ("/ojs/v1/admin/workers", "admin"),
        ("/", "admin"),
        ("", "admin"),
    ],
)
def test_every_path_has_a_function(path: str, function: str) -> None:
    assert endpoint.function_for(path) == function


@pytest.mark.parametrize("function", endpoint.HTTP_FUNCTIONS)
def test_a_function_serves_all_its_operations(function: str) -> None:
    handler = importlib.import_module(f"functions.{function}.handler").handler
    expected = {each.id for each in contract.OPERATIONS if each.function == function}
    assert handler.function == function
    assert handler._bound.keys() == expected


def test_the_document_describes_what_is_served_and_nothing_else() -> None:
    document = openapi.document("1")
    described = {
        (method.upper(), path): operation["operationId"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert described == {(op.method, op.path): op.id for op in contract.OPERATIONS}


def refs(part: Any) -> set[str]:
    if isinstance(part, dict):
        inside = {ref for value in part.values() for ref in refs(value)}
        return inside | ({part["$ref"]} if isinstance(part.get("$ref"), str) else set())
    if isinstance(part, list):
        return {ref for value in part for ref in refs(value)}
    return set()


def test_every_reference_in_the_document_leads_somewhere() -> None:
    document = openapi.document("1")
    used = refs(document)
    for ref in used:
        at: Any = document
        for key in ref.removeprefix("#/").split("/"):
            at = at[key]
    schemas = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert schemas <= used
    jsontext.dumps(document)


# Requests that the domain reads itself.
READ_BY: dict[Any, Callable[[Any], Any]] = {
    PoolRequest: partial(pools.parse, "general"),
    DeliveryRequest: partial(deliveries.parse, None),
    DeliveryTestRequest: DeliveryTestRequest.model_validate,
    **{
        each: partial(webhooks.parse, each)
        for each in (webhooks.SubscriptionRequest, webhooks.SubscriptionChange)
    },
    webhooks.SecretRequest: webhooks.SecretRequest.model_validate,
    tenant_limits.TenantRequest: partial(tenant_limits.parse, "acme"),
    tenant_limits.TenantChange: tenant_limits.TenantChange.model_validate,
    **{
        each: each.model_validate
        for each in (schemas.SchemaRequest, schemas.SchemaRegistration, schemas.SchemaModeRequest)
    },
    CronRequest: CronSettings.read,
    models.WorkflowRequest: partial(workflow_request.parse, now_ms=0),
}


@pytest.mark.parametrize("operation_id", openapi.EXAMPLES)
def test_request_examples_are_right(operation_id: str) -> None:
    operation, example = contract.get(operation_id), openapi.EXAMPLES[operation_id]
    read = jsontext.loads(jsontext.dumps(example))
    if operation.request in (models.BatchRequest, models.BulkPushRequest):
        for job in read["jobs"]:
            envelope.resolve(envelope.parse(job), now_ms=0)
    elif operation.request is envelope.JobRequest:
        envelope.resolve(envelope.parse(read), now_ms=0)
    elif operation.request is models.CreateQueueRequest:
        queue_config.parse(queue_configs.to_create(read)[1])
    elif operation.request is models.ConfigureQueueRequest:
        queue_config.parse(read, policy=operation_id == "set_queue_policy")
    elif operation.request is OverrideRequest:
        rate_limits.to_override(read, now_ms=0)
    elif operation.request in READ_BY:
        READ_BY[operation.request](read)
    else:
        assert operation.request is not None
        assert issubclass(operation.request, models.RequestModel)
        models.parse(operation.request, read)


def test_every_request_has_an_example() -> None:
    assert openapi.EXAMPLES.keys() == {op.id for op in contract.OPERATIONS if op.request}


def subclasses(kind: type[errors.OjsError]) -> set[type[errors.OjsError]]:
    return {kind}.union(*(subclasses(one) for one in kind.__subclasses__()))


def test_every_error_has_a_status_that_the_document_knows() -> None:
    document = openapi.document("1", "keys")
    documented = {
        int(status)
        for methods in document["paths"].values()
        for operation in methods.values()
        for status in operation["responses"]
    }
    for kind in subclasses(errors.OjsError):
        answered = http_errors.KINDS[kind.code]
        assert answered.status in documented | {405}
        assert answered.docs_url.startswith("https://openjobspec.org/")
        assert answered.hint


def test_names_of_states_are_those_of_the_domain() -> None:
    assert set(get_args(models.WorkerState)) == STOPPING | {"running"}


def test_a_container_loads_no_more_than_it_needs() -> None:
    """A cold start pays for every import: nothing that only the OpenAPI document needs."""
    code = (
        "import sys, functions.jobs.handler, functions.workers.handler, functions.admin.handler\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": "shared:.", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    unwanted = {
        "ojs.api.openapi",
        "aws_xray_sdk",
        "jsonschema",
        "local",
    }
    assert not unwanted & set(loaded)
