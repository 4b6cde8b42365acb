"""Requests as they come through API Gateway with keys: the authorizer first, then the function."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from functions.authorizer.handler import handler as authorizer
from ojs import access_runtime, runtime
from ojs.api import openapi
from ojs.clock import ManualClock
from ojs.domain.access import ANYBODY, Scope
from ojs.domain.workflow import request as workflow_request
from ojs.http import endpoint
from ojs.http.endpoint import Operation
from ojs.runtime import Runtime
from ojs.services.operations.authentication import Authentication
from ojs.services.operations.setup import Setup
from ojs.store.deliveries.deliveries import DeliveryStore
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from tests.unit.functions.client import HANDLERS, Reply, event_of

JOB = "01968f2a-0000-7000-8000-000000000000"
# What stands in a path for each subject; `queue` stands for the queue of the test.
SUBJECTS = {
    "job": JOB,
    "operation": JOB,
    "worker": "w1",
    "rate limit": "k1",
    "pool": "p1",
    "delivery": "d1",
    "action": JOB,
    "subscription": "sub_0123456789abcdef",
    "key": "0123456789abcdef",
    "tenant": "acme",
    "schema": "email.send",
}
# Each job is pushed for itself, and so refused.
EACH_FOR_ITSELF = "enqueue_bulk"
# A beat only counts the jobs that it names; a list has what is within reach.
# Its scope depends on the channel; without one it is that of all events.
OWN_SCOPE = {"stream_events": Scope.ADMIN_READ}
# So has a request for results.
UNREFUSED = (
    "beat",
    "results",
    "list_crons",
    "crons_list_crons",
    "list_workflows",
    "stream_events",
)


@dataclass
class Keyed:
    """An API in front of which the authorizer stands."""

    runtime: Runtime
    clock: ManualClock
    key: str | None = None

    def __post_init__(self) -> None:
        self.runtime.table.measure = True
        runtime.use(self.runtime)
        store = AccessKeyStore(self.runtime.table)
        # As the setup of a deployment, and a container that has read it.
        Setup(
            DeploymentStore(self.runtime.table), store, DeliveryStore(self.runtime.table),
            self.clock, version="1",
        ).prepare_keys()  # fmt: skip
        self.runtime.keys.mac()
        access_runtime.use(Authentication(store, self.clock))

    def make(self, name: str, *scopes: str, **more: Any) -> str:
        """A new key."""
        _, credential = self.runtime.access_keys.create(ANYBODY, name, scopes, **more)
        return credential.text

    def holding(self, key: str | None) -> Keyed:
        """The same API, asked with another key."""
        return Keyed(self.runtime, self.clock, key)

    def told(self, authorization: str | None) -> dict[str, Any]:
        """What API Gateway is told about a header, and hands on."""
        headers = {} if authorization is None else {"authorization": authorization}
        answer = authorizer({"version": "2.0", "type": "REQUEST", "headers": headers}, None)
        assert answer["isAuthorized"] is True
        context: dict[str, Any] = answer["context"]
        return context

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        told: dict[str, Any] | None = None,
    ) -> Reply:
        raw = None if body is None else json.dumps(body)
        event = event_of(method, path, raw, headers=headers, query=query)
        if told is None:
            told = {"lambda": self.told(None if self.key is None else f"Bearer {self.key}")}
        event["requestContext"]["authorizer"] = told
        answer = HANDLERS[endpoint.function_for(path)](event, None)
        return Reply(answer["statusCode"], answer["headers"], answer["body"] or "")

    def make_workflow(self, workflow_id: str, *queues: str) -> None:
        """Have a workflow with a job in each of these queues."""
        jobs = [{"type": "t", "args": [], "options": {"queue": each}} for each in queues]
        workflow: dict[str, Any] = {"id": workflow_id, "type": "group", "jobs": jobs}
        definition = workflow_request.parse(workflow, now_ms=self.clock.now_ms())
        self.runtime.workflow_creation.create(definition)

    def ask(self, operation: Operation, *, queue: str = "mine", job: str = JOB) -> Reply:
        """A request for an operation, about a queue or a job where it is about one."""
        path, body, query = about(operation, queue, job)
        return self(operation.method, path, body, query=query)


def about(
    operation: Operation, queue: str, job: str
) -> tuple[str, dict[str, Any] | None, dict[str, str]]:
    """Path, body and query of a request for an operation."""
    path = operation.path
    if operation.path_parameter is not None and operation.subject is not None:
        names = {**SUBJECTS, "queue": queue, "job": job, "cron job": queue, "workflow": job}
        path = path.replace(f"{{{operation.path_parameter}}}", names[operation.subject])
    body: dict[str, Any] | None = None
    if operation.request is not None:
        body = json.loads(json.dumps(openapi.EXAMPLES[operation.id]))
        assert body is not None
        body = _concerning(operation.id, body, queue, job)
    named = {parameter.name for parameter in operation.query}
    query = {"queue": queue} if "queue" in named and body is None else {}
    if operation.id.endswith("purge_old_dead_letters"):
        query["older_than"] = "P1D"
    return path, body, query


def _concerning(operation: str, body: dict[str, Any], queue: str, job: str) -> dict[str, Any]:
    """The body of the document's example, about this queue or job."""
    if operation.startswith("set_maintenance"):
        # Whoever comes after it is to be handed jobs.
        return {"enabled": False}
    pushed = {"type": "t", "args": [], "options": {"queue": queue}}
    own: dict[str, dict[str, Any]] = {
        "enqueue_job": pushed,
        "register_cron": {"name": queue, "expression": "@daily", "job_template": pushed},
        "change_cron": {"description": "changed"},
        "enqueue_batch": {"jobs": [pushed]},
        "enqueue_bulk": {"jobs": [pushed]},
        "erase_jobs": {"filter": {"queue": queue, "meta": {"user": "u1"}}, "confirm": True},
        "create_workflow": {"type": "group", "jobs": [pushed]},
        "fetch_jobs": {"queues": [queue], "worker_id": "w1"},
        "heartbeat": {"worker_id": "w1", "active_jobs": [job]},
        "beat": {"worker_id": "w1", "active_jobs": [job]},
        "create_queue": {"name": queue},
        "configure_queue": {"max_size": 5},
        "delete_queue": {"strategy": "discard"},
        "retry_dead_letters": {"filter": {"queue": queue}, "confirm": True},
        "purge_dead_letters": {"filter": {"queue": queue}, "confirm": True},
        **{
            f"{verb}_jobs": {"filter": {"queue": queue}, "confirm": True}
            for verb in ("retry", "cancel", "delete")
        },
        "retry_dead_letter": {},
        # No more than whoever asks has.
        "create_key": {"name": "k", "scopes": ["admin:write"]},
    }
    found = own.get(operation.removeprefix("admin_").removeprefix("crons_"), body)
    return {**found, "job_id": job} if "job_id" in found else found
