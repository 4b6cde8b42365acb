"""A run of the backend that writes every kind of item with every attribute, and notes each write.

It asks over HTTP, as clients do, has the stream projected, and runs the sweep of each minute. What
only happens when a process dies (a count that is one too many) is made by a direct call.
"""

from __future__ import annotations

import json
import random
import threading
from dataclasses import replace
from typing import Any, cast

from functions.sweep import handler as sweep
from ojs import projections, runtime
from ojs.clock import ManualClock
from ojs.domain import times
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.delivery.breaker import FAULTS, FIRST_OPEN_MS
from ojs.domain.events.event import Event
from ojs.domain.ids import IdSource
from ojs.domain.rate_limit.limiter import limiter_name
from ojs.domain.realtime import Connection, Listener, Subscriber, group_of, owner_of
from ojs.domain.workflow import request
from ojs.domain.workflow.advance import RetryMode
from ojs.http import endpoint
from ojs.services.deliveries.parts import AllowedTargets, DeliveryDependencies
from ojs.services.operations.authentication import Authentication
from ojs.services.operations.setup import Setup
from ojs.settings import Settings
from ojs.store.bounds.depth_counter import CapacityUse, period_of
from ojs.store.deliveries.deliveries import DeliveryStore
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.derived.pool_health import PoolHealthStore
from ojs.store.derived.sharded import CLOSED_MS
from ojs.store.jobs.blobs import MemoryBlobs
from ojs.store.table import keys, values
from ojs.store.table.schema import TABLE
from ojs.store.table.table import Table, Update
from ojs.store.workflows.workflows import WorkflowRecord
from tests.simulation.memory import Change, Memory
from tests.store.hooking import BODY, Endpoint, Messages, parts
from tests.store.permits import lost_permit
from tests.store.pushing import CRASHED, DONE, FUNCTION, GONE, THROTTLED, FakeTarget, Wakes, settled
from tests.store.streams import SHARD, FakeBus, FakeMetrics, made_record
from tests.unit.functions.client import HANDLERS, event_of

_BASE = "/ojs/v1"
_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000
# Larger than what a job record holds; than what an item holds.
_APART, _IN_BUCKET = "x" * 5_000, "y" * 400_000
_CHOSEN = "01968f2a-0000-7000-8000-{:012d}"


