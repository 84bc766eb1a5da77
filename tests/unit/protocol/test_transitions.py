"""Changes of state: allowed by the table of moves, recorded, and told as events."""

import pytest

from services.domain.rounds import RoundState
from services.domain.tasks import TaskOutcome, TaskState
from services.errors import RoundNotFoundError
from services.protocol.transitions import lock_round, move_round, move_task
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND
from tests.unit.protocol.side_effects import event_kinds

DONE = TaskOutcome.FINISHED_BY_OPERATOR


def test_a_move_sets_what_is_given_and_the_end(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    task, locked = lock_round(uow, round_.round_id)
    assert locked == round_
    failed = move_round(
        uow, round_, RoundState.FAILED, NOW + SECOND, outcome="TOO_FEW_UPDATES", duration_s=1.0
    )
    assert (failed.ended_at, failed.outcome, failed.duration_s) == (NOW + SECOND, "TOO_FEW_UPDATES", 1.0)
    assert uow.rounds.get(round_.round_id) == failed
    finished = move_task(uow, task, TaskState.FINISHED, NOW + SECOND, outcome=DONE, elapsed_s=180.0)
    assert (finished.ended_at, finished.outcome, finished.elapsed_s) == (NOW + SECOND, DONE, 180.0)
    assert uow.tasks.get(task.task_id) == finished
    assert event_kinds(uow)[-2:] == ["round.failed", "task.finished"]


def test_a_state_that_goes_on_has_no_end(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    moved = move_round(uow, round_, RoundState.COLLECTING, NOW + SECOND, active_at=NOW + SECOND)
    assert (moved.state, moved.ended_at, moved.active_at) == (RoundState.COLLECTING, None, NOW + SECOND)


def test_a_move_that_the_table_does_not_have_is_a_bug(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    with pytest.raises(AssertionError, match="a round cannot go from scheduled to aggregated"):
        move_round(uow, round_, RoundState.AGGREGATED, NOW)
    with pytest.raises(AssertionError, match="a task cannot go from running to ready"):
        move_task(uow, uow.tasks.get(round_.task_id), TaskState.READY, NOW)


def test_there_must_be_such_a_round(uow: UnitOfWork) -> None:
    with pytest.raises(RoundNotFoundError):
        lock_round(uow, "nothing")
