"""IAM roles that have a name, scopes and queues, as keys have (`authorizer=iam`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ojs.api import operations as contract
from ojs.clock import ManualClock
from ojs.domain.access import ALL_SCOPES, role_arn
from ojs.domain.errors import BackendError
from ojs.http.endpoint import Operation, QueueScope
from ojs.runtime import Runtime
from ojs.store.table.table import Table
from tests.spread import spread
from tests.unit.functions.client import Reply, check_described
from tests.unit.functions.keyed import EACH_FOR_ITSELF, UNREFUSED, Keyed

ACCOUNT = "arn:aws:iam::123456789012"
OPERATOR = f"{ACCOUNT}:role/operator"
ROLES = "/ojs/v1/admin/roles"
KEYS = "/ojs/v1/admin/keys"
EVERY = spread(contract.OPERATIONS, 8, ids=[operation.id for operation in contract.OPERATIONS])
JOB = {"type": "t", "args": [], "options": {"queue": "mail"}}
FETCH = ("POST", "/ojs/v1/workers/fetch", {"queues": ["mail"]})


def session(role: str, name: str = "i-0abc") -> str:
    """What API Gateway says of a caller that has assumed a role."""
    return f"arn:aws:sts::123456789012:assumed-role/{role}/{name}"


class Signed:
    """An API that is asked in the name of a role."""

    def __init__(self, keyed: Keyed, arn: str) -> None:
        self.keyed = keyed
        self.arn = arn

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> Reply:
        return self.keyed(method, path, body, told={"iam": {"userArn": self.arn}}, **more)

    def names(self, role: str, *scopes: str, **more: Any) -> Reply:
        """Say what a role may do."""
        arn = role if role.startswith("arn:") else f"{ACCOUNT}:role/{role}"
        return self("POST", ROLES, {"role": arn, "name": role, "scopes": [*scopes], **more})

    def spent(self, *asked: Any) -> tuple[Reply, list[str]]:
        """An answer, and the calls of the table that it took."""
        self.keyed.runtime.table.meter.reset()
        reply = self(*asked)
        return reply, list(self.keyed.runtime.table.meter.calls)


@pytest.fixture
def closed(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Keyed:
    """A deployment that names its operators."""
    return Keyed(make_runtime(authorizer="iam", iam_operators=(OPERATOR,)), clock)


@pytest.fixture
def open_(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Keyed:
    """One in which a role may do everything until it has a record."""
    return Keyed(make_runtime(authorizer="iam"), clock)


@pytest.fixture
def operator(closed: Keyed) -> Signed:
    return Signed(closed, session("operator", "ada"))


@pytest.mark.parametrize(
    ("arn", "role"),
    [
        (session("mailer"), f"{ACCOUNT}:role/mailer"),
        (session("Mailer_1+=,.@-", "a@b.example"), f"{ACCOUNT}:role/Mailer_1+=,.@-"),
        (f"{ACCOUNT}:role/mailer", f"{ACCOUNT}:role/mailer"),
        (f"{ACCOUNT}:role/service/eu/mailer", f"{ACCOUNT}:role/mailer"),
        (f"{ACCOUNT}:user/people/ada", f"{ACCOUNT}:user/ada"),
        (
            "arn:aws-us-gov:sts::123456789012:assumed-role/m/s",
            "arn:aws-us-gov:iam::123456789012:role/m",
        ),
        (f"{ACCOUNT}:root", None),
        ("arn:aws:sts::123456789012:federated-user/ada", None),
        ("arn:aws:sts::123456789012:assumed-role/mailer", None),
        (f"{ACCOUNT}:role/", None),
        (f"{ACCOUNT}:role/a b", None),
        (f"{ACCOUNT}:role/mailer\n", None),
        (f"{ACCOUNT}:role/{'a' * 65}", None),
        (f"{ACCOUNT}:role/{'a/' * 1_100}b", None),
        (f"{ACCOUNT}:group/a", None),
        ("arn:aws:iam::1234:role/a", None),
        ("arn:aws:iam::*:role/a", None),
        ("mailer", None),
        ("", None),
    ],
)
def test_a_session_is_its_role(arn: str, role: str | None) -> None:
    assert role_arn(arn) == role


def test_the_life_of_a_role(closed: Keyed, operator: Signed) -> None:
    worker = Signed(closed, session("mailer", "task-1"))
    assert worker(*FETCH).status == 403
    made = operator.names(
        "mailer", "work", "jobs:write", queues=["mail", "mail.*"], expires_at="+PT1H"
    )
    assert made.status == 201, made.text
    check_described("POST", ROLES, made)
    record = made.json["key"]
    assert made.headers["Location"] == f"{KEYS}/{record['id']}"
    assert (record["role"], record["name"]) == (f"{ACCOUNT}:role/mailer", "mailer")
    assert "secret" not in made.json
    closed.clock.advance(60_000)
    # Each session of the role, and its producer is the name.
    for name in ("task-1", "task-2"):
        one = Signed(closed, session("mailer", name))
        assert one("POST", "/ojs/v1/jobs", JOB).json["job"]["producer"] == "mailer"
        assert one(*FETCH).status == 200
        assert one("POST", "/ojs/v1/workers/fetch", {"queues": ["other"]}).status == 403
        assert one("GET", "/ojs/v1/queues").status == 403
    (listed,) = operator("GET", KEYS).json["keys"]
    assert listed == {**record, "last_used_at": listed["last_used_at"]}
    assert operator("GET", f"{KEYS}/{record['id']}").json["key"] == listed
    assert operator("DELETE", f"{KEYS}/{record['id']}").json["key"]["state"] == "revoked"
    closed.clock.advance(60_000)
    assert worker(*FETCH).status == 403


def test_what_a_role_may_do_ends(closed: Keyed, operator: Signed) -> None:
    assert operator.names("mailer", "work", expires_at="+PT10M").status == 201
    worker = Signed(closed, session("mailer"))
    assert worker(*FETCH).status == 200
    closed.clock.advance(10 * 60_000)
    assert worker(*FETCH).status == 403
    # It may be given something again.
    assert operator.names("mailer", "work").status == 201
    closed.clock.advance(60_000)
    assert worker(*FETCH).status == 200


@pytest.mark.parametrize("operation", EVERY)
def test_a_role_reaches_its_queues_alone(operation: Operation, closed: Keyed) -> None:
    """As a key that is limited to queues, through every operation."""
    operator = Signed(closed, session("operator"))
    assert operator.names("limited", *ALL_SCOPES, queues=["mine"]).status == 201
    pushed = {"type": "t", "args": [], "options": {"queue": "theirs"}}
    theirs = operator("POST", "/ojs/v1/jobs", pushed).json["job"]["id"]
    closed.make_workflow(theirs, "mine", "theirs")
    limited, nobody = (Signed(closed, session(name)) for name in ("limited", "nobody"))
    asking = Asking(closed, limited)
    reach = operation.permission.reach
    reply = asking.ask(operation, queue="theirs", job=theirs)
    free = reach is QueueScope.NONE or operation.id in UNREFUSED
    if free or reach is QueueScope.CRON:
        # Of cron jobs there are none here.
        assert reply.status not in (401, 500), reply.text
    elif operation.id == EACH_FOR_ITSELF:
        assert reply.json["items"][0]["error"]["code"] == "permission_denied", reply.text
    else:
        assert reply.status == 403, reply.text
    # Who was given nothing gets nowhere, but to what every caller may read.
    reply = Asking(closed, nobody).ask(operation, queue="theirs", job=theirs)
    assert (reply.status == 403) == (operation.permission.scope is not None), reply.text


class Asking(Keyed):
    """A `Keyed` whose requests are a role's."""

    def __init__(self, keyed: Keyed, signed: Signed) -> None:
        super().__init__(keyed.runtime, keyed.clock)
        self.signed = signed

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> Reply:
        return self.signed(method, path, body, **more)


