"""Handlers that deliveries of the tests name. They are imported by processes of the server."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def handler(event: dict[str, Any], context: Any) -> Any:
    """Does what the job's first argument says, in each of the forms."""
    if "Records" in event:
        return None
    job = event.get("job", event)
    what, *rest = job["args"]
    if what == "raise":
        raise KeyError("size")
    if what == "exit":
        os._exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(600)
    if what == "say":
        return rest[0]
    if what == "no json":
        return {1, 2}
    left_ms = context.get_remaining_time_in_millis()
    result = {"pid": os.getpid(), "attempt": job["attempt"], "late": left_ms <= 0, "rest": rest}
    return {"status": "completed", "job_id": job["id"], "result": result}


not_a_function = 5
