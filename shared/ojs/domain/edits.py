"""Changes of configurations: their precondition (If-Match), and the values before and after.

A service calls `Edit.change` between its read of a configuration and its conditional write. If the
configuration changes in between, the write loses its race, and the service checks again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ojs.domain.errors import PreconditionFailed
from ojs.records import record

Configuration = Mapping[str, Any]


def make_version(configuration: Configuration, *more: object) -> str:
    """Return the version of a configuration: the value of its ETag.

    Equal configurations have equal versions, whether a number is a float or a Decimal. `more` are
    further values that the version covers.
    """
    text = json.dumps([configuration, *more], sort_keys=True, default=float)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:20]


def merge_patch(now: Configuration, wanted: Configuration) -> dict[str, Any]:
    """Return the changes that make `wanted` of `now`. Null removes a field (RFC 7396)."""
    changes: dict[str, Any] = {name: None for name in now if name not in wanted}
    for name, value in wanted.items():
        there = now.get(name)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            if inner := merge_patch(there, value):
                changes[name] = inner
        elif value != there or name not in now:
            changes[name] = value
    return changes


@record
class Edit:
    """A change of one configuration by a request.

    `accepts` are the versions in If-Match. `existing` requires that the configuration exists, and
    `new` that it doesn't. `kind` and `name` identify it. `tag` is its new version.
    """

    accepts: frozenset[str] | None = None
    existing: bool = False
    new: bool = False
    kind: str = ""
    name: str = ""
    before: Configuration | None = None
    after: Configuration | None = None
    tag: str | None = None
    # Versions that this request itself has stored.
    _own: set[str] = field(default_factory=set)

    @property
    def conditional(self) -> bool:
        """Whether the request has a precondition."""
        return self.existing or self.new

    def change(
        self,
        kind: str,
        name: str,
        before: Configuration | None,
        after: Configuration | None,
        *,
        tag: str | None = None,
        same: bool | None = None,
    ) -> None:
        """Check the precondition, and record the change.

        Args:
            kind: Kind of the configuration.
            name: Its name.
            before: Configuration as read, or None if there is none.
            after: Configuration to store, or None to delete it.
            tag: Version of `before`. Default: that of the configuration.
            same: Whether nothing changes. Default: whether `before` equals `after`.

        Raises:
            PreconditionFailed: The configuration has another version. Not raised if it already is
                as requested, for example after a request whose response was lost.
        """
        found = None if before is None else tag or make_version(before)
        self.tag = None if after is None else make_version(after)
        own = found in self._own
        if self.conditional and not own and not (found == self.tag if same is None else same):
            fits = found is None if self.new else found is not None
            if not fits or (self.accepts is not None and found not in self.accepts):
                raise PreconditionFailed(kind, name, found)
        self.kind, self.name, self.after = kind, name, after
        if not own:
            self.before = before

    def note_state(self, configuration: Configuration) -> None:
        """Record an intermediate state that this request has stored."""
        self._own.add(make_version(configuration))