# --- roles without a record -----------------------------------------------------------------------


def test_by_default_a_role_without_a_record_may_do_everything(open_: Keyed) -> None:
    """As before version 0.3: IAM policies say what each may do."""
    arn = session("anybody")
    anybody = Signed(open_, arn)
    assert anybody("POST", "/ojs/v1/jobs", JOB).json["job"]["producer"] == arn
    assert anybody("GET", "/ojs/v1/queues").status == 200
    assert Signed(open_, f"{ACCOUNT}:root")("GET", "/ojs/v1/queues").status == 200
    # With a record it may do what that says, once containers have noticed.
    assert anybody.names("mailer", "work").status == 201
    mailer = Signed(open_, session("mailer"))
    assert mailer(*FETCH).status == 200
    assert mailer("GET", "/ojs/v1/queues").status == 403


def test_a_role_whose_record_is_over_may_do_nothing(open_: Keyed, dynamodb: Any) -> None:
    """Also where roles without one may do everything, and when the table has removed the record."""
    anybody = Signed(open_, session("anybody"))
    record = anybody.names("mailer", "work").json["key"]
    assert anybody("DELETE", f"{KEYS}/{record['id']}").status == 200
    mailer = Signed(open_, session("mailer"))
    assert mailer(*FETCH).status == 403
    open_.clock.advance(60_000)
    dynamodb.delete_item(
        TableName=open_.runtime.table.name,
        Key={"pk": {"S": f"A|{record['id']}"}, "sk": {"S": "@"}},
    )
    assert mailer(*FETCH).status == 403
    assert anybody.names("mailer", "work").status == 201
    open_.clock.advance(60_000)
    assert mailer(*FETCH).status == 200


