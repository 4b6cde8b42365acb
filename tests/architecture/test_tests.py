"""Tests are read one file at a time: what several of them need is in a module of its own."""

from __future__ import annotations

from tests.architecture.modules import modules


def test_no_test_module_imports_another() -> None:
    wrong = [
        f"{module.at(line)} {name}"
        for module in modules("tests")
        for name, line in module.imports()
        if name.startswith("tests.") and any(p.startswith("test_") for p in name.split(".")[:-1])
    ]
    assert wrong == []
