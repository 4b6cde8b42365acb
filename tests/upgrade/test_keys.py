"""Keys that version 0.2.1 made, and those that this version makes beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from ojs.clock import ManualClock, SystemClock
from ojs.domain.access import ALL_SCOPES, ANYBODY, OLD_KEYS_S
from ojs.services.operations.access_keys import AccessKeys
from ojs.services.operations.authentication import Authentication
from ojs.services.operations.setup import Setup
from ojs.store.deliveries.deliveries import DeliveryStore
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.table.table import Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

ARCHIVE = Path(__file__).parent / "data" / "0.2.1.tar.xz"
# Makes a key; then tells of each key that comes whether it opens.
OLD_CODE = """
import sys
from local.dynamodb import connect
from ojs.clock import SystemClock
from ojs.domain.access import ANYBODY
from ojs.services.operations.access_keys import AccessKeys
from ojs.services.operations.authentication import Authentication
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.table.table import Table
table, clock = Table(connect(sys.argv[1]), sys.argv[2]), SystemClock()
store = AccessKeyStore(table)
DeploymentStore(table).note(version="0.2.1", now_ms=clock.now_ms())
_, made = AccessKeys(store, clock).create(ANYBODY, "old", ["work"])
print(made.text, flush=True)
for line in sys.stdin:
    found = Authentication(store, clock).who("Bearer " + line.strip())
    print(found.name if found else "-", flush=True)
"""


def test_a_key_of_version_0_2_1_opens_until_90_days_after_the_upgrade(
    dynamodb: DynamoDBClient, fresh_table: str, tmp_path: Path
) -> None:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    path = os.pathsep.join(str(tmp_path / each) for each in (".", "shared"))
    url = dynamodb.meta.endpoint_url
    with subprocess.Popen(
        [sys.executable, "-c", OLD_CODE, url, fresh_table],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        told, ask = process.stdout, process.stdin
        old = told.readline().strip()
        table, now_ms = Table(dynamodb, fresh_table), SystemClock().now_ms()
        clock, store = ManualClock(now_ms), AccessKeyStore(table)
        deployments, deliveries = DeploymentStore(table), DeliveryStore(table)
        setup = Setup(deployments, store, deliveries, clock, version="present")
        setup.prepare_keys()
        setup.check_table()
        _, made = AccessKeys(store, clock).create(ANYBODY, "new", ALL_SCOPES)
        who = Authentication(store, clock).who
        answers = {}
        for _ in range(2):
            # By turns, on the same records.
            for key in (old, made.text):
                found = who(f"Bearer {key}")
                print(key, file=ask, flush=True)
                answers[key] = (found and found.name, told.readline().strip())
        # The old version knows no key with a MAC: one that opens there is made after the upgrade.
        assert answers == {old: ("old", "old"), made.text: ("new", "-")}
        clock.advance(1_000 * OLD_KEYS_S - 1)
        assert who(f"Bearer {old}") is not None
        clock.advance(1)
        assert who(f"Bearer {old}") is None
        assert who(f"Bearer {made.text}") is not None
        ask.close()
