"""The local server: engine, table, functions, HTTP, schedules, and test hooks."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from functions.dashboard.files import Dashboard
from functions.notify import handler as notify
from functions.socket.handler import handler as socket_function
from functions.stream.handler import handler as project
from local import engines, hooks
from local.access import FIRST_KEY, OPERATOR, Access, KeyFile, SignedAccess
from local.blobs import FolderBlobs
from local.deliveries import LocalDeliveries, described
from local.dynamodb import Writes, connect, connect_to_streams, create_table
from local.engine_data import EngineError, anew
from local.event_streams import EventStreams
from local.gateway import (
    BASE_PATH,
    DASHBOARD,
    GATEWAY_BYTES,
    SOCKET_PATH,
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
from local.sockets import Hub
from local.stream import EVENTS_INTERVAL_S, INTERVAL_S, Pump, TableStream
from local.webhooks import LocalWebhooks
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
    from ojs.domain.access import Principal

T = TypeVar("T")

TABLE_NAME = "ojs"
BUILT_DASHBOARD = Path(__file__).resolve().parent.parent / "build" / "dashboard"
# Limit of the job sweep: jobs per run.
_SWEEP_LIMIT = 1000
# Other sweeps: interval in seconds, and limit of each run.
_SWEEPS = (
    # Queues whose jobs are recounted, workers whose permits are, and rate limits.
    (60.0, {"reconcile": 50, "pool_permits": 2_000, "throttle": 100}),
    # Jobs that receive start tags. Without a fair queue, this reads the queues.
    (60.0, {"fairness_backfill": 10_000}),
    # Worker pools.
    (60.0, {"pool_health": 100}),
    # Dead letters. Tests would wait too long for one minute. Without work it is one query.
    (2.0, {"bulk": 10_000}),
    # Dead letters that match replay rules, and those that are pruned.
    (60.0, {"replay": 10_000, "prune": 10_000}),
    # Stalled workflows, and workflows with more steps to start.
    (2.0, {"workflows": 1_000}),
    # Deliveries with lost wake-ups, or with more timers to schedule.
    (2.0, {"deliveries": 100}),
    # Webhook deliveries with a later attempt.
    (2.0, {"webhooks": 500}),
    # Queues that may become idle.
    (60.0, {"rest": 500}),
    # Cron jobs whose times changed with time zone rules. Without such jobs it does nothing.
    (60.0, {"zones": 1_000}),
)
# Maximum lookups of oldest jobs per request. The next request continues.
_PROBES = 100
# All sweeps that the server runs. The job sweep has a separate interval, and `_gauges` measures
# the metrics.
SCHEDULED = frozenset({"jobs", "metrics", *(name for _, sweeps in _SWEEPS for name in sweeps)})


class LocalServer:
    """The server of `python -m local`. The constructor starts it, `stop` ends it."""

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
        """Start the server on an open port.

        Args:
            listener: Listening socket.
            folder: Data folder.
            engine: Engine: `auto`, `dynoxide`, or `ministack`.
            sweep_interval_s: Interval of the job sweep in seconds.
            strict_queues: Whether jobs for unknown queues are rejected.
            middleware: Names of functions, for example `hooks:add_trace`, in importable modules.
            authorizer: `none`, `keys`, or `iam` (a signature that names a role).
            origins: Origins of web pages that can use the server.
            hosts: More host names of this machine.
            test_clock: Whether a caller who can reset the server can move its clock.
            deliver: Target by queue: a handler as `module:function`, or the URL of an endpoint.
            deliver_folder: Folder of the handlers' modules.
            loopback_endpoints: Whether endpoints can be on this machine.
            dashboard: Folder of the built dashboard.

        Raises:
            EngineError: The engine can't start.
            StaleData: The table has another schema.
            SetupError: The setup failed.
        """
        self.folder = folder
        self.has_dashboard = (dashboard / "index.html").is_file()
        self.origins = tuple(origins)
        self._precedence = Precedence()
        # Odd while the server is being reset.
        self._resets = 0
        self._moved = hooks.MovedClock() if test_clock else None
        self._clock: Clock = self._moved or SystemClock()
        self._hub = Hub(partial(self._take_precedence, _process_message), _caller, self._clock)
        with contextlib.ExitStack() as undo:
            limits = Limits(body_bytes=GATEWAY_BYTES)
            http = HttpServer(
                listener,
                self._answer,
                refuse=refusal,
                limits=limits,
                hang_up=self._hub.stop,
            )
            undo.callback(http.stop)
            self.url = http.url
            folder.note(f"process {os.getpid()}, {http.url}")
            self.engine = engines.start(engine, folder.path, keep_open=[folder.lock])
            undo.callback(self.engine.stop)
            self._client = connect(self.engine.url)
            self._blobs = FolderBlobs(folder.payloads)
            self._settings = Settings(
                table=TABLE_NAME,
                strict_queues=strict_queues,
                schema_mode="warn",
                middleware=tuple(middleware),
                authorizer=authorizer,
                iam_operators=(OPERATOR,),
                authorizer_cache_s=0,
                # Not a URL: `local.webhooks` contains the queue.
                webhook_queue="memory",
                realtime="all",
                socket_url=f"ws{http.url.removeprefix('http')}{SOCKET_PATH}",
            )
            self.version = self._settings.version
            self._open_access(authorizer)
            self._deliver = dict(deliver)
            self._deliveries = LocalDeliveries(
                self._clock,
                handlers=[target for target in deliver.values() if "://" not in target],
                folder=deliver_folder,
                loopback=loopback_endpoints,
                environment=self._of_handlers,
            )
            self._webhooks = LocalWebhooks(self._clock, loopback=loopback_endpoints)
            self._open_table()
            self._runtime = self._use_new_runtime()
            self._put_deliveries()
            self._pump = Pump(
                TableStream(connect_to_streams(self.engine.url), TABLE_NAME),
                project,
                notify=notify.handler,
                trim=self._trim,
            )
            self._derived = Rounds(self._derive)
            self._gauges = Gauges(self._measure, self._clock)
            undo.callback(self._finish_stream)
            streams = self._streams(http, self._dashboard(dashboard))
            self._checked = OriginCheck(streams, refused, origins=origins, hosts=hosts)
            self._schedules = self._scheduled(sweep_interval_s)
            for schedule in self._schedules:
                undo.callback(schedule.stop)
                schedule.start()
            undo.callback(self._deliveries.start(lambda: self._runtime.dispatch))
            undo.callback(self._webhooks.start(lambda: self._runtime.webhook_sender))
            # Reverse order: requests end first, then the schedules, then the stream, then the
            # engine.
            undo.callback(http.stop)
            http.start()
            self._undo = undo.pop_all()

    def _open_access(self, authorizer: Literal["none", "keys", "iam"]) -> None:
        """Create the setup of the table, and what authenticates callers."""
        table = Table(self._client, TABLE_NAME)
        stored = AccessKeyStore(table)
        self._setup = Setup(
            DeploymentStore(table), stored, DeliveryStore(table), self._clock, version=self.version
        )
        self.access = {
            "none": None,
            "keys": Access(
                Authentication(stored, self._clock), KeyFile(self.folder.path / FIRST_KEY)
            ),
            "iam": SignedAccess(),
        }[authorizer]

    def _streams(self, http: HttpServer, dashboard: Dashboard) -> EventStreams:
        """Create what answers requests, after the check of their origin."""
        gateway = Gateway(
            {**load_handlers(), DASHBOARD: dashboard},
            self._catch_up,
            self.access,
            lambda: http.stopping,
            self._hub.open,
        )
        gateway.hook("POST", f"{BASE_PATH}/admin/reset", lambda _body: self.reset())
        if self._moved is not None:
            gateway.hook("POST", f"{BASE_PATH}/admin/clock", partial(self._advance, self._moved))
        disk = DiskCheck(gateway, self.folder.full, str(self.folder.path))
        answer = partial(self._take_precedence, disk)
        return EventStreams(answer, http.wait, Writes(self._client).count)

    def _scheduled(self, sweep_interval_s: float) -> Sequence[Scheduler]:
        """Create the schedules of the sweeps, of the measurement, and of the stream."""
        return (
            Scheduler(partial(self._sweep_beside, {"jobs": _SWEEP_LIMIT}), sweep_interval_s),
            Scheduler(self._measure_beside, LOOK_S),
            *(
                Scheduler(partial(self._sweep_beside, sweeps), every_s)
                for every_s, sweeps in _SWEEPS
            ),
            Scheduler(self._pump.try_to_drain, INTERVAL_S),
            Scheduler(partial(self._drain_for_clients, Writes(self._client)), EVENTS_INTERVAL_S),
        )

    def _of_handlers(self) -> dict[str, str]:
        """Return how handlers reach this server, which their durable code does."""
        if not isinstance(self.access, Access):
            return {"OJS_URL": self.url}
        return {"OJS_URL": self.url, "OJS_KEY": self.access.first.path.read_text("utf-8").strip()}

    @property
    def test_clock(self) -> bool:
        """Whether requests can move the server's clock."""
        return self._moved is not None

    def stop(self) -> None:
        """Wait for running requests, then stop everything."""
        self._undo.close()

    def unbounded(self) -> int:
        """Return the number of queues without a size limit."""
        table = Table(self._client, TABLE_NAME)
        store = QueueStore(table, QueueRegistry(table, self._clock))
        found, _ = store.get_many(store.all_names())
        return sum(not queue.config.bounded for queue in found.values())

    def reset(self) -> dict[str, bool]:
        """Delete all data: a test hook."""
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
            self._hub.close_all()
            self._client.delete_table(TableName=TABLE_NAME)
            if self._moved is not None:
                self._moved.put_back()
            self._create_table()
            self._set_up()
            self._blobs.clear()
            # The state of workers and jobs in memory is replaced.
            self._runtime = self._use_new_runtime()
            self._put_deliveries()
            self._pump.restart()
            self._gauges.forget()

    def _advance(self, clock: hooks.MovedClock, body: bytes) -> dict[str, int]:
        """Move the clock, and process what becomes due: a test hook.

        Raises InvalidPayload, InvalidRequest.
        """
        directory = self._runtime.stores.realtime_directory
        groups = directory.read(remembered_ms=0).groups
        clock.advance(body)
        # The workers that listen would have fetched in the meantime, which renews these entries.
        for group, queues in groups.items():
            directory.note_group(group, queues)
        self._sweep(dict.fromkeys(SCHEDULED, _SWEEP_LIMIT))
        self._hub.close_old()
        return {"now_ms": clock.now_ms()}

    def _open_table(self) -> None:
        """Find or create the table. Existing data must contain it. Raises EngineError."""
        try:
            self._create_table(missing=self._refuse_to_begin)
            self._set_up()
        except (BotoCoreError, ClientError, OjsError) as error:
            # MiniStack must not overwrite data that it could not read.
            self.engine.kill()
            cause = error.__cause__ or error
            raise EngineError(
                f"--data: can't use the data in {self.folder.path}: {self.engine.name} returned: "
                f"{cause}. If they are damaged, restore a backup. {anew(self.folder.path)}"
            ) from error

    def _refuse_to_begin(self) -> None:
        """Raise EngineError if the engine found no table in existing data."""
        if not self.engine.resumed:
            return
        self.engine.kill()
        log = f" (its log: {self.engine.log})" if self.engine.log else ""
        raise EngineError(
            f"--data: {self.engine.name} found no table in {self.folder.path}. Its data are "
            f"damaged or of another program{log}. Restore a backup. {anew(self.folder.path)}"
        )

    def _create_table(self, missing: Callable[[], None] = lambda: None) -> None:
        """Create the table unless it exists. `missing` is called before it is created."""
        records = self.engine.records

        def forget() -> None:
            missing()
            if records is not None:
                records.forget(TABLE_NAME)

        create_table(self._client, TABLE_NAME, self._clock, forget=forget)

    def _set_up(self) -> None:
        """Run the setup step of a deployment."""
        self._setup.prepare_keys()
        self._setup.check_table()
        if self.access is not None:
            self.access.prepare(self._setup)

    def _dashboard(self, folder: Path) -> Dashboard:
        settings = self._settings
        return Dashboard(folder, settings.authorizer, socket_url=settings.socket_url)

    def _put_deliveries(self) -> None:
        """Create the deliveries of the options."""
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
            hooks=lambda: self._webhooks.parts,
            realtime=lambda: self._hub,
        )
        if self.access is None:
            # With keys, a producer must not control workers.
            hooks.steer_workers(built)
        ojs_runtime.use(built)
        return built

    def _answer(self, request: Request) -> Response:
        resets = self._resets
        response = self._checked(request)
        if response.status == 500 and (resets % 2 or resets != self._resets):
            return refused(BackendUnavailable("The server was reset. Send the request again."), 503)
        return response

    def _take_precedence(self, process: Callable[..., T], *given: Any) -> T:
        """Process a request or a message before sweeps."""
        with self._precedence.request():
            return process(*given)

    def _sweep(self, limits: Mapping[str, int], go_on: Callable[[], GoOn] = lambda: always) -> None:
        """Run these sweeps, each with its limit. Failures are printed."""
        for sweep in self._runtime.sweeps():
            if sweep.name in limits:
                counts = SweepCounts()
                with counting_failures(counts, "the whole sweep"):
                    now_ms = self._clock.now_ms()
                    report = sweep.run_once(now_ms, limits[sweep.name], go_on())
                    self._runtime.flush()
                    counts.failures += report.failures
                for failure in counts.failures:
                    print(f"Sweep {sweep.name} failed: {failure.what}", file=sys.stderr)
                    traceback.print_exception(failure.error, file=sys.stderr)

    def _sweep_beside(self, limits: Mapping[str, int]) -> None:
        """Run these sweeps, and give requests priority."""
        self._sweep(limits, self._precedence.giving_way)

    def _catch_up(self) -> None:
        """Project all writes before this call."""
        try:
            self._derived.run()
        except (BotoCoreError, ClientError, OjsError) as error:
            # The request continues with the existing data. It fails if the engine has ended.
            print(f"Statistics may be stale: {error}", file=sys.stderr)

    def _derive(self) -> None:
        self._pump.drain()
        self._gauges.for_request(self._pump.delivered)

    def _measure(self, now_ms: int) -> int:
        return self._runtime.metrics_sweep.run_once(now_ms, _PROBES).counts.get("queues", 0)

    def _measure_beside(self) -> None:
        try:
            self._gauges.beside(self._pump.delivered)
        except (BotoCoreError, ClientError, OjsError) as error:
            print(f"Statistics may be stale: {error}", file=sys.stderr)

    def _trim(self, before: int) -> None:
        # An engine that is busy for too long is skipped. The next run follows soon.
        with contextlib.suppress(EngineError):
            if self.engine.records is not None:
                self.engine.records.trim(TABLE_NAME, before)

    def _drain_for_clients(self, writes: Writes) -> None:
        """Send events to the clients that are connected."""
        if self._hub.connected and writes.changed():
            self._pump.try_to_drain()

    def _finish_stream(self) -> None:
        """Project the remaining records: MiniStack doesn't persist its stream."""
        if self.engine.running:
            with contextlib.suppress(BotoCoreError, ClientError):  # it is ending
                self._pump.drain()


def _process_message(event: dict[str, Any], context: Any) -> Any:
    answer = socket_function(event, context)
    notify.forget()
    return answer


def _caller(ticket: str) -> Principal | None:
    return ojs_runtime.current().stores.tickets.redeem(ticket)
