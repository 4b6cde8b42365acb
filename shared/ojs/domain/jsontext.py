"""Reads and writes JSON without changes to numbers.

Non-integers are read as `Decimal`, so that 3.10 or 0.1000000000000000055 keep all their digits.
Integers of any size stay integers (ojs-core, section 5.2: `meta` is preserved).
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

import simplejson

from ojs.domain.errors import InvalidPayload

# ojs-json-format, section 13.5, recommends 32 levels. SDKs sometimes nest results deeper.
MAX_DEPTH = 100
MAX_INTEGER_DIGITS = 1_000
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidPayload(
        f"The body contains {name}, which is not valid JSON.",
        details={"reason": "not a JSON number"},
    )


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise InvalidPayload(
            f"A number in the body has more than {MAX_INTEGER_DIGITS} digits.",
            details={"reason": f"at most {MAX_INTEGER_DIGITS} digits"},
        )
    return int(text)


def _decimal(text: str) -> Decimal:
    try:
        number = Decimal(text) if len(text) <= MAX_INTEGER_DIGITS else None
    except InvalidOperation:  # an exponent too large even for a Decimal
        number = None
    # Clients read numbers as IEEE doubles, so numbers outside their range are rejected.
    if number is None or math.isinf(float(number)) or (number and not float(number)):
        raise InvalidPayload(
            "A number in the body is outside the range of an IEEE 754 double.",
            details={"reason": "number out of range", "value": text[:40]},
        )
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for name in found if names.count(name) > 1)
        raise InvalidPayload(
            f"An object in the body has the key '{name[:100]}' more than once. Send each key once.",
            details={"reason": "duplicate key", "key": name[:100]},
        )
    return found


def loads(body: bytes | str, *, max_depth: int = MAX_DEPTH) -> Any:
    """Parse a JSON text of a client.

    Raises InvalidPayload if the text is empty, not UTF-8, not JSON, or nested deeper than
    `max_depth`, if an object has a duplicate key, or if a number or string can't be returned
    unchanged.
    """
    try:
        text = body.decode("utf-8") if isinstance(body, bytes) else body
    except UnicodeDecodeError as error:
        raise InvalidPayload(
            "The body is not valid UTF-8.", details={"position": error.start}
        ) from None
    if not text.strip():
        raise InvalidPayload("The body is empty. Send a JSON object.")
    # Check the depth before parsing. The parser is recursive, and its limit depends on Python.
    depth = _depth(text)
    if depth > max_depth:
        raise InvalidPayload(
            f"The body has more than {max_depth} levels of nesting.",
            details={"reason": f"at most {max_depth} levels"},
        )
    try:
        value = simplejson.loads(
            text,
            parse_int=_integer,
            parse_float=_decimal,
            parse_constant=_refuse_constant,
            object_pairs_hook=_object,
            allow_nan=True,  # passed to parse_constant, which raises a clear error
        )
    except simplejson.JSONDecodeError as error:
        # Some messages of simplejson contain a format code: "Invalid control character %r at".
        rule = error.msg.removesuffix(" at").replace(" %r", "")
        raise InvalidPayload(
            f"The body is not valid JSON: {rule} at line {error.lineno}, column {error.colno}.",
            details={"position": error.pos, "line": error.lineno, "column": error.colno},
        ) from None
    if _SURROGATE.search(text):
        try:
            dumps(value).encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidPayload(
                "The body contains an unpaired surrogate, which is not a valid character.",
                details={"reason": "unpaired surrogate"},
            ) from None
    return value


# Created once. `simplejson.loads` creates one per call, which doubles the time for a short text.
_STORED = simplejson.JSONDecoder(parse_float=Decimal)


def stored(text: str) -> Any:
    """Parse a text that `dumps` wrote, with the same numbers but without the limits of requests."""
    return _STORED.decode(text)


_WRITERS = {
    sort_keys: simplejson.JSONEncoder(
        separators=(",", ":"),
        ensure_ascii=False,
        use_decimal=True,
        allow_nan=False,
        sort_keys=sort_keys,
    )
    for sort_keys in (False, True)
}


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """Write compact JSON. Characters are not escaped, and Decimals are written as numbers."""
    return _WRITERS[sort_keys].encode(value)


def size_of(value: Any) -> int:
    """Return the size of `value` in bytes as compact UTF-8 JSON."""
    return len(dumps(value).encode("utf-8"))


# An unclosed string extends to the end of the text, so that the search is linear.
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


def _depth(text: str) -> int:
    """Return the maximum nesting depth of brackets outside strings."""
    deepest = depth = 0
    # Fast path: a text with few brackets can't be deeper than the limit.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    for found in _STRUCTURE.finditer(text):
        bracket = found.group()
        if bracket in ("[", "{"):
            depth += 1
            deepest = max(deepest, depth)
        elif bracket in ("]", "}"):
            depth -= 1
    return deepest
