"""Counts the words of texts. On SIGTERM, which ECS sends, it releases its unfinished jobs."""

from __future__ import annotations

import logging
import os
from collections import Counter

from ojs_aws import Worker

# ECS kills the container after 120 s (`stop_s` of the construct). Handlers have GRACE_S to finish.
# In the remaining seconds, the worker releases unfinished jobs.
GRACE_S = 90

# The worker reads OJS_URL and OJS_KEY. The construct sets all three.
worker = Worker(
    os.environ.get("OJS_URL", "http://localhost:8080"),
    queues=os.environ.get("OJS_QUEUES", "texts").split(","),
    concurrency=10,
    grace_s=GRACE_S,
)


@worker.job("text.count", queue="texts")
def count(text: str) -> dict[str, object]:
    """Return the number of words of a text, and the most frequent ones."""
    words = Counter(text.lower().split())
    return {"words": words.total(), "most": words.most_common(3)}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    worker.run()
