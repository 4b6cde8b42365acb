"""Who acts for which tenant, and the names that a tenant sends, receives, and stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args, get_type_hints

import pytest

from ojs import runtime
from ojs.api import operations as contract
from ojs.clock import ManualClock
from ojs.domain import tenant_names
from ojs.domain.job.envelope import QueueName
from ojs.domain.requests import Model
from ojs.http.answer import Answer, fields
from ojs.http.binding import tenancy
from ojs.runtime import Runtime
from tests.unit.functions.client import Api
from tests.unit.functions.keyed import Keyed

ACME = {"x-ojs-tenant": "acme"}
JOBS = "/ojs/v1/jobs"
JOB: dict[str, Any] = {"type": "t", "args": [1], "options": {"queue": "mail"}}
ALL = ("jobs:write", "jobs:read", "work", "admin:read", "admin:write")


def of(api: Any, tenant: str) -> Callable[..., Any]:
    """The API as an operator that acts for a tenant."""

    def call(method: str, path: str, body: Any = None, **query: str) -> Any:
        return api(method, path, body, headers={"x-ojs-tenant": tenant}, query=query)

    return call


def stored(api: Any, job: str) -> str:
    return str(api.runtime.jobs.queue_of(job))


# --- who ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "x" * 65, "a b", "a|b", "_x", ":x", "é", "acme,beta"])
@pytest.mark.parametrize("name", ["x-ojs-tenant", "x-ojs-tenant-id"])
def test_a_malformed_header(name: str, value: str, api: Api) -> None:
    reply = api.post(JOBS, JOB, **{name: value})
    assert reply.status == 400
    assert reply.error["details"]["field"].lower() == name


def test_two_headers_have_to_agree(api: Api) -> None:
    both = {"x-ojs-tenant": "acme", "x-ojs-tenant-id": "acme"}
    assert api.post(JOBS, JOB, **both).json["job"]["meta"] == {"tenant_id": "acme"}
    for other in ("beta", "_default"):
        reply = api.post(JOBS, JOB, **{**both, "x-ojs-tenant-id": other})
        assert (reply.status, reply.error["details"]["field"]) == (400, "X-OJS-Tenant-ID")


@pytest.mark.parametrize("headers", [{}, {"x-ojs-tenant": "_default"}])
def test_without_a_tenant(headers: dict[str, str], api: Api) -> None:
    """`meta.tenant_id` alone chooses none: queues may share their turns by it."""
    reply = api.post(JOBS, JOB | {"meta": {"tenant_id": "acme"}}, **headers)
    assert stored(api, reply.json["job"]["id"]) == "mail"


@pytest.mark.parametrize("tenant_id", ["beta", 7, None, ""])
def test_another_tenant_in_the_body(tenant_id: Any, api: Api) -> None:
    reply = api.post(JOBS, JOB | {"meta": {"tenant_id": tenant_id}}, **ACME)
    assert reply.status == 400
    assert reply.error["details"]["field"] == "meta.tenant_id"


@pytest.mark.parametrize(
    ("tenants", "header", "status", "queue"),
    [
        (["acme"], None, 201, "acme:mail"),
        (["acme", None], None, 201, "acme:mail"),
        (["_default"], None, 201, "mail"),
        (["acme"], "_default", 201, "mail"),
        (["acme"], "beta", 400, ""),
        (["acme", "beta"], None, 400, ""),
        (["a b"], None, 400, ""),
        ([7], None, 400, ""),
    ],
)
def test_the_tenant_of_meta(
    tenants: list[Any],
    header: str | None,
    status: int,
    queue: str,
    make_runtime: Callable[..., Runtime],
    clock: ManualClock,
) -> None:
    built = make_runtime(tenant_from_meta=True)
    runtime.use(built)
    api = Api(built, clock)
    jobs = [JOB | ({} if each is None else {"meta": {"tenant_id": each}}) for each in tenants]
    headers = {} if header is None else {"x-ojs-tenant": header}
    reply = api.post(f"{JOBS}/batch", {"jobs": jobs}, **headers)
    assert reply.status == status, reply.text
    if status == 400:
        assert reply.error["details"]["field"].endswith("meta.tenant_id")
        return
    assert {stored(api, job["id"]) for job in reply.json["jobs"]} == {queue}
    workflow = api.post("/ojs/v1/workflows", {"type": "group", "jobs": jobs}, **headers)
    assert workflow.status == 201


@pytest.fixture
def keyed(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Keyed:
    return Keyed(make_runtime(authorizer="keys"), clock)


def test_a_key_of_a_tenant(keyed: Keyed) -> None:
    operator = keyed.holding(keyed.make("ops", *ALL))
    body = {"name": "acme-prod", "scopes": ALL, "tenant": "acme"}
    made = operator("POST", "/ojs/v1/admin/keys", body).json
    assert made["key"]["tenant"] == "acme"
    acme = keyed.holding(made["secret"])
    pushed = acme("POST", JOBS, JOB)
    job = pushed.json["job"]
    assert (job["queue"], job["meta"]) == ("mail", {"tenant_id": "acme"})
    assert stored(keyed, job["id"]) == "acme:mail"
    assert operator("GET", f"{JOBS}/{job['id']}").json["queue"] == "acme:mail"
    assert acme("GET", f"{JOBS}/{job['id']}").json["queue"] == "mail"
    assert acme("POST", JOBS, JOB, headers={"x-ojs-tenant": "acme"}).status == 201
    for header in ("beta", "_default"):
        assert acme("POST", JOBS, JOB, headers={"x-ojs-tenant": header}).status == 403
    # What concerns the deployment is not for tenants.
    assert acme("POST", "/ojs/v1/admin/keys", body).status == 403
    assert acme("GET", "/ojs/v1/me").json["queues"] == ["*"]
    beta = keyed.holding(keyed.make("beta", *ALL, tenant="beta"))
    unknown = beta("GET", f"{JOBS}/01968f2a-0000-7000-8000-000000000000")
    foreign = beta("GET", f"{JOBS}/{job['id']}")
    assert (foreign.status, foreign.error["code"]) == (404, unknown.error["code"])
    assert beta("GET", f"{JOBS}/{job['id']}/history").status == 404
    assert beta("POST", "/ojs/v1/workers/ack", {"job_id": job["id"]}).status == 404


def test_a_key_of_a_tenant_with_queues(keyed: Keyed) -> None:
    key = keyed.make("k", *ALL, tenant="acme", queues=["mail", "r*"])
    acme = keyed.holding(key)
    statuses = [
        acme("POST", JOBS, JOB | {"options": {"queue": queue}}).status
        for queue in ("mail", "report", "other", "beta:mail")
    ]
    assert statuses == [201, 201, 403, 400]
    assert acme("GET", "/ojs/v1/queues").status == 403
    body = {"name": "k", "scopes": ["work"], "tenant": "acme", "queues": ["acme:mail"]}
    refused = keyed.holding(keyed.make("ops", *ALL))("POST", "/ojs/v1/admin/keys", body)
    assert (refused.status, refused.error["details"]["field"]) == (400, "queues[0]")


def test_a_limited_key_acts_for_the_tenants_of_its_queues(keyed: Keyed) -> None:
    limited = keyed.holding(keyed.make("k", "jobs:write", queues=["mail*", "*", "acme:mail"]))
    queues = ("mail", "acme:mail", "acme:mails", "beta:mail")
    pushed = [limited("POST", JOBS, JOB | {"options": {"queue": queue}}) for queue in queues]
    assert [reply.status for reply in pushed] == [201, 201, 403, 403]
    named = [
        limited("POST", JOBS, JOB, headers={"x-ojs-tenant": tenant}).status
        for tenant in ("acme", "beta")
    ]
    assert named == [201, 403]


@pytest.mark.parametrize(
    ("claim", "status", "queue"),
    [("acme", 201, "acme:mail"), (None, 201, "mail"), ("_default", 201, "mail"), ("a b", 401, "")],
)
def test_the_claim_of_a_token(
    claim: str | None,
    status: int,
    queue: str,
    make_runtime: Callable[..., Runtime],
    clock: ManualClock,
) -> None:
    api = Keyed(make_runtime(authorizer="jwt", jwt_tenant_claim="org"), clock)
    claims = {"sub": "svc", "scope": "jobs:write"} | ({} if claim is None else {"org": claim})
    reply = api("POST", JOBS, JOB, told={"jwt": {"claims": claims}})
    assert reply.status == status
    assert status == 401 or stored(api, reply.json["job"]["id"]) == queue


def test_the_record_of_a_role(make_runtime: Callable[..., Runtime], clock: ManualClock) -> None:
    api = Keyed(make_runtime(authorizer="iam"), clock)
    arn = "arn:aws:iam::000000000000:role/acme"
    operator = {"iam": {"userArn": "arn:aws:iam::000000000000:role/ops"}}
    body = {"role": arn, "name": "acme", "scopes": ["jobs:write"], "tenant": "acme"}
    assert api("POST", "/ojs/v1/admin/roles", body, told=operator).status == 201
    reply = api("POST", JOBS, JOB, told={"iam": {"userArn": arn}})
    assert stored(api, reply.json["job"]["id"]) == "acme:mail"


# --- names ----------------------------------------------------------------------------------------


def test_jobs_without_a_queue(api: Api) -> None:
    acme, plain = of(api, "acme"), {"type": "t", "args": []}
    one = acme("POST", JOBS, plain).json["job"]
    many = acme("POST", f"{JOBS}/batch", {"jobs": [plain, JOB]}).json["jobs"]
    cron = {"name": "nightly", "expression": "@daily", "job_template": plain}
    assert acme("POST", "/ojs/v1/cron", cron).json["queue"] == "default"
    assert acme("POST", "/ojs/v1/cron", cron | {"name": "flat"} | plain).json["name"] == "flat"
    names = [stored(api, job["id"]) for job in (one, *many)]
    assert names == ["acme:default", "acme:default", "acme:mail"]
    assert [job["queue"] for job in (one, *many)] == ["default", "default", "mail"]


@pytest.mark.parametrize(
    ("workflow", "queues"),
    [
        ({"type": "chain", "steps": [{"type": "a", "args": []}, JOB]}, ["default", "mail"]),
        (
            {"type": "group", "jobs": [{"type": "a", "args": []}], "options": {"queue": "own"}},
            ["own"],
        ),
        (
            {
                "type": "batch",
                "jobs": [{"type": "group", "jobs": [{"type": "a", "args": []}]}],
                "callbacks": {"on_complete": {"type": "b", "args": []}},
            },
            ["default"],
        ),
    ],
)
def test_a_workflow(workflow: dict[str, Any], queues: list[str], api: Api) -> None:
    reply = of(api, "acme")("POST", "/ojs/v1/workflows", workflow)
    assert reply.status == 201, reply.text
    definition = api.runtime.stores.workflows.definition(reply.json["workflow"]["id"])
    assert sorted(definition.queues) == [f"acme:{queue}" for queue in queues]
    assert of(api, "acme")("GET", f"/ojs/v1/workflows/{reply.json['workflow']['id']}").status == 200
    assert of(api, "beta")("GET", f"/ojs/v1/workflows/{reply.json['workflow']['id']}").status == 404


def test_a_workflow_of_two_tenants(api: Api) -> None:
    jobs = [{"type": "t", "args": [], "options": {"queue": f"{each}:mail"}} for each in ("a", "b")]
    reply = api.post("/ojs/v1/workflows", {"type": "group", "jobs": jobs})
    assert reply.status == 400
    assert reply.error["details"]["validation_errors"][0]["path"] == "$"


def test_names_of_other_tenants(api: Api) -> None:
    acme = of(api, "acme")
    asked = (
        acme("POST", JOBS, JOB | {"options": {"queue": "beta:x"}}),
        acme("GET", "/ojs/v1/queues/beta:x"),
        acme("GET", JOBS, queue="beta:x"),
        acme("POST", "/ojs/v1/workers/fetch", {"queues": ["a", "acme:eu:x"]}),
    )
    fields = [reply.error["details"]["field"] for reply in asked]
    assert [reply.status for reply in asked] == [400] * 4
    assert fields == ["options.queue", "name", "queue", "queues[1]"]


def test_content_keeps_its_names(api: Api) -> None:
    content = {"queue": "mail", "queues": ["acme:mail"], "name": "acme:mail"}
    job = JOB | {"args": [content], "meta": {"of": content}}
    shown = of(api, "acme")("POST", JOBS, job).json["job"]
    assert shown["args"] == [content]
    assert shown["meta"] == {"of": content, "tenant_id": "acme"}


def test_errors_have_local_names(api: Api) -> None:
    acme = of(api, "acme")
    acme("PUT", "/ojs/v1/queues/mail/config", {"max_size": 1})
    acme("POST", JOBS, JOB)
    full = acme("POST", JOBS, JOB)
    assert (full.status, full.error["queue"]) == (429, "mail")
    assert "acme" not in full.text
    assert "acme" not in acme("POST", JOBS, JOB | {"options": {"queue": "B d"}}).text
    assert "acme" not in acme("GET", "/ojs/v1/queues/none").text
    created = acme("POST", "/ojs/v1/queues", {"name": "new", "dead_letter_queue": "mail"})
    assert created.headers["Location"] == "/ojs/v1/queues/new"
    assert "acme" not in created.text


def test_locks_limits_and_idempotency_keys_are_a_tenants_own(api: Api) -> None:
    job = JOB | {"unique": {"keys": ["type"]}, "rate_limit": {"key": "k", "concurrency": 1}}
    for tenant in ("acme", "beta", "acme:eu", "_default"):
        call = of(api, tenant)
        assert call("POST", JOBS, job).status == 201
        assert call("POST", JOBS, job).status == 409
        fetched = call("POST", "/ojs/v1/workers/fetch", {"queues": ["mail"]}).json["jobs"]
        assert len(fetched) == 1
        key = {"x-ojs-tenant": tenant, "idempotency-key": "once"}
        first, again = (api.post(JOBS, JOB, **key).json["job"] for _ in range(2))
        assert first["id"] == again["id"]
        queue = "mail" if tenant == "_default" else f"{tenant}:mail"
        assert stored(api, first["id"]) == queue


def test_lists_and_statistics_of_a_tenant(api: Api) -> None:
    for tenant in ("acme", "acme:eu", "acm", "_default"):
        of(api, tenant)("POST", JOBS, JOB)
        of(api, tenant)("POST", JOBS, JOB | {"options": {"queue": "a"}})
    acme = of(api, "acme")
    names = [each["name"] for each in acme("GET", "/ojs/v1/queues").json["queues"]]
    assert names == ["a", "mail"]
    first = acme("GET", "/ojs/v1/queues", limit="1").json
    assert [each["name"] for each in first["queues"]] == ["a"]
    cursor = first["pagination"]["next_cursor"]
    rest = acme("GET", "/ojs/v1/queues", limit="1", cursor=cursor).json
    assert [each["name"] for each in rest["queues"]] == ["mail"]
    assert rest["pagination"].get("next_cursor") is None
    # A cursor of another tenant begins at the tenant's own first name, or is beyond its last.
    foreign = of(api, "acm")("GET", "/ojs/v1/queues", limit="1", cursor=cursor)
    assert "acme" not in foreign.text
    assert acme("GET", "/ojs/v1/admin/stats").json["queues"] == 2
    found = acme("GET", JOBS, state="available").json["jobs"]
    assert sorted(job["queue"] for job in found) == ["a", "mail"]
    assert acme("GET", "/ojs/v1/dead-letter").json["jobs"] == []
    assert acme("GET", "/ojs/v1/dead-letter/stats").status == 200
    assert acme("GET", "/ojs/v1/events").status == 200


def test_the_policy_for_new_queues_of_a_tenant(api: Api) -> None:
    """Its fields win over those of all tenants. Dead letters stay with the tenant."""
    policy = "/ojs/v1/queues/_default/config"
    api("PUT", policy, {"max_size": 9, "concurrency": 3, "dead_letter_queue": "graves"})
    acme = of(api, "acme")
    assert acme("PUT", policy, {"max_size": 5}).status == 200
    acme("POST", JOBS, JOB)
    api.post(JOBS, JOB)
    own, stored_own, plain = (
        asked("GET", f"/ojs/v1/queues/{queue}/config").json["config"]
        for asked, queue in ((acme, "mail"), (api, "acme:mail"), (api, "mail"))
    )
    assert (own["max_size"], own["concurrency"], own["dead_letter_queue"]) == (5, 3, "graves")
    assert stored_own["dead_letter_queue"] == "acme:graves"
    assert (plain["max_size"], plain["dead_letter_queue"]) == (9, "graves")
    assert "acme:_default" not in api.get("/ojs/v1/queues").text


# --- the lists of fields --------------------------------------------------------------------------


def _named(kind: Any, seen: set[Any]) -> Iterator[tuple[str, Any]]:
    """The fields of a type of requests or answers, at any depth."""
    if isinstance(kind, type) and issubclass(kind, Model | Answer):
        if kind in seen:
            return
        seen.add(kind)
        found: Mapping[str, Any] = (
            {name: get_type_hints(kind, include_extras=True)[name] for name in kind.model_fields}
            if issubclass(kind, Model)
            else {name: each.annotation for name, each in fields(kind)}
        )
        for name, annotation in found.items():
            yield name, annotation
            yield from _named(annotation, seen)
    for part in get_args(kind):
        if not isinstance(part, str | int):
            yield from _named(part, seen)


def _has_name(annotation: Any) -> bool:
    return annotation == QueueName or any(
        _has_name(part) for part in get_args(annotation) if get_args(part)
    )


def test_all_fields_with_names_are_translated() -> None:
    """`name` is that of a queue or cron job in `NAMED_REQUESTS`, and in answers about these."""
    sent, shown = set[str](), set[str]()
    for operation in contract.OPERATIONS:
        if operation.request is not None:
            own = {name for name, kind in _named(operation.request, set()) if _has_name(kind)}
            if "name" in own:
                assert operation.request.__name__ in tenancy.NAMED_REQUESTS
            sent |= own - {"name"}
        for answer in operation.answers.values():
            shown |= {name for name, _ in _named(answer.shape, set()) if "queue" in name}
        named = {each.name for each in operation.query if "queue" in each.name}
        assert named <= tenancy.QUERY_FIELDS, operation.id
    assert sent <= tenant_names.QUEUE_FIELDS
    # Counts, times, and settings. `details` are translated with the errors that have them.
    others = {
        name for name in shown
        if name.startswith(("enqueue", "max_", "queue_", "strict_")) or name.endswith("_queues")
    }  # fmt: skip
    assert shown - others <= tenant_names.QUEUE_FIELDS, shown - others - tenant_names.QUEUE_FIELDS
    # And none is left over.
    assert sent | (shown - others) == tenant_names.QUEUE_FIELDS


# --- acks -----------------------------------------------------------------------------------------


def _spent(api: Api, headers: dict[str, str]) -> tuple[int, float, float]:
    """What a push, a fetch, and an ack take in a queue that exists."""
    fetch = {"queues": ["mail"], "worker_id": "w1"}
    meter = api.runtime.table.meter
    for _ in range(2):
        meter.reset()
        api.post(JOBS, JOB, **headers)
        (job,) = api.post("/ojs/v1/workers/fetch", fetch, **headers).json["jobs"]
        ack = {"job_id": job["id"], "worker_id": "w1", "lease_token": job["lease_token"]}
        assert api.post("/ojs/v1/workers/ack", ack, **headers).status == 200
    return len(meter.calls), meter.read_units, meter.write_units


def test_a_job_of_a_tenant_takes_the_calls_and_units_of_any_job(api: Api) -> None:
    api.runtime.table.measure = True
    assert _spent(api, {}) == (7, 3.5, 6.0)
    assert _spent(api, ACME) == (7, 3.5, 6.0)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("verb", ["ack", "nack"])
@pytest.mark.parametrize("token", ["AAAAAAAA", None])
def test_another_tenants_job_cannot_be_ended(
    done: bool, many: bool, verb: str, token: str | None, api: Api
) -> None:
    job = of(api, "acme")("POST", JOBS, JOB).json["job"]["id"]
    fetch = {"queues": ["mail"], "worker_id": "w1"}
    (fetched,) = api.post("/ojs/v1/workers/fetch", fetch, **ACME).json["jobs"]
    own = {"job_id": job, "worker_id": "w1", "lease_token": fetched["lease_token"]}
    if done:
        assert api.post("/ojs/v1/workers/ack", own, **ACME).status == 200
    end: dict[str, Any] = {"job_id": job, "worker_id": "w1", "lease_token": token}
    if verb == "nack":
        end["error"] = {"type": "Boom", "message": "no"}
    beta, before = of(api, "beta"), of(api, "acme")("GET", f"{JOBS}/{job}").json
    reply = beta("POST", f"/ojs/v1/workers/{verb}", {f"{verb}s": [end]} if many else end)
    refused = reply.json[f"{verb}s"][0] if many else reply.json
    assert (refused["error"]["code"], refused.get("status", reply.status)) == ("not_found", 404)
    assert before["state"] not in reply.text
    assert of(api, "acme")("GET", f"{JOBS}/{job}").json == before
