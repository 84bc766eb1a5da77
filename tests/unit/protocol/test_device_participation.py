"""Clients decline slots, and evaluate models on their own data."""

import pytest

from services.domain.clipping import AggregationRecord
from services.domain.jobs import JobKind
from services.domain.rounds import Round, RoundState, SlotOutcome
from services.domain.tasks import (
    MIN_TARGET_DEVICES,
    DeviceEvaluation,
    TargetMetric,
    TaskOutcome,
    TaskState,
    combine_device_evaluations,
)
from services.errors import (
    EvaluationExistsError,
    ModelNotFoundError,
    NotSelectedError,
    RoundNotCollectingError,
)
from services.protocol.aggregation import close_round, finish_aggregation
from services.protocol.evaluation import add_device_evaluation
from services.protocol.resource_request import open_round
from services.protocol.upload import decline_slot
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, UPDATE
from tests.unit.protocol.side_effects import claimed_job, event_kinds

HONEST = DeviceEvaluation(0.5, 1.0, 100)
BOASTFUL = DeviceEvaluation(1.0, 0.0, 10**9)


def _outcome(uow: UnitOfWork, round_: Round, client_id: str) -> SlotOutcome:
    slot = uow.rounds.slot(round_.serial, client_id)
    assert slot is not None
    return slot.outcome


def test_a_declined_slot_is_free_and_the_round_ends_with_the_others(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    declined = decline_slot(uow, round_.round_id, "a", "low battery", NOW)
    assert declined.state is RoundState.SCHEDULED
    assert _outcome(uow, round_, "a") is SlotOutcome.DECLINED
    assert event_kinds(uow)[-1] == "update.declined"
    assert decline_slot(uow, round_.round_id, "a", "again", NOW) == declined
    assert [round_.round_id for round_ in uow.rounds.open_for("a")] == []
    factories.received_update(uow, round_, "b")
    assert uow.rounds.get(round_.round_id).state is RoundState.AGGREGATING
    assert _outcome(uow, round_, "a") is SlotOutcome.DECLINED


def test_a_round_that_all_decline_fails_at_once(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    assert decline_slot(uow, round_.round_id, "a", "no", NOW).outcome == "TOO_FEW_UPDATES"


def test_what_cannot_be_declined(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    with pytest.raises(NotSelectedError):
        decline_slot(uow, round_.round_id, "stranger", "no", NOW)
    factories.received_update(uow, round_, "a")
    with pytest.raises(RoundNotCollectingError, match="received"):
        decline_slot(uow, round_.round_id, "a", "no", NOW)
    close_round(uow, round_.round_id, NOW)
    with pytest.raises(RoundNotCollectingError, match="aggregating"):
        decline_slot(uow, round_.round_id, "b", "no", NOW)


@pytest.mark.parametrize(
    ("actions", "missed"),
    [("DD", 0), ("DDD", 1), ("DDUD", 0), ("DDDDDD", 2), ("DDMDDD", 2), ("M", 1), ("DUDUD", 0)],
)
def test_three_declined_rounds_in_a_row_count_as_one_miss(uow: UnitOfWork, actions: str, missed: int) -> None:
    factories.reporting_clients(uow, "a", "other")
    task = factories.ready_task(uow)
    for action in actions:
        round_ = open_round(uow, task.task_id, NOW)
        if action == "D":
            decline_slot(uow, round_.round_id, "a", "no", NOW)
        if action == "U":
            factories.received_update(uow, round_, "a")
        uow.rounds.settle_slots(round_.serial)
        uow.rounds.change(round_, state=RoundState.AGGREGATED, ended_at=NOW)
    history = uow.rounds.history(task.serial, ["a", "other"])
    assert history.missed.tolist() == [missed, len(actions)]
    assert history.selected.tolist() == [len(actions)] * 2


def _evaluated_task(uow: UnitOfWork, devices: int, **terms: object) -> str:
    """A task with version 1 of its model, in which so many clients were selected."""
    round_ = factories.scheduled_round(uow, *(f"d{number}" for number in range(devices)), **terms)
    factories.received_update(uow, round_, "d0")
    close_round(uow, round_.round_id, NOW)
    job = claimed_job(uow, JobKind.AGGREGATE_ROUND)
    assert finish_aggregation(uow, job, UPDATE, AggregationRecord(), NOW)
    return round_.task_id


def _evaluate(uow: UnitOfWork, task_id: str, number: int, evaluation: DeviceEvaluation) -> None:
    add_device_evaluation(uow, task_id, 1, evaluation, NOW, client_id=f"d{number}")


def test_a_device_counts_at_most_three_times_the_median() -> None:
    score = combine_device_evaluations([HONEST] * 9 + [BOASTFUL])
    assert score.devices == 10
    assert score.accuracy == pytest.approx((9 * 0.5 + 3 * 1.0) / 12)


def test_each_version_is_evaluated_once_by_clients_of_the_task(uow: UnitOfWork) -> None:
    task_id = _evaluated_task(uow, 2)
    _evaluate(uow, task_id, 0, HONEST)
    with pytest.raises(EvaluationExistsError):
        _evaluate(uow, task_id, 0, BOASTFUL)
    factories.clients(uow, "stranger")
    with pytest.raises(NotSelectedError):
        add_device_evaluation(uow, task_id, 1, HONEST, NOW, client_id="stranger")
    with pytest.raises(ModelNotFoundError):
        add_device_evaluation(uow, task_id, 2, HONEST, NOW, client_id="d1")
    add_device_evaluation(uow, task_id, 0, HONEST, NOW, client_id="d0")
    task = uow.tasks.get(task_id)
    scores = uow.models.device_evaluations(task.serial)
    assert {version: score.devices for version, score in scores.items()} == {0: 1, 1: 1}


ON_DEVICES = {"target_metric": TargetMetric.DEVICE, "target_accuracy": 0.7, "dataset": None}


def test_a_task_ends_when_enough_devices_have_measured_its_target(uow: UnitOfWork) -> None:
    task_id = _evaluated_task(uow, MIN_TARGET_DEVICES, **ON_DEVICES)
    for number in range(MIN_TARGET_DEVICES):
        assert uow.tasks.get(task_id).state is TaskState.RUNNING
        _evaluate(uow, task_id, number, DeviceEvaluation(0.7, None, 100))
    ended = uow.tasks.get(task_id)
    assert (ended.state, ended.outcome) == (TaskState.FINISHED, TaskOutcome.TARGET_ACCURACY)


def test_poisoned_evaluations_do_not_end_a_task(uow: UnitOfWork) -> None:
    task_id = _evaluated_task(uow, MIN_TARGET_DEVICES + 1, **ON_DEVICES)
    _evaluate(uow, task_id, 0, BOASTFUL)
    for number in range(1, MIN_TARGET_DEVICES + 1):
        _evaluate(uow, task_id, number, HONEST)
        assert uow.tasks.get(task_id).state is TaskState.RUNNING


def test_devices_end_no_task_whose_target_workers_measure(uow: UnitOfWork) -> None:
    task_id = _evaluated_task(uow, MIN_TARGET_DEVICES, target_accuracy=0.7)
    for number in range(MIN_TARGET_DEVICES):
        _evaluate(uow, task_id, number, BOASTFUL)
    assert uow.tasks.get(task_id).state is TaskState.RUNNING
