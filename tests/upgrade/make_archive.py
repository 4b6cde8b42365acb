"""Pack the code of a released version, so that it can run beside later versions.

    python tests/upgrade/make_archive.py v0.2.1 0.2.1

The archive holds what `process.py` needs of that commit, and `process.py` as it fits that commit.
"""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def main() -> None:
    """Write the archive."""
    commit, version = sys.argv[1:3]
    packed = subprocess.run(
        ["git", "archive", commit, "shared", "functions", "local"],
        capture_output=True, check=True, cwd=_HERE.parent.parent,
    ).stdout  # fmt: skip
    buffer = io.BytesIO(packed)
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        archive.add(_HERE / "process.py", "process.py")
    data = lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)
    (_HERE / "data" / f"{version}.tar.xz").write_bytes(data)


if __name__ == "__main__":
    main()
