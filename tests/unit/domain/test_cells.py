"""Which resource blocks a round gets, and which of the waiting tasks comes first."""

from datetime import UTC, datetime, timedelta

import pytest

from services.domain.cells import (
    MAX_OVERTAKEN,
    BlockDemand,
    BlockRange,
    CellConfig,
    FreeBlocks,
    WaitingTask,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ANYWHERE = BlockDemand(None, 10, 10)


def _waiting(serial: int, *, priority: int = 0, since_s: int = 0, overtaken: int = 0) -> WaitingTask:
    demand = BlockDemand(None, 10, 10, priority)
    return WaitingTask(serial, demand, ("north",), NOW + timedelta(seconds=since_s), overtaken)


def test_blocks_are_taken_from_the_first_on_and_only_once() -> None:
    free = FreeBlocks(20)
    assert free.take(10, 10) == BlockRange(0, 10)
    assert free.take(10, 10) == BlockRange(10, 10)
    assert free.take(1, 1) is None


def test_what_is_held_is_not_given() -> None:
    assert FreeBlocks(20, range(5)).take(10, 10) == BlockRange(5, 10)
    assert FreeBlocks(20, [9]).take(10, 10) == BlockRange(10, 10)
    assert FreeBlocks(20, [9, 19]).take(10, 10) is None


def test_blocks_beyond_the_cell_are_no_matter() -> None:
    """Such as those of a round that was opened before the cell became smaller."""
    assert FreeBlocks(10, range(5, 30)).take(5, 5) == BlockRange(0, 5)


def test_the_shortest_range_that_is_long_enough_is_used() -> None:
    held = [*range(12, 15), *range(20, 25)]  # free: 0 to 11, 15 to 19, 25 to 39
    assert FreeBlocks(40, held).take(5, 5) == BlockRange(15, 5)
    assert FreeBlocks(40, held).take(13, 13) == BlockRange(25, 13)


@pytest.mark.parametrize(("least", "taken"), [(5, BlockRange(10, 5)), (6, None)])
def test_fewer_than_wanted_are_taken_if_they_are_enough(least: int, taken: BlockRange | None) -> None:
    assert FreeBlocks(15, range(10)).take(10, least) == taken


def test_a_cell_whose_blocks_are_all_reserved_gives_nothing() -> None:
    free = FreeBlocks(20)
    free.reserve_all()
    assert free.take(1, 1) is None


def test_a_range_has_its_blocks() -> None:
    assert list(BlockRange(3, 2).blocks()) == [3, 4]


def test_a_task_has_rounds_in_its_cells_unless_they_are_too_small() -> None:
    assert ANYWHERE.applies_to(CellConfig("north", resource_blocks=10))
    assert not ANYWHERE.applies_to(CellConfig("north", resource_blocks=9))
    south = BlockDemand(("south",), 10, 5)
    assert south.applies_to(CellConfig("south", resource_blocks=5))
    assert not south.applies_to(CellConfig("north", resource_blocks=5))


def test_tasks_wait_by_priority_and_then_in_the_order_they_came() -> None:
    early, late = _waiting(1, since_s=0), _waiting(2, since_s=1)
    urgent = _waiting(3, since_s=2, priority=1)
    assert sorted([late, urgent, early], key=lambda task: task.position) == [urgent, early, late]
    assert urgent.overtakes(early)
    assert not early.overtakes(late)
    assert not late.overtakes(urgent)


def test_of_two_that_came_at_once_the_older_task_is_first() -> None:
    assert _waiting(1).position < _waiting(2).position


def test_a_task_that_was_overtaken_too_often_comes_before_every_priority() -> None:
    urgent = _waiting(2, since_s=1, priority=1000)
    assert urgent.position < _waiting(1, overtaken=MAX_OVERTAKEN - 1).position
    assert _waiting(1, overtaken=MAX_OVERTAKEN).position < urgent.position
    assert not urgent.overtakes(_waiting(1, overtaken=MAX_OVERTAKEN))


def test_a_task_waits_for_blocks_of_cells_with_its_clients_that_are_large_enough() -> None:
    waiting = _waiting(1)
    assert waiting.wants_blocks_of(CellConfig("north", resource_blocks=10))
    assert not waiting.wants_blocks_of(CellConfig("north", resource_blocks=9))
    assert not waiting.wants_blocks_of(CellConfig("south", resource_blocks=10))
