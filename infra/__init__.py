"""The deployment: CDK app, and deploying to the local cloud emulator.

Importing the package prepares what every module below needs: the library under `shared/` and the
construct under `package/` are importable, and jsii (CDK's bridge to Node) does not warn about the
Node it was handed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The project's root folder."""

for _folder in (ROOT / "shared", ROOT / "package"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

# jsii prints a banner for Node 20, which is past its end of life and still widespread. CDK works on
# it, and the banner would hide the warnings that matter. jsii reads the versions to be silent about
# when it starts Node.
os.environ["JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION"] = "20"
