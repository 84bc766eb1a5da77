"""What operators do with a task: finish, change and delete it; and when it ends by its own terms."""

import pytest

from services.domain.clipping import AggregationRecord
from services.domain.jobs import JobKind
from services.domain.rounds import Round, RoundState
from services.domain.tasks import Evaluation, TargetMetric, Task, TaskOutcome, TaskState
from services.errors import (
    ModelNotReadyError,
    NoDataSetError,
    RoundNotFoundError,
    TaskNotFoundError,
    TaskNotOverError,
    TaskOverError,
)
from services.protocol.aggregation import close_round, finish_aggregation
from services.protocol.initialization import start_task
from services.protocol.jobs import request_training
from services.protocol.resource_request import advance_task, open_round
from services.protocol.task_management import cancel_task, change_task, delete_task, finish_by_operator
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE
from tests.unit.protocol.side_effects import claimed_job, event_kinds


def _ended(task: Task) -> tuple[TaskState, TaskOutcome | None]:
    return task.state, task.outcome


def _aggregate(uow: UnitOfWork, round_: Round) -> Task:
    job = claimed_job(uow, JobKind.AGGREGATE_ROUND)
    assert finish_aggregation(uow, job, UPDATE, AggregationRecord(), NOW)
    return uow.tasks.get(round_.task_id)


def test_a_task_without_an_open_round_is_finished_at_once(uow: UnitOfWork) -> None:
    finished = finish_by_operator(uow, factories.ready_task(uow).task_id, NOW + SECOND)
    assert _ended(finished) == (TaskState.FINISHED, TaskOutcome.FINISHED_BY_OPERATOR)
    assert (finished.ended_at, finished.detail) == (NOW + SECOND, "An operator finished the task.")
    assert finish_by_operator(uow, finished.task_id, NOW) == finished
    assert event_kinds(uow)[-1] == "task.finished"


