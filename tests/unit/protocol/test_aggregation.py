"""Collection ends, and the next model is taken from a worker."""

import pytest

from services.domain.clipping import AggregationRecord
from services.domain.jobs import Job, JobKind
from services.domain.rounds import Round, RoundState, SlotOutcome
from services.domain.tasks import PARTS, TaskState
from services.errors import RoundNotCollectingError, RoundNotFoundError
from services.protocol.aggregation import close_round, drop_client, finish_aggregation
from services.protocol.task_management import cancel_task
from services.protocol.upload import record_rejection
from services.storage.database import UnitOfWork
from services.storage.model_store import Blob
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND
from tests.unit.protocol.side_effects import claimed_job, event_kinds, lost_lease, waiting_jobs

NEXT_MODEL = Blob("d" * 64, 125_000)

OUTLIER_A, OUTLIER_B = (AggregationRecord(outliers={item: "its step is an outlier"}) for item in "ab")


def _aggregating(uow: UnitOfWork, *client_ids: str, **terms: object) -> tuple[Round, Job]:
    """A round with all its updates, and the job to aggregate them."""
    round_ = factories.scheduled_round(uow, *client_ids, **terms)
    for client_id in client_ids:
        factories.received_update(uow, round_, client_id)
    return uow.rounds.get(round_.round_id), claimed_job(uow, JobKind.AGGREGATE_ROUND)


def test_what_has_arrived_is_aggregated_and_nothing_more_is_awaited(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "rejected", "silent")
    factories.received_update(uow, round_, "a")
    record_rejection(uow, round_.round_id, "rejected", "not finite", NOW)
    closed = close_round(uow, round_.round_id, NOW + SECOND)
    assert (closed.state, closed.ended_at) == (RoundState.AGGREGATING, None)
    outcomes = {slot.client_id: slot.outcome for slot in uow.rounds.slots(round_.serial)}
    assert outcomes == {
        "a": SlotOutcome.RECEIVED,
        "rejected": SlotOutcome.REJECTED,
        "silent": SlotOutcome.MISSED,
    }
    assert waiting_jobs(uow).count(JobKind.AGGREGATE_ROUND) == 1
    assert close_round(uow, round_.round_id, NOW + SECOND) == closed


@pytest.mark.parametrize(("received", "min_updates"), [(0, 1), (1, 2)])
def test_with_too_few_updates_a_round_fails(uow: UnitOfWork, received: int, min_updates: int) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", min_updates=min_updates)
    for client_id in "ab"[:received]:
        factories.received_update(uow, round_, client_id)
    closed = close_round(uow, round_.round_id, NOW)
    assert (closed.state, closed.outcome, closed.ended_at) == (RoundState.FAILED, "TOO_FEW_UPDATES", NOW)
    assert JobKind.AGGREGATE_ROUND not in waiting_jobs(uow)


def test_a_round_that_does_not_collect_cannot_be_closed(uow: UnitOfWork) -> None:
    requesting = factories.scheduled_round(uow, "a", report_window_s=60.0)
    with pytest.raises(RoundNotCollectingError, match="requesting"):
        close_round(uow, requesting.round_id, NOW)
    cancel_task(uow, requesting.task_id, NOW)
    with pytest.raises(RoundNotCollectingError, match="cancelled"):
        close_round(uow, requesting.round_id, NOW)
    with pytest.raises(RoundNotFoundError):
        close_round(uow, "nothing", NOW)


def test_a_round_does_not_wait_for_a_client_that_is_removed(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    factories.received_update(uow, round_, "a")
    drop_client(uow, "b", round_.round_id, NOW)
    assert uow.rounds.get(round_.round_id).state is RoundState.AGGREGATING
    drop_client(uow, "a", round_.round_id, NOW)
    slot = uow.rounds.slot(round_.serial, "a")
    assert slot is not None
    assert slot.outcome is SlotOutcome.RECEIVED


def test_the_aggregated_model_is_the_next_version_and_is_evaluated(uow: UnitOfWork) -> None:
    round_, job = _aggregating(uow, "a", "b")
    assert finish_aggregation(uow, job, NEXT_MODEL, AggregationRecord(), NOW + SECOND)
    ended = uow.rounds.get(round_.round_id)
    assert (ended.state, ended.ended_at, ended.received) == (RoundState.AGGREGATED, NOW + SECOND, 2)
    task = uow.tasks.get(round_.task_id)
    assert (task.state, task.model_version, task.elapsed_s) == (TaskState.RUNNING, 1, 180.0)
    assert uow.models.get(task.serial, 1).digest == NEXT_MODEL.digest
    assert waiting_jobs(uow).count(JobKind.EVALUATE_MODEL) == PARTS
    assert event_kinds(uow)[-2:] == ["model.created", "round.aggregated"]
    assert not finish_aggregation(uow, job, NEXT_MODEL, AggregationRecord(), NOW + SECOND)


def test_without_a_data_set_nothing_is_evaluated(uow: UnitOfWork) -> None:
    _, job = _aggregating(uow, "a", dataset=None)
    assert finish_aggregation(uow, job, NEXT_MODEL, AggregationRecord(), NOW)
    assert JobKind.EVALUATE_MODEL not in waiting_jobs(uow)


def test_with_the_last_round_before_the_final_deadline_the_task_is_finished(uow: UnitOfWork) -> None:
    round_, job = _aggregating(uow, "a", final_deadline_s=300.0)
    assert finish_aggregation(uow, job, NEXT_MODEL, AggregationRecord(), NOW)
    assert uow.tasks.get(round_.task_id).state is TaskState.FINISHED


@pytest.mark.parametrize(("min_updates", "state"), [(1, RoundState.AGGREGATED), (2, RoundState.FAILED)])
def test_updates_that_were_not_used_are_rejected_and_do_not_count(
    uow: UnitOfWork, min_updates: int, state: RoundState
) -> None:
    round_, job = _aggregating(uow, "a", "b", min_updates=min_updates)
    assert finish_aggregation(uow, job, NEXT_MODEL, OUTLIER_B, NOW)
    ended = uow.rounds.get(round_.round_id)
    assert (ended.state, ended.received) == (state, 1)
    slot = uow.rounds.slot(round_.serial, "b")
    assert slot is not None
    assert (slot.outcome, slot.rejections) == (SlotOutcome.REJECTED, 1)
    assert slot.last_rejection == "its step is an outlier"
    assert event_kinds(uow).count("update.rejected") == 1


def test_without_a_model_the_round_fails(uow: UnitOfWork) -> None:
    round_, job = _aggregating(uow, "a")
    assert finish_aggregation(uow, job, None, OUTLIER_A, NOW)
    ended = uow.rounds.get(round_.round_id)
    assert (ended.state, ended.outcome) == (RoundState.FAILED, "TOO_FEW_UPDATES")
    assert uow.tasks.get(round_.task_id).model_version == 0


def test_a_worker_that_lost_its_lease_makes_no_model(uow: UnitOfWork) -> None:
    round_, job = _aggregating(uow, "a")
    lost_lease(uow, job)
    assert not finish_aggregation(uow, job, NEXT_MODEL, AggregationRecord(), NOW)
    assert uow.rounds.get(round_.round_id).state is RoundState.AGGREGATING
