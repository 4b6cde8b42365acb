"""Long lists of parameters, and many examples, of which `make test` has a part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings


def spread(
    cases: Iterable[Any], every: int, ids: Sequence[str] | None = None, *, rest: int = 1
) -> list[Any]:
    """The cases as parameters; all but each `every`-th are left to `make test-exhaustive`, and all
    of these but each `rest`-th to `make test-all`.

    A tuple has one value for each name. Of a product `every` and `rest` have no divisor in common
    with the length of its parts, so that each value of a part comes up.
    """
    exhaustive, whole = pytest.mark.exhaustive, pytest.mark.whole

    def marks(at: int) -> Sequence[pytest.MarkDecorator]:
        if at % every == 0:
            return ()
        return (exhaustive,) if at % rest == 0 else (whole,)

    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            id=None if ids is None else ids[at],
            marks=marks(at),
        )
        for at, case in enumerate(cases)
    ]


def examples(count: int) -> int:
    """How many examples of a property to try, of so many where all are tried."""
    # `make test` has a smaller number for all (tests/conftest.py); by default all are 100.
    return count * settings().max_examples // 100
