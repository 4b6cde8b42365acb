"""Dataclasses whose methods are generated on first use.

`dataclasses.dataclass` generates six methods of each class when a module is imported. This took
half of the import time of the functions, and a request uses a quarter of the classes. `record` has
the same options as `dataclass`. It generates the methods when the first instance is created, or
when `fields` or a subclass needs them.

For classes with `slots=True`, the methods are generated immediately, because such a class is a new
class. Before the methods exist, two things differ from `dataclass`: `Class.attribute` of a field
declared by `field(...)` is that declaration, and `pickle` does not generate the methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["record"]

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import MISSING, dataclass, fields
    from functools import partial
    from threading import RLock

    _BUILDING = RLock()

    def record(cls=None, /, **options):
        """Decorate a class as `dataclasses.dataclass` does. Generate its methods on first use."""
        if cls is None:
            return partial(record, **options)
        if options.get("slots"):
            return dataclass(cls, **options)

        def build():
            with _BUILDING:
                if cls.__dict__["__init__"] is first:
                    # If the class has no docstring, `dataclass` computes a signature, which is
                    # slow.
                    cls.__doc__ = cls.__doc__ or cls.__name__
                    dataclass(cls, **options, init=False)
                    cls.__init__ = _initializer(cls, frozen=options.get("frozen", False))

        # The class keeps this attribute until `build` replaces it in one step, because another
        # thread can wait in `build`.
        def first(self, *args, **values):
            build()
            cls.__init__(self, *args, **values)

        cls.__init__ = first
        cls.__dataclass_fields__ = _Fields(build)
        return cls

    class _Fields:
        """Descriptor for `__dataclass_fields__` of a class whose methods are not generated yet."""

        def __init__(self, build):
            self._build = build

        def __get__(self, instance, owner):
            self._build()
            return owner.__dataclass_fields__

    def _initializer(cls, *, frozen):
        """Return `__init__` with the signature and the effects of the one that `dataclass`
        generates.
        """
        names = {"_set": object.__setattr__, "_missing": MISSING}
        placed, named, body = ["self"], [], []
        for each in fields(cls):
            name = value = each.name
            if each.default_factory is not MISSING:
                names[f"_f_{name}"] = each.default_factory
                value = (
                    f"_f_{name}() if {name} is _missing else {name}"
                    if each.init
                    else f"_f_{name}()"
                )
            elif not each.init:
                continue
            names[f"_d_{name}"] = each.default
            required = value == name and each.default is MISSING
            if each.init:
                parameter = name if required else f"{name}=_d_{name}"
                (named if each.kw_only else placed).append(parameter)
            body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            body.append("self.__post_init__()")
        head = ", ".join([*placed, *(["*", *named] if named else [])])
        exec(f"def __init__({head}):\n " + "\n ".join(body or ["pass"]), names)  # noqa: S102 - the fields of our own classes, as `dataclass` does
        return names["__init__"]