def test_a_task_is_finished_when_the_round_that_is_closed_first_is_over(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    factories.received_update(uow, round_, "a")
    ending = finish_by_operator(uow, round_.task_id, NOW)
    assert _ended(ending) == (TaskState.RUNNING, TaskOutcome.FINISHED_BY_OPERATOR)
    assert finish_by_operator(uow, round_.task_id, NOW) == ending
    assert uow.rounds.get(round_.round_id).state is RoundState.AGGREGATING
    finished = _aggregate(uow, round_)
    assert _ended(finished) == (TaskState.FINISHED, TaskOutcome.FINISHED_BY_OPERATOR)
    assert finished.model_version == 1


def test_a_round_with_too_few_updates_fails_and_the_task_is_finished(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    finished = finish_by_operator(uow, round_.task_id, NOW)
    assert _ended(finished) == (TaskState.FINISHED, TaskOutcome.FINISHED_BY_OPERATOR)
    assert uow.rounds.get(round_.round_id).outcome == "TOO_FEW_UPDATES"


def test_a_round_that_asks_for_reports_is_cancelled_when_its_task_is_finished(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", report_window_s=60.0)
    finished = finish_by_operator(uow, round_.task_id, NOW)
    assert finished.state is TaskState.FINISHED
    assert uow.rounds.get(round_.round_id).state is RoundState.CANCELLED


def test_what_cannot_be_finished(uow: UnitOfWork) -> None:
    with pytest.raises(ModelNotReadyError):
        finish_by_operator(uow, start_task(uow, factories.terms(), NOW).task_id, NOW)
    cancelled = cancel_task(uow, factories.ready_task(uow).task_id, NOW)
    with pytest.raises(TaskOverError, match="cancelled"):
        finish_by_operator(uow, cancelled.task_id, NOW)
    with pytest.raises(TaskNotFoundError):
        finish_by_operator(uow, "nothing", NOW)


def test_a_task_ends_after_its_last_round(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", max_rounds=2)
    factories.received_update(uow, round_, "a")
    assert _aggregate(uow, round_).state is TaskState.RUNNING
    second = open_round(uow, round_.task_id, NOW)
    close_round(uow, second.round_id, NOW)
    ended = uow.tasks.get(round_.task_id)
    assert _ended(ended) == (TaskState.FINISHED, TaskOutcome.MAX_ROUNDS)
    assert ended.detail == "The task has had its max_rounds rounds."


def test_with_fewer_rounds_allowed_than_it_has_had_a_task_ends_by_itself(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    close_round(uow, round_.round_id, NOW)
    changed = change_task(uow, round_.task_id, NOW, max_rounds=1, name="short")
    assert (changed.terms.max_rounds, changed.terms.name) == (1, "short")
    with pytest.raises(TaskOverError, match="max_rounds"):
        open_round(uow, round_.task_id, NOW)
    assert advance_task(uow, round_.task_id, NOW) is None
    assert uow.tasks.get(round_.task_id).outcome is TaskOutcome.MAX_ROUNDS
    assert event_kinds(uow)[-2:] == ["task.changed", "task.finished"]


@pytest.mark.parametrize(("target", "state"), [(0.7, TaskState.FINISHED), (0.71, TaskState.RUNNING)])
def test_with_a_target_that_the_newest_model_has_reached_a_task_is_finished(
    uow: UnitOfWork, target: float, state: TaskState
) -> None:
    round_ = factories.scheduled_round(uow, "a")
    factories.received_update(uow, round_, "a")
    task = _aggregate(uow, round_)
    uow.models.add_evaluation(task, Evaluation(1, 0.7, 1.0, 100, NOW))
    assert change_task(uow, task.task_id, NOW, target_accuracy=target).state is state


def test_a_target_needs_something_to_be_measured_on(uow: UnitOfWork) -> None:
    task = factories.ready_task(uow, dataset=None)
    with pytest.raises(NoDataSetError):
        change_task(uow, task.task_id, NOW, target_accuracy=0.5)
    on_devices = factories.ready_task(uow, dataset=None, target_metric=TargetMetric.DEVICE)
    assert change_task(uow, on_devices.task_id, NOW, target_accuracy=0.5).terms.target_accuracy == 0.5


def test_only_the_name_of_an_ended_task_can_be_changed(uow: UnitOfWork) -> None:
    task = finish_by_operator(uow, factories.ready_task(uow).task_id, NOW)
    assert change_task(uow, task.task_id, NOW, name="done").terms.name == "done"
    with pytest.raises(TaskOverError, match="name"):
        change_task(uow, task.task_id, NOW, max_rounds=5)


def test_an_ended_task_is_deleted_with_all_that_is_part_of_it(uow: UnitOfWork) -> None:
    busy = factories.busy_round(uow)
    task_id = busy.round_.task_id
    with pytest.raises(TaskNotOverError, match="running"):
        delete_task(uow, task_id, NOW)
    cancel_task(uow, task_id, NOW)
    delete_task(uow, task_id, NOW)
    with pytest.raises(TaskNotFoundError):
        uow.tasks.get(task_id)
    with pytest.raises(RoundNotFoundError):
        uow.rounds.get(busy.round_.round_id)
    assert uow.models.referenced([factories.MODEL.digest, UPDATE.digest]) == set()
    assert event_kinds(uow)[-1] == "task.deleted"
    assert uow.clients.get("idle").client_id == "idle"


def test_without_a_data_set_no_worker_trains(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", dataset=None)
    with pytest.raises(NoDataSetError):
        request_training(uow, round_.round_id, "a", 0, NOW)


@pytest.mark.parametrize(
    ("decay_s", "rates"), [(None, [0.25, 0.125, 0.0625]), (360.0, [0.25, 0.25 * 0.5**0.5, 0.125])]
)
def test_the_learning_rate_decays_per_round_or_per_elapsed_time(
    uow: UnitOfWork, decay_s: float | None, rates: list[float]
) -> None:
    round_ = factories.scheduled_round(uow, "a", learning_rate_decay=0.5, learning_rate_decay_s=decay_s)
    found = []
    for _ in rates:
        task = uow.tasks.get(round_.task_id)
        found.append(round_.learning_rate(task.terms))
        close_round(uow, round_.round_id, NOW)
        round_ = open_round(uow, round_.task_id, NOW)
    assert found == pytest.approx(rates)


def test_a_report_window_waits_for_those_who_are_enrolled_and_have_not_answered(uow: UnitOfWork) -> None:
    serials = factories.reporting_clients(uow, "answers", "removed", "other")
    round_ = open_round(uow, factories.ready_task(uow, report_window_s=60.0).task_id, NOW + SECOND)
    other_task = factories.ready_task(uow)

    def answer(client_id: str, task_serial: int | None = None) -> None:
        at = NOW + 2 * SECOND
        row = factories.report(serials[client_id], task_serial=task_serial, observed_at=at, received_at=at)
        uow.reports.add([row])

    answer("answers")
    uow.clients.remove("removed")
    answer("other", other_task.serial)
    assert uow.rounds.awaits_reports(round_)
    answer("other", round_.task_serial)
    assert not uow.rounds.awaits_reports(round_)
