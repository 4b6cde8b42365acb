"""The function. A job names a log in the bucket, and the function stores a report there.

The event is the job, and the response is its outcome. An exception is an outcome, too: the job is
retried according to its retry policy.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from typing import Any

import boto3
from access_log import NotALog, report

_s3 = boto3.client("s3")
_BUCKET = os.environ["BUCKET"]


def handler(event: dict[str, Any], _context: object) -> dict[str, Any]:
    """Report on the log that the first argument names."""
    if event["type"] == "ojs.test":
        # A test of the delivery (docs/push.md) names no log.
        return {"status": "completed", "job_id": event["id"], "result": None}
    key = event["args"][0]
    try:
        body = _s3.get_object(Bucket=_BUCKET, Key=f"logs/{key}")["Body"]
        made = report(_lines(body, packed=key.endswith(".gz")))
    except _s3.exceptions.NoSuchKey:
        return _failed(event, "no_such_log", f"logs/{key} doesn't exist")
    except (NotALog, gzip.BadGzipFile, UnicodeDecodeError) as error:
        return _failed(event, "not_a_log", str(error))
    # The name is derived from the job's argument, so a second run writes the same object.
    name = f"reports/{key}.json"
    text = json.dumps(made, indent=2).encode()
    _s3.put_object(Bucket=_BUCKET, Key=name, Body=text, ContentType="application/json")
    told = {"report": name, "requests": made["requests"], "visitors": made["visitors"]}
    return {"status": "completed", "job_id": event["id"], "result": told}


def _lines(body: Any, *, packed: bool) -> io.TextIOWrapper:
    """Read the log line by line, because it can be larger than the function's memory."""
    return io.TextIOWrapper(gzip.open(body) if packed else body, encoding="utf-8")


def _failed(event: dict[str, Any], code: str, message: str) -> dict[str, Any]:
    """Return a failure without retry, because a retry would fail, too."""
    error = {"code": code, "message": message, "retryable": False}
    return {"status": "failed", "job_id": event["id"], "error": error}
