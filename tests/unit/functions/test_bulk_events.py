"""What requests of bulk work leave for the event log, by HTTP."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from ojs.api import system as manifest
from ojs.domain.errors import BackendUnavailable
from ojs.projections import records
from ojs.store.jobs.bulk_pushes import BulkPushStore
from ojs.store.table import keys, values
from tests.store.streams import made_record
from tests.unit.functions.client import Api

BASE = "/ojs/v1"
ONE: dict[str, Any] = {"type": "a", "args": [1]}
BAD: dict[str, Any] = {"type": ""}


def told(api: Api) -> list[tuple[str, dict[str, Any]]]:
    """The events of the bulk work that is in the table."""
    client, table = api.runtime.table.client, api.runtime.settings.table
    found = [values.unpack(item) for item in client.scan(TableName=table)["Items"]]
    wanted = (keys.bulk_push(""), keys.operation(""))
    items = sorted(
        (i for i in found if str(i["pk"]).startswith(wanted)), key=lambda i: str(i["pk"])
    )
    changes = [one for item in items for one in records.parse(made_record(1, None, item))]
    return [(event.type, dict(event.data)) for one in changes for event in one.events("shop")]


@pytest.mark.parametrize("atomicity", ["partial", "atomic"])
@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("key", [None, "k"])
def test_a_bulk_enqueue_is_told(api: Api, atomicity: str, count: int, key: str | None) -> None:
    """Once, if it has a key."""
    body: dict[str, Any] = {"jobs": [ONE] * count, "atomicity": atomicity}
    data = {"total": count, "succeeded": count, "failed": 0, "atomicity": atomicity}
    event = ("bulk.enqueue.completed", data)
    if key is not None:
        body["idempotency_key"] = key
    assert api.post(f"{BASE}/jobs/bulk", body).status == 201
    assert told(api) == [event]
    assert api.post(f"{BASE}/jobs/bulk", body).status == 201
    assert told(api) == [event] * (2 if key is None else 1)


@pytest.mark.parametrize("key", [None, "k"])
def test_what_failed_is_counted(api: Api, key: str | None) -> None:
    there = {**ONE, "options": {"unique": {"keys": ["type"], "on_conflict": "ignore"}}}
    api.post(f"{BASE}/jobs", there)
    body: dict[str, Any] = {"jobs": [ONE, BAD, there]}
    if key is not None:
        body["idempotency_key"] = key
    for _ in range(2 if key else 1):
        assert api.post(f"{BASE}/jobs/bulk", body).status == 207
    data = {"total": 3, "succeeded": 2, "failed": 1, "atomicity": "partial"}
    assert told(api) == [("bulk.enqueue.completed", data)]


def test_what_is_no_bulk_enqueue_leaves_nothing(api: Api) -> None:
    """Nor does one that is refused."""
    assert api.post(f"{BASE}/jobs", ONE).status == 201
    assert api.post(f"{BASE}/jobs/batch", {"jobs": [ONE] * 6}).status == 201
    for atomicity in ("partial", "atomic"):
        for more in ({}, {"idempotency_key": "k"}):
            body = {"jobs": [BAD], "atomicity": atomicity, **more}
            assert api.post(f"{BASE}/jobs/bulk", body).status == 422
    assert api.post(f"{BASE}/jobs/bulk", {"jobs": [ONE] * 1_001}).status == 413
    assert told(api) == []


def test_jobs_that_are_stored_are_answered_even_if_it_cannot_be_told(api: Api) -> None:
    broken = mock.patch.object(BulkPushStore, "add", side_effect=BackendUnavailable("no"))
    with broken:
        assert api.post(f"{BASE}/jobs/bulk", {"jobs": [ONE] * 6}).status == 201
    assert len(api.fetch(count=10)) == 6
    assert told(api) == []


@pytest.mark.parametrize("under", ["", "/admin"])
def test_bulk_work_is_told(api: Api, under: str) -> None:
    """Not what was only counted."""
    jobs = [api.push() for _ in range(2)]
    path = f"{BASE}{under}/jobs/bulk"
    more = {"confirm": True} if under else {}
    wanted = {"job_ids": jobs, **more}
    assert api.post(f"{path}/cancel", {**wanted, "dry_run": True}).status == 200
    assert told(api) == []
    assert api.post(f"{path}/cancel", wanted).status == 200
    assert api.post(f"{path}/delete", wanted).status == 200
    api.dead()
    assert api.post(f"{path}/retry", {"filter": {"state": "discarded"}, **more}).status == 200
    assert told(api) == [
        ("bulk.cancel.completed", {"total": 2, "cancelled": 2, "skipped": 0}),
        ("bulk.delete.completed", {"total": 2, "deleted": 2, "skipped": 0}),
        ("bulk.retry.completed", {"total": 1, "retried": 1, "skipped": 0}),
    ]


def test_a_purge_of_a_queue_is_told_as_the_deletion_that_it_is(api: Api) -> None:
    api.dead()
    body = {"states": ["discarded"]}
    assert api.post(f"{BASE}/queues/default/purge", body).status == 200
    assert told(api) == [("bulk.delete.completed", {"total": 1, "deleted": 1, "skipped": 0})]


def test_the_manifest_names_bulk_operations_and_they_are_served(api: Api) -> None:
    """BLK-001 … 005 of ojs-bulk-operations section 13.1."""
    assert "bulk-operations" in manifest.EXTENSIONS
    # Per-item results; 207 where they differ.
    mixed = api.post(f"{BASE}/jobs/bulk", {"jobs": [ONE, BAD]})
    assert mixed.status == 207
    first, second = mixed.json["items"]
    assert (first["index"], first["status"], "error" in first) == (0, "created", False)
    assert (second["index"], second["status"]) == (1, "failed")
    assert second["error"]["code"] == "invalid_request"
    # 100 jobs at least; 413 beyond the limit, which the answer tells.
    assert api.post(f"{BASE}/jobs/bulk", {"jobs": [ONE] * 100}).status == 201
    refused = api.post(f"{BASE}/jobs/bulk", {"jobs": [ONE] * 1_001})
    assert (refused.status, refused.error["code"]) == (413, "BATCH_SIZE_EXCEEDED")
    assert int(refused.headers["X-OJS-Max-Batch-Size"]) >= 100
