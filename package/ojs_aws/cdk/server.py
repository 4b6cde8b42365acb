"""Facts about the server that a deployment needs: table, routes, version.

They are not imported from the server, because a package named `ojs` in an app's environment can be
another one. `make facts` writes the file. A test compares it with the code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("server.json")
_FACTS = json.loads(FILE.read_text("utf-8"))


@dataclass(frozen=True)
class Index:
    """A global secondary index, KEYS_ONLY."""

    name: str
    hash_key: str
    range_key: str


@dataclass(frozen=True)
class StreamFilter:
    """Filter for projected items: partition key prefixes, and sort keys (empty: any)."""

    prefixes: list[str]
    sort_keys: list[str]


@dataclass(frozen=True)
class Operation:
    """An operation of the API. `scope` is the required scope. None: any authenticated client."""

    method: str
    path: str
    scope: str | None


VERSION: str = _FACTS["version"]
SCHEMA_VERSION: int = _FACTS["schema_version"]
STREAM_MAX_AGE_S: int = _FACTS["stream_max_age_s"]
"""Age in seconds at which Lambda discards a batch of stream records."""

HASH_KEY: str = _FACTS["table"]["hash_key"]
RANGE_KEY: str = _FACTS["table"]["range_key"]
TTL_ATTRIBUTE: str = _FACTS["table"]["ttl_attribute"]
STREAM_VIEW_TYPE: str = _FACTS["table"]["stream_view_type"]
INDEXES = tuple(Index(**each) for each in _FACTS["table"]["indexes"])
STREAM_FILTERS = tuple(StreamFilter(**each) for each in _FACTS["table"]["stream_filters"])
LIVE_FILTERS = tuple(StreamFilter(**each) for each in _FACTS["table"]["live_filters"])

REQUEST_HEADERS: list[str] = _FACTS["request_headers"]
EXPOSED_HEADERS: list[str] = _FACTS["exposed_headers"]
OPERATIONS = tuple(Operation(*each) for each in _FACTS["operations"])

ALWAYS_ON_BUS: list[str] = _FACTS["always_on_bus"]
"""Event types that the bus always receives. `*` matches the rest of a type."""