def test_where_operators_are_named_others_may_do_nothing(closed: Keyed, operator: Signed) -> None:
    assert operator("GET", "/ojs/v1/queues").status == 200
    for arn in (session("mailer"), f"{ACCOUNT}:root", f"{ACCOUNT}:user/operator", "nonsense"):
        nobody = Signed(closed, arn)
        for method, path, body in (FETCH, ("GET", "/ojs/v1/queues", None), ("POST", ROLES, {})):
            reply, calls = nobody.spent(method, path, body)
            assert (reply.status, reply.error["details"]) == (403, {}), reply.text
            assert set(calls) <= {"GetItem"}
        assert nobody("GET", "/ojs/v1/health").status == 200
    # Another account's role of the same name is another role.
    assert Signed(closed, session("operator").replace("1234", "4321"))(*FETCH).status == 403


def test_nobody_limits_an_operator(operator: Signed) -> None:
    for arn in (OPERATOR, session("operator"), OPERATOR.replace("role/", "role/path/")):
        reply = operator.names(arn, "work", name="k")
        assert (reply.status, reply.error["details"]["field"]) == (400, "role")
        assert "iam_operators" in reply.error["message"]
    assert operator("GET", KEYS).json["keys"] == []


# --- who may give what ----------------------------------------------------------------------------


def test_no_role_gives_more_than_it_has(closed: Keyed, operator: Signed) -> None:
    end = operator.names("admin", "admin:write", "work", expires_at="+PT1H").json["key"]
    admin = Signed(closed, session("admin"))
    assert admin.names("mailer", "jobs:write").status == 403
    late = admin.names("mailer", "work", expires_at="+PT2H")
    assert (late.status, late.error["details"]["field"]) == (400, "expires_at")
    made = admin.names("mailer", "work").json["key"]
    assert (made["expires_at"], made["ancestors"]) == (end["expires_at"], [end["id"]])
    assert made["made_by"] == "admin"
    # Nor does one that is limited to queues.
    assert operator.names("limited", *ALL_SCOPES, queues=["a"]).status == 201
    assert Signed(closed, session("limited")).names("x", "work").status == 403
    # Nor takes it away.
    wide = operator.names("wide", *ALL_SCOPES).json["key"]
    assert admin("DELETE", f"{KEYS}/{wide['id']}").status == 403


