"""Cells, held resource blocks and waiting tasks in both databases."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError, OperationalError

from services.domain.cells import BlockRange, CellConfig
from services.domain.radio import RadioModel
from services.domain.rounds import CandidateOutcome, Round, RoundState
from services.domain.tasks import Clock, Task
from services.errors import (
    CellExistsError,
    CellInUseError,
    CellNotFoundError,
    ResourceBlocksBusyError,
)
from services.protocol.aggregation import close_round
from services.protocol.block_allocation import in_order, wait_for_blocks
from services.protocol.resource_request import advance_task, end_report_window, open_round
from services.protocol.task_management import cancel_task
from services.storage.database import Database, UnitOfWork
from services.storage.sql import Paging
from services.storage.tables import held_blocks
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND

AT_ONCE = 8
PAGE = Paging(1, 100)


def _cell(uow: UnitOfWork, cell_id: str, resource_blocks: int, *client_ids: str) -> None:
    """A cell with clients that have reported."""
    uow.cells.add(CellConfig(cell_id, resource_blocks=resource_blocks))
    if not client_ids:
        return
    serials = uow.clients.add(
        {client_id: {} for client_id in client_ids}, NOW, dict.fromkeys(client_ids, cell_id)
    )
    uow.reports.add([factories.report(serial) for serial in serials.values()])


def _task(uow: UnitOfWork, *cells: str, **changes: object) -> Task:
    return factories.ready_task(
        uow, clock=Clock.WALL, cells=cells or None, **({"allow_busy_clients": True} | changes)
    )


def _blocks(uow: UnitOfWork, round_: Round) -> dict[str, tuple[int, int]]:
    cells = uow.rounds.cells(round_.serial)
    return {cell.cell_id: (cell.resource_block_first, cell.resource_block_count) for cell in cells}


def _outcomes(uow: UnitOfWork, round_: Round) -> dict[str, str]:
    return {
        candidate.client_id: candidate.outcome.value for candidate in uow.rounds.candidates(round_.serial)
    }


def test_a_cell_is_kept_with_its_radio_changed_and_removed(database: Database) -> None:
    radio = RadioModel(carrier_ghz=3.5)
    with database.unit_of_work() as uow:
        uow.cells.add(CellConfig("north", "North tower", 25, radio))
        with pytest.raises(CellExistsError, match="north"):
            uow.cells.add(CellConfig("north"))
        assert uow.cells.get("north") == CellConfig("north", "North tower", 25, radio)
        assert [cell.cell_id for cell in uow.cells.all()] == ["default", "north"]
        assert uow.cells.change("north", resource_blocks=30).resource_blocks == 30
        assert uow.cells.page(Paging(2, 1)).items == [CellConfig("north", "North tower", 30, radio)]
        uow.cells.remove("north")
        for act in (uow.cells.get, uow.cells.remove):
            with pytest.raises(CellNotFoundError, match="north"):
                act("north")


def test_a_cell_that_is_in_use_stays(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        with pytest.raises(CellInUseError, match="clients"):
            uow.cells.remove("north")
        opened = open_round(uow, _task(uow).task_id, NOW)
        uow.clients.change("a", cell_id="default")
        with pytest.raises(CellInUseError, match="holds"):
            uow.cells.remove("north")
        close_round(uow, opened.round_id, NOW + SECOND)
        uow.cells.remove("north")
        assert _blocks(uow, opened) == {"north": (0, 10)}
        with pytest.raises(CellInUseError, match="default"):
            uow.cells.remove("default")


def test_the_database_gives_no_block_to_two_rounds(database: Database) -> None:
    with database.unit_of_work() as uow:
        first = factories.scheduled_round(uow, "a")
        second = factories.scheduled_round(uow, "b")
        uow.allocations.hold(first.serial, {"default": BlockRange(0, 10)}, NOW)
        with pytest.raises(IntegrityError):
            uow.allocations.hold(second.serial, {"default": BlockRange(9, 1)}, NOW)


def test_blocks_are_held_from_opening_to_close_and_known_afterwards(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 15, "a", "b")
        opened = open_round(uow, _task(uow).task_id, NOW)
        assert uow.allocations.held() == {"north": list(range(10))}
        (live,) = uow.allocations.live(["north"])
        assert (live.round_id, live.held_from, live.held_until) == (opened.round_id, NOW, None)
        closed = close_round(uow, opened.round_id, NOW + 5 * SECOND)
        assert closed.state is RoundState.FAILED  # nothing had arrived
        assert uow.allocations.held() == {}
        assert uow.allocations.live() == []
        (past,) = uow.allocations.page("north", PAGE, begin=None, end=None).items
        assert (past.resource_block_first, past.resource_block_count) == (0, 10)
        assert (past.held_from, past.held_until) == (NOW, NOW + 5 * SECOND)
        for begin, end, found in [
            (NOW + 4 * SECOND, None, 1),
            (NOW + 5 * SECOND, None, 0),
            (None, NOW, 0),
            (None, NOW + SECOND, 1),
            (NOW + SECOND, NOW + 2 * SECOND, 1),
        ]:
            assert uow.allocations.page("north", PAGE, begin=begin, end=end).total == found
        uow.allocations.delete_before(NOW + 5 * SECOND)
        assert uow.allocations.page("north", PAGE, begin=None, end=None).total == 1
        uow.allocations.delete_before(NOW + 6 * SECOND)
        assert uow.allocations.page("north", PAGE, begin=None, end=None).total == 0


def test_blocks_are_free_once_a_task_is_cancelled_or_too_few_clients_were_found(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        task = _task(uow, report_window_s=60.0)
        open_round(uow, task.task_id, NOW)
        assert len(uow.allocations.held()["north"]) == 10
        cancel_task(uow, task.task_id, NOW + SECOND)
        assert uow.allocations.held() == {}
        failed = open_round(uow, _task(uow, min_clients=2).task_id, NOW)
        assert (failed.outcome, uow.allocations.held()) == ("TOO_FEW_CLIENTS", {})


def test_a_clock_that_is_behind_ends_no_allocation_before_it_began(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        opened = open_round(uow, _task(uow).task_id, NOW)
        uow.allocations.release(opened.serial, NOW - SECOND)
        (past,) = uow.allocations.page("north", PAGE, begin=None, end=None).items
        assert past.held_until == NOW


def test_blocks_are_held_from_their_release_if_a_clock_is_behind(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        first = open_round(uow, _task(uow).task_id, NOW)
        close_round(uow, first.round_id, NOW + SECOND)
        open_round(uow, _task(uow).task_id, NOW + SECOND / 2)
        _, second = uow.allocations.page("north", PAGE, begin=None, end=None).items
        assert second.held_from == NOW + SECOND


def test_two_tasks_have_disjoint_blocks_and_a_third_finds_none(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 20, "a", "b")
        first, second = (open_round(uow, _task(uow).task_id, NOW) for _ in range(2))
        assert _blocks(uow, first) == {"north": (0, 10)}
        assert _blocks(uow, second) == {"north": (10, 10)}
        assert [slot.upload_ns for slot in uow.rounds.slots(first.serial)] == [10**9] * 2
        third = _task(uow)
        with pytest.raises(ResourceBlocksBusyError, match="'north' has no 10 adjacent free") as caught:
            open_round(uow, third.task_id, NOW)
        assert caught.value.retry_after_s == 60.0
        close_round(uow, first.round_id, NOW + SECOND)
        assert _blocks(uow, open_round(uow, third.task_id, NOW + SECOND)) == {"north": (0, 10)}


def test_with_half_of_the_blocks_uploads_take_twice_as_long(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 15, "a", "b")
        whole, half = (open_round(uow, _task(uow, min_resource_blocks=5).task_id, NOW) for _ in range(2))
        assert (_blocks(uow, whole), _blocks(uow, half)) == ({"north": (0, 10)}, {"north": (10, 5)})
        assert [slot.upload_ns for slot in uow.rounds.slots(whole.serial)] == [1 * 10**9] * 2
        assert [slot.upload_ns for slot in uow.rounds.slots(half.serial)] == [2 * 10**9] * 2


def test_blocks_are_held_in_all_cells_of_a_round_or_in_none(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 20, "a")
        _cell(uow, "south", 10, "b")
        open_round(uow, _task(uow, "south").task_id, NOW)
        both = _task(uow, "south", "north")
        with pytest.raises(ResourceBlocksBusyError, match="south"):
            open_round(uow, both.task_id, NOW)
        assert uow.allocations.held().keys() == {"south"}


def test_each_cell_of_a_round_has_a_schedule_of_its_own(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 20, "a", "b")
        _cell(uow, "south", 5, "c")
        _cell(uow, "east", 4, "d")
        task = _task(uow, min_resource_blocks=5, selection_s=0.5)
        opened = open_round(uow, task.task_id, NOW)
        assert (opened.clients, opened.asked, opened.selected) == (3, 3, 3)  # the east is too small
        slots = uow.rounds.slots(opened.serial)
        assert [(slot.cell_id, slot.order) for slot in slots] == [("north", 1), ("north", 2), ("south", 1)]
        assert {slots[0].client_id, slots[1].client_id} == {"a", "b"}
        second = 10**9
        north, south = uow.rounds.cells(opened.serial)
        assert (north.distribution_ns, north.elapsed_ns) == (1 * second, 3 * second)
        assert (south.distribution_ns, south.elapsed_ns) == (2 * second, 3 * second)
        assert (opened.distribution_ns, opened.elapsed_ns) == (2 * second, 3 * second)
        assert [slot.window_start_ns for slot in slots] == [
            second // 2 + 2 * second,
            second // 2 + 3 * second,
            second // 2 + 3 * second,
        ]


def test_a_slot_stays_in_the_cell_in_which_it_was_planned(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        _cell(uow, "south", 10, "b")
        task = _task(uow, report_window_s=5.0)
        opened = open_round(uow, task.task_id, NOW)
        a = uow.clients.get("a").serial
        uow.clients.move({a: "south"})
        uow.reports.add([factories.report(a, received_at=NOW + SECOND)])
        scheduled = end_report_window(uow, opened.round_id, NOW + 5 * SECOND)
        slots = uow.rounds.slots(scheduled.serial)
        assert [(slot.client_id, slot.cell_id) for slot in slots] == [("a", "north"), ("b", "south")]
        close_round(uow, opened.round_id, NOW + 6 * SECOND)
        second = open_round(uow, task.task_id, NOW + 7 * SECOND)
        assert _blocks(uow, second) == {"south": (0, 10)}


def test_a_simulated_round_holds_no_blocks_and_knows_the_cells(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 5, "a")
        open_round(uow, _task(uow, resource_blocks=5).task_id, NOW)
        simulated = factories.ready_task(uow, min_resource_blocks=1)
        opened = open_round(uow, simulated.task_id, NOW)
        assert _blocks(uow, opened) == {"north": (0, 5)}
        assert len(uow.allocations.live()) == 1


def test_a_busy_client_is_not_drawn_for_another_task(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 100, *"abcdef")
        shy = {"request_fraction": 0.5, "allow_busy_clients": False}
        first, second = (open_round(uow, _task(uow, **shy).task_id, NOW) for _ in range(2))
        chosen = [{slot.client_id for slot in uow.rounds.slots(each.serial)} for each in (first, second)]
        assert [len(clients) for clients in chosen] == [3, 3]
        assert chosen[0].isdisjoint(chosen[1])
        assert second.asked == 3
        busy = {client_id for client_id, outcome in _outcomes(uow, second).items() if outcome == "BUSY"}
        assert busy <= chosen[0]
        third = open_round(uow, _task(uow, **shy).task_id, NOW)
        assert (third.outcome, third.asked) == ("TOO_FEW_CLIENTS", 0)
        assert set(_outcomes(uow, third).values()) == {"BUSY"}
        sociable = open_round(uow, _task(uow, request_fraction=0.5).task_id, NOW)
        assert sociable.selected == 3
        assert open_round(uow, factories.ready_task(uow).task_id, NOW).selected == 6  # by a clock of its own
        for done in (first, sociable):
            close_round(uow, done.round_id, NOW + SECOND)
        assert open_round(uow, _task(uow, **shy).task_id, NOW + SECOND).asked == 3


def test_a_client_that_became_busy_while_it_was_asked_is_not_selected(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 100, "a", "b")
        shy = {"allow_busy_clients": False}
        asking = open_round(uow, _task(uow, report_window_s=5.0, **shy).task_id, NOW)
        open_round(uow, _task(uow, request_fraction=0.5, **shy).task_id, NOW)
        reports = [factories.report(uow.clients.get(name).serial, received_at=NOW + SECOND) for name in "ab"]
        uow.reports.add(reports)
        scheduled = end_report_window(uow, asking.round_id, NOW + 5 * SECOND)
        assert sorted(_outcomes(uow, scheduled).values()) == ["BUSY", "SELECTED"]


def test_a_client_that_was_busy_when_it_was_drawn_is_not_asked(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 100, "a", "b")
        shy = {"allow_busy_clients": False}
        first = open_round(uow, _task(uow, request_fraction=0.5, **shy).task_id, NOW)
        (busy,) = (slot.client_id for slot in uow.rounds.slots(first.serial))
        asking = open_round(uow, _task(uow, report_window_s=5.0, **shy).task_id, NOW)
        outcomes = _outcomes(uow, asking)
        assert outcomes.pop(busy) == CandidateOutcome.BUSY
        assert list(outcomes.values()) == ["ASKED"]
        assert [round_.round_id for round_ in uow.rounds.open_for(busy)] == [first.round_id]
        close_round(uow, first.round_id, NOW + SECOND)
        scheduled = end_report_window(uow, asking.round_id, NOW + 5 * SECOND)
        assert _outcomes(uow, scheduled)[busy] == "BUSY"


def test_waiting_tasks_are_served_by_priority_then_in_order(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        holder = open_round(uow, _task(uow).task_id, NOW)
        plain, later, urgent = (_task(uow, priority=priority) for priority in (0, 0, 1))
        for seconds, task in enumerate((plain, later, urgent)):
            _refused(uow, task, seconds)
        close_round(uow, holder.round_id, NOW + 4 * SECOND)
        tasks = [later, plain, urgent]
        assert in_order(uow, tasks, NOW + 4 * SECOND) == [urgent, plain, later]
        for task in (plain, later):
            _refused(uow, task, 4)
        opened = open_round(uow, urgent.task_id, NOW + 4 * SECOND)
        passed = {
            waiting.task_serial: waiting.overtaken for waiting in uow.waiting_tasks.all(NOW + 4 * SECOND)
        }
        assert passed == {plain.serial: 1, later.serial: 1}
        close_round(uow, opened.round_id, NOW + 5 * SECOND)
        _refused(uow, later, 5)
        assert open_round(uow, plain.task_id, NOW + 5 * SECOND).selected == 1


def _refused(uow: UnitOfWork, task: Task, seconds: int) -> None:
    now = NOW + seconds * SECOND
    with pytest.raises(ResourceBlocksBusyError) as caught:
        open_round(uow, task.task_id, now)
    wait_for_blocks(uow, task.task_id, caught.value, now)


def test_no_task_starves_however_many_of_higher_priority_come(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        opened = open_round(uow, _task(uow).task_id, NOW)
        humble = _task(uow, priority=-5)
        _refused(uow, humble, 0)
        for rounds in range(1, 20):
            urgent = _task(uow, priority=5)
            _refused(uow, urgent, rounds)
            _refused(uow, humble, rounds)
            close_round(uow, opened.round_id, NOW + rounds * SECOND)
            first, _ = in_order(uow, [humble, urgent], NOW + rounds * SECOND)
            opened = open_round(uow, first.task_id, NOW + rounds * SECOND)
            if first == humble:
                break
        assert rounds == 11  # ten were served before it


def test_a_task_that_waits_for_many_blocks_is_not_overtaken_by_small_ones(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 20, "a")
        _cell(uow, "south", 20, "b")
        small = [open_round(uow, _task(uow, "north").task_id, NOW) for _ in range(2)]
        large = _task(uow, resource_blocks=20)
        _refused(uow, large, 0)
        close_round(uow, small[0].round_id, NOW + SECOND)
        _refused(uow, _task(uow, "north"), 1)  # though 10 are free: the large one needs them
        _refused(uow, _task(uow, "south"), 1)
        close_round(uow, small[1].round_id, NOW + 2 * SECOND)
        assert open_round(uow, large.task_id, NOW + 2 * SECOND).selected == 2


def test_what_a_waiting_task_does_not_need_is_given_to_others(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        _cell(uow, "south", 20, "b")
        open_round(uow, _task(uow, "north").task_id, NOW)
        _refused(uow, _task(uow, "north", "south"), 0)
        other = open_round(uow, _task(uow, "south").task_id, NOW + SECOND)
        assert _blocks(uow, other) == {"south": (10, 10)}
        _refused(uow, _task(uow, "south"), 1)


def test_a_caller_that_does_not_come_back_loses_its_place(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        holder = open_round(uow, _task(uow).task_id, NOW)
        _refused(uow, _task(uow), 0)
        close_round(uow, holder.round_id, NOW + SECOND)
        other = _task(uow)
        _refused(uow, other, 1)
        assert open_round(uow, other.task_id, NOW + 122 * SECOND).selected == 1
        uow.waiting_tasks.delete_expired(NOW + 122 * SECOND)
        assert uow.waiting_tasks.all(NOW) == []


def test_a_task_that_advances_by_itself_waits_until_it_is_served_or_ends(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        task = _task(uow, auto_advance=True)
        first = open_round(uow, task.task_id, NOW)
        close_round(uow, first.round_id, NOW)
        holder = open_round(uow, _task(uow, priority=1).task_id, NOW)
        much_later = NOW + 100_000 * SECOND
        assert advance_task(uow, task.task_id, NOW + 2 * SECOND) is None
        assert [waiting.task_serial for waiting in uow.waiting_tasks.all(much_later)] == [task.serial]
        close_round(uow, holder.round_id, NOW + 3 * SECOND)
        opened = advance_task(uow, task.task_id, NOW + 3 * SECOND)
        assert opened is not None
        assert uow.waiting_tasks.all(NOW) == []
        close_round(uow, opened.round_id, NOW + 4 * SECOND)
        open_round(uow, _task(uow, priority=1).task_id, NOW + 4 * SECOND)
        advance_task(uow, task.task_id, NOW + 10 * SECOND)
        assert uow.waiting_tasks.all(NOW)
        cancel_task(uow, task.task_id, NOW + 11 * SECOND)
        assert uow.waiting_tasks.all(NOW) == []


def test_a_task_that_wants_more_than_any_cell_has_waits(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        task = _task(uow, resource_blocks=200)
        with pytest.raises(ResourceBlocksBusyError, match="No cell has 200"):
            open_round(uow, task.task_id, NOW)


def test_rounds_that_are_over_and_still_hold_blocks_are_found(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        opened = open_round(uow, _task(uow).task_id, NOW)
        assert uow.allocations.orphaned() == []
        uow.rounds.change(opened, state=RoundState.FAILED, ended_at=NOW)
        assert uow.allocations.orphaned() == [opened.serial]
        uow.allocations.release(opened.serial, NOW)
        assert uow.allocations.orphaned() == []


def test_tasks_that_open_rounds_at_the_same_moment_share_no_block(database: Database) -> None:
    with database.unit_of_work() as uow:
        for cell_id in ("north", "south", "west"):
            _cell(uow, cell_id, 30, *(f"{cell_id}-{number}" for number in range(4)))
        cells = [("north", "south"), ("south", "west"), ("west", "north"), ()]
        tasks = [_task(uow, *cells[place % 4]) for place in range(AT_ONCE)]
        uow.commit()
    barrier = Barrier(AT_ONCE)

    def act(task: Task) -> bool:
        barrier.wait()
        try:
            with database.unit_of_work() as uow:
                open_round(uow, task.task_id, NOW)
                uow.commit()
        except ResourceBlocksBusyError:
            return False
        return True

    with ThreadPoolExecutor(AT_ONCE) as pool:
        opened = list(pool.map(act, tasks))
    with database.reading() as store:
        live = store.allocations.live()
        assert sum(opened) == len({held_round.round_id for held_round in live})
        assert 3 <= sum(opened) < AT_ONCE
    with database.engine.connect() as connection:
        held = connection.execute(select(func.count()).select_from(held_blocks)).scalar_one()
    assert held == sum(held_round.resource_block_count for held_round in live)


def _locked_out(database: Database, act: Callable[[UnitOfWork], object]) -> None:
    """It waits for a lock of another transaction, which is not over."""
    with database.unit_of_work() as uow:
        uow._connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
        with pytest.raises(OperationalError, match="lock timeout"):
            act(uow)


@pytest.mark.parametrize("moved", [False, True])
def test_a_client_is_not_selected_for_two_rounds_at_the_same_moment(
    postgresql_database: Database, moved: bool
) -> None:
    database = postgresql_database
    with database.unit_of_work() as uow:
        _cell(uow, "north", 20, "a")
        _cell(uow, "south", 20)
        free_only = {"allow_busy_clients": False}
        asking = open_round(uow, _task(uow, "north", report_window_s=5.0, **free_only).task_id, NOW)
        other = _task(uow, "south" if moved else "north", **free_only)
        serial = uow.clients.get("a").serial
        uow.reports.add([factories.report(serial, received_at=NOW + SECOND)])
        if moved:
            uow.clients.move({serial: "south"})
        uow.commit()
    window_ends = NOW + 5 * SECOND
    with database.unit_of_work() as opening:
        assert open_round(opening, other.task_id, window_ends).selected == 1
        _locked_out(database, lambda uow: end_report_window(uow, asking.round_id, window_ends))
        opening.commit()
    with database.unit_of_work() as uow:
        ended = end_report_window(uow, asking.round_id, window_ends)
        assert (ended.outcome, _outcomes(uow, ended)) == ("TOO_FEW_CLIENTS", {"a": "BUSY"})


def test_a_client_moves_once_the_round_that_opens_in_its_cell_is_open(postgresql_database: Database) -> None:
    """Else a round that opens in its new cell at the same moment could select it too."""
    database = postgresql_database
    with database.unit_of_work() as uow:
        _cell(uow, "north", 20, "a")
        _cell(uow, "south", 20, "b")
        _cell(uow, "east", 20)
        task = _task(uow, "north")
        serials = uow.clients.serials_of(["a", "b"])
        uow.commit()
    with database.unit_of_work() as opening:
        open_round(opening, task.task_id, NOW)
        _locked_out(database, lambda uow: uow.clients.move({serials["a"]: "south"}))
        with database.unit_of_work() as uow:  # those of other cells move
            uow.clients.move({serials["b"]: "east"})
            uow.clients.move({serials["a"]: "north"})  # where it is
            uow.commit()


def test_a_waiting_task_needs_blocks_only_in_the_cells_of_its_clients(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        _cell(uow, "south", 10, "b")
        uow.clients.change("a", labels={"kind": "car"})
        open_round(uow, _task(uow, "north").task_id, NOW)
        waiting = _task(uow, labels={"kind": "car"}, priority=-1)
        _refused(uow, waiting, 0)
        opened = open_round(uow, _task(uow, "south").task_id, NOW + SECOND)
        assert _blocks(uow, opened) == {"south": (0, 10)}
        assert [waiting.overtaken for waiting in uow.waiting_tasks.all(NOW)] == [0]
        close_round(uow, opened.round_id, NOW + 2 * SECOND)
        uow.clients.change("b", labels={"kind": "car"})
        _refused(uow, waiting, 3)
        _refused(uow, _task(uow, "south", priority=-1), 4)  # it has clients there now


def test_a_task_whose_clients_left_waits_no_longer(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        task = _task(uow, auto_advance=True)
        close_round(uow, open_round(uow, task.task_id, NOW).round_id, NOW)
        open_round(uow, _task(uow, priority=1).task_id, NOW)
        assert advance_task(uow, task.task_id, NOW + 2 * SECOND) is None
        assert uow.waiting_tasks.all(NOW)
        uow.clients.remove("a")
        opened = advance_task(uow, task.task_id, NOW + 4 * SECOND)
        assert opened is not None
        assert opened.outcome == "TOO_FEW_CLIENTS"
        assert uow.waiting_tasks.all(NOW) == []


def test_a_task_has_no_round_without_a_cell_that_it_names(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 20, "a")
        _cell(uow, "south", 20, "b")
        task = _task(uow, "north", "south")
        uow.cells.change("south", resource_blocks=9)
        with pytest.raises(ResourceBlocksBusyError, match="'south' of the task has fewer than 10"):
            open_round(uow, task.task_id, NOW)
        _refused(uow, task, 0)
        assert open_round(uow, _task(uow, "north", resource_blocks=20).task_id, NOW).selected == 1


def test_clients_of_rounds_without_blocks_are_busy_too(database: Database) -> None:
    """Such as rounds that were open when the database was migrated."""
    with database.unit_of_work() as uow:
        _cell(uow, "north", 20, "a")
        opened = open_round(uow, _task(uow).task_id, NOW)
        uow.allocations.release(opened.serial, NOW)
        other = open_round(uow, _task(uow, allow_busy_clients=False).task_id, NOW)
        assert _outcomes(uow, other) == {"a": "BUSY"}


def test_a_caller_that_comes_back_too_late_waits_behind_the_others(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a")
        open_round(uow, _task(uow).task_id, NOW)
        late, other = _task(uow), _task(uow)
        _refused(uow, late, 0)
        _refused(uow, other, 300)
        _refused(uow, late, 301)
        assert in_order(uow, [late, other], NOW + 302 * SECOND) == [other, late]


def test_clients_are_found_by_cell(database: Database) -> None:
    with database.unit_of_work() as uow:
        _cell(uow, "north", 10, "a", "c")
        factories.clients(uow, "b")
        found = uow.clients.serials_with({})
        assert list(found.cell_ids) == ["default", "north"]
        assert found.in_cell.tolist() == [1, 1, 0]
        assert uow.clients.serials_with({}, ["north"]).serials.tolist() == found.serials.tolist()[:2]
        assert uow.cells.client_counts() == {"default": 1, "north": 2}
        assert uow.clients.cells_of(["a", "b", "nobody"]) == {"a": "north", "b": "default"}
        changed = uow.clients.change("a", cell_id="default", labels={"city": "Bonn"})
        assert (changed.cell_id, changed.labels) == ("default", {"city": "Bonn"})
        assert uow.clients.change("a") == changed
        page = uow.clients.page(Paging(1, 9), {}, "default")
        assert [client.client_id for client in page.items] == ["a", "b"]
