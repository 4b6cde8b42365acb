"""Storage of workflows.

    W|{id}                  @                   the root item: the state of all nodes, active steps
    W|{id}                  def|{token}         the graph, and the first job templates if it is
        small
    W|{id}                  def|{token}|{page}  job templates, 100 in each item
    W|{id}|r                {node}|{generation} a result or error that later steps use
    W|{id}|{token}|{shard}  fan                 marks of many jobs (`ojs.store.workflows.fan_ins`)

Only the root item changes, on the condition that it has not changed since it was read. The index
`work` lists unfinished workflows by the time of their next check. The index `expiry` lists all
workflows.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from ojs.bounded import BoundedMap
from ojs.domain import jsontext
from ojs.domain.errors import NotFound, UnknownForm
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.domain.page import Page
from ojs.domain.workflow import results, stored
from ojs.domain.workflow.advance import GraphState, WorkflowState
from ojs.domain.workflow.graph import Graph, StepKind
from ojs.domain.workflow.graph import job_id as derived_job_id
from ojs.records import record
from ojs.store.jobs.blobs import Blobs
from ojs.store.jobs.payloads import MAX_ITEM_BYTES
from ojs.store.table import keys
from ojs.store.table.errors import LostRace, UnreadableItem, ignore_unreadable, readable
from ojs.store.table.record import Attribute, Record, member, rewriting
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value, pack
from ojs.store.workflows.fan_ins import FanIn, FanInStore

# Up to this number of bytes, a graph and its first job templates are stored in one item, which
# costs one read unit.
_TOGETHER = 4_096
# Maximum number of graphs in the per-container cache. A graph never changes.
_REMEMBERED = 16
# Maximum number of pages of job templates in the per-container cache. A page has 100 templates.
_PAGES = 32
_BLOB = "bucket"


@record(frozen=True)
class WorkflowRecord:
    """A workflow, as stored in its root item. Times in ms.

    `starting` are the jobs that must start and are not stored yet, as a bit set of nodes. Until
    `starter_ms`, only the request that set this time starts them. `leaving` are the started jobs
    that a cancellation has not processed yet. `check_ms` is the time of the next check for finished
    jobs that were missed. The jobs of an open fan-in are counted when it closes.
    """

    id: str
    kind: StepKind
    jobs: int
    created_ms: int
    updated_ms: int
    name: str | None = None
    state: WorkflowState = WorkflowState.RUNNING
    graph_state: GraphState = field(default_factory=GraphState)
    ended_ms: int | None = None
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    producer: str | None = None
    # The trace context of the request that created the workflow.
    trace: str | None = None
    # The token of the workflow's definition. If two requests have the same ID, chosen by the
    # client, they have different tokens.
    definition: str = ""
    # The first step that failed and its error, as JSON: `step`, `type`, `message`.
    fault: str | None = None
    # The jobs that finished with the most recent write, as JSON: node, step, type, state, and
    # duration (ms) or null.
    told: str | None = None
    starting: int = 0
    starter_ms: int | None = None
    leaving: int = 0
    fan_ins: tuple[FanIn, ...] = ()
    check_ms: int | None = None
    ttl_s: int | None = None
    op: str | None = None
    # Durations (ms) of the jobs that finished since the root was read, by node, if known.
    lengths: Mapping[int, int] = field(default_factory=dict, compare=False)
    # For a workflow that is about to be created: whether the client chose its ID.
    chosen_id: bool = field(default=False, compare=False)

    def job_id(self, node: int) -> str:
        """Return the ID of a node's job, in the current or last generation of the node."""
        generation = self.graph_state.generation_of(node)
        return derived_job_id(self.id, self.created_ms, node, generation)

    def gone(self, now_ms: int) -> bool:
        """Return whether the workflow's retention has ended. DynamoDB deletes it later."""
        return self.ttl_s is not None and self.ttl_s * 1_000 <= now_ms


