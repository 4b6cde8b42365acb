"""Measures the CPU time of our own imports of each function, precompiled, least of several runs.

    python tests/performance/imports.py [--other DIR]

`--other` measures a second checkout in turn with this one and prints the ratio. The packages that
every function loads (boto3, Powertools) are imported before the clock starts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

FUNCTIONS = ("jobs", "workers", "admin", "sweep", "stream")
RUNS = 12
CODE = """
import time, boto3, botocore.session, aws_lambda_powertools, pydantic
start = time.process_time()
import functions.{name}.handler
print(time.process_time() - start)
"""


def seconds(checkout: Path, name: str) -> float:
    """The CPU seconds of one import in a separate process."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        (sys.executable, "-c", CODE.format(name=name)),
        cwd=checkout,
        env={**kept, "PYTHONPATH": "shared:package:."},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other", type=Path, help="a second checkout")
    other = parser.parse_args().other
    for name in FUNCTIONS:
        here, there = [], []
        for _ in range(RUNS + 1):  # the first compiles
            here.append(seconds(Path.cwd(), name))
            if other:
                there.append(seconds(other, name))
        line = f"{name:8} {min(here) * 1000:6.1f} ms"
        if other:
            line += f"  other {min(there) * 1000:6.1f} ms  ratio {min(here) / min(there):.2f}"
        print(line)


if __name__ == "__main__":
    main()
