"""A shop without a network: it writes what happens to a file, once for each idempotency key."""

from __future__ import annotations

import json
from pathlib import Path


class Declined(Exception):
    """The bank declined the card."""


class Shop:
    """Payments, parcels, and mail of a shop, in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "ledger.jsonl"

    def ledger(self) -> list[dict[str, str]]:
        """Return what happened, in order."""
        text = self._file.read_text("utf-8") if self._file.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def _enter(self, key: str, what: str) -> None:
        if key not in [each["key"] for each in self.ledger()]:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "what": what}) + "\n")

    def charge(self, order_id: str, cents: int, key: str) -> str:
        """Charge a card. Raise Declined."""
        if cents > 1_000_000:
            raise Declined(f"{cents} cents are too much")
        self._enter(key, f"charge {order_id}")
        return f"charge-{order_id}"

    def refund(self, charge: str, key: str) -> None:
        """Refund a charge."""
        self._enter(key, f"refund {charge}")

    def ship(self, order_id: str) -> str:
        """Send a parcel. Raise KeyError."""
        if order_id.startswith("sold-out"):
            raise KeyError(order_id)
        self._enter(f"ship/{order_id}", f"ship {order_id}")
        return f"parcel-{order_id}"

    def mail(self, to: str, text: str, key: str) -> None:
        """Send a mail."""
        self._enter(key, f"mail {to}: {text}")
