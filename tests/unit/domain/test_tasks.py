"""Tasks: the table of moves, deadlines, and whether another round fits."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from services.domain.tasks import TASK_TRANSITIONS, Task, TaskOutcome, TaskState
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
        detail=None,
        model_version=None,
        rounds=0,
        elapsed_s=0.0,
        first_round_at=None,
    )


def test_a_task_is_over_when_no_move_is_left() -> None:
    over = {state for state in TaskState if _task(state).is_over}
    assert over == {TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELLED}


def test_every_state_of_a_task_can_be_reached_and_left_only_forwards() -> None:
    assert set(TASK_TRANSITIONS) == set(TaskState)
    reached = {TaskState.INITIALIZING}.union(*TASK_TRANSITIONS.values())
    assert reached == set(TaskState)
    order = list(TaskState)
    for state, following in TASK_TRANSITIONS.items():
        assert all(order.index(after) > order.index(state) for after in following)


def test_an_operator_can_cancel_any_task_that_is_not_over() -> None:
    for state in TaskState:
        assert (TaskState.CANCELLED in TASK_TRANSITIONS[state]) is not _task(state).is_over


@pytest.mark.parametrize(
    "changes",
    [
        {"round_deadline_s": 0.0},
        {"request_fraction": 0.0},
        {"request_fraction": 1.001},
        {"min_clients": 0},
        {"min_updates": 0},
    ],
)
def test_terms_that_no_task_can_work_with_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        replace(TERMS, **changes)


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
    ending = _task(final_deadline_s=final_deadline_s).ending_after(elapsed_s)
    assert ending is (None if fits else TaskOutcome.FINAL_DEADLINE)


def test_without_a_round_deadline_a_round_fits_as_long_as_there_is_time() -> None:
    task = _task(policy="fl", final_deadline_s=100.0)
    assert task.ending_after(100.0) is None
    assert task.ending_after(100.1) is TaskOutcome.FINAL_DEADLINE
