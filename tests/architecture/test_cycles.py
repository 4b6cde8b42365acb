"""No circle of imports: each file can be read, and tested, before those that build on it."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.modules import WHOLE, modules


def imported(name: str, known: Mapping[str, object]) -> str | None:
    """The module that an import loads: `ojs.store.table.keys` for `ojs.store.table.keys.job`."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count; those for type checkers alone do not."""
    every = {module.name: module for module in modules(*WHOLE)}
    loads = {
        module.name: {imported(name, every) for name, _ in module.imports()} - {module.name, None}
        for module in every.values()
    }
    assert sum(map(len, loads.values())) > len(every)
    try:
        TopologicalSorter(loads).prepare()
    except CycleError as circle:
        pytest.fail(" → ".join(reversed(circle.args[1])))


@pytest.mark.parametrize("name", ["ojs.store.table.keys.job", "ojs.store.table.keys"])
def test_an_import_is_the_module_that_it_loads(name: str) -> None:
    assert imported(name, {"ojs.store": 1, "ojs.store.table.keys": 2}) == "ojs.store.table.keys"
    assert imported("json.dumps", {"ojs.store": 1}) is None
