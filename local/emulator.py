"""Where MiniStack is: in an environment of its own, as it pins an SDK, within that of the server.

It stands for DynamoDB (`local.engines`) and for a whole cloud (`infra.local_cloud`), each time as a
process of its own. Nothing here imports it.
"""

from __future__ import annotations

import sys
from pathlib import Path


def find_ministack() -> Path | None:
    """Its program, where `make` or `python -m ojs_aws.testing install` has installed it."""
    program = Path(sys.prefix) / "emulator" / "bin" / "ministack"
    return program if program.is_file() else None
