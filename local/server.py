"""The local server put together: engine, table, functions, HTTP, schedule, test hooks."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from botocore.exceptions import BotoCoreError, ClientError

from functions.dashboard.files import Dashboard
from functions.stream.handler import handler as project
from local import engines, hooks
from local.access import FIRST_KEY, OPERATOR, Access, KeyFile, SignedAccess
from local.blobs import FolderBlobs
from local.deliveries import LocalDeliveries, described
from local.dynamodb import connect, connect_to_streams, create_table
from local.engine_data import EngineError, anew
from local.gateway import (
    BASE_PATH,
    DASHBOARD,
    GATEWAY_BYTES,
    DiskCheck,
    Gateway,
    load_handlers,
    refusal,
    refused,
)
from local.gauges import LOOK_S, Gauges
from local.http_server import HttpServer, Limits, Request, Response
from local.origins import OriginCheck
from local.scheduler import Precedence, Rounds, Scheduler
from local.stream import INTERVAL_S, Pump, TableStream
from ojs import runtime as ojs_runtime
from ojs.clock import SystemClock
from ojs.domain.errors import BackendUnavailable, OjsError
from ojs.services.operations.authentication import Authentication
from ojs.services.operations.setup import Setup
from ojs.services.sweeps import GoOn, SweepCounts, always, counting_failures
from ojs.settings import Settings
from ojs.store.deliveries.deliveries import DeliveryStore
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.registry import QueueRegistry
from ojs.store.table.table import Table

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from local.folder import DataFolder
    from ojs.clock import Clock

TABLE_NAME = "ojs"
BUILT_DASHBOARD = Path(__file__).resolve().parent.parent / "build" / "dashboard"
# The job sweep's limit: jobs moved at a time.
_SWEEP_LIMIT = 1000
# Other sweeps: how often they run (s), and how much each does at a time.
_SWEEPS = (
    # Queues whose jobs are counted one by one; workers whose permits are; limits that throttle.
    (60.0, {"reconcile": 50, "pool_permits": 2_000, "throttle": 100}),
    # Jobs that get start tags. Where no queue became fair it reads the queues.
    (60.0, {"fairness_backfill": 10_000}),
    # Worker pools.
    (60.0, {"pool_health": 100}),
    # Dead letters. A minute would be long to wait; where nothing is to be done it is one query.
    (2.0, {"bulk": 10_000}),
    # Dead letters that rules look at, and those that are pruned.
    (60.0, {"replay": 10_000, "prune": 10_000}),
    # Workflows whose progress stands still, or that have more to start.
    (2.0, {"workflows": 1_000}),
    # Deliveries whose wake-ups were lost, or that have more to arm.
    (2.0, {"deliveries": 100}),
    # Queues that are looked at before they rest.
    (60.0, {"rest": 500}),
    # Cron jobs whose times new rules of zones have moved. Where there are none it is nothing.
    (60.0, {"zones": 1_000}),
)
# Looks for oldest jobs that one request may cause; what is left out is made up for by the next.
_PROBES = 100
# Every sweep that the server runs: the job sweep has its own interval, and metrics are measured by
# `_gauges`.
SCHEDULED = frozenset({"jobs", "metrics", *(name for _, sweeps in _SWEEPS for name in sweeps)})


class LocalServer:
    """Everything `python -m local` runs. It runs once constructed; `stop` ends it."""

    def __init__(
        self,
        listener: socket.socket,
        folder: DataFolder,
        *,
        engine: str,
        sweep_interval_s: float,
        strict_queues: bool = False,
        middleware: Sequence[str] = (),
        authorizer: Literal["none", "keys", "iam"] = "none",
        origins: Sequence[str] = (),
        hosts: Sequence[str] = (),
        test_clock: bool = False,
        deliver: Mapping[str, str] = MappingProxyType({}),
        deliver_folder: Path = Path(),
        loopback_endpoints: bool = False,
        dashboard: Path = BUILT_DASHBOARD,
    ) -> None:
        """Start, on a port that is taken already. With `keys`, requests need one; with `iam`, a
        signature that names a role. With `test_clock`, whoever may reset the server may move its
        clock.

        `middleware` are names of functions, as `hooks:add_trace`, in modules that can be imported.
        `origins` are of web pages that may use the server, `hosts` further names of this machine.
        `deliver` has a target for each of some queues: a handler as `module:function`, with modules
        in `deliver_folder`, or the URL of an endpoint.
        `dashboard` is the folder that the dashboard was built into.

        Raises EngineError, StaleData, SetupError.
        """
        self.folder = folder
        self.has_dashboard = (dashboard / "index.html").is_file()
        self.origins = tuple(origins)
        self._precedence = Precedence()
        # An odd number while the server is being reset.
        self._resets = 0
        with contextlib.ExitStack() as undo:
            limits = Limits(body_bytes=GATEWAY_BYTES)
            http = HttpServer(listener, self._answer, refuse=refusal, limits=limits)
            undo.callback(http.stop)
            self.url = http.url
            folder.note(f"process {os.getpid()}, {http.url}")
            self.engine = engines.start(engine, folder.path, keep_open=[folder.lock])
            undo.callback(self.engine.stop)
            self._client = connect(self.engine.url)
            self._moved = hooks.MovedClock() if test_clock else None
            self._clock: Clock = self._moved or SystemClock()
            self._blobs = FolderBlobs(folder.payloads)
            self._settings = Settings(
                table=TABLE_NAME,
                strict_queues=strict_queues,
                middleware=tuple(middleware),
                authorizer=authorizer,
                iam_operators=(OPERATOR,),
                authorizer_cache_s=0,
            )
            self.version = self._settings.version
            table = Table(self._client, TABLE_NAME)
            stored = AccessKeyStore(table)
            self._setup = Setup(
                DeploymentStore(table),
                stored,
                DeliveryStore(table),
                self._clock,
                version=self.version,
            )
            first = KeyFile(folder.path / FIRST_KEY)
            asking = Access(Authentication(stored, self._clock), first)
            self.access = {"none": None, "keys": asking, "iam": SignedAccess()}[authorizer]
            self._deliver = dict(deliver)
            self._deliveries = LocalDeliveries(
                self._clock,
                handlers=[target for target in deliver.values() if "://" not in target],
                folder=deliver_folder,
                loopback=loopback_endpoints,
            )
            self._open_table()
            self._runtime = self._use_new_runtime()
            self._put_deliveries()
            self._pump = Pump(
                TableStream(connect_to_streams(self.engine.url), TABLE_NAME),
                project,
                trim=self._trim,
            )
            self._derived = Rounds(self._derive)
            self._gauges = Gauges(self._measure, self._clock)
            undo.callback(self._finish_stream)
            gateway = Gateway(
                {**load_handlers(), DASHBOARD: Dashboard(dashboard, authorizer)},
                self._catch_up,
                self.access,
                lambda: http.stopping,
            )
            gateway.hook("POST", f"{BASE_PATH}/admin/reset", lambda _body: self.reset())
            if self._moved is not None:
                gateway.hook(
                    "POST", f"{BASE_PATH}/admin/clock", partial(self._advance, self._moved)
                )
            disk = DiskCheck(gateway, folder.full, str(folder.path))
            self._checked = OriginCheck(disk, refused, origins=origins, hosts=hosts)
            self._schedules = (
                Scheduler(partial(self._sweep_beside, {"jobs": _SWEEP_LIMIT}), sweep_interval_s),
                Scheduler(self._measure_beside, LOOK_S),
                *(
                    Scheduler(partial(self._sweep_beside, sweeps), every_s)
                    for every_s, sweeps in _SWEEPS
                ),
                Scheduler(self._pump.try_to_drain, INTERVAL_S),
            )
            for schedule in self._schedules:
                undo.callback(schedule.stop)
                schedule.start()
            self._deliveries.start(lambda: self._runtime.dispatch)
            undo.callback(self._deliveries.stop)
            # Last in, first out: requests end before the schedules, then the stream is finished,
            # and the engine ends.
            undo.callback(http.stop)
            http.start()
            self._undo = undo.pop_all()

    @property
    def test_clock(self) -> bool:
        """Whether requests may move the server's clock."""
        return self._moved is not None

    def stop(self) -> None:
        """Let requests finish, then end everything."""
        self._undo.close()

    def unbounded(self) -> int:
        """How many queues have no bound."""
        table = Table(self._client, TABLE_NAME)
        store = QueueStore(table, QueueRegistry(table, self._clock))
        found, _ = store.get_many(store.all_names())
        return sum(not queue.config.bounded for queue in found.values())

    def reset(self) -> dict[str, bool]:
        """Empty the server: a test hook."""
        self._resets += 1
        try:
            self._reset()
        finally:
            self._resets += 1
        return {"reset": True}

    def _reset(self) -> None:
        with contextlib.ExitStack() as paused:
            for schedule in self._schedules:
                paused.enter_context(schedule.pause)
            paused.enter_context(self._derived.pause)
            paused.enter_context(self._pump.pause)
            self._client.delete_table(TableName=TABLE_NAME)
            if self._moved is not None:
                self._moved.put_back()
            self._create_table()
            self._set_up()
            self._blobs.clear()
            # What the old one remembered of workers and jobs is gone with it.
            self._runtime = self._use_new_runtime()
            self._put_deliveries()
            self._pump.restart()
            self._gauges.forget()

    def _advance(self, clock: hooks.MovedClock, body: bytes) -> dict[str, int]:
        """Move the clock on, and have done what is due then: a test hook.

        Raises InvalidPayload, InvalidRequest.
        """
        clock.advance(body)
        self._sweep(dict.fromkeys(SCHEDULED, _SWEEP_LIMIT))
        return {"now_ms": clock.now_ms()}

    def _open_table(self) -> None:
        """Have the table, which on data that were there must be in them. Raises EngineError."""
        try:
            self._create_table(missing=self._refuse_to_begin)
            self._set_up()
        except (BotoCoreError, ClientError, OjsError) as error:
            # What MiniStack could not read it must not replace.
            self.engine.kill()
            cause = error.__cause__ or error
            raise EngineError(
                f"the data in {self.folder.path} cannot be used: {self.engine.name} answers: "
                f"{cause}. If they are damaged, restore them from a copy. {anew(self.folder.path)}"
            ) from error

    def _refuse_to_begin(self) -> None:
        """Raise EngineError where an engine has not found its table in data that were there."""
        if not self.engine.resumed:
            return
        self.engine.kill()
        log = f" (its log: {self.engine.log})" if self.engine.log else ""
        raise EngineError(
            f"{self.engine.name} finds no table in the data of {self.folder.path}, which are "
            f"damaged or of something else{log}. Restore them from a copy. {anew(self.folder.path)}"
        )

    def _create_table(self, missing: Callable[[], None] = lambda: None) -> None:
        """Create the table unless it is there; `missing` is called when it is not."""
        records = self.engine.records

        def forget() -> None:
            missing()
            if records is not None:
                records.forget(TABLE_NAME)

        create_table(self._client, TABLE_NAME, self._clock, forget=forget)

    def _set_up(self) -> None:
        """What a deployment does before anything else."""
        self._setup.prepare_keys()
        self._setup.check_table()
        if self.access is not None:
            self.access.prepare(self._setup)

    def _put_deliveries(self) -> None:
        """Have the deliveries that the server was started with."""
        for queue, target in self._deliver.items():
            self._runtime.deliveries.put(queue, described(queue, target))

    def _use_new_runtime(self) -> ojs_runtime.Runtime:
        built = ojs_runtime.build(
            self._settings,
            client=self._client,
            blobs=self._blobs,
            clock=self._clock,
            middleware=[hooks.reject_marked],
            push=self._deliveries.parts,
        )
        if self.access is None:
            # With keys a producer must not be able to steer workers.
            hooks.steer_workers(built)
        ojs_runtime.use(built)
        return built

    def _answer(self, request: Request) -> Response:
        resets = self._resets
        with self._precedence.request():
            response = self._checked(request)
        if response.status == 500 and (resets % 2 or resets != self._resets):
            return refused(BackendUnavailable("The server was reset meanwhile; try again."), 503)
        return response

    def _sweep(self, limits: Mapping[str, int], go_on: Callable[[], GoOn] = lambda: always) -> None:
        """Run the sweeps of these names, each with its limit; what fails is told of."""
        for sweep in self._runtime.sweeps():
            if sweep.name in limits:
                counts = SweepCounts()
                with counting_failures(counts, "the whole sweep"):
                    now_ms = self._clock.now_ms()
                    report = sweep.run_once(now_ms, limits[sweep.name], go_on())
                    counts.failures += report.failures
                for failure in counts.failures:
                    print(f"{sweep.name} failed: {failure.what}", file=sys.stderr)
                    traceback.print_exception(failure.error, file=sys.stderr)

    def _sweep_beside(self, limits: Mapping[str, int]) -> None:
        """The same, while requests that are being answered go first."""
        self._sweep(limits, self._precedence.giving_way)

    def _catch_up(self) -> None:
        """Bring what is projected from the stream up to date with all writes before this call."""
        try:
            self._derived.run()
        except (BotoCoreError, ClientError, OjsError) as error:
            # The request is answered all the same, with what is there: it will fail by itself if
            # the engine is gone.
            print(f"statistics may be behind: {error}", file=sys.stderr)

    def _derive(self) -> None:
        self._pump.drain()
        self._gauges.for_request(self._pump.delivered)

    def _measure(self, now_ms: int) -> int:
        return self._runtime.metrics_sweep.run_once(now_ms, _PROBES).counts.get("queues", 0)

    def _measure_beside(self) -> None:
        try:
            self._gauges.beside(self._pump.delivered)
        except (BotoCoreError, ClientError, OjsError) as error:
            print(f"statistics may be behind: {error}", file=sys.stderr)

    def _trim(self, before: int) -> None:
        # An engine that was busy for too long is left alone: the next time is soon.
        with contextlib.suppress(EngineError):
            if self.engine.records is not None:
                self.engine.records.trim(TABLE_NAME, before)

    def _finish_stream(self) -> None:
        """Deliver what is left: MiniStack does not keep its stream."""
        if self.engine.running:
            with contextlib.suppress(BotoCoreError, ClientError):  # it ends at this moment
                self._pump.drain()
