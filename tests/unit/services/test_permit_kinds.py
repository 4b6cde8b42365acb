"""Each concurrency limit is a row of KINDS."""

from __future__ import annotations

from ojs.domain.job import permits
from ojs.services.permits.kinds import KINDS


def test_each_letter_of_a_permit_has_a_row() -> None:
    letters = [value for name, value in vars(permits).items() if name.endswith("_PERMIT")]
    assert sorted(KINDS) == sorted(letters)
