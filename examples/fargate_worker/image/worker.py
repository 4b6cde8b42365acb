"""Counts the words of texts. Stop it with SIGTERM, as ECS does: what runs is given back."""

from __future__ import annotations

import logging
import os
from collections import Counter

from ojs_aws import JobContext, Worker

# Until ECS kills it (`stop_s` of the construct, 120 s): handlers have this long to end, and the
# worker some seconds more to give back what did not.
GRACE_S = 90

# OJS_URL and OJS_KEY are the worker's own; the construct sets all three.
worker = Worker(
    os.environ.get("OJS_URL", "http://localhost:8080"),
    queues=os.environ.get("OJS_QUEUES", "texts").split(","),
    concurrency=10,
    grace_s=GRACE_S,
)


@worker.handler("text.count")
def count(job: JobContext) -> dict[str, object]:
    """How many words a text has, and the most frequent."""
    words = Counter(str(job.args[0]).lower().split())
    return {"words": words.total(), "most": words.most_common(3)}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    worker.run()