class _Client:
    """The SDK's client, as far as the store calls it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        # Services call it from several threads, and a call of the table is atomic.
        self._lock = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._memory, name)

        def call(**arguments: Any) -> Any:
            with self._lock:
                return operation(arguments)

        return call


class _Secret:
    """A secret that has no value at first."""

    text: str | None = None

    def read(self) -> str | None:
        return self.text

    def write_once(self, text: str, token: str) -> str:
        self.text = text
        return text


class Run:
    """A backend on a table of this process, and all items as they were after each write."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self._memory = Memory()
        self._memory.watchers.append(self._note)
        self._client = cast("Any", _Client(self._memory))
        self._records: list[Any] = []
        self._number = 0
        self.clock = ManualClock()
        # The same ids in each run.
        self._ids = IdSource(self.clock, random.Random(1).randbytes)
        self._blobs = MemoryBlobs()
        self.endpoint = Endpoint()
        self.target = FakeTarget()
        self.run = self._container()

    def _container(self) -> runtime.Runtime:
        """A container with nothing in its memory, which answers from now on."""
        built = runtime.build(
            Settings(table="table", bucket="payloads"),
            client=self._client,
            blobs=self._blobs,
            clock=self.clock,
            ids=self._ids,
            sleep=lambda _: None,
            push=DeliveryDependencies(
                wakes=Wakes(self.clock),
                target=lambda _: self.target,
                allowed=AllowedTargets([FUNCTION], ["*"]),
            ),
            hooks=lambda: parts(self.clock, self.endpoint),
        )
        runtime.use(built)
        return built

    def _note(self, changes: list[Change]) -> None:
        for key, old, new in changes:
            if new is not None:
                self.written.append(new)
            if TABLE.projects(*key):
                self._number += 1
                images = (None if item is None else values.unpack(item) for item in (old, new))
                second = self.clock.now_ms() // 1_000
                self._records.append(made_record(self._number, *images, second=second))

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The answer to a request that is taken."""
        raw = None if body is None else json.dumps(body)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        event = event_of(method, f"{_BASE}{path}", raw, headers=sent)
        answer = HANDLERS[endpoint.function_for(f"{_BASE}{path}")](event, None)
        assert answer["statusCode"] < 300, f"{method} {path}: {answer['body']}"
        return json.loads(answer["body"] or "null")

    def refused(self, method: str, path: str, body: Any = None) -> None:
        """A request that is refused."""
        event = event_of(method, f"{_BASE}{path}", None if body is None else json.dumps(body))
        answer = HANDLERS[endpoint.function_for(f"{_BASE}{path}")](event, None)
        assert answer["statusCode"] >= 400, f"{method} {path}: {answer['body']}"

    def config(self, queue: str, **config: Any) -> None:
        self.ask("PUT", f"/queues/{queue}/config", config)

    def job(self, queue: str, args: list[Any] | None = None, **more: Any) -> dict[str, Any]:
        """The body of a push; what is not a field of a job is one of its options."""
        known = ("id", "meta", "unique", "rate_limit", "type")
        fields = {name: more.pop(name) for name in known if name in more}
        return {"type": "t", "args": args or [], "options": {"queue": queue, **more}, **fields}

    def push(self, queue: str, args: list[Any] | None = None, **more: Any) -> str:
        pushed = self.ask("POST", "/jobs", self.job(queue, args, **more))
        return str(pushed["job"]["id"])

    def fetch(self, queue: str, count: int = 1, **more: Any) -> list[str]:
        body = {"queues": [queue], "count": count, "worker_id": "w1", **more}
        return [str(job["id"]) for job in self.ask("POST", "/workers/fetch", body)["jobs"]]

    def active(self, queue: str, args: list[Any] | None = None, **more: Any) -> str:
        """A job that runs."""
        job_id = self.push(queue, args, **more)
        assert self.fetch(queue) == [job_id]
        return job_id

    def ack(self, job_id: str, worker: str = "w1", **more: Any) -> None:
        self.ask("POST", "/workers/ack", {"job_id": job_id, "worker_id": worker, **more})

    def nack(self, job_id: str, **error: Any) -> None:
        told = {"type": "Boom", "message": "no", "retryable": False, **error}
        body = {"job_id": job_id, "error": told, "worker_id": "w1"}
        self.ask("POST", "/workers/nack", body)

    def dead(self, queue: str, args: list[Any] | None = None, **more: Any) -> str:
        """A dead letter."""
        job_id = self.active(queue, args, **more)
        self.nack(job_id)
        return job_id

    def project(self) -> None:
        """The stream is read to its end."""
        while self._records:
            records, self._records = self._records[:100], self._records[100:]
            projector = projections.build(
                Settings(table="table"),
                Table(self._client, "table", sleep=lambda _: None),
                self.clock,
                ids=self._ids,
                blobs=self._blobs,
                metrics=FakeMetrics(),
                copies=self.run.copies,
                workflows=lambda: self.run.workflow_advance,
                durable=lambda: self.run.durable_ends,
                bus=FakeBus(lambda _: True),
                sleep=lambda _: None,
            )
            assert projector.run(records, SHARD) == []

    def minutes(self, count: int = 1) -> None:
        """Time passes, and the sweep runs once a minute."""
        for _ in range(count):
            self.clock.advance(_MINUTE_MS)
            self.sweep()

    def sweep(self) -> None:
        self.project()
        sweep.handler({"id": "test"}, None)
        self.project()


def everything() -> list[dict[str, Any]]:
    """Every item as it was after each write of a few runs, which write all there is.

    Each has a small table of its own: the sweep looks at all queues there are.
    """
    written: list[dict[str, Any]] = []
    for part in (
        _deployment, _states, _texts, _batches, _bounds, _limits, _rates, _pools, _workers,
        _tenants, _limited_tenants, _dead_letters, _copies, _bulk, _ends, _crons, _replicas,
        _workflows, _deliveries, _webhooks, _realtime, _durable,
    ):  # fmt: skip
        run = Run()
        part(run)
        run.minutes(2)
        # Nobody uses the shard for so long that it counts as closed.
        run.clock.advance(CLOSED_MS + 1)
        run.sweep()
        written += run.written
    return written


def _deployment(run: Run) -> None:
    """A deployment, and keys."""
    table = run.run.table
    setup = Setup(
        DeploymentStore(table), AccessKeyStore(table), DeliveryStore(table), run.clock, version="1"
    )
    setup.check_table()
    setup.leave_first_key(_Secret())
    body = {"name": "ci", "scopes": ["jobs:write"], "queues": ["plain"], "expires_at": "+P1D"}
    run.ask("POST", "/admin/keys", body)
    for said in ({}, {"reason": "migration", "duration": "PT1H"}):
        run.ask("POST", "/admin/system/maintenance", {"enabled": True, **said})
    run.ask("POST", "/admin/system/maintenance", {"enabled": False})
    key, credential = run.run.access_keys.create(
        Principal("operator"), "worker", ("jobs:read",), queues=("plain",)
    )
    Authentication(AccessKeyStore(table), run.clock).who(f"Bearer {credential.text}")
    first, _ = run.run.access_keys.create(ANYBODY, "operator", ("work",), max_requests_per_s=5)
    run.run.key_rates.check(first.principal)
    run.run.workers.beat("keyed", caller=first.principal)
    schema = {"schema": {"type": "object"}}
    run.ask("PUT", "/admin/schemas/a.b/1.0", schema)
    run.ask("PATCH", "/admin/schemas/a.b", {"mode": "strict"})
    run.ask("POST", "/schemas", {"uri": "urn:ojs:a", "type": "a.c", "version": "1", **schema})
    run.run.actions.add(first.principal, "pause_queue", "POST", "/ojs/v1/queues/q/pause", 200)
    later = run.clock.now_ms() + _HOUR_MS
    for end in (later, None):
        run.run.access_keys.create(first.principal, "worker", ("work",), expires_ms=end)
    run.run.access_keys.revoke(ANYBODY, key.id)
    role = "arn:aws:iam::123456789012:role/mailer"
    run.run.access_keys.name_role(first.principal, role, "mailer", ("work",))
    run.run.roles.who(role)
    daily = {"name": "keyed", "expression": "@daily", "type": "t"}
    run.run.crons.register(daily, first.principal, None)


def _states(run: Run) -> None:
    """Jobs in every state."""
    run.ask("POST", "/jobs", run.job("plain"), x_ojs_producer="billing")
    run.ask("POST", "/queues", {"name": "made", "config": {"lanes": 64}})
    run.ask("POST", "/queues", {"name": "fenced", "config": {"require_lease_token": True}})
    run.push("fenced")
    run.fetch("fenced")
    for priority in (-5, 10):
        run.push("made", priority=priority)
        run.push("made")
    run.push("plain", id=_CHOSEN.format(1), expires_at="+PT2H", timeout=60)
    run.push("waiting", scheduled_at="+PT1H", visibility_timeout_ms=60_000, result_ttl=60)
    run.push("waiting", expires_at="+PT1M")
    run.push("waiting", pending=True)
    activated = run.push("activated", pending=True)
    run.ask("POST", f"/jobs/{activated}/activate")
    run.ask("DELETE", f"/jobs/{run.push('cancelled')}")
    run.ack(run.active("done"), result={"ok": True})
    run.nack(run.active("failing"), retryable=True)
    run.nack(run.active("failing-long"), backtrace=["at somewhere"] * 50)
    # Its record has no room to say why it ends.
    crowded = run.push(
        "crowded", ["x" * 400], expires_at="+PT1M", retry={"initial_interval": "PT1H"}
    )
    run.fetch("crowded", worker_id="w" * 250)
    body = {"job_id": crowded, "worker_id": "w" * 250, "error": {"message": "no"}}
    run.ask("POST", "/workers/nack", body)
    running = run.active("running")
    for progress in ({"data": {"step": 1}}, {"progress": 0.5, "message": "half"}):
        run.ask("PUT", f"/jobs/{running}/progress", progress)
    run.push("stalling", visibility_timeout_ms=1_000, retry={"max_attempts": 5})
    run.fetch("stalling")
    body = {"worker_id": "w1", "active_jobs": [running], "state": "running"}
    run.ask("POST", "/workers/heartbeat", body)
    run.ack(running)
    kept = {"completed": "PT1H", "cancelled": "PT1H", "discarded": "PT1H"}
    run.config("kept", retention=kept)
    run.push("kept")
    for _ in range(2):
        run.ask(
            "POST",
            "/jobs",
            run.job("unique", unique={"keys": ["type"], "period": "PT1H", "on_conflict": "ignore"}),
        )
    run.ask("POST", "/queues/plain/pause", {})
    run.ask("POST", "/queues/plain/resume", {})
    run.minutes(2)
    run.clock.advance(24 * _HOUR_MS)
    run.push("plain")


def _texts(run: Run) -> None:
    """Payloads and results that live apart."""
    run.push("texts", [_IN_BUCKET])
    # Just too long for the record, and of no use to compress.
    run.push("texts", ["".join(chr(0x4E00 + (at * 7919) % 20_000) for at in range(300))])
    run.fetch("texts", 2)
    run.ack(run.active("large", [_APART]), result=_APART)
    run.ack(run.active("large"), result="".join(chr(33 + at * 7 % 90) for at in range(150)))


def _replicas(run: Run) -> None:
    """A queue with replicas of its record, changed in every way."""
    run.push("wide")
    run.minutes()
    run.config("wide", lanes=3)
    run.ask("PUT", "/queues/_default/config", {"default_timeout": 60})
    run.ask("POST", "/queues", {"name": "wider", "config": {"lanes": 3}})
    run.minutes()
    run.ask("POST", "/queues/wider/pause", {})
    run.config("wide", max_size=1_000, concurrency=10)
    run.config("wide", tenant_fairness={"enabled": True})
    run.ask("PUT", "/admin/pools/p", {"queues": ["wide"]})
    run.ask("DELETE", "/admin/pools/p")
    run.ask("DELETE", "/queues/wide", {"strategy": "drain"})


def _workers(run: Run) -> None:
    """Workers that say who they are, and are told what to do."""
    for worker in ("w8", "w9"):
        run.ask("POST", "/workers/register", {"worker_id": worker, "pool": "p", "hostname": "h"})
    run.ask("POST", "/admin/workers/w9/quiet", {})
    for _ in range(2):
        run.clock.advance(_MINUTE_MS)
        for worker in ("w8", "w9"):
            body = {"worker_id": worker, "active_jobs": [], "state": "running"}
            run.ask("POST", "/workers/heartbeat", body)
        run.sweep()
    # Where there are more workers than a request should count.
    PoolHealthStore(run.run.table).save_workers({"p": 2_000}, now_ms=run.clock.now_ms())


def _batches(run: Run) -> None:
    """Batches: committed, and given up."""
    run.config("room", max_size=1_000)
    jobs = [run.job("staged", [n]) for n in range(149)]
    run.ask("POST", "/jobs/batch", {"jobs": [*jobs, run.job("staged", [_APART])]})
    run.ask("POST", "/jobs/batch", {"jobs": [run.job("room", [n]) for n in range(101)]})
    ignored = {"keys": ["type", "args"], "on_conflict": "ignore"}
    for key in ("first", "second"):
        run.ask("POST", "/jobs", run.job("once", unique=ignored), idempotency_key=key)
    run.config("few", max_size=2)
    jobs = [run.job("few", [n]) for n in range(6)]
    run.ask("POST", "/jobs/bulk", {"jobs": jobs}, idempotency_key="each")
    there = run.push("staged", id=_CHOSEN.format(120))
    jobs = [run.job("room", [n], id=_CHOSEN.format(1_000 + n)) for n in range(119)]
    run.refused("POST", "/jobs/batch", {"jobs": [*jobs, run.job("staged", id=there)]})
    run.minutes()
    # An undone batch is undone once more an hour later.
    run.clock.advance(_HOUR_MS)


def _bounds(run: Run) -> None:
    """Queues with bounds."""
    run.push("bounded")
    run.config("bounded", max_size=3, max_size_bytes=100_000)
    run.push("bounded")
    run.push("bounded")
    run.refused("POST", "/jobs", run.job("bounded"))
    run.config("dropping", max_size=1, overflow_policy="drop_oldest")
    run.push("dropping")
    run.push("dropping")
    run.ack(run.fetch("bounded")[0])
    run.minutes(3)
    # Charged by a process that died before it stored the job.
    run.run.stores.depth.reserve(
        "bounded", CapacityUse({period_of(run.clock.now_ms()): (1, 10)}),
        max_count=3, max_size=None, warn_at=1.0, now_ms=run.clock.now_ms(),
    )  # fmt: skip
    run.minutes(4)


def _limits(run: Run) -> None:
    """Queues that limit what runs, and what starts."""
    run.config("slots", concurrency=1)
    run.push("slots")
    run.push("slots")
    (running,) = run.fetch("slots")
    run.fetch("slots")
    run.minutes(2)
    run.ack(running)
    run.fetch("slots")
    run.config("late", max_size=1_000)
    run.push("late")
    run.fetch("late")
    run.config("late", concurrency=5)
    run.config("rated", rate_limit={"limit": 1, "period": "PT1M"})
    run.push("rated")
    run.push("rated")
    run.fetch("rated")
    run.fetch("rated")
    run.minutes(3)
    run.fetch("rated")
    # Taken by a process that died before it claimed the job.
    lost_permit(run.run, "slots", now_ms=run.clock.now_ms())
    # As version 0.2 leaves them: a running job with a permit that has no name, and one too many.
    run.config("wide", concurrency=25)
    for _ in range(25):
        run.push("wide")
    job_id, *_ = run.fetch("wide", count=25)
    for change in (
        Update(keys.job(job_id), keys.RECORD, set={"slot": 1, "seats": "p"}, remove=["permits"]),
        Update(keys.counter("wide"), keys.SEMAPHORE, add={"n": 2}),
    ):
        run.run.table.update(change)
    run.minutes(4)
    run.ack(job_id)
    run.minutes(4)


def _rates(run: Run) -> None:
    """Jobs with rate limits of their own."""
    for _ in range(3):
        run.push("limited", rate_limit={"key": "k", "concurrency": 1})
    (running,) = run.fetch("limited")
    run.clock.advance(10_000)
    run.fetch("limited")
    run.minutes()
    run.ack(running)
    run.fetch("limited")
    # A key whose permits need two shards; and one of them as version 0.2 leaves it.
    for _ in range(25):
        run.push("wide-key", rate_limit={"key": "wide", "concurrency": 25})
    job_id, *_ = run.fetch("wide-key", count=25)
    place = f"0123456789abcde_{job_id[-12:]}"
    now_ms = run.clock.now_ms()
    for change in (
        Update(keys.job(job_id), keys.RECORD, set={"place": place}),
        Update(
            keys.limiter(limiter_name("wide")),
            keys.RECORD,
            set={f"h_{place}": f"{job_id}|{now_ms + 1}|{now_ms}"},
        ),
    ):
        run.run.table.update(change)
    throttled = {
        "key": "t",
        "throttle": {"limit": 1, "period": "PT1S"},
        "rate": {"limit": 10, "period": "PT1M"},
    }
    job_id = run.active("throttled", rate_limit=throttled)
    body = {"job_id": job_id, "worker_id": "w1"}
    error = {"message": "slow down", "rate_limit_until": "+PT1M"}
    run.ask("POST", "/workers/nack", {**body, "error": error})
    for key in ("k", "never-pushed"):
        run.ask("PUT", f"/rate-limits/{key}/override", {"concurrency": 2})
    run.fetch("limited")
    run.minutes()


def _deliveries(run: Run) -> None:
    """Deliveries, and targets of all kinds."""
    body = {"target": {"function": FUNCTION}, "queues": ["pushed"], "concurrency": 25}
    run.ask("PUT", "/admin/deliveries/d", body)
    for _ in range(40):
        run.push("pushed")
    run.push("pushed", scheduled_at="+PT20M")
    run.run.dispatch.run("d")
    run.minutes()
    flying = list(run.target.flying)
    for push in flying[: FAULTS + 1]:
        run.run.dispatch.settle([settled(push, CRASHED)])
    run.clock.advance(FIRST_OPEN_MS + 1)
    run.run.dispatch.run("d")
    run.run.dispatch.settle([settled(run.target.flying[-1], DONE)])
    run.run.dispatch.settle([settled(flying[-1], THROTTLED), settled(flying[-2], GONE)])
    run.ask("POST", "/admin/deliveries/d/resume", {})
    lost_permit(run.run, ":>d", now_ms=run.clock.now_ms())
    run.minutes(8)
    for _ in range(2):
        run.run.dispatch.run("d")


def _webhooks(run: Run) -> None:
    """Subscriptions, and endpoints that answer in all ways."""
    name = run.ask("POST", "/webhooks/subscriptions", BODY)["id"]
    hooks, matcher, numbers = run.run.webhooks, run.run.webhook_matcher, iter(range(100))
    assert matcher is not None
    queue = cast("Messages", cast("Any", run.run.webhook_parts).queue)

    def post(status: int, count: int = 1) -> None:
        run.endpoint.answer = lambda _: status
        for at in (next(numbers) for _ in range(count)):
            now_ms = run.clock.now_ms()
            data = {"queue": "q", "job_type": "t"}
            matcher.publish([Event(f"e{at}", "job.failed", "ojs://s/a", now_ms, "j", data)])
        receive()

    def receive() -> None:
        due = queue.due(100)
        queue.waiting = [each for each in queue.waiting if each not in due]
        run.run.webhook_sender.handle([body for _, body in due])

    for status in (200, 0, 404):
        post(status)
    post(503, FAULTS)
    post(503)  # waits
    run.clock.advance(FIRST_OPEN_MS + 1)
    post(200)  # the trial
    run.minutes(4)
    receive()
    more = {"filter": {"queues": ["q"], "job_types": ["t"]}, "metadata": {"a": 1}, "timeout_s": 10}
    hooks.change(name, more, Principal("k", frozenset(), key="0" * 16))
    hooks.rotate(name, None)
    post(410)
    run.ask("PATCH", f"/webhooks/subscriptions/{name}", {"active": False})


def _realtime(run: Run) -> None:
    """A worker that listens, and subscribers of all kinds; then all of them leave."""
    stores, now_ms = run.run.stores, run.clock.now_ms()
    caller = Principal("reader", frozenset({"admin:read"}), ("a",), "0" * 16, now_ms + _HOUR_MS)
    job_id, until_ms = run.push("a"), now_ms + _HOUR_MS
    stores.tickets.issue(caller)
    connection = Connection("NBnZ_FRHIAMCJTg=", caller, until_ms)
    stores.connections.add(connection)
    channels = (f"job:{job_id}", "queue:a", "all")
    stores.connections.set_group(connection.id, group_of(["a"]))
    for channel in channels:
        stores.connections.add_channel(connection.id, channel)
    for name, options in (("one", {}), ("two", dict.fromkeys(("batch", "detail"), True))):
        for channel in channels:
            one = Subscriber(name, channel, caller, until_ms, ("job.progress",), **options)
            stores.subscribers.add(replace(one, event_types=()), now_ms=now_ms)
            stores.subscribers.add(one, now_ms=now_ms)
            stores.realtime_directory.note_channel(channel)
    stores.subscribers.add(Subscriber("three", "all", caller, until_ms, digest=True), now_ms=now_ms)
    for worker, owner, tenant in (("w1", owner_of(caller), "acme"), (None, "", None)):
        listener = Listener(connection.id, worker, until_ms, owner, tenant)
        stores.listeners.add(group_of(["a"]), listener)
    stores.realtime_directory.note_group(group_of(["a"]), ["a"])
    stores.realtime_directory.revoke("0" * 16)
    for channel in channels:
        stores.subscribers.remove(channel, "one")


def _pools(run: Run) -> None:
    """Worker pools of all kinds."""
    run.push("pa")
    run.ask("PUT", "/admin/pools/p", {"queues": ["pa", "pb"]})
    run.ask("POST", "/workers/fetch", {"pool": "p", "worker_id": "w2"})
    pool = {
        "queues": {"pa": {"weight": 3}, "pb": {"weight": 1}}, "strategy": "weighted",
        "concurrency": 2, "isolated": True, "tenant_fairness": {"enabled": True},
        "starvation_prevention": {"enabled": True, "rotation_interval": "PT1S"},
    }  # fmt: skip
    run.ask("PUT", "/admin/pools/p", pool)
    for queue in ("pa", "pb", "pa", "pb", "pa"):
        run.push(queue, meta={"tenant_id": "x"})
    run.minutes(2)
    body = {"worker_id": "w2", "pool": "p", "count": 2}
    running = run.ask("POST", "/workers/fetch", body)["jobs"]
    run.minutes(2)
    for job in running:
        run.ack(job["id"], worker="w2")
    for _ in range(2):
        run.clock.advance(5_000)
        body = {"worker_id": "w2", "pool": "p"}
        for job in run.ask("POST", "/workers/fetch", body)["jobs"]:
            run.ack(job["id"], worker="w2")
    run.minutes(2)
    run.ask("PUT", "/admin/pools/idle", {"queues": ["ia"], "concurrency": 25})
    for _ in range(25):
        run.push("ia")
    run.fetch("ia", pool="idle", worker_id="w5", count=25)
    loaded = {"queues": ["la"], "strategy": "least-loaded"}
    run.ask("PUT", "/admin/pools/loaded", loaded)
    run.ask("POST", "/workers/register", {"worker_id": "w3", "pool": "loaded", "concurrency": 2})
    run.push("la")
    run.fetch("la", pool="loaded", worker_id="w3")
    run.ask("POST", "/workers/register", {"worker_id": "w4", "pool": "loaded", "concurrency": 25})
    for _ in range(25):
        run.push("la")
    run.fetch("la", pool="loaded", worker_id="w4", count=25)
    now_ms = run.clock.now_ms()
    for semaphore in (":p", ":loaded:w3"):
        lost_permit(run.run, semaphore, now_ms=now_ms)
        run.run.table.update(Update(keys.counter(semaphore), keys.SEMAPHORE, add={"n": 1}))
    run.minutes(4)


def _tenants(run: Run) -> None:
    """Queues whose tenants take turns."""
    for tenant in ("x", "y"):
        run.push("fair", meta={"tenant_id": tenant})
    run.config("fair", tenant_fairness={"enabled": True, "weights": {"tenant:x": 5}})
    for tenant in ("x", "y"):
        run.push("fair", meta={"tenant_id": tenant})
    run.minutes(2)


def _limited_tenants(run: Run) -> None:
    """Tenants with all limits and with none."""
    limits = {
        "max_concurrency": 25, "max_queue_depth": 25, "max_scheduled": 9, "max_queues": 2,
        "max_enqueue_rate": {"limit": 100, "period": "PT1M"},
    }  # fmt: skip
    run.ask("PUT", "/admin/tenants/beta", {})
    body = {"name": "Acme", "limits": limits, "priority_boost": 1}
    run.ask("PUT", "/admin/tenants/acme", body)
    for _ in range(25):
        run.push("acme:mail")
    run.refused("POST", "/jobs", run.job("acme:mail"))
    run.minutes(2)
    for job_id in run.fetch("acme:mail", count=25):
        run.ack(job_id)
    run.minutes(2)
    run.ask("PUT", "/admin/tenants/acme/limits", {"state": "suspended"})


def _dead_letters(run: Run) -> None:
    """Dead letters that come back, go, and are pruned."""
    # Its payload is changed, which lives apart.
    changed = {"override": {"args": [_APART, 2]}}
    dead = run.dead("dead", [_APART])
    run.ask("POST", f"/dead-letter/{dead}/retry", changed, x_ojs_producer="operator")
    unique = run.dead("unique", unique={"keys": ["type"]})
    run.ask("POST", f"/dead-letter/{unique}/retry")
    run.ask("DELETE", f"/dead-letter/{run.dead('gone')}")
    rule = {"name": "again", "filter": {"error_type": "Boom"}, "delay": "PT1M", "max_replays": 1}
    run.config("replayed", replay_rules=[rule])
    run.dead("replayed")
    run.config("pruned", dead_letter={"retention": {"max_count": 1}})
    for _ in range(2):
        run.dead("pruned")
        run.clock.advance(1_000)
    run.minutes(6)


def _copies(run: Run) -> None:
    """Dead letters that leave a copy."""
    run.config("copied", dead_letter_queue="copies", dead_letter_max_size=1)
    run.dead("copied")
    run.dead("copied")
    run.project()


def _bulk(run: Run) -> None:
    """Operations on many dead letters."""
    run.config("full", max_size=1)
    run.run.acts.change(run.push("full"), priority=None, queue="moved")
    run.dead("full")
    blocker = run.push("full")
    body = {"filter": {"queue": "full"}, "confirm": True}
    run.ask("POST", "/dead-letter/retry", body)
    run.minutes()
    run.ask("DELETE", f"/jobs/{blocker}")
    run.minutes(2)
    run.nack(run.fetch("full")[0])
    run.push("full")
    begun = run.ask("POST", "/dead-letter/retry", body)["operation"]["id"]
    run.ask("POST", f"/dead-letter/operations/{begun}/stop")
    # And on jobs: by a filter, and by their ids.
    run.ask("POST", "/jobs/bulk/cancel", {"filter": {"queue": "full"}, "dry_run": True})
    run.ask("POST", "/jobs/bulk/cancel", {"job_ids": [blocker]})
    run.ask("POST", "/admin/jobs/bulk/erase", {"filter": {"meta": {"who": "a"}}, "confirm": True})
    run.minutes(2)


def _ends(run: Run) -> None:
    """Queues that are deleted."""
    run.push("plain")
    run.ask("DELETE", "/queues/plain", {"strategy": "discard"})
    policy = {"dead_letter": {"retention": {"max_count": 50}}, "max_size": 100}
    run.ask("PUT", "/queues/_default/config", policy)
    run.push("ending", meta={"tenant_id": "x"})
    run.ask("POST", "/queues/ending/pause", {})
    run.config(
        "ending",
        dead_letter_ttl="P7D",
        tenant_fairness={"enabled": True},
    )
    run.ask("DELETE", "/queues/ending", {"strategy": "discard"})
    run.minutes()
    # A tombstone stays for ten minutes.
    run.clock.advance(10 * _MINUTE_MS)


def _workflows(run: Run) -> None:
    """Workflows of every size that fail, are cancelled, retried, and wait for room."""
    # Of no use to compress.
    large = random.Random(1).randbytes(400_000).hex()

    def step(kind: str, *args: Any, **options: Any) -> dict[str, Any]:
        return {"type": kind, "args": list(args), "options": {"queue": "steps", **options}}

    def create(**body: Any) -> WorkflowRecord:
        definition = request.parse(body, now_ms=run.clock.now_ms())
        trace, producer = ("00-a-b-01", "ann") if "name" in body else (None, None)
        return run.run.workflow_creation.create(definition, trace=trace, producer=producer)

    def work(result: Any = 1, *, fails: bool = False) -> None:
        for job_id in run.fetch("steps", 100):
            if fails:
                run.nack(job_id)
            else:
                run.ack(job_id, result=result)

    create(type="chain", steps=[step("a", large), step("b"), step("c")])
    work(large)
    work()
    work()
    run.config("tight", max_size=1)
    run.push("tight")
    create(type="chain", name="n", steps=[step("a"), step("b", queue="tight")])
    work()
    members = {"type": "group", "jobs": [step("a") for _ in range(101)]}
    record = create(type="chain", steps=[step("a"), members])
    work()
    run.run.workflow_control.cancel(record.id)
    record = create(type="group", jobs=[step("a") for _ in range(250)])
    work()
    run.run.workflow_control.cancel(record.id)
    work()
    callbacks = {"on_success": step("s"), "on_failure": step("f")}
    body = {"type": "batch", "jobs": [step("a")], "callbacks": callbacks}
    record = create(**body)
    work(fails=True)
    work(fails=True)
    run.run.workflow_control.retry(record.id, RetryMode.ALL)
    run.run.workflow_control.cancel(create(**body).id)


def _crons(run: Run) -> None:
    """Cron jobs that fire, and that skip for every kind of reason."""
    minute = {"expression": "* * * * *", "args": [], "type": "t"}
    own: dict[str, dict[str, Any]] = {
        "plain": {"overlap_policy": "enqueue"},
        "small": {"args": [1], "description": "x" * 900},
        "large": {"args": ["x" * 5_000]},
        "full": {"expression": "@hourly"},
        "spring": {"expression": "30 2 * * *", "timezone": "America/New_York"},
    }
    for name, more in own.items():
        run.ask("POST", "/cron", {"name": name, **minute, "queue": name, **more})
    run.ask("POST", "/cron/plain/trigger", {})
    run.minutes(3)
    run.ask("POST", "/cron/plain/pause", {})
    run.config("full", max_size=1)
    run.push("full")
    for _ in range(2):
        run.clock.advance(_HOUR_MS - run.clock.now_ms() % _HOUR_MS)
        run.sweep()
    # To the day before the clocks are changed.
    ms = times.timestamp_ms("2027-03-13T12:00:00Z", now_ms=0) - run.clock.now_ms()
    run.clock.advance(ms)
    run.sweep()
    run.clock.advance(24 * _HOUR_MS)
    run.sweep()


def _durable(run: Run) -> None:
    """Checkpoints of each size, steps, sleeps, signals, children, and jobs that start over."""
    one, queue = "/jobs/{}", "durable"

    def token(job_id: str) -> str:
        return str(run.ask("GET", one.format(job_id))["lease_token"])

    def save(job_id: str, *steps: dict[str, Any], **more: Any) -> None:
        body = {"lease_token": token(job_id), "steps": [{"save": "s", **step} for step in steps]}
        run.ask("POST", f"{one.format(job_id)}/steps", {**body, **more})

    def suspend(job_id: str, **wait: Any) -> None:
        body = {"job_id": job_id, "lease_token": token(job_id)}
        run.ask("POST", "/workers/nack", {**body, "suspend": {"waits": [wait]}})

    job_id = run.active(queue, max_attempts=3)
    run.nack(job_id, retryable=True)
    run.minutes(2)
    assert run.fetch(queue) == [job_id]
    repetitive = [{"row": n} for n in range(500)]
    incompressible = random.Random(1).randbytes(200_000).hex()
    for state in (1, repetitive, incompressible * 2):
        run.ask("POST", f"{one.format(job_id)}/checkpoint", {"state": state})
    began = {"started_at": "2026-11-21T09:30:00.000Z", "duration_ms": 5}
    save(job_id, {"name": "a", "result": 1, **began}, {"name": "b", "error": {"type": "No"}})
    save(job_id, {"name": "c", "result": repetitive}, version=2)
    parent = {"job_id": job_id, "name": "ship", "lease_token": token(job_id)}
    child = {"type": "t", "args": [], "options": {"queue": "children"}, "parent": parent}
    run.ask("POST", "/jobs", child)
    (child_id,) = run.fetch("children")
    run.ack(child_id, result=1)
    run.ask("POST", f"{one.format(job_id)}/signals/early", {"data": 1})
    suspend(job_id, kind="time", name="now", **{"for": "PT0S"})
    (job_id,) = run.fetch(queue)
    suspend(job_id, kind="sleep", name="nap", **{"for": "PT1H"})
    run.ask("POST", f"{one.format(job_id)}/retry")
    (job_id,) = run.fetch(queue)
    suspend(job_id, kind="signal", name="ok", **{"for": "P1D"})
    run.ask("POST", f"{one.format(job_id)}/signals/ok", {"data": 1})
    (job_id,) = run.fetch(queue)
    clear = {"steps": "clear", "checkpoint": "clear"}
    run.nack(job_id)
    run.ask("POST", f"/dead-letter/{job_id}/retry", clear)
    (job_id,) = run.fetch(queue)
    run.nack(job_id)
    run.ask("POST", "/dead-letter/retry", {"all": True, "confirm": True, **clear})
