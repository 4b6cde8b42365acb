"""No circle of imports, and no two folders that import each other: each file and each folder can be
read, and tested, before those that build on it. `python -m tests.architecture.test_cycles` prints
the folders of each layer, and which of them each imports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.modules import WHOLE, modules

# In these no two folders import each other.
LAYERS = ("domain", "store", "services")


def imported(name: str, known: Mapping[str, object]) -> str | None:
    """The module that an import loads: `ojs.store.table.keys` for `ojs.store.table.keys.job`."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def loads(*folders: str) -> dict[str, set[str]]:
    """The modules that each module imports, for type checkers too."""
    every = {module.name: module for module in modules(*folders)}
    return {
        module.name: {
            found
            for name, _ in module.imports(typing=True)
            if (found := imported(name, every)) not in (None, module.name)
        }
        for module in every.values()
    }


def check_no_circle(loaded: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(loaded).prepare()
    except CycleError as circle:
        pytest.fail(" → ".join(reversed(circle.args[1])))


def folder_arrows() -> dict[str, set[str]]:
    """The folders that each folder of a layer imports, in its own layer."""
    found: dict[str, set[str]] = {}
    for name, others in loads("shared/ojs").items():
        for other in others:
            here, there = folder(name), folder(other)
            if here and there and here != there and here[0] == there[0]:
                found.setdefault(".".join(here), set()).add(".".join(there))
    return found


def folder(name: str) -> list[str]:
    """The layer and the folder of a module; empty for one that is in no folder of these layers."""
    parts = name.split(".")
    return parts[1:3] if len(parts) > 3 and parts[1] in LAYERS else []


def mutual(arrows: Mapping[str, set[str]]) -> Iterator[tuple[str, str]]:
    """The pairs of folders that import each other."""
    for here, others in arrows.items():
        yield from (
            (here, there) for there in others if here < there and here in arrows.get(there, ())
        )


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, and those for type checkers."""
    loaded = loads(*WHOLE)
    assert sum(map(len, loaded.values())) > len(loaded)
    check_no_circle(loaded)


def test_no_two_folders_import_each_other() -> None:
    arrows = folder_arrows()
    assert len(arrows) > 15
    assert list(mutual(arrows)) == []


def test_two_folders_that_import_each_other_are_found() -> None:
    assert list(mutual({"a": {"b", "c"}, "b": {"a"}, "c": set()})) == [("a", "b")]


@pytest.mark.parametrize("name", ["ojs.store.table.keys.job", "ojs.store.table.keys"])
def test_an_import_is_the_module_that_it_loads(name: str) -> None:
    assert imported(name, {"ojs.store": 1, "ojs.store.table.keys": 2}) == "ojs.store.table.keys"
    assert imported("json.dumps", {"ojs.store": 1}) is None


if __name__ == "__main__":
    for start, others in sorted(folder_arrows().items()):
        print(start, "→", ", ".join(sorted(others)))  # noqa: T201
