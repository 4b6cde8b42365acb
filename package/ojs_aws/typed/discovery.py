"""Finds the modules with jobs of a package, or a worker by its name."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def modules_of(package: str) -> list[ModuleType]:
    """Import and return all modules `jobs` of a package. Raises ImportError if there is none."""
    root = importlib.import_module(package)
    below = pkgutil.walk_packages(getattr(root, "__path__", []), f"{package}.")
    every = (package, *(each.name for each in below))
    names = [name for name in every if name.rpartition(".")[2] == "jobs"]
    if not names:
        raise ImportError(f"autodiscover({package!r}): the package has no module named jobs")
    return [importlib.import_module(name) for name in names]
