"""The OpenAPI document against what the server enforces: neither looser nor tighter."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ojs.api import bulk, openapi, rate_limits
from ojs.api import operations as contract
from ojs.api import queues as queue_configs
from ojs.domain import schemas, tenant_limits, webhooks
from ojs.domain.cron.definition import CronRequest, CronSettings
from ojs.domain.delivery import delivery as deliveries
from ojs.domain.delivery.delivery import DeliveryRequest, DeliveryTestRequest
from ojs.domain.errors import OjsError
from ojs.domain.filters import dead_letters as dead_letter_filter
from ojs.domain.filters import jobs as job_filter
from ojs.domain.job import envelope
from ojs.domain.job import failure as failures
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.pool import pool as pools
from ojs.domain.pool.pool import PoolRequest
from ojs.domain.pool.worker import MAX_ID_BYTES, check_worker_id
from ojs.domain.queue import config as queue_config
from ojs.domain.rate_limit.limiter import OverrideRequest
from ojs.domain.workflow import request as workflow_request
from ojs.http import models
from tests.spread import examples
from tests.unit.functions.bad_input import (
    EXAMPLES,
    REFUSED,
    SPREAD,
    UNKNOWN,
    WITH_BODY,
    WRONG,
    nearly_right,
    places,
    put,
    read_parts,
    validator,
)

if TYPE_CHECKING:
    from ojs.http.endpoint import Operation

NOW_MS = 1_900_000_000_000
DEAD = Job(UNKNOWN, "a", "q", State.DISCARDED, NOW_MS, content={"args": []})
BODIES = pytest.mark.parametrize("operation", WITH_BODY, ids=lambda operation: operation.id)


def described(operation_id: str, body: Any) -> bool:
    return bool(validator(operation_id).is_valid(body))


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


def accepted(operation: Operation, body: Any) -> bool:
    """Whether the checks of a body, as the handlers and use cases make them, let it pass."""
    try:
        read = json.loads(json.dumps(body))
        model = operation.request
        if model is models.BulkPushRequest:
            models.BulkOptions.model_validate(read)
        if model in (models.BatchRequest, models.BulkPushRequest, envelope.JobRequest):
            jobs = [read] if model is envelope.JobRequest else read["jobs"]
            for job in jobs:
                envelope.resolve(envelope.parse(job), now_ms=0)
            return isinstance(jobs, list) and 1 <= len(jobs) <= envelope.MAX_BATCH
        if operation.id.endswith(("_queue", "_policy", "_limit", "_override")) and (
            model not in (models.NoOptions, models.DeleteQueueRequest)
        ):
            check_configuration(operation, read)
        elif (read_by := READ_BY.get(model)) is not None:
            read_by(read)
        elif model is models.RegisterRequest:
            models.parse(models.RegisterRequest, *models.registration(read))
        else:
            assert model is not None
            assert issubclass(model, models.RequestModel)
            one_of = openapi.MANY.get(model.__name__)
            if one_of is not None and read.get(one_of[0]) is not None:
                models.parse(one_of[1], read)
                return True
            given = models.parse(model, read)
            check_filter(given)
            if isinstance(given, models.RetryDeadLetterRequest):
                given.changes().applied(DEAD)
            return says_enough(given)
    except (OjsError, TypeError, AttributeError, KeyError):
        # The last three: not even an object, which the handlers refuse before.
        return False
    return True


def says_enough(given_body: models.RequestModel) -> bool:
    if isinstance(given_body, models.NackOptions):
        outcome = given_body.outcome()
        if not outcome["requeue"]:
            failures.reported(outcome["error"], attempt=1, now_ms=0)
    if isinstance(given_body, models.ProgressRequest):
        return (given_body.progress, given_body.data) != (None, None)
    if isinstance(given_body, models.WorkerProgressRequest):
        return (given_body.percentage, given_body.data) != (None, None)
    return True


def check_filter(given: models.RequestModel) -> None:
    if isinstance(given, models.JobsRequest) and given.filter is not None:
        job_filter.parse(given.wanted(), now_ms=0)
    if isinstance(given, models.PurgeRequest):
        bulk.to_purge(given, "email", now_ms=0)
    if isinstance(given, models.RetryDeadLettersRequest | models.PurgeDeadLettersRequest):
        found = given.filters()
        # What a purge is for may stand in the query as well.
        if found or given.all or isinstance(given, models.RetryDeadLettersRequest):
            dead_letter_filter.parse_bulk(found, given.all, now_ms=NOW_MS)


def check_configuration(operation: Operation, read: Any) -> None:
    if operation.id == "create_queue":
        _, config, prefix = queue_configs.to_create(read)
        queue_config.parse(config, prefix=prefix)
    elif operation.request is OverrideRequest:
        rate_limits.to_override(read, now_ms=0)
    else:
        queue_config.parse(read, policy=operation.id == "set_queue_policy")


@BODIES
def test_what_is_right_is_described(operation: Operation) -> None:
    for example in (EXAMPLES[operation.id], openapi.EXAMPLES[operation.id]):
        problems = [e.message for e in validator(operation.id).iter_errors(example)]
        assert not problems
        assert accepted(operation, example)


# What JSON Schema cannot tell: 1.0 is an integer to it, it counts characters and not bytes, and its
# numbers have no end.
BEYOND = [
    ("options.priority", 1.0),
    ("count", 5.0),
    ("worker_id", "ü" * 128),
    ("options.delay_until", "2026-13-01T00:00:00Z"),
    ("percentage", 10**400),
    ("progress", 10**400),
    ("max_size", 10.0),
    ("concurrency", 10.0),
    ("weights.default", 3.0),
    ("filter.since", "2999-01-01T00:00:00Z"),
    ("filter.before", "2026-13-01T00:00:00Z"),
    ("weights", {"other": 1}),
    ("strategy", "weighted"),
]
DESCRIBED = [
    row
    for row in REFUSED
    if row[3] in (400, 422)
    and not any(row[1:3] == one and type(row[2]) is type(one[1]) for one in BEYOND)
]


@pytest.mark.parametrize(
    ("operation_id", "place", "wrong"),
    [row[:3] for row in DESCRIBED],
    ids=[f"{row[0]}-{row[1]}-{n}" for n, row in enumerate(DESCRIBED)],
)
def test_what_is_refused_is_described_as_wrong(operation_id: str, place: str, wrong: Any) -> None:
    body = put(EXAMPLES[operation_id], tuple(place.split(".")), wrong)
    assert not described(operation_id, body)


MORE_REFUSED: list[tuple[str, Any]] = [
    ("enqueue_job", {"type": "a" * 256, "args": []}),
    ("enqueue_job", {"type": "a", "args": [], "options": {"retry": {"initial_interval": "1 s"}}}),
    ("enqueue_job", {"type": "a", "args": [], "retry": {"backoff_coefficient": 1_001}}),
    ("enqueue_job", {"type": "a", "args": [], "unique": {"period": "P1Y"}}),
    ("enqueue_job", {"type": "a", "args": [], "unique": {"keys": ["meta"]}}),
    ("enqueue_job", {"type": "a", "args": [], "expires_at": "+1h"}),
    ("enqueue_job", {"type": "a", "args": [], "schema": "a:" + "x" * 2_048}),
    ("nack_job", {"job_id": UNKNOWN}),
    ("nack_job", {"job_id": UNKNOWN, "requeue": False}),
    ("nack_job", {"job_id": UNKNOWN, "error": {"details": {}}}),
    ("ack_job", {"acks": []}),
    ("ack_job", {"acks": [{"job_id": UNKNOWN}], "result": None}),
    ("ack_job", {"acks": [{"job_id": UNKNOWN}], "job_id": UNKNOWN}),
    ("ack_job", {"acks": [{"job_id": "job_1"}]}),
    ("ack_job", {"acks": [{"job_id": UNKNOWN}], "nacks": [{"job_id": UNKNOWN, "requeue": True}]}),
    ("ack_job", {"acks": [{"job_id": UNKNOWN}] * 1_001}),
    ("nack_job", {"nacks": [{"job_id": UNKNOWN}]}),
    ("nack_job", {"nacks": [{"job_id": UNKNOWN, "error": {"details": {}}}]}),
    ("nack_job", {"nacks": [{"job_id": UNKNOWN, "requeue": True}], "error": {"code": "x"}}),
    ("report_progress", {"message": "only"}),
    ("report_worker_progress", {"job_id": UNKNOWN, "message": "only"}),
    ("fetch_jobs", {}),
    ("fetch_jobs", {"queues": ["a"], "pool": "g p u"}),
    ("fetch_jobs", {"queues": ["a"], "weights": {"a": 0}}),
    ("heartbeat", {"worker_id": "w", "active_jobs": [UNKNOWN, "job_2"]}),
    ("beat", {"worker_id": "w", "state": "drain", "active_jobs": ["job_2"]}),
    ("register_worker", {}),
    ("register_worker", {"worker": {}}),
    ("register_worker", {"worker": {"id": "a|b"}}),
    ("register_worker", {"worker": {"pid": 1}, "worker_id": "w"}),
    ("register_worker", {"worker_id": None, "id": "w"}),
    ("retry_dead_letter", {"override": {"priority": 1}}),
    ("retry_dead_letter", {"override": {"retry": {"initial_interval": "1 s"}}}),
    ("retry_dead_letters", {}),
    ("retry_dead_letters", {"filter": {}, "confirm": False}),
    ("retry_dead_letters", {"filter": {"since": "+PT1H"}, "confirm": True}),
    ("purge_dead_letters", {"filter": {"queue": "a"}, "type": "b", "confirm": True}),
    ("purge_dead_letters", {"confirm": False}),
    ("purge_dead_letters", {"confirm": None}),
    ("retry_dead_letters", {"confirm": True}),
    ("retry_dead_letters", {"filter": {}, "confirm": True}),
    ("retry_dead_letters", {"filter": None, "confirm": True}),
    ("retry_dead_letters", {"filter": {"queue": None}, "confirm": True}),
    ("retry_dead_letters", {"filter": {"queue": ""}, "confirm": True}),
    ("retry_dead_letters", {"filter": {"queue": "a"}, "all": True, "confirm": True}),
    ("retry_dead_letters", {"filter": {}, "all": True, "confirm": True}),
    ("retry_dead_letters", {"all": False, "confirm": True}),
    ("retry_dead_letters", {"all": None, "confirm": True}),
    ("retry_dead_letters", {"all": "true", "confirm": True}),
    ("purge_dead_letters", {"filter": {}, "confirm": True}),
    ("purge_dead_letters", {"filter": {}, "queue": "a", "confirm": True}),
    ("purge_dead_letters", {"queue": None, "confirm": True}),
    ("purge_dead_letters", {"queue": "a", "all": True, "confirm": True}),
    ("purge_dead_letters", {"filter": {"queue": "a"}, "all": True, "confirm": True}),
    ("purge_dead_letters", {"all": False, "queue": "a", "confirm": True}),
    ("pause_queue", {"reason": "maintenance"}),
    ("purge_dead_letters", {"older_than": "30 days"}),
    ("purge_dead_letters", {"args": "$[a]"}),
    ("create_queue", {"config": {"max_size": 5}}),
    ("create_queue", {"name": "a", "max_size": -5}),
    ("create_queue", {"name": "a", "config": {"max_size": 5}, "max_size": 5}),
    ("create_queue", {"name": "a", "config": {}, "dead_letter_ttl": "P1D"}),
    ("create_queue", {"name": "a", "dead_letter_ttl": "1 day"}),
    ("create_queue", {"name": "a", "config": {"dead_letter_queue": "_default"}}),
    ("configure_queue", {"retention": {"completed": "1 week"}}),
    ("configure_queue", {"default_retry": {"max_interval": "1 s"}}),
    ("put_pool", {}),
    ("put_pool", {"queues": []}),
    ("put_pool", {"queues": {}}),
    ("put_pool", {"queues": "a"}),
    ("put_pool", {"queues": ["a", "a"]}),
    ("put_pool", {"queues": [f"q{n}" for n in range(49)]}),
    ("put_pool", {"queues": {"a": {"weight": 0}}}),
    ("put_pool", {"queues": {"a": 1}}),
    ("put_pool", {"pool": {"queues": ["A"]}}),
    ("put_pool", {"pool": {}, "queues": ["a"]}),
    ("put_pool", {"queues": ["a"], "isolate": True}),
    ("put_pool", {"pool": {"queues": ["a"]}, "concurency": 5}),
    ("put_pool", {"pool": "general", "queues": ["a"]}),
    ("create_queue", {"name": "a", "max_siz": 5}),
    ("create_queue", {"name": "a", "config": {"max_siz": 5}}),
    ("create_queue", {"name": "a", "config": {}, "max_siz": 5}),
    ("configure_queue", {"config": {"max_size": 5}}),
    ("configure_queue", {"dead_letter": {"prunning_policy": "archive"}}),
    ("set_queue_limits", {"concurrency": 5, "concurency": 5}),
    ("retry_dead_letter", {"overide": {"queue": "x"}}),
    ("delete_queue", {"stratgy": "discard"}),
    ("set_queue_limits", {}),
    ("set_queue_limits", {"limit": 5}),
    ("set_queue_limits", {"limit": None, "period": "PT1S"}),
    ("set_queue_limits", {"rate": None, "rate_limit": None}),
    ("set_queue_policy", {"replay_rules": [{}]}),
    ("create_workflow", {"type": "chain", "steps": []}),
    ("create_workflow", {"type": "saga", "steps": [{"type": "a", "args": []}]}),
    ("create_workflow", {"type": "chain", "steps": [{"type": "a", "args": []}], "step": []}),
    ("create_workflow", {"type": "group", "jobs": ["a"]}),
    ("create_workflow", {"steps": [{"id": "a", "type": "a", "args": [], "depends_on": [1]}]}),
    ("create_workflow", {"steps": [{"id": "a", "type": "a", "args": [], "trigger": "never"}]}),
    ("create_workflow", {"type": "group", "jobs": [{"type": "a", "args": []}], "id": "wf_1"}),
    ("retry_workflow", {"mode": "some"}),
    ("retry_workflow", {"modes": "all"}),
    ("set_queue_policy", {"replay_rules": [{"name": "a", "filter": {"colour": "red"}}]}),
]


@pytest.mark.parametrize(("operation_id", "body"), MORE_REFUSED, ids=range(len(MORE_REFUSED)))
def test_more_that_is_refused_is_described_as_wrong(operation_id: str, body: Any) -> None:
    assert not described(operation_id, body)
    assert not accepted(contract.get(operation_id), body)


@pytest.mark.parametrize(
    ("operation_id", "body"),
    [
        ("register_worker", {"id": "w"}),
        ("register_worker", {"worker": {"id": "w", "pool": "default"}}),
        ("register_worker", {"worker": {"worker_id": "w"}, "worker_id": "w"}),
        ("register_worker", {"worker_id": "w", "id": "w", "labels": {"a": "b"}, "os_version": "1"}),
        ("nack_job", {"job_id": UNKNOWN, "requeue": True, "error": {}}),
        ("ack_job", {"acks": [{"job_id": UNKNOWN}], "worker_id": "w", "unheard_of": 1}),
        ("ack_job", {"acks": None, "job_id": UNKNOWN}),
        ("nack_job", {"nacks": [{"job_id": UNKNOWN, "requeue": True}], "acks": None}),
        ("fetch_jobs", {"queues": ["a"], "acks": [], "nacks": None}),
        ("fetch_jobs", {"queues": ["a"], "pool": None, "wait": None, "unheard_of": 1}),
        ("heartbeat", {"worker_id": "ü€😀 b", "active_jobs": 3}),
        ("enqueue_job", {"type": "a", "args": [], "scheduled_at": "+PT30S", "x_own": [1]}),
        ("enqueue_job", {"type": "a", "args": [], "unique": {"within": "1h30m"}}),
        ("enqueue_job", {"type": "a", "args": [], "options": {"rate_limit": None}}),
        ("create_queue", {"name": "a"}),
        ("create_queue", {"name": "a", "config": None, "max_size": 5}),
        ("create_queue", {"name": "a", "config": {"max_size": 5}, "max_size": None}),
        ("create_queue", {"name": "a", "concurrency": 5}),
        ("put_pool", {"queues": ["a"]}),
        ("put_pool", {"queues": {"a": {"weight": 2}, "b": {"weight": 1}}, "active_jobs": 3}),
        ("put_pool", {"queues": {"a": {}}, "strategy": None, "weights": None}),
        ("put_pool", {"pool": {"queues": ["a"], "name": "general"}, "queues": ["a"]}),
        ("put_pool", {"queues": ["a"], "starvation_prevention": {}}),
        ("put_pool", {"queues": ["a"], "starvation_prevention": {"min_dispatch_ratio": 1}}),
        ("set_queue_limits", {"limit": 5, "period": "PT1S"}),
        ("set_queue_limits", {"rate_limit": None, "concurrency": None}),
        ("configure_queue", {}),
        ("configure_queue", {"max_size": None, "retention": {"completed": None}}),
        ("configure_queue", {"dead_letter": None}),
        ("configure_queue", {"backpressure": {}, "warning_threshold": 1}),
        ("retry_dead_letter", {"override": {"queue": "x", "retry": None}}),
        ("retry_dead_letter", {"override": {"meta": {"a": None}, "args": []}}),
        ("retry_dead_letters", {"all": True, "confirm": True}),
        ("retry_dead_letters", {"filter": {"args": "$['a b'][-1].*.c=1"}, "confirm": True}),
        ("purge_dead_letters", {"filter": {"queue": "a"}, "confirm": True}),
        ("purge_dead_letters", {"all": True, "confirm": True}),
        # The rest in the query.
        ("purge_dead_letters", {"all": True}),
        ("purge_dead_letters", {"confirm": True}),
        ("purge_dead_letters", {}),
        ("purge_dead_letters", {"older_than": "1d12h", "args": '"customer": 1'}),
        ("create_workflow", {"steps": [{"id": "a", "type": "a", "args": []}], "name": None}),
        (
            "create_workflow",
            {
                "type": "chain",
                "options": {"queue": "q"},
                "steps": [
                    {"type": "group", "jobs": [{"type": "a", "args": [], "x_own": 1}]},
                    {
                        "steps": [
                            {"id": "b", "type": "b", "args": []},
                            {
                                "id": "c",
                                "type": "c",
                                "args": [],
                                "trigger": "all_succeeded",
                                "depends_on": [{"id": "b", "ignore_failed": True}],
                            },
                        ]
                    },
                ],
            },
        ),
        ("retry_workflow", {}),
        ("retry_workflow", {"mode": None}),
    ],
)
def test_the_forms_that_are_taken_are_described(operation_id: str, body: Any) -> None:
    assert accepted(contract.get(operation_id), body)
    assert described(operation_id, body)


@BODIES
def test_no_value_is_taken_that_is_described_as_wrong(operation: Operation) -> None:
    for path in places(EXAMPLES[operation.id]):
        for kind, value in WRONG.items():
            body = read_parts(put(EXAMPLES[operation.id], path, value))
            if accepted(operation, body):
                assert described(operation.id, body), f"{path} {kind}"


@SPREAD
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_is_taken_that_is_described_as_wrong(
    operation: Operation, data: st.DataObject
) -> None:
    body = read_parts(data.draw(nearly_right(operation.id)))
    if accepted(operation, body):
        problems = [error.message for error in validator(operation.id).iter_errors(body)]
        assert not problems, body


@given(
    name=st.sampled_from(["scheduled_at", "delay_until", "expires_at"]),
    text=st.from_regex(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")
    | st.from_regex(r"\+P(\d{1,3}(\.\d)?D)?(T\d{1,3}(\.\d)?[HMS])?")
    | st.datetimes().map(lambda moment: moment.isoformat() + "+02:00"),
)
def test_times_that_are_taken_are_described(name: str, text: str) -> None:
    body = {"type": "a", "args": [], "options": {name: text}}
    if accepted(contract.get("enqueue_job"), body):
        assert described("enqueue_job", body)


@given(st.from_regex(r"P(\d{1,3}(\.\d)?W|(\d{1,3}(\.\d)?D)?(T\d{1,3}H?(\.\d{1,3})?[MS])?)"))
def test_durations_that_are_taken_are_described(text: str) -> None:
    for options in ({"retry": {"initial_interval": text}}, {"unique": {"period": text}}):
        body = {"type": "a", "args": [], "options": options}
        if accepted(contract.get("enqueue_job"), body):
            assert described("enqueue_job", body)


@given(st.text(min_size=1, max_size=40))
def test_the_rule_for_worker_ids_is_described_in_the_path_too(text: str) -> None:
    (parameter,) = openapi.document("1")["paths"]["/ojs/v1/workers/{id}"]["delete"]["parameters"]
    schema = Draft202012Validator(parameter["schema"])
    try:
        check_worker_id(text)
    except ValueError:
        return
    assert schema.is_valid(text)


def test_parameters_are_described_as_they_are_checked() -> None:
    def schema_of(path: str, method: str, name: str) -> Draft202012Validator:
        parameters = openapi.document("1")["paths"][path][method]["parameters"]
        return Draft202012Validator(
            next(one["schema"] for one in parameters if one["name"] == name)
        )

    worker = schema_of("/ojs/v1/admin/workers/{id}", "get", "id")
    for wrong in ("a|b", "", "a\x00", "x" * (MAX_ID_BYTES + 1)):
        assert not worker.is_valid(wrong)
    for path, method, name in (
        ("/ojs/v1/queues/{name}/pause", "post", "name"),
        ("/ojs/v1/dead-letter", "get", "queue"),
    ):
        queue = schema_of(path, method, name)
        assert queue.is_valid("email.out-1")
        for wrong in ("_default", "No", "a|b", "x" * 256):
            assert not queue.is_valid(wrong)
    kind = schema_of("/ojs/v1/dead-letter", "get", "type")
    assert kind.is_valid("email.send")
    assert not kind.is_valid("Email")
    assert not kind.is_valid("a" * 256)
    cursor = schema_of("/ojs/v1/dead-letter", "get", "cursor")
    assert cursor.is_valid("YQ-_")
    assert not cursor.is_valid("/w")
    job = schema_of("/ojs/v1/jobs/{id}", "get", "id")
    assert job.is_valid(UNKNOWN)
    assert not job.is_valid(UNKNOWN.upper())


def parts(schema: Any) -> list[dict[str, Any]]:
    """All objects in a part of the document."""
    if isinstance(schema, list):
        return [part for one in schema for part in parts(one)]
    if not isinstance(schema, dict):
        return []
    return [schema, *(part for one in schema.values() for part in parts(one))]


def test_generators_of_clients_can_make_types_of_it() -> None:
    """What they stumbled over; `tests/local/test_generated_clients.py` has them make clients."""
    document = openapi.document("1")
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        # Of each choice they make a type, with none of the properties.
        assert not ("properties" in schema and {"anyOf", "oneOf", "allOf"} & schema.keys()), name
    for part in parts(document):
        # A default makes openapi-typescript demand the field.
        assert part.get("default", "") is not None
        assert "/properties/" not in str(part.get("$ref"))
    bodies = [
        described["requestBody"]["content"]
        for methods in document["paths"].values()
        for described in methods.values()
        if "requestBody" in described
    ]
    assert all(len(content) == 1 for content in bodies)
    said = [tuple(sorted(part["enum"])) for part in parts(schemas) if len(part.get("enum", "")) > 1]
    assert len(said) == len(set(said)), "a set of values is a type of its own, in `_SHARED`"
    # A type without a name gets one of theirs, such as `…_type_0`.
    for part in parts(schemas):
        choices = part.get("anyOf", ())
        if {"type": "null"} in choices:
            assert not any("enum" in one for one in choices), f"it is named in `_SHARED`: {part}"


def test_an_empty_parameter_counts_as_not_sent() -> None:
    """As the functions read it; the schema alone would refuse an empty number."""
    named = [
        parameter
        for path in openapi.document("1", "keys")["paths"].values()
        for operation in path.values()
        for parameter in operation.get("parameters", ())
    ]
    assert any(each["in"] == "path" for each in named)
    for each in named:
        assert each.get("allowEmptyValue", False) is (each["in"] == "query")
