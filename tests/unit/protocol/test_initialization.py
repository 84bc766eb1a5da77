"""A task begins, gets its initial model, and can be cancelled."""

import pytest

from services.domain.jobs import JobKind
from services.domain.rounds import RoundState
from services.domain.tasks import TaskState
from services.errors import ModelExistsError, TaskNotFoundError, TaskOverError
from services.protocol.initialization import (
    finish_initialization,
    set_initial_model,
    start_task,
)
from services.protocol.resource_request import open_round
from services.protocol.task_management import cancel_task
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import MODEL, NOW, SECOND, UPDATE
from tests.unit.protocol.side_effects import claimed_job, event_kinds, lost_lease, waiting_jobs


def test_a_worker_is_asked_for_the_initial_model(uow: UnitOfWork) -> None:
    task = start_task(uow, factories.terms(), NOW)
    assert (task.state, task.model_version) == (TaskState.INITIALIZING, None)
    assert waiting_jobs(uow) == [JobKind.INITIALIZE_MODEL]
    assert event_kinds(uow) == ["task.initializing"]


def test_with_the_model_of_a_worker_the_task_is_ready(uow: UnitOfWork) -> None:
    task = start_task(uow, factories.terms(), NOW)
    assert finish_initialization(uow, claimed_job(uow, JobKind.INITIALIZE_MODEL), MODEL, NOW)
    ready = uow.tasks.get(task.task_id)
    assert (ready.state, ready.model_version) == (TaskState.READY, 0)
    assert uow.models.get(task.serial, 0).digest == MODEL.digest
    assert event_kinds(uow) == ["task.initializing", "model.created", "task.ready"]


def test_a_worker_that_lost_its_lease_gives_no_model(uow: UnitOfWork) -> None:
    task = start_task(uow, factories.terms(), NOW)
    claimed = claimed_job(uow, JobKind.INITIALIZE_MODEL)
    lost_lease(uow, claimed)
    assert not finish_initialization(uow, claimed, MODEL, NOW)
    assert uow.tasks.get(task.task_id).state is TaskState.INITIALIZING


def test_the_model_of_the_operator_takes_the_place_of_a_workers(uow: UnitOfWork) -> None:
    task = start_task(uow, factories.terms(), NOW)
    claimed = claimed_job(uow, JobKind.INITIALIZE_MODEL)
    assert set_initial_model(uow, task.task_id, MODEL, NOW).state is TaskState.READY
    assert not finish_initialization(uow, claimed, UPDATE, NOW)
    assert set_initial_model(uow, task.task_id, UPDATE, NOW).state is TaskState.READY
    assert uow.models.get(task.serial, 0).digest == UPDATE.digest


def test_once_a_round_is_open_only_the_same_initial_model_is_accepted(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    assert set_initial_model(uow, round_.task_id, MODEL, NOW).state is TaskState.RUNNING
    with pytest.raises(ModelExistsError):
        set_initial_model(uow, round_.task_id, UPDATE, NOW)


def test_a_task_is_cancelled_with_its_round_and_its_jobs(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    cancelled = cancel_task(uow, round_.task_id, NOW + SECOND)
    assert (cancelled.state, cancelled.ended_at) == (TaskState.CANCELLED, NOW + SECOND)
    assert uow.rounds.get(round_.round_id).state is RoundState.CANCELLED
    assert waiting_jobs(uow) == []
    assert cancel_task(uow, round_.task_id, NOW) == cancelled
    assert event_kinds(uow)[-2:] == ["round.cancelled", "task.cancelled"]


def test_a_task_that_is_over_can_neither_be_cancelled_nor_go_on(uow: UnitOfWork) -> None:
    task = factories.ready_task(uow)
    uow.tasks.change(task, state=TaskState.FAILED, ended_at=NOW)
    with pytest.raises(TaskOverError, match="failed"):
        cancel_task(uow, task.task_id, NOW)
    with pytest.raises(TaskOverError, match="failed"):
        set_initial_model(uow, task.task_id, MODEL, NOW)
    with pytest.raises(TaskOverError, match="failed"):
        open_round(uow, task.task_id, NOW)


def test_there_must_be_such_a_task(uow: UnitOfWork) -> None:
    with pytest.raises(TaskNotFoundError):
        cancel_task(uow, "nothing", NOW)
    with pytest.raises(TaskNotFoundError):
        set_initial_model(uow, "nothing", MODEL, NOW)
