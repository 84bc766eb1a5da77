"""Tasks: the table of moves, deadlines, and whether another round fits."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from services.domain.tasks import TASK_MOVES, Task, TaskState
from tests.unit.domain.task_terms import TERMS

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _task(state: TaskState = TaskState.RUNNING, **terms: object) -> Task:
    return Task(
        serial=1,
        task_id="task-1",
        state=state,
        terms=replace(TERMS, **terms),  # type: ignore[arg-type]
        created_at=NOW,
        ended_at=None,
        outcome=None,
        model_version=None,
        rounds=0,
        elapsed_s=0.0,
        first_round_at=None,
    )


def test_a_task_is_over_when_no_move_is_left() -> None:
    over = {state for state in TaskState if _task(state).is_over}
    assert over == {TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELLED}


def test_every_state_of_a_task_can_be_reached_and_left_only_forwards() -> None:
    assert set(TASK_MOVES) == set(TaskState)
    reached = {TaskState.INITIALIZING}.union(*TASK_MOVES.values())
    assert reached == set(TaskState)
    order = list(TaskState)
    for state, following in TASK_MOVES.items():
        assert all(order.index(after) > order.index(state) for after in following)


def test_an_operator_can_cancel_any_task_that_is_not_over() -> None:
    for state in TaskState:
        assert (TaskState.CANCELLED in TASK_MOVES[state]) is not _task(state).is_over


def test_uploads_end_when_aggregation_has_to_begin() -> None:
    assert replace(TERMS, aggregation_s=0.1).upload_deadline_ns == 179_900_000_000
    assert replace(TERMS, selection_s=5.0).upload_deadline_ns == 180_000_000_000


def test_the_original_protocol_has_no_deadline() -> None:
    terms = replace(TERMS, policy="fl")
    assert not terms.has_deadline
    assert terms.upload_deadline_ns is None


@pytest.mark.parametrize(
    ("elapsed_s", "final_deadline_s", "fits"),
    [
        (0.0, None, True),
        (1e9, None, True),
        (0.0, 180.0, True),
        (0.1, 180.0, False),
        (220.0, 400.0, True),
        (220.000001, 400.0, False),
    ],
)
def test_another_round_fits_if_it_ends_by_the_final_deadline(
    elapsed_s: float, final_deadline_s: float | None, fits: bool
) -> None:
    assert _task(final_deadline_s=final_deadline_s).fits_another_round(elapsed_s) is fits


def test_without_a_round_deadline_a_round_fits_as_long_as_there_is_time() -> None:
    task = _task(policy="fl", final_deadline_s=100.0)
    assert task.fits_another_round(100.0)
    assert not task.fits_another_round(100.1)
