"""Location of MiniStack: in a separate environment within the server's, because it pins an SDK.

It emulates DynamoDB (`local.engines`) and a whole cloud (`infra.local_cloud`), each time in a
separate process. No module imports it.
"""

from __future__ import annotations

import sys
from pathlib import Path


def find_ministack() -> Path | None:
    """Return its program, as `make` or `python -m ojs_aws.testing install` installs it."""
    program = Path(sys.prefix) / "emulator" / "bin" / "ministack"
    return program if program.is_file() else None
