"""The deployment: CDK app, bundling, and deploying to the local cloud emulator.

Importing the package prepares two things every module below needs: the library under `shared/`
is importable, and jsii (CDK's bridge to Node) does not warn about the Node it was handed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The project's root folder."""

SHARED = ROOT / "shared"

if str(SHARED) not in sys.path:
    sys.path.insert(0, str(SHARED))

# jsii prints a banner for Node 20, which is past its end of life and still widespread. CDK works on
# it, and the banner would hide the warnings that matter. jsii reads the versions to be silent about
# when it starts Node.
os.environ["JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION"] = "20"
