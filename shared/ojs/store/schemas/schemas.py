"""Storage of schemas of job arguments, and of the directory of all job types that have one.

Each enqueue knows the directory, which a container caches. A version and its entry in the directory
are written in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import NotFound
from ojs.domain.schemas import Schema, SchemaMode, Version
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.errors import UnreadableItem
from ojs.store.table.record import Record
from ojs.store.table.table import Delete, Put, Table
from ojs.store.table.values import Item, number

_KEY = (keys.SCHEMAS, keys.RECORD)
MAX_DIRECTORY_BYTES = 350_000
# Time (ms) for which a container uses its copy of the directory.
REMEMBERED_MS = 10_000
SCHEMA = Record(
    Schema,
    "schema",
    {"version": "version", "text": "text", "created": "created_ms", "uri": "given_uri"},
    apart={"type": lambda item: str(item["pk"]).removeprefix(keys.schemas(""))},
    always=("version", "text", "created"),
)


@record(frozen=True)
class SchemaEntry:
    """A job type in the directory.

    `mode` is None if the type has no separate mode. `revision` is that of the directory when a
    version of the type was registered or deleted.
    """

    latest: str
    created_ms: int
    mode: SchemaMode | None
    revision: int
    versions: int


@record(frozen=True)
class SchemaDirectory:
    """All job types that have a schema. `revision` increases with each change."""

    entries: Mapping[str, SchemaEntry] = field(default_factory=dict)
    revision: int = 0

    @classmethod
    def of(cls, item: Item | None) -> SchemaDirectory:
        """Read the stored directory."""
        if item is None:
            return cls()
        try:
            entries = {
                name: SchemaEntry(latest, created_ms, mode and SchemaMode(mode), revision, versions)
                for name, (latest, created_ms, mode, revision, versions) in jsontext.stored(
                    str(item["of"])
                ).items()
            }
            return cls(entries, number(item, "rev"))
        except Exception as error:
            raise UnreadableItem("the directory of schemas", error) from error

    def with_entry(self, job_type: str, entry: SchemaEntry | None) -> SchemaDirectory:
        """Return the directory after a change. None removes the type."""
        left = {name: it for name, it in self.entries.items() if name != job_type}
        more = {} if entry is None else {job_type: entry}
        return SchemaDirectory({**left, **more}, self.revision + 1)

    def format(self) -> str:
        """Return the directory as stored JSON."""
        return jsontext.dumps(
            {
                name: [it.latest, it.created_ms, it.mode, it.revision, it.versions]
                for name, it in sorted(self.entries.items())
            }
        )


class SchemaStore:
    """Reads and writes schemas and their directory."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._seen: BoundedMap[str, tuple[int, SchemaDirectory]] = BoundedMap(1)

    def read_cached(self) -> SchemaDirectory:
        """Return the directory, at most REMEMBERED_MS old. Makes at most one call."""
        now_ms = self._clock.now_ms()
        read_ms, directory = self._seen.get("", (None, SchemaDirectory()))
        if read_ms is None or not 0 <= now_ms - read_ms < REMEMBERED_MS:
            directory = self.read_directory()
            self._seen.put("", (now_ms, directory))
        return directory

    def read_directory(self) -> SchemaDirectory:
        """Read the directory. Makes one call."""
        return SchemaDirectory.of(self._table.get(*_KEY))

    def get(self, job_type: str, version: Version) -> Schema | None:
        """Read a version. Makes one call."""
        item = self._table.get(keys.schemas(job_type), f"{keys.VERSION}{version.key}")
        return None if item is None else SCHEMA.of(item)

    def list(self, job_type: str) -> list[Schema]:
        """Read all versions of a type, the newest first."""
        condition = "pk = :pk AND begins_with(sk, :sk)"
        values = {":pk": keys.schemas(job_type), ":sk": keys.VERSION}
        return [SCHEMA.of(item) for item in self._table.query_all(condition, values)][::-1]

    def find(self, uri: str) -> tuple[str, str]:
        """Return the type and the version of a registered URI. Raises NotFound."""
        item = self._table.get(keys.schemas(uri), keys.RECORD)
        if item is None:
            raise NotFound("schema", uri)
        return str(item["type"]), str(item["version"])

    def add(
        self, new: Schema, seen: SchemaDirectory, after: SchemaDirectory, also: Iterable[Put]
    ) -> None:
        """Store a new version, together with additional writes.

        Raises LostRace: it exists, or the directory has changed, or a condition of `also` fails.
        """
        item = SCHEMA.item(new, pk=keys.schemas(new.type), sk=f"{keys.VERSION}{new.number.key}")
        writes = [Put(item, condition="attribute_not_exists(pk)"), _directing(seen, after)]
        if new.given_uri is not None:
            key = {"pk": keys.schemas(new.given_uri), "sk": keys.RECORD}
            named: Item = {**key, "type": new.type, "version": new.version}
            # Race: another version is registered with the same URI. The loser reads it.
            writes.append(Put(named, condition="attribute_not_exists(pk)"))
        self._table.transact([*writes, *also])
        self._seen.forget("")

    def remove(self, old: Schema, seen: SchemaDirectory, after: SchemaDirectory) -> None:
        """Delete a version. Raises LostRace: it does not exist, or the directory has changed."""
        there = "attribute_exists(pk)"
        pk, sk = keys.schemas(old.type), f"{keys.VERSION}{old.number.key}"
        named = [] if old.given_uri is None else [Delete(keys.schemas(old.given_uri), keys.RECORD)]
        self._table.transact([Delete(pk, sk, condition=there), _directing(seen, after), *named])
        self._seen.forget("")

    def put_directory(self, seen: SchemaDirectory, after: SchemaDirectory) -> None:
        """Store a changed directory. Raises LostRace: it has changed."""
        self._table.put(_directing(seen, after))
        self._seen.forget("")


def _directing(seen: SchemaDirectory, after: SchemaDirectory) -> Put:
    """Return the write of the directory.

    Race: another type is changed. The loser reads again, because it would undo the change.
    """
    item: Item = {"pk": _KEY[0], "sk": _KEY[1], "of": after.format(), "rev": after.revision}
    if not seen.revision:
        return Put(item, condition="attribute_not_exists(pk)")
    return Put(item, condition="#rev = :seen", values={":seen": seen.revision})
