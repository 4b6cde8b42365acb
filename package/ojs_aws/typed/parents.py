"""Results of the steps before a job of a workflow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload
from urllib.parse import parse_qsl, urlsplit

from ojs_aws.client.call import Answer, Call, json_object
from ojs_aws.errors import JobError
from ojs_aws.typed.clients import Clients

if TYPE_CHECKING:
    from ojs_aws.client.job import Job

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
# Key of a step's `meta`: the names of its parents in a graph, by job type.
PARENTS = "ojs_parents"


class Reference(Protocol[R_co]):
    """A job type whose result can be read."""

    name: str

    def read_result(self, value: Any) -> R_co:
        """Convert a result from JSON. Raises Refused."""


class Parents:
    """Results of the steps before a job of a workflow, by job type, name, or position."""

    def __init__(self, job: Job, clients: Clients) -> None:
        self._job = job
        self._clients = clients

    @cached_property
    def _found(self) -> tuple[list[Any], list[Any], list[str]]:
        """Results, errors, and names of all parents. Large results are read from the server."""
        raw = self._job.raw
        found = raw.get("parent_results", [])
        if isinstance(found, list):
            errors = raw.get("parent_errors") or [None] * len(found)
            return found, errors, list(raw.get("parent_results_by_step", {}))
        place, entries = urlsplit(found["$ref"]), list[Answer]()
        query = dict(parse_qsl(place.query))
        while query:
            page = self._clients.run(Call("GET", place.path, json_object, query=query))
            entries += page["results"]
            cursor = page["pagination"].get("next_cursor")
            query = {**query, "cursor": cursor} if cursor else {}
        results = [each.get("result") for each in entries]
        return results, [each.get("error") for each in entries], [each["step"] for each in entries]

    def __len__(self) -> int:
        return len(self._found[0])

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the results in order, as JSON. Raises JobError for a parent that failed."""
        return (self[number] for number in range(len(self)))

    @overload
    def __getitem__(self, step: Reference[R]) -> R: ...
    @overload
    def __getitem__(self, step: str | int) -> Any: ...
    def __getitem__(self, step: Reference[Any] | str | int) -> Any:
        """Return the result of a parent: of the first one of a job type, or JSON.

        Raises:
            LookupError: The job has no such parent. The message names those it has.
            JobError: The parent failed.
        """
        results, errors, names = self._found
        name = step if isinstance(step, (str, int)) else step.name
        if not isinstance(step, (str, int)):
            name = self._job.meta.get(PARENTS, {}).get(name, name)
        position = name if isinstance(name, int) else names.index(name) if name in names else None
        if position is None or not -len(results) <= position < len(results):
            there = names or len(results) or "none"
            raise LookupError(f"parents[{step!r}]: the parents are {there}")
        if errors[position]:
            raise JobError(self._job.id, "discarded", errors[position])
        found = results[position]
        return found if isinstance(step, (str, int)) else step.read_result(found)
