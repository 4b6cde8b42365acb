"""What must stay as it is while declarations move: golden files, written by `make golden`.

A difference is a change that users notice. The order of keys in JSON is none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from ojs.api import metrics, openapi
from ojs.api import operations as contract
from ojs.domain import stats
from ojs_aws.client.blocking import Client
from tests.golden.answers import rendered
from tests.golden.filled import filled

FOLDER = Path(__file__).parent / "files"
CLOSED = ("keys", "jwt", "iam")


def _lines(value: Any, depth: int, *path: str) -> Iterator[str]:
    """One line for each part of a document, `depth` levels down."""
    if depth and isinstance(value, Mapping):
        for name in sorted(value):
            yield from _lines(value[name], depth - 1, *path, name)
    else:
        yield f"{' '.join(path)}: {json.dumps(value, sort_keys=True, ensure_ascii=False)}"


def _sorted(part: Any) -> Any:
    """The same with the names of required fields in order, which means nothing."""
    if isinstance(part, list):
        return [_sorted(each) for each in part]
    if not isinstance(part, Mapping):
        return part
    return {
        name: sorted(value) if name == "required" and isinstance(value, list) else _sorted(value)
        for name, value in part.items()
    }


def _document(authorizer: str) -> list[str]:
    document = _sorted(openapi.document("1.2.3", authorizer))
    depths = {"paths": 4, "components": 4}
    return [
        line
        for name in sorted(document)
        for line in _lines(document[name], depths.get(name, 0), name)
    ]


def _closed(authorizer: str) -> list[str]:
    """Where the document for this authorizer differs from that for none."""
    without = _document("none")
    own = _document(authorizer)
    gone = set(without) - set(own)
    return [f"- {line}" for line in sorted(gone)] + sorted(set(own) - set(without))


def _permissions() -> list[str]:
    return sorted(f"{each.id}: {_needs(each.permission)}" for each in contract.OPERATIONS)


def _needs(permission: Any) -> str:
    return f"{permission.scope or 'any key'}, {permission.reach}"


_TODAY = "metricssnapshot.queues.today"
_BY_TYPE = ("enqueued", "completed", "failed", "retried", "cancelled", "expired")
_COUNTS = {name: {"email.send": at} for at, name in enumerate(_BY_TYPE, 3)} | {
    "dead_added": {f"{_TODAY}.dead_added.key": 694990},
    "dead_retried": {"": 111121},
    "dead_pruned": {"": 131414},
    "rejected": {"": 605487},
    "dropped": {"": 595468},
    "o_": {f"{_TODAY}.overflow.key": 776303},
    "x_": {f"{_TODAY}.exceeded.key": 242487},
    "s_": {f"{_TODAY}.dispatched.key": 405025},
    "starved": {"": 826959},
}


def _prometheus() -> list[str]:
    seconds = [*stats.DURATION_BUCKETS_S], [*stats.QUEUE_TIME_BUCKETS_S]
    runs, waits = ([*range(1, len(each) + 2)] for each in seconds)
    found = filled(
        stats.MetricsSnapshot,
        durations=runs,
        queue_times=waits,
        waits=waits,
        counts=_COUNTS,
    )
    return metrics.text(found).splitlines()


def _client() -> list[str]:
    return [
        f"{name}{signature(method) if callable(method) else ''}"
        for name in sorted(dir(Client))
        if not name.startswith("_")
        for method in [getattr(Client("http://localhost"), name)]
    ]


def _answers() -> list[str]:
    return sorted(
        f"{kind.__name__}: {json.dumps(answer, sort_keys=True, ensure_ascii=False)}"
        for kind, answer in rendered()
    )


FILES: Mapping[str, Callable[[], list[str]]] = {
    "openapi.none.txt": lambda: _document("none"),
    **{f"openapi.{name}.txt": partial(_closed, name) for name in CLOSED},
    "permissions.txt": _permissions,
    "prometheus.txt": _prometheus,
    "client.txt": _client,
    "answers.txt": _answers,
}


def text(name: str) -> str:
    """What this file holds if it is written now."""
    return "\n".join([*FILES[name](), ""])


def main() -> int:
    """Write all files anew."""
    FOLDER.mkdir(exist_ok=True)
    for name in FILES:
        (FOLDER / name).write_text(text(name), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
