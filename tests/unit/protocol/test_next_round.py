"""When a task that advances by itself opens its next round."""

from datetime import datetime, timedelta

import pytest

from services.domain.rounds import Round, RoundState
from services.domain.tasks import Task
from services.protocol.resource_request import advance_task, open_round
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW


def _task(uow: UnitOfWork, outcomes: list[RoundState]) -> Task:
    """A task whose rounds ended this way, all at the same moment."""
    factories.reporting_clients(uow, "a")
    task = factories.ready_task(uow, auto_advance=True)
    for outcome in outcomes:
        uow.rounds.change(open_round(uow, task.task_id, NOW), state=outcome, ended_at=NOW)
    return task


def _advanced(uow: UnitOfWork, task: Task, after_s: float) -> Round | None:
    now: datetime = NOW + timedelta(seconds=after_s)
    return advance_task(uow, task.task_id, now)


AGGREGATED, FAILED = RoundState.AGGREGATED, RoundState.FAILED


@pytest.mark.parametrize(
    ("outcomes", "pause_s"),
    [
        ([AGGREGATED], 0),
        ([FAILED], 1),
        ([AGGREGATED] * 40 + [FAILED], 1),
        ([FAILED] * 5 + [AGGREGATED] + [FAILED] * 3, 3),
        ([FAILED] * 5 + [AGGREGATED], 0),
        ([FAILED] * 61, 60),
    ],
)
def test_the_pause_grows_with_the_number_of_failed_rounds_in_a_row(
    uow: UnitOfWork, outcomes: list[RoundState], pause_s: int
) -> None:
    task = _task(uow, outcomes)
    if pause_s:
        assert _advanced(uow, task, pause_s - 0.001) is None
    opened = _advanced(uow, task, pause_s)
    assert opened is not None
    assert opened.number == len(outcomes) + 1
