"""How long 5 000 cron jobs take that are all due at one minute, on the local engine.

    PYTHONPATH=shared:. .venv/bin/python -m tests.performance.crons

Passes of the job sweep fire them, as in the minute after their tick.
"""

from __future__ import annotations

import sys
import time

from functions.sweep.handler import MAX_PASSES, PASS_LIMIT
from local import engines
from ojs.domain.access import ANYBODY
from ojs.services.for_each import in_threads
from tests.direct import connected
from tests.store.conftest import make_world

COUNT, QUEUES, WITHIN_S = 5_000, 5, 80
_DAY_MS = 86_400_000


def main() -> int:
    """Measure; 1 if they take too long."""
    engine = engines.start(streams=False)
    try:
        with connected(engine.url) as client:
            world = make_world(client)
            world.for_each = in_threads
            world.run = world.another()
            for number in range(COUNT):
                raw = {
                    "name": f"c{number}",
                    "cron": "0 0 * * *",
                    "type": "t",
                    "queue": f"q{number % QUEUES}",
                }
                world.run.crons.register(raw, ANYBODY, None)
            world.clock.advance(_DAY_MS - world.clock.now_ms() % _DAY_MS)
            began, fired, passes = time.monotonic(), 0, 0
            while fired < COUNT and passes < MAX_PASSES:
                fired += world.run.sweep.run_once(world.clock.now_ms(), PASS_LIMIT)["crons"]
                passes += 1
            took_s = time.monotonic() - began
    finally:
        engine.stop()
    sys.stdout.write(f"{fired} cron jobs fired in {took_s:.1f} s, in {passes} passes\n")
    return int(fired < COUNT or took_s > WITHIN_S)


if __name__ == "__main__":
    sys.exit(main())
