"""The local server put together: engine, table, functions, HTTP, schedule, test hooks."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from local import engines, hooks
from local.blobs import FolderBlobs
from local.dynamodb import connect, create_table
from local.gateway import BASE_PATH, GATEWAY_BYTES, Gateway, load_handlers, refusal
from local.http_server import HttpServer, Limits, Request, Response
from local.scheduler import Scheduler
from ojs import runtime as ojs_runtime
from ojs.settings import Settings

if TYPE_CHECKING:
    import socket

    from local.folder import DataFolder

TABLE_NAME = "ojs"
_SWEEP_LIMIT = 1000


class LocalServer:
    """Everything `python -m local` runs. It runs once constructed; `stop` ends it."""

    def __init__(
        self,
        listener: socket.socket,
        folder: DataFolder,
        *,
        engine: str,
        sweep_interval_s: float,
    ) -> None:
        """Start, on a port that is taken already. Raises EngineError, StaleData."""
        self.folder = folder
        with contextlib.ExitStack() as undo:
            http = HttpServer(
                listener, self._answer, refuse=refusal, limits=Limits(body_bytes=GATEWAY_BYTES)
            )
            undo.callback(http.stop)
            self.url = http.url
            folder.note(f"process {os.getpid()}, {http.url}")
            self.engine = engines.start(engine, folder.path, keep_open=[folder.lock])
            undo.callback(self.engine.stop)
            self._client = connect(self.engine.url)
            create_table(self._client, TABLE_NAME)
            self._blobs = FolderBlobs(folder.payloads)
            self._settings = Settings(table=TABLE_NAME)
            self.version = self._settings.version
            self._runtime = self._use_new_runtime()
            self._gateway = Gateway(load_handlers())
            self._gateway.hook("POST", f"{BASE_PATH}/admin/reset", self.reset)
            self._scheduler = Scheduler(self._sweep, sweep_interval_s)
            undo.callback(self._scheduler.stop)
            self._scheduler.start()
            # Last in, first out: requests end before the schedule, and that before the engine.
            undo.callback(http.stop)
            http.start()
            self._undo = undo.pop_all()

    def stop(self) -> None:
        """Let requests finish, then end everything."""
        self._undo.close()

    def reset(self) -> dict[str, bool]:
        """Empty the server: a test hook."""
        with self._scheduler.pause:
            self._client.delete_table(TableName=TABLE_NAME)
            create_table(self._client, TABLE_NAME)
            self._blobs.clear()
            # What the old one remembered of workers and jobs is gone with it.
            self._runtime = self._use_new_runtime()
        return {"reset": True}

    def _use_new_runtime(self) -> ojs_runtime.Runtime:
        built = ojs_runtime.build(
            self._settings,
            client=self._client,
            blobs=self._blobs,
            middleware=[hooks.reject_marked],
        )
        hooks.steer_workers(built)
        ojs_runtime.use(built)
        return built

    def _answer(self, request: Request) -> Response:
        return self._gateway(request)

    def _sweep(self) -> None:
        self._runtime.sweep.run_once(self._runtime.clock.now_ms(), _SWEEP_LIMIT)
