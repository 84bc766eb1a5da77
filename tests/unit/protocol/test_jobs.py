"""Jobs under a lease: claimed, renewed, handed back, and given up after the last attempt."""

import pytest

from services.domain.jobs import Job, JobKind, JobState, TrainingState
from services.domain.rounds import RoundState
from services.domain.tasks import TaskOutcome, TaskState
from services.protocol.initialization import start_task
from services.protocol.jobs import claim_job, fail_job, hand_back_job, renew_job, request_training
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND
from tests.unit.protocol.side_effects import LEASE, claimed_job, event_kinds, lost_lease


def _initialization(uow: UnitOfWork) -> tuple[str, Job]:
    task = start_task(uow, factories.terms(), NOW)
    return task.task_id, claimed_job(uow, JobKind.INITIALIZE_MODEL)


def _state(uow: UnitOfWork, job: Job) -> tuple[JobState, int]:
    found = uow.jobs.get(job.job_id)
    assert found is not None
    return found.state, found.attempts


def test_a_job_is_claimed_once_and_renewed_by_its_holder(uow: UnitOfWork) -> None:
    start_task(uow, factories.terms(), NOW)
    (waiting,) = uow.jobs.to_publish(NOW, SECOND, 10)
    claimed = claim_job(uow, waiting.job_id, NOW, LEASE)
    assert claimed is not None
    assert claim_job(uow, waiting.job_id, NOW, LEASE) is None
    assert claim_job(uow, "nothing", NOW, LEASE) is None
    assert renew_job(uow, claimed, 0.5, NOW + SECOND, LEASE)
    assert event_kinds(uow)[-2:] == ["job.started", "job.progress"]
    lost_lease(uow, claimed)
    assert not renew_job(uow, claimed, 0.75, NOW + SECOND, LEASE)


def test_a_job_that_is_handed_back_waits_again_without_an_attempt(uow: UnitOfWork) -> None:
    _, claimed = _initialization(uow)
    assert hand_back_job(uow, claimed, NOW)
    assert _state(uow, claimed) == (JobState.WAITING, 0)
    assert not hand_back_job(uow, claimed, NOW)


def test_a_failed_job_is_tried_again_until_its_last_attempt(uow: UnitOfWork) -> None:
    task_id, claimed = _initialization(uow)
    for attempt in range(1, claimed.max_attempts):
        assert fail_job(uow, task_id, claimed, "no memory", NOW)
        assert _state(uow, claimed) == (JobState.WAITING, attempt)
        assert uow.tasks.get(task_id).state is TaskState.INITIALIZING
        claimed = claimed_job(uow, JobKind.INITIALIZE_MODEL)
    assert fail_job(uow, task_id, claimed, "no memory", NOW)
    assert _state(uow, claimed) == (JobState.FAILED, claimed.max_attempts)
    failed = uow.tasks.get(task_id)
    assert (failed.state, failed.ended_at) == (TaskState.FAILED, NOW)
    assert (failed.outcome, failed.detail) == (TaskOutcome.INITIALIZATION_FAILED, "no memory")


def test_a_hopeless_job_is_given_up_at_once(uow: UnitOfWork) -> None:
    task_id, claimed = _initialization(uow)
    assert fail_job(uow, task_id, claimed, "there is no such network", NOW, permanent=True)
    assert uow.tasks.get(task_id).state is TaskState.FAILED


def test_whoever_lost_the_lease_fails_nothing(uow: UnitOfWork) -> None:
    task_id, claimed = _initialization(uow)
    lost_lease(uow, claimed)
    for permanent in (False, True):
        assert not fail_job(uow, task_id, claimed, "no memory", NOW, permanent=permanent)
    assert uow.tasks.get(task_id).state is TaskState.INITIALIZING


def test_with_its_job_a_training_fails_and_the_round_goes_on(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    training = request_training(uow, round_.round_id, "a", 3, NOW)
    claimed = claimed_job(uow, JobKind.TRAIN_CLIENT)
    assert fail_job(uow, round_.task_id, claimed, "no memory", NOW, permanent=True)
    failed = uow.trainings.get(training.training_id)
    assert (failed.state, failed.error, failed.ended_at) == (TrainingState.FAILED, "no memory", NOW)
    assert uow.rounds.get(round_.round_id).is_open
    assert event_kinds(uow)[-2:] == ["job.failed", "training.failed"]


@pytest.mark.parametrize("permanent", [False, True])
def test_with_its_job_an_aggregation_fails_and_the_task_goes_on(uow: UnitOfWork, permanent: bool) -> None:
    round_ = factories.scheduled_round(uow, "a")
    factories.received_update(uow, round_, "a")
    claimed = claimed_job(uow, JobKind.AGGREGATE_ROUND)
    assert fail_job(uow, round_.task_id, claimed, "no memory", NOW, permanent=permanent)
    ended = uow.rounds.get(round_.round_id)
    expected = (RoundState.FAILED, "AGGREGATION_FAILED") if permanent else (RoundState.AGGREGATING, None)
    assert (ended.state, ended.outcome) == expected
    assert uow.tasks.get(round_.task_id).state is TaskState.RUNNING
