"""Finds the operation for a path and a method."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ojs.http.endpoint import BASE, PARAMETER, Operation
from ojs.http.features import MISSING, PURGE, MissingFeature

# Parameters that can contain slashes, with their patterns. A schema is named by a job type, or by a
# URI.
_LONG = {"step": ".+", "schema": r"[^/]+|[A-Za-z][A-Za-z0-9+.\-]*:.+"}


class Routes:
    """The paths of operations, and of known features that are not supported."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        grouped: dict[str, dict[str, Operation]] = {}
        for operation in operations:
            grouped.setdefault(operation.path, {})[operation.method] = operation
        self._fixed = {path: here for path, here in grouped.items() if not PARAMETER.search(path)}
        # Operations are first, so that they win against equally literal paths of missing features.
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
        """Return the operations of a path by method. A missing feature has none.

        If several templates match, the one with a literal at the first difference wins.
        """
        found = self._resolved(path)
        return found if isinstance(found, dict) else {}

    def find_missing(self, method: str, path: str) -> MissingFeature | None:
        """Return the unsupported feature of a path and a method that its operations don't have."""
        if method == "DELETE" and any(
            _pattern(f"{BASE}/{each}", and_below=False).match(path) for each in PURGE.paths
        ):
            return PURGE
        return self.missing(path)

    def missing(self, path: str) -> MissingFeature | None:
        """Return the known but unsupported feature of a path, or None."""
        found = self._resolved(path)
        return found if isinstance(found, MissingFeature) else None

    def _resolved(self, path: str) -> dict[str, Operation] | MissingFeature | None:
        if path in self._fixed:
            return self._fixed[path]
        return next((found for matcher, found in self._templates if matcher.match(path)), None)


def _group(parameter: str) -> str:
    return f"(?P<{parameter}>{_LONG.get(parameter, '[^/]+')})"


def _pattern(template: str, *, and_below: bool) -> re.Pattern[str]:
    """Build the pattern of a path template. `and_below`: longer paths match too."""
    # A parameter matches one segment of any content. The key of a step can contain slashes, which
    # API Gateway decodes.
    fixed = PARAMETER.split(template)
    text = "".join(
        _group(part) if index % 2 else re.escape(part) for index, part in enumerate(fixed)
    )
    below = "(?:/.*)?" if and_below else ""
    return re.compile(rf"\A{text}{below}\Z", re.DOTALL)


def wildness(path: str, here: dict[str, Operation] | MissingFeature) -> list[bool]:
    """Return which segments of a template are parameters, as a sort key.

    Of two templates, the one with a literal at the first difference is lower. A missing feature has
    one more segment for longer paths.
    """
    parts = [part.startswith("{") for part in path.split("/")]
    return [*parts, True] if isinstance(here, MissingFeature) else parts
