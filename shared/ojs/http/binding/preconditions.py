"""Reads the preconditions of a request: If-Match and If-None-Match (RFC 9110, section 13)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ojs.domain.edits import Edit
from ojs.domain.errors import InvalidRequest

if TYPE_CHECKING:
    from ojs.http.endpoint import Operation

# Proxies that compress responses mark ETags as weak.
_TAG = re.compile(r'(?:W/)?"([^"]*)"')
_LIST = re.compile(rf"{_TAG.pattern}(?:\s*,\s*{_TAG.pattern})*")
_MATCH, _NONE = "If-Match", "If-None-Match"


def read_edit(operation: Operation, headers: Mapping[str, str]) -> Edit | None:
    """Return the edit of a request with its preconditions, or None if it only reads.

    Raises:
        InvalidRequest: A precondition is malformed, or the operation doesn't check it.
    """
    if operation.method == "GET":
        return None
    match, none = (headers.get(name.lower(), "").strip() for name in (_MATCH, _NONE))
    if not operation.versioned:
        for name, value in ((_MATCH, match), (_NONE, none)):
            if value:
                raise InvalidRequest(name, "must be omitted: this operation doesn't check it")
    if none and (none != "*" or match or operation.method in ("PATCH", "DELETE")):
        rule = "must be *, without If-Match, and only to create something"
        raise InvalidRequest(_NONE, rule, value=none)
    if not match or match == "*":
        return Edit(existing=bool(match), new=bool(none))
    if not _LIST.fullmatch(match):
        raise InvalidRequest(_MATCH, 'must be an ETag such as "0123abcd", or *', value=match)
    return Edit(frozenset(_TAG.findall(match)), existing=True)
