"""Cells, and which of a cell's resource blocks a round gets.

A round gets adjacent blocks, because the uplink of LTE assigns adjacent blocks.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from services.domain.radio import RadioModel

DEFAULT_CELL = "default"
"""It always exists; clients are in it unless they are put into another one."""
DEFAULT_RESOURCE_BLOCKS = 100
MAX_OVERTAKEN = 10
"""A waiting task that later tasks of higher priority overtook so often is served before all others."""


@dataclass(frozen=True)
class CellConfig:
    """A cell as the operator configures it."""

    cell_id: str
    name: str = ""
    resource_blocks: int = DEFAULT_RESOURCE_BLOCKS
    """What the cell gives to federated learning."""
    radio: RadioModel = field(default_factory=RadioModel)


@dataclass(frozen=True)
class BlockRange:
    """Adjacent resource blocks."""

    first: int
    count: int

    def blocks(self) -> range:
        """The number of each."""
        return range(self.first, self.first + self.count)


class FreeBlocks:
    """The resource blocks of one cell that no round holds."""

    def __init__(self, resource_blocks: int, held: Iterable[int] = ()) -> None:
        taken = set(held)
        self._free = [block not in taken for block in range(resource_blocks)]

    def take(self, wanted: int, least: int) -> BlockRange | None:
        """Take what is wanted, or else the longest range with at least so many; None if there is none.

        Of the ranges that are long enough, the shortest is used, so that long ones stay whole.
        """
        ranges = list(self._ranges())
        enough = [blocks for blocks in ranges if blocks.count >= wanted]
        if enough:
            shortest = min(enough, key=lambda blocks: blocks.count)
            taken = BlockRange(shortest.first, wanted)
        else:
            taken = max(ranges, key=lambda blocks: blocks.count, default=BlockRange(0, 0))
            if taken.count < least:
                return None
        for block in taken.blocks():
            self._free[block] = False
        return taken

    def reserve_all(self) -> None:
        """Keep all free blocks for a task that waits for more."""
        self._free = []

    def _ranges(self) -> Iterable[BlockRange]:
        for is_free, blocks in groupby(range(len(self._free)), key=self._free.__getitem__):
            if is_free:
                members = list(blocks)
                yield BlockRange(members[0], len(members))


@dataclass(frozen=True)
class BlockDemand:
    """What a task wants in each of its cells."""

    cells: tuple[str, ...] | None
    """None: in all cells."""
    wanted: int
    least: int
    priority: int = 0

    def applies_to(self, cell: CellConfig) -> bool:
        """Whether the task has rounds in a cell; one that has too few blocks has none."""
        return cell.resource_blocks >= self.least and (self.cells is None or cell.cell_id in self.cells)


@dataclass(frozen=True)
class WaitingTask:
    """A task that waits for resource blocks."""

    task_serial: int
    demand: BlockDemand
    cell_ids: Collection[str]
    """The cells in which it wants blocks: those in which it has clients."""
    since: datetime
    overtaken: int
    """How often a round was opened in its cells for a task that came later."""

    @property
    def position(self) -> tuple[bool, int, datetime, int]:
        """Sorts tasks: first those overtaken too often, then by priority, then in the order they came."""
        is_overdue = self.overtaken >= MAX_OVERTAKEN
        return not is_overdue, 0 if is_overdue else -self.demand.priority, self.since, self.task_serial

    def overtakes(self, other: "WaitingTask") -> bool:
        """Whether it is served first although it came later."""
        return self.position < other.position and self.since > other.since

    def wants_blocks_of(self, cell: CellConfig) -> bool:
        """Whether it waits for blocks of a cell."""
        return cell.cell_id in self.cell_ids and self.demand.applies_to(cell)
