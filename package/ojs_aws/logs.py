"""Formats the library's log records as JSON lines."""

from __future__ import annotations

import json
import logging
import time

# Fields of a record that describe the job, in addition to the message.
FIELDS = (
    "worker_id", "job_id", "job_type", "queue", "attempt", "state", "duration_ms", "trace_id",
    "error_code",
)  # fmt: skip


class JsonFormatter(logging.Formatter):
    """Formats each log record as one JSON object: time, level, logger, message, and job fields.

    The logger of the library is `logging.getLogger("ojs_aws")`. Set this formatter on a handler.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format one record.

        Args:
            record: Record of any logger.

        Returns:
            One line of JSON with the keys `time`, `level`, `logger`, and `message`. It has the job
            fields and `exception` if the record has them.
        """
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
