"""The deployment: the CDK app, and the deployment to the local cloud emulator.

Importing the package makes the library under `shared/` and the construct under `package/`
importable. It also silences the warning of jsii (CDK's bridge to Node) about its Node version.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""Root folder of the project."""

for _folder in (ROOT / "shared", ROOT / "package"):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

# jsii prints a banner for Node 20, which is past its end of life and still common. CDK works on it,
# and the banner would hide important warnings. jsii reads the silenced versions when it starts
# Node.
os.environ["JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION"] = "20"
