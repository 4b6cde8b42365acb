"""What this server knows and does not offer is refused with 422, and named."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from ojs.api import operations as contract
from ojs.http.binding.routes import wildness
from ojs.http.features import MISSING

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

BASE = "/ojs/v1"
ID = "019539a4-0000-7000-8000-000000000000"
PATHS = [
    pytest.param(feature.name, path.replace("{id}", ID).replace("{name}", "q"), id=path)
    for feature in MISSING
    for path in feature.paths
]


@pytest.mark.parametrize(("feature", "path"), PATHS)
def test_a_family_that_is_not_offered_is_named(api: Api, feature: str, path: str) -> None:
    for method, below in product(("GET", "POST", "DELETE"), ("", "/x", "/x/y%2Fz")):
        reply = api(method, f"{BASE}/{path}{below}", {} if method == "POST" else None)
        assert (reply.status, reply.error["code"]) == (422, "unsupported")
        assert reply.error["details"] == {"feature": feature}
        assert "not supported by this server" in reply.error["message"]
        assert reply.error["retryable"] is False
    assert api.get(f"{BASE}/{path}x/none/of/these/").status in (400, 404)


@pytest.mark.parametrize(
    ("method", "path", "feature"),
    [
        # Of the official clients: Go and JavaScript, the command line, the admin UI.
        ("GET", "/ws", "event-streams"),
        ("GET", "/history/stats", "execution-history"),
        ("POST", "/history/rebuild", "execution-history"),
        ("DELETE", "/history", "history-purge"),
        ("DELETE", f"/jobs/{ID}/history", "history-purge"),
    ],
)
def test_what_clients_ask_for(api: Api, method: str, path: str, feature: str) -> None:
    reply = api(method, f"{BASE}{path}", {} if method in ("POST", "PUT", "PATCH") else None)
    assert (reply.status, reply.error["details"]) == (422, {"feature": feature})


def test_no_feature_hides_an_operation() -> None:
    for operation in contract.OPERATIONS:
        assert contract.at(operation.path)[operation.method] is operation
        assert contract.missing(operation.path) is None


def test_an_operation_wins_over_a_feature_that_is_as_literal() -> None:
    """So that a feature may be built path by path."""
    feature = MISSING[0]
    for operation, family, first in (
        ("/jobs/bulk/{action}", "/jobs/bulk", True),
        ("/jobs/{id}/history", "/jobs/{id}/history", True),
        ("/jobs/{id}/cancel", "/jobs/bulk", False),
        ("/jobs/{id}/history/{at}", "/jobs/{id}/history", True),
    ):
        found = wildness(operation, {}) <= wildness(family, feature)
        assert found is first, (operation, family)


def test_literal_parts_of_a_path_win_over_parameters(api: Api) -> None:
    """`bulk` and `results` are no jobs; what is no name of a feature or of an operation is one."""
    assert contract.at(f"{BASE}/jobs/bulk/cancel")["POST"].id == "cancel_jobs"
    assert contract.at(f"{BASE}/jobs/results")["POST"].id == "results"
    assert "POST" in contract.at(f"{BASE}/jobs/bulky/cancel")
    reply = api.post(f"{BASE}/jobs/bulky/cancel")
    assert (reply.status, reply.error["details"]["field"]) == (400, "id")


@pytest.mark.parametrize("path", ["workers/register", "workers/heartbeat"])
def test_handlers_of_a_worker_are_refused(api: Api, path: str) -> None:
    worker = {"worker_id": "w", "state": "running"}
    for body in ({**worker, "handlers": [{"type": "a", "versions": ["1.0"]}]},):
        reply = api.post(f"{BASE}/{path}", body)
        assert (reply.status, reply.error["details"]["field"]) == (422, "handlers")
    assert api.get(f"{BASE}/workers/w/health").status == 404
    assert api.post(f"{BASE}/{path}", {**worker, "handlers": None}).status == 200
