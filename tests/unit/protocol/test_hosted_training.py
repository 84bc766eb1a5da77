"""A worker trains in a simulated client's place."""

import pytest

from services.domain.jobs import JobKind, TrainingState
from services.errors import NotSelectedError, RoundNotCollectingError
from services.protocol.aggregation import close_round
from services.protocol.jobs import finish_training, request_training
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE
from tests.unit.protocol.side_effects import claimed_job, event_kinds, lost_lease, waiting_jobs


def test_a_training_is_asked_for_once(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    training = request_training(uow, round_.round_id, "a", 3, NOW)
    assert (training.client_id, training.partition, training.state) == ("a", 3, TrainingState.WAITING)
    assert request_training(uow, round_.round_id, "a", 4, NOW) == training
    assert waiting_jobs(uow).count(JobKind.TRAIN_CLIENT) == 1
    assert event_kinds(uow)[-1] == "training.waiting"


def test_the_trained_update_is_kept(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    training = request_training(uow, round_.round_id, "a", 3, NOW)
    claimed = claimed_job(uow, JobKind.TRAIN_CLIENT)
    assert finish_training(uow, claimed, training, UPDATE, NOW + SECOND)
    done = uow.trainings.get(training.training_id)
    assert (done.state, done.digest, done.size_bytes) == (TrainingState.DONE, *vars(UPDATE).values())
    assert uow.rounds.get(round_.round_id).active_at == NOW + SECOND
    assert event_kinds(uow)[-1] == "training.done"
    assert not finish_training(uow, claimed, training, UPDATE, NOW)


def test_a_worker_that_lost_its_lease_trained_nothing(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    training = request_training(uow, round_.round_id, "a", 3, NOW)
    claimed = claimed_job(uow, JobKind.TRAIN_CLIENT)
    lost_lease(uow, claimed)
    assert not finish_training(uow, claimed, training, UPDATE, NOW)
    assert uow.trainings.get(training.training_id).state is TrainingState.WAITING


def test_when_the_round_closes_its_trainings_are_cancelled(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    training = request_training(uow, round_.round_id, "a", 3, NOW)
    close_round(uow, round_.round_id, NOW)
    assert uow.trainings.get(training.training_id).state is TrainingState.CANCELLED
    assert request_training(uow, round_.round_id, "a", 3, NOW).state is TrainingState.CANCELLED
    with pytest.raises(RoundNotCollectingError, match="failed"):
        request_training(uow, round_.round_id, "b", 3, NOW)


def test_only_selected_clients_are_trained_for(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    with pytest.raises(NotSelectedError, match="'b'"):
        request_training(uow, round_.round_id, "b", 3, NOW)
