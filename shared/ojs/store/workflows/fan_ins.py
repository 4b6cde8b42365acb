"""Fan-ins: count the finished steps of a workflow without one item that all steps write.

    W|{workflow}|{token}|{shard}   fan   up to SHARD_SLOTS marks, and the number that is missing

Each job has a slot. When the job finishes, one conditional write sets the slot's mark and subtracts
one from `left`, on the condition that the slot has no mark. So each job is counted once, however
often the write is retried. A retry is rejected, and its response has the current `left`. If `left`
is 0, the writer marks the shard in the top item, `t`, whose slots are the shards. A fan-in with one
shard has no top item.

A fan-in has a unique token and is written before the jobs that refer to it. It is removed when all
of its marks are in the workflow's state. A late mark then finds no item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ojs.domain.workflow.graph import StepState, numbers
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.races import won_or
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item

# A shard with this number of marks has less than 1 KB, so that each mark costs one write unit.
SHARD_SLOTS = 200
# Minimum number of jobs of a fan-in. The jobs start together, and only their joint result matters.
# Fewer jobs write their results to the root item.
MIN_SLOTS = 21
# Time to live of a fan-in. A fan-in is removed when all its jobs have finished, so this deletes
# only fan-ins that a crash left behind, years later.
_KEPT_S = 400 * 86_400
_TOP = "t"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789" + _LETTERS
_MARKS = {StepState.COMPLETED: 1, StepState.FAILED: 2}
_ENDS = {mark: state for state, mark in _MARKS.items()}


@record(frozen=True, slots=True)
class FanIn:
    """A fan-in: its token, and the workflow nodes whose ends it counts, as a bit set.

    The slot of a node is its position among these nodes.
    """

    token: str
    nodes: int

    @property
    def shards(self) -> int:
        """Number of shards, without the top item."""
        return -(-self.nodes.bit_count() // SHARD_SLOTS)

    def keys(self, workflow_id: str) -> list[tuple[str, str]]:
        """Return the keys of all items of the fan-in."""
        names = [*map(str, range(self.shards)), *([_TOP] if self.shards > 1 else [])]
        return [_key(workflow_id, self.token, name) for name in names]


@record(frozen=True, slots=True)
class FanInShard:
    """A shard after a mark: the number of missing marks, and the number of shards."""

    left: int
    shards: int
    marked: bool


_Marking = Callable[[tuple[str, str], int, StepState], FanInShard | None]


class FanInStore:
    """Reads and writes fan-ins."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def create(self, workflow_id: str, fan_ins: Sequence[FanIn], *, now_ms: int) -> None:
        """Write new fan-ins, which no other process knows yet.

        Args:
            workflow_id: ID of the workflow.
            fan_ins: The fan-ins.
            now_ms: Current time in milliseconds since the epoch.
        """
        self._table.write_many(
            puts=[item for each in fan_ins for item in _items(workflow_id, each, now_ms)]
        )

    def remove(self, workflow_id: str, fan_ins: Sequence[FanIn]) -> None:
        """Remove fan-ins whose jobs have finished, or that no other process knows."""
        self._table.write_many(deletes=[key for each in fan_ins for key in each.keys(workflow_id)])

    def mark(self, workflow_id: str, token: str, slot: int, ended: StepState) -> bool:
        """Mark the job with this slot as finished. Safe to repeat.

        Makes one write, and another for the last job of a shard if there are several shards.

        Args:
            workflow_id: ID of the workflow.
            token: Identifies the fan-in.
            slot: Slot of the job.
            ended: Final state of the step.

        Returns:
            True if all jobs of the fan-in have finished. False if not, or if the fan-in was
            removed, because its result is known then.
        """
        shard, at = divmod(slot, SHARD_SLOTS)
        return self._whole(workflow_id, token, shard, at, ended, self._mark)

    def repeat(
        self, workflow_id: str, token: str, slot: int, ended: StepState, first: Callable[[], None]
    ) -> bool:
        """Mark the job as `mark` does, for repeated calls: the shard is read before it is written.

        Args:
            workflow_id: ID of the workflow.
            token: Identifies the fan-in.
            slot: Slot of the job.
            ended: Final state of the step.
            first: Called before a missing mark is written.
        """

        def mark(key: tuple[str, str], slot: int, ended: StepState) -> FanInShard | None:
            item = self._table.get(*key)
            found = None if item is None else _shard(item, slot)
            if found is None or found.marked:
                return found
            first()
            return self._mark(key, slot, ended)

        shard, at = divmod(slot, SHARD_SLOTS)
        return self._whole(workflow_id, token, shard, at, ended, mark)

    @staticmethod
    def _whole(
        workflow_id: str, token: str, shard: int, slot: int, ended: StepState, mark: _Marking
    ) -> bool:
        found = mark(_key(workflow_id, token, str(shard)), slot, ended)
        if found is not None and not found.left and found.shards > 1:
            found = mark(_key(workflow_id, token, _TOP), shard, StepState.COMPLETED)
        return found is not None and not found.left

    def _mark(self, key: tuple[str, str], slot: int, ended: StepState) -> FanInShard | None:
        name = _name(slot)
        # Races: the request and the stream consumer report the same job, or the response to a mark
        # was lost: the slot has its mark. The loser reads `left`, and continues where the winner
        # might have crashed. Or the fan-in was removed: the loser finds no item.
        mark = Update(
            *key,
            set={name: _MARKS[ended]},
            add={"left": -1},
            condition=f"attribute_exists(pk) AND attribute_not_exists(#{name})",
        )
        item = won_or(lambda: self._table.update(mark), lambda lost: lost.item)
        return _shard(item, slot) if item else None

    def ends(self, workflow_id: str, fan_ins: Sequence[FanIn]) -> Iterator[tuple[int, StepState]]:
        """Yield the finished nodes of these fan-ins with their final states, according to the
        marks.
        """
        if not fan_ins:
            return
        found = self._table.batch_get(key for each in fan_ins for key in each.keys(workflow_id))
        for each in fan_ins:
            for slot, node in enumerate(numbers(each.nodes)):
                shard, at = divmod(slot, SHARD_SLOTS)
                item = found.get(_key(workflow_id, each.token, str(shard)), {})
                if (mark := item.get(_name(at))) is not None:
                    yield node, _ENDS[int(mark)]


def _key(workflow_id: str, token: str, shard: str) -> tuple[str, str]:
    return keys.fan_in(workflow_id, token, shard), keys.FAN_IN


def _items(workflow_id: str, fan_in: FanIn, now_ms: int) -> Iterator[Item]:
    left = fan_in.nodes.bit_count()
    for pk, sk in fan_in.keys(workflow_id):
        top = pk.endswith(f"|{_TOP}")
        slots = fan_in.shards if top else min(left, SHARD_SLOTS)
        left -= 0 if top else slots
        yield {
            "pk": pk,
            "sk": sk,
            "left": slots,
            "shards": fan_in.shards,
            "ttl": now_ms // 1_000 + _KEPT_S,
        }


def _name(slot: int) -> str:
    """Return the attribute of a slot's mark.

    The name has two characters, so that a shard is small.
    """
    letter, digit = divmod(slot, len(_DIGITS))
    return _LETTERS[letter] + _DIGITS[digit]


def _shard(item: Item, slot: int) -> FanInShard:
    return FanInShard(int(item["left"]), int(item["shards"]), _name(slot) in item)
