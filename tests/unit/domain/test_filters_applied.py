"""A field of a filter that no row applies is an error at import.

That each row excludes jobs is tested where many of them are changed: tests/store/test_job_bulk.py
and test_bulk.py.
"""

from __future__ import annotations

import pytest

from ojs.domain.filters import dead_letters, jobs
from ojs.domain.filters.conditions import all_applied
from ojs.domain.job.states import State
from ojs.domain.requests import Model


@pytest.mark.parametrize(
    "wanted", [jobs.JobFilterRequest, jobs.EraseFilter, dead_letters.FilterRequest]
)
def test_a_field_that_nothing_applies_is_an_error(wanted: type[Model]) -> None:
    rows = dict.fromkeys(wanted.model_fields)
    all_applied(wanted, rows)
    extended = type("Extended", (wanted,), {"__annotations__": {"attempts": "int"}})
    with pytest.raises(TypeError, match=r"Extended\.attempts"):
        all_applied(extended, rows)


def test_a_value_without_a_row_is_an_error() -> None:
    with pytest.raises(TypeError, match="attempts"):
        jobs.JobFilter(attempts=1)


def test_a_filter_for_none_of_its_states_does_not_become_one_for_all() -> None:
    wanted = jobs.JobFilter(state=(State.COMPLETED,))
    with pytest.raises(ValueError, match="matches none of the states active or available"):
        jobs.limited(wanted, (State.AVAILABLE, State.ACTIVE))
    assert jobs.limited(jobs.JobFilter(), (State.ACTIVE,)).states == (State.ACTIVE,)
