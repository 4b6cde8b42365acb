"""Conversion with pydantic. Imported when a job is declared. Raises ImportError without 2.10."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

from pydantic import VERSION, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from ojs_aws.client.call import to_json
from ojs_aws.typed.plain import Convert, Refused

if [int(part) for part in VERSION.split(".")[:2]] < [2, 10]:
    raise ImportError(f"pydantic is {VERSION}, but must be 2.10 or later")


def converter(hint: Any) -> Convert:
    """Return the conversion for an annotation. Raises pydantic's error if it isn't supported."""
    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    if not adapter.pydantic_complete:
        raise TypeError(f"{hint!r} has annotations that aren't defined yet")

    def convert(value: Any, out: bool) -> Any:
        try:
            if not out:
                found = adapter.validate_json(to_json(value))
                _check(adapter.dump_python(found, warnings="none"), None)
                return found
            found = adapter.validate_python(value)
            plain = adapter.dump_python(found, by_alias=True, round_trip=True, warnings="error")
            json = adapter.dump_python(found, mode="json", by_alias=True, round_trip=True)
            _check(plain, json)
            adapter.validate_json(to_json(json))  # the worker must be able to read it
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = f"is invalid: {first['msg']}, but is {first['input']!r:.100}"
            raise Refused(problem, "".join(f"[{each!r}]" for each in first["loc"])) from None
        except (PydanticSerializationError, TypeError, RecursionError) as error:
            raise Refused(f"must be JSON: {error}") from None
        return json

    return convert


def _check(value: Any, json: Any) -> None:
    """Raise Refused for bytes, a naive datetime, and NaN. Sort the JSON of sets.

    Equal sets are equal JSON, so that the server recognizes equal jobs.
    """
    if isinstance(value, (bytes, bytearray)):
        raise Refused("must not contain bytes")
    if isinstance(value, datetime) and value.tzinfo is None:
        raise Refused(f"must be a datetime with a time zone, but is {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused(f"must be a finite number, but is {value!r}")
    if isinstance(value, dict):
        value, json = list(value.values()), list(json.values()) if isinstance(json, dict) else None
    if isinstance(value, (list, tuple, set, frozenset)):
        is_set = isinstance(value, (set, frozenset))
        alike = isinstance(json, list) and len(json) == len(value) and not is_set
        for n, each in enumerate(value):
            _check(each, json[n] if alike else None)
        if is_set and isinstance(json, list):
            json.sort(key=to_json)
