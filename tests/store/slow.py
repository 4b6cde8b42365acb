"""A client whose calls something precedes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Slow:
    """A client on which something happens before the first call of one operation."""

    def __init__(self, client: Any, operation: str, meanwhile: Callable[[], Any]) -> None:
        self._client, self._operation, self._meanwhile = client, operation, meanwhile
        self.happened = False

    def __getattr__(self, name: str) -> Any:
        if name == self._operation and not self.happened:
            self.happened = True
            self._meanwhile()
        return getattr(self._client, name)
