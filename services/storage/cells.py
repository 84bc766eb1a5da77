"""Cells, the resource blocks that rounds hold in them, and the tasks that wait for some."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict, Unpack

from sqlalchemy import case, delete, func, insert, literal, or_, select, update

from services.domain.cells import DEFAULT_CELL, BlockRange, CellConfig, WaitingTask
from services.domain.radio import RadioModel
from services.domain.rounds import BLOCK_HOLDING_STATES
from services.errors import CellExistsError, CellInUseError, CellNotFoundError
from services.storage.sql import Page, Paging, Repository, UtcDateTime, as_dataclass, count_rows
from services.storage.tables import allocations, cells, clients, held_blocks, rounds, tasks, waiting_tasks

_ALL = select(cells).order_by(cells.c.cell_id)


class CellChange(TypedDict, total=False):
    """Fields of a cell to be set."""

    name: str
    resource_blocks: int
    radio: RadioModel


class Cells(Repository):
    """The cells in a database."""

    def add(self, cell: CellConfig) -> None:
        """Add a cell."""
        if self.find(cell.cell_id):
            raise CellExistsError(f"There is a cell {cell.cell_id!r} already.")
        self._connection.execute(insert(cells), vars(cell))

    def find(self, cell_id: str) -> CellConfig | None:
        """One cell, if it exists."""
        return self._find(CellConfig, _ALL.where(cells.c.cell_id == cell_id))

    def get(self, cell_id: str) -> CellConfig:
        """One cell."""
        found = self.find(cell_id)
        if found is None:
            raise CellNotFoundError(cell_id)
        return found

    def all(self) -> list[CellConfig]:
        """Every cell, in the order of their ids."""
        return self._list(CellConfig, _ALL)

    def lock(self, cell_ids: Collection[str] | None) -> list[CellConfig]:
        """These cells, or all, in the order of their ids.

        Until the transaction ends no other takes blocks or selects clients there, and no client leaves.
        """
        query = _ALL if cell_ids is None else _ALL.where(cells.c.cell_id.in_(cell_ids))
        return self._list(CellConfig, query.with_for_update(key_share=True))

    def page(self, paging: Paging) -> Page[CellConfig]:
        """Some cells, in the order of their ids."""
        rows = self._connection.execute(paging.of(_ALL))
        return Page([as_dataclass(CellConfig, row) for row in rows], count_rows(self._connection, _ALL))

    def change(self, cell_id: str, **values: Unpack[CellChange]) -> CellConfig:
        """Set fields of a cell."""
        if values:
            self._connection.execute(update(cells).where(cells.c.cell_id == cell_id).values(**values))
        return self.get(cell_id)

    def remove(self, cell_id: str) -> None:
        """Remove a cell that has no clients and in which no blocks are held."""
        self.get(cell_id)
        if cell_id == DEFAULT_CELL:
            raise CellInUseError("The cell 'default' always exists.")
        has_clients = select(clients.c.serial).where(clients.c.cell_id == cell_id).limit(1)
        if self._connection.execute(has_clients).first():
            raise CellInUseError(f"There are clients in the cell {cell_id!r}; move them first.")
        holds = select(held_blocks.c.block).where(held_blocks.c.cell_id == cell_id).limit(1)
        if self._connection.execute(holds).first():
            raise CellInUseError(f"An open round holds resource blocks of the cell {cell_id!r}.")
        self._connection.execute(delete(cells).where(cells.c.cell_id == cell_id))

    def client_counts(self) -> dict[str, int]:
        """How many clients are in each cell that has some."""
        query = select(clients.c.cell_id, func.count()).group_by(clients.c.cell_id)
        return {cell_id: number for cell_id, number in self._connection.execute(query)}  # noqa: C416


@dataclass(frozen=True)
class Allocation:
    """Resource blocks of a cell that a round holds or held."""

    cell_id: str
    round_serial: int
    round_id: str
    task_id: str
    number: int
    """Of the round in its task."""
    started_at: datetime | None
    """Round time 0; none while the round waits for reports."""
    resource_block_first: int
    resource_block_count: int
    held_from: datetime
    held_until: datetime | None
    """None: it holds them now."""


_ALLOCATIONS = (
    select(allocations, rounds.c.round_id, rounds.c.number, rounds.c.started_at, tasks.c.task_id)
    .join_from(allocations, rounds, rounds.c.serial == allocations.c.round_serial)
    .join(tasks, tasks.c.serial == rounds.c.task_serial)
    .order_by(allocations.c.held_from, allocations.c.round_serial)
)


class Allocations(Repository):
    """Which round holds which resource blocks in a database, and which held them before."""

    def held(self) -> dict[str, list[int]]:
        """The blocks that are held in each cell."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for cell_id, block in self._connection.execute(select(held_blocks.c.cell_id, held_blocks.c.block)):
            found[cell_id].append(block)
        return found

    def hold(self, round_serial: int, ranges: Mapping[str, BlockRange], now: datetime) -> None:
        """Hold blocks for a round, in the order of the cells' ids.

        They are held from ``now``, or from the latest release in the cell if that is later: this transaction
        may have waited for the other one, and clocks of hosts differ a little.
        """
        in_order = sorted(ranges.items())
        releases = (
            select(allocations.c.cell_id, func.max(allocations.c.held_until))
            .where(allocations.c.cell_id.in_(ranges), allocations.c.held_until > now)
            .group_by(allocations.c.cell_id)
        )
        released = {cell_id: moment for cell_id, moment in self._connection.execute(releases)}  # noqa: C416
        held = [
            {"cell_id": cell_id, "block": block, "round_serial": round_serial}
            for cell_id, taken in in_order
            for block in taken.blocks()
        ]
        self._connection.execute(insert(held_blocks), held)
        history = [
            {
                "round_serial": round_serial,
                "cell_id": cell_id,
                "resource_block_first": taken.first,
                "resource_block_count": taken.count,
                "held_from": released.get(cell_id, now),
            }
            for cell_id, taken in in_order
        ]
        self._connection.execute(insert(allocations), history)

    def release(self, round_serial: int, now: datetime) -> None:
        """Free what a round holds, if it holds any."""
        self._connection.execute(delete(held_blocks).where(held_blocks.c.round_serial == round_serial))
        ended = update(allocations).where(
            allocations.c.round_serial == round_serial, allocations.c.held_until.is_(None)
        )
        # Clocks of hosts agree to a moment only: an end before the beginning would be refused.
        began_later = (allocations.c.held_from > now, allocations.c.held_from)
        self._connection.execute(ended.values(held_until=case(began_later, else_=literal(now, UtcDateTime))))

    def orphaned(self) -> list[int]:
        """Serials of the rounds that hold blocks although nothing can be uploaded in them any more."""
        query = (
            select(held_blocks.c.round_serial)
            .distinct()
            .join_from(held_blocks, rounds, rounds.c.serial == held_blocks.c.round_serial)
            .where(rounds.c.state.not_in(BLOCK_HOLDING_STATES))
        )
        return list(self._connection.execute(query).scalars())

    def page(
        self, cell_id: str, paging: Paging, *, begin: datetime | None, end: datetime | None
    ) -> Page[Allocation]:
        """What was held in a cell at some time from ``begin`` to before ``end``, the oldest first."""
        query = _ALLOCATIONS.where(allocations.c.cell_id == cell_id)
        if begin is not None:
            query = query.where(or_(allocations.c.held_until.is_(None), allocations.c.held_until > begin))
        if end is not None:
            query = query.where(allocations.c.held_from < end)
        rows = self._connection.execute(paging.of(query))
        return Page([as_dataclass(Allocation, row) for row in rows], count_rows(self._connection, query))

    def newest(self, cell_id: str, *, begin: datetime, most: int) -> list[Allocation]:
        """The newest allocations of a cell that are live or ended after ``begin``, in order."""
        query = (
            _ALLOCATIONS.where(
                allocations.c.cell_id == cell_id,
                or_(allocations.c.held_until.is_(None), allocations.c.held_until > begin),
            )
            .order_by(None)
            .order_by(allocations.c.held_from.desc(), allocations.c.round_serial.desc())
            .limit(most)
        )
        return [as_dataclass(Allocation, row) for row in self._connection.execute(query)][::-1]

    def live(self, cell_ids: Collection[str] | None = None) -> list[Allocation]:
        """What is held now, in these cells or in all."""
        query = _ALLOCATIONS.where(allocations.c.held_until.is_(None))
        if cell_ids is not None:
            query = query.where(allocations.c.cell_id.in_(cell_ids))
        return self._list(Allocation, query)

    def next_deadline(self, cell_ids: Collection[str]) -> datetime | None:
        """When the first of the rounds that hold blocks in these cells is closed at the latest, if known."""
        query = (
            select(func.min(rounds.c.upload_deadline_at))
            .join_from(allocations, rounds, rounds.c.serial == allocations.c.round_serial)
            .where(allocations.c.held_until.is_(None), allocations.c.cell_id.in_(cell_ids))
        )
        deadline: datetime | None = self._connection.execute(query).scalar_one()
        return deadline

    def delete_before(self, moment: datetime) -> None:
        """Remove the history of blocks that were freed before a moment."""
        self._connection.execute(delete(allocations).where(allocations.c.held_until < moment))


