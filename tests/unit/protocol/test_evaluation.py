"""A version of the model is evaluated in parts; at the target accuracy the task is finished."""

import pytest

from services.domain.clipping import AggregationRecord
from services.domain.jobs import JobKind
from services.domain.rounds import RoundState
from services.domain.tasks import PARTS, Score, TaskState
from services.protocol.aggregation import finish_aggregation
from services.protocol.evaluation import finish_evaluation
from services.protocol.resource_request import open_round
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, UPDATE
from tests.unit.protocol.side_effects import claimed_job, event_kinds, lost_lease, waiting_jobs


def _aggregated(uow: UnitOfWork, **terms: object) -> str:
    """A task whose first round has made a model that is not evaluated yet."""
    round_ = factories.scheduled_round(uow, "a", **terms)
    factories.received_update(uow, round_, "a")
    assert finish_aggregation(
        uow, claimed_job(uow, JobKind.AGGREGATE_ROUND), UPDATE, AggregationRecord(), NOW
    )
    return round_.task_id


def _evaluate(uow: UnitOfWork, correct: int) -> None:
    for _ in range(PARTS):
        job = claimed_job(uow, JobKind.EVALUATE_MODEL)
        assert finish_evaluation(uow, job, Score(100, correct, 50.0), NOW)


def test_with_the_last_part_the_accuracy_is_known(uow: UnitOfWork) -> None:
    task = uow.tasks.get(_aggregated(uow))
    for _ in range(PARTS - 1):
        job = claimed_job(uow, JobKind.EVALUATE_MODEL)
        assert finish_evaluation(uow, job, Score(100, 70, 50.0), NOW)
    assert uow.models.evaluation(task.serial, 1) is None
    job = claimed_job(uow, JobKind.EVALUATE_MODEL)
    assert finish_evaluation(uow, job, Score(100, 30, 50.0), NOW)
    evaluation = uow.models.evaluation(task.serial, 1)
    assert evaluation is not None
    assert (evaluation.accuracy, evaluation.loss) == ((70 * (PARTS - 1) + 30) / (100 * PARTS), 0.5)
    assert event_kinds(uow)[-1] == "model.evaluated"
    assert uow.tasks.get(task.task_id).state is TaskState.RUNNING
    assert not finish_evaluation(uow, job, Score(100, 30, 50.0), NOW)


@pytest.mark.parametrize(("correct", "state"), [(59, TaskState.RUNNING), (60, TaskState.FINISHED)])
def test_at_the_target_accuracy_the_task_is_finished(uow: UnitOfWork, correct: int, state: TaskState) -> None:
    task_id = _aggregated(uow, target_accuracy=0.6)
    _evaluate(uow, correct)
    assert uow.tasks.get(task_id).state is state


def test_a_round_that_is_open_then_is_cancelled(uow: UnitOfWork) -> None:
    task_id = _aggregated(uow)
    round_ = open_round(uow, task_id, NOW)
    task = uow.tasks.get(task_id)
    uow.tasks.change(task, terms=factories.terms(target_accuracy=0.5))
    _evaluate(uow, 100)
    assert uow.tasks.get(task_id).state is TaskState.FINISHED
    assert uow.rounds.get(round_.round_id).state is RoundState.CANCELLED


def test_a_worker_that_lost_its_lease_measured_nothing(uow: UnitOfWork) -> None:
    task = uow.tasks.get(_aggregated(uow))
    job = claimed_job(uow, JobKind.EVALUATE_MODEL)
    lost_lease(uow, job)
    assert not finish_evaluation(uow, job, Score(100, 70, 50.0), NOW)
    assert uow.models.scores(task.serial, 1) == []


def test_version_0_is_measured_from_the_first_round_on_if_the_task_says_so(uow: UnitOfWork) -> None:
    task = factories.ready_task(uow, evaluate_initial_model=True, target_accuracy=0.9)
    factories.reporting_clients(uow, "a")
    assert JobKind.EVALUATE_MODEL not in waiting_jobs(uow), "the model may still be replaced"
    open_round(uow, task.task_id, NOW)
    assert waiting_jobs(uow).count(JobKind.EVALUATE_MODEL) == PARTS
    _evaluate(uow, 10)
    evaluation = uow.models.evaluation(task.serial, 0)
    assert evaluation is not None
    assert evaluation.accuracy == 0.1
    assert uow.tasks.get(task.task_id).state is TaskState.RUNNING
    assert JobKind.EVALUATE_MODEL not in waiting_jobs(uow)


def test_by_default_version_0_is_not_measured(uow: UnitOfWork) -> None:
    factories.scheduled_round(uow, "a")
    assert JobKind.EVALUATE_MODEL not in waiting_jobs(uow)


def test_a_pretrained_model_may_have_the_target_accuracy_from_the_start(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", evaluate_initial_model=True, target_accuracy=0.5)
    _evaluate(uow, 50)
    assert uow.tasks.get(round_.task_id).state is TaskState.FINISHED
    assert uow.rounds.get(round_.round_id).state is RoundState.CANCELLED
