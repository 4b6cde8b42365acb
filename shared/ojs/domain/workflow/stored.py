"""Stored form of graphs, job templates, and graph states. Pure.

The first byte of each text is the number of its format. A version that doesn't support the format
rejects the text.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ojs.domain import jsontext
from ojs.domain.errors import UnknownForm
from ojs.domain.workflow.advance import GraphState
from ojs.domain.workflow.graph import Callback, Graph, Step, StepKind, StepTrigger

# Templates per page. To create a job, one page is read.
PAGE = 100
_FORM, _COMPRESSED = b"\x01", b"\x02"
# Defaults of the other stored fields of a step, after its kind, type, and inner steps. Fields are
# stored in this order. Trailing fields with the default are omitted.
_DEFAULTS: Sequence[Any] = (None, None, (), (), StepTrigger.ALL_SUCCEEDED, None)


def graph_text(graph: Graph) -> bytes:
    """Encode a graph, without the templates of its jobs."""
    types: dict[str, int] = {}
    tree = _tree(graph.root, types)
    return _packed([list(types), tree])


def graph_of(text: bytes) -> Graph:
    """Read the result of `graph_text`. Raises UnknownForm."""
    types, tree = _unpacked(text, "a workflow's graph")
    return Graph(_step(tree, types))


def _tree(step: Step, types: dict[str, int]) -> Any:
    """Return the step as JSON. A job without other fields is the number of its type."""
    rest = [step.id, step.name, step.needs, step.ignores, step.trigger, step.callback]
    while rest and rest[-1] == _DEFAULTS[len(rest) - 1]:
        rest.pop()
    if step.kind is not StepKind.JOB:
        return [step.kind, [_tree(each, types) for each in step.steps], *rest]
    number = types.setdefault(step.type, len(types))
    return [number, *rest] if rest else number


def _step(tree: Any, types: Sequence[str]) -> Step:
    if isinstance(tree, int):
        return Step(StepKind.JOB, type=types[tree])
    job = isinstance(tree[0], int)
    rest: Sequence[Any] = tree[1:] if job else tree[2:]
    name, title, needs, ignores, trigger, callback = [*rest, *_DEFAULTS[len(rest) :]]
    return Step(
        StepKind.JOB if job else StepKind(tree[0]),
        id=name,
        type=types[tree[0]] if job else "",
        name=title,
        needs=tuple(needs),
        ignores=tuple(ignores),
        trigger=StepTrigger(trigger),
        callback=None if callback is None else Callback(callback),
        steps=() if job else tuple(_step(each, types) for each in tree[1]),
    )


def template_pages(templates: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """Encode the templates of all jobs, in order, `PAGE` templates per text."""
    return [
        _packed(list(templates[first : first + PAGE])) for first in range(0, len(templates), PAGE)
    ]


def templates_of(page: bytes) -> list[dict[str, Any]]:
    """Read one text from `template_pages`. Raises UnknownForm."""
    found: list[dict[str, Any]] = _unpacked(page, "templates of a workflow's jobs")
    return found


def _packed(value: Any) -> bytes:
    return _FORM + zlib.compress(jsontext.dumps(value).encode(), 6)


def _unpacked(text: bytes, what: str) -> Any:
    if text[:1] != _FORM:
        raise UnknownForm(f"the form of {what}", text[:1].hex())
    return jsontext.stored(zlib.decompress(text[1:]).decode())


def state_text(state: GraphState) -> bytes:
    """Encode a state: at most 5 bits per node, plus 1 per retry. Long chains need far less."""
    sets = [
        state.started, state.completed, state.failed, state.cancelled, state.skipped,
        int(state.stopped), *state.reruns,
    ]  # fmt: skip
    plain = b"".join(_sized(each) for each in sets)
    # If nodes ended in order, the bit sets have few runs and compress well.
    return min(_FORM + plain, _COMPRESSED + zlib.compress(plain), key=len)


def _sized(number: int) -> bytes:
    """Return the number, preceded by its length in bytes."""
    data = number.to_bytes((number.bit_length() + 7) // 8, "little")
    return len(data).to_bytes(2, "little") + data


def state_of(text: bytes) -> GraphState:
    """Read the result of `state_text`. Raises UnknownForm."""
    if text[:1] not in (_FORM, _COMPRESSED):
        raise UnknownForm("the form of a workflow's state", text[:1].hex())
    plain = text[1:] if text[:1] == _FORM else zlib.decompress(text[1:])
    sets, at = [], 0
    while at < len(plain):
        first = at + 2
        at = first + int.from_bytes(plain[at:first], "little")
        sets.append(int.from_bytes(plain[first:at], "little"))
    started, completed, failed, cancelled, skipped, stopped, *reruns = sets
    return GraphState(started, completed, failed, cancelled, skipped, bool(stopped), tuple(reruns))
