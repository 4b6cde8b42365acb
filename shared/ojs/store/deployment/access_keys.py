"""Storage of access keys: one item each, which never contains the secret.

    A|mac   mac          the secret of the MACs of keys, and the time until which keys without a
                         MAC are accepted
    A|{id}  @            digest, name, scopes, queues; times of creation, expiry and last use
    A|{id}  rate         the number of requests with the key, if it has a limit
    A|{id}  made|{child} a key that this key created, until that key and its descendants are revoked
    A|{arn} role         the ID of the record of an IAM role; that record has an ARN and no digest

The record of a role is never removed, so that a role whose record expired can be distinguished from
a role without a record.

The index `expiry` lists all keys in order of creation. The index contains only keys, so the use of
an access key does not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ojs.domain.access import SECRET_BYTES, AccessKey, Credential, KeyMac
from ojs.domain.page import Page
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.races import unless_lost, wins
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import number

if TYPE_CHECKING:
    from ojs.store.table.values import Item, Value

_RATE_KEPT_S = 86_400


class AccessKeyStore:
    """Reads and writes access keys."""

    def __init__(self, table: Table, old_keys_until_ms: int | None = None) -> None:
        """Create the store.

        `old_keys_until_ms` is the time until which keys without a MAC are accepted. None: the time
        in the table.
        """
        self._table = table
        self._old_keys_until_ms = old_keys_until_ms
        self._mac: KeyMac | None = None

    def mac(self, *, consistent: bool = False) -> KeyMac | None:
        """Return the secret of the keys' MACs, or None if no deployment has created one.

        Cached after the first read.
        """
        if self._mac is None:
            item = self._table.get(
                keys.access_key(keys.KEY_MAC), keys.KEY_MAC, consistent=consistent
            )
            if item is not None:
                self._mac = KeyMac(str(item["secret"]), int(str(item["until"])))
                if self._old_keys_until_ms is not None:
                    self._mac = replace(self._mac, old_until_ms=self._old_keys_until_ms)
        return self._mac

    def made_mac(self, random_bytes: Callable[[int], bytes], old_until_ms: int) -> KeyMac:
        """Return the secret of the keys' MACs, and create it if the table has none.

        If it is created, keys without a MAC work until `old_until_ms`. A table whose items were
        deleted gets the previous secret.
        """
        known = self._mac or KeyMac(random_bytes(SECRET_BYTES).hex(), old_until_ms)
        item: Item = {"pk": keys.access_key(keys.KEY_MAC), "sk": keys.KEY_MAC}
        item |= {"secret": known.secret, "until": known.old_until_ms}
        # Race: another request creates the secret. The first secret is kept, and the loser reads
        # it.
        with suppress(LostRace):
            self._table.put(Put(item, condition="attribute_not_exists(pk)"))
        found = self.mac(consistent=True)
        assert found is not None, "it is never removed"
        return found

    def add(self, key: AccessKey, credential: Credential) -> bool:
        """Store a new key. Return whether a key with this ID and this secret is now stored.

        If another key creates it, the new key is stored only if that key is valid at this time.
        """
        if key.ancestors:
            return self._transacted(self._adding(key, credential))
        # Race: the response of an earlier attempt was lost, or the deployment is repeated. The
        # loser finds the item. If it has the same digest, it is the same key. The item is not
        # changed, whether or not the key is revoked.
        return wins(
            lambda: self._table.put(
                Put(_item(key, credential), condition="attribute_not_exists(pk)"),
                own=("digest", credential.digest),
            )
        )

    def add_role(self, key: AccessKey, role: str, *, instead_of: str | None) -> bool:
        """Store a new record for a role.

        Args:
            key: The new record.
            role: ARN of the role.
            instead_of: ID of the record to replace, which must have ended, or None.

        Returns:
            Whether the record is stored. False if another operator stored one at the same time.
        """
        pointer: dict[str, Value] = {"pk": keys.role(role), "sk": keys.ROLE, "key": key.id}
        # Race: another operator stores a record for the role at the same time. One record is
        # stored, and the loser gets false. An ended record never becomes valid again, so its ID is
        # sufficient for the condition.
        unchanged, values = "attribute_not_exists(pk)", {}
        if instead_of is not None:
            unchanged, values = "#key = :before", {":before": instead_of}
        return self._transacted([*self._adding(key, None), Put(pointer, unchanged, values)])

    def _adding(self, key: AccessKey, credential: Credential | None) -> list[Put | Update]:
        """Return the writes that store a new key, or the record of a role."""
        added = Put(_item(key, credential), condition="attribute_not_exists(pk)")
        if not key.ancestors:
            return [added]
        maker = keys.access_key(key.ancestors[-1])
        link = {"pk": maker, "sk": f"{keys.MADE}{key.id}", "ttl": key.ttl_s}
        return [
            added,
            # Race: the creating key is revoked at the same time. Either the revocation finds the
            # new key among the keys that it created, or the new key is not stored.
            Update(
                maker,
                keys.RECORD,
                set={"made": key.created_ms},
                condition="attribute_exists(pk) AND attribute_not_exists(#revoked) "
                "AND (attribute_not_exists(#expires) OR #expires > :now)",
                values={":now": key.created_ms},
            ),
            Put({name: value for name, value in link.items() if value is not None}),
        ]

    def _transacted(self, writes: Sequence[Put | Update]) -> bool:
        return wins(lambda: self._table.transact(writes))

    def first_made(self, maker_id: str) -> str | None:
        """Return a key that was created with `maker_id` and is not revoked with its descendants
        yet.
        """
        found = self._table.query(
            "pk = :maker AND begins_with(sk, :made)",
            {":maker": keys.access_key(maker_id), ":made": keys.MADE},
            limit=1,
            consistent=True,
        )
        return str(found.items[0]["sk"]).removeprefix(keys.MADE) if found.items else None

    def strike(self, maker_id: str, key_id: str) -> None:
        """Record that `key_id`, which was created with `maker_id`, and all its descendants are
        revoked.
        """
        self._table.delete(keys.access_key(maker_id), f"{keys.MADE}{key_id}")

    def use(self, credential: Credential, *, now_ms: int) -> AccessKey | None:
        """Return the key of this credential if it is valid now, and record the use.

        Always makes one call, so that the cost does not reveal why a credential is invalid. A
        credential of an unknown key does not create an item.
        """
        return self._use(credential.id, "digest", credential.digest, now_ms)

    def id_of_role(self, role: str) -> str | None:
        """Return the ID of the last record of a role, or None if it never had one.

        The record can have expired or be deleted. The read is strongly consistent.
        """
        item = self._table.get(keys.role(role), keys.ROLE)
        return None if item is None else str(item["key"])

    def use_role(self, key_id: str, role: str, *, now_ms: int) -> AccessKey | None:
        """Return the record of a role if it is valid now, and record the use. Makes one call.

        Args:
            key_id: ID of the record.
            role: ARN of the role.
            now_ms: Current time in milliseconds since the epoch.
        """
        return self._use(key_id, "role", role, now_ms)

    def _use(self, key_id: str, attribute: str, proof: str, now_ms: int) -> AccessKey | None:
        # Race: the key is revoked at the same time. DynamoDB orders the writes. After the
        # revocation, the caller is rejected.
        item = unless_lost(
            lambda: self._table.update(
                Update(
                    keys.access_key(key_id),
                    keys.RECORD,
                    set={"used": now_ms},
                    condition=f"#{attribute} = :proof AND attribute_not_exists(#revoked) "
                    "AND (attribute_not_exists(#expires) OR #expires > :now)",
                    values={":proof": proof, ":now": now_ms},
                ),
                tell_loser=False,
            )
        )
        if item is None:
            return None
        return _from(item)

    def get(self, key_id: str, *, consistent: bool = True) -> AccessKey | None:
        """Read one key, eventually consistent unless `consistent`."""
        item = self._table.get(keys.access_key(key_id), keys.RECORD, consistent=consistent)
        return None if item is None else _from(item)

    def revoke(self, key: AccessKey) -> AccessKey:
        """Store that a key was revoked. Raises LostRace if the key was removed."""
        # Race: another request revokes the key as well. The first time is kept. If DynamoDB has
        # deleted the expired key, this write must not create a partial item.
        item = self._table.update(
            Update(
                keys.access_key(key.id),
                keys.RECORD,
                compute={
                    "revoked": "if_not_exists(#revoked, :revoked)",
                    "ttl": "if_not_exists(#ttl, :ttl)",
                },
                condition="attribute_exists(pk)",
                values={":revoked": key.revoked_ms or 0, ":ttl": key.ttl_s or 0},
            )
        )
        return _from(item)

    def count_requests(self, key_id: str, count: int, *, now_ms: int) -> int:
        """Add requests to the total of a key, and return the total. Makes one call.

        DynamoDB deletes the total a day after the last request.
        """
        ttl_s = now_ms // 1_000 + _RATE_KEPT_S
        item = self._table.update(
            Update(keys.access_key(key_id), keys.RATE, set={"ttl": ttl_s}, add={"n": count})
        )
        return number(item, "n")

    def list(self, *, limit: int, after: str | None = None) -> Page[AccessKey]:
        """Return a page of keys in order of creation, and the position to continue from.

        A key created within the last seconds might be missing.
        """
        condition, values = "epk = :line", {":line": keys.ACCESS_KEYS}
        if after is not None:
            condition += " AND esk > :after"
            values[":after"] = after
        # Read one more than the page, because DynamoDB returns a position even after the last item.
        found = self._table.query(condition, dict(values), index="expiry", limit=limit + 1)
        there = found.items[:limit]
        wanted = [(str(item["pk"]), keys.RECORD) for item in there]
        stored = self._table.batch_get(wanted)
        last = str(there[-1]["esk"]) if len(found.items) > limit else None
        return Page([_from(stored[key]) for key in wanted if key in stored], last)


def _item(key: AccessKey, credential: Credential | None) -> Item:
    item: dict[str, Value | None] = {
        "pk": keys.access_key(key.id),
        "sk": keys.RECORD,
        "digest": None if credential is None else credential.digest,
        "mac": 1 if credential is not None and credential.mac is not None else None,
        "role": key.role,
        "name": key.name,
        "scopes": " ".join(sorted(key.scopes)),
        "queues": None if key.queues is None else " ".join(key.queues),
        "tenant": key.tenant,
        "created": key.created_ms,
        "expires": key.expires_ms,
        "revoked": key.revoked_ms,
        "by": key.made_by,
        "line": " ".join(key.ancestors) or None,
        "per_s": key.max_requests_per_s,
        "ttl": key.ttl_s,
        "epk": keys.ACCESS_KEYS,
        "esk": f"{keys.instant(key.created_ms)}{key.id}",
    }
    return {name: value for name, value in item.items() if value is not None}


def _from(item: Item) -> AccessKey:
    stored: dict[str, Any] = dict(item)
    return AccessKey(
        id=keys.access_key_id(stored["pk"]),
        name=stored["name"],
        scopes=frozenset(stored["scopes"].split()),
        created_ms=stored["created"],
        queues=tuple(stored["queues"].split()) if "queues" in stored else None,
        expires_ms=stored.get("expires"),
        revoked_ms=stored.get("revoked"),
        used_ms=stored.get("used"),
        made_by=stored.get("by"),
        ancestors=tuple(stored.get("line", "").split()),
        role=stored.get("role"),
        max_requests_per_s=stored.get("per_s"),
        old="digest" in stored and "mac" not in stored,
        tenant=stored.get("tenant"),
    )
