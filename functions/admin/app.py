"""The application to which the modules of this function bind their operations."""

from __future__ import annotations

from ojs import runtime
from ojs.http.binding.access import Guard
from ojs.http.binding.actions import ActionLog
from ojs.http.binding.application import Application

app = Application("admin", Guard(runtime.current), ActionLog(runtime.current))
