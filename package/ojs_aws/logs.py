"""Log records of the library as lines of JSON."""

from __future__ import annotations

import json
import logging
import time

# What the worker says of a job beside the message, as fields of the record.
FIELDS = (
    "worker_id", "job_id", "job_type", "queue", "attempt", "state", "duration_ms", "trace_id",
    "error_code",
)  # fmt: skip


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: time, level, message, and what the worker says of the job.

    `logging.getLogger("ojs_aws")` is the logger; set this formatter on a handler of yours.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in FIELDS:
            if (value := getattr(record, name, None)) is not None:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)