def test_a_role_is_revoked_with_those_that_it_named(closed: Keyed, operator: Signed) -> None:
    first = operator.names("admin", "admin:write", "work").json["key"]
    second = Signed(closed, session("admin")).names("second", "admin:write", "work").json["key"]
    third = Signed(closed, session("second")).names("third", "work").json["key"]
    assert third["ancestors"] == [first["id"], second["id"]]
    assert Signed(closed, session("third"))(*FETCH).status == 200
    reply = operator("DELETE", f"{KEYS}/{first['id']}", query={"made": "revoke"})
    assert set(reply.json["also_revoked"]) == {second["id"], third["id"]}
    # A container that remembers the role lets it name no other.
    assert Signed(closed, session("second")).names("fourth", "work").status == 401
    closed.clock.advance(60_000)
    for name in ("admin", "second", "third"):
        assert Signed(closed, session(name))(*FETCH).status == 403
    # Given something again, it has another record, which the first did not make.
    again = operator.names("third", "work").json["key"]
    assert "ancestors" not in again
    operator("DELETE", f"{KEYS}/{first['id']}", query={"made": "revoke"})
    closed.clock.advance(60_000)
    assert Signed(closed, session("third"))(*FETCH).status == 200


def test_a_role_has_one_record(closed: Keyed, operator: Signed) -> None:
    record = operator.names("mailer", "work").json["key"]
    for arn in ("mailer", session("mailer"), f"{ACCOUNT}:role/path/mailer"):
        reply = operator.names(arn, "jobs:write", name="other")
        assert reply.status == 409
        assert reply.error["details"] == {
            "field": "role", "id": record["id"], "current_state": "active",
        }  # fmt: skip
    assert len(operator("GET", KEYS).json["keys"]) == 1
    # A user of that name is another principal.
    assert operator.names(f"{ACCOUNT}:user/mailer", "work", name="user").status == 201


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"role": "mailer"}, "role"), ({"role": f"{ACCOUNT}:root"}, "role"), ({"role": ""}, "role"),
        ({"role": 5}, "role"), ({"role": None}, "role"), ({"role": "x" * 3_000}, "role"),
        ({"role": f"{ACCOUNT}:role/*"}, "role"), ({"name": ""}, "name"), ({"name": 'a"b'}, "name"),
        ({"scopes": []}, "scopes"), ({"scopes": ["all"]}, "scopes[0]"),
        ({"scopes": ["work", "work"]}, "scopes"), ({"queues": []}, "queues"),
        ({"queues": ["A B"]}, "queues[0]"), ({"expires_at": "soon"}, "expires_at"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"), ({"scope": ["work"]}, "scope"),
        ({"secret": "x"}, "secret"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_field_is_named(change: dict[str, Any], field: str, operator: Signed) -> None:
    body = {"role": f"{ACCOUNT}:role/mailer", "name": "mailer", "scopes": ["work"], **change}
    reply = operator("POST", ROLES, body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field), reply.text
    assert reply.error["details"]["reason"]
    assert operator("GET", KEYS).json["keys"] == []


@pytest.mark.parametrize("field", ["role", "name", "scopes"])
def test_a_missing_field_is_named(field: str, operator: Signed) -> None:
    body = {"role": f"{ACCOUNT}:role/mailer", "name": "mailer", "scopes": ["work"]}
    del body[field]
    reply = operator("POST", ROLES, body)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)


@pytest.mark.parametrize("authorizer", ["keys", "jwt", "none"])
def test_roles_are_of_use_with_iam_only(
    authorizer: str, make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    api = Keyed(make_runtime(authorizer=authorizer), clock)
    told = {
        "lambda": {"principal": "k", "scopes": "admin:write"},
        "jwt": {"claims": {"sub": "k", "scope": "admin:write"}},
        "iam": {"userArn": OPERATOR},
    }
    body = {"role": OPERATOR, "name": "k", "scopes": ["admin:write"]}
    reply = api("POST", ROLES, body, told=told)
    assert (reply.status, reply.error["code"]) == (422, "unsupported")


def test_what_a_request_says_of_itself_makes_no_role(closed: Keyed) -> None:
    """Only what API Gateway says counts, in the field of this authorizer."""
    headers = {
        "x-amzn-iam-arn": OPERATOR,
        "authorization": "AWS4-HMAC-SHA256 Credential=operator/20261122/x/execute-api/aws4_request",
        "requestcontext": f'{{"authorizer":{{"iam":{{"userArn":"{OPERATOR}"}}}}}}',
    }
    for told in ({}, {"lambda": {"principal": OPERATOR, "scopes": "admin:read"}}, {"iam": None}):
        assert closed("GET", "/ojs/v1/queues", headers=headers, told=told).status == 401


# --- workers, and what it costs -------------------------------------------------------------------


def test_a_worker_s_record_belongs_to_the_name_of_its_role(closed: Keyed, operator: Signed) -> None:
    for name in ("mail", "other"):
        assert operator.names(name, "work", queues=[name]).status == 201
    beat = ("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w"})
    assert Signed(closed, session("mail", "task-1"))(*beat).status == 200
    # The role's next task goes on with it; another role has a record of its own.
    assert Signed(closed, session("mail", "task-2"))(*beat).status == 200
    assert Signed(closed, session("other"))(*beat).status == 200
    found = closed.runtime.workers.list(limit=9).items
    assert sorted((each.id, each.holder) for each in found) == [("w", "mail"), ("w", "other")]


def test_a_role_is_looked_up_once_a_minute(closed: Keyed, operator: Signed) -> None:
    """By each container, whatever the session: a read unit, and a write unit for its last use."""
    assert operator.names("mailer", "work").status == 201
    meter = closed.runtime.table.meter
    health = ("GET", "/ojs/v1/openapi.json")
    for _ in range(2):
        _, calls = Signed(closed, session("mailer", "one")).spent(*health)
        assert (calls, meter.read_units, meter.write_units) == (["GetItem", "UpdateItem"], 1.0, 1.0)
        closed.clock.advance(59_999)
        assert Signed(closed, session("mailer", "two")).spent(*health)[1] == []
        closed.clock.advance(1)
    # One without a record: the read alone. An operator: nothing.
    assert Signed(closed, session("nobody")).spent(*health)[1] == ["GetItem"]
    assert Signed(closed, session("nobody")).spent(*health)[1] == []
    assert operator.spent(*health)[1] == []


def test_nothing_is_remembered_where_that_is_set(
    make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    built = make_runtime(authorizer="iam", iam_operators=(OPERATOR,), authorizer_cache_s=0)
    closed = Keyed(built, clock)
    operator, worker = (Signed(closed, session(name)) for name in ("operator", "mailer"))
    assert worker(*FETCH).status == 403
    record = operator.names("mailer", "work").json["key"]
    assert worker(*FETCH).status == 200
    assert operator("DELETE", f"{KEYS}/{record['id']}").status == 200
    assert worker(*FETCH).status == 403


def test_who_cannot_be_looked_up_is_not_without_a_record(
    open_: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a role would be more than its record says while the table is busy."""

    def broken(*_: Any, **__: Any) -> Any:
        raise BackendError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "get", broken)
        assert Signed(open_, session("mailer"))("GET", "/ojs/v1/openapi.json").status == 500
    assert Signed(open_, session("mailer"))("GET", "/ojs/v1/openapi.json").status == 200
