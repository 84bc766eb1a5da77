"""The resource-block grid of a cell: which round held which blocks in the last hour, and its slots there."""

from datetime import datetime, timedelta
from typing import Any

from services.domain.rounds import Slot
from services.storage.cells import Allocation
from services.storage.database import Store

SHOWN = timedelta(hours=1)
MAX_ALLOCATIONS = 100
"""Of the newest; a drawing of more cannot be read."""
_SECOND_NS = 1e9


def load_blocks(store: Store, cell_id: str, now: datetime) -> dict[str, Any]:
    """What is held in a cell now and was held in the last hour, in columns; times in ms since 1970."""
    cell = store.cells.get(cell_id)
    found = store.allocations.newest(cell_id, begin=now - SHOWN, most=MAX_ALLOCATIONS)
    names = {item.task_id: store.tasks.get(item.task_id).terms.name for item in found}
    slots = store.rounds.slots_in(cell_id, [item.round_serial for item in found])
    return {
        "cell_id": cell_id,
        "name": cell.name,
        "resource_blocks": cell.resource_blocks,
        "held": sum(item.resource_block_count for item in found if item.held_until is None),
        "allocations": {
            "task_id": [item.task_id for item in found],
            "task": [names[item.task_id] or item.task_id for item in found],
            "round_id": [item.round_id for item in found],
            "number": [item.number for item in found],
            "first": [item.resource_block_first for item in found],
            "count": [item.resource_block_count for item in found],
            "from_ms": [_ms(item.held_from) for item in found],
            "until_ms": [None if item.held_until is None else _ms(item.held_until) for item in found],
        },
        "slots": _slots({item.round_serial: item for item in found}, slots),
    }


def _slots(held: dict[int, Allocation], slots: list[tuple[int, Slot]]) -> dict[str, list[Any]]:
    """The planned uploads, cut off where the round freed its blocks."""
    names = ("client_id", "first", "count", "from_ms", "until_ms")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for round_serial, slot in slots:
        item = held[round_serial]
        assert item.started_at is not None, "it has slots"
        began = item.started_at + timedelta(seconds=slot.window_start_ns / _SECOND_NS)
        ended = item.started_at + timedelta(seconds=slot.window_end_ns / _SECOND_NS)
        if item.held_until is not None:
            ended = min(ended, item.held_until)
        if began < ended:
            blocks = (item.resource_block_first, item.resource_block_count)
            row = (slot.client_id, *blocks, _ms(began), _ms(ended))
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    return columns


def _ms(moment: datetime) -> float:
    return moment.timestamp() * 1e3
