"""What is told of a job: that it was begun, how far it is, that it was handed back or failed."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from services.domain.jobs import Job, JobKind, JobState, TrainingState
from services.domain.tasks import TaskOutcome, TaskState
from services.protocol.initialization import start_task
from services.protocol.jobs import claim_job, fail_job, hand_back_job, renew_job, request_training
from services.storage.database import Database, UnitOfWork
from services.storage.tables import events, jobs
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND

LEASE = timedelta(seconds=20)


def _events(database: Database) -> list[Any]:
    query = select(events).where(events.c.kind.startswith("job.")).order_by(events.c.number)
    with database.engine.connect() as connection:
        return list(connection.execute(query).all())


def _kinds(database: Database) -> list[str]:
    return [event.kind for event in _events(database)]


def _initialization(uow: UnitOfWork) -> tuple[str, str]:
    """A task, and its job."""
    task = start_task(uow, factories.terms(), NOW)
    of_task = select(jobs.c.job_id).where(jobs.c.task_serial == task.serial)
    return task.task_id, uow._connection.execute(of_task).scalar_one()


def _claim(uow: UnitOfWork, job_id: str) -> Job:
    claimed = claim_job(uow, job_id, NOW, LEASE)
    assert claimed is not None
    return claimed


def test_a_job_is_told_of_with_its_subject_and_what_it_belongs_to(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, "a")
        training = request_training(uow, round_.round_id, "a", 3, NOW)
        of_round = select(jobs.c.job_id).where(jobs.c.round_serial == round_.serial)
        claimed = _claim(uow, uow._connection.execute(of_round).scalar_one())
        assert claimed.lease_expires_at == NOW + LEASE
        uow.commit()
    (told,) = _events(database)
    assert (told.kind, told.at) == ("job.started", NOW)
    assert (told.task_id, told.round_id) == (round_.task_id, round_.round_id)
    subject = {"training_id": training.training_id}
    assert told.data == {"job_id": claimed.job_id, "job": "train_client", "subject": subject, "attempt": 1}


def test_progress_is_told_with_each_renewal(database: Database) -> None:
    with database.unit_of_work() as uow:
        task_id, job_id = _initialization(uow)
        claimed = _claim(uow, job_id)
        assert renew_job(uow, claimed, 0.123456, NOW + SECOND, LEASE)
        renewed = uow.jobs.get(job_id)
        assert renewed is not None
        assert renewed.lease_expires_at == NOW + SECOND + LEASE
        uow.commit()
    _, told = _events(database)
    assert (told.kind, told.task_id, told.round_id) == ("job.progress", task_id, None)
    assert told.data["done"] == 0.123


def test_nothing_is_told_of_what_is_no_longer_ones_own(database: Database) -> None:
    with database.unit_of_work() as uow:
        task_id, job_id = _initialization(uow)
        claimed = _claim(uow, job_id)
        assert claim_job(uow, job_id, NOW, LEASE) is None
        assert claim_job(uow, "job-unknown", NOW, LEASE) is None
        assert hand_back_job(uow, claimed, NOW)
        assert not hand_back_job(uow, claimed, NOW)
        assert not renew_job(uow, claimed, 0.5, NOW, LEASE)
        assert not fail_job(uow, task_id, claimed, "too late", NOW)
        assert _claim(uow, job_id).attempts == 1, "to be handed back is no attempt"
        uow.commit()
    assert _kinds(database) == ["job.started", "job.handed_back", "job.started"]


def test_every_failed_attempt_is_told_of_and_the_last_ends_the_task(database: Database) -> None:
    with database.unit_of_work() as uow:
        task_id, job_id = _initialization(uow)
        for attempt in (1, 2, 3):
            assert uow.tasks.get(task_id).state is TaskState.INITIALIZING
            assert fail_job(uow, task_id, _claim(uow, job_id), f"failure {attempt}", NOW)
        task = uow.tasks.get(task_id)
        uow.commit()
    failures = [event.data for event in _events(database) if event.kind == "job.failed"]
    assert [(item["attempt"], item["error"]) for item in failures] == [
        (attempt, f"failure {attempt}") for attempt in (1, 2, 3)
    ]
    assert (task.state, task.outcome) == (TaskState.FAILED, TaskOutcome.INITIALIZATION_FAILED)
    assert task.detail == "failure 3"


@pytest.mark.parametrize("kind", [JobKind.INITIALIZE_MODEL, JobKind.TRAIN_CLIENT])
def test_what_is_hopeless_is_given_up_at_once(database: Database, kind: JobKind) -> None:
    with database.unit_of_work() as uow:
        if kind is JobKind.INITIALIZE_MODEL:
            task_id, job_id = _initialization(uow)
        else:
            round_ = factories.scheduled_round(uow, "a")
            task_id = round_.task_id
            training = request_training(uow, round_.round_id, "a", 3, NOW)
            of_round = select(jobs.c.job_id).where(jobs.c.round_serial == round_.serial)
            job_id = uow._connection.execute(of_round).scalar_one()
        assert fail_job(uow, task_id, _claim(uow, job_id), "no such data set", NOW, permanent=True)
        job = uow.jobs.get(job_id)
        assert job is not None
        assert (job.state, job.error) == (JobState.FAILED, "no such data set")
        if kind is JobKind.INITIALIZE_MODEL:
            assert uow.tasks.get(task_id).state is TaskState.FAILED
        else:
            ended = uow.trainings.get(training.training_id)
            assert (ended.state, ended.error) == (TrainingState.FAILED, "no such data set")
            assert uow.tasks.get(task_id).state is TaskState.RUNNING
        uow.commit()
    assert _kinds(database) == ["job.started", "job.failed"]