@record(frozen=True)
class StoredDefinition:
    """The graph of a workflow, and the queues of its jobs. When it is created, also all jobs."""

    graph: Graph
    queues: frozenset[str]
    templates: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def kept(self) -> frozenset[int]:
        """Return the nodes whose results another step uses."""
        return results.kept(self.graph)


class WorkflowStore:
    """Reads and writes workflows."""

    def __init__(self, table: Table, blobs: Blobs, ids: IdSource) -> None:
        self._table = table
        self._blobs = blobs
        self._ids = ids
        self.fan_ins = FanInStore(table)
        # Per-container caches, by key.
        self._definitions: BoundedMap[tuple[str, str], StoredDefinition] = BoundedMap(_REMEMBERED)
        self._templates: BoundedMap[tuple[str, str], list[dict[str, Any]]] = BoundedMap(_PAGES)

    # --- the root ---------------------------------------------------------------------------------

    def get(self, workflow_id: str) -> WorkflowRecord | None:
        """Read one workflow, strongly consistent. Raise UnknownForm or UnreadableItem."""
        item = self._table.get(keys.workflow(workflow_id), keys.RECORD)
        return None if item is None else WORKFLOW.of(item)

    def stopped(self, jobs: Sequence[Job]) -> list[Job]:
        """Return those of these jobs that are unfinished and whose workflow is cancelled.

        One strongly consistent read of each root item.
        """
        steps = {job.id: job.workflow for job in jobs if job.workflow is not None}
        roots = self.get_many({step.workflow_id for step in steps.values()}, consistent=True)

        def is_stopped(job: Job) -> bool:
            step = steps.get(job.id)
            root = None if step is None else roots.get(step.workflow_id)
            if step is None or root is None or not root.graph_state.stopped:
                return False
            # The job is a retried dead letter: it finished before the cancellation.
            return not root.graph_state.ended >> step.node & 1

        return [job for job in jobs if is_stopped(job)]

    def get_many(
        self, workflow_ids: Iterable[str], *, consistent: bool = False
    ) -> dict[str, WorkflowRecord]:
        """Read several workflows by ID, without those that don't exist or can't be read."""
        wanted = [(keys.workflow(each), keys.RECORD) for each in workflow_ids]
        found = self._table.batch_get(wanted, consistent=consistent)
        there = [found[key] for key in wanted if key in found]
        return {each.id: each for each in readable(WORKFLOW.of, there, ignore_unreadable)}

    def page(self, *, limit: int, after: str | None) -> Page[WorkflowRecord]:
        """Return a page of all workflows, latest first, and the key of the next page.

        The index is eventually consistent.
        """
        start = None
        if after is not None:
            root = _key(after.partition("|")[2])
            start = pack({**root, "epk": keys.WORKFLOWS, "esk": after})
        found = self._table.query(
            "epk = :all", {":all": keys.WORKFLOWS}, index="expiry", limit=limit + 1,
            forward=False, after=start,
        )  # fmt: skip
        page = found.items[:limit]
        there = self.get_many(keys.workflow_id(str(item["pk"])) for item in page)
        more = str(page[-1]["esk"]) if len(found.items) > limit else None
        return Page(list(there.values()), more)

    def due(self, *, now_ms: int, limit: int) -> list[str]:
        """Return the IDs of workflows that are due for a check, in order of the due time.

        The read is eventually consistent.
        """
        found = self._table.query(
            "wpk = :line AND wsk <= :now",
            {":line": keys.WORKFLOWS_DUE, ":now": keys.upto(now_ms)},
            index="work",
            limit=limit,
        )
        return [keys.workflow_id(str(item["pk"])) for item in found.items]

    def replacing(
        self, before: WorkflowRecord | None, after: WorkflowRecord
    ) -> tuple[WorkflowRecord, Put | Update]:
        """Return the write that stores the root item `after`.

        `before` is None for a new workflow.
        """
        after = replace(after, op=self._ids.token())
        new = _item(after)
        if before is None:
            # Race: another request with the same ID, which the client chose. The loser stores
            # nothing.
            return after, Put(new, condition="attribute_not_exists(pk)")
        # Race: two jobs finish at the same time, or a cancellation, a retry, or a check runs. One
        # write wins. The losers write nothing, not even the jobs that are in the same transaction.
        # They read again, and decide again with both results.
        seen: dict[str, Value] = {":seen": before.op or ""}
        return after, rewriting(_item(before), new, "#op = :seen", seen)

    def write(self, before: WorkflowRecord | None, after: WorkflowRecord) -> WorkflowRecord:
        """Write a root item without other items. Raises LostRace."""
        after, write = self.replacing(before, after)
        if isinstance(write, Put):
            self._table.put(write, own=("op", str(after.op)))
        else:
            self._table.update(write, own=("op", str(after.op)))
        return after

    # --- the definition ---------------------------------------------------------------------------

    def define(
        self,
        record: WorkflowRecord,
        graph: Graph,
        templates: Sequence[Mapping[str, Any]],
        queues: Collection[str],
    ) -> None:
        """Store the definition of a workflow. It is written before the root item.

        Args:
            record: The workflow.
            graph: Graph of its steps.
            templates: Templates of its jobs.
            queues: Queues of its jobs.
        """
        pk, sk = keys.workflow(record.id), _definition(record)
        item: Item = {
            "pk": pk,
            "sk": sk,
            "graph": (text := stored.graph_text(graph)),
            "queues": " ".join(sorted(queues)),
        }
        pages = stored.template_pages(templates)
        if len(text) + len(pages[0]) <= _TOGETHER:
            item["first"] = pages[0]
        apart = [
            self._apart(pk, _page(record, number), page)
            for number, page in enumerate(pages)
            if number or "first" not in item
        ]
        if apart:
            self._table.write_many(puts=[item, *apart])
        else:
            self._table.put(Put(item))
        self._definitions.put((pk, sk), StoredDefinition(graph, frozenset(queues)))

    def _apart(self, pk: str, sk: str, text: bytes) -> Item:
        """Return an item with a text.

        If the text is too large for an item, it is stored in the bucket.
        """
        if len(text) <= MAX_ITEM_BYTES:
            return {"pk": pk, "sk": sk, "zip": text}
        self._blobs.put(_blob_key(pk, sk), text)
        return {"pk": pk, "sk": sk, _BLOB: len(text)}

    def _text(self, item: Item) -> bytes:
        """Return the text of an item that `_apart` returned. Raises UnreadableItem."""
        if _BLOB not in item:
            return _bytes(item["zip"])
        try:
            return self._blobs.get(_blob_key(str(item["pk"]), str(item["sk"])))
        except KeyError as error:
            raise UnreadableItem(f"workflow {keys.workflow_id(str(item['pk']))}", error) from None

    def definition(self, workflow: WorkflowRecord | str) -> StoredDefinition:
        """Return the definition of a workflow.

        It never changes, so a container caches it. If only an ID is given, the root item is read
        first. Raises NotFound, UnknownForm, or UnreadableItem.
        """
        record = self.get(workflow) if isinstance(workflow, str) else workflow
        if record is None:
            raise NotFound("workflow", str(workflow))
        key = keys.workflow(record.id), _definition(record)
        found = self._definitions.get(key)
        if found is None:
            item = self._read(*key)
            try:
                graph = stored.graph_of(_bytes(item["graph"]))
            except UnknownForm:
                raise
            except (KeyError, ValueError, TypeError, IndexError, zlib.error) as error:
                raise UnreadableItem(f"workflow {record.id}", error) from error
            found = StoredDefinition(graph, frozenset(str(item["queues"]).split()))
            self._definitions.put(key, found)
            if "first" in item:
                first = _page(record, 0)
                self._templates.put((key[0], first), stored.templates_of(_bytes(item["first"])))
        return found

    def _read(self, pk: str, sk: str) -> Item:
        # An eventually consistent read costs half. It returns the item or nothing, because the item
        # never changes.
        for consistent in (False, True):
            item = self._table.get(pk, sk, consistent=consistent)
            if item is not None:
                return item
        raise NotFound("workflow", keys.workflow_id(pk))

    def templates(
        self, record: WorkflowRecord, nodes: Iterable[int]
    ) -> dict[int, Mapping[str, Any]]:
        """Return the requests of the jobs of these nodes. Raise NotFound or UnreadableItem."""
        graph = self.definition(record).graph
        found: dict[int, Mapping[str, Any]] = {}
        for node in nodes:
            page, at = divmod(bisect_left(graph.jobs, node), stored.PAGE)
            found[node] = self._templates_of(record, page)[at]
        return found

    def _templates_of(self, record: WorkflowRecord, number: int) -> list[dict[str, Any]]:
        key = keys.workflow(record.id), _page(record, number)
        if (page := self._templates.get(key)) is None:
            text: bytes | None = None
            if not number:
                first = self._read(key[0], _definition(record)).get("first")
                text = None if first is None else _bytes(first)
            page = stored.templates_of(text or self._text(self._read(*key)))
            self._templates.put(key, page)
        return page

    # --- results ----------------------------------------------------------------------------------

    def keep(self, workflow_id: str, node: int, generation: int, told: Mapping[str, Any]) -> None:
        """Store the `result` or the `error` of a job. An existing one is not replaced.

        Args:
            workflow_id: ID of the workflow.
            node: Number of the node.
            generation: Generation of the node.
            told: The result or the error.
        """
        text = zlib.compress(jsontext.dumps(told).encode(), 6)
        pk, sk = keys.workflow_results(workflow_id), keys.step_result(node, generation)
        # Race: the request that finished the job and the stream consumer store the same value. If a
        # dead letter is retried after its failure was stored, its new value is not stored.
        with suppress(LostRace):
            self._table.put(Put(self._apart(pk, sk, text), condition="attribute_not_exists(pk)"))

    def kept(
        self, workflow_id: str, nodes: Mapping[int, int], *, most: int
    ) -> dict[int, dict[str, Any]] | None:
        """Return the stored results of these nodes, by node.

        Args:
            workflow_id: ID of the workflow.
            nodes: Generation of each node.
            most: Maximum bytes of JSON in total.

        Returns:
            None if the results are larger than `most`.
        """
        pk = keys.workflow_results(workflow_id)
        wanted = [(pk, keys.step_result(node, at)) for node, at in nodes.items()]
        found: dict[int, dict[str, Any]] = {}
        size = 0
        for start in range(0, len(wanted), _AT_ONCE):
            part = self._table.batch_get(wanted[start : start + _AT_ONCE])
            if sum(int(item.get(_BLOB, 0)) for item in part.values()) > most:
                # The stored value is compressed already.
                return None
            for (_, sk), item in part.items():
                raw = zlib.decompress(self._text(item))
                size += len(raw)
                if size > most:
                    return None
                found[int(sk.partition("|")[0])] = jsontext.stored(raw.decode())
        return found

    # --- removal ----------------------------------------------------------------------------------

    def remove_definition(self, record: WorkflowRecord) -> None:
        """Remove the definition of a workflow whose root item was not written."""
        pk = keys.workflow(record.id)
        pages = [_page(record, number) for number in range(-(-record.jobs // stored.PAGE))]
        for sk in pages:
            self._blobs.delete(_blob_key(pk, sk))
        self._table.write_many(deletes=[(pk, sk) for sk in (_definition(record), *pages)])

    def remove(self, record: WorkflowRecord) -> None:
        """Remove a finished workflow, as read, and all its other items. Raises LostRace."""
        # Race: a request retries the workflow. The loser reads again, and finds that it is active.
        # If the process crashes afterwards, the stream record of the root item leads to the same
        # cleanup.
        self._table.delete(
            keys.workflow(record.id),
            keys.RECORD,
            condition="#op = :seen",
            values={":seen": record.op or ""},
        )
        self.remove_rest(record)

    def remove_rest(self, record: WorkflowRecord) -> None:
        """Remove all other items of a workflow whose root item was removed or never written."""
        self.fan_ins.remove(record.id, record.fan_ins)
        for pk in (keys.workflow_results(record.id), keys.workflow(record.id)):
            after: dict[str, Any] | None = None
            while True:
                page = self._table.query("pk = :pk", {":pk": pk}, consistent=True, after=after)
                for item in page.items:
                    if _BLOB in item:
                        self._blobs.delete(_blob_key(pk, str(item["sk"])))
                self._table.write_many(
                    deletes=[(pk, str(i["sk"])) for i in page.items if i["sk"] != keys.RECORD]
                )
                after = page.last
                if after is None:
                    break


_AT_ONCE = 100


def _key(workflow_id: str) -> dict[str, Value]:
    return {"pk": keys.workflow(workflow_id), "sk": keys.RECORD}


def _definition(record: WorkflowRecord) -> str:
    return f"{keys.DEFINITION}{record.definition}"


def _page(record: WorkflowRecord, number: int) -> str:
    return f"{_definition(record)}|{number:03d}"


def _bytes(value: Value) -> bytes:
    return bytes(value) if isinstance(value, bytes | bytearray) else b""


def _blob_key(pk: str, sk: str) -> str:
    return f"workflow/{pk.removeprefix(keys.workflow('')).replace('|', '/')}/{sk.replace('|', '/')}"


def _packed(found: int) -> bytes:
    """Pack a bit set. Sets with few runs of consecutive bits become small."""
    return zlib.compress(found.to_bytes((found.bit_length() + 7) // 8, "little"))


def _unpacked(text: Value) -> int:
    return int.from_bytes(zlib.decompress(_bytes(text)), "little")


def _item(record: WorkflowRecord) -> Item:
    due: Item = {}
    if record.check_ms is not None:
        due = {"wpk": keys.WORKFLOWS_DUE, "wsk": keys.instant(record.check_ms)}
    listed = f"{keys.instant(record.created_ms)}|{record.id}"
    return WORKFLOW.item(record, **_key(record.id), epk=keys.WORKFLOWS, esk=listed, **due)


def _fans(fan_ins: Sequence[FanIn]) -> bytes:
    told = [[each.token, f"{each.nodes:x}"] for each in fan_ins]
    return zlib.compress(jsontext.dumps(told).encode())


def _fan_ins(packed: Any) -> tuple[FanIn, ...]:
    told = jsontext.stored(zlib.decompress(packed).decode())
    return tuple(FanIn(token, int(nodes, 16)) for token, nodes in told)


WORKFLOW = Record(
    WorkflowRecord,
    "workflow",
    {
        "name": "name",
        "type": member("kind", StepKind, "a workflow of type"),
        "state": member("state", WorkflowState, "a workflow in state"),
        "nodes": Attribute(
            "graph_state", stored.state_text, lambda it: stored.state_of(bytes(it)), "B"
        ),
        "created": "created_ms",
        "updated": "updated_ms",
        "ended": "ended_ms",
        "jobs": "jobs",
        "completed": "completed",
        "failed": "failed",
        "cancelled": "cancelled",
        "skipped": "skipped",
        "by": "producer",
        "trace": "trace",
        "fault": "fault",
        "def": "definition",
        "told": "told",
        "starting": Attribute("starting", _packed, _unpacked, "B"),
        "starter": "starter_ms",
        "leaving": Attribute("leaving", _packed, _unpacked, "B"),
        "fans": Attribute("fan_ins", _fans, _fan_ins, "B"),
        "ttl": "ttl_s",
        "op": "op",
    },
    apart={
        "id": lambda item: keys.workflow_id(str(item["pk"])),
        "check_ms": lambda item: keys.instant_of(item["wsk"]) if "wsk" in item else None,
        **dict.fromkeys(("lengths", "chosen_id")),
    },
    always=("state", "nodes", "def"),
)
