"""Workers with free slots, by the group of their queues."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping

from ojs.bounded import BoundedMap
from ojs.domain.realtime import Listener
from ojs.store.realtime.tickets import to_ttl
from ojs.store.table import keys
from ojs.store.table.races import wins
from ojs.store.table.record import Record
from ojs.store.table.table import Put, Table

LISTENER = Record(
    Listener,
    "a listener",
    {"worker": "worker_id", "until": "until_ms", "owner": "owner", "tenant": "tenant"},
    apart={"connection": lambda item: str(item["sk"]).partition("|")[2]},
)
_PLACE_BYTES = 3

# Maximum number of listeners that are counted: a page of one read unit.
MOST_COUNTED = 24
_REMEMBERED = 1_000


class ListenerStore:
    """The store of listeners."""

    def __init__(self, table: Table, choose: Callable[[int], int] = random.randrange) -> None:
        """Create the store. `choose` returns a random number below its argument."""
        self._table = table
        self._choose = choose
        # Groups with more listeners than a page has.
        self._large: BoundedMap[str, int] = BoundedMap(_REMEMBERED)

    def add(self, group: str, listener: Listener) -> None:
        """Store that a worker listens. One call, safe to repeat."""
        # No condition: the connection belongs to this worker alone.
        place = {"pk": keys.listeners(group), "sk": _place(listener.connection)}
        self._table.put(Put(LISTENER.item(listener, **place, ttl=to_ttl(listener.until_ms))))

    def remove(self, group: str, connection: str) -> None:
        """Delete a listener. One call, safe to repeat."""
        self._table.delete(keys.listeners(group), _place(connection))

    def remove_own(self, group: str, connection: str, owner: str) -> bool:
        """As `remove`. Returns False, and deletes nothing, if the listener has another owner."""
        condition = "attribute_not_exists(#owner) OR #owner = :owner"
        place, values = (keys.listeners(group), _place(connection)), {":owner": owner}
        return wins(lambda: self._table.delete(*place, condition=condition, values=values))

    def select(self, group: str, number: int, *, now_ms: int) -> list[Listener]:
        """Return up to `number` listeners, chosen at random.

        One consistent query. Of a group with more than `MOST_COUNTED` listeners it reads those from
        a random place on, and continues at the beginning in a second query.
        """
        if self._large.get(group):
            start = f"{self._choose(256**_PLACE_BYTES):0{2 * _PLACE_BYTES}x}"
            found = self._page(group, "AND sk >= :start", {":start": start}, number)
            if len(found) < number:
                self._large.forget(group)
                found += self._page(group, limit=number - len(found))
        else:
            found = self._page(group)
            if len(found) == MOST_COUNTED:
                self._large.put(group, now_ms)
        valid = [each for each in _distinct(found) if each.until_ms > now_ms]
        return [valid.pop(self._choose(len(valid))) for _ in range(min(number, len(valid)))]

    def list_first(self, group: str, *, now_ms: int) -> list[Listener]:
        """Return up to `MOST_COUNTED` listeners. One query, which may miss the latest changes."""
        found = self._page(group, consistent=False)
        return [listener for listener in found if listener.until_ms > now_ms]

    def _page(
        self,
        group: str,
        condition: str = "",
        values: Mapping[str, str] | None = None,
        limit: int = MOST_COUNTED,
        *,
        consistent: bool = True,
    ) -> list[Listener]:
        page = self._table.query(
            f"pk = :group {condition}".rstrip(),
            {":group": keys.listeners(group), **(values or {})},
            limit=limit,
            consistent=consistent,
        )
        return [LISTENER.of(item) for item in page.items]


def _place(connection: str) -> str:
    """Return the sort key of a listener.

    The IDs of connections that are opened at the same time can begin alike. A hash spreads them.
    """
    digest = hashlib.sha256(connection.encode("utf-8")).hexdigest()
    return f"{digest[: 2 * _PLACE_BYTES]}|{connection}"


def _distinct(listeners: Iterable[Listener]) -> Iterable[Listener]:
    return {listener.connection: listener for listener in listeners}.values()
