"""Numbers in configurations."""

from __future__ import annotations


def whole_number(value: object) -> object:
    """Validate that a value is a whole number. Raises ValueError with the rule.

    Refuses 1.5, 10.0 and true.
    """
    if type(value) is not int:
        raise ValueError("must be a whole number")
    return value