class WaitingTasks(Repository):
    """The tasks of a database that wait for resource blocks."""

    def put(
        self, task_serial: int, cell_ids: Sequence[str], *, now: datetime, expires_at: datetime | None
    ) -> None:
        """Let a task wait for blocks of these cells; one that waits already keeps its position."""
        self.delete_expired(now)
        values = {"cell_ids": list(cell_ids), "expires_at": expires_at}
        changed = self._connection.execute(
            update(waiting_tasks).where(waiting_tasks.c.task_serial == task_serial).values(values)
        )
        if not changed.rowcount:
            row = {"task_serial": task_serial, "since": now, "overtaken": 0, **values}
            self._connection.execute(insert(waiting_tasks), row)

    def all(self, now: datetime) -> list[WaitingTask]:
        """Those that wait, by position."""
        query = (
            select(waiting_tasks, tasks.c.terms)
            .join_from(waiting_tasks, tasks, tasks.c.serial == waiting_tasks.c.task_serial)
            .where(or_(waiting_tasks.c.expires_at.is_(None), waiting_tasks.c.expires_at > now))
        )
        found = [
            as_dataclass(WaitingTask, row, demand=row.terms.block_demand)
            for row in self._connection.execute(query)
        ]
        return sorted(found, key=lambda task: task.position)

    def count_overtaken(self, task_serials: Sequence[int]) -> None:
        """Record that another task was served before these although it came later."""
        self._connection.execute(
            update(waiting_tasks)
            .where(waiting_tasks.c.task_serial.in_(task_serials))
            .values(overtaken=waiting_tasks.c.overtaken + 1)
        )

    def remove(self, task_serial: int) -> None:
        """Let a task wait no longer."""
        self._connection.execute(delete(waiting_tasks).where(waiting_tasks.c.task_serial == task_serial))

    def delete_expired(self, now: datetime) -> None:
        """Remove those that did not come back in time."""
        self._connection.execute(delete(waiting_tasks).where(waiting_tasks.c.expires_at <= now))
