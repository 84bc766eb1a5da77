"""The hosted trainings in both kinds of database."""

import pytest
from sqlalchemy.exc import IntegrityError

from services.domain.jobs import Training, TrainingState
from services.errors import TrainingNotFoundError
from services.protocol.resource_request import open_round
from services.storage.database import Database
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE


def test_a_training_waits_as_it_was_asked_for(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, "a", "b")
        added = uow.trainings.add(round_, "a", 2**40, NOW)
        uow.commit()
    expected = Training(
        added.training_id, round_.round_id, "a", 2**40, TrainingState.WAITING, NOW, None, None, None, None
    )
    with database.reading() as store:
        assert store.trainings.get(added.training_id) == added == expected
        assert store.trainings.of_client(round_, "a") == expected
        assert store.trainings.of_client(round_, "b") is None
        with pytest.raises(TrainingNotFoundError, match="'nothing'"):
            store.trainings.get("nothing")


def test_a_client_is_trained_once_in_a_round_and_only_with_a_slot(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, "a")
        other = open_round(uow, factories.ready_task(uow).task_id, NOW)
        uow.trainings.add(round_, "a", 0, NOW)
        uow.trainings.add(other, "a", 0, NOW)
        uow.commit()
        with pytest.raises(IntegrityError):
            uow.trainings.add(round_, "a", 1, NOW)
    with database.unit_of_work() as uow, pytest.raises(IntegrityError):
        uow.trainings.add(round_, "stranger", 0, NOW)


def test_a_training_ends_with_its_update_or_with_an_error(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, "a", "b")
        good, bad = uow.trainings.add(round_, "a", 0, NOW), uow.trainings.add(round_, "b", 1, NOW)
        uow.trainings.end(
            good.training_id,
            state=TrainingState.DONE,
            ended_at=NOW + SECOND,
            digest=UPDATE.digest,
            size_bytes=2**40,
        )
        uow.trainings.end(bad.training_id, state=TrainingState.FAILED, ended_at=NOW, error="no memory")
        done, failed = uow.trainings.get(good.training_id), uow.trainings.get(bad.training_id)
    assert (done.state, done.ended_at) == (TrainingState.DONE, NOW + SECOND)
    assert (done.digest, done.size_bytes, done.error) == (UPDATE.digest, 2**40, None)
    assert (failed.state, failed.digest, failed.error) == (TrainingState.FAILED, None, "no memory")


def test_cancelling_a_rounds_trainings_leaves_those_that_ended_and_those_of_others(
    database: Database,
) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, "a", "b")
        other = open_round(uow, factories.ready_task(uow).task_id, NOW)
        waiting, ended = uow.trainings.add(round_, "a", 0, NOW), uow.trainings.add(round_, "b", 1, NOW)
        elsewhere = uow.trainings.add(other, "a", 0, NOW)
        uow.trainings.end(ended.training_id, state=TrainingState.FAILED, ended_at=NOW, error="no memory")
        kept = [uow.trainings.get(ended.training_id), elsewhere]
        uow.trainings.cancel(round_, NOW + SECOND)
        cancelled = uow.trainings.get(waiting.training_id)
        assert (cancelled.state, cancelled.ended_at) == (TrainingState.CANCELLED, NOW + SECOND)
        assert [uow.trainings.get(item.training_id) for item in kept] == kept
