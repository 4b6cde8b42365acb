"""The directory of realtime: groups of workers that listen, channels in use, and revoked keys.

It is one partition, which a container reads with one query, and uses for some seconds. A container
writes an entry at most once in `_NOTED_MS`. Entries of groups are short-lived: workers that fetch
write them again. Those of channels outlive each connection that subscribed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.realtime import CONNECTION_MS, DirectoryEntries
from ojs.store.realtime.tickets import to_ttl
from ojs.store.table import keys
from ojs.store.table.table import Put, Table
from ojs.store.table.values import Value, size

_GROUP_MS = 15 * 60_000
_NOTED_MS = 5 * 60_000
# Another container wrote the entry up to `_NOTED_MS` before a connection subscribed.
_CHANNEL_MS = CONNECTION_MS + _NOTED_MS
# API Gateway remembers a revoked key for up to an hour, and lets it have tickets.
_REVOKED_MS = CONNECTION_MS + 65 * 60_000
# Maximum size (bytes) of the directory. Workers poll if it is larger.
MAX_BYTES = 100_000
_REMEMBERED = 10_000


class RealtimeDirectory:
    """The store of the directory, for one container."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._read: BoundedMap[str, tuple[int, DirectoryEntries]] = BoundedMap(1)
        # When this container wrote an entry last (ms).
        self._noted: BoundedMap[str, int] = BoundedMap(_REMEMBERED)

    def read(self, *, remembered_ms: int) -> DirectoryEntries:
        """Return the directory, at most `remembered_ms` old. At most one query."""
        now_ms = self._clock.now_ms()
        read_ms, directory = self._read.get(keys.REALTIME, (None, DirectoryEntries()))
        if read_ms is not None and 0 <= now_ms - read_ms < remembered_ms:
            return directory
        directory = self._query(now_ms)
        self._read.put(keys.REALTIME, (now_ms, directory))
        return directory

    def forget(self) -> None:
        """Read the directory again at its next use."""
        self._read.forget(keys.REALTIME)

    def note_group(self, group: str, queues: Sequence[str]) -> bool:
        """Store the queues of a group that listens.

        Returns:
            Whether a write was made: not if this container made it in the last five minutes.
        """
        return self._note(keys.GROUP + group, {"queues": " ".join(sorted(queues))}, _GROUP_MS)

    def note_channel(self, channel: str) -> None:
        """Store that a channel has subscribers: `queue:{name}`, `job:{id}`, or `all`."""
        kind, _, name = channel.partition(":")
        entry = {"queue": keys.CHANNEL + name, "job": keys.WATCHED}.get(kind, keys.EVERYTHING)
        self._note(entry, {}, _CHANNEL_MS)

    def revoke(self, key: str) -> None:
        """Store that a key is revoked: its subscriptions end. One call, safe to repeat."""
        self._write(keys.REVOKED + key, {}, self._clock.now_ms() + _REVOKED_MS)

    def _note(self, entry: str, values: dict[str, Value], valid_ms: int) -> bool:
        now_ms = self._clock.now_ms()
        noted_ms = self._noted.get(entry)
        if noted_ms is not None and 0 <= now_ms - noted_ms < _NOTED_MS:
            return False
        self._write(entry, values, now_ms + valid_ms)
        self._noted.put(entry, now_ms)
        return True

    def _write(self, entry: str, values: dict[str, Value], until_ms: int) -> None:
        # No condition: of two writes both have the same values, and a later end.
        item: dict[str, Value] = {"pk": keys.REALTIME, "sk": entry, "until": until_ms}
        self._table.put(Put({**item, "ttl": to_ttl(until_ms), **values}))
        # This container must see its own entry at once.
        self.forget()

    def _query(self, now_ms: int) -> DirectoryEntries:
        items, after, read = [], None, 0
        while read <= MAX_BYTES:
            page = self._table.query("pk = :rt", {":rt": keys.REALTIME}, after=after)
            items += page.items
            read += sum(map(size, page.items))
            after = page.last
            if after is None:
                break
        valid = {str(item["sk"]): item for item in items if int(str(item["until"])) > now_ms}

        def list_entries(prefix: str) -> dict[str, str]:
            return {
                entry.removeprefix(prefix): str(item.get("queues", ""))
                for entry, item in valid.items()
                if entry.startswith(prefix)
            }

        return DirectoryEntries(
            groups={name: tuple(text.split()) for name, text in list_entries(keys.GROUP).items()},
            queues=frozenset(list_entries(keys.CHANNEL)),
            everything=keys.EVERYTHING in valid,
            jobs=keys.WATCHED in valid,
            revoked=frozenset(list_entries(keys.REVOKED)),
            whole=read <= MAX_BYTES,
        )
