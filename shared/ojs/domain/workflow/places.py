"""Checks the dependencies of a graph's steps, finds callbacks, and rejects cycles. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from ojs.domain.errors import shorten
from ojs.domain.requests import nearest
from ojs.domain.workflow.graph import Callback, StepTrigger
from ojs.records import record

# Maximum steps that an error names.
_MAX_NAMED = 10
_CALLBACK_ID = re.compile(r"on[-_](complete|success|failure)")

# Records an error: the path of a field, and the rule that the field breaks.
Note = Callable[[str, str], None]


@record(frozen=True, slots=True)
class Dependency:
    """A dependency from a request: the ID of the step, and whether its failure is ignored.

    An invalid dependency has an empty ID.
    """

    id: str
    ignored: bool = False


@record(frozen=True, slots=True)
class StepSpec:
    """The place of a step in a graph, from its request.

    `callback` is the callback type in its options. If `job` is false, the step is a workflow.
    """

    path: str
    id: str
    needs: tuple[Dependency, ...] = ()
    trigger: StepTrigger | None = None
    callback: Callback | None = None
    job: bool = True


@record(frozen=True, slots=True)
class PlacedSteps:
    """A checked graph, by the positions of its steps.

    `needs` has the dependencies of each step, `body` all steps except callbacks, and `callbacks`
    the callbacks with their types.
    """

    needs: Sequence[tuple[int, ...]]
    body: Sequence[int]
    callbacks: dict[int, Callback]

    @property
    def edges(self) -> int:
        """Number of dependencies, excluding those of callbacks."""
        return sum(len(self.needs[at]) for at in self.body)


def arrange(places: Sequence[StepSpec], path: str, note: Note) -> PlacedSteps:
    """Find callbacks and check dependencies.

    Args:
        places: Place of each step.
        path: Path of the list of steps in the request. Errors about cycles name it.
        note: Called with each error.

    Returns:
        The graph. Valid only if `note` was not called.
    """
    needs = _resolved(places, note)
    callbacks = {at: place.callback for at, place in enumerate(places) if place.callback}
    callbacks |= _by_id(places, needs, callbacks)
    body = [at for at in range(len(places)) if at not in callbacks]
    _check_callbacks(places, needs, callbacks, body, note)
    for cycle in _cycles(needs):
        names = [places[at].id for at in (*cycle, cycle[0])]
        if len(cycle) > _MAX_NAMED:
            names = [*names[:_MAX_NAMED], f"… ({len(cycle)} steps)"]
        note(path, f"must not contain a cycle: {' → '.join(map(shorten, names))}")
    return PlacedSteps(needs, body, callbacks)


def _resolved(places: Sequence[StepSpec], note: Note) -> list[tuple[int, ...]]:
    """Return the positions of the dependencies of each step, without unknown ones."""
    positions = {place.id: at for at, place in enumerate(places)}
    found = []
    for place in places:
        needs = list[int]()
        for at, need in enumerate(place.needs):
            if need.id in positions:
                needs.append(positions[need.id])
            elif need.id:
                note(f"{place.path}.depends_on[{at}]", _unknown(need.id, positions))
        if len(set(needs)) < len(needs):
            note(f"{place.path}.depends_on", "must not contain duplicates")
        found.append(tuple(needs))
    return found


def _unknown(name: str, positions: dict[str, int]) -> str:
    rule = f"refers to an unknown step: '{shorten(name)}'"
    # Comparing thousands of names would take seconds.
    meant = nearest(name, positions) if len(positions) <= _MAX_NAMED**2 else None
    return rule if meant is None else f"{rule}. Did you mean '{shorten(meant)}'?"


def _by_id(
    places: Sequence[StepSpec], needs: Sequence[tuple[int, ...]], told: Collection[int]
) -> dict[int, Callback]:
    """Return the callbacks that are marked by ID: they need all other steps, and no step needs
    them.
    """
    needed = {need for each in needs for need in each}
    found = {
        at: Callback(place.id.replace("-", "_"))
        for at, place in enumerate(places)
        if _CALLBACK_ID.fullmatch(place.id)
        and at not in needed
        and at not in told
        and place.job
        and place.trigger is None
        and needs[at]
        and not any(need.ignored for need in place.needs)
    }
    # If a candidate turns out to be an ordinary step, the remaining callbacks must depend on it.
    while wrong := [at for at in found if _lacking(needs[at], len(places), {*found, *told})]:
        for at in wrong:
            del found[at]
    return found


def _lacking(needs: Sequence[int], count: int, callbacks: set[int]) -> list[int]:
    """Return the steps that a callback must depend on but doesn't."""
    have = callbacks.union(needs)
    return [at for at in range(count) if at not in have] if len(have) < count else []


def _check_callbacks(
    places: Sequence[StepSpec],
    needs: Sequence[tuple[int, ...]],
    callbacks: Collection[int],
    body: Sequence[int],
    note: Note,
) -> None:
    found = set(callbacks)
    for at in sorted(found):
        path = f"{places[at].path}.depends_on"
        if not body or not needs[at]:
            note(path, "must contain the steps of the callback, but is empty")
        elif lacking := _lacking(needs[at], len(places), found):
            names = ", ".join(f"'{shorten(places[each].id)}'" for each in lacking[:_MAX_NAMED])
            rest = "" if len(lacking) <= _MAX_NAMED else f" and {len(lacking) - _MAX_NAMED} more"
            note(path, f"must contain all steps that are not callbacks, but lacks {names}{rest}")
    named = {places[at].id for at in found}
    for place in places:
        for at, need in enumerate(place.needs):
            if need.id in named:
                rule = f"can't be '{shorten(need.id)}', because no step can depend on a callback"
                note(f"{place.path}.depends_on[{at}]", rule)


def _cycles(needs: Sequence[tuple[int, ...]]) -> Iterator[list[int]]:
    """Yield at least one cycle per group of interdependent steps, in execution order."""
    left = [len(set(each)) for each in needs]
    followers: list[list[int]] = [[] for _ in needs]
    for at, each in enumerate(needs):
        for need in set(each):
            followers[need].append(at)
    free = [at for at, count in enumerate(left) if not count]
    while free:
        for follower in followers[free.pop()]:
            left[follower] -= 1
            if not left[follower]:
                free.append(follower)
    # Each remaining step needs another remaining step, so following the dependencies ends in a
    # cycle.
    walks: dict[int, int] = {}
    for first in (at for at, count in enumerate(left) if count):
        path, at = list[int](), first
        while at not in walks:
            walks[at] = first
            path.append(at)
            at = next(need for need in needs[at] if left[need])
        if walks[at] == first:
            cycle = path[path.index(at) :][::-1]
            begin = cycle.index(min(cycle))
            yield cycle[begin:] + cycle[:begin]
