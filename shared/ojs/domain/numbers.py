"""What counts as a number in a configuration."""

from __future__ import annotations


def whole_number(value: object) -> object:
    """A whole number, to be checked further by its type. Raises ValueError with the rule.

    1.5 is refused, and so are 10.0 and true: JSON has one number type, operators have two.
    """
    if type(value) is not int:
        raise ValueError("must be a whole number")
    return value
