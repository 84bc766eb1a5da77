"""Resource blocks of a round: it gets them in all its cells when it opens, or it is not opened.

The cells are locked in the order of their ids, so no two transactions wait for each other. Tasks that found
too few free blocks wait: no task gets blocks that a waiting task before it needs.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from services.domain.cells import BlockRange, CellConfig, FreeBlocks, WaitingTask
from services.domain.tasks import Clock, Task
from services.errors import ResourceBlocksBusyError
from services.storage.database import Store

_RETRY_AFTER_S = 5.0
"""Where no round that holds blocks has a deadline."""
_LONGEST_RETRY_AFTER_S = 60.0


def cells_of_task(store: Store, task: Task) -> list[CellConfig]:
    """The cells in which a task's rounds can be, in the order of their ids.

    For a wall-clock task they are locked until the transaction ends: only it takes blocks in them.
    """
    demand = task.terms.block_demand
    found = store.cells.all() if task.terms.clock is Clock.SIMULATED else store.cells.lock(demand.cells)
    usable = [cell for cell in found if demand.applies_to(cell)]
    if demand.cells is not None and len(usable) < len(demand.cells):
        missing = min(set(demand.cells) - {cell.cell_id for cell in usable})
        raise ResourceBlocksBusyError(
            f"The cell {missing!r} of the task has fewer than {demand.least} resource blocks.",
            _LONGEST_RETRY_AFTER_S,
        )
    if not usable:
        raise ResourceBlocksBusyError(f"No cell has {demand.least} resource blocks.", _LONGEST_RETRY_AFTER_S)
    return usable


def choose_blocks(
    store: Store, task: Task, cells: Sequence[CellConfig], now: datetime
) -> Mapping[str, BlockRange]:
    """The resource blocks of a task's next round in each of these cells; nothing is recorded yet.

    A simulated round holds none: it is scheduled as if the cells were its own.
    """
    demand = task.terms.block_demand
    if task.terms.clock is Clock.SIMULATED:
        return {cell.cell_id: BlockRange(0, min(demand.wanted, cell.resource_blocks)) for cell in cells}
    held = store.allocations.held()
    free = {cell.cell_id: FreeBlocks(cell.resource_blocks, held.get(cell.cell_id, ())) for cell in cells}
    waiting = store.waiting_tasks.all(now)
    position = _waiting_task(waiting, task, now).position
    for other in waiting:
        if other.task_serial != task.serial and other.position < position:
            _reserve(other, cells, free)
    ranges = {cell_id: blocks.take(demand.wanted, demand.least) for cell_id, blocks in free.items()}
    short = [cell_id for cell_id, taken in ranges.items() if taken is None]
    if short:
        raise ResourceBlocksBusyError(
            f"The cell {short[0]!r} has no {demand.least} adjacent free resource blocks for the task: other "
            "rounds hold them, or tasks that wait come first.",
            _retry_after_s(store, short, now),
            list(ranges),
        )
    return {cell_id: taken for cell_id, taken in ranges.items() if taken is not None}


def hold_blocks(
    store: Store, task: Task, round_serial: int, ranges: Mapping[str, BlockRange], now: datetime
) -> None:
    """Hold a round's blocks until it closes. The task waits no longer; those that it overtook are counted."""
    waiting = store.waiting_tasks.all(now)
    store.waiting_tasks.remove(task.serial)
    if task.terms.clock is Clock.SIMULATED or not ranges:
        return
    served = _waiting_task(waiting, task, now)
    overtaken = [
        other.task_serial
        for other in waiting
        if served.overtakes(other) and not ranges.keys().isdisjoint(other.cell_ids)
    ]
    if overtaken:
        store.waiting_tasks.count_overtaken(overtaken)
    store.allocations.hold(round_serial, ranges, now)


def wait_for_blocks(store: Store, task_id: str, error: ResourceBlocksBusyError, now: datetime) -> None:
    """Let a task wait for blocks in the cells in which it has clients.

    A task that does not advance by itself waits for twice as long as its caller was told to wait.
    """
    task = store.tasks.get(task_id, lock=True)
    if task.is_over or store.rounds.open_of(task.serial):
        return
    expires_at = None
    if not (task.terms.auto_advance and task.rounds):
        expires_at = now + timedelta(seconds=2 * error.retry_after_s + 1)
    store.waiting_tasks.put(task.serial, error.cell_ids, now=now, expires_at=expires_at)


def in_order(store: Store, tasks: Sequence[Task], now: datetime) -> list[Task]:
    """Tasks in the order in which they get resource blocks."""
    waiting = store.waiting_tasks.all(now)
    return sorted(tasks, key=lambda task: _waiting_task(waiting, task, now).position)


def _waiting_task(waiting: Sequence[WaitingTask], task: Task, now: datetime) -> WaitingTask:
    """A task as one that waits; if it does not wait yet, it comes last of its priority."""
    known = (other for other in waiting if other.task_serial == task.serial)
    return next(known, WaitingTask(task.serial, task.terms.block_demand, (), now, 0))


def _reserve(other: WaitingTask, cells: Sequence[CellConfig], free: Mapping[str, FreeBlocks]) -> None:
    """Keep blocks for a waiting task; where it lacks some, keep all, so that they become enough."""
    for cell in cells:
        blocks = free[cell.cell_id]
        if other.wants_blocks_of(cell) and blocks.take(other.demand.wanted, other.demand.least) is None:
            blocks.reserve_all()


def _retry_after_s(store: Store, cell_ids: Sequence[str], now: datetime) -> float:
    deadline = store.allocations.next_deadline(cell_ids)
    if deadline is None:
        return _RETRY_AFTER_S
    return min(max((deadline - now).total_seconds(), 1.0), _LONGEST_RETRY_AFTER_S)
