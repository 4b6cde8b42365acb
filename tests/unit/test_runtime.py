"""Rows of the composition root: every one is built, and gets what its constructor declares."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import typing
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from ojs import runtime
from ojs.domain.delivery.delivery import Delivery
from ojs.domain.delivery.push import Target
from ojs.domain.errors import Unsupported
from ojs.domain.realtime import Posted
from ojs.runtime import Runtime, Stores, provided
from ojs.services.deliveries.parts import AllowedTargets, DeliveryDependencies
from ojs.settings import Outbox, Settings
from tests.architecture.modules import ROOT

# Chance has a default in each constructor, and a client is made where it is used.
DEFAULTS = {"choose", "chance", "random_bytes", "client"}


class NoWakes:
    """A queue that nothing is put into."""

    def wake(self, _names: object, *, delay_s: int = 0) -> None:
        raise AssertionError(delay_s)


class NoConnections:
    """Connections that nothing is sent to."""

    def post(self, connection: str, text: str) -> Posted:
        raise AssertionError(connection, text)


def built(*, pushes: bool = True, **settings: Any) -> Runtime:
    def target(_: Delivery) -> Target:
        raise AssertionError

    parts = DeliveryDependencies(wakes=NoWakes(), target=target, allowed=AllowedTargets((), ()))
    client = typing.cast("Any", object())
    return runtime.build(
        Settings("jobs", bucket="blobs", **{"realtime": "all" if pushes else "off"} | settings),
        client=client,
        push=parts if pushes else None,
        realtime=NoConnections if pushes else None,
    )


def rows(root: type) -> dict[str, Any]:
    return {name: row for name, row in vars(root).items() if type(row) is type(Runtime.enqueue)}


ROWS = [(root, name) for root in (Stores, Runtime) for name in rows(root)]


def names_of(module: str) -> dict[str, object]:
    """What a module's annotations may name: with the imports for type checkers."""
    loaded = sys.modules[module]
    names = dict(vars(loaded))
    for node in ast.walk(ast.parse(inspect.getsource(loaded))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            block = ast.Module([n for n in node.body if "boto3" not in ast.unparse(n)], [])
            exec(compile(block, module, "exec"), names)
    return names


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type, as far as one can tell while it runs."""
    origin = typing.get_origin(hint)
    if (arguments := typing.get_args(hint)) and origin in {typing.Union, type(int | None)}:
        return any(fits(value, each) for each in arguments)
    kind = origin or hint
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
    return isinstance(value, kind)


@pytest.mark.parametrize(("root", "name"), ROWS, ids=lambda part: getattr(part, "__name__", part))
def test_a_row_gives_each_parameter_a_value_of_its_type(root: type, name: str) -> None:
    run = built(
        outcome_queue="https://queue",
        outbox=Outbox("box", "https://refused", "https://later"),
        worker_groups={"web": ["a"]},
        realtime="all",
        socket_endpoint="https://sockets",
        webhook_queue="https://webhooks",
    )
    owner = run if root is Runtime else run.stores
    value = getattr(owner, name)
    assert getattr(owner, name) is value
    make: Any = type(value).__init__
    given = rows(root)[name].arguments(owner, make.__code__)
    hints = typing.get_type_hints(make, names_of(type(value).__module__))
    wrong = {each: given[each] for each in given if not fits(given[each], hints[each])}
    assert wrong == {}
    assert set(inspect.signature(make).parameters) - {"self"} - given.keys() <= DEFAULTS
    # mypy takes the annotation's word for it.
    assert root.__annotations__[name].removesuffix(" | None") == type(value).__name__


def test_annotations_name_the_classes_that_are_built() -> None:
    """By their modules: two classes may have one name."""
    source = (ROOT / "shared/ojs/runtime.py").read_text("utf-8")
    for path in re.findall(r'provided\(\s*"([^"]+)"', source):
        module, _, name = path.partition(":")
        assert re.search(rf"from {re.escape(module)} import (\w+, )*{name}\b", source), path


def test_what_is_not_deployed_is_none() -> None:
    run = built(pushes=False)
    assert (run.wake, run.delivery_sweep, run.outcome_queue) == (None, None, None)
    with pytest.raises(Unsupported, match="Push delivery is not supported"):
        _ = run.dispatch


class Needy:
    """A service that needs what nobody has."""

    def __init__(self, clock: object, unheard_of: object) -> None: ...


class Slow:
    """A service that two threads make at the same time, if they can."""

    threads = Barrier(2)

    def __init__(self) -> None:
        with suppress(BrokenBarrierError):
            self.threads.wait(timeout=0.05)


class Wrong(Runtime):
    """With a row that cannot be built, and one that takes long."""

    needy: Needy = provided(f"{__name__}:Needy")
    slow: Slow = provided(f"{__name__}:Slow")


@pytest.fixture
def wrong() -> Wrong:
    run = built()
    run.__class__ = Wrong
    return typing.cast("Wrong", run)


def test_a_parameter_that_nothing_provides_is_an_error_at_each_use(wrong: Wrong) -> None:
    for _ in range(2):
        with pytest.raises(TypeError, match=r"Needy\.__init__\(\) missing .* 'unheard_of'"):
            _ = wrong.needy


def test_threads_share_one_service(wrong: Wrong) -> None:
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: wrong.slow, range(2))
    assert first is second


def test_what_a_function_prepares_is_a_row() -> None:
    """An unknown name is an error that `prepare` leaves to nobody."""
    sources = [path.read_text("utf-8") for path in ROOT.glob("functions/*/handler.py")]
    named = re.findall(
        r'"(\w+)"', "".join(re.findall(r"runtime\.prepare\((.*)\)", "\n".join(sources)))
    )
    assert len(named) > 6
    assert set(named) <= rows(Runtime).keys()
