"""Where the steps of a graph stand: what depends on what, which are callbacks, no cycles. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from ojs.domain.errors import shorten
from ojs.domain.requests import nearest
from ojs.domain.workflow.graph import Callback, StepTrigger
from ojs.records import record

# How many steps an error names.
_MAX_NAMED = 10
_CALLBACK_ID = re.compile(r"on[-_](complete|success|failure)")

# Takes a path and the rule that is broken there.
Note = Callable[[str, str], None]


@record(frozen=True, slots=True)
class Dependency:
    """A dependency as the request has it: the id of the step, and whether its failure is ignored.

    One that was refused has an empty id.
    """

    id: str
    ignored: bool = False


@record(frozen=True, slots=True)
class StepSpec:
    """Where a step stands, as the request says it. `callback` is what its options say; a step whose
    `job` is false is a workflow itself.
    """

    path: str
    id: str
    needs: tuple[Dependency, ...] = ()
    trigger: StepTrigger | None = None
    callback: Callback | None = None
    job: bool = True


@record(frozen=True, slots=True)
class PlacedSteps:
    """A graph whose places are right: the positions that each step needs, those of its steps that
    are no callbacks, and its callbacks.
    """

    needs: Sequence[tuple[int, ...]]
    body: Sequence[int]
    callbacks: dict[int, Callback]

    @property
    def edges(self) -> int:
        """How many dependencies there are, without those of callbacks."""
        return sum(len(self.needs[at]) for at in self.body)


def arrange(places: Sequence[StepSpec], path: str, note: Note) -> PlacedSteps:
    """Find callbacks and check dependencies; `path` is that of the list of steps."""
    needs = _resolved(places, note)
    callbacks = {at: place.callback for at, place in enumerate(places) if place.callback}
    callbacks |= _by_id(places, needs, callbacks)
    body = [at for at in range(len(places)) if at not in callbacks]
    _check_callbacks(places, needs, callbacks, body, note)
    for cycle in _cycles(needs):
        names = [places[at].id for at in (*cycle, cycle[0])]
        if len(cycle) > _MAX_NAMED:
            names = [*names[:_MAX_NAMED], f"… ({len(cycle)} steps)"]
        note(path, f"the steps wait for each other: {' → '.join(map(shorten, names))}")
    return PlacedSteps(needs, body, callbacks)


def _resolved(places: Sequence[StepSpec], note: Note) -> list[tuple[int, ...]]:
    """The positions of the steps that each step needs; those that are not there are left out."""
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
            note(f"{place.path}.depends_on", "must name each step once")
        found.append(tuple(needs))
    return found


def _unknown(name: str, positions: dict[str, int]) -> str:
    rule = f"no step beside it has the id '{shorten(name)}'"
    # To compare with thousands of names would take seconds.
    meant = nearest(name, positions) if len(positions) <= _MAX_NAMED**2 else None
    return rule if meant is None else f"{rule}; did you mean '{shorten(meant)}'?"


def _by_id(
    places: Sequence[StepSpec], needs: Sequence[tuple[int, ...]], told: Collection[int]
) -> dict[int, Callback]:
    """The callbacks that are told by their ids: they need all steps that are no callbacks, and no
    step needs them.
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
    # One that turns out to be a common step is one that the others have to need.
    while wrong := [at for at in found if _lacking(needs[at], len(places), {*found, *told})]:
        for at in wrong:
            del found[at]
    return found


def _lacking(needs: Sequence[int], count: int, callbacks: set[int]) -> list[int]:
    """The steps that a callback does not need, though it should."""
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
            note(path, "must name the steps whose callback it is: it depends on nothing")
        elif lacking := _lacking(needs[at], len(places), found):
            names = ", ".join(f"'{shorten(places[each].id)}'" for each in lacking[:_MAX_NAMED])
            rest = "" if len(lacking) <= _MAX_NAMED else f" and {len(lacking) - _MAX_NAMED} more"
            note(path, f"must name all steps that are no callbacks: it lacks {names}{rest}")
    named = {places[at].id for at in found}
    for place in places:
        for at, need in enumerate(place.needs):
            if need.id in named:
                rule = f"'{shorten(need.id)}' is a callback: no step can depend on it"
                note(f"{place.path}.depends_on[{at}]", rule)


def _cycles(needs: Sequence[tuple[int, ...]]) -> Iterator[list[int]]:
    """Cycles, of each knot at least one, in the order in which the steps would run."""
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
    # Each of the rest needs another of the rest: to go back along these ends in a cycle.
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
