"""The things that a run creates, and their deletion.

All names follow from the name of the run, so an interrupted run can be cleaned without a record of
it. `made.json` lists the created things for users, and the server for `--clean`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ojs_aws import NotFound, OjsError
from ojs_aws.client.call import Call, json_object, place

if TYPE_CHECKING:
    from ojs_aws import Client

RUN_NAME = re.compile(r"prove-[0-9a-f]{4}")
# Last parts of the names of queues, workers, cron jobs, and deliveries.
QUEUES = ("check", "full", "count", "time", "pick", "cron", "pushed", "ramp", "long")
WORKERS = ("a", "b", "worker-0", "worker-1", "worker-2", "worker-3")
CRON, DELIVERY = "tick", "pushed"
# Jobs of one request to erase them.
_ERASED = 500
_LOOK_S = 0.5


class Made:
    """The record of what a run creates. It is written before each thing is created."""

    def __init__(self, folder: Path, run: str, **server: str | None) -> None:
        self.path = folder / "made.json"
        self.things: list[dict[str, str]] = []
        self._about = {"run": run, "server": server}

    def note(self, kind: str, name: str) -> bool:
        """Record a thing that is created next. Returns false if it was recorded before."""
        thing = {"kind": kind, "name": name}
        if thing in self.things:
            return False
        self.things.append(thing)
        found = {**self._about, "made": self.things}
        self.path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        return True


def server_of(folder: Path) -> dict[str, Any]:
    """Return `url` and `stage` of the server of a recorded run. {} without a record."""
    try:
        server = json.loads((folder / "made.json").read_text("utf-8"))["server"]
    except (OSError, ValueError, KeyError):
        return {}
    return server if isinstance(server, dict) else {}


class Cleaner:
    """Deletes everything that a run created, and looks for leftovers."""

    def __init__(
        self,
        client: Client,
        run: str,
        *,
        quiet_s: float,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        """Create a cleaner.

        Args:
            client: Client of an operator.
            run: Name of the run.
            quiet_s: Time in seconds in which nothing more may appear. Lists of finished jobs are
                delayed by the stream.
            sleep: Waits, for tests.
        """
        self._client, self._run, self._quiet_s, self._sleep = client, run, quiet_s, sleep

    def clean(self, within_s: float = 300.0) -> list[str]:
        """Delete everything. Returns leftovers after `within_s` seconds: usually none."""
        now = time.monotonic()
        end, quiet_since = now + within_s, now
        while True:
            left = [*self._delete()]
            now = time.monotonic()
            if left:
                quiet_since = now
            elif now - quiet_since >= self._quiet_s:
                self._revoke_keys()
                return [f"key {each['id']}" for each in self._keys()]
            if now >= end:
                return left
            self._sleep(_LOOK_S)

    def _delete(self) -> Iterator[str]:
        """Delete existing things, and yield their descriptions."""
        client, named = self._client, self._named
        for kind, what, delete in (
            ("cron job", CRON, client.delete_cron),
            ("delivery", DELIVERY, client.delete_delivery),
        ):
            if _happened(delete, named(what)):
                yield f"{kind} {named(what)}"
        for queue in map(named, QUEUES):
            while jobs := [each["id"] for _, each in zip(range(_ERASED), self._jobs(queue))]:  # noqa: B905
                yield f"{len(jobs)} jobs of queue {queue}"
                # Also erases their workflows, dead letters, and payloads.
                self._finish(client.erase_jobs(jobs)["operation"])
                if len(jobs) < _ERASED:
                    break
            if _happened(client.delete_queue, queue, "discard"):
                yield f"queue {queue}"
        for worker in map(named, WORKERS):
            # The path of operators: the key of the run has its own worker records.
            path = Call("DELETE", place("admin/workers/{}", worker), json_object)
            if _happened(client.run, path):
                yield f"worker {worker}"

    def _named(self, what: str) -> str:
        return f"{self._run}-{what}"

    def _jobs(self, queue: str) -> Iterator[dict[str, Any]]:
        return self._client.each(self._client.list_jobs, queue=queue, limit=100)

    def _finish(self, operation: dict[str, Any]) -> None:
        """Wait until the sweep has done the rest of an operation."""
        for _ in range(120):
            if operation["state"] not in {"running", "stopping"}:
                return
            self._sleep(_LOOK_S)
            operation = self._client.get_job_operation(operation["id"])
            operation = operation.get("operation", operation)

    def _keys(self) -> list[dict[str, Any]]:
        """Return the valid keys of the run."""
        try:
            keys = self._client.each(self._client.list_keys, limit=200)
            return [each for each in keys if (each["name"], each["state"]) == (self._run, "active")]
        except OjsError as error:
            if getattr(error, "code", "") == "unsupported":
                return []  # authorizer=jwt or iam
            raise

    def _revoke_keys(self) -> None:
        for key in self._keys():
            self._client.revoke_key(key["id"], made="revoke")


def _happened(delete: Callable[..., Any], *names: Any) -> bool:
    """Delete something. Returns whether it existed."""
    try:
        delete(*names)
    except NotFound:
        return False
    except OjsError as error:
        # A queue whose deletion continues, or a server without deliveries.
        if getattr(error, "status", 0) in {409, 422}:
            return getattr(error, "status", 0) == 409
        raise
    return True
