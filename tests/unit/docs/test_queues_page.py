"""docs/queues.md and docs/size-limits.md against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ojs.domain.job import copies
from ojs.domain.queue import config as queue_config
from ojs.domain.queue.config import SYSTEM, QueueConfig, QueueConfigRequest
from ojs.http.parameters import MAX_BLOCK_S, MAX_PRODUCER
from ojs.services.jobs.dead_letter_copies import MAX_DROPS
from ojs.services.permits import backpressure as bounds
from ojs.services.permits import repair
from ojs.store.permits import semaphore

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "queues.md").read_text("utf-8")
SIZE_PAGE = (DOCS / "size-limits.md").read_text("utf-8")
ROWS = re.findall(r"^\| `(\w+)` \|([\w ]*)\|([^|]*)\| (.+) \|$", PAGE, re.MULTILINE)


def test_every_field_is_listed_and_no_other() -> None:
    assert sorted(name for name, *_ in ROWS) == sorted(QueueConfigRequest.model_fields)


@pytest.mark.parametrize(("name", "unit", "default", "_text"), ROWS, ids=[row[0] for row in ROWS])
def test_the_default_is_the_code_s(name: str, unit: str, default: str, _text: str) -> None:
    shown = re.findall(r"`([^`]+)`", default)
    if name == "retention":
        assert shown == [SYSTEM[name][state] for state in ("completed", "discarded", "cancelled")]
    elif name == "dead_letter":
        told = SYSTEM[name]
        assert shown == [
            *(str(told["retention"][field]) for field in ("max_age", "max_count")),
            told["pruning_policy"],
        ]
    elif name == "default_retry":
        assert default.strip() == "as shown above"
    elif shown:
        system = {**SYSTEM, "dead_letter_ttl": queue_config._DEAD_LETTER_TTL}
        assert shown == [str(system[name]).replace("'", '"')]
    elif default.strip():
        assert name not in SYSTEM
        assert getattr(QueueConfig(), name) is None
        assert default.strip() in ("no bound", "no limit", "none")
    else:
        assert name in ("max_depth", "strategy", "backpressure")
    assert unit.strip() or name not in ("max_size", "visibility_timeout", "retention")


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("and at most 25 seconds", MAX_BLOCK_S == 25),
        ("`Retry-After` is 1 to 60 seconds", bounds._LONGEST_RETRY_S == 60),
        ("or 5 if that is unknown", bounds._UNKNOWN_RETRY_S == 5),
        ("30 days by default", copies.TTL_MS == 30 * 86_400_000),
        ("With 100 copies or more", MAX_DROPS == 100),
        ("up to 255 printable characters", MAX_PRODUCER == 255),
        ("responds after about 1 s", repair.GRACE_S == 1),
        ("With more than 1,000 active jobs", repair.MOST_TAKEN == 1_000),
        ("within 35 s", semaphore.SETTLED_MS + semaphore.GONE_MS == 35_000),
        ("A limit above 24 is stored", semaphore.SHARD_PERMITS == 24),
    ],
)
def test_what_is_said_holds(text: str, holds: bool) -> None:
    assert text in " ".join(f"{PAGE}\n{SIZE_PAGE}".split())
    assert holds
