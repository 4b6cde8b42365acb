"""Reads the signature of a function: the arguments that a job carries, and its resources."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, get_args, get_type_hints

from ojs_aws.hints import hint
from ojs_aws.typed.options import of_a_call
from ojs_aws.typed.plain import Convert, Refused, at
from ojs_aws.worker.context import JobContext


class InvalidArguments(ValueError):
    """The arguments of a job don't fit the signature of its function. Not retried."""


class _Injected:
    def __repr__(self) -> str:
        return "injected()"


_INJECTED = _Injected()


def injected() -> Any:
    """Return the default of a keyword-only parameter that the worker fills by its name.

    The value comes from `Worker.lifespan` or `Worker.provide`.
    """
    return _INJECTED


@cache
def _converters() -> Callable[[Any], Convert]:
    """Return the conversions: pydantic's if version 2 is installed."""
    try:
        module = import_module("ojs_aws.typed.validated")
    except ImportError:
        module = import_module("ojs_aws.typed.plain")
    found: Callable[[Any], Convert] = module.converter
    return found


def converter(hint: Any) -> Convert:
    """Return the conversion for an annotation. Raises an exception if it isn't supported."""
    return _converters()(hint)


def _has_bytes(hint: Any) -> bool:
    return hint in (bytes, bytearray) or any(map(_has_bytes, get_args(hint)))


class Signature:
    """Arguments of a job, from the signature of its function.

    Attributes:
        context: Class of the first parameter, if it is a JobContext, else None.
        resources: Names of the keyword-only parameters.
    """

    def __init__(self, function: Callable[..., Any], name: str, result: Any = None) -> None:
        """Read the signature of a function, or of a class with the arguments.

        Raises:
            TypeError: A parameter can't be an argument of a job. The message names the function,
                the parameter, and the rule.
        """
        self._name = name
        self.where = f"{function.__module__}.{function.__qualname__}"
        self._class = function if inspect.isclass(function) else None
        try:
            hints = get_type_hints(function, include_extras=True)
            signature = inspect.signature(function)
        except (NameError, TypeError, ValueError) as error:
            raise TypeError(
                f"{self.where}: the annotations must be defined where the job is declared: {error}"
            ) from error
        parameters = list(signature.parameters.values())
        first = hints.get(parameters[0].name) if parameters else None
        is_context = inspect.isclass(first) and issubclass(first, JobContext)
        self.context: Any = first if is_context else None
        self.resources: list[str] = []
        self._converters: dict[str, Convert] = {}
        self._defaults: dict[str, Any] = {}
        carried = []
        for each in parameters[is_context:]:
            if each.kind is each.KEYWORD_ONLY and self._class is None:
                if each.default is not _INJECTED:
                    raise self._misuse(each, "is keyword-only, so its default must be injected()")
                self.resources.append(each.name)
            else:
                carried.append(self._argument(each, hints))
        self._signature = signature.replace(parameters=carried, return_annotation=signature.empty)
        result = hints.get("return", Any) if result is None and self._class is None else result
        try:
            self._result = converter(result)
        except Exception as error:
            raise TypeError(f"{self.where}: the result: {error}") from error

    def _misuse(self, parameter: inspect.Parameter, problem: str) -> TypeError:
        return TypeError(f"{self.where}: the parameter {parameter} {problem}")

    def _argument(self, each: inspect.Parameter, hints: dict[str, Any]) -> inspect.Parameter:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            raise self._misuse(each, "is not supported. Name each argument, or use a list or dict")
        if each.name not in hints:
            raise self._misuse(each, "must have an annotation, for example `: str`")
        if each.default is _INJECTED:
            raise self._misuse(each, "must be keyword-only. Write it after `*,`")
        hint = hints[each.name]
        if _has_bytes(hint):
            raise self._misuse(each, "must not contain bytes. Use str, for example base64")
        try:
            convert = self._converters[each.name] = converter(hint)
        except Exception as error:  # pydantic has several
            raise self._misuse(each, f"can't be converted: {error}") from error
        if each.default is not each.empty and self._class is None:
            try:
                self._defaults[each.name] = convert(each.default, True)
            except Refused as error:
                raise self._misuse(each, f"has an invalid default. It {error}") from None
        return each.replace(annotation=hint)

    def __str__(self) -> str:
        """Return the arguments as in a call."""
        return f"{self._name}{self._signature}"

    def bind(self, called: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments of a call by name, in order, with the defaults.

        Raises:
            InvalidArguments: An argument is missing or unknown.
        """
        for name in kwargs:
            if name not in self._signature.parameters:
                raise InvalidArguments(
                    f"{called}: unknown argument {name!r}.{self._meant(name)} Expected is {self}"
                )
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{called}: {error}. Expected is {self}") from None
        if self._class is None:
            bound.apply_defaults()
            return bound.arguments
        try:
            made = self._class(**bound.arguments)  # it knows its defaults
        except (TypeError, ValueError) as error:
            raise InvalidArguments(f"{called}: {error}") from None
        return {name: getattr(made, name) for name in self._converters}

    def _meant(self, name: str) -> str:
        """Return the sentence about an unknown argument, or ""."""
        if name in self.resources:
            return " The worker fills this resource."
        return of_a_call(name) or hint("arguments", name, self._signature.parameters)

    def dump(self, called: str, arguments: Mapping[str, Any]) -> list[Any]:
        """Return the `args` of a job. Raises InvalidArguments for an argument of a wrong type."""
        return [self._converted(called, name, value, True) for name, value in arguments.items()]

    def load(self, args: Sequence[Any]) -> list[Any]:
        """Return the arguments of a function for the `args` of a job.

        Raises:
            InvalidArguments: An argument is missing, left over, or has the wrong type.
        """
        names = list(self._converters)
        given = {**self._defaults, **dict(zip(names, args))}  # noqa: B905
        if len(args) > len(names) or len(given) < len(names):
            raise InvalidArguments(f"the job has {len(args)} arguments. Expected is {self}")
        return [self._converted(self._name, name, given[name], False) for name in names]

    def _converted(self, called: str, name: str, value: Any, out: bool) -> Any:
        try:
            return at(name, self._converters[name], value, out)
        except Refused as error:
            raise InvalidArguments(f"{called}: {error}") from None

    def result(self, value: Any, *, out: bool) -> Any:
        """Convert the result to JSON, or from JSON. Raises Refused."""
        return at("the result", self._result, value, out)
