"""A worker as a process of its own, whose requests and answers get lost now and then.

    python faulty_worker.py URL SEED FILE

Each job adds its id to the file. It says "begun" with its first one.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import httpx

from ojs_aws import Client, JobContext, Worker


class Faulty(httpx.HTTPTransport):
    """Loses one request in ten, and one answer in ten."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._random.random() < 0.1:
            raise httpx.ConnectError("lost on the way there")
        answer = super().handle_request(request)
        if self._random.random() < 0.1:
            answer.read()
            raise httpx.ReadError("lost on the way back")
        return answer


def main() -> None:
    url, seed, file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    client = Client(url, transport=Faulty(seed))
    worker = Worker(
        queues=["q"], client=client, concurrency=4, heartbeat_s=0.5, grace_s=0.2, poll_s=0.2
    )

    @worker.handler("t")
    def handle(job: JobContext) -> str:
        with file.open("a") as done:
            done.write(f"{job.id}\n")
        sys.stdout.write("begun\n")
        sys.stdout.flush()
        time.sleep(0.05)
        return job.id

    @worker.handler("later")
    async def later(job: JobContext) -> str:
        return handle(job)

    worker.run()


if __name__ == "__main__":
    main()
