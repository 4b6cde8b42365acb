"""Which operation a path and a method belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ojs.http.endpoint import BASE, PARAMETER, Operation
from ojs.http.features import MISSING, MissingFeature


class Routes:
    """The paths of operations, and of features that are known and not offered."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        grouped: dict[str, dict[str, Operation]] = {}
        for operation in operations:
            grouped.setdefault(operation.path, {})[operation.method] = operation
        self._fixed = {path: here for path, here in grouped.items() if not PARAMETER.search(path)}
        # What is offered comes first, where its path is as literal as that of a feature.
        found: list[tuple[str, dict[str, Operation] | MissingFeature]] = [
            *((path, here) for path, here in grouped.items() if path not in self._fixed),
            *((f"{BASE}/{path}", feature) for feature in MISSING for path in feature.paths),
        ]
        found.sort(key=lambda one: wildness(*one))
        self._templates = [
            (_pattern(path, and_below=isinstance(here, MissingFeature)), here)
            for path, here in found
        ]

    def at(self, path: str) -> dict[str, Operation]:
        """Method → operation for a path, {} for that of a missing feature.

        Of several that match, the one counts that is literal where they first differ.
        """
        found = self._resolved(path)
        return found if isinstance(found, dict) else {}

    def missing(self, path: str) -> MissingFeature | None:
        """The feature to which a path would belong, if it is known and not offered."""
        found = self._resolved(path)
        return found if isinstance(found, MissingFeature) else None

    def _resolved(self, path: str) -> dict[str, Operation] | MissingFeature | None:
        if path in self._fixed:
            return self._fixed[path]
        return next((found for matcher, found in self._templates if matcher.match(path)), None)


def _pattern(template: str, *, and_below: bool) -> re.Pattern[str]:
    """What paths of a template look like: a parameter is one segment, whatever it holds. With
    `and_below` what is below these paths counts, too.
    """
    fixed = PARAMETER.split(template)
    text = "".join(
        f"(?P<{part}>[^/]+)" if index % 2 else re.escape(part) for index, part in enumerate(fixed)
    )
    below = "(?:/.*)?" if and_below else ""
    return re.compile(rf"\A{text}{below}\Z", re.DOTALL)


def wildness(path: str, here: dict[str, Operation] | MissingFeature) -> list[bool]:
    """Which parts of a path may be anything: of two the less one is literal where they differ. What
    is below a missing feature is one part more.
    """
    parts = [part.startswith("{") for part in path.split("/")]
    return [*parts, True] if isinstance(here, MissingFeature) else parts
